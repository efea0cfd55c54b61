"""Looking for the next whole frame behind damage, byte by byte.

Owns: the search. Does not own: what a frame is (``queue.frame``), what verifies (``queue.page_scan``).

A reader behind damage asks the damaged frame's own length and the index. Where both are damaged this finds the next
frame all the same: every frame's check is bound to the page's salt and to its sequence number, so a frame can be told
from its look-alikes at any position. Reads only.

Failure model: finds nothing rather than something doubtful. A place counts when its head is possible, its check fits a
sequence number that is possible there, and the frame or SEAL behind it verifies too, or nothing is behind it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from holdfast.queue.files.port import FilePort
from holdfast.queue.format.checksum import checksum_for_reading
from holdfast.queue.format.frame import HEAD, HEAD_BYTES, SEQ_MASK, implied_seq, page_seed
from holdfast.queue.format.page import PageHeader
from holdfast.queue.log.page_scan import PageScan
from holdfast.queue.log.recovery import Here

__all__ = ["FrameSearch"]

CHUNK_BYTES: Final = 1 << 20
_HEAD: Final = re.compile(rb"(?=[\s\S]{16}(?!\0\0\0\0)[\s\S]{4}[\x00\x01]\0\0\0)")
"""A head as far as a pattern can tell: some messages, no unknown flag, the two bytes that are always zero."""


class FrameSearch:
    """Searches one open page."""

    def __init__(self, port: FilePort, file: int, header: PageHeader) -> None:
        self._port = port
        self._file = file
        self._header = header
        self._checksum = checksum_for_reading(header.checksum_id)
        self._seed = page_seed(self._checksum, header.salt, header.number)
        self._end = min(header.page_bytes, port.size(file))

    def next_frame(self, after: int, *, expected: int, last_time_ns: int, below: int | None) -> tuple[int, int] | None:
        """The first whole frame behind ``after`` that can follow message ``expected - 1``: position, sequence number.

        ``below`` is a bound of the sequence number where one is known. None where there is no such frame.
        Cost: one pass over the bytes in between, some 20 ms for each MiB.
        """
        for position in self._heads(after + HEAD_BYTES):
            found = self._sequence_number(position, after, expected, last_time_ns)
            if found is not None and (below is None or found < below) and self._stands(position, found):
                return position, found
        return None

    def content_end(self, position: int) -> int:
        """Where the bytes from ``position`` on that are not zero end."""
        end = position
        for start in range(position, self._end, CHUNK_BYTES):
            kept = self._port.read(self._file, start, min(CHUNK_BYTES, self._end - start)).rstrip(b"\0")
            if kept:
                end = start + len(kept)
        return end

    def _heads(self, start: int) -> Iterator[int]:
        while start + HEAD_BYTES <= self._end:
            data = self._port.read(self._file, start, min(CHUNK_BYTES + HEAD_BYTES - 1, self._end - start))
            if data.count(0) == len(data):
                start += CHUNK_BYTES
                continue
            for match in _HEAD.finditer(data):
                if match.start() < CHUNK_BYTES:
                    yield start + match.start()
            start += CHUNK_BYTES

    def _sequence_number(self, position: int, after: int, expected: int, last_time_ns: int) -> int | None:
        """The only sequence number for which the frame at ``position`` verifies, where that is possible."""
        head = HEAD.unpack(self._port.read(self._file, position, HEAD_BYTES))
        length, _, time_ns, _ = head
        if position + HEAD_BYTES + length > self._end or time_ns < last_time_ns:
            return None
        body = self._port.read(self._file, position + HEAD_BYTES, length)
        skipped = (implied_seq(self._checksum, self._seed, head, body) - expected) & SEQ_MASK
        # A message takes at least four bytes, so this many can have been in between.
        return expected + skipped if 0 < skipped <= (position - after) // 4 else None

    def _stands(self, position: int, seq: int) -> bool:
        scan = PageScan(self._port, self._file, self._header, next_seq=seq, position=position)
        if scan.read(HEAD_BYTES) is None:
            return False
        return scan.read(HEAD_BYTES) is not None or scan.here() is not Here.INVALID
