"""Which endpoints are silent, and when a wait at one of them is given up: because another one says that it leads.

A connection to a frozen process is accepted by its kernel, and a machine without power refuses nothing. So silence is
the only sign, and a slow service is silent too. The rules:

    what is seen                                        what happens
    a request, a stream or a socket has no byte for     its endpoint is asked for a sign of life (``GET /livez``), again
      ``LOOK_AFTER_MS``                                 every ``LIVES_AGAIN_MS`` while it answers
    no answer within ``ANSWER_MS``, or no connection    it is silent: every endpoint is asked, every ``AGAIN_MS``
    an endpoint says that it leads while another        the waits at the silent one end, as if their connection had
      one is silent                                     broken; the next request goes to the leader
    a silent endpoint answers                           it is as good as any other
    ``REMEMBERED_MS`` without a wait at a silent one    it is forgotten

A wait is never given up for silence alone: with no leader elsewhere the time-outs of the requests hold. An outcome that
a given-up request leaves open is asked for, as after every broken connection. The cost for a service that is slow and
healthy is one small request of each client every ``LIVES_AGAIN_MS``; a standby is asked nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final, Protocol

import msgspec

from holdfast.client.protocol.effects import Failed, Request, Response
from holdfast.client.protocol.endpoint import ClientRoute, Endpoint
from holdfast.wire.formats import UNDECODABLE

LOOK_AFTER_MS: Final = 500.0
ANSWER_MS: Final = 500.0
AGAIN_MS: Final = 200.0
LIVES_AGAIN_MS: Final = 2_000.0
REMEMBERED_MS: Final = 10_000.0

ANOTHER_LEADS: Final = "it gives no sign of life, and another endpoint leads"
SIGN_OF_LIFE: Final = Request("GET", "/livez")


class _Alive(msgspec.Struct, frozen=True):
    """What matters of ``/livez``. A bulk job leads its log and takes no requests."""

    leading: bool = False
    job: bool = False


_ALIVE: Final = msgspec.json.Decoder(_Alive)


def leads(reply: Response | Failed) -> bool | None:
    """Whether the endpoint that gave this reply leads; None without a response.

    >>> leads(Response(0, 200, {}, b'{"leading": true}')), leads(Failed(0, True, "silent"))
    (True, None)
    """
    if isinstance(reply, Failed):
        return None
    try:
        alive = _ALIVE.decode(reply.body)
    except UNDECODABLE:  # some other server: it is alive
        return False
    return reply.status == 200 and alive.leading and not alive.job


@dataclass(slots=True)
class _Seen:
    """What is known of one endpoint. ``silent_until_ms``: when its silence is forgotten, 0 while it is not silent."""

    is_asked: bool = False
    due_ms: float = 0.0
    silent_until_ms: float = 0.0


class Waiting(Protocol):
    """A part of a client that waits for endpoints."""

    def awaited(self, at_ms: float) -> list[tuple[Endpoint, float]]:
        """The endpoints of which it awaits bytes now, and since when."""
        ...

    def leave(self, endpoints: Collection[Endpoint], at_ms: float) -> None:
        """End every wait at these endpoints: another one leads."""
        ...


class Lookout:
    """Its driver calls ``look`` with the endpoints at which a wait is ``overdue``, asks those that it returns, passes
    each answer to ``answered``, and ends the waits of all ``parts`` at those that this returns. Not thread-safe."""

    def __init__(self, route: ClientRoute) -> None:
        self._route = route
        self.parts: dict[Waiting, None] = {}
        self._seen: dict[Endpoint, _Seen] = {}

    def add(self, part: Waiting) -> None:
        """Watch this part, too. Threads may call this, and ``remove``, at any time."""
        self.parts[part] = None

    def remove(self, part: Waiting) -> None:
        """It waits for nothing any more."""
        self.parts.pop(part, None)

    @property
    def is_busy(self) -> bool:
        """Whether ``look`` is to be called again after ``AGAIN_MS``, also while nothing waits."""
        return bool(self._seen)

    def overdue(self, parts: Iterable[Waiting], now_ms: float) -> tuple[bool, list[Endpoint]]:
        """Whether these parts wait for anything, and the endpoints at which a wait needs a sign of life: one that is
        long, and each at a silent endpoint."""
        awaited = [each for part in parts for each in part.awaited(now_ms)]
        silent = self._route.silent
        return bool(awaited), [
            endpoint for endpoint, since_ms in awaited if now_ms - since_ms >= LOOK_AFTER_MS or endpoint in silent
        ]

    def look(self, overdue: Collection[Endpoint], now_ms: float) -> list[Endpoint]:
        """The endpoints to ask for a sign of life now, each once."""
        self._remember(overdue, now_ms)
        everyone = dict.fromkeys((*self._route.configured, self._route.current, *overdue))
        if len(everyone) == 1:
            overdue = ()  # nobody else could lead
        asks_all = any(endpoint in self._route.silent for endpoint in overdue)
        silent = [endpoint for endpoint, state in self._seen.items() if state.silent_until_ms]
        relevant = dict.fromkeys((*(each for each in everyone if asks_all or each in overdue), *silent))
        self._seen = {endpoint: self._seen.get(endpoint) or _Seen() for endpoint in relevant}
        endpoints = [
            endpoint for endpoint, state in self._seen.items() if not state.is_asked and state.due_ms <= now_ms
        ]
        for endpoint in endpoints:
            self._seen[endpoint].is_asked = True
        return endpoints

    def answered(self, endpoint: Endpoint, leads_now: bool | None, now_ms: float) -> list[Endpoint]:
        """The endpoint said whether it leads, or gave no answer (None). Returns where every wait ends now."""
        state = self._seen.get(endpoint)
        if state is None or not state.is_asked:
            return []
        state.is_asked = False
        if leads_now is None:
            state.silent_until_ms = state.silent_until_ms or now_ms + REMEMBERED_MS
        else:
            state.silent_until_ms = 0.0
        self._publish()
        silent = self._route.silent
        state.due_ms = now_ms + (AGAIN_MS if silent else LIVES_AGAIN_MS)
        if not leads_now or not silent:
            return []
        if self._route.current in silent:
            self._route.current = endpoint
        return [each for each in self._seen if each in silent]

    def _remember(self, overdue: Collection[Endpoint], now_ms: float) -> None:
        for endpoint, state in self._seen.items():
            if state.silent_until_ms and endpoint in overdue:
                state.silent_until_ms = now_ms + REMEMBERED_MS
            elif state.silent_until_ms <= now_ms:
                state.silent_until_ms = 0.0
        self._publish()

    def _publish(self) -> None:
        silent = frozenset(endpoint for endpoint, state in self._seen.items() if state.silent_until_ms)
        if silent != self._route.silent:
            self._route.silent = silent

    def check(self) -> None:
        """Assert every law of the state; for tests."""
        silent = {endpoint for endpoint, state in self._seen.items() if state.silent_until_ms}
        assert silent == self._route.silent, "the route knows who is silent"
        assert len(self._seen) <= len(self._route.configured) + len(silent) + 16, "no endpoint is remembered for ever"
