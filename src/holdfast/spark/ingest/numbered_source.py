"""Where an ingest's numbered requests come from, a durable of a message store or an embedded queue, and what they say.

The body of a message is what ``POST /v1/commit`` takes, as JSON. It is decoded and checked by the code of the service,
so a request is refused for the same reason. A message that is no commit request becomes a refused request: it blocks
nothing. Order: the number of the message.

The log's record says through which number a source is decided, so a micro-batch is acknowledged before Spark's
checkpoint has it. Its replay reads what is left, which may be nothing; see ``Ingest``.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from enum import Enum
from typing import Final

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  the name that every Spark program uses

from holdfast.client import Client, ClientOptions
from holdfast.commit.format.json_request import decode_json
from holdfast.commit.format.request_rules import problem_with_request
from holdfast.errors import Closed, Code, InvalidRequest, PermissionDenied
from holdfast.queue.core import QueueCore
from holdfast.spark.bulk.requests import ParsedRequest
from holdfast.spark.messages.durable_client import SUBSCRIBER, DurableClient
from holdfast.spark.messages.queue import id_of_queue, time_of_message
from holdfast.spark.runtime.refusals import bad_configuration
from holdfast.spark.runtime.service_client import service_token, with_trusted_hosts
from holdfast.spark.runtime.session import task_errors
from holdfast.stores.values.identity import is_continued

REQUEST_ID: Final = "request_id"
"""The field of a message that names its request, where its body does not."""
PROBLEM_MAX: Final = 500
"""Characters. A decoder may quote what it could not read, however long that is."""


class MessageRequest(ParsedRequest, frozen=True, kw_only=True):
    """A request, the fields of its message, in words why it is refused, and when it was published (0: not known)."""

    fields: dict[str, str | int | bool]
    problem: str = ""
    time_ms: int = 0


def message_requests(frame: DataFrame) -> list[ParsedRequest]:
    """The requests in the messages of ``frame``: ``seq``, ``body`` or ``payload``; perhaps ``fields`` and ``time``.

    Raises: InvalidRequest (other columns); what reading the frame raises. Cost: all of it in memory, and about 5
    microseconds for each.
    """
    body = next((name for name in ("body", "payload") if name in frame.columns), None)
    if body is None or "seq" not in frame.columns:
        raise bad_configuration(
            "messages with requests have the columns seq, and body or payload", columns=", ".join(frame.columns)
        )
    fields = F.col("fields") if "fields" in frame.columns else F.lit(None).cast("string")
    times = F.unix_millis(F.col("time").cast("timestamp")) if "time" in frame.columns else F.lit(0).cast("long")
    with task_errors():
        table = frame.select(
            "seq", F.col(body).cast("binary").alias("body"), fields.alias("fields"), times.alias("time_ms")
        ).toArrow()
    return requests_in(table)


def requests_in(messages: pa.Table) -> list[ParsedRequest]:
    """The requests in these messages (``seq``, ``body``, ``fields`` as JSON or null), in the order of their numbers."""
    ordered = messages.sort_by("seq")
    columns = [ordered[name].to_pylist() for name in ("seq", "body", "fields")]
    times = ordered["time_ms"].to_pylist() if "time_ms" in ordered.column_names else [0] * len(ordered)
    return [
        request_in(seq, body or b"", {} if text is None else msgspec.json.decode(text), time_ms or 0)
        for seq, body, text, time_ms in zip(*columns, times, strict=True)
    ]


def request_in(seq: int, body: bytes, fields: dict[str, str | int | bool], time_ms: int) -> MessageRequest:
    """The request in one message."""
    named = fields.get(REQUEST_ID)
    try:
        txn = decode_json(body)
        problem = problem_with_request(txn)
    except InvalidRequest as error:
        problem = error
    else:
        if problem is None:
            return MessageRequest(str(seq), txn.request_id or _text(named), txn, None, fields=fields, time_ms=time_ms)
        named = txn.request_id or named
    said = f"{problem.message}; {problem.hint}" if problem.hint else problem.message
    return MessageRequest(
        str(seq), _text(named), None, str(problem.code), fields=fields, problem=said[:PROBLEM_MAX], time_ms=time_ms
    )


def lost_request(seq: int) -> MessageRequest:
    """In the place of a request that was decided and whose message is gone: its verdict names the number only."""
    return MessageRequest(str(seq), None, None, None, fields={})


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


INGEST_SUBSCRIBER: Final = f"{SUBSCRIBER}/ingest/"
"""What the names of the subscribers of all ingests begin with."""
ANSWER_MS_MAX: Final = 30_000
"""How long a service is tried before Spark is started for nothing."""


class Relation(Enum):
    """What a source has to do with the source of a record, of which all messages up to a number were decided."""

    SAME = "same"
    """It may be that source, and goes on after that number."""
    OTHER = "other"
    """It is another source."""
    MADE_AGAIN = "made again"
    """It has its identity, and no message that was decided."""
    PUT_BACK = "put back"
    """It has messages that were decided, and others under such numbers, or nothing up to that number."""


class NumberedSource:
    """Messages with requests, each with a number that rises and is given once.

    Shape: ``is_moved``: the operator says that a name's record has this very source under an earlier identity. Raises:
    Unavailable. As it stands here a source has nothing to attach, to release or to close.
    """

    is_moved = False

    @property
    def identity(self) -> str:
        """Names the source in the log's record, the same for every way to reach it."""
        raise NotImplementedError

    def relation(self, identity: str | None, through: int, time_ms: int) -> Relation:
        """To the source with this ``identity`` (None: known to be this one), decided up to ``through``.

        ``time_ms``: no message up to ``through`` was published after it; 0: not known. Raises: NotFound (there is no
        such source).
        """
        raise NotImplementedError

    def kept(self, first: int, last: int) -> dict[int, MessageRequest]:
        """The requests with these numbers, both included, that the source still has."""
        raise NotImplementedError

    def attach(self, consumer: str) -> None:
        """Have the source for this ingest alone, until ``close``. Raises: AlreadyOpen (``durable_busy``: something else
        consumes it, and goes on), Conflict, NotFound."""

    def require_same(self) -> None:
        """Raise Closed (``store_replaced``) if the name has another source now than this object has met; NotFound."""

    def acknowledge(self, through: int) -> None:
        """Release the messages up to this number. Raises: Conflict (something else consumes them)."""

    def close(self) -> None:
        """Close what is open."""


