"""What stores, durables and templates look like to those who ask: parameters in force, counts, subscribers.

Owns: the documents of the routes and of the statistics. Does not own: the numbers (the state machine keeps them exact),
metrics (``store_metrics``).

Failure model: pure reading of the state in memory. A figure is as of now, and may be ahead of what is durable by what
waits for its sync.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import structlog
from msgspec.structs import replace

from holdfast.server.stores.deliveries import Subscriber
from holdfast.stores.definitions.cluster import TemplateDefinition
from holdfast.stores.durables.consumption import Consumption
from holdfast.stores.durables.keyed import LastValue
from holdfast.stores.machine.state import State
from holdfast.stores.machine.store import Durable, Store
from holdfast.stores.service import StoreService
from holdfast.stores.storage.disk_limit import disk_use
from holdfast.stores.values.messages import Delivery

if TYPE_CHECKING:
    from holdfast.server.stores.hosting import OpenStores

__all__ = [
    "DurableFigures",
    "LATENCY_BOUNDS_SECONDS",
    "Latencies",
    "Latency",
    "Statistics",
    "attached_names",
    "durable_document",
    "figures_of",
    "still_held",
    "store_document",
    "template_document",
    "waiting",
    "with_replayed",
]

Json = dict[str, object]


class DurableFigures:
    """The counts of one durable. ``oldest_ms`` is when its oldest message that is not acknowledged was published.

    Of a last_value durable or a map it is a lower bound: when a value was published that may be replaced by now.
    """

    __slots__ = (
        "acknowledged",
        "backlog",
        "bytes",
        "causes",
        "dead_letters",
        "delivered",
        "dying",
        "lapsed",
        "messages",
        "oldest_ms",
        "parked",
        "redelivered",
        "subscribers",
        "unacknowledged",
    )

    def __init__(self, messages: int, size: int) -> None:
        self.messages = messages
        self.bytes = size
        self.backlog = messages
        self.unacknowledged = 0
        self.dying = 0
        self.parked = 0
        self.delivered = 0
        self.redelivered = 0
        self.acknowledged = 0
        self.lapsed = 0
        self.dead_letters = 0
        self.oldest_ms = 0
        self.subscribers = 0
        self.causes: Mapping[str, int] = {}
        """How many messages were lost to what: ttl, own_ttl, limit_old, limit_new, max_delivery, ..."""

    def document(self) -> Json:
        """As JSON."""
        return {
            "messages": self.messages,
            "bytes": self.bytes,
            "backlog": self.backlog,
            "unacknowledged": self.unacknowledged,
            "dying": self.dying,
            "parked": self.parked,
            "delivered": self.delivered,
            "redelivered": self.redelivered,
            "acknowledged": self.acknowledged,
            "ack_wait_lapsed": self.lapsed,
            "dead_letters": self.dead_letters,
            "oldest_ms": self.oldest_ms,
            "expired": dict(self.causes),
        }


def figures_of(durable: Durable) -> DurableFigures:
    """The counts of a durable. O(1) but for its subscribers."""
    if isinstance(durable, Consumption):
        found = DurableFigures(durable.pending, durable.pending_bytes)
        tally = durable.tally
        found.backlog = durable.pending - durable.leases.held - len(durable.dying)
        found.unacknowledged = durable.leases.held
        if durable.parks:
            found.parked = len(durable.dying)
        else:
            found.dying = len(durable.dying)
        found.delivered, found.redelivered = tally.delivered, tally.redelivered
        found.acknowledged, found.lapsed, found.dead_letters = tally.acknowledged, tally.lapsed, tally.dead_letters
        found.subscribers = len(durable.leases.of)
        found.causes = durable.causes
        found.oldest_ms = durable.oldest_ms()
        return found
    found = DurableFigures(durable.keyed.messages, durable.keyed.bytes)
    found.causes = durable.keyed.causes
    found.oldest_ms = durable.keyed.oldest_ms if durable.keyed.messages else 0
    found.subscribers = len(durable.subscribers()) if isinstance(durable, LastValue) else 0
    return found


def store_document(opened: OpenStores, name: str) -> Json:
    """A store: what is in force, and what it holds. Raises: NotFound."""
    definition = opened.definitions.store(name)
    store = opened.state.stores[name]
    return {
        "name": name,
        **definition.document(),
        "counts": {
            "messages": store.counts.live,
            "bytes": store.counts.live_bytes,
            "durables": len(store.durables),
            "dynamic_durables": sum(1 for durable in store.durables.values() if durable.definition.dynamic),
            "publishers": len(store.publishers),
            "unmatched": store.unmatched,
            "next_seq": store.counts.next_seq,
        },
    }


def durable_document(opened: OpenStores, store: str, name: str) -> Json:
    """A durable: what is in force, its counts, who is attached. Raises: NotFound."""
    definition = opened.definitions.durable(store, name)
    durable = opened.state.stores[store].durables[name]
    return {
        "name": name,
        "store": store,
        "dynamic": definition.dynamic,
        "template": definition.template,
        **definition.document(),
        "counts": figures_of(durable).document(),
        "subscribers": _subscribers(opened, store, name, durable),
    }


def _subscribers(opened: OpenStores, store: str, name: str, durable: Durable) -> list[Json]:
    connected = {subscriber.name: subscriber for subscriber in opened.deliveries.connected(store, name)}
    held = dict.fromkeys(attached_names(durable), 0)
    if isinstance(durable, Consumption):
        held = {subscriber: holding.held for subscriber, holding in durable.leases.of.items()}
    return [_subscriber(subscriber, count, connected.get(subscriber)) for subscriber, count in held.items()]


def _subscriber(name: str, held: int, connected: Subscriber | None) -> Json:
    """One subscriber. Times are milliseconds since 1970, null for never; the service forgets them when it ends."""
    found: Json = {"name": name, "connected": connected is not None, "unacknowledged": held}
    if connected is None:
        return {**found, "room": 0, "address": "", "since_ms": None, "delivered_ms": None, "acknowledged_ms": None}
    return {
        **found,
        "room": connected.room,
        "address": connected.address,
        "since_ms": connected.since_ms or None,
        "delivered_ms": connected.delivered_ms or None,
        "acknowledged_ms": connected.acknowledged_ms or None,
    }


def attached_names(durable: Durable) -> list[str]:
    """The subscribers that the state machine counts as attached, in the order they came."""
    if isinstance(durable, Consumption):
        return list(durable.leases.of)
    return [subscriber for subscriber, _ in durable.subscribers()] if isinstance(durable, LastValue) else []


def template_document(template: TemplateDefinition) -> Json:
    """A template: what is in force."""
    return {"name": template.name, **template.pattern.document()}


def waiting(store: Store, name: str) -> tuple[int, int]:
    """How many messages of a durable nobody holds, and the bytes of one on average."""
    durable = store.durables.get(name)
    if isinstance(durable, Consumption):
        return durable.pending - durable.leases.held, durable.pending_bytes // (durable.pending or 1)
    return 1, 0


def with_replayed(store: Store, name: str, messages: list[Delivery]) -> list[Delivery]:
    """The messages of a durable, those marked that are delivered because it was rewound."""
    durable = store.durables.get(name)
    if not isinstance(durable, Consumption) or not durable.replayed:
        return messages
    return [replace(one, replayed=True) if one.seq in durable.replayed else one for one in messages]


def still_held(store: Store, name: str, subscriber: str, run: tuple[int, int, int]) -> list[tuple[int, int, int]]:
    """What a subscriber holds of a run (first, last, deliveries) as it was delivered to it."""
    durable = store.durables.get(name)
    if not isinstance(durable, Consumption):
        return [run]  # of a last value nothing is held back: the newest is told in any case
    holding = durable.leases.of.get(subscriber)
    runs = holding.runs if holding is not None else []
    first, last, deliveries = run
    found: list[tuple[int, int, int]] = []
    for place in range(max(0, bisect_left(runs, (first,)) - 1), len(runs)):
        low, high, count, _ = runs[place]
        if low > last:
            break
        if high >= first and count == abs(deliveries):
            found.append((max(first, low), min(last, high), deliveries))
    return found


STORES_MAX: Final = 50
DURABLES_MAX: Final = 50

_log = structlog.get_logger("holdfast.stores")


class Statistics:
    """Knows what was told last, so that rates are those of the time between."""

    __slots__ = ("_at_seconds", "_published", "_settled", "_written")

    def __init__(self, now_seconds: float) -> None:
        self._at_seconds = now_seconds
        self._published: dict[str, int] = {}
        self._settled: dict[tuple[str, str], int] = {}
        self._written: int | None = None

    def tell(self, service: StoreService, now_seconds: float) -> None:
        """Write the lines. Cost: O(durables + pages)."""
        state, space = service.state, service.space()
        seconds = max(now_seconds - self._at_seconds, 0.001)
        self._at_seconds = now_seconds
        written, before = service.written_bytes, self._written
        self._written = written
        _log.info(
            "disk_statistics",
            allocated_bytes=space.allocated,
            in_use_bytes=space.in_use,
            pages=space.pages,
            disk_used_bytes=disk_use(service.directory).used,
            written_bytes=written,
            written_per_second=_rate(written, before, seconds),
        )
        self._tell_stores(state, seconds)
        self._tell_durables(state, seconds)

    def _tell_stores(self, state: State, seconds: float) -> None:
        published: dict[str, int] = {}
        for index, (name, store) in enumerate(state.stores.items()):
            published[name] = store.counts.next_seq - 1
            if index >= STORES_MAX:
                continue
            _log.info(
                "store_statistics",
                store=name,
                messages=store.counts.live,
                bytes=store.counts.live_bytes,
                durables=len(store.durables),
                publishers=len(store.publishers),
                published_per_second=_rate(published[name], self._published.get(name), seconds),
                unmatched=store.unmatched,
            )
        self._published = published
        if len(state.stores) > STORES_MAX:
            _log.info("store_statistics", stores_left_out=len(state.stores) - STORES_MAX)

    def _tell_durables(self, state: State, seconds: float) -> None:
        settled: dict[tuple[str, str], int] = {}
        busy: list[tuple[int, str, str]] = []
        for store_name, store in state.stores.items():
            for name, durable in store.durables.items():
                figures = figures_of(durable)
                settled[store_name, name] = figures.acknowledged
                if figures.messages or figures.acknowledged != self._settled.get((store_name, name), 0):
                    busy.append((figures.backlog, store_name, name))
        for _, store_name, name in heapq.nlargest(DURABLES_MAX, busy):
            figures = figures_of(state.stores[store_name].durables[name])
            _log.info(
                "durable_statistics",
                store=store_name,
                durable=name,
                messages=figures.messages,
                bytes=figures.bytes,
                backlog=figures.backlog,
                unacknowledged=figures.unacknowledged,
                subscribers=figures.subscribers,
                acknowledged_per_second=_rate(figures.acknowledged, self._settled.get((store_name, name)), seconds),
                redelivered=figures.redelivered,
                expired=sum(figures.causes.values()),
            )
        self._settled = settled
        if len(busy) > DURABLES_MAX:
            _log.info("durable_statistics", durables_left_out=len(busy) - DURABLES_MAX)


def _rate(now: int, before: int | None, seconds: float) -> float:
    """Since the last line; 0 for the first, which does not know what came before."""
    return 0.0 if before is None else round((now - before) / seconds, 1)


LATENCY_BOUNDS_SECONDS: Final = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0,
)  # fmt: skip


class Latency:
    """Publishes of one store. ``counts`` has one item more than bounds, above the last."""

    __slots__ = ("counts", "messages", "refused", "seconds")

    def __init__(self) -> None:
        self.counts = [0] * (len(LATENCY_BOUNDS_SECONDS) + 1)
        self.seconds = 0.0
        self.messages = 0
        """Messages confirmed, duplicates included."""
        self.refused = 0
        """Publishes that were refused."""

    def confirmed(self, seconds: float, messages: int) -> None:
        """A publish was confirmed after so long."""
        self.counts[bisect_left(LATENCY_BOUNDS_SECONDS, seconds)] += 1
        self.seconds += seconds
        self.messages += messages


class Latencies:
    """One ``Latency`` for each store that was published to."""

    __slots__ = ("by_store",)

    def __init__(self) -> None:
        self.by_store: dict[str, Latency] = {}

    def of(self, store: str) -> Latency:
        """The histogram of a store, made when it is first asked for."""
        found = self.by_store.get(store)
        if found is None:
            found = self.by_store[store] = Latency()
        return found
