"""The files of the stores, opened and recovered.

Opening finds the state after every command in the log, or raises and changes nothing. A record whose command now gives
another result is ``CorruptData``; the error names ``repair --accept-recorded``. A checkpoint and the effect of a crash:

1. between two commands, all changes are frozen with the number of the last frame; a crash leaves the old index and the
   log after it
2. the log is synced up to that frame, then the index is written in one transaction; after a crash either index is valid
3. pages that no kept message and no frame after the index needs are removed; after a crash they are removed next time

Step 1 decides whether a message is kept: a start applies the later commands again, and these read what was kept then.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import ExitStack
from typing import Final, Self

from holdfast.errors import Code, CorruptData, HoldfastError, InvalidRequest, NotFound, Unavailable
from holdfast.stores.durables.consumption import Consumption
from holdfast.stores.machine.repairs import accept
from holdfast.stores.machine.state import State
from holdfast.stores.storage.caches import BLOCK_BYTES
from holdfast.stores.storage.frames import Relocated, decode_frame, version_of, with_version
from holdfast.stores.storage.index import INDEX_NAME, UNREADABLE, Index, IndexChanges, Loaded
from holdfast.stores.storage.locations import Extent, Locations
from holdfast.stores.storage.log import LOG_NAME, MessageLog
from holdfast.stores.storage.messages import StoredMessages
from holdfast.stores.storage.volatile import Swap, VolatileBlocks, VolatileEntries, VolatileMessages
from holdfast.stores.values.commands import RULES, Record, Result
from holdfast.stores.values.effects import Effect
from holdfast.stores.values.ports import ReadUnavailable

MANIFEST_NAME: Final = "backup.json"
"""What makes a backup one. See ``backup``."""
UNFINISHED_NAME: Final = "restore.unfinished"
"""A file that is there while a backup is put back: without an index its first pages would look like whole stores."""
MEMORY_BYTES: Final = 128 << 20
TEXT_MAX: Final = 500
_EVERYTHING: Final = 1 << 62
DEAD_EXTENTS_MAX: Final = 4_096  # extents looked at for one checkpoint; the others are for the next


class Storage:
    """The files of one service's stores, and their state. Make it with ``open``.

    ``write_checkpoint`` belongs on a thread of its own, the rest on one other thread.
    """

    _is_cache = False
    """Whether the files are the cache of a commit log."""

    def __init__(self, log: MessageLog, index: Index, *, memory_bytes: int = MEMORY_BYTES) -> None:
        self.log = log
        self.index = index
        self.locations = Locations(index)
        self.messages = StoredMessages(
            log, self.locations, index.blocks, recent_bytes=memory_bytes // 2, reread_bytes=memory_bytes // 4
        )
        blocks = VolatileBlocks()
        self.swap = Swap(log.directory)
        self.volatile = VolatileMessages(blocks, self.swap, self._swaps)
        volatile = self.volatile, blocks, VolatileEntries()
        self.state = State(self.messages, index.blocks, index.entries, volatile)
        self.last_ms = 0
        self.log_bytes = 0  # written since the last checkpoint was begun
        self.effects: list[Effect] = []
        self.accepted: list[tuple[int, CorruptData]] | None = None
        """Frames whose recorded results a repair has accepted, each with what differs; None where it may not."""
        self.version: int | None = None
        """In the cache of a commit log: the version of the last entry that is in these files, 0 for none."""
        self._of_version = 0  # how many records of it are; a checkpoint has all
        self._read_only = False

    @classmethod
    def open(
        cls,
        directory: str,
        *,
        page_bytes: int = 64 << 20,
        memory_bytes: int = MEMORY_BYTES,
        read_only: bool = False,
        index_directory: str | None = None,
        accept_recorded: bool = False,
    ) -> Self:
        """Open and recover; with ``read_only`` only in memory, and nothing may be appended or written.

        ``accept_recorded``: if the replay of a record gives another result, take the recorded one and list the record
        in ``accepted``. ``index_directory``: where to make an index of the log alone. ``memory_bytes`` bounds what is
        held of messages and counts, whatever the backlog: half new messages, a quarter messages read again, a quarter
        blocks. The state itself comes on top.

        *Raises*: ``AlreadyOpen``; ``CorruptData``; ``NotFound`` when ``read_only`` and there are none;
        ``InvalidRequest`` for a backup, which is opened with ``read_only`` only; ``OSError``. *Cost*: the state, the
        log after the last checkpoint, and the entries of maps and last values; whatever the backlog.
        """
        _require_whole(directory)
        if not read_only and os.path.exists(os.path.join(directory, MANIFEST_NAME)):
            raise InvalidRequest(
                "the directory is a backup and must not be written to",
                path=directory,
                hint=f"holdfast stores restore {directory} NEW makes stores of it",
            )
        blocks_max = max(16, memory_bytes // 4 // BLOCK_BYTES)
        with ExitStack() as unless_opened:
            log = MessageLog(directory, page_bytes=page_bytes, read_only=read_only)
            unless_opened.callback(log.close)
            makes_index = index_directory is not None
            index = Index(index_directory or directory, read_only=read_only and not makes_index, blocks_max=blocks_max)
            unless_opened.callback(index.close)
            try:
                storage = cls(log, index, memory_bytes=memory_bytes)
                storage.accepted = [] if accept_recorded else None
                storage.version = 0 if cls._is_cache else None
                storage._recover(read_only=read_only)
            except UNREADABLE as error:
                raise index.unreadable(error) from error
            unless_opened.pop_all()
        return storage

    def _recover(self, *, read_only: bool = False) -> None:
        self._read_only = read_only
        loaded = self.index.load()
        first = 1
        if loaded is not None:
            first = loaded.frame + 1
            self.state.restore(loaded.state)
            # What formed the state came by commands that are not in the log any more, and time goes on after them.
            self.last_ms = max(loaded.at_ms, self.state.at_ms)
            self.index.check_entries(self._entries_expected())
            self._require_kind(loaded.version is not None)
            if self.version is not None:
                self.version, self._of_version = loaded.version or 0, _EVERYTHING
        if first > self.log.last + 1 or first < self.log.first or not self._is_of_this_log(loaded):
            raise CorruptData(
                "the index of the stores is missing, and their log no longer begins with frame 1"
                if loaded is None
                else "the index and the log of the stores do not belong together",
                index_frame=first - 1,
                first_frame=self.log.first,
                last_frame=self.log.last,
                directory=self.log.directory,
                hint="holdfast stores restore BACKUP NEW makes stores of a backup, which has both",
            )
        self._replay(first)
        self.effects = self.state.pending_effects()

    def _entries_expected(self) -> dict[tuple[str, str], int]:
        expected: dict[tuple[str, str], int] = {}
        for store in self.state.stores.values():
            if store.name in self.state.volatile_names:
                continue
            for durable in store.durables.values():
                if not isinstance(durable, Consumption) and durable.pending:
                    expected[store.name, durable.keyed.namespace] = durable.pending
            expected |= {(store.name, residue.of.namespace): residue.left for residue in store.keyed_residues}
        return expected

    def _is_of_this_log(self, loaded: Loaded | None) -> bool:
        """Whether the index was made of this log, as far as known: its last frame may have been removed since."""
        if loaded is None or loaded.frame_crc is None:
            return True
        crc = self.log.checksum(loaded.frame)
        return crc is None or crc == loaded.frame_crc

    def _replay(self, first: int) -> None:
        """Apply every record from frame ``first`` on."""
        for number, data in self.log.frames(first):
            frame = decode_frame(data, number)
            if not isinstance(frame, Relocated):
                self._require_kind(version_of(data) is not None)
            self.messages.next_frame = number
            self.note_frame(len(data))
            self._note_version(data)
            if isinstance(frame, Relocated):
                self.messages.relocate(frame, number)
            else:
                self._apply_again(frame, number)
        self.messages.next_frame = self.log.last + 1

    def _require_kind(self, is_cache: bool) -> None:
        """Refuse the cache of a commit log where stores of their own are expected, and the reverse."""
        if is_cache and self.version is None and not self._read_only:
            raise InvalidRequest(
                "these files are a copy of stores that live in a commit log",
                hint="serve that log; `holdfast log restore` makes a log with its stores at another place",
                directory=self.log.directory,
            )
        if not is_cache and self.version is not None:
            raise CorruptData("these files are no copy of a commit log", directory=self.log.directory)

    def _note_version(self, frame: bytes) -> None:
        version = version_of(frame)
        if version is not None:
            self._of_version = 1 + (self._of_version if version == self.version else 0)
            self.version = version

    def follow(self, entries: Iterable[tuple[int, list[bytes]]]) -> None:
        """Apply entries of the commit log, each a version with its records, and append them. What is here is passed
        over.

        *Raises*: ``CorruptData`` when a record gives another result here; what ``MessageLog.append`` raises. Then
        memory and files do not belong together any more.
        """
        assert self.version is not None, "only the cache of a commit log follows it"
        frames: list[bytes] = []
        number = self.log.last + 1
        for version, records in entries:
            if version < self.version:
                continue
            # Of the last entry that is here, a crash may have left the first records only.
            for record in records[self._of_version :] if version == self.version else records:
                frame = with_version(record, version)
                self.messages.next_frame = number
                self.note_frame(len(frame))
                said = decode_frame(frame, number)
                assert isinstance(said, Record), "the log has records only"
                self._apply_again(said, number)
                self._note_version(frame)
                frames.append(frame)
                number += 1
        if frames:
            self.log.append(frames)
        self.messages.next_frame = number

    def append(self, frames: list[bytes], version: int) -> int:
        """Append the frames of an entry that is durable, in order; not synced. Returns how many were appended.

        They are fewer than all when the disk is full: append the rest later. *Raises*: as ``MessageLog.append``,
        without disk_full.
        """
        if not frames:
            return 0
        versioned = [with_version(frame, version) for frame in frames]
        before = self.log.last
        try:
            self.log.append(versioned)
        except Unavailable as error:
            if error.code is not Code.DISK_FULL:
                raise
        appended = self.log.last - before
        for frame in versioned[:appended]:
            self._note_version(frame)
        return appended

    def _apply_again(self, record: Record, number: int) -> None:
        if record.rules != RULES:
            raise CorruptData(
                "the log of the stores was written by a later version of holdfast",
                frame=number,
                rules=record.rules,
                hint="nothing is damaged: use that version",
            )
        self.last_ms = max(self.last_ms, record.command.at_ms)
        replayed: Result | HoldfastError
        try:
            replayed = self.state.apply(record.command).result
        except ReadUnavailable:
            raise
        except HoldfastError as error:
            replayed = error
        if replayed == record.result:
            return
        differs = _differs(record, number, replayed, self.log.directory)
        if self.accepted is None:
            raise differs from (replayed if isinstance(replayed, HoldfastError) else None)
        accept(self.state, record, replayed)
        self.accepted.append((number, differs))

    def messages_of(self, store: str) -> StoredMessages | VolatileMessages:
        """Where the messages of a store are."""
        return self.volatile if store in self.state.volatile_names else self.messages

    def _swaps(self, store: str) -> bool:
        """Whether new bodies of a store in memory go to disk: it or one of its durables is above its limit."""
        definition, target = self.state.definition, self.state.stores[store]
        if not definition.swap:
            return False
        limit = target.definition.swap_bytelimit
        if limit == 0 or 0 < limit < target.counts.live_bytes:
            return True
        for durable in target.durables.values():
            limit = durable.definition.swap_bytelimit
            if limit == 0 or 0 < limit < durable.pending_bytes:
                return True
        return False

    def note_frame(self, size: int) -> None:
        """A frame of this size is about to be the next."""
        self.locations.grow(size)
        self.log_bytes += size

    def begin_checkpoint(self) -> IndexChanges:
        """Freeze all changes, between two commands. *Cost*: copies 14 KiB for each changed block."""
        self._remove_dead_extents()
        self.log_bytes = 0
        return IndexChanges(
            self.messages.next_frame - 1,
            max(self.last_ms, self.state.at_ms),
            self.state.snapshot(),
            self.index.blocks.freeze(),
            self.index.entries.freeze(),
            self.locations.freeze(),
            version=self.version,
        )

    def write_checkpoint(self, checkpoint: IndexChanges) -> int:
        """Make it durable, then remove pages. Returns how many.

        *Raises*: ``Closed`` when the log has failed; ``sqlite3.Error`` and ``OSError``, after which it may be retried.
        """
        self.log.sync()
        needed = self.index.write(checkpoint._replace(frame_crc=self.log.checksum(checkpoint.frame)))
        return self.log.trim(needed)

    def end_checkpoint(self) -> None:
        """It is written: what was frozen is read from the index now."""
        self.index.blocks.written()
        self.index.entries.written()
        self.locations.written()

    def _remove_dead_extents(self) -> None:
        dead: list[Extent] = []
        for extent in self.index.oldest_extents(DEAD_EXTENTS_MAX):
            current = self.locations.current(extent)
            if current is not None:
                if self.messages.is_kept(current):
                    break
                dead.append(current)
        self.locations.remove(dead)

    def close(self) -> None:
        """Make everything durable and close the files. *Raises*: ``Closed`` when the log has failed."""
        self.swap.close()
        try:
            self.log.close()
        finally:
            self.index.close()


def _require_whole(directory: str) -> None:
    if os.path.exists(os.path.join(directory, UNFINISHED_NAME)):
        raise CorruptData(
            "the restore of a backup into this directory did not finish, or the move of stores to it",
            path=directory,
            hint="holdfast stores restore BACKUP NEW again, into an empty directory; or holdfast stores move again",
        )


def require_stores(directory: str) -> None:
    """Raises ``NotFound`` without stores or a backup; ``CorruptData`` if only a part of them is there."""
    _require_whole(directory)
    if not os.path.isdir(directory):
        raise NotFound("there is no such directory", path=directory)
    if any(name.startswith(f"{LOG_NAME}-") for name in os.listdir(directory)):
        return
    if os.path.exists(os.path.join(directory, INDEX_NAME)):
        raise CorruptData(
            "the log of the stores is missing",
            path=directory,
            missing=f"{LOG_NAME}-*.page",
            hint="holdfast stores restore BACKUP NEW makes stores of a backup, which has both",
        )
    raise NotFound(
        "there are no stores here",
        path=directory,
        missing=f"{LOG_NAME}-*.page and {INDEX_NAME}",
        hint="name the directory in the setting stores.directory, or the directory of a backup",
    )


def _differs(record: Record, number: int, replayed: Result | HoldfastError, directory: str) -> CorruptData:
    return CorruptData(
        "the replay of a record gives another result than the record has",
        frame=number,
        command=_bounded(record.command),
        recorded=_bounded(record.result),
        found=_bounded(replayed),
        hint=f"holdfast stores repair --accept-recorded {directory} backs the directory up and takes the recorded "
        "results where that is possible",
    )


def _bounded(what: object) -> str:
    text = str(what) if isinstance(what, HoldfastError) else repr(what)
    return text if len(text) <= TEXT_MAX else f"{text[:TEXT_MAX]}... ({len(text)} characters)"
