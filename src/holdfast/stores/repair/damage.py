"""Repairs stores with damaged messages, on an operator's decision.

Lost messages are reported one by one, and every other message of the same extent is kept. The only change is one
checkpoint at the end, so a repair can be stopped and run again. If a frame after the index is damaged, or its command
reads damaged messages, or the index is damaged, only a backup helps. ``AlreadyOpen`` while a service has the stores.
"""

from __future__ import annotations

import os
import shutil
from contextlib import closing
from typing import NamedTuple

from holdfast.errors import CorruptData, InvalidRequest
from holdfast.files.durable_directory import make_durable_directory, sync_tree
from holdfast.stores.machine.repairs import drop_lost
from holdfast.stores.storage.frames import MessageRun, decode_frame, runs_of
from holdfast.stores.storage.locations import Extent
from holdfast.stores.storage.storage import Storage, require_stores
from holdfast.stores.values.sequence_set import SequenceSet


class StoreLoss(NamedTuple):
    """Of one store: runs of kept messages that cannot be read, ascending, and how many each durable lost (after the
    repair)."""

    store: str
    runs: list[tuple[int, int]]
    durables: dict[str, int]

    @property
    def messages(self) -> int:
        """How many messages."""
        return sum(last - first + 1 for first, last in self.runs)


_Cut = tuple[Extent, list[Extent]]
"""An extent with frames that cannot be read, and the parts of it that can."""


def survey(directory: str) -> list[StoreLoss]:
    """What ``repair`` would remove; changes nothing. *Cost*: reads the log once.

    *Raises*: ``CorruptData`` if only a backup helps; ``NotFound``; ``AlreadyOpen``; ``OSError``.
    """
    require_stores(directory)
    with closing(Storage.open(directory, read_only=True)) as storage:
        return [StoreLoss(store, lost.runs(), {}) for store, lost, _ in _damage(storage) if lost]


def repair(directory: str) -> list[StoreLoss]:
    """Remove every kept message that cannot be read, so that everything after it can be delivered.

    *Raises*: as ``survey``; ``InvalidRequest`` for a backup; ``sqlite3.Error``. *After a crash*: all or nothing was
    changed.
    """
    require_stores(directory)
    with closing(Storage.open(directory)) as storage:
        losses: list[StoreLoss] = []
        cuts = 0
        for store, lost, damaged in _damage(storage):
            cuts += len(damaged)
            for extent, parts in damaged:
                storage.locations.replace(extent, parts)
            if lost:
                losses.append(StoreLoss(store, lost.runs(), drop_lost(storage.state, store, lost)))
        if cuts:
            storage.write_checkpoint(storage.begin_checkpoint())
            storage.end_checkpoint()
        return losses


def accept_recorded(directory: str, backup: str) -> list[tuple[int, CorruptData]]:
    """Copy the directory to ``backup``, then take recorded results if a replay gives other ones.

    Returns the frames of these records with the error of each. *Raises*: ``InvalidRequest`` if ``backup`` exists;
    ``CorruptData`` if a record cannot be accepted, or something else is damaged; ``AlreadyOpen``; ``OSError``. *After a
    crash*: the copy may be incomplete; the directory is unchanged or repaired. *Cost*: copies the directory once.
    """
    require_stores(directory)
    if os.path.exists(backup):
        raise InvalidRequest("the folder of the backup exists", path=backup, hint="name another one with --backup")
    make_durable_directory(backup)
    shutil.copytree(directory, backup, dirs_exist_ok=True)
    sync_tree(backup)
    with closing(Storage.open(directory, accept_recorded=True)) as storage:
        accepted = storage.accepted or []
        if accepted:
            storage.write_checkpoint(storage.begin_checkpoint())
            storage.end_checkpoint()
        return accepted


def missing_frames(storage: Storage) -> SequenceSet:
    """The unreadable frames of the log. *Cost*: reads the log."""
    missing = SequenceSet()
    expected = storage.log.first
    for number, _ in storage.log.readable(expected, storage.log.last):
        if number > expected:
            missing.add(expected, number - 1)
        expected = number + 1
    if expected <= storage.log.last:
        missing.add(expected, storage.log.last)
    return missing


def _damage(storage: Storage) -> list[tuple[str, SequenceSet, list[_Cut]]]:
    missing = missing_frames(storage)
    damage: list[tuple[str, SequenceSet, list[_Cut]]] = []
    for store in storage.state.stores:
        if store in storage.state.volatile_names:
            continue
        lost, cuts = SequenceSet(), list[_Cut]()
        extent = storage.locations.find(store, 1)
        while extent is not None:
            gone = extent.first_frame < storage.log.first
            if gone or missing.next_member(extent.first_frame, extent.last_frame + 1) <= extent.last_frame:
                _look_at(storage, extent, lost, cuts)
            extent = storage.locations.find(store, extent.last_seq + 1)
        damage.append((store, lost, cuts))
    return damage


def _look_at(storage: Storage, extent: Extent, lost: SequenceSet, cuts: list[_Cut]) -> None:
    there, parts = SequenceSet(), list[Extent]()
    before = -1
    for number, data in storage.log.readable(extent.first_frame, extent.last_frame):
        for run in runs_of(decode_frame(data, number)):
            passed = parts[-1].last_seq if parts else extent.first_seq - 1
            low, high = max(run.first_seq, passed + 1), min(run.last_seq, extent.last_seq)
            if run.store != extent.store or low > high:
                continue
            there.add(low, high)
            _extend(parts, extent, run, low, high, number, joined=number == before)
            before = number
    cuts.append((extent, parts))
    counts = storage.state.stores[extent.store].counts
    for seq in range(extent.first_seq, extent.last_seq + 1):
        if seq not in there and counts.is_kept(seq):
            lost.add(seq, seq)


def _extend(
    parts: list[Extent], extent: Extent, run: MessageRun, low: int, high: int, frame: int, *, joined: bool
) -> None:
    """Make a part for each frame, so that none spans an unreadable one."""
    size = sum(len(message.body) for message in run.messages)
    if joined:
        last = parts[-1]
        parts[-1] = last._replace(last_seq=high, bytes=last.bytes + size)
    else:
        parts.append(Extent(extent.store, low, high, frame, frame, size))
