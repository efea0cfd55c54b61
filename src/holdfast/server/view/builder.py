"""From the objects of the log to the file of a view, in bulk.

Owns: the proof that no transaction is missing, what an object's rows amount to, and what is not in the file yet. Does
not own: which objects are live (``commit.reader``), the file's format (``view.sqlite_file``).

Failure model: an object that does not follow, or is damaged, raises CorruptData; the file stays at its older position.
"""

# pyarrow ships no types, so its arrays are unknown to the checker; what leaves this module is not.
# pyright: reportUnknownParameterType=false

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from holdfast.commit.format.batch import Header, ItemKind, read_body_table
from holdfast.commit.format.transaction import Delete, RangeDelete, Write
from holdfast.commit.reading.feed import Checkpoint, Event, TransactionEvent
from holdfast.errors import Code, CorruptData
from holdfast.values import slot_text
from holdfast.view.sqlite import open_for_writer, write_layer
from holdfast.view.storage import Layer, Position, Stored

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ViewBuilder"]

_REMOVALS: Final = (ItemKind.DELETE, ItemKind.RANGE_DELETE)


class ViewBuilder:
    """The writer of one view's file. ``position`` is in the file; ``seen`` is what ``flush`` will put there.

    A file without a log id becomes that of ``log_id`` with what is added next. Raises: CorruptData (the file belongs to
    another log).
    """

    def __init__(self, path: Path, log_id: str) -> None:
        self._connection, self.position = open_for_writer(path)
        if self.position.log_id not in (None, log_id):
            self._connection.close()
            raise CorruptData("the view is of another log", view_log_id=self.position.log_id, log_id=log_id)
        self.seen: Position = self.position
        self._log_id = log_id
        self._layer = Layer(is_ground=False)

    @property
    def waiting_bytes(self) -> int:
        """About the memory of what is seen and not in the file."""
        return self._layer.size

    def add(self, header: Header, data: bytes) -> None:
        """Take the next live object. Raises: CorruptData."""
        version, last, _ = self.seen
        if header.transactions:
            if header.first_version <= version:
                raise CorruptData(
                    "a transaction was passed already", version=header.first_version, view_version=version
                )
            if header.prev_version != last and (last is not None or header.prev_version > version):
                raise CorruptData(
                    "a transaction is missing",
                    version=header.first_version,
                    prev_version=header.prev_version,
                    last_applied=version if last is None else last,
                )
            table = read_body_table(data, header)
            versions = [item for batch in table.to_batches() for item in _unsigned(batch.column("version"))]
            rising = sorted(set(versions))
            if (
                len(rising) != header.transactions
                or rising[0] != header.first_version
                or rising[-1] != header.last_version
                or versions != sorted(versions)
            ):
                raise CorruptData(
                    "rows do not keep the versions of the header", code=Code.CORRUPT_BATCH, slot=slot_text(header.slot)
                )
            for batch in table.to_batches():
                self._lay(batch)
            last = header.last_version
        self.seen = Position(max(version, header.last_version), last, self._log_id)

    def add_events(self, events: Sequence[Event]) -> None:
        """Take what older history says comes next. Raises: CorruptData."""
        version, last, _ = self.seen
        for event in events:
            if isinstance(event, TransactionEvent):
                if event.version <= version or (event.prev_version != last and (last or event.prev_version > version)):
                    raise CorruptData(
                        "a transaction is missing from older history",
                        version=event.version,
                        prev_version=event.prev_version,
                        last_applied=version if last is None else last,
                    )
                self._layer.apply(event.version, event.operations)
                version = last = event.version
            elif isinstance(event, Checkpoint):
                version = max(version, event.committed_version)
        self.seen = Position(version, last, self._log_id)

    def _lay(self, batch: pa.RecordBatch) -> None:
        """The rows of one record batch, in order; later ones win."""
        versions = _unsigned(batch.column("version"))
        kinds = _bytes_of(batch.column("kind"))
        keys, key_at = _parts(batch.column("key"), "i")
        values, value_at = _parts(batch.column("value"), "q")
        if not any(kind in kinds for kind in _REMOVALS):
            written: dict[bytes, Stored] = {
                keys[key_at[row] : key_at[row + 1]]: (values[value_at[row] : value_at[row + 1]], versions[row])
                for row, kind in enumerate(kinds)
                if not kind
            }
            self._layer.write(written)
            return
        ends: list[bytes | None] = batch.column("end").to_pylist()
        for row, kind in enumerate(kinds):
            key = keys[key_at[row] : key_at[row + 1]]
            if kind == ItemKind.WRITE:
                self._layer.apply(versions[row], (Write(key, values[value_at[row] : value_at[row + 1]]),))
            elif kind == ItemKind.DELETE:
                self._layer.apply(versions[row], (Delete(key),))
            elif kind == ItemKind.RANGE_DELETE:
                self._layer.apply(versions[row], (RangeDelete(key, ends[row]),))

    def flush(self) -> None:
        """Bring the file to what is seen, in one transaction. Raises: sqlite3.Error, and then nothing has changed."""
        if self.seen != self.position:
            write_layer(self._connection, self._layer, self.seen)
            self._layer = Layer(is_ground=False)
            self.position = self.seen

    def close(self) -> None:
        """Let go of the file. What was not flushed is read from the log again."""
        with contextlib.suppress(sqlite3.Error):
            self._connection.close()


# Straight from the columns' buffers: making an Arrow scalar of every cell costs ten times as much.


def _bytes_of(column: pa.Array) -> bytes:
    """A column of one-byte numbers."""
    if not len(column):
        return b""
    return bytes(memoryview(column.buffers()[1])[column.offset : column.offset + len(column)])


def _unsigned(column: pa.Array) -> list[int]:
    """A column of 64-bit numbers without nulls."""
    if not len(column):
        return []
    numbers = memoryview(column.buffers()[1]).cast("B")[column.offset * 8 : (column.offset + len(column)) * 8]
    return numbers.cast("Q").tolist()


def _parts(column: pa.Array, offset_format: Literal["i", "q"]) -> tuple[bytes, list[int]]:
    """A column of byte strings: all of them joined, and where each begins; the offsets are 32 or 64 bits wide."""
    if not len(column):
        return b"", [0]
    _, offsets, data = column.buffers()
    width = 4 if offset_format == "i" else 8
    starts = memoryview(offsets).cast("B")[column.offset * width : (column.offset + len(column) + 1) * width]
    return b"" if data is None else data.to_pybytes(), starts.cast(offset_format).tolist()
