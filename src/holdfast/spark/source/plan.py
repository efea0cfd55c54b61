"""Plan a read: find the live objects in one listing, bound them by version, and cut them into pieces.

The size of an object shows whether it is a claim. Slots count down. The next live claim is the first claim at or below
the jump of the previous claim; every slot between this jump and the next claim must exist. Below the newest claim the
first missing slot ends the log. A missing slot that is older than an acknowledged object is data loss, unless retention
removed it; only a hole that a second listing shows again counts. Cost: the LIST pages, one header, and about
log2(objects) headers per version bound. Memory: 16 bytes per object.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
from pyspark.sql.datasource import InputPartition

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
from holdfast.commit.leadership.role_records import read_records
from holdfast.commit.reading.lineage import Lineage, lineage_of
from holdfast.commit.reading.reader import find_frontier
from holdfast.commit.reading.reader import read_header as read_genesis
from holdfast.errors import Code, CorruptData, InvalidRequest, NotFound, Unavailable
from holdfast.objects.port import ObjectReader, ObjectStore
from holdfast.spark.options import Position, ReadOptions
from holdfast.spark.runtime.cores import cores
from holdfast.spark.runtime.store_thread import with_store
from holdfast.spark.source.shapes import RowFilter, row_filter, seq_of
from holdfast.values import slot_text

Slots: TypeAlias = npt.NDArray[np.uint64]
Sizes: TypeAlias = npt.NDArray[np.int64]
Indices: TypeAlias = npt.NDArray[np.int64]

LIST_RANGE_SLOTS: Final = 20_000
LIST_RANGES_MAX: Final = 16
OBJECT_COST_BYTES: Final = 8 * 1024
"""What reading one more object costs a task, as bytes read in the same time; keeps partitions of tiny objects short."""
WORTH_A_TASK_BYTES: Final = 4 * 2**20
"""A log is cut for idle cores into pieces of at least this: a task costs as much as reading some MiB."""
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


@dataclass(frozen=True, slots=True)
class Piece:
    """What one task reads: runs of live slots in the order of writing, and where they hang in the chain.

    Shape: each run is (first, last), first >= last, both inclusive. ``head`` is the slot before the first run and
    ``claim`` the newest claim at or before ``head``; None when there is none in what is left of the log. ``lineage`` is
    that of the log that was planned; a task that finds another one there refuses it.
    """

    runs: tuple[tuple[int, int], ...]
    head: int | None
    claim: int | None
    objects: int
    object_bytes: int
    lineage: Lineage | None = None

    def slots(self) -> Iterator[int]:
        """The slots in the order of writing."""
        return (slot for first, last in self.runs for slot in range(first, last - 1, -1))


@dataclass(frozen=True, slots=True)
class Plan:
    """The pieces of a read in log order, and the rows that are wanted from them."""

    pieces: list[Piece]
    wanted: RowFilter


async def plan_read(store: ObjectStore, options: ReadOptions, pushed: RowFilter | None = None) -> Plan:
    """The pieces that together hold every live object that ``options`` and the ``pushed`` filters ask for.

    Raises: NotFound (``log_empty``, ``log_truncated``), InvalidRequest (also ``log_mismatch``), CorruptData,
    Unavailable.
    """
    chain = await live_chain(store)
    if options.starting_after is not None:
        require_log(chain.lineage, options.starting_after)
    if options.ending_at is not None:
        require_log(chain.lineage, options.ending_at)
    starting = options.starting_version
    newest = await read_header(store, int(chain.slots[-1]))
    if options.from_latest:
        starting = newest.last_version
    past, ending = await _end(store, chain, options, newest)
    first = await first_object(store, chain, options, starting)
    if options.starting_after is not None:
        starting = options.starting_after.version + 1
    wanted = replace(row_filter(options), version_min=starting, version_max=ending)
    if pushed is not None:
        first, past = await _narrowed(store, chain, first, past, pushed)
        wanted = wanted.and_also(pushed)
    return Plan(
        cut(chain, first, past, options.target_partition_bytes, _pieces_min(chain, first, past, options)), wanted
    )


def _pieces_min(chain: Chain, first: int, past: int, options: ReadOptions) -> int:
    """At least how many pieces a batch has: without the option a piece per core, if each has enough to read."""
    if options.partitions_min is not None:
        return options.partitions_min
    cost = int(chain.sizes[first:past].sum()) + OBJECT_COST_BYTES * max(0, past - first)
    return max(1, min(cores(), cost // WORTH_A_TASK_BYTES))


async def _end(store: ObjectStore, chain: Chain, options: ReadOptions, newest: Header) -> tuple[int, int | None]:
    """The index after the last object that ``options`` ask for, and the last version, None for all of that object.

    Raises: InvalidRequest (``future_version``), NotFound (``log_truncated``: an as-of time before the oldest object).
    """
    ending, at = options.ending_version, options.ending_at
    if at is not None and at.seq is not None:
        if at.seq > seq_of(newest.slot):
            raise _past_the_end("endingOffsets", newest, ending_seq=at.seq)
        return index_after(chain, at.seq), None
    if at is not None:
        ending = at.version
    if ending is not None:
        highest = ending
        if highest > newest.last_version:
            raise _past_the_end("endingVersion" if at is None else "endingOffsets", newest, ending_version=highest)
        return await first_index(store, chain, lambda header: header.first_version > highest), highest
    until_ms = options.ending_ms if options.as_of_ms is None else options.as_of_ms
    if until_ms is None:
        return len(chain.slots), None
    past = await first_index(store, chain, lambda header: header.time_ms > until_ms)
    if past == 0 and options.as_of_ms is not None:
        oldest = await read_header(store, int(chain.slots[0]))
        raise NotFound(
            "timestampAsOf is before the oldest object of the log",
            code=Code.LOG_TRUNCATED,
            hint="give a later time; a removed part of the log may be in segments or in a snapshot",
            as_of_ms=until_ms,
            oldest_ms=oldest.time_ms,
        )
    return past, None


def _past_the_end(option: str, newest: Header, **asked: int) -> InvalidRequest:
    return InvalidRequest(
        f"{option} is past the end of the log",
        code=Code.FUTURE_VERSION,
        facts={**asked, "last_version": newest.last_version, "last_seq": seq_of(newest.slot)},
    )


def ending_version(url: str, options: ReadOptions) -> int | None:
    """The last version that ``options`` ask for, None for the end of the log. Cost: a plan, for a time or an offset.

    Raises: as ``plan_read``; NotFound (``log_truncated``) also for an end before the oldest object.
    """
    if options.ending_at is None and options.ending_ms is None and options.as_of_ms is None:
        return options.ending_version

    async def resolved(store: ObjectStore) -> int | None:
        chain = await live_chain(store)
        if options.ending_at is not None:
            require_log(chain.lineage, options.ending_at)
        past, version = await _end(store, chain, options, await read_header(store, int(chain.slots[-1])))
        if version is not None:
            return version
        if past > 0:
            return (await read_header(store, int(chain.slots[past - 1]))).last_version
        if not chain.truncated:
            return 0
        raise NotFound(
            "the end of this read is before the oldest object of the log",
            code=Code.LOG_TRUNCATED,
            hint="give endingVersion, which segments know without the log",
        )

    return with_store(url, resolved)


async def first_object(store: ObjectStore, chain: Chain, options: ReadOptions, starting: int | None) -> int:
    """Where in the chain reading begins: the first object that may hold what ``options`` (and ``starting``) ask for.

    Raises: NotFound (``log_truncated``) when retention has removed some of it, unless ``failOnDataLoss`` is off.
    """
    after, since_ms = options.starting_after, options.starting_ms
    if since_ms is not None:
        since = await first_index(store, chain, lambda header: header.time_ms >= since_ms)
        if starting is None:
            return since
        # Both are given where segments hold the versions before ``starting``.
        return max(since, await first_object(store, chain, replace(options, starting_ms=None), starting))
    if after is not None and after.seq is not None:
        seq = after.seq
        await _refuse_loss(store, chain, options, lambda oldest: seq_of(oldest.prev) > seq, after)
        return index_after(chain, seq)
    lowest = starting if after is None else after.version + 1
    if lowest is None:
        return 0
    before = Position(None, lowest - 1)
    await _refuse_loss(store, chain, options, lambda oldest: lowest <= oldest.prev_version, before)
    return await first_index(store, chain, lambda header: header.last_version >= lowest)


def index_after(chain: Chain, seq: int) -> int:
    """The index of the first object after ``seq``."""
    return int(np.count_nonzero(chain.slots >= np.uint64(FIRST_SLOT - seq))) if seq >= 0 else 0


async def _narrowed(store: ObjectStore, chain: Chain, first: int, past: int, pushed: RowFilter) -> tuple[int, int]:
    """The part of ``[first, past)`` that may hold rows of a filter. Nothing there is no error: a filter asks."""
    if pushed.seq_min is not None:
        first = max(first, index_after(chain, pushed.seq_min - 1))
    if pushed.seq_max is not None:
        past = min(past, index_after(chain, pushed.seq_max))
    lowest, highest = pushed.version_min, pushed.version_max
    if lowest is not None:
        first = max(first, await first_index(store, chain, lambda header: header.last_version >= lowest))
    if highest is not None:
        past = min(past, await first_index(store, chain, lambda header: header.first_version > highest))
    return first, past


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
        raise InvalidRequest(
            "the offset is after the point at which this log was forked",
            code=Code.ROLLED_BACK,
            hint="begin a new query, with a new checkpoint and a new target, at or before forked_at",
            offset_log_id=position.log_id,
            log_id=lineage.log_id,
            forked_at=forked_at,
        )
    raise InvalidRequest(
        "the offset belongs to another log than the one at this url",
        code=Code.LOG_MISMATCH,
        hint="the log was replaced: begin a new query with a new checkpoint and a new target",
        offset_log_id=position.log_id,
        log_id=lineage.log_id,
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
        await _require_claim_at_end(store, chain)
        if not missing:
            return chain
        hole = missing[-1]
        kept = int(np.count_nonzero(chain.slots > np.uint64(hole[1])))
        if kept == len(chain.slots):
            raise lost("an acknowledged object is missing", hole[0])
        oldest = await read_header(store, int(chain.slots[kept]))
        if 0 < newest.truncated_through >= oldest.prev_version:
            return await after_truncation(store, chain, kept, newest.truncated_through)
        if hole == before:
            raise lost("an acknowledged object is missing", hole[0], hole[1])
        before = hole
    raise Unavailable("log changes faster than it can be listed", url=store.url)


async def after_truncation(store: ObjectStore, chain: Chain, kept: int, truncated_through: int) -> Chain:
    """The chain from ``kept`` on, without what is at or below ``truncated_through``.

    Nobody reads what is there: it is about to be deleted, or the late PUT of another leader brought it back.
    Raises: CorruptData, Unavailable. Cost: about log2(objects) headers.
    """
    rest = replace(chain, slots=chain.slots[kept:], sizes=chain.sizes[kept:], truncated=True)
    first = await first_index(store, rest, lambda header: header.last_version > truncated_through)
    first = min(first, len(rest.slots) - 1)
    return replace(rest, slots=rest.slots[first:], sizes=rest.sizes[first:])


async def lineage_at(store: ObjectStore, header: Header, slot: int) -> Lineage:
    """The lineage of the log whose newest live object is in ``slot``; ``header`` may be that object's.

    Cost: as ``lineage_of``. Raises: CorruptData, Unavailable.
    """
    newest = header if header.slot == slot else await read_header(store, slot)
    genesis = await read_genesis(store, FIRST_SLOT)
    if genesis is None or genesis.log_id == newest.log_id:
        return Lineage(newest.log_id.hex())
    return await lineage_of(store, await claim_of(store, newest))


async def _require_claim_at_end(store: ObjectStore, chain: Chain) -> None:
    """Raise if the chain ends with an object of claim size that is not a claim: the walk jumped over later objects."""
    newest = int(chain.slots[-1])
    if chain.sizes[-1] == CLAIM_BYTES and (await read_header(store, newest)).kind is not Kind.CLAIM:
        raise broken("object of claim size is no claim", newest)


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


async def _refuse_loss(
    store: ObjectStore, chain: Chain, options: ReadOptions, is_lost: Callable[[Header], bool], after: Position
) -> None:
    if not chain.truncated or not options.fail_on_data_loss:
        return
    oldest = await read_header(store, int(chain.slots[0]))
    if is_lost(oldest):
        raise NotFound(
            "data loss: retention has removed versions that this read starts from",
            code=Code.LOG_TRUNCATED,
            hint="start from a newer version or a snapshot, or set failOnDataLoss=false to begin with what is left",
            after_version=after.version,
            after_seq=after.seq,
            removed_through=oldest.prev_version,
        )


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


def cut(chain: Chain, first: int, past: int, target_bytes: int, pieces_min: int = 1) -> list[Piece]:
    """Pieces of nearly equal cost, none much above ``target_bytes``, never fewer objects than one.

    At least ``pieces_min`` pieces, if there are as many objects of similar size. More than that are made an even
    number of pieces: with one left over, half of a small machine waits for the last.
    """
    if first >= past:
        return []
    costs = chain.sizes[first:past] + OBJECT_COST_BYTES
    ends = np.cumsum(costs)
    total = int(ends[-1])
    pieces = -(-total // target_bytes)
    share = -(-total // max(pieces_min, pieces + pieces % 2 if pieces > 1 else 1))
    cuts = np.flatnonzero(np.diff((ends - costs) // share)) + 1
    edges = [first, *(first + int(cut) for cut in cuts), past]
    claims = np.flatnonzero(chain.sizes == CLAIM_BYTES)
    return [_piece(chain, claims, a, b) for a, b in pairwise(edges)]


def _piece(chain: Chain, claims: Indices, first: int, past: int) -> Piece:
    slots = chain.slots[first:past]
    breaks = np.flatnonzero(slots[:-1] - slots[1:] != 1) + 1
    runs = tuple((int(run[0]), int(run[-1])) for run in np.split(slots, breaks))
    head = claim = None
    if first > 0:
        head = int(chain.slots[first - 1])
        above = int(np.searchsorted(claims, first, side="left"))
        # In a truncated log the claim may be older than the oldest object kept; then the head names it.
        claim = int(chain.slots[claims[above - 1]]) if above else None
    return Piece(runs, head, claim, past - first, int(chain.sizes[first:past].sum()), chain.lineage)


@dataclass
class LogPartition(InputPartition):
    """One piece of the log and the rows wanted from it."""

    piece: Piece
    wanted: RowFilter


@dataclass
class SegmentPartition(InputPartition):
    """One segment file of the table at ``table_url``, its versions (both inclusive), and the rows wanted from it."""

    table_url: str
    path: str
    version_min: int
    version_max: int
    wanted: RowFilter
    since_ms: int | None


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
    frontier = await find_frontier(store)
    if frontier is None:
        raise empty_log(store)
    return frontier[0]


def empty_log(store: ObjectStore) -> NotFound:
    """The error for a log without objects."""
    return NotFound("log is empty: nothing is listed under batches/", code=Code.LOG_EMPTY, url=store.url)
