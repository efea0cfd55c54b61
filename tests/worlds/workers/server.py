"""One process of the service: the real host, socket, deliveries, service and state machine, on virtual time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from tests.worlds.log.loop import SimulatedLoop
from tests.worlds.stores.memory_ports import MemoryBlocks, MemoryEntries, MemoryMessages
from tests.worlds.stores.promises import promise

from holdfast.errors import Code, Fenced, HoldfastError, Unavailable
from holdfast.server.http.auth import Authenticator, RightsWatch
from holdfast.server.http.buffers import Buffers
from holdfast.server.http.turns import LoopTurns
from holdfast.server.stores.hosting import StoreHost
from holdfast.stores.machine.state import State
from holdfast.stores.service import Done, StoreService
from holdfast.stores.storage.frames import decode_frame
from holdfast.stores.values import commands
from holdfast.wire.parts import Delivery, Message

if TYPE_CHECKING:
    from tests.worlds.workers.world import World

__all__ = ["Server"]


class Memory:
    """What the service needs of a storage whose log is elsewhere, in memory."""

    def __init__(self, frames: Iterable[bytes]) -> None:
        self.blocks, self.kept = MemoryBlocks(), MemoryMessages()
        self.kept.blocks = self.blocks
        forgotten = MemoryBlocks()
        volatile = MemoryMessages(forgotten), forgotten, MemoryEntries()
        self.state = State(self.kept, self.blocks, MemoryEntries(), volatile)
        self.last_ms = 0
        for number, frame in enumerate(frames):
            record = decode_frame(frame, number)
            assert isinstance(record, commands.Record), "nothing is relocated"
            now = self.state.apply(record.command).result
            promise(now == record.result, "replay is the same", record=record, now=now)
            self.last_ms = record.command.at_ms
        self.effects = self.state.pending_effects()
        self.messages = self.volatile = self.log = self
        self.index = SimpleNamespace(
            history="history", blocks=SimpleNamespace(changes=0), entries=SimpleNamespace(changes=0)
        )
        self.directory = "/"
        self.next_frame = self.version = self.log_bytes = 0

    def swap_arrived(self) -> None:
        """Nothing is swapped."""

    def note_frame(self, size: int) -> None:
        """Nothing is written."""

    def append(self, frames: list[bytes], version: int) -> int:
        """The cache has them."""
        self.version = version
        return len(frames)

    def messages_of(self, store: str) -> Memory:
        """Itself."""
        del store
        return self

    def deliveries(self, store: str, runs: Iterable[tuple[int, int, int]]) -> list[Delivery]:
        """See ``MessageStorage.deliveries``."""
        found: list[Delivery] = []
        for first, last, count in runs:
            for kept in self.kept.read(store, first, last):
                message = self.kept.bodies[store, kept.seq]
                found.append(
                    Delivery(
                        kept.seq,
                        message.fields,
                        message.key,
                        message.body,
                        kept.published_ms,
                        abs(count),
                        count > 1 or count < 0,
                        origin=message.origin,
                    )
                )
        return found

    def message(self, store: str, seq: int) -> tuple[Message, int] | None:
        """One message and when it was published."""
        kept = self.kept.read(store, seq, seq)
        return (self.kept.bodies[store, seq], kept[0].published_ms) if kept else None


class _Service(StoreService):
    """Tells the world of every command that it has applied."""

    applied: Callable[[commands.Command], None]

    def submit_nowait(self, command: commands.Command, *done: Done) -> None:
        """See ``StoreService``."""
        super().submit_nowait(command, *done)
        if "applied" in vars(self):
            self.applied(command)


class Server:
    """One process. It leads until another one is started, or it is killed."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        self.incarnation = 0
        self.paused_until = self.ran_since = 0.0
        self.lines: list[Any] = []
        self._landing_ms = 0.0
        self._is_silent = False
        self.loop = SimulatedLoop(world.agenda, self, world.trouble)
        tokens = Authenticator({})
        self.gateway = cast(
            "Any",
            SimpleNamespace(
                loop=self.loop,
                counters=SimpleNamespace(answers=Counter[tuple[str, int]]()),
                leader=None,
                authenticator=tokens,
                rights=RightsWatch(tokens, cast("Any", self.loop)),
                turns=LoopTurns(self.loop.call_soon),
                buffers=Buffers(1 << 30),
                guard=None,
                service=object(),
                draining=False,
                stands_by_next=False,
            ),
        )
        self.loop.turn(self._open)

    def _open(self) -> None:
        self.memory = Memory(self.world.log)
        self.host = StoreHost(self.gateway, "/", request_bytes_max=1 << 20)
        self.service = _Service.begin(cast("Any", self.memory), self.world.wall_ms, journal=self, history="history")
        self.service._draw = self._draw  # pyright: ignore[reportPrivateUsage]
        assert isinstance(self.service, _Service)
        self.service.applied = partial(self.world.applied, self)
        self.opened = self.host.open(self.service)
        self.world.opened(self)

    def _draw(self) -> int:
        return self.world.random.getrandbits(63)

    @property
    def state(self) -> State:
        """The state that it has applied."""
        return self.memory.state

    @property
    def leads(self) -> bool:
        """Whether it is the last one that was started, and lives."""
        return self.world.leader is self and not self.loop.dead

    @property
    def answers(self) -> bool:
        """Whether it leads and runs."""
        return self.leads and self.paused_until <= self.world.agenda.now

    def do(self, action: Callable[[], object]) -> None:
        """Run this on its loop."""
        self.loop.turn(action)

    def stop(self) -> None:
        """As ``StoreHost.close``, without the files."""
        self.gateway.draining = True
        for socket in list(self.host.sockets):
            cast("Any", socket).shut_down()
        self.opened.deliveries.close(Unavailable("the service is stopping", code=Code.OVERLOADED))

    def record(self, records: list[tuple[str, bytes]], durable: Callable[[int | HoldfastError], None]) -> None:
        """See ``Journal``: the entry lands later, or never if another one leads then."""
        agenda, random = self.world.agenda, self.world.random
        self._landing_ms = max(self._landing_ms + 0.001, agenda.now + random.uniform(0.2, self.world.shape.sync_ms))
        agenda.after(self._landing_ms - agenda.now, None, self._land, [frame for _, frame in records], durable)

    def _land(self, frames: list[bytes], durable: Callable[[int | HoldfastError], None]) -> None:
        if self.world.leader is not self:
            outcome: int | HoldfastError = Fenced("another one leads")
        else:
            # A process that was killed may have sent its last entries, and not all of them.
            self._is_silent = self._is_silent or (self.loop.dead and self.world.random.random() < 0.5)
            if self._is_silent:
                return
            self.world.log.extend(frames)
            outcome = len(self.world.log)
        if not self.loop.dead:
            self.world.agenda.after(0.0, self, self.loop.turn, durable, outcome)

    def kill(self) -> None:
        """``kill -9``: connections end, and what has not landed may be lost."""
        if not self.loop.dead:
            self.loop.kill()
            self.incarnation += 1
            for line in list(self.lines):
                line.cut()
