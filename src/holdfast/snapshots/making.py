"""Make a snapshot: the newest earlier one and the log after it, in a temporary file, then the parts, then the manifest.

    step        action                                              what a crash in this step leaves
    find        the newest live object bounds what is read          nothing
    load        the newest earlier snapshot fills a temporary file  nothing that lasts
    follow      the log after it is applied to the file             nothing that lasts
    parts       each part is created                                parts that no manifest names
    manifest    the manifest is created if there is none            the snapshot, or the step before

A maker may run anywhere and next to others: of two makers of one version, the manifest that was created first counts,
and the other maker removes its own parts.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from contextlib import aclosing, closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from holdfast.commit.format.batch import Header
from holdfast.commit.reading.lineage import Lineage, lineage_of
from holdfast.commit.reading.reader import follow, require_frontier
from holdfast.commit.reading.survey import check_reached, walker_after
from holdfast.errors import Code, CorruptData, InvalidRequest, NotFound, Unavailable
from holdfast.files.temporary_files import temporary_directory, temporary_work
from holdfast.objects.creating import create_exactly
from holdfast.objects.port import ObjectStore
from holdfast.snapshots.manifest import (
    FORMAT,
    Manifest,
    Part,
    encode_manifest,
    jobs_name,
    manifest_key,
    part_key,
    part_name,
)
from holdfast.snapshots.part import PART_BYTES, cut, encode_part
from holdfast.snapshots.reading import load_view_file, newest_snapshot, read_manifest, snapshots_back
from holdfast.values import slot_text
from holdfast.view.sqlite import Table, open_for_writer, walk_rows, write_layer
from holdfast.view.storage import Layer, StatePosition

LAYER_BYTES: Final = 64 * 2**20
"""Changes that wait in memory before they go to the temporary file."""
GIVE_UP_SECONDS: Final = 12 * 3600.0
"""Parts without a manifest may be removed after a day; a maker that is still writing must have ended long before."""

Progress = Callable[[int, int | None], None]


@dataclass(frozen=True, slots=True)
class Start:
    """What a snapshot of ``version`` is made from: the log up to ``head``, and ``base``, the newest earlier one."""

    head: Header
    log_id: str
    version: int
    base: Manifest | None
    lineage: Lineage


async def make_snapshot(
    store: ObjectStore, on_progress: Progress | None = None, *, at: int | None = None, part_bytes: int = PART_BYTES
) -> Manifest:
    """Make the snapshot of a log at version ``at``, by default the newest one, or return the one that exists.

    ``on_progress`` gets the versions applied since the earlier snapshot, and how many there are. ``part_bytes`` is for
    tests: other values give other borders than those of other makers. The parts and the manifest are durable when this
    returns. Cost: the log after the newest earlier snapshot is read once, that snapshot once; a temporary file has the
    whole state. Memory: ``LAYER_BYTES`` and two parts.

    Raises: InvalidRequest (``future_version``), NotFound (``log_empty``; ``log_truncated``: the log before the first
    snapshot was removed), CorruptData, Unavailable; for the temporary file as ``temporary_files.unusable``. After any
    of them, and after a crash, no manifest names the parts.
    """
    start = await start_of(store, at)
    if isinstance(start, Manifest):
        return start
    with temporary_directory("holdfast-snapshot-") as folder, temporary_work():
        making = _Making(store, Path(folder, "state.sqlite"), part_bytes)
        with closing(making):
            await making.load(start)
            slot = await making.follow(start.head, start.version, on_progress)
            return await making.write(StatePosition(start.version, making.last_transaction, start.log_id), slot)


async def start_of(store: ObjectStore, at: int | None) -> Start | Manifest:
    """What a snapshot at version ``at`` (None: the newest one) is made from, or the snapshot itself where it exists.

    Raises: InvalidRequest (``future_version``), NotFound (``log_empty``), CorruptData, Unavailable.
    """
    head, claim = await require_frontier(store)
    version = head.last_version if at is None else at
    if not 0 <= version <= head.last_version:
        raise InvalidRequest(
            "the log has not reached this version", code=Code.FUTURE_VERSION, at=version, last_version=head.last_version
        )
    lineage = await lineage_of(store, claim)
    base = await newest_snapshot(store, lineage, version)
    return base if base is not None and base.version == version else Start(head, lineage.log_id, version, base, lineage)


async def place_of(store: ObjectStore, head: Header, version: int) -> tuple[str, int]:
    """The slot of the object that holds ``version``, as text, and the newest transaction at or below it.

    ``head`` is the newest object. Raises: NotFound (``log_truncated``), CorruptData, Unavailable.
    """
    if version == head.last_version:
        return slot_text(head.slot), head.last_transaction_version
    walker, newest = await walker_after(store, version)
    at = newest if walker.head is None else walker.head
    slot, last = at.slot, 0 if walker.head is None else at.last_transaction_version
    async with aclosing(follow(store, walker, until=head.slot)) as batches:
        async for batch in batches:
            header = batch.header
            if header.transactions and header.first_version > version:
                break
            slot = header.slot
            last = max([last, *(txn.version for txn in batch.transactions() if txn.version <= version)])
            if header.transactions and header.last_version > version:
                break
    return slot_text(slot), last


async def write_manifest(store: ObjectStore, manifest: Manifest) -> Manifest:
    """Create the manifest, whose parts exist; where another maker's exists, remove the parts and return that one."""
    if await create_exactly(store, manifest_key(manifest.version), encode_manifest(manifest)):
        return manifest
    first = await read_manifest(store, manifest.version)
    for part in manifest.files:
        with suppress(Unavailable):  # a part that stays costs space alone
            await store.delete(part_key(manifest.version, part.name))
    if first is None:
        raise Unavailable("a manifest was removed while it was read", snapshot=manifest.version)
    return first


