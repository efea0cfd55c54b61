"""Where an ingest puts its verdicts: a Delta table, or a message store.

Each request has exactly one verdict there, whatever is killed: a table counts micro-batches in its commits; in a store
the verdicts have the publisher's numbers, and the store keeps each number once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeGuard

import msgspec
import pyarrow as pa
import structlog

from holdfast.client import CommitReceipt, NotCommitted
from holdfast.client.protocol.options import ClientOptions, PublisherOptions
from holdfast.client.sync.stores import StoreClient
from holdfast.commit.format.transaction import FailedPrecondition, RejectedBecause
from holdfast.errors import Closed, Code, Conflict, PermissionDenied
from holdfast.segments.table_location import table_location
from holdfast.spark.bulk.requests import ParsedRequest
from holdfast.spark.bulk.verdicts import INVALID_CODES, VERDICTS
from holdfast.spark.ingest.numbered_source import REQUEST_ID, MessageRequest
from holdfast.spark.ingest.record import RequestOutcome
from holdfast.spark.log.delta_output import DeltaOutput, TableState
from holdfast.spark.runtime.refusals import bad_configuration
from holdfast.spark.runtime.service_client import with_trusted_hosts
from holdfast.spark.runtime.table_files import write_table
from holdfast.spark.runtime.tasks import grouped
from holdfast.wire.log import ErrorBody, ErrorResponse
from holdfast.wire.parts import FIELD_BYTES_MAX, FIELDS_MAX, KEY_BYTES_MAX, Message

RETRY_SECONDS: Final = 600.0
"""A restart of the job costs the conflict window, so that it waits for a service that is restarted."""
BATCH_MESSAGES: Final = 1_000
BATCH_BYTES: Final = 1 << 20

log = structlog.get_logger("holdfast.spark")


@dataclass(frozen=True, slots=True)
class Judged:
    """A micro-batch that is durable in the log. ``before``: how many requests the stream had before it.

    ``publisher`` and ``published``: the micro-batch with which the life of a publisher began, and the requests before
    it. A life ends with the process and with a long silence, because a store forgets publishers. ``version`` is
    durable; ``leader_id`` leads now, perhaps after the one that committed.
    """

    number: int
    before: int
    publisher: int
    published: int
    requests: Sequence[ParsedRequest]
    outcomes: Sequence[RequestOutcome]
    version: int
    leader_id: str


class VerdictOutput(Protocol):
    """Takes the verdicts of one micro-batch after the other."""

    def begin(self, log_id: str, name: str) -> int:
        """How many micro-batches of this stream it has, as far as it counts them. Called before each ``write``.

        Raises: InvalidRequest (it has the verdicts of another stream), Unavailable.
        """
        ...

    def write(self, judged: Judged) -> None:
        """Return when all verdicts are durable there, each once, also when this is a repetition. Raises: HoldfastError.

        After a crash: some of them may be there.
        """
        ...


class VerdictTable:
    """The verdicts as rows of a Delta table; see ``verdicts``."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._output = DeltaOutput(table_location(url), "ingest", VERDICTS)
        self._state: TableState | None = None

    def begin(self, log_id: str, name: str) -> int:
        """As ``VerdictOutput`` has it."""
        self._state = self._output.open(f"{log_id}/{name}", {})
        return self._state.offset

    def write(self, judged: Judged) -> None:
        """As ``VerdictOutput`` has it. All of them in one commit."""
        assert self._state is not None, "it was begun"
        pairs = zip(judged.requests, judged.outcomes, strict=True)
        rows = [_row(position, request, outcome) for position, (request, outcome) in enumerate(pairs, 1)]
        table = pa.Table.from_pylist(rows, schema=VERDICTS)
        files = [write_table(self._output.location.url, table, {})] if rows else []
        self._output.commit(self._state, judged.number + 1, files, ())


def _row(position: int, request: ParsedRequest, result: RequestOutcome) -> dict[str, object]:
    outcome = "committed" if result.code is None else "invalid" if result.code in INVALID_CODES else "not_committed"
    conflicts = [{"precondition": index, "version": version} for index, version in result.conflicts]
    return {
        "position": position,
        "order": request.order,
        "request_id": request.request_id,
        "outcome": outcome,
        "code": result.code,
        "version": result.version,
        "conflicts": conflicts,
    }


