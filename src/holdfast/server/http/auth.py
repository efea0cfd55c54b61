"""Bearer tokens and their roles, and the end of what goes on for a caller who has lost the right to it.

Without configured tokens every caller has every role. Tokens are compared by their SHA-256 digests in a table, so the
time of a refusal does not reveal how much of a token was right, and no token is kept in memory.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from hashlib import sha256
from typing import Final, Protocol

from holdfast.errors import Code, HoldfastError, PermissionDenied
from holdfast.server.http.key_scope import EVERYTHING, NOTHING, KeyScope

EXPIRED_HINT: Final = "ask the operator of the service for a new token"
TOKEN_HINT: Final = "send Authorization: Bearer <token>; commands take --token or HOLDFAST_TOKEN"

ClientKey = bytes | str
"""Whose requests count together: see ``Authenticator.client_of``."""


class Role(IntEnum):
    """What a caller may do. A higher role includes the lower ones; ``OPEN`` needs no token.

    ``JOB`` is that of a job that keeps its record in the log: to read and change records of jobs.
    """

    OPEN = 0
    READ = 1
    WRITE = 2
    JOB = 3
    ADMIN = 4


@dataclass(frozen=True, slots=True)
class Grant:
    """A role until a moment (Unix time in seconds), or without an end, for the keys of ``scope``."""

    role: Role
    until: float | None = None
    scope: KeyScope = EVERYTHING


class Authenticator:
    """Recognises bearer tokens. ``generation`` counts how often they were replaced."""

    __slots__ = ("_grants", "expires", "generation", "required")

    def __init__(self, tokens: Mapping[str, Role | Grant]) -> None:
        self.required = bool(tokens)
        self.generation = -1
        self.replace(tokens)

    def replace(self, tokens: Mapping[str, Role | Grant]) -> None:
        """From now on these tokens count. Whether tokens are needed at all never changes."""
        assert self.required == bool(tokens), "a service is neither opened nor closed while it runs"
        self._grants = {
            sha256(token.encode()).digest(): Grant(held) if isinstance(held, Role) else held
            for token, held in tokens.items()
        }
        self.expires = any(held.until is not None for held in self._grants.values())
        self.generation += 1

    def problem_with(
        self, authorization: bytes | None, role: Role, *, checks_scope: bool = False
    ) -> HoldfastError | None:
        """None when the caller has ``role``, else the error. ``authorization``: the header, None without it.

        ``checks_scope``: the route looks at ``scope_of`` itself, or shows no keys. Any other refuses a scoped token.
        """
        if not self.required or role is Role.OPEN:
            return None
        held = self._grants.get(token_digest(authorization))
        if held is None:
            return PermissionDenied("a valid bearer token is needed", code=Code.UNAUTHENTICATED, hint=TOKEN_HINT)
        if held.until is not None and time.time() >= held.until:
            return PermissionDenied("the bearer token has expired", code=Code.UNAUTHENTICATED, hint=EXPIRED_HINT)
        if held.role < role:
            return PermissionDenied(f"this token lacks the `{role.name.lower()}` role")
        if not (checks_scope or held.scope.is_everything):
            return PermissionDenied("the token is for some keys only, and this route for the whole service")
        return None

    def knows(self, authorization: bytes | None) -> bool:
        """Whether the caller has shown a token that is valid now, or needs none."""
        return not self.required or self._valid(authorization) is not None

    def _valid(self, authorization: bytes | None) -> Grant | None:
        held = self._grants.get(token_digest(authorization))
        return held if held is not None and (held.until is None or time.time() < held.until) else None

    def scope_of(self, authorization: bytes | None) -> KeyScope:
        """The keys that the caller's token is for: ``NOTHING`` for one that is unknown, was removed or has expired."""
        if not self.required:
            return EVERYTHING
        held = self._valid(authorization)
        return NOTHING if held is None else held.scope

    def until_of(self, authorization: bytes | None) -> float | None:
        """When the caller's token expires, as Unix time in seconds; None for a token without an end, or for none."""
        held = self._grants.get(token_digest(authorization)) if self.expires else None
        return None if held is None else held.until

    def name_of(self, authorization: bytes | None) -> str:
        """The name of the caller's token for people: its role and the first 8 digits of its SHA-256; empty without one.
        They do not reveal the token, and its owner can compute them.
        """
        digest = token_digest(authorization)
        held = self._grants.get(digest)
        return "" if held is None else f"{held.role.name.lower()}#{digest.hex()[:8]}"

    def client_of(self, authorization: bytes | None, peer: object) -> ClientKey:
        """The client for limits: its token, or without tokens the address of ``peer``. Unix sockets are one client."""
        if self.required:
            return token_digest(authorization)
        host: object = peer[0] if isinstance(peer, tuple) and peer else None
        return host if isinstance(host, str) else "unix"


