"""The store and the log, in constant time: what the store promises, where the log ends, and what keeps it small.

Cost: the start-up probe, a handful of listings and header reads, and one request to the leader's address. A race adds
some seconds, and keeps its result under ``meta/races/``.
"""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

from holdfast.commit.format.batch import FIRST_SLOT, Header
from holdfast.commit.leadership.cluster import require_cluster
from holdfast.commit.leadership.evidence import LeaderAnswer, Reply
from holdfast.commit.leadership.peer_tls import UNVERIFIED_FIX
from holdfast.commit.reading.lineage import lineage_of
from holdfast.commit.reading.reader import LeadershipWalk, check_truncated, find_frontier, find_header
from holdfast.doctor.finding import Finding, Level
from holdfast.errors import Closed, CorruptData, HoldfastError, InvalidRequest, NotFound, Unavailable
from holdfast.foundations.readings import FoundationReport, newest_record
from holdfast.foundations.state import Depth, require_state
from holdfast.objects.endpoint import endpoint_of, is_shared
from holdfast.objects.port import ObjectStore
from holdfast.objects.probe import clean_up, probe
from holdfast.objects.probe.race import race_and_keep
from holdfast.objects.probe.results import newest_result
from holdfast.retention.generations import Generations
from holdfast.snapshots.reading import list_versions
from holdfast.values import slot_text

LONG_LOG: Final = 100_000
"""Slots above which a log without policies is worth a warning."""
AHEAD_MS: Final = 5_000
LEADERSHIPS_MAX: Final = 3
OLD_READING_SECONDS: Final = 7 * 86_400.0
RACE: Final = "race"

AskLeader = Callable[[str], Awaitable[LeaderAnswer]]


async def check_log(
    store: ObjectStore, ask_leader: AskLeader | None = None, *, url: str = "", race: bool = False
) -> AsyncIterator[Finding]:
    """Look at a store and its log. ``ask_leader`` asks an address whether the leader is there.

    ``url`` names the store for the processes of a race; ``race`` runs one and keeps its result. A store that does not
    answer ends the look with one finding. Raises nothing that a store can cause.
    """
    finding = await _probe(store)
    yield finding
    try:
        if finding.level < Level.ERROR and (race or is_shared(url)):
            yield await (_race(store, url) if race else _raced(store, url))
        if finding.level < Level.ERROR:
            yield await _deletes(store)
        frontier = await find_frontier(store)
        if frontier is None:
            fix = "mount the disk, correct log.url, or begin a log with `holdfast log init`"
            yield Finding(Level.ERROR, "log", "there is no log here; an unmounted disk looks like this, too", fix)
            return
        head, claim = frontier
        yield Finding(Level.OK, "log", f"id {head.log_id.hex()}, version {head.last_version}, epoch {claim.epoch}")
        yield await _beginning(store, head, claim)
        await require_cluster(store)
        yield _clock(head)
        yield await _leader(claim, ask_leader)
        yield await _snapshots(store, head)
        yield await _foundation(store, frontier)
        yield await _retention(store, head)
    except CorruptData as error:
        fix = "do not delete anything; `holdfast log verify` names all that is damaged"
        yield Finding(Level.ERROR, "log", str(error), fix)
    except Closed as error:
        yield Finding(Level.ERROR, "log", f"nobody may lead it: {error.statement()}", error.hint)
    except HoldfastError as error:
        yield _no_answer(error, store.url)


async def _probe(store: ObjectStore) -> Finding:
    try:
        await clean_up(store, await probe(store))  # where it may not delete, ``_deletes`` says so
    except InvalidRequest as error:
        return Finding(
            Level.ERROR, "store", error.statement(), "use a store with conditional creates and ordered listings"
        )
    except HoldfastError as error:
        return _no_answer(error, store.url)
    return Finding(Level.OK, "store", "it refuses a second create, lists in order, and shows what it created")


