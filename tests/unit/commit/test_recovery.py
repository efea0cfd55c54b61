"""The decision table of recovery, a test per row, and the worked examples of the log protocol."""

from __future__ import annotations

from dataclasses import replace
from hashlib import blake2b

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.commit.builders import LOG_ID, bytes_of, genesis, identity, record, rows, takeover

from holdfast.commit.format.batch import (
    CLAIM_BYTES,
    FIRST_SLOT,
    SPAN_MAX,
    Header,
    Kind,
    encode_object,
    jump,
    object_name,
)
from holdfast.commit.leadership.claims import (
    Frontier,
    NewestKeys,
    claim_header,
    encode_claim,
    first_base,
    first_headers,
    has_successor,
    plan_recovery,
    read_page,
)
from holdfast.errors import Code, CorruptData, NotFound
from holdfast.values import Instant, LogId, Slot


def recovered(*headers: Header) -> Frontier:
    """Recovery over a log of exactly these objects, reading headers as it asks for them."""
    page = read_page(rows(*headers)[:SPAN_MAX])
    stored = bytes_of(*headers)
    objects = {slot: stored[slot] for slot in first_headers(page)}
    for _ in range(4):
        plan = plan_recovery(page, objects, allow_new=False)
        if isinstance(plan, Frontier):
            return plan
        objects[plan] = stored[plan]
    raise AssertionError("recovery asks for headers without end")


def reign(claim: Header, *batches: int) -> list[Header]:
    """A claim and as many batches as numbers, each with one transaction."""
    chain = [claim]
    for number in batches:
        chain.append(record(chain[-1], claim, claim.last_version + number))
    return chain


# -- the table -------------------------------------------------------------------------------------------------------


def test_row_1_an_empty_log_begins_at_the_first_slot_when_that_is_wanted() -> None:
    assert plan_recovery(NewestKeys((), frozenset()), {}, allow_new=True) == Frontier(FIRST_SLOT, None, 1)


def test_row_2_an_empty_log_is_refused_otherwise_and_the_command_is_named() -> None:
    with pytest.raises(NotFound) as refused:
        plan_recovery(NewestKeys((), frozenset()), {}, allow_new=False)
    assert refused.value.code is Code.LOG_EMPTY
    assert "holdfast log init" in refused.value.hint


@pytest.mark.parametrize("name", ["batches/17", "batches/00000000000000002000.tmp", "batches/99999999999999999999"])
def test_row_3_a_key_that_is_not_a_slot_stops_start_up_and_is_named(name: str) -> None:
    with pytest.raises(CorruptData) as refused:
        read_page([(name, 1024)])
    assert name in str(refused.value)


def test_row_4_after_a_claim_without_data_the_next_claim_stands_at_its_jump() -> None:
    first = genesis()
    second = takeover(first, "b")
    plan = recovered(first, second)
    assert (plan.slot, plan.epoch) == (jump(second.slot), 3)
    assert plan.predecessor is not None
    assert plan.predecessor.slot == second.slot


def test_row_4_zombies_above_the_newest_claim_do_not_move_the_frontier() -> None:
    first, *old = reign(genesis(), 1, 2, 3, 4)
    second = takeover(old[0], "b")
    plan = recovered(first, old[0], second, *old[2:])
    assert plan.slot == jump(second.slot)
    assert plan.predecessor is not None
    assert plan.predecessor.slot == second.slot


def test_row_5_without_a_hole_the_next_claim_follows_the_newest_object() -> None:
    chain = reign(genesis(), 1, 2, 3)
    plan = recovered(*chain)
    assert (plan.slot, plan.epoch) == (chain[-1].slot - 1, 2)


def test_row_6_the_oldest_hole_is_claimed_and_what_lies_beyond_is_dead() -> None:
    chain = reign(genesis(), 1, 2, 3, 4, 5, 6)
    # Nothing after the third batch was acknowledged when the rest were frozen.
    rest = [replace(header, durable=chain[3].slot) for header in chain[5:]]
    plan = recovered(*chain[:4], rest[0])
    assert plan.slot == chain[4].slot
    assert plan.predecessor is not None
    assert plan.predecessor.slot == chain[3].slot


