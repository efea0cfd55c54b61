"""HTTP/1.1 messages kept byte for byte, for tests that stand between a client and a server.

A message that breaks off or cannot be framed raises ``BrokenMessage``; the connection is of no further use.
``Expect: 100-continue`` and ``Upgrade`` are not supported: no client of an object store needs them.
"""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass
from typing import Final

__all__ = ["HEAD_BYTES_MAX", "BrokenMessage", "HttpMessage", "error_answer", "no_delay", "read_message"]

HEAD_BYTES_MAX: Final = 64 * 1024
BODY_BYTES_MAX: Final = 256 * 1024 * 1024


class BrokenMessage(Exception):
    """The other side ended, or broke HTTP, in the middle of a message."""


@dataclass(frozen=True, slots=True)
class HttpMessage:
    """One request or answer exactly as it came."""

    head: bytes
    body: bytes
    keep_alive: bool

    @property
    def first_line(self) -> list[str]:
        """The three parts of the first line; an answer without a reason has two."""
        return self.head.split(b"\r\n", 1)[0].decode("latin-1").split(" ", 2)

    @property
    def status(self) -> int:
        """Of an answer: its status."""
        return int(self.first_line[1])

    def encode(self) -> bytes:
        """The bytes that came."""
        return self.head + self.body


def error_answer(status: int, code: str, method: str, more_heads: str = "") -> HttpMessage:
    """What S3 would answer with this error; ``more_heads`` are whole header lines."""
    body = f'<?xml version="1.0" encoding="UTF-8"?><Error><Code>{code}</Code><Message>injected</Message></Error>'
    reason = {409: "Conflict", 500: "Internal Server Error", 503: "Slow Down"}[status]
    heads = f"Content-Type: application/xml\r\nContent-Length: {len(body)}\r\n{more_heads}"
    head = f"HTTP/1.1 {status} {reason}\r\n{heads}\r\n"
    return HttpMessage(head.encode(), b"" if method == "HEAD" else body.encode(), keep_alive=True)


def no_delay(writer: asyncio.StreamWriter) -> None:
    """Send small messages at once."""
    raw = writer.get_extra_info("socket")
    if raw is not None:
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


async def read_message(reader: asyncio.StreamReader, *, request: bool, bodiless: bool = False) -> HttpMessage | None:
    """The next message, or None at an orderly end before its first byte."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise BrokenMessage from error
        return None
    except asyncio.LimitOverrunError as error:
        raise BrokenMessage from error
    lines = head.decode("latin-1").split("\r\n")
    if len(lines[0].split(" ", 2)) < (3 if request else 2):
        raise BrokenMessage
    fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:] if line)}
    keep_alive = fields.get("connection", "").lower() != "close"
    if not request:
        status = lines[0].split(" ", 2)[1]
        bodiless = bodiless or status in ("204", "304") or status.startswith("1")
    try:
        if bodiless:
            body = b""
        elif fields.get("transfer-encoding", "").lower() == "chunked":
            body = await _read_chunks(reader)
        elif "content-length" in fields:
            length = int(fields["content-length"])
            if not 0 <= length <= BODY_BYTES_MAX:
                raise BrokenMessage
            body = await reader.readexactly(length)
        elif request:
            body = b""
        else:
            body, keep_alive = await reader.read(-1), False
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError) as error:
        raise BrokenMessage from error
    return HttpMessage(head, body, keep_alive)


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    """A chunked body, kept as it came, trailers included."""
    parts: list[bytes] = []
    total = 0
    while True:
        size_line = await reader.readuntil(b"\r\n")
        size = int(size_line.split(b";", 1)[0], 16)
        total += size
        if not 0 <= total <= BODY_BYTES_MAX:
            raise BrokenMessage
        parts.append(size_line)
        if size:
            parts.append(await reader.readexactly(size + 2))
            continue
        while (trailer := await reader.readuntil(b"\r\n")) != b"\r\n":
            parts.append(trailer)
        parts.append(b"\r\n")
        return b"".join(parts)
