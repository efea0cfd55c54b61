"""Connected subscribers of durables: what each holds and was sent, pollers, and who waits for a standard durable."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol, cast

from holdfast.errors import HoldfastError, InvalidRequest
from holdfast.stores.durables.leases import Lease
from holdfast.stores.values.sequence_set import SequenceSet
from holdfast.wire.parts import Delivery, Portion

SHARE_MAX: Final = 512
SENT_RUNS_MAX: Final = 1_024
"""Runs of sent messages; above it those are forgotten that the subscriber does not hold any more."""
ON_THEIR_WAY_MAX: Final = 4_096
"""Deliveries to one subscriber that are not durable yet: in a distant log, as many as this take one round trip."""
Polled = Callable[[Portion | HoldfastError], None]
Problem = Callable[[], HoldfastError | None]
"""Why the caller may not get messages any more."""
NOTHING: Final = Portion([])
Run = tuple[int, int, int]
"""First and last number, and deliveries."""


class ServedSubscriber(ABC):
    """One connected subscriber of one durable. ``room`` is how many messages it may still be given."""

    __slots__ = (
        "acknowledged_ms", "address", "delivered_ms", "durable", "gone", "kept", "left_out", "name", "on_its_way",
        "paused", "room", "sent", "since_ms", "started", "store", "unread", "wants",
    )  # fmt: skip

    def __init__(self, store: str, durable: str, name: str) -> None:
        self.store = store
        self.durable = durable
        self.name = name
        self.room = 0
        self.address = ""
        self.since_ms = self.delivered_ms = self.acknowledged_ms = 0
        """Milliseconds since 1970, 0 for never."""
        self.on_its_way = 0
        """Messages of submitted deliveries; they are not in ``room`` any more."""
        self.paused = False
        self.wants = False
        """Whether it waits in the queue of its durable."""
        self.gone = False
        self.started: StartedMessages | None = None
        """Started messages that were not reported yet; None until the first report."""
        self.unread: deque[Run] = deque()
        """Held messages that were not read yet."""
        self.kept: list[tuple[int, int]] = []
        """What it held when it was attached."""
        self.left_out = SequenceSet()
        """Messages that were not sent because they are about to be withdrawn."""
        self.sent = SequenceSet()
        """What was sent of what it holds, and of what it held; not kept where it reports what is started."""

    @property
    def place(self) -> tuple[str, str, str]:
        """Store, durable and name."""
        return self.store, self.durable, self.name

    @property
    def awaits_messages(self) -> bool:
        """Whether messages are on their way to it, or were not read for it yet."""
        return bool(self.on_its_way or self.unread or self.left_out)

    @property
    def takes(self) -> bool:
        """Whether it can be given something that it holds."""
        return not self.paused

    @property
    def most(self) -> int:
        """How many messages it is given in one piece."""
        return SHARE_MAX

    def takes_more(self) -> bool:
        """Whether it may be asked for now: it has room, takes what it is given, and little is on its way."""
        return bool(self.room) and self.takes and not self.unread and self.on_its_way < ON_THEIR_WAY_MAX

    @abstractmethod
    def give(self, portion: Portion) -> None:
        """Write messages to it."""

    def advise(self, kind: str, facts: Mapping[str, object]) -> None:
        """Send an advisory."""
        del kind, facts

    def note_sent(self, runs: Iterable[Run], held: Iterable[Lease]) -> None:
        """These are sent to it. ``held``: all that it holds, to forget the rest where there is much of it."""
        if self.started is not None:
            return
        for first, last, _ in runs:
            self.sent.add(first, last)
        if self.sent.length > SENT_RUNS_MAX:
            parts = [part for first, last, *_ in held for part in self.sent.parts(first, last)]
            self.sent = SequenceSet((first, last) for first, last, is_sent in parts if is_sent)

    def unsent_of(self, held: Iterable[Lease], until_ms: int) -> list[tuple[int, int]]:
        """What it holds, lapses by ``until_ms``, and was never sent."""
        due = [run for run in held if run[3] <= until_ms]
        parts = [part for first, last, *_ in due for part in self.sent.parts(first, last)]
        return [(first, last) for first, last, is_sent in parts if not is_sent]

    def was_sent(self, held: Iterable[Lease]) -> bool:
        """Whether it was sent any of what it holds."""
        if self.started is None:
            return any(self.sent.count(first, last) for first, last, *_ in held)
        return bool(self._without_unsent((first, last) for first, last, *_ in held))

    def leave_out(self, piece: Iterable[Run], held: Iterable[Run]) -> None:
        """Of a piece only this much is held still: the rest is about to be withdrawn, and was never sent."""
        still = SequenceSet(sorted((first, last) for first, last, _ in held))
        for first, last, _ in piece:
            for low, high, is_held in still.parts(first, last):
                if not is_held:
                    self.left_out.add(low, high)

    @property
    def has_unsent(self) -> bool:
        """Whether messages that were delivered to it are not sent."""
        return bool(self.unread or self.left_out)

    def take_unsent(self, ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
        """These are withdrawn: forget those that were never sent, and return the others."""
        if not self.has_unsent:
            return list(ranges)
        ranges = list(ranges)
        sent = self._without_unsent(ranges)
        for first, last in ranges:
            self.left_out.remove(first, last)
        gone = SequenceSet(sorted(ranges))
        self.unread = deque(
            (low, high, deliveries)
            for first, last, deliveries in self.unread
            for low, high, is_gone in gone.parts(first, last)
            if not is_gone
        )
        return sent

    def _without_unsent(self, ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
        unsent = SequenceSet(sorted((first, last) for first, last, _ in self.unread))
        for first, last in self.left_out.runs():
            unsent.add(first, last)
        return [
            (low, high) for first, last in ranges for low, high, is_unsent in unsent.parts(first, last) if not is_unsent
        ]

    def regain(self, count: int) -> None:
        """So many messages were withdrawn: it has room for others."""
        self.room += count

    def withdrawn(self, ranges: Sequence[tuple[int, int]], cause: str) -> None:
        """It does not hold these any more."""
        del ranges, cause

    def changed(self, changes: Sequence[tuple[str, int, str]]) -> None:
        """Keys of its map changed: triples of key, revision and cause."""
        del changes

    @abstractmethod
    def end(self, error: HoldfastError) -> None:
        """It is not connected any more: ``error`` says why."""


class PollOwner(Protocol):
    """The deliveries of a poller."""

    loop: asyncio.AbstractEventLoop

    def give_back(self, poller: Poller, messages: list[Delivery]) -> None:
        """Redeliver these messages, and everything else that it holds, at once."""


class Poller(ServedSubscriber):
    """A subscriber that asks for each portion (``GET .../messages``)."""

    __slots__ = (
        "_count", "_deliveries", "_done", "_problem", "_timer", "key", "keeps", "seen_seconds", "timeout_seconds",
    )  # fmt: skip

    def __init__(
        self,
        deliveries: PollOwner,
        store: str,
        durable: str,
        name: str,
        *,
        timeout_seconds: float,
        key: str | None = None,
        keeps: bool = True,
    ) -> None:
        super().__init__(store, durable, name)
        self.key = key
        self.keeps = keeps
        """Whether a silent poller stays attached while it holds messages."""
        self._deliveries = deliveries
        self._done: Polled | None = None
        self._count = 0
        self._problem: Problem = lambda: None
        self._timer: asyncio.TimerHandle | None = None
        self.timeout_seconds = timeout_seconds
        self.seen_seconds = 0.0

    @property
    def takes(self) -> bool:
        """See ``ServedSubscriber``: a poll that waits for messages does."""
        return self._done is not None

    @property
    def most(self) -> int:
        """See ``ServedSubscriber``: what the poll asks for."""
        return self._count

    def takes_more(self) -> bool:
        """One portion completes a poll, so no second one is requested."""
        return not self.on_its_way and super().takes_more()

    def regain(self, count: int) -> None:
        """A poll that waits has room for what it asked for."""
        if self.takes:
            self.room = min(self._count, self.room + count)

    def ask(self, count: int, wait_seconds: float, done: Polled, problem: Problem) -> None:
        """Begin a poll for up to ``count`` messages; an older poll that waits gets none.

        ``problem`` is asked again when there are messages, because rights may have changed meanwhile.
        """
        self._answer(NOTHING)
        self._done, self._problem = done, problem
        self.room = self._count = min(count, SHARE_MAX)
        self._timer = self._deliveries.loop.call_later(wait_seconds, self._waited)

    def abandon(self, done: Polled) -> None:
        """Nobody waits for the answer of this poll any more."""
        if self._done == done:
            self._done = None
            self.room = 0
            self._stop_timer()
            # Until now it was there: it has its time-out to come back for what was on its way.
            self.seen_seconds = self._deliveries.loop.time()

    def hurry(self, done: Polled) -> None:
        """This poll waits no longer: it is answered with what is there, or is on its way."""
        if self._done == done and self._timer is not None:
            self._stop_timer()
            self._waited()

    def give(self, portion: Portion) -> None:
        """Reply to the poll. A caller that lost its rights gets the error, and the messages go back."""
        problem = self._problem() if portion.messages else None
        if problem is not None:
            self._deliveries.give_back(self, portion.messages)
            self._answer(problem)
        elif portion.messages or (self._timer is None and not self.on_its_way):
            self._answer(portion)

    def end(self, error: HoldfastError) -> None:
        """Answer the poll with why it ends."""
        self.gone = True
        self._answer(error)

    def _waited(self) -> None:
        self._timer = None
        self.room = 0
        if not self.on_its_way:
            self._answer(NOTHING)

    def _answer(self, answer: Portion | HoldfastError) -> None:
        self._stop_timer()
        done, self._done = self._done, None
        self.room = 0
        self.seen_seconds = self._deliveries.loop.time()
        if done is not None:
            done(answer)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def wall_ms() -> int:
    """The time of day, in milliseconds since 1970: what figures tell people."""
    return time.time_ns() // 1_000_000


def address_of(peer: object) -> str:
    """HOST:PORT of the other side, from the name that a socket gives it; empty on a Unix socket.

    >>> address_of(("127.0.0.1", 4_000)), address_of("")
    ('127.0.0.1:4000', '')
    """
    if not isinstance(peer, tuple):
        return ""
    host, port = cast("tuple[object, ...]", peer)[:2]
    return f"{host}:{port}"


RUNS_MAX: Final = 4_096
"""Runs and times kept for one subscriber; above it, only those of held messages."""
RUNS_MIN: Final = 64
"""Above this size, entries of messages that are not held are removed: each look reads all entries."""
STEP_MS: Final = 20
"""Reports this near to each other have one time, the latest: a message may have its time this much longer."""

Held = Callable[[int, int], list[tuple[int, int]]]
"""What the subscriber holds of a range."""


class StartedMessages:
    """What a subscriber reports as handed to its application, by the time of its report: kept until the state machine
    needs it."""

    __slots__ = ("_by_time", "_most")

    def __init__(self) -> None:
        self._most = RUNS_MIN
        self._by_time: list[tuple[int, int, SequenceSet]] = []  # the first and the latest time of each set

    def __bool__(self) -> bool:
        return any(numbers for _, _, numbers in self._by_time)

    def add(self, ranges: Sequence[tuple[int, int]], now_ms: int, held_of: Held) -> None:
        """The application was handed these now. Raises: InvalidRequest, and adds nothing."""
        for first, last in ranges:
            if first > last:
                raise InvalidRequest("a range of numbers begins with its lowest", first=first, last=last)
        if self._by_time and now_ms - self._by_time[-1][0] < STEP_MS:
            began_ms, _, numbers = self._by_time.pop()
        else:
            began_ms, numbers = now_ms, SequenceSet()
        for first, last in ranges:
            numbers.add(first, last)
        self._by_time.append((began_ms, now_ms, numbers))
        if self._size() > self._most:
            self._by_time = [
                (began, at, SequenceSet(held))
                for began, at, numbers in self._by_time
                if (held := [part for first, last in numbers.runs() for part in held_of(first, last)])
            ]
            self._most = min(RUNS_MAX, max(RUNS_MIN, 2 * self._size()))

    def _size(self) -> int:
        return len(self._by_time) + sum([numbers.length for _, _, numbers in self._by_time])

    def remove(self, first: int, last: int) -> None:
        """These are delivered again, and have to be started again."""
        for _, _, numbers in self._by_time:
            numbers.remove(first, last)

    def take(self, held_of: Held) -> list[tuple[int, int, int]]:
        """What of them is held still: first, last and the time of the report. Afterwards there is nothing."""
        runs = [
            (low, high, at_ms)
            for _, at_ms, numbers in self._by_time
            for first, last in numbers.runs()
            for low, high in held_of(first, last)
        ]
        self._by_time.clear()
        return runs


LINE_MAX: Final = 1_024
"""Subscribers that wait for one durable; one more is refused at once."""

DurableName = tuple[str, str]


class _PlaceInLine(NamedTuple):
    newcomer: ServedSubscriber
    ask: Callable[[], None]
    timer: asyncio.TimerHandle


class Newcomers:
    """Subscribers that wait for a standard durable which another one has: first come, first served. Only this process
    knows them: after a fail-over they ask again.

    ``ask`` of a newcomer asks the state machine for the durable, which gives or refuses it. It is called once at most:
    in its turn, when its time is over, or when a newer session of its name takes its place in the line.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lines: dict[DurableName, dict[str, _PlaceInLine]] = {}

    def wait(self, newcomer: ServedSubscriber, wait_seconds: float, ask: Callable[[], None]) -> bool:
        """Stand at the end of the line, or at the place of an older session. False if the line is full."""
        line = self._lines.setdefault((newcomer.store, newcomer.durable), {})
        older = line.get(newcomer.name)
        if older is None and len(line) >= LINE_MAX:
            return False
        timer = self._loop.call_later(max(0.0, wait_seconds), self.hurry, newcomer)
        line[newcomer.name] = _PlaceInLine(newcomer, ask, timer)
        if older is not None:
            older.timer.cancel()
            older.ask()
        return True

    def hurry(self, newcomer: ServedSubscriber) -> None:
        """This one waits no longer, if it does: it asks now."""
        place = self._take(newcomer)
        if place is not None:
            place.ask()

    def forget(self, newcomer: ServedSubscriber) -> None:
        """This one is gone."""
        self._take(newcomer)

    def first(self, durable: DurableName) -> ServedSubscriber | None:
        """The first in line."""
        return next((place.newcomer for place in self._lines.get(durable, {}).values()), None)

    def durables(self) -> list[DurableName]:
        """The durables that somebody waits for."""
        return list(self._lines)

    def dismiss(self, durable: DurableName) -> None:
        """The durable is another one now, or gone: everybody in its line asks, in turn."""
        for place in list(self._lines.get(durable, {}).values()):
            self.hurry(place.newcomer)

    def _take(self, newcomer: ServedSubscriber) -> _PlaceInLine | None:
        durable = newcomer.store, newcomer.durable
        line = self._lines.get(durable, {})
        place = line.get(newcomer.name)
        if place is None or place.newcomer is not newcomer:
            return None
        place.timer.cancel()
        del line[newcomer.name]
        if not line:
            del self._lines[durable]
        return place
