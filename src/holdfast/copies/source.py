"""The objects of a log that a copy gets: from where the copy stands, in the order of the chain, up to a cut.

A truncated log is copied with all its claims, also those below the truncation: each of them keeps a deposed leader's
late object out of its slot, in the copy as well.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from typing import Final

from holdfast.commit.format.batch import (
    FIRST_SLOT,
    FLAG_LZ4,
    Header,
    Kind,
    LoggedTransaction,
    decode_all,
    decode_header,
    encode_body,
    encode_object,
    object_name,
)
from holdfast.commit.format.chain import ChainWalker
from holdfast.commit.leadership.role import CopyRole
from holdfast.commit.reading.reader import (
    LoggedBatch,
    claims_after,
    find_frontier,
    find_header,
    follow,
    require_frontier,
    walker_from,
)
from holdfast.errors import Code, CorruptData, HoldfastError, InvalidRequest, NotFound
from holdfast.objects.port import ObjectStore
from holdfast.values import Slot, Version, slot_text

PREFETCH: Final = 64


async def first_slot_of(source: ObjectStore, frontier: tuple[Header, Header]) -> Slot:
    """Where a log that ends with this object and claim begins now. Raises: NotFound, CorruptData, Unavailable."""
    truncated_through = frontier[0].truncated_through
    return (await walker_from(source, frontier, truncated_through)).next_slot if truncated_through else FIRST_SLOT


async def standing_of(source: ObjectStore, copy: ObjectStore, *, truncated_through: int) -> ChainWalker | None:
    """Where a copy of ``source`` goes on; None for from the beginning.

    ``truncated_through`` is what was removed from the source when the copy began. The newest object of the copy is
    copied once more: the last one of a restore may be a part of the source's.
    Raises: InvalidRequest (``log_mismatch``: it is a copy of something else), NotFound (``log_truncated``: the source
    no longer has what follows), CorruptData, Unavailable.
    """
    frontier = await find_frontier(copy)
    if frontier is None:
        return None
    head, claim = frontier
    if head.kind is not Kind.CLAIM:
        before = await find_header(copy, head.prev)
        if before is None:
            return None  # the first object after what was removed from the source
        head = before
    if head.last_version <= truncated_through:
        return None
    original = await find_header(source, head.slot)
    if original is None or (original != head and await _is_truncated(source, head)):
        raise NotFound(
            "the source was truncated past the end of this copy",
            code=Code.LOG_TRUNCATED,
            hint="begin another copy at an empty prefix",
            copied_through=head.last_version,
        )
    if original != head:
        raise InvalidRequest(
            "this is not a copy of the source: they differ in an object",
            code=Code.LOG_MISMATCH,
            hint="a copy that was promoted is a log of its own; begin another copy at an empty prefix",
            object=object_name(head.slot),
        )
    return ChainWalker(head, head if head.kind is Kind.CLAIM else claim)


async def _is_truncated(source: ObjectStore, head: Header) -> bool:
    """Whether the source removed this object. A create of a deposed leader may land in its place later."""
    frontier = await find_frontier(source)
    return frontier is not None and head.last_version <= frontier[0].truncated_through


async def objects_from(
    source: ObjectStore, standing: ChainWalker | None, role: CopyRole
) -> AsyncGenerator[LoggedBatch]:
    """The objects of a log after where a copy stands, claims included, to the end of the log.

    A copy of a truncated log begins with the very slot that ``role`` names: recovery takes what is missing after it for
    objects under way.
    Raises: NotFound (``log_truncated``), CorruptData, Unavailable. Cost: a GET for each object, ``PREFETCH`` ahead.
    """
    walker = ChainWalker() if standing is None else standing
    if standing is None and role.truncated_through:
        walker = await walker_from(source, await require_frontier(source), role.truncated_through)
        if slot_text(walker.next_slot) != role.first_slot:
            raise NotFound(
                "the source was truncated further since this copy began",
                code=Code.LOG_TRUNCATED,
                hint="begin another copy at an empty prefix",
                began_at=role.first_slot,
            )
        for slot in reversed(await claims_after(source, walker.next_slot)):
            data = await source.read(object_name(slot))
            yield LoggedBatch(decode_header(data, slot=slot), data)
        if walker.head is not None and walker.head.kind is not Kind.CLAIM:
            # It stands on what was removed, or is about to be.
            assert walker.claim is not None, "a walk that stands somewhere knows its claim"
            walker = ChainWalker.behind_removed(walker.next_slot, walker.claim)
    async with aclosing(follow(source, walker, prefetch=PREFETCH)) as batches:
        async for batch in batches:
            yield batch


class Cut:
    """The objects up to ``version``; one that the version divides is encoded again with its part.

    ``is_reached`` once an object showed that nothing up to the version is missing. A source that is truncated while it
    is read may end early.
    """

    def __init__(self, version: int, standing: ChainWalker | None) -> None:
        """``standing``: where the copy goes on."""
        self._version = version
        head = None if standing is None else standing.head
        self.is_reached = head is not None and head.last_version >= version

    async def of(self, objects: AsyncIterator[LoggedBatch]) -> AsyncGenerator[LoggedBatch]:
        """The objects that the copy gets."""
        async for batch in objects:
            self.is_reached = self.is_reached or batch.header.last_version >= self._version
            if batch.header.last_version <= self._version:
                yield batch
                continue
            part = self._part(batch)
            if part is not None:
                yield part
            return

    def _part(self, batch: LoggedBatch) -> LoggedBatch | None:
        header = batch.header
        every = decode_all(batch.data, header) if header.has_body else []
        rest = [logged for logged in every if logged.version <= self._version]
        if not rest:
            return None
        transactions = [logged.version for logged in rest if isinstance(logged, LoggedTransaction)]
        newest = transactions[-1] if transactions else header.prev_version
        part = replace(
            header,
            last_version=Version(rest[-1].version),
            transactions=len(transactions),
            entries=len(rest) - len(transactions),
            newest_transaction=Version(newest if header.stores_mode else 0),
        )
        data = encode_object(part, encode_body(rest, compress=bool(header.flags & FLAG_LZ4)))
        return LoggedBatch(decode_header(data, slot=header.slot), data)


async def ended_early(source: ObjectStore, copy: ObjectStore) -> HoldfastError:
    """Why the source ended before an object that it had when the copy began.

    Raises: CorruptData, Unavailable.
    """
    now, reached = await find_frontier(source), await find_frontier(copy)
    through = None if reached is None else reached[0].last_version
    if now is not None and (through or 0) < now[0].truncated_through:
        return NotFound(
            "the source has removed what was not copied yet",
            code=Code.LOG_TRUNCATED,
            hint="begin another copy at an empty prefix; a copier that may write under meta/ of the source holds it",
            copied_through=through,
            truncated_through=now[0].truncated_through,
        )
    return CorruptData(
        "an object of the source has gone",
        code=Code.CORRUPT_LOG,
        hint="`holdfast log verify` names what is missing; `holdfast log repair` makes a log without it",
        copied_through=through,
    )
