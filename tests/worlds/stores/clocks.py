"""Worlds of the stores' clock: leaders die, machines boot again and take over, and no wall clock can be trusted.

Real code: the clock of the stores, the conversion of a time that a client gives, the log's time. The environment draws
when records are written and heard of, how long machines are down, and how wrong their wall clocks are and become. The
judge knows the true time. A message is accepted at a true moment, by a leader whose wall clock has some error then:

| promise | what the judge compares |
|---|---|
| no message is early | its end with its ``ttl`` or ``deliver_at_ms``, by the clock of the leader that accepted it |
| lateness is bounded | what each start lost with the time that it cannot know of |
| a jump has a bound | the time after a start with what this machine may count, and with its clock |

A start may take a millisecond, and the difference of a clock that it believed from the one before.
"""
# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random
from types import SimpleNamespace
from typing import Any, Final, cast

from msgspec.structs import replace as replace_fields
from tests.worlds.harness import Kind, Mutants, PromiseBroken, SeededWorld, WorldReport

from holdfast.commit.format.batch import Header
from holdfast.commit.format.log_clock import LogClock, Moment
from holdfast.server.stores import in_log
from holdfast.server.stores.in_log import Heard
from holdfast.stores import clock as clock_module
from holdfast.stores.clock import HEARD_MS, PACE_BITS, REBOOT_MS, TRUSTED_MS, Anchor, Boot, ByLog, StoreClock
from holdfast.stores.service import StoreService
from holdfast.stores.values.commands import Publish
from holdfast.values import Instant
from holdfast.wire.parts import Message

__all__ = ["KINDS", "run_world"]

