"""Gathering with threads: of those that wait, one drives each shared request and wakes the others.

A thread whose own item is settled passes what it drives to another one that waits, also when it is interrupted. What an
interrupt may have torn, because bytes were on their way between the kernel and the machine, is not continued: the
connection is dropped, and the outcome of its items is open. A fork leaves the child nothing of its parent's.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Callable
from typing import Concatenate, Final, ParamSpec, TypeVar

from holdfast.client.protocol.effects import ALONE, Failed, Item, Request, Response, Send
from holdfast.client.protocol.endpoint import ClientRoute, Endpoint
from holdfast.client.protocol.gathering import NO_ANSWER, NOTHING, Effects, GatheredKind, Gathering, SharedRequest
from holdfast.client.protocol.http1 import BadResponse, ResponseReader, problem_with, reason_of
from holdfast.client.protocol.options import ClientOptions
from holdfast.client.transport.clock import now_ms
from holdfast.client.transport.sync import Connection, Pool
from holdfast.errors import Closed, InternalError
from holdfast.soundness import Soundness

TORN = "the thread that carried it was interrupted"
LINGER_S: Final = 0.001
"""How long the next request waits for the end of the response before it, which had all answers."""

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class Carried:
    """The connection of a shared request. ``is_torn``: bytes are between it and the machine. ``may_rest``: all answers
    are there, and only the end of the response is not."""

    def __init__(self, connection: Connection, reader: ResponseReader) -> None:
        self.connection = connection
        self.reader = reader
        self.is_torn = True
        self.may_rest = False


class Carriage:
    """A shared request, and what carries it since it has a connection."""

    __slots__ = ("carried", "shared")

    def __init__(self, shared: SharedRequest) -> None:
        self.shared = shared
        self.carried: Carried | None = None


class Caller:
    """A thread that waits for its item. It drives ``carriage``, or sleeps on ``lock``: until ``until_ms``, which is 0
    while it does not sleep, or until it is woken."""

    __slots__ = ("carriage", "item", "lock", "until_ms")

    def __init__(self, item: Item) -> None:
        self.item = item
        self.carriage: Carriage | None = None
        self.until_ms = 0.0
        self.lock = threading.Lock()
        self.lock.acquire()

    def wake(self) -> None:
        """Let it run, if it sleeps."""
        if self.until_ms:
            self.until_ms = 0.0
            self.lock.release()


def step(
    method: Callable[Concatenate[Gatherer, Arguments], Result],
) -> Callable[Concatenate[Gatherer, Arguments], Result]:
    """One step at a time. If an exception ends one, what it left cannot be trusted, and everything begins again.

    Only ``with`` on the lock itself is safe against an interrupt between taking it and the block.
    """

    def stepping(self: Gatherer, /, *arguments: Arguments.args, **named: Arguments.kwargs) -> Result:
        with self.lock:
            if self.is_torn:
                self.begin_again()
            self.is_torn = True
            result = method(self, *arguments, **named)
            self.is_torn = False
            return result

    return stepping


class Gatherer:
    """What the threads of one client offer, and the requests that carry it."""

    def __init__(
        self, pool: Pool, route: ClientRoute, options: ClientOptions, soundness: Soundness, kind: GatheredKind
    ) -> None:
        self._soundness = soundness
        soundness.tell(self.break_off)
        self._pool = pool
        self._route = route
        self._options = options
        self._kind = kind
        self._closed = False
        self.renew()
        _gatherers.add(self)

    def renew(self) -> None:
        """Begin with nothing."""
        self.lock = threading.RLock()  # a signal handler may commit in the middle of anything
        self.is_torn = False
        """Whether a thread is in the middle of a step, or was interrupted there."""
        self.machine = Gathering(self._kind, self._route, self._options, has_turns=False)
        self._callers: dict[Item, Caller] = {}
        self._undriven: dict[Carriage, bool] = {}
        """Whether a thread was woken for it."""
        self._driven: dict[Carriage, None] = {}
        self._resting: list[tuple[Endpoint, Carried]] = []
        """No caller waits for the end of a response: who needs the connection next takes it in."""

    def share(self, item: Item) -> None:
        """Offer an item; returns when it is settled. Raises: Closed, InternalError."""
        if self._closed:
            self._soundness.require()
            closed = Closed("this client is closed")
            self._route.explain(closed)
            raise closed
        try:
            caller = self._offer(item)
            while caller is not None and item.settled is None:
                if caller.carriage is not None:
                    self._drive(caller.carriage, item)
                elif not caller.lock.acquire(timeout=max(0.0, (caller.until_ms - now_ms()) / 1000)):
                    self._wake_up(caller)
                if item.settled is None:
                    self._next_duty(caller)
            if item.settled is ALONE:
                self._send_alone(item)
        except AssertionError as error:
            self._soundness.break_off(error)
        finally:
            if item.is_awaited or self._undriven or item in self._callers:
                self._leave(item)

    def _send_alone(self, item: Item) -> None:
        request = self.machine.alone_request(item)
        endpoint = item.endpoint
        assert endpoint is not None, "its request goes somewhere"
        rested = self._rested(endpoint) if self._resting else None
        if rested is not None:
            self._pool.give_back(endpoint, rested)
            self._pool.end_lease()
        reply = self._pool.exchange(Send(endpoint, request, self._options.request_timeout_ms))
        self.machine.alone_answered(item, reply)

    # ---- callers

    @step
    def _offer(self, item: Item) -> Caller | None:
        """Its caller, with its first duty; None where it travels alone."""
        at_ms = now_ms()
        effects = self.machine.offered(item, at_ms)
        if item.settled is not None:
            return None
        caller = self._callers[item] = Caller(item)
        if effects is not NOTHING:
            self._take_in(effects)
        self._assign(caller, at_ms)
        return caller

    @step
    def _next_duty(self, caller: Caller) -> None:
        """For one that has waited."""
        at_ms, item = now_ms(), caller.item
        if at_ms >= self.machine.due_ms:
            self._take_in(self.machine.look(at_ms))
        if item.settled is None and at_ms >= item.deadline_ms:  # also if the machine has lost it by an interrupt
            item.settled = Failed(at_ms, True, NO_ANSWER)
            item.endpoint = item.endpoint or self._route.current
        if item.settled is None:
            self._assign(caller, at_ms)

    @step
    def _wake_up(self, caller: Caller) -> None:
        """It has slept long enough."""
        if caller.until_ms:
            caller.until_ms = 0.0
        else:  # it was woken at the last moment
            caller.lock.acquire(blocking=False)

    @step
    def _leave(self, item: Item) -> None:
        """The caller goes, with an answer or without one. Others drive what it drove."""
        self.machine.left(item)
        self._callers.pop(item, None)
        self._take_in(self.machine.alone_ended(item, now_ms()))
        self._undriven = dict.fromkeys(self._undriven, False)  # it may have been woken for one of them
        if self._callers or self._driven:  # a thread that was woken does not sleep any more, and does not drive yet
            self._find_drivers()
        else:  # nobody waits for anything
            for carriage in self._undriven:
                self._give_up(carriage)
            self._undriven.clear()

    def break_off(self, _reason: InternalError) -> None:
        """Refuse everything, and wake every caller, which raises what is broken."""
        self._closed = True
        with self.lock:
            self.begin_again()
        self._pool.close()

    # ---- within a step

    def begin_again(self) -> None:
        """The outcome of everything that was offered is open: the status tells, also of what was never sent."""
        callers = dict(self._callers)
        for carriage in (*self._driven, *self._undriven):
            carriage.shared.is_over = True  # its driver, if it has one, drops its connection
        undriven = list(self._undriven)
        self.machine = Gathering(self._kind, self._route, self._options, has_turns=False)
        self._callers, self._undriven = {}, {}
        for item, caller in callers.items():
            if item.settled is None:
                item.endpoint = item.endpoint or self._route.current
                item.settled = Failed(now_ms(), True, TORN)
            with contextlib.suppress(RuntimeError):  # it was woken just before
                caller.wake()
        for carriage in undriven:
            self._drop(carriage)

    def _assign(self, caller: Caller, at_ms: float) -> None:
        """Let it drive a request that nobody drives; it sleeps where there is none."""
        if self._undriven:
            carriage = caller.carriage = next(iter(self._undriven))
            del self._undriven[carriage]
            self._driven[carriage] = None
            return
        caller.carriage, until_ms = None, caller.item.deadline_ms
        if self.machine.first is caller.item:
            until_ms = min(until_ms, self.machine.due_ms)
        caller.until_ms = max(at_ms, until_ms)
        self._callers[caller.item] = caller

    def _take_in(self, effects: Effects) -> None:
        callers = self._callers
        for item in effects.settled:
            if (caller := callers.pop(item, None)) is not None:
                caller.wake()
        if effects.to_open is not None:
            self._undriven[Carriage(effects.to_open)] = False
        self._keep_time()

    def _find_drivers(self) -> None:
        """Wake a thread for each request that nobody drives: the last of its items is there until its end."""
        callers = self._callers
        for carriage, has_driver in self._undriven.items():
            if has_driver:
                continue
            first = () if self.machine.first is None else (self.machine.first,)
            for item in (*reversed(carriage.shared.items), *first, *callers):
                caller = callers.get(item)
                if caller is not None and caller.until_ms:
                    self._undriven[carriage] = True
                    caller.wake()
                    break

    def _keep_time(self) -> None:
        """The thread of the first item that waits is to see when its request is due."""
        first = self.machine.first
        caller = None if first is None else self._callers.get(first)
        if caller is not None and self.machine.due_ms < caller.until_ms:
            caller.wake()

    def _give_up(self, carriage: Carriage) -> None:
        """Nobody carries it on."""
        if carriage.carried is None:
            self._take_in(self.machine.not_opened(carriage.shared, Failed(now_ms(), False, TORN, asked=False)))
        else:
            self._take_in(self.machine.ended(carriage.shared, Failed(now_ms(), True, TORN)))
            self._drop(carriage)

    def _drop(self, carriage: Carriage) -> None:
        carried = carriage.carried
        if carried is not None:
            carriage.carried = None
            self._pool.drop(carried.connection)
            self._pool.end_lease()

    # ---- driving

    def _drive(self, carriage: Carriage, item: Item) -> None:
        """Carry a request until it is over, or the item is settled: then another thread carries it on."""
        shared, is_whole = carriage.shared, False
        try:
            if carriage.carried is None:
                self._open(carriage, item)
            while (carried := carriage.carried) is not None:
                if shared.is_over or item.settled is not None or not self._read(carriage, carried, item):
                    break
            is_whole = True
        finally:
            carried = carriage.carried
            self._driven_no_more(carriage, is_whole=is_whole or carried is None or not carried.is_torn)

    @step
    def _driven_no_more(self, carriage: Carriage, *, is_whole: bool) -> None:
        self._driven.pop(carriage, None)
        shared, carried = carriage.shared, carriage.carried
        if shared.is_over and carried is not None and carried.may_rest and not self._closed:
            carriage.carried = None
            self._pool.rest(carried.connection)
            self._resting.append((shared.endpoint, carried))
        elif shared.is_over:
            self._drop(carriage)
        elif is_whole:
            self._undriven[carriage] = False
        else:
            self._give_up(carriage)
        self._find_drivers()

    def _open(self, carriage: Carriage, item: Item) -> None:
        """Get a connection and send what waits."""
        shared = carriage.shared
        left_ms = max(1.0, min(shared.deadline_ms, item.deadline_ms) - now_ms())
        try:
            leased = self._rested(shared.endpoint) or self._pool.lease(shared.endpoint, left_ms)
        except Closed as error:
            leased = Failed(now_ms(), False, str(error), asked=False)
        if isinstance(leased, Failed):
            self._not_opened(shared, leased)
            return
        carried = Carried(leased, self._pool.reader_for(leased))
        request = self._opened(carriage, carried)
        if request is None:
            self._give_back(carriage, carried)
            return
        data = self._pool.encode(request, shared.endpoint)
        try:
            leased.send_until_response(data, self._options.request_timeout_ms / 1000, carried.reader)
        except (OSError, BadResponse) as error:
            self._end(shared, error)
            return
        if carried.reader.heard:  # the service reads no more
            carried.reader.headers["connection"] = "close"
            self._receive(carriage, carried)
        carried.is_torn = False

    def _rested(self, endpoint: Endpoint) -> Connection | None:
        """The connection that was used last, if the rest of its response is there."""
        carried = self._take_rested(endpoint)
        if carried is None:
            return None
        connection, reader = carried.connection, carried.reader
        if not self._pool.resume(endpoint, connection):
            self._pool.drop(connection)
            return None
        is_usable = False
        try:
            while not reader.complete and connection.is_readable(LINGER_S):
                connection.receive(reader, 0.0)
            is_usable = reader.reusable and not reader.buffered and connection.is_alive()
        except (OSError, BadResponse):
            pass
        finally:
            if not is_usable:
                self._pool.drop(connection)
                self._pool.end_lease()
        return connection if is_usable else None

    @step
    def _take_rested(self, endpoint: Endpoint) -> Carried | None:
        for place in range(len(self._resting) - 1, -1, -1):
            if self._resting[place][0] == endpoint:
                return self._resting.pop(place)[1]
        return None

    @step
    def _opened(self, carriage: Carriage, carried: Carried) -> Request | None:
        carriage.carried = carried
        request = self.machine.opened(carriage.shared, now_ms())
        self._keep_time()
        return request

    @step
    def _not_opened(self, shared: SharedRequest, failed: Failed) -> None:
        self._take_in(self.machine.not_opened(shared, failed))

    def _read(self, carriage: Carriage, carried: Carried, item: Item) -> bool:
        """Wait for bytes and take them. False when the request is over."""
        shared = carriage.shared
        if not carried.connection.is_readable(self._may_wait_s(shared, item)):
            return self._look(shared)
        carried.is_torn = True
        try:
            carried.connection.receive(carried.reader, 0.0)
        except TimeoutError:  # a part of a TLS record
            carried.is_torn = False
            return True
        except (OSError, BadResponse) as error:
            self._end(shared, error)
            return False
        return self._receive(carriage, carried)

    @step
    def _may_wait_s(self, shared: SharedRequest, item: Item) -> float:
        self._find_drivers()
        return (min(item.deadline_ms, self.machine.due_ms, shared.deadline_ms) - now_ms()) / 1000

    @step
    def _look(self, shared: SharedRequest) -> bool:
        """Time has passed. False when that of the request is over."""
        at_ms = now_ms()
        self._take_in(self.machine.look(at_ms))
        if at_ms >= shared.deadline_ms:
            self._take_in(self.machine.ended(shared, Failed(at_ms, True, NO_ANSWER)))
        return not shared.is_over

    def _receive(self, carriage: Carriage, carried: Carried) -> bool:
        """Give the machine what has arrived. False when the request is over."""
        shared, reader = carriage.shared, carried.reader
        if reader.status == 200 and reader.buffered and not self._received(shared, reader.take()):
            return False
        if reader.complete:
            self._ended(shared, Response(now_ms(), reader.status, reader.headers, reader.take()))
            self._give_back(carriage, carried)
            return False
        carried.is_torn = False
        carried.may_rest = shared.is_over
        return not shared.is_over

    @step
    def _received(self, shared: SharedRequest, data: bytes) -> bool:
        effects = self.machine.received(shared, data, now_ms())
        self._take_in(effects)
        return effects.broken is None

    @step
    def _ended(self, shared: SharedRequest, reply: Response | Failed) -> None:
        self._take_in(self.machine.ended(shared, reply))

    def _end(self, shared: SharedRequest, error: Exception) -> None:
        problem = problem_with(shared.endpoint, error)
        self._ended(shared, Failed(now_ms(), problem is None, reason_of(error), problem=problem))

    def _give_back(self, carriage: Carriage, carried: Carried) -> None:
        """The connection may carry another request, if the response has marked its own end."""
        if carried.reader.reusable or not carried.reader.heard:
            carriage.carried = None
            self._pool.give_back(carriage.shared.endpoint, carried.connection)
            self._pool.end_lease()
        else:
            self._drop(carriage)

    @step
    def close(self) -> None:
        """Nothing more is sent. What was sent still gets its answer."""
        self._closed = True
        for _, carried in self._resting:
            self._pool.drop(carried.connection)
        self._resting.clear()
        self._take_in(self.machine.closed(now_ms(), ends_sent=False))


_gatherers: Final[weakref.WeakSet[Gatherer]] = weakref.WeakSet()


def _after_fork() -> None:
    for gatherer in list(_gatherers):
        gatherer.renew()


os.register_at_fork(after_in_child=_after_fork)
