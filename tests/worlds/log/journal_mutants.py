"""Mutants of stores that live in the log: each has one rule taken out."""
# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from tests.worlds.harness import Mutants
from tests.worlds.log.journal import Cache, run_journal

from holdfast.commit.format.batch import Header, LoggedEntry
from holdfast.commit.format.transaction import Rejected
from holdfast.commit.leadership import claims, takeover_machine
from holdfast.commit.reading import entries
from holdfast.commit.service import CommitService
from holdfast.commit.stages import events, pipeline, resolve, sequence
from holdfast.commit.stages.events import CommitEntry, Effect, Place, Records, WhenDurable
from holdfast.errors import HoldfastError
from holdfast.objects.port import ObjectStore
from holdfast.stores.group_commit import Confirm
from holdfast.stores.log_commit import LogCommit
from holdfast.values import Instant, Version

__all__ = ["MUTANTS"]

NEVER: Final = 1 << 60
MUTANTS: Final = Mutants(partial(run_journal, check_every=NEVER), seeds_max=200)

_append = Cache.append
_append_frames = LogCommit._append
_entries_before = entries.entries_before
_claim_header = claims.claim_header
_write = LogCommit._write
_add_part = LogCommit.add_part
_end = CommitService._end
_record = CommitService.record
_order = pipeline.Pipeline._order
_collect = pipeline.Pipeline._collect


@MUTANTS.breaks("a reply comes after the entry is durable", "record", CommitService)
def confirm_at_once(self: CommitService, records: list[tuple[str, bytes]], when_durable: WhenDurable) -> None:
    """What was handed to the log is taken for durable."""
    _record(self, records, _ignored)
    when_durable(self.pipeline.sequence.assigned)


@MUTANTS.breaks("a cache never holds what is not durable", "_write", LogCommit)
def cache_first(self: LogCommit) -> None:
    """Frames are appended to the files when they are written to the log."""
    frames = self._frames
    _write(self)
    if frames:
        self._storage.append(frames, 1)


@MUTANTS.breaks("what a full disk took of an entry is not appended again", "append", Cache, first_seed=28)
def part_is_appended_again(self: Cache, frames: list[bytes], version: int) -> int:
    """A full disk takes a part of an entry, and the whole entry is kept back."""
    count = _append(self, frames, version)
    return count if count == len(frames) else 0


@MUTANTS.breaks("a cache has every frame, also after its disk was full", "_append_kept_back", LogCommit)
def full_disk_is_overlooked(self: LogCommit) -> None:
    """What a full disk did not take is dropped."""
    while self._kept_back:
        frames, version, _ = self._kept_back.popleft()
        self._storage.append(frames, version)


@MUTANTS.breaks("frames wait for the ones before them", "_append", LogCommit)
def frames_overtake(self: LogCommit, frames: list[bytes], version: int) -> None:
    """New frames go to the disk first, and what was kept back after them."""
    if frames and self._storage.append(frames, version) < len(frames):
        _append_frames(self, frames, version)


@MUTANTS.breaks("an entry may be in a cache in part", "entries_before", entries)
def last_entry_is_whole(
    store: ObjectStore, claim: Header, *, after: int
) -> AsyncGenerator[tuple[Header, list[LoggedEntry]], None]:
    """The entry that the cache ends with is not read again."""
    return _entries_before(store, claim, after=after + 1 if after else 0)


@MUTANTS.breaks("a cache may be behind the log", "entries_before", entries)
async def cache_is_up_to_date(
    store: ObjectStore, claim: Header, *, after: int
) -> AsyncGenerator[tuple[Header, list[LoggedEntry]], None]:
    """Only a machine without files reads the log."""
    if not after:
        async for found in _entries_before(store, claim, after=0):
            yield found


@MUTANTS.breaks("a claim carries the last transaction on", "claim_header", claims, takeover_machine)
def claim_forgets_the_transactions(*arguments: Any, **options: Any) -> Header:
    """After a claim the chain of transactions begins anew."""
    return replace(_claim_header(*arguments, **options), newest_transaction=Version(0))


