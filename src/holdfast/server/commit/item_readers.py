"""Bytes of a stream of commits, cut into transactions: NDJSON, or msgpack maps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Final

import msgpack

from holdfast.commit.format.json_request import decode_json, decode_json_lines
from holdfast.commit.format.transaction import Transaction
from holdfast.errors import HoldfastError, InvalidRequest, LimitExceeded
from holdfast.server.http.requests import decode_msgpack, decode_msgpack_items
from holdfast.server.http.responses import without_traceback
from holdfast.wire.formats import MSGPACK, MSGPACK_NAMES, NDJSON, WireFormat

UNPACKER_BYTES_MAX: Final = (1 << 31) - 1
"""The bound of an item is ``item_bytes_max``; this is the largest that the scanner takes."""


class ItemReader(ABC):
    """Cuts a stream of bytes into transactions.

    ``take`` gives the whole items that have arrived so far; when one of them is wrong it gives those before it, and
    ``problem`` is set. Bytes of an unfinished item are kept, at most ``item_bytes_max`` and one part of the stream.
    """

    def __init__(self, item_bytes_max: int) -> None:
        self.item_bytes_max = item_bytes_max
        self.problem: HoldfastError | None = None
        self._kept = bytearray()

    @abstractmethod
    def take(self, part: bytes, *, last: bool = False) -> list[Transaction]:
        """The whole items up to and including ``part``; ``last`` when nothing follows it."""

    @property
    def unfinished_bytes(self) -> int:
        """Bytes of the item that has not arrived whole."""
        return len(self._kept)

    def _too_large(self) -> LimitExceeded:
        return LimitExceeded("the item is too large", bytes_max=self.item_bytes_max)


class JsonLines(ItemReader):
    """One commit a line; blank lines are skipped; the last line may lack its end."""

    def take(self, part: bytes, *, last: bool = False) -> list[Transaction]:
        """See ``ItemReader``."""
        kept = self._kept
        end = len(part) if last else part.rfind(b"\n") + 1
        if end == 0 and not (last and kept):
            kept += part
            if len(kept) > self.item_bytes_max:
                self.problem = self._too_large()
            return []
        block = bytes(kept) + part[:end] if kept else part[:end]
        self._kept = bytearray(part[end:])
        # No item can exceed a limit that the whole block keeps, which is the usual case.
        if len(block) <= self.item_bytes_max:
            try:
                items = decode_json_lines(block)
            except InvalidRequest:
                pass  # line by line, to find which
            else:
                if len(items) == block.count(b"\n") + (last and not block.endswith(b"\n") and bool(block.strip())):
                    return items
        items = list(self._line_by_line(block))
        if self.problem is None and len(self._kept) > self.item_bytes_max:
            self.problem = self._too_large()
        return items

    def _line_by_line(self, block: bytes) -> Iterator[Transaction]:
        for line in block.split(b"\n"):
            if len(line) > self.item_bytes_max:
                self.problem = self._too_large()
                return
            if not line.strip():
                continue
            try:
                yield decode_json(line)
            except InvalidRequest as error:
                self.problem = without_traceback(error)
                return


class MsgpackItems(ItemReader):
    """Maps one after another. An item that has not arrived whole is scanned on from where the last part ended."""

    def __init__(self, item_bytes_max: int) -> None:
        super().__init__(item_bytes_max)
        self._unpacker = msgpack.Unpacker(max_buffer_size=UNPACKER_BYTES_MAX, use_list=True)
        self._begun_at = 0
        """Where the kept bytes begin in the whole stream."""

    def take(self, part: bytes, *, last: bool = False) -> list[Transaction]:
        """See ``ItemReader``."""
        self._kept += part
        ends = list(self._ends(part))
        end = ends[-1] if ends else 0
        block = bytes(memoryview(self._kept)[:end])
        del self._kept[:end]
        self._begun_at += end
        if self.problem is None:
            if len(self._kept) > self.item_bytes_max:
                self.problem = self._too_large()
            elif last and self._kept:
                self.problem = InvalidRequest("the stream ends inside an item")
        if not ends:
            return []
        try:
            return decode_msgpack_items(len(ends), block)
        except InvalidRequest:
            return list(self._one_by_one(block, ends))

    def _ends(self, part: bytes) -> Iterator[int]:
        """Where whole items end in the kept bytes. Cost: each byte once, however small the parts are."""
        unpacker, size = self._unpacker, len(self._kept)
        unpacker.feed(part)
        start = 0
        while start < size:
            try:
                unpacker.skip()
            except msgpack.OutOfData:
                return
            except (ValueError, msgpack.exceptions.UnpackException):
                self.problem = InvalidRequest("the stream is not msgpack")
                return
            end = unpacker.tell() - self._begun_at
            if end - start > self.item_bytes_max:
                self.problem = self._too_large()
                return
            yield end
            start = end

    def _one_by_one(self, block: bytes, ends: list[int]) -> Iterator[Transaction]:
        start = 0
        for end in ends:
            try:
                yield decode_msgpack(block[start:end])
            except InvalidRequest as error:
                self.problem = without_traceback(error)
                return
            start = end


def reader_for(content_type: bytes | str | None, item_bytes_max: int) -> tuple[ItemReader, WireFormat]:
    """The reader of a body of this type, and its format."""
    given = content_type.decode("latin-1") if isinstance(content_type, bytes) else content_type
    if (given or NDJSON).partition(";")[0].strip().lower() in MSGPACK_NAMES:
        return MsgpackItems(item_bytes_max), "msgpack"
    # Whatever else a client calls it, it is JSON or it is malformed; many tools send their own default type.
    return JsonLines(item_bytes_max), "json"


def media_type_of(wire_format: WireFormat) -> str:
    """What results are sent as."""
    return NDJSON if wire_format == "json" else MSGPACK
