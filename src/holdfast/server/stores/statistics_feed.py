"""Publishes the numbers of ``/metrics`` into the store ``_statistics``, while subscribers are attached.

a subscriber is about to attach         the store is made, where it is not there
every interval                          one message, if a subscriber is attached; the oldest ones make room for it
no subscriber for ``LINGER_SECONDS``    the store is removed, with what it keeps
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from holdfast.errors import Code, HoldfastError, NotFound
from holdfast.server.stores.figures import attached_names
from holdfast.server.stores.subscribers import wall_ms
from holdfast.stores.definitions.built_in import STATISTICS_BYTES_MAX, STATISTICS_MESSAGES_MAX
from holdfast.stores.definitions.reader import STATISTICS
from holdfast.stores.durables.consumption import Consumption
from holdfast.stores.machine.store import Store
from holdfast.stores.service import StoreService
from holdfast.stores.values.commands import Drop, Publish, Result
from holdfast.wire.formats import encode
from holdfast.wire.parts import Message
from holdfast.wire.stores import Sample, StatisticsBody

LINGER_SECONDS: Final = 60.0
"""A subscriber that comes back within this time continues where it was."""
LOOKS: Final = 4_096
OVERHEAD_BYTES: Final = 64
"""More than key and fields of a message take."""
KIND: Final = "metrics"

_log = structlog.get_logger("holdfast.stores")


class StatisticsFeed:
    """The statistics of one open service. ``every_seconds`` 0: none are published."""

    def __init__(
        self,
        service: StoreService,
        loop: asyncio.AbstractEventLoop,
        samples: Callable[[], list[Sample]] | None,
        every_seconds: float,
    ) -> None:
        self._service = service
        self._state = service.state
        self._loop = loop
        self._samples = samples
        self._every_seconds = every_seconds
        self._timer: asyncio.TimerHandle | None = None
        self._left_seconds = 0.0
        """When a subscriber was attached last, or was about to be."""
        self._refused: Code | None = None

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
        self._state.make_statistics(self._service.draw_id())
        if self._timer is None:
            self._timer = self._loop.call_later(self._every_seconds, self._tick)

    def close(self) -> None:
        """Publish nothing more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        self._timer = self._loop.call_later(self._every_seconds, self._tick)
        store = self._state.stores[STATISTICS]
        if any(attached_names(durable) for durable in store.durables.values()):
            self._left_seconds = self._loop.time()
            self._publish(store)
        elif self._loop.time() - self._left_seconds > LINGER_SECONDS:
            self.close()
            self._state.remove_statistics()

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
    found: dict[str, int] = {}
    for name, durable in store.durables.items():
        if isinstance(durable, Consumption):
            page, _, _ = durable.browse_page(0, 1, LOOKS)
            numbers = [seq for seq, _ in page]
        else:
            entries, _, _ = durable.keyed.browse_page(0, 1, LOOKS)
            numbers = [entry.revision for entry in entries]
        if numbers:
            found[name] = numbers[0]
    return found
