"""The index file of a page: written by ``PageIndex``, searched by ``IndexReader``.

An index is derived data: a missing record costs time, and a reader verifies the frame that a record names.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator

from holdfast.crc32 import Checksum
from holdfast.queue.files.pages import PageDirectory
from holdfast.queue.format.page import (
    HEADER_BYTES,
    RECORD,
    RECORD_BYTES,
    SINGLES_SPACING_BYTES,
    times_and_positions,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.queue.files.port import FilePort

KeptIndexes = dict[int, tuple["array[int]", "array[int]"]]
"""Times and positions, by the salt of the page."""

_pack = RECORD.pack


class PageIndex:
    """``records`` are in the file, with the checksum ``check``; ``pending`` are not. A single frame at or after ``due``
    gets a record. After an ``OSError`` the next write begins at the same position.
    """

    __slots__ = ("check", "due", "pending", "records")

    def __init__(self, records: int = 0, check: int = 0, due: int = HEADER_BYTES) -> None:
        self.records = records
        self.check = check
        self.due = due
        self.pending = bytearray()

    def note(self, time_ns: int, position: int, count: int) -> None:
        """Add a record for this frame if one is due."""
        if count > 1 or position >= self.due:
            self.due = position + SINGLES_SPACING_BYTES
            self.pending += _pack(time_ns, position)

    def write(self, port: FilePort, file: int, checksum: Checksum) -> None:
        """Append what is pending to the index file."""
        pending = bytes(self.pending)
        if pending:
            port.write(file, self.records * RECORD_BYTES, (pending,))
            self.check = checksum(pending, self.check)
            self.records += len(pending) // RECORD_BYTES
            self.pending = bytearray()


KEPT_BYTES_MAX = 256 << 10
"""Of one index. A page of 64 MiB with single messages has 192 KiB of records."""
KEPT_MAX = 16
RECORDS_AT_ONCE = 1 << 12
NEAR_RECORDS = 1365


class IndexReader:
    """The index of page ``number``. Its file is opened when needed. ``kept`` is given for a finished page: the first
    search by time keeps an index of at most 256 KiB there for all readers, sixteen for each open queue.
    """

    def __init__(self, pages: PageDirectory, number: int, salt: int, kept: KeptIndexes | None = None) -> None:
        self._pages = pages
        self._number = number
        self._salt = salt
        self.kept = kept
        self._file: int | None = None
        self._is_open = False

    def last_earlier(self, time_ns: int) -> tuple[int, int, int]:
        """How many records are earlier than ``time_ns``, and time and position of the last; zeros if there are none."""
        kept = None if self.kept is None else self.kept.get(self._salt) or self._keep(self.kept)
        if kept is None:
            return self.last_before(lambda indexed, _: indexed < time_ns)
        times, positions = kept
        before = bisect_left(times, time_ns)
        return (before, times[before - 1], positions[before - 1]) if before else (0, 0, 0)

    def last_before(self, belongs_before: Callable[[int, int], bool]) -> tuple[int, int, int]:
        """How many records come before, by ``belongs_before(time_ns, position)``, which holds for a run of records from
        the start; and time and position of the last of them, zeros if there are none. Cost: O(log count) reads, the
        last of at most 16 KiB.
        """
        low, high = 0, self._count()
        while high - low > NEAR_RECORDS:
            middle = (low + high) // 2
            record = self.record(middle)
            if record is not None and belongs_before(*record):
                low = middle + 1
            else:
                high = middle
        first = max(0, low - 1)
        data = self._read(first * RECORD_BYTES, (high - first) * RECORD_BYTES)
        count = len(data) // RECORD_BYTES

        def comes_after(number: int) -> bool:
            return not belongs_before(*RECORD.unpack_from(data, number * RECORD_BYTES))

        before = bisect_left(range(count), True, min(low - first, count), key=comes_after)
        return (first + before, *RECORD.unpack_from(data, (before - 1) * RECORD_BYTES)) if before else (0, 0, 0)

    def record(self, number: int) -> tuple[int, int] | None:
        """Time and position; None if there is no such record."""
        data = self._read(number * RECORD_BYTES, RECORD_BYTES) if number >= 0 else b""
        return RECORD.unpack(data) if len(data) == RECORD_BYTES else None

    def records(self, start: int = 0) -> Iterator[tuple[int, int]]:
        """Time and position of all from record ``start`` on, true or not."""
        for first in range(start, self._count(), RECORDS_AT_ONCE):
            data = self._read(first * RECORD_BYTES, RECORDS_AT_ONCE * RECORD_BYTES)
            yield from RECORD.iter_unpack(data[: len(data) // RECORD_BYTES * RECORD_BYTES])

    def close(self) -> None:
        """Close the file, where it is open."""
        if self._file is not None:
            self._pages.port.close(self._file)
            self._file, self._is_open = None, False

    def _keep(self, kept: KeptIndexes) -> tuple[array[int], array[int]] | None:
        count = self._count()
        if count * RECORD_BYTES > KEPT_BYTES_MAX:
            return None
        data = self._read(0, count * RECORD_BYTES)
        if len(kept) >= KEPT_MAX:
            kept.clear()
        index = kept[self._salt] = times_and_positions(data)
        return index

    def _count(self) -> int:
        file = self._opened()
        return 0 if file is None else self._pages.port.size(file) // RECORD_BYTES

    def _read(self, offset: int, length: int) -> bytes:
        file = self._opened()
        return b"" if file is None else self._pages.port.read(file, offset, length)

    def _opened(self) -> int | None:
        if not self._is_open:
            self._file = self._pages.open_index(self._number, write=False)
            self._is_open = True
        return self._file
