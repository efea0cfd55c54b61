"""``changes`` and ``latest`` of a message store: Delta tables of the messages of a durable, over HTTP.

A step reads the messages ``(offset, through]`` by number and commits the result with the new offset. The next look
acknowledges up to the offset, so the durable keeps what the table does not have. In ``Increment`` and ``StepReport`` a
version is the number of a message, and the bytes are estimates by the mean message. After a crash: the offset says what
the table has; what was not acknowledged is acknowledged by the next run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from hashlib import blake2b
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from holdfast.errors import AlreadyOpen, Conflict, Fenced, InvalidRequest
from holdfast.spark.columns import SERVED_STORE_COLUMNS, TIMESTAMP
from holdfast.spark.log.delta_output import DeltaJob
from holdfast.spark.log.increments import Increment
from holdfast.spark.log.runner import StepResult
from holdfast.spark.messages.durable_client import SUBSCRIBER, DurableClient
from holdfast.spark.messages.served_store import ServedPartition, mean_bytes, pieces_of, served_rows
from holdfast.spark.options import ServedStoreOptions, parse_served_store_options
from holdfast.spark.runtime.table_files import FILES_TYPE, new_files
from holdfast.spark.runtime.tasks import in_tasks
from holdfast.spark.source.chain import LogHead
from holdfast.spark.tables.buckets import (
    PACKED_TYPE,
    Placement,
    bucket_count,
    change_buckets,
    in_buckets,
    newest_points,
    newest_rows,
)
from holdfast.spark.tables.changes import write_days
from holdfast.spark.tables.typed import BucketPart, TypedStep
from holdfast.spark.typed.rows import Choice
from holdfast.stores.values.identity import numbers_of_token, token_of_numbers

Work = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
TOKEN_MARKS: Final = ("token_history", "token_store", "token_durable")
"""The token of the durable, a part each: a mark is a number."""
MESSAGE_ROWS: Final = pa.schema([pa.field(name, kind) for name, kind in SERVED_STORE_COLUMNS.items()])
LATEST_MESSAGE_ROWS: Final = pa.schema([
    ("key", pa.string()), ("body", pa.binary()), ("fields", pa.string()), ("seq", pa.int64()), ("time", TIMESTAMP),
])  # fmt: skip
_KEYED: Final = pa.schema([
    ("version", pa.int64()), ("position", pa.int32()), ("kind", pa.string()), ("key", pa.binary()),
    ("body", pa.binary()), ("fields", pa.string()), ("time", TIMESTAMP),
])  # fmt: skip
"""Messages as the tables in buckets take operations."""


class StoreJob(DeltaJob):
    """A job that keeps one Delta table of the messages of a durable of its own, which it makes if there is none."""

    def __init__(self, spark: SparkSession, service_url: str, store: str, durable: str, output_url: str) -> None:
        super().__init__(spark, service_url, output_url)
        texts = {"shape": "messages", "url": service_url, "store": store, "durable": durable}
        self._options: ServedStoreOptions = parse_served_store_options(texts)
        self._subscriber = f"{SUBSCRIBER}/table/{blake2b(output_url.encode(), digest_size=8).hexdigest()}"
        self._own: DurableClient | None = None
        """Has the durable while this object is there."""
        self._is_continued = False
        self._token = ""
        """Of the durable whose messages the table has."""

    settles = True  # it acknowledges what the table has

    def log_id(self) -> str:
        """The name of the source in the table: a table has the messages of one durable."""
        return f"{self._options.store}/{self._options.durable}"

    def look(self, after: int, until: int | None, step_bytes: int) -> Increment:
        """The next messages, about ``step_bytes``, after acknowledging those that the table has.

        Raises: InvalidRequest (the durable's type; another subscriber), NotFound (no such store; data loss),
        Unavailable.
        """
        if self._own is None:
            self._own = self._client()
        client = self._own
        try:
            client.open_own(self._options.template, self._options.matcher)
            client.attach()
            self._acknowledge(client, after)
        except (Conflict, Fenced, AlreadyOpen) as error:
            # To the runner a Conflict is another runner, after which it goes on; what is busy it tries again.
            raise InvalidRequest(error.message, code=error.code, hint=error.hint, facts=error.fields) from error
        newest, first = client.last_seq(), client.first_after(after)
        head = LogHead(self._log_id, newest)
        if first is None:
            return Increment(head, after, after, 0, 0, 0)
        mean = mean_bytes(client)
        through = min(newest, first.seq - 1 + max(1, step_bytes // mean))
        through = through if until is None else min(through, until)
        count = max(0, through - first.seq + 1)
        return Increment(head, after, max(after, through), count, count * mean, (newest - through) * mean)

    def _acknowledge(self, client: DurableClient, through: int) -> None:
        if not self._is_continued:
            state = self._output.state(self._log_id)
            numbers = [0] * len(TOKEN_MARKS) if state is None else [state.mark(name) for name in TOKEN_MARKS]
            token = token_of_numbers(numbers) if all(numbers) else ""
            client.require_continued(through, token, fail_on_data_loss=True)
            self._is_continued, self._token = True, client.token
        client.acknowledge_own(through)

    def _client(self) -> DurableClient:
        options = self._options
        return DurableClient(
            options.url, options.store, options.durable, token=self._token, subscriber=self._subscriber
        )

    def _mapped(self, increment: Increment, work: Work, schema: str) -> DataFrame:
        """What ``work`` makes of the messages of the increment, in the tasks that read them."""
        with self._client() as client:
            pieces = pieces_of(self._options, client, increment.after, increment.through)
        return in_tasks(self._spark, pieces, partial(_read_pieces, self._options, work), schema)

    def _marks(self) -> dict[str, int]:
        return dict(zip(TOKEN_MARKS, numbers_of_token(self._token), strict=True))


def _read_pieces(
    options: ServedStoreOptions, work: Work, pieces: Iterator[ServedPartition]
) -> Iterator[pa.RecordBatch]:
    return work(rows for piece in pieces for rows in served_rows(options, piece))


class StoreChanges(StoreJob):
    """Every message of a durable, once, in an append-only Delta table at ``output_url``.

    Columns: ``seq``, ``time``, ``key``, ``fields`` (JSON), ``body`` as the source; ``day`` (UTC) is the partition.
    """

    name = "store-changes"
    schema = MESSAGE_ROWS.append(pa.field("day", pa.date32()))
    partition_by = ("day",)

    def advance(self, increment: Increment) -> StepResult:
        """As ``PipelineJob``."""
        state = self._open(increment)
        write = partial(write_days, self._output.location.url, time="time", number="seq")
        return self._commit(
            state, increment, new_files(self._mapped(increment, write, FILES_TYPE)), marks=self._marks()
        )


class StoreLatest(StoreJob):
    """The newest message of every key of a durable, in the Delta table at ``output_url``.

    Columns: ``key``, ``body``, ``fields`` (JSON), ``seq``, ``time``; ``bucket`` is the partition. One row per key;
    messages without a key have no row. ``buckets`` counts when the table is made.
    """

    name = "store-latest"
    schema = LATEST_MESSAGE_ROWS.append(pa.field("bucket", pa.int32()))
    partition_by = ("bucket",)

    def __init__(
        self,
        spark: SparkSession,
        service_url: str,
        store: str,
        durable: str,
        output_url: str,
        *,
        buckets: int | None = None,
    ) -> None:
        super().__init__(spark, service_url, store, durable, output_url)
        self._buckets = buckets

    def advance(self, increment: Increment) -> StepResult:
        """As ``PipelineJob``."""
        made_with = self._buckets or bucket_count(increment.log_bytes + increment.behind_bytes)
        state = self._open(increment, {"buckets": made_with})
        changed = change_buckets(
            self._output,
            state,
            lambda placement: self._mapped(increment, partial(_pack, placement), PACKED_TYPE),
            _KEYED,
            merge_messages,
            ("seq",),
            step=TypedStep(Choice()),
        )
        return self._commit(state, increment, changed.added, changed.removed, {**changed.marks, **self._marks()})


def _pack(placement: Placement, messages: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return in_buckets(placement, newest_points, map(_keyed, messages))


def _keyed(messages: pa.RecordBatch) -> pa.RecordBatch:
    """The messages that have a key."""
    messages = messages.filter(messages["key"].is_valid())
    count = messages.num_rows
    zeros, writes = pa.repeat(pa.scalar(0, pa.int32()), count), pa.repeat("write", count)
    rest = [messages[name] for name in ("body", "fields", "time")]
    return pa.RecordBatch.from_arrays(
        [messages["seq"], zeros, writes, messages["key"].cast(pa.binary()), *rest], schema=_KEYED
    )


def merge_messages(current: pa.Table | None, changes: pa.Table) -> Sequence[BucketPart]:
    """A bucket's rows after ``changes``, sorted by key: of each key the newest message.

    Shape: all ``changes`` are newer than every row of ``current``, and in order. Cost: O(n log n) in native code.
    """
    own = [changes["key"].cast(pa.string()), *(changes[name] for name in ("body", "fields", "version", "time"))]
    held = pa.Table.from_arrays(own, schema=LATEST_MESSAGE_ROWS)
    if current is not None:
        held = pa.concat_tables([current.select(LATEST_MESSAGE_ROWS.names).cast(LATEST_MESSAGE_ROWS), held])
    return [BucketPart(held.take(pa.array(newest_rows(held["key"]))), {})]
