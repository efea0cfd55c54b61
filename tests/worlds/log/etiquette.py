"""Worlds of a leader and of processes that would lead: which of them may claim, when, and what is written meanwhile.

They are calm and have no clients. Nodes are cut off from one another, killed, paused or started late, with the times
of real settings. The store works, so each promise is a bound in virtual time or a number of objects. Safety never
depends on any of this (``world``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Final

from tests.worlds.harness import WorldReport
from tests.worlds.log.node import Node
from tests.worlds.log.shape import FAULTS, draw_shape, protocol_width, silent
from tests.worlds.log.world import World

from holdfast.commit.leadership import signs
from holdfast.commit.leadership.evidence import LeaderAnswer, Reply
from holdfast.commit.leadership.suspension import Suspension, key_of
from holdfast.sealed import encode_sealed

__all__ = ["SCENES", "SUSPENSIONS", "run_etiquette", "run_suspensions"]

INTERVALS_MS: Final = (2_000.0, 10_000.0)
"""On a directory, and on an object store."""
INTERVALS_MISSED: Final = 2.5
PROVED_MS: Final = 2_500.0
LATENCY_MS: Final = 5.0
ANSWER_TIMEOUT_MS: Final = 2_000.0
CLAIM_MS: Final = 600.0
"""From the end of the wait until a process leads: a few requests to the store."""


class _Etiquette(World):
    """One scene, drawn from a seed."""

    def __init__(self, seed: int) -> None:
        drawn = draw_shape(Random(seed))
        self.interval_ms = Random(seed).choice(INTERVALS_MS)
        persist = replace(drawn.rules.persist, give_up_after_ms=600_000.0, retries_max=None)
        shape = replace(
            drawn,
            span=8,
            nodes=3,
            clients=0,
            rules=replace(drawn.rules, persist=persist),
            rates=dict.fromkeys(FAULTS, 0.0),
            latency_ms=LATENCY_MS,
            retention=False,
            sign_interval_ms=self.interval_ms,
            question_ms=62.5,
            idle_check_ms=5_000.0,
            proof_ms=10_000.0,
        )
        super().__init__(seed, shape=shape)
        self.answer_timeout_ms = ANSWER_TIMEOUT_MS
        self.refused: set[frozenset[int]] = set()
        self.unverified: set[frozenset[int]] = set()
        self.signs_late_ms = 0.0
        self.signs_fail = False
        self.shown_ms = 0.0
        self.is_suspended = False
        self.changes = 0

    @property
    def patience_ms(self) -> float:
        """How long a leader holds the log after its last sign."""
        return INTERVALS_MISSED * self.interval_ms

    def play(self, scenes: Sequence[Scene]) -> WorldReport:
        """Raises: PromiseBroken."""
        scene = scenes[self.seed % len(scenes)]
        with protocol_width(self.shape.span), silent():
            try:
                leader, near, far = self.nodes
                leader.start()
                self.pass_time(500.0)
                self.require(leader.leading, "a process leads a new log")
                self.pass_time(self.random.random() * self.interval_ms)
                scene(self, leader, near, far)
            finally:
                for node in self.nodes:
                    node.stop()
        self.seen[scene.__name__] += 1
        return self.report()

    def pass_time(self, ms: float) -> None:
        """Let everything happen that happens in this many milliseconds."""
        until = self.agenda.now + ms
        self.agenda.after(ms, None, _nothing)
        before = self._newest_sign()
        while self.agenda.now < until:
            self._step()
            if (newest := self._newest_sign()) != before:
                before, self.shown_ms = newest, self.agenda.now

    def _newest_sign(self) -> str:
        return min((key for key in self.store.others if key.startswith(signs.PREFIX)), default="")

    def signs(self) -> int:
        """How many signs there are next to the log."""
        return sum(key.startswith(signs.PREFIX) for key in self.store.others)

    def require(self, holds: bool, promise: str, detail: str = "") -> None:
        """Break the promise unless it holds."""
        if not holds:
            self.promises.break_(promise, detail or f"at {self.agenda.now:.0f} ms")

    def require_not_deposed(self, leader: Node) -> None:
        """It leads, and no one has claimed the log after it."""
        claim = self.promises.walker.claim
        undisturbed = leader.leading and claim is not None and claim == leader.claim and claim.epoch == 1
        self.require(undisturbed, "a leader whose signs are visible is not deposed")

    def require_left_alone(self, leader: Node) -> None:
        """A start found that the leader is alive."""
        self.require_not_deposed(leader)
        self.require(self.seen["start_leader_alive"] == 1, "a start without --take-over leaves a leader alone")

    def stand_by(self, *nodes: Node) -> None:
        """Start standbys, and let them find the leader."""
        for node in nodes:
            node.start()
        self.pass_time(1_000.0 + 4_000.0 * self.random.random())

    def move_beside(self, node: Node, other: Node) -> None:
        """The two are processes of one machine and one network namespace."""
        node.scope = other.scope

    def cut_off(self, one: Node, other: Node) -> None:
        """These two do not reach one another any more."""
        self.cut.add(frozenset((one.number, other.number)))

    def refuse(self, one: Node, other: Node) -> None:
        """A connection between these two fails at once, as at a firewall."""
        self.refused.add(frozenset((one.number, other.number)))

    def distrust(self, one: Node, other: Node) -> None:
        """These two cannot verify one another, as with certificates of two authorities."""
        self.unverified.add(frozenset((one.number, other.number)))

    def separate(self, one: Node, other: Node) -> None:
        """In one of these ways, the two cannot hear one another."""
        self.random.choice((self.cut_off, self.refuse, self.distrust))(one, other)

    def unite(self) -> None:
        """All can hear one another again."""
        for apart in (self.cut, self.refused, self.unverified):
            apart.clear()

    def ask(self, asker: Node, address: str, ms_max: float, reply: Callable[[LeaderAnswer], None]) -> None:
        """As in any world, except where connections are refused or not verified."""
        node = self.node_at(address)
        both = frozenset((asker.number, node.number))
        if both in self.refused:
            self.agenda.after(self.network.delay_ms(), asker, reply, LeaderAnswer(Reply.REFUSES))
        elif both in self.unverified and node.up:
            self.agenda.after(self.network.delay_ms(), asker, reply, LeaderAnswer(Reply.UNVERIFIED))
        else:
            super().ask(asker, address, ms_max, reply)

    # -- suspensions

    def change(self, *, is_suspended: bool) -> None:
        """Somebody suspends the log, or lets it go on."""
        self.changes += 1
        change = Suspension(
            number=self.changes, is_suspended=is_suspended, author="operator", time_ms=0, nonce=str(self.changes)
        )
        self.is_suspended = is_suspended
        self.store.others[key_of(self.changes)] = encode_sealed(change)

    def began_to_lead(self, node: Node) -> None:
        """As in any world. It has looked once more since its claim."""
        self.require(not self.is_suspended, "nobody begins to lead a suspended log")
        super().began_to_lead(node)

    def require_unled(self, ms: float) -> None:
        """For this long nobody leads, and nothing is written into the log."""
        before, until = self.objects(), self.agenda.now + ms
        while self.agenda.now < until:
            self.pass_time(100.0)
            self.require(not any(node.leading for node in self.nodes), "nobody leads a suspended log")
        self.require(self.objects() == before, "nothing is written into a suspended log", f"{self.objects() - before}")

    def takes_signs(self, node: Node, key: str) -> bool:
        """As in any world, unless no sign can be created."""
        is_sign = key.startswith(signs.PREFIX) and key != signs.PREFIX
        return super().takes_signs(node, key) and not (self.signs_fail and is_sign)

    def sign_delay_ms(self, key: str) -> float:
        """A sign may be slow."""
        return self.random.random() * self.signs_late_ms if key.startswith(signs.PREFIX) else 0.0

    def write_every(self, ms: float, leader: Node) -> None:
        """The leader writes a batch now and after each such time."""
        leader.write()
        self.shown_ms = self.agenda.now
        self.agenda.after(ms, leader, self.write_every, ms, leader)

    def maybe_busy(self, leader: Node) -> None:
        """The leader is idle, or writes often or seldom."""
        every_ms = self.random.choice((0.0, 200.0, 0.9 * self.interval_ms, 1.8 * self.interval_ms))
        if every_ms:
            self.write_every(every_ms, leader)

    def objects(self) -> int:
        """How many objects the log has."""
        return len(self.store.slots)

    def require_led_within(self, ms: float, promise: str, *nodes: Node) -> None:
        """One of the nodes leads within this many milliseconds."""
        until = self.agenda.now + ms
        while self.agenda.now < until and not any(node.leading for node in nodes):
            self.pass_time(10.0)
        self.require(any(node.leading for node in nodes), promise, f"not by {self.agenda.now:.0f} ms")

    def require_led_in_time(self, extra_ms: float, *nodes: Node) -> None:
        """A dead leader is followed at most two and a half intervals after its last sign."""
        left_ms = self.shown_ms + self.patience_ms + extra_ms + CLAIM_MS - self.agenda.now
        self.require_led_within(max(0.0, left_ms), "a dead leader holds the log for 2.5 intervals at most", *nodes)


def _nothing() -> None:
    """Time has passed."""


def _quiet(world: _Etiquette, leader: Node, near: Node, far: Node) -> None:
    """An idle leader writes nothing into the log, and one sign stays next to it."""
    world.stand_by(near, far)
    before, number = world.objects(), leader.service.shown.sign if leader.service is not None else 0
    for _ in range(30):
        world.pass_time(world.interval_ms)
        world.require(0 < world.signs() <= 2, "one sign stays", f"{world.signs()}")
    world.require_not_deposed(leader)
    world.require(world.objects() == before, "an idle leader writes nothing", f"{world.objects() - before}")
    shown = (leader.service.shown.sign if leader.service is not None else 0) - number
    world.require(25 <= shown <= 31, "an idle leader shows a sign in each interval", f"{shown}")


def _cut(world: _Etiquette, leader: Node, near: Node, far: Node) -> None:
    """Standbys that cannot reach the leader depose no one, however long, and nothing is written for them."""
    world.stand_by(near, far)
    before = world.objects()
    world.separate(leader, near)
    if world.random.random() < 0.5:
        world.separate(leader, far)
    world.pass_time(world.random.choice((12_000.0, 180_000.0, 600_000.0)))
    world.require_not_deposed(leader)
    world.unite()
    world.pass_time(45_000.0)
    world.require_not_deposed(leader)
    world.require(world.objects() == before, "an idle leader writes nothing", f"{world.objects() - before}")


def _never_heard(world: _Etiquette, leader: Node, near: Node, _: Node) -> None:
    """A standby that never had an answer waits for as long as signs appear, and takes over from a dead leader."""
    world.separate(leader, near)
    world.signs_late_ms = world.random.choice((0.0, 0.45 * world.interval_ms))
    world.maybe_busy(leader)
    near.start()
    world.pass_time(12.0 * world.interval_ms * world.random.random())
    world.require_not_deposed(leader)
    leader.crash()
    world.shown_ms = world.agenda.now  # what it sent last may still arrive
    world.require_led_in_time(world.interval_ms / 4.0 + world.signs_late_ms + ANSWER_TIMEOUT_MS, near)


def _start_beside(world: _Etiquette, leader: Node, near: Node, far: Node) -> None:
    """A plain start that cannot reach a living leader leaves it alone, idle or busy, with and without a standby."""
    world.separate(leader, near)
    world.signs_late_ms = world.random.choice((0.0, 0.45 * world.interval_ms))
    world.maybe_busy(leader)
    if world.random.random() < 0.5:
        world.stand_by(far)
    near.start_plainly()
    world.pass_time(3.0 * world.interval_ms)
    world.require_left_alone(leader)


def _killed(world: _Etiquette, leader: Node, near: Node, far: Node) -> None:
    """Standbys take over from a leader that was killed elsewhere, idle or busy."""
    world.maybe_busy(leader)
    world.stand_by(near, far)
    # They have seen a sign when it was new.
    world.pass_time(2.0 * world.interval_ms + world.interval_ms * world.random.random())
    leader.crash()
    world.require_led_in_time(0.0, near, far)


def _killed_beside(world: _Etiquette, leader: Node, near: Node, _: Node) -> None:
    """A standby of any age, and a start, take over soon where a refusal is a proof."""
    world.move_beside(near, leader)
    age_ms = world.random.choice((0.0, 1.0, 10.0, 100.0, 30_000.0))
    start = world.random.choice((near.start, near.start_plainly))
    if start == near.start:
        start()
        world.pass_time(age_ms)
        leader.crash()
    else:
        leader.crash()
        start()
    world.require_led_within(PROVED_MS, "a leader that is provably gone is followed within 2.5 s", near)


def _killed_before_a_start(world: _Etiquette, leader: Node, near: Node, _: Node) -> None:
    """A start elsewhere takes over once no sign appeared for two and a half intervals after its first look."""
    leader.write()
    world.pass_time(1_000.0 * world.random.random())
    leader.crash()
    if world.random.random() < 0.5:
        world.cut_off(leader, near)
    world.random.choice((near.start, near.start_plainly))()
    extra_ms = CLAIM_MS + ANSWER_TIMEOUT_MS
    world.require_led_within(world.patience_ms + extra_ms, "a start follows a dead leader after 2.5 intervals", near)


def _restarted(world: _Etiquette, leader: Node, near: Node, _: Node) -> None:
    """A process that was killed and is started again at its own address leads at once, alone or with a standby."""
    if world.random.random() < 0.5:
        world.stand_by(near)
    leader.crash()
    world.random.choice((leader.start, leader.start_plainly))()
    world.require_led_within(PROVED_MS, "a leader that is provably gone is followed within 2.5 s", leader)


def _resigned(world: _Etiquette, leader: Node, near: Node, far: Node) -> None:
    """A leader that resigned is followed at once."""
    world.stand_by(near, far)
    leader.asked_to_step_down()
    world.pass_time(1_000.0)
    claim = world.promises.walker.claim
    # By a standby, or by the next process on the same node when that one is quicker.
    followed = claim is not None and claim.epoch == 2 and any(node.leading for node in (leader, near, far))
    world.require(followed, "a leader that resigned is followed at once")


def _long_drain(world: _Etiquette, leader: Node, near: Node, far: Node) -> None:
    """An orderly stop of four minutes is not interrupted; then the log is followed at once."""
    world.separate(leader, near)
    world.stand_by(near, far)
    leader.held_until = world.agenda.now + 240_000.0
    leader.write()
    world.pass_time(50.0)
    leader.asked_to_step_down()
    world.pass_time(239_000.0)
    world.require_not_deposed(leader)
    world.pass_time(5_000.0 + world.interval_ms / 2.0)
    claim = world.promises.walker.claim
    world.require(claim is not None and claim.epoch > 1, "a leader that resigned is followed at once")


def _paused(world: _Etiquette, leader: Node, near: Node, _: Node) -> None:
    """A leader that was paused for less than two and a half intervals keeps the log."""
    world.pass_time(200.0)
    starts = world.random.random() < 0.5
    if not starts:
        world.stand_by(near)
    leader.paused_until = world.agenda.now + (0.1 + 0.8 * world.random.random()) * world.patience_ms - world.interval_ms
    if starts:
        near.start_plainly()
    world.pass_time(2.0 * world.patience_ms)
    world.require_not_deposed(leader)


def _without_signs(world: _Etiquette, leader: Node, near: Node, far: Node) -> None:
    """A leader that answers keeps the log, also when it cannot show signs and a question is lost."""
    world.signs_fail = True
    world.stand_by(near)
    world.pass_time(2.0 * world.patience_ms)
    world.require_not_deposed(leader)
    world.refuse(leader, near)
    world.pass_time(700.0)
    world.refused.clear()
    world.pass_time(1_000.0)
    far.start_plainly()
    world.pass_time(10_000.0)
    world.require_left_alone(leader)


def _suspended(world: _Etiquette, leader: Node, near: Node, far: Node) -> None:
    """Nobody leads a suspended log, also after kills and starts; it is led soon when it goes on."""
    world.maybe_busy(leader)
    world.stand_by(near)
    world.change(is_suspended=True)
    killed = world.random.random() < 0.3
    if killed:
        leader.crash()
        world.pass_time(CLAIM_MS)  # what it sent last may still arrive
    else:
        world.pass_time(world.interval_ms * world.random.random())
        world.random.choice((far.start, far.start_plainly, _nothing))()
        world.pass_time(world.interval_ms + CLAIM_MS)
    world.require_unled(world.patience_ms * (1.0 + 3.0 * world.random.random()))
    world.change(is_suspended=False)
    wait_ms = world.patience_ms + ANSWER_TIMEOUT_MS if killed else 0.0
    world.require_led_within(
        world.interval_ms / 2.0 + wait_ms + CLAIM_MS, "a log that goes on is led at once", *world.nodes
    )


def _suspended_at_a_claim(world: _Etiquette, leader: Node, near: Node, far: Node) -> None:
    """A suspension that comes while others claim the log is found by them before they lead."""
    world.stand_by(near, far)
    leader.asked_to_step_down()
    world.pass_time(200.0 * world.random.random())
    world.change(is_suspended=True)
    world.pass_time(world.interval_ms + 2.0 * CLAIM_MS)
    world.require_unled(world.patience_ms)


def _delayed(world: _Etiquette, leader: Node, near: Node, far: Node) -> None:
    """Of two standbys that find a leader gone, the one without a delay claims."""
    near.delay_ms = 2_000.0
    world.stand_by(near, far)
    world.pass_time(2.0 * world.interval_ms)
    leader.crash()
    world.require_led_within(world.patience_ms + ANSWER_TIMEOUT_MS + CLAIM_MS, "a dead leader is followed", near, far)
    world.pass_time(10_000.0)
    claim = world.promises.walker.claim
    world.require(far.leading and claim is not None and claim.epoch == 2, "a standby with a delay claims later")
    far.crash()
    world.require_led_within(world.patience_ms + ANSWER_TIMEOUT_MS + CLAIM_MS + 2_000.0, "a delay ends", near)


Scene = Callable[[_Etiquette, Node, Node, Node], None]
SUSPENSIONS: Final = (_suspended, _suspended_at_a_claim, _delayed)
SCENES: Final = (
    _quiet,
    _cut,
    _never_heard,
    _start_beside,
    _killed,
    _killed_beside,
    _killed_before_a_start,
    _restarted,
    _resigned,
    _long_drain,
    _paused,
    _without_signs,
)


def run_etiquette(seed: int) -> WorldReport:
    """The world of one seed. Every scene comes up, in turn."""
    return _Etiquette(seed).play(SCENES)


def run_suspensions(seed: int) -> WorldReport:
    """The same, of the scenes about who may claim, and when."""
    world = _Etiquette(seed)
    world.suspends = True
    return world.play(SUSPENSIONS)
