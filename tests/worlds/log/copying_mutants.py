"""Mutants of mirrors and promotions: each has one rule taken out."""
# pyright: reportPrivateUsage=false

from __future__ import annotations

from functools import partial

from tests.worlds.harness import Mutants
from tests.worlds.log.copying import run_copies

from holdfast.commit.format.batch import Header
from holdfast.commit.format.chain import ChainWalker
from holdfast.commit.leadership import role
from holdfast.commit.leadership.role import Copied, CopyRole, RoleRecords, encode_record
from holdfast.commit.reading import reader
from holdfast.commit.reading.lineage import Lineage
from holdfast.copies import chain, mirroring, source
from holdfast.copies.chain import CopyWindow
from holdfast.copies.manifests import CopiedFoundations
from holdfast.copies.mirroring import Mirror
from holdfast.errors import NotFound
from holdfast.objects.port import Created, ObjectStore, Refused
from holdfast.values import Slot

__all__ = ["MUTANTS"]

MUTANTS = Mutants(run_copies, seeds_max=200, noticed=(Exception,))
TRUNCATED = partial(run_copies, retention=True)


@MUTANTS.breaks("R1: a mirror has at most W slots in flight", "may_send", CopyWindow)
def no_window(self: CopyWindow, header: Header) -> bool:
    """Objects are sent as fast as they are read; claims still go alone."""
    oldest = next(iter(self._in_flight.values()), None)
    return oldest is None or not (header.kind == 1 or oldest[0].kind == 1)


@MUTANTS.breaks("R2: nothing is sent after a claim before all of it has landed", "may_send", CopyWindow, first_seed=2)
def claims_are_objects_like_others(self: CopyWindow, header: Header) -> bool:
    """A claim is sent with what is around it."""
    oldest = next(iter(self._in_flight.values()), None)
    return oldest is None or oldest[0].slot - header.slot < 8


@MUTANTS.breaks("a prefix says what it is: nobody leads a mirror", "copied", RoleRecords)
def role_is_not_read(self: RoleRecords) -> Copied | None:
    """Whoever finds a silent log leads it."""
    return None


@MUTANTS.breaks("a copy that may diverge has a new log id", "copied", RoleRecords, first_seed=2)
def promoted_log_keeps_the_id(self: RoleRecords) -> Copied | None:
    """The claim after a promotion is one like any other."""
    found, promoted = self.decoded()
    if found is not None and promoted is None:
        raise NotFound("not promoted")
    return None


@MUTANTS.breaks("the role is created before the first object", "begin_copy", mirroring)
async def role_comes_last(copy: ObjectStore, wanted: CopyRole) -> CopyRole:
    """The first object says what it is."""
    rows = await copy.list("batches/", limit=1)
    if rows:
        await copy.create(role.ROLE_KEY, encode_record(wanted))
    return wanted


@MUTANTS.breaks("a refused create of other bytes is not the copier's own", "create_exactly", chain)
async def refused_is_own(store: ObjectStore, key: str, data: bytes) -> bool:
    """What stands there counts as the copy of what should."""
    while True:
        match await store.create(key, data):
            case Created() | Refused():
                return True
            case _:
                continue


_copy_foundations = mirroring.copy_foundations


@MUTANTS.breaks(
    "a manifest comes after the chain has reached its version", "copy_foundations", mirroring, first_seed=75
)
async def manifest_comes_early(
    origin: ObjectStore, copy: ObjectStore, lineage: Lineage, lowest: int, through: int
) -> CopiedFoundations:
    """Every snapshot of the source is copied at once."""
    return await _copy_foundations(origin, copy, lineage, lowest, through + 10**6)


async def _nothing_is_required(self: Mirror, *_: object) -> None:
    self._whole_through = 1 << 62


async def _nothing_is_copied(*_: object) -> CopiedFoundations:
    return CopiedFoundations()


_passed = mirroring._Passed.__init__


@MUTANTS.breaks(
    "a mirror has a snapshot before an object that truncates", "__init__", mirroring._Passed, play=TRUNCATED
)
def truncation_is_an_object_like_others(self: mirroring._Passed, allowed: int) -> None:
    """The mirror goes on to the end of the source at once."""
    _passed(self, 1 << 62)


class _EverySnapshotCounts:
    def __init__(self, *_: object, **__: object) -> None:
        pass

    async def oldest(self, _: object) -> int:
        return 1 << 60


MUTANTS.add(
    "truncates_without_a_snapshot",
    "a mirror truncates only what its own snapshot has",
    (Mirror, "_require_state", _nothing_is_required),
    (mirroring, "copy_foundations", _nothing_is_copied),
    (mirroring, "KeptSnapshots", _EverySnapshotCounts),
    play=TRUNCATED,
    first_seed=80,
)


@MUTANTS.breaks(
    "all claims are copied, also those below the truncation", "claims_after", source, play=TRUNCATED, first_seed=12
)
async def old_claims_are_left_out(origin: ObjectStore, slot: Slot) -> list[Slot]:
    """A copy begins where the log does now."""
    return []


@MUTANTS.breaks("what is durable at the source may be missing in its copy", "copying_from", RoleRecords)
def gap_of_a_mirror_is_damage(self: RoleRecords, log_id: object) -> None:
    """Row 7 holds for a mirror as for any log."""
    return


_find_frontier = reader.find_frontier


@MUTANTS.breaks("a mirror stands where its chain ends", "standing_of", mirroring)
async def stands_at_the_newest_key(
    origin: ObjectStore, copy: ObjectStore, *, truncated_through: int
) -> ChainWalker | None:
    """The newest object of the copy counts as its end, whatever is missing before it."""
    rows = await copy.list("batches/", limit=1)
    if not rows:
        return None
    slot = int(rows[0].key[-20:])
    header = await reader.find_header(origin, slot)
    claim = None if header is None else await reader.find_header(origin, header.claim)
    return None if header is None or claim is None else ChainWalker(header, claim)
