"""A message store that lives in a log, read from a checkpoint of the stores and the log after it.

The driver fetches the index of the newest checkpoint and the pages after that, and reads the log after the checkpoint
once. Tasks fetch the pages and objects of their piece. Every file is checked against its hash, every object against its
CRC. A checkpoint has what durables keep, and the log has everything: a reader that continues begins with an older
checkpoint, if the log after that has all that it has not read.

Memory of the driver: about 500 bytes for each MiB of messages to read, and 150 for each run of objects that have some.
Disk: the index and the last pages; of a task, the pages of one extent, mostly one or two.
"""

from __future__ import annotations

import asyncio
import os
import time
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple, Self

from holdfast.commit.format.batch import Header, StoresMode, decode_header, decode_records, object_name
from holdfast.commit.reading.entries import Entries
from holdfast.commit.reading.lineage import Lineage, lineage_of, log_mismatch
from holdfast.commit.reading.reader import find_header, require_frontier
from holdfast.errors import Code, CorruptData, NotFound
from holdfast.files.temporary_files import temporary_directory
from holdfast.objects.port import ObjectStore
from holdfast.queue.format.file_names import FileNames
from holdfast.queue.format.page import HEADER_BYTES
from holdfast.queue.format.page import decode_header as decode_page_header
from holdfast.spark.positions import Position
from holdfast.spark.runtime.refusals import bad_configuration, log_truncated
from holdfast.spark.runtime.store_thread import StoreThread
from holdfast.spark.source.chain import require_log
from holdfast.spark.source.plan import OBJECT_COST_BYTES
from holdfast.stores.checkpoint_objects import CheckpointManifest, File, list_versions, read_file, read_manifest
from holdfast.stores.repair.reader import Brought, StoredMessage, StoreReader, StoreSoFar, messages_between
from holdfast.stores.storage.frames import Relocated, decode_frame
from holdfast.stores.storage.index import INDEX_NAME
from holdfast.stores.storage.locations import Extent
from holdfast.stores.storage.log import LOG_NAME, MessageLog
from holdfast.stores.values.commands import Record
from holdfast.values import slot_text

EXTENT_BYTES: Final = 1 << 20
"""Messages that one extent of a plan has at most, unless one object has more."""
EXTENT_RUNS: Final = 64
EXTENT_PAGES: Final = 2
FETCH_OBJECTS: Final = 32
ATTEMPTS: Final = 5
PROVE_END_EVERY_S: Final = 30.0
"""An empty slot is the end of the log, or was emptied by retention: this often a listing says which."""
NO_CHECKPOINT: Final = -1
"""The version of one that was not fetched as a whole."""
_NAMES: Final = FileNames(LOG_NAME)


class CheckpointPage(NamedTuple):
    """One page of a checkpoint: its first frame, and its files: the page, and its index if there is one."""

    first_frame: int
    files: tuple[File, ...]


class InPages(NamedTuple):
    """Messages that are in the frames ``first_frame`` to ``last_frame`` of these pages of a checkpoint."""

    first_seq: int
    last_seq: int
    bytes: int
    first_frame: int
    last_frame: int
    pages: tuple[CheckpointPage, ...]


class InObjects(NamedTuple):
    """Messages that are in these objects of the log ``log_id``: runs of slots, (first, last), in the order of writing.

    ``bytes`` are those of the messages, and a share for each object.
    """

    first_seq: int
    last_seq: int
    bytes: int
    slots: tuple[tuple[int, int], ...]
    log_id: str


@dataclass(frozen=True, slots=True)
class PlacedInLog:
    """As ``reader.Placed``. ``at``: the version and log up to which this holds."""

    extents: tuple[InPages | InObjects, ...]
    newest_seq: int
    until_ms: int
    at: Position
    store_id: int = 0


class _Begun(NamedTuple):
    """What a checkpoint says, and its version; without one, the beginning of the log."""

    so_far: StoreSoFar
    extents: list[InPages]
    version: int


