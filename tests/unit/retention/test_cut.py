"""Laws of the cut: what stays whatever the policies say."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from types import ModuleType

import pytest
from tests.one_line_mutants import mutated
from tests.unit.commit.builders import bytes_of, genesis, record, takeover

from holdfast.commit.format.batch import PREFIX, SPAN_MAX, VERSION_JUMP, Header, object_name
from holdfast.commit.format.log_clock import Moment
from holdfast.objects.memory import MemoryObjects, MemoryStore
from holdfast.objects.port import Pages
from holdfast.retention import cut
from holdfast.retention.cut import NOTHING, Border, Needs, border_of, border_of_hold, borders_of
from holdfast.retention.job_holds import JobBorder, JobHold
from holdfast.retention.policies import Content, Hold, Policy
from holdfast.values import Slot

WATERMARK = Slot(1 << 40)
CLAIM = genesis()
LATER = Moment(CLAIM.time_ms + 1_000_000, CLAIM.lived_ms + 1_000_000, 0, 0, 0, doubted=False)
OLD = record(CLAIM, CLAIM, CLAIM.last_version + 1)
NEEDS = Needs(snapshot=OLD.last_version + 1, min_age_ms=0.0)
POLICY = {"any": Policy(keep_from_version=OLD.last_version + 1)}
"""It lets every version go that the object has, as the snapshot does."""


def goes(code: ModuleType, header: Header) -> bool:
    borders = code.borders_of(Content(POLICY, {}, 0), NEEDS, watermark=WATERMARK, now=LATER, bytes_border={})
    return borders is not None and all(border.lets_go(header) for border in borders)


def kept_below_the_watermark(code: ModuleType) -> int:
    """How many slots below the newest durable one stay, of an object that nothing else needs."""
    return next(
        behind for behind in range(1, 2 * SPAN_MAX) if goes(code, replace(OLD, slot=Slot(WATERMARK + behind)))
    ) - 1  # fmt: skip


def test_the_newest_span_of_slots_stays_whatever_the_policies_say() -> None:
    assert kept_below_the_watermark(cut) == SPAN_MAX


def test_a_cut_that_forgets_the_span_is_noticed() -> None:
    assert kept_below_the_watermark(mutated(cut, "watermark + SPAN_MAX", "watermark")) == 0


# ---- what one border lets go -----------------------------------------------------------------------------------------

HEADER = record(CLAIM, CLAIM, CLAIM.last_version + 7)
NOW = Moment(5_000_000, 3_000_000, 0, 0, 0, doubted=False)


@pytest.mark.parametrize(
    ("border", "first_kept"),
    [
        (Border(below=HEADER.last_version), HEADER),
        (Border(below=HEADER.last_version + 1), None),
        (Border(older_than_ms=HEADER.time_ms), HEADER),
        (Border(older_than_ms=HEADER.time_ms + 1), None),
        (Border(lived_below_ms=HEADER.lived_ms), HEADER),
        (Border(lived_below_ms=HEADER.lived_ms + 1), None),
        (Border(above=HEADER.slot), HEADER),
        (Border(above=HEADER.slot - 1), None),
        (Border(), None),
    ],
)
def test_a_border_lets_go_what_is_before_it_and_not_what_is_on_it(border: Border, first_kept: Header | None) -> None:
    assert border.lets_go(HEADER) is (first_kept is None)


def test_a_border_lets_go_only_what_is_before_it_in_every_respect() -> None:
    lax = Border(HEADER.last_version + 1, HEADER.time_ms + 1, HEADER.lived_ms + 1, HEADER.slot - 1)
    assert lax.lets_go(HEADER)
    for strict in (
        replace(lax, below=HEADER.last_version),
        replace(lax, older_than_ms=HEADER.time_ms),
        replace(lax, lived_below_ms=HEADER.lived_ms),
        replace(lax, above=HEADER.slot),
    ):
        assert not strict.lets_go(HEADER)


def test_an_age_is_reached_by_both_times_of_the_log() -> None:
    assert Border.of_age(NOW, 1_000.0, below=7, above=9) == Border(7, 4_999_000.0, 2_999_000.0, 9)
    assert Border.of_age(NOW, 1_000.0) == Border(None, 4_999_000.0, 2_999_000.0, None)


def test_each_policy_has_its_border() -> None:
    assert border_of(Policy(keep="everything"), NOW, {}) == Border(below=0) == Border(below=NOTHING)
    assert border_of(Policy(max_bytes=77), NOW, {77: 9, 78: 10}) == Border(above=9)
    assert border_of(Policy(max_age_seconds=2.5), NOW, {}) == Border.of_age(NOW, 2_500.0)
    assert border_of(Policy(keep_from_version=12), NOW, {}) == Border(below=12)
    assert border_of_hold(Hold(from_version=12)) == Border(below=13)


def test_a_log_has_a_border_for_each_need() -> None:
    holds = {
        "past": Hold(from_version=30, expires_ms=NOW.time_ms, expires_lived_ms=NOW.lived_ms),
        "here": Hold(from_version=31, expires_ms=NOW.time_ms + 1, expires_lived_ms=NOW.lived_ms),
    }
    content = Content(
        {"a": Policy(keep_from_version=20), "b": Policy(max_bytes=77), "c": Policy(max_age_seconds=2.5)}, holds, 0
    )
    jobs = [JobHold("j", 50, 60), JobHold("k", 51, 60)]
    needs = Needs(snapshot=10, min_age_ms=1_000.0, segments=40, stores=45, jobs=jobs)
    young = Border.of_age(NOW, 1_000.0, below=10, above=WATERMARK + SPAN_MAX)
    aged = Border.of_age(NOW, 2_500.0)
    always = [young, Border(below=20), Border(above=9), aged, Border(below=32), JobBorder(jobs[0], NOW)]

    def borders(needs: Needs, content: Content = content) -> list[Border | JobBorder] | None:
        return borders_of(content, needs, watermark=WATERMARK, now=NOW, bytes_border={77: 9})

    assert borders(needs) == [*always, Border(below=41), Border(below=45)]
    assert borders(replace(needs, segments=None)) == [*always, Border(below=45)]
    assert borders(replace(needs, stores=None)) == [*always, Border(below=41)]
    assert borders(replace(needs, segments=0, stores=NOTHING)) == [*always, Border(below=1), Border(below=0)]
    assert borders(replace(needs, snapshot=None)) is None
    assert borders(needs, Content({}, holds, 0)) is None
    assert borders(needs, Content({**content.policies, "d": Policy(keep="everything")}, holds, 0)) is None


# ---- where the borders cut a log -------------------------------------------------------------------------------------


class Log:
    """Three leaderships with data objects at the versions 1, 2, ... after their claims; the second one has none."""

    def __init__(self) -> None:
        self.claims = [genesis()]
        self.data: list[list[Header]] = []
        for name, count in (("b", 9), ("c", 0), ("", 5)):
            chain = [claim := self.claims[-1]]
            for number in range(1, count + 1):
                chain.append(record(chain[-1], claim, claim.last_version + number))
            self.data.append(chain[1:])
            if name:
                self.claims.append(takeover(chain[-1], name))
        self.newest = self.data[2][-1]
        self.objects = MemoryObjects()
        headers = [*self.claims, *(header for part in self.data for header in part)]
        for slot, data in bytes_of(*headers).items():
            self.objects.create(object_name(slot), data)

    def remove(self, *headers: Header) -> None:
        for header in headers:
            self.objects.delete(object_name(header.slot))

    def cut_at(self, *borders: Border) -> Slot | None:
        header = asyncio.run(cut.find_cut(MemoryStore(self.objects), self.claims[-1], self.newest, borders))
        return None if header is None else header.slot

    def slot_through(self, version: int) -> Slot | None:
        return asyncio.run(cut.slot_through(MemoryStore(self.objects), self.claims[-1], self.newest, version))


def below(header: Header) -> Border:
    """It needs ``header`` and all after it."""
    return Border(below=header.last_version)


def after(header: Header) -> Border:
    """It needs what comes after ``header``."""
    return Border(below=header.last_version + 1)


def test_a_cut_is_the_newest_object_that_every_border_lets_go() -> None:
    log = Log()
    (old, _, new), every = log.data, [*log.data[0], *log.data[2]]
    for index, header in enumerate(every):
        assert log.cut_at(after(header)) == header.slot
        assert log.cut_at(below(header)) == (every[index - 1].slot if index else None)
    assert log.cut_at(after(new[3]), after(old[2])) == log.cut_at(after(old[2]), after(new[3])) == old[2].slot
    assert log.cut_at() == log.newest.slot
    assert log.cut_at(Border(below=NOTHING)) is None


def test_a_cut_is_an_object_that_still_exists() -> None:
    log = Log()
    old, _, new = log.data
    log.remove(*old[:4])
    assert log.cut_at(after(old[6])) == old[6].slot
    assert log.cut_at(after(old[2])) is None
    log.remove(*old[4:])
    assert log.cut_at(after(old[6])) is None
    assert log.cut_at(after(new[1])) == new[1].slot


def test_the_slot_of_a_version_is_that_of_the_newest_object_at_or_below_it_whether_it_exists_or_not() -> None:
    log = Log()
    old, _, new = log.data
    assert log.slot_through(log.newest.last_version + 99) == log.newest.slot
    for part in (old, new):
        for header in part:
            assert log.slot_through(header.last_version) == header.slot
    assert log.slot_through(new[0].last_version - 1) == old[-1].slot
    assert log.slot_through(old[0].last_version - 1) is None
    log.remove(*old[:4])
    assert log.slot_through(old[2].last_version) == old[3].slot, "all that is known of what has gone"
    log.remove(*old[4:])
    assert log.slot_through(old[-1].last_version) == log.claims[1].prev == old[-1].slot
    assert log.slot_through(old[0].last_version) == old[-1].slot


def test_a_log_of_a_claim_alone_has_no_cut_and_no_slot() -> None:
    claim = genesis()
    objects = MemoryObjects()
    objects.create(object_name(claim.slot), bytes_of(claim)[claim.slot])
    assert asyncio.run(cut.find_cut(MemoryStore(objects), claim, claim, [])) is None
    assert asyncio.run(cut.slot_through(MemoryStore(objects), claim, claim, VERSION_JUMP * 9)) is None


def bytes_slot(sizes: Sequence[int], bytes_max: int, *, strange: int | None = None) -> int:
    """The answer for objects of these sizes, newest first, in slots from 1. ``strange``: this file has no slot."""
    objects = MemoryObjects()
    for slot, size in enumerate(sizes, 1):
        name = f"{object_name(Slot(slot))}.strange" if slot == strange else object_name(Slot(slot))
        objects.create(name, bytes(size))
    return asyncio.run(cut.slot_of_bytes(MemoryStore(objects), bytes_max))


def test_a_bound_of_bytes_keeps_the_newest_objects_that_reach_it() -> None:
    assert [bytes_slot([10, 20, 30], size) for size in (1, 10, 11, 30, 31, 60)] == [1, 1, 2, 2, 3, 3]
    assert [bytes_slot([10, 20, 30], 61), bytes_slot([], 1)] == [1 << 64] * 2
    assert bytes_slot([10, 20, 30], 11, strange=2) == 3


def test_a_bound_of_bytes_counts_all_pages_of_a_listing_once() -> None:
    sizes = [1] * (2 * Pages.size + 7)
    for size in (Pages.size, Pages.size + 1, 2 * Pages.size, 2 * Pages.size + 7):
        assert bytes_slot(sizes, size) == size
    assert bytes_slot(sizes, 2 * Pages.size + 8) == 1 << 64 == bytes_slot(sizes[: Pages.size], Pages.size + 1)
    assert object_name(Slot(1)).startswith(PREFIX)