class _Making:
    """One maker: its temporary file, and the parts that it has created."""

    def __init__(self, store: ObjectStore, path: Path, part_bytes: int) -> None:
        self._store = store
        self._part_bytes = part_bytes
        self._connection, self._position = open_for_writer(path)
        self._layer = Layer(is_ground=False)
        self._maker = secrets.token_hex(4)
        self.last_transaction = 0

    def close(self) -> None:
        """Let go of the temporary file."""
        self._connection.close()

    async def load(self, start: Start) -> None:
        """Begin with the newest earlier snapshot that is whole; without one with the beginning of the log.

        Raises: CorruptData where one is damaged and the log has no beginning; Unavailable.
        """
        if start.base is None:
            return
        damage: CorruptData | None = None
        async with aclosing(snapshots_back(self._store, start.lineage, start.version)) as bases:
            async for base in bases:
                try:
                    self._position = await load_view_file(self._connection, self._store, base, base.log_id)
                except CorruptData as error:
                    damage = damage or error
                except NotFound:
                    continue  # it was removed meanwhile, or a part of it is missing
                else:
                    self.last_transaction = base.last_transaction
                    return
        if damage is not None and start.head.truncated_through:
            raise damage

    async def follow(self, head: Header, version: int, on_progress: Progress | None) -> str:
        """Apply the log after the file's position up to ``version``. Returns the slot of the object that holds it."""
        begin = self._position.version
        walker, newest = await walker_after(self._store, begin)
        slot = newest.slot if walker.head is None else walker.head.slot
        async with aclosing(follow(self._store, walker, until=head.slot)) as batches:
            async for batch in batches:
                header = batch.header
                if header.transactions and header.first_version > version:
                    break
                slot = header.slot
                if header.transactions and header.prev_version > self.last_transaction > 0:
                    raise CorruptData(
                        "a transaction is missing", version=header.first_version, last_applied=self.last_transaction
                    )
                for txn in batch.transactions():
                    if self.last_transaction < txn.version <= version:
                        self._layer.apply(txn.version, txn.operations)
                        if txn.jobs:
                            self._layer.apply_jobs(txn.version, txn.jobs)
                        self.last_transaction = txn.version
                if self._layer.size >= LAYER_BYTES:
                    self._flush()
                if on_progress is not None:
                    on_progress(max(0, min(header.last_version, version) - begin), version - begin)
            else:
                check_reached(walker, head)
        self._flush()
        return slot_text(slot)

    def _flush(self) -> None:
        write_layer(self._connection, self._layer, self._position)
        self._layer = Layer(is_ground=False)

    async def write(self, position: StatePosition, slot: str) -> Manifest:
        """Create the parts, then the manifest; if another maker's manifest exists, remove the parts and return it."""
        version, last_transaction, log_id = position
        assert last_transaction is not None, "a maker knows its last transaction"
        assert log_id is not None, "a maker knows its log"
        deadline = asyncio.get_running_loop().time() + GIVE_UP_SECONDS
        parts = await self._write_parts(version, "latest", part_name, deadline)
        jobs = await self._write_parts(version, "jobs", jobs_name, deadline)
        manifest = Manifest(
            format=FORMAT,
            log_id=log_id,
            version=version,
            last_transaction=last_transaction,
            slot=slot,
            rows=sum(part.rows for part in parts),
            parts=parts,
            jobs=jobs,
        )
        return await write_manifest(self._store, manifest)

    async def _write_parts(
        self, version: int, table: Table, name: Callable[[str, int], str], deadline: float
    ) -> list[Part]:
        parts: list[Part] = []
        for number, rows in enumerate(cut(walk_rows(self._connection, table), self._part_bytes)):
            if asyncio.get_running_loop().time() > deadline:
                raise Unavailable("a snapshot took too long to write", snapshot=version, parts=number)
            part, data = await asyncio.to_thread(encode_part, rows, name(self._maker, number))
            if not await create_exactly(self._store, part_key(version, part.name), data):
                raise CorruptData("another object has the name of a part", part=part.name)
            parts.append(part)
        return parts
