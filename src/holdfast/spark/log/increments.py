"""The next increment of the log for a job, and its operations as a data frame.

The driver plans here instead of through ``spark.read``, which starts two more processes per query. Each task can
process its rows directly: a row's way to Spark and back to Python costs as much as reading it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from holdfast.commit.format.batch import FIRST_SLOT, Header, ItemKind
from holdfast.commit.reading.lineage import lineage_of
from holdfast.commit.reading.reader import find_header
from holdfast.errors import CorruptData
from holdfast.objects.port import ObjectStore
from holdfast.snapshots.manifest import Manifest
from holdfast.snapshots.manifest import Part as SnapshotPart
from holdfast.snapshots.reading import newest_snapshot, read_part
from holdfast.spark.columns import COLUMNS, RowShape, arrow_schema, spark_schema
from holdfast.spark.option_values import Mode
from holdfast.spark.options import ReadOptions, parse_read_options
from holdfast.spark.runtime.refusals import log_truncated
from holdfast.spark.runtime.store_thread import with_store
from holdfast.spark.runtime.tasks import in_tasks
from holdfast.spark.source.chain import (
    Chain,
    LiveEnd,
    LogHead,
    first_index,
    frontier_of,
    joined,
    known_object,
    live_chain,
    live_part,
    newest_before,
    read_header,
)
from holdfast.spark.source.plan import ChainPart, Piece, ReadPlan, plan_of, plan_read
from holdfast.spark.source.scan import scan
from holdfast.spark.source.shapes import RowFilter, row_filter, seq_of

LOOK_SLOTS: Final = 20_000
"""Slots that a look lists at a time, in at most 20 pages."""
UNREADABLE_MAX: Final = 100
"""How many damaged headers in a row an audit looks past before it gives up."""


@dataclass(frozen=True, slots=True)
class Increment:
    """The versions ``(after, through]`` of one log, which is what one step reads.

    Shape: ``objects`` and ``log_bytes`` belong to these versions; ``behind_bytes`` is left between ``through`` and the
    head. Empty when ``through == after``. With a ``snapshot`` the step reads that instead of the log, which has lost
    its beginning: one write for each key, at position 0, without a time. ``part`` is the objects as they were listed,
    so that reading lists nothing again. ``last_seq`` is the sequence number of the last object that ends at or below
    ``through``, 0 for none: the next increment is found from it.
    """

    head: LogHead
    after: int
    through: int
    objects: int
    log_bytes: int
    behind_bytes: int
    snapshot: Manifest | None = None
    part: ChainPart | None = field(default=None, repr=False, compare=False)
    last_seq: int = 0

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to read."""
        return self.through <= self.after


def next_increment(
    url: str,
    after: int,
    *,
    until: int | None = None,
    step_bytes: int,
    begins_with_snapshot: bool = False,
    near_seq: int = 0,
) -> Increment:
    """The increment that follows version ``after``: about ``step_bytes`` of the log, at least one object.

    ``until`` bounds it (inclusive). ``begins_with_snapshot``: where the log has lost its beginning, the first increment
    is a snapshot. ``near_seq`` is the ``last_seq`` of an earlier increment.

    Cost: a LIST page for the end of the log, those of the increment, which may be ``LOOK_SLOTS`` longer, and some
    headers: about log2(objects) without ``near_seq``. ``behind_bytes`` of what is not listed is an estimate.

    Raises: NotFound (``log_empty``, ``log_truncated``), CorruptData, Unavailable.
    """

    async def choose(store: ObjectStore) -> Increment:
        try:
            frontier = await frontier_of(store)
            increment = await _choose(store, frontier, after, until, step_bytes, near_seq)
        except CorruptData:
            increment = None  # the whole chain says what is damaged, if it is what the step needs
        return increment or await _choose_of_all(store, after, until, step_bytes, begins_with_snapshot)

    return with_store(url, choose)


