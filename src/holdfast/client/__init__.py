"""The client library: one protocol, with blocking and with asyncio input and output.

Read in this order:

1. ``protocol`` decides. Procedures and machines without I/O say what to send, when to retry and what an outcome proves.
   ``protocol.log_operations`` (the rules of a commit) is the place to start; ``protocol.stores`` are the machines of
   publishers, subscribers and watches. ``protocol.gathering`` says which commits and gets travel in one request.
2. ``transport`` has connections: ``transport.aio`` on an event loop and ``transport.sync`` with sockets and threads,
   with the same names in both; ``transport.subscribing`` has what subscribers do in both.
3. ``aio`` has the asyncio clients, which join ``protocol`` and ``transport``. ``sync`` has the blocking clients;
   ``scripts/generate_sync_clients.py`` generates them from ``aio``.

Every other operation is a loop of the same kind::

    effect = next(procedure)                                # for example Send(endpoint, request, timeout_ms)
    while True:
        effect = procedure.send(await carry_out(effect))    # for example Response(now_ms, 200, headers, body)

The public names are in this module, in ``holdfast.client.stores`` and, for asyncio, in ``holdfast.aio``.
"""

from __future__ import annotations

from holdfast.extras import needs

with needs("client"):
    from holdfast.client.protocol.effects import Checkpoint, Event, PublishedEvent, RolledBack, TransactionEvent
    from holdfast.client.protocol.options import ClientOptions
    from holdfast.client.protocol.transaction import Transacted
    from holdfast.client.sync.client import BlockingTransaction, Client, Subscription
    from holdfast.values import LogPosition
    from holdfast.wire.log import (
        CommitReceipt,
        Found,
        FoundRange,
        JobRecord,
        JobRecords,
        NotCommitted,
        RetentionAnswer,
        RetentionPlan,
        RetentionPolicy,
        StatusAnswer,
        StreamMessage,
        VersionAnswer,
    )

__all__ = [
    "BlockingTransaction", "Checkpoint", "Client", "ClientOptions", "CommitReceipt", "Event", "Found", "FoundRange",
    "JobRecord", "JobRecords", "LogPosition", "NotCommitted", "PublishedEvent", "RetentionAnswer", "RetentionPlan",
    "RetentionPolicy", "RolledBack", "StatusAnswer", "StreamMessage", "Subscription", "Transacted",
    "TransactionEvent", "VersionAnswer",
]  # fmt: skip
