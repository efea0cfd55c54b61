"""``<prefix>-allMeta``, found or made.

Owns: reading it, and writing it whole or not at all. Does not own: its bytes (``identity``).

Failure model: a file that is absent or does not verify is made anew: nothing in the pages depends on it. ``OSError``
from the port passes. One whose name could not be synced is removed again, as far as the disk lets it: the next start
would take it for durable, and after lost power the queue be another one.

The open file of the writer's marks: two slots, written in turn.

Owns: which slot comes next, what a poisoned writer says. Does not own: the fields of a mark
(``record_position``), slots (``slots``), when one is written (``writer``).

Failure model: ``OSError`` from the port. A mark is a hint: one that could not be written costs time at the next start.
A file that is made and whose name could not be synced is removed again, as far as the disk lets it: the next start
makes another and syncs that. Were it found instead, it would be taken for durable, and lost power take both marks.
"""

from __future__ import annotations

from contextlib import suppress

from holdfast.queue.format.meta import (
    IDENTITY_BYTES,
    SLOTS_BYTES,
    Identity,
    decode_identity,
    encode_identity,
    encode_slot,
    newest_slot,
    slot_offset,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.queue.files.pages import PageDirectory


def read_identity(pages: PageDirectory) -> Identity | None:
    """What the queue is, or None where no file says so."""
    port = pages.port
    try:
        file = port.open(pages.directory, pages.names.identity, write=False)
    except FileNotFoundError:
        return None
    try:
        return decode_identity(port.read(file, 0, IDENTITY_BYTES))
    finally:
        port.close(file)


def open_identity(
    pages: PageDirectory, entropy: Callable[[int], bytes], page_bytes: int, checksum_id: int, serializer: str = ""
) -> Identity:
    """Read what the queue is, or decide it. A queue that records no serializer adopts the one that is given.

    Temporary file, sync, rename, sync of the directory: a crash leaves the old record or the new one.
    """
    found = read_identity(pages)
    if found is not None and (found.serializer or not serializer):
        return found
    port, name = pages.port, pages.names.identity
    if found is not None:
        identity = Identity(found.queue_id, found.page_bytes, found.checksum_id, serializer)
    else:
        identity = Identity(entropy(16), page_bytes, checksum_id, serializer)
    temporary = pages.names.temporary(name)
    pages.remove(temporary)
    file = port.create(pages.directory, temporary)
    try:
        port.write(file, 0, (encode_identity(identity),))
        port.sync_data(file)
    finally:
        port.close(file)
    port.rename(pages.directory, temporary, name)
    try:
        port.sync_directory(pages.directory)
    except BaseException:
        if found is None:  # else either record is true, and the next start that names a serializer writes it again
            with suppress(OSError):
                pages.remove(name)
        raise
    return identity


UNKNOWN_BOOT = bytes(16)


class WritePositionFile:
    """``<prefix>-writeMeta``, made when it is absent. ``boot_id`` is this machine's run, for the marks to name; zeros
    once the page cache is not to be trusted."""

    __slots__ = ("_file", "_generation", "_port", "boot_id")

    def __init__(self, pages: PageDirectory) -> None:
        port = self._port = pages.port
        name = pages.names.write_meta
        try:
            self._file = port.open(pages.directory, name, write=True)
        except FileNotFoundError:
            self._file = port.create(pages.directory, name)
            try:
                port.write(self._file, 0, (bytes(SLOTS_BYTES),))
                port.sync_directory(pages.directory)
            except BaseException:
                port.close(self._file)
                with suppress(OSError):
                    pages.remove(name)
                raise
        try:
            slot = newest_slot(port.read(self._file, 0, SLOTS_BYTES))
            self.boot_id = port.boot_id()
        except BaseException:
            port.close(self._file)
            raise
        self._generation = 0 if slot is None else slot[0]

    def write(self, value: bytes) -> None:
        """Write a mark to the next slot; not synced. Nothing once the file is closed: its number may be another
        file's."""
        if self._file < 0:
            return
        self._generation += 1
        slot = encode_slot(self._generation, value)
        self._port.write(self._file, slot_offset(self._generation), (slot,))

    def distrust_cache(self) -> None:
        """A sync has failed: no mark from here on may be taken for a description of the page cache."""
        self.boot_id = UNKNOWN_BOOT

    def sync(self) -> None:
        """The marks are durable on return."""
        self._port.sync_data(self._file)

    def close(self) -> None:
        """Close the file."""
        file, self._file = self._file, -1
        if file >= 0:
            self._port.close(file)
