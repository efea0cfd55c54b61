"""The driver's part of a write, and the records that it keeps in the log.

1. Read the record under ``spark/{application}``.
2. Commit an intent there, if the record has not changed. No row has been sent before.
3. Tasks send their transactions. After a crash the next run with this token sends the rest, with the same ids.
4. Commit done, if the record has not changed, and remove the progress of the tasks. A replay then does nothing.

A driver whose application has moved on is Fenced at 2, in its tasks, or at 4. Two drivers with the same token help
each other. Readers may see part of a write before it is done.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Final, Literal, TypeVar
from urllib.parse import unquote, urlsplit

import msgspec

from holdfast.client import Client
from holdfast.commit.format.transaction import Operation, PointRead, RangeDelete, Write
from holdfast.errors import Code, Conflict, CorruptData, Fenced, InvalidRequest
from holdfast.spark.options import WriteOptions

T = TypeVar("T")

RECENT_MAX: Final = 64
"""How many tokens are remembered: a batch with an older one would be written again."""


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an application has written, or is writing: JSON under the key ``spark/{application}``.

    Shape: ``token`` is 32 hexadecimal digits, ``read_version`` the intent's, ``name`` the user's text, ``end`` the
    digest of a stream's end offset, ``recent`` the tokens done before, newest first, at most ``RECENT_MAX``.
    """

    state: Literal["intent", "done"]
    token: str
    read_version: int
    name: str = ""
    end: str | None = None
    recent: tuple[str, ...] = ()
    format: Literal[1] = 1

    def has_done(self, token: str) -> bool:
        """Whether the write of this token is done."""
        return token in self.recent or (self.state == "done" and self.token == token)


