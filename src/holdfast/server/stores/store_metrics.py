"""Metrics of every store and durable that is defined, read at scrape time from the state in memory.

``DURABLES_MAX`` durables have lines of their own, the first in the order of names;
``holdfast_durables_without_metrics`` counts the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client.metrics_core import Metric

from holdfast.server.metric_catalogue import histogram, metric
from holdfast.server.stores.figures import LATENCY_BOUNDS_SECONDS, figures_of
from holdfast.server.stores.hosting import OpenStores, StoreHost
from holdfast.stores.machine.store import Store
from holdfast.stores.storage.disk_limit import disk_use

DURABLES_MAX: Final = 2_000


def store_metrics(host: StoreHost) -> Iterator[Metric]:
    """All families, in a fixed order."""
    opened = host.current
    yield metric("holdfast_message_stores_open", 0 if opened is None or host.suspended else 1)
    if opened is None:
        return
    yield metric("holdfast_message_store_sockets", len(host.sockets))
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
        yield metric(f"holdfast_message_store_{name}", {store.name: value(store) for store in stores})
    yield from _swapped(opened)
    yield from _publishes(opened)


def _swapped(opened: OpenStores) -> Iterator[Metric]:
    swapped = {name: opened.service.swapped(name) for name in opened.state.definition.volatile_stores}
    yield metric("holdfast_message_store_swapped_messages", {name: count for name, (count, _) in swapped.items()})
    yield metric("holdfast_message_store_swapped_bytes", {name: size for name, (_, size) in swapped.items()})


def _unreadable(opened: OpenStores) -> Metric:
    """Only of durables that met such a message: a line is an alarm."""
    stores, defined = opened.state.stores, opened.state.definition.stores
    counts = opened.deliveries.unreadable.items()
    there = {place: count for place, count in counts if place[0] in defined and place[1] in stores[place[0]].durables}
    return metric("holdfast_durable_unreadable", there)


def _publishes(opened: OpenStores) -> Iterator[Metric]:
    latencies = {name: each for name, each in opened.operations.latencies.items() if name in opened.state.stores}
    waits = {name: (each.counts, each.seconds) for name, each in latencies.items()}
    yield histogram("holdfast_message_store_publish_seconds", LATENCY_BOUNDS_SECONDS, waits)
    yield metric("holdfast_message_store_confirmed", {name: each.messages for name, each in latencies.items()})
    yield metric("holdfast_message_store_publishes_refused", {name: each.refused for name, each in latencies.items()})


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
        yield metric(f"holdfast_message_stores_{name}", value)
    yield metric("holdfast_message_stores_written_bytes", opened.service.written_bytes)


def _durables(opened: OpenStores) -> Iterator[Metric]:
    stores = opened.state.defined_stores()
    durables = [(store.name, name, store.durables[name]) for store in stores for name in sorted(store.durables)]
    figures = {(store, name): figures_of(durable) for store, name, durable in durables[:DURABLES_MAX]}
    for name in _OF_A_DURABLE:
        yield metric(f"holdfast_durable_{name}", {place: getattr(each, name) for place, each in figures.items()})
    expired = {
        (*place, cause): count for place, each in figures.items() for cause, count in sorted(each.expired.items())
    }
    yield metric("holdfast_durable_expired", expired)
    yield _unreadable(opened)
    yield metric("holdfast_durables_without_metrics", max(0, len(durables) - DURABLES_MAX))
