"""A shared durable: many subscribers, each message with one of them at a time.

Owns: that. Everything else is in ``consumption``.
"""

from __future__ import annotations

from holdfast.stores.durables.consumption import Consumption

__all__ = ["Shared"]


class Shared(Consumption):
    """Many subscribers. A newer session of the same subscriber displaces the older one."""

    __slots__ = ()
