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
    CLAIM_BYTES,
    FIRST_SLOT,
    FLAG_LZ4,
    PREFIX,
    Header,
    Kind,
    Logged,
    LoggedTransaction,
    decode_all,
    decode_header,
    encode_body,
    encode_object,
    object_name,
    slot_of,
)
from holdfast.commit.format.chain import ChainWalker
from holdfast.commit.leadership.role import Role
from holdfast.commit.reading.reader import (
    LoggedBatch,
    find_frontier,
    follow,
    leaderships_back,
    newest_where,
    read_header,
)
from holdfast.commit.reading.survey import walker_from
from holdfast.errors import Code, InvalidRequest, NotFound
from holdfast.objects.port import ObjectStore
from holdfast.values import Slot, Version, slot_text

PAGE: Final = 1_000
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
        before = await read_header(copy, head.prev)
        if before is None:
            return None  # the first object after what was removed from the source
        head = before
    if head.last_version <= truncated_through:
        return None
    original = await read_header(source, head.slot)
    if original is None:
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


async def objects_from(source: ObjectStore, standing: ChainWalker | None, role: Role) -> AsyncGenerator[LoggedBatch]:
    """The objects of a log after where a copy stands, claims included, to the end of the log.

    A copy of a truncated log begins with the very slot that ``role`` names: recovery takes what is missing after it for
    objects under way.
    Raises: NotFound (``log_truncated``), CorruptData, Unavailable. Cost: a GET for each object, ``PREFETCH`` ahead.
    """
    walker = ChainWalker() if standing is None else standing
    if standing is None and role.truncated_through:
        frontier = await find_frontier(source)
        if frontier is None:
            raise NotFound("log is empty", code=Code.LOG_EMPTY)
        walker = await walker_from(source, frontier, role.truncated_through)
        if slot_text(walker.next_slot) != role.first_slot:
            raise NotFound(
                "the source was truncated further since this copy began",
                code=Code.LOG_TRUNCATED,
                hint="begin another copy at an empty prefix",
                began_at=role.first_slot,
            )
        async with aclosing(_claims_before(source, walker.next_slot)) as claims:
            async for claim in claims:
                yield claim
        if walker.head is not None and walker.head.kind is not Kind.CLAIM:
            # It stands on what was removed, or is about to be.
            walker = ChainWalker.behind_removed(walker.next_slot, _claim_of(walker))
    async with aclosing(follow(source, walker, prefetch=PREFETCH)) as batches:
        async for batch in batches:
            yield batch


def _claim_of(walker: ChainWalker) -> Header:
    assert walker.claim is not None, "a walk that stands somewhere knows its claim"
    return walker.claim


async def _claims_before(source: ObjectStore, slot: Slot) -> AsyncGenerator[LoggedBatch]:
    """The claims in older slots than ``slot``, oldest first."""
    slots: list[Slot] = []
    after = object_name(slot)
    while True:
        rows = await source.list(PREFIX, after=after, limit=PAGE)
        slots += [found for row in rows if row.size == CLAIM_BYTES and (found := slot_of(row.key)) is not None]
        if len(rows) < PAGE:
            break
        after = rows[-1].key
    for found in reversed(slots):
        data = await source.read(object_name(found))
        yield LoggedBatch(decode_header(data, slot=found), data)


async def cut_at(objects: AsyncIterator[LoggedBatch], version: int) -> AsyncGenerator[LoggedBatch]:
    """The objects up to ``version``; one that the version divides is encoded again with its part."""
    async for batch in objects:
        header = batch.header
        if header.last_version <= version:
            yield batch
            continue
        kept = [logged for logged in _all_of(batch) if logged.version <= version]
        if kept:
            transactions = [logged.version for logged in kept if isinstance(logged, LoggedTransaction)]
            newest = transactions[-1] if transactions else header.prev_version
            part = replace(
                header,
                last_version=Version(kept[-1].version),
                transactions=len(transactions),
                entries=len(kept) - len(transactions),
                newest_transaction=Version(newest if header.stores_mode else 0),
            )
            data = encode_object(part, encode_body(kept, compress=bool(header.flags & FLAG_LZ4)))
            yield LoggedBatch(decode_header(data, slot=header.slot), data)
        return


def _all_of(batch: LoggedBatch) -> list[Logged]:
    return decode_all(batch.data, batch.header) if batch.header.has_body else []


async def version_at(source: ObjectStore, frontier: tuple[Header, Header], time_ms: int) -> int:
    """The last version of the newest object that was written at ``time_ms`` or before.

    Raises: NotFound (``log_truncated``: nothing that is left is so old), CorruptData, Unavailable.
    Cost: two header reads for each leadership back to that time, and a search in it.
    """
    newest, claim = frontier
    async with aclosing(leaderships_back(source, claim)) as leaderships:
        async for leadership in leaderships:
            if leadership.claim.time_ms <= time_ms:
                slot, header = await newest_where(source, leadership, newest, lambda each: each.time_ms <= time_ms)
                if slot is None:
                    return leadership.base
                if header is not None:
                    return header.last_version
                break
            if leadership.before is None:
                break
            newest = leadership.before
    raise NotFound(
        "the log has nothing that is so old",
        code=Code.LOG_TRUNCATED if newest.slot != FIRST_SLOT and newest.truncated_through else Code.NOT_FOUND,
        hint="give a later time",
        time_ms=time_ms,
    )
