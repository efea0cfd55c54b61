"""The transport of the client, on virtual time. Its connections are refused, cut and silent."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from tests.worlds.gathering.shape import ENDS
from tests.worlds.stores.promises import promise

from holdfast.client.protocol.effects import ALONE, Failed, Item, Reply, Request, Response, Send
from holdfast.client.protocol.gathering import Effects, GatheredKind, Gathering, SharedRequest

if TYPE_CHECKING:
    from tests.worlds.gathering.world import World

__all__ = ["Shell"]


class Shell:
    """What carries requests."""

    def __init__(self, world: World, kind: GatheredKind) -> None:
        self._world = world
        self.machine = Gathering(kind, world.route, world.options, has_turns=world.shape.has_turns)
        self._timer_ms = float("inf")
        self._talks: dict[SharedRequest, _Talk] = {}
        self._waiting: dict[Item, Callable[[Reply], None]] = {}

    def cut_all(self) -> None:
        """The service is gone."""
        for talk in list(self._talks.values()):
            talk.cut()

    # -- items

    def share(self, item: Item, done: Callable[[Reply], None]) -> None:
        """A caller offers an item."""
        self._waiting[item] = done
        self.carry_out(self.machine.offered(item, self._world.agenda.now))
        if item.settled is ALONE:
            self._answer(item)

    def left(self, item: Item) -> None:
        """The caller of an item leaves."""
        self._waiting.pop(item, None)
        if item.settled is None:
            if item.endpoint is None and item.group is None:
                self._world.seen["left before it was sent"] += 1
                self._world.withdraw(item)
            else:
                self._world.seen["left after it was sent"] += 1
        self.machine.left(item)
        self.carry_out(self.machine.alone_ended(item, self._world.agenda.now))

    def carry_out(self, effects: Effects) -> None:
        """Do what the machine wants."""
        world = self._world
        self.machine.check()
        for item in effects.settled:
            world.agenda.after(0.0, None, self._answer, item)
        if effects.broken is not None:
            world.seen["answers that did not fit, or an end"] += 1
            self._talks.pop(effects.broken, None)
        if effects.ends_turn:
            world.agenda.after(0.0, None, self._end_turn)
        if effects.to_open is not None:
            talk = _Talk(self, world, effects.to_open)
            world.agenda.after(world.delay_ms(), None, talk.connected)
        due_ms = self.machine.due_ms
        if due_ms < self._timer_ms:
            self._timer_ms = due_ms
            world.agenda.after(max(0.0, due_ms - world.agenda.now), None, self._look, due_ms)

    def _end_turn(self) -> None:
        self.carry_out(self.machine.turn_ended(self._world.agenda.now))

    def _look(self, due_ms: float) -> None:
        if due_ms == self._timer_ms:
            self._timer_ms = float("inf")
            self.carry_out(self.machine.look(self._world.agenda.now))

    def _answer(self, item: Item) -> None:
        done = self._waiting.get(item)
        if done is None:
            return
        if item.settled is ALONE:
            request = self.machine.alone_request(item)
            assert item.endpoint is not None
            send = Send(item.endpoint, request, self._world.options.request_timeout_ms)
            self.send(send, partial(self._alone_answered, item))
            return
        del self._waiting[item]
        assert item.endpoint is not None
        done(item)

    def _alone_answered(self, item: Item, reply: Reply) -> None:
        done = self._waiting.pop(item, None)
        if done is not None:
            self.carry_out(self.machine.alone_ended(item, self._world.agenda.now))
            assert isinstance(reply, Response | Failed)
            self.machine.alone_answered(item, reply)
            done(item)

    # -- requests alone

    def send(self, effect: Send, done: Callable[[Reply], None]) -> None:
        """One request and its response."""
        world, is_done = self._world, [False]

        def reply(made: Callable[[float], Reply]) -> None:
            if not is_done[0]:
                is_done[0] = True
                done(made(world.agenda.now))

        def arrives() -> None:
            if not world.service.is_up:
                reply(lambda now: Failed(now, False, "refused"))
            elif world.strikes("lost"):
                world.seen["a request is lost"] += 1
                reply(lambda now: Failed(now, True, "broken"))
            elif world.strikes("silent"):
                world.seen["a request is silent"] += 1
            else:
                incarnation = world.service.incarnation
                world.service.handle(effect.request, partial(answered, incarnation))
                world.agenda.after(0.0, None, watch, incarnation)

        def watch(incarnation: int) -> None:
            if world.service.incarnation != incarnation:
                reply(lambda now: Failed(now, True, "killed"))
            elif not is_done[0]:
                world.agenda.after(5.0, None, watch, incarnation)

        def answered(incarnation: int, status: int, body: bytes) -> None:
            del incarnation
            is_lost = world.strikes("lost")
            world.seen["a response is lost"] += is_lost

            def made(now: float) -> Reply:
                return Failed(now, True, "broken") if is_lost else Response(now, status, {}, body)

            world.agenda.after(world.delay_ms(), None, reply, made)

        def too_late(now: float) -> Reply:
            return Failed(now, True, "no answer in time")

        world.agenda.after(world.delay_ms(), None, arrives)
        world.agenda.after(effect.timeout_ms, None, reply, too_late)

    # -- shared requests

    def opened(self, talk: _Talk) -> None:
        """It may be cut from now on."""
        self._talks[talk.shared] = talk

    def over(self, talk: _Talk, reply: Response | Failed) -> None:
        """Nothing more comes."""
        self._talks.pop(talk.shared, None)
        self.carry_out(self.machine.ended(talk.shared, reply))

    def finish(self) -> None:
        """At the end of the world."""
        promise(not self._waiting, ENDS, waiting=len(self._waiting))


class _Talk:
    """One shared request and its response."""

    def __init__(self, shell: Shell, world: World, shared: SharedRequest) -> None:
        self._shell, self._world, self.shared = shell, world, shared
        self._is_over = False
        self._next_ms = 0.0

    def connected(self) -> None:
        """There is a connection, or there is none."""
        world, shell = self._world, self._shell
        now_ms = world.agenda.now
        if not world.service.is_up or world.strikes("lost"):
            world.seen["no connection"] += 1
            shell.carry_out(shell.machine.not_opened(self.shared, Failed(now_ms, False, "refused")))
            return
        request = shell.machine.opened(self.shared, now_ms)
        shell.carry_out(Effects())
        if request is None:
            world.seen["nothing is left to send"] += 1
            return
        shell.opened(self)
        world.agenda.after(world.options.request_timeout_ms, None, self._too_late)
        if world.strikes("silent"):
            world.seen["a stream is silent"] += 1
            return
        if world.strikes("lost"):
            world.seen["a stream is lost on its way"] += 1
            world.agenda.after(world.delay_ms(), None, self.cut)
            return
        if world.strikes("lost"):
            world.agenda.after(world.delay_ms() * 2 + world.shape.sync_ms, None, self.cut)
        world.agenda.after(world.delay_ms(), world.service, self._arrives, request)

    def _arrives(self, request: Request) -> None:
        if request.target == "/v1/commits":
            self._world.service.stream(request, self._write, self._whole, self._end)
        else:
            self._world.service.handle(request, self._whole)

    def _later(self, action: Callable[..., None], *arguments: object) -> None:
        self._next_ms = max(self._next_ms + 0.001, self._world.agenda.now + self._world.delay_ms())
        self._world.agenda.after(self._next_ms - self._world.agenda.now, None, action, *arguments)

    def _write(self, data: bytes) -> None:
        self._later(self._received, data)

    def _received(self, data: bytes) -> None:
        if not self._is_over:
            self._shell.carry_out(self._shell.machine.received(self.shared, data, self._world.agenda.now))

    def _end(self) -> None:
        self._later(self._ended, 200)

    def _ended(self, status: int, body: bytes = b"") -> None:
        if not self._is_over:
            self._is_over = True
            self._shell.over(self, Response(self._world.agenda.now, status, {}, body))

    def _whole(self, status: int, body: bytes) -> None:
        if status == 200:
            self._write(body)
            self._end()
        else:
            self._later(self._ended, status, body)

    def cut(self) -> None:
        """It breaks."""
        if not self._is_over:
            self._is_over = True
            self._world.seen["a stream is cut"] += 1
            self._shell.over(self, Failed(self._world.agenda.now, True, "broken"))

    def _too_late(self) -> None:
        if not self._is_over:
            self._is_over = True
            self._shell.over(self, Failed(self._world.agenda.now, True, "no answer in time"))