@MUTANTS.breaks("an entry is no transaction", "last_transaction_version", Header)
@property
def entry_counts_as_transaction(self: Header) -> int:
    """The transaction after an entry names the entry as its predecessor."""
    return self.last_version if self.has_body else self.prev_version


@MUTANTS.breaks("records come after the commits that were ordered before them", "_order", pipeline.Pipeline)
def records_overtake(
    self: pipeline.Pipeline, now: Instant, entries: Sequence[CommitEntry | Records], effects: list[Effect]
) -> None:
    """Records are collected at once, though commits with lower versions are not decided."""
    while self._records_waiting:
        records = self._waiting.popleft()
        assert isinstance(records, Records), "they are the first"
        self._records_waiting -= 1
        self.sequence.assigned += 1
        records.version = self.sequence.assigned
        self._collect([records], records.size, True, now.boot_ms, effects)
    _order(self, now, entries, effects)


@MUTANTS.breaks("records come before the commits whose parts wait", "_wait_first", pipeline.Pipeline)
def records_wait_their_turn(self: pipeline.Pipeline, records: Records) -> None:
    """Records wait for room after the commits that came before them."""
    self._waiting.append(records)


@MUTANTS.breaks("records wait for room below the next base", "room", sequence.Sequence)
def room_for_ever(self: sequence.Sequence, durable_version: int) -> int:
    """Versions are handed out however far durable ones are behind."""
    return NEVER


@MUTANTS.breaks("records wait for their own batch", "_collect", pipeline.Pipeline)
def records_ride_along(
    self: pipeline.Pipeline,
    entries: list[CommitEntry | Place],
    added: int,
    writes: bool,
    now_ms: float,
    effects: list[Effect],
) -> None:
    """Records are answered with the newest batch in flight, which does not have them."""
    writes = any(isinstance(entry, CommitEntry) and entry.accepted for entry in entries)
    _collect(self, entries, added, writes, now_ms, effects)


def parts_overtake(self: LogCommit) -> None:
    """A commit takes its place before what the stores did until then."""


def taken_in_the_next_turn(self: CommitService, entries: list[CommitEntry]) -> None:
    """As ``submit``, one turn earlier. In these worlds nothing comes between its two turns; in a service it may."""
    self._inbox += entries
    if not self._pumping:
        self._pumping = True
        self._loop.call_soon(self._pump)


MUTANTS.add(
    "parts_overtake",
    "what was done before a commit comes before its parts",
    (LogCommit, "flush", parts_overtake),
    (CommitService, "submit", taken_in_the_next_turn),
)


MUTANTS.add(
    "parts_are_decided_in_pieces",
    "the stores do nothing between the order of a commit and its parts",
    (pipeline, "UNBOUNDED", 1),
)


@MUTANTS.breaks("a refused commit leaves nothing behind", "_carry_out_parts", resolve.Resolve)
def refusal_is_overlooked(self: resolve.Resolve, entry: CommitEntry) -> Rejected | None:
    """A commit whose parts were refused is committed without them."""
    assert self.stores is not None, "the log has stores"
    self.stores.carry_out(entry)
    return None


@MUTANTS.breaks("a part is durable with its commit", "add_part", LogCommit)
def part_is_durable_at_once(self: LogCommit, frame: bytes, confirm: Confirm) -> WhenDurable:
    """What the stores did for a commit is taken for durable."""
    durable = _add_part(self, frame, confirm)
    self._loop.call_soon(durable, 1)
    return lambda _: None


@MUTANTS.breaks("the end of a leadership proves nothing", "_end", CommitService)
def end_confirms(self: CommitService, effect: events.Ended) -> None:
    """Records that wait at the end are taken for durable."""
    for ticket in effect.tickets:
        if isinstance(ticket, Records):
            self._loop.call_soon(ticket.when_durable, ticket.version)
    _end(self, replace_tickets(effect))


def replace_tickets(effect: events.Ended) -> events.Ended:
    """The same end, without records."""
    return events.Ended(effect.kind, effect.detail, [each for each in effect.tickets if not isinstance(each, Records)])


def _ignored(_: int | HoldfastError) -> None:
    """The true answer comes too late."""
