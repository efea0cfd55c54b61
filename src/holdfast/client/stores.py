"""Publishers, subscribers, maps and browsers of the message stores, for blocking programs.

The asyncio clients are ``holdfast.aio.StoreClient`` and the objects that it returns.
"""

from __future__ import annotations

from holdfast.extras import needs

with needs("client"):
    from holdfast.client.protocol.options import PublisherOptions, SubscriberOptions
    from holdfast.client.protocol.stores.administration import Redelivered
    from holdfast.client.protocol.stores.messages import Advisory
    from holdfast.client.protocol.stores.publisher import Failure, Sent
    from holdfast.client.sync.committer import SparkCommitter, define_spark_stores
    from holdfast.client.sync.publisher import Publisher
    from holdfast.client.sync.stores import Browser, Map, StoreClient
    from holdfast.client.sync.subscriber import Subscriber, Watch
    from holdfast.wire.parts import Delivery, Message, Receipt
from holdfast.wire.stores import Entry, KeyChange, Lock

__all__ = [
    "Advisory", "Browser", "Delivery", "Entry", "Failure", "KeyChange", "Lock", "Map", "Message", "Publisher",
    "PublisherOptions", "Receipt", "Redelivered", "Sent", "SparkCommitter", "StoreClient", "Subscriber",
    "SubscriberOptions", "Watch", "define_spark_stores",
]  # fmt: skip
