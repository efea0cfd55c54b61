"""A world of workers: a service that is killed and frozen, lines that are cut and held, processes that die and sleep.

First there is chaos, then every fault stops, and everything must be done.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from random import Random
from typing import Final

from tests.definitions import define
from tests.worlds.harness import PromiseBroken, SeededWorld, WorldReport
from tests.worlds.log.agenda import Agenda
from tests.worlds.stores.promises import promise
from tests.worlds.workers.promises import CREDIT, DONE, Promises, consumption
from tests.worlds.workers.server import Server
from tests.worlds.workers.shape import STORE, WORK, Shape, drawn
from tests.worlds.workers.worker import Worker

from holdfast.errors import HoldfastError
from holdfast.stores.values import commands
from holdfast.wire.parts import Delivery, Message

__all__ = ["World", "run_world"]

BEGIN_MS: Final = 1_700_000_000_000
HEAL_MS: Final = 120_000.0
SETTLE_MS: Final = 10_000.0
"""Until everybody is attached again, and credit is where it belongs."""
EVENTS_MAX: Final = 400_000
KEYS: Final = ("a", "b", "c", None)


class World(SeededWorld):
    """One world."""

    def __init__(self, seed: int, shape: Shape) -> None:
        super().__init__(seed, Random(seed))
        self.shape = shape
        self.agenda = Agenda()
        self.log: list[bytes] = []
        self.leader: Server | None = None
        self.workers: dict[str, Worker] = {}
        self.sessions: dict[str, str] = {}
        """By subscriber, as it attached last."""
        self.put_back: set[int] = set()
        self.keys: dict[int, str | None] = {}
        self.promises = Promises(self)
        self._servers = self._sessions = self._published = 0
        self._chaos = True
        self._errors: list[BaseException] = []

    @property
    def slack_ms(self) -> float:
        """From a change of the state until the worker can know: the log, and the line."""
        return 2 * self.shape.sync_ms + 2 * self.shape.delay_ms + 30.0

    def wall_ms(self) -> int:
        """The clock of every machine."""
        return BEGIN_MS + int(self.agenda.now)

    def trouble(self, error: BaseException) -> None:
        """What no code has caught."""
        self._errors.append(error)

    # ---- the service ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Another process of the service leads."""
        before = self.leader
        self._servers += 1
        Server(self, self._servers)
        self.seen["a service starts"] += 1
        if before is not None and not before.loop.dead:
            # It finds out when it runs again.
            self.agenda.after(max(0.0, before.paused_until - self.agenda.now) + 1.0, None, before.kill)

    def opened(self, server: Server) -> None:
        """Its stores are open: it leads."""
        self.leader = server
        if STORE not in server.state.stores:
            document = json.dumps(self.shape.definition()).encode()
            server.service.submit_nowait(define(document), lambda _: None)
        self.promises.begins(server)

    def applied(self, server: Server, command: commands.Command) -> None:
        """A command was applied, or refused."""
        try:
            self.promises.applied(server, command)
        except PromiseBroken as error:
            self._errors.append(error)  # the service would take it for a failure of its own
            raise

    def _do(self, action: Callable[[Server], object]) -> None:
        server = self.leader
        if server is not None and server.answers:
            server.do(partial(action, server))

    def _publish(self) -> None:
        left = self.shape.messages - self._published
        count = min(left, self.random.choice((1, 1, 5, 20)))
        if count > 0:
            batch = [Message(b"x", {}, self.random.choice(KEYS)) for _ in range(count)]

            def publish(server: Server) -> None:
                def done(result: commands.Result | HoldfastError) -> None:
                    if isinstance(result, commands.Published):
                        self.keys.update({result.first_seq + place: message.key for place, message in enumerate(batch)})

                server.service.submit_nowait(commands.Publish(0, STORE, "", batch), done)
                self._published += count

            self._do(publish)
        if left > 0:
            self.agenda.after(self.random.uniform(0, self.shape.chaos_ms / 30), None, self._publish)

    def commit(self, worker: Worker, message: Delivery) -> None:
        """A commit of the application acknowledges; its answer comes over another connection."""
        self.promises.commits(worker.name, message.seq)

        def commit(server: Server) -> None:
            service = server.service
            service.flush()
            part = commands.Acknowledge(0, STORE, WORK, worker.name, ack=[(message.seq, message.seq)])
            found = service.carry_out_parts(commands.CommitParts(0, [part], tokens=[message.token]))
            if len(found) == 2:
                self.seen["a commit is too late"] += 1
                return
            self.applied(server, part)
            frame, _, durable = found

            def landed(outcome: int | HoldfastError) -> None:
                durable(outcome)
                if not isinstance(outcome, HoldfastError):
                    self.agenda.after(self.shape.delay_ms, None, self.confirmed, message.seq)

            server.record([(STORE, frame)], landed)

        self._do(commit)

    def _a_removal(self) -> None:
        def remove(server: Server) -> None:
            durable = consumption(server)
            pending = durable.browse(0, 20)
            if self.random.random() < 0.3 or not pending:
                command: commands.Command = commands.Purge(0, STORE, WORK)
            else:
                command = commands.Drop(0, STORE, WORK, self.random.choice(pending)[0])
            server.service.submit_nowait(command, lambda _: None)

        self._do(remove)

    # ---- the applications -------------------------------------------------------------------------------------------

    def _begin(self, name: str) -> None:
        self._sessions += 1
        self.workers[name] = Worker(self, name, self._sessions)

    def worker_of(self, session: str) -> Worker | None:
        """The living process of a session."""
        return next((one for one in self.workers.values() if one.session == session and not one.has_ended), None)

    def handed_over(self, worker: Worker, message: Delivery) -> None:
        """An application gets a message."""
        self.states += 1
        self.seen["handed over"] += 1
        self.seen["handed over again"] += message.redelivered
        self.promises.handed_over(worker, message)

    def confirmed(self, seq: int) -> None:
        """An application knows that its acknowledgement counts."""
        self.seen["confirmed"] += 1
        self.promises.confirmed(seq)

    def _some_worker(self) -> Worker:
        return self.workers[self.random.choice(sorted(self.workers))]

    # ---- faults -----------------------------------------------------------------------------------------------------

    def _plan(self, count: float, action: Callable[[], None]) -> None:
        for _ in range(int(count)):
            self.agenda.after(self.random.uniform(100, self.shape.chaos_ms), None, self._fault, action)

    def _fault(self, action: Callable[[], None]) -> None:
        self.seen[action.__name__.strip("_").replace("_", " ")] += 1
        action()

    def _a_kill(self) -> None:
        if self.leader is not None and not self.leader.loop.dead:
            self.leader.kill()
            self.agenda.after(self.random.choice((20, 300, 1_500)), None, self._start_if_none)

    def _a_stop(self) -> None:
        """SIGTERM."""
        server = self.leader
        if server is None or not server.answers:
            return

        server.do(server.stop)
        self.agenda.after(4 * self.shape.sync_ms + 50, None, server.kill)
        self.agenda.after(4 * self.shape.sync_ms + 100, None, self._start_if_none)

    def _start_if_none(self) -> None:
        if self.leader is None or self.leader.loop.dead:
            self.start()

    def _a_freeze(self) -> None:
        server = self.leader
        if server is None or not server.answers:
            return
        ms = self.random.choice((50.0, 400.0, 1_200.0, 4_000.0))
        server.paused_until = self.agenda.now + ms
        server.ran_since = server.paused_until
        if ms > 2_000:
            self.agenda.after(ms / 2, None, self._take_over, server)

    def _take_over(self, frozen: Server) -> None:
        if self.leader is frozen and not frozen.loop.dead:
            self.seen["a frozen leader is replaced"] += 1
            self.start()

    def _a_cut(self) -> None:
        line = self._some_worker().line
        if line is not None:
            line.cut()

    def _a_held_line(self) -> None:
        line = self._some_worker().line
        if line is not None:
            line.hold(self.random.choice((30.0, 300.0, 1_500.0, 5_000.0)))

    def _a_death(self) -> None:
        worker = self._some_worker()
        worker.die()
        self.agenda.after(self.random.choice((1.0, 50.0, 1_500.0)), None, self._begin, worker.name)
        self.workers[worker.name] = worker

    def _a_sleep(self) -> None:
        worker = self._some_worker()
        worker.paused_until = self.agenda.now + self.random.choice((50.0, 700.0, 3_000.0))

    # ---- the course -------------------------------------------------------------------------------------------------

    def run(self) -> WorldReport:
        """Chaos, then the end."""
        shape = self.shape
        self.start()
        for number in range(shape.workers):
            self._begin(f"w{number}")
        self.agenda.after(1.0, None, self._publish)
        self._plan(shape.kills, self._a_kill)
        self._plan(shape.stops, self._a_stop)
        self._plan(shape.freezes, self._a_freeze)
        self._plan(shape.cuts, self._a_cut)
        self._plan(shape.holds, self._a_held_line)
        self._plan(shape.deaths, self._a_death)
        self._plan(shape.sleeps, self._a_sleep)
        self._plan(shape.removals, self._a_removal)
        self._run_until(lambda: self.agenda.now >= shape.chaos_ms)
        self._heal()
        end_ms = self.agenda.now + HEAL_MS
        self._run_until(lambda: self.agenda.now >= end_ms or self._is_done())
        promise(self._is_done(), DONE, left=self._left())
        settled_ms = self.agenda.now + SETTLE_MS
        self._run_until(lambda: self.agenda.now >= settled_ms)
        self._check_credit()
        self._last_server().state.check()
        self.digest.update(self.agenda.digest().encode())
        return self.report()

    def _heal(self) -> None:
        """Nothing fails from here on, and every process lives and acknowledges."""
        self.shape = replace(self.shape, settles=(1, 0, 0, 0, 0, 0, 0))
        self.seen["healed"] += 1
        self.agenda.after(5_000.0, None, self._begin_all)

    def _begin_all(self) -> None:
        self._start_if_none()
        for name, worker in list(self.workers.items()):
            if worker.has_ended:
                self._begin(name)

    def _run_until(self, is_over: Callable[[], bool]) -> None:
        events = 0
        while not is_over():
            assert self.agenda.step(), "something always comes"
            events += 1
            assert events < EVENTS_MAX, "a world does not spin"
            if self._errors:
                raise self._errors[0]

    def _last_server(self) -> Server:
        assert self.leader is not None, "one was started"
        return self.leader

    def _left(self) -> list[tuple[int, int]]:
        return consumption(self._last_server()).browse(0, 20)

    def _is_done(self) -> bool:
        server = self._last_server()
        return (
            self._published >= self.shape.messages
            and server.answers
            and not consumption(server).pending
            and not any(worker.jobs for worker in self.workers.values() if not worker.has_ended)
        )

    def _check_credit(self) -> None:
        """The service may send to each worker as many messages as it has room for."""
        for worker in self.workers.values():
            known = self._last_server().opened.deliveries.find(STORE, WORK, worker.name)
            line = worker.line
            if worker.machine.is_attached and known is not None and line is not None and line.works:
                window = worker.machine._window  # pyright: ignore[reportPrivateUsage]
                given = window._given  # pyright: ignore[reportPrivateUsage]
                held = len(worker.jobs) if window.is_own else 0
                promise(known.room == given - held, CREDIT, worker=worker.name, room=known.room, given=given)


def run_world(seed: int, **fields: object) -> WorldReport:
    """The world of a seed; ``fields`` are of its shape."""
    shape = drawn(Random(f"shape {seed}"))
    return World(seed, replace(shape, **fields)).run()  # type: ignore[arg-type]
