"""What a client procedure asks of its shell, and what the shell answers.

Owns: the closed list of effects and answers, and the type of a procedure. Does not own: sockets, clocks, randomness
(the shells), or what to ask for next (``core``, ``stream``).

A procedure is a generator: it yields one effect at a time and is sent that effect's answer. It never blocks, reads no
clock and draws no random number, so the blocking and the asyncio client run the very same procedure. Time arrives in
every answer as ``now_ms`` of a clock that never steps back.

Failure model: a request has three answers. ``Reply``: the whole answer arrived. ``Failed(perhaps_accepted=False)``:
the request cannot have been accepted, because its last byte was never handed over (no byte at all, where the service
accepts it in parts). ``Failed(perhaps_accepted=True)``:
unknown. A shell in doubt says unknown.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from holdfast.client.endpoint import Endpoint
    from holdfast.client.events import Event
    from holdfast.client.transaction import TransactionBuilder
    from holdfast.errors import HoldfastError

__all__ = [
    "Answer",
    "AwaitVersion",
    "Chunk",
    "Decide",
    "Deliver",
    "Effect",
    "Failed",
    "Open",
    "Opened",
    "Procedure",
    "Receive",
    "Reply",
    "Request",
    "Send",
    "Wait",
    "Woken",
]


@dataclass(frozen=True, slots=True)
class Request:
    """One HTTP request, without what belongs to the connection (host, token, framing).

    ``accepted_in_parts``: the service acts on the body as it arrives, so its first byte may already be accepted.
    """

    method: str
    target: str
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()
    accepted_in_parts: bool = False


@dataclass(frozen=True, slots=True)
class Send:
    """Send the request once and collect the whole answer. Answered by ``Reply`` or ``Failed``."""

    endpoint: Endpoint
    request: Request
    timeout_ms: float


@dataclass(frozen=True, slots=True)
class Wait:
    """Sleep for a time drawn evenly from the two bounds. Answered by ``Woken``. ``reason`` is for people."""

    at_least_ms: float
    at_most_ms: float
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Decide:
    """Let the caller's function read and write through the builder. Answered by ``Woken``; its exceptions end all."""

    builder: TransactionBuilder


@dataclass(frozen=True, slots=True)
class AwaitVersion:
    """Wait until the transaction's view holds everything up to ``version``. Answered by ``Woken`` or ``Failed``."""

    version: int
    timeout_ms: float


@dataclass(frozen=True, slots=True)
class Open:
    """Close the open stream, if any, and open this one. Answered by ``Opened``, ``Reply`` (refused) or ``Failed``."""

    endpoint: Endpoint
    request: Request
    timeout_ms: float


@dataclass(frozen=True, slots=True)
class Receive:
    """Wait for more bytes of the open stream. Answered by ``Chunk`` or ``Failed`` (it ended, broke or fell silent)."""

    timeout_ms: float


@dataclass(frozen=True, slots=True)
class Deliver:
    """Hand these events to the caller; the answer, ``Woken``, comes when the caller asks for more."""

    events: tuple[Event, ...]


Effect = Send | Wait | Decide | AwaitVersion | Open | Receive | Deliver


@dataclass(frozen=True, slots=True)
class Reply:
    """The whole answer. Header names are lowercase."""

    now_ms: float
    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Failed:
    """No whole answer. ``partial`` is what arrived of its body.

    ``problem``: why that place cannot be talked to before somebody mends a configuration. It ends an operation and says
    that nothing was accepted, so what was perhaps accepted has none. ``too_large``: the answer exceeds what this client
    takes, so asking the same again is of no use. ``asked``: False where this client had no connection free, which tells
    nothing of the place.
    """

    now_ms: float
    perhaps_accepted: bool
    reason: str
    partial: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    problem: HoldfastError | None = None
    too_large: bool = False
    asked: bool = True

    def __post_init__(self) -> None:
        if self.perhaps_accepted and self.problem is not None:  # no assert: an optimised run must not lose a commit
            raise AssertionError("what was perhaps accepted has no problem that ends an operation")


@dataclass(frozen=True, slots=True)
class Woken:
    """The effect is done."""

    now_ms: float


@dataclass(frozen=True, slots=True)
class Opened:
    """The stream is open: status 200, bytes follow."""

    now_ms: float


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some bytes of the stream, never none."""

    now_ms: float
    data: bytes


Answer = Reply | Failed | Woken | Opened | Chunk

Result = TypeVar("Result")
Procedure = Generator[Effect, Answer, Result]