EPOCH_MS: Final = 2_000_000_000_000
LOOK_MS: Final = int(clock_module.LOOK_S * 1000)
DAY_MS: Final = 86_400_000
STEPS_MS: Final = (3, 400, 5_000, 12_000, 120_000, 3_600_000, DAY_MS // 2, DAY_MS, 30 * DAY_MS, 400 * DAY_MS)
DELAYS_MS: Final = (1, 40, 900, 30_000, 600_000, 7_200_000, 3 * DAY_MS)
PAUSES_MS: Final = (1, 30, 700, 20_000, 400_000, 6_000_000, 60_000_000)
START_MS: Final = 1
"""Readings in whole milliseconds."""
OBJECT_MS: Final = 200
"""From a record to its object in the log."""


@dataclass(frozen=True, slots=True)
class Shape:
    """One world. Rates are shares of the steps."""

    in_log: bool
    machines: int
    steps: int
    error_ms: int
    """Wall clocks differ from the true time by up to this at first."""
    step_rate: float
    publish_rate: float
    fail_rate: float
    heard_ms: int
    """A standby hears of a record within this time."""


def draw_shape(random: Random) -> Shape:
    """The shape of a world."""
    in_log = random.random() < 0.6
    return Shape(
        in_log=in_log,
        machines=random.choice((1, 2, 2, 3)) if in_log else 1,
        steps=random.choice((40, 80, 160)),
        error_ms=random.choice((0, 0, 300, 3_000)),
        step_rate=random.choice((0.0, 0.0, 0.05, 0.2)),
        publish_rate=0.5,
        fail_rate=random.choice((0.05, 0.15)),
        heard_ms=random.choice((300, 1_700, 40_000)),
    )


class Machine:
    """One machine: a wall clock with an error, and the kernel's counts since its boot."""

    def __init__(self, world: World, number: int, error_ms: int) -> None:
        self.world, self.number, self.error_ms = world, number, error_ms
        self.boots = 0
        self.booted_ms = world.now_ms - world.random.randrange(1_000, 10 * DAY_MS)
        self.heard: Heard | None = None
        self.anchor: Anchor | None = None

    def boot(self) -> None:
        self.boots += 1
        self.booted_ms = self.world.now_ms
        self.heard = None

    def wall(self) -> int:
        return self.world.now_ms + self.error_ms

    def steady(self) -> int:
        return self.world.now_ms - self.booted_ms

    def boot_id(self) -> bytes:
        return bytes([self.number + 1, self.boots % 256]) * 8

    def kernel(self) -> Boot:
        return Boot(self.boot_id().hex(), (self.steady(), self.steady()))

    def counts(self, store_ms: int) -> Anchor:
        return Anchor(store_ms, self.kernel().name, self.kernel().counts_ms)

    def instant(self) -> Instant:
        return Instant(float(self.steady()), self.wall())


@dataclass(slots=True)
class Pending:
    """A message that was accepted. ``due_ms``: its end by the stores' time; ``true_ms``: by the leader's clock."""

    due_ms: int
    true_ms: int
    early_ms: int
    """By how much it may be early until now, more than a millisecond."""
    late_ms: int
    since_ms: int
    facts: str


class World(SeededWorld):
    """One service whose leader changes, from start to end."""

    def __init__(self, seed: int, shape: Shape, random: Random) -> None:
        super().__init__(seed, random)
        self.shape = shape
        self.now_ms = EPOCH_MS
        error_ms = shape.error_ms
        self.machines = [Machine(self, number, random.randint(-error_ms, error_ms)) for number in range(shape.machines)]
        self.leader = self.machines[0]
        self.pending: list[Pending] = []
        self.last_ms = 0
        self.recorded_ms = 0
        """The true time of the newest record."""
        self.unrecorded_gain_ms = 0
        """By how much starts went too far since: the next one may know better."""
        self.header: Header | None = None
        self.log_error_ms = 0
        """The log's time less the true time, at ``header``."""
        self.anchor_error_ms = 0
        self.leaderships = 0
        self.made_ms: dict[Anchor, int] = {}
        """The true time at which the stores' time was that of an anchor."""
        self.looked_ms = self.started_ms = self.now_ms
        self.clock = self._new_clock()
        self.log_clock = LogClock.begin(None, self.leader.boot_id(), self.leader.instant())
        self._look()

    def run(self) -> WorldReport:
        """Live through the steps, then wait until every message has ended."""
        shape = self.shape
        for _ in range(shape.steps):
            drawn = self.random.random()
            if drawn < shape.publish_rate:
                self.publish()
            elif drawn < shape.publish_rate + shape.fail_rate:
                self.fail()
            elif drawn < shape.publish_rate + shape.fail_rate + shape.step_rate:
                self.step_a_wall_clock()
            self.advance(self._about(self.random.choice(PAUSES_MS)))
        self.advance(5 * DAY_MS + max([one.due_ms - self.clock() for one in self.pending], default=0) * 65 // 64)
        if self.pending:
            raise PromiseBroken(f"lateness is bounded: never ended: {self.pending[0].facts}")
        return self.report()

    def _about(self, ms: int) -> int:
        return self.random.randint(1, 2 * ms)

    # -- time passes --------------------------------------------------------------------------------------------------

    def advance(self, ms: int) -> None:
        """Let the leader run for so long. It looks at its clocks when it is time."""
        end_ms = self.now_ms + ms
        idle = not self.pending
        while self.now_ms < end_ms:
            pause_ms = max(LOOK_MS, (end_ms - self.now_ms) // 2)  # what it sees in a long pause changes nothing
            to_ms = end_ms if idle else min(end_ms, self.looked_ms + pause_ms)
            self._advance(max(to_ms, self.now_ms + 1))
            if self.now_ms - self.looked_ms >= LOOK_MS:
                self._look()
                idle = not self.pending

    def _look(self) -> None:
        self.looked_ms = self.now_ms
        anchor = self.clock.anchor()
        self.leader.anchor = replace_fields(anchor, leader=self.leader_id().hex() if self.shape.in_log else "")
        self.anchor_error_ms = self.leader.error_ms
        self.made_ms[self.leader.anchor] = self.now_ms

    def leader_id(self) -> bytes:
        """The id of this leadership."""
        return self.leaderships.to_bytes(2, "big")

    def _advance(self, to_ms: int) -> None:
        from_ms, self.now_ms = self.now_ms, to_ms
        reached_ms = self.clock()
        ended = [one for one in self.pending if one.due_ms <= reached_ms]
        self.pending = [one for one in self.pending if one.due_ms > reached_ms]
        for one in ended:
            self._ends(one, self._moment_of(one.due_ms, from_ms, to_ms))
        self.now_ms = to_ms

    def _moment_of(self, due_ms: int, from_ms: int, to_ms: int) -> int:
        """The first moment at which the stores' time is ``due_ms``."""
        low_ms, high_ms = from_ms, to_ms
        while low_ms < high_ms:
            self.now_ms = (low_ms + high_ms) // 2
            low_ms, high_ms = (low_ms, self.now_ms) if self.clock() >= due_ms else (self.now_ms + 1, high_ms)
        return low_ms

    def _ends(self, one: Pending, at_ms: int) -> None:
        self.states += 1
        late_ms = at_ms - one.true_ms
        waited_ms = max(0, self.started_ms - one.true_ms)  # for a leader
        slow_ms = (at_ms - one.since_ms >> PACE_BITS) + 2
        self.seen["ended" if late_ms <= 1 else "ended late"] += 1
        self.digest.update(f"{at_ms - EPOCH_MS} {one.facts}\n".encode())
        if late_ms < -1 - one.early_ms:
            raise PromiseBroken(f"no message is early: {-late_ms} ms, allowed {1 + one.early_ms}: {one.facts}")
        allowed_ms = max(waited_ms, one.late_ms + slow_ms)
        if late_ms > allowed_ms:
            raise PromiseBroken(f"lateness is bounded: {late_ms} ms, allowed {allowed_ms}: {one.facts}")

    # -- what clients do ----------------------------------------------------------------------------------------------

    def publish(self) -> None:
        """A message with a time of its own is accepted, and recorded."""
        delay_ms, ttl = self._about(self.random.choice(DELAYS_MS)), self.random.random() < 0.4
        wanted_ms = max(1, self.leader.wall() + delay_ms)
        service = cast(StoreService, SimpleNamespace(_clock=self.clock))
        command = Publish(0, "s", "", [Message(ttl_ms=delay_ms) if ttl else Message(deliver_at_ms=wanted_ms)])
        vars(service)["clock_behind_ms"] = cast(Callable[[object], int], StoreService.clock_behind_ms.fget)(service)
        if service.clock_behind_ms:
            self.seen["converted"] += not ttl
            StoreService._convert_times(service, command)
        at_ms = self.clock()
        due_ms = at_ms + delay_ms if ttl else command.messages[0].deliver_at_ms
        facts = f"{'ttl' if ttl else 'delay'} of {delay_ms} ms, behind {self.clock.behind_ms}, at {self.now_ms}"
        self.pending.append(Pending(due_ms, self.now_ms + delay_ms, 0, 0, self.now_ms, facts))
        self.record(at_ms)

    def record(self, at_ms: int) -> None:
        """A record goes into the log; a standby hears of it later, if the leader lives."""
        self.last_ms, self.recorded_ms, self.unrecorded_gain_ms = at_ms, self.now_ms, 0
        if not self.shape.in_log:
            return
        self.advance(self.random.choice((1, 3, OBJECT_MS)))  # until its object is made
        moment = self.log_clock.take(self.leader.instant())
        self.header = header_of(moment, self.leader.boot_id(), self.leader_id())
        self.log_error_ms = moment.time_ms - self.now_ms
        if self.random.random() < 0.1:
            return  # nobody hears of it before the next one, or the end of the leader
        self.advance(self.random.randint(1, self.shape.heard_ms))
        for machine in self.machines:
            if machine is not self.leader:
                machine.heard = Heard(machine.counts(at_ms), at_once=machine.heard is not None)
                self.made_ms[machine.heard.anchor] = self.recorded_ms

    # -- what goes wrong ----------------------------------------------------------------------------------------------

    def step_a_wall_clock(self) -> None:
        """Somebody sets a wall clock."""
        machine = self.random.choice(self.machines)
        machine.error_ms += self.random.choice((-1, 1)) * self._about(self.random.choice(STEPS_MS))
        machine.error_ms = max(machine.error_ms, 1_000_000_000_000 - EPOCH_MS)
        self.seen["wall clock set"] += 1
        if self.random.random() < 0.3:
            machine.error_ms = 0
            self.seen["wall clock set right"] += 1

    def fail(self) -> None:
        """The leader ends; the same process, its machine after a boot, or another machine goes on."""
        before, was_ms, at_ms = self.leader, self.clock(), self.now_ms
        if self.random.random() < 0.3 and not self.shape.in_log:
            self._look()  # it was stopped in order
        how = self.random.choice(("start", "boot", "take-over") if len(self.machines) > 1 else ("start", "boot"))
        down_ms = self._about(self.random.choice((400, 3_000, 40_000, 1_500_000) if how != "start" else (400, 9_000)))
        if how == "boot":
            self.now_ms += down_ms
            before.boot()
            if self.random.random() < self.shape.step_rate:
                self.step_a_wall_clock()
            self.now_ms += self._about(self.random.choice((2_000, 2_000, 900_000)))
        else:
            self.now_ms += down_ms
        before.heard = None
        if how == "take-over":
            self.leader = self.random.choice([machine for machine in self.machines if machine is not before])
        self.seen[how] += 1
        heard, self.leader.heard = self.leader.heard, None
        self.leaderships += 1
        self._start(heard, was_ms, at_ms, how)

    def _new_clock(self) -> StoreClock:
        machine = self.leader
        return StoreClock(wall=machine.wall, steady=machine.steady, boot=machine.kernel)

    def _start(self, heard: Heard | None, was_ms: int, at_ms: int, how: str) -> None:
        machine = self.leader
        own, by_log = machine.anchor, None
        anchors = used = [] if own is None else [own]
        error_ms, most_ms = 0, 0
        self.clock = self._new_clock()
        if self.shape.in_log:
            self.log_clock = LogClock.begin(self.header, machine.boot_id(), machine.instant())
            claimed = self.log_clock.take(machine.instant())
            self.now_ms += self.random.randint(1, 2_000)  # until the copy is up to date
            if self.header is None:
                self.header = header_of(claimed, machine.boot_id(), self.leader_id())  # of the first start
            newest, log_ms = self.header if self.last_ms else None, self.log_clock.at(machine.instant()).time_ms
            known = in_log.known_time(self.last_ms, log_ms, newest, heard, own)
            used, by_log = known
            anchors = [own] if own is not None and newest and own.leader == newest.leader_id.hex() else []
            if heard is not None and heard.anchor.store_ms == self.last_ms:
                anchors.append(heard.anchor)
            most_ms = HEARD_MS if heard is not None and heard.at_once else TRUSTED_MS
            error_ms = log_ms - self.now_ms - self.log_error_ms
            self.seen["heard" if heard is not None else "not heard"] += 1
        elif how == "boot":
            error_ms, most_ms = machine.error_ms - self.anchor_error_ms, REBOOT_MS
        self.clock.start(self.last_ms, *used, by_log=by_log)
        self.looked_ms = self.started_ms = self.now_ms
        if not self.last_ms:  # new stores: they have nothing that could end early
            self.pending.clear()
            self._look()
            return
        self._judge_start(was_ms, at_ms, how, error_ms=error_ms, most_ms=most_ms, anchors=anchors)
        self._look()

    def _judge_start(
        self, was_ms: int, at_ms: int, how: str, *, error_ms: int, most_ms: int, anchors: list[Anchor]
    ) -> None:
        machine, passed_ms = self.leader, self.now_ms - at_ms
        gained_ms = self.clock() - was_ms - passed_ms
        known_ms = self.last_ms
        for anchor in anchors:
            counted_ms = machine.steady() - anchor.counts_ms[0] if anchor.boot == machine.kernel().name else 0
            known_ms = max(known_ms, anchor.store_ms + counted_ms)
        if self.clock() > max(known_ms, machine.wall()):
            raise PromiseBroken(f"a jump has a bound: a {how} went {self.clock() - machine.wall()} ms beyond the clock")
        lost_ms, bound_ms = max(0, -gained_ms), self._may_lose(was_ms, at_ms, how, most_ms, anchors)
        if lost_ms > bound_ms + self.unrecorded_gain_ms:
            raise PromiseBroken(f"lateness is bounded: a {how} lost {lost_ms} ms, allowed {bound_ms}")
        self.seen["lost time"] += lost_ms > 300
        self.seen["gained time"] += gained_ms > 300
        self.unrecorded_gain_ms += max(0, gained_ms)
        for one in self.pending:
            one.early_ms += max(0, min(error_ms, most_ms)) + START_MS
            one.late_ms += lost_ms
        self.states += 1

    def _may_lose(self, was_ms: int, at_ms: int, how: str, most_ms: int, anchors: list[Anchor]) -> int:
        """How much of the time until now a start may not count."""
        shape, machine = self.shape, self.leader
        unrecorded_ms = self.now_ms - self.recorded_ms
        slow_ms = (unrecorded_ms >> PACE_BITS) + 2
        is_right = not shape.step_rate and not shape.error_ms
        if shape.in_log:
            # The object of a record is made a little later. A clock that is behind the log's time says less than has
            # passed, and one that was set may say anything: then only what this machine counted is known.
            unknown_ms = min([unrecorded_ms, *(self._uncounted_ms(anchor) for anchor in anchors)])
            is_known = is_right and unknown_ms <= most_ms
            return min(unknown_ms, OBJECT_MS) + slow_ms if is_known else unknown_ms + slow_ms
        if how == "start":
            return slow_ms
        unknown_ms = self.now_ms - at_ms + LOOK_MS
        if not shape.step_rate and unknown_ms - machine.steady() <= REBOOT_MS and was_ms <= at_ms + machine.error_ms:
            return slow_ms
        return unknown_ms + slow_ms

    def _uncounted_ms(self, anchor: Anchor) -> int:
        """The time between the record or look of an anchor and now that this machine has not counted."""
        counted = anchor.boot == self.leader.kernel().name
        counted_ms = self.leader.steady() - anchor.counts_ms[0] if counted else 0
        return max(0, self.now_ms - self.made_ms[anchor] - counted_ms)


def header_of(moment: Moment, boot_id: bytes, leader_id: bytes) -> Header:
    """What the log's clock and the stores read of a header."""
    scope = SimpleNamespace(boot_id=boot_id)
    header = SimpleNamespace(**moment._asdict(), doubts_clock=moment.doubted, scope=scope, leader_id=leader_id)
    return cast(Header, header)


def run_world(seed: int, **focus: object) -> WorldReport:
    """The world of one seed. ``focus`` sets fields of its shape. *Raises*: PromiseBroken."""
    random = Random(seed)
    shape = draw_shape(random)
    return World(seed, replace(shape, **focus), random).run()  # type: ignore[arg-type]


# -- mutants ----------------------------------------------------------------------------------------------------------

MUTANTS: Final = Mutants(run_world, seeds_max=150)
FILES: Final = {"in_log": False, "machines": 1}
STANDBY: Final = {"in_log": True, "machines": 2, "step_rate": 0.0, "error_ms": 0}
HOSTILE: Final = {"step_rate": 0.2, "fail_rate": 0.15}


def _paced_both_ways(passed_ms: int, aim_ms: int) -> int:
    step_ms = passed_ms >> PACE_BITS
    return passed_ms + (min(aim_ms, step_ms) if aim_ms > 0 else max(aim_ms, -step_ms))


MUTANTS.add(
    "catches_up_by_running_faster",
    "no message is early",
    (clock_module, "_paced", _paced_both_ways),
    (clock_module, "_aim", lambda behind_ms: behind_ms if abs(behind_ms) <= TRUSTED_MS else 0),
    focus=FILES,
)
MUTANTS.add(
    "a_second_counts_as_equal",
    "lateness is bounded",
    (clock_module, "EQUAL_MS", 1_000),
    focus={"in_log": True, "error_ms": 300, "step_rate": 0.0},
)
MUTANTS.add(
    "any_clock_is_believed_at_a_take_over",
    "no message is early",
    (in_log, "HEARD_MS", TRUSTED_MS),
    focus=STANDBY | HOSTILE,
)
MUTANTS.add(
    "any_clock_is_believed_after_a_boot",
    "no message is early",
    (clock_module, "REBOOT_MS", TRUSTED_MS),
    focus=FILES | HOSTILE,
)


@MUTANTS.breaks("lateness is bounded", "known_time", in_log, focus=STANDBY)
def goes_on_from_when_it_heard(last_ms: int, *known: Any) -> tuple[list[Anchor], ByLog | None]:
    """A standby does not count the time before it heard the last record."""
    return _known_time(last_ms, *known)[0], ByLog(last_ms, 0)


@MUTANTS.breaks("lateness is bounded", "known_time", in_log, focus=STANDBY | {"machines": 1, "publish_rate": 0.1})
def last_record_alone_is_known(last_ms: int, log_ms: int, newest: Header | None, *_: object) -> Any:
    """A machine whose stores were idle for more than a day goes on from their last record."""
    return _known_time(last_ms, log_ms, newest, None, None)


@MUTANTS.breaks("a jump has a bound", "known_time", in_log, focus={"in_log": True, "machines": 3, "steps": 400})
def counts_under_another_leader(
    last_ms: int, log_ms: int, newest: Header | None, heard: Heard | None, own: Anchor | None
) -> tuple[list[Anchor], ByLog | None]:
    """A machine counts from its own leadership, over that of another machine."""
    known = _known_time(last_ms, log_ms, newest, heard, own)
    return known[0] if own is None else [*known[0], own], known[1]


@MUTANTS.breaks("a jump has a bound", "known_time", in_log, focus=STANDBY | {"error_ms": 3_000, "steps": 400})
def counts_from_an_earlier_record(
    last_ms: int, log_ms: int, newest: Header | None, heard: Heard | None, own: Anchor | None
) -> tuple[list[Anchor], ByLog | None]:
    """A standby counts from a record before the last one, and the leader has gone slower since."""
    known = _known_time(last_ms, log_ms, newest, heard, own)
    return known[0] if heard is None else [*known[0], heard.anchor], known[1]


@MUTANTS.breaks("no message is early", "anchor", StoreClock, focus=FILES | HOSTILE)
def difference_is_not_kept(self: StoreClock) -> Anchor:
    """A start after a boot takes the machine's time, of which the stores were behind before."""
    return _without_difference(_anchor(self))


@MUTANTS.breaks("a jump has a bound", "_continued", StoreClock, focus={"in_log": True, "machines": 2} | HOSTILE)
def goes_beyond_the_clock(
    self: StoreClock, last_ms: int, anchors: Sequence[Anchor], by_log: ByLog | None, wall_ms: int
) -> int:
    """A start goes beyond the machine's clock."""
    return _continued(self, last_ms, anchors, by_log, wall_ms if by_log is None else 1 << 60)


@MUTANTS.breaks("lateness is bounded", "_since", clock_module, focus=FILES)
def nothing_passes_while_stopped(*_: object) -> int:
    """What passes between an end and a start of the same boot does not count."""
    return 0


_anchor = StoreClock.anchor
_known_time = in_log.known_time
_continued = StoreClock._continued


def _without_difference(anchor: Anchor) -> Anchor:
    """The anchor without the difference of the clocks."""
    return Anchor(anchor.store_ms, anchor.boot, anchor.counts_ms)


EVENTS: Final = (
    *("boot", "converted", "ended", "ended late", "gained time", "heard", "lost time", "not heard", "start"),
    *("take-over", "wall clock set", "wall clock set right"),
)

KINDS: Final = {"stores-clocks": Kind(run_world, "ends and starts", EVENTS, 100, MUTANTS)}
