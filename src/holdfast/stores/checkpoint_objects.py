"""Checkpoints of stores that live in the log, as objects: what a machine without files begins with, and what lets
retention remove the log before it.

| object | content |
|---|---|
| ``stores/files/{sha256}`` | one file of a copy, under the hash of its content: what did not change is there already |
| ``stores/checkpoints/{version:020d}.json`` | ``CheckpointManifest`` as JSON, created last; the first one counts |

Every cache holds durable entries only, so a checkpoint of every leader is right, also of a deposed one. It has
the stores after the entry ``version``, and nothing later. Only a leader removes checkpoints: those older than the
newest ``keep`` that it has read in full, and files that no manifest has named for a day.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Collection, Iterable
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import msgspec

from holdfast.commit.reading.lineage import Lineage
from holdfast.errors import CorruptData, InternalError, NotFound
from holdfast.files.durable_directory import make_durable_directory, sync_directory, sync_tree
from holdfast.files.private_files import private
from holdfast.objects.creating import create_exactly
from holdfast.objects.port import ObjectStore, Pages, read_if_there
from holdfast.sealed import decode_sealed, encode_sealed
from holdfast.stores.service import StoreService
from holdfast.stores.storage.index import INDEX_NAME

PREFIX: Final = "stores/checkpoints/"
FILES_PREFIX: Final = "stores/files/"
FORMAT: Final = 1
KEEP_MIN: Final = 2
UNFINISHED: Final = ".unfinished"
_MANIFEST: Final = re.compile(rf"{PREFIX}(\d{{20}})\.json")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class File(msgspec.Struct, frozen=True):
    """One file: its name in the cache, its bytes, and the SHA-256 of its content in hex."""

    name: str
    size: int
    sha256: str

    @property
    def key(self) -> str:
        """The object that has it."""
        return FILES_PREFIX + self.sha256


class CheckpointManifest(msgspec.Struct, frozen=True, kw_only=True):
    """The stores of the log ``log_id`` after the entry ``version``."""

    format: int
    log_id: str
    version: int
    files: list[File]

    @property
    def size(self) -> int:
        """The bytes of all files."""
        return sum(file.size for file in self.files)


def manifest_key(version: int) -> str:
    """The name of a manifest.

    >>> manifest_key(7)
    'stores/checkpoints/00000000000000000007.json'
    """
    return f"{PREFIX}{version:020d}.json"


def decode_manifest(data: bytes, version: int) -> CheckpointManifest:
    """The manifest of the checkpoint at ``version``. Raises: CorruptData."""
    try:
        manifest = decode_sealed(data, CheckpointManifest)
    except msgspec.DecodeError as error:
        raise CorruptData("the manifest of a checkpoint is not JSON of this form", version=version) from error
    names = [file.name for file in manifest.files]
    if manifest.format != FORMAT or manifest.version != version or INDEX_NAME not in names:
        raise CorruptData(
            "the manifest of a checkpoint is not one of this version", version=version, format=manifest.format
        )
    if len(set(names)) < len(names) or not all(_NAME.fullmatch(name) for name in names):
        raise CorruptData("the manifest of a checkpoint names a file that no cache has", version=version)
    return manifest


async def list_versions(store: ObjectStore) -> list[int]:
    """The versions of all checkpoints, oldest first. Raises: Unavailable."""
    rows = await _list_all(store, PREFIX)
    return [int(match[1]) for key in rows if (match := _MANIFEST.fullmatch(key)) is not None]


async def _list_all(store: ObjectStore, prefix: str) -> list[str]:
    return [row.key async for rows in Pages(store, prefix) for row in rows]


async def read_manifest(store: ObjectStore, version: int) -> CheckpointManifest | None:
    """The manifest of a checkpoint, None where there is none. Raises: CorruptData, Unavailable."""
    data = await read_if_there(store, manifest_key(version))
    return None if data is None else decode_manifest(data, version)


async def make_checkpoint(service: StoreService, store: ObjectStore, log_id: str) -> CheckpointManifest:
    """Make a checkpoint of what the stores are now. After a crash: files that no manifest names.

    Cost: a copy of the cache on the local disk, in a temporary directory next to it; one object for each file whose
    content is new. Raises: Unavailable; what ``StoreService.copy_files`` raises.
    """
    parent = os.path.dirname(service.directory)
    with TemporaryDirectory(prefix=".checkpoint-", dir=parent) as directory:
        copy = os.path.join(directory, "copy")
        copying = asyncio.ensure_future(service.copy_files(copy))
        try:
            copied, version = await asyncio.shield(copying)
        finally:
            await asyncio.wait({copying})  # its thread cannot be stopped, and the directory is removed after it
        files = await upload_files(store, copy, copied.files)
    assert version is not None, "these stores live in the log"
    manifest = CheckpointManifest(format=FORMAT, log_id=log_id, version=version, files=files)
    # Another maker of the same version is as good: its manifest stays.
    await create_exactly(store, manifest_key(version), encode_sealed(manifest))
    return manifest


async def upload_files(store: ObjectStore, directory: str, names: Iterable[str]) -> list[File]:
    """Create an object for each file in ``directory`` whose content is new. Raises: Unavailable, OSError."""
    known = {key.removeprefix(FILES_PREFIX) for key in await _list_all(store, FILES_PREFIX)}
    files: list[File] = []
    for name in names:
        data = await asyncio.to_thread(Path(directory, name).read_bytes)
        file = File(name, len(data), await asyncio.to_thread(_hash, data))
        if file.sha256 not in known and not await create_exactly(store, file.key, data):
            raise InternalError("two contents have one SHA-256", key=file.key)
        known.add(file.sha256)
        files.append(file)
    return files


def _hash(data: bytes) -> str:
    return sha256(data).hexdigest()


async def fetch_newest(store: ObjectStore, lineage: Lineage, through: int, directory: str) -> CheckpointManifest | None:
    """Make ``directory``, which is not there, of the newest whole checkpoint at or below version ``through``.

    None where there is none: the stores are made from the beginning of the log. One that is damaged, or of a state that
    the log never had, is passed over. After a crash, and after Unavailable: a directory next to it, of which the next
    call keeps the files that are whole.
    Raises: Unavailable, OSError.
    """
    for version in reversed(await list_versions(store)):
        if version > through:
            continue
        try:
            manifest = await read_manifest(store, version)
            if manifest is None or not lineage.holds(manifest.log_id, manifest.version):
                continue
            await _fetch(store, manifest, directory)
        except (CorruptData, NotFound):
            continue
        return manifest
    return None


async def _fetch(store: ObjectStore, manifest: CheckpointManifest, directory: str) -> None:
    unfinished = directory + UNFINISHED
    there = await asyncio.to_thread(_keep_whole, unfinished, manifest.files)
    for file in manifest.files:
        if file.name not in there:
            data = await read_file(store, file)
            await asyncio.to_thread(_write, os.path.join(unfinished, file.name), data)
    await asyncio.to_thread(_place, unfinished, directory)


def _place(unfinished: str, directory: str) -> None:
    """Give the files their directory once all are durable: a file that a power cut tears is noticed late, or never."""
    sync_tree(unfinished)
    os.rename(unfinished, directory)
    sync_directory(os.path.dirname(directory))


def _keep_whole(unfinished: str, files: Iterable[File]) -> set[str]:
    """Make the directory, or keep what an interrupted call has fetched of these files. Returns their names."""
    make_durable_directory(unfinished)
    wanted = {file.name: file for file in files}
    for name in os.listdir(unfinished):
        path = os.path.join(unfinished, name)
        file = wanted.get(name)
        if file is None or os.path.getsize(path) != file.size or _hash(Path(path).read_bytes()) != file.sha256:
            os.unlink(path)
    return set(os.listdir(unfinished))


async def read_file(store: ObjectStore, file: File) -> bytes:
    """The content of one file. Raises: CorruptData, NotFound, Unavailable."""
    data = await store.read(file.key)
    if len(data) != file.size or await asyncio.to_thread(_hash, data) != file.sha256:
        raise CorruptData("a file of a checkpoint is damaged", key=file.key, bytes=len(data), expected=file.size)
    return data


def _write(path: str, data: bytes) -> None:
    with open(path, "xb", opener=private) as file:
        file.write(data)


class KeptCheckpoints:
    """The checkpoints of one log that stay: the newest ``keep``. Only the leader of the log has one."""

    def __init__(self, store: ObjectStore, lineage: Lineage, *, keep: int, stray_ms: float) -> None:
        """``stray_ms``: how long a file may be without a manifest, as this process has seen it."""
        assert keep >= KEEP_MIN, "one checkpoint alone may be damaged"
        self._store = store
        self._lineage = lineage
        self._keep = keep
        self._stray_ms = stray_ms
        self._verified: dict[int, CheckpointManifest] = {}
        self._damaged: set[int] = set()
        self._files: set[str] = set()
        """Hashes of files that were read and are right."""
        self._stray_since_ms: dict[str, float] = {}

    async def oldest(self, now_ms: float, held: Collection[int] = ()) -> int | None:
        """Remove what may go; the version of the oldest checkpoint that stays, None without a verified one.

        ``held``: versions that a hold names.

        Cost: two LISTs, and each file is read once in the life of this object. Raises: Unavailable.
        """
        versions = await list_versions(self._store)
        for version in versions:
            await self._verify(version)
        self._verified = {version: self._verified[version] for version in versions if version in self._verified}
        for version in [each for each in sorted(self._verified)[: -self._keep] if each not in held]:
            await self._store.delete(manifest_key(version))
            del self._verified[version]
        await self._sweep(now_ms)
        return min(self._verified, default=None)

    async def _verify(self, version: int) -> None:
        if version in self._verified or version in self._damaged:
            return
        try:
            manifest = await read_manifest(self._store, version)
            if manifest is None or not self._lineage.holds(manifest.log_id, manifest.version):
                return
            for file in manifest.files:
                if file.sha256 not in self._files:
                    await read_file(self._store, file)
                    self._files.add(file.sha256)
        except (CorruptData, NotFound):
            self._damaged.add(version)
        else:
            self._verified[version] = manifest

    async def _sweep(self, now_ms: float) -> None:
        """Remove files that no manifest has named for ``stray_ms``."""
        listed = await _list_all(self._store, FILES_PREFIX)
        names: set[str] = set()
        # The manifests are listed after the files: one that was created since names files that were listed.
        for version in await list_versions(self._store):
            try:
                manifest = self._verified.get(version) or await read_manifest(self._store, version)
            except CorruptData:
                return  # its files may be what a repair needs
            if manifest is not None:
                names |= {file.key for file in manifest.files}
        strays = [key for key in listed if key not in names]
        self._stray_since_ms = {key: self._stray_since_ms.get(key, now_ms) for key in strays}
        old = [key for key, since_ms in self._stray_since_ms.items() if now_ms - since_ms >= self._stray_ms]
        if old:
            await self._store.delete(*old)
            self._files -= {key.removeprefix(FILES_PREFIX) for key in old}
