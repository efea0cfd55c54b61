"""Worlds in which no clock can be trusted: retention and mirrors of logs whose leaders have wrong wall clocks.

Machines boot several times, each with a boot clock of its own. Wall clocks step by a second to 400 days, are wrong from
the start, and are accepted, rightly or not, by an operator or by the store's clock. Virtual machines stand still, and
their clocks with them. All of it draws from a random source of its own.

The judge knows the true time at which each object was sent. It holds the log's two times against it at the moment an
object lands, each truncation when a leader decides it, and each hold when it ends. Once faults have stopped, clocks
step again, and each time the log must be truncated past everything that it held at the step.
"""
# pyright: reportIncompatibleMethodOverride=false

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any, Final

import msgspec
from tests.worlds.harness import WorldReport, patched
from tests.worlds.log.copying import CopyWorld
from tests.worlds.log.node import EPOCH_MS, Node
from tests.worlds.log.node_store import NodeStore
from tests.worlds.log.retention import Operator
from tests.worlds.log.shape import OFTEN_MS, WorldShape, draw_shape
from tests.worlds.log.world import World

from holdfast.commit import clock_watch
from holdfast.commit.clock_watch import ClockWatch
from holdfast.commit.format.batch import AddressScope, Header, decode_header
from holdfast.commit.format.log_clock import STEP_MS_MAX, Moment
from holdfast.commit.leadership.accepted_clocks import Accepted, accepted_of
from holdfast.commit.service import CommitService
from holdfast.commit.stages.release import PROOF_MS_MAX
from holdfast.objects.probe import PREFIX as PROBES
from holdfast.objects.store_clock import AGREES_MS
from holdfast.retention.generations import PREFIX as GENERATIONS
from holdfast.retention.policies import (
    Content,
    Generation,
    Hold,
    Policy,
    decode_generation,
    release_hold,
    remove_policy,
    set_hold,
    set_policy,
)
from holdfast.values import Instant, Slot, Version

if TYPE_CHECKING:
    _Base = World
else:
    _Base = object

__all__ = ["run_clock_copies", "run_clocks"]

DAY_MS: Final = 86_400_000.0
STEPS_MS: Final = (1_000.0, 5_000.0, 11_000.0, 60_000.0, 3_600_000.0, DAY_MS, 30 * DAY_MS, 400 * DAY_MS)
AGES_S: Final = (0.05, 0.15, 0.4)
HEALED_STEPS: Final = 3
REQUIRED_MS: Final = 20_000.0
"""A truncation must come this soon after a step. The oldest age is fifty times less."""
FOLLOWED_MS_MAX: Final = 2 * STEP_MS_MAX + 2_000
"""From one end to the other of what is not a step, and the rounding of ``ahead_s``."""
STORE_MS: Final = AGREES_MS + 30_000.0
"""A clock that the store accepted is at most this wrong: requests take time."""
EVENTS: Final = 250
LOOK_MS: Final = 40.0
"""How often a leader applies the policies."""


