"""The notes that the tasks of a partition agree by: which chunk of its rows is being sent, and what came before it.

1. A chunk is noted before its first row is sent. The note has a digest of every row up to the end of the chunk, or
   of all rows of the partition where they are fixed before.
2. The note moves on, if it and the application's record are unchanged, only when every row of the chunk is there. A
   task that loses this race reads the note again and skips what is done.
3. A task with another digest got other rows or another order, and raises: skipping by number would lose rows.

After a crash the note that is there names the chunk of which any part may be there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final, Generic, TypeVar

import msgspec

from holdfast.client import Client
from holdfast.commit.format.transaction import JobChange
from holdfast.errors import Conflict, Unavailable
from holdfast.spark.options import WriteOptions
from holdfast.spark.runtime.tasks import grouped
from holdfast.spark.sink.identity import SentPartition
from holdfast.spark.sink.record import (
    Intent,
    PartitionProgress,
    decode,
    fenced,
    job_of,
    job_of_partition,
    other_rows,
    read_record,
)
from holdfast.values import LogPosition

ROUNDS_MAX: Final = 16

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class RowChunk(Generic[R]):
    """Some consecutive rows of a partition, the index of the first, and the digest up to the last."""

    number: int
    first: int
    rows: list[R]
    digest: str


def chunks_of(
    rows: Iterable[R],
    size_of: Callable[[R], int],
    bounds: tuple[int, int],
    encode: Callable[[list[R]], bytes],
    fixed: str | None = None,
) -> Iterator[RowChunk[R]]:
    """The rows in chunks within these ``bounds``, in bytes and rows: two tasks must cut the same rows alike.

    ``fixed``: the digest of each chunk, where all rows are known by one.
    """
    digest, first = blake2b(digest_size=16), 0
    for number, group in enumerate(grouped(rows, size_of, *bounds)):
        if fixed is None:
            digest.update(encode(group))
        yield RowChunk(number, first, group, fixed if fixed is not None else digest.hexdigest())
        first += len(group)


def sent_of(
    partition: int,
    chunks: Iterable[RowChunk[R]],
    hash_rows: Callable[[list[R]], int],
    send: Callable[[RowChunk[R]], None] = lambda _: None,
) -> SentPartition:
    """What the partition is, after each chunk was given to ``send``."""
    count = number = total = 0
    for chunk in chunks:
        send(chunk)
        count += len(chunk.rows)
        total += hash_rows(chunk.rows)
        number = chunk.number + 1
    return SentPartition(partition, count, number, total)


@dataclass(frozen=True, slots=True)
class Note:
    """A note as it is in the log, and its version.

    ``is_done``: the whole write is done. ``is_new``: this task wrote it, so no other can have sent its chunk before.
    """

    progress: PartitionProgress
    version: int
    is_done: bool = False
    is_new: bool = False

    def is_past(self, chunk: int) -> bool:
        """Whether every row of this chunk is there."""
        return self.is_done or self.progress.chunk > chunk


class PartitionNotes:
    """The notes of one partition of a write, as one task sees them. Raises: CorruptData; what the client raises."""

    def __init__(self, client: Client, options: WriteOptions, intent: Intent, partition: int) -> None:
        assert intent.version is not None, "a write that is done sends nothing"
        self._client = client
        self._options = options
        self._intent = intent
        self._intent_version = intent.version
        self._partition = partition
        self._job = job_of_partition(options.application, intent.token, partition)
        self._note = self._stored_at(LogPosition(intent.version, intent.log_id))
        # A view may lag the progress of an earlier try. A conflict shows it, but not where no progress is noted.
        self._may_be_behind = True

    def _stored_at(self, version: int | LogPosition) -> Note | None:
        stored = self._client.job(self._job, at=version)
        return None if stored is None else Note(decode(stored.value, self._job, PartitionProgress), stored.version)

    def read_again(self) -> Note | None:
        """The note as it is now, after the record was seen to be this write's. Cost: three requests.

        Raises: Fenced when the application has moved on.
        """
        stored = read_record(self._client, self._options.application)
        record, read_version = stored.record, stored.read_version
        token = self._intent.token
        if record is not None and record.has_done(token):
            # Another driver with this token has finished: every row is there.
            self._note = Note(PartitionProgress(0, ""), read_version, is_done=True)
            return self._note
        if record is None or record.token != token:
            raise fenced(self._options.application, token)
        self._intent_version = read_version
        self._note = self._stored_at(read_version)
        return self._note

    def require_whole(self, chunks: int) -> None:
        """Raise InvalidRequest when an earlier try of this partition came further than its rows go now."""
        note = self.read_again() if self._may_be_behind else self._note
        if note is not None and not note.is_done and note.progress.chunk >= chunks:
            raise other_rows(self._partition, chunks)

    def agree(self, wanted: PartitionProgress) -> Note:
        """The note that is at least as far as ``wanted``: ours, or another task's that came first.

        Raises: Fenced when the application has moved on; InvalidRequest when the chunk has other rows there.
        """
        note = self._agreed(wanted)
        if not note.is_past(wanted.chunk) and note.progress.digest != wanted.digest:
            raise other_rows(self._partition, wanted.chunk)
        return note

    def _agreed(self, wanted: PartitionProgress) -> Note:
        for _ in range(ROUNDS_MAX):
            note = self._note
            if note is not None and (note.is_done or _rank(note.progress) >= _rank(wanted)):
                return note
            version = self._try_note(wanted)
            self._may_be_behind = False
            if version is not None:
                self._note = Note(wanted, version)
                return Note(wanted, version, is_new=True)
            self.read_again()
        raise Unavailable("other tasks keep changing this partition's progress", partition=self._partition)

    def _try_note(self, wanted: PartitionProgress) -> int | None:
        """Note the progress of this partition, unless it or the application's record has changed."""
        known = self._intent_version if self._note is None else self._note.version
        read_version = max(known, self._intent_version)
        changes = JobChange(self._job, msgspec.json.encode(wanted)), JobChange(job_of(self._options.application))
        try:
            receipt = self._client.commit([], jobs=changes, read_version=read_version, log_id=self._intent.log_id)
        except Conflict:
            return None
        return receipt.version


def _rank(progress: PartitionProgress) -> tuple[int, int, int]:
    generation = 0 if progress.publisher is msgspec.UNSET else progress.publisher.generation
    return progress.chunk, generation, len(progress.attempts)
