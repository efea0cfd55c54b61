"""Holdfast: durability for application data.

The public surface of the package is the list below, and nothing else. Each name is loaded when it is first used, so
that importing the package needs no third-party package and takes no time. ``Client`` needs ``holdfastdb[client]``;
without it ``MissingExtra``, an ``ImportError``, names the command that installs it.

>>> import holdfast
>>> issubclass(holdfast.Conflict, holdfast.HoldfastError)
True
"""

from __future__ import annotations

import importlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

    from holdfast import aio
    from holdfast.client import Client, ClientOptions
    from holdfast.client.stores import StoreClient
    from holdfast.commit.format.transaction import (
        Delete,
        JobChange,
        Operation,
        PointRead,
        Precondition,
        RangeDelete,
        RangeRead,
        Transaction,
        Write,
    )
    from holdfast.errors import (
        AlreadyOpen,
        Backpressure,
        Closed,
        Code,
        Conflict,
        CorruptData,
        Fenced,
        HoldfastError,
        InternalError,
        InvalidRequest,
        LimitExceeded,
        NotFound,
        OutcomeUnknown,
        PermissionDenied,
        Unavailable,
    )
    from holdfast.extras import MissingExtra, __version__
    from holdfast.queue import Queue, every
    from holdfast.queue.persist import persist
    from holdfast.settings import Settings, load_configuration
    from holdfast.view import View

__all__ = [
    "AlreadyOpen", "Backpressure", "Client", "ClientOptions", "Closed", "Code", "Conflict", "CorruptData", "Delete",
    "Fenced", "HoldfastError", "InternalError", "InvalidRequest", "JobChange", "LimitExceeded", "MissingExtra",
    "NotFound", "Operation", "OutcomeUnknown", "PermissionDenied", "PointRead", "Precondition", "Queue", "RangeDelete",
    "RangeRead", "Settings", "StoreClient", "Transaction", "Unavailable", "View", "Write", "__version__", "aio",
    "every", "load_configuration", "persist",
]  # fmt: skip

_HOMES: Final = {
    "holdfast.client": ("Client", "ClientOptions"),
    "holdfast.client.stores": ("StoreClient",),
    "holdfast.commit.format.transaction": (
        "Delete", "JobChange", "Operation", "PointRead", "Precondition", "RangeDelete", "RangeRead", "Transaction",
        "Write",
    ),
    "holdfast.errors": (
        "AlreadyOpen", "Backpressure", "Closed", "Code", "Conflict", "CorruptData", "Fenced", "HoldfastError",
        "InternalError", "InvalidRequest", "LimitExceeded", "NotFound", "OutcomeUnknown", "PermissionDenied",
        "Unavailable",
    ),
    "holdfast.extras": ("MissingExtra", "__version__"),
    "holdfast.queue": ("Queue", "every"),
    "holdfast.queue.persist": ("persist",),
    "holdfast.settings": ("Settings", "load_configuration"),
    "holdfast.view": ("View",),
}  # fmt: skip
_HOME: Final = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    if name == "aio":
        return importlib.import_module("holdfast.aio")
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
    from holdfast.extras import needs  # not above: importing the package takes no time

    with needs("client"):
        value: object = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