class ClockNode(Node):
    """A machine with a boot clock of its own and a wall clock that is set."""

    def __init__(self, world: ClockWorld, number: int) -> None:
        super().__init__(world, number)
        self._clocks = world
        self._boots = 0
        self._booted_ms = 0.0
        self._lag_ms = 0.0
        self._stands_at_ms: float | None = None
        """While the virtual machine stands still."""
        self._stands = 0
        self.boots(world.wrong_by_ms())

    def boots(self, wrong_ms: float) -> None:
        """The machine starts again; its wall clock is wrong by so much."""
        self._boots += 1
        self._booted_ms, self._lag_ms, self._stands_at_ms = self.world.agenda.now, 0.0, None
        self.wall_skew_ms = wrong_ms
        self.scope = AddressScope(bytes([self.number + 1, self._boots % 256]) * 8, self.number + 1)

    def now(self) -> Instant:
        """Both clocks stand still while the machine does."""
        true_ms = self.world.agenda.now if self._stands_at_ms is None else self._stands_at_ms
        seen_ms = true_ms - self._lag_ms
        return Instant(seen_ms - self._booted_ms, int(EPOCH_MS + seen_ms + self.wall_skew_ms))

    def stand_still(self, ms: float) -> None:
        """The virtual machine does not run for a while."""
        if self._stands_at_ms is None:
            self._stands += 1
            self._stands_at_ms = self.world.agenda.now
            self.world.agenda.after(ms, None, self._runs_again, self._stands)
            self.paused_until = max(self.paused_until, self.world.agenda.now + ms)

    def _runs_again(self, stands: int) -> None:
        if stands == self._stands:
            self.run_again()

    def run_again(self) -> None:
        """It runs, and its clocks go on from where they stood."""
        if self._stands_at_ms is not None:
            self._lag_ms += self.world.agenda.now - self._stands_at_ms
            self._stands_at_ms = None

    def set_right(self) -> None:
        """The wall clock shows the true time."""
        self.wall_skew_ms = self._lag_ms

    async def _take_the_lead(self) -> CommitService:
        service = await super()._take_the_lead()
        judge = _Decisions(self._clocks, service)
        vars(service)["moment"], vars(service)["truncate"] = judge.moment, judge.truncate
        watch = ClockWatch(service, NodeStore(self, self._loop), self.now)
        self._loop.create_task(watch.run()).add_done_callback(self._look_at)
        return service


class _Decisions:
    """What one leader decides about the log, and the times by which it does."""

    def __init__(self, world: ClockWorld, service: CommitService) -> None:
        self._world = world
        self._moment, self._truncate = service.moment, service.truncate
        self._author = f"leader {service.leader_id}"
        self._latest_ms = self._lived_ms = 0
        world.decisions.append(self)

    def moment(self) -> Moment:
        """As the service does."""
        moment = self._moment()
        self._latest_ms = max(self._latest_ms, moment.time_ms)
        self._lived_ms = max(self._lived_ms, moment.lived_ms)
        return moment

    def ages_of(self, header: Header) -> dict[str, float]:
        """How old an object is now, by each time that counts."""
        true_ms = self._world.agenda.now - self._world.sent_ms(header)
        times_ms = self._latest_ms - header.time_ms, self._lived_ms - header.lived_ms
        return {"true": true_ms, "time_ms": times_ms[0], "lived_ms": times_ms[1]}

    async def truncate(self, through: Version) -> None:
        """As the service does, where everything that goes is old."""
        world, cut = self._world, self._world.holder_of(through)
        permit = next(each for each in world.generations if each.truncate_through >= through)
        ages = [world.min_age_seconds]
        if permit.author == self._author:
            ages += [policy.max_age_seconds for policy in permit.policies.values() if policy.max_age_seconds]
        for age_s in ages:
            for clock, age_ms in self.ages_of(cut).items():
                if age_ms < age_s * 1000.0:
                    world.promises.break_("nothing young is removed", f"{cut.slot} {clock} {age_ms} {age_s}")
        world.seen["truncations_judged"] += 1
        await self._truncate(through)


class AgesOperator(Operator):
    """An operator who limits the log by age, and readers who hold it for a while, some of them with a wrong clock."""

    rests = False
    """Once faults have stopped: it wants one policy of age, and no hold."""

    def deleted(self, slot: int) -> None:
        """As in every world, and what goes is old."""
        super().deleted(slot)
        header = self._world.promises.headers.get(slot)
        if header is not None:
            world: Any = self._world
            world.judge_deletion(header)

    def _ask(self, node: Node) -> None:
        world: Any = self._world
        draw: Random = world.clock_draw
        if self.rests:
            self._settle(node, world.content)
            return
        name = draw.choice(("p1", "p1", "p2", "h1", "h1", "h2"))
        head = self._world.promises.end_version()
        if name in ("p1", "p2"):
            policy = Policy(max_age_seconds=draw.choice(AGES_S))
            is_set = draw.random() < 0.7 or name not in world.content.policies
            self._change(node, name, set_policy(name, policy, head=head) if is_set else remove_policy(name), None)
            return
        if draw.random() < 0.2:
            self._change(node, name, release_hold(name), None)
            return
        version, lasts_ms = max(1, head - draw.choice((0, 0, 3, 30))), draw.choice((60, 200, 600))
        hold = Hold(from_version=version, lasts_ms=lasts_ms)
        if draw.random() < 0.3:  # as earlier versions did, by the reader's own clock
            hold = msgspec.structs.replace(hold, expires_ms=node.now().wall_ms + lasts_ms)
        self._change(node, name, set_hold(name, hold), None)

    def _settle(self, node: Node, content: Content) -> None:
        if content.policies.keys() - {"p1"}:
            self._change(node, "p2", remove_policy("p2"), None)
        elif "p1" not in content.policies:
            self._change(node, "p1", set_policy("p1", Policy(max_age_seconds=AGES_S[0]), head=1), None)


