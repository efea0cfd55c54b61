"""What the console makes of scrapes: rates, quantiles, alerts, and the bounds of what it remembers."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from holdfast.console import units
from holdfast.console.call import PageCall
from holdfast.console.frame import state_of
from holdfast.console.html import text_of
from holdfast.console.pages.overview import _as_of, _health, _stuck_stores
from holdfast.console.pages.runbooks import markdown
from holdfast.console.parts import address_shown, name_shown, whole_name
from holdfast.console.reading.alerts import ALERTS, TWO_LEADERS, alerts_of
from holdfast.console.reading.exposition import Scrape, quantile
from holdfast.console.reading.service import Member, WatchedService
from holdfast.console.reading.watcher import DURABLES_MAX, MINUTES_MAX, SCRAPES_MAX, Watcher
from holdfast.console.values import key_link, value_of
from holdfast.wire.log import Liveness

ROOT = Path(__file__).resolve().parents[3]
HEALTHY = "holdfast_leading 1.0\nholdfast_store_healthy 1.0\n"


def watcher_of(*texts: str, step: float = 2.0) -> Watcher:
    watcher = Watcher(WatchedService(["http://127.0.0.1:1"], None))
    for number, text in enumerate(texts):
        watcher._add(Scrape(text, number * step))
    return watcher


def names(watcher: Watcher) -> list[str]:
    return [alert.name for alert, _ in alerts_of(watcher)]


def test_a_rate_is_the_rise_between_scrapes_and_never_below_zero() -> None:
    lines = [f'holdfast_commits_total{{outcome="committed"}} {value}.0' for value in (10, 30, 5)]
    assert watcher_of(*lines).rates("holdfast_commits_total", outcome="committed") == [10.0, 0.0]


def test_a_new_process_begins_new_figures() -> None:
    watcher = watcher_of("process_cpu_seconds_total 9.0", "process_cpu_seconds_total 1.0")
    assert len(watcher.scrapes) == 1


def test_a_quantile_is_of_what_came_between_two_scrapes() -> None:
    def text(*counts: int) -> str:
        bounds = ("0.001", "0.01", "+Inf")
        return "\n".join(f'h_bucket{{le="{bound}"}} {count}.0' for bound, count in zip(bounds, counts, strict=True))

    before, after = Scrape(text(100, 100, 100), 0), Scrape(text(100, 200, 200), 1)
    assert quantile(0.5, before, after, "h") == pytest.approx(0.0055)
    assert quantile(0.5, None, before, "h") == pytest.approx(0.0005)
    assert quantile(0.5, after, after, "h") is None
    assert quantile(0.5, None, Scrape(text(0, 0, 1), 0), "h") == 0.01


def test_names_of_stores_and_durables_may_have_any_characters() -> None:
    store = 'a"b\\c\nd'
    escaped = store.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
    watcher = watcher_of(
        *(f'holdfast_message_store_published_total{{store="{escaped}"}} {value}.0' for value in (2, 6))
    )
    assert watcher.rate_of_store("holdfast_message_store_published_total", store=store) == 2.0
    assert watcher.newest is not None
    assert [labels["store"] for labels, _ in watcher.newest.labelled("holdfast_message_store_published_total")] == [
        store
    ]


def test_what_is_remembered_is_bounded() -> None:
    durables = "\n".join(f'holdfast_durable_backlog{{durable="{n}",store="s"}} 1.0' for n in range(DURABLES_MAX + 5))
    watcher = watcher_of(*([durables] * 3), step=60)
    assert len(watcher._backlogs) == DURABLES_MAX
    assert list(watcher.backlog("s", "0")) == [1.0, 1.0, 1.0]
    one = 'holdfast_durable_backlog{durable="0",store="s"} 1.0'
    for number in range(MINUTES_MAX + 50):
        watcher._add(Scrape(one, 1000 + 60.0 * number))
    assert len(watcher.backlog("s", "0")) == MINUTES_MAX
    assert len(watcher._backlogs) == 1, "a durable that is gone is forgotten"
    assert len(watcher.scrapes) == SCRAPES_MAX
    assert sum(bool(scrape.of_stores) for scrape in watcher.scrapes) == 2, "of stores, the newest two"


BAD = {
    "HoldfastNoLeader": ("holdfast_leading 0.0",),
    "HoldfastStoreUnhealthy": ("holdfast_leading 1.0\nholdfast_store_healthy 0.0",),
    "HoldfastLogDamaged": (HEALTHY + "holdfast_log_damaged_places 2.0",),
    "HoldfastStoresClosed": (HEALTHY + "holdfast_message_stores_open 0.0",),
    "HoldfastMessageStoresDiskFull": (
        HEALTHY + "holdfast_message_stores_disk_limit_bytes 100.0\nholdfast_message_stores_disk_used_bytes 91.0",
    ),
    "HoldfastStoresFull": (HEALTHY + 'holdfast_message_store_used_fraction{store="s"} 1.0',),
    "HoldfastCommitsSlow": (
        HEALTHY,
        HEALTHY + 'holdfast_commit_seconds_bucket{le="1.0"} 1.0\nholdfast_commit_seconds_bucket{le="5.0"} 9.0\n'
        'holdfast_commit_seconds_bucket{le="+Inf"} 9.0',
    ),
    "HoldfastOverloaded": (HEALTHY, HEALTHY + 'holdfast_http_answers_total{route="/v1/commit",status="503"} 9.0'),
    "HoldfastConflicts": (
        HEALTHY,
        HEALTHY + 'holdfast_commits_total{outcome="conflict"} 9.0\nholdfast_commits_total{outcome="committed"} 8.0',
    ),
    "HoldfastViewBehind": (HEALTHY + "holdfast_view_version 7.0\nholdfast_view_lag_versions 100001.0",) * 6,
    "HoldfastClockStepped": (HEALTHY + "holdfast_clock_step_seconds -86400.0",),
    "HoldfastRetentionWaits": (HEALTHY + "holdfast_retention_waits 1.0",),
    "HoldfastSubscribersLag": (HEALTHY, HEALTHY + "holdfast_subscribers_lagged_total 1.0"),
    "HoldfastDeadLetters": (
        HEALTHY + 'holdfast_durable_dead_letters_total{durable="d",store="s"} 0.0',
        HEALTHY + 'holdfast_durable_dead_letters_total{durable="d",store="s"} 1.0',
    ),
    "HoldfastBacklogGrows": (HEALTHY + 'holdfast_durable_backlog{durable="d",store="s"} 100001.0',),
}


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_an_alert_is_shown_when_its_condition_is_met_and_not_otherwise(alert: object) -> None:
    name = str(getattr(alert, "name"))  # noqa: B009
    assert names(watcher_of(*BAD[name])) == [name]
    assert names(watcher_of(HEALTHY, HEALTHY)) == []


def test_what_the_stores_counted_before_they_opened_is_no_rate() -> None:
    name = "holdfast_message_store_published_total"
    counts = [f'{name}{{store="s"}} {value}.0' for value in (30_499, 30_501)]
    assert watcher_of(HEALTHY, *counts).rates(name) == [0.0, 1.0]


class Silent(WatchedService):
    """A service of which each address answers ``alive``, or nothing while it is None."""

    def __init__(self) -> None:
        super().__init__(["http://127.0.0.1:1"], None)
        self.alive: Liveness | None = Liveness("a", True, "x")

    async def members(self) -> list[Member]:
        if self.alive is None:
            await asyncio.Event().wait()
        return [Member(self.urls[0], self.alive, None, 0)]

    async def read_text(self, target: str, *, member: str = "") -> str:
        return HEALTHY


def test_another_process_of_the_same_address_begins_new_figures() -> None:
    async def look() -> list[int]:
        service = Silent()
        watcher, seen = Watcher(service), []
        for leader in ("a", "a", "b"):
            service.alive = Liveness(leader, True, "x")
            watcher._next_scrape = 0
            await watcher._look()
            seen.append(len(watcher.scrapes))
        return seen

    assert asyncio.run(look()) == [1, 2, 1]


def test_a_page_says_that_the_service_is_silent_while_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(
        "holdfast.console.reading.watcher.time", SimpleNamespace(monotonic=lambda: now[0], time=lambda: 0.0)
    )

    async def wait() -> list[str]:
        service = Silent()
        watcher = Watcher(service)
        await watcher._look()
        said = []
        service.alive = None
        looking = asyncio.create_task(watcher._look())
        await asyncio.sleep(0)
        for now[0] in (1.0, 4.0):
            said.append(str(state_of(cast(PageCall, SimpleNamespace(watcher=watcher))) or ""))
        looking.cancel()
        return said

    early, late = asyncio.run(wait())
    assert early == ""
    assert "has not answered for" in late


def test_a_restart_is_no_alert() -> None:
    late = HEALTHY + "holdfast_view_version 7.0\nholdfast_view_lag_versions 100000000.0"
    assert names(watcher_of(late, late)) == [], "the view crosses the gap of a change of leader"
    before_stores = HEALTHY
    assert (
        names(watcher_of(before_stores, HEALTHY + 'holdfast_durable_dead_letters_total{durable="d",store="s"} 579.0'))
        == []
    )


def test_a_full_cluster_and_each_full_store_are_named_and_others_are_not() -> None:
    lines = ["holdfast_message_stores_used_fraction 1.0"]
    lines += [
        f'holdfast_message_store_used_fraction{{store="{name}"}} {part}' for name, part in (("a", 0.95), ("b", 0.5))
    ]
    watcher = watcher_of(HEALTHY + "\n".join(lines))
    assert [text for _, text in alerts_of(watcher)] == [
        "all stores together are at 100% of a limit; publishes are refused at 100%, and 1 other limit nearly reached"
    ]
    assert "Not healthy" in str(_health(watcher))
    assert watcher.newest is not None
    said = str(text_of(_stuck_stores(watcher.newest)))
    assert "All stores together</a>: 100% of a limit is used; publishers wait until there is room" in said
    assert '<a href="/store?store=a">a</a>: 95%' in said
    assert "store=b" not in said
    assert "not served" not in said


def test_stores_that_are_suspended_are_named_as_stuck() -> None:
    assert "are not served" in str(text_of(_stuck_stores(Scrape(HEALTHY + "holdfast_message_stores_open 0.0", 0))))
    assert _stuck_stores(Scrape(HEALTHY + "holdfast_message_stores_open 1.0", 0)) == []


def test_two_leaders_are_shown() -> None:
    watcher = watcher_of(HEALTHY)
    alive = Liveness("a", True, "x")
    watcher.members = [Member("x", alive, None, 0), Member("y", alive, None, 0)]
    assert names(watcher) == ["HoldfastTwoLeaders"]


def test_every_alert_is_one_of_the_kit_and_has_its_runbook() -> None:
    kit = re.findall(r"alert: (\w+)", (ROOT / "deploy/prometheus/alerts.yaml").read_text())
    shown = [alert.name for alert in (*ALERTS, TWO_LEADERS)]
    assert sorted(set(kit) - set(shown)) == ["HoldfastLeaderChanges"], "it needs an hour of memory"
    assert set(shown) <= set(kit)
    page = markdown((ROOT / "docs/how-to/operate/runbooks.md").read_text())
    for name in shown:
        assert f'<h2 id="{name.lower()}">{name}</h2>' in page


def test_a_long_key_is_shortened_and_can_be_seen_and_copied_whole() -> None:
    key = "begin/" + "k" * 3_000 + "/end"
    listed = name_shown(key)
    assert len(units.shortened(key)) == units.NAME_CHARACTERS
    assert "begin/" in listed
    assert "/end" in listed
    assert len(units.in_heading(key)) == units.NAME_CHARACTERS
    whole = whole_name(key)
    assert f"{key}</pre>" in whole
    assert f'data-copy="{key}"' in whole


def test_spaces_of_a_key_are_seen() -> None:
    assert units.in_heading(" lead and trail ") == "␣lead and trail␣"
    assert 'class="key"' in key_link(b" lead ")


def test_an_address_breaks_before_its_host_and_its_port() -> None:
    assert address_shown("http://127.0.0.1:18500") == "http://<wbr>127.0.0.1<wbr>:18500"
    assert "<wbr>" in address_shown("http://[::1]:18500")
    assert address_shown("unix:/run/<x>").endswith(":/run/&lt;x&gt;")


def test_a_version_is_written_in_one_way() -> None:
    """Plain, as in an address and a command: no page groups its digits."""
    pages = ROOT / "src" / "holdfast" / "console" / "pages"
    for page in pages.glob("*.py"):
        assert not re.search(r"units\.count\([\w.]*(version|truncated?_through)\)", page.read_text()), page.name


def test_a_copy_of_a_cut_value_says_that_it_is_a_part() -> None:
    assert "Copy the shown part" in value_of(b"x" * 5_000)
    assert "Copy the shown part" not in value_of(b"x" * 50)


def test_figures_of_a_service_that_is_away_are_said_to_be_old() -> None:
    watcher = watcher_of(HEALTHY)
    assert _as_of(watcher) is None
    watcher.away_since_ms = 1
    assert "before" in str(_as_of(watcher))
