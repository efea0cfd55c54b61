"""Commit requests that come as messages: the body of each is what ``POST /v1/commit`` takes, as JSON.

They are decoded and checked by the code of the service, so a request is refused for the same reason. A message that is
no commit request becomes a refused request: it blocks nothing. Order: the number of the message.
"""

from __future__ import annotations

from typing import Final

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  the name that every Spark program uses

from holdfast.commit.format.json_request import decode_json
from holdfast.commit.format.request_rules import problem_with_request
from holdfast.errors import InvalidRequest
from holdfast.spark.bulk.requests import ParsedRequest
from holdfast.spark.runtime.refusals import bad_configuration
from holdfast.spark.runtime.session import task_errors

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
