"""Whether a log can produce its state at a version: the one answer that copies, truncations and reports rely on.

A log can produce its state at version V from
- an unbroken chain of objects up to V, after
- a snapshot at or below V of which every part was read and is right, or the beginning if nothing was truncated, and
- where the stores live in the log, a checkpoint of them at or below V of which the same holds, unless the log still has
  everything that they did.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from holdfast.commit.format.batch import Header, StoresMode
from holdfast.commit.reading.lineage import Lineage, lineage_of
from holdfast.commit.reading.reader import LeadershipWalk, require_frontier
from holdfast.commit.reading.survey import LogCheck, verify_log
from holdfast.errors import Code, CorruptData, HoldfastError, NotFound
from holdfast.foundations.families import CHECKPOINTS, SNAPSHOTS, Family, Flaw, M
from holdfast.foundations.readings import Reading, Readings, require_end
from holdfast.objects.port import ObjectStore
from holdfast.snapshots.manifest import Manifest as Snapshot
from holdfast.stores.checkpoint_objects import CheckpointManifest as Checkpoint
from holdfast.values import VERSION_MAX

FLAWS_NAMED_MAX: Final = 5
HINT: Final = (
    "delete nothing; where a mirror or another copy has it, `holdfast log repair SOURCE DEST --from COPY` makes a log "
    "with it"
)


class Depth(IntEnum):
    """How much of the answer is read. ``LISTED``: names and sizes. ``READ``: every part. ``CHAIN``: also the chain from
    the newest whole foundation to the version."""

    LISTED = 0
    READ = 1
    CHAIN = 2


@dataclass(frozen=True, slots=True)
class Foundation:
    """What the state at ``version`` is made of, before the chain.

    ``snapshot`` is None where the log has its beginning, ``checkpoint`` where the log has all that the stores did.
    ``flaws``: newer foundations that were passed over.
    """

    version: int
    snapshot: Snapshot | None
    checkpoint: Checkpoint | None
    flaws: tuple[Flaw, ...]


async def require_state(
    store: ObjectStore,
    frontier: tuple[Header, Header],
    version: int,
    *,
    depth: Depth,
    truncated_through: int = 0,
    passed_over: Sequence[Flaw] = (),
    readings: Readings | None = None,
    on_progress: Callable[[int, int | None], None] | None = None,
) -> Foundation:
    """Return if the log that ends with ``frontier`` can produce its state at ``version``; otherwise say why not.

    ``truncated_through``: what else was removed, or is to be: more than the log says, in a copy or before a truncation.
    ``readings``: what was read before, and is fresh, is not read again.
    ``passed_over``: what a copier did not copy because it is damaged, to be named in the error.
    A log that lost its end cannot (``readings.require_end``).
    Cost: by ``depth``: a LIST and the manifests; every part of a snapshot and of a checkpoint; the chain after them.
    Raises: NotFound (``log_truncated``; ``oldest`` is the oldest version that can be produced), CorruptData,
    Unavailable.
    """
    head, claim = frontier
    truncated = max(truncated_through, head.truncated_through)
    lineage = await lineage_of(store, claim)
    await require_end(store, frontier)
    stores = await _stores_begin(store, claim, version, truncated)
    foundation = await find_foundation(
        store,
        lineage,
        version,
        truncated,
        stores,
        depth=depth,
        passed_over=passed_over,
        readings=readings,
        highest=head.last_version,
    )
    if depth is Depth.CHAIN:
        begins = 0 if foundation.snapshot is None else foundation.snapshot.version
        if stores is not None:
            begins = min(begins, 0 if foundation.checkpoint is None else foundation.checkpoint.version)
        await verify_log(store, on_progress, truncated_through=truncated, after=begins, through=version)
    return foundation


async def find_foundation(
    store: ObjectStore,
    lineage: Lineage,
    version: int,
    truncated: int,
    stores: int | None,
    *,
    depth: Depth,
    passed_over: Sequence[Flaw] = (),
    readings: Readings | None = None,
    highest: int = VERSION_MAX,
) -> Foundation:
    """As ``require_state``, without the chain. ``stores``: the lowest version of a checkpoint that the log after it
    completes; 0 where none is needed, None where the log has no stores."""
    flaws = [*passed_over]
    look = _Look(store, lineage, depth, readings)
    snapshot = await look.newest(SNAPSHOTS, truncated, version, flaws)
    if truncated and snapshot is None:
        later: Snapshot | Checkpoint | None = await look.oldest(SNAPSHOTS, version + 1, highest)
        raise _nothing_left("the log was truncated, and no whole snapshot is left of", version, truncated, later, flaws)
    checkpoint = None
    if stores is not None:
        checkpoint = await look.newest(CHECKPOINTS, stores, version, flaws)
    if stores and checkpoint is None:
        later = await look.oldest(CHECKPOINTS, version + 1, highest)
        what = "the log alone does not have all that its stores did, and no whole checkpoint of them is left of"
        raise _nothing_left(what, version, stores, later, flaws)
    return Foundation(version, snapshot, checkpoint, tuple(flaws))


@dataclass(frozen=True, slots=True)
class _Look:
    """One look for whole foundations of a log."""

    store: ObjectStore
    lineage: Lineage
    depth: Depth
    readings: Readings | None

    async def newest(self, family: Family[M], lowest: int, highest: int, flaws: list[Flaw]) -> M | None:
        """The newest whole one. Without a truncation the beginning is as good, so nothing has to be read for it."""
        if not lowest and self.depth is not Depth.CHAIN:
            return None
        manifests, unreadable = await family.between(self.store, self.lineage, lowest, highest)
        flaws += [flaw for _, flaw in unreadable]
        for manifest in reversed(manifests):
            flaw = await self._flaw(family, manifest)
            if flaw is None:
                return manifest
            flaws.append(flaw)
        return None

    async def oldest(self, family: Family[M], lowest: int, highest: int) -> M | None:
        manifests, _ = await family.between(self.store, self.lineage, lowest, highest)
        for manifest in manifests:
            if await self._flaw(family, manifest) is None:
                return manifest
        return None

    async def _flaw(self, family: Family[M], manifest: M) -> Flaw | None:
        if self.depth is Depth.LISTED:
            return await family.look_at_parts(self.store, manifest)
        if self.readings is None:
            return await family.read_parts(self.store, manifest)
        return await self.readings.flaw_of(family, self.store, manifest, fresh=True)


def _nothing_left(
    message: str, version: int, truncated: int, later: Snapshot | Checkpoint | None, flaws: list[Flaw]
) -> HoldfastError:
    facts: dict[str, object] = {
        "version": version,
        "oldest": None if later is None else later.version,
        "truncated_through": truncated,
        "damaged": "; ".join(str(flaw) for flaw in flaws[:FLAWS_NAMED_MAX]) or None,
    }
    message = f"{message} version {version} or before"
    if later is None and flaws:
        return CorruptData(message, code=Code.CORRUPT_LOG, hint=HINT, facts=facts)
    hint = HINT if later is None else "take this version, `oldest`, or a later one"
    return NotFound(message, code=Code.LOG_TRUNCATED, hint=hint, facts=facts)


async def _stores_begin(store: ObjectStore, claim: Header, version: int, truncated_through: int) -> int | None:
    """The lowest version of a checkpoint that the log after it completes; 0 where the log alone has all, None where the
    stores are not in the log. Cost: two header reads for each leadership in which the stores were in the log."""
    async for leadership in LeadershipWalk(store, claim, claim):
        if leadership.base > version and leadership.before is not None:
            continue
        if leadership.claim.stores_mode is not StoresMode.LOG:
            return None
        before = leadership.before
        if before is not None and before.stores_mode is not StoresMode.LOG:
            return max(before.last_version, truncated_through)
    return truncated_through


UNLIMITED: Final = 1
"""A rate of one byte per second: a reading of this process stays fresh as long as it runs."""


async def verify_all(
    store: ObjectStore, on_progress: Callable[[int, int | None], None] | None = None, *, through: int | None = None
) -> tuple[LogCheck, Foundation, list[Reading]]:
    """As ``verify_log``, and read every part of every snapshot and checkpoint of the log.

    Returns also what the state at the end was made of, and the reading of every foundation; all of them are whole.
    Raises: as ``verify_log``; as ``require_state`` when the log cannot produce its state at ``through``, by default at
    its end; CorruptData when it can, and a foundation is damaged.
    """
    check = await verify_log(store, on_progress, through=through)
    frontier = await require_frontier(store)
    lineage = await lineage_of(store, frontier[1])
    readings = Readings(UNLIMITED)
    await readings.read_family(SNAPSHOTS, store, lineage)
    await readings.read_family(CHECKPOINTS, store, lineage)
    version = frontier[0].last_version if through is None else through
    state = await require_state(store, frontier, version, depth=Depth.READ, readings=readings)
    damaged = [each for each in readings.all() if each.flaw is not None]
    if damaged:
        raise CorruptData(
            "a snapshot or checkpoint is damaged; the log can produce its state without it",
            code=Code.CORRUPT_LOG,
            hint="delete its manifest; `holdfast log snapshot` makes another snapshot",
            damaged="; ".join(f"{each.name}: {each.flaw}" for each in damaged[:FLAWS_NAMED_MAX]),
            state_from="the beginning" if state.snapshot is None else SNAPSHOTS.name(state.snapshot.version),
        )
    return check, state, readings.all()
