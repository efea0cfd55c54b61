"""Where an ingest's numbered requests come from: a durable of a message store, or an embedded queue.

The log's record says through which number a source is decided, so a micro-batch is acknowledged before Spark's
checkpoint has it. Its replay reads what is left, which may be nothing; see ``Ingest``.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final, Protocol

from holdfast.client import Client, ClientOptions
from holdfast.errors import NotFound, PermissionDenied
from holdfast.queue import Queue
from holdfast.spark.bulk.message_requests import MessageRequest, request_in
from holdfast.spark.messages.durable_client import DurableClient
from holdfast.spark.messages.queue import id_of_queue, time_of_message
from holdfast.spark.runtime.service_client import service_token

ANSWER_MS_MAX: Final = 30_000
"""How long a service is tried before Spark is started for nothing."""


class NumberedSource(Protocol):
    """Messages with requests, each with a number that rises and is given once."""

    @property
    def identity(self) -> str:
        """Names the source in the log's record, the same for every way to reach it. Raises: Unavailable."""
        ...

    def is_continued(self, through: int, time_ms: int) -> bool:
        """Whether this may be the source that had message ``through``, when none up to it was newer than ``time_ms``.

        ``time_ms`` 0: it is not known when they were published.

        Raises: NotFound (there is no such source), Unavailable.
        """
        ...

    def kept(self, first: int, last: int) -> dict[int, MessageRequest]:
        """The requests with these numbers, both included, that the source still has. Raises: Unavailable."""
        ...

    def acknowledge(self, through: int) -> None:
        """Release the messages up to this number. Raises: Conflict (something else consumes them), Unavailable."""
        ...

    def close(self) -> None:
        """Close what is open."""
        ...


def same_source(one: str, other: str) -> bool:
    """Whether two identities may be of one source: where a service's log is not known, they have its address.

    >>> same_source("store:00ff/requests/spark", "store:http://desk:8080/requests/spark")
    True
    >>> same_source("store:00ff/requests/spark", "store:00fe/requests/spark")
    False
    """
    (service, *names), (service_of_other, *names_of_other) = one.rsplit("/", 2), other.rsplit("/", 2)
    if one == other or not one.startswith("store:") or names != names_of_other:
        return one == other
    return _has_address(service) != _has_address(service_of_other)


def _has_address(service: str) -> bool:
    return ":" in service.removeprefix("store:")


def log_id_of(url: str) -> str | None:
    """The id of the log that the service at ``url`` leads; None where the token may not ask. Raises: Unavailable."""
    bounds = ClientOptions(give_up_after_ms=ANSWER_MS_MAX)
    with suppress(PermissionDenied), Client(url, token=service_token(), options=bounds) as client:
        return client.version().log_id
    return None


class DurableSource:
    """A durable over HTTP. Its identity has the id of the log that its service leads, store and durable."""

    def __init__(self, url: str, store: str, durable: str, retry_ms: int | None = None) -> None:
        self._url = url
        self._names = f"{store}/{durable}"
        self._opened = (url, store, durable, retry_ms)
        self._client: DurableClient | None = None
        self._identity: str | None = None
        self._acknowledged_through = 0
        self._acknowledged_total: int | None = None

    @property
    def identity(self) -> str:
        """As ``NumberedSource`` has it."""
        if self._identity is None:
            self._identity = f"store:{log_id_of(self._url) or self._url}/{self._names}"
        return self._identity

    def is_continued(self, through: int, time_ms: int) -> bool:
        """As ``NumberedSource`` has it: a store that was deleted and made again begins at 1."""
        try:
            self._durable().require_continued(through, time_ms or None, fail_on_data_loss=False)
        except NotFound as error:
            if "read_through" not in error.fields:
                raise
            return False
        return True

    def kept(self, first: int, last: int) -> dict[int, MessageRequest]:
        """As ``NumberedSource`` has it."""
        return {
            each.seq: request_in(each.seq, each.body, dict(each.fields), each.published_ms)
            for page in self._durable().messages(first - 1, last)
            for each in page
        }

    def acknowledge(self, through: int) -> None:
        """As ``NumberedSource`` has it. Harmless when repeated."""
        durable = self._durable()
        if self._acknowledged_total is None:
            durable.acknowledge_left(through)  # held by a process that was killed
        if through <= self._acknowledged_through:
            return
        self._acknowledged_total = durable.acknowledge_own(
            through, self._acknowledged_through, self._acknowledged_total
        )
        self._acknowledged_through = through

    def close(self) -> None:
        """As ``NumberedSource`` has it."""
        client, self._client = self._client, None
        self._acknowledged_through, self._acknowledged_total = 0, None
        if client is not None:
            client.close()

    def _durable(self) -> DurableClient:
        if self._client is None:
            self._client = DurableClient(*self._opened)
        return self._client


class QueueSource:
    """An embedded queue, which keeps its messages for its own lifetime: nothing is acknowledged."""

    def __init__(self, path: str) -> None:
        self._path = path

    @property
    def identity(self) -> str:
        """As ``NumberedSource`` has it."""
        with self._queue() as queue:
            return f"queue:{id_of_queue(queue) or self._path}"

    def is_continued(self, through: int, time_ms: int) -> bool:
        """As ``NumberedSource`` has it: a queue that lost power may give a number to another message."""
        with self._queue() as queue:
            found_ns = time_of_message(queue, through)
            is_old = not time_ms or found_ns is None or found_ns // 1_000_000 <= time_ms
            return is_old and queue.last_seq >= through

    def kept(self, first: int, last: int) -> dict[int, MessageRequest]:
        """As ``NumberedSource`` has it."""
        found: dict[int, MessageRequest] = {}
        with self._queue() as queue:
            for message in queue.read(seq=first):
                if message.seq > last:
                    break
                found[message.seq] = request_in(message.seq, message.payload, {}, message.time_ns // 1_000_000)
        return found

    def acknowledge(self, through: int) -> None:
        """As ``NumberedSource`` has it."""

    def close(self) -> None:
        """As ``NumberedSource`` has it."""

    def _queue(self) -> Queue:
        return Queue(self._path, read_only=True, damage="skip")
