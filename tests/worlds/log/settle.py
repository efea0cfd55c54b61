"""The last check of a world of the log: a fresh reader and recovery agree with everything that was answered."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.worlds.harness import PromiseBroken
from tests.worlds.log.promises import COUNTER
from tests.worlds.log.retention import read_afresh

from holdfast.commit.format import batch as batch_format
from holdfast.commit.format.chain import ChainWalker
from holdfast.commit.leadership import claims
from holdfast.errors import HoldfastError

if TYPE_CHECKING:
    from tests.worlds.log.world import World

__all__ = ["check_outcomes"]


def check_outcomes(world: World) -> None:
    """Raise PromiseBroken unless answers, a fresh reader and recovery agree about the whole log."""
    promises = world.promises
    promises.at_the_end([attempt for client in world.clients for attempt in client.attempts])
    counted = int(promises.value(b"%s0" % COUNTER, promises.end_version()) or b"0")
    if counted != promises.increments:
        raise PromiseBroken(f"every increment counts exactly once: {counted} of {promises.increments}")
    for follower in world.followers:
        follower.lost_at_the_end()
        follower.check()
    if world.truncates:
        read_afresh(world)
    elif not world.shape.retention and not world.seen["claims_removed"]:
        _walk_afresh(world)
    _recover_afresh(world)


def _walk_afresh(world: World) -> None:
    """A reader that was never there before sees the same log."""
    walker = ChainWalker()
    seen: list[int] = []
    while (data := world.store.objects.get(walker.next_slot)) is not None:
        walker.accept(batch_format.decode_header(data, slot=walker.next_slot))
        assert walker.head is not None, "just accepted"
        seen.append(walker.head.slot)
    if seen != list(world.promises.headers):
        raise PromiseBroken(f"every reader sees the same log: {len(seen)} objects")


def _recover_afresh(world: World) -> None:
    """Recovery, asked now, claims exactly where the log ends."""
    page = claims.read_page(world.store.page(batch_format.SPAN_MAX))
    objects = dict(world.store.objects)
    try:
        plan = claims.plan_recovery(page, objects, allow_new=False)  # type: ignore[arg-type]
    except HoldfastError as error:
        raise PromiseBroken(f"recovery accepts an undamaged log: {error}") from error
    walker = world.promises.walker
    if not isinstance(plan, claims.Frontier) or plan.slot != walker.next_slot or plan.predecessor != walker.head:
        raise PromiseBroken(f"recovery and the chain agree: {plan} against {walker.next_slot}")