async def _race(store: ObjectStore, url: str) -> Finding:
    """Run the race of two processes."""
    try:
        result = await race_and_keep(store, url, os.environ)
    except InvalidRequest as error:
        fix = "stop the service, and move the log to a store that is exclusive; correct the store, and race again"
        return Finding(Level.ERROR, RACE, error.statement(), fix)
    except HoldfastError as error:
        return Finding(Level.ERROR, RACE, f"no verdict: {error.statement()}", "race again when the store answers")
    return Finding(Level.OK, RACE, result.statement())


async def _raced(store: ObjectStore, url: str) -> Finding:
    """What the newest race through this endpoint found."""
    endpoint = endpoint_of(url, os.environ)
    result = await newest_result(store, endpoint)
    if result is None:
        fix = f"run `holdfast doctor --race {url}`, which takes some seconds"
        return Finding(Level.WARNING, RACE, f"no race was run through {endpoint}", fix)
    if not result.fit:
        fix = f"correct the store, and run `holdfast doctor --race {url}`"
        return Finding(Level.ERROR, RACE, result.statement(), fix)
    return Finding(Level.OK, RACE, result.statement())


async def _deletes(store: ObjectStore) -> Finding:
    rows = await store.list("probe/", limit=1)
    try:
        if rows:
            await store.delete(rows[0].key)
            rows = await store.list("probe/", after=rows[0].key[:-1], limit=1)
    except Unavailable as error:
        fix = "allow the service to delete under probe/, snapshots/ and stores/, and under batches/ for retention"
        return Finding(Level.WARNING, "right to delete", error.statement(), fix)
    return Finding(Level.OK, "right to delete", "objects can be deleted")


def _no_answer(error: HoldfastError, url: str) -> Finding:
    page = "etcd" if url.startswith("etcd:") else "s3"
    fix = f"check the network, the credentials and the rights; docs/how-to/operate/{page}.md lists the rights"
    return Finding(Level.ERROR, "store", error.statement(), fix)


async def _beginning(store: ObjectStore, head: Header, claim: Header) -> Finding:
    """The first claim, and the newest leaderships, are there."""
    if await find_header(store, FIRST_SLOT) is None:
        return Finding(
            Level.ERROR, "claims", "the first claim of the log is missing; no service leads this log",
            f"restore batches/{slot_text(FIRST_SLOT)} from a copy; no lifecycle rule may delete under the log's prefix",
        )  # fmt: skip
    seen = 0
    async for leadership in LeadershipWalk(store, claim, head):
        check_truncated(leadership, head)
        seen += 1
        if seen == LEADERSHIPS_MAX:
            break
    return Finding(Level.OK, "claims", f"the first one and the newest {seen} are there")


def _clock(head: Header) -> Finding:
    if head.doubts_clock:
        return Finding(
            Level.WARNING, "clock", f"the leader's clock has stepped by {head.ahead_s} s and is not followed",
            "set the clock of its machine right; where it is right now, run `holdfast log clock accept`",
        )  # fmt: skip
    ahead_ms = head.time_ms - int(time.time() * 1000)
    if ahead_ms > AHEAD_MS:
        fix = "synchronise the clocks (chrony, systemd-timesyncd); policies by age count by them"
        return Finding(Level.WARNING, "clock", f"the newest object is from {ahead_ms / 1000:.0f} s in the future", fix)
    return Finding(Level.OK, "clock", "not behind the log's newest object")


async def _leader(claim: Header, ask_leader: AskLeader | None) -> Finding:
    if ask_leader is None or not claim.address:
        return Finding(Level.OK, "leader", "not asked")
    answer = await ask_leader(claim.address)
    if answer.reply is Reply.UNVERIFIED:
        return Finding(
            Level.WARNING, "leader", f"the answer at {claim.address} cannot be verified: {answer.problem}",
            f"standbys wait for signs of life instead; {UNVERIFIED_FIX}",
        )  # fmt: skip
    if answer.leader_id == claim.leader_id.hex():
        return Finding(Level.OK, "leader", f"it answers at {claim.address}")
    contact_text = "nothing answers" if answer.reply in (Reply.SILENT, Reply.REFUSES) else "another process answers"
    fix = "start `holdfast serve`; if it runs, correct server.advertised_address"
    return Finding(Level.WARNING, "leader", f"{contact_text} at {claim.address}, where the newest leader was", fix)


