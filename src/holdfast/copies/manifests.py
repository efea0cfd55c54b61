"""Copy foundations unchanged: snapshots of a log's keys, and checkpoints of stores that live in it.

Every part is verified on the way, and the manifest comes last.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from holdfast.commit.reading.lineage import Lineage
from holdfast.copies.holding import NOTHING, Needed
from holdfast.errors import Code, CorruptData, InvalidRequest
from holdfast.foundations.families import CHECKPOINTS, SNAPSHOTS, Family, Flaw, M
from holdfast.objects.creating import create_exactly
from holdfast.objects.port import ObjectStore


@dataclass(slots=True)
class CopiedFoundations:
    """How many snapshots were copied, and which foundations of the source are damaged and were passed over."""

    snapshots: int = 0
    flaws: list[Flaw] = field(default_factory=list[Flaw])


async def copy_foundations(
    source: ObjectStore, copy: ObjectStore, lineage: Lineage, lowest: int, through: int
) -> CopiedFoundations:
    """Copy every whole snapshot and checkpoint in the range that the copy lacks.

    The copy's chain must have reached ``through``. One that was removed meanwhile, or is damaged, is passed over:
    ``require_state`` says whether the copy has what it needs.
    After a crash: objects that no manifest names. Raises: InvalidRequest (another object has its name), Unavailable.
    """
    copied = CopiedFoundations()
    copied.snapshots = await _copy_new(SNAPSHOTS, source, copy, lineage, lowest, through, copied.flaws)
    await _copy_new(CHECKPOINTS, source, copy, lineage, lowest, through, copied.flaws)
    return copied


async def newest_needed(source: ObjectStore, lineage: Lineage, truncated_through: int, cut: int) -> Needed:
    """The foundations that a copy of a truncated log will need, to be held; none for a copy from the beginning on.

    Raises: Unavailable.
    """
    if not truncated_through:
        return NOTHING
    snapshots, _ = await SNAPSHOTS.between(source, lineage, truncated_through, cut)
    checkpoints, _ = await CHECKPOINTS.between(source, lineage, truncated_through, cut)
    return Needed(snapshots[-1].version if snapshots else None, checkpoints[-1].version if checkpoints else None)


async def _copy_new(
    family: Family[M],
    source: ObjectStore,
    copy: ObjectStore,
    lineage: Lineage,
    lowest: int,
    through: int,
    flaws: list[Flaw],
) -> int:
    there = {*await family.list_versions(copy)}
    copied = 0
    manifests, unreadable = await family.between(source, lineage, lowest, through)
    flaws += [flaw for _, flaw in unreadable]
    for manifest in manifests:
        if manifest.version not in there:
            copied += await _copy(family, source, copy, manifest, flaws)
    return copied


async def _copy(family: Family[M], source: ObjectStore, copy: ObjectStore, manifest: M, flaws: list[Flaw]) -> bool:
    manifest_key = family.manifest_key(manifest.version)

    async def create(key: str, data: bytes) -> None:
        if not await create_exactly(copy, key, data):
            raise InvalidRequest("another object has the place of a copied one", code=Code.LOG_MISMATCH, object=key)

    flaw = await family.read_parts(source, manifest, create)
    try:
        # Read again: the source removes the manifest first, so where it has gone, missing parts are not damage.
        if await family.read_manifest(source, manifest.version) is None:
            return False
    except CorruptData as error:
        flaw = Flaw(family.name(manifest.version), manifest_key, error.message)
    if flaw is not None:
        flaws.append(flaw)
        return False
    await create(manifest_key, family.encode(manifest))
    return True
