"""The open file of the writer's marks: two slots, written in turn.

Owns: which slot comes next, what a poisoned writer says. Does not own: the fields of a mark
(``write_mark``), slots (``slots``), when one is written (``writer``).

Failure model: ``OSError`` from the port. A mark is a hint: one that could not be written costs time at the next start.
A file that is made and whose name could not be synced is removed again, as far as the disk lets it: the next start
makes another and syncs that. Were it found instead, it would be taken for durable, and lost power take both marks.
"""

from __future__ import annotations

from contextlib import suppress

from holdfast.queue.slots import SLOTS_BYTES, encode_slot, newest_slot, slot_offset

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.queue.page_files import PageDirectory

__all__ = ["MarkFile"]

UNKNOWN_BOOT = bytes(16)


class MarkFile:
    """``<prefix>-writeMeta``, made when it is absent. ``boot_id`` is this machine's run, for the marks to name; zeros
    once the page cache is not to be trusted."""

    __slots__ = ("_file", "_generation", "_port", "boot_id")

    def __init__(self, pages: PageDirectory, generation: int | None = None) -> None:
        """``generation`` of the newest mark, where the caller has read it."""
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
            if generation is None:
                slot = newest_slot(port.read(self._file, 0, SLOTS_BYTES))
                generation = 0 if slot is None else slot[0]
            self.boot_id = port.boot_id()
        except BaseException:
            port.close(self._file)
            raise
        self._generation = generation

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
