"""Verify a whole log: its chain, each of its foundations, and that it can produce its state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from holdfast.commit.reading.lineage import Lineage, lineage_of
from holdfast.commit.reading.reader import find_frontier
from holdfast.commit.reading.survey import LogCheck, verify_log
from holdfast.errors import Code, CorruptData, NotFound
from holdfast.foundations.families import CHECKPOINTS, SNAPSHOTS, Family, M
from holdfast.foundations.readings import Reading, Readings
from holdfast.foundations.state import FLAWS_NAMED_MAX, Depth, Foundation, require_state
from holdfast.objects.port import ObjectStore
from holdfast.values import VERSION_MAX

UNLIMITED = 1
"""A rate of one byte per second: a reading of this process stays fresh as long as it runs."""


@dataclass(frozen=True, slots=True)
class StateCheck:
    """``state``: what the state at the end was made of. ``readings``: every foundation; all of them are whole."""

    log: LogCheck
    state: Foundation
    readings: list[Reading]


async def verify_all(
    store: ObjectStore, on_progress: Callable[[int, int | None], None] | None = None, *, through: int | None = None
) -> StateCheck:
    """As ``verify_log``, and read every part of every snapshot and checkpoint of the log.

    Raises: as ``verify_log``; as ``require_state`` when the log cannot produce its state at ``through``, by default at
    its end; CorruptData when it can, and a foundation is damaged.
    """
    check = await verify_log(store, on_progress, through=through)
    frontier = await find_frontier(store)
    if frontier is None:
        raise NotFound("log is empty", code=Code.LOG_EMPTY)
    lineage = await lineage_of(store, frontier[1])
    readings = Readings(UNLIMITED)
    await read_all(SNAPSHOTS, store, lineage, readings)
    await read_all(CHECKPOINTS, store, lineage, readings)
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
    return StateCheck(check, state, readings.all())


async def read_all(family: Family[M], store: ObjectStore, lineage: Lineage, readings: Readings) -> None:
    """Read every member of a family. Those that went meanwhile are not damage. Raises: Unavailable."""
    manifests, unreadable = await family.between(store, lineage, 0, VERSION_MAX)
    for version, flaw in unreadable:
        readings.note_unreadable(family, version, flaw)
    for manifest in manifests:
        if await readings.read(family, store, manifest) is not None and await family.has_gone(store, manifest.version):
            readings.forget(family, manifest.version)
