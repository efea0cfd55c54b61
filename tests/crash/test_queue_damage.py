"""Each queue of ``queue_damage``, with each fault and each pair of faults: every loss is reported, none is delivered.

``make test`` runs a small choice; ``make test-all`` at most 40,000 cases, of which a seed draws those above the limit
(``HOLDFAST_CRASH_SEED``); ``make prove`` all of them. A failure prints the command that reproduces the case.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.crash import queue_damage
from tests.crash.queue_damage import (
    CASES_MAX,
    FIELDS,
    PLANS,
    REASONS,
    SEED,
    Broken,
    Case,
    Fault,
    Progress,
    Summary,
    built,
    case_named,
    chosen_cases,
    every_case,
    header_fields,
    judge_case,
    pairs_of,
    proof_is_gone,
    run,
    singles_of,
    small_choice,
)
from tests.matrix import matrix

from holdfast.errors import InvalidRequest
from holdfast.queue import Message, Queue, Trimmed
from holdfast.queue.consumers.consumer import Consumer
from holdfast.queue.format.page import HEADER_BYTES
from holdfast.queue.queue import core_of

PROVE = os.environ.get("HOLDFAST_PROVE") == "1"
SMALL_CHOICE = "a small choice"
RecordProperty = Callable[[str, object], None]

total = Summary()
"""What all tests of this process ran."""


@cache
def cases_of(group: str) -> list[Case]:
    if group == SMALL_CHOICE:
        return small_choice()
    return every_case(group) if PROVE else chosen_cases()[group]


@pytest.fixture(scope="module", autouse=True)
def counts(pytestconfig: pytest.Config) -> Iterator[None]:
    """Print the counts of all groups at the end."""
    yield
    capture: Any = pytestconfig.pluginmanager.get_plugin("capturemanager")
    with capture.global_and_fixture_disabled():
        if total.cases:
            print(f"\ndamaged queues, seed {SEED}:\n{total.table()}")


@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("group", matrix([SMALL_CHOICE, *PLANS]))
def test_a_damaged_queue_delivers_or_reports_each_message_and_gives_no_number_again(
    group: str, record_property: RecordProperty, capfd: pytest.CaptureFixture[str]
) -> None:
    cases = cases_of(group)
    progress = Progress(len(cases))
    with capfd.disabled():
        summary = run(cases, progress=progress)
    total.join(summary)
    record_property("queue_damages", summary.cases)
    assert summary.cases == len(cases)
    if summary.broken:
        pytest.fail(f"{summary.failures()}\n{summary.table()}", pytrace=False)


# ---- the cases -------------------------------------------------------------------------------------------------------


def test_the_reasons_that_excuse_a_loss_are_the_documented_ones() -> None:
    given = {proof_is_gone(case) for name in PLANS for case in every_case(name)}
    assert given - {""} == {*REASONS}


def test_the_chosen_cases_hold_each_fault_and_each_pair_of_whole_files_once() -> None:
    chosen = chosen_cases()
    assert sum(map(len, chosen.values())) <= CASES_MAX
    for name in PLANS:
        assert {*chosen[name]} >= {*singles_of(name), *pairs_of(name)}
        assert len({*chosen[name]}) == len(chosen[name])


def test_a_case_changes_a_file_and_its_name_reproduces_it() -> None:
    for name in PLANS:
        for case in every_case(name)[::20]:
            assert case_named(case.name) == case
        for case in singles_of(name):
            assert case.files() != built(name).files


def test_each_field_of_a_header_is_damaged() -> None:
    assert [*header_fields()] == [*FIELDS, "crc"]
    offsets = [*header_fields().values()]
    assert offsets == sorted({*offsets})
    assert (offsets[0], offsets[-1] + 4) == (0, HEADER_BYTES)


# ---- mutants of the queue: each law catches one ----------------------------------------------------------------------

Reading = Callable[[Queue, Iterator[Message], Callable[[object], object]], Iterator[Message]]
HEALTHY = Case("1-small-consumer", (Fault("q.lock", "deleted"),))


def a_loss() -> Case:
    """A case that loses a message in the middle of a page, and is repaired at its end."""
    cases = (case for name, plan in PLANS.items() if plan.end == "closed" for case in singles_of(name))
    return next(case for case in cases if case.faults[0].how == "middle-body" and case.is_repaired)


def hidden(queue: Queue, messages: Iterator[Message], damage: Callable[[object], object]) -> Iterator[Message]:
    return (message for message in messages if message.seq != 5)


def changed(queue: Queue, messages: Iterator[Message], damage: Callable[[object], object]) -> Iterator[Message]:
    return (Message((message.seq, message.time_ns, b"x")) if message.seq == 5 else message for message in messages)


def repeated(queue: Queue, messages: Iterator[Message], damage: Callable[[object], object]) -> Iterator[Message]:
    return (each for message in messages for each in [message] * (2 if message.seq == 5 else 1))


def forgotten(queue: Queue, messages: Iterator[Message], damage: Callable[[object], object]) -> Iterator[Message]:
    return (message for message in messages if not core_of(queue).writable or message.seq != 5)


def invented(queue: Queue, messages: Iterator[Message], damage: Callable[[object], object]) -> Iterator[Message]:
    damage(Trimmed(5, 6))
    return messages


def raising(queue: Queue, messages: Iterator[Message], damage: Callable[[object], object]) -> Iterator[Message]:
    raise InvalidRequest("not today")


@pytest.mark.parametrize(
    ("law", "mutant"),
    [
        ("reported", hidden),
        ("exact", changed),
        ("exact", repeated),
        ("kept", forgotten),
        ("true", invented),
        ("errors", raising),
    ],
)
def test_a_law_catches_a_reader_that_breaks_it(
    law: str, mutant: Reading, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = Queue.read
    built(HEALTHY.queue)

    def mutated(queue: Queue, **arguments: Any) -> Iterator[Message]:
        return mutant(queue, read(queue, **arguments), arguments["damage"])

    monkeypatch.setattr(Queue, "read", mutated)
    assert law in {broken.law for broken in judge_case(HEALTHY, tmp_path / "case")}


class Losing(Queue):
    """One append stores nothing."""

    def append(self, message: object) -> int:
        """See ``Queue``."""
        return 100 if message == b"new 1" else super().append(message)


class Reusing(Queue):
    """An append gives an old number."""

    def append(self, message: object) -> int:
        """See ``Queue``."""
        return super().append(message) - 70


@pytest.mark.parametrize("mutant", [Losing, Reusing])
def test_a_law_catches_a_lost_append_and_a_number_that_is_given_again(
    mutant: type[Queue], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built(HEALTHY.queue)
    monkeypatch.setattr(queue_damage, "Queue", mutant)
    assert "new" in {broken.law for broken in judge_case(HEALTHY, tmp_path / "case")}


def test_a_law_catches_a_consumer_without_a_lag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Consumer, "lag", lambda consumer: 0)
    assert {broken.law for broken in judge_case(HEALTHY, tmp_path / "case")} == {"lag"}


def test_a_law_catches_a_verify_that_is_wrong_and_a_repair_that_does_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loss = a_loss()
    monkeypatch.setattr(queue_damage, "repair_queue", lambda path: None)
    assert {broken.law for broken in judge_case(loss, tmp_path / "case")} == {"repair"}
    monkeypatch.setattr(queue_damage, "verify_queue", lambda path: SimpleNamespace(ok=True))
    assert {broken.law for broken in judge_case(loss, tmp_path / "case")} == {"verify", "agree"}
    monkeypatch.setattr(queue_damage, "verify_queue", lambda path: SimpleNamespace(ok=False, gaps=()))
    assert {broken.law for broken in judge_case(HEALTHY, tmp_path / "case")} == {"true", "agree"}


def test_a_case_that_ends_its_process_or_hangs_breaks_a_law_and_the_rest_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cases = singles_of("1-small-closed")[:6]
    judge = queue_damage.judge_case

    def mutated(case: Case, folder: Path) -> list[Broken]:
        if case == cases[2]:
            os._exit(7)
        return judge(case, folder)

    monkeypatch.setattr(queue_damage, "judge_case", mutated)
    summary = run(cases, processes=1)
    assert summary.cases == len(cases)
    assert summary.broken[cases[2].name] == [Broken("errors", "the process ends with 7")]

    monkeypatch.setattr(queue_damage, "CASE_S_MAX", 0.05)
    monkeypatch.setattr(queue_damage, "verify_queue", lambda path: threading.Event().wait(10))
    monkeypatch.setattr(queue_damage, "judge_case", judge)
    summary = run(cases[:1], processes=1)
    assert [broken.law for broken in summary.broken[cases[0].name]] == ["errors"]
