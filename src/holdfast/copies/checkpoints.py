"""Copy checkpoints of stores that live in the log: every file is verified on the way, and the manifest comes last."""

from __future__ import annotations

from holdfast.commit.reading.lineage import Lineage
from holdfast.errors import Code, CorruptData, InvalidRequest, NotFound
from holdfast.objects.creating import create_exactly
from holdfast.objects.port import ObjectStore
from holdfast.stores.checkpoint_objects import Manifest, list_versions, manifest_key, read_file, read_manifest


async def checkpoints_between(store: ObjectStore, lineage: Lineage, lowest: int, highest: int) -> list[Manifest]:
    """The checkpoints of a log in this range of versions, oldest first; a damaged manifest is passed over.

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


async def copy_new_checkpoints(
    source: ObjectStore, copy: ObjectStore, lineage: Lineage, lowest: int, through: int
) -> int:
    """Copy every checkpoint in the range that the copy does not have, and return how many.

    The copy's chain must have reached ``through``. One that was removed meanwhile, or is damaged, is passed over. After
    a crash: files that no manifest names. Raises: InvalidRequest (another object has its name), Unavailable.
    """
    there = {*await list_versions(copy)}
    copied = 0
    for manifest in await checkpoints_between(source, lineage, lowest, through):
        if manifest.version not in there:
            copied += await _copy(source, copy, manifest)
    return copied


async def _copy(source: ObjectStore, copy: ObjectStore, manifest: Manifest) -> bool:
    key = manifest_key(manifest.version)
    try:
        original = await source.read(key)
        for file in manifest.files:
            await _create(copy, file.key, await read_file(source, file))
    except (NotFound, CorruptData):
        return False
    await _create(copy, key, original)
    return True


async def _create(copy: ObjectStore, key: str, data: bytes) -> None:
    if not await create_exactly(copy, key, data):
        raise InvalidRequest("another object has the place of a copied one", code=Code.LOG_MISMATCH, object=key)
