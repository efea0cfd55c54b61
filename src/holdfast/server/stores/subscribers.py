"""One subscriber of a durable: what it may be asked for, what it has been given, and long polls.

Owns: its room, whether it takes something at the moment, the answer of a poll. Does not own: whose turn it is, reading
messages (``deliveries``), sockets (``socket``).

Failure model: a poll is answered once, or abandoned. What came for one that nobody waits for any more is its
subscriber's still, and the next poll of that name is given it; where none comes in its time-out, others are, counted.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, cast

from holdfast.errors import HoldfastError
from holdfast.stores.values.messages import Delivery
from holdfast.stores.values.sequence_set import SequenceSet

if TYPE_CHECKING:
    from holdfast.server.stores.deliveries import Deliveries

__all__ = ["SHARE_MAX", "Polled", "Poller", "Problem", "Run", "Subscriber", "address_of"]

SHARE_MAX: Final = 512
Polled = Callable[[list[Delivery] | HoldfastError], None]
Problem = Callable[[], HoldfastError | None]
"""Why who was let in may not be given messages any more."""
Run = tuple[int, int, int]
"""First and last number, and how often they were delivered."""


class Subscriber(ABC):
    """One connected subscriber of one durable. ``room`` is how many messages it may still be given."""

    __slots__ = (
        "acknowledged_ms",
        "address",
        "delivered_ms",
        "durable",
        "gone",
        "name",
        "on_its_way",
        "paused",
        "room",
        "since_ms",
        "started",
        "store",
        "unread",
        "wants",
    )

    def __init__(self, store: str, durable: str, name: str) -> None:
        self.store = store
        self.durable = durable
        self.name = name
        self.room = 0
        self.address = ""
        """Where it connects from; empty where that is not known."""
        self.since_ms = self.delivered_ms = self.acknowledged_ms = 0
        """When it attached, was given messages last, acknowledged last: since 1970, 0 for never."""
        self.on_its_way = 0
        """Messages asked for whose delivery is not durable yet; they are not in ``room`` any more."""
        self.paused = False
        """Its connection takes nothing at the moment."""
        self.wants = False
        """It stands in the queue of its durable."""
        self.gone = False
        self.started: SequenceSet | None = None
        """What the application was handed and the state machine does not know of yet; None until it reports."""
        self.unread: deque[Run] = deque()
        """What it holds and was not read for it yet: more than it takes at once."""

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
        return bool(self.room) and self.takes and not self.unread and self.on_its_way < SHARE_MAX

    @abstractmethod
    def give(self, messages: list[Delivery]) -> None:
        """Write messages to it."""

    def advise(self, kind: str, facts: Mapping[str, object]) -> None:
        """Tell it something beside messages."""
        del kind, facts

    def changed(self, changes: Sequence[tuple[str, int, str]]) -> None:
        """Keys of its map changed: triples of key, revision and cause."""
        del changes

    @abstractmethod
    def end(self, error: HoldfastError) -> None:
        """It is not connected any more: ``error`` says why."""


class Poller(Subscriber):
    """A subscriber that asks for each portion (``GET .../messages``)."""

    __slots__ = (
        "_count",
        "_deliveries",
        "_done",
        "_problem",
        "_timer",
        "key",
        "keeps",
        "seen_seconds",
        "timeout_seconds",
    )

    def __init__(
        self,
        deliveries: Deliveries,
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
        """Whether it stays attached while it holds messages, however silent it is."""
        self._deliveries = deliveries
        self._done: Polled | None = None
        self._count = 0
        self._problem: Problem = _no_problem
        self._timer: asyncio.TimerHandle | None = None
        self.timeout_seconds = timeout_seconds
        self.seen_seconds = 0.0

    @property
    def asking(self) -> bool:
        """Whether a poll waits for messages."""
        return self._done is not None

    @property
    def takes(self) -> bool:
        """See ``Subscriber``: nothing but a poll does."""
        return self._done is not None

    @property
    def most(self) -> int:
        """See ``Subscriber``: what the poll asks for."""
        return self._count

    def takes_more(self) -> bool:
        """One portion answers a poll: another behind it would find nobody who waits for it."""
        return not self.on_its_way and super().takes_more()

    def ask(self, count: int, wait_seconds: float, done: Polled, problem: Problem) -> None:
        """Begin a poll for up to ``count`` messages. An older one that waits still is answered with none.

        ``problem`` is asked when there are messages: the poll may have waited for them since its rights were taken.
        """
        self._answer([])
        self._done, self._problem = done, problem
        self.room = self._count = min(count, SHARE_MAX)
        self._timer = self._deliveries.loop.call_later(wait_seconds, self._waited)

    def abandon(self, done: Polled) -> None:
        """Nobody waits for the answer of this poll any more."""
        if self._done is done:
            self._done = None
            self.room = 0
            self._stop_timer()
            # Until now it was there: it has its time-out to come back for what was on its way.
            self.seen_seconds = self._deliveries.loop.time()

    def hurry(self, done: Polled) -> None:
        """This poll waits no longer: it is answered with what is there, or is on its way."""
        if self._done is done and self._timer is not None:
            self._stop_timer()
            self._waited()

    def give(self, messages: list[Delivery]) -> None:
        """Answer the poll. Who may have no messages any more is told why, and they go back at once."""
        problem = self._problem() if messages else None
        if problem is not None:
            self._deliveries.give_back(self, messages)
            self._answer(problem)
        elif messages or (self._timer is None and not self.on_its_way):
            self._answer(messages)

    def end(self, error: HoldfastError) -> None:
        """Answer the poll with why it ends."""
        self.gone = True
        self._answer(error)

    def _waited(self) -> None:
        self._timer = None
        self.room = 0
        if not self.on_its_way:
            self._answer([])

    def _answer(self, answer: list[Delivery] | HoldfastError) -> None:
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


def _no_problem() -> HoldfastError | None:
    """Of who has not asked yet."""


def address_of(peer: object) -> str:
    """HOST:PORT of the other side, from the name that a socket gives it; empty on a Unix socket.

    >>> address_of(("127.0.0.1", 4_000)), address_of("")
    ('127.0.0.1:4000', '')
    """
    if not isinstance(peer, tuple):
        return ""
    host, port = cast("tuple[object, ...]", peer)[:2]
    return f"{host}:{port}"
