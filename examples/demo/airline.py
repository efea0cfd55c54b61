"""The airline: what is kept under which key, and its transactions.

Owns: keys, values, and what each transaction reads and writes. Does not own: who runs them (``loading``,
``customers``), what must be true of the result (``comparisons``).

    flight/2013-01-01T05/UA1545              FlightRecord: aircraft, capacity, seats left, cancelled
    aircraft/N14228/000315                   the flight that leaves with it in this minute of the year
    booking/2013-01-01T05/UA1545/p004711     Booking: what was paid
    passenger/p004711                        cents left

The laws, whatever happens: no seat is sold twice, no cent appears or is lost, and no aircraft leaves New York twice
within an hour. Each transaction leaves its ``ticket`` in the flight's record, so that its fate can be read off the log.
"""

from __future__ import annotations

from typing import Final

import msgspec
from examples.demo.flights import Flight

from holdfast import PointRead, RangeRead, Transaction, Write
from holdfast.aio import AsyncTransaction

__all__ = ["PASSENGER_CENTS", "Booking", "FlightRecord", "book", "cancel", "enter", "entering", "passenger_key", "swap"]

PASSENGER_CENTS: Final = 150_000
BETWEEN_DEPARTURES_MINUTES: Final = 60
BOOKINGS_MAX: Final = 1_000


class FlightRecord(msgspec.Struct, frozen=True):
    """The state of one flight."""

    route: str
    aircraft: str | None
    capacity: int
    left: int
    cancelled: bool
    ticket: str


class Booking(msgspec.Struct, frozen=True):
    """One sold seat."""

    cents: int
    ticket: str


_encode = msgspec.json.Encoder().encode
_flight_of = msgspec.json.Decoder(FlightRecord).decode
_booking_of = msgspec.json.Decoder(Booking).decode


def flight_key(name: str) -> bytes:
    """Where a flight's state is."""
    return b"flight/" + name.encode()


def passenger_key(number: int) -> bytes:
    """Where a passenger's money is."""
    return b"passenger/p%06d" % number


def departure_key(aircraft: str, minute: int) -> bytes:
    """Where an aircraft's departure is."""
    return b"aircraft/%s/%06d" % (aircraft.encode(), max(0, minute))


def bookings_range(name: str) -> tuple[bytes, bytes]:
    """All bookings of one flight."""
    return b"booking/" + name.encode() + b"/", b"booking/" + name.encode() + b"0"


def _hour_around(aircraft: str, minute: int) -> tuple[bytes, bytes]:
    """Departures that would be too near to one at ``minute``."""
    return (
        departure_key(aircraft, minute - BETWEEN_DEPARTURES_MINUTES + 1),
        departure_key(aircraft, minute + BETWEEN_DEPARTURES_MINUTES),
    )


def _entered(flight: Flight, aircraft: str | None) -> list[Write]:
    ticket = f"entered-{flight.name}"
    record = FlightRecord(flight.route, aircraft, flight.seats, flight.seats, False, ticket)
    writes = [Write(flight_key(flight.name), _encode(record))]
    if aircraft is not None:
        writes.append(Write(departure_key(aircraft, flight.minute), flight.name.encode()))
    return writes


def entering(flight: Flight, read_version: int) -> Transaction:
    """The flight enters, if it is new and its aircraft had no departure within an hour changed since the version."""
    preconditions: list[PointRead | RangeRead] = [PointRead(flight_key(flight.name))]
    if flight.aircraft is not None:
        preconditions.append(RangeRead(*_hour_around(flight.aircraft, flight.minute)))
    return Transaction(
        operations=list(_entered(flight, flight.aircraft)), preconditions=preconditions, read_version=read_version
    )


async def enter(txn: AsyncTransaction, flight: Flight) -> bool:
    """The same, looking first: without its aircraft when that is busy. True when the aircraft is assigned."""
    if await txn.get(flight_key(flight.name)) is not None:
        return True
    aircraft = flight.aircraft
    if aircraft is not None and await txn.range(*_hour_around(aircraft, flight.minute), limit=1):
        aircraft = None
    for write in _entered(flight, aircraft):
        txn.write(write.key, write.value)
    return aircraft is not None


async def _on_sale(txn: AsyncTransaction, flight: Flight) -> FlightRecord | None:
    found = await txn.get(flight_key(flight.name))
    record = None if found is None else _flight_of(found)
    return None if record is None or record.cancelled else record


def _keep(txn: AsyncTransaction, flight: Flight, record: FlightRecord) -> None:
    txn.write(flight_key(flight.name), _encode(record))


async def book(txn: AsyncTransaction, flight: Flight, passenger: int, ticket: str) -> bool:
    """One seat for one passenger, if there is one and the money suffices."""
    record = await _on_sale(txn, flight)
    if record is None or record.left <= 0:
        return False
    mine = bookings_range(flight.name)[0] + b"p%06d" % passenger
    money = await txn.get(passenger_key(passenger))
    if money is None or int(money) < flight.fare_cents or await txn.get(mine) is not None:
        return False
    _keep(txn, flight, msgspec.structs.replace(record, left=record.left - 1, ticket=ticket))
    txn.write(passenger_key(passenger), b"%d" % (int(money) - flight.fare_cents))
    txn.write(mine, _encode(Booking(flight.fare_cents, ticket)))
    return True


async def cancel(txn: AsyncTransaction, flight: Flight, ticket: str) -> bool:
    """Nobody flies: every booking is given back, and all of them are deleted as one range."""
    record = await _on_sale(txn, flight)
    if record is None:
        return False
    begin, end = bookings_range(flight.name)
    for key, value in await txn.range(begin, end, limit=BOOKINGS_MAX):
        passenger = b"passenger/" + key.rsplit(b"/", 1)[1]
        money = await txn.get(passenger)
        assert money is not None, "who booked is known"
        txn.write(passenger, b"%d" % (int(money) + _booking_of(value).cents))
    txn.delete_range(begin, end)
    if record.aircraft is not None:
        txn.delete(departure_key(record.aircraft, flight.minute))
    _keep(
        txn,
        flight,
        msgspec.structs.replace(record, aircraft=None, left=record.capacity, cancelled=True, ticket=ticket),
    )
    return True


async def swap(txn: AsyncTransaction, flight: Flight, aircraft: str, seats: int, ticket: str) -> bool:
    """Another aircraft, if it is free around the departure and everybody who booked finds a seat in it."""
    record = await _on_sale(txn, flight)
    if record is None or record.aircraft == aircraft or record.capacity - record.left > seats:
        return False
    if await txn.range(*_hour_around(aircraft, flight.minute), limit=1):
        return False
    if record.aircraft is not None:
        txn.delete(departure_key(record.aircraft, flight.minute))
    txn.write(departure_key(aircraft, flight.minute), flight.name.encode())
    left = seats - (record.capacity - record.left)
    _keep(txn, flight, msgspec.structs.replace(record, aircraft=aircraft, capacity=seats, left=left, ticket=ticket))
    return True
