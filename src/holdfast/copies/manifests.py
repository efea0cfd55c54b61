"""Copy what a manifest of a log names, unchanged: snapshots of its keys, and checkpoints of stores that live in it.

Every object is verified on the way, and the manifest comes last.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass
from hashlib import sha256
from typing import Final, Generic, Protocol, TypeVar

from holdfast.commit.format.batch import Header, StoresMode
from holdfast.commit.reading.lineage import Lineage
from holdfast.commit.reading.reader import leaderships_back
from holdfast.errors import Code, CorruptData, InvalidRequest, NotFound
from holdfast.objects.creating import create_exactly
from holdfast.objects.port import ObjectStore
from holdfast.snapshots import manifest as snapshot
from holdfast.snapshots import reading
from holdfast.stores import checkpoint_objects as checkpoint
from holdfast.values import VERSION_MAX


class OfALog(Protocol):
    """A manifest says of which log and version it is."""

    @property
    def log_id(self) -> str:
        """The log, in hex."""
        ...

    @property
    def version(self) -> int:
        """The version."""
        ...


M = TypeVar("M", bound=OfALog)


@dataclass(frozen=True)
class Family(Generic[M]):
    """One sort of manifests. ``parts_of``: the key, the bytes and the SHA-256 of each object that one names."""

    list_versions: Callable[[ObjectStore], Awaitable[list[int]]]
    read_manifest: Callable[[ObjectStore, int], Awaitable[M | None]]
    manifest_key: Callable[[int], str]
    parts_of: Callable[[M], Iterable[tuple[str, int, str]]]

    async def between(self, store: ObjectStore, lineage: Lineage, lowest: int, highest: int) -> list[M]:
        """Those of a log in this range of versions, oldest first; a damaged manifest is passed over.

        Raises: Unavailable.
        """
        found: list[M] = []
        for version in await self.list_versions(store):
            if not lowest <= version <= highest:
                continue
            try:
                manifest = await self.read_manifest(store, version)
            except CorruptData:
                continue
            if manifest is not None and lineage.holds(manifest.log_id, manifest.version):
                found.append(manifest)
        return found

    async def copy_new(
        self, source: ObjectStore, copy: ObjectStore, lineage: Lineage, lowest: int, through: int
    ) -> int:
        """Copy every one in the range that the copy does not have, and return how many.

        The copy's chain must have reached ``through``. One that was removed meanwhile, or is damaged, is passed over.
        After a crash: objects that no manifest names. Raises: InvalidRequest (another object has its name),
        Unavailable.
        """
        there = {*await self.list_versions(copy)}
        copied = 0
        for manifest in await self.between(source, lineage, lowest, through):
            if manifest.version not in there:
                copied += await self._copy(source, copy, manifest)
        return copied

    async def _copy(self, source: ObjectStore, copy: ObjectStore, manifest: M) -> bool:
        named = self.manifest_key(manifest.version)
        try:
            original = await source.read(named)
            for key, size, digest in self.parts_of(manifest):
                data = await source.read(key)
                if len(data) != size or sha256(data).hexdigest() != digest:
                    return False
                await _create(copy, key, data)
        except NotFound:
            return False
        await _create(copy, named, original)
        return True


async def _create(copy: ObjectStore, key: str, data: bytes) -> None:
    if not await create_exactly(copy, key, data):
        raise InvalidRequest("another object has the place of a copied one", code=Code.LOG_MISMATCH, object=key)


def _parts_of_snapshot(manifest: snapshot.Manifest) -> Iterable[tuple[str, int, str]]:
    return ((snapshot.part_key(manifest.version, part.name), part.size, part.sha256) for part in manifest.parts)


def _parts_of_checkpoint(manifest: checkpoint.Manifest) -> Iterable[tuple[str, int, str]]:
    return ((file.key, file.size, file.sha256) for file in manifest.files)


_SNAPSHOTS: Final = Family(reading.list_versions, reading.read_manifest, snapshot.manifest_key, _parts_of_snapshot)
_CHECKPOINTS: Final = Family(
    checkpoint.list_versions, checkpoint.read_manifest, checkpoint.manifest_key, _parts_of_checkpoint
)


async def require_checkpoint(
    store: ObjectStore, claim: Header, lineage: Lineage, version: int, truncated_through: int
) -> None:
    """Return unless the stores at ``version`` need a checkpoint that is not there. ``claim``: the newest one.

    Cost: two header reads for each leadership in which the stores were in the log. Raises: NotFound
    (``log_truncated``), CorruptData, Unavailable.
    """
    needed = await _stores_begin(store, claim, version, truncated_through)
    if not needed:
        return
    there = await checkpoints_between(store, lineage, needed, VERSION_MAX)
    if any(manifest.version <= version for manifest in there):
        return
    raise NotFound(
        "the stores cannot be made of the log alone, and no checkpoint of them is left at or below this point",
        code=Code.LOG_TRUNCATED,
        hint="take a later version; a mirror may lack its checkpoints yet: let `holdfast log mirror` go on",
        version=version,
        oldest=min((manifest.version for manifest in there), default=None),
    )


async def _stores_begin(store: ObjectStore, claim: Header, version: int, truncated_through: int) -> int:
    """The lowest version of a checkpoint that the log after it completes; 0 where the log alone has all."""
    async with aclosing(leaderships_back(store, claim)) as leaderships:
        async for leadership in leaderships:
            if leadership.base > version and leadership.before is not None:
                continue
            if leadership.claim.stores_mode is not StoresMode.LOG:
                return 0
            before = leadership.before
            if before is not None and before.stores_mode is not StoresMode.LOG:
                return max(before.last_version, truncated_through)
    return truncated_through


snapshots_between, copy_new_snapshots = _SNAPSHOTS.between, _SNAPSHOTS.copy_new
checkpoints_between, copy_new_checkpoints = _CHECKPOINTS.between, _CHECKPOINTS.copy_new
