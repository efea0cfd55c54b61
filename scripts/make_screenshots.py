"""Takes the pictures of the console's pages for docs/images/console, with the flights of the demo.

    .venv/bin/python scripts/make_screenshots.py [--flights 3000] [--seconds 20] [--output FOLDER] [PAGE ...]

Starts a service on a new log in a temporary folder, enters flights as the demo does, lets travellers book seats through
the log and clerks work on messages, opens the console, and takes each page in light; the overview also in dark and as
wide as a phone. Needs Chromium (``scripts/setup.sh browser``) and the packages of the extras ``demo`` and ``test``; for
the page of pipelines, whose tables Spark makes of the log, also ``JAVA_HOME``. Without it that page is left out.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from examples.demo.airline import passenger_key  # noqa: E402
from examples.demo.flights import Flight, read_flights  # noqa: E402
from examples.demo.loading import load  # noqa: E402
from PIL import Image  # noqa: E402
from tests.integration.console_harness import ADMIN, NARROW, WIDE, ConsoleProcess, Service, chromium  # noqa: E402

from holdfast import Client, StoreClient, Write  # noqa: E402
from holdfast.aio import Client as AsyncClient  # noqa: E402
from holdfast.client import RetentionPolicy  # noqa: E402
from holdfast.client.stores import SubscriberOptions  # noqa: E402
from holdfast.errors import HoldfastError  # noqa: E402

COLOURS = 128
"""Enough for a page, in a third of the bytes."""
PASSENGERS = 200
PAGES = {
    "overview": "/",
    "log": "/log",
    "transaction": "",  # the newest, known when the service runs
    "keys": "/keys?prefix=flight%2F",
    "key": "",
    "stores": "/stores",
    "store": "/store?store=bookings",
    "durable": "/durable?store=bookings&durable=tickets",
    "messages": "/messages?store=bookings&durable=statistics",
    "message": "/message?store=bookings&durable=statistics&seq=70",
    "maps": "/maps",
    "map": "/map?store=bookings&map=gates",
    "entry": "",
    "definition": "/definition",
    "retention": "/retention",
    "cluster": "/cluster",
    "pipelines": "/pipelines",
    "configuration": "/configuration",
    "runbooks": "/runbooks",
    "purge": "/durable/purge?store=bookings&durable=statistics",
}


class Airport:
    """Travellers and clerks, until stopped."""

    def __init__(self, url: str, flights: list[Flight]) -> None:
        self._url = url
        self._flights = flights
        self._stopped = threading.Event()
        work = (self._book, self._book, self._publish, self._issue_tickets, self._notify)
        self._threads = [threading.Thread(target=self._guarded, args=(each,), daemon=True) for each in work]

    def _guarded(self, work: object) -> None:
        while not self._stopped.is_set():
            try:
                work()  # type: ignore[operator]
            except HoldfastError:
                self._stopped.wait(0.2)

    def define(self) -> None:
        """The stores."""
        with StoreClient(self._url, token=ADMIN) as stores:
            stores.define_store("lost", {"description": "what no clerk could handle"})
            stores.define_durable("lost", "letters", {"type": "shared"})
            stores.define_store("bookings", {"description": "every booking of a seat", "message_limit": 50_000})
            shared = {"type": "shared", "max_delivery": 2}
            stores.define_durable("bookings", "tickets", shared | {"dead_letter_store": "lost", "retention_time": 3600})
            stores.define_durable("bookings", "notices", shared)
            stores.define_durable("bookings", "statistics", {"type": "standard"})
            stores.define_durable("bookings", "gates", {"type": "map"})
            gates = {flight.name: b"gate %d" % (number % 40) for number, flight in enumerate(self._flights[:60])}
            stores.map("bookings", "gates").set_many(gates)
        with Client(self._url, token=ADMIN) as client:
            client.set_retention("a-month", RetentionPolicy(max_age_seconds=30 * 86_400))

    def start(self) -> None:
        """Begin."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End."""
        self._stopped.set()
        for thread in self._threads:
            thread.join(10)

    def _book(self) -> None:
        with Client(self._url, token=ADMIN) as client:
            while not self._stopped.wait(0.02):
                key = passenger_key(random.randrange(PASSENGERS))
                client.transact(lambda txn, key=key: txn.write(key, b"%d" % (int(txn.get(key) or 0) - 100)))

    def _publish(self) -> None:
        with StoreClient(self._url, token=ADMIN) as stores, stores.publisher("bookings") as publisher:
            while not self._stopped.wait(0.03):
                flight = random.choice(self._flights)
                body = f'{{"flight": "{flight.name}", "seat": {random.randrange(180)}}}'.encode()
                publisher.publish(body, fields={"carrier": flight.carrier, "miles": flight.miles}, key=flight.name)

    def _issue_tickets(self) -> None:
        with (
            StoreClient(self._url, token=ADMIN) as stores,
            stores.subscriber("bookings", "tickets", subscriber="clerk-1") as messages,
        ):
            for message in messages:
                if self._stopped.is_set():
                    return
                if random.random() < 0.02:
                    messages.reject(message)

    def _notify(self) -> None:
        options = SubscriberOptions(explicit_ack=True)
        with (
            StoreClient(self._url, token=ADMIN) as stores,
            stores.subscriber("bookings", "notices", subscriber="mailer-1", options=options) as messages,
        ):
            for message in messages:
                if self._stopped.is_set():
                    return
                if random.random() < 0.01:
                    messages.put_back(message)
                else:
                    messages.acknowledge(message)


