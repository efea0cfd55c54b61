"""Taking the lead: what is sent when, and what a machine makes of each answer."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from tests.unit.commit.builders import LOG_ID, at, bytes_of, genesis, identity, record, rows

from holdfast.commit.format.batch import (
    CLAIM_BYTES,
    UNKNOWN_SCOPE,
    AddressScope,
    Header,
    Slot,
    decode_header,
    jump,
    object_name,
)
from holdfast.commit.leadership import takeover_events as m
from holdfast.commit.leadership.evidence import LeaderAnswer, ProcessPlace, Reply, Shown, Sign
from holdfast.commit.leadership.suspension import Suspension
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
    steps = machine(probe=True, allow_new=True)
    steps.begin(at(0))
    assert found(steps) == []
    error = InvalidRequest("unfit", code=Code.STORE_UNFIT)
    assert steps.step(m.Probed(at(1), error)) == [m.Fail(error)]
    assert steps.step(m.PageListed(at(2), [])) == []


def test_a_probe_without_an_answer_is_repeated_until_patience_is_over() -> None:
    steps = machine(probe=True, allow_new=True, retry_budget_ms=1_000.0)
    steps.begin(at(0))
    assert found(steps) == []
    (wait,) = steps.step(m.Probed(at(999), Unavailable("silent")))
    assert isinstance(wait, m.TakeoverWait)
    assert steps.step(m.TakeoverWoken(at(999))) == [m.Probe()]
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
    assert steps.step(m.ClaimAnswered(at(1), CREATED)) == [m.CleanUp(), m.ListPage(1)]
    (led,) = steps.step(m.PageListed(at(9), [(object_name(claim.slot), CLAIM_BYTES)]))
    assert isinstance(led, m.Led)
    assert led.takeover.claim == decode_header(claim.data, slot=claim.slot)
    assert led.takeover.proved_ms == 1.0, "the check proves ownership from when it was sent"


def test_a_claim_that_another_leader_is_past_is_given_up() -> None:
    steps = machine(allow_new=True)
    steps.begin(at(0))
    (claim,) = found(steps)
    assert isinstance(claim, m.SendClaim)
    steps.step(m.ClaimAnswered(at(1), CREATED))
    assert steps.step(m.PageListed(at(2), [(object_name(jump(claim.slot)), CLAIM_BYTES)])) == [m.ListPage(1000)]


def test_a_claim_without_an_answer_is_sent_again_and_a_refused_one_is_read() -> None:
    steps = machine(allow_new=True)
    steps.begin(at(0))
    (claim,) = found(steps)
    assert isinstance(claim, m.SendClaim)
    (wait,) = steps.step(m.ClaimAnswered(at(1), Unknown("silent")))
    assert isinstance(wait, m.TakeoverWait)
    assert steps.step(m.TakeoverWoken(at(2))) == [claim]
    assert steps.step(m.ClaimAnswered(at(3), Refused())) == [m.ReadHeader(claim.slot)]
    assert steps.step(m.HeaderRead(at(4), claim.data)) == [m.CleanUp(), m.ListPage(1)]


def test_an_answer_to_nothing_raises_and_changes_nothing() -> None:
    steps = machine(allow_new=True)
    steps.begin(at(0))
    for wrong in (m.TakeoverWoken(at(1)), m.Looked(at(1), None, None), m.Probed(at(1), None)):
        with pytest.raises(AssertionError):
            steps.step(wrong)
    assert isinstance(found(steps)[0], m.SendClaim)


def test_a_store_that_does_not_answer_is_asked_again_until_patience_is_over() -> None:
    steps = machine(retry_budget_ms=1_000.0)
    effects = steps.begin(at(0))
    for ms in (0.0, 500.0, 999.0):
        (wait,) = steps.step(m.NoAnswer(at(ms), Unavailable("silent")))
        assert isinstance(wait, m.TakeoverWait)
        assert steps.step(m.TakeoverWoken(at(ms))) == effects
    (fail,) = steps.step(m.NoAnswer(at(1_000), Unavailable("silent")))
    assert isinstance(fail, m.Fail)
    assert isinstance(fail.error, Unavailable)


def sign(head: Header, number: int = 1, interval_ms: float = 2_000.0, **place: object) -> Sign:
    return msgspec.structs.replace(
        Sign(
            leader_id=head.leader_id.hex(),
            epoch=head.epoch,
            number=number,
            interval_ms=interval_ms,
            address="",
            boot_id=bytes(16).hex(),
            namespace=0,
        ),
        **place,
    )


LEADS_NOT = LeaderAnswer(Reply.LEADS_NOT)
SILENT = LeaderAnswer(Reply.SILENT)
REFUSES = LeaderAnswer(Reply.REFUSES)


def leads(head: Header, shown: Shown | None = None) -> LeaderAnswer:
    return LeaderAnswer(Reply.LEADS, head.leader_id.hex(), shown)


def look(steps: TakeoverMachine, effects: list[m.Effect], ms: float, newest: int, seen: Sign | None) -> list[m.Effect]:
    """Answer a look at the newest key and the newest sign."""
    assert isinstance(effects[-1], m.Look)
    return steps.step(m.Looked(at(ms), Slot(newest), seen))


def reply(steps: TakeoverMachine, effects: list[m.Effect], ms: float, answer: LeaderAnswer) -> list[m.Effect]:
    """Answer a question."""
    assert isinstance(effects[-1], m.AskLeader)
    return steps.step(m.LeaderAnswered(at(ms), answer))


HERE = AddressScope(b"boot-id-of-tests", 7)
PLACE = ProcessPlace(("z:8080",), (HERE,))
THERE = {"boot_id": b"another-boot-id.".hex(), "namespace": 7}


def machine_here(**rules: object) -> TakeoverMachine:
    who = replace(identity("z"), here=PLACE)
    return TakeoverMachine(who, LOG_ID, TakeoverRules(**{"probe": False, "asks": True, **rules}))  # type: ignore[arg-type]


def head_of_a_leader(**changes: object) -> Header:
    old = replace(genesis(), address="a:8080")
    return record(old, old, **changes)


def asking(steps: TakeoverMachine, head: Header, seen: Sign | None = None, ms: float = 0.0) -> list[m.Effect]:
    """The effects of a machine that has found the log and looked once."""
    steps.begin(at(ms))
    return look(steps, found(steps, replace(genesis(), address="a:8080"), head, ms=ms), ms, head.slot, seen)


def test_a_leader_that_answers_is_left_in_peace() -> None:
    head = head_of_a_leader()
    steps = machine(asks=True)
    effects = asking(steps, head)
    assert isinstance(effects[0], m.AskLeader) and effects[0].address == head.address
    (fail,) = reply(steps, effects, 1, leads(head))
    assert isinstance(fail, m.Fail)
    assert isinstance(fail.error, Closed)


def test_an_own_address_is_proof_that_a_leader_is_gone_only_in_the_same_place() -> None:
    for there, gone in (
        (HERE, True),
        (replace(HERE, namespace=8), False),
        (replace(HERE, boot_id=b"another-boot-id."), False),
        (UNKNOWN_SCOPE, False),
    ):
        old = replace(genesis(), address="z:8080")
        head = record(old, old, scope=there)
        steps = machine_here()
        steps.begin(at(0))
        (effect,) = look(steps, found(steps, old, head), 0, head.slot, None)
        assert isinstance(effect, m.SendClaim) is gone
        assert isinstance(effect, m.AskLeader) is not gone


def test_a_sign_says_where_a_leader_listens_whatever_it_advertises() -> None:
    """Behind a name or a gateway: its process is asked in the same place, and its refusal is a proof there."""
    head = head_of_a_leader(address="log.example:443")
    here = sign(head, address="127.0.0.1:9", boot_id=HERE.boot_id.hex(), namespace=HERE.namespace)
    steps = machine_here()
    effects = asking(steps, head, here)
    assert isinstance(effects[0], m.AskLeader) and effects[0].address == "127.0.0.1:9"
    steps = machine_here()
    effects = asking(steps, head, sign(head, address="127.0.0.1:9", **THERE))
    assert isinstance(effects[0], m.AskLeader) and effects[0].address == "log.example:443"


def test_an_address_that_leads_nowhere_but_to_its_own_machine_is_not_asked() -> None:
    head = head_of_a_leader(address="127.0.0.1:8080", scope=replace(HERE, boot_id=b"another-boot-id."))
    steps = machine_here()
    effects = asking(steps, head)
    (wait,) = look(steps, effects, 0, head.slot, None)
    assert isinstance(wait, m.TakeoverWait) and wait.facts["reply"] == Reply.UNREACHABLE.value


@pytest.mark.parametrize("standby", [False, True])
def test_a_refusal_in_the_same_place_is_a_proof_after_a_second(standby: bool) -> None:
    head = head_of_a_leader(scope=HERE)
    steps = machine_here(standby=standby)
    effects = look(steps, reply(steps, asking(steps, head), 0, REFUSES), 0, head.slot, sign(head))
    ms = 0.0
    while isinstance(effects[-1], m.TakeoverWait):
        ms += effects[-1].ms
        assert ms <= 1_000
        effects = reply(steps, steps.step(m.TakeoverWoken(at(ms))), ms, REFUSES)
        if isinstance(effects[-1], m.Look):
            # What was in flight when it was killed may still arrive.
            effects = look(steps, effects, ms, head.slot - 1, sign(head, 2))
    assert ms == 1_000 and effects == [m.ListPage(1000)]


def test_a_refusal_that_does_not_last_is_no_proof() -> None:
    head = head_of_a_leader(scope=HERE)
    steps = machine_here()
    effects = look(steps, reply(steps, asking(steps, head), 0, REFUSES), 0, head.slot, sign(head))
    effects = reply(steps, steps.step(m.TakeoverWoken(at(600))), 600, SILENT)
    effects = look(steps, effects, 600, head.slot, sign(head))
    effects = reply(steps, steps.step(m.TakeoverWoken(at(1_100))), 1_100, REFUSES)
    effects = look(steps, effects, 1_100, head.slot, sign(head))
    assert isinstance(effects[-1], m.TakeoverWait)


@pytest.mark.parametrize(("claimed", "signed"), [(True, False), (True, True), (False, False)])
def test_another_process_at_the_address_is_a_proof_unless_it_may_come_to_lead(claimed: bool, signed: bool) -> None:
    old = replace(genesis(), address="a:8080", scope=HERE)
    head = old if claimed else record(old, old, scope=HERE)
    steps = machine_here()
    steps.begin(at(0))
    shown = sign(head) if signed else None
    effects = look(steps, found(steps, *dict.fromkeys((old, head))), 0, head.slot, shown)
    effects = reply(steps, effects, 0, LEADS_NOT)
    assert isinstance(effects[-1], m.ReadHeader), "it may have resigned when it was asked"
    effects = look(steps, steps.step(m.HeaderRead(at(0), None)), 0, head.slot, shown)
    assert isinstance(effects[-1], m.TakeoverWait if claimed and not signed else m.SendClaim)


def watching(**rules: object) -> tuple[TakeoverMachine, Header]:
    """A machine that at time 0 has seen the newest key and sign of a leader that does not answer."""
    head = head_of_a_leader()
    steps = machine(**rules)
    effects = asking(steps, head, sign(head))
    if rules.get("asks"):
        effects = reply(steps, effects, 0, SILENT)
    (wait,) = look(steps, effects, 0, head.slot, sign(head))
    assert isinstance(wait, m.TakeoverWait)
    return steps, head


def again(steps: TakeoverMachine, ms: float, newest: int, seen: Sign | None, asks: bool = False) -> m.Effect:
    """Wake the machine, which asks its leader, and looks."""
    effects = steps.step(m.TakeoverWoken(at(ms)))
    if asks and isinstance(effects[-1], m.AskLeader):
        effects = reply(steps, effects, ms, SILENT)
    (effect,) = look(steps, effects, ms, newest, seen)
    return effect


@pytest.mark.parametrize("interval_ms", [50.0, 2_000.0, 10_000.0])
def test_a_leader_without_an_answer_holds_the_log_for_two_and_a_half_of_its_intervals(interval_ms: float) -> None:
    head = head_of_a_leader()
    steps = machine(sign_interval_ms=1.0)
    (wait,) = look(steps, asking(steps, head, sign(head, 7, interval_ms)), 0, head.slot, sign(head, 7, interval_ms))
    ms = 0.0
    while isinstance(wait, m.TakeoverWait):
        ms += wait.ms
        assert ms <= 2.5 * interval_ms
        wait = again(steps, ms, head.slot, sign(head, 7, interval_ms))
    assert ms == 2.5 * interval_ms and wait == m.ListPage(1000)


def test_a_leader_without_a_sign_is_judged_by_the_interval_of_who_looks_and_no_interval_is_without_bounds() -> None:
    head = head_of_a_leader()
    for own_ms, seen, waits_ms in (
        (4_000.0, None, 10_000.0),
        (4_000.0, sign(head, 1, 1e12), 2.5 * 600_000.0),
        (4_000.0, sign(head, 1, 0.0), 125.0),
    ):
        steps = machine(sign_interval_ms=own_ms)
        (wait,) = look(steps, asking(steps, head, seen), 0, head.slot, seen)
        assert isinstance(wait, m.TakeoverWait) and wait.facts["wait_ms"] == waits_ms


def test_a_late_write_of_a_dead_leader_begins_the_wait_again() -> None:
    steps, head = watching()
    assert isinstance(again(steps, 1_500, head.slot - 1, sign(head)), m.TakeoverWait)
    assert isinstance(again(steps, 6_499, head.slot - 1, sign(head)), m.TakeoverWait)
    assert again(steps, 6_500, head.slot - 1, sign(head)) == m.ListPage(1000), "5 s: what is the end of the log now?"


@pytest.mark.parametrize("every_ms", [500, 2_500, 4_900])
@pytest.mark.parametrize("writes", [True, False])
def test_a_leader_that_goes_on_to_show_signs_is_alive(every_ms: int, writes: bool) -> None:
    steps, head = watching()
    for ms in range(1_000, 1_000 + 4 * every_ms, 500):
        shown = 1 + (ms - 1_000) // every_ms
        effect = again(steps, ms, head.slot - shown * writes, sign(head, 1 + shown * (not writes)))
        if isinstance(effect, m.Fail):
            break
    assert isinstance(effect, m.Fail)
    assert isinstance(effect.error, Closed)
    assert effect.error.code is Code.LEADER_ALIVE


def test_a_standby_waits_for_as_long_as_signs_appear() -> None:
    steps, head = watching(standby=True)
    for number in range(2, 40):
        ms = 1_900.0 * number
        assert isinstance(again(steps, ms, head.slot, sign(head, number)), m.TakeoverWait)
    assert isinstance(again(steps, ms + 4_999, head.slot, sign(head, number)), m.TakeoverWait)
    assert again(steps, ms + 5_000, head.slot, sign(head, number)) == m.ListPage(1000)


def test_an_object_that_may_have_appeared_in_the_first_seconds_proves_nothing() -> None:
    steps, head = watching()
    # The look came late: the object may be from any moment since the watch began.
    assert isinstance(again(steps, 2_500, head.slot - 1, sign(head)), m.TakeoverWait)


def test_an_object_that_appears_right_before_the_claim_proves_that_the_leader_is_alive() -> None:
    steps, head = watching()
    assert again(steps, 5_000, head.slot, sign(head)) == m.ListPage(1000)
    (fail,) = found(steps, genesis(), head, record(head, genesis()), ms=5_060)
    assert isinstance(fail, m.Fail)
    assert isinstance(fail.error, Closed)
    assert fail.error.code is Code.LEADER_ALIVE


def test_a_start_asks_its_leader_until_it_claims() -> None:
    steps, head = watching(asks=True)
    for ms in (500, 1_000, 4_500):
        assert isinstance(again(steps, ms, head.slot, sign(head), asks=True), m.TakeoverWait)
    (fail,) = reply(steps, steps.step(m.TakeoverWoken(at(4_900))), 4_900, leads(head))
    assert isinstance(fail, m.Fail)
    assert isinstance(fail.error, Closed)
    assert fail.error.code is Code.LEADER_ALIVE


@pytest.mark.parametrize("answers", [True, False])
@pytest.mark.parametrize(("find_ms", "asks_again"), [(400, False), (600, True)])
def test_a_question_that_has_become_old_is_repeated_before_the_claim(
    answers: bool, find_ms: float, asks_again: bool
) -> None:
    steps, head = watching(asks=True)
    assert again(steps, 5_000, head.slot, sign(head), asks=True) == m.ListPage(1000)
    effects = found(steps, genesis(), head, ms=5_000 + find_ms)
    assert isinstance(effects[0], m.AskLeader if asks_again else m.SendClaim)
    if asks_again:
        (effect,) = reply(steps, effects, 5_000 + find_ms, leads(head) if answers else SILENT)
        assert isinstance(effect, m.Fail if answers else m.SendClaim)


def test_the_last_question_is_sent_so_that_its_answer_comes_when_the_wait_is_over() -> None:
    head = head_of_a_leader()
    steps = machine(asks=True)
    effects = look(steps, reply(steps, asking(steps, head, sign(head)), 500, SILENT), 500, head.slot, sign(head))
    asked_ms = ended_ms = 500.0
    while isinstance(effects[-1], m.TakeoverWait):
        asked_ms = ended_ms + effects[-1].ms
        effects = steps.step(m.TakeoverWoken(at(asked_ms)))
        ended_ms = asked_ms
        if isinstance(effects[-1], m.AskLeader):
            ended_ms = asked_ms + 500.0
            effects = reply(steps, effects, ended_ms, SILENT)
        effects = look(steps, effects, ended_ms, head.slot, sign(head))
    assert effects == [m.ListPage(1000)] and ended_ms == 5_000.0


@pytest.mark.parametrize("told", [True, False])
def test_for_a_standby_a_sign_ages_from_when_the_leader_named_it(told: bool) -> None:
    """It lists nothing while its leader answers; so the answers say which sign is the newest."""
    head = head_of_a_leader()
    steps = machine(asks=True, standby=True)
    effects = asking(steps, head, sign(head, 1))
    effects = reply(steps, effects, 0, leads(head, Shown(head.slot, 1)))
    effects = reply(steps, steps.step(m.TakeoverWoken(at(1_000))), 1_000, leads(head, Shown(head.slot, 2)))
    effects = reply(steps, steps.step(m.TakeoverWoken(at(2_000))), 2_000, leads(head, Shown(head.slot, 2)))
    assert reply(steps, steps.step(m.TakeoverWoken(at(2_100))), 2_100, SILENT) == [m.ListPage(1000)], "has it resigned?"
    seen = sign(head, 2 if told else 3)
    effects = found(steps, replace(genesis(), address="a:8080"), head, ms=2_100)
    (wait,) = look(steps, effects, 2_100, head.slot, seen)
    assert isinstance(wait, m.TakeoverWait)
    gone_ms = (1_000 if told else 2_100) + 5_000
    assert wait.facts["wait_ms"] == gone_ms - 2_100
    assert isinstance(again(steps, gone_ms - 1, head.slot, seen, asks=True), m.TakeoverWait)
    assert again(steps, gone_ms, head.slot, seen, asks=True) == m.ListPage(1000)


def test_a_standby_of_any_age_takes_a_refusal_in_the_same_place_for_a_proof() -> None:
    for age in (0, 1, 1_000):
        head = head_of_a_leader(scope=HERE)
        steps = machine_here(standby=True)
        effects = asking(steps, head, sign(head))
        ms = 0.0
        for _ in range(age):
            effects = reply(steps, effects, ms, leads(head, Shown(head.slot, 1)))
            ms += 100.0
            effects = steps.step(m.TakeoverWoken(at(ms)))
        died_ms = ms
        effects = reply(steps, effects, ms, REFUSES)
        if effects == [m.ListPage(1000)]:
            effects = found(steps, replace(genesis(), address="a:8080"), head, ms=ms)
        effects = look(steps, effects, ms, head.slot, sign(head))
        while isinstance(effects[-1], m.TakeoverWait):
            ms += effects[-1].ms
            effects = reply(steps, steps.step(m.TakeoverWoken(at(ms))), ms, REFUSES)
            if isinstance(effects[-1], m.Look):
                effects = look(steps, effects, ms, head.slot, sign(head))
        assert effects == [m.ListPage(1000)] and ms - died_ms <= 2_500


def missing(steps: TakeoverMachine, listed_ms: float, read_ms: float) -> m.Effect:
    """Answer one listing, and report that what it names is missing."""
    log = genesis(), record(genesis(), genesis())
    (read,) = steps.step(m.PageListed(at(listed_ms), rows(*log)))
    assert isinstance(read, m.ReadHeaders)
    (effect,) = steps.step(m.NoAnswer(at(read_ms), NotFound("no such object", key="batches/1")))
    return effect


def test_an_object_that_is_missing_is_listed_again_and_then_lost() -> None:
    steps = machine()
    steps.begin(at(0))
    for ms in (0, 1_000, 4_999):
        assert isinstance(missing(steps, ms, ms), m.TakeoverWait)
        assert steps.step(m.TakeoverWoken(at(ms + 1))) == [m.ListPage(1000)]
    effect = missing(steps, 5_000, 5_000)
    assert isinstance(effect, m.Fail)
    assert isinstance(effect.error, CorruptData)


def test_a_process_that_was_frozen_between_listing_and_reading_does_not_report_a_damaged_log() -> None:
    steps = machine()
    steps.begin(at(0))
    for ms in (0, 100_000):
        assert isinstance(missing(steps, ms, ms + 40_000), m.TakeoverWait)
        assert steps.step(m.TakeoverWoken(at(ms + 40_001))) == [m.ListPage(1000)]
    head = record(genesis(), genesis())
    assert found(steps, genesis(), head, ms=140_001) == [m.Look(head.epoch, head.leader_id)]


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
    assert isinstance(found(steps, genesis(), record(genesis(), genesis()))[0], m.Look)


def test_damage_that_counts_at_the_first_listing_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worlds meet this rule too seldom, so its mutant is here."""

    def at_once(_: TakeoverMachine, damage: CorruptData) -> list[m.Effect]:
        raise damage

    monkeypatch.setattr(TakeoverMachine, "_damaged", at_once)
    with pytest.raises(AssertionError):
        test_a_hole_that_a_second_listing_does_not_show_is_no_damage()


