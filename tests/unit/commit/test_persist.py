"""Stage 3: when a batch closes, what the store's answers mean, and how far a leader may reach."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.commit.builders import BASE, at, entry, genesis, identity, takeover, txn

from holdfast.commit.format.batch import Kind, decode_body, decode_header, jump
from holdfast.commit.stages.events import CommitEntry, Put, ReadBack
from holdfast.commit.stages.persist import HEARTBEAT_VERSIONS, Persist, PersistRules, Verdict
from holdfast.objects.port import CREATED, Refused, Unknown

TIMEOUT = Unknown("no answer in time")


class Stage:
    """A Persist with a shorthand for what arrives at it."""

    def __init__(self, **rules: object) -> None:
        self.claim = genesis()
        self.persist = Persist(self.claim, identity().nonce_seed, PersistRules(**rules))  # type: ignore[arg-type]
        self.version = BASE

    def arrives(self, ms: float, *, count: int = 1, value: bytes = b"v") -> list[Put]:
        """Accepted transactions come in; returns what is sent."""
        entries: list[CommitEntry] = []
        for _ in range(count):
            self.version += 1
            item = entry(txn(value=value))
            item.version, item.accepted, item.size = self.version, True, 32 + len(value)
            entries.append(item)
        self.persist.collect([*entries], sum(item.size for item in entries), ms)
        return self.form(ms)

    def form(self, ms: float) -> list[Put]:
        formed = self.persist.form(at(ms), self.version, BASE)
        self.persist.check()
        return formed

    def versions(self, put: Put) -> list[int]:
        header = decode_header(put.data, slot=put.slot)
        return [found.version for found in decode_body(put.data, header)]


# -- when a batch closes ---------------------------------------------------------------------------------------------


def test_with_nothing_in_flight_a_commit_is_sent_at_once() -> None:
    (put,) = Stage().arrives(0)
    assert put.slot == jump(genesis().slot)


def test_a_second_batch_collects_until_its_interval_is_over() -> None:
    stage = Stage(batch_timeout_ms=5)
    stage.arrives(0)
    assert stage.arrives(1) == []
    assert stage.arrives(5.9) == []
    assert stage.persist.next_deadline_ms() == 6
    (put,) = stage.form(6)
    assert stage.versions(put) == [BASE + 2, BASE + 3]


def test_the_interval_is_a_tenth_of_the_put_latency_within_its_bounds() -> None:
    stage = Stage(batch_timeout_ms=5, batch_timeout_max_ms=20)
    assert stage.persist.interval_ms() == 5
    for latency, interval in ((100, 10), (1_000, 20)):
        slow = Stage(batch_timeout_ms=5, batch_timeout_max_ms=20)
        (put,) = slow.arrives(0)
        slow.persist.answered(put.slot, CREATED, latency)
        assert slow.persist.interval_ms() == interval


def test_a_batch_closes_when_it_is_full_and_only_its_last_commit_may_exceed_the_bound() -> None:
    stage = Stage(batch_bytes=200)
    stage.arrives(0)
    full = stage.arrives(1, count=5, value=b"x" * 68)
    assert [stage.versions(put) for put in full] == [[BASE + 2, BASE + 3], [BASE + 4, BASE + 5]]
    assert stage.persist.waiting == 1


def test_one_commit_larger_than_the_bound_is_a_batch_of_its_own() -> None:
    stage = Stage(batch_bytes=10)
    stage.arrives(0)
    (put,) = stage.arrives(1, value=b"x" * 500)
    assert stage.versions(put) == [BASE + 2]


def test_a_budget_of_requests_spaces_batches() -> None:
    stage = Stage(puts_per_second_max=100.0)
    (put,) = stage.arrives(0)
    stage.persist.answered(put.slot, CREATED, 1)
    stage.persist.take_durable()
    assert stage.arrives(2) == []
    assert stage.persist.next_deadline_ms() == 10
    assert len(stage.form(10)) == 1


def test_those_just_answered_are_waited_for_until_as_many_came_back() -> None:
    stage = Stage(batch_timeout_ms=5)
    (first,) = stage.arrives(0, count=2)
    assert stage.arrives(1) == []
    stage.persist.answered(first.slot, CREATED, 2)
    stage.persist.take_durable()
    assert stage.form(2) == []
    assert stage.arrives(2.5) == []
    (second,) = stage.arrives(3)
    assert stage.versions(second) == [BASE + 3, BASE + 4, BASE + 5]


def test_the_wait_for_those_just_answered_counts_from_the_first_who_came_back() -> None:
    stage = Stage(batch_timeout_ms=5)
    (first,) = stage.arrives(0, count=3)
    stage.persist.answered(first.slot, CREATED, 1)
    stage.persist.take_durable()
    assert stage.arrives(4) == []
    assert stage.arrives(8.9) == []
    assert stage.persist.next_deadline_ms() == 9
    assert [stage.versions(put) for put in stage.form(9)] == [[BASE + 4, BASE + 5]]


def test_who_comes_back_long_after_the_answers_waits_for_nobody() -> None:
    stage = Stage(batch_timeout_ms=5)
    (first,) = stage.arrives(0, count=3)
    stage.persist.answered(first.slot, CREATED, 1)
    stage.persist.take_durable()
    assert len(stage.arrives(11.1)) == 1


def test_those_just_answered_are_waited_for_no_longer_than_the_timeout() -> None:
    stage = Stage(batch_timeout_ms=5)
    (first,) = stage.arrives(0, count=2)
    stage.arrives(1)
    stage.persist.answered(first.slot, CREATED, 2)
    stage.persist.take_durable()
    assert stage.persist.next_deadline_ms() == 7
    assert len(stage.form(7)) == 1
    stage.persist.answered(first.slot - 1, CREATED, 8)
    stage.persist.take_durable()
    assert len(stage.arrives(50)) == 1, "long after the answers nobody is expected any more"


# -- the span (R1) ---------------------------------------------------------------------------------------------------


def test_the_span_counts_from_the_oldest_unacknowledged_slot_not_the_open_requests() -> None:
    stage = Stage(window=3, batch_timeout_ms=0)
    sent = [stage.arrives(ms)[0] for ms in (0, 1, 2)]
    assert stage.arrives(3) == []
    for put in sent[1:]:
        stage.persist.answered(put.slot, CREATED, 4)
    assert stage.persist.take_durable() == []
    assert stage.form(5) == [], "two answers behind a stuck one give no room"
    stage.persist.answered(sent[0].slot, CREATED, 6)
    assert [batch.header.slot for batch in stage.persist.take_durable()] == [put.slot for put in sent]
    assert len(stage.form(7)) == 1


def test_batches_become_durable_in_slot_order_only() -> None:
    stage = Stage(batch_timeout_ms=0)
    first, second = stage.arrives(0)[0], stage.arrives(1)[0]
    stage.persist.answered(second.slot, CREATED, 2)
    assert stage.persist.take_durable() == []
    assert stage.persist.durable_slot == stage.claim.slot
    stage.persist.answered(first.slot, CREATED, 3)
    assert len(stage.persist.take_durable()) == 2
    assert stage.persist.durable_slot == second.slot


def test_a_batch_names_the_watermark_at_its_freezing() -> None:
    stage = Stage(batch_timeout_ms=0)
    first = stage.arrives(0)[0]
    second = stage.arrives(1)[0]
    stage.persist.answered(first.slot, CREATED, 2)
    stage.persist.take_durable()
    stage.arrives(3)
    third = stage.form(4)[0]
    told = [decode_header(put.data, slot=put.slot).durable for put in (first, second, third)]
    assert told == [stage.claim.slot, stage.claim.slot, first.slot]


# -- the store's answers (R6) ----------------------------------------------------------------------------------------


def own(put: Put) -> object:
    return decode_header(put.data, slot=put.slot)


@pytest.mark.parametrize("certain", [True, False])
def test_a_refusal_is_read_back_once_whatever_the_store_calls_it(certain: bool) -> None:
    stage = Stage()
    (put,) = stage.arrives(0)
    assert stage.persist.answered(put.slot, Refused(certain), 1) == (Verdict.GOES_ON, [ReadBack(put.slot, certain)])
    assert stage.persist.answered(put.slot, Refused(certain), 2) == (Verdict.GOES_ON, [])
    assert stage.persist.take_durable() == []


def test_an_own_earlier_put_whose_answer_was_lost_is_a_success() -> None:
    stage = Stage()
    (put,) = stage.arrives(0)
    stage.persist.answered(put.slot, Refused(), 1)
    assert stage.persist.read_back(put.slot, decode_header(put.data, slot=put.slot), True, 2) is Verdict.GOES_ON
    assert len(stage.persist.take_durable()) == 1
    assert stage.persist.counters.own_successes == 1


@pytest.mark.parametrize("field", ["log_id", "leader_id", "nonce", "body_crc"])
def test_any_other_object_in_the_slot_deposes(field: str) -> None:
    stage = Stage()
    (put,) = stage.arrives(0)
    found = decode_header(put.data, slot=put.slot)
    other = replace(found, **{field: 1 if field == "body_crc" else b"x" * 16})  # type: ignore[arg-type]
    stage.persist.answered(put.slot, Refused(), 1)
    assert stage.persist.read_back(put.slot, other, True, 2) is Verdict.DEPOSED
    assert stage.persist.take_durable() == []


def test_taken_for_certain_with_nothing_there_deposes_and_perhaps_busy_is_sent_again() -> None:
    for certain, verdict in ((True, Verdict.DEPOSED), (False, Verdict.GOES_ON)):
        stage = Stage()
        (put,) = stage.arrives(0)
        stage.persist.answered(put.slot, Refused(certain), 1)
        assert stage.persist.read_back(put.slot, None, certain, 2) is verdict
    assert stage.persist.resend(200)[0].data == put.data


def test_a_read_back_without_an_answer_proves_nothing_and_the_put_is_sent_again() -> None:
    stage = Stage()
    (put,) = stage.arrives(0)
    stage.persist.answered(put.slot, Refused(), 1)
    assert stage.persist.read_back(put.slot, TIMEOUT, True, 2) is Verdict.GOES_ON
    assert stage.persist.take_durable() == []
    assert stage.persist.resend(200)[0].data == put.data


def test_unknown_is_sent_again_with_the_identical_bytes_after_a_jittered_wait() -> None:
    stage = Stage(retry_base_ms=100, batch_timeout_ms=0)
    (put,) = stage.arrives(0)
    stage.persist.answered(put.slot, TIMEOUT, 10)
    due = stage.persist.in_flight[0].retry_at_ms
    assert due is not None
    assert 10 <= due < 110
    stage.arrives(11)
    assert stage.persist.resend(due - 0.1) == []
    assert [(again.slot, again.data) for again in stage.persist.resend(due)] == [(put.slot, put.data)]


def test_waits_grow_to_their_cap_and_never_undercut_what_the_store_asks() -> None:
    stage = Stage(retry_base_ms=10, retry_max_ms=40)
    (put,) = stage.arrives(0)
    now = 0.0
    for attempt in range(8):
        stage.persist.answered(put.slot, Unknown("503", retry_after_ms=500 if attempt == 7 else None), now)
        due = stage.persist.in_flight[0].retry_at_ms
        assert due is not None
        assert due <= now + (500 if attempt == 7 else min(40, 10 * 2**attempt))
        assert attempt < 7 or due >= now + 500
        now = due
        assert len(stage.persist.resend(now)) == 1


def test_a_bound_of_retries_gives_up_and_says_where() -> None:
    stage = Stage(retries_max=2)
    (put,) = stage.arrives(0)
    verdicts = []
    for _ in range(3):
        verdicts.append(stage.persist.answered(put.slot, TIMEOUT, 0)[0])
        stage.persist.resend(1e9)
    assert verdicts == [Verdict.GOES_ON, Verdict.GOES_ON, Verdict.GAVE_UP]


def test_a_batch_that_waits_too_long_is_a_deadline_and_then_the_end() -> None:
    stage = Stage(give_up_after_ms=1_000.3)
    stage.arrives(0.1)
    deadline = stage.persist.next_deadline_ms()
    assert deadline is not None
    assert not stage.persist.too_long(deadline - 0.001)
    assert stage.persist.too_long(deadline), "the deadline and the verdict agree to the last bit"


def test_a_late_answer_for_a_settled_slot_changes_nothing() -> None:
    stage = Stage()
    (put,) = stage.arrives(0)
    stage.persist.answered(put.slot, CREATED, 1)
    stage.persist.take_durable()
    for answer in (CREATED, Refused(), TIMEOUT):
        assert stage.persist.answered(put.slot, answer, 2) == (Verdict.GOES_ON, [])
    assert stage.persist.read_back(put.slot, None, True, 2) is Verdict.GOES_ON


# -- hedges ----------------------------------------------------------------------------------------------------------


def hedging() -> tuple[Stage, Put, float]:
    """A stage that has seen 32 latencies of 7.3 ms, with one slow PUT in flight since instant 1000."""
    stage = Stage(hedge_percentile=90.0, batch_timeout_ms=0)
    for number in range(32):
        (put,) = stage.arrives(number * 10.0)
        stage.persist.answered(put.slot, CREATED, number * 10.0 + 7.3)
        stage.persist.take_durable()
    (put,) = stage.arrives(1_000.1)
    deadline = stage.persist.next_deadline_ms()
    assert deadline is not None
    return stage, put, deadline


def test_a_slow_put_is_sent_once_more_at_its_deadline_with_the_identical_bytes() -> None:
    stage, put, deadline = hedging()
    assert stage.persist.resend(deadline - 0.01) == []
    (hedge,) = stage.persist.resend(deadline)
    assert (hedge.slot, hedge.data) == (put.slot, put.data)
    assert stage.persist.resend(deadline + 100) == [], "one hedge and no more"
    following = stage.persist.next_deadline_ms()
    assert following is None or following > deadline


def test_a_hedge_that_is_refused_while_the_first_put_succeeds_is_one_success() -> None:
    stage, put, deadline = hedging()
    stage.persist.resend(deadline)
    _, read_backs = stage.persist.answered(put.slot, Refused(), deadline + 1)
    assert read_backs == [ReadBack(put.slot, True)]
    stage.persist.answered(put.slot, CREATED, deadline + 2)
    assert len(stage.persist.take_durable()) == 1
    assert stage.persist.read_back(put.slot, decode_header(put.data, slot=put.slot), True, 3) is Verdict.GOES_ON


# -- records without transactions ------------------------------------------------------------------------------------


def test_an_empty_batch_is_due_when_rejections_used_up_ten_million_versions() -> None:
    stage = Stage()
    stage.version += HEARTBEAT_VERSIONS - 1
    assert stage.form(0) == []
    stage.version += 1
    (put,) = stage.form(0)
    header = decode_header(put.data, slot=put.slot)
    assert (header.first_version, header.last_version, header.transactions) == (stage.version, stage.version, 0)


def test_nothing_is_sent_after_the_resign_record() -> None:
    stage = Stage()
    (resign,) = stage.persist.form_empty(at(0), BASE, BASE, Kind.RESIGN)
    assert decode_header(resign.data, slot=resign.slot).kind is Kind.RESIGN
    assert stage.arrives(1) == []
    assert stage.persist.form_empty(at(2), BASE, BASE) == []


def test_after_a_later_claim_data_start_at_its_jump() -> None:
    first = genesis()
    claim = takeover(first, "b")
    persist = Persist(claim, identity("b").nonce_seed, PersistRules())
    (put,) = persist.form_empty(at(0), claim.last_version, claim.last_version)
    header = decode_header(put.data, slot=put.slot)
    assert (put.slot, header.prev, header.claim) == (claim.slot - 1000, claim.slot, claim.slot)
