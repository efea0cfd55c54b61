"""Survey a log on its store: which objects are live, and whether each is intact. Reads only; safe next to a leader.

Raises ``CorruptData`` for damage and ``Unavailable`` if the store does not respond.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Final

from holdfast.commit.format.batch import CLAIM_BYTES, FIRST_SLOT, PREFIX, Header, Kind, jump, slot_of
from holdfast.commit.format.chain import ChainWalker, broken
from holdfast.commit.reading.reader import (
    Leadership,
    check_truncated,
    find_frontier,
    follow,
    leaderships_back,
    start_after,
)
from holdfast.errors import Code, CorruptData, InvalidRequest, NotFound
from holdfast.objects.port import Listed, ObjectStore
from holdfast.values import Slot, Version, slot_text

PAGE: Final = 1000


@dataclass(slots=True)
class Survey:
    """The objects of a log and its leadership periods, which decide which objects are live. Newest first."""

    objects: list[Listed] = field(default_factory=list[Listed])
    leaderships: list[Leadership] = field(default_factory=list[Leadership])
    head: Header | None = None

    def slot(self, row: Listed) -> Slot:
        """The slot of a listed object. Raises: CorruptData for a foreign name."""
        slot = slot_of(row.key)
        if slot is None:
            raise CorruptData(
                "key under batches/ is not a slot",
                key=row.key,
                hint="move the foreign object away; nothing but Holdfast may write under batches/",
            )
        return slot

    def is_claim(self, row: Listed) -> bool:
        """Whether the object has the size of a claim."""
        return row.size == CLAIM_BYTES

    def is_live(self, slot: Slot) -> bool:
        """Whether the live chain includes this slot. Objects newer than the survey's head count as live."""
        newest: int = 0
        for leadership in self.leaderships:
            if slot == leadership.claim.slot or newest <= slot <= jump(leadership.claim.slot):
                return True
            if leadership.before is not None:
                newest = leadership.before.slot
        return False


async def survey(store: ObjectStore, *, objects_max: int | None) -> Survey:
    """List the newest ``objects_max`` objects (all of them for None), and walk the claims back to genesis.

    Cost: a LIST for each 1000 objects, two header reads for each leader. Raises: Unavailable, CorruptData.
    """
    result = Survey()
    frontier = await find_frontier(store)
    if frontier is None:
        return result
    result.head, claim = frontier
    async with aclosing(leaderships_back(store, claim)) as leaderships:
        async for leadership in leaderships:
            result.leaderships.append(leadership)
    check_truncated(result.leaderships[-1], result.head)
    after = ""
    while objects_max is None or len(result.objects) < objects_max:
        wanted = PAGE if objects_max is None else min(PAGE, objects_max - len(result.objects))
        rows = await store.list(PREFIX, after=after, limit=wanted)
        result.objects += rows
        if len(rows) < wanted:
            break
        after = rows[-1].key
    return result


async def walker_after(store: ObjectStore, version: int) -> tuple[ChainWalker, Header]:
    """A walker whose next object holds the first transaction after ``version``, and the newest live object."""
    frontier = await find_frontier(store)
    if frontier is None:
        raise NotFound("log is empty", code=Code.LOG_EMPTY)
    head, _ = frontier
    if version < head.truncated_through:
        raise NotFound(
            "the log was truncated past this version",
            code=Code.LOG_TRUNCATED,
            hint="begin with a snapshot, or after the version that the log is truncated through",
            version=version,
            truncated_through=head.truncated_through,
        )
    return await walker_from(store, frontier, version), head


async def walker_from(store: ObjectStore, frontier: tuple[Header, Header], version: int) -> ChainWalker:
    """As ``walker_after``, in a log with this newest object and claim, whatever it says was truncated."""
    head, claim = frontier
    newest = head
    async with aclosing(leaderships_back(store, claim)) as leaderships:
        async for leadership in leaderships:
            if leadership.base <= version or (leadership.before is None and not leadership.is_first):
                return await start_after(store, leadership, newest, version)
            if leadership.before is not None:
                newest = leadership.before
    return ChainWalker()


