"""Copy snapshots unchanged: every part is verified on the way, and the manifest comes last."""

from __future__ import annotations

from hashlib import sha256

from holdfast.commit.reading.lineage import Lineage
from holdfast.errors import Code, CorruptData, InvalidRequest, NotFound
from holdfast.objects.creating import create_exactly
from holdfast.objects.port import ObjectStore
from holdfast.snapshots.manifest import Manifest, manifest_key, part_key
from holdfast.snapshots.reading import list_versions, read_manifest


async def snapshots_between(store: ObjectStore, lineage: Lineage, lowest: int, highest: int) -> list[Manifest]:
    """The snapshots of a log in this range of versions, oldest first; a damaged manifest is passed over.

    Raises: Unavailable.
    """
    found: list[Manifest] = []
    for version in await list_versions(store):
        if not lowest <= version <= highest:
            continue
        try:
            manifest = await read_manifest(store, version)
        except CorruptData:
            continue
        if manifest is not None and lineage.holds(manifest.log_id, manifest.version):
            found.append(manifest)
    return found


async def copy_snapshot(source: ObjectStore, copy: ObjectStore, manifest: Manifest) -> bool:
    """Copy one snapshot. The copy's chain must have reached its version. False: it was removed, or is damaged.

    After a crash: parts that no manifest names, or the whole snapshot. Raises: InvalidRequest (another snapshot has
    its name), Unavailable.
    """
    named = manifest_key(manifest.version)
    try:
        original = await source.read(named)
    except NotFound:
        return False
    for part in manifest.parts:
        key = part_key(manifest.version, part.name)
        try:
            data = await source.read(key)
        except NotFound:
            return False
        if len(data) != part.size or sha256(data).hexdigest() != part.sha256:
            return False
        if not await create_exactly(copy, key, data):
            raise _other(key)
    if not await create_exactly(copy, named, original):
        raise _other(named)
    return True


def _other(key: str) -> InvalidRequest:
    return InvalidRequest("another object has the place of a copied one", code=Code.LOG_MISMATCH, object=key)


async def copy_new_snapshots(
    source: ObjectStore, copy: ObjectStore, lineage: Lineage, lowest: int, through: int
) -> int:
    """Copy every snapshot in the range that the copy does not have. Returns how many. Raises: as ``copy_snapshot``."""
    there = {*await list_versions(copy)}
    copied = 0
    for manifest in await snapshots_between(source, lineage, lowest, through):
        if manifest.version not in there:
            copied += await copy_snapshot(source, copy, manifest)
    return copied
