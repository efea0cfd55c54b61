"""``commit_stream``: the four commit stages on any stream of requests, as one running query.

The rows may come from anything that Spark reads as a stream: files, Kafka, a table, the rate source, an embedded queue,
or a message store. ``message_source`` names the last two in one word, as ``holdfast spark ingest --from`` takes it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from threading import Event
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from holdfast.errors import Code, InvalidRequest
from holdfast.spark.bulk.leadership import DEFAULT_LEADERSHIP, LeadershipOptions
from holdfast.spark.bulk.requests import AS_NAMED, RequestFormat
from holdfast.spark.ingest.ingest import Ingest
from holdfast.spark.ingest.micro_batches import IngestCounts
from holdfast.spark.ingest.numbered_source import NumberedSource
from holdfast.spark.ingest.verdict_output import VerdictOutput
from holdfast.spark.runtime.session import task_errors

POLL_SECONDS: Final = 0.2

Report = Callable[[Mapping[str, object]], None]
"""Gets, after each micro-batch: its number, its requests, the seconds that they took, the time, and all counts."""


class CommitStream:
    """A running query that commits. ``wait`` for its end, and ``stop`` it in any case: that resigns the log."""

    def __init__(self, spark: SparkSession, ingest: Ingest, query: StreamingQuery, failures: list[Exception]) -> None:
        self.query = query
        self._spark = spark
        self._ingest = ingest
        self._failures = failures

    @property
    def counts(self) -> IngestCounts:
        """What it has done since it was started."""
        return self._ingest.counts

    def verdicts(self) -> DataFrame:
        """The verdicts as a stream of rows: a row for each request, from the first on; columns as in ``verdicts``.

        Raises: InvalidRequest (they go to a store, or there are none yet).
        """
        url = self._ingest.verdicts_url
        if url is None:
            raise InvalidRequest(
                "the verdicts are messages of a store",
                code=Code.BAD_CONFIGURATION,
                hint="read them with the options url, store and durable, and shape=messages",
            )
        return self._spark.readStream.format("holdfast").option("table", url).load()

    def wait(self, stop: Event | None = None) -> None:
        """Return when the query has ended, or ``stop`` is set. Raises: what ended the query, or the leadership."""
        while self.query.isActive and not (stop or _NEVER).wait(POLL_SECONDS):
            failure = self._ingest.failure
            if failure is not None and not self._failures:
                raise failure
        if self._failures:
            raise self._failures[-1]
        with task_errors():
            failure = self.query.exception()
            if failure is not None:
                raise failure

    def stop(self) -> None:
        """Stop the query and resign. What is not answered comes again at the next start."""
        try:
            self.query.stop()
        finally:
            self._ingest.close()


_NEVER: Final = Event()


def _utc_now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def commit_stream(
    requests: DataFrame,
    log: str,
    verdicts: str | VerdictOutput,
    name: str,
    checkpoint: str,
    *,
    request_format: RequestFormat | None = AS_NAMED,
    source: NumberedSource | None = None,
    leading: LeadershipOptions = DEFAULT_LEADERSHIP,
    every_seconds: float | None = None,
    report: Report = lambda _: None,
) -> CommitStream:
    """Begin to commit what the stream ``requests`` brings, each row one request; see ``RequestFormat`` and ``Ingest``.

    ``verdicts``: the URL of a table, or a ``VerdictStore``. ``name`` and ``checkpoint`` belong together permanently.
    ``request_format`` None: each row is a message with one request; ``source``: where they come from, see ``Ingest``.
    ``every_seconds``: the time from the beginning of one micro-batch to that of the next, 0 for at once; by default the
    query ends when it has taken all that exists now. Raises: InvalidRequest. After a crash: a start with the same
    arguments answers each request exactly once.
    """
    ingest = Ingest(log, verdicts, name, request_format=request_format, source=source, leading=leading)
    failures: list[Exception] = []

    def micro_batch(frame: DataFrame, number: int) -> None:
        began, before = time.monotonic(), ingest.counts.requests
        try:
            ingest.micro_batch(frame, number)
        except Exception as error:
            failures.append(error)
            raise
        report(
            {
                "step": "micro_batch",
                "number": number,
                "requests_in": ingest.counts.requests - before,
                "seconds": round(time.monotonic() - began, 3),
                "at": _utc_now(),
                **asdict(ingest.counts),
            }
        )

    writer = requests.writeStream.foreachBatch(micro_batch).option("checkpointLocation", checkpoint)
    if every_seconds is None:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=f"{every_seconds} seconds")
    try:
        if every_seconds is not None:
            report({"step": "leads", "leader_id": ingest.lead(requests.sparkSession), "at": _utc_now()})
        return CommitStream(requests.sparkSession, ingest, writer.start(), failures)
    except BaseException:
        ingest.close()
        raise


def message_source(text: str) -> dict[str, str] | None:
    """The options of ``format("holdfast")`` for ``store:URL/STORE/DURABLE`` or ``queue:PATH``; None for other texts.

    >>> message_source("queue:/var/orders")
    {'shape': 'messages', 'queue': '/var/orders'}
    >>> message_source("store:http://127.0.0.1:8080/requests/spark")["store"]
    'requests'

    Raises: InvalidRequest.
    """
    if text.startswith(_SERVICES):
        raise InvalidRequest(
            "files cannot be read from the address of a service",
            code=Code.BAD_CONFIGURATION,
            hint=f"did you mean store:{text}? The whole form is store:URL/STORE/DURABLE",
            given=text,
        )
    kind, _, rest = text.partition(":")
    if kind == "queue":
        return {"shape": "messages", "queue": rest}
    if kind != "store":
        return None
    url, store, durable = store_of(rest, 2)
    return {"shape": "messages", "url": url, "store": store, "durable": durable}


_SERVICES: Final = ("http://", "https://", "unix:")


def store_of(text: str, names: int) -> tuple[str, ...]:
    """The address of a service, and the ``names`` after it. Raises: InvalidRequest.

    >>> store_of("unix:/run/holdfast/verdicts", 1)
    ('unix:/run/holdfast', 'verdicts')
    """
    parts = text.rsplit("/", names)
    address = parts[0].partition("//")[2] if parts[0].startswith("http") else parts[0].partition(":")[2]
    if len(parts) <= names or not all(parts) or not address or not parts[0].startswith(_SERVICES):
        raise InvalidRequest(
            "not the address of a store",
            code=Code.BAD_CONFIGURATION,
            hint=f"for example store:http://127.0.0.1:8080/requests{'/spark' if names == 2 else ''}",
            given=text,
        )
    if names == 1 and parts[0].startswith("http") and "/" in address:
        raise InvalidRequest(
            "verdicts go to a store, and this names more than one",
            code=Code.BAD_CONFIGURATION,
            hint=f"give the store without a durable: store:{parts[0]}",
            given=text,
        )
    return tuple(parts)
