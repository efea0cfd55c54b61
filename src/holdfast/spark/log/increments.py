"""The next increment of the log for a job, and its operations as a data frame.

The driver plans here instead of through ``spark.read``, which starts two more processes per query. Each task can
process its rows directly: a row's way to Spark and back to Python costs as much as reading it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from holdfast.commit.format.batch import Header
from holdfast.errors import Code, CorruptData, NotFound
from holdfast.objects.port import ObjectStore
from holdfast.spark.columns import COLUMNS, spark_schema
from holdfast.spark.options import Mode, ReadOptions, parse_read_options
from holdfast.spark.runtime.store_thread import with_store
from holdfast.spark.source.plan import Chain, LogHead, Plan, live_chain, plan_read, read_header
from holdfast.spark.source.scan import scan


@dataclass(frozen=True, slots=True)
class Increment:
    """The versions ``(after, through]`` of one log, which is what one step reads.

    Shape: ``objects`` and ``log_bytes`` belong to these versions; ``behind_bytes`` is left between ``through`` and the
    head. Empty when ``through == after``.
    """

    head: LogHead
    after: int
    through: int
    objects: int
    log_bytes: int
    behind_bytes: int

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to read."""
        return self.through <= self.after

    @property
    def behind_versions(self) -> int:
        """How many versions the head is ahead of ``through``. Claims jump, so this is a bound and not a count."""
        return self.head.version - self.through


def next_increment(url: str, after: int, *, until: int | None = None, step_bytes: int) -> Increment:
    """The increment that follows version ``after``: about ``step_bytes`` of the log, at least one object.

    ``until`` bounds it (inclusive). Raises: NotFound (``log_empty``, ``log_truncated``), CorruptData, Unavailable.
    """
    return with_store(url, lambda store: _choose(store, after, until, step_bytes))


async def _choose(store: ObjectStore, after: int, until: int | None, step_bytes: int) -> Increment:
    chain = await live_chain(store)
    newest = await read_header(store, int(chain.slots[-1]))
    if chain.truncated:
        await _refuse_truncated(store, chain, after)
    head = LogHead(newest.log_id.hex(), newest.last_version)
    if newest.last_version <= after or (until is not None and until <= after):
        return Increment(head, after, after, 0, 0, 0)
    first = await first_above(store, chain, after)
    ends = np.cumsum(chain.sizes[first:])
    last = first + max(1, int(np.searchsorted(ends, step_bytes, side="right"))) - 1
    through = newest if last == len(chain.slots) - 1 else await read_header(store, int(chain.slots[last]))
    version = through.last_version if until is None else min(through.last_version, until)
    return Increment(
        head, after, version, last - first + 1, int(ends[last - first]), int(ends[-1] - ends[last - first])
    )


async def _refuse_truncated(store: ObjectStore, chain: Chain, after: int) -> None:
    oldest: Header = await read_header(store, int(chain.slots[0]))
    if after < oldest.prev_version:
        raise NotFound(
            "data loss: retention has removed versions that this pipeline has not read",
            code=Code.LOG_TRUNCATED,
            hint="begin a new table from a snapshot or from segments; this one can never be continued exactly",
            read_through=after,
            removed_through=oldest.prev_version,
        )


async def first_above(store: ObjectStore, chain: Chain, version: int) -> int:
    """The first index in the chain whose object ends above ``version``; the last index when there is none.

    An unreadable header is replaced by the next older readable one, because an audit searches too.
    """
    low, high = 0, len(chain.slots) - 1
    while low < high:
        middle = probe = (low + high) // 2
        while (last := await _last_version(store, chain, probe)) is None and probe > low:
            probe -= 1
        if last is not None and last > version:
            high = probe
        else:
            low = middle + 1
    return low


async def _last_version(store: ObjectStore, chain: Chain, index: int) -> int | None:
    try:
        return (await read_header(store, int(chain.slots[index]))).last_version
    except CorruptData:
        return None


Work: TypeAlias = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""What a task makes of the operations of its piece, which come in log order."""


def read_increment(
    spark: SparkSession, url: str, increment: Increment, columns: str, kinds: str = "write,delete,range_delete"
) -> DataFrame:
    """One row per operation of these ``kinds`` in the increment, with these ``columns``. Read when it is used.

    Raises: NotFound (``log_truncated``), CorruptData, Unavailable. Cost: the LIST pages, about log2(objects) headers.
    """
    options = _options(url, increment, columns, kinds)
    return _mapped(spark, options, spark_schema(COLUMNS[options.shape], options.columns), None)


def map_increment(
    spark: SparkSession, url: str, increment: Increment, columns: str, work: Work, schema: str
) -> DataFrame:
    """What ``work`` makes of the operations in the increment, in the tasks that read them; ``schema`` is its rows'.

    Raises and costs as ``read_increment``.
    """
    return _mapped(spark, _options(url, increment, columns, "write,delete,range_delete"), schema, work)


def _options(url: str, increment: Increment, columns: str, kinds: str) -> ReadOptions:
    given = {"url": url, "columns": columns, "kinds": kinds}
    bounds = {"startingVersion": str(increment.after + 1), "endingVersion": str(increment.through)}
    return parse_read_options({**given, **bounds}, Mode.BATCH)


def _mapped(spark: SparkSession, options: ReadOptions, schema: StructType | str, work: Work | None) -> DataFrame:
    plan: Plan = with_store(options.url, lambda store: plan_read(store, options))
    if not plan.pieces:
        return spark.createDataFrame([], schema)
    # A range of as many partitions as numbers has one number in each: the piece of that task.
    numbers = spark.range(0, len(plan.pieces), numPartitions=len(plan.pieces))
    return numbers.mapInArrow(partial(_read_pieces, options, plan, work), schema)


def _read_pieces(
    options: ReadOptions, plan: Plan, work: Work | None, numbers: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    pieces = (plan.pieces[number] for batch in numbers for number in batch["id"].to_pylist())
    rows = (rows for piece in pieces for rows in scan(options, plan.wanted, piece))
    return rows if work is None else work(rows)
