"""One caller: it commits and transacts through the client's real procedures, and leaves in the middle of some."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.worlds.gathering.shape import OWN, READ
from tests.worlds.stores.promises import promise

from holdfast.client.protocol import log_operations
from holdfast.client.protocol.effects import (
    AwaitVersion,
    Decide,
    Effect,
    Item,
    Learn,
    Reply,
    Send,
    Share,
    Wait,
    Woken,
)
from holdfast.client.protocol.transaction import ServiceSource, TransactionAttempts
from holdfast.commit.format.transaction import Write
from holdfast.errors import HoldfastError, OutcomeUnknown
from holdfast.wire.log import CommitReceipt, NotCommitted

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from tests.worlds.gathering.shell import Shell
    from tests.worlds.gathering.world import World

__all__ = ["Caller"]

Procedure = "Generator[Effect, Reply, Any]"


class Caller:
    """One caller with one call at a time."""

    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self.name = name
        self._number = 0
        self._call = 0
        """Counts calls, so that replies to a call that was left are dropped."""
        self.is_done = False
        self._marker = b""
        self._shared: tuple[Shell, Item] | None = None
        """What it has offered, and where."""
        self._attempts: TransactionAttempts | None = None

    def begin(self) -> None:
        """The next call, or the end."""
        world = self._world
        if self._number >= world.shape.calls:
            self.is_done = True
            return
        self._number += 1
        self._call += 1
        self._marker = f"{self.name}/{self._number}".encode()
        entropy = f"{self.name}-{self._number}-{'x' * 16}"
        session, now_ms = world.session, world.agenda.now
        procedure: Generator[Effect, Reply, Any]
        if world.random.random() < world.shape.transacts:
            source = ServiceSource(session)
            self._attempts = TransactionAttempts(session, source, entropy)
            procedure = self._attempts.run(now_ms)
        else:
            self._attempts = None
            operations = [Write(b"marker", self._marker), Write(b"x", self._marker)]
            wanted = log_operations.transaction_of(operations)
            procedure = log_operations.commit(session, wanted, entropy, now_ms)
        if world.strikes("leaves"):
            after_ms = world.random.random() * (world.shape.delay_ms * 4 + world.shape.sync_ms)
            world.agenda.after(after_ms, None, self._leave, self._call, procedure)
        self._drive(self._call, procedure, None)

    def _leave(self, call: int, procedure: Generator[Effect, Reply, Any]) -> None:
        if call != self._call or self.is_done:
            return
        self._call += 1
        if self._shared is not None:
            (shell, item), self._shared = self._shared, None
            shell.left(item)
        procedure.close()
        self._rest()

    def _drive(self, call: int, procedure: Generator[Effect, Reply, Any], reply: Reply | None) -> None:
        if call != self._call:
            return
        self._shared = None
        try:
            effect = next(procedure) if reply is None else procedure.send(reply)
        except StopIteration as stop:
            self._ended(stop.value)
            return
        except HoldfastError as error:
            self._failed(error)
            return
        self._carry_out(call, procedure, effect)

    def _carry_out(self, call: int, procedure: Generator[Effect, Reply, Any], effect: Effect) -> None:
        world = self._world

        def done(reply: Reply) -> None:
            self._drive(call, procedure, reply)

        match effect:
            case Share(item=item):
                self._shared = world.shell, item
                world.shell.share(item, done)
            case Send():
                world.shell.send(effect, done)
            case Wait(at_least_ms=least, at_most_ms=most):
                world.agenda.after(world.random.uniform(least, most), None, self._woken, done)
            case Learn():
                version = log_operations.version(world.session, world.agenda.now, local=True)
                self._inner(call, procedure, version, done)
            case Decide():
                self._decide(call, procedure, done)
            case _:
                assert not isinstance(effect, AwaitVersion), "there is no view"
                raise AssertionError(effect)

    def _woken(self, done: Callable[[Reply], None]) -> None:
        done(Woken(self._world.agenda.now))

    def _inner(
        self,
        call: int,
        outer: Generator[Effect, Reply, Any],
        inner: Generator[Effect, Reply, Any],
        done: Callable[[Reply], None],
        reply: Reply | None = None,
        found: Callable[[Any], None] | None = None,
    ) -> None:
        """Drive a procedure within one: its error ends the call."""
        if call != self._call:
            return
        try:
            effect = next(inner) if reply is None else inner.send(reply)
        except StopIteration as stop:
            if found is not None:
                found(stop.value)
            done(Woken(self._world.agenda.now))
        except HoldfastError as error:
            if self._attempts is not None and self._attempts.builder.moved_to is not None:
                done(Woken(self._world.agenda.now))
                return
            outer.close()
            self._failed(error)
        else:

            def again(got: Reply) -> None:
                self._inner(call, outer, inner, done, got, found)

            if isinstance(effect, Send):
                self._world.shell.send(effect, again)
            elif isinstance(effect, Share):
                assert effect.reads, "a transaction reads before it commits"
                self._shared = self._world.reads, effect.item
                self._world.reads.share(effect.item, again)
            else:
                assert isinstance(effect, Wait)
                wait_ms = self._world.random.uniform(effect.at_least_ms, effect.at_most_ms)
                self._world.agenda.after(wait_ms, None, self._woken, again)

    def _decide(self, call: int, procedure: Generator[Effect, Reply, Any], done: Callable[[Reply], None]) -> None:
        """Add one to a counter."""
        world = self._world
        assert self._attempts is not None
        builder = self._attempts.builder
        key = b"n%d" % world.random.randrange(4)
        asked = builder.read_version

        def found(value: bytes | None) -> None:
            world.seen["read"] += 1
            service = world.service
            possible = {service.value_at(key, version) for version in range(asked, service.version + 1)}
            promise(value in possible, READ, key=key, value=value, asked=asked)
            builder.write(key, b"%d" % (int(value or b"0") + 1))
            builder.write(b"marker", self._marker)

        self._inner(call, procedure, builder.reading(key, world.agenda.now), done, None, found)

    # -- outcomes

    def _ended(self, result: CommitReceipt | NotCommitted) -> None:
        world = self._world
        if isinstance(result, CommitReceipt):
            world.seen["answered: committed"] += 1
            there = world.service.markers.get(result.version)
            promise(there == self._marker, OWN, version=result.version, own=self._marker, there=there)
        else:
            world.seen["answered: not committed"] += 1
            world.denied(self._marker)
        self._rest()

    def _failed(self, error: HoldfastError) -> None:
        world = self._world
        world.seen[f"raised: {type(error).__name__}"] += 1
        if not isinstance(error, OutcomeUnknown):
            world.denied(self._marker)
        self._rest()

    def _rest(self) -> None:
        self._call += 1  # who was to leave this call leaves no other
        self._world.agenda.after(self._world.random.random() * self._world.shape.think_ms, None, self.begin)
