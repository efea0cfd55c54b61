"""The asyncio twin of the blocking client: ``holdfast.aio.Client``.

Owns: the names of the asynchronous surface. Does not own: anything behind them (``client.asynchronous``).
"""

from __future__ import annotations

from holdfast.client.asynchronous import AsyncTransaction, Client, Subscription
from holdfast.client.options import ClientOptions
from holdfast.client.shell import Transacted

__all__ = ["AsyncTransaction", "Client", "ClientOptions", "Subscription", "Transacted"]