class ClockWorld(_Base):
    """A world whose clocks are wrong. ``events``: how long faults last."""

    node_kind = ClockNode
    operator_kind = AgesOperator

    def __init__(self, seed: int, **shape: Any) -> None:
        self.clock_draw = Random(f"{seed} clocks")
        self.min_age_seconds = self.clock_draw.choice(AGES_S)
        self.has_store_clock = self.clock_draw.random() < 0.4
        self.starts_right = self.clock_draw.random() < 0.3
        self._sent: dict[bytes, float] = {}
        self._made_ms: dict[str, float] = {}
        self._judged: list[Header] = []
        self._held_since_ms: dict[str, float] = {}
        self._accepted: list[Accepted] = []
        self.decisions: list[_Decisions] = []
        self.generations: list[Generation] = []
        super().__init__(seed, events=EVENTS, **shape)

    # -- clocks -------------------------------------------------------------------------------------------------------

    def wrong_by_ms(self) -> float:
        """How wrong a wall clock is at a boot."""
        draw = self.clock_draw
        return 0.0 if self.starts_right or draw.random() < 0.4 else draw.choice((-1, 1)) * draw.choice(STEPS_MS)

    def _begin(self) -> None:
        super()._begin()
        self.agenda.after(30.0, None, self._clocks_go_wrong)

    def _clocks_go_wrong(self) -> None:
        if self.network.healed:
            return
        draw, node = self.clock_draw, self.clock_draw.choice(self.nodes)
        assert isinstance(node, ClockNode)
        match draw.choice(("step", "step", "small step", "set right", "reboot", "stand still", "accept", "accept")):
            case "step":
                self._step_clock(node)
            case "small step":
                node.wall_skew_ms += draw.choice((-9_000.0, -1_000.0, 1_000.0, 9_000.0))
            case "set right":
                node.set_right()
            case "reboot":
                self._reboot(node, self.wrong_by_ms())
            case "stand still":
                self.seen["machine_stood_still"] += 1
                node.stand_still(draw.choice((50.0, 1_000.0, 10_000.0)) * draw.random())
            case _:
                self.accept_newest()
        self.agenda.after(20.0 + 200.0 * draw.random(), None, self._clocks_go_wrong)

    def _step_clock(self, node: ClockNode) -> None:
        step_ms = self.clock_draw.choice((-1, 1)) * self.clock_draw.choice(STEPS_MS)
        node.wall_skew_ms += step_ms
        self.seen["step_back" if step_ms < 0 else "step_forward"] += 1

    def _reboot(self, node: ClockNode, wrong_ms: float) -> None:
        self.seen["reboot"] += 1
        node.crash()
        node.boots(wrong_ms)
        self.agenda.after(20.0 + 200.0 * self.clock_draw.random(), node, node.start)

    def accept_newest(self) -> None:
        """The operator accepts the wall clock that the newest object shows, right or wrong."""
        head = self.promises.walker.head
        if head is not None:
            record = accepted_of(head)
            self._accepted.append(record)
            self.store.others.setdefault(record.key, msgspec.json.encode(record))
            self.seen["accepted_in_doubt"] += head.doubts_clock

    # -- the judge ----------------------------------------------------------------------------------------------------

    def sends(self, slot: Slot, data: bytes) -> None:
        """An object exists from here on, though it may land late or never."""
        self._sent.setdefault(decode_header(data, slot=slot).nonce, self.agenda.now)

    def sent_ms(self, header: Header) -> float:
        """The true time of an object."""
        return self._sent[header.nonce]

    def holder_of(self, version: int) -> Header:
        """The object that ends with a version. Later ones without transactions end with it as well."""
        return next(each for each in self._judged if each.last_version == version)

    def judge_deletion(self, header: Header) -> None:
        """An object is about to go: it is old, and some leader could know it."""
        ages = [each.ages_of(header) for each in self.decisions]
        for clock in ("true", "time_ms", "lived_ms"):
            age_ms = max(each[clock] for each in ages)
            if age_ms < self.min_age_seconds * 1000.0:
                self.promises.break_("nothing younger than min_age_seconds goes", f"{header.slot} {clock} {age_ms}")

    def _landed(self, *what: Any) -> Any:
        found = super()._landed(*what)
        headers = self.promises.headers
        if len(headers) > len(self._judged):
            for header in [*headers.values()][len(self._judged) :]:
                self._judge_times(header)
                self._judged.append(header)
        return found

    def _judge_times(self, header: Header) -> None:
        if not self._judged:
            return
        first, before, break_ = self._judged[0], self._judged[-1], self.promises.break_
        true_ms, lived_ms = self.sent_ms(header) - self.sent_ms(before), header.lived_ms - before.lived_ms
        passed_ms = header.time_ms - before.time_ms
        facts = f"{header.slot}: {lived_ms}, {passed_ms}, true {true_ms}"
        if lived_ms < 0 or passed_ms < 0:
            break_("the times of a log never fall", facts)
        if lived_ms > true_ms + 1:
            break_("lived_ms never exceeds the true age", facts)
        boots = self.seen["reboot"] + len(self.nodes)
        if header.lived_ms - first.lived_ms > self.sent_ms(header) - self.sent_ms(first) + boots:
            break_("lived_ms never exceeds the true age of the log", facts)
        is_same_boot = before.scope.boot_id == header.scope.boot_id
        if is_same_boot and passed_ms - true_ms > FOLLOWED_MS_MAX and not self._is_accepted(header):
            break_("a step is not followed before it is accepted", facts)
        if header.truncated_through > before.truncated_through:
            age_ms = header.lived_ms - self.holder_of(header.truncated_through).lived_ms
            if age_ms < self.min_age_seconds * 1000.0:
                break_("nothing younger than min_age_seconds by lived_ms is truncated", f"{header.slot}: {age_ms}")
            self.seen["truncated"] += 1
        self.seen["doubted"] += header.doubts_clock
        self.seen["lived_in_one_boot"] += is_same_boot and header.claim != before.claim

    def _is_accepted(self, header: Header) -> bool:
        shown = accepted_of(header)
        by_operator = any(
            each.boot_id == shown.boot_id and abs(each.booted_ms - shown.booted_ms) <= FOLLOWED_MS_MAX
            for each in self._accepted
        )
        wrong_ms = header.time_ms + header.ahead_s * 1000 - EPOCH_MS - self.sent_ms(header)
        return by_operator or (self.has_store_clock and abs(wrong_ms) <= STORE_MS)

    def made(self, key: str) -> None:
        """An object beside the log was created."""
        self._made_ms[key] = self.agenda.now
        if key.startswith(GENERATIONS):
            generation = decode_generation(self.store.others[key], key)
            self._judge_holds(generation)
            self.generations.append(generation)

    @property
    def content(self) -> Content:
        """The policies and holds in force."""
        return Content.of(self.generations[-1] if self.generations else None)

    def _judge_holds(self, generation: Generation) -> None:
        """A leader ends a hold only when its time is over."""
        before, now_ms = self.content.holds, self.agenda.now
        for name, hold in before.items():
            if name in generation.holds or not generation.author.startswith("leader "):
                continue
            if now_ms - self._held_since_ms[name] < hold.lasts_ms:
                self.promises.break_("a hold lasts as long as it says", f"{name} since {self._held_since_ms[name]}")
            self.seen["hold_ended"] += 1
        for name, hold in generation.holds.items():
            begins_now = hold.expires_lived_ms is None and before.get(name) != hold
            if name not in before or begins_now:
                self._held_since_ms[name] = now_ms
            is_over = now_ms - self._held_since_ms[name] >= hold.lasts_ms
            if hold.from_version < generation.truncate_through and not is_over:
                self.promises.break_("what a hold needs is not truncated", f"{name} {generation.truncate_through}")

    def modified_ms(self, key: str) -> int | None:
        """The store's clock, where it has one, is right."""
        made_ms = self._made_ms.get(key)
        if not self.has_store_clock or made_ms is None or not key.startswith(PROBES):
            return None
        return int(EPOCH_MS + made_ms)

    # -- once faults have stopped -------------------------------------------------------------------------------------

    def _heal(self) -> None:
        for node in self.nodes:
            assert isinstance(node, ClockNode)
            node.run_again()
        super()._heal()

    def _healed(self) -> None:
        """Clocks step again, and each time everything that the log held is truncated."""
        operator = self.operator
        assert isinstance(operator, AgesOperator)
        operator.rests = True
        for number in range(HEALED_STEPS):
            accepts = self._steps_at_the_end(number)
            version, until = self.promises.end_version(), self.agenda.now + REQUIRED_MS
            accept_ms = self.agenda.now
            while self.promises.walker.head is None or self.promises.walker.head.truncated_through < version:
                self._live(until, "retention goes on after a step")
                if accepts and self.agenda.now > accept_ms:
                    accept_ms = self.agenda.now + 300.0
                    self.accept_newest()
            self.seen["retention_went_on"] += 1

    def _steps_at_the_end(self, number: int) -> bool:
        """One step, or a boot with a wrong clock. Whether an operator accepts it."""
        draw = self.clock_draw
        nodes = [node for node in self.nodes if isinstance(node, ClockNode)]
        match draw.choice(("step", "accepted step", "accepted step", "reboot", "set right")) if number else "step":
            case "reboot":
                wrong_ms = self.wrong_by_ms()
                for node in nodes:
                    self._reboot(node, wrong_ms)
            case "set right":
                for node in nodes:
                    node.set_right()
            case "step":
                for node in nodes:
                    self._step_clock(node)
            case _:
                for node in nodes:
                    self._step_clock(node)
                return True
        return False


