"""Worlds in which an assertion of a leader fails now and then, before or after a step has changed its state.

The process ends there, as that of a service does (``holdfast.server.exits``): a caller sees a dropped connection,
which means "unknown". All promises of other worlds hold, so no outcome is wrong and each is found. One more: after the
failure nothing of the process happens any more.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from tests.worlds.harness import WorldReport
from tests.worlds.log.loop import SimulatedLoop
from tests.worlds.log.node import Node
from tests.worlds.log.world import World

from holdfast.commit.stages import events
from holdfast.commit.stages.pipeline import Pipeline

__all__ = ["EVENTS", "run_broken_law"]

EVENTS = ("broken_before_a_step", "broken_after_a_step", "broken_with_answers", "answered_committed")


class PlantedFailure(AssertionError):
    """An assertion of the leader failed."""


class _Breaking(Node):
    """A node whose leader breaks an invariant of its own after ``steps_left`` steps."""

    steps_left = 0
    has_broken = False

    def _new_loop(self) -> SimulatedLoop:
        return SimulatedLoop(self.world.agenda, self, self._trouble)  # type: ignore[abstract]

    def _trouble(self, error: BaseException) -> None:
        if not isinstance(error, PlantedFailure):
            self.world.promises.trouble(error)
            return
        # As ``os._exit``: nothing more of this process runs, and what it has in memory is gone.
        self._loop.exit()
        self.count_persist()
        self.up, self.service = False, None
        self.world.agenda.after(0.0, None, self._restart, self.incarnation)

    def _restart(self, incarnation: int) -> None:
        if self.incarnation == incarnation:
            self.crash()
            self.world.agenda.after(20.0 + 800.0 * self.world.random.random(), self, self.start)

    def _gone(self) -> None:
        super()._gone()
        self.has_broken = False

    def _watched(self, pipeline: Pipeline) -> Callable[[events.Event], list[events.Effect]]:
        world, step = self.world, super()._watched(pipeline)
        assert isinstance(world, _World)

        def watched(event: events.Event) -> list[events.Effect]:
            if self.has_broken:
                world.promises.break_("nothing happens after a broken invariant", type(event).__name__)
            self.steps_left -= 1
            fails = self.steps_left == 0 and not world.network.healed
            if fails and world.apart.random() < 0.1:
                world.seen["broken_before_a_step"] += 1
                self._fail()
            effects = step(event)
            answers = any(isinstance(effect, events.Answer) for effect in effects)
            if fails and not answers and world.apart.random() < 0.9:
                self.steps_left = 1  # the next one may have answers
            elif fails:
                world.seen["broken_after_a_step"] += 1
                world.seen["broken_with_answers"] += answers
                self._fail()
            return effects

        return watched

    def _fail(self) -> None:
        self.has_broken = True
        raise PlantedFailure("planted")


class _World(World):
    node_kind = _Breaking

    def __init__(self, seed: int, *, check_every: int) -> None:
        self.apart = Random(seed)
        super().__init__(seed, check_every=check_every)
        self.agenda.after(100.0, None, self._plant)

    def _plant(self) -> None:
        for node in self.nodes:
            assert isinstance(node, _Breaking)
            if node.leading and node.steps_left <= 0:
                node.steps_left = self.apart.randrange(1, 40)
        if not self.network.healed:
            self.agenda.after(self.apart.choice((20.0, 100.0, 1_000.0)), None, self._plant)


def run_broken_law(seed: int, *, check_every: int = 1) -> WorldReport:
    """Run the world of one seed. Raises: PromiseBroken."""
    return _World(seed, check_every=check_every).run()