def test_a_hole_that_a_second_listing_shows_is_damage() -> None:
    steps = machine()
    steps.begin(at(0))
    assert with_a_hole(steps) == [m.ListPage(1000)]
    (effect,) = with_a_hole(steps)
    assert isinstance(effect, m.Fail)
    assert isinstance(effect.error, CorruptData)


UNVERIFIED = LeaderAnswer(Reply.UNVERIFIED, problem="self-signed certificate")


@pytest.mark.parametrize("standby", [False, True])
def test_a_leader_whose_answer_cannot_be_verified_is_gone_when_a_silent_one_is(standby: bool) -> None:
    """In the same place, where a refusal is a proof after a second."""

    def claims_at(answer: LeaderAnswer) -> tuple[float, str]:
        head = head_of_a_leader(scope=HERE)
        steps = machine_here(standby=standby)
        effects = look(steps, reply(steps, asking(steps, head, sign(head)), 0, answer), 0, head.slot, sign(head))
        assert isinstance(effects[-1], m.TakeoverWait)
        reason, ms = effects[-1].reason, 0.0
        while isinstance(effects[-1], m.TakeoverWait):
            ms += effects[-1].ms
            effects = steps.step(m.TakeoverWoken(at(ms)))
            if isinstance(effects[-1], m.AskLeader):
                effects = reply(steps, effects, ms, answer)
            if isinstance(effects[-1], m.Look):
                effects = look(steps, effects, ms, head.slot, sign(head))
        assert effects == [m.ListPage(1000)]
        return ms, reason

    assert claims_at(UNVERIFIED) == (5_000, "leader_not_verified")
    assert claims_at(SILENT) == (5_000, "waiting_for_signs_of_life")
    assert claims_at(REFUSES)[0] == 1_000


