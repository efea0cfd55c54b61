"""Move the message stores of a log from a disk into the log, or back, while no service runs.

| step | into the log | to a disk |
|---|---|---|
| copy | a checkpoint of the files, as objects | the files |
| place | | older files in the directory are set aside, and the copy takes their place |
| claim | the stores live in the log from now on | the stores live on a disk from now on |
| set aside | the files, which nobody reads any more | |

Until the claim stands, services go on where the stores were, and the copy may be made again. The claim directly follows
the object up to which the stores were copied; otherwise the move fails. What is set aside is moved into a folder of the
directory: the files of stores are not removed.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from dataclasses import dataclass
from functools import partial
from tempfile import TemporaryDirectory
from typing import Final

from holdfast.commit.format.batch import Header, StoresMode
from holdfast.commit.leadership.leader_question import ask_leader
from holdfast.commit.leadership.log_remains import bind_stores, bound_log, require_bound
from holdfast.commit.leadership.takeover_machine import StoresMove
from holdfast.commit.reading.reader import LeadershipWalk, require_frontier
from holdfast.commit.service import CommitService, ServiceOptions
from holdfast.errors import Closed, Code, InvalidRequest
from holdfast.files.durable_directory import make_durable_directory, sync_directory
from holdfast.objects.creating import create_exactly
from holdfast.objects.port import ObjectStore
from holdfast.sealed import encode_sealed
from holdfast.server.logs import configure_logs
from holdfast.server.reloading import peer_tls_of
from holdfast.server.stores.in_log import LocalCopy
from holdfast.settings import Settings, StoresSettings
from holdfast.stores.checkpoint_objects import FORMAT, CheckpointManifest, manifest_key, read_file, upload_files
from holdfast.stores.clock import Anchor, write_anchor
from holdfast.stores.followed import FollowedStores
from holdfast.stores.machine.state import State
from holdfast.stores.repair.backup import copy_stores
from holdfast.stores.storage.index import INDEX_NAME
from holdfast.stores.storage.storage import MANIFEST_NAME, UNFINISHED_NAME, Storage, require_stores
from holdfast.values import slot_text

TRIES: Final = 3
COPIER: Final = "move"
"""Stands for the address of a leader in the name of the copy from which files are made."""


@dataclass(frozen=True, slots=True)
class MovedStores:
    """Where the stores live now. ``version``: that of the log when they were copied. ``set_aside``: the folder of the
    files that were in ``directory`` before, None for none. Not ``changed``: they lived there already."""

    durability: str
    directory: str
    version: int
    stores: int
    messages: int
    set_aside: str | None
    changed: bool = True


async def run_move(store: ObjectStore, settings: Settings, durability: str) -> MovedStores:
    """As ``move_stores``, as a process of its own: log lines go to stderr."""
    configure_logs(settings.logging.format, settings.logging.level)
    return await move_stores(store, settings, durability)


async def move_stores(store: ObjectStore, settings: Settings, durability: str) -> MovedStores:
    """Move the stores of this log, which no service leads; ``settings`` name the directory on the disk.

    Cost: a copy of the files. To a disk also what a leader without files does: the newest checkpoint and the log after
    it. After a crash: see the module; call it again. Raises: NotFound (``log_empty``; there are no stores),
    InvalidRequest, AlreadyOpen, Closed (``leader_alive``), CorruptData, Unavailable, OSError.
    """
    directory = settings.stores.hosted
    if directory is None:
        raise InvalidRequest(
            "the stores have no directory",
            code=Code.BAD_CONFIGURATION,
            hint="set stores.directory to a directory on a local disk, and stores.enabled to true",
            key="stores.directory",
        )
    head, claim = await require_frontier(store)
    mover = _Mover(store, settings, directory, head)
    into_log = durability == StoresMode.LOG.durability
    if head.stores_mode.durability == durability:
        # A crash may have kept an earlier call from its last step.
        set_aside, finished = None, False
        if not into_log:
            finished = await mover.finish(claim)
        elif bound_log(directory) == mover.log_id:
            set_aside = await asyncio.to_thread(mover.set_files_aside)
        return MovedStores(durability, directory, head.last_version, 0, 0, set_aside, changed=finished)
    return await (mover.into_log() if into_log else mover.to_disk(claim))


class _Mover:
    """One move of the stores of a log whose newest object is ``head``."""

    def __init__(self, store: ObjectStore, settings: Settings, directory: str, head: Header) -> None:
        self._store = store
        self._settings = settings
        self._directory = directory
        self._head = head
        self.log_id = head.log_id.hex()

    async def into_log(self) -> MovedStores:
        await asyncio.to_thread(require_stores, self._directory)
        require_bound(self._directory, self.log_id)
        # Open to the end: no service can change them meanwhile.
        storage = await asyncio.to_thread(_open, self._directory, self._settings.stores)
        try:
            bind_stores(self._directory, self.log_id)
            for _ in range(TRIES):
                if await self._make_checkpoint(storage):
                    break
                await self._raise_version()
            else:
                raise Closed("other processes move the stores, too", code=Code.LEADER_ALIVE)
            stores, messages = _counts(storage.state)
            await self._claim(StoresMode.LOG)
        finally:
            await asyncio.to_thread(storage.close)
        set_aside = await asyncio.to_thread(self.set_files_aside)
        return MovedStores("log", self._directory, self._head.last_version, stores, messages, set_aside)

    async def to_disk(self, claim: Header) -> MovedStores:
        settings = self._settings.stores
        local = LocalCopy(self._store, settings, self.log_id, COPIER)
        try:
            followed = await local.bring_up_to(claim, self._head)
            with TemporaryDirectory(prefix=".moving-", dir=self._directory) as directory:
                copy = os.path.join(directory, "copy")
                names = await asyncio.to_thread(self._copy, followed, copy, None)
                set_aside = await asyncio.to_thread(self._place, copy, names, followed)
            stores, messages = _counts(followed.state)
        finally:
            await local.close()
        await self.finish(await self._claim(StoresMode.RETURNED))
        await asyncio.to_thread(shutil.rmtree, local.directory, True)
        return MovedStores("disk", self._directory, self._head.last_version, stores, messages, set_aside)

    def _copy(self, storage: Storage, target: str, version: int | None) -> list[str]:
        """Copy the files so that their index says that they are of ``version`` of the log, None: of no log.

        Returns their names. Raises: as ``copy_stores`` and ``Storage.open``.
        """
        storage.write_checkpoint(storage.begin_checkpoint())
        storage.end_checkpoint()
        copied = copy_stores(storage, target)
        os.unlink(os.path.join(target, MANIFEST_NAME))
        again = _open(target, self._settings.stores, in_log=version is None)
        try:
            again.version = version
            again.write_checkpoint(again.begin_checkpoint())
            again.end_checkpoint()
        finally:
            again.close()
        there = set(os.listdir(target))
        assert f"{INDEX_NAME}-wal" not in there, "an index that is closed is one file"
        return [name for name in copied.files if name in there]

    async def _make_checkpoint(self, storage: Storage) -> bool:
        """False if the version has a checkpoint of other files, which an earlier call or another machine made."""
        version = self._head.last_version
        with TemporaryDirectory(prefix=".moving-", dir=self._directory) as directory:
            copy = os.path.join(directory, "copy")
            names = await asyncio.to_thread(self._copy, storage, copy, version)
            files = await upload_files(self._store, copy, names)
        for file in files:  # also those that were there: the claim rests on them
            await read_file(self._store, file)
        manifest = CheckpointManifest(format=FORMAT, log_id=self.log_id, version=version, files=files)
        return await create_exactly(self._store, manifest_key(version), encode_sealed(manifest))

    async def _raise_version(self) -> None:
        """Claim as a service does that starts: checkpoints of the version before do not count for the next move."""
        await self._claim(None)
        self._head, _ = await require_frontier(self._store)
        if self._head.stores_mode is StoresMode.LOG:
            raise Closed("another process has moved the stores into the log", code=Code.LEADER_ALIVE)

    def _place(self, copy: str, names: list[str], storage: Storage) -> str | None:
        """Put the copy into the directory, where nobody opens it before ``finish``."""
        set_aside = self.set_files_aside()
        directory = self._directory
        with open(os.path.join(directory, UNFINISHED_NAME), "x") as file:
            file.write(slot_text(self._head.slot))
            file.flush()
            os.fsync(file.fileno())
        sync_directory(directory)
        for name in names:
            os.rename(os.path.join(copy, name), os.path.join(directory, name))
        # What time passes until the next start is unknown: deadlines go on from the time of the stores.
        write_anchor(directory, Anchor(max(storage.last_ms, storage.state.at_ms), "", (0, 0)))
        bind_stores(directory, self.log_id)
        sync_directory(directory)
        return set_aside

    async def finish(self, claim: Header) -> bool:
        """The stores are on a disk. If it is this directory, let services open it. Returns whether it is."""
        marker = os.path.join(self._directory, UNFINISHED_NAME)
        try:
            with open(marker) as file:  # noqa: ASYNC230 - a few bytes
                wanted = file.read()
        except FileNotFoundError:
            return False
        async for leadership in LeadershipWalk(self._store, claim, claim):
            before = leadership.before
            if before is not None and before.stores_mode is StoresMode.LOG:
                if wanted != slot_text(before.slot):
                    return False  # these files were to be of another move, which did not come to its end
                os.unlink(marker)
                sync_directory(self._directory)
                return True
        return False

    async def _claim(self, mode: StoresMode | None) -> Header:
        """Lead for a moment, and let the stores live in ``mode`` from then on; None: where they are."""
        options = ServiceOptions(
            moves_stores=None if mode is None else StoresMove(mode, self._head),
            sign_interval_ms=self._settings.leader.sign_interval_ms,
            ask_leader=partial(ask_leader, tls=peer_tls_of(self._settings.server)),
        )
        service = await CommitService.lead(self._store, options)
        await service.step_down()
        await service.close()
        return service.claim

    def set_files_aside(self) -> str | None:
        """Move the files of stores that lie in the directory into a folder of it. Returns the folder, None for none.

        Raises: InvalidRequest if they are not the stores of this log; AlreadyOpen; what opening them raises.
        """
        directory = self._directory
        names = [entry.name for entry in os.scandir(directory) if entry.is_file(follow_symlinks=False)]
        if not names:
            return None
        if UNFINISHED_NAME not in names:  # else nobody can open them
            if bound_log(directory) != self.log_id:
                raise InvalidRequest(
                    "the directory has files that are not the stores of this log",
                    hint="set stores.directory to another directory, or move the files away",
                    directory=directory,
                )
            _open(directory, self._settings.stores).close()
        folder = _free_name(os.path.join(directory, f"before-{self._head.last_version}"))
        make_durable_directory(folder)
        for name in names:
            os.rename(os.path.join(directory, name), os.path.join(folder, name))
        sync_directory(folder)
        sync_directory(directory)
        return folder


def _open(directory: str, settings: StoresSettings, *, in_log: bool = False) -> Storage:
    kind = FollowedStores if in_log else Storage
    return kind.open(directory, page_bytes=settings.page_size_bytes, memory_bytes=settings.memory_bytes)


def _counts(state: State) -> tuple[int, int]:
    """How many stores and messages there are."""
    return len(state.stores), sum(store.counts.live for store in state.stores.values())


def _free_name(path: str) -> str:
    number, name = 1, path
    while os.path.lexists(name):
        number += 1
        name = f"{path}-{number}"
    return name