def check_reached(walker: ChainWalker, newest: Header) -> Header:
    """The object at which a read ended. Raises: CorruptData when it is older than ``newest``: the log has a hole."""
    head = walker.head
    if head is None or head.slot > newest.slot:
        missing = FIRST_SLOT if head is None else walker.next_slot
        raise broken("a slot of the live chain is missing", missing, newest=slot_text(newest.slot))
    return head


@dataclass(frozen=True, slots=True)
class LogCheck:
    """The counts of a complete read of a log. Every checksum, version and link of the chain was correct.

    ``truncated_through``: versions up to this one were asked for and not read, because retention removed them.
    """

    objects: int
    bytes: int
    leaders: int
    transactions: int
    operations: int
    preconditions: int
    first_transaction: int
    last_transaction: int
    last_version: int
    newest_slot: int
    truncated_through: int


async def verify_log(
    store: ObjectStore,
    on_progress: Callable[[int, int | None], None] | None = None,
    *,
    truncated_through: int = 0,
    after: int = 0,
    through: int | None = None,
) -> LogCheck:
    """Read and check every live object, oldest first, then check that the chain ends where recovery says it does.

    In a log that was truncated it begins with the first object after ``truncated_through``; for a copy that is not
    complete the caller must give this version. ``after`` and ``through``: only the objects that have a version above
    the one and up to the other; whether the chain ends well is checked without ``through``.

    ``on_progress`` gets the number of objects read and in total; with a range, of versions.
    Raises: CorruptData naming the slot and the rule; NotFound (log_empty, log_truncated for a range that begins or ends
    where retention removed objects); InvalidRequest (future_version); Unavailable.
    """
    frontier = await find_frontier(store)
    if frontier is None:
        raise NotFound("log is empty", code=Code.LOG_EMPTY)
    end = frontier[0].last_version if through is None else through
    if not 0 <= after <= end <= frontier[0].last_version:
        raise InvalidRequest(
            "the log has no such range of versions",
            code=Code.FUTURE_VERSION,
            after=after,
            through=end,
            last_version=frontier[0].last_version,
        )
    has_range = after > 0 or through is not None
    leaderships = [leadership async for leadership in leaderships_back(store, frontier[1])]
    truncated_through = max(truncated_through, frontier[0].truncated_through)
    check_truncated(leaderships[-1], replace(frontier[0], truncated_through=Version(truncated_through)))
    _check_kept(after, end, truncated_through)
    begin = max(truncated_through, after)
    total = max(0, end - begin) if has_range else _objects_in(frontier[0], leaderships)
    objects = size = leaders = transactions = operations = preconditions = first = last = 0
    walker = await walker_from(store, frontier, begin) if begin else ChainWalker()
    async with aclosing(follow(store, walker)) as batches:
        async for batch in batches:
            objects += 1
            size += len(batch.data)
            leaders += batch.header.kind is Kind.CLAIM
            for txn in batch.transactions():
                transactions += 1
                operations += len(txn.operations)
                preconditions += len(txn.preconditions)
                first = first or txn.version
                last = txn.version
            if on_progress is not None:
                done = max(0, min(batch.header.last_version, end) - begin) if has_range else objects
                on_progress(done, max(total, done))
            if through is not None and batch.header.last_version >= through:
                break
    head = walker.head
    if head is None or through is None or head.last_version < through:
        head = check_reached(walker, frontier[0])
    return LogCheck(
        objects=objects,
        bytes=size,
        leaders=leaders,
        transactions=transactions,
        operations=operations,
        preconditions=preconditions,
        first_transaction=first,
        last_transaction=last,
        last_version=head.last_version,
        newest_slot=head.slot,
        truncated_through=0 if after else truncated_through,
    )


def _check_kept(after: int, end: int, truncated_through: int) -> None:
    if 0 < after < truncated_through or end < truncated_through:
        raise NotFound(
            "the log was truncated past a version of this range",
            code=Code.LOG_TRUNCATED,
            hint="verify from the version that the log is truncated through, or from 0 for all that is left",
            after=after,
            through=end,
            truncated_through=truncated_through,
        )


def _objects_in(head: Header, leaderships: list[Leadership]) -> int:
    def sizes() -> Iterator[int]:
        newest = head.slot
        for leadership in leaderships:
            yield 1 + max(0, jump(leadership.claim.slot) - newest + 1)
            newest = leadership.claim.slot if leadership.before is None else leadership.before.slot

    return sum(sizes())