class StoreInLog:
    """The store ``store`` of the log at ``url``. One thread at a time; in the driver and in tasks.

    ``since``: the position of the offset that reading continues from; a log that does not have it is refused.
    """

    def __init__(self, url: str, store: str, since: Position | None = None) -> None:
        self._store = store
        self._thread = StoreThread(url)
        self._checkpoint: tuple[int, TemporaryDirectory[str]] | None = None
        self._files: TemporaryDirectory[str] | None = None
        self._log: tuple[tuple[CheckpointPage, ...], MessageLog] | None = None
        self._entries: Entries | None = None
        self._begun_at = 0
        self._so_far = StoreSoFar(store)
        self._placed_seq = 0
        self._at: Position | None = None
        self._proved_s = 0.0
        self.since = since

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._close_pages()
        self._remove_checkpoint()
        if self._files is not None:
            self._files.cleanup()
        self._files = None
        self._thread.close()

    # -- where the messages are ---------------------------------------------------------------------------------------

    def place(self, after_seq: int = 0) -> PlacedInLog:
        """Where the messages after ``after_seq`` are now.

        *Raises*: ``InvalidRequest`` (stores on a disk; not the log of ``since``), ``NotFound`` (no such store, or one
        in memory only; ``log_empty``), ``CorruptData``, ``Unavailable``. *Cost*: the index of a checkpoint or two, the
        header of each page, the pages after the index, the log after the checkpoint.
        """
        for left in reversed(range(ATTEMPTS)):
            try:
                return self._thread.run(partial(self._place, after_seq))
            except NotFound as error:
                # Retention went on while this read.
                if error.code is not Code.LOG_TRUNCATED or not left:
                    raise
        raise AssertionError("the last attempt returns or raises")

    def place_on(self) -> PlacedInLog:
        """Where the messages after those of the last call are, for a caller that polls.

        *Raises*: as ``place``. A store that was made again has another id. *Cost*: one request without news.
        """
        entries, self._entries = self._entries, None  # after an error the next call starts from a checkpoint
        if entries is None:
            return self.place(self._placed_seq)
        try:
            placed = self._thread.run(partial(self._place_on, entries))
        except NotFound as error:
            if error.code is not Code.LOG_TRUNCATED:
                raise
            return self.place(self._placed_seq)
        self._entries = entries
        return placed

    async def _place(self, after_seq: int, store: ObjectStore) -> PlacedInLog:
        head, claim, lineage = await self._frontier(store)
        begun = await self._begin(store, lineage, head, after_seq)
        extents: list[InPages | InObjects] = list(begun.extents)
        self._so_far, self._begun_at, self._entries = begun.so_far, begun.version, None
        entries = Entries(store)
        await self._follow(entries, claim, head, extents, after_seq)
        self._entries = entries
        return self._placed(extents, head)

    async def _place_on(self, entries: Entries, store: ObjectStore) -> PlacedInLog:
        now_s = time.monotonic()
        slot = entries.next_slot
        assert slot is not None and self._at is not None, "it has read to the end"
        if now_s - self._proved_s < PROVE_END_EVERY_S and await find_header(store, slot) is None:
            return PlacedInLog((), self._placed_seq, self._so_far.at_ms, self._at, self._so_far.id)
        self.since = self._at
        head, claim, _ = await self._frontier(store)
        extents: list[InPages | InObjects] = []
        await self._follow(entries, claim, head, extents, self._placed_seq)
        return self._placed(extents, head)

    def _placed(self, extents: list[InPages | InObjects], head: Header) -> PlacedInLog:
        self._proved_s = time.monotonic()
        self._placed_seq = self._so_far.newest_seq
        self._at = Position(None, head.last_version, head.log_id.hex())
        return PlacedInLog(tuple(extents), self._so_far.newest_seq, self._so_far.at_ms, self._at, self._so_far.id)

    async def _frontier(self, store: ObjectStore) -> tuple[Header, Header, Lineage]:
        """The newest object, the newest claim, and the logs that the log goes back to."""
        head, claim = await require_frontier(store)
        lineage = await lineage_of(store, claim)
        if self.since is not None:
            require_log(lineage, self.since)
        if head.stores_mode is not StoresMode.LOG:
            raise bad_configuration(
                "the message stores of this log are files of its service, and not in the log",
                hint='name the service\'s stores.directory with .option("stores", ...) instead of the url; `holdfast '
                "stores move --to log` moves the stores of a log into it",
                url=store.url,
            )
        return head, claim, lineage

    async def _follow(
        self, entries: Entries, claim: Header, head: Header, extents: list[InPages | InObjects], after_seq: int
    ) -> None:
        """Note what the log says after the checkpoint, up to ``head``. Raises: NotFound where the store is deleted."""
        async with aclosing(entries.through(claim, head, after=self._begun_at)) as batches:
            async for header, found in batches:
                for entry in found:
                    if entry.version <= self._begun_at:
                        continue  # a checkpoint has the whole entry that it is named after
                    for _, record in entry.records:
                        deleted, brought = self._so_far.note(_decoded(record, header))
                        if deleted:
                            extents.clear()
                        for each in brought:
                            if each.last_seq > after_seq:
                                _extend(extents, each, header)
        self._so_far.require_store()

    # -- checkpoints --------------------------------------------------------------------------------------------------

    async def _begin(self, store: ObjectStore, lineage: Lineage, head: Header, after_seq: int) -> _Begun:
        """The newest whole checkpoint in which all numbers are read already; else the newest one."""
        newest: _Begun | None = None
        for version in reversed(await list_versions(store)):
            if not head.truncated_through <= version <= head.last_version:
                continue
            try:
                manifest = await read_manifest(store, version)
                if manifest is None or not lineage.holds(manifest.log_id, manifest.version):
                    continue
                begun = await self._read_checkpoint(store, manifest, after_seq)
            except (CorruptData, NotFound):
                continue  # damaged, or removed meanwhile
            if not after_seq or begun.so_far.newest_seq <= after_seq:
                return begun
            newest = newest or begun
        if newest is not None:
            return newest
        return _Begun(StoreSoFar.at_the_beginning(self._store), [], 0)

    async def _read_checkpoint(self, store: ObjectStore, manifest: CheckpointManifest, after_seq: int) -> _Begun:
        pages = await _pages(store, manifest)
        if self._checkpoint is None or self._checkpoint[0] != manifest.version:
            self._remove_checkpoint()
            made = temporary_directory("holdfast-spark-")
            self._checkpoint = NO_CHECKPOINT, made
            await _fetch(store, [file for file in manifest.files if file.name == INDEX_NAME], made.name)
            frame = await asyncio.to_thread(StoreReader.last_indexed, made.name)
            # The frames that the index does not know: those of the page with the next one, and of later pages.
            first = max(0, bisect_right([page.first_frame for page in pages], frame + 1) - 1)
            await _fetch(store, [file for page in pages[first:] for file in page.files], made.name)
            self._checkpoint = manifest.version, made
        so_far, extents = await asyncio.to_thread(self._read_files, self._checkpoint[1].name, after_seq)
        return _Begun(so_far, list(_in_pages(extents, pages)), manifest.version)

    def _remove_checkpoint(self) -> None:
        checkpoint, self._checkpoint = self._checkpoint, None
        if checkpoint is not None:
            checkpoint[1].cleanup()

    def _read_files(self, directory: str, after_seq: int) -> tuple[StoreSoFar, list[Extent]]:
        with StoreReader(directory, self._store) as reader:
            return reader.place_all(after_seq)

    # -- the messages -------------------------------------------------------------------------------------------------

    def messages(self, extent: InPages | InObjects) -> tuple[list[StoredMessage], bool]:
        """The messages of an extent, in order, and whether these are all that its numbers ever were.

        *Raises*: ``NotFound`` (``log_truncated``: removed since the plan), ``InvalidRequest`` (another log),
        ``CorruptData``, ``Unavailable``.
        """
        frames: Iterable[Record | Relocated]
        if isinstance(extent, InPages):
            frames = self._frames(extent)
        else:
            frames = self._thread.run(partial(_records, extent))
        messages, cleared = messages_between(frames, self._store, extent.first_seq, extent.last_seq)
        return messages, len(messages) + cleared >= extent.last_seq - extent.first_seq + 1

    def _frames(self, extent: InPages) -> Iterator[Record | Relocated]:
        if self._log is None or self._log[0] != extent.pages:
            self._close_pages()
            if self._files is None:
                self._files = temporary_directory("holdfast-spark-")
            directory = self._files.name
            wanted = {file.name: file for page in extent.pages for file in page.files}
            for name in set(os.listdir(directory)) - wanted.keys():
                os.unlink(os.path.join(directory, name))
            there = os.listdir(directory)
            missing = [file for name, file in wanted.items() if name not in there]
            self._thread.run(lambda store: _fetch(store, missing, directory))
            self._log = extent.pages, MessageLog(directory, read_only=True)
        for number, data in self._log[1].read(extent.first_frame, extent.last_frame):
            yield decode_frame(data, number)

    def _close_pages(self) -> None:
        log, self._log = self._log, None
        if log is not None:
            log[1].close()


