"""Periodic statistics in the service's log lines.

Owns: one line for each store and for the durables with most to do, every ``stores.statistics_seconds``. Does not own:
the numbers (``figures``), metrics, which have all of them (``store_metrics``).

Failure model: reading memory, a line at a time. Bounds: ``STORES_MAX`` stores, and the ``DURABLES_MAX`` durables with
the largest backlog; what is left out is counted in a last line.
"""

from __future__ import annotations

import heapq
from typing import Final

import structlog

from holdfast.server.stores.figures import figures_of
from holdfast.stores.machine.state import State
from holdfast.stores.service import StoreService
from holdfast.stores.storage.disk_limit import disk_use

__all__ = ["Statistics"]

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