async def _choose(
    store: ObjectStore, frontier: LiveEnd, after: int, until: int | None, step_bytes: int, near_seq: int
) -> Increment | None:
    """The increment by the objects from the last known one on; None where the whole chain is needed."""
    newest = frontier.newest
    head = LogHead(newest.log_id.hex(), newest.last_version)
    if newest.last_version <= after or (until is not None and until <= after):
        return Increment(head, after, after, 0, 0, 0)
    begin = await known_object(store, frontier, near_seq, after)
    if begin is None:
        begin = await newest_before(store, frontier, lambda header: header.last_version > after)
    if begin is None and after == 0:
        begin = await find_header(store, FIRST_SLOT)
    if begin is None:
        return None
    ahead = await _ahead(store, frontier, begin, until, step_bytes)
    if ahead is None:
        return None
    chain, last = ahead
    increment = await _step(store, chain, head, last, after, until, step_bytes)
    rest = last.slot - newest.slot
    if rest:
        increment = replace(increment, behind_bytes=increment.behind_bytes + rest * int(chain.sizes.mean()))
    return increment


async def _ahead(
    store: ObjectStore, frontier: LiveEnd, begin: Header, until: int | None, step_bytes: int
) -> tuple[Chain, Header] | None:
    """The chain from ``begin`` on, at least as long as the step, and its last object. None where it has a hole."""
    chain: Chain | None = None
    last, slots = begin, LOOK_SLOTS
    while True:
        lowest = last.slot - slots
        upper = frontier.newest
        if lowest > upper.slot:
            end = await newest_before(store, frontier, partial(_is_after, slot=lowest))
            if end is None:
                return None
            upper = end
        if upper.slot == last.slot and upper.slot != frontier.newest.slot:
            slots *= 2  # a gap that a leader left
            continue
        part = await live_part(store, frontier, last, upper)
        if part is None:
            return None
        chain = part if chain is None else joined(chain, part)
        last = upper
        is_enough = int(chain.sizes[1:].sum()) >= step_bytes or (until is not None and last.last_version >= until)
        if is_enough or last.slot == frontier.newest.slot:
            return chain, last


def _is_after(header: Header, slot: int) -> bool:
    return header.slot < slot


async def _choose_of_all(
    store: ObjectStore, after: int, until: int | None, step_bytes: int, begins_with_snapshot: bool
) -> Increment:
    chain = await live_chain(store)
    newest = await read_header(store, int(chain.slots[-1]))
    head = LogHead(newest.log_id.hex(), newest.last_version)
    if chain.truncated:
        oldest = await read_header(store, int(chain.slots[0]))
        if after < oldest.prev_version:
            snapshot = await _snapshot(store, oldest, until) if begins_with_snapshot and not after else None
            if snapshot is None:
                raise log_truncated(
                    "data loss: retention has removed versions that this pipeline has not read",
                    hint="begin a new table; a table of newest values begins with a snapshot, if the log has one",
                    read_through=after,
                    removed_through=oldest.prev_version,
                )
            first = await first_above(store, chain, snapshot.version)
            behind_bytes = int(chain.sizes[first:].sum()) if snapshot.version < newest.last_version else 0
            return Increment(head, after, snapshot.version, len(snapshot.parts), snapshot.size, behind_bytes, snapshot)
    if newest.last_version <= after or (until is not None and until <= after):
        return Increment(head, after, after, 0, 0, 0)
    return await _step(store, chain, head, newest, after, until, step_bytes)


async def _step(
    store: ObjectStore, chain: Chain, head: LogHead, newest: Header, after: int, until: int | None, step_bytes: int
) -> Increment:
    """The increment at the beginning of a chain that ends with ``newest``."""
    first = await first_above(store, chain, after)
    ends = np.cumsum(chain.sizes[first:])
    last = first + max(1, int(np.searchsorted(ends, step_bytes, side="right"))) - 1
    if until is not None and until < newest.last_version:
        past = await first_index(store, chain, lambda header: header.first_version > until)
        last = max(first, min(last, past - 1))
    through = newest if last == len(chain.slots) - 1 else await read_header(store, int(chain.slots[last]))
    version = through.last_version if until is None else min(through.last_version, until)
    whole = last if through.last_version <= version else last - 1
    return Increment(
        *(head, after, version, last - first + 1, int(ends[last - first]), int(ends[-1] - ends[last - first])),
        part=ChainPart(chain, first, last + 1),
        last_seq=seq_of(int(chain.slots[whole])) if whole >= 0 else 0,
    )


async def _snapshot(store: ObjectStore, oldest: Header, until: int | None) -> Manifest | None:
    """The newest snapshot from which the log goes on, at or below ``until``."""
    head, claim = await frontier_of(store)
    snapshot = await newest_snapshot(
        store, await lineage_of(store, claim), head.last_version if until is None else until
    )
    return None if snapshot is None or snapshot.version < oldest.prev_version else snapshot