class Progress(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How far a partition has come: JSON under ``spark/{application}/{token}/{partition}``, removed when done.

    Shape: ``chunk`` is the part of the partition's rows in flight, ``attempts`` the read versions that this chunk used
    up, ``digest`` that of every transaction up to the end of this chunk.
    """

    chunk: int
    digest: str
    attempts: tuple[int, ...] = ()
    format: Literal[1] = 1


def record_key(application: str) -> bytes:
    """The key of an application's record."""
    return f"spark/{application}".encode()


def progress_key(application: str, token: str, partition: int) -> bytes:
    """The key of a partition's progress."""
    return f"spark/{application}/{token}/{partition:06d}".encode()


def progress_range(application: str, token: str) -> tuple[bytes, bytes]:
    """``[begin, end)`` of the progress of every partition of a write."""
    prefix = f"spark/{application}/{token}".encode()
    return prefix + b"/", prefix + b"0"


def request_id(application: str, token: str, partition: int, index: int, attempt: int) -> str:
    """The id of one transaction in one attempt: the same in every task that sends it.

    >>> request_id("orders", "9f" * 16, 3, 41, 0)
    'spark/orders/9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f/3/41/0'
    """
    return f"spark/{application}/{token}/{partition}/{index}/{attempt}"


def decode(data: bytes, key: bytes, kind: type[T], writer: str = "sink") -> T:
    """The record of this ``kind`` under ``key``, whose ``writer`` an error names. Raises: CorruptData."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        message = f"key holds something that no {writer} wrote"
        raise CorruptData(message, code=Code.CORRUPT_LOG, key=key.decode("utf-8", "replace"), cause=error) from error


def token_of(*parts: str) -> str:
    """32 hexadecimal digits that name what is written.

    >>> token_of("2026-01-31") == token_of("2026-01-31"), len(token_of("a", "b"))
    (True, 32)
    """
    digest = blake2b(digest_size=16)
    for part in parts:
        text = part.encode()
        digest.update(len(text).to_bytes(8, "little") + text)
    return digest.hexdigest()


class StreamRange(msgspec.Struct, frozen=True):
    """The source's offset range of the micro-batch under way: digests of its two ends, and the range for people.

    ``start`` is None for the first micro-batch of a checkpoint. ``number`` is Spark's for the micro-batch.
    """

    start: str | None
    end: str
    name: str
    number: int = 0

    @property
    def token(self) -> str:
        """The name of this range. Without new offsets (timers, watermarks) the micro-batch's number is part of it."""
        if self.start is not None and self.start == self.end:
            return token_of(self.start, self.end, str(self.number))
        return token_of(self.start or "", self.end)


def stream_range(checkpoint: str) -> StreamRange:
    """The range that Spark last wrote into its offset log, which is that of the micro-batch it is running.

    Raises: InvalidRequest when the checkpoint is not a directory of this machine or holds no offsets yet.
    """
    parts = urlsplit(checkpoint)
    if parts.scheme not in ("", "file"):
        raise _no_offsets(checkpoint, "it is not a directory of the driver's machine")
    folder = Path(unquote(parts.path)) / "offsets"
    try:
        numbers = sorted(int(path.name) for path in folder.iterdir() if path.name.isdigit())
        if not numbers:
            raise _no_offsets(checkpoint, "it holds no offsets yet")
        end = _offsets(folder / str(numbers[-1]))
        start = _offsets(folder / str(numbers[-2])) if len(numbers) > 1 else None
    except OSError as error:
        raise _no_offsets(checkpoint, str(error)) from error
    return StreamRange(
        None if start is None else token_of(start), token_of(end), f"{start or '(first)'} -> {end}"[:500], numbers[-1]
    )


def _offsets(path: Path) -> str:
    """The offsets of one micro-batch, without the metadata above them, which holds the time."""
    lines = path.read_text().splitlines()
    return "\n".join(lines[2:])


def _no_offsets(checkpoint: str, cause: str) -> InvalidRequest:
    return InvalidRequest(
        "the stream's offsets cannot be read from its checkpoint",
        code=Code.BAD_CONFIGURATION,
        hint='give .option("checkpointLocation", "/a/directory/of/the/driver")',
        checkpoint=checkpoint,
        cause=cause,
    )


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
        stored = client.get(key, at=read_version)
    except InvalidRequest as error:
        if error.code is not Code.VIEW_DISABLED:
            raise
        raise InvalidRequest(
            "a sink keeps its record in the log and needs a service that keeps a view",
            code=Code.VIEW_DISABLED,
            hint="start the service with view.enabled=true, which is off by default for logs on S3, GCS and Azure",
        ) from error
    if stored is None:
        return None, read_version
    return decode(stored.value, key, Record), max(read_version, stored.version)


def begin(client: Client, options: WriteOptions, wanted: Wanted) -> Intent:
    """Commit the intent to write ``wanted``, or join the one that is there.

    Raises: InvalidRequest when the record shows other progress and ``supersede`` is off; Fenced when other drivers keep
    changing it; what the client raises. Cost: three requests.
    """
    key = record_key(options.application)
    for _ in range(ROUNDS_MAX):
        record, read_version = read_record(client, options.application)
        if record is not None:
            if record.has_done(wanted.token):
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
    hint = 'to continue anyway, give .option("supersede", "true") for this one run'
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
            hint="the checkpoint of this stream was deleted, or belongs to another query: restore it, or use another "
            f"application name; {hint}",
            application=options.application,
            written=record.name,
            offered=wanted.name,
        )


def finish(client: Client, options: WriteOptions, wanted: Wanted, partitions: int) -> None:
    """Commit that ``wanted`` is written by this many ``partitions``, and remove the progress of its tasks. Repeating it
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
        if record.has_done(wanted.token):
            return
        if record.token != wanted.token:
            break
        _require_no_further(client, options, wanted, partitions, read_version)
        done = msgspec.structs.replace(record, state="done", name=wanted.name, end=wanted.end)
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
            "write from a table that keeps them; look for rows that are there twice; a stream continues from its "
            "checkpoint under another application name with supersede=true, which sends this micro-batch once more",
            application=options.application,
            partitions=partitions,
        )


def _replace(client: Client, key: bytes, record: Record, read_version: int, *also: Operation) -> int | None:
    """Write the record if it has not changed after ``read_version``: the version, or None when it has."""
    try:
        receipt = client.commit(
            [Write(key, msgspec.json.encode(record)), *also], [PointRead(key, read_version)], read_version=read_version
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
