"""Stores that live in the log, in the worlds of the log: what a leader confirmed, every later leader knows.

Each node has the real ``LogCommit`` over a cache that outlives its process, in whole, in part or not at all. A leader
reads with the real ``entries_before`` what its cache lacks, and goes on from there: record n of the log says that it is
number n. So a record that was lost, repeated, or written by a leader that did not know all before it, is seen when it
lands.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

from tests.worlds.harness import WorldReport
from tests.worlds.log.shape import draw_shape

from holdfast.commit.format.batch import Logged, LoggedEntry
from holdfast.commit.format.transaction import Committed, Rejected, StoreRefusal, Transaction, Write
from holdfast.commit.reading import entries as reading
from holdfast.commit.service import CommitService
from holdfast.commit.stages.events import CommitEntry
from holdfast.errors import Fenced, HoldfastError
from holdfast.stores.log_commit import LogCommit
from holdfast.stores.storage.frames import RECORD

if TYPE_CHECKING:
    from tests.worlds.log.node import Node
    from tests.worlds.log.world import World

__all__ = ["Cache", "Journal", "NodeStores", "run_journal"]

STORE = "s"


class Journal:
    """What the stores have written into the true log, and the judge of what they confirm."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.records: list[tuple[int, bytes]] = []
        """Versions and records of the true log."""

    def landed(self, logged: Logged) -> None:
        """This entry, or transaction, is in the true log now."""
        if isinstance(logged, LoggedEntry):
            records = [record for _, record in logged.records]
        else:
            records = [] if logged.record is None else [logged.record]
            self._world.seen["stores_took_part"] += len(records)
        for record in records:
            if number_of(record) != len(self.records):
                place = f"{record!r} at {logged.version} is number {len(self.records)}"
                self._world.promises.break_("a leader goes on from all that the log has", place)
            self.records.append((logged.version, record))

    def require(self, number: int, record: bytes, promise: str) -> None:
        """The true log has this record at this place."""
        if number >= len(self.records) or self.records[number][1] != record:
            self._world.promises.break_(promise, f"{record!r} is not number {number} of {len(self.records)}")


def number_of(record: bytes) -> int:
    """The place in the log that a record claims for itself."""
    return int(record.removeprefix(RECORD).split(b" ")[0])


class Cache:
    """The files of one node: what ``Storage`` keeps of the log, without the stores. Sometimes their disk is full."""

    def __init__(self, world: World, journal: Journal, number: int) -> None:
        self._world = world
        self._journal = journal
        self._random = Random(f"{world.seed} disk of {number}")
        self._refusals = 0  # attempts until there is space
        self.frames: list[tuple[int, bytes]] = []

    @property
    def version(self) -> int:
        """Of the last entry that is here, perhaps only in part."""
        return self.frames[-1][0] if self.frames else 0

    def append(self, frames: list[bytes], version: int) -> int:
        """As ``Storage.append``."""
        room = len(frames)
        if self._refusals:
            self._refusals -= 1
            room = 0
        elif self._random.random() < 0.02:
            self._refusals = self._random.choice((0, 0, 1, 3))
            room = self._random.randrange(room + 1)
            self._world.seen["stores_disk_full"] += 1
        self._append(frames[:room], version)
        return room

    def _append(self, frames: list[bytes], version: int) -> None:
        for frame in frames:
            self._journal.require(len(self.frames), frame, "a cache holds what the log has")
            self.frames.append((version, frame))

    def follow(self, version: int, records: list[bytes]) -> None:
        """As ``Storage.follow``."""
        if version >= self.version:
            known = sum(each == version for each, _ in self.frames)
            self._append(records[known:], version)


