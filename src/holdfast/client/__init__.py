"""The client library: one protocol, two shells.

Owns: the public names. Inside: ``core``, ``transaction`` and ``stream`` are procedures without I/O (what to send,
when to repeat, when to ask, what is proved); ``blocking`` and ``asynchronous`` carry their effects out; ``messages``
knows the HTTP API's bodies, ``http1`` its framing, ``endpoint`` its addresses. Does not own: the materialised view
(``holdfast.view``).
"""

from __future__ import annotations

from holdfast.extras import needs

with needs("client"):
    from holdfast.client.protocol.events import Checkpoint, Event, RolledBack, TransactionEvent
    from holdfast.client.protocol.options import ClientOptions
    from holdfast.client.protocol.shell import Transacted
    from holdfast.client.sync.client import BlockingTransaction, Client, Subscription
    from holdfast.values import LogPosition
    from holdfast.wire.log import CommitReceipt, Found, FoundRange, NotCommitted, StatusAnswer, VersionAnswer

__all__ = [
    "BlockingTransaction",
    "Checkpoint",
    "Client",
    "ClientOptions",
    "CommitReceipt",
    "Event",
    "Found",
    "FoundRange",
    "LogPosition",
    "NotCommitted",
    "RolledBack",
    "StatusAnswer",
    "Subscription",
    "Transacted",
    "TransactionEvent",
    "VersionAnswer",
]
