"""Copy commands that are stopped after every step of their own, while their source's leader runs retention.

The leader of the source commits, makes snapshots and checkpoints, changes, and runs the real ``Truncator`` with limits
so tight that everything goes which nothing needs. It acts between any two requests of a copier. The copier runs one of
the four commands. It is killed before one of its requests, which the seed walks through, and started again, several
times. In some worlds it may write at the source, in some a part of a snapshot rots there.

The judge is a plain reader: where a command ends well, and where a prefix may be led, the state is that of the source.
The leader truncates only what a whole snapshot and a whole checkpoint have.
"""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import Callable, Collection
from contextlib import suppress
from hashlib import sha256
from random import Random
from typing import Any, Final, TypeVar

from tests.unit.snapshots.logs import LogWithStores, RandomLog
from tests.worlds.harness import PromiseBroken, SeededWorld, WorldReport, patched
from tests.worlds.log.shape import protocol_width, silent

from holdfast.commit.format.log_clock import Moment
from holdfast.commit.leadership.role import PROMOTED_KEY
from holdfast.commit.leadership.takeover import read_records
from holdfast.commit.reading.lineage import Lineage
from holdfast.commit.reading.reader import find_frontier
from holdfast.copies import promoting, repairing, restoring
from holdfast.copies.mirroring import Mirror, MirrorOptions
from holdfast.errors import Code, HoldfastError
from holdfast.objects.memory import MemoryObjects, MemoryStore
from holdfast.objects.port import CreateAnswer, Listed, Unknown
from holdfast.retention.generations import Generations
from holdfast.retention.policies import Policy, set_policy
from holdfast.retention.truncator import Truncator, TruncatorOptions
from holdfast.snapshots import make_snapshot, making, read_rows
from holdfast.snapshots.manifest import PREFIX as SNAPSHOTS
from holdfast.snapshots.manifest import part_key
from holdfast.snapshots.reading import list_versions, read_manifest
from holdfast.stores import checkpoint_objects as checkpoint
from holdfast.stores.checkpoint_objects import KeptCheckpoints
from holdfast.values import Instant, LogId

__all__ = ["COMMANDS", "FoundationWorld", "run_foundations"]

T = TypeVar("T")
COMMANDS: Final = ("restore", "mirror", "promote", "repair")
STEPS: Final = 160
"""The first kill walks through as many requests of a command; most runs have fewer."""
ATTEMPTS: Final = 5
SPAN: Final = 4
REFUSALS: Final = (
    *(Code.LOG_TRUNCATED, Code.CORRUPT_LOG, Code.STORE_UNAVAILABLE),
    *(Code.MALFORMED, Code.LOG_EMPTY),  # a mirror that was killed before it said what it is, or had an object
)
LATE_MS: Final = 10**12


class Killed(Exception):
    """The copier ends here: none of its code takes effect any more."""


class Copier:
    """One process: its requests, and the one before which it is killed (0: none)."""

    def __init__(self, world: FoundationWorld, kill_at: int, *, is_watched: bool) -> None:
        self.world = world
        self.kill_at = kill_at
        self.is_watched = is_watched
        self.steps = 0

    async def step(self) -> None:
        """Before each request."""
        self.steps += 1
        if 0 < self.kill_at <= self.steps:
            raise Killed
        if self.is_watched:
            await self.world.meanwhile()


