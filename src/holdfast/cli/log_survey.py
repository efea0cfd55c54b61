"""The work behind ``holdfast log``: beginning a log, telling live objects from dead ones, checking every object.

Owns: which objects a survey covers. Does not own: the rules themselves (``commit.chain``, ``commit.leadership``).

Failure model: raises CorruptData for damage and Unavailable when the store does not answer; nothing but
``create_genesis`` writes, and that only where the whole prefix lists empty.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final

from holdfast.cli.output import Progress
from holdfast.commit.format.batch import CLAIM_BYTES, FIRST_SLOT, PREFIX, Header, Kind, jump, slot_of
from holdfast.commit.format.chain import ChainWalker, broken
from holdfast.commit.leadership.claims import Identity
from holdfast.commit.leadership.takeover import init_log
from holdfast.commit.reading.reader import Leadership, find_frontier, follow, leaderships_back, start_after
from holdfast.errors import Code, CorruptData, NotFound
from holdfast.objects.port import Listed, ObjectStore
from holdfast.values import LeaderId, LogId, Slot, slot_text

__all__ = ["Survey", "Verified", "check_reached", "create_genesis", "survey", "verify_log", "walker_after"]

PAGE: Final = 1000


async def create_genesis(store: ObjectStore) -> LogId | None:
    """Write the first object of a new log; None when there is anything under the prefix already.

    After a crash: either there is a log, or running it again begins one. Raises: Unavailable,
    CorruptData (unfit store).
    """
    log_id = LogId(secrets.token_bytes(16))
    identity = Identity(LeaderId(secrets.token_bytes(16)), secrets.token_bytes(32), address="")
    return log_id if await init_log(store, identity, log_id) else None


@dataclass(slots=True)
class Survey:
    """A log's objects newest first, and the reigns that say which of them are live (newest reign first)."""

    objects: list[Listed] = field(default_factory=list[Listed])
    reigns: list[Leadership] = field(default_factory=list[Leadership])
    head: Header | None = None

    def slot(self, row: Listed) -> Slot:
        """The slot of a listed object. Raises: CorruptData for a foreign name."""
        found = slot_of(row.key)
        if found is None:
            raise CorruptData(
                "a key under batches/ is not a slot",
                key=row.key,
                hint="move the foreign object away; nothing but Holdfast may write under batches/",
            )
        return found

    def is_claim(self, row: Listed) -> bool:
        """Whether the size is a claim's."""
        return row.size == CLAIM_BYTES

    def is_live(self, slot: Slot) -> bool:
        """Whether the live chain runs through this slot. What came after the survey's head counts as live."""
        newest: int = 0
        for reign in self.reigns:
            if slot == reign.claim.slot or newest <= slot <= jump(reign.claim.slot):
                return True
            if reign.before is not None:
                newest = reign.before.slot
        return False


async def survey(store: ObjectStore, *, objects_max: int | None) -> Survey:
    """List the newest ``objects_max`` objects (all of them for None), and walk the claims back to genesis.

    Cost: a LIST for each 1000 objects, two header reads for each leader. Raises: Unavailable, CorruptData.
    """
    found = Survey()
    frontier = await find_frontier(store)
    if frontier is None:
        return found
    found.head, claim = frontier
    async with aclosing(leaderships_back(store, claim)) as reigns:
        async for reign in reigns:
            found.reigns.append(reign)
    after = ""
    while objects_max is None or len(found.objects) < objects_max:
        wanted = PAGE if objects_max is None else min(PAGE, objects_max - len(found.objects))
        rows = await store.list(PREFIX, after=after, limit=wanted)
        found.objects += rows
        if len(rows) < wanted:
            break
        after = rows[-1].key
    return found


async def walker_after(store: ObjectStore, version: int) -> tuple[ChainWalker, Header]:
    """A walker whose next object holds the first transaction after ``version``, and the newest live object.

    Raises as ``start_after``.
    """
    frontier = await find_frontier(store)
    if frontier is None:
        raise NotFound("log is empty", code=Code.LOG_EMPTY)
    head, claim = frontier
    newest = head
    async with aclosing(leaderships_back(store, claim)) as reigns:
        async for reign in reigns:
            if reign.base <= version:
                return await start_after(store, reign, newest, version), head
            if reign.before is not None:
                newest = reign.before
    return ChainWalker(), head


def check_reached(walker: ChainWalker, newest: Header) -> Header:
    """The object at which a reading ended, which may be newer than ``newest`` but not older.

    To a reader a missing slot is the end of the log; only what recovery found tells that it is a hole.
    Raises: CorruptData.
    """
    head = walker.head
    if head is None or head.slot > newest.slot:
        missing = FIRST_SLOT if head is None else walker.next_slot
        raise broken("a slot of the live chain is missing", missing, newest=slot_text(newest.slot))
    return head


@dataclass(slots=True)
class Verified:
    """What a whole reading of a log has seen."""

    objects: int = 0
    bytes: int = 0
    leaders: int = 0
    transactions: int = 0
    operations: int = 0
    preconditions: int = 0
    first_transaction: int = 0
    last_transaction: int = 0
    last_version: int = 0
    newest_slot: int = 0

    def fields(self) -> dict[str, object]:
        """The counts by name, the slot as text."""
        return {
            "objects": self.objects,
            "bytes": self.bytes,
            "leaders": self.leaders,
            "transactions": self.transactions,
            "operations": self.operations,
            "preconditions": self.preconditions,
            "first_transaction": self.first_transaction,
            "last_transaction": self.last_transaction,
            "last_version": self.last_version,
            "newest_slot": slot_text(self.newest_slot),
        }


async def verify_log(store: ObjectStore, moved: Progress) -> Verified:
    """Read every live object from genesis on and check it, then check that the chain ends where recovery says it does.

    Raises: CorruptData naming the slot and the rule; NotFound (log_empty); Unavailable.
    """
    frontier = await find_frontier(store)
    if frontier is None:
        raise NotFound("log is empty", code=Code.LOG_EMPTY)
    total = _objects_in(frontier[0], [reign async for reign in leaderships_back(store, frontier[1])])
    found = Verified()
    walker = ChainWalker()
    async with aclosing(follow(store, walker)) as batches:
        async for batch in batches:
            found.objects += 1
            found.bytes += len(batch.data)
            found.leaders += batch.header.kind is Kind.CLAIM
            for txn in batch.transactions():
                found.transactions += 1
                found.operations += len(txn.operations)
                found.preconditions += len(txn.preconditions)
                found.first_transaction = found.first_transaction or txn.version
                found.last_transaction = txn.version
            moved(found.objects, max(total, found.objects))
    head = check_reached(walker, frontier[0])
    found.last_version = head.last_version
    found.newest_slot = head.slot
    return found


def _objects_in(head: Header, reigns: list[Leadership]) -> int:
    """How many live objects these reigns hold, from their borders alone."""

    def sizes() -> Iterator[int]:
        newest = head.slot
        for reign in reigns:
            yield 1 + max(0, jump(reign.claim.slot) - newest + 1)
            newest = reign.claim.slot if reign.before is None else reign.before.slot

    return sum(sizes())
