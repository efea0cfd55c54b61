"""Every row of the tables of ``log.judgement``, in the words of the module that owns them."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from holdfast.queue.format.meta import PagePosition, WritePosition
from holdfast.queue.format.page import HEADER_BYTES, PageHeader
from holdfast.queue.log.judgement import (
    LOST_PAGES_MAX,
    PAGE_MESSAGES_MAX,
    Following,
    Here,
    LostPage,
    Owed,
    Proof,
    Step,
    decide,
    end_of,
    first_seq_of,
    following_of,
    proof_of,
)

SEAL, NOTHING, INVALID, EXHAUSTED = Here.SEAL, Here.NOTHING, Here.INVALID, Here.EXHAUSTED
NONE, PREPARED, CONTINUES = Following.NONE, Following.PREPARED, Following.CONTINUES
AHEAD, BEHIND = Following.AHEAD, Following.BEHIND
NO, YES, UNKNOWN = Owed.NO, Owed.YES, Owed.UNKNOWN
ANY = tuple(Owed)
BOTH = (False, True)

Row = tuple[tuple[Here, ...], tuple[Following, ...], tuple[bool, ...], tuple[Owed, ...], Step]
ROWS: list[Row] = [
    (tuple(Here), (CONTINUES,), BOTH, ANY, Step.NEXT_PAGE),
    ((SEAL, NOTHING, INVALID), (AHEAD,), (False,), (NO,), Step.END),
    ((NOTHING, INVALID), (AHEAD,), (True,), ANY, Step.RESYNC),
    ((NOTHING, INVALID), (AHEAD,), (False,), (YES, UNKNOWN), Step.RESYNC),
    ((SEAL,), (AHEAD,), (True,), ANY, Step.NEXT_PAGE_AFTER_GAP),
    ((SEAL,), (AHEAD,), (False,), (YES, UNKNOWN), Step.NEXT_PAGE_AFTER_GAP),
    ((EXHAUSTED,), (AHEAD,), BOTH, ANY, Step.NEXT_PAGE_AFTER_GAP),
    ((SEAL,), (PREPARED, NONE, BEHIND), BOTH, ANY, Step.END),
    ((NOTHING, INVALID), (PREPARED, NONE, BEHIND), BOTH, (NO,), Step.END),
    ((NOTHING, INVALID), (PREPARED, NONE, BEHIND), BOTH, (YES, UNKNOWN), Step.RESYNC),
    ((EXHAUSTED,), (PREPARED, NONE, BEHIND), BOTH, ANY, Step.END),
]


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_a_row_of_the_walk_is_what_is_decided(row: Row) -> None:
    for here, following, lost, owed in itertools.product(*row[:4]):
        assert decide(here, following, owed, lost=lost) is row[4]


def test_the_rows_of_the_walk_cover_every_case_once() -> None:
    covered = [case for row in ROWS for case in itertools.product(*row[:4])]
    assert len(covered) == len(set(covered)) == len(Here) * len(Following) * len(Owed) * 2


def header(base_seq: int, *, number: int = 3, skipped: int = 0) -> PageHeader:
    return PageHeader(number=number, page_bytes=4096, salt=0, checksum_id=1, base_seq=base_seq, skipped=skipped)


def test_a_page_continues_where_the_page_before_ends_or_among_skipped_numbers() -> None:
    followed = {seq: following_of(header(61, skipped=10), seq) for seq in (50, 51, 60, 61, 62)}
    assert followed == {50: AHEAD, 51: CONTINUES, 60: CONTINUES, 61: CONTINUES, 62: BEHIND}
    prepared = PageHeader(number=3, page_bytes=4096, salt=0, checksum_id=1, prepared=True)
    assert following_of(prepared, 51) is PREPARED


def test_a_damaged_page_is_unused_only_after_a_page_in_use_with_room_and_without_content() -> None:
    proof = Proof(page=3)
    for is_first in (False, True):
        assert LostPage(4, 4096, HEADER_BYTES).is_unused(proof, is_first=is_first)
        assert LostPage(4, 4096, 0).is_unused(proof, is_first=is_first)
        assert not LostPage(3, 4096, 0).is_unused(proof, is_first=is_first)
        assert not LostPage(4, 4096, HEADER_BYTES + 1).is_unused(proof, is_first=is_first)
        assert not LostPage(4, 0, 0).is_unused(proof, is_first=is_first)
        assert not LostPage(4, HEADER_BYTES, 0).is_unused(proof, is_first=is_first)
        assert not LostPage(4, 4096, 0, indexed=True).is_unused(proof, is_first=is_first)
        assert LostPage(4, 4096, 0).is_unused(Proof(), is_first=is_first) is not is_first


def test_a_record_covers_the_pages_before_its_own_and_what_is_before_its_position() -> None:
    proof = Proof(page=3, position=1000)
    assert LostPage(2, 4096, 4096).is_covered(proof)
    assert LostPage(3, 4096, 1000).is_covered(proof)
    assert not LostPage(3, 4096, 1001).is_covered(proof)
    assert not LostPage(3, 4096, 999).is_covered(proof)
    assert not LostPage(4, 4096, 100).is_covered(proof)
    assert not LostPage(3, 0, 0).is_covered(proof)
    assert LostPage(3, 0, 0).is_covered(Proof(page=3, position=1000, complete=True))
    assert (proof.covered_page, Proof(page=3, complete=True).covered_page) == (2, 3)


def test_what_is_owed_is_damaged_and_what_is_used_was_never_durable_only_after_a_restart() -> None:
    assert end_of(51, Proof(), 1) == (51, 51)
    assert end_of(51, Proof(owed_seq=56), 1) == (56, 56)
    assert end_of(51, Proof(owed_seq=56, ordered=False), 61) == (56, 61)
    assert end_of(51, Proof(ordered=False), 61) == (51, 61)
    assert end_of(51, Proof(), 61) == (61, 61)
    assert end_of(51, Proof(owed_seq=70, ordered=False), 61) == (70, 70)


def test_a_lost_page_that_no_record_covers_takes_all_numbers_that_it_can_have_held() -> None:
    proof = Proof(owed_seq=56, page=3, position=1000)
    assert end_of(51, proof, 1, [LostPage(3, 4096, 1000)]) == (56, 56)
    assert end_of(51, proof, 1, [LostPage(3, 4096, 900)])[1] == 56 + PAGE_MESSAGES_MAX
    assert end_of(51, proof, 1, [LostPage(3, 4096, 1001)])[1] == 56 + PAGE_MESSAGES_MAX
    assert end_of(51, proof, 1, [LostPage(4, 0, 0)], 1)[1] == 56 + 2 * PAGE_MESSAGES_MAX
    assert end_of(51, proof, 1, [], 1 << 40)[1] == 56 + LOST_PAGES_MAX * PAGE_MESSAGES_MAX


def test_where_every_proof_is_gone_the_loss_is_unknown_and_no_number_is_given_again() -> None:
    assert end_of(1, Proof(all_lost=True), 1) == ((1 << 48) + 1, (1 << 48) + 1)


@pytest.mark.parametrize(
    ("proof", "damaged", "expected"),
    [
        (Proof(first_page=1), False, 1),  # the pages before it are lost
        (Proof(first_page=3, first_seq=61), False, 61),
        (Proof(first_page=3, first_seq=40), False, 40),  # the messages before its base are lost
        (Proof(first_page=2, first_seq=40), False, 40),  # page 2 is lost
        (Proof(first_page=4, first_seq=90), False, 61),  # retention was stopped before it removed page 3
        (Proof(), False, 61),  # without a record it may have been retention
        (Proof(), True, 1),
    ],
)
def test_the_first_message_is_the_first_that_retention_has_not_removed(
    proof: Proof, damaged: bool, expected: int
) -> None:
    assert first_seq_of(header(61, skipped=10), proof, damaged=damaged) == expected


def test_a_first_page_with_number_one_has_lost_what_is_below_its_base() -> None:
    assert first_seq_of(header(61, number=1), Proof(), damaged=False) == 1


BOOT, OTHER_BOOT = b"b" * 16, b"o" * 16
DURABLE, END = PagePosition(2, 22, 50, 0, 700), PagePosition(3, 33, 60, 0, 800)


def record(*, clean: bool = False, durable: PagePosition = DURABLE, end: PagePosition = END) -> WritePosition:
    return WritePosition(end, 0, 0, 0, 0, clean, durable, BOOT, first_page=1, first_seq=7)


def salts(salts: dict[int, int]) -> Callable[[int], PageHeader | None]:
    """The headers of pages with these salts; of page 0 nothing is asked."""

    def header_of(page: int) -> PageHeader | None:
        assert page
        return header(0, number=page)._replace(salt=salts[page]) if page in salts else None

    return header_of


@pytest.mark.parametrize("known", [{2: 22, 3: 33}, {2: 22}, {3: 33}, {}])
def test_a_record_proves_what_was_written_in_this_boot_or_before_a_clean_end_and_else_what_was_synced(
    known: dict[int, int],
) -> None:
    written = Proof(60, True, 3, 800, first_page=1, first_seq=7)
    synced = Proof(50, False, 2, 700, first_page=1, first_seq=7)
    assert proof_of(record(), BOOT, salts(known)) == written
    assert proof_of(record(clean=True), OTHER_BOOT, salts(known)) == written._replace(complete=True)
    assert proof_of(record(), OTHER_BOOT, salts(known)) == synced
    assert proof_of(record(), OTHER_BOOT, salts({**known, 3: 34})) == synced
    assert proof_of(record(), BOOT, salts({**known, 3: 34})) == synced._replace(ordered=True)
    later = DURABLE._replace(next_seq=99)
    assert proof_of(record(durable=later), BOOT, salts(known)).owed_seq == 99


def test_a_record_of_another_life_of_its_page_or_none_proves_nothing() -> None:
    for all_lost in (False, True):
        assert proof_of(record(), BOOT, salts({2: 23, 3: 33}), all_lost=all_lost) == Proof(all_lost=False)
        assert proof_of(None, BOOT, salts({}), all_lost=all_lost) == Proof(all_lost=all_lost)
    assert proof_of(None, BOOT, salts({})) == Proof()
    assert Proof().all_lost is False
    first = DURABLE._replace(page=0)
    assert proof_of(record(durable=first), BOOT, salts({0: 1, 3: 33})).page == 3


def test_after_a_restart_a_later_frame_proves_nothing() -> None:
    assert Proof(owed_seq=10).owed(9) is YES
    assert Proof(owed_seq=10).owed(10) is UNKNOWN
    assert Proof(owed_seq=10, ordered=False).owed(10) is NO
