"""The counts of stores and durables, for documents, metrics, log lines and the messages of ``_statistics``.

They are read from the state in memory, and may be ahead of what is durable by what waits for its sync.
"""

from __future__ import annotations

import asyncio
import heapq
from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Final

import structlog

from holdfast.errors import Code, HoldfastError, NotFound
from holdfast.server.stores.subscribers import wall_ms
from holdfast.stores.definitions.cluster import STATISTICS_BYTES_MAX, STATISTICS_MESSAGES_MAX
from holdfast.stores.definitions.reader import STATISTICS
from holdfast.stores.durables.consumption import Consumption
from holdfast.stores.durables.keyed import LastValue
from holdfast.stores.durables.map import MapDurable
from holdfast.stores.machine.store import Durable, Store
from holdfast.stores.service import StoreService
from holdfast.stores.storage.disk_limit import disk_use
from holdfast.stores.values.commands import Drop, Publish, Result
from holdfast.wire.formats import encode
from holdfast.wire.parts import Message
from holdfast.wire.stores import Sample, StatisticsBody

Json = dict[str, object]


@dataclass(slots=True)
class DurableFigures:
    """The counts of one durable. ``oldest_ms``: when its oldest unacknowledged message was published.

    For last_value and map durables it is a lower bound.
    """

    messages: int
    bytes: int
    backlog: int
    unacknowledged: int = 0
    dying: int = 0
    parked: int = 0
    delivered: int = 0
    redelivered: int = 0
    acknowledged: int = 0
    ack_wait_lapsed: int = 0
    dead_letters: int = 0
    oldest_ms: int = 0
    subscribers: int = 0
    expired: Mapping[str, int] = field(default_factory=dict[str, int])
    """Lost messages by cause: ttl, own_ttl, limit_old, limit_new, max_delivery, ..."""

    @property
    def oldest_timestamp_seconds(self) -> float:
        """``oldest_ms`` in seconds."""
        return self.oldest_ms / 1000

    def document(self) -> Json:
        """As JSON."""
        return {name: getattr(self, name) for name in _SHOWN}


_SHOWN: Final = tuple(each.name for each in fields(DurableFigures) if each.name != "subscribers")


def figures_of(durable: Durable) -> DurableFigures:
    """The counts of a durable. O(1) but for its subscribers."""
    if isinstance(durable, Consumption):
        tally, dying, held = durable.tally, len(durable.dying), durable.leases.held
        return DurableFigures(
            durable.pending,
            durable.pending_bytes,
            durable.pending - held - dying,
            unacknowledged=held,
            dying=0 if durable.parks else dying,
            parked=dying if durable.parks else 0,
            delivered=tally.delivered,
            redelivered=tally.redelivered,
            acknowledged=tally.acknowledged,
            ack_wait_lapsed=tally.lapsed,
            dead_letters=tally.dead_letters,
            oldest_ms=durable.oldest_ms(),
            subscribers=len(durable.leases.of),
            expired=durable.causes,
        )
    keyed = durable.keyed
    return DurableFigures(
        keyed.messages,
        keyed.bytes,
        keyed.messages,
        oldest_ms=keyed.oldest_ms if keyed.messages else 0,
        subscribers=len(durable.attached) if isinstance(durable, LastValue) else 0,
        expired=keyed.causes,
    )


def attached_names(durable: Durable) -> list[str]:
    """The subscribers that the state machine counts as attached, in the order they came."""
    return [] if isinstance(durable, MapDurable) else list(durable.attached)


STORES_MAX: Final = 50
DURABLES_MAX: Final = 50

_log = structlog.get_logger("holdfast.stores")


class Statistics:
    """Writes statistics lines. Rates are those since the last line."""

    def __init__(self, now_seconds: float) -> None:
        self._at_seconds = now_seconds
        self._counts: dict[tuple[str, ...], int] = {}
        """At the last line: published messages by store, acknowledged ones by durable; ``()`` for written bytes."""

    def tell(self, service: StoreService, now_seconds: float) -> None:
        """Write the lines. Cost: O(durables + pages)."""
        seconds, self._at_seconds = max(now_seconds - self._at_seconds, 0.001), now_seconds
        before, self._counts = self._counts, {}

        def rate(count: int, *what: str) -> float:
            self._counts[what] = count
            return round((count - before[what]) / seconds, 1) if what in before else 0.0

        space = service.compaction.space()
        _log.info(
            "disk_statistics",
            allocated_bytes=space.allocated,
            in_use_bytes=space.in_use,
            pages=space.pages,
            disk_used_bytes=disk_use(service.directory).used,
            written_bytes=service.written_bytes,
            written_per_second=rate(service.written_bytes),
        )
        stores = list(service.state.defined_stores())
        busy: list[tuple[int, str, str, float, DurableFigures]] = []
        for number, store in enumerate(stores):
            published = rate(store.counts.next_seq - 1, store.name)
            if number < STORES_MAX:
                _log.info(
                    "store_statistics",
                    store=store.name,
                    messages=store.counts.live,
                    bytes=store.counts.live_bytes,
                    durables=len(store.durables),
                    publishers=len(store.publishers),
                    published_per_second=published,
                    unmatched=store.unmatched,
                )
            for name, durable in store.durables.items():
                figures = figures_of(durable)
                acknowledged = rate(figures.acknowledged, store.name, name)
                if figures.messages or figures.acknowledged != before.get((store.name, name), 0):
                    busy.append((figures.backlog, store.name, name, acknowledged, figures))
        if len(stores) > STORES_MAX:
            _log.info("store_statistics", stores_left_out=len(stores) - STORES_MAX)
        for backlog, store_name, name, acknowledged, figures in heapq.nlargest(DURABLES_MAX, busy):
            _log.info(
                "durable_statistics",
                store=store_name,
                durable=name,
                messages=figures.messages,
                bytes=figures.bytes,
                backlog=backlog,
                unacknowledged=figures.unacknowledged,
                subscribers=figures.subscribers,
                acknowledged_per_second=acknowledged,
                redelivered=figures.redelivered,
                expired=sum(figures.expired.values()),
            )
        if len(busy) > DURABLES_MAX:
            _log.info("durable_statistics", durables_left_out=len(busy) - DURABLES_MAX)


