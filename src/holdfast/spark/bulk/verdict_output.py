"""Where an ingest puts its verdicts: a Delta table, or a message store.

Each request has exactly one verdict there, whatever is killed: a table counts micro-batches in its commits; in a store
the verdicts have the publisher's numbers, and the store keeps each number once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeGuard

import msgspec
import pyarrow as pa

from holdfast.client import CommitReceipt, NotCommitted
from holdfast.client.protocol.options import PublisherOptions
from holdfast.client.sync.stores import StoreClient
from holdfast.commit.format.transaction import FailedPrecondition
from holdfast.segments.table_location import table_location
from holdfast.spark.bulk.message_requests import REQUEST_ID, MessageRequest
from holdfast.spark.bulk.records import RequestOutcome
from holdfast.spark.bulk.requests import ParsedRequest
from holdfast.spark.bulk.verdicts import INVALID_CODES, VERDICTS
from holdfast.spark.log.delta_output import DeltaOutput, TableState
from holdfast.spark.runtime.table_files import write_table
from holdfast.stores.values.messages import FIELD_BYTES_MAX, FIELDS_MAX, KEY_BYTES_MAX
from holdfast.wire.log import ErrorBody, ErrorResponse

RETRY_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class Judged:
    """A micro-batch that is durable in the log. ``before``: how many requests the stream had before it.

    ``version`` is durable, and ``leader_id`` leads at that version.
    """

    number: int
    before: int
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

    The fields are those of the request's message; ``request_id`` and the key name the request. The publisher is
    ``ingest/NAME/LOG``; the store forgets it, and so may take a verdict twice, when it has published nothing for the
    store's ``publisher_ttl``.
    """

    def __init__(self, url: str | Sequence[str], store: str, *, token: str | None = None) -> None:
        self._urls = url
        self._store = store
        self._token = token
        self._publisher_id = ""
        self._written = 0

    def begin(self, log_id: str, name: str) -> int:
        """As ``VerdictOutput`` has it: what this object has written."""
        self._publisher_id = f"ingest/{name}/{log_id}"
        return self._written

    def write(self, judged: Judged) -> None:
        """As ``VerdictOutput`` has it. Cost: a request for each 4,096 verdicts. Raises: what a publisher raises."""
        options = PublisherOptions(retry_duration=RETRY_SECONDS)
        with (
            StoreClient(self._urls, token=self._token) as client,
            client.publisher(
                self._store, publisher_id=self._publisher_id, next_seq=judged.before + 1, options=options
            ) as publisher,
        ):
            for request, outcome in zip(judged.requests, judged.outcomes, strict=True):
                body, fields = _message(judged, request, outcome)
                publisher.send(body, fields=fields, key=request.request_id if _is_key(request.request_id) else None)
            publisher.flush()
        self._written = judged.number + 1


def _is_key(request_id: str | None) -> TypeGuard[str]:
    """A store refuses any other key, and a verdict that it refuses would stop the stream."""
    return request_id is not None and 0 < len(request_id.encode(errors="replace")) <= KEY_BYTES_MAX


def _message(
    judged: Judged, request: ParsedRequest, outcome: RequestOutcome
) -> tuple[bytes, dict[str, str | int | bool]]:
    fields = dict(request.fields) if isinstance(request, MessageRequest) else {}
    if _is_key(request.request_id) and len(request.request_id.encode()) <= FIELD_BYTES_MAX and len(fields) < FIELDS_MAX:
        fields[REQUEST_ID] = request.request_id
    answer: CommitReceipt | NotCommitted | ErrorResponse
    if outcome.code is None:
        assert outcome.version is not None, "what was committed has a version"
        answer = CommitReceipt(outcome.version, judged.leader_id, request.request_id)
    elif outcome.code in INVALID_CODES:
        said = request.problem if isinstance(request, MessageRequest) else ""
        answer = ErrorResponse(ErrorBody(outcome.code, said or "this request breaks a rule"))
    else:
        conflicts = tuple(FailedPrecondition(index, version) for index, version in outcome.conflicts)
        answer = NotCommitted(outcome.code, conflicts, judged.version, judged.leader_id, request.request_id)  # type: ignore[arg-type]
    return msgspec.json.encode(answer), fields
