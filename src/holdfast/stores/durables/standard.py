"""A standard durable: one subscriber at a time, and the newest wins.

Owns: that. Everything else is in ``consumption``.
"""

from __future__ import annotations

from holdfast.stores.durables.consumption import Consumption

__all__ = ["Standard"]


class Standard(Consumption):
    """One subscriber; a newer one displaces it, and gets what the older one held, counted as redelivered."""

    __slots__ = ()
    exclusive = True