class NodeStores:
    """The stores of one node: its cache, and while it leads what it publishes."""

    def __init__(self, node: Node, journal: Journal) -> None:
        self._node = node
        self._world = node.world
        self._journal = journal
        self._random = Random(f"{node.world.seed} stores of {node.number}")
        self._cache = Cache(node.world, journal, node.number)
        self._groups: LogCommit | None = None
        self._service: CommitService | None = None
        self._next = 0
        self._confirmed = 0
        self._commits = 0

    def crashed(self) -> None:
        """The process is gone, and perhaps some of the files, which are not synced."""
        self._groups = None
        frames, drawn = self._cache.frames, self._random.random()
        if drawn < 0.1:
            frames.clear()
        elif drawn < 0.5:
            del frames[len(frames) - self._random.randrange(min(len(frames), 8) + 1) :]

    async def lead(self, service: CommitService) -> None:
        """Come up to date, then publish until the leadership ends."""
        cache = self._cache
        former, self._groups = self._groups, None
        if former is not None:
            await former.close()  # as a service does when its leadership is over
        self._world.seen["stores_from_nothing" if not cache.frames else "stores_from_a_cache"] += 1
        try:
            async with aclosing(reading.entries_before(service.store, service.claim, after=cache.version)) as batches:
                async for _, entries in batches:
                    for entry in entries:
                        cache.follow(entry.version, [record for _, record in entry.records])
        except HoldfastError as error:
            if service.ended.done():
                return
            self._world.promises.break_("a leader can read what the stores did", str(error))
        self._next = self._confirmed = len(cache.frames)
        self._groups = LogCommit(
            cache,  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
            service,
            self,
        )
        service.serve_stores(self)
        self._service = service
        self._publish_later()

    def _publish_later(self) -> None:
        wait = 0.0 if self._random.random() < 0.2 else 5.0 + 40.0 * self._random.random()
        self._world.agenda.after(wait, self._node, self._node.publish)

    def publish(self) -> None:
        """Some records, in one turn of the loop."""
        groups = self._groups
        if groups is None or groups.failure is not None:
            return
        for _ in range(self._random.choice((1, 1, 2, 5))):
            if self._random.random() < 0.3:
                self._commit_with_parts()
                continue
            number, record = self._number()
            groups.add(record, self._reply(groups, number, record), store=STORE)
            if self._random.random() < 0.1:
                groups.end_group(_ignored)
        self._publish_later()

    def _number(self) -> tuple[int, bytes]:
        number, self._next = self._next, self._next + 1
        return number, RECORD + b"%d by %d at %d" % (number, self._node.number, self._world.agenda.happened)

    # -- parts of commits ---------------------------------------------------------------------------------------------

    def before_group(self) -> None:
        """No deliveries here."""

    def after_group(self) -> None:
        """No deadlines here."""

    def group_failed(self, error: BaseException) -> None:
        """The world ends."""
        self._world.promises.trouble(error)

    def disk_changed(self) -> None:
        """Its files are in memory."""

    def flush(self) -> None:
        """As ``StoresOfLog``."""
        if self._groups is not None:
            self._groups.flush()

    def carry_out(self, entry: CommitEntry) -> StoreRefusal | None:
        """As ``StoresOfLog``: some are refused."""
        groups = self._groups
        assert groups is not None, "this leader serves its stores"
        if groups.failure is not None or self._random.random() < 0.2:
            self._world.seen["stores_refused"] += 1
            return StoreRefusal("publish", 0, "store_full", "")
        number, record = self._number()
        entry.record, entry.results = record, b"%d" % number
        entry.when_durable = groups.add_part(record, self._reply(groups, number, record))
        return None

    def results_of(self, record: bytes) -> bytes:
        """As ``StoresOfLog``."""
        return b"%d" % number_of(record)

    def _commit_with_parts(self) -> None:
        service = self._service
        assert service is not None, "this leader serves its stores"
        entries: list[CommitEntry] = []
        for _ in range(self._random.choice((1, 1, 3))):
            self._commits += 1
            key = b"x/parts-%d-%d" % (self._node.number, self._commits)
            entries.append(CommitEntry(Transaction([Write(key, b"")]), self._committed, parts="something"))
        service.submit(entries)

    def _committed(self, entry: CommitEntry) -> None:
        outcome = entry.outcome
        if isinstance(outcome, Committed):
            assert entry.record is not None and outcome.results is not None, "the stores took part"
            self._journal.require(int(outcome.results), entry.record, "a commit and its parts are one step")
        elif isinstance(outcome, Rejected) and entry.record is not None:
            self._world.promises.break_("what the stores did is committed", f"{outcome}")

    def _reply(self, groups: LogCommit, number: int, record: bytes) -> Callable[[BaseException | None], None]:
        def reply(error: BaseException | None) -> None:
            if self._groups is not groups:
                return  # the process that asked is gone
            if error is None:
                self._journal.require(number, record, "what is confirmed is in the log")
                if number != self._confirmed:
                    self._world.promises.break_("replies come in order", f"{number} after {self._confirmed}")
                self._confirmed += 1
                self._world.seen["stores_confirmed"] += 1
            elif isinstance(error, Fenced):
                self._world.seen["stores_unknown"] += 1
            else:
                self._world.promises.trouble(error)

        return reply


def _ignored(_: BaseException | None) -> None:
    """No checkpoint rests on it here."""


def run_journal(seed: int, *, check_every: int = 1) -> WorldReport:
    """Run the world of one seed with stores in its log. Raises: PromiseBroken."""
    from tests.worlds.log.world import World

    drawn = draw_shape(Random(seed))
    apart = Random(f"{seed} journal")
    rules = replace(drawn.rules, resolve_work_max=apart.choice((1, 20, drawn.rules.resolve_work_max)))
    shape = replace(drawn, rules=rules, retention=False)
    return World(seed, shape=shape, check_every=check_every, stores=True).run()
