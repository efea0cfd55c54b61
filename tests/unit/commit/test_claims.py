"""Recovery and claims to the letter: which objects are read, what each refusal says, and every field of a claim."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from tests.unit.commit.builders import LOG_ID, bytes_of, genesis, identity, record, rows, takeover

from holdfast.commit.format.batch import (
    CLAIM_BYTES,
    FIRST_SLOT,
    FLAG_CLOCK_DOUBTED,
    FLAG_RETIRES,
    FORK_JUMP_MAX,
    SPAN_MAX,
    VERSION_JUMP,
    AddressScope,
    Header,
    Kind,
    StoresMode,
    jump,
)
from holdfast.commit.format.log_clock import STEP_MS_MAX
from holdfast.commit.leadership.claims import (
    GUESSES_MAX,
    Frontier,
    NewestKeys,
    claim_header,
    encode_claim,
    first_base,
    first_headers,
    fork_base,
    plan_recovery,
    read_page,
    walk_on,
)
from holdfast.commit.leadership.role import Copied
from holdfast.errors import Closed, Code, CorruptData, NotFound
from holdfast.values import FORK_JUMP_MIN, Instant, LogId, Slot, Version, slot_text

FIRST = genesis()
ONE = record(FIRST, FIRST, FIRST.last_version + 1)
SECOND = takeover(ONE, "b")
OTHER_LOG = LogId(b"some-other-log..")


def chain(claim: Header, length: int, **changes: object) -> list[Header]:
    """The claim, and this many batches after it."""
    headers = [claim]
    for number in range(1, length + 1):
        headers.append(record(headers[-1], claim, claim.last_version + number, **changes))
    return headers


def bare(header: Header) -> Header:
    """What recovery reads of it: ``bytes_of`` leaves the body out."""
    return replace(header, transactions=0, body_length=0)


def recovered(
    headers: Sequence[Header], page: NewestKeys | None = None, copy_from: Slot | None = None
) -> tuple[Frontier, list[Slot]]:
    """The frontier, and the headers that recovery asked for, one after another."""
    page = read_page(rows(*headers)) if page is None else page
    stored, objects, wanted = bytes_of(*headers), dict[Slot, bytes](), list[Slot]()
    for _ in range(4):
        plan = plan_recovery(page, objects, allow_new=False, copy_from=copy_from)
        if isinstance(plan, Frontier):
            return plan, wanted
        wanted.append(plan)
        objects[plan] = stored[plan]
    raise AssertionError("recovery asks for at most three headers")


def refusal(headers: Sequence[Header], page: NewestKeys | None = None) -> tuple[str, dict[str, object]]:
    """What recovery says of these objects, and the facts."""
    with pytest.raises(CorruptData) as refused:
        recovered(headers, page)
    assert refused.value.code is Code.CORRUPT_LOG
    return refused.value.message.removeprefix("log is damaged: "), dict(refused.value.fields)


# ---- the page --------------------------------------------------------------------------------------------------------


def test_a_foreign_key_is_named_with_what_to_do() -> None:
    with pytest.raises(CorruptData) as refused:
        read_page([("batches/17", 1024)])
    assert refused.value.message == "a key under batches/ is not a slot"
    assert (refused.value.code, refused.value.fields) == (Code.CORRUPT_LOG, {"key": "batches/17"})
    assert refused.value.hint == "move the foreign object away; nothing but Holdfast may write under batches/"


def test_a_store_lists_each_key_once_and_in_order() -> None:
    listing = rows(*chain(FIRST, 2))
    assert read_page(listing).slots == tuple(sorted(header.slot for header in chain(FIRST, 2)))
    for wrong in (listing[::-1], [*listing, listing[-1]]):
        with pytest.raises(CorruptData) as refused:
            read_page(wrong)
        assert (refused.value.message, refused.value.code) == ("the store does not list in order", Code.STORE_UNFIT)
        assert refused.value.fields == {"newest": wrong[0][0].removeprefix("batches/")}


def test_the_headers_that_are_read_at_once_are_the_newest_the_newest_claim_and_the_objects_after_holes() -> None:
    def guesses(slots: Sequence[int], *claims: int) -> list[int]:
        return list(first_headers(NewestKeys(tuple(map(Slot, slots)), frozenset(map(Slot, claims)))))

    assert guesses([]) == []
    assert guesses([10, 11, 12, 20, 21, 30]) == [10, 20, 30]
    assert guesses([10, 11, 12, 20, 21, 30], 21, 12) == [10, 12, 20, 30]
    assert guesses([10, 11, 20], 10) == [10, 20]
    sparse = range(0, 4 * GUESSES_MAX, 2)
    assert guesses(sparse) == list(sparse[:GUESSES_MAX])
    assert guesses(sparse, sparse[-1]) == [0, sparse[-1], *sparse[1 : GUESSES_MAX - 1]]


# ---- the frontier ----------------------------------------------------------------------------------------------------


def test_an_empty_log_says_what_to_do() -> None:
    with pytest.raises(NotFound) as refused:
        plan_recovery(NewestKeys((), frozenset()), {}, allow_new=False)
    assert (refused.value.message, refused.value.code) == ("log is empty", Code.LOG_EMPTY)
    assert refused.value.hint == (
        "if this is meant to be a new log, run `holdfast log init URL` or start with --init; "
        "if it is not, look whether the disk is mounted and the URL is right"
    )


@pytest.mark.parametrize("claim", [FIRST, SECOND])
@pytest.mark.parametrize("length", [0, 1, 2, 3])
def test_without_a_hole_the_frontier_is_after_the_newest_object(claim: Header, length: int) -> None:
    headers = chain(claim, length)
    frontier, wanted = recovered(headers)
    assert frontier == Frontier(
        headers[length].slot - 1 if length else jump(claim.slot), bare(headers[-1]), claim.epoch + 1
    )
    assert wanted == ([headers[-1].slot, claim.slot] if length else [claim.slot])


@pytest.mark.parametrize("claim", [FIRST, SECOND])
@pytest.mark.parametrize("hole", [1, 2, 3])
def test_the_oldest_hole_is_the_frontier_and_the_object_before_it_the_predecessor(claim: Header, hole: int) -> None:
    headers = chain(claim, 5, durable=claim.slot)
    newest = replace(headers[5], durable=Slot(headers[hole].slot + 1))
    frontier, wanted = recovered([*headers[:hole], newest])
    assert (frontier.slot, frontier.predecessor) == (headers[hole].slot, bare(headers[hole - 1]))
    assert wanted == [newest.slot, claim.slot, *([headers[hole - 1].slot] if hole > 1 else [])]
    gone = replace(newest, durable=headers[hole].slot)
    assert refusal([*headers[:hole], gone]) == (
        "an acknowledged slot has gone",
        {
            "slot": slot_text(headers[hole].slot),
            "durable": slot_text(headers[hole].slot),
            "told_by": slot_text(newest.slot),
        },
    )


def test_a_claim_says_of_a_slot_that_was_acknowledged_too() -> None:
    headers = chain(SECOND, 2)
    claim = replace(SECOND, durable=Slot(headers[2].slot - 1))
    assert refusal([claim, *headers[1:]])[0] == "an acknowledged slot has gone"


def test_a_long_leadership_fills_the_page_and_its_claim_is_not_read() -> None:
    claim = replace(FIRST, slot=Slot(10**6), claim=Slot(10**6))
    newest = record(replace(ONE, slot=Slot(5_001)), claim, ONE.last_version + 1, durable=Slot(7_000))
    page = NewestKeys(tuple(Slot(5_000 + number) for number in range(SPAN_MAX)), frozenset())
    frontier, wanted = recovered([newest], page)
    assert (frontier.slot, frontier.predecessor, wanted) == (4_999, bare(newest), [5_000])


def test_while_a_log_is_copied_only_what_is_after_its_first_slot_can_be_a_hole_or_acknowledged() -> None:
    headers = chain(FIRST, 6)
    copied = [FIRST, *headers[3:5], headers[6]]
    for first, hole in ((1, 1), (3, 5), (5, 5)):
        frontier, _ = recovered(copied, copy_from=headers[first].slot)
        assert frontier.slot == headers[hole].slot
        assert frontier.predecessor == (FIRST if first == hole else bare(headers[hole - 1]))


# ---- row 8 -----------------------------------------------------------------------------------------------------------


def test_what_does_not_fit_is_named_by_slot_and_facts() -> None:
    headers = chain(SECOND, 3)
    newest, claim = {"slot": slot_text(headers[3].slot)}, {"claim": slot_text(SECOND.slot)}

    def with_newest(**changes: object) -> list[Header]:
        return [*headers[:3], replace(headers[3], **changes)]  # type: ignore[arg-type]

    assert refusal(with_newest(log_id=OTHER_LOG)) == ("object belongs to another log", {"slot": claim["claim"]})
    not_own = "newest object is not of the newest claim", {**newest, **claim}
    assert refusal(with_newest(epoch=9)) == not_own
    assert refusal(with_newest(claim=FIRST.slot)) == not_own
    hole = [SECOND, replace(headers[1], epoch=9), replace(headers[3], durable=SECOND.slot)]
    stranger = "predecessor is not of the newest claim", {"slot": slot_text(headers[1].slot), **claim}
    assert refusal(hole) == stranger
    assert refusal([SECOND, replace(headers[1], claim=FIRST.slot), hole[2]]) == stranger
    page = NewestKeys((headers[1].slot,), frozenset({headers[1].slot}))
    data = replace(record(FIRST, FIRST, slot=headers[1].slot), claim=headers[1].slot)
    assert refusal([data], page) == ("object of claim size is no claim", {"slot": slot_text(data.slot)})


def test_a_dead_object_is_of_an_earlier_leader() -> None:
    old = chain(FIRST, 4)
    dead = replace(old[3], durable=FIRST.slot)
    assert recovered([*old[:2], SECOND, dead])[0] == Frontier(jump(SECOND.slot), SECOND, 3)
    assert refusal([*old[:2], SECOND, replace(dead, epoch=2)]) == (
        "a dead object has the epoch of a live one", {"slot": slot_text(dead.slot), "epoch": 2},
    )  # fmt: skip


def test_after_a_fork_only_a_dead_object_may_have_the_parent_s_log_id() -> None:
    fork = replace(SECOND, parent_log_id=LOG_ID, log_id=OTHER_LOG)
    dead = record(record(ONE, FIRST, ONE.last_version + 1), FIRST, ONE.last_version + 2, durable=FIRST.slot)
    assert recovered([FIRST, ONE, fork, dead])[0] == Frontier(jump(fork.slot), fork, 3)
    third = LogId(b"a-third-log.....")
    assert refusal([FIRST, ONE, fork, replace(dead, log_id=third)])[0] == "object belongs to another log"
    assert refusal([FIRST, ONE, SECOND, replace(dead, log_id=third)])[0] == "object belongs to another log"
    own = record(fork, fork, fork.last_version + 1)
    assert recovered([fork, own])[0].predecessor == bare(own)
    newest = record(own, fork, fork.last_version + 2, log_id=LOG_ID)
    page = read_page(rows(fork, own, newest))
    assert refusal([fork, own, newest], page)[0] == "object belongs to another log"
    holed = record(newest, fork, fork.last_version + 3, log_id=LOG_ID, durable=fork.slot)
    assert refusal([fork, own, holed])[0] == "newest object is not of the newest claim"


# ---- the walk --------------------------------------------------------------------------------------------------------


def test_a_walk_goes_on_along_one_leadership_until_the_log_ends() -> None:
    two = record(ONE, FIRST, ONE.last_version + 1)
    assert walk_on(ONE, None) == Frontier(two.slot, ONE, 2)
    assert walk_on(SECOND, None) == Frontier(jump(SECOND.slot), SECOND, 3)
    assert walk_on(ONE, two) is two
    for changes in (
        {"log_id": OTHER_LOG}, {"leader_id": b"somebody.else..."}, {"epoch": 2}, {"kind": Kind.CLAIM},
        {"prev": FIRST.slot},
    ):  # fmt: skip
        assert walk_on(ONE, replace(two, **changes)) is None  # type: ignore[arg-type]


def test_nobody_leads_a_log_after_the_claim_that_retired_it() -> None:
    retired = replace(SECOND, flags=FLAG_RETIRES)
    for predecessor in (None, SECOND):
        Frontier(FIRST_SLOT, predecessor, 3).require_not_retired()
    with pytest.raises(Closed) as refused:
        Frontier(jump(SECOND.slot), retired, 3).require_not_retired()
    assert (refused.value.message, refused.value.code) == (
        "the log was retired: nobody leads it any more", Code.LOG_RETIRED,
    )  # fmt: skip
    assert refused.value.hint == (
        "its copy was promoted in its place: use that one; this one can be read with --read-only"
    )
    assert refused.value.fields == {"log_id": LOG_ID.hex(), "version": SECOND.prev_version}


# ---- claims ----------------------------------------------------------------------------------------------------------


WHO = replace(identity("c"), scope=AddressScope(b"boot-of-claimant", 7))


def claim_of(before: Header | None, log_id: LogId = LOG_ID, *, wall_ms: int = 2_000, **options: Any) -> Header:
    frontier = Frontier(FIRST_SLOT, None, 1) if before is None else Frontier(Slot(before.slot - 1), before, 7)
    return claim_header(frontier, WHO, nonce=b"n" * 16, log_id=log_id, now=Instant(5.0, wall_ms), **options)


def expected_of(before: Header | None, base: int, **changes: object) -> Header:
    """A claim of these options by the table of the format."""
    slot = FIRST_SLOT if before is None else Slot(before.slot - 1)
    expected = Header(
        kind=Kind.CLAIM, log_id=LOG_ID, slot=slot, claim=slot, prev=slot if before is None else before.slot,
        epoch=1 if before is None else 7, leader_id=WHO.leader_id, nonce=b"n" * 16,
        first_version=Version(base), last_version=Version(base), window_floor=Version(base),
        prev_version=Version(0) if before is None else before.last_transaction_version,
        durable=slot if before is None else before.slot,
        truncated_through=Version(0) if before is None else before.truncated_through,
        time_ms=2_000, boot_ms=5, lived_ms=0 if before is None else before.lived_ms, address=WHO.address,
        scope=WHO.scope,
    )  # fmt: skip
    return replace(expected, **changes)  # type: ignore[arg-type]


BEFORE = replace(ONE, truncated_through=Version(9), lived_ms=44)


def test_a_claim_has_its_fields_by_its_predecessor() -> None:
    assert claim_of(None) == expected_of(None, first_base(LOG_ID))
    base = BEFORE.last_version + VERSION_JUMP
    assert claim_of(BEFORE, OTHER_LOG) == expected_of(BEFORE, base)
    assert claim_of(BEFORE, retires=True) == expected_of(BEFORE, base, flags=FLAG_RETIRES)


@pytest.mark.parametrize(("removed", "truncated_through"), [(3, 9), (30, 30)])
def test_a_claim_that_forks_a_log_names_what_it_leaves(removed: int, truncated_through: int) -> None:
    fork = Copied(OTHER_LOG, Version(removed), FIRST_SLOT)
    assert claim_of(BEFORE, fork=fork) == expected_of(
        BEFORE, fork_base(BEFORE.last_version, OTHER_LOG), log_id=OTHER_LOG, parent_log_id=LOG_ID,
        forked_at=BEFORE.last_version, truncated_through=truncated_through,
    )  # fmt: skip


def test_the_stores_stay_where_they_are_unless_a_claim_moves_them() -> None:
    in_log = replace(BEFORE, stores_mode=StoresMode.LOG, newest_transaction=Version(BEFORE.last_version - 1))
    base = BEFORE.last_version + VERSION_JUMP
    newest = {"newest_transaction": in_log.newest_transaction}
    assert claim_of(None, stores_mode=StoresMode.LOG) == expected_of(
        None, first_base(LOG_ID), stores_mode=StoresMode.LOG
    )
    assert claim_of(BEFORE, stores_mode=StoresMode.LOG) == expected_of(BEFORE, base)
    assert claim_of(in_log) == expected_of(in_log, base, stores_mode=StoresMode.LOG, **newest)
    assert claim_of(in_log, stores_mode=StoresMode.RETURNED, moves=True) == expected_of(
        in_log, base, stores_mode=StoresMode.RETURNED, **newest
    )
    assert claim_of(BEFORE, stores_mode=StoresMode.LOG, moves=True) == expected_of(
        BEFORE, base, stores_mode=StoresMode.LOG, newest_transaction=BEFORE.last_version
    )


def test_a_wall_clock_is_believed_unless_something_better_contradicts_it() -> None:
    stepped = BEFORE.time_ms + STEP_MS_MAX + 6
    assert claim_of(BEFORE, wall_ms=stepped).flags == 0
    doubtful = claim_of(replace(BEFORE, clock_steps=4), wall_ms=stepped, believed=False)
    assert (doubtful.flags, doubtful.ahead_s, doubtful.clock_steps) == (FLAG_CLOCK_DOUBTED, STEP_MS_MAX // 1_000, 4)
    retired = claim_of(BEFORE, wall_ms=stepped, believed=False, retires=True)
    assert retired.flags == FLAG_CLOCK_DOUBTED | FLAG_RETIRES


def test_a_base_is_as_random_as_the_id_of_its_log() -> None:
    assert [first_base(LogId(log_id)) for log_id in (bytes(16), b"~" * 16)] == [100_000_000, 304_838_410_366]
    number = int.from_bytes(OTHER_LOG, "big") % (FORK_JUMP_MAX - FORK_JUMP_MIN)
    assert fork_base(17, OTHER_LOG) == 17 + FORK_JUMP_MIN + number != 17 + FORK_JUMP_MIN


def test_a_claim_is_a_header_and_nothing_more() -> None:
    assert len(encode_claim(FIRST)) == CLAIM_BYTES
    with pytest.raises(AssertionError, match=r"^a claim is a header and nothing more"):
        encode_claim(ONE)
