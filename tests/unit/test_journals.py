"""The checker of journals finds every planted anomaly, and none where there is none."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.journals import (
    CHANGE_NS,
    HEARD_NS,
    ROUND_TRIP_NS,
    SERVICE,
    UNDER_WAY,
    Fault,
    Judgement,
    hand_overs_of,
    judge,
)

SECOND = 1_000_000_000
ACK_WAIT = 30 * SECOND
ANN_WORKS = ["handed 10 1 1 0", "done 20 1", "acked 30 1"]
LATER = 30 + ROUND_TRIP_NS + 1


def judged(
    *faults: Fault,
    ann: list[str] | None = None,
    bob: list[str] | None = None,
    published: tuple[int, ...] = (1,),
    published_ns: int = 0,
) -> Judgement:
    hand_overs = hand_overs_of({"ann": ANN_WORKS if ann is None else ann, "bob": bob or []})
    return judge(dict.fromkeys(published, published_ns), hand_overs, faults, ACK_WAIT)


def bob_works(at: int, *, count: int = 2, redelivered: int = 1) -> list[str]:
    return [f"handed {at} 1 {count} {redelivered}", f"done {at + 5} 1", f"stale {at + 9} 1"]


def laws(judgement: Judgement) -> list[str]:
    return [anomaly.split()[2].rstrip(":") for anomaly in judgement.anomalies]


def test_an_honest_journal_has_no_anomaly() -> None:
    found = judged(ann=[*ANN_WORKS, "handed 40 2 1 0", "done 50 2", "acked 60 2"], published=(1, 2))
    assert (found.messages, found.hand_overs, found.repeats, found.anomalies) == (2, 2, {}, [])


@pytest.mark.parametrize("ann", [[], ["handed 10 1 1 0"]], ids=["never handed over", "never done"])
def test_a_lost_message_is_reported(ann: list[str]) -> None:
    assert laws(judged(ann=ann)) == ["nothing_lost"]


ENDS = {
    "process died": (["handed 10 1 1 0"], Fault("killed", "ann", 12, 14), SECOND),
    "process stopped": (["handed 10 1 1 0"], Fault("stopped", "ann", 12, SECOND // 2), SECOND),
    "connection lost": (["handed 10 1 1 0"], Fault("stopped", SERVICE, 12, 7 * SECOND), 9 * SECOND),
    "ack_wait ended": (["handed 10 1 1 0"], None, ACK_WAIT + 10),
}


@pytest.mark.parametrize("end", ENDS)
def test_a_repeat_after_the_end_of_a_hold_is_counted_by_it(end: str) -> None:
    ann, fault, at = ENDS[end]
    found = judged(*([fault] if fault else []), ann=ann, bob=bob_works(at))
    assert (found.repeats, found.anomalies) == ({end: 1}, [])


@pytest.mark.parametrize("end", ENDS)
def test_without_its_end_the_same_repeat_is_reported(end: str) -> None:
    """The fault is another's, or the repeat comes too early, or another service has kept what was in work."""
    ann, fault, at = ENDS[end]
    if fault is None:
        found = judged(ann=ann, bob=bob_works(at - ROUND_TRIP_NS - 1))
    elif fault.who == SERVICE:
        found = judged(replace(fault, kind="replaced"), ann=ann, bob=bob_works(at))
    else:
        found = judged(replace(fault, who="carl"), ann=ann, bob=bob_works(at))
    assert laws(found) == ["one_holder"]


def test_what_is_sent_to_a_service_that_is_stopped_is_read_later() -> None:
    stopped = Fault("stopped", SERVICE, 12, 7 * SECOND)
    done = ["handed 10 1 1 0", f"done {12 + HEARD_NS} 1"]
    assert laws(judged(stopped, ann=done, bob=bob_works(9 * SECOND))) == ["one_holder"]
    done_later = ["handed 10 1 1 0", f"done {13 + HEARD_NS} 1"]
    assert laws(judged(stopped, ann=done_later, bob=bob_works(9 * SECOND))) == []


