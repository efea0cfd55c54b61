"""The driver's part of a write: the intent before the tasks, and done after them.

Owns: the application's record and who may change it. Does not own: sending transactions (``sink_task``), what a record
looks like (``sink_records``), the client's repeats and questions (``holdfast.client``).

The steps of one write, and what a driver that dies in between leaves to the next:

1. read the record under ``spark/{application}``
2. commit an intent there, on condition that the record is the one that was read    nothing of the rows is sent yet
3. tasks send their transactions                        the next run with this token sends the rest, under the same ids
4. commit done on the same condition, and drop what the tasks noted                 a replay finds done and does nothing

Failure model: a driver whose application has moved on without it is Fenced, at 2, in its tasks, or at 4. Two drivers
with the same token help each other: they send the same transactions under the same ids.

After a crash: see the steps. Nothing is ever taken back, so a reader may see a part of a write before it is done.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from holdfast.client import Client
from holdfast.commit.format.transaction import Operation, PointRead, RangeDelete, Write
from holdfast.errors import Code, Conflict, Fenced, InvalidRequest
from holdfast.spark.sink.options import WriteOptions
from holdfast.spark.sink.records import (
    RECENT_MAX,
    Record,
    decode_record,
    encode,
    progress_key,
    progress_range,
    record_key,
)

__all__ = ["Intent", "Wanted", "begin", "finish", "read_record"]

ROUNDS_MAX: Final = 16
"""How often the record may change under a driver's hands before it gives up."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a write is: its token, its text for people (empty for one that cannot come again), a stream's two ends."""

    token: str
    name: str
    start: str | None = None
    end: str | None = None


@dataclass(frozen=True, slots=True)
class Intent:
    """An intent in the log. ``version`` is the record's; None where the write is done already and nothing is sent.

    ``log_id`` is the log that holds it: tasks write to no other one. None from a service before log ids.
    """

    token: str
    version: int | None
    log_id: str | None = None


def read_record(client: Client, application: str) -> tuple[Record | None, int]:
    """The application's record, and a version at which it still is the newest. Raises: as ``Client.get``, CorruptData.

    Cost: two requests.
    """
    read_version = client.version().version
    key = record_key(application)
    try:
        found = client.get(key, at=read_version)
    except InvalidRequest as error:
        if error.code is not Code.VIEW_DISABLED:
            raise
        raise InvalidRequest(
            "a sink keeps its record in the log and needs a service that keeps a view",
            code=Code.VIEW_DISABLED,
            hint="start the service with view.enabled=true, which is off by default for logs on S3, GCS and Azure",
        ) from error
    if found is None:
        return None, read_version
    return decode_record(found.value, key), max(read_version, found.version)


def begin(client: Client, options: WriteOptions, wanted: Wanted) -> Intent:
    """Commit the intent to write ``wanted``, or join the one that is there.

    Raises: InvalidRequest when the record shows other progress and ``supersede`` is off; Fenced when other drivers keep
    changing it; what the client raises. Cost: three requests.
    """
    key = record_key(options.application)
    for _ in range(ROUNDS_MAX):
        record, read_version = read_record(client, options.application)
        if record is not None:
            if wanted.token in record.recent or (record.state == "done" and record.token == wanted.token):
                return Intent(wanted.token, None)
            if record.state == "intent" and record.token == wanted.token:
                return Intent(wanted.token, read_version, client.session.log_id)
            if not options.supersede:
                _require_follows(record, wanted, options)
        elif wanted.start is not None and not options.supersede:
            raise _unrecorded(options, wanted, client.session.log_id)
        intent = Record(
            state="intent",
            token=wanted.token,
            read_version=read_version,
            name=wanted.name,
            end=record.end if record is not None else None,
            recent=_recent(record),
        )
        version = _replace(client, key, intent, read_version)
        if version is not None:
            return Intent(wanted.token, version, client.session.log_id)
    raise _fenced(options.application, wanted.token)


def _recent(record: Record | None) -> tuple[str, ...]:
    """The tokens that are done, newest first. A write that was given up is not among them."""
    if record is None:
        return ()
    return (record.token, *record.recent)[:RECENT_MAX] if record.state == "done" else record.recent


def _unrecorded(options: WriteOptions, wanted: Wanted, log_id: str | None) -> InvalidRequest:
    """The error for a stream that has written before, to a log that knows nothing of it."""
    return InvalidRequest(
        "this stream has written before, and the log at this service has no record of its application",
        code=Code.LOG_MISMATCH,
        hint="the log was replaced: begin with a new checkpoint, so that all of it is written. If the application was "
        'renamed, give .option("supersede", "true") for this one run',
        application=options.application,
        log_id=log_id,
        offered=wanted.name,
    )


def _require_follows(record: Record, wanted: Wanted, options: WriteOptions) -> None:
    """Raise unless a write may come after what the record shows."""
    hint = 'to go on all the same, give .option("supersede", "true") for this one run'
    if record.state == "intent" and record.name:
        raise InvalidRequest(
            "this application has begun another write and not finished it",
            code=Code.BAD_CONFIGURATION,
            hint=f"run that one again, it sends only what is missing; {hint}",
            application=options.application,
            unfinished=record.name,
        )
    if record.state == "done" and record.end is not None and wanted.end is not None and record.end != wanted.start:
        raise InvalidRequest(
            "this application has written up to other offsets than this stream starts from",
            code=Code.BAD_CONFIGURATION,
            hint=f"its checkpoint was deleted, or is another query's: restore it or take another application; {hint}",
            application=options.application,
            written=record.name,
            offered=wanted.name,
        )


def finish(client: Client, options: WriteOptions, wanted: Wanted, partitions: int) -> None:
    """Commit that ``wanted`` is written by so many ``partitions``, and drop the notes of its tasks. Doing it twice
    changes nothing.

    Raises: Fenced when the application has moved on; InvalidRequest when an earlier try had more partitions; what the
    client raises. Cost: four requests.
    """
    key = record_key(options.application)
    notes = progress_range(options.application, wanted.token)
    for _ in range(ROUNDS_MAX):
        record, read_version = read_record(client, options.application)
        if record is None:
            break
        if wanted.token in record.recent or (record.state == "done" and record.token == wanted.token):
            return
        if record.token != wanted.token:
            break
        _require_no_further(client, options, wanted, partitions, read_version)
        done = Record(
            state="done",
            token=wanted.token,
            read_version=record.read_version,
            name=wanted.name,
            end=wanted.end,
            recent=record.recent,
        )
        if _replace(client, key, done, read_version, RangeDelete(*notes)) is not None:
            return
    raise _fenced(options.application, wanted.token)


def _require_no_further(
    client: Client, options: WriteOptions, wanted: Wanted, partitions: int, read_version: int
) -> None:
    """Raise if a task has begun a partition that this write does not have: no task of this one saw its note."""
    begin_key = progress_key(options.application, wanted.token, partitions)
    _, end_key = progress_range(options.application, wanted.token)
    if client.range(begin_key, end_key, limit=1, at=read_version).items:
        raise InvalidRequest(
            "an earlier try of this write had more partitions, and what they sent may be there twice",
            code=Code.REQUEST_ID_REUSED,
            hint="a write that is tried again must get the same rows in the same order: repartition and sort them, or "
            "write from a table that keeps them; look for rows that are there twice; a stream goes on from its "
            "checkpoint under another application name with supersede=true, which sends this micro-batch once more",
            application=options.application,
            partitions=partitions,
        )


def _replace(client: Client, key: bytes, record: Record, read_version: int, *also: Operation) -> int | None:
    """Write the record if it has not changed after ``read_version``: the version, or None when it has."""
    try:
        receipt = client.commit(
            [Write(key, encode(record)), *also], [PointRead(key, read_version)], read_version=read_version
        )
    except Conflict:
        return None
    return receipt.version


def _fenced(application: str, token: str) -> Fenced:
    return Fenced(
        "another run of this application has moved on",
        code=Code.DEPOSED,
        hint="one writer at a time: stop the other, or give this one an application of its own",
        application=application,
        token=token,
    )
