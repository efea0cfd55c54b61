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


Family = type[GaugeMetricFamily] | type[CounterMetricFamily]
GAUGE: Final = GaugeMetricFamily
COUNTER: Final = CounterMetricFamily

_OF_A_STORE: Final[tuple[tuple[Family, str, str, Callable[[Store], float]], ...]] = (
    (GAUGE, "messages", "Messages kept", lambda one: one.counts.live),
    (GAUGE, "bytes", "Bytes of keys, fields and bodies kept", lambda one: one.counts.live_bytes),
    (GAUGE, "durables", "Durables", lambda one: len(one.durables)),
    (GAUGE, "publishers", "Publishers remembered", lambda one: len(one.publishers)),
    (COUNTER, "published", "Messages accepted", lambda one: one.counts.next_seq - 1),
    (COUNTER, "unmatched", "Messages that no durable wanted", lambda one: one.unmatched),
)

_OF_A_DURABLE: Final[tuple[tuple[Family, str, str, Callable[[DurableFigures], float]], ...]] = (
    (GAUGE, "messages", "Messages kept that are not acknowledged", lambda one: one.messages),
    (GAUGE, "bytes", "Their bytes", lambda one: one.bytes),
    (GAUGE, "backlog", "Messages that nobody holds", lambda one: one.backlog),
    (GAUGE, "unacknowledged", "Messages that subscribers hold", lambda one: one.unacknowledged),
    (GAUGE, "parked", "Messages that were delivered too often and wait to be put back", lambda one: one.parked),
    (GAUGE, "subscribers", "Subscribers attached", lambda one: one.subscribers),
    (
        GAUGE,
        "oldest_timestamp_seconds",
        "When the oldest waiting message was published; 0 for none",
        lambda one: one.oldest_ms / 1000,
    ),
    (COUNTER, "delivered", "Messages delivered, again ones too", lambda one: one.delivered),
    (COUNTER, "redelivered", "Messages delivered again", lambda one: one.redelivered),
    (COUNTER, "acknowledged", "Messages acknowledged", lambda one: one.acknowledged),
    (
        COUNTER,
        "ack_wait_lapsed",
        "Messages taken back because nobody acknowledged them in time",
        lambda one: one.lapsed,
    ),
    (COUNTER, "dead_letters", "Messages moved to the dead-letter store", lambda one: one.dead_letters),
)


def _stores(opened: OpenStores) -> Iterator[Metric]:
    stores = opened.state.stores
    for kind, name, text, value in _OF_A_STORE:
        family = kind(f"holdfast_message_store_{name}", text, labels=["store"])
        for store_name, store in stores.items():
            family.add_metric([store_name], value(store))
        yield family
    yield from _swapped(opened)
    yield from _publishes(opened)


def _swapped(opened: OpenStores) -> Iterator[Metric]:
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
    for name, latency in opened.operations.latencies.items():
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
    written, behind_ms = opened.service.written_bytes, opened.service.clock_behind_ms
    rows: tuple[tuple[Family, str, str, float], ...] = (
        (GAUGE, "log_allocated_bytes", "Bytes of the pages of the log", space.allocated),
        (GAUGE, "log_in_use_bytes", "About what kept messages take of it", space.in_use),
        (GAUGE, "log_pages", "Pages of the log", space.pages),
        (COUNTER, "written_bytes", "Bytes of records written to the log", written),
        (
            GAUGE,
            "clock_behind_seconds",
            "The machine's time of day less the stores' time, by which deadlines end",
            behind_ms / 1000,
        ),
        (GAUGE, "disk_used_bytes", "Used of the file system, by everybody", disk.used),
        (GAUGE, "disk_capacity_bytes", "What can be used of it", disk.capacity),
        (GAUGE, "disk_limit_bytes", "Above it publishes are refused; 0 for off", limit),
    )
    for family, name, text, value in rows:
        yield family(f"holdfast_message_stores_{name}", text, value)


def _durables(opened: OpenStores) -> Iterator[Metric]:
    label = ["store", "durable"]
    families = [
        (kind(f"holdfast_durable_{name}", text, labels=label), value) for kind, name, text, value in _OF_A_DURABLE
    ]
    expired = CounterMetricFamily("holdfast_durable_expired", "Messages lost, by cause", labels=[*label, "cause"])
    shown = left_out = 0
    for store_name, store in opened.state.stores.items():
        for name in sorted(store.durables):
            if shown == DURABLES_MAX:
                left_out += 1
                continue
            shown += 1
            figures = figures_of(store.durables[name])
            for family, value in families:
                family.add_metric([store_name, name], value(figures))
            for cause, count in sorted(figures.causes.items()):
                expired.add_metric([store_name, name, cause], count)
    yield from (family for family, _ in families)
    yield expired
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
