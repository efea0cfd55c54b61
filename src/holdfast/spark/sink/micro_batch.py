"""How a stream's write is named: by Spark's id of the query and the number of the micro-batch.

Tasks learn both from their context, so the sink needs no checkpoint, wherever that is. A query keeps its id in its
checkpoint: a deleted checkpoint makes another id, and a number never stands for two ranges unless a checkpoint was
put back, which the record shows by its number or by the digest of the rows.

Earlier versions named a micro-batch by a digest of its range of offsets, read from a checkpoint in a directory.
``stream_range`` still reads it, to continue after a record that such a version wrote.
"""

from __future__ import annotations

from hashlib import blake2b
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

import msgspec
from pyspark import TaskContext

from holdfast.errors import Code, InvalidRequest

QUERY_PROPERTY: Final = "sql.streaming.queryId"
NUMBER_PROPERTY: Final = "streaming.sql.batchId"


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


class MicroBatch(msgspec.Struct, frozen=True):
    """A micro-batch. Shape: ``query`` is a UUID; ``number`` counts from 0 in a checkpoint."""

    query: str
    number: int

    @property
    def token(self) -> str:
        """The token of its write."""
        return token_of("micro-batch", self.query, str(self.number))

    def __str__(self) -> str:
        return f"micro-batch {self.number} of query {self.query}"


def running_micro_batch(context: TaskContext) -> MicroBatch:
    """The micro-batch that a task works for. Raises: InvalidRequest."""
    query, number = context.getLocalProperty(QUERY_PROPERTY), context.getLocalProperty(NUMBER_PROPERTY)
    if not query or not number:
        raise InvalidRequest(
            "a task of this stream does not know its query and micro-batch",
            code=Code.BAD_CONFIGURATION,
            hint="the sink takes streams with micro-batches: use a trigger by time or availableNow",
        )
    return MicroBatch(query, int(number))


class StreamRange(msgspec.Struct, frozen=True):
    """The source's offset range of the micro-batch under way: digests of its two ends, as earlier versions kept them.

    ``start`` is None for the first micro-batch of a checkpoint. ``number`` is Spark's for the micro-batch.
    """

    start: str | None
    end: str
    number: int = 0

    @property
    def token(self) -> str:
        """The name of this range. Without new offsets (timers, watermarks) the micro-batch's number is part of it."""
        if self.start is not None and self.start == self.end:
            return token_of(self.start, self.end, str(self.number))
        return token_of(self.start or "", self.end)


def stream_range(checkpoint: str) -> StreamRange | None:
    """The range that Spark last wrote into its offset log, which is that of the micro-batch it is running.

    None where the checkpoint is not a directory of this machine, or holds no offsets yet.
    """
    parts = urlsplit(checkpoint)
    if parts.scheme not in ("", "file"):
        return None
    folder = Path(unquote(parts.path)) / "offsets"
    try:
        numbers = sorted(int(path.name) for path in folder.iterdir() if path.name.isdigit())
        if not numbers:
            return None
        end = _offsets(folder / str(numbers[-1]))
        start = _offsets(folder / str(numbers[-2])) if len(numbers) > 1 else None
    except OSError:
        return None
    return StreamRange(None if start is None else token_of(start), token_of(end), numbers[-1])


def _offsets(path: Path) -> str:
    """The offsets of one micro-batch, without the metadata above them, which holds the time."""
    lines = path.read_text().splitlines()
    return "\n".join(lines[2:])