def test_a_standby_that_cannot_verify_its_leader_any_more_watches_its_signs() -> None:
    """Its certificate has expired, for example."""
    head = head_of_a_leader(scope=HERE)
    steps = machine_here(standby=True)
    effects = reply(steps, asking(steps, head, sign(head)), 0, leads(head))
    assert isinstance(effects[0], m.StandBy) and isinstance(effects[-1], m.TakeoverWait)
    effects = reply(steps, steps.step(m.TakeoverWoken(at(100))), 100, UNVERIFIED)
    effects = look(steps, found(steps, replace(genesis(), address="a:8080"), head, ms=100), 100, head.slot, sign(head))
    (wait,) = effects
    assert isinstance(wait, m.TakeoverWait) and wait.reason == "leader_not_verified"
    assert wait.facts["problem"] == "self-signed certificate"


SUSPENSION = Suspension(number=3, is_suspended=True, author="ann@host", time_ms=0, nonce="")


def found_suspended(steps: TakeoverMachine, log: Header, ms: float, suspension: Suspension | None) -> list[m.Effect]:
    """As ``found``, in a log that is suspended or goes on."""
    (read,) = steps.step(m.PageListed(at(ms), rows(log)))
    assert isinstance(read, m.ReadHeaders)
    headers = {log.slot: bytes_of(log)[log.slot]}
    return steps.step(m.HeadersRead(at(ms), headers, suspension=suspension))