def test_a_message_that_waited_too_long_may_be_handed_over_a_moment_too_late() -> None:
    """The report of the hand-over comes too late, so the repeat is marked and does not count more."""
    late = ["handed 10 1 1 0", "done 20 1", "stale 30 1"]
    waited = ROUND_TRIP_NS - ACK_WAIT
    found = judged(ann=late, bob=bob_works(SECOND, count=1), published_ns=10 + waited)
    assert (found.repeats, found.anomalies) == ({"buffer_wait ended": 1}, [])
    unmarked = judged(ann=late, bob=bob_works(SECOND, count=1, redelivered=0), published_ns=10 + waited)
    assert laws(unmarked) == ["repeats_are_marked"]
    early = judged(ann=late, bob=bob_works(SECOND), published_ns=11 + waited)
    assert laws(early) == ["one_holder"]
    confirmed = judged(ann=[*late[:2], f"acked {2 * SECOND} 1"], bob=bob_works(SECOND), published_ns=10 + waited)
    assert laws(confirmed) == ["one_holder"], "what was acknowledged had been held"


@pytest.mark.parametrize("mark", [{"redelivered": 0}, {"count": 1}], ids=["not redelivered", "not counted"])
def test_an_unmarked_repeat_is_reported(mark: dict[str, int]) -> None:
    killed = Fault("killed", "ann", 12, 14)
    assert laws(judged(killed, ann=["handed 10 1 1 0"], bob=bob_works(SECOND, **mark))) == ["repeats_are_marked"]


def test_a_service_that_is_killed_loses_counts_and_no_marks() -> None:
    ann, changed = ["handed 10 1 1 0"], Fault("killed", SERVICE, 25, SECOND)
    faults = (Fault("killed", "ann", 12, 14), changed)
    assert laws(judged(*faults, ann=ann, bob=bob_works(3 * SECOND, count=1))) == []
    assert laws(judged(*faults, ann=ann, bob=bob_works(3 * SECOND, count=1, redelivered=0))) == ["repeats_are_marked"]


def test_a_message_in_work_is_kept_over_a_change_of_the_service() -> None:
    change = Fault("killed", SERVICE, 25, SECOND)
    for ann in (["handed 10 1 1 0"], ["handed 10 1 1 0", "done 20 1"]):
        assert "one_holder" in laws(judged(change, ann=ann, bob=bob_works(3 * SECOND)))


def test_a_hand_over_after_a_confirmed_acknowledgement_is_reported() -> None:
    assert laws(judged(bob=bob_works(LATER))) == ["nothing_after_its_end"]
    again = [*ANN_WORKS, f"handed {LATER} 1 2 1"]
    assert laws(judged(ann=again)) == ["nothing_after_its_end"], "also to the one that acknowledged it"


def test_one_round_trip_after_its_end_a_hand_over_is_under_way() -> None:
    found = judged(bob=bob_works(LATER - 1, count=1, redelivered=0))
    assert (found.repeats, found.anomalies) == ({UNDER_WAY: 1}, [])


def test_a_change_of_the_service_gives_a_second_and_no_more() -> None:
    change = Fault("killed", SERVICE, 35, 5 * SECOND)
    assert laws(judged(change, bob=bob_works(change.end_ns + CHANGE_NS))) == []
    assert laws(judged(change, bob=bob_works(change.end_ns + CHANGE_NS + 1))) == ["nothing_after_its_end"]


def test_a_change_of_the_service_long_after_the_end_excuses_nothing() -> None:
    change = Fault("killed", SERVICE, 10 * SECOND, 11 * SECOND)
    assert laws(judged(change, bob=bob_works(11 * SECOND + 5))) == ["nothing_after_its_end"]


def test_an_anomaly_has_the_story_of_its_message() -> None:
    (anomaly,) = judged(Fault("killed", "carl", 12, 14), bob=bob_works(LATER)).anomalies
    assert [line.split()[1:] for line in anomaly.splitlines()[1:]] == [
        ["ann", "handed", "count=1", "redelivered=False"],
        ["carl", "killed"],
        ["carl", "there", "again"],
        ["ann", "done"],
        ["ann", "acked"],
        ["bob", "handed", "count=2", "redelivered=True"],
        ["bob", "done"],
        ["bob", "stale"],
    ]
