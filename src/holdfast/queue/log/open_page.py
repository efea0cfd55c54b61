"""A page that is open for writing.

Owns: the handles of one page. Does not own: what is written (``writer``).

Failure model: as the port's. Closing twice is harmless.
"""

from __future__ import annotations

from holdfast.queue.format.checksum import checksum_for_writing
from holdfast.queue.format.frame import SEAL_BYTES, page_seed
from holdfast.queue.format.page_header import PageHeader

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.queue.files.port import FilePort, WritableMap

__all__ = ["OpenPage"]


class OpenPage:
    """Handles and header; ``limit`` is where frames end, so that a SEAL always fits behind them.

    ``file`` is its own from the call on: closed also where it raises."""

    __slots__ = ("checksum", "file", "header", "index_file", "limit", "map", "seed")

    def __init__(self, port: FilePort, file: int, header: PageHeader) -> None:
        self.file = file
        self.header = header
        try:
            self.checksum = checksum_for_writing(header.checksum_id)
            self.seed = page_seed(self.checksum, header.salt, header.number)
            self.map: WritableMap | None = port.map(file, header.page_bytes)
        except BaseException:
            port.close(file)
            raise
        self.limit = header.page_bytes - SEAL_BYTES
        self.index_file: int | None = None

    def close(self, port: FilePort) -> None:
        """Close what is open. Syncs nothing."""
        if self.map is not None:
            port.unmap(self.map)
            self.map = None
        if self.index_file is not None:
            port.close(self.index_file)
            self.index_file = None
        if self.file >= 0:
            port.close(self.file)
            self.file = -1

    def release(self, port: FilePort) -> None:
        """Close all but the file, which by now is of those who sync it."""
        self.file = -1
        self.close(port)
