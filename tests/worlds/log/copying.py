"""Mirrors and promotions in the worlds of the log: copiers that are killed, a second place, and the judge of it.

The leaders of the world write the source. Real mirrors copy it to a second store, which loses requests and answers and
lets creates land late, also long after their copier is dead. Somebody tries to lead the mirror all the time, and may
not. At some time it is promoted, while the copiers go on; then leaders write there, one after the other. All of it
draws from a random source of its own, so the source's world stays the same.

The judge sees every object at the moment it lands in the copy.
"""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from random import Random
from typing import Any, TypeVar

from tests.unit.commit.builders import record, stored
from tests.worlds.harness import PromiseBroken, WorldReport, patched
from tests.worlds.log.loop import SimulatedLoop
from tests.worlds.log.shape import OFTEN_MS, draw_shape, protocol_width
from tests.worlds.log.world import World

from holdfast.commit.format.batch import (
    CLAIM_BYTES,
    FIRST_SLOT,
    PREFIX,
    Header,
    Kind,
    decode_header,
    object_name,
    slot_of,
)
from holdfast.commit.format.chain import ChainWalker
from holdfast.commit.leadership.claims import Identity
from holdfast.commit.leadership.role import PROMOTED_KEY, ROLE_KEY
from holdfast.commit.leadership.takeover import TakeoverOptions, read_records, take_the_lead
from holdfast.commit.reading.reader import find_frontier, follow
from holdfast.commit.reading.survey import verify_log, walker_after
from holdfast.commit.stages.release import PROOF_MS_MAX
from holdfast.copies import promoting
from holdfast.copies.mirroring import Mirror, MirrorOptions
from holdfast.errors import Closed, Code, CorruptData, HoldfastError, InvalidRequest, NotFound, Unavailable
from holdfast.objects.memory import MemoryObjects, MemoryStore
from holdfast.objects.port import CREATED, CreateAnswer, Listed, ObjectStore, Refused, Unknown, WithoutLeftovers
from holdfast.snapshots import making
from holdfast.snapshots.manifest import version_of_manifest
from holdfast.values import Instant, LeaderId, LogId

__all__ = ["CopyWorld", "run_copies"]

T = TypeVar("T")
COPIERS = 2
COMMITS_MAX = 6


