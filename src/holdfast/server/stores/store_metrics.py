"""Metrics of every store and durable, read at scrape time from the state in memory.

``DURABLES_MAX`` durables have lines of their own, the first in the order of names;
``holdfast_durables_without_metrics`` counts the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from holdfast.server.stores.figures import LATENCY_BOUNDS_SECONDS, DurableFigures, figures_of
from holdfast.server.stores.hosting import OpenStores, StoreHost
from holdfast.stores.machine.store import Store
from holdfast.stores.storage.disk_limit import disk_use

__all__ = [
    "cumulative_buckets",
    "store_metrics",
]

DURABLES_MAX: Final = 2_000


def store_metrics(host: StoreHost) -> Iterator[Metric]:
    """All families, in a fixed order."""
    opened = host.current
    yield GaugeMetricFamily(
        "holdfast_message_stores_open", "1 while this process serves stores", 0 if opened is None else 1
    )
    if opened is None:
        return
    yield GaugeMetricFamily("holdfast_message_store_sockets", "WebSockets of subscribers", len(host.sockets))
    yield from _cluster(host, opened)
    yield from _stores(opened)
    yield from _durables(opened)


def _stores(opened: OpenStores) -> Iterator[Metric]:
    stores = opened.state.stores
    label = ["store"]
    families: tuple[tuple[GaugeMetricFamily | CounterMetricFamily, Callable[[Store], float]], ...] = (
        (
            GaugeMetricFamily("holdfast_message_store_messages", "Messages kept", labels=label),
            lambda one: one.counts.live,
        ),
        (
            GaugeMetricFamily("holdfast_message_store_bytes", "Bytes of keys, fields and bodies kept", labels=label),
            lambda one: one.counts.live_bytes,
        ),
        (GaugeMetricFamily("holdfast_message_store_durables", "Durables", labels=label), lambda one: len(one.durables)),
        (
            GaugeMetricFamily("holdfast_message_store_publishers", "Publishers remembered", labels=label),
            lambda one: len(one.publishers),
        ),
        (
            CounterMetricFamily("holdfast_message_store_published", "Messages accepted", labels=label),
            lambda one: one.counts.next_seq - 1,
        ),
        (
            CounterMetricFamily("holdfast_message_store_unmatched", "Messages that no durable wanted", labels=label),
            lambda one: one.unmatched,
        ),
    )
    for family, value in families:
        for name, store in stores.items():
            family.add_metric([name], value(store))
        yield family
    yield from _swapped(opened)
    yield from _publishes(opened)


def _swapped(opened: OpenStores) -> Iterator[Metric]:
    """Only of stores that live in memory."""
    messages = GaugeMetricFamily(
        "holdfast_message_store_swapped_messages", "Messages swapped to disk", labels=["store"]
    )
    size = GaugeMetricFamily("holdfast_message_store_swapped_bytes", "Bytes of their bodies", labels=["store"])
    for name in opened.state.definition.volatile_stores:
        count, count_bytes = opened.service.swapped(name)
        messages.add_metric([name], count)
        size.add_metric([name], count_bytes)
    yield from (messages, size)


def _unreadable(opened: OpenStores) -> Metric:
    """Only of durables that met such a message: a line is an alarm."""
    family = CounterMetricFamily(
        "holdfast_durable_unreadable", "Deliveries ended by a message that cannot be read", labels=["store", "durable"]
    )
    for (store, durable), count in opened.deliveries.unreadable.items():
        if store in opened.state.stores and durable in opened.state.stores[store].durables:
            family.add_metric([store, durable], count)
    return family


def _publishes(opened: OpenStores) -> Iterator[Metric]:
    label = ["store"]
    waits = HistogramMetricFamily(
        "holdfast_message_store_publish_seconds", "From the request to its confirmation", labels=label
    )
    confirmed = CounterMetricFamily(
        "holdfast_message_store_confirmed", "Messages confirmed to publishers", labels=label
    )
    refused = CounterMetricFamily("holdfast_message_store_publishes_refused", "Publishes refused", labels=label)
    for name, latency in opened.operations.latencies.by_store.items():
        if name not in opened.state.stores:
            continue
        waits.add_metric([name], cumulative_buckets(LATENCY_BOUNDS_SECONDS, latency.counts), latency.seconds)
        confirmed.add_metric([name], latency.messages)
        refused.add_metric([name], latency.refused)
    yield from (waits, confirmed, refused)


def _cluster(host: StoreHost, opened: OpenStores) -> Iterator[Metric]:
    space = opened.service.space()
    disk = disk_use(host.directory)
    limit = disk.capacity * opened.definitions.cluster.max_disk_fraction
    yield GaugeMetricFamily(
        "holdfast_message_stores_log_allocated_bytes", "Bytes of the pages of the log", space.allocated
    )
    yield GaugeMetricFamily(
        "holdfast_message_stores_log_in_use_bytes", "About what kept messages take of it", space.in_use
    )
    yield GaugeMetricFamily("holdfast_message_stores_log_pages", "Pages of the log", space.pages)
    yield CounterMetricFamily(
        "holdfast_message_stores_written_bytes", "Bytes of records written to the log", opened.service.written_bytes
    )
    yield GaugeMetricFamily(
        "holdfast_message_stores_clock_behind_seconds",
        "The machine's time of day less the stores' time, by which deadlines end",
        opened.service.clock_behind_ms / 1000,
    )
    yield GaugeMetricFamily(
        "holdfast_message_stores_disk_used_bytes", "Used of the file system, by everybody", disk.used
    )
    yield GaugeMetricFamily("holdfast_message_stores_disk_capacity_bytes", "What can be used of it", disk.capacity)
    yield GaugeMetricFamily(
        "holdfast_message_stores_disk_limit_bytes", "Above it publishes are refused; 0 for off", limit
    )


class _DurableFamilies:
    """One family for each figure of a durable."""

    def __init__(self) -> None:
        label = ["store", "durable"]

        def gauge(name: str, text: str) -> GaugeMetricFamily:
            return GaugeMetricFamily(f"holdfast_durable_{name}", text, labels=label)

        def counter(name: str, text: str) -> CounterMetricFamily:
            return CounterMetricFamily(f"holdfast_durable_{name}", text, labels=label)

        self.messages = gauge("messages", "Messages kept that are not acknowledged")
        self.bytes = gauge("bytes", "Their bytes")
        self.backlog = gauge("backlog", "Messages that nobody holds")
        self.unacknowledged = gauge("unacknowledged", "Messages that subscribers hold")
        self.parked = gauge("parked", "Messages that were delivered too often and wait to be put back")
        self.subscribers = gauge("subscribers", "Subscribers attached")
        self.oldest = gauge("oldest_timestamp_seconds", "When the oldest waiting message was published; 0 for none")
        self.delivered = counter("delivered", "Messages delivered, again ones too")
        self.redelivered = counter("redelivered", "Messages delivered again")
        self.acknowledged = counter("acknowledged", "Messages acknowledged")
        self.lapsed = counter("ack_wait_lapsed", "Messages taken back because nobody acknowledged them in time")
        self.dead_letters = counter("dead_letters", "Messages moved to the dead-letter store")
        self.expired = CounterMetricFamily(
            "holdfast_durable_expired", "Messages lost, by cause", labels=[*label, "cause"]
        )

    def add(self, place: list[str], figures: DurableFigures) -> None:
        """One durable."""
        for family, value in (
            (self.messages, figures.messages),
            (self.bytes, figures.bytes),
            (self.backlog, figures.backlog),
            (self.unacknowledged, figures.unacknowledged),
            (self.parked, figures.parked),
            (self.subscribers, figures.subscribers),
            (self.oldest, figures.oldest_ms / 1000),
            (self.delivered, figures.delivered),
            (self.redelivered, figures.redelivered),
            (self.acknowledged, figures.acknowledged),
            (self.lapsed, figures.lapsed),
            (self.dead_letters, figures.dead_letters),
        ):
            family.add_metric(place, value)
        for cause, count in sorted(figures.causes.items()):
            self.expired.add_metric([*place, cause], count)

    def all(self) -> Iterator[Metric]:
        """In a fixed order."""
        yield from (self.messages, self.bytes, self.backlog, self.unacknowledged, self.parked)
        yield from (self.subscribers, self.oldest)
        yield from (self.delivered, self.redelivered, self.acknowledged, self.lapsed, self.dead_letters, self.expired)


def _durables(opened: OpenStores) -> Iterator[Metric]:
    families = _DurableFamilies()
    shown = left_out = 0
    for store_name, store in opened.state.stores.items():
        for name in sorted(store.durables):
            if shown == DURABLES_MAX:
                left_out += 1
                continue
            shown += 1
            families.add([store_name, name], figures_of(store.durables[name]))
    yield from families.all()
    yield _unreadable(opened)
    yield GaugeMetricFamily("holdfast_durables_without_metrics", "Durables without lines of their own", left_out)


def cumulative_buckets(bounds: Sequence[float], counts: Sequence[int]) -> list[tuple[str, float]]:
    """Cumulative buckets from plain ones; ``counts`` has one more than ``bounds``, above the last."""
    buckets: list[tuple[str, float]] = []
    below = 0
    for bound, count in zip(bounds, counts, strict=False):
        below += count
        buckets.append((repr(bound), below))
    buckets.append(("+Inf", below + counts[-1]))
    return buckets
