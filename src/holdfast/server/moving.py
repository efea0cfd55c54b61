"""Move the message stores of a log from a disk into the log, or back, while no service runs.

| step | into the log | to a disk |
|---|---|---|
| copy | a checkpoint of the files, as objects | the files, into the directory |
| claim | the stores live in the log from now on | the stores live on a disk from now on |
| set aside | the files, which nobody reads any more | |

Until the claim stands, services go on where the stores were, and the copy may be made again. The claim comes right
after the object up to which the stores were copied, or there is none. Nothing is removed: files of stores that lie in
the directory are moved into a folder of it.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from tempfile import TemporaryDirectory
from typing import Final

from holdfast.commit.format.batch import Header, StoresMode
from holdfast.commit.leadership.log_remains import bind_stores, require_bound
from holdfast.commit.leadership.takeover_machine import StoresMove
from holdfast.commit.reading.reader import find_frontier
from holdfast.commit.service import CommitService, ServiceOptions
from holdfast.errors import Code, InvalidRequest, NotFound
from holdfast.objects.creating import create_exactly
from holdfast.objects.port import ObjectStore
from holdfast.private_files import make_private_directory
from holdfast.server.logs import configure_logs
from holdfast.server.run import ask_leader
from holdfast.server.stores.in_log import LocalCopy
from holdfast.settings import Settings, StoresSettings
from holdfast.stores.checkpoint_objects import FORMAT, Manifest, encode_manifest, manifest_key, upload_files
from holdfast.stores.clock import Anchor, write_anchor
from holdfast.stores.machine.state import State
from holdfast.stores.repair.backup import copy_stores
from holdfast.stores.storage.index import INDEX_NAME
from holdfast.stores.storage.storage import MANIFEST_NAME, UNFINISHED_NAME, Storage, require_stores

COPIER: Final = "move"
"""Stands for the address of a leader in the name of the copy from which files are made."""


@dataclass(frozen=True, slots=True)
class Moved:
    """Where the stores live now. ``version``: that of the log when they were copied. ``set_aside``: the folder of the
    files that were in ``directory`` before, None for none. Not ``changed``: they lived there already."""

    durability: str
    directory: str
    version: int
    stores: int
    messages: int
    set_aside: str | None
    changed: bool = True


async def run_move(store: ObjectStore, settings: Settings, durability: str) -> Moved:
    """As ``move_stores``, as a process of its own: log lines go to stderr."""
    configure_logs(settings.logging.format, settings.logging.level)
    return await move_stores(store, settings, durability)


async def move_stores(store: ObjectStore, settings: Settings, durability: str) -> Moved:
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
    frontier = await find_frontier(store)
    if frontier is None:
        raise NotFound("log is empty", code=Code.LOG_EMPTY, url=store.url)
    head, claim = frontier
    mover = _Mover(store, settings, directory, head)
    into_log = durability == StoresMode.LOG.durability
    if head.stores_mode.durability == durability:
        # A crash may have kept an earlier call from this.
        set_aside = await asyncio.to_thread(mover.set_files_aside) if into_log else None
        return Moved(durability, directory, head.last_version, 0, 0, set_aside, changed=False)
    return await (mover.into_log() if into_log else mover.to_disk(claim))


class _Mover:
    """One move of the stores of a log whose newest object is ``head``."""

    def __init__(self, store: ObjectStore, settings: Settings, directory: str, head: Header) -> None:
        self._store = store
        self._settings = settings
        self._directory = directory
        self._head = head
        self._log_id = head.log_id.hex()

    async def into_log(self) -> Moved:
        await asyncio.to_thread(require_stores, self._directory)
        require_bound(self._directory, self._log_id)
        # Open to the end: no service can change them meanwhile.
        storage = await asyncio.to_thread(_open, self._directory, self._settings.stores)
        try:
            with TemporaryDirectory(prefix=".moving-", dir=self._directory) as made:
                copy = os.path.join(made, "copy")
                names = await asyncio.to_thread(self._copy, storage, copy, self._head.last_version)
                files = await upload_files(self._store, copy, names)
            await self._name_checkpoint(
                Manifest(format=FORMAT, log_id=self._log_id, version=self._head.last_version, files=files)
            )
            stores, messages = _counts(storage.state)
            await self._claim(StoresMode.LOG)
        finally:
            await asyncio.to_thread(storage.close)
        set_aside = await asyncio.to_thread(self.set_files_aside)
        return Moved("log", self._directory, self._head.last_version, stores, messages, set_aside)

    async def to_disk(self, claim: Header) -> Moved:
        settings = self._settings.stores
        local = LocalCopy(self._store, settings, self._log_id, COPIER)
        try:
            followed = await local.bring_up_to(claim, self._head)
            with TemporaryDirectory(prefix=".moving-", dir=self._directory) as made:
                copy = os.path.join(made, "copy")
                names = await asyncio.to_thread(self._copy, followed.storage, copy, None)
                set_aside = await asyncio.to_thread(self._place, copy, names, followed.storage)
            stores, messages = _counts(followed.storage.state)
        finally:
            await local.close()
        await self._claim(StoresMode.RETURNED)
        await asyncio.to_thread(shutil.rmtree, local.directory, True)
        return Moved("disk", self._directory, self._head.last_version, stores, messages, set_aside)

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

    async def _name_checkpoint(self, manifest: Manifest) -> None:
        """Create the manifest. What an earlier call made of other files counts for nothing, and is replaced."""
        key, data = manifest_key(manifest.version), encode_manifest(manifest)
        while not await create_exactly(self._store, key, data):
            await self._store.delete(key)

    def _place(self, copy: str, names: list[str], storage: Storage) -> str | None:
        set_aside = self.set_files_aside()
        with _unfinished(self._directory):
            for name in names:
                os.rename(os.path.join(copy, name), os.path.join(self._directory, name))
            # What time passes until the next start is unknown: deadlines go on from the time of the stores.
            write_anchor(self._directory, Anchor(max(storage.last_ms, storage.state.at_ms), "", (0, 0)))
            bind_stores(self._directory, self._log_id)
        return set_aside

    async def _claim(self, mode: StoresMode) -> None:
        tls = self._settings.server.tls_certificate is not None
        options = ServiceOptions(
            moves_stores=StoresMove(mode, self._head),
            silence_ms=self._settings.leader.silence_ms,
            ask_leader=partial(ask_leader, tls=tls, standby=None),
        )
        service = await CommitService.lead(self._store, options)
        await service.step_down()
        await service.close()

    def set_files_aside(self) -> str | None:
        """Move the files of stores that lie in the directory into a folder of it. Returns the folder, None for none."""
        with suppress(FileNotFoundError):
            names = [entry.name for entry in os.scandir(self._directory) if entry.is_file(follow_symlinks=False)]
            if names:
                folder = _free_name(os.path.join(self._directory, f"before-{self._head.last_version}"))
                make_private_directory(folder)
                for name in names:
                    os.rename(os.path.join(self._directory, name), os.path.join(folder, name))
                return folder
        return None


def _open(directory: str, settings: StoresSettings, *, in_log: bool = False) -> Storage:
    return Storage.open(
        directory, page_bytes=settings.page_size_bytes, memory_bytes=settings.memory_bytes, in_log=in_log
    )


def _counts(state: State) -> tuple[int, int]:
    """How many stores and messages there are."""
    return len(state.stores), sum(store.counts.live for store in state.stores.values())


def _free_name(path: str) -> str:
    number, name = 1, path
    while os.path.lexists(name):
        number += 1
        name = f"{path}-{number}"
    return name


@contextmanager
def _unfinished(directory: str) -> Generator[None]:
    """Nobody opens the stores in ``directory`` until the block has ended well."""
    marker = os.path.join(directory, UNFINISHED_NAME)
    with open(marker, "xb") as file:
        os.fsync(file.fileno())
    _sync(directory)
    yield
    _sync(directory)
    os.unlink(marker)
    _sync(directory)


def _sync(directory: str) -> None:
    file = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
