"""Taking the lead: what is sent when, and what a machine makes of each answer."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.commit.builders import LOG_ID, at, bytes_of, genesis, identity, record, rows

from holdfast.commit.format.batch import UNKNOWN_SCOPE, AddressScope, Header, Slot, decode_header, jump
from holdfast.commit.leadership import takeover_machine as m
from holdfast.commit.leadership.takeover_machine import TakeoverMachine, TakeoverRules
from holdfast.errors import Closed, Code, CorruptData, InvalidRequest, NotFound, Unavailable
from holdfast.objects.port import CREATED, Refused, Unknown


def machine(**rules: object) -> TakeoverMachine:
    return TakeoverMachine(identity("z"), LOG_ID, TakeoverRules(**{"probe": False, **rules}))  # type: ignore[arg-type]


def found(steps: TakeoverMachine, *log: Header, ms: float = 0.0) -> list[m.Effect]:
    """Answer the listing and the headers of a find with this log."""
    effects = steps.step(m.PageListed(at(ms), rows(*log)))
    while effects and isinstance(effects[-1], m.ReadHeaders):
        objects = {header.slot: bytes_of(header)[header.slot] for header in log}
        effects = steps.step(m.HeadersRead(at(ms), {slot: objects[slot] for slot in effects[-1].slots}))
    return effects


def test_the_claim_is_not_sent_before_the_probe_has_passed() -> None:
    steps = machine(probe=True, allow_new=True)
    assert steps.begin(at(0)) == [m.Probe(), m.ListPage(1000)]
    assert found(steps) == []
    (claim,) = steps.step(m.Probed(at(1), None))
    assert isinstance(claim, m.SendClaim)


def test_a_store_that_fails_its_probe_gets_no_claim() -> None:
    for listed_first in (True, False):
        steps = machine(probe=True, allow_new=True)
        steps.begin(at(0))
        if listed_first:
            assert found(steps) == []
        error = InvalidRequest("unfit", code=Code.STORE_UNFIT)
        assert steps.step(m.Probed(at(1), error)) == [m.Fail(error)]
        assert steps.step(m.PageListed(at(2), [])) == []


def test_a_probe_without_an_answer_is_repeated_until_patience_is_over() -> None:
    steps = machine(probe=True, allow_new=True, retry_budget_ms=1_000.0)
    steps.begin(at(0))
    assert found(steps) == []
    (wait,) = steps.step(m.Probed(at(999), Unavailable("silent")))
    assert isinstance(wait, m.Wait)
    assert steps.step(m.Woken(at(999))) == [m.Probe()]
    assert steps.step(m.Probed(at(999), None)) == [m.ListPage(1000)], "the log may have grown meanwhile"
    (claim,) = found(steps)
    assert isinstance(claim, m.SendClaim)

    steps = machine(probe=True, allow_new=True, retry_budget_ms=1_000.0)
    steps.begin(at(0))
    assert found(steps) == []
    (fail,) = steps.step(m.Probed(at(1_000), Unavailable("silent")))
    assert isinstance(fail, m.Fail)


def test_a_machine_leads_only_after_its_claim_was_checked() -> None:
    steps = machine(allow_new=True)
    steps.begin(at(0))
    (claim,) = found(steps)
    assert isinstance(claim, m.SendClaim)
    assert steps.step(m.ClaimAnswered(at(1), CREATED)) == [m.CleanUp(), m.ListNewest()]
    (led,) = steps.step(m.NewestListed(at(9), claim.slot))
    assert isinstance(led, m.Led)
    assert led.takeover.claim == decode_header(claim.data, slot=claim.slot)
    assert led.takeover.proved_ms == 1.0, "the check proves ownership from when it was sent"


def test_a_claim_that_another_leader_is_past_is_given_up() -> None:
    steps = machine(allow_new=True)
    steps.begin(at(0))
    (claim,) = found(steps)
    assert isinstance(claim, m.SendClaim)
    steps.step(m.ClaimAnswered(at(1), CREATED))
    assert steps.step(m.NewestListed(at(2), jump(claim.slot))) == [m.ListPage(1000)]


def test_a_claim_without_an_answer_is_sent_again_and_a_refused_one_is_read() -> None:
    steps = machine(allow_new=True)
    steps.begin(at(0))
    (claim,) = found(steps)
    assert isinstance(claim, m.SendClaim)
    (wait,) = steps.step(m.ClaimAnswered(at(1), Unknown("silent")))
    assert isinstance(wait, m.Wait)
    assert steps.step(m.Woken(at(2))) == [claim]
    assert steps.step(m.ClaimAnswered(at(3), Refused())) == [m.ReadClaim(claim.slot)]
    assert steps.step(m.ClaimRead(at(4), claim.data)) == [m.CleanUp(), m.ListNewest()]


def test_an_answer_to_nothing_raises_and_changes_nothing() -> None:
    steps = machine(allow_new=True)
    steps.begin(at(0))
    for wrong in (m.Woken(at(1)), m.NewestListed(at(1), None), m.Probed(at(1), None)):
        with pytest.raises(AssertionError):
            steps.step(wrong)
    assert isinstance(found(steps)[0], m.SendClaim)


def test_a_store_that_does_not_answer_is_asked_again_until_patience_is_over() -> None:
    steps = machine(retry_budget_ms=1_000.0)
    effects = steps.begin(at(0))
    for ms in (0.0, 500.0, 999.0):
        (wait,) = steps.step(m.Failed(at(ms), Unavailable("silent")))
        assert isinstance(wait, m.Wait)
        assert steps.step(m.Woken(at(ms))) == effects
    (fail,) = steps.step(m.Failed(at(1_000), Unavailable("silent")))
    assert isinstance(fail, m.Fail)
    assert isinstance(fail.error, Unavailable)


def test_a_leader_that_answers_is_left_in_peace() -> None:
    head = record(genesis(), genesis())
    steps = machine(asks=True)
    steps.begin(at(0))
    (asked,) = found(steps, genesis(), head)
    assert asked == m.AskLeader(head.address)
    (fail,) = steps.step(m.LeaderAnswered(at(1), head.leader_id.hex()))
    assert isinstance(fail, m.Fail)
    assert isinstance(fail.error, Closed)


HERE = AddressScope(b"boot-id-of-tests", 7)


def test_the_same_address_is_proof_that_a_leader_is_gone_only_in_the_same_place() -> None:
    old = replace(genesis(), address="z:8080")
    for there, gone in (
        (HERE, True),
        (replace(HERE, namespace=8), False),
        (replace(HERE, boot_id=b"another-boot-id."), False),
        (UNKNOWN_SCOPE, False),
    ):
        head = record(old, old, scope=there)
        for answer in (None, ""):
            who = replace(identity("z"), scope=HERE)
            rules = TakeoverRules(probe=False, asks=True, shared_by_machines=False)
            steps = TakeoverMachine(who, LOG_ID, rules)
            steps.begin(at(0))
            assert found(steps, old, head) == [m.AskLeader("z:8080")]
            (effect,) = steps.step(m.LeaderAnswered(at(1), answer))
            assert isinstance(effect, m.SendClaim) is gone


def test_two_unknown_places_are_not_one() -> None:
    old = replace(genesis(), address="z:8080")
    steps = TakeoverMachine(identity("z"), LOG_ID, TakeoverRules(probe=False, asks=True, shared_by_machines=False))
    steps.begin(at(0))
    assert found(steps, old, record(old, old)) == [m.AskLeader("z:8080")]
    assert steps.step(m.LeaderAnswered(at(1), None)) == [m.ListNewest()]


def watching() -> tuple[TakeoverMachine, Header]:
    """A machine that at time 0 has seen the newest key of a leader that nobody can ask."""
    head = record(genesis(), genesis())
    steps = machine(shared_by_machines=True)
    steps.begin(at(0))
    assert found(steps, genesis(), head) == [m.ListNewest()]
    (wait,) = steps.step(m.NewestListed(at(0), head.slot))
    assert isinstance(wait, m.Wait)
    return steps, head


def listed(steps: TakeoverMachine, ms: float, newest: int) -> m.Effect:
    assert steps.step(m.Woken(at(ms))) == [m.ListNewest()]
    (effect,) = steps.step(m.NewestListed(at(ms), Slot(newest)))
    return effect


def test_a_late_write_of_a_dead_leader_begins_a_longer_silence() -> None:
    steps, head = watching()
    assert isinstance(listed(steps, 1_500, head.slot + 1), m.Wait)
    assert isinstance(listed(steps, 6_499, head.slot + 1), m.Wait)
    assert listed(steps, 6_500, head.slot + 1) == m.ListPage(1000), "5 s of silence: what is the end of the log now?"


@pytest.mark.parametrize("every_ms", [500, 2_500, 4_900])
def test_a_leader_that_goes_on_writing_is_alive(every_ms: int) -> None:
    steps, head = watching()
    for ms in range(1_000, 1_000 + 4 * every_ms, 500):
        effect = listed(steps, ms, head.slot + 1 + (ms - 1_000) // every_ms)
        if isinstance(effect, m.Fail):
            break
    assert isinstance(effect, m.Fail)
    assert isinstance(effect.error, Closed)
    assert effect.error.code is Code.LEADER_ALIVE


def test_an_object_that_may_have_appeared_in_the_first_silence_proves_nothing() -> None:
    steps, head = watching()
    # The look came late: the object may be from any moment since the watch began.
    assert isinstance(listed(steps, 2_500, head.slot + 1), m.Wait)


def test_an_object_that_appears_right_before_the_claim_proves_that_the_leader_is_alive() -> None:
    steps, head = watching()
    assert listed(steps, 2_000, head.slot) == m.ListPage(1000)
    (fail,) = found(steps, genesis(), head, record(head, genesis()), ms=2_060)
    assert isinstance(fail, m.Fail)
    assert isinstance(fail.error, Closed)
    assert fail.error.code is Code.LEADER_ALIVE


def asked(steps: TakeoverMachine, ms: float, answer: str | None) -> list[m.Effect]:
    """Wake the machine, which asks its leader, and answer."""
    assert steps.step(m.Woken(at(ms))) == [m.AskLeader(identity("a").address)]
    return steps.step(m.LeaderAnswered(at(ms), answer))


def watching_one_that_can_be_asked(**rules: object) -> tuple[TakeoverMachine, Header]:
    head = record(genesis(), genesis(), address=identity("a").address)
    steps = machine(shared_by_machines=True, asks=True, **rules)
    steps.begin(at(0))
    assert found(steps, genesis(), head) == [m.AskLeader(head.address)]
    assert steps.step(m.LeaderAnswered(at(0), None)) == [m.ListNewest()]
    (wait,) = steps.step(m.NewestListed(at(0), head.slot))
    assert isinstance(wait, m.Wait)
    return steps, head


def test_a_start_asks_its_leader_until_it_claims() -> None:
    steps, head = watching_one_that_can_be_asked()
    for ms in (500, 1_000, 1_500):
        assert asked(steps, ms, None) == [m.ListNewest()]
        (wait,) = steps.step(m.NewestListed(at(ms), head.slot))
        assert isinstance(wait, m.Wait)
    (fail,) = asked(steps, 1_999, head.leader_id.hex())
    assert isinstance(fail, m.Fail)
    assert isinstance(fail.error, Closed)
    assert fail.error.code is Code.LEADER_ALIVE


@pytest.mark.parametrize("answers", [True, False])
def test_a_start_asks_its_leader_right_before_the_claim(answers: bool) -> None:
    steps, head = watching_one_that_can_be_asked()
    assert asked(steps, 2_000, None) == [m.ListNewest()]
    assert steps.step(m.NewestListed(at(2_000), head.slot)) == [m.ListPage(1000)]
    assert found(steps, genesis(), head, ms=2_060) == [m.AskLeader(head.address)]
    (effect,) = steps.step(m.LeaderAnswered(at(2_060), head.leader_id.hex() if answers else None))
    assert isinstance(effect, m.Fail if answers else m.SendClaim)


@pytest.mark.parametrize(("find_ms", "asks_again"), [(400, False), (600, True)])
def test_a_standby_repeats_a_question_that_has_become_old_before_it_claims(find_ms: float, asks_again: bool) -> None:
    steps, head = watching_one_that_can_be_asked(standby=True)
    assert asked(steps, 65_000, None) == [m.ListNewest()]
    assert steps.step(m.NewestListed(at(65_000), head.slot)) == [m.ListPage(1000)]
    (effect,) = found(steps, genesis(), head, ms=65_000 + find_ms)
    assert isinstance(effect, m.AskLeader if asks_again else m.SendClaim)


@pytest.mark.parametrize("wrote", [False, True])
def test_for_a_standby_the_silence_begins_at_the_last_answer(wrote: bool) -> None:
    head = record(genesis(), genesis(), address=identity("a").address)
    steps = machine(shared_by_machines=True, asks=True, standby=True)
    steps.begin(at(0))
    assert found(steps, genesis(), head) == [m.AskLeader(head.address)]
    steps.step(m.LeaderAnswered(at(100), head.leader_id.hex()))
    assert asked(steps, 600, None) == [m.ListPage(1000)]
    last = record(head, genesis(), address=head.address) if wrote else head
    assert found(steps, genesis(), head, *[last] * wrote, ms=700) == [m.ListNewest()]
    steps.step(m.NewestListed(at(800), last.slot))
    assert asked(steps, 2_599, None) == [m.ListNewest()]
    (wait,) = steps.step(m.NewestListed(at(2_599), last.slot))
    assert isinstance(wait, m.Wait), "2.5 s since the last answer have not passed"
    assert asked(steps, 2_600, None) == [m.ListNewest()]
    assert steps.step(m.NewestListed(at(2_600), last.slot)) == [m.ListPage(1000)]


def test_a_standby_that_lists_late_waits_for_the_heartbeats_of_a_leader_that_is_alive() -> None:
    head = record(genesis(), genesis(), address=identity("a").address)
    steps = machine(shared_by_machines=True, asks=True, standby=True)
    steps.begin(at(0))
    assert found(steps, genesis(), head) == [m.AskLeader(head.address)]
    steps.step(m.LeaderAnswered(at(0), head.leader_id.hex()))
    # The question had no answer for 2 s; meanwhile the leader wrote a heartbeat, and the next one is on its way.
    assert asked(steps, 2_100, None) == [m.ListPage(1000)]
    beat = record(head, genesis(), address=head.address)
    assert found(steps, genesis(), head, beat, ms=2_100) == [m.ListNewest()]
    steps.step(m.NewestListed(at(2_100), beat.slot))
    assert asked(steps, 3_500, None) == [m.ListNewest()]
    (wait,) = steps.step(m.NewestListed(at(3_500), beat.slot))
    assert isinstance(wait, m.Wait)


def missing(steps: TakeoverMachine, listed_ms: float, read_ms: float) -> m.Effect:
    """Answer one listing, and report that what it names is missing."""
    log = genesis(), record(genesis(), genesis())
    (read,) = steps.step(m.PageListed(at(listed_ms), rows(*log)))
    assert isinstance(read, m.ReadHeaders)
    (effect,) = steps.step(m.Failed(at(read_ms), NotFound("no such object", key="batches/1")))
    return effect


def test_an_object_that_is_missing_is_listed_again_and_then_lost() -> None:
    steps = machine()
    steps.begin(at(0))
    for ms in (0, 1_000, 4_999):
        assert isinstance(missing(steps, ms, ms), m.Wait)
        assert steps.step(m.Woken(at(ms + 1))) == [m.ListPage(1000)]
    effect = missing(steps, 5_000, 5_000)
    assert isinstance(effect, m.Fail)
    assert isinstance(effect.error, CorruptData)


def test_a_process_that_was_frozen_between_listing_and_reading_does_not_report_a_damaged_log() -> None:
    steps = machine()
    steps.begin(at(0))
    for ms in (0, 100_000):
        assert isinstance(missing(steps, ms, ms + 40_000), m.Wait)
        assert steps.step(m.Woken(at(ms + 40_001))) == [m.ListPage(1000)]
    head = record(genesis(), genesis())
    assert found(steps, genesis(), head, ms=140_001) == [m.ListNewest()]


def with_a_hole(steps: TakeoverMachine) -> list[m.Effect]:
    """Answer one find with a log of four objects without the second; the newest says that the third is durable."""
    log = [genesis()]
    for _ in range(3):
        log.append(record(log[-1], genesis()))
    return found(steps, log[0], log[2], log[3])


def test_a_hole_that_a_second_listing_does_not_show_is_no_damage() -> None:
    steps = machine()
    steps.begin(at(0))
    assert with_a_hole(steps) == [m.ListPage(1000)]
    assert found(steps, genesis(), record(genesis(), genesis())) == [m.ListNewest()]


def test_a_hole_that_a_second_listing_shows_is_damage() -> None:
    steps = machine()
    steps.begin(at(0))
    assert with_a_hole(steps) == [m.ListPage(1000)]
    (effect,) = with_a_hole(steps)
    assert isinstance(effect, m.Fail)
    assert isinstance(effect.error, CorruptData)