class RetentionClockWorld(ClockWorld, World):
    """Leaders who truncate, with wrong clocks."""


class CopyClockWorld(ClockWorld, CopyWorld):
    """Mirrors and promotions of such a log; who leads the copy has a wrong clock as well."""


@contextmanager
def _quick_watch() -> Generator[None]:
    """Leaders look at their clocks as often as at their policies."""
    with patched((clock_watch, "LOOK_SECONDS", 0.1), (clock_watch, "MINUTE_MS", 500.0)):
        yield


def _with_retention(seed: int, play: Callable[[int, WorldShape], World]) -> WorldReport:
    number = seed
    while True:
        shape = draw_shape(Random(number))
        if shape.retention and shape.look_ms == OFTEN_MS and shape.proof_ms >= PROOF_MS_MAX:
            shape = replace(shape, look_ms=LOOK_MS, latency_ms=2.0, clients=3)
            with _quick_watch():
                return play(number, shape).run()
        number += 1_000_003


def run_clocks(seed: int) -> WorldReport:
    """The world of one seed: retention."""
    return _with_retention(seed, lambda number, shape: RetentionClockWorld(number, shape=shape, check_every=1 << 60))


def run_clock_copies(seed: int) -> WorldReport:
    """The world of one seed: retention, mirrors and a promotion."""
    return _with_retention(seed, lambda number, shape: CopyClockWorld(number, shape=shape))
