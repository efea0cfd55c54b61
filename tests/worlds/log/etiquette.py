"""Worlds of an idle leader and its standbys: which of them may claim, when, and what is written meanwhile.

They are calm and have no clients. Nodes are cut off from one another, killed or started late, with the times of real
settings. The store works and is near, so a live leader writes its heartbeats in time, and each promise is a bound in
virtual time or a number of objects. Safety never depends on any of this (``world``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Final

from tests.worlds.harness import WorldReport
from tests.worlds.log.node import Node
from tests.worlds.log.shape import FAULTS, draw_shape, protocol_width, silent
from tests.worlds.log.world import World

__all__ = ["SCENES", "run_etiquette"]

SILENCE_MS: Final = 2_000.0
HEARTBEAT_MS: Final = 500.0
UNHEARD_MS: Final = 65_000.0
FAILOVER_MS: Final = 3_000.0
LATENCY_MS: Final = 5.0
ANSWER_TIMEOUT_MS: Final = 2_000.0
FAST_OBJECTS_MAX: Final = 125
"""Heartbeats of the first minute after a missed question, and a few more."""


class _Etiquette(World):
    """One scene, drawn from a seed."""

    def __init__(self, seed: int) -> None:
        drawn = draw_shape(Random(seed))
        shape = replace(
            drawn,
            span=8,
            nodes=3,
            clients=0,
            rates=dict.fromkeys(FAULTS, 0.0),
            latency_ms=LATENCY_MS,
            retention=False,
            silence_ms=SILENCE_MS,
            heartbeat_ms=HEARTBEAT_MS,
            unheard_ms=UNHEARD_MS,
            idle_check_ms=5_000.0,
            proof_ms=10_000.0,
        )
        super().__init__(seed, shape=shape)
        self.answer_timeout_ms = ANSWER_TIMEOUT_MS
        self.refused: set[frozenset[int]] = set()

    def play(self) -> WorldReport:
        """Raises: PromiseBroken."""
        scene = SCENES[self.seed % len(SCENES)]
        with protocol_width(self.shape.span), silent():
            try:
                leader, near, far = self.nodes
                leader.start()
                self.pass_time(500.0)
                self.require(leader.leading, "a process leads a new log")
                scene(self, leader, near, far)
            finally:
                for node in self.nodes:
                    node.stop()
        self.seen[scene.__name__] += 1
        return self.report()

    def pass_time(self, ms: float) -> None:
        """Let everything happen that happens in so many milliseconds."""
        until = self.agenda.now + ms
        self.agenda.after(ms, None, _nothing)
        while self.agenda.now < until:
            self._step()

    def require(self, holds: bool, promise: str, detail: str = "") -> None:
        """Break the promise unless it holds."""
        if not holds:
            self.promises.break_(promise, detail or f"at {self.agenda.now:.0f} ms")

    def require_not_deposed(self, leader: Node) -> None:
        """It leads, and no one has claimed the log after it."""
        claim = self.promises.walker.claim
        undisturbed = leader.leading and claim is not None and claim == leader.claim and claim.epoch == 1
        self.require(undisturbed, "a healthy idle leader is not deposed")

    def stand_by(self, *nodes: Node) -> None:
        """Start standbys, and let them find the leader."""
        for node in nodes:
            node.start()
        self.pass_time(1_000.0 + 4_000.0 * self.random.random())

    def cut_off(self, one: Node, other: Node) -> None:
        """These two do not reach one another any more."""
        self.cut.add(frozenset((one.number, other.number)))

    def refuse(self, one: Node, other: Node) -> None:
        """A connection between these two fails at once."""
        self.refused.add(frozenset((one.number, other.number)))

    def ask(self, asker: Node, address: str, reply: Callable[[str | None], None]) -> None:
        """As in any world, except where connections are refused."""
        if frozenset((asker.number, self.node_at(address).number)) in self.refused:
            self.agenda.after(self.network.delay_ms(), asker, reply, None)
        else:
            super().ask(asker, address, reply)

    def write_every(self, ms: float, leader: Node) -> None:
        """The leader writes a batch now and after each such time."""
        leader.write()
        self.agenda.after(ms, leader, self.write_every, ms, leader)

    def require_left_alone(self, leader: Node) -> None:
        """A start found that the leader is alive."""
        self.require_not_deposed(leader)
        self.require(self.seen["start_leader_alive"] == 1, "a start without --take-over leaves a leader alone")

    def objects(self) -> int:
        """How many objects the log has."""
        return len(self.store.slots)

    def led_within(self, ms: float, *nodes: Node) -> bool:
        """Whether one of the nodes leads within so many milliseconds."""
        until = self.agenda.now + ms
        while self.agenda.now < until and not any(node.leading for node in nodes):
            self.pass_time(10.0)
        return any(node.leading for node in nodes)


def _nothing() -> None:
    """Time has passed."""


def _quiet(world: _Etiquette, leader: Node, near: Node, far: Node) -> None:
    """Nothing is written while the questions of standbys arrive."""
    world.stand_by(near, far)
    before = world.objects()
    world.pass_time(60_000.0)
    world.require_not_deposed(leader)
    world.require(world.objects() == before, "nothing is written while questions arrive", f"{world.objects() - before}")


def _cut(world: _Etiquette, leader: Node, near: Node, _: Node) -> None:
    """A cut between leader and standby deposes no one, however long it is, and costs little."""
    world.stand_by(near)
    before = world.objects()
    world.cut_off(leader, near)
    minutes = world.random.choice((0.2, 3.0, 10.0))
    world.pass_time(minutes * 60_000.0)
    world.require_not_deposed(leader)
    written = world.objects() - before
    world.require(written <= FAST_OBJECTS_MAX + minutes * 2.0, "heartbeats become few", f"{written}")
    world.cut.clear()
    # A standby that is cut off asks less often after a while.
    world.pass_time(5_000.0)
    before = world.objects()
    world.pass_time(40_000.0)
    world.require_not_deposed(leader)
    world.require(world.objects() == before, "nothing is written while questions arrive", f"{world.objects() - before}")


def _cut_of_one(world: _Etiquette, leader: Node, near: Node, far: Node) -> None:
    """A cut between the leader and one of two standbys deposes no one."""
    world.stand_by(near, far)
    world.cut_off(leader, far)
    world.pass_time(120_000.0)
    world.require_not_deposed(leader)


def _killed(world: _Etiquette, leader: Node, near: Node, far: Node) -> None:
    """A standby that could ask takes over soon after its leader was killed."""
    world.stand_by(near, far)
    leader.crash()
    world.require(world.led_within(FAILOVER_MS, near, far), "a standby that could ask takes over within 3 s")


def _killed_while_cut(world: _Etiquette, leader: Node, near: Node, _: Node) -> None:
    """A standby that could not ask for long takes over, too, when the log stays silent."""
    world.stand_by(near)
    world.cut_off(leader, near)
    world.pass_time(90_000.0)
    leader.crash()
    taken_over = world.led_within(UNHEARD_MS + FAILOVER_MS, near)
    world.require(taken_over, "a standby that could not ask takes over after 65 s")


def _never_heard(world: _Etiquette, leader: Node, near: Node, _: Node) -> None:
    """A standby that never had an answer waits for 65 s of silence."""
    world.cut_off(leader, near)
    near.start()
    world.pass_time(UNHEARD_MS - 1_000.0)
    world.require(leader.leading and not near.leading, "a standby without an answer waits for 65 s")
    world.require(world.led_within(2.0 * FAILOVER_MS, near), "a standby that could not ask takes over after 65 s")


def _resigned(world: _Etiquette, leader: Node, near: Node, far: Node) -> None:
    """A leader that resigned is followed at once."""
    world.stand_by(near, far)
    leader.asked_to_step_down()
    world.pass_time(1_000.0)
    claim = world.promises.walker.claim
    # By a standby, or by the next process on the same node when that one is quicker.
    followed = claim is not None and claim.epoch == 2 and any(node.leading for node in (leader, near, far))
    world.require(followed, "a leader that resigned is followed at once")


def _paused_at_a_start(world: _Etiquette, leader: Node, near: Node, _: Node) -> None:
    """A leader that answers again before a start claims is not deposed."""
    # It answers the second question, or the last one.
    timeouts = world.random.choice((1.05, 2.3)) + 0.75 * world.random.random()
    leader.paused_until = world.agenda.now + timeouts * ANSWER_TIMEOUT_MS
    near.start_plainly()
    world.pass_time(10_000.0)
    world.require_left_alone(leader)


def _slow_at_a_start(world: _Etiquette, leader: Node, near: Node, _: Node) -> None:
    """A leader that is not reachable and that writes while a start watches the log is not deposed."""
    world.refuse(leader, near)
    every_ms = 2_500.0
    world.write_every(every_ms, leader)
    # So that the first new object appears in the first silence.
    world.pass_time(every_ms - SILENCE_MS + 200.0 + 1_600.0 * world.random.random())
    near.start_plainly()
    world.pass_time(10_000.0)
    world.require_left_alone(leader)


def _killed_before_a_start(world: _Etiquette, leader: Node, near: Node, _: Node) -> None:
    """A start takes over from a killed leader once the log was silent."""
    leader.write()
    world.pass_time(1_000.0 * world.random.random())
    leader.crash()
    near.start_plainly()
    world.require(world.led_within(FAILOVER_MS, near), "a start takes over from a killed leader within 3 s")


SCENES: Final = (
    _quiet,
    _cut,
    _cut_of_one,
    _killed,
    _killed_while_cut,
    _never_heard,
    _resigned,
    _paused_at_a_start,
    _slow_at_a_start,
    _killed_before_a_start,
)


def run_etiquette(seed: int) -> WorldReport:
    """Run the scene of one seed. Raises: PromiseBroken."""
    return _Etiquette(seed).play()