def same_queue(one: str, other: str) -> bool:
    """Whether two identities may be of one queue: where the file with its id is missing, they have its path.

    >>> same_queue("queue:" + 32 * "0", "queue:/var/requests"), same_queue("queue:" + 32 * "0", "queue:" + 32 * "1")
    (True, False)
    """
    if not (one.startswith("queue:") and other.startswith("queue:")):
        return False
    return one == other or not all(re.fullmatch("queue:[0-9a-f]{32}", each) for each in (one, other))


def log_id_of(url: str) -> str | None:
    """The id of the log that the service at ``url`` leads; None where the token may not ask. Raises: Unavailable."""
    bounds = with_trusted_hosts(ClientOptions(give_up_after_ms=ANSWER_MS_MAX))
    with suppress(PermissionDenied), Client(url, token=service_token(), options=bounds) as client:
        return client.version().log_id
    return None


class DurableSource(NumberedSource):
    """A durable over HTTP. Its identity has the names of store and durable, and after a ``#`` the durable's token."""

    def __init__(self, url: str, store: str, durable: str, retry_ms: int | None = None) -> None:
        self._names = f"{store}/{durable}"
        self._opened = (url, store, durable, retry_ms)
        self._subscriber = INGEST_SUBSCRIBER
        self._client: DurableClient | None = None
        self._identity: str | None = None

    @property
    def identity(self) -> str:
        """As ``NumberedSource`` has it. Raises also: NotFound, PermissionDenied."""
        if self._identity is None:
            self._identity = f"store:{self._names}#{self._durable().describe()['token']}"
        return self._identity

    def relation(self, identity: str | None, through: int, time_ms: int) -> Relation:
        """As ``NumberedSource`` has it. In another history, after a restore or a promotion, the service judges."""
        del time_ms  # the token says more
        assert identity is not None, "it has not moved"
        (named, _, token), (own, _, own_token) = identity.partition("#"), self.identity.partition("#")
        if not is_continued(token, own_token):
            return Relation.MADE_AGAIN if named == own else Relation.OTHER
        try:
            self._durable().require_same(token, through, fail_on_data_loss=True)
        except Closed:
            return Relation.PUT_BACK
        return Relation.SAME

    def kept(self, first: int, last: int) -> dict[int, MessageRequest]:
        """As ``NumberedSource`` has it."""
        return {
            each.seq: request_in(each.seq, each.body, dict(each.fields), each.published_ms)
            for page in self._durable().messages(first - 1, last)
            for each in page
        }

    def attach(self, consumer: str) -> None:
        """As ``NumberedSource`` has it."""
        self._subscriber = f"{INGEST_SUBSCRIBER}{consumer}"
        durable = self._durable()
        durable.subscriber = self._subscriber
        durable.attach()

    def require_same(self) -> None:
        """As ``NumberedSource`` has it. Cost: a request."""
        self._durable().describe()

    def acknowledge(self, through: int) -> None:
        """As ``NumberedSource`` has it. Harmless when repeated."""
        self._durable().acknowledge_own(through)

    def close(self) -> None:
        """As ``NumberedSource`` has it."""
        client, self._client = self._client, None
        self._identity = None  # the next durable of the name may be another one
        if client is not None:
            client.close()

    def _durable(self) -> DurableClient:
        if self._client is None:
            self._client = DurableClient(*self._opened, subscriber=self._subscriber)
        return self._client