def test_row_6_a_hole_at_the_jump_itself_is_claimed_over_the_claim() -> None:
    first = genesis()
    later = replace(record(record(first, first, first.last_version + 1), first), durable=first.slot)
    plan = recovered(first, later)
    assert plan.slot == jump(first.slot)
    assert plan.predecessor is not None
    assert plan.predecessor.slot == first.slot


def test_row_7_a_hole_where_a_header_tells_of_an_acknowledged_slot_is_damage() -> None:
    chain = reign(genesis(), 1, 2, 3, 4)
    with pytest.raises(CorruptData, match="an acknowledged slot has gone"):
        recovered(chain[0], chain[1], *chain[3:])


def test_row_8_an_object_of_another_log_is_refused() -> None:
    chain = reign(genesis(), 1, 2)
    with pytest.raises(CorruptData, match="another log"):
        recovered(*chain[:2], replace(chain[2], log_id=b"some-other-log.."))


def test_row_8_an_object_of_claim_size_that_is_no_claim_is_refused() -> None:
    first = genesis()
    fake = record(first, first)
    page = read_page([(object_name(fake.slot), CLAIM_BYTES), (object_name(first.slot), CLAIM_BYTES)])
    with pytest.raises(CorruptData, match="claim size is no claim"):
        plan_recovery(page, bytes_of(first, fake), allow_new=False)


def test_row_8_a_newest_object_of_another_epoch_is_refused() -> None:
    chain = reign(genesis(), 1, 2)
    with pytest.raises(CorruptData, match="newest object is not of the newest claim"):
        recovered(*chain[:-1], replace(chain[-1], epoch=7))


def test_row_8_a_dead_object_with_a_living_epoch_is_refused() -> None:
    first, *old = reign(genesis(), 1, 2, 3)
    second = takeover(old[0], "b")
    with pytest.raises(CorruptData, match="dead object has the epoch of a live one"):
        recovered(first, old[0], second, replace(old[2], epoch=second.epoch))


def test_row_8_a_predecessor_of_another_claim_is_refused() -> None:
    chain = reign(genesis(), 1, 2, 3)
    # The newest object is good, but beneath the hole stands a stranger.
    hole = [chain[0], replace(chain[1], epoch=9), replace(chain[3], durable=chain[0].slot)]
    with pytest.raises(CorruptData, match="predecessor is not of the newest claim"):
        recovered(*hole)


def test_a_header_whose_crc_fails_is_refused() -> None:
    first = genesis()
    broken = bytearray(encode_claim(first))
    broken[200] ^= 1
    with pytest.raises(CorruptData, match="CRC"):
        plan_recovery(read_page(rows(first)), {first.slot: bytes(broken)}, allow_new=False)


def test_a_store_that_does_not_list_in_order_is_refused_by_name() -> None:
    chain = reign(genesis(), 1)
    with pytest.raises(CorruptData) as refused:
        read_page(rows(*chain)[::-1])
    assert refused.value.code is Code.STORE_UNFIT


# -- the worked examples ---------------------------------------------------------------------------------------------


def claim_with_jump_at(slot: int) -> Header:
    """A claim deep in a log, whose data start at ``slot``."""
    before = record(genesis(), genesis(), slot=Slot(slot + SPAN_MAX + 1))
    return takeover(before, "b", slot=slot + SPAN_MAX)


def worked_example() -> tuple[Header, Header, list[Header]]:
    """2001 is durable, 2000..1001 are in flight, 2000 never lands."""
    claim = claim_with_jump_at(2001)
    durable = record(claim, claim, claim.last_version + 1)
    in_flight = [record(durable, claim, durable.last_version + 1)]
    for number in range(2, SPAN_MAX + 1):
        head = in_flight[-1]
        in_flight.append(record(head, claim, claim.last_version + 1 + number, durable=durable.slot))
    assert (durable.slot, in_flight[0].slot, in_flight[-1].slot) == (2001, 2000, 1001)
    return claim, durable, in_flight[1:]


