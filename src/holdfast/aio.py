"""The asyncio twins of the blocking names: ``Client``, ``Queue``, ``StoreClient`` and ``persist``.

Each name is loaded when it is first used: ``Queue`` and ``persist`` need the standard library alone, all others
``holdfastdb[client]``.

Owns: the names of the asynchronous surface. Does not own: anything behind them (``client.asynchronous``,
``queue.asynchronous``, ``client.stores.asynchronous``).
"""

from __future__ import annotations

import importlib

from holdfast.extras import needs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

    from holdfast.client.asynchronous import AsyncTransaction, Client, Subscription
    from holdfast.client.options import ClientOptions
    from holdfast.client.shell import Transacted
    from holdfast.client.stores.asynchronous import StoreClient
    from holdfast.queue.asynchronous import Queue
    from holdfast.queue.asynchronous_persist import persist

__all__ = [
    "AsyncTransaction",
    "Client",
    "ClientOptions",
    "Queue",
    "StoreClient",
    "Subscription",
    "Transacted",
    "persist",
]

_HOME: Final = {
    "AsyncTransaction": "holdfast.client.asynchronous",
    "Client": "holdfast.client.asynchronous",
    "ClientOptions": "holdfast.client.options",
    "Queue": "holdfast.queue.asynchronous",
    "StoreClient": "holdfast.client.stores.asynchronous",
    "Subscription": "holdfast.client.asynchronous",
    "Transacted": "holdfast.client.shell",
    "persist": "holdfast.queue.asynchronous_persist",
}


def __getattr__(name: str) -> object:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'holdfast.aio' has no attribute {name!r}")
    with needs("client"):
        value: object = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
