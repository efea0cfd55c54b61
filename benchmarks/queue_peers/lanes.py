"""Which measurements there are, and their rounds.

Owns: lanes, their turns, starting the processes that measure. Does not own: what is timed (``worker``), what is wanted
(``targets``).

Every measurement is a process of its own. Rounds are interleaved: in each, every lane runs every system once, and the
order of the systems turns from round to round. A measurement during which others used more than a quarter of a core is
taken again, ``tries`` times in all, and the quietest is kept; what others used is kept with it.
"""

from __future__ import annotations

import json
import shutil
import signal
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

__all__ = [
    "BATCH_SIZES",
    "LEVELS",
    "LOG_LENGTHS",
    "MESSAGE_SIZES",
    "OPENED",
    "READ",
    "SIZES",
    "SOUGHT",
    "SYNCED",
    "UNSYNCED",
    "WORKED",
    "Lane",
    "Lanes",
]

BENCHMARKS = Path(__file__).parent.parent
OTHERS_CORES_MAX = 0.25
CELL_SECONDS_MAX = 300

SIZES = (100, 1024)
UNSYNCED = (
    *("holdfast", "holdfast zlib-ng", "holdfast crc32c", "lmdb", "lmdb writemap", "sqlite3", "litequeue"),
    "persist-queue SQLite",
    *("persist-queue SQLite, unsynced", "persist-queue file", "diskcache", "queuelib"),
)
SYNCED = (
    *("holdfast", "lmdb", "sqlite3", "litequeue", "persist-queue SQLite", "persist-queue file", "diskcache"),
    "queuelib",
)
READ: dict[str, int] = {
    "holdfast": 1_000_000,
    "holdfast zlib-ng": 1_000_000,
    "holdfast crc32c": 1_000_000,
    "lmdb": 1_000_000,
    "sqlite3": 1_000_000,
    "litequeue": 50_000,
    "persist-queue SQLite": 50_000,
    "persist-queue file": 5_000,
    "diskcache": 20_000,
    "queuelib": 90_000,
}
"""Messages of 100 bytes in the logs that are read; a fifth of it at 1 KiB."""
SOUGHT = ("holdfast", "lmdb", "sqlite3", "persist-queue SQLite")
OPENED = ("holdfast", "lmdb", "sqlite3", "litequeue", "persist-queue SQLite")
WORKED = ("holdfast", "persist-queue ack, unsynced", "persist-queue ack")
LEVELS = ("os", "every(ms=50)", "every(messages=1000)", "always")
BATCH_SIZES = (1, 10, 100, 1000, 4000)
MESSAGE_SIZES = (10, 100, 1024, 10_240, 102_400)
LOG_LENGTHS = (10_000, 1_000_000, 10_000_000)


@dataclass(slots=True)
class Lane:
    """One system in one measurement: what each round found."""

    values: dict[str, list[float]] = field(default_factory=dict)

    def add(self, found: dict[str, Any]) -> None:
        for name, value in found.items():
            if value is not None:
                self.values.setdefault(name, []).append(value)

    def median(self, name: str = "rate") -> float:
        return statistics.median(self.values[name])

    def spread(self, name: str = "rate") -> tuple[float, float]:
        return min(self.values[name]), max(self.values[name])


class CheckFailed(Exception):
    """A measurement was not what it claims to be, or did not end: the figures mean nothing."""