def test_2000_never_lands_and_is_claimed_and_the_data_of_the_next_leader_start_at_1000() -> None:
    claim, durable, landed = worked_example()
    listed = rows(claim, durable, *landed)[:SPAN_MAX]
    assert len(listed) == 1000
    assert listed[-1][0] == object_name(2001)
    plan = recovered(claim, durable, *landed)
    assert (plan.slot, plan.epoch) == (2000, claim.epoch + 1)
    assert plan.predecessor is not None
    assert plan.predecessor.slot == 2001
    who = identity("c")
    following = claim_header(plan, who, nonce=who.nonce_seed[:16], log_id=LOG_ID, now=Instant(0.0, 3_000))
    assert (following.slot, following.prev, jump(following.slot)) == (2000, 2001, 1000)


def test_after_the_claim_at_2000_the_999_dead_objects_leave_room_for_it_in_the_page_and_not_one_key_less() -> None:
    claim, durable, landed = worked_example()
    second = takeover(durable, "c")
    assert second.slot == 2000
    everything = rows(claim, durable, second, *landed)
    page = read_page(everything[:SPAN_MAX])
    assert (len(page.slots), page.claims) == (1000, {2000})
    plan = recovered(claim, durable, second, *landed)
    assert (plan.slot, plan.epoch) == (1000, second.epoch + 1)
    short = read_page(everything[: SPAN_MAX - 1])
    assert not short.claims, "a page one key short does not see the claim"


def test_genesis_two_acknowledged_batches_and_a_crash_make_the_next_claim_2_to_the_64_minus_4() -> None:
    plan = recovered(*reign(genesis(), 1, 2))
    assert plan.slot == 2**64 - 4
    assert object_name(plan.slot) == "batches/18446744073709551612"


# -- claims ----------------------------------------------------------------------------------------------------------


def test_a_claim_commits_the_empty_version_100_million_above_its_predecessor() -> None:
    head = reign(genesis(), 1, 2)[-1]
    claim = takeover(head, "b")
    assert claim.first_version == claim.last_version == claim.window_floor == head.last_version + 100_000_000
    assert (claim.prev, claim.durable, claim.prev_version) == (head.slot, head.slot, head.last_version)
    assert claim.log_id == head.log_id
    assert len(encode_object(claim)) == 512


def test_a_claim_never_turns_the_log_s_time_back() -> None:
    head = replace(genesis(), time_ms=9_000)
    assert takeover(head, "b").time_ms == 9_000


@pytest.mark.parametrize(("newest", "past"), [(None, False), (1001, False), (1000, True), (999, True)])
def test_a_key_at_or_below_what_a_leader_has_sent_is_somebody_past_it(newest: int | None, past: bool) -> None:
    assert has_successor(None if newest is None else Slot(newest), oldest_free=Slot(1000)) is past


def test_the_headers_worth_guessing_contain_every_predecessor_that_the_table_can_name() -> None:
    chain = reign(genesis(), 1, 2, 3, 4)
    gapped = [chain[0], chain[1], replace(chain[4], durable=chain[0].slot)]
    page = read_page(rows(*gapped))
    plan = plan_recovery(page, {slot: bytes_of(*gapped)[slot] for slot in first_headers(page)}, allow_new=False)
    assert isinstance(plan, Frontier)


def test_a_resigned_leader_is_followed_like_any_other() -> None:
    chain = reign(genesis(), 1)
    resign = record(chain[-1], chain[0], kind=Kind.RESIGN)
    assert recovered(*chain, resign).slot == resign.slot - 1


@given(st.binary(min_size=16, max_size=16))
def test_the_base_of_a_new_log_follows_from_its_id_and_lies_between_its_bounds(log_id: bytes) -> None:
    frontier = plan_recovery(read_page([]), {}, allow_new=True)
    assert isinstance(frontier, Frontier)
    claim = claim_header(frontier, identity("a"), nonce=b"n" * 16, log_id=LogId(log_id), now=Instant(0.0, 1))
    assert 10**8 <= claim.last_version < 10**12
    assert claim.last_version == first_base(LogId(log_id))
    assert (claim.first_version, claim.window_floor, claim.prev_version) == (claim.last_version, claim.last_version, 0)


def test_bases_are_spread_over_the_whole_range() -> None:
    bases = [first_base(LogId(blake2b(bytes([number]), digest_size=16).digest())) for number in range(200)]
    tenths = {base * 10 // 10**12 for base in bases}
    assert tenths == set(range(10))
    assert len(set(bases)) == 200
