"""Each class of object is damaged, removed and replaced, under each command: the table of what the command then says.

A command may refuse, may report the damage, or may end well with the whole state. It never ends well with less.
``HOLDFAST_DAMAGE_TABLE=FILE`` writes the table.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Final

import pytest
from tests.matrix import matrix
from tests.unit.snapshots.logs import LogWithStores

from holdfast.commit.format.batch import (
    CLAIM_BYTES,
    FIRST_SLOT,
    decode_header,
    object_name,
    slot_of,
)
from holdfast.commit.leadership.role import PROMOTED_KEY, ROLE_KEY
from holdfast.commit.reading.lineage import Lineage
from holdfast.commit.reading.reader import find_frontier
from holdfast.commit.reading.verify import DamageLog, Scrub
from holdfast.commit.service import CommitService, ServiceOptions
from holdfast.copies.mirroring import Mirror, MirrorOptions
from holdfast.copies.promoting import promote
from holdfast.copies.repairing import Repaired, repair
from holdfast.copies.restoring import Point, restore
from holdfast.doctor import Level, check_log
from holdfast.errors import HoldfastError
from holdfast.foundations.readings import PREFIX as READINGS
from holdfast.foundations.readings import Readings
from holdfast.foundations.scrubbing import FoundationScrub
from holdfast.foundations.state import verify_all
from holdfast.objects.memory import MemoryObjects, MemoryStore
from holdfast.retention.cut import slot_through
from holdfast.retention.generations import PREFIX as GENERATIONS
from holdfast.retention.generations import Generations
from holdfast.retention.policies import Content, Policy, set_policy
from holdfast.snapshots import make_snapshot, read_rows
from holdfast.stores import checkpoint_objects as checkpoint
from holdfast.values import LogId
from holdfast.view.storage import Row

COMMANDS: Final = ("restore", "mirror", "promote", "repair", "verify", "doctor", "start")
DAMAGE: Final = ("flipped", "removed", "replaced")
CLASSES: Final = (
    *("first claim", "claim", "batch before the snapshot", "batch after the snapshot", "newest batch"),
    *("manifest of a snapshot", "part of a snapshot", "meta/retention", "meta/readings", "meta/role", "meta/promoted"),
    *("manifest of a checkpoint", "file of a checkpoint"),
)


class StoresLog(LogWithStores):
    """A log with its stores in it, truncated, with one snapshot, one checkpoint and a policy."""

    def __init__(self, seed: int) -> None:
        self.store = MemoryStore(MemoryObjects(), url=f"memory:log-{seed}")
        super().__init__(Random(seed), self.store.objects, LogId(bytes([seed]) * 16))
        self.snapshot = 0

    async def truncate(self) -> None:
        """As a leader does, with a snapshot and a checkpoint at one version, and batches below it that stay."""
        self.snapshot = (await make_snapshot(self.store)).version
        self.make_checkpoint({checkpoint.INDEX_NAME: self.claim.log_id * 15, "page-0": self.claim.log_id * 20})
        headers = [
            decode_header(self.objects.read(row.key), slot=slot_of(row.key))  # type: ignore[arg-type]
            for row in self.objects.list("batches/", limit=10**6)
            if row.size != CLAIM_BYTES
        ]
        through = headers[8].last_version
        self.mark_truncated(through)
        for header in headers:
            if header.last_version <= through:
                self.objects.delete(object_name(header.slot))
        await Generations(self.store, lambda: 1_000).change(
            set_policy("p", Policy(max_age_seconds=1e6), head=10**15), "test"
        )


async def made(seed: int) -> StoresLog:
    log = StoresLog(seed)
    log.grow(30)
    await log.truncate()
    log.grow(6)
    return log


async def scrubbed(store: MemoryStore) -> None:
    """A leader reads all of a log once, and leaves what it found."""
    with suppress(HoldfastError):
        frontier = await find_frontier(store)
        assert frontier is not None
        head, claim = frontier
        damage = DamageLog()
        ended = 0

        async def pause(seconds: float) -> None:
            nonlocal ended
            ended += seconds > 60.0
            if ended > 200:
                raise asyncio.CancelledError

        chain = Scrub(
            store, claim, lambda: head, damage, days=1.0, bytes_per_second=1 << 30, start=lambda: 0.0, pause=pause,
            removed=lambda newest: slot_through(store, claim, newest, newest.truncated_through),
        )  # fmt: skip
        with suppress(asyncio.CancelledError):
            await chain.run()
        seconds = 0.0

        async def tick(_: float) -> None:
            nonlocal seconds
            seconds += 10.0
            if seconds > 100.0:
                raise asyncio.CancelledError

        readings = Readings(boot_ms=lambda: seconds * 1000.0)
        scrub = FoundationScrub(
            store, claim, lambda: head, damage, readings, days=1.0, bytes_per_second=1 << 30,
            seconds=lambda: seconds, pause=tick,
        )  # fmt: skip
        with suppress(asyncio.CancelledError):
            await scrub.run()


def key_of_class(log: StoresLog, store: MemoryStore, name: str) -> str | None:
    """An object of this class in a place; None where the place has none."""
    objects = store.objects
    rows = objects.list("batches/", limit=10**6)
    claims = [row.key for row in rows if row.size == CLAIM_BYTES]
    headers = {
        row.key: decode_header(objects.read(row.key), slot=slot_of(row.key))  # type: ignore[arg-type]
        for row in rows
        if row.size != CLAIM_BYTES
    }
    first = {
        "meta/retention": GENERATIONS, "meta/readings": READINGS, "meta/role": ROLE_KEY, "meta/promoted": PROMOTED_KEY,
        "manifest of a snapshot": "snapshots/", "manifest of a checkpoint": checkpoint.PREFIX,
        "file of a checkpoint": checkpoint.FILES_PREFIX,
    }  # fmt: skip
    match name:
        case "first claim":
            return object_name(FIRST_SLOT)
        case "claim":
            return next(key for key in claims if key != object_name(FIRST_SLOT))
        case "newest batch":
            return rows[0].key
        case "batch before the snapshot":
            before = [key for key, each in headers.items() if each.last_version < log.snapshot and each.transactions]
            return before[0] if before else None
        case "batch after the snapshot":
            after = [key for key, each in headers.items() if each.last_version > log.snapshot and each.transactions]
            return after[len(after) // 2]
        case "part of a snapshot":
            return next((row.key for row in objects.list("snapshots/") if row.key.endswith(".parquet")), None)
        case _:
            found = objects.list(first[name], limit=1)
            return found[0].key if found else None


def damage(store: MemoryStore, key: str, how: str, other: MemoryStore, other_key: str | None) -> None:
    if how == "nothing":
        return
    data = store.objects.read(key)
    store.objects.delete(key)
    match how:
        case "removed":
            return
        case "flipped":
            changed = bytearray(data)
            changed[len(data) // 2] ^= 4
            store.objects.create(key, bytes(changed))
        case _:
            foreign = data[: len(data) // 2] if other_key is None else other.objects.read(other_key)
            store.objects.create(key, foreign)


async def state_of(store: MemoryStore, version: int) -> list[Row]:
    manifest = await make_snapshot(store, at=version)
    return [row async for rows in read_rows(store, manifest) for row in rows]


async def is_whole(log: StoresLog, store: MemoryStore, version: int, *, appended: bool = False) -> bool:
    """Whether a plain reader finds the state of the keys, and a machine without files a checkpoint of the stores."""
    frontier = await find_frontier(store)
    assert frontier is not None
    head = frontier[0]
    if not appended and await state_of(store, version) != log.state(version):
        return False
    for row in store.objects.list(checkpoint.PREFIX, limit=1_000):
        with suppress(HoldfastError):
            at = int(row.key[-25:-5])
            manifest = await checkpoint.read_manifest(store, at)
            if manifest is not None and head.truncated_through <= at <= version:
                for file in manifest.files:
                    await checkpoint.read_file(store, file)
                return True
    return False


@dataclass
class Table:
    """The rows of the table so far."""

    cells: dict[tuple[str, str, str], str] = field(default_factory=dict[tuple[str, str, str], str])

    def text(self) -> str:
        rows = [("object", "damage", *COMMANDS)]
        rows += [
            (name, how, *(self.cells.get((name, how, command), "-") for command in COMMANDS))
            for name in CLASSES
            for how in DAMAGE
        ]
        return "".join("| " + " | ".join(row) + " |\n" for row in rows)


TABLE: Final = Table()


async def run(command: str, log: StoresLog, place: MemoryStore, copy: MemoryStore) -> str:
    """What a command says. ``place``: what was damaged. Returns "whole", or what it reports."""
    match command:
        case "restore":
            version = (await restore(log.store, copy, Point())).version
            return "whole" if await is_whole(log, copy, version) else "DATA MISSING"
        case "mirror":
            mirrored = await Mirror(log.store, copy, MirrorOptions()).run()
            return "whole" if await is_whole(log, copy, mirrored.version) else "DATA MISSING"
        case "promote":
            promoted = await promote(place)
            if promoted.after_gap:
                return "names it" if await is_whole(log, place, promoted.version) else "DATA MISSING"
            return "whole" if await is_whole(log, place, promoted.version) else "DATA MISSING"
        case "repair":
            repaired: Repaired = await repair(log.store, copy)
            if repaired.damage:
                lost = "whole" if await is_whole(log, copy, repaired.version, appended=True) else "DATA MISSING"
                return "names it" if lost == "whole" else lost
            return "whole" if await is_whole(log, copy, repaired.version) else "DATA MISSING"
        case "verify":
            await verify_all(place)
            return "whole" if await is_whole(log, place, log.head.last_version) else "DATA MISSING"
        case "doctor":
            await scrubbed(place)
            findings = [each async for each in check_log(place) if each.level is Level.ERROR]
            if findings:
                return "names it"
            return "whole" if await is_whole(log, place, log.head.last_version) else "DATA MISSING"
        case _:
            return await started(log, place)


async def started(log: StoresLog, place: MemoryStore) -> str:
    await scrubbed(place)
    options = ServiceOptions(address="", allow_new=False, take_over=True, probe=False)
    service = await CommitService.lead(place, options)
    try:
        scrub = FoundationScrub(
            place,
            service.claim,
            service.durable_header,
            service.damage,
            Readings(),
            days=None,
            bytes_per_second=1 << 30,
        )
        await scrub.look()
        if scrub.report().problem is not None:
            return "names it"
        whole = await is_whole(log, place, log.head.last_version)
        return "whole" if whole else "DATA MISSING"
    finally:
        await service.step_down()
        await service.close()


async def cell(command: str, name: str, how: str) -> str:
    """One cell. A copy is the place of ``meta/role`` and ``meta/promoted``, and of every object under a promotion."""
    log, other = await made(3), await made(8)
    await scrubbed(log.store)
    await scrubbed(other.store)
    copy, place = MemoryStore(MemoryObjects(), url="memory:copy"), log.store
    of_copy = name in ("meta/role", "meta/promoted")
    if command == "promote" or (of_copy and command != "restore"):
        await Mirror(log.store, copy, MirrorOptions()).run()
        place = copy
    elif of_copy:
        await restore(log.store, copy, Point())
        if name == "meta/role":  # as a copier leaves it that was killed before the last step
            copy.objects.delete(PROMOTED_KEY)
            frontier = await find_frontier(copy)
            assert frontier is not None
            copy.objects.delete(object_name(frontier[0].slot))
        place = copy
    if name == "meta/promoted" and command != "restore":
        await promote(copy)
    key = key_of_class(log, place, name)
    if key is None:
        return "-"
    foreign = MemoryStore(MemoryObjects(), url="memory:other")
    if of_copy:
        await Mirror(other.store, foreign, MirrorOptions()).run()
        await promote(foreign)
    else:
        foreign = other.store
    damage(place, key, how, foreign, key_of_class(other, foreign, name))
    if place is copy and not of_copy:
        copy = MemoryStore(MemoryObjects(), url="memory:copy-2")
    try:
        return await run(command, log, place, copy)
    except HoldfastError as error:
        return f"{error.code}"


def test_a_copy_holds_the_checkpoint_that_it_needs_and_the_leader_keeps_it() -> None:
    async def main() -> None:
        log = await made(3)
        seen: set[int] = set()

        class Watched(MemoryStore):
            async def read(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
                holds = Content.of(await Generations(log.store, lambda: 0).newest()).holds
                seen.update(hold.checkpoint for hold in holds.values() if hold.checkpoint is not None)
                return await super().read(key, start=start, length=length)

        await restore(Watched(log.objects), MemoryStore(MemoryObjects(), url="memory:copy"), Point())
        assert seen == {log.snapshot}, "its checkpoint has the version of its snapshot"
        for number in range(3):
            log.grow(1)
            log.make_checkpoint({checkpoint.INDEX_NAME: b"%d" % number})
        kept = checkpoint.KeptCheckpoints(log.store, Lineage(log.log_id), keep=2, stray_ms=1e9)
        assert await kept.oldest(0.0, (log.snapshot,)) == log.snapshot
        assert len(await checkpoint.list_versions(log.store)) == 3
        assert await kept.oldest(0.0) != log.snapshot

    asyncio.run(main())


@pytest.mark.parametrize("command", COMMANDS)
def test_without_damage_each_command_ends_with_all_of_it(command: str) -> None:
    assert asyncio.run(cell(command, "newest batch", "nothing")) == "whole"


@pytest.mark.parametrize("name", matrix(CLASSES, lambda name: name == "part of a snapshot"))
def test_no_command_ends_well_with_data_missing(name: str) -> None:
    for how in DAMAGE:
        for command in COMMANDS:
            found = asyncio.run(cell(command, name, how))
            TABLE.cells[name, how, command] = found
            print(f"{name:<28}{how:<10}{command:<10}{found}")
            assert "DATA MISSING" not in found, f"{command} with {name} {how}"
    path = os.environ.get("HOLDFAST_DAMAGE_TABLE")
    if path:
        with open(path, "w", encoding="utf-8") as file:
            file.write(TABLE.text())