async def _snapshots(store: ObjectStore, head: Header) -> Finding:
    versions = await list_versions(store)
    if versions:
        return Finding(Level.OK, "snapshots", f"{len(versions)}, the newest at version {versions[-1]}")
    if FIRST_SLOT - head.slot > LONG_LOG:
        fix = "run `holdfast log snapshot`; the service makes them unless snapshots.every_* are off"
        return Finding(Level.WARNING, "snapshots", "none: a new view reads the whole log", fix)
    return Finding(Level.OK, "snapshots", "none yet")


async def _foundation(store: ObjectStore, frontier: tuple[Header, Header]) -> Finding:
    """Whether the log can produce its state, by names and sizes; and what its leader has read of it, and when."""
    head, claim = frontier
    check = "state"
    fix = "`holdfast log verify` says what is damaged; `holdfast log repair` makes a log with what another copy has"
    try:
        await require_state(store, frontier, head.last_version, depth=Depth.LISTED)
    except (CorruptData, NotFound) as error:
        return Finding(Level.ERROR, check, error.statement(), fix)
    record = await newest_record(store)
    if record is None or not (await lineage_of(store, claim)).holds(record.log_id, 0):
        return Finding(Level.OK, check, "all that it is made of is listed; no leader has read it yet")
    report = FoundationReport.of(record.readings, record.damage)
    if report.name is None and report.problem is not None:
        return Finding(Level.ERROR, check, f"a leader met damage: {report.problem}", fix)
    if report.problem is not None:
        return Finding(Level.ERROR, check, f"damage, with {report.name} read {_ago(report)}: {report.problem}", fix)
    if report.name is None:
        return Finding(Level.OK, check, "all that it is made of is listed; the log has no snapshot")
    age_seconds = report.age_seconds(int(time.time() * 1000))
    assert age_seconds is not None, "a reading has a time"
    if age_seconds > OLD_READING_SECONDS:
        fix = "run `holdfast log verify`; a leader reads it again once a day unless log.scrub_days is off"
        return Finding(Level.WARNING, check, f"{report.name} was last found whole {_ago(report)}", fix)
    return Finding(Level.OK, check, f"{report.name} was found whole {_ago(report)}")


def _ago(report: FoundationReport) -> str:
    age_seconds = report.age_seconds(int(time.time() * 1000)) or 0.0
    return f"{age_seconds / 3600:.1f} h ago"


async def _retention(store: ObjectStore, head: Header) -> Finding:
    generation = await Generations(store, lambda: 0).newest()
    policies = {} if generation is None else generation.policies
    check = "retention"
    if any(policy.keep is not None for policy in policies.values()) and len(policies) > 1:
        names = ", ".join(name for name, policy in policies.items() if policy.keep is not None)
        return Finding(
            Level.WARNING, check, f"the policy {names} keeps everything, so the other policies free nothing",
            f"`holdfast retention rm {names}` if nobody needs the whole log",
        )  # fmt: skip
    if policies and not await list_versions(store):
        fix = "run `holdfast log snapshot`"
        return Finding(Level.WARNING, check, "there are policies, but no snapshot: nothing is truncated", fix)
    if not policies and FIRST_SLOT - head.slot > LONG_LOG:
        fix = "`holdfast retention set NAME --max-age SECONDS`, or --keep-everything to say that this is meant"
        return Finding(Level.WARNING, check, "no policy: the log keeps everything and grows without bound", fix)
    if head.truncated_through:
        return Finding(Level.OK, check, f"{len(policies)} policies, truncated through version {head.truncated_through}")
    return Finding(Level.OK, check, f"{len(policies)} policies, nothing truncated")
