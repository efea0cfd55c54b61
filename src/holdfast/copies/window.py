"""Which objects of a copy may be under way at once. Pure.

A copier writes as a leader does: at most ``SPAN_MAX`` slots are in flight, and a claim goes alone, after everything
before it has landed. So a copier that is stopped, or goes on after another one took its place, leaves nothing that
recovery would not pass over, and a promotion needs no word from it.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from holdfast.commit.format.batch import SPAN_MAX, Header, Kind

OBJECTS_MAX: Final = 64
BYTES_MAX: Final = 64 << 20


class CopyWindow:
    """The objects in flight. Objects are offered in the order of the chain; ``head`` is the newest that has landed
    together with everything before it."""

    def __init__(self) -> None:
        self._in_flight: OrderedDict[int, tuple[Header, bool]] = OrderedDict()
        self._bytes = 0
        self.head: Header | None = None

    def may_send(self, header: Header) -> bool:
        """Whether the next object may be sent now. One object may always be."""
        if not self._in_flight:
            return True
        oldest, _ = next(iter(self._in_flight.values()))
        return (
            header.kind is not Kind.CLAIM
            and oldest.kind is not Kind.CLAIM
            and oldest.slot - header.slot < SPAN_MAX
            and len(self._in_flight) < OBJECTS_MAX
            and self._bytes + header.object_bytes() <= BYTES_MAX
        )

    def sent(self, header: Header) -> None:
        """The object is under way."""
        assert self.may_send(header), "a copier keeps the rules of a leader"
        self._in_flight[header.slot] = header, False
        self._bytes += header.object_bytes()

    def landed(self, slot: int) -> list[Header]:
        """The object in ``slot`` is in the copy. Returns the objects that now have nothing missing before them."""
        header, _ = self._in_flight[slot]
        self._in_flight[slot] = header, True
        whole: list[Header] = []
        while self._in_flight:
            oldest, (header, has_landed) = next(iter(self._in_flight.items()))
            if not has_landed:
                break
            del self._in_flight[oldest]
            self._bytes -= header.object_bytes()
            self.head = header
            whole.append(header)
        return whole
