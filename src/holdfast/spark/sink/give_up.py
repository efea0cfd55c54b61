"""End a write that cannot be finished, by its name, and list what is known of its rows.

1. The record says that the write is done, with the digest ``GIVEN_UP``. No sender can note another chunk from then on.
2. Each transaction of the chunks in flight is asked for by its id. The question closes the attempt: what is not
   committed then never is.
3. When the caller has the list, ``forget`` removes the notes and the staged rows.

After a crash the next call lists the same again, until ``forget`` has ended. Chunks before the one in flight are
committed as a whole, and those after it were never sent.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Literal

import msgspec

from holdfast.client import Client
from holdfast.commit.format.transaction import JobChange
from holdfast.errors import NotFound
from holdfast.retention.job_holds import release_for
from holdfast.spark.options import WriteOptions
from holdfast.spark.runtime.service_client import ServiceClient
from holdfast.spark.sink.identity import PartitionPublisher
from holdfast.spark.sink.record import (
    GIVEN_UP,
    ROUNDS_MAX,
    PartitionProgress,
    SinkRecord,
    StreamProgress,
    fenced,
    job_of,
    job_of_write,
    notes_of,
    read_record,
    replace_record,
    request_id,
)
from holdfast.spark.sink.stage import open_stage
from holdfast.spark.sink.task import ASKING
from holdfast.values import LogPosition

Known = Literal["committed", "not committed", "undecidable"]


@dataclass(frozen=True, slots=True)
class Rows:
    """Consecutive transactions of one partition: those from ``first`` through ``last``, in the order of its rows.

    ``undecidable``: the part of the log that would show them is gone, or they are messages, for which nobody can ask.
    Rows after the last ones of a partition were never sent.
    """

    partition: int
    first: int
    last: int
    known: Known


def give_up(client: Client, options: WriteOptions, name: str) -> list[Rows]:
    """Give up the unfinished write ``name`` of an application; what is known of its rows, in order.

    Raises: NotFound where the application has no such write; Fenced when other drivers keep changing its record; what
    the client raises. Cost: a request for each row of the chunks in flight.
    """
    record = _ended(client, options, name)
    read_version = client.version().version
    notes = notes_of(client, options.application, record.token, read_version)
    rows: list[Rows] = []
    for partition, progress, version in notes:
        if progress.first:
            rows.append(Rows(partition, 0, progress.first - 1, "committed"))
        rows += _in_flight(client, options, record, partition, progress, version)
    return rows


def forget(client: ServiceClient, options: WriteOptions, name: str) -> None:
    """Remove the notes and the staged rows of a write that was given up. Raises: as ``give_up``."""
    record = _ended(client, options, name)
    notes = JobChange(job_of_write(options.application, record.token), None)
    over = release_for(job_of(options.application)), notes
    client.commit([], jobs=over, read_version=client.version().version)
    with open_stage(options, client) as stage:
        stage.remove_abandoned(record.token)


def _ended(client: Client, options: WriteOptions, name: str) -> SinkRecord:
    """The record, after it says that the write is given up."""
    for _ in range(ROUNDS_MAX):
        stored = read_record(client, options.application)
        record = stored.record
        if record is None or not name or record.name != name:
            raise _no_such_write(options, name, record)
        if record.state == "done":
            if record.digest_of(record.token) != GIVEN_UP:
                raise _no_such_write(options, name, record)
            return record
        ended = _given_up(record)
        if replace_record(client, options, ended, stored.read_version) is not None:
            return ended
    raise fenced(options.application, name)


def _given_up(record: SinkRecord) -> SinkRecord:
    if record.micro_batch is None:
        return msgspec.structs.replace(record, state="done", digest=GIVEN_UP)
    stream = StreamProgress(record.micro_batch.query, record.micro_batch.number, GIVEN_UP)
    return msgspec.structs.replace(record, state="done", stream=stream)


def _no_such_write(options: WriteOptions, name: str, record: SinkRecord | None) -> NotFound:
    unfinished = "" if record is None or record.state == "done" else record.name
    return NotFound(
        "this application has no unfinished write of this name",
        hint="the error of the write that was refused has its name: unfinished=",
        application=options.application,
        given=name,
        unfinished=unfinished,
    )


def _in_flight(
    client: Client, options: WriteOptions, record: SinkRecord, partition: int, progress: PartitionProgress, version: int
) -> Iterator[Rows]:
    """What is known of the transactions of a chunk that was noted."""
    first, last = progress.first, progress.first + progress.count - 1
    if isinstance(progress.publisher, PartitionPublisher):
        yield Rows(partition, first, last, "undecidable")
        return
    attempts = (*progress.attempts, version)
    ask = partial(_asked, client, options.application, record, partition, attempts)
    with ThreadPoolExecutor(ASKING, "holdfast-give-up") as threads:
        for known, group in groupby(threads.map(ask, range(first, last + 1))):
            count = len(list(group))
            yield Rows(partition, first, first + count - 1, known)
            first += count


def _asked(
    client: Client, application: str, record: SinkRecord, partition: int, attempts: tuple[int, ...], index: int
) -> Known:
    """What is known of one transaction, each of whose attempts is closed now."""
    is_cut = False
    for number, read_version in enumerate(attempts):
        name = request_id(record.tag, application, record.token, partition, index, number)
        outcome = client.status(name, LogPosition(read_version, client.session.log_id))
        if outcome.status == "committed":
            return "committed"
        is_cut = is_cut or outcome.status == "log_truncated"
    return "undecidable" if is_cut else "not committed"