async def _pages(store: ObjectStore, manifest: CheckpointManifest) -> list[CheckpointPage]:
    """The pages of a checkpoint that have frames, in order. Raises: NotFound, CorruptData, Unavailable."""
    by_name = {file.name: file for file in manifest.files}
    numbered = {number: file for name, file in by_name.items() if (number := _NAMES.page_number(name)) is not None}
    numbers = sorted(numbered)
    pages: list[CheckpointPage] = []
    for begin in range(0, len(numbers), FETCH_OBJECTS):
        some = numbers[begin : begin + FETCH_OBJECTS]
        heads = await asyncio.gather(
            *(store.read(numbered[number].key, start=0, length=HEADER_BYTES) for number in some)
        )
        for number, head in zip(some, heads, strict=True):
            header = decode_page_header(head, number)
            if header is None:
                raise CorruptData("a page of a checkpoint is damaged", key=numbered[number].key)
            files = (numbered[number], by_name.get(_NAMES.index(number)))
            if not header.prepared:
                pages.append(CheckpointPage(header.base_seq, tuple(file for file in files if file is not None)))
    return pages


async def _fetch(store: ObjectStore, files: Sequence[File], directory: str) -> None:
    """Bring files of a checkpoint into a directory, one after the other. Raises: as ``read_file``, OSError."""
    for file in files:
        data = await read_file(store, file)
        await asyncio.to_thread(Path(directory, file.name).write_bytes, data)


