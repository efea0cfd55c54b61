"""No step of the machine's clock moves a deadline: not while stores are open, at a start, or at a hand-over."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path

import pytest
from tests.definitions import define

from holdfast.errors import Unavailable
from holdfast.server.stores.figures import figures_of
from holdfast.stores.clock import (
    ANCHOR_NAME,
    FAR_MS,
    HEARD_MS,
    PACE_BITS,
    REBOOT_MS,
    TRUSTED_MS,
    Anchor,
    Boot,
    ByLog,
    StoreClock,
    read_anchor,
)
from holdfast.stores.deadline_timer import WAIT_MS_MAX
from holdfast.stores.durables.consumption import Consumption
from holdfast.stores.repair.backup import restore
from holdfast.stores.service import StoreService
from holdfast.stores.values import commands
from holdfast.stores.values.commands import Published
from holdfast.wire.parts import Message

START_MS = 2_000_000_000_000
DAY_MS = 86_400_000
DEFINITION = {
    "cluster": {"publisher_ttl": "1h"},
    "stores": {
        "o": {
            "durables": {
                "w": {"type": "shared", "ack_wait": "200ms", "subscriber_timeout": "10ms"},
                "m": {"type": "map"},
                "t": {"type": "shared", "message_ttl": "1h"},
            }
        }
    },
}


class Machine:
    """A machine with a clock of day, which is set at will, and counts of its kernel, which only go on."""

    def __init__(self, boot: str = "first", wall_ms: int = START_MS, age_ms: int = 5_000) -> None:
        self.passed_ms = 0
        self.wall_ms = wall_ms
        self.boot = boot
        self.age_ms = self.uptime_ms = age_ms

    def wall(self) -> int:
        return self.wall_ms + self.passed_ms

    def steady(self) -> int:
        return self.age_ms + self.passed_ms

    def kernel(self) -> Boot | None:
        return Boot(self.boot, (self.steady(), self.uptime_ms + self.passed_ms)) if self.boot else None

    def clock(self, *, follows_wall: bool = False) -> StoreClock:
        return StoreClock(wall=self.wall, steady=self.steady, boot=self.kernel, follows_wall=follows_wall)

    async def open(self, path: Path, *, follows_wall: bool = False) -> StoreService:
        return await StoreService.open(str(path), page_bytes=1 << 20, clock=self.clock(follows_wall=follows_wall))

    async def first(self, path: Path) -> StoreService:
        service = await self.open(path)
        document = json.dumps(DEFINITION).encode()
        await service.submit(define(document, service.state))
        await service.submit(commands.Attach(0, "o", "w", "a"))
        return service


async def hold(service: StoreService) -> None:
    """One message is delivered and one key is locked, both for 200 ms."""
    await service.submit(commands.Publish(0, "o", "p", [Message(b"x", publisher_seq=1)]))
    await service.submit(commands.Deliver(0, "o", "w", "a", 1))
    await service.submit(commands.MapLock(0, "o", "m", "k", "me", 200))
    assert held(service) == 1


def held(service: StoreService) -> int:
    durable = service.state.stores["o"].durables["w"]
    assert isinstance(durable, Consumption)
    return durable.leases.held


async def is_locked(service: StoreService) -> bool:
    try:
        await service.submit(commands.MapLock(0, "o", "m", "k", "you", 200))
    except Unavailable:
        return True
    return False


async def assert_kept(service: StoreService) -> None:
    """Lease, lock, message and publisher are what they were."""
    service._expire()
    assert held(service) == 1
    assert await is_locked(service)
    assert figures_of(service.state.stores["o"].durables["t"]).messages == 1
    again = await service.submit(commands.Publish(0, "o", "p", [Message(b"x", publisher_seq=1)]))
    assert isinstance(again, Published)
    assert again.duplicates == 1, "the publisher is remembered"


@pytest.mark.parametrize("moved_ms", [30 * DAY_MS, 150, -150, -30 * DAY_MS])
@pytest.mark.parametrize("how", ["for a moment", "for good"])
def test_a_clock_that_is_set_neither_rushes_nor_holds_a_deadline(tmp_path: Path, moved_ms: int, how: str) -> None:
    async def main() -> None:
        machine = Machine()
        service = await machine.first(tmp_path)
        await hold(service)
        machine.wall_ms += moved_ms
        await service.submit(commands.Publish(0, "o", "", [Message(b"meanwhile")]))
        if how == "for a moment":
            machine.wall_ms -= moved_ms
        machine.passed_ms += 199
        service._expire()
        assert held(service) == 1
        assert await is_locked(service)
        machine.passed_ms += 1
        service._expire()
        assert held(service) == 0
        assert not await is_locked(service)
        await service.close()

    asyncio.run(main())


def test_deadlines_pass_at_their_pace_in_a_log_that_is_ahead_of_the_clock(tmp_path: Path) -> None:
    async def main() -> None:
        machine = Machine(wall_ms=START_MS + 30 * DAY_MS)
        service = await machine.first(tmp_path)
        await service.close()
        machine.wall_ms = START_MS
        again = await machine.open(tmp_path)
        before_ms = again.state.at_ms
        await hold(again)
        assert again.state.at_ms == before_ms, "time goes on from the last of the log"
        machine.passed_ms += 200
        again._expire()
        assert held(again) == 0
        assert not await is_locked(again)
        await again.close()

    asyncio.run(main())


@pytest.mark.parametrize("stopped_ms", [199, 200])
@pytest.mark.parametrize("moved_ms", [0, 7_000, 5 * DAY_MS, -5 * DAY_MS])
@pytest.mark.parametrize("ended", ["closed", "killed"])
def test_a_start_on_the_same_boot_has_the_exact_time(
    tmp_path: Path, stopped_ms: int, moved_ms: int, ended: str
) -> None:
    async def main() -> None:
        machine = Machine()
        service = await machine.first(tmp_path)
        await hold(service)
        anchor = (tmp_path / ANCHOR_NAME).read_bytes()
        await service.close()
        if ended == "killed":
            (tmp_path / ANCHOR_NAME).write_bytes(anchor)
        machine.passed_ms += stopped_ms
        machine.wall_ms += moved_ms
        again = await machine.open(tmp_path)
        assert again.now_ms() == START_MS + stopped_ms
        if stopped_ms < 200:
            await assert_kept(again)
        else:
            machine.passed_ms += 10  # the time that its subscriber has to return
            again._expire()
            assert held(again) == 0
        await again.close()

    asyncio.run(main())


@pytest.mark.parametrize("moved_ms", [300, 7_000, 3_600_000, 5 * DAY_MS, -7_000, -5 * DAY_MS])
@pytest.mark.parametrize("boot", ["second", ""])
def test_a_hand_over_to_a_machine_with_another_clock_moves_no_deadline(
    tmp_path: Path, moved_ms: int, boot: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        service = await Machine().first(tmp_path)
        await hold(service)
        await service.close()
        other = Machine(boot, START_MS + moved_ms, age_ms=2 * DAY_MS)
        with caplog.at_level(logging.WARNING):
            again = await other.open(tmp_path)
        assert again.now_ms() == START_MS
        await assert_kept(again)
        far = moved_ms >= FAR_MS or moved_ms < -TRUSTED_MS
        assert ("far from the stores' time" in caplog.text) is far
        assert again.clock_behind_ms == moved_ms
        other.passed_ms += 204  # a slow clock counts 63 of 64
        again._expire()
        assert held(again) == 0, "from there on time passes"
        await again.close()

    asyncio.run(main())


def test_an_operator_may_take_the_time_of_the_machine(tmp_path: Path) -> None:
    async def main() -> None:
        service = await Machine().first(tmp_path)
        await hold(service)
        await service.close()
        machine = Machine("second", START_MS + 5 * DAY_MS)
        again = await machine.open(tmp_path, follows_wall=True)
        assert again.now_ms() == START_MS + 5 * DAY_MS
        machine.passed_ms += 10  # the time that its subscriber has to return
        again._expire()
        assert held(again) == 0
        assert again.state.stores["o"].counts.live == 1, "of the durable without a TTL"
        await again.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("ahead_ms", "expected_ms"), [(60_000, START_MS + 60_000), (5 * DAY_MS, START_MS), (-60_000, START_MS)]
)
def test_stores_of_older_code_take_a_time_that_is_near(tmp_path: Path, ahead_ms: int, expected_ms: int) -> None:
    async def main() -> None:
        service = await Machine().first(tmp_path)
        await service.close()
        (tmp_path / ANCHOR_NAME).unlink()
        again = await Machine("second", START_MS + ahead_ms).open(tmp_path)
        assert again.now_ms() == expected_ms
        await again.close()

    asyncio.run(main())


@pytest.mark.parametrize("damage", [b"", b"{", b'{"store_ms": "x"}', b"[]"])
def test_a_damaged_anchor_counts_as_one_of_another_boot(tmp_path: Path, damage: bytes) -> None:
    async def main() -> None:
        service = await Machine().first(tmp_path)
        await hold(service)
        await service.close()
        (tmp_path / ANCHOR_NAME).write_bytes(damage)
        again = await Machine(wall_ms=START_MS + 5_000).open(tmp_path)
        await assert_kept(again)
        await again.close()

    asyncio.run(main())


def test_a_restored_backup_goes_on_from_its_time(tmp_path: Path) -> None:
    async def main() -> None:
        machine = Machine()
        service = await machine.first(tmp_path / "stores")
        await hold(service)
        await service.copy_files(str(tmp_path / "copy"))
        await service.close()
        restore(str(tmp_path / "copy"), str(tmp_path / "again"))
        machine.passed_ms += 3_600_000
        again = await machine.open(tmp_path / "again")
        await assert_kept(again)
        await again.close()

    asyncio.run(main())


def test_the_time_waits_for_a_clock_that_is_behind_and_never_falls() -> None:
    machine = Machine("second", START_MS - 640)
    clock = machine.clock()
    clock.start(START_MS, Anchor(START_MS, "first", (0, 0)))
    assert clock() == START_MS
    last_ms = clock()
    for _ in range(50_000):
        machine.passed_ms += 1
        assert last_ms <= clock() <= last_ms + 1
        last_ms = clock()
    assert clock() == START_MS + 50_000 - 640 == machine.wall(), "after 640 * 64 ms they are equal"
    assert (640 << PACE_BITS) < 50_000


@pytest.mark.parametrize("ahead_ms", [2, 465, 8_300, 3_600_000, 30 * DAY_MS])
def test_the_time_never_runs_faster_than_it_passes(ahead_ms: int) -> None:
    """Or what lasts a while, in stores that are behind, would end early."""
    machine = Machine("second", START_MS + ahead_ms, age_ms=40 * DAY_MS)
    clock = machine.clock()
    clock.start(START_MS, Anchor(START_MS, "first", (0, 0)))
    for _ in range(100):
        machine.passed_ms += 59_999
        clock.look()
    assert clock() == START_MS + machine.passed_ms
    assert clock.behind_ms == ahead_ms


@pytest.mark.parametrize("wrong_ms", [0, REBOOT_MS - 20_000, REBOOT_MS, 2 * 3_600_000, -30_000, -DAY_MS, 30 * DAY_MS])
def test_a_boot_takes_the_machines_time_only_where_the_age_of_the_boot_agrees(wrong_ms: int) -> None:
    machine = Machine()
    clock = machine.clock()
    clock.start(0)
    anchor = clock.anchor()
    again = Machine("second", START_MS + 10_000 + 60_000 + wrong_ms, age_ms=60_000)  # 10 s off, up since a minute
    after = again.clock()
    after.start(START_MS, anchor)
    believed = 0 <= 10_000 + wrong_ms <= REBOOT_MS
    assert after() == (again.wall() if believed else START_MS)


def test_a_boot_keeps_by_how_much_the_stores_were_behind() -> None:
    anchor = Anchor(START_MS, "first", (1, 1), 8_300)
    machine = Machine("second", START_MS + 8_300 + 70_000, age_ms=60_000)
    clock = machine.clock()
    clock.start(START_MS, anchor)
    assert clock() == START_MS + 70_000
    assert clock.behind_ms == 8_300


@pytest.mark.parametrize("behind_ms", [-700, -2, -1, 0, 1, 2, 58, 465, 999, 1_000, 8_300, 3_600_000])
@pytest.mark.parametrize("delay_ms", [50, 29_760, 600_000])
def test_no_message_comes_or_expires_early_in_stores_that_are_behind(
    tmp_path: Path, behind_ms: int, delay_ms: int
) -> None:
    """By the clock of the machine that accepted it; and no more than a 64th late in stores that are ahead."""

    async def main() -> None:
        service = await Machine().first(tmp_path)
        await service.close()
        machine = Machine("second", START_MS + behind_ms, age_ms=40 * DAY_MS)
        service = await machine.open(tmp_path)
        due_ms = machine.wall() + delay_ms
        await service.submit(commands.Publish(0, "o", "", [Message(b"d", deliver_at_ms=due_ms)]))
        await service.submit(commands.Publish(0, "o", "", [Message(b"t", ttl_ms=delay_ms)]))
        machine.passed_ms += delay_ms - 2
        service._expire()
        only = await service.submit(commands.Deliver(0, "o", "w", "a", 9))
        assert [first for first, _, _ in only.runs] == [2], "the delayed one is early"  # type: ignore[union-attr]
        await service.submit(commands.Detach(0, "o", "w", "a"))
        slow_ms = (delay_ms // 63 if behind_ms < 0 else 0) + 2
        machine.passed_ms += 2 + slow_ms
        service._expire()
        await service.submit(commands.Attach(0, "o", "w", "a"))
        only = await service.submit(commands.Deliver(0, "o", "w", "a", 9))
        assert [first for first, _, _ in only.runs] == [1], "due, and the other has expired"  # type: ignore[union-attr]
        await service.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("by_log_ms", "wall_ms", "expected_ms"),
    [
        (1_700, 60_000, 1_700),  # it heard the record 1.7 s after it was made
        (HEARD_MS, 60_000, HEARD_MS),
        (HEARD_MS + 1, 60_000, 0),
        (-300, 60_000, 0),
        (1_700, 900, 900),  # never beyond this machine's clock
        (1_700, -60_000, 0),
    ],
)
def test_a_standby_counts_what_passed_before_it_heard_up_to_a_bound(
    by_log_ms: int, wall_ms: int, expected_ms: int
) -> None:
    machine = Machine("boot", START_MS + wall_ms)
    clock = machine.clock()
    heard = Anchor(START_MS - 7_000, "boot", (machine.steady() - 7_000, machine.uptime_ms - 7_000))
    clock.start(START_MS - 7_000, heard, by_log=ByLog(START_MS + by_log_ms, HEARD_MS))
    assert clock() == START_MS + expected_ms


@pytest.mark.parametrize(("passed_ms", "counts"), [(60_000, True), (DAY_MS, True), (DAY_MS + 1, False), (-5, False)])
def test_without_having_stood_by_the_time_of_the_log_says_how_much_passed(passed_ms: int, counts: bool) -> None:
    machine = Machine("boot", START_MS + 30 * DAY_MS)
    clock = machine.clock()
    clock.start(START_MS, by_log=ByLog(START_MS + passed_ms, TRUSTED_MS))
    assert clock() == START_MS + passed_ms * counts


def test_a_start_goes_on_at_the_pace_that_a_killed_service_had(tmp_path: Path) -> None:
    machine = Machine("second", START_MS - 60_000)
    clock = machine.clock()
    clock.start(START_MS, Anchor(START_MS, "first", (0, 0)))
    anchor = clock.anchor()
    machine.passed_ms += 64_000
    before_ms = clock()
    assert before_ms == START_MS + 63_000
    again = machine.clock()
    again.start(START_MS, anchor)
    assert again() == before_ms


@pytest.mark.parametrize("damaged", [b"", b"{", b"\x00" * 64, b'{"store_ms": -5, "boot": "x", "counts_ms": [0, 0]}'])
def test_a_damaged_anchor_beside_an_empty_log_gives_the_machines_time(tmp_path: Path, damaged: bytes) -> None:
    (tmp_path / ANCHOR_NAME).write_bytes(damaged)
    machine = Machine()
    clock = machine.clock()
    clock.start(0, read_anchor(str(tmp_path)))
    assert clock() == machine.wall()


def test_the_smaller_of_two_counts_is_what_has_passed() -> None:
    machine = Machine()
    clock = machine.clock()
    clock.start(0)
    anchor = clock.anchor()
    machine.passed_ms += 1_000
    machine.uptime_ms += DAY_MS
    again = machine.clock()
    again.start(START_MS, anchor)
    assert again() == START_MS + 1_000
    machine.uptime_ms -= 2 * DAY_MS
    again.start(START_MS, anchor)
    assert again() == START_MS, "an uptime that fell is one of something else"


def test_times_of_day_that_clients_give_are_converted(tmp_path: Path) -> None:
    async def main() -> None:
        service = await Machine().first(tmp_path)
        await service.close()
        other = Machine("second", START_MS + 5 * DAY_MS)
        again = await other.open(tmp_path)
        at_ms = other.wall() + 1_000
        await again.submit(commands.Publish(0, "o", "", [Message(b"later", deliver_at_ms=at_ms)]))
        assert not (await again.submit(commands.Deliver(0, "o", "w", "a", 1))).runs  # type: ignore[union-attr]
        other.passed_ms += 1_000
        again._expire()
        assert (await again.submit(commands.Deliver(0, "o", "w", "a", 1))).runs  # type: ignore[union-attr]
        await again.close()

    asyncio.run(main())


def test_the_anchor_is_written_again_while_the_service_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.stores.clock.LOOK_S", 0.01)

    async def main() -> None:
        machine = Machine()
        service = await machine.first(tmp_path)
        machine.passed_ms += 9_000
        for _ in range(500):
            anchor = read_anchor(str(tmp_path))
            if anchor is not None and anchor.store_ms == START_MS + 9_000:
                break
            await asyncio.sleep(0.01)
        else:
            raise AssertionError("the anchor is the first still")
        await service.close()

    asyncio.run(main())


def test_the_clocks_of_this_machine_go_on_together() -> None:
    clock = StoreClock()
    first = clock()
    clock.start(first - 1)
    assert abs(clock() - first) < 60_000
    clock.start(first + DAY_MS)
    assert clock() >= first + DAY_MS


def test_a_suspended_machine_is_looked_at_again_soon() -> None:
    assert WAIT_MS_MAX <= 60_000, "timers do not count while it is suspended, and the clock does"
