"""What must agree at the end, and with what.

Owns: the comparisons. Does not own: how each side came about (``follower``, ``log_count``, Spark).

Three accounts of the same history exist: the view that followed the stream, the table that Spark made of the log, and
an independent count of the log's objects. They must be equal, the laws of the airline must hold in them, and they must
fit what the service answered to the customers.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

from examples.demo.airline import BETWEEN_DEPARTURES_MINUTES, PASSENGER_CENTS
from examples.demo.customers import Answered
from examples.demo.flights import Flight
from examples.demo.log_count import Counted
from examples.demo.shop import Shipped

__all__ = ["Comparison", "Rows", "acknowledged", "equal_rows", "laws", "loaded_flights", "of_shop", "same_bookings"]

Rows = dict[bytes, tuple[bytes, int]]
"""Value and version by key."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One comparison and its result."""

    name: str
    holds: bool
    detail: str


def equal_rows(name: str, left: Rows, right: Rows) -> Comparison:
    """Key by key: values and versions."""
    wrong = [key for key in left.keys() | right.keys() if left.get(key) != right.get(key)]
    detail = f"{len(left):,} keys, {len(wrong)} differ" + (f", first {min(wrong)!r}" if wrong else "")
    return Comparison(name, not wrong and bool(left), detail)


def loaded_flights(table: Rows, version: int, flights: list[Flight]) -> Comparison:
    """The table of the moment after the load: every flight, and nothing that is newer."""
    found = sum(key.startswith(b"flight/") for key in table)
    newer = sum(written > version for _, written in table.values())
    detail = f"{found:,} of {len(flights):,} flights, {newer} newer rows"
    return Comparison("Spark's table as of the end of the load", found == len(flights) and not newer, detail)


def same_bookings(by_spark: dict[str, int], counted: Counted) -> Comparison:
    """Spark's own GROUP BY against the independent count."""
    independent = counted.bookings_by_flight()
    wrong = [name for name in by_spark.keys() | independent.keys() if by_spark.get(name, 0) != independent[name]]
    detail = f"{sum(by_spark.values()):,} bookings on {len(by_spark):,} flights, {len(wrong)} flights differ"
    return Comparison("bookings per flight: Spark SQL = count of the log", not wrong and bool(by_spark), detail)


def laws(table: Rows, counted: Counted, flights: int, passengers: int) -> list[Comparison]:
    """What no crash and no race may break."""
    sold: Counter[str] = Counter()
    paid = money = 0
    departures: dict[bytes, list[int]] = {}
    records: dict[str, dict[str, object]] = {}
    for key, (value, _) in table.items():
        room, _, rest = key.partition(b"/")
        if room == b"flight":
            records[rest.decode()] = json.loads(value)
        elif room == b"booking":
            sold[rest.rsplit(b"/", 1)[0].decode()] += 1
            paid += json.loads(value)["cents"]
        elif room == b"passenger":
            money += int(value)
        elif room == b"aircraft":
            aircraft, _, minute = rest.partition(b"/")
            departures.setdefault(aircraft, []).append(int(minute))
    oversold = sum(
        1
        for name, record in records.items()
        if not (isinstance(left := record["left"], int) and left >= 0 and record["capacity"] == left + sold[name])
    )
    near = sum(
        1
        for minutes in departures.values()
        for earlier, later in pairwise(sorted(minutes))
        if later - earlier < BETWEEN_DEPARTURES_MINUTES
    )
    return [
        Comparison("every flight of the data is in", len(records) == flights, f"{len(records):,} of {flights:,}"),
        Comparison("no seat sold twice", not oversold, f"{sum(sold.values()):,} seats sold, {oversold} flights wrong"),
        Comparison(
            "no cent lost or made",
            money + paid == passengers * PASSENGER_CENTS,
            f"{money / 100:,.2f} in pockets + {paid / 100:,.2f} paid of {passengers * PASSENGER_CENTS / 100:,.2f}",
        ),
        Comparison(
            "no aircraft leaves twice in an hour",
            not near,
            f"{sum(map(len, departures.values())):,} departures of {len(departures):,} aircraft, {near} too near",
        ),
        Comparison(
            "each decision held when it committed",
            not counted.broken_preconditions,
            f"{counted.preconditions:,} point preconditions checked again, {counted.broken_preconditions} broken",
        ),
    ]


def acknowledged(answered: list[Answered], counted: Counted) -> list[Comparison]:
    """What the customers were told against what the log says."""
    lost = moved = ghosts = 0
    committed = refused = 0
    for each in answered:
        versions = counted.tickets.get(each.ticket, [])
        if each.fate == "committed":
            committed += 1
            lost += not versions
            moved += bool(versions) and versions != [each.version]
        elif each.fate != "unknown":
            refused += 1
            ghosts += bool(versions)
    return [
        Comparison(
            "every acknowledged transaction once, at its version",
            not lost and not moved and committed > 0,
            f"{committed:,} acknowledged, {lost} lost, {moved} moved or repeated",
        ),
        Comparison("nothing refused is in the log", not ghosts, f"{refused:,} not committed, {ghosts} ghosts"),
    ]


def of_shop(shipped: Shipped) -> list[Comparison]:
    """Each order has one invoice, and the stock is what they left of it."""
    return [
        Comparison("the books of the shop balance", shipped.books.endswith("balanced"), shipped.books),
        Comparison("holdfast log verify, of the shop", shipped.verified, "keys and messages in one log"),
    ]
