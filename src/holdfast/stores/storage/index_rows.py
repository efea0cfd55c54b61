"""What the rows of the index say, checked: who reads the index of stores needs this, whoever else has it open.

Owns: which columns a row's checksum is of, the values of a checkpoint, which errors are damage. Does not own: the
tables and the format (``index``), the bytes of a checksum (``row_checksum``).

Failure model: reads only. What is not as it was written is ``CorruptData``.
"""

from __future__ import annotations

import sqlite3
from typing import Any, Final, NamedTuple

from holdfast.errors import Code, CorruptData, HoldfastError, Unavailable
from holdfast.stores.storage.block_cache import REPAIR
from holdfast.stores.storage.row_checksum import row_crc
from holdfast.stores.values.commands import FIRST_RULES
from holdfast.stores.values.sequence_set import SequenceSet

__all__ = [
    "COLUMNS",
    "UNREADABLE",
    "WITHOUT_CHECKSUMS",
    "Loaded",
    "Row",
    "checked_row",
    "damaged",
    "read_checkpoint",
    "runs_of",
    "unreadable",
]

WITHOUT_CHECKSUMS: Final = 1
"""The format whose rows have none."""
UNREADABLE: Final = (sqlite3.DatabaseError, UnicodeDecodeError)
"""What reading a damaged file may raise; the latter is of Python's module, where SQLite's message has bytes of it."""
_PRIMARY: Final = 0xFF
"""Of SQLite's codes: the rest only says more."""
COLUMNS: Final = {
    "blocks": "store, number, data",
    "entries": "store, durable, key, revision, size, expires_ms",
    "extents": "store, first_seq, last_seq, first_frame, last_frame, bytes",
}
Row = tuple[Any, ...]
"""A row as SQLite gives it: its columns have the types of the schema, which ``crc`` holds for."""


class Loaded(NamedTuple):
    """The last checkpoint: the last frame in it, the time of that, the state; None where there was none yet.

    ``frame_crc`` is that frame's CRC-32, None where it is not known; ``runs`` the blocks that there are, None of an
    index of format 1; ``rules`` the rules that the state follows (``commands.RULES``), 1 before format 3.
    """

    frame: int
    at_ms: int
    state: bytes
    frame_crc: int | None
    runs: bytes | None = None
    rules: int = FIRST_RULES


def read_checkpoint(database: sqlite3.Connection, path: str) -> Loaded | None:
    """The last checkpoint of an index of any format, None where there was none yet.

    *Raises*: ``CorruptData``, ``sqlite3.DatabaseError``.
    """
    found: dict[str, bytes | int] = dict(database.execute("SELECT name, value FROM meta").fetchall())
    frame, at_ms, state, frame_crc, runs, rules = (found.get(name) for name in Loaded._fields)
    if frame is None and "crc" not in found:
        return None
    values = (frame, at_ms, state, frame_crc, runs) if rules is None else (frame, at_ms, state, frame_crc, runs, rules)
    if found.get("format") != WITHOUT_CHECKSUMS and row_crc(*values) != found.get("crc"):
        raise damaged(path, "meta")
    if isinstance(frame, int) and isinstance(at_ms, int) and isinstance(state, bytes):
        return Loaded(
            frame,
            at_ms,
            state,
            frame_crc if isinstance(frame_crc, int) else None,
            runs if isinstance(runs, bytes) else None,
            rules if isinstance(rules, int) else FIRST_RULES,
        )
    return None


def checked_row(row: Row, table: str, path: str) -> Row:
    """A row without its last column, ``crc``, which holds for the others. *Raises*: ``CorruptData``."""
    if row_crc(*row[:-1]) != row[-1]:
        raise damaged(path, table)
    return row[:-1]


def damaged(path: str, table: str) -> CorruptData:
    """What to raise where a table does not say what was written into it."""
    return CorruptData("the index of the stores is damaged", code=Code.CORRUPT_LOG, path=path, table=table, hint=REPAIR)


def runs_of(database: sqlite3.Connection) -> dict[str, list[tuple[int, int]]]:
    """Which blocks the table has. *Cost*: reads all of it."""
    found: dict[str, SequenceSet] = {}
    for store, number in database.execute("SELECT store, number FROM blocks ORDER BY store, number"):
        found.setdefault(store, SequenceSet()).add(number, number)
    return {store: numbers.runs() for store, numbers in found.items()}


def unreadable(path: str, error: Exception, otherwise: type[Unavailable] = Unavailable) -> HoldfastError:
    """Damage where SQLite says so; else ``otherwise``: it is the disk's or somebody else's."""
    # What Python's module refuses by itself has no code of SQLite's; a table that is missing is SQLite's plain error.
    code = int(getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)) & _PRIMARY
    if code not in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR):
        full = code == sqlite3.SQLITE_FULL
        return otherwise(
            f"the index of the stores cannot be read: {error}",
            code=Code.DISK_FULL if full else Code.STORE_UNAVAILABLE,
            hint="nothing is known to be damaged: see to the disk, or to who else has the file open, and start again",
            path=path,
        )
    return CorruptData(
        "the index of the stores cannot be read",
        code=Code.CORRUPT_LOG,
        path=path,
        cause=str(error),
        hint=REPAIR,
    )
