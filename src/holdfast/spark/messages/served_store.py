"""``shape=messages`` with the ``url`` of a service: the messages of a durable, as a batch source and as a stream.

No disk is shared: every task reads over HTTP. The durable keeps the messages until a stream acknowledges them, which it
does when Spark has committed their micro-batch. So a micro-batch that was planned can be read again after any crash.

An offset is ``{"seq": 41, "token": "...", "query": "..."}``: every message up to 41 has been returned. ``token`` names
the durable (``values.identity``), so one that was deleted and made again, or its store, is noticed, also between
planning and reading. ``query`` is a random id of the checkpoint, and in the name of its subscriber: another query is
refused while this one runs, and after a crash this one continues at once. Messages whose delivery is delayed are
returned at once. Cost: a request for each poll; reading takes one for each 1,000 messages or about 8 MiB; each message
is transferred a second time to be acknowledged.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from holdfast.errors import Code, InvalidRequest
from holdfast.spark.columns import SERVED_STORE_COLUMNS
from holdfast.spark.messages.durable_client import PAGE_MESSAGES_MAX, SUBSCRIBER, DurableClient
from holdfast.spark.messages.numbered import NumberedStream, as_rows
from holdfast.spark.options import ServedStoreOptions
from holdfast.spark.positions import Given, Offset, ServedPosition, offset_of, position_in
from holdfast.spark.runtime.processes import states_errors
from holdfast.wire.parts import Delivery

PAGE_BYTES: Final = 8 * 2**20
PIECES_MAX: Final = 10_000


@dataclass
class ServedPartition(InputPartition):
    """The messages above ``after`` and up to ``through`` of the durable that ``token`` names, in pages of ``page``."""

    after: int
    through: int
    page: int
    token: str = ""


_VALUES: Final[Mapping[str, Callable[[Delivery], object]]] = {
    "seq": lambda one: one.seq,
    "time": lambda one: one.published_ms * 1000,
    "key": lambda one: one.key,
    "fields": lambda one: msgspec.json.encode(one.fields).decode(),
    "body": lambda one: one.body,
}


def pieces_of(options: ServedStoreOptions, client: DurableClient, after: int, through: int) -> list[ServedPartition]:
    """The messages above ``after`` up to ``through`` in pieces of about the wanted bytes, by the mean message."""
    first = client.first_after(after)
    if first is None or first.seq > through:
        return []
    after = first.seq - 1
    mean = mean_bytes(client)
    step = max(1, options.target_partition_bytes // mean, -(-(through - after) // PIECES_MAX))
    page = max(1, min(PAGE_MESSAGES_MAX, PAGE_BYTES // mean, step))
    token = client.token
    return [ServedPartition(first, min(first + step, through), page, token) for first in range(after, through, step)]


def mean_bytes(client: DurableClient) -> int:
    """The bytes of a message of the durable on the average, at least 1."""
    counts = client.counts()
    return max(1, int(counts.get("bytes", 0)) // max(1, int(counts.get("messages", 0))))


def served_rows(options: ServedStoreOptions, piece: ServedPartition) -> Iterator[pa.RecordBatch]:
    """The messages of one piece in order, with the options' columns. Raises: as ``DurableClient``."""
    with _opened(options, piece.token) as client:
        for messages in client.messages(piece.after, piece.through, piece.page):
            yield as_rows(messages, options.columns, SERVED_STORE_COLUMNS, _VALUES)


def _opened(options: ServedStoreOptions, token: str = "") -> DurableClient:
    return DurableClient(options.url, options.store, options.durable, options.retry_ms, token)


def plan_served(options: ServedStoreOptions) -> list[ServedPartition]:
    """The pieces of a batch read of what a durable keeps; it consumes nothing.

    Raises: NotFound; InvalidRequest for a map; Unavailable.
    """
    with _opened(options) as client:
        if client.describe()["type"] == "map":
            raise InvalidRequest(
                "a map has no messages to read",
                code=Code.TYPE_MISMATCH,
                hint="read its store in its directory, or its keys by a client",
                durable=options.durable,
            )
        return pieces_of(options, client, 0, client.last_seq())


@states_errors
class HoldfastServedStoreStreamReader(NumberedStream[ServedStoreOptions]):
    """One streaming query's durable."""

    def __init__(self, options: ServedStoreOptions) -> None:
        super().__init__(options, served_rows)
        self._query = secrets.token_hex(8)
        self._client: DurableClient | None = None
        self._is_planned = self._is_continued = False

    def initialOffset(self) -> Offset:  # noqa: N802  Spark's name
        """Before everything that the durable keeps. Makes the durable.

        Raises: AlreadyOpen (``durable_busy``: another subscriber has it), Conflict (its type), NotFound, Unavailable.
        """
        return offset_of(ServedPosition(0, self._attached().token, self._query))

    def _newest(self) -> int:
        return self._opened().last_seq()

    def _next_offset(self, start: Given, *, is_bounded: bool) -> Offset | None:
        """Raises: AlreadyOpen (``durable_busy``), Conflict (the durable's type), NotFound (data loss; no such store),
        Closed (``store_replaced``), Unavailable."""
        client, begin = self._opened(), position_in(start, ServedPosition)
        if not self._is_continued:
            self._continue(client, begin)
        self._attached(begin)
        first = client.first_after(begin.seq)
        if first is None:
            return None
        most = self._most_rows(lambda: mean_bytes(client), is_bounded=is_bounded)
        end = min(self._until(client.last_seq()), first.seq - 1 + most)
        if end < first.seq:
            return None
        return offset_of(ServedPosition(end, client.token, self._query))

    def _continue(self, client: DurableClient, start: ServedPosition) -> None:
        """Look, once in a process, whether the durable still has what comes after ``start``, and acknowledge up to it.

        Spark has committed ``start`` if this process has not planned a micro-batch yet.
        """
        client.require_continued(start.seq, start.token, fail_on_data_loss=self._options.fail_on_data_loss)
        self._attached(start)
        if not self._is_planned and self._options.acknowledge:
            client.acknowledge_own(start.seq)
        self._is_continued = True

    def partitions(self, start: Given, end: Given) -> Sequence[ServedPartition]:
        """The pieces between two offsets. Raises: NotFound, Unavailable."""
        self._is_planned = True
        client = self._opened()
        begin, until = position_in(start, ServedPosition), position_in(end, ServedPosition)
        if not self._is_continued:  # of a micro-batch that was planned before a restart
            client.require_same(until.token, until.seq, fail_on_data_loss=self._options.fail_on_data_loss)
        return pieces_of(self._options, client, begin.seq, until.seq)

    def commit(self, end: Given) -> None:
        """Acknowledge up to ``end``: Spark will never ask for it again. Raises: Conflict (another subscriber)."""
        if self._options.acknowledge:
            until = position_in(end, ServedPosition)
            self._attached(until).acknowledge_own(until.seq)

    def stop(self) -> None:
        """Close what is open; the query has ended. The durable stays, with what was not acknowledged."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _attached(self, position: ServedPosition | None = None) -> DurableClient:
        """The client, when no other subscriber can have the durable. With a position, it is that of the same query."""
        if position is not None:
            self._query = position.query
        client = self._opened()
        if self._options.acknowledge:
            client.subscriber = f"{SUBSCRIBER}/{self._query}"
            client.attach()
        return client

    def _opened(self) -> DurableClient:
        """The client, after the durable was found to be of the right type; made if there is none."""
        if self._client is None:
            client = _opened(self._options)
            try:
                client.open_own(self._options.template, self._options.matcher)
            except BaseException:
                client.close()
                raise
            self._client = client
        return self._client
