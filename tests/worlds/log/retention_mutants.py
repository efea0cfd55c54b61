"""Mutants of retention: the truncator, its generations or its sweep with one rule taken out."""
# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

from tests.worlds.harness import Mutants, WorldReport
from tests.worlds.log.shape import OFTEN_MS, draw_shape
from tests.worlds.log.world import World

from holdfast.commit.format.batch import CLAIM_BYTES, Header, slot_of
from holdfast.commit.format.log_clock import Moment
from holdfast.objects.port import Created, Listed, Refused
from holdfast.retention import cut, policies, sweep, truncator
from holdfast.retention.cut import Border, Needs
from holdfast.retention.generations import Generations
from holdfast.retention.policies import Content, Generation, Hold
from holdfast.retention.sweep import Swept
from holdfast.retention.truncator import Truncator
from holdfast.sealed import encode_sealed
from holdfast.values import Slot

__all__ = ["MUTANTS"]


def run_retention(seed: int) -> WorldReport:
    """The world of one seed among those with retention."""
    number = seed
    while True:
        shape = draw_shape(Random(number))
        if shape.retention and shape.look_ms == OFTEN_MS:
            return World(number, check_every=1 << 60).run()
        number += 1_000_003


MUTANTS = Mutants(run_retention, seeds_max=300)

_borders_of = cut.borders_of


@MUTANTS.breaks("truncation is a generation", "_permit", Truncator)
async def truncates_without_a_generation(self: Truncator, computed_from: Content, through: int) -> bool:
    """The batch is written at once: a policy that is answered meanwhile is not seen."""
    return True


@MUTANTS.breaks("the generation comes from the policies that the cut was computed from", "replace", truncator)
def policies_not_compared(content: Content, **_: int) -> object:
    """The newest policies are taken over, and the cut of older ones with them."""
    return None


@MUTANTS.breaks("a version below truncate_through cannot be kept any more", "_require_kept", policies, first_seed=1)
def keeps_what_may_be_gone(version: int, now: Content) -> None:
    """A policy is accepted whatever the log holds."""


@MUTANTS.breaks(
    "a refused create is another writer's, unless the nonce is one's own", "_create", Generations, first_seed=45
)
async def refused_generation_counts(self: Generations, wanted: Generation) -> bool:
    """The answer of a create that was refused is not looked at."""
    key = f"meta/retention/{(1 << 64) - 1 - wanted.number:020d}"
    return isinstance(await self._store.create(key, encode_sealed(wanted)), Created | Refused)


@MUTANTS.breaks("only what a durable batch says was truncated is deleted", "_sweep", Truncator, first_seed=5)
async def sweeps_before_it_is_durable(self: Truncator) -> None:
    """What was only computed counts as truncated."""
    through = 0 if self.state.generation is None else self.state.generation.truncate_through
    newest = self._service.durable_header()
    slot = await cut.slot_through(self._store, self._service.claim, newest, through) if through else None
    if slot is not None:
        await sweep.sweep(self._store, slot, lambda: newest.slot, per_second=1e3, swept=Swept())


def cuts_at_the_watermark(
    content: Content, needs: Needs, *, watermark: Slot, now: Moment, bytes_border: dict[int, int]
) -> list[Border] | None:
    """The watermark itself is the border."""
    border = Slot(max(0, watermark - 1_000))
    return _borders_of(content, needs, watermark=border, now=now, bytes_border=bytes_border)


def sweeps_to_the_watermark(row: Listed, newest_freed: Slot, watermark: Slot) -> bool:
    """Whatever the truncation names goes."""
    slot = slot_of(row.key)
    return row.size != CLAIM_BYTES and slot is not None and slot >= newest_freed


MUTANTS.add(
    "removes_the_newest_slots",
    "the newest W slots stay",
    (truncator, "borders_of", cuts_at_the_watermark),
    (sweep, "_may_go", sweeps_to_the_watermark),
    first_seed=14,
)


@MUTANTS.breaks("a claim is never deleted", "_may_go", sweep)
def sweeps_claims(row: Listed, newest_freed: Slot, watermark: Slot) -> bool:
    """A claim is an object like any other."""
    return True


@MUTANTS.breaks("holds forbid deletion", "border_of_hold", cut, first_seed=2)
def holds_do_not_count(hold: Hold) -> Border:
    """Only policies are asked."""
    return Border()


@MUTANTS.breaks("the oldest kept snapshot's log stays", "borders_of", truncator, first_seed=30)
def snapshot_is_not_needed(
    content: Content, needs: Needs, *, watermark: Slot, now: Moment, bytes_border: dict[int, int]
) -> list[Border] | None:
    """A log without a snapshot is truncated as well."""
    needs = Needs(snapshot=1 << 62, min_age_ms=needs.min_age_ms)
    return _borders_of(content, needs, watermark=watermark, now=now, bytes_border=bytes_border)


@MUTANTS.breaks("every policy is asked", "border_of", cut, first_seed=2)
def policies_do_not_count(policy: policies.Policy, now: Moment, bytes_border: dict[int, int]) -> Border:
    """One permission is enough."""
    return Border()


@MUTANTS.breaks("T is the end of an object that may go", "find_cut", truncator)
async def cuts_one_object_too_far(
    store: object, claim: Header, newest: Header, borders: list[Border], find: Callable[..., object] = cut.find_cut
) -> Header | None:
    """The first object that is needed goes as well."""
    lenient = [replace(b, below=None if b.below is None else b.below + 1) for b in borders]
    return await find(store, claim, newest, lenient)  # type: ignore[misc, no-any-return]
