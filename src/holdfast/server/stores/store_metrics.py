"""Metrics of every store and durable that is defined, read at scrape time from the state in memory.

``DURABLES_MAX`` durables have lines of their own, the first in the order of names;
``holdfast_durables_without_metrics`` counts the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client.metrics_core import Metric

from holdfast.server.metric_catalogue import counter, cumulative_buckets, gauge, histogram, labelled
from holdfast.server.stores.figures import LATENCY_BOUNDS_SECONDS, figures_of
from holdfast.server.stores.hosting import OpenStores, StoreHost
from holdfast.stores.machine.store import Store
from holdfast.stores.storage.disk_limit import disk_use

DURABLES_MAX: Final = 2_000


def store_metrics(host: StoreHost) -> Iterator[Metric]:
    """All families, in a fixed order."""
    opened = host.current
    yield gauge("holdfast_message_stores_open", 0 if opened is None or host.suspended else 1)
    if opened is None:
        return
    yield gauge("holdfast_message_store_sockets", len(host.sockets))
    yield from _cluster(host, opened)
    yield from _stores(opened)
    yield from _durables(opened)


def _used(messages: int, message_limit: int, size: int, bytelimit: int) -> float:
    """How much of the nearer of two limits is used. A limit of 0 is none."""
    return max(messages / message_limit if message_limit else 0.0, size / bytelimit if bytelimit else 0.0)


_OF_A_STORE: Final[tuple[tuple[str, Callable[[Store], float]], ...]] = (
    ("messages", lambda one: one.counts.live),
    ("bytes", lambda one: one.counts.live_bytes),
    ("durables", lambda one: len(one.durables)),
    ("publishers", lambda one: len(one.publishers)),
    ("published", lambda one: one.counts.next_seq - 1),
    ("unmatched", lambda one: one.unmatched),
    (
        "used_fraction",
        lambda one: _used(
            one.counts.live, one.definition.message_limit, one.counts.live_bytes, one.definition.bytelimit
        ),
    ),
)

_OF_A_DURABLE: Final = (
    *("messages", "bytes", "backlog", "unacknowledged", "parked", "subscribers", "oldest_timestamp_seconds"),
    *("delivered", "redelivered", "acknowledged", "ack_wait_lapsed", "dead_letters"),
)
"""Of ``DurableFigures``."""


def _stores(opened: OpenStores) -> Iterator[Metric]:
    stores = list(opened.state.defined_stores())
    for name, value in _OF_A_STORE:
        family = labelled(f"holdfast_message_store_{name}")
        for store in stores:
            family.add_metric([store.name], value(store))
        yield family
    yield from _swapped(opened)
    yield from _publishes(opened)


def _swapped(opened: OpenStores) -> Iterator[Metric]:
    messages = labelled("holdfast_message_store_swapped_messages")
    size = labelled("holdfast_message_store_swapped_bytes")
    for name in opened.state.definition.volatile_stores:
        count, count_bytes = opened.service.swapped(name)
        messages.add_metric([name], count)
        size.add_metric([name], count_bytes)
    yield from (messages, size)


def _unreadable(opened: OpenStores) -> Metric:
    """Only of durables that met such a message: a line is an alarm."""
    family = labelled("holdfast_durable_unreadable")
    for (store, durable), count in opened.deliveries.unreadable.items():
        if store in opened.state.definition.stores and durable in opened.state.stores[store].durables:
            family.add_metric([store, durable], count)
    return family


def _publishes(opened: OpenStores) -> Iterator[Metric]:
    waits = histogram("holdfast_message_store_publish_seconds")
    confirmed = labelled("holdfast_message_store_confirmed")
    refused = labelled("holdfast_message_store_publishes_refused")
    for name, latency in opened.operations.latencies.items():
        if name not in opened.state.stores:
            continue
        waits.add_metric([name], cumulative_buckets(LATENCY_BOUNDS_SECONDS, latency.counts), latency.seconds)
        confirmed.add_metric([name], latency.messages)
        refused.add_metric([name], latency.refused)
    yield from (waits, confirmed, refused)


def _cluster(host: StoreHost, opened: OpenStores) -> Iterator[Metric]:
    space = opened.service.compaction.space()
    disk = disk_use(host.directory)
    cluster, stores = opened.state.definition, list(opened.state.defined_stores())
    gauges = {
        "used_fraction": _used(
            sum(store.counts.live for store in stores),
            cluster.message_limit,
            sum(store.counts.live_bytes for store in stores),
            cluster.bytelimit,
        ),
        "log_allocated_bytes": space.allocated,
        "log_in_use_bytes": space.in_use,
        "log_pages": space.pages,
        "clock_behind_seconds": opened.service.clock_behind_ms / 1000,
        "disk_used_bytes": disk.used,
        "disk_capacity_bytes": disk.capacity,
        "disk_limit_bytes": disk.capacity * cluster.max_disk_fraction,
        "kept_back_bytes": opened.service.kept_back_bytes,
    }
    for name, value in gauges.items():
        yield gauge(f"holdfast_message_stores_{name}", value)
    yield counter("holdfast_message_stores_written_bytes", opened.service.written_bytes)


def _durables(opened: OpenStores) -> Iterator[Metric]:
    families = [(labelled(f"holdfast_durable_{name}"), name) for name in _OF_A_DURABLE]
    expired = labelled("holdfast_durable_expired")
    shown = left_out = 0
    for store in opened.state.defined_stores():
        for name in sorted(store.durables):
            if shown == DURABLES_MAX:
                left_out += 1
                continue
            shown += 1
            figures = figures_of(store.durables[name])
            for family, of_figures in families:
                family.add_metric([store.name, name], getattr(figures, of_figures))
            for cause, count in sorted(figures.expired.items()):
                expired.add_metric([store.name, name, cause], count)
    yield from (family for family, _ in families)
    yield expired
    yield _unreadable(opened)
    yield gauge("holdfast_durables_without_metrics", left_out)