async def first_above(store: ObjectStore, chain: Chain, version: int) -> int:
    """The first index in the chain whose object ends above ``version``; the last index when there is none.

    An unreadable header is replaced by the next older readable one, because an audit searches too.
    """
    low, high = 0, len(chain.slots) - 1
    while low < high:
        middle = (low + high) // 2
        readable = await last_readable(store, chain, low, middle, middle - low)
        if readable is not None and readable[1].last_version > version:
            high = readable[0]
        else:
            low = middle + 1
    return low


async def last_readable(
    store: ObjectStore, chain: Chain, first: int, last: int, unreadable_max: int = UNREADABLE_MAX
) -> tuple[int, Header] | None:
    """The newest object from index ``first`` to ``last`` of the chain whose header can be read, None for none."""
    for index in range(last, max(first, last - unreadable_max) - 1, -1):
        try:
            return index, await read_header(store, int(chain.slots[index]))
        except CorruptData:
            continue
    return None


Work: TypeAlias = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""What a task makes of the operations of its piece, which come in log order."""


def read_increment(
    spark: SparkSession,
    url: str,
    increment: Increment,
    columns: str,
    kinds: str = "write,delete,range_delete",
    *,
    work: Work | None = None,
    schema: str | None = None,
) -> DataFrame:
    """One row per operation of these ``kinds`` in the increment, with these ``columns``. Read when it is used.

    Or what ``work`` makes of them, in the tasks that read them; ``schema`` is then its rows'. Raises: NotFound
    (``log_truncated``), CorruptData, Unavailable. Cost: nothing before tasks read; the increment's part is not listed
    again.
    """
    texts = {"url": url, "columns": columns, "kinds": kinds}
    bounds = {"startingVersion": str(increment.after + 1), "endingVersion": str(increment.through)}
    options = parse_read_options({**texts, **bounds}, Mode.BATCH)
    rows = schema or spark_schema(COLUMNS[options.shape], options.columns)
    if increment.snapshot is not None:
        parts = increment.snapshot.parts if ItemKind.WRITE in options.kinds else []
        return in_tasks(spark, parts, partial(_read_parts, options, increment.snapshot, work), rows)
    if increment.part is None:
        plan: ReadPlan = with_store(url, lambda store: plan_read(store, options))
    else:
        versions = RowFilter(version_min=increment.after + 1, version_max=increment.through)
        plan = plan_of(increment.part, options, row_filter(options).and_also(versions))
    return in_tasks(spark, plan.pieces, partial(_read_pieces, options, plan.wanted, work), rows)


def _read_parts(
    options: ReadOptions, snapshot: Manifest, work: Work | None, parts: Iterator[SnapshotPart]
) -> Iterator[pa.RecordBatch]:
    rows = (
        batch
        for table in part_tables(options.url, snapshot, parts)
        for batch in as_writes(table, options.columns).to_batches()
    )
    return rows if work is None else work(rows)


def part_tables(url: str, snapshot: Manifest, parts: Iterator[SnapshotPart]) -> Iterator[pa.Table]:
    """The rows of these parts of a snapshot of the log at ``url``, verified."""
    return (with_store(url, partial(read_part, manifest=snapshot, part=part)) for part in parts)


def as_writes(rows: pa.Table, columns: Sequence[str]) -> pa.Table:
    """The rows of a snapshot as operations in log order: one write for each key."""
    schema = arrow_schema(RowShape.OPERATIONS, columns)
    rows = rows.sort_by("version")
    made = []
    for each in schema:
        if each.name in ("key", "value", "version"):
            made.append(rows[each.name].cast(each.type))
        elif each.name in ("position", "kind"):
            made.append(pa.repeat(pa.scalar(0 if each.name == "position" else "write", each.type), rows.num_rows))
        else:
            made.append(pa.nulls(rows.num_rows, each.type))
    return pa.Table.from_arrays(made, schema=schema)


def _read_pieces(
    options: ReadOptions, wanted: RowFilter, work: Work | None, pieces: Iterator[Piece]
) -> Iterator[pa.RecordBatch]:
    rows = (rows for piece in pieces for rows in scan(options, wanted, piece))
    return rows if work is None else work(rows)
