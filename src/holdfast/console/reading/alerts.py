"""The alerts of ``deploy/prometheus/alerts.yaml``, judged by what the console has seen, without their waiting times.

Each says what is wrong now in a few words; its runbook says what to do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from holdfast.console import units
from holdfast.console.reading.exposition import Scrape, quantile
from holdfast.console.reading.watcher import Watcher

RECENT_SECONDS: Final = 60.0
COMMIT_SECONDS_MAX: Final = 1.0
REFUSALS_PER_SECOND_MAX: Final = 1.0
CONFLICT_PART_MAX: Final = 0.5
VIEW_SECONDS_MIN: Final = 10.0
VIEW_LAG_MAX: Final = 100_000
DISK_PART_MAX: Final = 0.9
STORE_PART_MAX: Final = 0.9
BACKLOG_MAX: Final = 100_000


@dataclass(frozen=True, slots=True)
class Alert:
    """``judge`` gives what is wrong, None where all is well. ``before`` and ``now`` are about a minute apart."""

    name: str
    is_urgent: bool
    judge: Callable[[Scrape, Scrape], str | None]


def _no_leader(_: Scrape, now: Scrape) -> str | None:
    return None if now.value("holdfast_leading") else "the process that answers does not lead"


def _store_unhealthy(_: Scrape, now: Scrape) -> str | None:
    return "the last requests to the object store all failed" if now.get("holdfast_store_healthy") == 0 else None


def _slow(before: Scrape, now: Scrape) -> str | None:
    late = quantile(0.99, before, now, "holdfast_commit_seconds") or 0.0
    return f"one commit in a hundred takes {units.duration(late)} or more" if late > COMMIT_SECONDS_MAX else None


def _overloaded(before: Scrape, now: Scrape) -> str | None:
    a_second = now.rise(before, "holdfast_http_answers_total", status="503") / max(1.0, now.at - before.at)
    return f"{units.rate(a_second)} requests are refused" if a_second > REFUSALS_PER_SECOND_MAX else None


def _conflicts(before: Scrape, now: Scrape) -> str | None:
    conflicts = now.rise(before, "holdfast_commits_total", outcome="conflict")
    decided = conflicts + now.rise(before, "holdfast_commits_total", outcome="committed")
    part = conflicts / decided if decided else 0.0
    return f"{part:.0%} of commits conflict" if part > CONFLICT_PART_MAX else None


def _damaged(_: Scrape, now: Scrape) -> str | None:
    places = now.value("holdfast_log_damaged_places")
    return f"{units.count(places)} damaged places of the log are known" if places else None


def _clock_stepped(_: Scrape, now: Scrape) -> str | None:
    seconds = now.value("holdfast_clock_step_seconds")
    return f"the leader's clock has stepped by {units.duration(abs(seconds))}, and is not followed" if seconds else None


def _view_behind(before: Scrape, now: Scrape) -> str | None:
    if not now.value("holdfast_view_version") or now.at - before.at < VIEW_SECONDS_MIN:
        return None  # it is being made, or crosses the gap of versions that a change of leader leaves
    lag = min(before.value("holdfast_view_lag_versions"), now.value("holdfast_view_lag_versions"))
    return f"the view is {units.count(lag)} versions late" if lag > VIEW_LAG_MAX else None


def _retention_waits(_: Scrape, now: Scrape) -> str | None:
    return "no object of the log may be removed" if now.value("holdfast_retention_waits") else None


def _lagging(before: Scrape, now: Scrape) -> str | None:
    ended = now.rise(before, "holdfast_subscribers_lagged_total")
    return f"{units.count(ended)} subscriptions ended because they read too slowly" if ended else None


def _disk(_: Scrape, now: Scrape) -> str | None:
    used, limit = (now.value(f"holdfast_message_stores_disk_{name}_bytes") for name in ("used", "limit"))
    part = used / limit if limit else 0.0
    return f"the disk is at {part:.0%} of the limit of the stores" if part > DISK_PART_MAX else None


def full_stores(now: Scrape) -> list[tuple[str, float]]:
    """Each store that is near its limit, with the part of it that is used, the fullest first; ``""`` is all stores."""
    used = [("", now.value("holdfast_message_stores_used_fraction"))]
    used += [(labels["store"], part) for labels, part in now.labelled("holdfast_message_store_used_fraction")]
    return sorted((each for each in used if each[1] > STORE_PART_MAX), key=lambda each: -each[1])


def are_closed(now: Scrape) -> bool:
    """Whether the leader does not serve its stores: they are suspended, or not open."""
    return now.get("holdfast_message_stores_open") == 0 and bool(now.value("holdfast_leading"))


def _full(_: Scrape, now: Scrape) -> str | None:
    full = full_stores(now)
    if not full:
        return None
    name, part = full[0]
    which = f"the store {name} is" if name else "all stores together are"
    more = f", and {units.counted(len(full) - 1, 'other limit')} nearly reached" if len(full) > 1 else ""
    return f"{which} at {part:.0%} of a limit; publishes are refused at 100%{more}"


def _durable(labels: Mapping[str, str]) -> str:
    return f"{labels['store']}/{labels['durable']}"


def _dead_letters(before: Scrape, now: Scrape) -> str | None:
    if not before.has("holdfast_durable_dead_letters_total"):
        return None  # the stores were not open yet: the count is that of all time
    name = "holdfast_durable_dead_letters_total"
    moved = now.rise(before, name)
    if not moved:
        return None
    earlier = {_durable(labels): value for labels, value in before.labelled(name)}
    rises = [(value - earlier.get(_durable(labels), 0.0), _durable(labels)) for labels, value in now.labelled(name)]
    most = max(rises, default=(0.0, ""))[1]
    of = f", most of them of {most}" if most else ""
    return f"{units.counted(int(moved), 'message')} became dead letters in the last minute{of}"


def _backlog(_: Scrape, now: Scrape) -> str | None:
    largest = max((value for _, value in now.labelled("holdfast_durable_backlog")), default=0.0)
    return f"a durable has {units.count(largest)} messages that no subscriber holds" if largest > BACKLOG_MAX else None


def _stores_closed(_: Scrape, now: Scrape) -> str | None:
    return "the leader does not serve its message stores" if are_closed(now) else None


ALERTS: Final[tuple[Alert, ...]] = (
    Alert("HoldfastNoLeader", True, _no_leader),
    Alert("HoldfastStoreUnhealthy", True, _store_unhealthy),
    Alert("HoldfastLogDamaged", True, _damaged),
    Alert("HoldfastStoresClosed", True, _stores_closed),
    Alert("HoldfastMessageStoresDiskFull", True, _disk),
    Alert("HoldfastStoresFull", True, _full),
    Alert("HoldfastCommitsSlow", False, _slow),
    Alert("HoldfastOverloaded", False, _overloaded),
    Alert("HoldfastConflicts", False, _conflicts),
    Alert("HoldfastViewBehind", False, _view_behind),
    Alert("HoldfastClockStepped", False, _clock_stepped),
    Alert("HoldfastRetentionWaits", False, _retention_waits),
    Alert("HoldfastSubscribersLag", False, _lagging),
    Alert("HoldfastDeadLetters", False, _dead_letters),
    Alert("HoldfastBacklogGrows", False, _backlog),
)
"""All but ``HoldfastTwoLeaders``, and ``HoldfastLeaderChanges``, which needs an hour of memory."""
TWO_LEADERS: Final = Alert("HoldfastTwoLeaders", True, lambda _, __: None)


def alerts_of(watcher: Watcher) -> list[tuple[Alert, str]]:
    """What is wrong now, the urgent first."""
    leaders = sum(member.leads for member in watcher.members)
    two = [(TWO_LEADERS, f"{leaders} processes say that they lead")] if leaders > 1 else []
    newest = watcher.newest
    if newest is None:
        return two
    recent = watcher.recent(RECENT_SECONDS)
    before, now = recent if recent is not None else (newest, newest)
    judged = [(alert, alert.judge(before, now)) for alert in ALERTS]
    return two + [(alert, text) for alert, text in judged if text is not None]
