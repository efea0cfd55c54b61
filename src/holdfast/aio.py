"""The asyncio twin of the blocking client: ``holdfast.aio.Client``.

Owns: the names of the asynchronous surface. Does not own: anything behind them (``client.asynchronous``).
"""

from __future__ import annotations

from holdfast.client.asynchronous import AsyncTransaction, Client, Subscription
from holdfast.client.blocking import Transacted
from holdfast.client.options import ClientOptions

__all__ = ["AsyncTransaction", "Client", "ClientOptions", "Subscription", "Transacted"]
