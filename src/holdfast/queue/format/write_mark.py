"""The value in ``<prefix>-writeMeta``: how far the writer had come, as a hint for the next start and for readers.

Owns: the fields and their bytes. Does not own: the slots (``slots``); the truth, which is in the pages.

Failure model: pure. Lost, old or torn, a mark costs time only. It holds two places:

- *written*: where the next frame would go. What lies before it is in the page cache, so it is true after the process
  was killed and false after the machine was; the boot id tells which.
- *durable*: what lies before it was synced before the mark was written. It is true after every crash.

| offset | bytes | field |
|---|---|---|
| 0 | 8 | page being written |
| 8 | 8 | its salt: a mark about another life of the page is no mark |
| 16 | 8 | next sequence number |
| 24 | 8 | arrival of the last frame |
| 32 | 4 | position of the next frame |
| 36 | 4 | frames in the page |
| 40 | 4 | records in the page's index file |
| 44 | 4 | checksum of these records |
| 48 | 4 | position from which the next single frame is indexed |
| 52 | 4 | 1: closed cleanly, everything durable; else 0 |
| 56 | 8 | durable: page |
| 64 | 8 | durable: its salt |
| 72 | 8 | durable: next sequence number |
| 80 | 8 | durable: arrival of the last frame |
| 88 | 4 | durable: position |
| 92 | 4 | zero |
| 96 | 16 | boot id: of the machine's run in which the mark was written; zeros where unknown |
"""

from __future__ import annotations

from struct import Struct

__all__ = ["DurableMark", "WriteMark", "decode_mark", "encode_mark", "mark_value"]

FIELDS = Struct("<QQQqIIIIIIQQQqII16s")


class DurableMark:
    """A place in the log: everything before it is on disk."""

    __slots__ = ("last_time_ns", "next_seq", "page", "position", "salt")

    def __init__(self, page: int, salt: int, position: int, next_seq: int, last_time_ns: int) -> None:
        self.page = page
        self.salt = salt
        self.position = position
        self.next_seq = next_seq
        self.last_time_ns = last_time_ns


class WriteMark:
    """One decoded mark."""

    __slots__ = (
        "boot_id",
        "clean",
        "durable",
        "frames",
        "index_check",
        "index_due",
        "index_records",
        "last_time_ns",
        "next_seq",
        "page",
        "position",
        "salt",
    )

    def __init__(
        self,
        *,
        page: int,
        salt: int,
        position: int,
        next_seq: int,
        last_time_ns: int,
        frames: int,
        index_records: int,
        index_check: int,
        index_due: int,
        clean: bool,
        durable: DurableMark,
        boot_id: bytes,
    ) -> None:
        self.page = page
        self.salt = salt
        self.position = position
        self.next_seq = next_seq
        self.last_time_ns = last_time_ns
        self.frames = frames
        self.index_records = index_records
        self.index_check = index_check
        self.index_due = index_due
        self.clean = clean
        self.durable = durable
        self.boot_id = boot_id


def encode_mark(mark: WriteMark) -> bytes:
    """The value of the slot."""
    return mark_value(
        *(mark.page, mark.salt, mark.position, mark.next_seq, mark.last_time_ns),
        *(mark.frames, mark.index_records, mark.index_check, mark.index_due, mark.clean),
        *(mark.durable, mark.boot_id),
    )


def mark_value(
    page: int,
    salt: int,
    position: int,
    next_seq: int,
    last_time_ns: int,
    frames: int,
    index_records: int,
    index_check: int,
    index_due: int,
    clean: bool,
    durable: DurableMark,
    boot_id: bytes,
) -> bytes:
    """The same without an object: every sync writes one."""
    return FIELDS.pack(
        page,
        salt,
        next_seq,
        last_time_ns,
        position,
        frames,
        index_records,
        index_check,
        index_due,
        clean,
        durable.page,
        durable.salt,
        durable.next_seq,
        durable.last_time_ns,
        durable.position,
        0,
        boot_id,
    )


def decode_mark(value: bytes) -> WriteMark | None:
    """The mark, or None where the value has another length."""
    if len(value) != FIELDS.size:
        return None
    fields = FIELDS.unpack(value)
    return WriteMark(
        page=fields[0],
        salt=fields[1],
        next_seq=fields[2],
        last_time_ns=fields[3],
        position=fields[4],
        frames=fields[5],
        index_records=fields[6],
        index_check=fields[7],
        index_due=fields[8],
        clean=fields[9] == 1,
        durable=DurableMark(fields[10], fields[11], fields[14], fields[12], fields[13]),
        boot_id=fields[16],
    )
