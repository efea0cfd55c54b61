"""Laws of the cut: what stays whatever the policies say."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType

from tests.one_line_mutants import mutated
from tests.unit.commit.builders import genesis, record

from holdfast.commit.format.batch import SPAN_MAX, Header
from holdfast.commit.format.log_clock import Moment
from holdfast.retention import cut
from holdfast.retention.cut import Needs
from holdfast.retention.policies import Content, Policy
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