class HeldRight:
    """A right that is asked for again at each act. It is found again by the caller's token.

    ``problem`` compares three values while no token was replaced or expired and ``basis`` returns the same object;
    else it asks ``ask``.
    """

    __slots__ = ("_ask", "_authenticator", "_authorization", "_basis", "_generation", "_known_basis", "_until")

    def __init__(
        self,
        authenticator: Authenticator,
        authorization: bytes | None,
        ask: Callable[[], HoldfastError | None],
        basis: Callable[[], object] = lambda: None,
    ) -> None:
        self._authenticator = authenticator
        self._authorization = authorization
        self._ask = ask
        self._basis = basis
        self._known_basis: object = None
        self._generation = -1
        self._until: float | None = None

    def problem(self) -> HoldfastError | None:
        """None while the caller may, else the error."""
        generation, basis = self._authenticator.generation, self._basis()
        if (
            generation == self._generation
            and basis is self._known_basis
            and (self._until is None or time.time() < self._until)
        ):
            return None
        problem = self._ask()
        if problem is None:
            self._generation, self._known_basis = generation, basis
            self._until = self._authenticator.until_of(self._authorization)
        return problem


def token_digest(authorization: bytes | None) -> bytes:
    """The SHA-256 of the bearer token in this header. Without one it is empty, which is the digest of no token."""
    if authorization is None:
        return b""
    scheme, _, token = authorization.partition(b" ")
    return sha256(token.strip()).digest() if scheme.lower() == b"bearer" else b""


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
    """All open acts of a server. Twice a second, where tokens or definitions were replaced or a token may have expired,
    each one is asked. *Cost*: a timer while there is one; a comparison of each basis every half second."""

    def __init__(self, authenticator: Authenticator, loop: asyncio.AbstractEventLoop) -> None:
        self._authenticator = authenticator
        self._loop = loop
        self._acts: dict[OpenAct, None] = {}
        self._new: dict[OpenAct, None] = {}
        """Those that came after the last look: tokens may have been replaced between their head and their start."""
        self._bases: list[Callable[[], object]] = []
        self._known: list[object] = []
        self._timer: asyncio.TimerHandle | None = None
        self._ending: set[asyncio.Future[object]] = set()

    def also(self, basis: Callable[[], object]) -> None:
        """Ask the open acts, too, when ``basis`` returns another value: rights do not come from tokens alone."""
        self._bases.append(basis)

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
        known = [self._authenticator.generation, *(basis() for basis in self._bases)]
        same = known == self._known and not self._authenticator.expires
        acts, self._new, self._known = self._new if same else dict(self._acts), {}, known
        for act in acts:
            if act in self._acts and (problem := act.problem()) is not None:
                self._end(act, problem)

    def _end(self, act: OpenAct, problem: HoldfastError) -> None:
        del self._acts[act]
        ending = act.end_for(problem)
        if ending is not None:  # not waited for: a peer that reads nothing keeps no other act open
            task = asyncio.ensure_future(ending, loop=self._loop)
            self._ending.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Future[object]) -> None:
        self._ending.discard(task)
        if not task.cancelled():
            task.exception()  # the peer is gone: there was nothing more to say
