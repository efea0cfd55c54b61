"""The connected subscribers of every durable, and the turns among them.

    a subscriber has room, the durable a message    Deliver is submitted before the group of the publish is closed, so
                                                    that one sync serves both
    Delivered is durable                            the messages are read and written to the subscriber
    a subscriber leaves                             Detach: what it held is delivered to other subscribers, counted

Subscribers of one durable that take more wait in a queue. Each gets at most ``SHARE_MAX`` messages at a time, and no
more than an even share. Messages are read in pieces of ``PIECE_BYTES`` (or one larger message), while the connection
takes them. A poller is gone when it was silent for its timeout and was sent nothing that it still holds. Reports of
started and of unsent messages reach the state machine just before messages come back; a killed process forgets them.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import structlog
from msgspec.structs import replace

from holdfast.errors import Code, Fenced, HoldfastError
from holdfast.server.stores.subscribers import (
    NOTHING,
    SHARE_MAX,
    DurableName,
    Held,
    Newcomers,
    Polled,
    Poller,
    Problem,
    Run,
    ServedSubscriber,
    StartedMessages,
    wall_ms,
)
from holdfast.stores.durables.consumption import Consumption
from holdfast.stores.durables.leases import Holder, Lease
from holdfast.stores.service import StoreService
from holdfast.stores.values.commands import (
    Acknowledge,
    Acknowledged,
    Attach,
    Attached,
    Deliver,
    Delivered,
    Detach,
    Result,
)
from holdfast.stores.values.effects import REMOVED_CAUSES, Withdrawn
from holdfast.stores.values.sequence_set import SequenceSet
from holdfast.wire.parts import Delivery, Portion

_log = structlog.get_logger("holdfast.stores")

PORTION_BYTES: Final = 4 * 1_048_576
"""Most bytes of one portion, by the average of its durable."""
PIECE_BYTES: Final = 4 * 1_048_576
_HIGH: Final = 1 << 62
DISCONNECTED: Final = "disconnected"
STOPPING: Final = "stopping"
"""Causes of a leave that the subscriber did not ask for."""
Joined = Callable[[Attached | HoldfastError], None]


class _DurableSubscribers:
    """The connected subscribers of one durable in the order they came, and those that wait for messages."""

    __slots__ = ("by_name", "wanting")

    def __init__(self) -> None:
        self.by_name: dict[str, ServedSubscriber] = {}
        self.wanting: deque[ServedSubscriber] = deque()
        """Each at most once; one that left or has no room is skipped in its turn."""


class Deliveries:
    """Every connected subscriber of one service."""

    def __init__(self, service: StoreService, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._service = service
        self._state = service.state
        self._groups: dict[DurableName, _DurableSubscribers] = {}
        self.unreadable: dict[DurableName, int] = {}
        """Deliveries that ended at an unreadable message."""
        self._ended: HoldfastError | None = None
        self._reporting: dict[ServedSubscriber, None] = {}
        """Subscribers with a report that the state machine does not know yet, or with messages on their way."""
        self._attaching: dict[tuple[str, str, str], ServedSubscriber] = {}
        """The newest session of each name whose attachment is not durable yet."""
        self.newcomers = Newcomers(loop)

    # Coming and going

    def attach(
        self,
        subscriber: ServedSubscriber,
        attach: Attach,
        done: Joined,
        wait_seconds: float = 0.0,
        require: Callable[[], object] = lambda: None,
    ) -> None:
        """Attach a subscriber. ``done`` is called when that is durable, and its messages begin after that.

        While another subscriber has the standard durable, this one waits for ``wait_seconds``. Then the state machine
        refuses it (durable_busy). ``require`` is called after a wait, and raises if the durable is another one now.
        """
        store, durable = subscriber.store, subscriber.durable
        self._admit(store, durable)
        if wait_seconds > 0 and not attach.take_over and self._holder_against(store, durable, subscriber.name):

            def ask() -> None:
                try:
                    require()
                except HoldfastError as error:
                    done(error)
                    return
                if self._ended is None:
                    self._attach(subscriber, attach, done)
                else:
                    done(self._ended)

            if self.newcomers.wait(subscriber, wait_seconds, ask):
                return
        self._attach(subscriber, attach, done)

    def _admit(self, store: str, durable: str) -> None:
        """Attach the first in line if the durable is free, or everybody if it does not have one consumer any more."""
        first = self.newcomers.first((store, durable))
        if first is None:
            return
        consumption = self._consumption(store, durable)
        if consumption is None or not consumption.exclusive:
            self.newcomers.dismiss((store, durable))
        elif self._holder_against(store, durable, first.name) is None:
            self.newcomers.hurry(first)

    def contended(self, now_ms: int) -> list[DurableName]:
        """The durables that a newcomer waits for, and whose holder is about to let messages lapse."""
        due = ((durable, self._lapses_ms(*durable)) for durable in self.newcomers.durables())
        return [durable for durable, lapses_ms in due if lapses_ms is not None and lapses_ms <= now_ms]

    def _attach(self, subscriber: ServedSubscriber, attach: Attach, done: Joined) -> None:
        """Submit the attachment.

        Until it is durable an older session of the same name may leave; nothing is detached for it, because the state
        machine has the newer one already.
        """
        name = subscriber.place
        self._attaching[name] = subscriber
        holder = self._holder_against(*name) if attach.take_over else None
        for older_name in (subscriber.name, holder):
            older = self.find(subscriber.store, subscriber.durable, older_name) if older_name is not None else None
            if older is not None:
                self._report(older)

        def attached(result: Result | HoldfastError) -> None:
            if self._attaching.get(name) is subscriber:
                del self._attaching[name]
            if isinstance(result, HoldfastError):
                known = self.find(*name)
                if known is None:
                    self._detach(subscriber, "closed")  # of an older session that left meanwhile, if there was one
                else:
                    self._serve_with(known)
                done(result)
                return
            assert isinstance(result, Attached), "Attach answers Attached"
            if self._ended is not None:
                done(self._ended)  # a poll that began now would wait for messages that nobody gives out
                return
            # A displaced subscriber is notified even when the newer one has left already.
            for older in dict.fromkeys((subscriber.name, result.displaced)):
                cause = "replaced" if older == subscriber.name else "taken_over"
                self.displace(subscriber.store, subscriber.durable, older, cause)
            if subscriber.gone:
                self._detach(subscriber, "closed")
                return
            self._join(subscriber)
            for first, last in subscriber.kept:
                subscriber.sent.add(first, last)  # on the connection before this one
            done(result)

        self._service.submit_nowait(attach, attached)
        # What leaves before the answer is withdrawn after it, with its credit: the subscriber begins with it.
        subscriber.kept = [(first, last) for first, last, *_ in self._leases(*subscriber.place)]

    def _join(self, subscriber: ServedSubscriber) -> None:
        self._groups.setdefault((subscriber.store, subscriber.durable), _DurableSubscribers()).by_name[
            subscriber.name
        ] = subscriber
        subscriber.since_ms = wall_ms()

    def expect(self, store: str, durable: str, name: str, timeout_seconds: float, *, polls: bool) -> None:
        """Detach a subscriber that is attached and away, as after a restart, unless it returns within its timeout.

        One that ``polls`` also stays while it holds messages.
        """
        absent = Poller(self, store, durable, name, timeout_seconds=timeout_seconds, keeps=polls)
        absent.seen_seconds = self.loop.time()
        for first, last, *_ in self._leases(store, durable, name):
            absent.sent.add(first, last)  # as far as is known
        self._join(absent)

    def leave(self, subscriber: ServedSubscriber, cause: str) -> None:
        """A connected subscriber is gone: what it holds goes back. Harmless when it has left already.

        While the service stops nothing goes back: the next one gives the subscriber its timeout to return, with what
        its application works on. The holder of a standard durable that did not ask to leave has that here.
        """
        subscriber.gone = True
        self.newcomers.forget(subscriber)
        if self.find(*subscriber.place) is not subscriber:
            return
        self._remove(subscriber)
        if cause == STOPPING:
            return
        consumption = self._consumption(subscriber.store, subscriber.durable)
        if consumption is None or not consumption.exclusive or cause != DISCONNECTED:
            self._detach(subscriber, cause)
        elif subscriber.place not in self._attaching:
            self._report(subscriber)
            self.expect(*subscriber.place, consumption.definition.subscriber_timeout_ms / 1000, polls=False)

    def _detach(self, subscriber: ServedSubscriber, cause: str) -> None:
        if subscriber.place in self._attaching:
            return
        self._report(subscriber)
        self._service.submit_nowait(Detach(0, *subscriber.place, cause))
        self._admit(subscriber.store, subscriber.durable)

    def displace(self, store: str, durable: str, name: str, cause: str) -> None:
        """This subscriber does not have the durable any more: end its session. ``cause``: see ``Displaced``."""
        older = self.find(store, durable, name)
        if older is not None:
            self._remove(older)
            replaced = Fenced(
                "another subscriber waited, and this one let an ack_wait lapse"
                if cause == "lapsed"
                else "a newer subscriber took the place of this one",
                code=Code.DURABLE_COLLISION,
                store=store,
                durable=durable,
                subscriber=name,
                cause=cause,
            )
            older.end(replaced)
        self._admit(store, durable)

    def dropped(self, store: str, durable: str, error: HoldfastError) -> None:
        """The durable was deleted: end its subscribers with ``error``."""
        group = self._groups.pop((store, durable), None)
        for subscriber in list(group.by_name.values()) if group is not None else ():
            subscriber.gone = True
            subscriber.end(error)
        self.newcomers.dismiss((store, durable))

    def _remove(self, subscriber: ServedSubscriber) -> None:
        subscriber.gone = True
        self._reporting.pop(subscriber, None)
        name = (subscriber.store, subscriber.durable)
        group = self._groups[name]
        del group.by_name[subscriber.name]
        if not group.by_name:
            del self._groups[name]

    def close(self, error: HoldfastError) -> None:
        """Tell everybody that is connected why it ends, and who is about to be as soon as its attachment is durable."""
        self._ended = error
        for subscriber in list(self.everybody()):
            subscriber.end(error)
        for durable in self.newcomers.durables():
            self.newcomers.dismiss(durable)

    def find(self, store: str, durable: str, name: str) -> ServedSubscriber | None:
        """The connected subscriber of this name."""
        group = self._groups.get((store, durable))
        return None if group is None else group.by_name.get(name)

    def attaching(self, store: str, durable: str, name: str) -> bool:
        """Whether the attachment of a session of this name waits to be durable."""
        return (store, durable, name) in self._attaching

    def connected(self, store: str, durable: str) -> list[ServedSubscriber]:
        """All that are connected to a durable, in the order they came."""
        group = self._groups.get((store, durable))
        return [] if group is None else list(group.by_name.values())

    def everybody(self) -> Iterable[ServedSubscriber]:
        """All that are connected."""
        for group in list(self._groups.values()):
            yield from list(group.by_name.values())

    def advise(self, store: str, durable: str, name: str, kind: str, facts: Mapping[str, object]) -> None:
        """Tell one subscriber, or with an empty name all of the durable."""
        for subscriber in self.connected(store, durable):
            if not name or subscriber.name == name:
                subscriber.advise(kind, facts)

    def withdrawn(self, what: Withdrawn) -> None:
        """Tell a subscriber what it does not hold any more, unless it was never sent; either way it has room again."""
        subscriber = self.find(what.store, what.durable, what.subscriber)
        if subscriber is None:
            return
        sent = subscriber.take_unsent(what.ranges)
        subscriber.regain(_count_of(what.ranges))
        if sent:
            subscriber.withdrawn(sent, what.cause)
        unsent = SequenceSet(sorted(what.ranges))
        for first, last in sent:
            unsent.remove(first, last)
        consumption = self._consumption(what.store, what.durable)
        is_key_ordered = consumption is not None and consumption.definition.key_ordered
        if unsent and what.cause in REMOVED_CAUSES and is_key_ordered:
            # Nobody works on these: others may have the next messages of their keys at once.
            self._service.submit_nowait(Acknowledge(0, *subscriber.place, ack=unsent.runs()))
        self._serve_with(subscriber)

    def settled(self, command: Acknowledge, result: Acknowledged) -> None:
        """A subscriber has settled messages. One that it was never sent had been delivered to it before: nothing
        withdraws it, so its room comes back here."""
        subscriber = self.find(command.store, command.durable, command.subscriber)
        if subscriber is None or not subscriber.has_unsent:
            return
        gone = SequenceSet(sorted([*command.ack, *((seq, seq) for seq, _ in command.nack)]))
        for seq in command.reject:
            gone.add(seq, seq)
        for first, last in result.stale:
            gone.remove(first, last)
        runs = gone.runs()
        unsent = _count_of(runs) - _count_of(subscriber.take_unsent(runs))
        if unsent:
            subscriber.regain(unsent)
            self._serve_with(subscriber)

    def changed(self, store: str, name: str, changes: Sequence[tuple[str, int, str]]) -> None:
        """Tell everybody who watches a map."""
        for subscriber in self.connected(store, name):
            subscriber.changed(changes)

    # What the state has

    def _consumption(self, store: str, durable: str) -> Consumption | None:
        """A durable that delivers messages; None where there is none, or it has last values."""
        stores = self._state.stores
        consumption = stores[store].durables.get(durable) if store in stores else None
        return consumption if isinstance(consumption, Consumption) else None

    def _holding(self, store: str, durable: str, subscriber: str) -> Holder | None:
        consumption = self._consumption(store, durable)
        return None if consumption is None else consumption.leases.of.get(subscriber)

    def _held_by(self, subscriber: ServedSubscriber) -> Held:
        def held_of(first: int, last: int) -> list[tuple[int, int]]:
            holding = self._holding(*subscriber.place)
            return [] if holding is None else holding.held_of(first, last)

        return held_of

    def _leases(self, store: str, durable: str, subscriber: str) -> list[Lease]:
        """What the subscriber holds. Not a copy."""
        holding = self._holding(store, durable, subscriber)
        return [] if holding is None else holding.runs

    def _lapses_ms(self, store: str, durable: str) -> int | None:
        """When the next held message of the durable lapses. O(1)."""
        consumption = self._consumption(store, durable)
        return None if consumption is None else consumption.leases.next_ms()

    def _holder_against(self, store: str, durable: str, subscriber: str) -> str | None:
        """The other subscriber that has a standard durable, None if it is free for this one."""
        consumption = self._consumption(store, durable)
        return None if consumption is None else consumption.holder_against(subscriber)

    def _waiting(self, store: str, durable: str) -> tuple[int, int]:
        """About how many messages no subscriber holds, and the bytes of one on average. O(1)."""
        consumption = self._consumption(store, durable)
        if consumption is None:
            return (1, 0) if store in self._state.stores else (0, 0)
        pending = consumption.pending
        return pending - consumption.leases.held, consumption.pending_bytes // (pending or 1)

    def _size(self, store: str, first: int, last: int) -> int:
        """The bytes of these messages together."""
        kept = self._state.stores.get(store)
        return 0 if kept is None else kept.counts.size(first, last)

    def _still_held(self, place: tuple[str, str, str], piece: list[Run]) -> tuple[list[Run], int]:
        """What a subscriber holds of runs that were delivered to it, and not again since; and when the first of it
        lapses, 0 for never. Of a last value nothing is held back: the newest is sent in any case."""
        if self._consumption(*place[:2]) is None:
            return piece if place[0] in self._state.stores else [], 0
        runs = self._leases(*place)
        held: list[Run] = []
        lapses_ms = _HIGH
        for first, last, deliveries in piece:
            for index in range(max(0, bisect_left(runs, (first,)) - 1), len(runs)):
                low, high, count, deadline_ms = runs[index]
                if low > last:
                    break
                if high >= first and count == abs(deliveries):
                    held.append((max(first, low), min(last, high), deliveries))
                    lapses_ms = min(lapses_ms, deadline_ms or _HIGH)
        return held, 0 if lapses_ms == _HIGH else lapses_ms

    def with_replayed(self, store: str, durable: str, messages: list[Delivery]) -> list[Delivery]:
        """The messages. Those that are delivered because the durable was rewound are marked, also as redelivered: an
        application may have received them."""
        consumption = self._consumption(store, durable)
        if consumption is None or not consumption.replayed:
            return messages
        return [
            replace(one, replayed=True, redelivered=True) if one.seq in consumption.replayed else one
            for one in messages
        ]

    def _came_before(self, store: str, durable: str, runs: list[Run]) -> list[Run]:
        """Those of these runs that a subscriber may have had: redelivered ones, and all after a rewind."""
        consumption = self._consumption(store, durable)
        is_rewound = consumption is not None and bool(consumption.replayed)
        return [run for run in runs if is_rewound or run[2] != 1]

    # Reports of what was started

    def started(self, subscriber: ServedSubscriber, ranges: Sequence[tuple[int, int]]) -> None:
        """The application was handed these messages. Kept in memory until the state machine needs it.

        Raises: InvalidRequest.
        """
        is_first = subscriber.started is None
        started = StartedMessages() if subscriber.started is None else subscriber.started
        started.add(ranges, self._service.now_ms(), self._held_by(subscriber))
        subscriber.started = started
        if started or is_first:  # also an empty first report: without it the oldest message would count
            self._reporting[subscriber] = None

    def _report(self, subscriber: ServedSubscriber, until_ms: int = _HIGH) -> None:
        """Report started messages to the state machine, because they are about to come back.

        Of a subscriber that does not report any, report those that were never sent to it and lapse by ``until_ms``.
        """
        if subscriber.started is None:
            unsent = subscriber.unsent_of(self._leases(*subscriber.place), until_ms)
            if unsent:
                self._service.submit_nowait(Acknowledge(0, *subscriber.place, ack=[], unsent=unsent))
            return
        started = subscriber.started.take(self._held_by(subscriber))
        self._reporting.pop(subscriber, None)
        self._service.submit_nowait(Acknowledge(0, *subscriber.place, started=started))

    def before_extension(self, subscriber: ServedSubscriber) -> None:
        """The state machine hears of what was started before, so that it does not shorten a later extension."""
        if subscriber.started:
            self._report(subscriber)

    def before_lapse(self, now_ms: int) -> None:
        """Messages that subscribers hold are about to come back because their time is over. For what the application
        was handed it begins with that, so it is reported to the state machine first."""
        for subscriber in list(self._reporting):
            lapses_ms = self._lapses_ms(subscriber.store, subscriber.durable)
            if subscriber.gone or (subscriber.started is None and not subscriber.awaits_messages):
                self._reporting.pop(subscriber, None)
            elif lapses_ms is not None and lapses_ms <= now_ms:
                self._report(subscriber, now_ms)

    # Turns

    def ready(self, store: str, durable: str) -> None:
        """Offer messages of the durable. Cheap to call too often.

        The service calls it just before it closes a group, so that a delivery is synced together with its publish.
        """
        group = self._groups.get((store, durable))
        if group is not None:
            self._serve(store, durable, group)

    def _serve(self, store: str, durable: str, group: _DurableSubscribers) -> None:
        """Give a portion to each subscriber that wants one, in turn, while there is something to give."""
        wanting, state = group.wanting, self._state
        for left in range(len(wanting), 0, -1):
            if not state.ready(store, durable):
                return
            subscriber = wanting.popleft()
            subscriber.wants = False
            # What is delivered to a name while its newer session is being attached is the newer one's.
            if subscriber.gone or not subscriber.takes_more() or self.attaching(store, durable, subscriber.name):
                continue
            if state.ready_for(store, durable, subscriber.name):
                waiting, size = self._waiting(store, durable)
                share = min(SHARE_MAX, -(-waiting // left), PORTION_BYTES // max(size, 1))
                self._ask_for(subscriber, min(subscriber.room, max(1, share)))
            self._wants(group, subscriber)

    @staticmethod
    def _wants(group: _DurableSubscribers, subscriber: ServedSubscriber) -> None:
        if subscriber.takes_more() and not subscriber.wants:
            subscriber.wants = True
            group.wanting.append(subscriber)

    def _serve_with(self, subscriber: ServedSubscriber) -> None:
        group = self._groups.get((subscriber.store, subscriber.durable))
        if group is not None and not subscriber.gone:
            self._wants(group, subscriber)
            self._serve(subscriber.store, subscriber.durable, group)

    def _ask_for(self, subscriber: ServedSubscriber, count: int) -> None:
        subscriber.room -= count
        subscriber.on_its_way += count
        if subscriber.started is None:
            self._reporting[subscriber] = None

        def delivered(result: Result | HoldfastError) -> None:
            subscriber.on_its_way -= count
            if isinstance(result, HoldfastError):
                self._refused(subscriber, result)
                return
            assert isinstance(result, Delivered), "Deliver answers Delivered"
            self._give(subscriber, count, result)

        self._service.submit_nowait(Deliver(0, *subscriber.place, count), delivered)

    def _give(self, subscriber: ServedSubscriber, asked: int, result: Delivered) -> None:
        if subscriber.gone:
            return
        subscriber.room += asked - _count(result.runs)
        if result.runs:
            marked = subscriber.sent if subscriber.started is None else subscriber.started
            if marked and (again := self._came_before(subscriber.store, subscriber.durable, result.runs)):
                for first, last, _ in again:  # it has to be sent and started again
                    marked.remove(first, last)
            subscriber.unread.extend(result.runs)
            self._hand_over(subscriber)
        else:
            subscriber.give(NOTHING)  # a poll whose time is over waited for this
        # An empty answer may mean that a long look among messages of others has to go on.
        self._serve_with(subscriber)

    def _hand_over(self, subscriber: ServedSubscriber) -> None:
        """Read and write what is held still. What is not is withdrawn, now or soon, or was settled by the subscriber:
        that gives the room back."""
        while subscriber.unread and subscriber.takes and not subscriber.gone:
            piece = self._piece(subscriber)
            held, lapses_ms = self._still_held(subscriber.place, piece)
            if held != piece:
                subscriber.leave_out(piece, held)
            buffer_ms = max(1, lapses_ms - self._service.now_ms()) if lapses_ms else 0
            try:
                messages = self._service.messages(subscriber.store, held) if held else []
            except HoldfastError as error:
                # What is damaged is this subscriber's to hear of, and the operator's; everybody else is served on.
                key = subscriber.store, subscriber.durable
                self.unreadable[key] = self.unreadable.get(key, 0) + 1
                _log.error(
                    "messages_unreadable",
                    store=subscriber.store,
                    durable=subscriber.durable,
                    error=error.statement(),
                    code=str(error.code),
                    hint=error.hint or None,
                )
                self.leave(subscriber, "unreadable")
                subscriber.end(error)
                return
            if held and not lapses_ms:
                subscriber.room += _count(piece) - len(messages)  # a last value that was replaced
            if messages:
                subscriber.delivered_ms = wall_ms()
                messages = self.with_replayed(subscriber.store, subscriber.durable, messages)
            subscriber.note_sent(held, self._leases(*subscriber.place))
            consumption = self._consumption(subscriber.store, subscriber.durable)
            ack_wait_ms = 0 if consumption is None else consumption.definition.ack_wait_ms
            subscriber.give(Portion(messages, ack_wait_ms, buffer_ms))

    def _piece(self, subscriber: ServedSubscriber) -> list[Run]:
        """Take at least one message from the unread ones, and at most ``PIECE_BYTES``."""
        unread, store = subscriber.unread, subscriber.store
        piece: list[Run] = []
        left, room = PIECE_BYTES, subscriber.most
        while unread and room > 0:
            first, last, deliveries = unread[0]
            end = min(last, first + room - 1)
            size = self._size(store, first, end)
            while size > left and end > first:
                end = (first + end) // 2
                size = self._size(store, first, end)
            if size > left and piece:
                break
            piece.append((first, end, deliveries))
            left -= size
            room -= end - first + 1
            if end < last:
                unread[0] = end + 1, last, deliveries
            else:
                unread.popleft()
        return piece

    def _refused(self, subscriber: ServedSubscriber, error: HoldfastError) -> None:
        if subscriber.gone:
            return
        self._remove(subscriber)
        subscriber.end(error)

    def add_room(self, subscriber: ServedSubscriber, messages: int) -> None:
        """The subscriber can take more."""
        subscriber.room += messages
        self._serve_with(subscriber)

    def resume(self, subscriber: ServedSubscriber) -> None:
        """The subscriber's connection takes something again."""
        subscriber.paused = False
        self._hand_over(subscriber)
        self._serve_with(subscriber)

    # Polls

    def poll(self, poller: Poller, count: int, wait_seconds: float, done: Polled, problem: Problem) -> None:
        """Reply with up to ``count`` messages as soon as there are some, or with none after ``wait_seconds``."""
        poller.ask(count, wait_seconds, done, problem)
        self._hand_over(poller)
        self._serve_with(poller)

    def give_back(self, poller: Poller, messages: list[Delivery]) -> None:
        """Redeliver these messages, and everything else that it holds, at once."""
        nack = [(message.seq, 0) for message in messages]
        nack += [(seq, 0) for first, last, _ in poller.unread for seq in range(first, last + 1)]
        poller.unread.clear()
        self._service.submit_nowait(Acknowledge(0, *poller.place, nack=nack))

    def seen(self, store: str, durable: str, name: str) -> None:
        """A subscriber that polls has shown that it lives."""
        subscriber = self.find(store, durable, name)
        if isinstance(subscriber, Poller):
            subscriber.seen_seconds = self.loop.time()

    def detach_silent(self) -> int:
        """Detach pollers that were silent for their timeout and hold nothing. Returns their number."""
        now = self.loop.time()
        silent = [
            subscriber
            for subscriber in self.everybody()
            if isinstance(subscriber, Poller)
            and not subscriber.takes
            and now - subscriber.seen_seconds > subscriber.timeout_seconds
            and not (subscriber.keeps and subscriber.was_sent(self._leases(*subscriber.place)))
        ]
        for subscriber in silent:
            self.leave(subscriber, "timeout")
        for durable in self.newcomers.durables():
            self._admit(*durable)
        return len(silent)


def _count_of(ranges: Iterable[tuple[int, int]]) -> int:
    return sum([last - first + 1 for first, last in ranges])


def _count(runs: Iterable[Run]) -> int:
    return sum([last - first + 1 for first, last, _ in runs])
