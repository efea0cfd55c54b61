"""The live chain: every rule broken alone is named, with its slot."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.commit.builders import LOG_ID, genesis, record, takeover

from holdfast.commit.format.batch import (
    FIRST_SLOT,
    FLAG_RETIRES,
    FORK_JUMP_MAX,
    VERSION_JUMP,
    Header,
    Kind,
    StoresMode,
    jump,
)
from holdfast.commit.format.chain import ChainWalker, check_genesis, check_link, has_gone
from holdfast.errors import Code, CorruptData, NotFound
from holdfast.values import FORK_JUMP_MIN, LogId, Slot, Version, slot_text

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


def damage_of(head: Header, claim: Header, following: Header) -> tuple[str, dict[str, object]] | None:
    """What is wrong with ``following``, and the facts besides its slot; None: nothing."""
    refused: list[CorruptData] = []
    try:
        check_link(head, claim, following)
    except CorruptData as error:
        refused.append(error)
    if not refused:
        return None
    facts = dict(refused[0].fields)
    assert refused[0].code is Code.CORRUPT_LOG and facts.pop("slot") == slot_text(following.slot)
    return refused[0].message.removeprefix("log is damaged: "), facts


def stores_in_log(header: Header, newest_transaction: int | None = None, **changes: object) -> Header:
    """The object in a log that has the stores."""
    newest = header.last_transaction_version if newest_transaction is None else newest_transaction
    return replace(header, stores_mode=StoresMode.LOG, newest_transaction=Version(newest), **changes)  # type: ignore[arg-type]


BEHIND = replace(ONE, durable=FIRST.slot)
"""The head, which names an older durable slot, so that falling back shows."""
BROKEN_LINKS: list[tuple[str, Header, dict[str, object]]] = [
    ("object belongs to another log", BEHIND, {"log_id": b"some-other-log.."}),
    ("object comes after the log was retired", replace(BEHIND, flags=FLAG_RETIRES), {}),
    ("prev does not name the head of the chain", BEHIND, {"prev": FIRST_SLOT}),
    ("time falls along the chain", BEHIND, {"time_ms": ONE.time_ms - 1}),
    ("lived_ms falls along the chain", BEHIND, {"lived_ms": ONE.lived_ms - 1}),
    ("prev_version does not name the last transaction", BEHIND, {"prev_version": 5}),
    ("durable does not name an older slot", BEHIND, {"durable": TWO.slot}),
    ("durable falls back along the chain", ONE, {"durable": ONE.slot + 5}),
    ("truncated_through falls along the chain", BEHIND, {"truncated_through": -1}),
    ("window_floor falls along the chain", BEHIND, {"window_floor": ONE.window_floor - 1}),
    ("the mode of the stores changes along the chain", BEHIND, {"stores_mode": StoresMode.LOG}),
]


@pytest.mark.parametrize(("rule", "head", "changes"), BROKEN_LINKS)
def test_an_object_that_breaks_one_rule_is_damage_named_by_slots_and_rule(
    rule: str, head: Header, changes: dict[str, object]
) -> None:
    following = replace(TWO, **changes)  # type: ignore[arg-type]
    assert damage_of(BEHIND, FIRST, TWO) is None
    assert damage_of(head, FIRST, following) == (
        rule, {"prev": slot_text(following.prev), "head": slot_text(head.slot)},
    )  # fmt: skip


def in_log(first: int, last: int, *, transactions: int, entries: int, newest: int) -> Header:
    """After ``ONE`` in a log that has the stores; versions count from that of ``ONE``, and so does ``newest``."""
    return stores_in_log(
        replace(TWO, transactions=transactions, entries=entries),
        ONE.last_version + newest,
        first_version=ONE.last_version + first,
        last_version=ONE.last_version + last,
    )


@pytest.mark.parametrize(
    ("first", "last", "transactions", "entries", "newest", "rule"),
    [
        (1, 4, 2, 2, 4, ""),
        (1, 4, 2, 2, 1, ""),
        (1, 4, 0, 4, 0, ""),
        (1, VERSION_JUMP - 1, 1, 0, 1, ""),
        (1, 4, 2, 3, 4, "versions do not rise"),
        (0, 4, 1, 0, 4, "versions do not rise"),
        (5, 4, 0, 0, 0, "empty batch has impossible versions"),
        (-1, -1, 0, 0, 0, "empty batch has impossible versions"),
        (1, 4, 2, 2, 0, "the last transaction is not in its batch"),
        (1, 4, 2, 2, 5, "the last transaction is not in its batch"),
        (1, 4, 0, 2, 4, "a batch without transactions names one"),
        (1, VERSION_JUMP, 1, 0, 1, "versions pass the jump"),
    ],
)
def test_a_record_has_room_for_what_it_holds_and_names_its_last_transaction(
    first: int, last: int, transactions: int, entries: int, newest: int, rule: str
) -> None:
    base = ONE.last_version
    facts: dict[str, object] = {"first": base + first, "last": base + last, "before": base}
    if "transaction" in rule:
        facts = {"newest_transaction": base + newest}
    elif "jump" in rule:
        del facts["first"]
    following = in_log(first, last, transactions=transactions, entries=entries, newest=newest)
    assert damage_of(stores_in_log(ONE), FIRST, following) == ((rule, facts) if rule else None)


@pytest.mark.parametrize("changes", [{"epoch": 2}, {"claim": ONE.slot}, {"leader_id": b"somebody.else..."}])
def test_a_record_lives_only_under_the_very_claim_of_its_header(changes: dict[str, object]) -> None:
    following = replace(TWO, **changes)  # type: ignore[arg-type]
    facts = {"claim": slot_text(FIRST.slot), "epoch": following.epoch}
    assert damage_of(ONE, FIRST, following) == ("object is not of the leader that claimed", facts)


@pytest.mark.parametrize("changes", [{"last_version": TWO.last_version + 1}, {"first_version": 1, "last_version": 1}])
def test_an_empty_batch_settles_one_version_at_or_above_the_head_s(changes: dict[str, object]) -> None:
    check_link(TWO, FIRST, EMPTY)
    with pytest.raises(CorruptData, match="empty batch has impossible versions"):
        check_link(TWO, FIRST, replace(EMPTY, **changes))  # type: ignore[arg-type]


def test_a_leader_writes_nothing_after_it_resigned() -> None:
    resign = record(ONE, FIRST, kind=Kind.RESIGN)
    assert damage_of(resign, FIRST, record(resign, FIRST, ONE.last_version + 1)) == (
        "leader wrote after it resigned", {},
    )  # fmt: skip


def test_durable_never_names_a_dead_slot() -> None:
    after = record(CLAIM, CLAIM, CLAIM.last_version + 1)
    following = record(after, CLAIM, CLAIM.last_version + 2)
    head, following = (
        replace(header, durable=Slot(CLAIM.slot - back)) for back, header in ((1, after), (2, following))
    )
    assert damage_of(head, CLAIM, following) == ("durable names a dead slot", {"durable": slot_text(following.durable)})


BASES = ("first_version", "last_version", "window_floor")


def test_a_claim_follows_the_last_transaction_with_the_next_epoch_and_its_jump() -> None:
    head = replace(TWO, durable=ONE.slot)
    base, expected = CLAIM.last_version, {"expected": CLAIM.last_version}
    jumped = "claim's base is not the version jump"
    assert damage_of(head, FIRST, CLAIM) is None
    for changes, damage in (
        ({"epoch": 3}, ("claim's epoch is not one more", {"epoch": 3, "before": 1})),
        ({"first_version": base + 1}, (jumped, {"base": base, **expected})),
        ({"window_floor": base + 1}, (jumped, {"base": base, **expected})),
        (dict.fromkeys(BASES, base - 1), (jumped, {"base": base - 1, **expected})),
        (dict.fromkeys(BASES, base + 1), (jumped, {"base": base + 1, **expected})),
        ({"durable": ONE.slot}, ("claim's durable is not its prev", {"durable": slot_text(ONE.slot)})),
    ):  # fmt: skip
        assert damage_of(head, FIRST, replace(CLAIM, **changes)) == damage  # type: ignore[arg-type]
    named = stores_in_log(CLAIM, newest_transaction=TWO.last_version - 1)
    assert damage_of(stores_in_log(TWO), FIRST, named) == ("claim names another last transaction", {})


@pytest.mark.parametrize("jumps", [FORK_JUMP_MIN - 1, FORK_JUMP_MIN, FORK_JUMP_MAX, FORK_JUMP_MAX + 1])
def test_a_claim_that_forks_the_log_leaves_its_last_version_far_enough(jumps: int) -> None:
    base = Version(TWO.last_version + jumps)
    fork = replace(
        CLAIM, parent_log_id=LOG_ID, log_id=LogId(b"a-forked-log...."), forked_at=TWO.last_version,
        first_version=base, last_version=base, window_floor=base,
    )  # fmt: skip
    expected = None
    if jumps not in (FORK_JUMP_MIN, FORK_JUMP_MAX):
        expected = "claim's base is not the version jump", {"base": base, "expected": TWO.last_version + FORK_JUMP_MIN}
    assert damage_of(TWO, FIRST, fork) == expected
    forked_at = Version(TWO.last_version - 1)
    assert damage_of(TWO, FIRST, replace(fork, forked_at=forked_at)) == (
        "fork claim leaves another version than the last", {"forked_at": forked_at},
    )  # fmt: skip


@pytest.mark.parametrize("before", StoresMode)
@pytest.mark.parametrize("after", StoresMode)
def test_only_a_claim_moves_the_stores_into_the_log_or_back_to_a_disk(before: StoresMode, after: StoresMode) -> None:
    disk, log, returned = StoresMode.DISK, StoresMode.LOG, StoresMode.RETURNED
    head = replace(stores_in_log(TWO), stores_mode=before)
    refused = "the mode of the stores changes along the chain"
    for following in (CLAIM, EMPTY):
        moves = following is CLAIM and (before, after) in ((disk, log), (returned, log), (log, returned))
        damage = damage_of(head, FIRST, replace(stores_in_log(following), stores_mode=after))
        assert (damage and damage[0]) == (None if moves or before is after else refused)


def test_after_what_was_removed_an_object_of_the_claim_s_leader_is_expected() -> None:
    walker = ChainWalker.behind_removed(TWO.slot, FIRST)
    assert (walker.head, walker.claim, walker.next_slot) == (None, FIRST, TWO.slot)
    for changes in (
        {"log_id": b"some-other-log.."}, {"claim": ONE.slot}, {"epoch": 2}, {"leader_id": b"somebody.else..."},
    ):  # fmt: skip
        with pytest.raises(CorruptData) as refused:
            walker.accept(replace(TWO, **changes))  # type: ignore[arg-type]
        assert refused.value.message == "log is damaged: object is not of the leader that claimed"
        assert refused.value.fields == {"slot": slot_text(TWO.slot), "claim": slot_text(FIRST.slot)}
    walker.accept(TWO)
    walker.accept(EMPTY)
    assert (walker.head, walker.claim) == (EMPTY, FIRST)


def test_a_walk_goes_on_from_a_head_and_its_claim() -> None:
    walker = ChainWalker(ONE, FIRST)
    assert (walker.head, walker.claim, walker.next_slot) == (ONE, FIRST, TWO.slot)
    with pytest.raises(CorruptData) as refused:
        walker.accept(EMPTY)
    assert refused.value.message == "log is damaged: object stands in another slot"
    assert refused.value.fields == {"slot": slot_text(TWO.slot), "header_slot": slot_text(EMPTY.slot)}
    for head, claim in ((ONE, None), (None, FIRST)):
        with pytest.raises(AssertionError, match=r"^a walk goes on from a head and its claim"):
            ChainWalker(head, claim)


def test_an_object_that_the_log_needs_and_has_not_is_damage() -> None:
    error = has_gone(NotFound("there is no such object", name="batches/1"))
    assert (error.message, error.code) == ("log is damaged: an object has gone", Code.CORRUPT_LOG)
    assert error.fields == {"name": "batches/1"}


@pytest.mark.parametrize(
    "changes", [{"slot": ONE.slot}, {"kind": Kind.DATA}, {"epoch": 2}, {"prev": ONE.slot}, {"durable": 1}]
)
def test_only_a_genesis_claim_begins_a_log(changes: dict[str, object]) -> None:
    check_genesis(FIRST)
    with pytest.raises(CorruptData, match=r"^log is damaged: the first slot holds no genesis claim slot="):
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
