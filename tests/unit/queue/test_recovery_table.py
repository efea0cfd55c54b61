"""Every row of the decision table, in the words of the module that owns it."""

from __future__ import annotations

import itertools

import pytest

from holdfast.queue.log.recovery import Following, Here, Owed, Step, decide

SEAL, NOTHING, INVALID, EXHAUSTED = Here.SEAL, Here.NOTHING, Here.INVALID, Here.EXHAUSTED
NONE, PREPARED, CONTINUES = Following.NONE, Following.PREPARED, Following.CONTINUES
AHEAD, BEHIND, UNREADABLE = Following.AHEAD, Following.BEHIND, Following.UNREADABLE
NO, YES, UNKNOWN = Owed.NO, Owed.YES, Owed.UNKNOWN
ANY = tuple(Owed)

ROWS = [
    ((SEAL,), (CONTINUES, PREPARED), ANY, Step.NEXT_PAGE),
    ((SEAL,), (NONE,), ANY, Step.END),
    ((SEAL,), (AHEAD, UNREADABLE), (YES, UNKNOWN), Step.NEXT_PAGE_AFTER_GAP),
    ((SEAL,), (AHEAD, UNREADABLE), (NO,), Step.END),
    ((SEAL,), (BEHIND,), ANY, Step.END),
    ((NOTHING, INVALID, EXHAUSTED), (CONTINUES,), ANY, Step.NEXT_PAGE),
    ((NOTHING, INVALID, EXHAUSTED), (PREPARED, NONE, BEHIND), (NO,), Step.END),
    ((NOTHING, INVALID, EXHAUSTED), (AHEAD, UNREADABLE), (NO,), Step.END),
    ((NOTHING, INVALID), (AHEAD, UNREADABLE, PREPARED, NONE, BEHIND), (YES, UNKNOWN), Step.RESYNC),
    ((EXHAUSTED,), (AHEAD, UNREADABLE), (YES, UNKNOWN), Step.NEXT_PAGE_AFTER_GAP),
    ((EXHAUSTED,), (PREPARED, NONE, BEHIND), (YES,), Step.END_AFTER_GAP),
    ((EXHAUSTED,), (PREPARED, NONE, BEHIND), (UNKNOWN,), Step.END),
]


def combinations(row: tuple[tuple[Here, ...], tuple[Following, ...], tuple[Owed, ...], Step]) -> set[object]:
    return set(itertools.product(row[0], row[1], row[2]))


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_a_row_of_the_table_is_what_is_decided(
    row: tuple[tuple[Here, ...], tuple[Following, ...], tuple[Owed, ...], Step],
) -> None:
    for here, following, owed in itertools.product(row[0], row[1], row[2]):
        assert decide(here, following, owed) is row[3]


def test_the_rows_cover_every_case_once() -> None:
    covered = [case for row in ROWS for case in combinations(row)]
    assert len(covered) == len(set(covered)) == len(Here) * len(Following) * len(Owed)
