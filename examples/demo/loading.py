"""Every flight enters as a transaction of its own, over streams of commits.

Owns: how the year is cut into streams, and what happens to a flight whose transaction was not committed. Does not own:
the transactions (``airline``).

Each stream owns some aircraft, so that flights that could be in each other's way are in one stream. Within a stream all
are decided against the version at the start of their part: when the real data has an aircraft leaving twice within an
hour, the second flight conflicts. It then enters by a transaction that looks first, and waits for another aircraft.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from examples.demo.airline import PASSENGER_CENTS, enter, entering, passenger_key
from examples.demo.flights import Flight

from holdfast import Transaction, Write
from holdfast.aio import AsyncTransaction, Client
from holdfast.client import CommitReceipt

__all__ = ["Loaded", "load"]

STREAMS = 4
PART_FLIGHTS = 10_000
PASSENGERS_A_TRANSACTION = 500
SECOND_TRIES_AT_ONCE = 16


@dataclass(slots=True)
class Loaded:
    """What came of it."""

    flights: int = 0
    second_tries: int = 0
    without_aircraft: int = 0


async def load(client: Client, flights: list[Flight], passengers: int, moved: Callable[[int], None]) -> Loaded:
    """Enter passengers and flights; ``moved`` is told how many flights are in."""
    loaded = Loaded()
    for first in range(0, passengers, PASSENGERS_A_TRANSACTION):
        numbers = range(first, min(first + PASSENGERS_A_TRANSACTION, passengers))
        await client.commit([Write(passenger_key(number), b"%d" % PASSENGER_CENTS) for number in numbers])
    streams: list[list[Flight]] = [[] for _ in range(STREAMS)]
    by_aircraft = sorted(flights, key=lambda flight: (flight.aircraft or "", flight.minute))
    for flight in by_aircraft:
        streams[zlib.crc32((flight.aircraft or flight.name).encode()) % STREAMS].append(flight)
    await asyncio.gather(*(_stream(client, stream, loaded, moved) for stream in streams))
    return loaded


async def _stream(client: Client, flights: list[Flight], loaded: Loaded, moved: Callable[[int], None]) -> None:
    for part in _parts(flights):
        start = (await client.version(local=True)).version
        missed: list[Flight] = []
        results = client.commits_many(_entering(part, start))
        index = 0
        async for result in results:
            if isinstance(result, CommitReceipt):
                loaded.flights += 1
            else:
                missed.append(part[index])
            index += 1
            if index % 1_000 == 0:
                moved(loaded.flights)
        assert index == len(part), "every transaction of a stream gets a result"
        await _second_tries(client, missed, loaded)
        moved(loaded.flights)


def _entering(part: list[Flight], read_version: int) -> Iterator[Transaction]:
    return (entering(flight, read_version) for flight in part)


def _parts(flights: list[Flight]) -> Iterator[list[Flight]]:
    """Cuts between aircraft only."""
    part: list[Flight] = []
    for flight in flights:
        if len(part) >= PART_FLIGHTS and flight.aircraft != part[-1].aircraft:
            yield part
            part = []
        part.append(flight)
    if part:
        yield part


async def _second_tries(client: Client, missed: list[Flight], loaded: Loaded) -> None:
    """Those that were not committed, or whose outcome stayed open: the transaction looks whether the flight is in."""
    room = asyncio.Semaphore(SECOND_TRIES_AT_ONCE)

    async def one(flight: Flight) -> None:
        async def decide(txn: AsyncTransaction) -> bool:
            return await enter(txn, flight)

        async with room:
            assigned = (await client.transact(decide)).value
        loaded.flights += 1
        loaded.second_tries += 1
        loaded.without_aircraft += not assigned

    await asyncio.gather(*(one(flight) for flight in missed))
