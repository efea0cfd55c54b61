"""What the machine of a subscriber asks of its shell, and what it tells the application beside messages.

Owns: the shape of each step. Does not own: when which is asked for (``consuming``), carrying it out (the shells).
Failure model: pure.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from holdfast.client.protocol.effects import Wait
from holdfast.client.protocol.endpoint import Endpoint

__all__ = ["Advisory", "Connect", "Ended", "Step", "Talk"]


class Advisory(msgspec.Struct, frozen=True):
    """Something happened that no message tells, for example ``store_unavailable`` or ``durable_collision``."""

    kind: str
    facts: Mapping[str, object]


class Connect(msgspec.Struct, frozen=True):
    """Drop the connection, if any, and open a WebSocket; then ``opened``, ``refused`` or ``lost``."""

    endpoint: Endpoint
    target: str
    timeout_ms: float


class Talk(msgspec.Struct, frozen=True):
    """Send ``outgoing`` (and a ping when ``probes``), then pass on what arrives, for at most ``timeout_ms``.

    Payloads go to ``received``; then, or when nothing came in time or something was added, ``next_step`` again.
    Until the WebSocket is open, nothing is to be sent.
    """

    outgoing: tuple[bytes, ...]
    probes: bool
    timeout_ms: float


class Ended(msgspec.Struct, frozen=True):
    """There is no more to do. ``outgoing`` are last words for an open connection."""

    outgoing: tuple[bytes, ...] = ()


Step = Connect | Talk | Wait | Ended
