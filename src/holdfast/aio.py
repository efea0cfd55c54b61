"""The asyncio twins of the blocking names: ``Client``, ``Queue``, ``StoreClient`` and ``persist``.

Each name is loaded when it is first used: ``Queue`` and ``persist`` need the standard library alone, all others
``holdfastdb[client]``.
"""

from __future__ import annotations

import importlib

from holdfast.extras import needs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

    from holdfast.client.aio.client import AsyncTransaction, Client, Subscription
    from holdfast.client.aio.committer import SparkCommitter, define_spark_stores
    from holdfast.client.aio.stores import StoreClient
    from holdfast.client.protocol.options import ClientOptions
    from holdfast.client.protocol.transaction import Transacted
    from holdfast.queue.aio.persist import persist
    from holdfast.queue.aio.queue import Queue

__all__ = [
    "AsyncTransaction", "Client", "ClientOptions", "Queue", "SparkCommitter", "StoreClient", "Subscription",
    "Transacted", "define_spark_stores", "persist",
]  # fmt: skip

_HOME: Final = {
    "AsyncTransaction": "holdfast.client.aio.client",
    "Client": "holdfast.client.aio.client",
    "ClientOptions": "holdfast.client.protocol.options",
    "Queue": "holdfast.queue.aio.queue",
    "SparkCommitter": "holdfast.client.aio.committer",
    "StoreClient": "holdfast.client.aio.stores",
    "Subscription": "holdfast.client.aio.client",
    "Transacted": "holdfast.client.protocol.transaction",
    "define_spark_stores": "holdfast.client.aio.committer",
    "persist": "holdfast.queue.aio.persist",
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
