"""The live chain: every rule broken alone is named, with its slot."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.commit.builders import genesis, record, takeover

from holdfast.commit.format.batch import FIRST_SLOT, VERSION_JUMP, Kind, jump
from holdfast.commit.format.chain import ChainWalker, check_genesis, check_link
from holdfast.errors import Code, CorruptData
from holdfast.values import slot_text

FIRST = genesis()
ONE = record(FIRST, FIRST, FIRST.last_version + 1)
TWO = record(ONE, FIRST, ONE.last_version + 1, ONE.last_version + 4)
EMPTY = record(TWO, FIRST)
CLAIM = takeover(TWO, "b")


def test_a_whole_log_walks_through_claims_and_jumps() -> None:
    walker = ChainWalker()
    after = record(CLAIM, CLAIM, CLAIM.last_version + 1)
    resign = record(after, CLAIM, kind=Kind.RESIGN)
    third = takeover(resign, "c")
    for header in (FIRST, ONE, TWO, CLAIM, after, resign, third):
        assert walker.next_slot == header.slot
        walker.accept(header)
    assert walker.head == walker.claim == third
    assert walker.next_slot == jump(third.slot)


BROKEN_RECORDS: dict[str, dict[str, object]] = {
    "another log": {"log_id": b"some-other-log.."},
    "prev does not name the head": {"prev": FIRST_SLOT},
    "time falls": {"time_ms": 0},
    "prev_version does not name": {"prev_version": 5},
    "durable does not name an older slot": {"durable": TWO.slot},
    "durable falls back": {"durable": ONE.slot + 5},
    "truncated_through falls": {"truncated_through": -1},
    "window_floor falls": {"window_floor": 1},
    "not of the leader that claimed": {"leader_id": b"somebody.else..."},
    "versions do not rise": {"first_version": ONE.last_version},
    "versions pass the jump": {"last_version": ONE.last_version + VERSION_JUMP},
}


@pytest.mark.parametrize("rule", BROKEN_RECORDS)
def test_a_record_that_breaks_one_rule_is_damage_named_by_slot_and_rule(rule: str) -> None:
    # The head tells a durable slot, so that falling behind it shows.
    head = replace(ONE, durable=FIRST.slot) if rule != "durable falls back" else ONE
    with pytest.raises(CorruptData, match=rule) as refused:
        check_link(head, FIRST, replace(TWO, **BROKEN_RECORDS[rule]))  # type: ignore[arg-type]
    assert refused.value.code is Code.CORRUPT_LOG
    assert slot_text(TWO.slot) in str(refused.value)


@pytest.mark.parametrize("changes", [{"epoch": 2}, {"claim": ONE.slot}, {"leader_id": b"somebody.else..."}])
def test_a_record_lives_only_under_the_very_claim_of_its_header(changes: dict[str, object]) -> None:
    with pytest.raises(CorruptData, match="not of the leader that claimed"):
        check_link(ONE, FIRST, replace(TWO, **changes))  # type: ignore[arg-type]


def test_a_record_must_have_room_for_its_transactions_between_its_versions() -> None:
    with pytest.raises(CorruptData, match="versions do not rise"):
        check_link(ONE, FIRST, replace(TWO, transactions=9))


@pytest.mark.parametrize("changes", [{"last_version": TWO.last_version + 1}, {"first_version": 1, "last_version": 1}])
def test_an_empty_batch_settles_one_version_at_or_above_the_head_s(changes: dict[str, object]) -> None:
    check_link(TWO, FIRST, EMPTY)
    with pytest.raises(CorruptData, match="empty batch has impossible versions"):
        check_link(TWO, FIRST, replace(EMPTY, **changes))  # type: ignore[arg-type]


def test_a_leader_writes_nothing_after_it_resigned() -> None:
    resign = record(ONE, FIRST, kind=Kind.RESIGN)
    with pytest.raises(CorruptData, match="wrote after it resigned"):
        check_link(resign, FIRST, record(resign, FIRST, ONE.last_version + 1))


def test_durable_never_names_a_dead_slot() -> None:
    after = record(CLAIM, CLAIM, CLAIM.last_version + 1)
    following = record(after, CLAIM, CLAIM.last_version + 2)
    with pytest.raises(CorruptData, match="durable names a dead slot"):
        check_link(replace(after, durable=CLAIM.slot - 1), CLAIM, replace(following, durable=CLAIM.slot - 2))


BROKEN_CLAIMS: dict[str, dict[str, object]] = {
    "epoch is not one more": {"epoch": 3},
    "base is not the version jump": {"last_version": CLAIM.last_version + 1},
    "claim's durable is not its prev": {"durable": ONE.slot},
}


@pytest.mark.parametrize("rule", BROKEN_CLAIMS)
def test_a_claim_that_breaks_one_rule_is_damage(rule: str) -> None:
    head = replace(TWO, durable=ONE.slot)
    check_link(head, FIRST, CLAIM)
    with pytest.raises(CorruptData, match=rule):
        check_link(head, FIRST, replace(CLAIM, **BROKEN_CLAIMS[rule]))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "changes", [{"slot": ONE.slot}, {"kind": Kind.DATA}, {"epoch": 2}, {"prev": ONE.slot}, {"durable": 1}]
)
def test_only_a_genesis_claim_begins_a_log(changes: dict[str, object]) -> None:
    check_genesis(FIRST)
    with pytest.raises(CorruptData, match="genesis"):
        check_genesis(replace(FIRST, **changes))  # type: ignore[arg-type]


def test_a_refused_header_leaves_the_walker_where_it_was() -> None:
    walker = ChainWalker()
    walker.accept(FIRST)
    for stranger in (TWO, replace(ONE, prev_version=9)):
        with pytest.raises(CorruptData):
            walker.accept(stranger)
        assert (walker.head, walker.claim, walker.next_slot) == (FIRST, FIRST, ONE.slot)


def test_objects_between_a_claim_and_its_jump_are_never_asked_for() -> None:
    walker = ChainWalker(CLAIM, CLAIM)
    dead = record(TWO, FIRST, TWO.last_version + 1, slot=CLAIM.slot - 1)
    assert walker.next_slot == CLAIM.slot - 1000
    with pytest.raises(CorruptData, match="stands in another slot"):
        walker.accept(dead)
