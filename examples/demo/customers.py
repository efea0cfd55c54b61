"""A process of many concurrent clients: they book seats, swap aircraft and cancel what really was cancelled.

Owns: who does what when, and a record of every answer. Does not own: the transactions (``airline``), retries and the
asking after lost answers (the client library).

All tasks of a process read one ``View`` that follows the stream, and decide on what it shows. It is always a little
behind, so decisions collide, the service refuses them, and the library decides again on newer data.

The process is steered by lines on standard input: ``go``, ``stop``. It says ``ready`` and then, twice a second, how far
it is. The record is written at the end: one row for each transaction that got an answer.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from pathlib import Path
from typing import Literal

import msgspec
from examples.demo.airline import book, cancel, swap
from examples.demo.flights import Flight

from holdfast.aio import AsyncTransaction, Client
from holdfast.errors import Conflict, HoldfastError, OutcomeUnknown
from holdfast.view import View

__all__ = ["Answered", "Orders", "Record", "run"]

SWAP_SHARE = 0.03
"""Of transactions that give a flight another aircraft."""
DOOMED_SHARE = 0.05
"""Of transactions on flights that really were cancelled: until then they are sold like any other."""
CANCEL_SHARE = 0.02
"""Of these, that cancel."""
PAUSE_AFTER_REFUSAL_SECONDS = 0.005

Fate = Literal["committed", "nothing to do", "refused", "unknown"]


class Orders(msgspec.Struct, frozen=True):
    """What one process is told."""

    number: int
    urls: list[str]
    clients: int
    passengers: int
    after_version: int
    flights: str
    output: str


class Answered(msgspec.Struct, frozen=True, array_like=True):
    """One transaction: begun and ended on the machine's monotonic clock, in seconds; how often it was decided."""

    ticket: str
    fate: Fate
    version: int | None
    began: float
    ended: float
    decisions: int


class Record(msgspec.Struct, frozen=True):
    """All of one process."""

    answered: list[Answered]
    unexpected: list[str]


class _Customers:
    def __init__(self, orders: Orders, flights: list[Flight], client: Client, view: View) -> None:
        self._orders = orders
        self._client = client
        self._view = view
        self._on_sale = [flight for flight in flights if not flight.cancelled]
        self._to_cancel = [flight for flight in flights if flight.cancelled][orders.number :: 2]
        self._fleet = sorted({(f.aircraft, f.seats) for f in flights if f.aircraft is not None})
        self.answered: list[Answered] = []
        self.unexpected: list[str] = []
        self.stopping = False

    async def one_client(self, number: int) -> None:
        """Until told to stop, one transaction after the other."""
        draw = random.Random(f"{self._orders.number}/{number}")
        count = 0
        while not self.stopping:
            ticket = f"{self._orders.number}-{number:03}-{count:06}"
            count += 1
            try:
                await self._one_transaction(draw, ticket)
            except Exception as error:  # noqa: BLE001  whatever it is, the demo fails and shows it
                self.unexpected.append(f"{ticket}: {type(error).__name__}: {error}")
                return

    async def _one_transaction(self, draw: random.Random, ticket: str) -> None:
        # The smaller of two draws: some flights are wanted more than others.
        flight = self._on_sale[min(draw.randrange(len(self._on_sale)) for _ in range(2))]
        chance = draw.random()
        passenger = draw.randrange(self._orders.passengers)
        aircraft, seats = draw.choice(self._fleet)
        doomed = draw.choice(self._to_cancel) if self._to_cancel and draw.random() < DOOMED_SHARE else None
        cancelling = draw.random() < CANCEL_SHARE
        decisions = 0

        async def decide(txn: AsyncTransaction) -> bool:
            nonlocal decisions
            decisions += 1
            if chance < SWAP_SHARE:
                return await swap(txn, flight, aircraft, seats, ticket)
            if doomed is not None and cancelling:
                return await cancel(txn, doomed, ticket)
            return await book(txn, doomed or flight, passenger, ticket)

        began = time.monotonic()
        version: int | None = None
        fate: Fate
        try:
            done = await self._client.transact(decide, view=self._view)
        except OutcomeUnknown:
            fate = "unknown"
        except (Conflict, HoldfastError):
            fate = "refused"
            await asyncio.sleep(PAUSE_AFTER_REFUSAL_SECONDS)
        else:
            version = done.version
            fate = "nothing to do" if version is None else "committed"
            if version is None:
                await asyncio.sleep(PAUSE_AFTER_REFUSAL_SECONDS)
        self.answered.append(Answered(ticket, fate, version, began, time.monotonic(), decisions))

    async def tell(self) -> None:
        """How far it is, as a line of JSON twice a second."""
        while not self.stopping:
            committed = sum(1 for each in self.answered if each.fate == "committed")
            again = sum(each.decisions - 1 for each in self.answered)
            print(json.dumps({"committed": committed, "decided_again": again}), flush=True)
            await asyncio.sleep(0.5)


async def run(orders: Orders, flights: list[Flight]) -> Record:
    """The whole life of the process."""
    view = View.memory()
    async with Client(orders.urls) as client, client.subscribe(0) as stream:

        async def follow() -> None:
            async for events in stream.batches():
                view.apply(events)

        following = asyncio.create_task(follow())
        reached = asyncio.create_task(view.reached(orders.after_version))
        await asyncio.wait({following, reached}, return_when=asyncio.FIRST_COMPLETED)
        if following.done():
            following.result()
        await reached
        customers = _Customers(orders, flights, client, view)
        print("ready", flush=True)
        await _line("go")
        clients = [asyncio.create_task(customers.one_client(number)) for number in range(orders.clients)]
        telling = asyncio.create_task(customers.tell())
        await _line("stop")
        customers.stopping = True
        await asyncio.gather(*clients, telling)
        if following.done():
            customers.unexpected.append(f"the stream ended: {following.exception()!r}")
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
    return Record(customers.answered, customers.unexpected)


async def _line(expected: str) -> None:
    line = (await asyncio.to_thread(sys.stdin.readline)).strip()
    if line != expected:
        raise SystemExit(f"told {line!r}, expected {expected!r}")


if __name__ == "__main__":
    given = msgspec.json.decode(sys.argv[1], type=Orders)
    on_sale = msgspec.msgpack.decode(Path(given.flights).read_bytes(), type=list[Flight])
    Path(given.output).write_bytes(msgspec.msgpack.encode(asyncio.run(run(given, on_sale))))