LATENCY_BOUNDS_SECONDS: Final = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0,
)  # fmt: skip


@dataclass(slots=True)
class PublishLatency:
    """Publishes of one store. ``counts`` has one item more than bounds, above the last."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(LATENCY_BOUNDS_SECONDS) + 1))
    seconds: float = 0.0
    messages: int = 0
    refused: int = 0

    def confirmed(self, seconds: float, messages: int) -> None:
        """A publish was confirmed after this time."""
        self.counts[bisect_left(LATENCY_BOUNDS_SECONDS, seconds)] += 1
        self.seconds += seconds
        self.messages += messages


LINGER_SECONDS: Final = 60.0
"""A subscriber that comes back within this time continues where it was."""
LOOKS: Final = 4_096
OVERHEAD_BYTES: Final = 64
"""More than key and fields of a message take."""
KIND: Final = "metrics"


@dataclass(eq=False)
class StatisticsFeed:
    """Publishes the numbers of ``/metrics`` of one open service into the store ``_statistics``.

    a subscriber is about to attach         the store is made, where it is not there
    every interval                          one message, if a subscriber is attached; the oldest ones make room for it
    no subscriber for ``LINGER_SECONDS``    the store is removed, with what it keeps

    ``every_seconds`` 0: none are published.
    """

    _service: StoreService
    _loop: asyncio.AbstractEventLoop
    _samples: Callable[[], list[Sample]] | None
    _every_seconds: float
    _timer: asyncio.TimerHandle | None = None
    _left_seconds: float = 0.0
    """When a subscriber was attached last, or was about to be."""
    _refused: Code | None = None

    def want(self, store: str) -> None:
        """A subscriber is about to attach to a durable of this store. Raises: NotFound where statistics are off."""
        if store != STATISTICS:
            return
        if self._samples is None or not self._every_seconds:
            raise NotFound(
                "the service publishes no statistics",
                hint="the setting stores.statistics_message_seconds is 0: set the seconds between two messages",
                store=store,
            )
        self._left_seconds = self._loop.time()
        self._service.state.make_statistics(self._service.draw_id())
        if self._timer is None:
            self._timer = self._loop.call_later(self._every_seconds, self._tick)

    def close(self) -> None:
        """Publish nothing more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        self._timer = self._loop.call_later(self._every_seconds, self._tick)
        state = self._service.state
        store = state.stores[STATISTICS]
        if any(attached_names(durable) for durable in store.durables.values()):
            self._left_seconds = self._loop.time()
            self._publish(store)
        elif self._loop.time() - self._left_seconds > LINGER_SECONDS:
            self.close()
            state.remove_statistics()

    def _publish(self, store: Store) -> None:
        assert self._samples is not None, "the store is made only where there are numbers"
        body = encode(StatisticsBody(wall_ms(), self._samples()))
        self._make_room(store, len(body) + OVERHEAD_BYTES)
        command = Publish(0, STATISTICS, "", [Message(body, {"kind": KIND}, KIND)])
        self._service.submit_nowait(command, self._published)

    def _published(self, result: Result | HoldfastError) -> None:
        """A refusal is reported once for each cause: the next message has newer numbers."""
        code = result.code if isinstance(result, HoldfastError) else None
        if isinstance(result, HoldfastError) and code is not self._refused:
            _log.warning("statistics_not_published", error=result.statement(), code=str(code))
        self._refused = code

    def _make_room(self, store: Store, size: int) -> None:
        """Drop the oldest messages, held or not, in every durable that keeps them."""
        counts = store.counts
        while counts.live >= STATISTICS_MESSAGES_MAX or counts.live_bytes + size > STATISTICS_BYTES_MAX:
            live, oldest = counts.live, _oldest(store)
            for name in [name for name, seq in oldest.items() if seq == min(oldest.values())]:
                self._service.submit_nowait(Drop(0, STATISTICS, name, oldest[name]))
            if counts.live == live:
                return  # a purge is still giving back; the store refuses what has no room


def _oldest(store: Store) -> dict[str, int]:
    """The lowest number that each durable keeps."""
    oldest: dict[str, int] = {}
    for name, durable in store.durables.items():
        if isinstance(durable, Consumption):
            page, _, _ = durable.browse_page(0, 1, LOOKS)
            numbers = [seq for seq, _ in page]
        else:
            entries, _, _ = durable.keyed.browse_page(0, 1, LOOKS)
            numbers = [entry.revision for entry in entries]
        if numbers:
            oldest[name] = numbers[0]
    return oldest
