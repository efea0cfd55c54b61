"""The index of the page being written: what is due, what is not in the file yet.

Owns: which frames get a record, the records that wait, their checksum for the SEAL. Does not own: the record
(``time_index``), when they are written (``writer``).

Failure model: ``OSError`` from the port; then nothing is forgotten, and the next write begins at the same place. An
index is derived data: what is lost of it costs time.
"""

from __future__ import annotations

from holdfast.queue.format.page_header import HEADER_BYTES
from holdfast.queue.format.time_index import RECORD, RECORD_BYTES, SINGLES_SPACING_BYTES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.queue.files.port import FilePort
    from holdfast.queue.format.checksum import Checksum

__all__ = ["PageIndex"]

_pack = RECORD.pack


class PageIndex:
    """``records`` are in the file, with the checksum ``check``; ``pending`` are not. A frame of one message at ``due``
    or behind it gets a record."""

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