class Reached(MemoryStore):
    """A store as a copier reaches it."""

    def __init__(self, copier: Copier, objects: MemoryObjects, url: str, *, may_write: bool = True) -> None:
        super().__init__(objects, url=url)
        self._copier = copier
        self._may_write = may_write

    async def create(self, key: str, data: bytes) -> CreateAnswer:
        await self._copier.step()
        if not self._may_write:
            return Unknown("access denied", final=True)
        return await super().create(key, data)

    async def read(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
        await self._copier.step()
        return await super().read(key, start=start, length=length)

    async def list(self, prefix: str, *, after: str = "", limit: int = 1000) -> builtins.list[Listed]:
        await self._copier.step()
        return await super().list(prefix, after=after, limit=limit)

    async def delete(self, *keys: str) -> None:
        await self._copier.step()
        await super().delete(*keys)


class Leader:
    """As much of a leader as retention needs. It appends to the log at once."""

    leader_id = "leader"

    def __init__(self, world: FoundationWorld) -> None:
        self._world = world

    @property
    def claim(self) -> Any:
        return self._world.log.claim

    def durable_header(self) -> Any:
        return self._world.log.head

    def local_version(self) -> int:
        return self._world.log.head.last_version

    def moment(self) -> Moment:
        return Moment(LATE_MS, LATE_MS, 0, 0, 0, doubted=False)

    async def version(self) -> int:
        return self.local_version()

    async def truncate(self, through: int) -> None:
        await self._world.judge_truncation(through)
        self._world.log.mark_truncated(through)
        self._world.seen["truncated"] += 1


class FoundationWorld(SeededWorld):
    """One source, one command, and the places that it copies to."""

    def __init__(self, seed: int, *, command: str | None = None, rots: bool | None = None) -> None:
        super().__init__(seed, Random(seed))
        draw = self.random
        self.command = COMMANDS[seed % 4] if command is None else command
        self.in_log = draw.random() < 0.4
        self.may_hold = draw.random() < 0.4
        self.rots = draw.random() < 0.2 if rots is None else rots
        self.rate = draw.choice((0.02, 0.1, 0.3))
        self.objects = MemoryObjects()
        self.store = MemoryStore(self.objects, url="memory:source")
        log_id = LogId(draw.randbytes(16))
        self.log = LogWithStores(draw, self.objects, log_id) if self.in_log else RandomLog(draw, self.objects)
        self.copy = MemoryObjects()
        self._places = 0
        self._acting = False
        self._boot_ms = 0.0
        self._truncator: Truncator | None = None
        self._checkpoints: KeptCheckpoints | None = None

    # -- the leader of the source -------------------------------------------------------------------------------------

    async def meanwhile(self) -> None:
        """Between two requests of a copier."""
        if not self._acting and self.random.random() < self.rate:
            self._acting = True
            try:
                await self.act()
            finally:
                self._acting = False

    async def act(self) -> None:
        """One thing that the leader does."""
        draw = self.random
        self._boot_ms += draw.choice((1.0, 60_000.0))
        match draw.choice(("commits", "commits", "snapshot", "snapshot", "look", "look", "look", "rot")):
            case "commits":
                self.log.grow(draw.randint(1, 6))
            case "snapshot":
                with suppress(HoldfastError):  # its base may have rotted
                    await make_snapshot(self.store)
                if isinstance(self.log, LogWithStores) and draw.random() < 0.7:
                    self.log.make_checkpoint({checkpoint.INDEX_NAME: draw.randbytes(40), "page": draw.randbytes(30)})
            case "rot" if self.rots:
                self._rot()
            case _:
                await self._look()

    async def _look(self) -> None:
        if self._truncator is None or self.random.random() < 0.2:
            self._checkpoints = KeptCheckpoints(self.store, Lineage(self.log.log_id), keep=2, stray_ms=1e6)
            options = TruncatorOptions(
                snapshots_keep=2,
                min_age_seconds=0.0,
                slots_min=1,
                deletes_per_second=1e9,
                stores_from=self._stores_from,
            )
            leader: Any = Leader(self)
            self._truncator = Truncator(leader, self.store, options, lambda: Instant(self._boot_ms, LATE_MS))
        before = {*await list_versions(self.store)}
        try:
            await self._truncator.look()
        except HoldfastError as error:
            self.seen[f"retention_{error.code}"] += 1
        self.seen["snapshot_replaced"] += len(before - {*await list_versions(self.store)})

    async def _stores_from(self, held: Collection[int]) -> int:
        assert self._checkpoints is not None, "it looks with them"
        return await self._checkpoints.oldest(self._boot_ms, held) or 0

    def _rot(self) -> None:
        keys = [row.key for row in self.objects.list(SNAPSHOTS)]
        if keys:
            key = self.random.choice(keys)
            data = bytearray(self.objects.read(key))
            data[len(data) // 2] ^= 1
            self.objects.delete(key)
            self.objects.create(key, bytes(data))
            self.seen["rotted"] += 1

    # -- the judge ----------------------------------------------------------------------------------------------------

    async def judge_truncation(self, through: int) -> None:
        """At the moment at which the leader writes it into the log."""
        if not any([version >= through and await _is_whole(self.store, version) for version in await _versions(self)]):
            raise PromiseBroken(f"a log is truncated only where a whole snapshot has its state: {through}")
        if self.in_log and await _checkpoint_between(self.objects, through, LATE_MS) is None:
            raise PromiseBroken(f"a log is truncated only where a whole checkpoint has its stores: {through}")

    async def judge(self, version: int, what: str) -> None:
        """The state of the copy at a version is that of the source, for a reader that knows nothing."""
        place = _clone(self.copy)
        try:
            manifest = await make_snapshot(place, at=version)
            rows = [row async for part in read_rows(place, manifest) for row in part]
        except HoldfastError as error:
            raise PromiseBroken(f"{what} can produce its state: {version} {error}") from error
        if rows != self.log.state(version):
            raise PromiseBroken(f"{what} has the state of its source: {version}")
        frontier = await find_frontier(place)
        assert frontier is not None
        through = frontier[0].truncated_through
        if self.in_log and through and await _checkpoint_between(self.copy, through, version) is None:
            raise PromiseBroken(f"{what} has a checkpoint of its stores: {version}")
        self.seen["judged_whole"] += 1

    async def judge_place(self) -> None:
        """After a copier ended in any way: whoever finds the place may lead it, if it says so."""
        place = _clone(self.copy)
        if PROMOTED_KEY not in self.copy:
            return
        frontier = await find_frontier(place)
        assert frontier is not None, "it has an object"
        head, claim = frontier
        await self.judge(claim.forked_at if claim.is_fork else head.last_version, "a place that may be led")

    # -- the copier ---------------------------------------------------------------------------------------------------

    async def play(self) -> None:
        """The world from its beginning to its end."""
        draw = self.random
        self.log.grow(draw.randint(8, 20))
        policy = set_policy("p", Policy(max_age_seconds=0.001), head=10**18)
        await Generations(self.store, lambda: 1_000).change(policy, "test")
        for _ in range(draw.randint(0, 12)):
            await self.act()
        if self.command == "promote":
            await self._run(0, is_watched=True, command="mirror")
        kill_at = 1 + (self.seed // 4) % STEPS
        for attempt in range(ATTEMPTS):
            last = attempt == ATTEMPTS - 1
            if await self._run(0 if last else kill_at, is_watched=not last):
                return
            kill_at = draw.choice((0, draw.randint(1, STEPS)))
            if self.command == "repair":
                self._new_place()
            for _ in range(draw.randint(0, 3)):
                await self.act()

    def _new_place(self) -> None:
        self._places += 1
        self.copy = MemoryObjects()

    async def _run(self, kill_at: int, *, is_watched: bool, command: str | None = None) -> bool:
        """One run of the command. Whether the world is over."""
        copier = Copier(self, kill_at, is_watched=is_watched)
        source = Reached(copier, self.objects, "memory:source", may_write=self.may_hold)
        copy = Reached(copier, self.copy, f"memory:copy-{self._places}")
        name = command or self.command
        try:
            version = await self._command(name, source, copy)
        except Killed:
            self.seen[f"{name}_killed"] += 1
            self.states += copier.steps
            self._note(name, "killed", copier.steps)
            await self.judge_place()
            return False
        except HoldfastError as error:
            self.seen[f"{name}_refused_{error.code}"] += 1
            self._note(name, str(error.code), copier.steps)
            await self.judge_place()
            if error.code not in REFUSALS:
                raise
            if error.code not in (Code.MALFORMED, Code.LOG_EMPTY) and self.random.random() < 0.5:
                self._new_place()
                return False
            return True
        self.seen[f"{name}_done"] += 1
        self.states += copier.steps
        self._note(name, "done", version)
        await self.judge(version, f"what ended well as a {name}")
        await self.judge_place()
        return command is None

    def _note(self, *what: object) -> None:
        self.digest.update(repr(what).encode())

    async def _command(self, name: str, source: MemoryStore, copy: MemoryStore) -> int:
        match name:
            case "restore":
                begun, _ = (await read_records(MemoryStore(self.copy))).decoded()
                restored = await restoring.restore(source, copy, restoring.Point())
                if begun is not None and restored.version != begun.cut_version:
                    raise PromiseBroken(f"a run again keeps the cut: {restored.version} of {begun.cut_version}")
                return restored.version
            case "mirror":
                return (await Mirror(source, copy, MirrorOptions(deletes_per_second=1e9)).run()).version
            case "promote":
                return (await promoting.promote(copy)).version
            case _:
                return (await repairing.repair(source, copy)).version


def _clone(objects: MemoryObjects) -> MemoryStore:
    clone = MemoryObjects()
    for row in objects.list("", limit=10**6):
        clone.create(row.key, objects.read(row.key))
    return MemoryStore(clone, url="memory:clone")


async def _versions(world: FoundationWorld) -> list[int]:
    return await list_versions(world.store)


async def _is_whole(store: MemoryStore, version: int) -> bool:
    with suppress(HoldfastError):
        manifest = await read_manifest(store, version)
        return manifest is not None and all(
            sha256(store.objects.read(part_key(version, part.name))).hexdigest() == part.sha256
            for part in manifest.parts
        )
    return False


async def _checkpoint_between(objects: MemoryObjects, lowest: int, highest: int) -> int | None:
    store = MemoryStore(objects)
    for version in await checkpoint.list_versions(store):
        with suppress(HoldfastError):
            manifest = await checkpoint.read_manifest(store, version)
            if manifest is not None and lowest <= version <= highest:
                for file in manifest.files:
                    await checkpoint.read_file(store, file)
                return version
    return None


class _Drawn:
    """The random numbers of the processes, from the seed."""

    def __init__(self, draw: Random) -> None:
        self.token_bytes = draw.randbytes

    def token_hex(self, size: int) -> str:
        return self.token_bytes(size).hex()


async def _at_once(work: Callable[..., T], *arguments: Any) -> T:
    return work(*arguments)


def run_foundations(seed: int, *, command: str | None = None, rots: bool | None = None) -> WorldReport:
    """The world of one seed."""
    world = FoundationWorld(seed, command=command, rots=rots)
    drawn = _Drawn(Random(seed ^ 0xF00D))
    modules = (promoting, restoring, repairing, making)
    patches = [(module, "secrets", drawn) for module in modules]
    with silent(), patched((asyncio, "to_thread", _at_once), *patches), protocol_width(SPAN):
        asyncio.run(world.play())
    return world.report()
