"""The HTTP API as a client of the kill tests speaks it: raw sockets, nothing repeated, every outcome kept apart.

Written against the documented API only, so that it does not share a mistake with the server or the client library.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

import msgspec

from holdfast.commit.format.transaction import Operation
from holdfast.testing.http_message import BrokenMessage, HttpMessage, read_message

ANSWER_SECONDS_MAX = 5.0
STATUS_SECONDS_MAX = 60.0
"""A status about an earlier reign reads the log; giving up early and asking again would only add to the reading."""
SILENT_SECONDS = 0.25


class NotSent(Exception):
    """No connection: the server has not seen the request."""


class NoAnswer(Exception):
    """The request was sent and its answer did not come: the outcome is not known."""


@dataclass(slots=True)
class Address:
    """Where the leader is at the moment; the rounds change it."""

    port: int


class Connection:
    """One keep-alive connection to wherever the leader is. Reconnects between requests, never inside one."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._port = 0
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(
        self, method: str, target: str, body: bytes = b"", *, seconds_max: float = ANSWER_SECONDS_MAX
    ) -> HttpMessage:
        """One request and its answer. Raises: NotSent, NoAnswer."""
        if self._port != self._address.port:
            self.close()
        if self._streams is None:
            self._port = self._address.port
            try:
                self._streams = await asyncio.open_connection("127.0.0.1", self._port)
            except OSError as error:
                raise NotSent from error
        reader, writer = self._streams
        head = f"{method} {target} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        try:
            writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            async with asyncio.timeout(seconds_max):
                answer = await read_message(reader, request=False)
        except (OSError, BrokenMessage, TimeoutError) as error:
            self.close()
            raise NoAnswer from error
        if answer is None:
            self.close()
            raise NoAnswer
        if not answer.keep_alive:
            self.close()
        return answer

    def close(self) -> None:
        """Drop the connection."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


class StreamedTransaction(msgspec.Struct, frozen=True):
    """The data of ``event: transaction``, as documented."""

    version: int
    prev_version: int
    leader_id: str
    operations: tuple[Operation, ...]
    request_id: str | None = None


class StreamedCheckpoint(msgspec.Struct, frozen=True):
    """The data of ``event: checkpoint``, as documented."""

    committed_version: int
    leader_id: str


async def events(address: Address, after: int) -> AsyncIterator[StreamedTransaction | StreamedCheckpoint]:
    """The durable stream after a version, until the connection ends or the leader is known to be elsewhere.

    Raises: NotSent when there is none.
    """
    port = address.port
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 24)
    except OSError as error:
        raise NotSent from error
    try:
        writer.write(f"GET /v1/subscribe?after={after} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        head = (await _unless_moved(address, port, lambda: reader.readuntil(b"\r\n\r\n"))).lower()
        if not head.startswith(b"http/1.1 200 "):
            raise NotSent(head.decode("latin-1"))
        chunked = b"transfer-encoding: chunked" in head
        text = b""
        while True:
            if chunked:
                size_line = await _unless_moved(address, port, lambda: reader.readuntil(b"\r\n"))
                more = (await reader.readexactly(int(size_line.split(b";")[0], 16) + 2))[:-2]
            else:
                more = await _unless_moved(address, port, lambda: reader.read(1 << 16))
            if not more:
                return
            *complete, text = (text + more).split(b"\n\n")
            for event in complete:
                decoded = decode_event(event)
                if decoded is not None:
                    yield decoded
    except (OSError, asyncio.IncompleteReadError):
        return
    finally:
        writer.close()


async def _unless_moved(address: Address, port: int, read: Callable[[], Awaitable[bytes]]) -> bytes:
    """What ``read`` gives. A leader that is asleep keeps its streams open and silent: then moving ends the wait.

    Raises: ConnectionError when the leader has moved.
    """
    while True:
        # A cancelled read of a stream loses nothing: what had arrived stays in its buffer.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SILENT_SECONDS):
                return await read()
        if address.port != port:
            raise ConnectionError("the leader has moved")


def decode_event(text: bytes) -> StreamedTransaction | StreamedCheckpoint | None:
    """One event's text as a value; None for comments and for kinds that a durable reader may ignore."""
    fields = dict(line.split(b": ", 1) for line in text.split(b"\n") if line and not line.startswith(b":"))
    match fields.get(b"event"):
        case b"transaction":
            return msgspec.json.decode(fields[b"data"], type=StreamedTransaction)
        case b"checkpoint":
            return msgspec.json.decode(fields[b"data"], type=StreamedCheckpoint)
        case _:
            return None
