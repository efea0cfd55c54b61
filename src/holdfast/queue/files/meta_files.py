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
    PagePosition,
    QueueIdentity,
    WritePosition,
    decode_identity,
    decode_write_position,
    encode_identity,
    encode_slot,
    newest_slot,
    slot_offset,
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


class SlotFile:
    """The open file of two slots (``format.meta``), written in turn; made if absent. One thread at a time. ``value`` is
    the newest one at the opening, None without one. Then ``first``, both slots, is written, if given.
    """

    __slots__ = ("_file", "_generation", "_port", "_slot", "is_empty", "value")

    def __init__(self, pages: PageDirectory, name: str, first: bytes = b"") -> None:
        port = self._port = pages.port
        try:
            self._file = port.open(pages.directory, name, write=True)
        except FileNotFoundError:
            self._file = port.create(pages.directory, name)
        self.is_empty = False
        try:
            data = port.read(self._file, 0, SLOTS_BYTES)
            slot = None if first else newest_slot(data)
            self.is_empty = not any(data)
            if slot is None:
                # Also for an existing file: its maker may have stopped before its name was durable.
                if first:
                    port.write(self._file, 0, (first,))
                    slot = newest_slot(first)
                else:
                    port.allocate(self._file, SLOTS_BYTES)
                port.sync_data(self._file)
                port.sync_directory(pages.directory)
        except BaseException:
            port.close(self._file)
            if self.is_empty:
                # A failed sync is not repeated: the next opening makes another file. A file with content may be good.
                with suppress(OSError):
                    pages.remove(name)
            raise
        self._generation = 0 if slot is None else slot[0]
        self.value = None if slot is None else slot[1]
        self._slot = b""

    def write(self, value: bytes) -> None:
        """Replace the value, in the other slot; not synced. Does nothing once the file is closed. Cost: one small
        write.
        """
        if self._file < 0:
            return
        generation = self._generation + 1
        slot = encode_slot(generation, value)
        self._port.write(self._file, slot_offset(generation), (slot,))
        # Only now: after an error the same slot is written again, and the other stays whole.
        self._generation, self._slot = generation, slot

    def sync(self) -> None:
        """Make the value durable. Raises: ``OSError``; the caller may not sync again."""
        try:
            self._port.sync_data(self._file)
        except OSError:
            # Another sync of the file covers only what was written again.
            with suppress(OSError):
                self._port.write(self._file, slot_offset(self._generation), (self._slot,))
            raise

    def close(self) -> None:
        """Close the file. Syncs nothing."""
        file, self._file = self._file, -1
        if file >= 0:
            self._port.close(file)


class WritePositionFile(SlotFile):
    """``newest`` is the record of an earlier writer. ``boot_id`` is ``UNKNOWN_BOOT`` once a sync has failed: later
    records do not describe the page cache.

    For a ``new`` queue both slots are durable when the constructor returns: the log is empty. Otherwise an absent file
    is made without a record, so an opening that is stopped hides nothing.
    """

    __slots__ = ("boot_id", "newest")

    def __init__(self, pages: PageDirectory, *, new: bool = False) -> None:
        boot_id = self.boot_id = pages.port.boot_id()
        nowhere = PagePosition(0, 0, 1, 0, 0)
        first = WritePosition(nowhere, 0, 0, 0, 0, clean=True, durable=nowhere, boot_id=boot_id).encode()
        super().__init__(pages, pages.names.write_meta, encode_slot(2, first) + encode_slot(1, first) if new else b"")
        self.newest = None if self.value is None else decode_write_position(self.value)
