"""Who is alone on the log: each row of the table, and how a leader is asked."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from holdfast.commit.format.batch import UNKNOWN_SCOPE, AddressScope
from holdfast.commit.leadership.evidence import (
    REPLY_MS_MIN,
    SIGNS_MISSED,
    Address,
    Contact,
    Evidence,
    ProcessPlace,
    Reply,
    contact,
    judge,
)

INTERVAL_MS = 2_000.0
PATIENCE_MS = SIGNS_MISSED * INTERVAL_MS
HERE = AddressScope(b"boot-id-of-tests", 7)
OTHER_NAMESPACE = replace(HERE, namespace=8)
OTHER_BOOT = replace(HERE, boot_id=b"another-boot-id.")


def evidence(
    reply: Reply,
    *,
    same: bool,
    may_come: bool = False,
    reply_ms: float = 0.0,
    ms: float = 0.0,
    unanswered_ms: float = 1e9,
) -> Evidence:
    return Evidence(
        reply,
        is_same_place=same,
        may_come_to_lead=may_come,
        reply_ms=reply_ms,
        unanswered_ms=unanswered_ms,
        unchanged_ms=ms,
        interval_ms=INTERVAL_MS,
    )


@pytest.mark.parametrize("same", [True, False])
def test_row_1_a_leader_that_answers_lives_however_old_its_signs_are(same: bool) -> None:
    assert judge(evidence(Reply.LEADS, same=same, reply_ms=1e9, ms=1e9)).gone_in_ms == inf


def test_row_2_whose_address_is_this_process_s_own_is_gone_at_once() -> None:
    verdict = judge(evidence(Reply.OWN, same=True))
    assert verdict.gone_in_ms == 0 and verdict.is_proof is True


@pytest.mark.parametrize("may_come", [True, False])
def test_row_3_whose_address_another_process_has_in_the_same_place_is_gone_unless_it_may_come_to_lead(
    may_come: bool,
) -> None:
    verdict = judge(evidence(Reply.LEADS_NOT, same=True, may_come=may_come))
    assert verdict.gone_in_ms == (PATIENCE_MS if may_come else 0)
    assert verdict.is_proof is (not may_come)


def test_row_4_whose_address_refuses_in_the_same_place_is_gone_after_a_second_of_refusals() -> None:
    for reply_ms in (0.0, REPLY_MS_MIN - 1, REPLY_MS_MIN):
        verdict = judge(evidence(Reply.REFUSES, same=True, reply_ms=reply_ms))
        assert verdict.gone_in_ms == REPLY_MS_MIN - reply_ms and verdict.is_proof
    assert REPLY_MS_MIN <= 2_500


@pytest.mark.parametrize(
    ("reply", "same"),
    [
        (Reply.REFUSES, False),  # row 5
        (Reply.LEADS_NOT, False),
        (Reply.SILENT, True),  # row 6
        (Reply.SILENT, False),
        (Reply.UNREACHABLE, False),  # row 7
    ],
)
def test_rows_5_to_7_everything_else_waits_for_two_and_a_half_intervals_without_a_sign(
    reply: Reply, same: bool
) -> None:
    for ms in (0.0, PATIENCE_MS - 1, PATIENCE_MS):
        verdict = judge(evidence(reply, same=same, reply_ms=1e9, ms=ms))
        assert verdict.gone_in_ms == PATIENCE_MS - ms and not verdict.is_proof


def test_a_leader_whose_signs_are_old_and_that_has_just_answered_is_not_given_up_for_one_lost_question() -> None:
    for unanswered_ms in (0.0, REPLY_MS_MIN - 1, REPLY_MS_MIN):
        verdict = judge(evidence(Reply.SILENT, same=False, ms=1e9, unanswered_ms=unanswered_ms))
        assert verdict.gone_in_ms == REPLY_MS_MIN - unanswered_ms


def without_host(contact: Contact) -> Contact:
    """Without the host that a certificate has to name: a test of its own looks at it."""
    return Contact(contact.address, contact.is_same_place, contact.known)


PLACE = ProcessPlace(("127.0.0.1:8080", "unix:/run/h.sock"), (HERE,))
UNREACHABLE = Contact("", False, Reply.UNREACHABLE)


@pytest.mark.parametrize(
    ("advertised", "bound", "asked"),
    [
        # In the same place the address at which it listens is asked, whatever it advertises.
        (Address("log.example:80"), Address("127.0.0.1:9", HERE), Contact("127.0.0.1:9", True)),
        (Address("127.0.0.1:9", HERE), None, Contact("127.0.0.1:9", True)),
        # The address of this very process.
        (Address("log.example:80"), Address("127.0.0.1:8080", HERE), Contact("127.0.0.1:8080", True, Reply.OWN)),
        (Address("x:80"), Address("https://127.0.0.1:8080", HERE), Contact("https://127.0.0.1:8080", True, Reply.OWN)),
        (Address("unix:/run/h.sock", HERE), None, Contact("unix:/run/h.sock", True, Reply.OWN)),
        # Elsewhere only the advertised address leads to it.
        (Address("log.example:80"), Address("127.0.0.1:9", OTHER_BOOT), Contact("log.example:80", False)),
        (Address("10.0.0.1:80", OTHER_NAMESPACE), None, Contact("10.0.0.1:80", False)),
        # Where that leads nowhere but to its own machine, it cannot be reached: asking would ask another process.
        (Address("127.0.0.1:8080", OTHER_BOOT), None, UNREACHABLE),
        (Address("127.0.0.1:8080", OTHER_NAMESPACE), None, UNREACHABLE),
        (Address("http://localhost:8080", OTHER_BOOT), None, UNREACHABLE),
        (Address("unix:/run/h.sock", OTHER_BOOT), None, UNREACHABLE),
        (Address("127.0.0.1:8080"), Address("127.0.0.1:8080", OTHER_BOOT), UNREACHABLE),
        (Address("0.0.0.0:8080"), None, UNREACHABLE),
        (Address(""), None, UNREACHABLE),
        # Two unknown places are not one.
        (Address("127.0.0.1:8080", UNKNOWN_SCOPE), None, Contact("127.0.0.1:8080", False)),
    ],
)
def test_how_a_leader_is_asked_follows_from_where_both_are(
    advertised: Address, bound: Address | None, asked: Contact
) -> None:
    assert without_host(contact(advertised, bound, PLACE)) == asked


def test_a_place_without_known_scopes_is_the_same_as_none() -> None:
    assert not ProcessPlace(("127.0.0.1:8080",), (UNKNOWN_SCOPE,)).has(UNKNOWN_SCOPE)
    assert contact(Address("127.0.0.1:8080", HERE), None, ProcessPlace()) == UNREACHABLE


@pytest.mark.parametrize("same", [True, False])
@pytest.mark.parametrize("may_come", [True, False])
def test_row_8_whose_answer_cannot_be_verified_is_judged_as_one_that_gives_no_answer(
    same: bool, may_come: bool
) -> None:
    """Never as a refusal, which is a proof in the same place; and never as a life."""
    for ms in (0.0, PATIENCE_MS - 1, PATIENCE_MS):
        for unanswered_ms in (0.0, 1e9):
            verdicts = {
                judge(evidence(reply, same=same, may_come=may_come, reply_ms=1e9, ms=ms, unanswered_ms=unanswered_ms))
                for reply in (Reply.UNVERIFIED, Reply.SILENT)
            }
            (verdict,) = verdicts
            assert not verdict.is_proof and PATIENCE_MS - ms <= verdict.gone_in_ms < inf


@pytest.mark.parametrize(
    ("advertised", "bound", "host"),
    [
        (Address("log.example:80"), None, "log.example"),
        (Address("https://log.example:80"), Address("https://127.0.0.1:9", HERE), "log.example"),
        (Address("[fd00::1]:80", HERE), None, "fd00::1"),
        (Address("unix:/run/other.sock", HERE), None, ""),
        (Address("unix:/run/other.sock"), Address("https://127.0.0.1:9", HERE), ""),
    ],
)
def test_the_certificate_has_to_name_what_the_leader_advertises_wherever_it_is_asked(
    advertised: Address, bound: Address | None, host: str
) -> None:
    assert contact(advertised, bound, PLACE).host == host
