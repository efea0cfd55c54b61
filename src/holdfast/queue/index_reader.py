"""The index of a page, as those have it who read the page.

Owns: when its file is opened, and what is kept of the indexes of finished pages. Does not own: the record and the
searches (``time_index``), what is written (``page_index``).

Failure model: ``OSError`` from the port. An index that is absent has no records. What is kept may be older than the
file: each record is a hint, and whoever follows it verifies the frame that it leads to.
"""

from __future__ import annotations

from holdfast.queue.time_index import RECORD_BYTES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeAlias

    from holdfast.queue.page_files import PageDirectory

    KeptIndexes: TypeAlias = dict[int, bytes]
    """By the salt of the page."""

__all__ = ["IndexReader"]

KEPT_BYTES_MAX = 128 << 10
KEPT_MAX = 16


class IndexReader:
    """The index of page ``number``. Nothing is opened before it is asked.

    ``kept`` is given for a finished page, whose index does not grow: what an index of up to 128 KiB holds is then read
    once and kept there, up to sixteen of them, for all who share it.
    """

    __slots__ = ("_data", "_file", "_is_open", "_kept", "_number", "_pages", "_salt")

    def __init__(self, pages: PageDirectory, number: int, salt: int, kept: KeptIndexes | None = None) -> None:
        self._pages = pages
        self._number = number
        self._salt = salt
        self._kept = kept
        self._data = None if kept is None else kept.get(salt)
        self._file: int | None = None
        self._is_open = False

    def read(self, offset: int, length: int) -> bytes:
        """What stands there; fewer bytes where the index ends."""
        if self._data is None:
            self._open()
        if self._data is not None:
            return self._data[offset : offset + length]
        return b"" if self._file is None else self._pages.port.read(self._file, offset, length)

    def records(self) -> int:
        """How many there are, whether or not they are true."""
        if self._data is None:
            self._open()
        if self._data is not None:
            return len(self._data) // RECORD_BYTES
        return 0 if self._file is None else self._pages.port.size(self._file) // RECORD_BYTES

    def _open(self) -> None:
        if self._is_open:
            return
        self._file = self._pages.open_index(self._number, write=False)
        self._is_open = True
        if self._file is None or self._kept is None:
            return
        data = self._pages.port.read(self._file, 0, KEPT_BYTES_MAX)
        if len(data) < KEPT_BYTES_MAX:
            if len(self._kept) >= KEPT_MAX:
                self._kept.clear()
            self._data = self._kept[self._salt] = data
            self.close()

    def close(self) -> None:
        """Close the file, where it is open."""
        if self._file is not None:
            self._pages.port.close(self._file)
            self._file = None
