"""Reads a log backwards through its change stream, which only goes forwards: window by window, within bounds.

A window is some versions; the next one is larger while they are read quickly. The first transaction of a window names
the one before it, so the gap of a change of leader is jumped. Nothing is read without a bound: ``SECONDS_MAX`` in all,
``WINDOW_EVENTS_MAX`` for a window, which is read again in a smaller piece when it has more.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from holdfast.client.protocol.effects import Checkpoint, TransactionEvent
from holdfast.console.reading.service import WatchedService
from holdfast.errors import Code, HoldfastError, NotFound, Unavailable

SECONDS_MAX: Final = 2.0
WINDOW_SECONDS_MAX: Final = 0.5
WINDOW_EVENTS_MAX: Final = 20_000
WINDOW_BEGIN: Final = 500
WINDOW_SECONDS: Final = 0.2
"""How long reading a window should take."""


@dataclass(frozen=True, slots=True)
class LogSearch:
    """Which transactions: all, or those that change a key of ``[begin, end)``, and that ``matches`` accepts."""

    begin: bytes | None = None
    end: bytes | None = None
    matches: Callable[[TransactionEvent], bool] | None = None


@dataclass(frozen=True, slots=True)
class BackwardPage:
    """Transactions, newest first. ``older``: go on at or below this version; None where the log begins.

    ``looked_at``: how many transactions the service sent. ``truncated``: what is older was removed.
    """

    transactions: list[TransactionEvent]
    older: int | None
    looked_at: int
    truncated: bool = False


ALL: Final = LogSearch()


async def newest(service: WatchedService, high: int, count: int, wanted: LogSearch = ALL) -> BackwardPage:
    """The ``count`` newest transactions at or below version ``high``; fewer where the time is over."""
    transactions: list[TransactionEvent] = []
    looked_at, width, end = 0, WINDOW_BEGIN, time.monotonic() + SECONDS_MAX
    jump: int | None = None
    while high > 0 and len(transactions) < count and time.monotonic() < end:
        low = max(0, high - width) if jump is None else min(jump, high - 1)
        jump = None
        began = time.monotonic()
        try:
            events, is_whole = await _window(service, low, high, wanted)
        except HoldfastError as error:
            jump = _before_gap(error, low)
            if jump is not None:
                continue
            if error.code is not Code.LOG_TRUNCATED:
                raise
            if width == 1:
                return BackwardPage(transactions, None, looked_at, truncated=True)
            width = max(1, width // 8)
            continue
        looked_at += len(events)
        if not is_whole:
            width = max(1, width // 8)
            continue
        transactions += (event for event in reversed(events) if wanted.matches is None or wanted.matches(event))
        high = min(low, events[0].prev_version) if events else low
        took = time.monotonic() - began
        width = max(1, int(width * min(4.0, WINDOW_SECONDS / max(took, 0.001))))
    if len(transactions) > count:
        return BackwardPage(transactions[:count], transactions[count].version, looked_at)
    return BackwardPage(transactions, high or None, looked_at)


def _before_gap(error: HoldfastError, version: int) -> int | None:
    """Where the log goes on below a version of the gap that a change of leader left; None for another error."""
    back = error.fields.get("roll_back_to") if error.code is Code.ROLLED_BACK else None
    return back if isinstance(back, int) and back < version else None


async def _window(
    service: WatchedService, low: int, high: int, wanted: LogSearch
) -> tuple[list[TransactionEvent], bool]:
    """The transactions of ``(low, high]`` in their order, and whether these are all."""
    events: list[TransactionEvent] = []
    stream = service.log.subscribe(low, begin=wanted.begin, end=wanted.end, checkpoints=True)
    async with stream:
        try:
            async with asyncio.timeout(WINDOW_SECONDS_MAX):
                async for event in stream:
                    if isinstance(event, TransactionEvent):
                        if event.version > high:
                            break
                        events.append(event)
                        if len(events) > WINDOW_EVENTS_MAX:
                            return [], False
                    elif isinstance(event, Checkpoint) and event.committed_version >= high:
                        break
        except TimeoutError:
            if high - low <= 1:
                raise Unavailable("the log could not be read in time", version=high) from None
            return [], False
    return events, True


async def first_after(service: WatchedService, version: int) -> TransactionEvent | None:
    """The first transaction above a version; None where there is none yet. Raises: NotFound (``log_truncated``)."""
    try:
        return await _first_after(service, version)
    except HoldfastError as error:
        back = _before_gap(error, version)
        if back is None:
            raise
        return await _first_after(service, back)  # the gap has no transaction


async def _first_after(service: WatchedService, version: int) -> TransactionEvent | None:
    async with service.log.subscribe(version, checkpoints=True) as stream:
        try:
            async with asyncio.timeout(SECONDS_MAX):
                async for event in stream:
                    if isinstance(event, TransactionEvent):
                        return event
                    if isinstance(event, Checkpoint) and event.committed_version >= await newest_version(service):
                        return None  # an earlier one is at the end of an older leadership
        except TimeoutError:
            raise Unavailable("the log could not be read in time", version=version) from None
    return None


async def at_time(service: WatchedService, time_ms: int, newest_version: int) -> int:
    """The newest version whose transaction was made at or before a time, about; 0 before the first.

    *Cost*: at most 54 requests for one event each, within ``SECONDS_MAX``.
    """
    low, high, end = 0, newest_version, time.monotonic() + SECONDS_MAX
    while low < high and time.monotonic() < end:
        middle = (low + high) // 2
        try:
            event = await first_after(service, middle)
        except NotFound as error:
            if error.code is not Code.LOG_TRUNCATED:
                raise
            low = middle + 1
            continue
        if event is None or event.time_ms > time_ms:
            high = middle
        else:
            low = max(middle + 1, event.version)
    return low


async def newest_version(service: WatchedService) -> int:
    """The newest durable version. Raises: HoldfastError."""
    return (await service.log.version(local=True)).version
