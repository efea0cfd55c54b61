"""The time of a log: no step of a wall clock moves it, and what it says of ages is never too much."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hypothesis import given
from hypothesis import strategies as st
from tests.unit.commit.builders import genesis, pipeline, puts, txn

from holdfast.commit.format.batch import AddressScope, Header, decode_header
from holdfast.commit.format.log_clock import STEP_MS_MAX, LogClock, Moment
from holdfast.commit.stages import events
from holdfast.values import Instant

DAY_MS = 86_400_000
EPOCH_MS = 1_700_000_000_000
BOOT, OTHER_BOOT = b"one boot of tests", b"another boot....."


@dataclass
class Machine:
    """A machine of tests. ``true_ms`` is the real time, which nobody there knows."""

    true_ms: int = 0
    booted_ms: int = -5_000
    wrong_ms: int = 0
    boot: bytes = BOOT[:16]

    def now(self) -> Instant:
        return Instant(float(self.true_ms - self.booted_ms), EPOCH_MS + self.true_ms + self.wrong_ms)

    def reboot(self) -> None:
        self.booted_ms = self.true_ms
        self.boot = bytes([self.boot[0] ^ 1]) + self.boot[1:]


def header(moment: Moment, boot: bytes = BOOT[:16]) -> Header:
    """A header that says this of the time."""
    return replace(
        genesis(),
        time_ms=moment.time_ms,
        lived_ms=moment.lived_ms,
        boot_ms=moment.boot_ms,
        ahead_s=moment.ahead_s,
        clock_steps=moment.clock_steps,
        flags=moment.flags,
        scope=AddressScope(boot),
    )


def test_a_step_of_the_wall_clock_does_not_move_the_log() -> None:
    machine = Machine()
    for step_ms in (2 * DAY_MS, -400 * DAY_MS, 11_000, -11_000):
        clock = LogClock.begin(None, machine.boot, machine.now())
        first = clock.take(machine.now())
        machine.true_ms += 700
        machine.wrong_ms += step_ms
        later = clock.take(machine.now())
        assert (later.time_ms - first.time_ms, later.lived_ms - first.lived_ms) == (700, 700)
        assert later.doubted
        assert later.ahead_s == step_ms // 1000
        machine.wrong_ms -= step_ms
        machine.true_ms += 700
        after = clock.take(machine.now())
        assert (after.time_ms - first.time_ms, after.doubted, after.ahead_s) == (1_400, False, 0)
        assert after.clock_steps == 2, "both changes can be found again"


def test_a_small_step_is_followed_and_many_of_them_are_a_step() -> None:
    machine = Machine()
    clock = LogClock.begin(None, machine.boot, machine.now())
    machine.wrong_ms = 9_000
    assert clock.take(machine.now()).time_ms == machine.now().wall_ms
    machine.wrong_ms = 18_000
    moment = clock.take(machine.now())
    assert moment.doubted
    assert moment.time_ms == EPOCH_MS + 9_000


def test_an_accepted_clock_is_followed_at_once_forward_and_at_half_speed_back() -> None:
    machine = Machine()
    clock = LogClock.begin(None, machine.boot, machine.now())
    machine.wrong_ms = DAY_MS
    clock.take(machine.now())
    clock.accept(machine.now())
    assert clock.take(machine.now()).time_ms == EPOCH_MS + DAY_MS
    machine.wrong_ms = 0
    assert clock.take(machine.now()).doubted
    clock.accept(machine.now())
    before = clock.take(machine.now())
    for _ in range(101):
        machine.true_ms += 1
        moment = clock.take(machine.now())
    assert (moment.time_ms - before.time_ms, moment.doubted) == (50, False)
    machine.true_ms += 2 * DAY_MS
    assert clock.take(machine.now()).time_ms == machine.now().wall_ms, "it has caught up"


def test_a_restart_in_one_boot_is_exact_and_notices_a_step_in_between() -> None:
    machine = Machine()
    head = header(LogClock.begin(None, machine.boot, machine.now()).take(machine.now()))
    machine.true_ms += 60_000
    claim = LogClock.begin(head, machine.boot, machine.now()).take(machine.now())
    assert (claim.lived_ms - head.lived_ms, claim.doubted) == (60_000, False)
    machine.wrong_ms = DAY_MS
    stepped = LogClock.begin(head, machine.boot, machine.now()).take(machine.now())
    assert (stepped.lived_ms - head.lived_ms, stepped.time_ms - head.time_ms) == (60_000, 60_000)
    assert stepped.doubted
    again = LogClock.begin(header(stepped), machine.boot, machine.now()).take(machine.now())
    assert again.doubted, "a start accepts nothing"
    assert again.ahead_s == stepped.ahead_s


def test_the_time_between_two_boots_or_machines_counts_as_nothing() -> None:
    machine = Machine()
    head = header(LogClock.begin(None, machine.boot, machine.now()).take(machine.now()))
    machine.true_ms += DAY_MS
    machine.reboot()
    claim = LogClock.begin(head, machine.boot, machine.now()).take(machine.now())
    assert (claim.lived_ms, claim.time_ms) == (head.lived_ms, EPOCH_MS + DAY_MS)
    unknown = LogClock.begin(header(claim, bytes(16)), bytes(16), machine.now()).take(machine.now())
    assert unknown.lived_ms == claim.lived_ms, "two unknown boots are not one"


def test_a_clock_that_the_store_contradicts_is_not_believed() -> None:
    machine = Machine()
    head = header(LogClock.begin(None, machine.boot, machine.now()).take(machine.now()))
    machine.reboot()
    machine.wrong_ms = 400 * DAY_MS
    clock = LogClock.begin(head, machine.boot, machine.now(), believed=False)
    claim = clock.take(machine.now())
    assert (claim.time_ms, claim.doubted) == (head.time_ms, True)


def test_a_copy_of_a_running_machine_does_not_make_the_log_older() -> None:
    """Its boot id is the same, and its boot clock is an hour behind."""
    machine = Machine()
    copy = Machine(booted_ms=machine.booted_ms + 3_600_000)
    head = header(LogClock.begin(None, machine.boot, machine.now()).take(machine.now()))
    for true_ms in range(1_000, 9_000, 1_000):
        leader = machine if true_ms % 2_000 else copy
        leader.true_ms = true_ms
        head = header(LogClock.begin(head, leader.boot, leader.now()).take(leader.now()))
        assert head.lived_ms <= true_ms + 1_000, "a second is the rounding of the other clock"


def test_every_batch_says_how_long_the_log_has_lived() -> None:
    steps = pipeline()
    sent: list[Header] = []
    for ms, wall_ms in ((10.0, 1_010), (20.0, 1_020 + 2 * DAY_MS), (30.0, 1_030)):
        effects = steps.step(events.Arrived(Instant(ms, wall_ms), [events.CommitEntry(txn(), lambda _: None)]))
        effects += steps.step(events.Tick(Instant(ms + 100.0, wall_ms + 100)))
        sent += [decode_header(put.data, slot=put.slot) for put in puts(effects)]
    assert [(each.time_ms, each.lived_ms) for each in sent[:1]] == [(1_010, 10)]
    assert max(each.time_ms for each in sent) < 2_000, "no object has the time of the jump"


@given(
    st.lists(
        st.tuples(
            st.integers(0, 10**7),
            st.sampled_from(("step", "undo", "accept", "restart", "reboot", "nothing")),
            st.integers(-400 * DAY_MS, 400 * DAY_MS) | st.integers(-2 * STEP_MS_MAX, 2 * STEP_MS_MAX),
        ),
        max_size=40,
    )
)
def test_neither_time_falls_and_lived_is_never_more_than_the_truth(acts: list[tuple[int, str, int]]) -> None:
    machine = Machine()
    clock = LogClock.begin(None, machine.boot, machine.now())
    head = header(clock.take(machine.now()), machine.boot)
    for passed_ms, act, step_ms in acts:
        machine.true_ms += passed_ms
        match act:
            case "step":
                machine.wrong_ms += step_ms
            case "undo":
                machine.wrong_ms = 0
            case "accept":
                clock.accept(machine.now())
            case "restart":
                clock = LogClock.begin(head, machine.boot, machine.now())
            case "reboot":
                machine.reboot()
                clock = LogClock.begin(head, machine.boot, machine.now())
            case _:
                pass
        assert clock.at(machine.now()) == clock.at(machine.now()), "a look changes nothing"
        following = header(clock.take(machine.now()), machine.boot)
        assert following.time_ms >= head.time_ms
        assert head.lived_ms <= following.lived_ms <= machine.true_ms
        assert following.clock_steps >= head.clock_steps
        head = following
