"""What the answers and reads of one raced name prove: every row of the table, and that no other case is fit."""

from __future__ import annotations

import itertools

import pytest

from holdfast.objects.port import CREATED, CreateAnswer, Created, Refused, Unknown
from holdfast.objects.probe.contest import (
    LARGE,
    LARGE_BYTES,
    NAMES,
    SPREAD_MS,
    WRITERS,
    Contest,
    body_of,
    plan_race,
    plan_short_race,
    writer_of,
)
from holdfast.objects.probe.verdict import Fit, Read, Sight, Undecided, UnfitStore, judge

TAKEN = Refused()
BUSY = Refused(certain=False)
LOST = Unknown("the answer was lost")
ABSENT, FOREIGN, SILENT = Sight.ABSENT, Sight.FOREIGN, Sight.SILENT

Answers = list[CreateAnswer]
Rounds = list[list[Read]]

UNFIT: list[tuple[str, Answers, Rounds, str]] = [
    ("two succeeded", [CREATED, CREATED, TAKEN, TAKEN], [[0, 0]], "two creates of one name succeeded"),
    ("two succeeded, and nothing can be read", [CREATED, CREATED], [[SILENT]], "two creates of one name succeeded"),
    ("all succeeded", [CREATED] * 4, [[3, 3]], "two creates of one name succeeded"),
    ("a mixed body", [CREATED, TAKEN, TAKEN, TAKEN], [[FOREIGN, 0]], "other bytes than any create sent"),
    ("a mixed body of creates without answers", [LOST, LOST, LOST], [[FOREIGN]], "other bytes than any create sent"),
    ("two readers see two writers", [CREATED, LOST, TAKEN, TAKEN], [[0, 1]], "another time or place"),
    ("another writer later", [CREATED, TAKEN, TAKEN, TAKEN], [[0, 0], [0, 2]], "another time or place"),
    ("another writer later, and nobody succeeded", [LOST, LOST, TAKEN, TAKEN], [[0], [1]], "another time or place"),
    ("gone later", [CREATED, TAKEN, TAKEN, TAKEN], [[0, 0], [0, ABSENT]], "has gone"),
    ("gone later, and nobody succeeded", [LOST, TAKEN, TAKEN, TAKEN], [[0], [ABSENT]], "has gone"),
    ("a refused create overwrote", [CREATED, TAKEN, TAKEN, TAKEN], [[1, 1]], "it acknowledged reads back with other"),
    ("a lost create overwrote", [LOST, CREATED, TAKEN, TAKEN], [[0, 0]], "it acknowledged reads back with other"),
    ("an acknowledged object is nowhere", [CREATED, TAKEN], [[ABSENT, ABSENT]], "cannot be read back"),
    ("an acknowledged object is not everywhere", [CREATED, TAKEN], [[0, ABSENT]], "cannot be read back"),
    ("an acknowledged object comes later", [CREATED, TAKEN], [[ABSENT], [0]], "cannot be read back"),
]

FIT: list[tuple[str, Answers, Rounds]] = [
    ("one of all", [TAKEN, CREATED, TAKEN, TAKEN], [[1, 1]]),
    ("one of all, also later", [TAKEN, CREATED, TAKEN, TAKEN], [[1, 1], [1, 1]]),
    ("one, and a quarter without an answer", [TAKEN, CREATED, TAKEN, LOST], [[1, 1]]),
    ("one, and a quarter busy", [TAKEN, CREATED, TAKEN, BUSY], [[1, 1]]),
    ("the one without an answer", [TAKEN, TAKEN, LOST, TAKEN], [[2, 2]]),
    ("the one that was busy", [TAKEN, TAKEN, BUSY, TAKEN], [[2, 2]]),
]

UNDECIDED: list[tuple[str, Answers, Rounds, str]] = [
    ("no read", [CREATED, TAKEN, TAKEN, TAKEN], [], "a read had no answer"),
    ("a read without an answer", [CREATED, TAKEN, TAKEN, TAKEN], [[0, SILENT]], "a read had no answer"),
    ("no read with an answer", [LOST, TAKEN, TAKEN, TAKEN], [[SILENT]], "a read had no answer"),
    ("half without an answer", [CREATED, TAKEN, LOST, LOST], [[0, 0]], "too few creates"),
    ("half busy", [CREATED, TAKEN, BUSY, BUSY], [[0, 0]], "too few creates"),
    ("all without an answer", [LOST] * 4, [[1, 1]], "too few creates"),
    ("nothing took effect", [LOST] * 4, [[ABSENT, ABSENT]], "no create took effect"),
    ("all were busy", [BUSY] * 4, [[ABSENT, ABSENT]], "no create took effect"),
    ("all were refused", [TAKEN] * 4, [[ABSENT, ABSENT]], "no create took effect"),
    ("something between sent it twice", [TAKEN] * 4, [[2, 2]], "was refused, and its bytes are there"),
    ("a late create landed between two reads", [LOST, LOST, TAKEN, TAKEN], [[ABSENT], [0]], "before it was read"),
]


