"""One process of an application: the client's machine and WebSocket, and jobs that are done one after another."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final, cast

from tests.worlds.workers.line import Line
from tests.worlds.workers.shape import STORE, WORK

from holdfast.client.protocol.effects import Wait
from holdfast.client.protocol.endpoint import ClientRoute, parse_endpoint
from holdfast.client.protocol.options import SubscriberOptions, busy_wait_ms
from holdfast.client.protocol.retry_budget import Session
from holdfast.client.protocol.stores.messages import decode_frame, subscribe_target
from holdfast.client.protocol.stores.subscriber import Connect, SubscriberMachine, SubscriptionEnded, Talk
from holdfast.client.protocol.stores.web_socket import WebSocket
from holdfast.errors import Closed, HoldfastError
from holdfast.wire.stores import MessagesFrame, WithdrawnFrame

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.worlds.workers.world import World

    from holdfast.wire.parts import Delivery

__all__ = ["Job", "Worker"]

STEPS_MAX: Final = 50


@dataclass(slots=True)
class Job:
    """A message that the application works on."""

    message: Delivery
    since_ms: float
    came_ms: float
    is_withdrawn: bool = False
    """Whether the service has taken back the delivery: it may have been on its way when the service did."""


class _Listener:
    """A worker's machine, and a note of each frame that it gets."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def __getattr__(self, name: str) -> Any:
        return getattr(self._worker.machine, name)

    def received(self, payload: bytes, now_ms: float) -> None:
        self._worker.machine.received(payload, now_ms)
        self._worker.note(payload)


