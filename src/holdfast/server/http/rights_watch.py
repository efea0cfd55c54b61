"""Streams, sockets and polls that wait, which end when their caller has lost the right to them.

Twice a second, where tokens or definitions were replaced or a token may have expired, each one is asked. One that may
go on is not touched.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from holdfast.errors import HoldfastError
from holdfast.server.http.auth import Authenticator

LOOK_SECONDS: Final = 0.5
LAST_WORDS_SECONDS: Final = 0.4
"""How long a peer may still take what was written for it, and why the act ends. Then its connection is aborted: both
together are less than the second after which nothing is shown."""


class OpenAct(Protocol):
    """What goes on after its first answer, or waits for it."""

    def problem(self) -> HoldfastError | None:
        """None while its caller may go on, else the error."""
        ...

    def end_for(self, problem: HoldfastError) -> Awaitable[object] | None:
        """End it and say why, now or by what is returned. Called once at most."""
        ...


class RightsWatch:
    """All open acts of a server. *Cost*: a timer while there is one; a comparison of each basis every half second."""

    def __init__(self, authenticator: Authenticator, loop: asyncio.AbstractEventLoop) -> None:
        self._authenticator = authenticator
        self._loop = loop
        self._acts: dict[OpenAct, None] = {}
        self._new: dict[OpenAct, None] = {}
        """Those that came after the last look: tokens may have been replaced between their head and their start."""
        self._bases: list[Callable[[], object]] = []
        self._known: list[object] = []
        self._generation = -1
        self._timer: asyncio.TimerHandle | None = None
        self._ending: set[asyncio.Future[object]] = set()

    def also(self, basis: Callable[[], object]) -> None:
        """Ask the open acts, too, when ``basis`` returns another object: rights do not come from tokens alone."""
        self._bases.append(basis)
        self._known.append(None)

    def add(self, act: OpenAct) -> None:
        """Watch it until ``discard``."""
        self._acts[act] = self._new[act] = None
        if self._timer is None and (self._authenticator.required or self._bases):
            self._timer = self._loop.call_later(LOOK_SECONDS, self._look)

    def discard(self, act: OpenAct) -> None:
        """It has ended."""
        self._acts.pop(act, None)
        self._new.pop(act, None)

    def _look(self) -> None:
        self._timer = self._loop.call_later(LOOK_SECONDS, self._look) if self._acts else None
        new, self._new = self._new, {}
        known = [basis() for basis in self._bases]
        same = all(new is old for new, old in zip(known, self._known, strict=True))
        same = same and self._generation == self._authenticator.generation and not self._authenticator.expires
        self._generation, self._known = self._authenticator.generation, known
        for act in new if same else list(self._acts):
            if act in self._acts and (problem := act.problem()) is not None:
                self._end(act, problem)

    def _end(self, act: OpenAct, problem: HoldfastError) -> None:
        self._acts.pop(act, None)
        ending = act.end_for(problem)
        if ending is not None:  # not waited for: a peer that reads nothing keeps no other act open
            task = asyncio.ensure_future(ending, loop=self._loop)
            self._ending.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Future[object]) -> None:
        self._ending.discard(task)
        if not task.cancelled():
            task.exception()  # the peer is gone: there was nothing more to say