@pytest.mark.parametrize(("answers", "rounds", "why"), [row[1:] for row in UNFIT], ids=[row[0] for row in UNFIT])
def test_a_broken_promise_is_unfit(answers: Answers, rounds: Rounds, why: str) -> None:
    verdict = judge(answers, rounds)
    assert isinstance(verdict, UnfitStore)
    assert why in verdict.why


@pytest.mark.parametrize(("answers", "rounds"), [row[1:] for row in FIT], ids=[row[0] for row in FIT])
def test_one_writer_is_fit(answers: Answers, rounds: Rounds) -> None:
    assert judge(answers, rounds) == Fit()


@pytest.mark.parametrize(
    ("answers", "rounds", "why"), [row[1:] for row in UNDECIDED], ids=[row[0] for row in UNDECIDED]
)
def test_answers_that_prove_nothing_are_no_verdict(answers: Answers, rounds: Rounds, why: str) -> None:
    verdict = judge(answers, rounds)
    assert isinstance(verdict, Undecided)
    assert why in verdict.why


def test_every_case_obeys_the_law() -> None:
    """All answers of four creates with all reads of two rounds, against the law in other words."""
    kinds: Answers = [CREATED, TAKEN, BUSY, LOST]
    sights: list[Read] = [0, 1, ABSENT, FOREIGN, SILENT]
    for answers in itertools.product(kinds, repeat=4):
        succeeded = {writer for writer, answer in enumerate(answers) if isinstance(answer, Created)}
        refused = {writer for writer, answer in enumerate(answers) if answer is TAKEN}
        for reads in itertools.product(sights, repeat=3):
            verdict = judge(answers, [reads[:2], reads[2:]])
            shown = {read for read in reads if isinstance(read, int)}
            if isinstance(verdict, Fit):
                assert len(succeeded) + len(refused) >= 3
                assert len(succeeded) <= 1
                assert len(shown) == 1 and set(reads) == shown
                assert shown == succeeded if succeeded else not shown & refused
            elif isinstance(verdict, UnfitStore):
                lost_an_acknowledged = bool(succeeded) and any(
                    read not in succeeded and read is not SILENT for read in reads
                )
                gone = any(isinstance(read, int) for read in reads[:2]) and ABSENT in reads[2:]
                assert len(succeeded) > 1 or len(shown) > 1 or FOREIGN in reads or lost_an_acknowledged or gone


def test_a_plan_has_the_size_that_was_promised() -> None:
    numbers = itertools.cycle([0.0, 0.25, 0.5, 0.999])
    plan = plan_race("probe/x", lambda: next(numbers))
    assert len(plan) == len({contest.name for contest in plan}) == NAMES == 20
    assert max(contest.size for contest in plan) == LARGE_BYTES == 1 << 20
    assert sum(contest.size == LARGE_BYTES for contest in plan) == len(LARGE) == 2
    for contest in [*plan, *plan_short_race("probe/x", "s3://bucket")]:
        assert contest.name.startswith("probe/x.")
        assert all(0.0 <= offset <= SPREAD_MS == 50.0 for offset in contest.offsets_ms)
    assert {len(contest.offsets_ms) for contest in plan} == {WRITERS} == {16}
    assert max(plan[0].offsets_ms) > 49.0
    assert sum(offset < 1.0 for offset in plan[0].offsets_ms) >= WRITERS // 4, "many at the beginning"


def test_a_body_names_its_writer_and_a_part_of_it_none() -> None:
    contest = Contest("probe/x", 300, (0.0,) * 16)
    for writer in range(16):
        body = body_of(contest.name, contest.size, writer)
        assert len(body) == 300
        assert writer_of(body, contest) == writer
        assert writer_of(body[:-1], contest) is FOREIGN
    one, two = body_of(contest.name, contest.size, 1), body_of(contest.name, contest.size, 2)
    for data in (b"", one[:150] + two[150:], body_of("probe/y", 300, 1), body_of("probe/x", 300, 16), one + b"\n"):
        assert writer_of(data, contest) is FOREIGN