class Worker:
    """One process. ``name`` is the subscriber's; the session is the process's."""

    def __init__(self, world: World, name: str, number: int) -> None:
        self.world = world
        self.name = name
        self.incarnation = 0
        self.paused_until = 0.0
        self.session = f"{name}-{number}"
        self.jobs: dict[int, Job] = {}
        """What the application works on, by number."""
        self.had: set[int] = set()
        """What it was handed."""
        self._settled: set[int] = set()
        """What the application has settled, by whatever delivery of it."""
        self._waiting: dict[int, str | None] = {}
        """Of this connection: what came and was not handed over, with its key."""
        self.arrivals: dict[int, tuple[float, int]] = {}
        """Of each message that came last: when, and its ``buffer_wait_ms``."""
        self.line: Line | None = None
        self._socket: WebSocket | None = None
        self._look_ms = 0.0
        self._looks = False
        self._pause: Wait | None = None
        self._idle_handlers = world.shape.handlers
        self.has_ended = False
        shape = world.shape
        options = SubscriberOptions(
            explicit_ack=True,
            prefetch=shape.own_prefetch,
            heartbeat_ms=shape.heartbeat_ms,
            timeout_ms=shape.timeout_ms,
        )
        target = subscribe_target(
            STORE, WORK, name, prefetch=options.prefetch, wait_ms=busy_wait_ms(options), session=self.session
        )
        self.machine = SubscriberMachine(Session(ClientRoute((parse_endpoint("http://service:1"),))), target, options)
        world.agenda.after(0.0, self, self.pump)

    # ---- the driver -------------------------------------------------------------------------------------------------

    def pump(self) -> None:
        """Carry out what the machine wants now."""
        agenda = self.world.agenda
        for _ in range(STEPS_MAX):
            self.machine.check()
            step = self.machine.next_step(agenda.now)
            match step:
                case Talk(outgoing=outgoing, probes=probes, timeout_ms=timeout_ms):
                    self._say(outgoing, probes=probes)
                    self._look_again(agenda.now + timeout_ms)
                case Connect():
                    self._hang_up()
                    self._connect(step)
                case Wait():
                    if step is not self._pause:
                        self._pause = step
                        self._hang_up()
                        wait_ms = self.world.random.uniform(step.at_least_ms, step.at_most_ms)
                        agenda.after(wait_ms, self, self._waited, step)
                case SubscriptionEnded(outgoing=outgoing):
                    self._say(outgoing, probes=False)
                    self._hang_up()
                    self.has_ended = True
            break
        self._offer()

    def _connect(self, step: Connect) -> None:
        agenda = self.world.agenda
        self._look_again(agenda.now + step.timeout_ms)
        server = self.world.leader
        if server is None or server.loop.dead:
            agenda.after(1.0, self, self._unreached)
            return
        self._socket = WebSocket(step.endpoint, step.target, None, step.payload_bytes_max)
        self.line = Line(self, server)
        self._write()

    def _unreached(self) -> None:
        self.machine.unreached(self.world.agenda.now, "refused", None)
        self.pump()

    def _waited(self, step: Wait) -> None:
        if step is self._pause:
            self.machine.waited()
            self.pump()

    def _say(self, outgoing: Sequence[bytes], *, probes: bool) -> None:
        if self._socket is None:
            return
        for payload in outgoing:
            self._socket.send(payload)
        if probes:
            self._socket.ping()
        self._write()

    def _write(self) -> None:
        if self._socket is not None and self.line is not None and (data := self._socket.take_bytes()):
            self.line.to_server(data)

    def _look_again(self, due_ms: float) -> None:
        if not self._looks or due_ms < self._look_ms:
            self._looks, self._look_ms = True, due_ms
            self.world.agenda.after(max(0.0, due_ms - self.world.agenda.now) + 0.001, self, self._look, due_ms)

    def _look(self, due_ms: float) -> None:
        if self._looks and due_ms == self._look_ms:
            self._looks = False
            self.pump()

    def _hang_up(self) -> None:
        line, self.line = self.line, None
        self._waiting.clear()
        if self._socket is not None and line is not None:
            self._socket.close()
            if data := self._socket.take_bytes():
                line.to_server(data)
            line.hang_up()
        self._socket = None

    def arrived(self, line: Line) -> None:
        """Bytes of this line are here."""
        if line is self.line:
            self._read()
            self.pump()

    def _read(self) -> None:
        """Everything that has arrived."""
        now = self.world.agenda.now
        while self.line is not None and self.line.inbox and self._socket is not None:
            data = self.line.inbox.pop(0)
            self._socket.feed(data, cast(SubscriberMachine, _Listener(self)), now)
            if self._socket.is_over:
                self._hang_up()
            self._write()

    def note(self, data: bytes) -> None:
        """A frame came."""
        frame = decode_frame(data)
        if isinstance(frame, MessagesFrame):
            for message in frame.messages:
                self.arrivals[message.seq] = self.world.agenda.now, frame.buffer_wait_ms
                self._waiting.pop(message.seq, None)
                self._waiting[message.seq] = message.key
        elif isinstance(frame, WithdrawnFrame):
            for seq in list(self._waiting):
                if any(first <= seq <= last for first, last in frame.ranges):
                    del self._waiting[seq]
            for seq, job in self.jobs.items():
                job.is_withdrawn |= any(first <= seq <= last for first, last in frame.ranges)

    def older_than(self, message: Delivery) -> list[int]:
        """What came over this connection before this one, and must be handed over before it."""
        kind = self.world.shape.kind
        if kind == "shared" or (kind == "keyed" and message.key is None):
            return []
        before = takewhile(lambda each: each[0] != message.seq, self._waiting.items())
        return [
            seq
            for seq, key in before
            if seq < message.seq and seq not in self._settled and (kind == "standard" or key == message.key)
        ]

    # ---- the application --------------------------------------------------------------------------------------------

    def _offer(self) -> None:
        """A handler that is free looks for a message."""
        if self._idle_handlers and self.machine.has_ready:
            self._idle_handlers -= 1
            self.world.agenda.after(self.world.random.choice((0.0, 0.0, 1.0)), self, self._take)

    def _take(self) -> None:
        if self.machine.has_ended:
            return
        self._read()  # what was withdrawn meanwhile must not be handed over
        message = self.machine.take(self.world.agenda.now)
        self.machine.check()
        if message is None:
            self._idle_handlers += 1
            self.pump()
            return
        self.world.handed_over(self, message)
        self._waiting.pop(message.seq, None)
        self.had.add(message.seq)
        self.jobs[message.seq] = Job(message, self.world.agenda.now, self.arrivals[message.seq][0])
        if self.machine.has_outgoing:
            self.pump()
        mean_ms = self.world.shape.job_ms
        self.world.agenda.after(self.world.random.uniform(0.1, 2 * mean_ms), self, self._finish, message)
        self._offer()

    def _finish(self, message: Delivery) -> None:
        self._idle_handlers += 1
        try:
            self._settle(message)
        except (Closed, HoldfastError):
            assert self.machine.has_ended, "only an ended subscriber refuses"
        if not self.machine.has_ended:
            self.pump()

    def _settle(self, message: Delivery) -> None:
        seq, machine, now = message.seq, self.machine, self.world.agenda.now
        ways = ("acknowledge", "confirm", "put back", "reject", "extend", "forget", "commit")
        way = self.world.random.choices(ways, self.world.shape.settles)[0]
        self.world.seen[f"job ends: {way}"] += 1
        self._settled.add(seq)
        job = self.jobs.pop(seq, None)
        if job is None:
            return  # it was handed over again meanwhile, and is done
        if way == "extend" and now - job.since_ms < 5_000:
            self.jobs[seq] = job
            self._idle_handlers -= 1
            machine.extend(seq)
            self.world.agenda.after(self.world.shape.job_ms, self, self._finish, message)
            return
        if way in ("acknowledge", "confirm", "put back", "reject"):
            self.world.promises.settles(self.name, seq)
        match way:
            case "put back":
                self.world.put_back.add(seq)
                machine.put_back(seq, self.world.random.choice((0, 50, 400)))
            case "reject":
                machine.reject(seq)
            case "forget":
                pass
            case "commit":
                self.world.commit(self, message)
            case "confirm":
                machine.acknowledge([(seq, seq)], now, lambda stale, error: self._confirmed(seq, stale, error))
            case _:
                machine.acknowledge([(seq, seq)], now)

    def _confirmed(self, seq: int, stale: Sequence[int], error: HoldfastError | None) -> None:
        if error is None and not stale:
            self.world.confirmed(seq)

    def die(self) -> None:
        """``kill -9``."""
        self.incarnation += 1
        self.has_ended = True
        if self.line is not None:
            self.line.hang_up()
            self.line.is_cut = False
            self.line = None
