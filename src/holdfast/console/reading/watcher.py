"""What the console remembers of one service: the scrapes of the last minutes, and each durable's backlog of a day.

While a page is open it looks who leads and scrapes ``/metrics`` every two seconds, else every minute. A slow scrape
makes the pause until the next one longer: it takes at most a fiftieth of the time. Nothing is written to disk; a
console that starts knows nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from array import array
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from holdfast.console import units
from holdfast.console.reading.exposition import Scrape, quantile
from holdfast.console.reading.service import Member, WatchedService
from holdfast.errors import HoldfastError, Unavailable

_logger = logging.getLogger("holdfast.console")

WATCHED_SECONDS: Final = 2.0
UNWATCHED_SECONDS: Final = 60.0
WATCHED_FOR_SECONDS: Final = 15.0
"""A page that was asked for within this time is open."""
FIRST_SECONDS_MAX: Final = 0.5
PAUSE_TIMES: Final = 50
SCRAPES_MAX: Final = 150
"""Five minutes of them."""
MINUTE_SECONDS: Final = 60.0
MINUTES_MAX: Final = 1_440
DURABLES_MAX: Final = 2_000
"""As many durables have lines in the metrics."""


class Watcher:
    """Scrapes one service from ``begin`` until ``aclose``.

    ``scrapes``: oldest first. ``members``: what each address said last. ``away_since_ms``: since when none of them
    answers, None while one does; then ``problem`` says why. ``refused``: the token may not read the metrics.
    """

    def __init__(self, service: WatchedService) -> None:
        self.service = service
        self.scrapes: deque[Scrape] = deque(maxlen=SCRAPES_MAX)
        self.members: list[Member] = []
        self.problem: HoldfastError | None = None
        self.away_since_ms: int | None = None
        self.refused = False
        self._backlogs: dict[tuple[str, str], array[float]] = {}
        self._next_minute = 0.0
        self._next_scrape = 0.0
        self._scraped = ("", "")
        self._looking_since: float | None = None
        self._watched_at = 0.0
        self._wake = asyncio.Event()
        self._looked = asyncio.Event()
        self._running: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Look from now on."""
        self._running = asyncio.ensure_future(self.run())
        self._running.add_done_callback(_report)

    async def aclose(self) -> None:
        """Look no more, and close the connections of the service."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait({self._running})
        await self.service.aclose()

    def watched(self) -> None:
        """A page is open."""
        was_idle = time.monotonic() - self._watched_at > WATCHED_FOR_SECONDS
        self._watched_at = time.monotonic()
        if was_idle:
            self._wake.set()

    async def first_look(self) -> None:
        """Wait for the first scrape, for ``FIRST_SECONDS_MAX`` at most, so that the first page is not empty."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FIRST_SECONDS_MAX):
                await self._looked.wait()

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            self._wake.clear()
            await self._look()
            self._looked.set()
            is_watched = time.monotonic() - self._watched_at < WATCHED_FOR_SECONDS
            pause = WATCHED_SECONDS if is_watched or self.away_since_ms is not None else UNWATCHED_SECONDS
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._wake.wait()

    @property
    def silent_seconds(self) -> float:
        """For how long the service has not answered a look that is not over; 0 between looks."""
        return 0.0 if self._looking_since is None else time.monotonic() - self._looking_since

    async def _look(self) -> None:
        self._looking_since = time.monotonic()
        try:
            await self._ask()
        finally:
            self._looking_since = None

    async def _ask(self) -> None:
        self.members = await self.service.members()
        answering = [member for member in self.members if member.alive is not None]
        asked = next((member for member in answering if member.leads), answering[0] if answering else None)
        if asked is None:
            self._went_away(self.members[0].problem or Unavailable("no address answers"))
            return
        self.service.away = self.away_since_ms = None
        began = time.monotonic()
        process = (asked.url, asked.alive.leader_id if asked.alive is not None else "")
        if process == self._scraped and began < self._next_scrape:
            return
        if process != self._scraped:
            self.scrapes.clear()  # the counters of another process
        self._scraped = process
        try:
            scrape = Scrape(await self.service.read_text("/metrics", member=asked.url), time.monotonic())
        except HoldfastError as error:
            self.refused, self.problem = True, error
        else:
            self.refused, self.problem = False, None
            self._add(scrape)
        self._next_scrape = time.monotonic() + PAUSE_TIMES * (time.monotonic() - began)

    def _went_away(self, error: HoldfastError) -> None:
        if self.away_since_ms is None:
            self.away_since_ms = int(time.time() * 1000)
            _logger.warning("the service does not answer: %s", error.statement())
        self.service.away = self.problem = error

    def _add(self, scrape: Scrape) -> None:
        if self.scrapes and scrape.value("process_cpu_seconds_total") < self.scrapes[-1].value(
            "process_cpu_seconds_total"
        ):
            self.scrapes.clear()  # another process: its counters began again
        if len(self.scrapes) > 1:
            self.scrapes[-2].of_stores = {}  # of single stores and durables only the newest two are needed
        self.scrapes.append(scrape)
        if scrape.at >= self._next_minute:
            self._next_minute = scrape.at + MINUTE_SECONDS - 1
            self._add_backlogs(scrape)

    def _add_backlogs(self, scrape: Scrape) -> None:
        names: set[tuple[str, str]] = set()
        for labels, value in scrape.labelled("holdfast_durable_backlog"):
            key = (labels["store"], labels["durable"])
            names.add(key)
            minutes = self._backlogs.get(key)
            if minutes is None:
                if len(self._backlogs) >= DURABLES_MAX:
                    continue
                minutes = self._backlogs[key] = array("f")
            minutes.append(value)
            if len(minutes) > MINUTES_MAX:
                del minutes[0]
        for key in self._backlogs.keys() - names:
            del self._backlogs[key]

    def backlog(self, store: str, durable: str) -> Sequence[float]:
        """A durable's backlog once a minute, oldest first, for at most a day."""
        return self._backlogs.get((store, durable), ())

    @property
    def leading(self) -> Member | None:
        """The process that leads, None where none says so."""
        return next((member for member in self.members if member.leads), None)

    @property
    def newest(self) -> Scrape | None:
        """The newest scrape, None before the first."""
        return self.scrapes[-1] if self.scrapes else None

    @property
    def span(self) -> str:
        """How far back the scrapes go."""
        return f"last {units.duration(self.scrapes[-1].at - self.scrapes[0].at)}" if len(self.scrapes) > 1 else ""

    def steps(self) -> Iterator[tuple[Scrape, Scrape]]:
        """Each scrape with the one before it, oldest first."""
        before: Scrape | None = None
        for scrape in self.scrapes:
            if before is not None and scrape.at > before.at:
                yield before, scrape
            before = scrape

    def rates(self, name: str, **labels: str) -> list[float]:
        """Of a counter of the service, how much it rose a second between scrapes.

        Nothing in the step in which the stores open: their counters go on from before this process.
        """
        return [
            0.0
            if name in after.sums and name not in before.sums
            else after.rise(before, name, **labels) / (after.at - before.at)
            for before, after in self.steps()
        ]

    def values(self, name: str, **labels: str) -> list[float]:
        """A gauge of the service at each scrape."""
        return [scrape.total(name, **labels) for scrape in self.scrapes]

    def quantiles(self, part: float, name: str, **labels: str) -> list[float]:
        """A quantile of a histogram between scrapes, in seconds; 0 where nothing was counted."""
        return [quantile(part, before, after, name, **labels) or 0.0 for before, after in self.steps()]

    def recent(self, seconds: float) -> tuple[Scrape, Scrape] | None:
        """The newest scrape, and the oldest of at most ``seconds`` before it; None before there are two."""
        if len(self.scrapes) < 2:
            return None
        newest = self.scrapes[-1]
        oldest = next(
            scrape for scrape in self.scrapes if newest.at - scrape.at <= max(seconds, newest.at - self.scrapes[-2].at)
        )
        return oldest, newest

    def value_of_store(self, name: str, **labels: str) -> float | None:
        """A value of a store or durable at the newest scrape."""
        return None if self.newest is None else self.newest.of_stores.get(_line(name, labels))

    def rate_of_store(self, name: str, **labels: str) -> float | None:
        """How much a counter of a store or durable rose a second between the last two scrapes."""
        if len(self.scrapes) < 2:
            return None
        before, after, line = self.scrapes[-2], self.scrapes[-1], _line(name, labels)
        if line not in after.of_stores or line not in before.of_stores:
            return None
        return max(0.0, after.of_stores[line] - before.of_stores[line]) / (after.at - before.at)


def _report(running: asyncio.Task[None]) -> None:
    """A watcher ends when it is cancelled; anything else is a bug."""
    if not running.cancelled() and running.exception() is not None:
        _logger.error("the watcher of a service ended: this is a bug of ours", exc_info=running.exception())


def _line(name: str, labels: Mapping[str, str]) -> str:
    within = ",".join(f'{key}="{_escaped(value)}"' for key, value in sorted(labels.items()))
    return f"{name}{{{within}}}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
