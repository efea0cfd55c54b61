"""A place on disk for bodies that memory shall not hold.

Owns: the segments of the swap file, which of them are free. Does not own: which bodies go there (``volatile``).

Failure model: it is not durable and is not meant to be. Each segment has no name from the moment it is made, so that a
process that dies leaves nothing behind. A full disk is ``Unavailable`` (disk_full) and nothing was kept. A body that
cannot be read as it was written is ``CorruptData``.

Bodies are appended to segments of about ``SEGMENT_BYTES``. A segment whose bodies are all forgotten goes; one that is
still needed for a single body stays whole.
"""

from __future__ import annotations

import errno
import os
from typing import Final, NamedTuple

from holdfast.errors import Code, CorruptData, Unavailable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Swap", "Swapped"]

SEGMENT_BYTES: Final = 16 << 20
SWAP_NAME: Final = "swap.tmp"


class Swapped(NamedTuple):
    """Where a body is."""

    segment: int
    offset: int
    length: int


class _Segment:
    __slots__ = ("bodies", "bytes", "file")

    def __init__(self, file: int) -> None:
        self.file = file
        self.bytes = 0
        self.bodies = 0


class Swap:
    """Bodies on disk, by where they are. One thread."""

    __slots__ = ("_directory", "_number", "_segment_bytes", "_segments", "bodies", "bytes")

    def __init__(self, directory: str, *, segment_bytes: int = SEGMENT_BYTES) -> None:
        self._directory = directory
        self._segment_bytes = segment_bytes
        self._segments: dict[int, _Segment] = {}
        self._number = 0
        self.bodies = 0
        self.bytes = 0

    @property
    def allocated(self) -> int:
        """The bytes of all segments."""
        return sum(segment.bytes for segment in self._segments.values())

    def write(self, bodies: Sequence[bytes]) -> list[Swapped]:
        """Keep bodies, all or none, in one write. *Raises*: ``Unavailable`` (disk_full)."""
        segment = self._segments.get(self._number)
        try:
            if segment is None or segment.bytes >= self._segment_bytes:
                segment = self._begin()
            _write_all(segment.file, segment.bytes, b"".join(bodies))
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
            raise Unavailable(
                "a message could not be swapped to disk",
                code=Code.DISK_FULL if full else Code.STORE_UNAVAILABLE,
                cause=error.strerror,
            ) from error
        found: list[Swapped] = []
        for body in bodies:
            found.append(Swapped(self._number, segment.bytes, len(body)))
            segment.bytes += len(body)
            self.bytes += len(body)
        segment.bodies += len(found)
        self.bodies += len(found)
        return found

    def _begin(self) -> _Segment:
        path = os.path.join(self._directory, SWAP_NAME)
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        os.unlink(path)
        self._drop_if_free(self._number)
        self._number += 1
        segment = self._segments[self._number] = _Segment(file)
        return segment

    def read(self, place: Swapped) -> bytes:
        """A body. *Raises*: ``CorruptData`` where it is not all there; ``OSError``."""
        data = os.pread(self._segments[place.segment].file, place.length, place.offset)
        if len(data) != place.length:
            raise CorruptData("a swapped message cannot be read", code=Code.CORRUPT_QUEUE, bytes=place.length)
        return data

    def forget(self, place: Swapped) -> None:
        """A body is not needed any more."""
        segment = self._segments[place.segment]
        segment.bodies -= 1
        self.bodies -= 1
        self.bytes -= place.length
        if place.segment != self._number:
            self._drop_if_free(place.segment)

    def _drop_if_free(self, number: int) -> None:
        segment = self._segments.get(number)
        if segment is not None and not segment.bodies:
            os.close(segment.file)
            del self._segments[number]

    def close(self) -> None:
        """Let everything go."""
        for segment in self._segments.values():
            os.close(segment.file)
        self._segments.clear()


def _write_all(file: int, offset: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(file, view, offset)
        view, offset = view[written:], offset + written
