"""Who is sent a snapshot now: few at a time, because each needs the memory of a part and holds the log.

A reader that takes less than ``BYTES_PER_SECOND_MIN`` over ``PACE_SECONDS`` ends as ``lagging`` when another reader has
no place, or a truncation waits for the holds of readers. A reader is as slow as it likes while nobody waits. Pure but
for the timer, which runs while there are readers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from holdfast.errors import Backpressure, Code, Unavailable
from holdfast.server.http.auth import ClientKey

READERS_MAX: Final = 4
READERS_OF_CLIENT: Final = 2
BYTES_PER_SECOND_MIN: Final = 1 << 20
PACE_SECONDS: Final = 60.0
LOOK_SECONDS: Final = 5.0


class Reader(Protocol):
    """One answer under way."""

    @property
    def client(self) -> ClientKey:
        """Whose it is."""
        ...

    def taken_bytes(self) -> int:
        """How much its peer has taken, since it began."""
        ...

    def end_for(self, problem: Unavailable) -> None:
        """End it and say why. Its place is free from now on."""
        ...


class Clock(Protocol):
    """The loop."""

    def time(self) -> float:
        """Seconds that never step back."""
        ...

    def call_later(self, delay: float, callback: Callable[[], object]) -> object:
        """Call back."""
        ...


class SnapshotReaders:
    """The places of readers, and how fast each one is."""

    def __init__(self, clock: Clock, truncation_waits: Callable[[], bool]) -> None:
        """``truncation_waits``: whether more of the log would go without the holds of readers."""
        self._clock = clock
        self._truncation_waits = truncation_waits
        self._readers: dict[Reader, deque[tuple[float, int]]] = {}
        """With what it had taken when: one look is at least ``PACE_SECONDS`` old, where it is open for longer."""
        self._looks = False

    def __len__(self) -> int:
        return len(self._readers)

    def admit(self, reader: Reader) -> None:
        """Give a place to this reader until ``discard``; a slow one may end for it. Raises: Backpressure."""
        own = [each for each in self._readers if each.client == reader.client]
        if len(own) >= READERS_OF_CLIENT:
            self._end_slowest(own)
        elif len(self._readers) >= READERS_MAX:
            self._end_slowest(list(self._readers))
        self._readers[reader] = deque([(self._clock.time(), 0)])
        if not self._looks:
            self._looks = True
            self._clock.call_later(LOOK_SECONDS, self._look)

    def discard(self, reader: Reader) -> None:
        """It has ended."""
        self._readers.pop(reader, None)

    def _look(self) -> None:
        now = self._clock.time()
        for reader, looks in self._readers.items():
            looks.append((now, reader.taken_bytes()))
            while len(looks) > 1 and looks[1][0] <= now - PACE_SECONDS:
                looks.popleft()
        if self._truncation_waits():
            for reader in [each for each in self._readers if self._is_slow(each)]:
                self._end(reader)
        self._looks = bool(self._readers)
        if self._looks:
            self._clock.call_later(LOOK_SECONDS, self._look)

    def _taken(self, reader: Reader) -> int:
        """What it has taken since its oldest look."""
        return reader.taken_bytes() - self._readers[reader][0][1]

    def _is_slow(self, reader: Reader) -> bool:
        since = self._clock.time() - self._readers[reader][0][0]
        return since >= PACE_SECONDS and self._taken(reader) < since * BYTES_PER_SECOND_MIN

    def _end_slowest(self, readers: list[Reader]) -> None:
        slow = [each for each in readers if self._is_slow(each)]
        if not slow:
            raise Backpressure("too many readers load a snapshot", retry_after_ms=1000, readers_max=len(readers))
        self._end(min(slow, key=self._taken))

    def _end(self, reader: Reader) -> None:
        del self._readers[reader]
        reader.end_for(
            Unavailable(
                "the reader of the snapshot is too slow, and something waits for it",
                code=Code.LAGGING,
                hint="continue after the last key",
                bytes_per_second_min=BYTES_PER_SECOND_MIN,
            )
        )
