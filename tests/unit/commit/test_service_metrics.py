"""Laws of the figures of a leadership: what each counts, and that measuring changes no decision."""

from __future__ import annotations

from itertools import count

import pytest
from tests.unit.commit.builders import at, entry, genesis, identity, pipeline

from holdfast.commit.format.transaction import Committed, PointRead, Rejected, Reused, Transaction, Unanswered, Write
from holdfast.commit.metrics import LATENCY_BOUNDS_MS, LatencyBuckets, ServiceMetrics, Spell
from holdfast.commit.stages.events import Arrived
from holdfast.commit.stages.persist import PersistRules
from holdfast.commit.stages.pipeline import Pipeline, PipelineRules
from holdfast.errors import Code, InvalidRequest


def arrived(ms: float, *writes: Write) -> Arrived:
    return Arrived(
        at(ms), [entry(Transaction(operations=list(writes), preconditions=[PointRead(b"c", genesis().last_version)]))]
    )


@pytest.mark.parametrize(
    ("outcome", "place"),
    [
        (Rejected("conflict"), ("resolve", "conflict")),
        (Rejected("too_old"), ("resolve", "too_old")),
        (Rejected("banned"), ("sequence", "banned")),
        (Reused(), ("sequence", "request_id_reused")),
        (InvalidRequest("x", code=Code.FUTURE_VERSION), ("sequence", "future_version")),
        (Unanswered(), ("release", "outcome_unknown")),
    ],
)
def test_every_refusal_counts_for_the_stage_that_made_it(outcome: object, place: tuple[str, str]) -> None:
    metrics = ServiceMetrics()
    refused, committed = entry(), entry()
    refused.outcome, committed.outcome = outcome, Committed(3)  # type: ignore[assignment]
    metrics.note_answers([refused, committed], 8.0)
    assert dict(metrics.refused) == {place: 1}
    assert (metrics.committed, metrics.rejected + metrics.other) == (1, 1)
    assert (sum(metrics.latency.counts), metrics.latency.sum_ms) == (2, 16.0)


def test_a_latency_lies_in_the_first_bucket_whose_bound_it_does_not_exceed() -> None:
    latency = LatencyBuckets()
    for took_ms in (0.0, 0.5, 0.6, LATENCY_BOUNDS_MS[-1], LATENCY_BOUNDS_MS[-1] + 1):
        latency.note(took_ms)
    assert latency.counts[:2] == [2, 1]
    assert latency.counts[-2:] == [1, 1]


def test_a_spell_lasts_from_its_begin_to_its_end_and_is_counted_once() -> None:
    spell = Spell()
    for holds, now_ms in ((False, 1.0), (True, 2.0), (True, 5.0), (False, 9.0), (False, 10.0), (True, 20.0)):
        spell.note(holds, now_ms)
    assert (spell.began, spell.lasts, spell.total_ms(21.0)) == (2, True, 8.0)


def test_the_stages_hold_the_bytes_of_what_waits_in_them() -> None:
    one = pipeline(persist=PersistRules(batch_timeout_ms=1000.0))
    held = one.bytes_held()
    assert (held["persist"], held["release"]) == (0, 0)
    one.step(arrived(0, Write(b"key", b"v" * 5_000)))
    assert one.persist.in_flight, "the first batch leaves at once"
    assert 5_000 < one.bytes_held()["persist"] < 12_000
    one.step(arrived(1, Write(b"key", b"v" * 7_000)))
    assert one.bytes_held()["persist"] > 12_000


def test_the_window_reaches_back_to_its_floor() -> None:
    one = pipeline()
    for ms in range(0, 200_000, 1_000):
        one.step(arrived(ms, Write(b"key", b"v")))
    assert 55_000.0 <= one.resolve.window_ms(200_000.0) <= 61_000.0, "a minute of history by default"


def test_a_timer_measures_every_stage_and_changes_no_effect() -> None:
    ticks = count()
    timed = Pipeline(genesis(), identity().nonce_seed, PipelineRules(), at(0), timer=lambda: float(next(ticks)))
    plain = Pipeline(genesis(), identity().nonce_seed, PipelineRules(), at(0))
    for ms in (0, 5, 9):
        made = [[type(effect) for effect in one.step(arrived(ms, Write(b"a", b"b")))] for one in (timed, plain)]
        assert made[0] == made[1]
    assert set(plain.seconds.values()) == {0.0}
    assert timed.seconds["sequence"] >= 3.0
    assert timed.seconds["resolve"] >= 3.0
    assert timed.seconds["persist"] >= 1.0
