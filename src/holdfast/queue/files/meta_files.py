"""The small files ``<prefix>-allMeta`` (identity) and ``<prefix>-writeMeta`` (write position).

A file whose name could not be synced is removed again: the next opening would take it for durable. An identity that is
absent or does not verify is made again; no page depends on it. The write position is made before the identity, so an
identity without a write position shows that a file is lost.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from holdfast.queue.files.pages import PageDirectory, read_file, replace_file
from holdfast.queue.format.meta import (
    IDENTITY_BYTES,
    SLOTS_BYTES,
    DurablePosition,
    QueueIdentity,
    WritePosition,
    decode_identity,
    decode_write_position,
    encode_identity,
    encode_slot,
    newest_slot,
    slot_offset,
    write_position_value,
)


def read_identity(pages: PageDirectory) -> QueueIdentity | None:
    """The identity, or None without a valid file."""
    data = read_file(pages, pages.names.identity, IDENTITY_BYTES)
    return None if data is None else decode_identity(data)


def open_identity(
    pages: PageDirectory, entropy: Callable[[int], bytes], page_bytes: int, checksum_id: int, serializer: str = ""
) -> QueueIdentity:
    """Read the identity, or make it. A queue without a recorded serializer adopts the given one."""
    existing = read_identity(pages)
    if existing is not None and (existing.serializer or not serializer):
        return existing
    if existing is not None:
        identity = QueueIdentity(existing.queue_id, existing.page_bytes, existing.checksum_id, serializer)
    else:
        identity = QueueIdentity(entropy(16), page_bytes, checksum_id, serializer)
    replace_file(pages, pages.names.identity, encode_identity(identity))
    try:
        pages.port.sync_directory(pages.directory)
    except BaseException:
        if existing is None:  # else either record is true, and the next opening that names a serializer writes it again
            with suppress(OSError):
                pages.remove(pages.names.identity)
        raise
    return identity


def read_write_position(pages: PageDirectory) -> WritePosition | None:
    """The write position that the writer recorded last, or None."""
    data = read_file(pages, pages.names.write_meta, SLOTS_BYTES)
    slot = None if data is None else newest_slot(data)
    return None if slot is None else decode_write_position(slot[1])


def _first_slots(boot_id: bytes) -> bytes:
    """Both slots of an empty log."""
    nowhere = DurablePosition(0, 0, 0, 1, 0)
    value = write_position_value(0, 0, 0, 1, 0, 0, 0, 0, 0, True, nowhere, boot_id, 1, 1)
    return encode_slot(2, value) + encode_slot(1, value)


class WritePositionFile:
    """The open file of two slots, written in turn; made if absent. ``newest`` is the record of an earlier writer.
    ``boot_id`` is ``UNKNOWN_BOOT`` once a sync has failed: later records do not describe the page cache.

    For a ``new`` queue both slots are durable when the constructor returns: the log is empty. Otherwise an absent file
    is made without a record, so an opening that is stopped hides nothing.
    """

    __slots__ = ("_file", "_generation", "_port", "boot_id", "newest")

    def __init__(self, pages: PageDirectory, *, new: bool = False) -> None:
        port = self._port = pages.port
        name = pages.names.write_meta
        made = False
        try:
            self._file = port.open(pages.directory, name, write=True)
        except FileNotFoundError:
            self._file = port.create(pages.directory, name)
            made = True
        try:
            self.boot_id = port.boot_id()
            if new or made:
                # Also for a file that is there: its maker may have stopped before it was durable.
                port.write(self._file, 0, (_first_slots(self.boot_id) if new else bytes(SLOTS_BYTES),))
                port.sync_data(self._file)
                port.sync_directory(pages.directory)
            slot = newest_slot(port.read(self._file, 0, SLOTS_BYTES))
            self._generation = 0 if slot is None else slot[0]
            self.newest = None if slot is None else decode_write_position(slot[1])
        except BaseException:
            port.close(self._file)
            if made:
                with suppress(OSError):
                    pages.remove(name)
            raise

    def write(self, value: bytes) -> None:
        """Write the next slot; not synced. Does nothing once the file is closed."""
        if self._file < 0:
            return
        self._generation += 1
        slot = encode_slot(self._generation, value)
        self._port.write(self._file, slot_offset(self._generation), (slot,))

    def sync(self) -> None:
        """Make the records durable."""
        self._port.sync_data(self._file)

    def close(self) -> None:
        """Close the file."""
        file, self._file = self._file, -1
        if file >= 0:
            self._port.close(file)
