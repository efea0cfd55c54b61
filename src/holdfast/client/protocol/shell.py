"""What both shells need of the world: the clock, a drawn wait, and how results are handed out.

Owns: reading the clock and drawing waits for procedures. Does not own: sockets (``sockets``, ``transports``).
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from holdfast.client.protocol.effects import Wait
from holdfast.client.protocol.endpoint import Route, parse_endpoint
from holdfast.errors import Code, InvalidRequest

__all__ = ["Transacted", "draw_wait_ms", "now_ms", "routes_of", "token_of"]

Result = TypeVar("Result")


def now_ms() -> float:
    """Milliseconds of a clock that never steps back."""
    return time.monotonic() * 1000


def draw_wait_ms(wait: Wait) -> float:
    """A time between the two bounds; spreading a crowd needs no secrecy."""
    return random.uniform(wait.at_least_ms, wait.at_most_ms)


def routes_of(url: str | Sequence[str]) -> Route:
    """The places a client was configured with. Raises: InvalidRequest."""
    texts = [url] if isinstance(url, str) else list(url)
    return Route(tuple(parse_endpoint(text) for text in texts))


def token_of(text: str | None) -> str | None:
    """A bearer token as a header carries it, which is never shown. Raises: InvalidRequest (a line end, a space)."""
    if text is not None and not (text and text.isascii() and text.isprintable() and " " not in text):
        raise InvalidRequest(
            "a token has printable ASCII characters and no space",
            code=Code.BAD_CONFIGURATION,
            hint="read from a file, it may have kept its line end",
        )
    return text


@dataclass(frozen=True, slots=True)
class Transacted(Generic[Result]):
    """What the function returned, and where its transaction committed (None when it wrote nothing)."""

    value: Result
    version: int | None
