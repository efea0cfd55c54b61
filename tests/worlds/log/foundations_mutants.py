"""Mutants of the rule that a copy that can be led, and a log that was truncated, has its whole state."""
# pyright: reportPrivateUsage=false

from __future__ import annotations

from functools import partial

import msgspec
from tests.worlds.harness import Mutants
from tests.worlds.log.foundations import run_foundations

from holdfast.commit.format.batch import Header
from holdfast.commit.leadership.role import CopyRole
from holdfast.commit.reading.lineage import Lineage
from holdfast.commit.reading.survey import LogCheck, verify_log
from holdfast.copies import mirroring, promoting, repairing, restoring
from holdfast.copies.source import Cut
from holdfast.foundations.families import Family
from holdfast.foundations.state import Foundation
from holdfast.objects.port import ObjectStore
from holdfast.retention.truncator import Truncator

__all__ = ["MUTANTS"]

MUTANTS = Mutants(run_foundations, seeds_max=400, noticed=(Exception,))


_ANY = Foundation(1 << 62, None, None, ())


async def _anything_goes(*_: object, **__: object) -> Foundation:
    return _ANY


async def _only_read(
    copy: ObjectStore, truncated_through: int = 0, *_: object, **__: object
) -> tuple[LogCheck, Foundation]:
    return await verify_log(copy, truncated_through=truncated_through), _ANY


MUTANTS.add(
    "restore_looks_at_manifests_alone",
    "a restore reads its foundation in the copy before anybody may lead it",
    (restoring, "verify_copy", _only_read),
    play=partial(run_foundations, command="restore"),
    first_seed=45,
)
MUTANTS.add(
    "repair_does_not_ask",
    "a repair reads its foundation in the copy before anybody may lead it",
    (repairing, "verify_copy", _only_read),
    play=partial(run_foundations, command="repair"),
    first_seed=45,
)
MUTANTS.add(
    "promotion_does_not_ask",
    "a mirror is promoted when it can produce its state",
    (promoting, "require_state", _anything_goes),
    (mirroring, "require_state", _anything_goes),
    play=partial(run_foundations, command="promote"),
    first_seed=53,
)
MUTANTS.add(
    "mirror_does_not_ask",
    "a mirror that ends well can produce its state",
    (mirroring, "require_state", _anything_goes),
    play=partial(run_foundations, command="mirror"),
    first_seed=22,
)


@MUTANTS.breaks("every part is read before it counts", "read_parts", Family, play=partial(run_foundations, rots=True))
async def parts_are_not_read(self: object, *_: object) -> None:
    """A manifest is as good as its parts."""
    return


@MUTANTS.breaks(
    "a source that ends before the cut was truncated meanwhile", "__init__", Cut,
    play=partial(run_foundations, command="restore"),
)  # fmt: skip
def early_end_is_an_end(self: Cut, version: int, standing: object) -> None:
    """What was copied is all there is."""
    self._version = version
    self.is_reached = True


_role = restoring._role


@MUTANTS.breaks(
    "a run again keeps the cut of meta/role",
    "_role",
    restoring,
    play=partial(run_foundations, command="restore"),
    first_seed=15,
)
async def cut_is_computed_again(
    source: ObjectStore, copy: ObjectStore, frontier: tuple[Header, Header], lineage: Lineage, point: restoring.Point
) -> CopyRole:
    """The end of the source is as good a cut as the first one."""
    role = await _role(source, copy, frontier, lineage, point)
    return msgspec.structs.replace(role, cut_version=frontier[0].last_version)


@MUTANTS.breaks(
    "a truncation relies on a fresh reading",
    "_can_do_without",
    Truncator,
    play=partial(run_foundations, rots=True),
    first_seed=18,
)
async def old_reading_counts(self: Truncator, *_: object) -> bool:
    """It was whole when this leader found it."""
    return True