class Lanes:
    """Runs measurements and keeps what they found, by (measurement, system)."""

    def __init__(self, folder: Path, console: Console, *, rounds: int, seconds: float, tries: int) -> None:
        self.found: dict[tuple[str, str], Lane] = {}
        self._folder = folder
        self._console = console
        self._rounds = rounds
        self._seconds = seconds
        self._tries = tries
        self._logs: dict[tuple[Any, ...], Path] = {}

    def run(self, lengths: Sequence[int]) -> None:
        for number in range(self._rounds):
            self._console.print(f"round {number + 1} of {self._rounds}")
            self._writes(number)
            self._reads(number)
            self._seeks(number)
            self._opens(number, lengths)
            self._works(number)
            self._growth()

    def lane(self, name: str, system: str = "holdfast") -> Lane:
        return self.found[name, system]

    def rate(self, name: str, system: str = "holdfast") -> float:
        return self.lane(name, system).median()

    # ---- rounds -----------------------------------------------------------------------------------------------------

    def _writes(self, number: int) -> None:
        for size in SIZES:
            for system in turned(UNSYNCED, number):
                self._fresh(f"batch {size}", system, cell="write", size=size, batch=1000, synced=False)
            for system in turned(UNSYNCED, number):
                self._fresh(f"single {size}", system, cell="write", size=size, batch=1, synced=False)
            for system in turned(SYNCED, number):
                self._fresh(f"synced {size}", system, cell="write", size=size, batch=1, synced=True)
            for system in turned(SYNCED, number):
                self._fresh(f"synced batch {size}", system, cell="write", size=size, batch=1000, synced=True)
            self._fresh(f"tasks {size}", "holdfast", cell="gather", size=size, tasks=1000)

    def _reads(self, number: int) -> None:
        for size in SIZES:
            for system in turned(tuple(READ), number):
                count = READ[system] if size == 100 else READ[system] // 5
                for form in ("payloads", "messages", "lazy"):
                    if form == "lazy" and not system.startswith("holdfast"):
                        continue
                    if form == "messages" and system not in ("holdfast", "lmdb", "sqlite3"):
                        continue
                    log = self._log(system, cell="fill", size=size, count=count)
                    given = {"cell": "read", "count": count, "form": form, "seconds": self._seconds}
                    if system == "litequeue":
                        log = Path(shutil.copytree(log, self._folder / "read"))
                    self._measure(f"{form} {size}", system, log, **given)
                    shutil.rmtree(self._folder / "read", ignore_errors=True)
            for system in ("holdfast", "holdfast zlib-ng", "holdfast crc32c"):
                log = self._log(system, cell="fill", size=size, count=200_000, mixed=True)
                given = {"cell": "read", "count": 200_000, "form": "payloads", "seconds": self._seconds}
                self._measure(f"payloads {size} mixed", system, log, **given)

    def _seeks(self, number: int) -> None:
        for system in turned(SOUGHT, number):
            for count in (1_000_000,) if system != "holdfast" else (10_000, 100_000, 1_000_000):
                log = self._log(system, cell="seek_fill", count=count, batch=100)
                self._measure(f"since {count}", system, log, cell="seek", count=count, batch=100)
        log = self._log("holdfast", cell="seek_fill", count=1_000_000, batch=1)
        self._measure("since 1000000 singles", "holdfast", log, cell="seek", count=1_000_000, batch=1)

    def _opens(self, number: int, lengths: Sequence[int]) -> None:
        for system in turned(OPENED, number):
            for count in lengths if system == "holdfast" else [each for each in lengths if each <= 1_000_000]:
                log = self._log(system, cell="fill", size=100, count=count, purpose="open clean")
                self._measure(f"open clean {count}", system, log, cell="open")
        for system in turned(OPENED, number):
            for count in lengths if system == "holdfast" else [each for each in lengths if each <= 1_000_000]:
                log = self._log(system, cell="fill", size=100, count=count, purpose="open killed")
                self._measure(f"open killed {count}", system, log, cell="open", killed=1000)
        for each in (1, 1000):
            log = self._log("holdfast", cell="fill", size=100, count=10_000, purpose=f"open killed, by {each}")
            self._measure(f"open killed, by {each}", "holdfast", log, cell="open", killed=each)

    def _works(self, number: int) -> None:
        for system in turned(WORKED, number):
            for waiting in (2_000, 200_000):
                if system != "persist-queue ack":
                    self._fresh(f"work {waiting}", system, cell="work", size=100, count=waiting, synced=False)
            if system != "persist-queue ack, unsynced":
                self._fresh("work synced 2000", system, cell="work", size=100, count=2_000, synced=True)

    def _growth(self) -> None:
        for level in LEVELS:
            self._fresh(f"level {level}", "holdfast", cell="level", sync=level)
        for batch in BATCH_SIZES:
            self._fresh(f"batches of {batch}", "holdfast", cell="write", size=100, batch=batch, synced=False)
        for size in MESSAGE_SIZES:
            batch = max(1, min(1000, 1_000_000 // size))
            self._fresh(f"messages of {size}", "holdfast", cell="write", size=size, batch=batch, synced=False)

    # ---- one measurement --------------------------------------------------------------------------------------------

    def _fresh(self, name: str, system: str, **given: Any) -> None:
        """In a new folder each time."""
        self._measure(name, system, None, seconds=self._seconds, **given)

    def _measure(self, name: str, system: str, log: Path | None, **given: Any) -> None:
        killed = given.pop("killed", 0)
        best: dict[str, Any] | None = None
        for _ in range(self._tries):
            folder = log or self._folder / "fresh"
            if killed:
                self._start(system, folder, cell="die", size=100, count=50_000, batch=killed, dies=True)
            found = self._start(system, folder, **given)
            if log is None:
                shutil.rmtree(folder)
            if best is None or found["other_cores"] < best["other_cores"]:
                best = found
            if found["other_cores"] <= OTHERS_CORES_MAX:
                break
        assert best is not None, "there was at least one try"
        self.found.setdefault((name, system), Lane()).add(best)
        shown = (
            f"{best['rate']:14,.0f}/s"
            if "rate" in best
            else " ".join(
                f"{value:10,.2f} {field}"
                for field, value in best.items()
                if value is not None and field != "other_cores"
            )
        )
        self._console.print(f"   {name:26} {system:32} {shown:40} others {best['other_cores']:.2f} cores")

    def _log(self, system: str, **given: Any) -> Path:
        """A log that is written once and used in every round, for one purpose: opening appends to it."""
        key = (system, *sorted(given.items()))
        if key not in self._logs:
            given.pop("purpose", None)
            folder = self._folder / f"log-{len(self._logs)}"
            self._start(system, folder, **given)
            self._logs[key] = folder
        return self._logs[key]

    def _start(self, system: str, folder: Path, *, dies: bool = False, **given: Any) -> dict[str, Any]:
        request = json.dumps({"system": system, "folder": str(folder), **given})
        done = subprocess.run(
            [sys.executable, "-m", "queue_peers.worker", request],
            cwd=BENCHMARKS,
            capture_output=True,
            text=True,
            timeout=CELL_SECONDS_MAX,
            check=False,
        )
        if done.returncode != (-signal.SIGKILL if dies else 0):
            raise CheckFailed(f"{request} ended with {done.returncode}: {done.stderr[-2000:]}")
        answer: dict[str, Any] = {} if dies else json.loads(done.stdout.splitlines()[-1])
        return answer


def turned(systems: tuple[str, ...], number: int) -> tuple[str, ...]:
    """Another one first in each round, and every second round the other way round."""
    at = number % len(systems)
    found = systems[at:] + systems[:at]
    return found[::-1] if number % 2 else found
