"""An independent reading of the log: the objects of a directory, and everything in them counted.

Owns: a second reader of the format of docs/formats/batch-object.md, written from that page alone. It shares no code
with the service, its clients or the Spark source, so that a mistake of theirs does not hide here.

It goes from the newest object back along ``prev`` to genesis, then plays every transaction in order, and checks each
point precondition again: nobody may have changed the key after the version that the decision was made at.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

__all__ = ["Counted", "count_log"]

HEADER_BYTES = 512
GENESIS = 2**64 - 1
WRITE, DELETE, RANGE_DELETE, POINT_READ, RANGE_READ = range(5)


@dataclass(slots=True)
class Counted:
    """What the log says. ``tickets``: the versions at which a flight's record was written with this ticket."""

    objects: int = 0
    object_bytes: int = 0
    reigns: int = 0
    transactions: int = 0
    last_version: int = 0
    preconditions: int = 0
    broken_preconditions: int = 0
    state: dict[bytes, tuple[bytes, int]] = field(default_factory=dict)
    tickets: dict[str, list[int]] = field(default_factory=dict)

    def bookings_by_flight(self) -> Counter[str]:
        """Sold seats of each flight: the booking keys that are left, counted."""
        return Counter(key[8:].rsplit(b"/", 1)[0].decode() for key in self.state if key.startswith(b"booking/"))


@dataclass(frozen=True, slots=True)
class _Object:
    kind: int
    transactions: int
    slot: int
    prev: int
    first_version: int
    last_version: int
    prev_version: int
    body: memoryview


def count_log(folder: Path) -> Counted:
    """Read and count. Raises: ValueError naming what is wrong with the log."""
    counted = Counted()
    changed: dict[bytes, int] = {}
    removed: list[tuple[bytes, bytes | None, int]] = []
    last_transaction = 0
    for found in _chain(folder / "batches"):
        counted.objects += 1
        counted.object_bytes += HEADER_BYTES + len(found.body)
        counted.reigns += found.kind == 1
        if found.last_version < counted.last_version:
            raise ValueError(f"slot {found.slot}: versions fall")
        counted.last_version = found.last_version
        if not found.transactions:
            continue
        if found.prev_version != last_transaction:
            raise ValueError(f"slot {found.slot}: prev_version {found.prev_version}, not {last_transaction}")
        last_transaction = found.last_version
        counted.transactions += found.transactions
        _play(found, counted, changed, removed)
    return counted


def _chain(folder: Path) -> list[_Object]:
    """The live objects, oldest first. The last leader's newest object has the lowest slot of all."""
    newest = min(int(path.name) for path in folder.iterdir() if path.name.isdigit())
    chain: list[_Object] = []
    slot = newest
    while True:
        found = _object(folder / f"{slot:020}", slot)
        chain.append(found)
        if found.slot == found.prev:
            if slot != GENESIS:
                raise ValueError(f"slot {slot}: the chain ends before genesis")
            return chain[::-1]
        slot = found.prev


def _object(path: Path, slot: int) -> _Object:
    data = path.read_bytes()
    header = data[:HEADER_BYTES]
    if header[:8] != b"HOLDFAST" or struct.unpack_from("<I", header, 508)[0] != zlib.crc32(header[:508]):
        raise ValueError(f"slot {slot}: no good header")
    named, _claim, prev = struct.unpack_from("<QQQ", header, 32)
    first, last, prev_version = struct.unpack_from("<QQQ", header, 96)
    length, checksum = struct.unpack_from("<QI", header, 152)
    body = memoryview(data)[HEADER_BYTES : HEADER_BYTES + length]
    if named != slot or len(body) != length or zlib.crc32(body) != checksum:
        raise ValueError(f"slot {slot}: the body is not what the header says")
    return _Object(header[10], struct.unpack_from("<I", header, 12)[0], slot, prev, first, last, prev_version, body)


def _play(
    found: _Object, counted: Counted, changed: dict[bytes, int], removed: list[tuple[bytes, bytes | None, int]]
) -> None:
    columns = pa.ipc.open_stream(pa.py_buffer(found.body)).read_all()
    names = ("version", "read_version", "kind", "key", "end", "value", "at")
    rows = zip(*(columns[name].to_pylist() for name in names), strict=True)
    state = counted.state
    for version, read_version, kind, key, end, value, at in rows:
        if kind == POINT_READ:
            counted.preconditions += 1
            newest = max([changed.get(key, 0), *(v for b, e, v in removed if b <= key and (e is None or key < e))])
            counted.broken_preconditions += newest > (read_version if at is None else at)
        elif kind == WRITE:
            state[key] = (value, version)
            changed[key] = version
            if key.startswith(b"flight/"):
                counted.tickets.setdefault(json.loads(value)["ticket"], []).append(version)
        elif kind == DELETE:
            state.pop(key, None)
            changed[key] = version
        elif kind == RANGE_DELETE:
            for inside in [each for each in state if each >= key and (end is None or each < end)]:
                del state[inside]
            removed.append((key, end, version))
        elif kind != RANGE_READ:
            raise ValueError(f"slot {found.slot}: kind {kind}")
