"""Bytes that wait until their peers take them, bounded for each client and for all.

A client is a token; without tokens it is an address. It gets a quarter of the bound of the service. At either bound the
stream with the most bytes ends as ``lagging``, until the others fit. It has ``LAST_WORDS_SECONDS`` to take what was
written, and why it ended; those that have not taken it, but one, hold a quarter of the client's part at most: then the
oldest of them is aborted.

A stream reports its bytes when it writes while it holds more than ``MARK_BYTES``, and when it has nothing more. What a
peer takes between is not reported: at a bound all streams of the client are measured before one ends. *Cost*: a look-up
for each report; at the bound a call for each stream of the client that holds more than the mark.
"""

from __future__ import annotations

from typing import Final, Protocol

from holdfast.errors import Code, Unavailable
from holdfast.server.http.auth import ClientKey

MARK_BYTES: Final = 65_536
"""What a connection may hold without being counted."""
CLIENT_PART: Final = 4
LEAVING_PART: Final = 4


class Buffer(Protocol):
    """A stream, as far as its unsent bytes matter."""

    def held_bytes(self) -> int:
        """How many bytes it holds now."""
        ...

    def end_lagging(self, problem: Unavailable) -> None:
        """End it and say why, within ``LAST_WORDS_SECONDS``. Called once at most."""

    def abort(self) -> None:
        """Release its bytes at once."""


class _ClientStreams:
    """The streams of one client that hold more than the mark."""

    __slots__ = ("bytes", "leaving", "streams")

    def __init__(self) -> None:
        self.streams: dict[Buffer, int] = {}
        self.leaving: dict[Buffer, int] = {}
        self.bytes = 0

    def measure(self) -> None:
        """Replace what was reported by what there is."""
        measured = {stream: stream.held_bytes() for stream in self.streams}
        self.streams = {stream: size for stream, size in measured.items() if size > MARK_BYTES}
        self.bytes = sum(self.streams.values())


class Buffers:
    """The accounts of all clients of a server. ``ended`` counts the streams that had to end."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.client_bytes_max = bytes_max // CLIENT_PART
        self.ended = 0
        self._clients: dict[ClientKey, _ClientStreams] = {}
        self.bytes = 0
        """What was reported, in all."""

    def count(self, client: ClientKey, stream: Buffer, size: int) -> None:
        """``stream`` of ``client`` holds this many bytes now. It may end before this returns."""
        held = self._clients.get(client)
        if held is None:
            held = self._clients[client] = _ClientStreams()
        if stream in held.leaving:
            return
        change = size - held.streams.get(stream, 0)
        held.streams[stream] = size
        held.bytes += change
        self.bytes += change
        if held.bytes > self.client_bytes_max:
            self._shrink(held, self.client_bytes_max)
        while self.bytes > self.bytes_max and (largest := max(self._clients.values(), key=_bytes_of)).bytes:
            self._shrink(largest, largest.bytes - (self.bytes - self.bytes_max))

    def discard(self, client: ClientKey, stream: Buffer) -> None:
        """It holds nothing any more."""
        held = self._clients.get(client)
        if held is None:
            return
        size = held.streams.pop(stream, 0)
        held.bytes -= size
        self.bytes -= size
        held.leaving.pop(stream, None)
        if not held.streams and not held.leaving:
            del self._clients[client]

    def check(self) -> None:
        """Assert the invariants."""
        for held in self._clients.values():
            assert held.bytes == sum(held.streams.values()), "a client holds what its streams hold"
            assert held.bytes <= self.client_bytes_max, "a client holds at most its part"
            is_little = sum(held.leaving.values()) <= self.client_bytes_max // LEAVING_PART
            assert is_little or len(held.leaving) == 1, "few are on their way out"
            assert not held.streams.keys() & held.leaving.keys(), "a stream ends once"
        assert self.bytes == sum(held.bytes for held in self._clients.values()) <= self.bytes_max, "as do all"

    def _shrink(self, held: _ClientStreams, bytes_max: int) -> None:
        """End streams of one client until the others hold at most this much."""
        before = held.bytes
        held.measure()
        while held.bytes > bytes_max and held.streams:
            largest = max(held.streams, key=held.streams.__getitem__)
            size = held.streams.pop(largest)
            held.bytes -= size
            held.leaving[largest] = size
            self.ended += 1
            largest.end_lagging(
                Unavailable(
                    "the client does not take what was sent for it",
                    code=Code.LAGGING,
                    hint="resume where it ended; read faster, or with fewer streams, or set server.max_unsent_bytes",
                    unsent_bytes=size,
                    bytes_max=self.client_bytes_max,
                )
            )
        self.bytes += held.bytes - before
        while len(held.leaving) > 1 and sum(held.leaving.values()) > self.client_bytes_max // LEAVING_PART:
            oldest = next(iter(held.leaving))
            del held.leaving[oldest]
            oldest.abort()


def _bytes_of(held: _ClientStreams) -> int:
    return held.bytes
