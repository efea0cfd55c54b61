"""What the sink keeps in the log about itself: a record for each application, and one for each partition under way.

Owns: these records' keys and bytes, the request ids, and the token of a stream. Does not own: when they are written
(``sink_driver``, ``sink_task``).

Keys::

    spark/{application}                        the application's record
    spark/{application}/{token}/{partition}    how far a partition of the write ``token`` has come, removed when done

Values are JSON objects; both carry ``"format": 1``. The record: ``state`` (``intent`` or ``done``), ``token``
(32 hexadecimal digits), ``read_version`` that the intent was decided at, ``name`` (what the user called it), ``end``
(a stream: the digest of its end offset), ``recent`` (the tokens done before, newest first, at most ``RECENT_MAX``).
The progress: ``chunk`` (which part of the partition's rows is being sent), ``attempts`` (the read versions that this
chunk was sent with and that are spent), ``digest`` (of every transaction up to the end of this chunk).

Valid when: it decodes to these types. Anything else under these keys raises CorruptData.
"""

from __future__ import annotations

from hashlib import blake2b
from pathlib import Path
from typing import Final, Literal
from urllib.parse import unquote, urlsplit

import msgspec

from holdfast.errors import Code, CorruptData, InvalidRequest

__all__ = [
    "RECENT_MAX",
    "Progress",
    "Record",
    "StreamRange",
    "decode_progress",
    "decode_record",
    "encode",
    "progress_key",
    "progress_range",
    "record_key",
    "request_id",
    "stream_range",
    "token_of",
]

RECENT_MAX: Final = 64
"""How many tokens are remembered: a batch with an older one would be written again."""


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an application has written, or is writing."""

    state: Literal["intent", "done"]
    token: str
    read_version: int
    name: str = ""
    end: str | None = None
    recent: tuple[str, ...] = ()
    format: Literal[1] = 1


class Progress(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How far a partition has come."""

    chunk: int
    digest: str
    attempts: tuple[int, ...] = ()
    format: Literal[1] = 1


_RECORD: Final = msgspec.json.Decoder(Record)
_PROGRESS: Final = msgspec.json.Decoder(Progress)


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


def encode(value: Record | Progress) -> bytes:
    """The bytes of a record."""
    return msgspec.json.encode(value)


def decode_record(data: bytes, key: bytes) -> Record:
    """Raises: CorruptData."""
    try:
        return _RECORD.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _foreign(key, error) from error


def decode_progress(data: bytes, key: bytes) -> Progress:
    """Raises: CorruptData."""
    try:
        return _PROGRESS.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _foreign(key, error) from error


def _foreign(key: bytes, error: Exception) -> CorruptData:
    return CorruptData(
        "key holds something that no sink wrote", code=Code.CORRUPT_LOG, key=key.decode("utf-8", "replace"), cause=error
    )


def token_of(*parts: str) -> str:
    """32 hexadecimal digits that stand for what is written.

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
        """What names this range, whatever number Spark gives the micro-batch.

        One without new offsets, which timers and watermarks make, may have rows all the same, and there may be many at
        one place of the source: only their numbers tell them apart.
        """
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