class QueueSource(NumberedSource):
    """An embedded queue. It keeps its messages for its own lifetime, and any number of readers have it at a time."""

    def __init__(self, path: str, *, is_moved: bool = False) -> None:
        self.is_moved = is_moved
        self._path = path

    @property
    def identity(self) -> str:
        """As ``NumberedSource`` has it; the path while the small file with the queue's id is missing."""
        with self._queue() as queue:
            return f"queue:{id_of_queue(queue) or os.path.abspath(self._path)}"

    def relation(self, identity: str | None, through: int, time_ms: int) -> Relation:
        """As ``NumberedSource`` has it: a queue that lost power may give a number to another message.

        A queue whose id is not known may be any queue.
        """
        if identity is not None and not same_queue(identity, self.identity):
            return Relation.OTHER
        with self._queue() as queue:
            found, oldest = time_of_message(queue, through), time_of_message(queue, queue.first_seq)
            is_decided = not time_ms or oldest is None or oldest // 1_000_000 <= time_ms
            is_same = not time_ms or found is None or found // 1_000_000 <= time_ms
            if queue.last_seq >= through and is_same:
                return Relation.SAME
            return Relation.PUT_BACK if is_decided and queue.last_seq > 0 else Relation.MADE_AGAIN

    def kept(self, first: int, last: int) -> dict[int, MessageRequest]:
        """As ``NumberedSource`` has it."""
        requests: dict[int, MessageRequest] = {}
        with self._queue() as queue:
            for message in queue.read(seq=first):
                if message.seq > last:
                    break
                requests[message.seq] = request_in(message.seq, message.payload, {}, message.time_ns // 1_000_000)
        return requests

    def _queue(self) -> QueueCore:
        return QueueCore(self._path, read_only=True, damage="skip")


def other_messages(source: NumberedSource, name: str, through: int, time_ms: int, relation: Relation) -> InvalidRequest:
    """For a source that was made again or put back. Another name is safe for the first one only."""
    if relation is Relation.MADE_AGAIN:
        message = (
            "the source has other messages under the numbers that the log has decided: it was deleted and made again"
        )
        hint = "take another name for the new source, and a new checkpoint"
    else:
        message = (
            "the source lacks messages that the log has decided, and has older ones: it was put back to an earlier "
            "state, or lost power before they were on disk"
        )
        hint = (
            "publish the messages that are newer than decided_until_ms again, into a new store or queue, and take "
            "another name for that one. Never take another name for this source: its older messages would be committed "
            "twice"
        )
    return InvalidRequest(
        message,
        code=Code.STORE_REPLACED if relation is Relation.MADE_AGAIN else Code.LOG_MISMATCH,
        hint=hint,
        name=name,
        source=source.identity,
        decided_through=through,
        decided_until_ms=time_ms,
    )
