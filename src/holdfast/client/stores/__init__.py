"""Publishers, subscribers, maps and browsers of the message stores.

Owns: the public names; those of asyncio are in ``holdfast.client.aio.stores`` under the same names. Inside:
``publishing``, ``consuming`` and ``watching`` are machines without I/O (what is sent, when again, what came of it),
``administration`` procedures without I/O; ``blocking`` and ``asynchronous`` carry them out; ``wire`` knows the bodies,
``web_socket`` the framing. Does not own: the service (``holdfast.stores``, ``holdfast.server``).
"""

from __future__ import annotations

from holdfast.extras import needs

with needs("client"):
    from holdfast.client.stores.administration import Lock, Redelivered
    from holdfast.client.stores.options import PublisherOptions, SubscriberOptions
    from holdfast.client.stores.sent import Failure, Sent
    from holdfast.client.stores.steps import Advisory
    from holdfast.client.sync.stores import Browser, Map, Publisher, StoreClient, Subscriber, Watch
    from holdfast.stores.values.messages import Delivery, Message
    from holdfast.wire.stores import Entry, KeyChange, Receipt

__all__ = [
    "Advisory",
    "Browser",
    "Delivery",
    "Entry",
    "Failure",
    "KeyChange",
    "Lock",
    "Map",
    "Message",
    "Publisher",
    "PublisherOptions",
    "Receipt",
    "Redelivered",
    "Sent",
    "StoreClient",
    "Subscriber",
    "SubscriberOptions",
    "Watch",
]
