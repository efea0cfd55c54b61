"""The shop: orders come as messages, stocks are keys, invoices are messages, and every order is one step.

Several processes work on the orders of one log, in which the stores live. Half way a worker and the leader are killed.
Afterwards each order has one invoice, and nothing is left of the stock. ``python -m examples.demo.shop NAME URL...`` is
one worker; what it does is ``examples/stores/ship_orders.py``.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from examples.demo.servers import Child, Server
from examples.stores import ship_orders

__all__ = ["Shipped", "run_shop"]

WORKERS = 3
SECONDS_MAX = 180.0


@dataclass(frozen=True, slots=True)
class Shipped:
    """What became of the orders. ``gap_seconds``: from the end of the leader until the next one's stores served."""

    seconds: float
    gap_seconds: float
    books: str
    verified: bool


def run_shop(folder: Path, orders: int, moved: Callable[[int], None]) -> Shipped:
    """Ship the orders of a new log in ``folder``; ``moved`` gets how many are done. Raises: RuntimeError."""
    folder.mkdir(parents=True)
    url = (folder / "log").resolve().as_uri()
    _holdfast("log", "init", "--no-race", url, "--stores", "log")
    with ExitStack() as cleaning:

        def server(name: str, *flags: str) -> Server:
            started = Server(name, url, folder, ["--set", f"stores.directory={folder / name}", *flags])
            cleaning.callback(started.end)
            return started

        def worker(number: int) -> Child:
            child = Child("examples.demo.shop", [f"worker-{number}", *urls])
            cleaning.callback(child.end)
            return child

        leader = server("first")
        leader.wait_until_leading()
        standby = server("standby", "--standby")
        standby.wait_until_following()
        urls = [leader.url, standby.url]
        ship_orders.prepare(urls, orders)
        workers = [worker(number) for number in range(WORKERS)]
        began = time.monotonic()
        _wait_for(urls, orders // 2, began, moved)
        workers[0].end()
        workers[0] = worker(0)
        leader.kill()
        killed = time.monotonic()
        done = len(ship_orders.invoices(urls))  # answered by the next leader
        gap_seconds = time.monotonic() - killed
        moved(done)
        _wait_for(urls, orders, began, moved)
        seconds = time.monotonic() - began
        books = ship_orders.balance(urls, orders)
        for child in workers:
            child.end()
        stopped = standby.stop() == 0
    return Shipped(seconds, gap_seconds, books, stopped and not _holdfast("log", "verify", url).returncode)


def _wait_for(urls: list[str], count: int, began: float, moved: Callable[[int], None]) -> None:
    while (done := len(ship_orders.invoices(urls))) < count:
        moved(done)
        if time.monotonic() - began > SECONDS_MAX:
            raise RuntimeError(f"the shop has shipped {done} orders in {SECONDS_MAX} s")
        time.sleep(0.25)


def _holdfast(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "holdfast.cli.main", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


if __name__ == "__main__":
    ship_orders.work(sys.argv[2:], sys.argv[1], threading.Event())