@contextmanager
def airport(flights: list[Flight]) -> Iterator[tuple[Service, Airport]]:
    """A service with flights and traffic."""
    with tempfile.TemporaryDirectory() as folder:
        service = Service(Path(folder))
        try:

            async def enter() -> None:
                async with AsyncClient(service.url, token=ADMIN) as client:
                    await load(client, flights, PASSENGERS, lambda _: None)

            asyncio.run(enter())
            traffic = Airport(service.url, flights)
            traffic.define()
            traffic.start()
            yield service, traffic
            traffic.stop()
        finally:
            service.end()


def make_tables(log_url: str, folder: Path) -> list[str]:
    """The table of newest values and that of the audit, made by their pipelines. Returns where they are."""
    places = []
    for job in ("latest", "verify"):
        place = (folder / job).as_uri()
        command = [sys.executable, "-m", "holdfast.cli.main", "spark", job, "--log", log_url, "--to", place]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        places.append(place)
    return places


def rewrite(txn: Any) -> None:
    """A change of what was read."""
    txn.get(b"notice/board")
    txn.write(b"notice/board", b'{"text": "gate B14 is closed", "until": "18:00"}')


def main() -> None:
    """Take what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pages", nargs="*", help=f"of {', '.join(PAGES)}; all by default")
    parser.add_argument("--flights", type=int, default=3_000)
    parser.add_argument("--seconds", type=float, default=20.0, help="of traffic before the pictures")
    parser.add_argument("--output", type=Path, default=ROOT / "docs/images/console")
    parser.add_argument("--all-themes", action="store_true", help="each page in dark and on a phone, too")
    given = parser.parse_args()
    given.output.mkdir(parents=True, exist_ok=True)
    flights = read_flights(given.flights)
    with airport(flights) as (service, _), tempfile.TemporaryDirectory() as folder:
        asked_for = set(given.pages or PAGES) - (set() if "JAVA_HOME" in os.environ else {"pipelines"})
        log_url = (service.folder / "log").as_uri()
        tables = make_tables(log_url, Path(folder)) if "pipelines" in asked_for else []
        flags = [word for table in tables for word in ("--table", table)]
        console = ConsoleProcess(Path(folder), [service.url], *flags)
        try:
            with Client(service.url, token=ADMIN) as client:
                client.commit([Write(b"notice/board", b'{"text": "gate B14 is open", "until": "12:00"}')])
                written = client.transact(rewrite)
            pages = dict(PAGES, transaction=f"/transaction?version={written.version}", key="/key?key=bm90aWNlL2JvYXJk")
            pages["entry"] = f"/map/entry?store=bookings&map=gates&key={quote(flights[0].name)}"
            wanted = {name: path for name, path in pages.items() if name in asked_for}
            with chromium() as browser:
                take(browser, console, wanted, given.output, given.seconds, all_themes=given.all_themes)
        finally:
            console.end()


def take(
    browser: object, console: ConsoleProcess, pages: dict[str, str], output: Path, seconds: float, *, all_themes: bool
) -> None:
    """One picture after another; the overview's charts need some time first."""
    looks = [("", "light", WIDE), ("-dark", "dark", WIDE), ("-phone", "light", NARROW)]
    for ending, scheme, size in looks:
        context = browser.new_context(color_scheme=scheme, viewport=size)  # type: ignore[attr-defined]
        page = context.new_page()
        for name, path in pages.items():
            if ending and not all_themes and name != "overview":
                continue
            page.goto(console.url + path)
            if name == "overview" and not ending:
                time.sleep(seconds)
            page.wait_for_timeout(2_500)
            path = output / f"{name}{ending}.png"
            page.screenshot(path=path, full_page=all_themes, animations="disabled")
            Image.open(path).convert("RGB").quantize(COLOURS).save(path, optimize=True)
            print(path)
        context.close()


if __name__ == "__main__":
    main()
