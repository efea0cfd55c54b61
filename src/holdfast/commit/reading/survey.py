"""Survey a log on its store: which objects are live, and whether each is intact. Reads only; safe next to a leader.

Raises ``CorruptData`` for damage and ``Unavailable`` if the store does not respond.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, field, replace

from holdfast.commit.format.batch import CLAIM_BYTES, FIRST_SLOT, PREFIX, Header, Kind, jump, slot_of
from holdfast.commit.format.chain import ChainWalker, broken
from holdfast.commit.reading.reader import (
    Leadership,
    LeadershipWalk,
    check_truncated,
    find_frontier,
    follow,
    require_frontier,
    walker_from,
)
from holdfast.errors import Code, CorruptData, InvalidRequest, NotFound
from holdfast.objects.port import Listed, ObjectStore, Pages
from holdfast.values import Slot, Version, slot_text


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
        return any(
            slot == each.claim.slot or ((each.newest.slot <= slot or index == 0) and slot <= jump(each.claim.slot))
            for index, each in enumerate(self.leaderships)
        )


async def survey(store: ObjectStore, *, objects_max: int | None) -> Survey:
    """List the newest ``objects_max`` objects (all of them for None), and walk the claims back to genesis.

    Cost: a LIST for each 1000 objects, two header reads for each leader. Raises: Unavailable, CorruptData.
    """
    result = Survey()
    frontier = await find_frontier(store)
    if frontier is None:
        return result
    result.head, claim = frontier
    result.leaderships = [leadership async for leadership in LeadershipWalk(store, claim, result.head)]
    check_truncated(result.leaderships[-1], result.head)
    async for rows in Pages(store, PREFIX):
        result.objects += rows
        if objects_max is not None and len(result.objects) >= objects_max:
            del result.objects[objects_max:]
            break
    return result


async def walker_after(store: ObjectStore, version: int) -> tuple[ChainWalker, Header]:
    """A walker whose next object holds the first transaction after ``version``, and the newest live object."""
    frontier = await require_frontier(store)
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


def check_reached(walker: ChainWalker, newest: Header) -> Header:
    """The object at which a read ended. Raises: CorruptData when it is older than ``newest``: the log has a hole."""
    head = walker.head
    if head is None or head.slot > newest.slot:
        missing = FIRST_SLOT if head is None else walker.next_slot
        raise broken("a slot of the live chain is missing", missing, newest=slot_text(newest.slot))
    return head


@dataclass(slots=True)
class LogCheck:
    """The counts of a complete read of a log. Every checksum, version and link of the chain was correct.

    ``truncated_through``: versions up to this one were asked for and not read, because retention removed them.
    """

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
    truncated_through: int = 0


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
    frontier = await require_frontier(store)
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
    leaderships = [leadership async for leadership in LeadershipWalk(store, frontier[1], frontier[0])]
    truncated_through = max(truncated_through, frontier[0].truncated_through)
    check_truncated(leaderships[-1], replace(frontier[0], truncated_through=Version(truncated_through)))
    _check_kept(after, end, truncated_through)
    begin = max(truncated_through, after)
    total = max(0, end - begin) if has_range else _objects_in(leaderships)
    check = LogCheck(truncated_through=0 if after else truncated_through)
    walker = await walker_from(store, frontier, begin) if begin else ChainWalker()
    async with aclosing(follow(store, walker)) as batches:
        async for batch in batches:
            check.objects += 1
            check.bytes += len(batch.data)
            check.leaders += batch.header.kind is Kind.CLAIM
            for txn in batch.transactions():
                check.transactions += 1
                check.operations += len(txn.operations)
                check.preconditions += len(txn.preconditions)
                check.first_transaction = check.first_transaction or txn.version
                check.last_transaction = txn.version
            if on_progress is not None:
                done = max(0, min(batch.header.last_version, end) - begin) if has_range else check.objects
                on_progress(done, max(total, done))
            if through is not None and batch.header.last_version >= through:
                break
    head = walker.head
    if head is None or through is None or head.last_version < through:
        head = check_reached(walker, frontier[0])
    check.last_version, check.newest_slot = head.last_version, head.slot
    return check


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


def _objects_in(leaderships: list[Leadership]) -> int:
    return sum(1 + max(0, jump(each.claim.slot) - each.newest.slot + 1) for each in leaderships)