def test_a_start_is_refused_by_a_suspension_and_a_standby_claims_when_the_log_goes_on() -> None:
    head = replace(genesis(), address="")
    steps = machine()
    steps.begin(at(0))
    (fail,) = found_suspended(steps, head, 0, SUSPENSION)
    assert isinstance(fail, m.Fail) and isinstance(fail.error, Closed)
    assert fail.error.code is Code.SUSPENDED and "ann@host" in str(fail.error)

    steps = machine(standby=True, sign_interval_ms=2_000.0)
    steps.begin(at(0))
    for ms in (0.0, 500.0, 90_000.0):
        stay_out, wait = found_suspended(steps, head, ms, SUSPENSION)
        assert stay_out == m.StayOut(SUSPENSION) and wait == m.TakeoverWait(500.0)
        assert steps.step(m.TakeoverWoken(at(ms + 500.0))) == [m.ListPage(1000)]
    (claim,) = found_suspended(steps, head, 90_500.0, None)
    assert isinstance(claim, m.SendClaim)


def test_a_standby_with_a_delay_looks_again_after_it_and_claims_what_nobody_else_has() -> None:
    head = replace(genesis(), address="")
    steps = machine(standby=True, delay_ms=700.0)
    steps.begin(at(0))
    assert found(steps, head) == [m.TakeoverWait(700.0)]
    assert steps.step(m.TakeoverWoken(at(700))) == [m.ListPage(1000)]
    (claim,) = found(steps, head, ms=700)
    assert isinstance(claim, m.SendClaim)

    plain = machine(delay_ms=700.0)
    plain.begin(at(0))
    (claim,) = found(plain, head)
    assert isinstance(claim, m.SendClaim), "a start that does not stand by does not wait"