class VerdictStore:
    """The verdicts as messages of a store. The body is what the service answers to ``POST /v1/commit``.

    The fields are those of the request's message; ``request_id`` and the key name the request, or the key is ``#`` and
    the number of its message. The publisher is ``ingest/NAME/LOG/NUMBER``: a new one for each life (see ``Judged``).
    """

    def __init__(
        self,
        url: str | Sequence[str],
        store: str,
        *,
        token: str | None = None,
        retry_seconds: float = RETRY_SECONDS,
    ) -> None:
        self._urls = url
        self._store = store
        self._token = token
        self._retry_seconds = retry_seconds
        self._stream = self._log_id = ""
        self._of = ""
        """The token of the store as it was when the stream began."""

    def begin(self, log_id: str, name: str) -> int:
        """As ``VerdictOutput`` has it; it counts none. Raises also: InvalidRequest (the store could lose verdicts)."""
        stream = f"ingest/{name}/{log_id}"
        if stream != self._stream:
            self._check()
            self._stream, self._log_id = stream, log_id
        return 0

    def write(self, judged: Judged) -> None:
        """As ``VerdictOutput`` has it. Cost: a request for each 1,000 verdicts. Raises: what a publisher raises."""
        pairs = zip(judged.requests, judged.outcomes, strict=True)
        messages = [_message(judged, request, outcome, self._log_id) for request, outcome in pairs]
        options = PublisherOptions(
            retry_duration=self._retry_seconds, batch_messages=BATCH_MESSAGES, batch_bytes=BATCH_BYTES
        )
        unmatched = 0
        with (
            StoreClient(self._urls, token=self._token, options=with_trusted_hosts(ClientOptions())) as client,
            client.publisher(
                self._store,
                publisher_id=f"{self._stream}/{judged.publisher}",
                next_seq=judged.before - judged.published + 1,
                store_token=self._of,
                options=options,
            ) as publisher,
        ):
            try:
                for batch in grouped(messages, lambda one: len(one.body), BATCH_BYTES, BATCH_MESSAGES):
                    unmatched += publisher.publish_batch(batch).unmatched
            except Closed as error:
                if error.code is not Code.STORE_REPLACED:
                    raise
                raise Closed(
                    "the store of verdicts was deleted and made again, or restored, since this stream began",
                    code=error.code,
                    hint="start the stream again, and it goes on with the store as it is now; verdicts that it has "
                    "lost are in the log: give --to, the URL of a table, to get all of them there",
                    facts={"store": self._store, "micro_batch": judged.number},
                ) from error
            except Conflict as error:
                if error.code not in (Code.SEQUENCE_GAP, Code.UNKNOWN_PUBLISHER):
                    raise
                raise Conflict(
                    "the store of verdicts was put back, or has forgotten the publisher of this micro-batch",
                    code=error.code,
                    hint="the commits are in the log: give --to, the URL of a table, to get their verdicts there",
                    store=self._store,
                    micro_batch=judged.number,
                ) from error
        if unmatched:
            log.warning("no_durable_wants_verdicts", store=self._store, verdicts=unmatched, micro_batch=judged.number)

    def _check(self) -> None:
        """A token without the right to look is not refused here."""
        with StoreClient(self._urls, token=self._token, options=with_trusted_hosts(ClientOptions())) as client:
            try:
                store = client.describe_store(self._store)
                durables = client.durables(self._store)
            except PermissionDenied:
                return
        self._of = str(store.get("token", ""))
        if store.get("publisher_mode") == "store_send_noconfirm":
            raise bad_configuration(
                "the store of verdicts confirms no messages, so that verdicts could be lost",
                hint="set its publisher_mode to store_confirm_send",
                store=self._store,
            )
        if not durables.get("durables"):
            raise bad_configuration(
                "the store of verdicts has no durable, so that it would drop every verdict",
                hint="define one, for example of type last_value: it keeps the newest verdict of each request",
                store=self._store,
            )


def _is_key(request_id: str | None) -> TypeGuard[str]:
    """A store refuses any other key, and a verdict that it refuses would stop the stream."""
    return request_id is not None and 0 < len(request_id.encode()) <= KEY_BYTES_MAX


def _message(judged: Judged, request: ParsedRequest, outcome: RequestOutcome, log_id: str) -> Message:
    fields = dict(request.fields) if isinstance(request, MessageRequest) else {}
    request_id = request.request_id
    key = request_id if _is_key(request_id) else f"#{request.order}"
    if key == request_id and len(key.encode()) <= FIELD_BYTES_MAX and len(fields) < FIELDS_MAX:
        fields[REQUEST_ID] = key
    answer: CommitReceipt | NotCommitted | ErrorResponse
    code = outcome.code
    if code is None:
        assert outcome.version is not None, "what was committed has a version"
        answer = CommitReceipt(outcome.version, judged.leader_id, request_id)
    elif code in INVALID_CODES:
        said = request.problem if isinstance(request, MessageRequest) else ""
        said = said or _SAID.get(code, "this request breaks a rule")
        if code in (Code.LOG_MISMATCH, Code.ROLLED_BACK) and request.transaction is not None:
            said += f": the request names log {request.transaction.log_id}, and this log is {log_id}"
        answer = ErrorResponse(ErrorBody(code, said))
    else:
        assert code in ("conflict", "too_old"), "all other codes are of invalid requests"
        reason: RejectedBecause = "conflict" if code == "conflict" else "too_old"
        conflicts = tuple(FailedPrecondition(index, version) for index, version in outcome.conflicts)
        answer = NotCommitted(reason, conflicts, judged.version, judged.leader_id, request_id)
    return Message(msgspec.json.encode(answer), fields, key[:KEY_BYTES_MAX])


_SAID: Final[Mapping[str, str]] = {
    Code.PERMISSION_DENIED: "this request names records of jobs, which only a commit at a service may",
    Code.LOG_TRUNCATED: "retention has removed the part of the log that would say whether this attempt was committed",
    Code.STORES_NOT_IN_LOG: "Spark has no stores: a request that it commits has no parts for them",
    Code.REQUEST_ID_REUSED: "another request with this id was committed",
    Code.FUTURE_VERSION: "the version was never handed out",
    Code.LOG_MISMATCH: "the version belongs to another log",
    Code.ROLLED_BACK: "the version is one of the log that this one was forked from, after the fork",
    Code.LEADER_CHANGED: "another leader was named",
}
