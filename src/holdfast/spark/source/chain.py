"""The live chain of a log: listed whole or in part, and searched by headers.

The size of an object shows whether it is a claim. Slots count down. The next live claim is the first claim at or below
the jump of the previous claim; every slot between this jump and the next claim must exist. Below the newest claim the
first missing slot ends the log. A missing slot that is older than an acknowledged object is data loss, unless retention
removed it; only a hole that a second listing shows again counts. Memory: 16 bytes per object.

A part is listed from a live object that a search of headers finds, leadership by leadership, to another. Where a part
cannot be had, because of a hole or a long search, the functions return None: the whole chain then says what it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from holdfast.commit.format.batch import (
    CLAIM_BYTES,
    FIRST_SLOT,
    HEADER_BYTES,
    PREFIX,
    Header,
    Kind,
    decode_header,
    jump,
    object_name,
    slot_of,
)
from holdfast.commit.format.chain import broken
from holdfast.commit.leadership.takeover import read_records
from holdfast.commit.reading.lineage import Lineage, lineage_of
from holdfast.commit.reading.reader import LeadershipWalk, find_header, newest_where, require_frontier
from holdfast.errors import Code, CorruptData, InvalidRequest, NotFound, Unavailable
from holdfast.objects.port import ObjectReader, ObjectStore
from holdfast.spark.positions import Position
from holdfast.spark.runtime.store_thread import with_store
from holdfast.values import slot_text

Slots: TypeAlias = npt.NDArray[np.uint64]
Sizes: TypeAlias = npt.NDArray[np.int64]
Indices: TypeAlias = npt.NDArray[np.int64]
LIST_RANGE_SLOTS: Final = 20_000
LIST_RANGES_MAX: Final = 16
LISTINGS_MAX: Final = 5


@dataclass(frozen=True, slots=True)
class Chain:
    """Live objects in the order of writing, oldest first.

    Shape: ``slots`` falls strictly, ``sizes`` are bytes as listed. ``truncated`` when retention removed what came
    before. ``lineage`` is the log's, None where it is not known.
    """

    slots: Slots
    sizes: Sizes
    truncated: bool
    lineage: Lineage | None = None


def index_after(chain: Chain, seq: int) -> int:
    """The index of the first object after ``seq``."""
    return int(np.count_nonzero(chain.slots >= np.uint64(FIRST_SLOT - seq))) if seq >= 0 else 0


async def read_header(store: ObjectReader, slot: int) -> Header:
    """The header of an object that the plan saw. Raises: CorruptData (also when it has gone), Unavailable."""
    try:
        return decode_header(await store.read(object_name(slot), start=0, length=HEADER_BYTES), slot=slot)
    except NotFound:
        raise lost("an object of the live chain is missing", slot) from None


async def claim_of(store: ObjectReader, head: Header) -> Header:
    """The claim of the leader that wrote ``head``. Raises: CorruptData, Unavailable."""
    if head.kind is Kind.CLAIM:
        return head
    claim = await read_header(store, head.claim)
    if (head.log_id, head.epoch, head.leader_id) != (claim.log_id, claim.epoch, claim.leader_id):
        raise broken("object is not of the leader that claimed", head.slot, claim=slot_text(claim.slot))
    return claim


def require_log(lineage: Lineage | None, position: Position) -> None:
    """Return if the position is one of the log; a lineage or a log id that is not known may be any.

    Raises: InvalidRequest: ``log_mismatch``, or ``rolled_back`` for a position after the fork of a copied log.
    """
    if lineage is None or lineage.holds(position.log_id, position.version):
        return
    forked_at = lineage.forked_at.get(position.log_id or "")
    if forked_at is not None:
        message = "the offset is after the point at which this log was forked"
        hint = "begin a new query, with a new checkpoint and a new target, at or before forked_at"
    else:
        message = "the offset belongs to another log than the one at this url"
        hint = "the log was replaced: begin a new query with a new checkpoint and a new target"
    raise InvalidRequest(
        message,
        code=Code.LOG_MISMATCH if forked_at is None else Code.ROLLED_BACK,
        hint=hint,
        offset_log_id=position.log_id,
        log_id=lineage.log_id,
        forked_at=forked_at,
    )


def lost(rule: str, slot: int, through: int | None = None) -> CorruptData:
    """The error for an object that must be there and is not."""
    return CorruptData(
        f"data loss: {rule}",
        code=Code.CORRUPT_LOG,
        hint="if retention removed it while this read ran, read again from a newer startingVersion; else restore it",
        slot=slot_text(slot),
        missing_through=None if through is None else slot_text(through),
    )


async def live_chain(store: ObjectStore) -> Chain:
    """The live chain as the store lists it now. Raises: NotFound (``log_empty``), CorruptData, Unavailable."""
    before: tuple[int, int] | None = None
    for _ in range(LISTINGS_MAX):
        newest_rows = await store.list(PREFIX, limit=1)
        if not newest_rows:
            raise empty_log(store)
        # Read before the rest is listed: what this header calls durable was acknowledged earlier, so the listing has
        # it.
        newest = await read_header(store, _slot(newest_rows[0].key))
        slots, sizes = await list_slots(store, newest.slot)
        live, missing = walk(slots, sizes == CLAIM_BYTES, newest.durable)
        if missing and (await read_records(store)).copying_from(newest.log_id) is not None:
            # Several objects are under way to a copy at once: what its source acknowledged may be missing here.
            live, missing = walk(slots, sizes == CLAIM_BYTES, FIRST_SLOT + 1)
        lineage = await lineage_at(store, newest, int(slots[live][-1]))
        chain = Chain(slots[live], sizes[live], truncated=bool(missing), lineage=lineage)
        last = int(chain.slots[-1])
        if chain.sizes[-1] == CLAIM_BYTES and (await read_header(store, last)).kind is not Kind.CLAIM:
            raise broken("object of claim size is no claim", last)  # the walk jumped over later objects
        if not missing:
            return chain
        chain, missing = await after_retention(store, chain, missing, newest.truncated_through)
        if not missing:
            return chain
        if missing[-1] == before:
            raise lost("an acknowledged object is missing", *missing[-1])
        before = missing[-1]
    raise Unavailable("log changes faster than it can be listed", url=store.url)


async def after_retention(
    store: ObjectStore, chain: Chain, holes: list[tuple[int, int]], truncated_through: int
) -> tuple[Chain, list[tuple[int, int]]]:
    """The chain without what retention removed, and the holes that retention does not explain.

    What is left of the removed part is not read: it is about to be deleted, or the late PUT of another leader brought
    it back. Raises: CorruptData, Unavailable. Cost: a header for each hole, and about log2(objects).
    """
    for index in reversed(range(len(holes) if truncated_through else 0)):
        first_kept = int(np.count_nonzero(chain.slots > np.uint64(holes[index][1])))
        if first_kept == len(chain.slots):
            continue
        try:
            oldest = await read_header(store, int(chain.slots[first_kept]))
        except CorruptData:
            continue
        if oldest.prev_version <= truncated_through:
            rest = replace(chain, slots=chain.slots[first_kept:], sizes=chain.sizes[first_kept:], truncated=True)
            first = await first_index(store, rest, lambda header: header.last_version > truncated_through)
            first = min(first, len(rest.slots) - 1)
            return replace(rest, slots=rest.slots[first:], sizes=rest.sizes[first:]), holes[index + 1 :]
    return chain, holes


async def lineage_at(store: ObjectStore, header: Header, slot: int) -> Lineage:
    """The lineage of the log whose newest live object is in ``slot``; ``header`` may be that object's.

    Cost: as ``lineage_of``. Raises: CorruptData, Unavailable.
    """
    newest = header if header.slot == slot else await read_header(store, slot)
    genesis = await find_header(store, FIRST_SLOT)
    if genesis is None or genesis.log_id == newest.log_id:
        return Lineage(newest.log_id.hex())
    return await lineage_of(store, await claim_of(store, newest))


def _slot(key: str) -> int:
    slot = slot_of(key)
    if slot is None:
        raise CorruptData("a key under batches/ is not a slot", code=Code.CORRUPT_LOG, key=key)
    return slot


async def list_slots(store: ObjectStore, newest: int, oldest: int = FIRST_SLOT) -> tuple[Slots, Sizes]:
    """Every object from ``newest`` back to ``oldest``, both included, newest first."""
    span = oldest - newest + 1
    ranges = max(1, min(LIST_RANGES_MAX, span // LIST_RANGE_SLOTS))
    starts = [newest + span * i // ranges for i in range(ranges + 1)]

    async def part(first: int, past: int) -> tuple[Slots, Sizes]:
        rows = await store.list(PREFIX, after=object_name(first - 1), limit=past - first)
        listed = [(slot, row.size) for row in rows if (slot := _slot(row.key)) < past]
        return np.array([slot for slot, _ in listed], np.uint64), np.array([size for _, size in listed], np.int64)

    parts = await asyncio.gather(*(part(a, b) for a, b in pairwise(starts)))
    slots = np.concatenate([part_slots for part_slots, _ in parts])
    sizes = np.concatenate([part_sizes for _, part_sizes in parts])
    if bool(np.any(slots[1:] <= slots[:-1])):
        raise CorruptData("the store does not list in order", code=Code.STORE_UNFIT, url=store.url)
    return slots, sizes


def walk(
    slots: Slots, is_claim: npt.NDArray[np.bool_], durable: int, begin: int = FIRST_SLOT
) -> tuple[Indices, list[tuple[int, int]]]:
    """Indices of the live objects, oldest first, and the runs (first, last) of acknowledged slots that are not there.

    ``slots`` rises (newest first). Every live slot at or above ``durable`` was acknowledged before the listing. The
    walk starts at genesis, or at the live object in ``begin``.
    """
    claims = [int(slot) for slot in slots[is_claim][::-1] if slot <= begin]
    if begin == FIRST_SLOT and (not claims or claims[0] != FIRST_SLOT):
        raise lost("the log has no genesis claim", FIRST_SLOT)
    live: list[Indices] = []
    missing: list[tuple[int, int]] = []
    claim = claims.pop(0) if claims and claims[0] == begin else None
    for candidate in [*claims, None]:
        start = jump(claim) if claim is not None else begin
        if candidate is not None and candidate > start:
            continue  # strictly between a live claim and its jump: dead
        if claim is not None:
            live.append(np.array([_below(slots, claim)], dtype=np.int64))
        past = candidate if candidate is not None else min(durable - 1, int(start))
        acknowledged = np.arange(_below(slots, start + 1), _below(slots, past + 1), -1, dtype=np.int64) - 1
        missing += _holes(slots[acknowledged], start, past)
        live.append(acknowledged)
        if candidate is None:
            rest = np.arange(_below(slots, past + 1) - 1, -1, -1, dtype=np.int64)
            landed = slots[rest] == np.uint64(past) - np.arange(len(rest), dtype=np.uint64)
            live.append(rest[: len(rest) if landed.all() else int(np.argmin(landed))])
        else:
            claim = candidate
    return np.concatenate(live), missing


def _below(slots: Slots, slot: int) -> int:
    """How many of the rising ``slots`` are below ``slot``: its index, where it is listed."""
    if slot > FIRST_SLOT:
        return len(slots)
    return int(np.searchsorted(slots, np.uint64(slot), side="left"))


def _holes(present: Slots, start: int, past: int) -> list[tuple[int, int]]:
    """The runs of slots in ``start`` down to, not including, ``past`` that the falling ``present`` lacks."""
    if len(present) == start - past:
        return []
    edges = np.concatenate((np.array([start + 1], dtype=np.uint64), present, np.array([past], dtype=np.uint64)))
    wide = np.flatnonzero(edges[:-1] - edges[1:] > 1)
    return [(int(edges[i]) - 1, int(edges[i + 1]) + 1) for i in wide]


async def first_index(store: ObjectStore, chain: Chain, reached: Callable[[Header], bool]) -> int:
    """The first index in the chain whose header has ``reached`` what is sought; versions rise along the chain."""
    low, high = 0, len(chain.slots)
    while low < high:
        middle = (low + high) // 2
        if reached(await read_header(store, int(chain.slots[middle]))):
            high = middle
        else:
            low = middle + 1
    return low


@dataclass(frozen=True, slots=True)
class LogHead:
    """The newest durable version of a log, and which log it is (its id as 32 hexadecimal digits)."""

    log_id: str
    version: int


def log_head(url: str) -> LogHead:
    """The id and version in the newest live object of the log. Cost: one LIST page, two rounds of headers.

    Raises: NotFound (``log_empty``), CorruptData, Unavailable.
    """
    newest = with_store(url, newest_header)
    return LogHead(newest.log_id.hex(), newest.last_version)


async def newest_header(store: ObjectStore) -> Header:
    """The header of the newest live object. Raises: NotFound (``log_empty``), CorruptData, Unavailable."""
    return (await frontier_of(store)).newest


def empty_log(store: ObjectStore) -> NotFound:
    """The error for a log without objects."""
    return NotFound("log is empty: nothing is listed under batches/", code=Code.LOG_EMPTY, url=store.url)


LEADERSHIPS_MAX: Final = 256
"""Leaderships that a search goes back, with two reads each, before a listing is the shorter way."""


class LiveEnd(NamedTuple):
    """The newest live object, and the claim of its leader."""

    newest: Header
    claim: Header


async def frontier_of(store: ObjectStore) -> LiveEnd:
    """Where the log ends. Cost: one LIST page, two rounds of headers.

    Raises: NotFound (``log_empty``), CorruptData, Unavailable.
    """
    return LiveEnd(*await require_frontier(store))


async def newest_before(store: ObjectStore, frontier: LiveEnd, reached: Callable[[Header], bool]) -> Header | None:
    """The newest live object that has not ``reached`` what is sought, which the objects after it all have.

    Cost: two header reads for each leadership since, then about log2(objects of one). Raises: CorruptData, Unavailable.
    """
    newest = frontier.newest
    if not reached(newest):
        return newest
    searched = 0
    async for leadership in LeadershipWalk(store, frontier.claim, newest):
        if not reached(leadership.claim):
            slot, header_before = await newest_where(store, leadership, lambda header: not reached(header))
            return leadership.claim if slot is None else header_before
        if leadership.before is None or searched == LEADERSHIPS_MAX:
            return None
        if not reached(leadership.before):
            return leadership.before
        searched += 1
    return None


async def known_object(store: ObjectStore, frontier: LiveEnd, seq: int, version: int) -> Header | None:
    """The object of this sequence number, which was live before, if it still ends at or below ``version``."""
    slot = FIRST_SLOT - seq
    if seq <= 0 or slot < frontier.newest.slot:
        return None
    header = await find_header(store, slot)
    if header is None or header.log_id != frontier.newest.log_id or header.last_version > version:
        return None
    return header


async def live_part(store: ObjectStore, frontier: LiveEnd, begin: Header, last: Header) -> Chain | None:
    """The live chain from ``begin`` to ``last``, which are live. Cost: the LIST pages of these slots, and a lineage."""
    if 0 < frontier.newest.truncated_through >= begin.last_version:
        return None  # about to be deleted, or a late PUT of another leader
    slots, sizes = await list_slots(store, last.slot, begin.slot)
    if not len(slots) or int(slots[0]) != last.slot or int(slots[-1]) != begin.slot:
        return None
    # The walk takes an object of claim size for a claim.
    if sizes[-1] == CLAIM_BYTES and begin.kind is not Kind.CLAIM:
        return None
    live, missing = walk(slots, sizes == CLAIM_BYTES, last.slot, begin.slot)
    if missing or int(slots[live][-1]) != last.slot:
        return None
    lineage = await lineage_at(store, frontier.newest, frontier.newest.slot)
    return Chain(slots[live], sizes[live], truncated=False, lineage=lineage)


def joined(first: Chain, following: Chain) -> Chain:
    """Two parts as one; the second begins with the last object of the first."""
    assert first.slots[-1] == following.slots[0], "parts that meet"
    slots = np.concatenate((first.slots, following.slots[1:]))
    return Chain(slots, np.concatenate((first.sizes, following.sizes[1:])), first.truncated, first.lineage)