class Process:
    """A process that may be killed: its events vanish with it."""

    def __init__(self, world: CopyWorld, name: str) -> None:
        self.world = world
        self.name = name
        self.incarnation = 0
        self.paused_until = 0.0
        self.loop = self._new_loop()

    def _new_loop(self) -> SimulatedLoop:
        return SimulatedLoop(self.world.agenda, self, self.world.promises.trouble)

    def start(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run ``work`` to its end, unless the process is killed before."""
        self.loop.turn(lambda: self.loop.create_task(work()).add_done_callback(self._ended))

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.world.promises.trouble(error)

    def kill(self) -> None:
        """It ends here. What it has sent may still land."""
        self.loop.kill()
        self.incarnation += 1
        self.loop = self._new_loop()

    async def pause(self, ms: float) -> None:
        """Wait in virtual time."""
        waiter: asyncio.Future[None] = self.loop.create_future()
        self.world.agenda.after(ms, self, self.answer(waiter), None)
        await waiter

    def answer(self, waiter: asyncio.Future[T]) -> Callable[[T], None]:
        """What gives ``waiter`` its result, in a turn of this process."""

        def answered(value: T) -> None:
            if not waiter.done():
                self.loop.turn(waiter.set_result, value)

        return answered


class SourceStore(WithoutLeftovers):
    """The world's own log as a process elsewhere reads it. It writes nothing there."""

    url = "s3://world/log"

    def __init__(self, process: Process) -> None:
        self._process = process
        self._world = process.world

    async def _arrive(self) -> None:
        draw = self._world.draw
        await self._process.pause(20.0 * draw.random())
        if draw.random() < 0.01:
            raise Unavailable("the read failed")

    async def create(self, key: str, data: bytes) -> CreateAnswer:
        raise AssertionError(f"a copier writes nothing in its source: {key} {len(data)}")

    async def delete(self, *keys: str) -> None:
        raise AssertionError(f"a copier deletes nothing in its source: {keys}")

    async def read(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
        await self._arrive()
        slot = slot_of(key)
        store = self._world.store
        data = store.others.get(key) if slot is None else store.objects.get(slot)
        if data is None:
            raise NotFound("no such object", key=key)
        return data[start:] if length is None else data[start : start + length]

    async def list(self, prefix: str, *, after: str = "", limit: int = 1000) -> builtins.list[Listed]:
        await self._arrive()
        if prefix == PREFIX:
            rows = self._world.store.page(limit, int(after[-20:]) if after else -1)
            return [Listed(key, size) for key, size in rows]
        others = self._world.store.others
        return [Listed(key, len(others[key])) for key in sorted(others) if key.startswith(prefix) and key > after][
            :limit
        ]

    async def close(self) -> None:
        pass


class CopyStore(WithoutLeftovers):
    """The second place as one process reaches it."""

    url = "s3://world/copy"

    def __init__(self, process: Process) -> None:
        self._process = process
        self._world = process.world

    async def create(self, key: str, data: bytes) -> CreateAnswer:
        world, draw = self._world, self._world.draw
        answered: asyncio.Future[CreateAnswer] = self._process.loop.create_future()
        answer = self._process.answer(answered)
        delay_ms = 20.0 * draw.random()
        match draw.choice(("", "", "", "", "", "", "lost", "answer lost", "late", "refused")):
            case "lost":
                world.seen["copy_create_lost"] += 1
                world.agenda.after(50.0, self._process, answer, Unknown("no answer in time"))
            case "answer lost":
                world.agenda.after(delay_ms, None, world.land, key, data, None)
                world.agenda.after(50.0, self._process, answer, Unknown("no answer in time"))
            case "late":
                world.seen["copy_create_late"] += 1
                world.agenda.after(
                    draw.choice((100.0, 1_000.0, 6_000.0)) * draw.random(), None, world.land, key, data, None
                )
                world.agenda.after(50.0, self._process, answer, Unknown("no answer in time"))
            case "refused":
                world.agenda.after(delay_ms, self._process, answer, Refused(certain=False))
            case _:
                world.agenda.after(delay_ms, None, world.land, key, data, answer)
        return await answered

    async def _arrive(self) -> None:
        draw = self._world.draw
        await self._process.pause(20.0 * draw.random())
        if draw.random() < 0.01:
            raise Unavailable("the request failed")

    async def read(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
        await self._arrive()
        return self._world.copy.read(key, start=start, length=length)

    async def list(self, prefix: str, *, after: str = "", limit: int = 1000) -> builtins.list[Listed]:
        await self._arrive()
        return self._world.copy.list(prefix, after=after, limit=limit)

    async def delete(self, *keys: str) -> None:
        await self._arrive()
        for key in keys:
            self._world.deleted(key)
            self._world.copy.delete(key)

    async def close(self) -> None:
        pass


class CopyWorld(World):
    """A world of the log whose log has a mirror."""

    def __init__(self, seed: int, **shape: Any) -> None:
        super().__init__(seed, check_every=1 << 60, **shape)
        self.draw = Random(seed ^ 0x5EC0_4D)
        self.copy = MemoryObjects()
        self.plain = MemoryStore(self.copy)
        self.mirrored_through = 0
        self.promised_through: int | None = None
        """What a mirror was known to have when its promotion began."""
        self.promoted: promoting.PromotedLog | None = None
        self.acknowledged: list[int] = []
        self.walker = ChainWalker()
        self._covered: set[int] = set()
        self._copiers = [Process(self, f"copier-{number}") for number in range(COPIERS)]
        self._impatient = Process(self, "impatient")
        self._promoter = Process(self, "promoter")
        self._leaders = [Process(self, "leader-0"), Process(self, "leader-1")]

    # -- the judge ----------------------------------------------------------------------------------------------------

    def land(self, key: str, data: bytes, answer: Callable[[CreateAnswer], None] | None) -> None:
        """A create takes effect."""
        created = self.copy.create(key, data)
        if created:
            self._landed(key, data)
        if answer is not None:
            answer(CREATED if created else Refused())

    def _landed(self, *what: Any) -> Any:
        if isinstance(what[0], int):
            return super()._landed(*what)
        key, data = what
        slot = slot_of(key)
        if slot is None:
            self._meta_landed(key)
            return None
        if self.copy_of(ROLE_KEY) is None:
            self.promises.break_("a copy says what it is before its first object", key)
        self.seen["copied"] += 1
        header = decode_header(data, slot=slot)
        source = self.promises.headers.get(FIRST_SLOT)
        if source is None or header.log_id != source.log_id:
            if self.copy_of(PROMOTED_KEY) is None:
                self.promises.break_("nobody leads a mirror that is not promoted", key)
        elif self.store.archive.get(slot) != data:
            self.promises.break_("a mirror has only what its source has", key)
        else:
            self._judge_order(header)
            self._judge_truncation(header)
        while (there := self._there(self.walker.next_slot)) is not None:
            self.walker.accept(decode_header(there, slot=self.walker.next_slot))
        return None

    def _there(self, slot: int) -> bytes | None:
        return self.copy_of(object_name(slot))

    def copy_of(self, key: str) -> bytes | None:
        """An object of the copy, without a network."""
        try:
            return self.copy.read(key)
        except NotFound:
            return None

    def _judge_order(self, header: Header) -> None:
        """R1 and R2 hold for the copier. After a truncation at the source the chain has a gap, and this looks away."""
        if self.walker.head is None or self.promoted is not None or self._begins_late():
            return
        missing = self.walker.next_slot
        if header.slot < missing - self.shape.span:
            self.promises.break_("a mirror has at most W slots in flight", f"{header.slot}, missing {missing}")
        if header.slot < missing and (header.kind is Kind.CLAIM or header.claim != self._claim_slot()):
            self.promises.break_("a mirror sends nothing after a claim before all of it has landed", f"{header.slot}")

    def _judge_truncation(self, header: Header) -> None:
        """An object that truncates takes away what a snapshot of the copy has."""
        through = header.truncated_through
        if self._begins_late() or not through or through in self._covered:
            return
        versions = [version_of_manifest(row.key) for row in self.copy.list("snapshots/")]
        if not any(version is not None and version >= through for version in versions):
            self.promises.break_("a mirror has a snapshot before an object that truncates", f"{header.slot}")
        self._covered.add(through)
        self.seen["copied_truncation"] += 1

    def _begins_late(self) -> bool:
        data = self.copy_of(ROLE_KEY)
        return data is None or b'"truncated_through": 0' not in data

    def _claim_slot(self) -> int:
        claim = self.walker.claim
        return -1 if claim is None else claim.slot

    def _meta_landed(self, key: str) -> None:
        version = version_of_manifest(key)
        if version is not None and not self._begins_late():
            head = self.walker.head
            if head is None or version > head.last_version:
                self.promises.break_("a snapshot comes after the chain has reached it", f"{version}")
            self.seen["copied_snapshots"] += 1

    def deleted(self, key: str) -> None:
        """An object of the copy is about to go."""
        slot, data = slot_of(key), self.copy_of(key)
        if slot is None or data is None:
            return
        header = decode_header(data, slot=slot)
        newest = max(self._headers_of_copy(), key=lambda each: -each.slot)
        versions = [version_of_manifest(row.key) for row in self.copy.list("snapshots/")]
        if len(data) == CLAIM_BYTES:
            self.promises.break_("a claim is never deleted", key)
        if header.last_version > newest.truncated_through:
            self.promises.break_("a mirror deletes only what its log says was truncated", key)
        if not any(version is not None and version >= header.last_version for version in versions):
            self.promises.break_("a snapshot has what was deleted", key)
        self.seen["copy_deleted"] += 1

    def _headers_of_copy(self) -> builtins.list[Header]:
        return [
            decode_header(self.copy.read(row.key), slot=slot)
            for row in self.copy.list(PREFIX, limit=10**6)
            if (slot := slot_of(row.key)) is not None
        ]

    # -- the processes ------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        super()._begin()
        for copier in self._copiers:
            self.agenda.after(1_000.0 * self.draw.random(), None, self._copier_starts, copier)
        self.agenda.after(300.0, None, self._impatient_tries)
        promotion_ms = self.draw.choice((500.0, 3_000.0, 10_000.0)) * (0.2 + self.draw.random())
        self.agenda.after(promotion_ms, None, self._promotes)

    def _copier_starts(self, copier: Process) -> None:
        self.seen["copier_started"] += 1
        copier.start(lambda: self._mirrors(copier))
        self.agenda.after(
            self.draw.choice((50.0, 400.0, 3_000.0)) * self.draw.random(), None, self._copier_ends, copier
        )

    def _copier_ends(self, copier: Process) -> None:
        copier.kill()
        self.agenda.after(200.0 * self.draw.random(), None, self._copier_starts, copier)

    async def _mirrors(self, copier: Process) -> None:
        mirror = Mirror(SourceStore(copier), CopyStore(copier), MirrorOptions(hold=False, deletes_per_second=1e9))
        while True:
            try:
                mirrored = await mirror.round()
            except Unavailable:
                await copier.pause(30.0)
            except (Closed, InvalidRequest) as error:
                if error.code is not Code.LOG_MISMATCH or self.copy_of(PROMOTED_KEY) is None:
                    raise
                self.seen["copier_learns_of_promotion"] += 1
                return
            except NotFound as error:
                if error.code not in (Code.LOG_EMPTY, Code.LOG_TRUNCATED):
                    raise
                self.seen[f"copier_{error.code}"] += 1
                await copier.pause(100.0)
            except CorruptData as error:
                if not self.truncates:
                    raise
                self.seen["copier_meets_removal"] += 1
                await copier.pause(30.0)
                del error
            else:
                if self.copy_of(PROMOTED_KEY) is None:
                    self.mirrored_through = max(self.mirrored_through, mirrored.version)
                self.seen["mirrored"] += 1
                await copier.pause(10.0)

    def _impatient_tries(self) -> None:
        self._impatient.kill()
        self._impatient.start(lambda: self._leads(self._impatient, commits=0))
        self.agenda.after(1_500.0 * self.draw.random(), None, self._impatient_tries)

    def _promotes(self) -> None:
        self._promoter.kill()
        if self.promised_through is None:
            self.promised_through = self.mirrored_through
        self._promoter.start(self._promote)
        self.agenda.after(50.0 + 4_000.0 * self.draw.random(), None, self._promotes_again)

    def _promotes_again(self) -> None:
        if self.promoted is None:
            self._promotes()

    async def _promote(self) -> None:
        self.seen["promotion_tried"] += 1
        try:
            promoted = await promoting.promote(CopyStore(self._promoter))
        except (Unavailable, NotFound, InvalidRequest, Closed) as error:
            self.seen[f"promotion_{error.code}"] += 1
            return
        self.promoted = promoted
        self.seen["promoted"] += 1
        assert self.promised_through is not None, "it was asked for"
        if promoted.version < self.promised_through:
            self.promises.break_("a promoted mirror has what it was known to have", f"{promoted.version}")
        for leader in self._leaders:
            self.agenda.after(200.0 * self.draw.random(), None, self._leader_starts, leader)

    def _leader_starts(self, leader: Process) -> None:
        leader.kill()
        leader.start(lambda: self._leads(leader, commits=self.draw.randint(1, COMMITS_MAX)))
        self.agenda.after(300.0 + 2_000.0 * self.draw.random(), None, self._leader_starts, leader)

    async def _leads(self, process: Process, *, commits: int) -> None:
        """A short leadership at the copy: claim, and a few commits, one at a time."""
        store = CopyStore(process)
        identity = Identity(LeaderId(b"copy" + self.draw.randbytes(12)), self.draw.randbytes(32), process.name)

        def now() -> Instant:
            return Instant(self.agenda.now, 1_700_000_000_000 + int(self.agenda.now))

        options = TakeoverOptions(take_over=True, probe=False, retry_budget_ms=2_000.0)
        try:
            takeover = await take_the_lead(store, identity, LogId(self.draw.randbytes(16)), options, now)
        except CorruptData as error:
            if self.promoted is not None and not self.truncates:
                raise
            self.seen[f"copy_start_{error.code}"] += 1
            return
        except HoldfastError as error:
            self.seen[f"copy_start_{error.code}"] += 1
            return
        self.seen["copy_led"] += 1
        head = claim = takeover.claim
        for _ in range(commits):
            version = head.last_version + 1
            following = record(head, claim, version, nonce=self.draw.randbytes(16))
            if not await self._puts(store, following, version):
                return
            self.acknowledged.append(version)
            self.seen["copy_committed"] += 1
            head = following

    async def _puts(self, store: ObjectStore, header: Header, version: int) -> bool:
        data, name = stored(header, version), object_name(header.slot)
        for _ in range(20):
            answer = await store.create(name, data)
            if answer == CREATED:
                return True
            if isinstance(answer, Refused):
                try:
                    return await store.read(name) == data
                except (NotFound, Unavailable):
                    continue
        return False

    # -- the end ------------------------------------------------------------------------------------------------------

    def run(self) -> WorldReport:
        """As every world, and then the copy is read by somebody who knows nothing."""
        drawn = _Drawn(self.draw)
        at_once = ((asyncio, "to_thread", _at_once), (promoting, "secrets", drawn), (making, "secrets", drawn))
        try:
            with patched(*at_once):
                report = super().run()
        finally:
            for process in (*self._copiers, self._impatient, self._promoter, *self._leaders):
                process.loop.kill()
        if self.copy.list(PREFIX, limit=1):
            with protocol_width(self.shape.span, self.shape.version_jump, self.shape.proof_ms):
                asyncio.run(self._read_afresh())
        return report

    async def _read_afresh(self) -> None:
        role, promoted = (await read_records(self.plain)).decoded()
        assert role is not None, "a copy says what it is"
        if promoted is None or self.promoted is None:
            return
        if self.promoted.log_id != promoted.log_id:
            raise PromiseBroken(f"a mirror is promoted once: {self.promoted.log_id}, {promoted.log_id}")
        await verify_log(self.plain)
        versions: list[int] = []
        frontier = await find_frontier(self.plain)
        assert frontier is not None, "it was read just now"
        through = frontier[0].truncated_through
        walker = (await walker_after(self.plain, through))[0] if through else ChainWalker()
        async with aclosing(follow(self.plain, walker)) as batches:
            async for batch in batches:
                header = batch.header
                if header.last_version <= self.promoted.version:
                    if header.slot not in self.promises.headers or self.store.archive[header.slot] != batch.data:
                        raise PromiseBroken(f"a promoted mirror begins as its source: {header.slot}")
                elif header.log_id.hex() != promoted.log_id:
                    raise PromiseBroken(f"two histories have two ids: {header.slot}")
                versions += [txn.version for txn in batch.transactions()]
        versions = [version for version in versions if version > through]
        lost = [version for version in self.acknowledged if version not in versions]
        if lost:
            raise PromiseBroken(f"what a promoted log acknowledged stays: {lost}")
        source = [version for version in self.promises.versions if through < version <= self.promoted.version]
        if [version for version in versions if version <= self.promoted.version] != source:
            raise PromiseBroken("a promoted mirror has every transaction of its source up to the fork")
        self.seen["promoted_read_afresh"] += 1


class _Drawn:
    """The random numbers of the processes, from the seed."""

    def __init__(self, draw: Random) -> None:
        self.token_bytes = draw.randbytes

    def token_hex(self, size: int) -> str:
        return self.token_bytes(size).hex()


async def _at_once(work: Callable[..., T], *arguments: Any) -> T:
    return work(*arguments)


def run_copies(seed: int, *, retention: bool | None = None) -> WorldReport:
    """The world of one seed with a mirror: a narrow one, where every border is near; every third one truncates."""
    truncates = seed % 3 == 0 if retention is None else retention
    number = seed
    while True:
        shape = draw_shape(Random(number))
        if (
            shape.span <= 8
            and shape.proof_ms >= PROOF_MS_MAX
            and truncates == (shape.retention and shape.look_ms == OFTEN_MS)
        ):
            return CopyWorld(number).run()
        number += 1_000_003
