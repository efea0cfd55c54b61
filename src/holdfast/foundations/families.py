"""Snapshots of a log's keys and checkpoints of its stores: two families of manifests that name their parts.

A member of a family is *whole* when each of its parts was read and has the bytes that the manifest names.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from hashlib import sha256
from typing import Final, Generic, TypeVar

from holdfast.commit.reading.lineage import Lineage
from holdfast.errors import CorruptData, NotFound
from holdfast.objects.port import ObjectReader, ObjectStore, Pages
from holdfast.sealed import encode_sealed
from holdfast.snapshots import manifest as snapshot
from holdfast.snapshots import reading
from holdfast.stores import checkpoint_objects as checkpoint

THREAD_BYTES_MIN: Final = 1 << 20


M = TypeVar("M", bound=snapshot.Manifest | checkpoint.CheckpointManifest)


@dataclass(frozen=True, slots=True)
class Flaw:
    """A foundation that cannot be used: ``name`` says which one, ``key`` which object, ``problem`` why."""

    name: str
    key: str
    problem: str

    def __str__(self) -> str:
        return f"{self.name}: {self.problem} ({self.key})"


@dataclass(frozen=True)
class Family(Generic[M]):
    """One sort of foundations. ``parts_of``: the key, the bytes and the SHA-256 of each object that one names."""

    noun: str
    list_versions: Callable[[ObjectStore], Awaitable[list[int]]]
    read_manifest: Callable[[ObjectStore, int], Awaitable[M | None]]
    manifest_key: Callable[[int], str]
    encode: Callable[[M], bytes]
    parts_of: Callable[[M], Iterable[tuple[str, int, str]]]

    def name(self, version: int) -> str:
        """A member for people."""
        return f"{self.noun} {version}"

    async def between(
        self, store: ObjectStore, lineage: Lineage, lowest: int, highest: int
    ) -> tuple[list[M], list[tuple[int, Flaw]]]:
        """Those of a log in this range of versions, oldest first, and the versions whose manifest cannot be read.

        Raises: Unavailable.
        """
        manifests: list[M] = []
        flaws: list[tuple[int, Flaw]] = []
        for version in await self.list_versions(store):
            if not lowest <= version <= highest:
                continue
            try:
                manifest = await self.read_manifest(store, version)
            except CorruptData as error:
                flaws.append((version, Flaw(self.name(version), self.manifest_key(version), error.message)))
                continue
            if manifest is not None and lineage.holds(manifest.log_id, manifest.version):
                manifests.append(manifest)
        return manifests, flaws

    async def has_gone(self, store: ObjectStore, version: int) -> bool:
        """Whether it was removed: a leader removes the manifest before the parts. Raises: Unavailable."""
        try:
            return await self.read_manifest(store, version) is None
        except CorruptData:
            return False

    async def read_parts(
        self, store: ObjectReader, manifest: M, each: Callable[[str, bytes], Awaitable[None]] | None = None
    ) -> Flaw | None:
        """Read every part, and give it to ``each``. Returns the first part that is not what the manifest says.

        Memory: one part. Raises: Unavailable, what ``each`` raises.
        """
        for key, size, digest in self.parts_of(manifest):
            try:
                data = await store.read(key)
            except NotFound:
                return Flaw(self.name(manifest.version), key, "a part is missing")
            if len(data) != size or await _digest(data) != digest:
                return Flaw(self.name(manifest.version), key, "a part has other bytes than its manifest says")
            if each is not None:
                await each(key, data)
        return None

    async def look_at_parts(self, store: ObjectStore, manifest: M) -> Flaw | None:
        """As ``read_parts``, by the listed sizes alone. Cost: a LIST for each 1,000 objects next to the parts."""
        sizes: dict[str, dict[str, int]] = {}
        for key, size, _ in self.parts_of(manifest):
            folder = key[: key.rindex("/") + 1]
            if folder not in sizes:
                sizes[folder] = await _sizes(store, folder)
            if sizes[folder].get(key) != size:
                problem = "a part is missing" if key not in sizes[folder] else "a part has another size"
                return Flaw(self.name(manifest.version), key, problem)
        return None


async def _digest(data: bytes) -> str:
    """On a thread where it takes long: a leader answers meanwhile."""
    if len(data) < THREAD_BYTES_MIN:
        return sha256(data).hexdigest()
    return await asyncio.to_thread(lambda: sha256(data).hexdigest())


async def _sizes(store: ObjectStore, folder: str) -> dict[str, int]:
    return {row.key: row.size async for rows in Pages(store, folder) for row in rows}


SNAPSHOTS: Final = Family(
    "snapshot",
    reading.list_versions,
    reading.read_manifest,
    snapshot.manifest_key,
    snapshot.encode_manifest,
    lambda manifest: (
        (snapshot.part_key(manifest.version, each.name), each.size, each.sha256) for each in manifest.files
    ),
)
CHECKPOINTS: Final = Family(
    "checkpoint of the stores",
    checkpoint.list_versions,
    checkpoint.read_manifest,
    checkpoint.manifest_key,
    encode_sealed,
    lambda manifest: ((each.key, each.size, each.sha256) for each in manifest.files),
)