def _in_pages(extents: Sequence[Extent], pages: Sequence[CheckpointPage]) -> Iterator[InPages]:
    """The extents with their pages, neighbours joined."""
    firsts = [page.first_frame for page in pages]

    def range_of(extent: Extent) -> tuple[int, int]:
        low, high = bisect_right(firsts, extent.first_frame) - 1, bisect_right(firsts, extent.last_frame)
        if low < 0:
            raise CorruptData("the index of a checkpoint names frames that it does not have", frame=extent.first_frame)
        return low, high

    def placed(extent: Extent) -> InPages:
        low, high = range_of(extent)
        return InPages(*extent[1:3], extent.bytes, *extent[3:5], tuple(pages[low:high]))

    joined: Extent | None = None
    for extent in extents:
        if joined is not None:
            both = joined._replace(
                last_seq=extent.last_seq, last_frame=extent.last_frame, bytes=joined.bytes + extent.bytes
            )
            low, high = range_of(both)
            # Frames between the two have no messages with these numbers but those of the two.
            follows = extent.first_seq == joined.last_seq + 1 and extent.first_frame >= joined.last_frame
            if follows and both.bytes <= EXTENT_BYTES and high - low <= EXTENT_PAGES:
                joined = both
                continue
            yield placed(joined)
        joined = extent
    if joined is not None:
        yield placed(joined)


def _extend(extents: list[InPages | InObjects], more: Brought, header: Header) -> None:
    """Add what an object of the log has."""
    slot, log_id = int(header.slot), header.log_id.hex()
    last = extents[-1] if extents else None
    if isinstance(last, InObjects) and last.last_seq + 1 == more.first_seq and last.log_id == log_id:
        first, before = last.slots[-1]
        cost = more.bytes + (OBJECT_COST_BYTES if slot != before else 0)
        slots = (*last.slots[:-1], (first, slot)) if before - slot <= 1 else (*last.slots, (slot, slot))
        if slot == before or (last.bytes + cost <= EXTENT_BYTES and len(slots) <= EXTENT_RUNS):
            extents[-1] = last._replace(last_seq=more.last_seq, bytes=last.bytes + cost, slots=slots)
            return
    extents.append(InObjects(*more[:2], more.bytes + OBJECT_COST_BYTES, ((slot, slot),), log_id))


async def _records(extent: InObjects, store: ObjectStore) -> list[Record]:
    """What the stores did in the objects of an extent, in order."""
    slots = [slot for first, last in extent.slots for slot in range(first, last - 1, -1)]
    records: list[Record] = []
    for begin in range(0, len(slots), FETCH_OBJECTS):
        some = slots[begin : begin + FETCH_OBJECTS]
        for slot, data in zip(some, await asyncio.gather(*(_read(store, slot) for slot in some)), strict=True):
            header = decode_header(data, slot=slot)
            if header.log_id.hex() != extent.log_id:
                raise log_mismatch(extent.log_id, header.log_id.hex())
            records += [_decoded(record, header) for each in decode_records(data, header) for _, record in each.records]
    return records


async def _read(store: ObjectStore, slot: int) -> bytes:
    try:
        return await store.read(object_name(slot))
    except NotFound:
        raise log_truncated(
            "data loss: retention has removed an object of the log since this read was planned",
            hint="read again",
            slot=slot_text(slot),
        ) from None


def _decoded(record: bytes, header: Header) -> Record:
    said = decode_frame(record, int(header.slot))
    if isinstance(said, Relocated):
        raise CorruptData("a record in the log is not a command of the stores", slot=slot_text(header.slot))
    return said
