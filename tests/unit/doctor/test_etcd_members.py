"""What the doctor makes of the answers of etcd's members."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.doctor import Level
from holdfast.doctor.etcd import judge
from holdfast.objects.etcd.failures import CallFailed, Meaning
from holdfast.objects.etcd.wire import Status

ENDPOINTS = ("a:2379", "b:2379", "c:2379")
SOUND = [Status(7, number, "3.5.16", 2, 40 << 20, 10 << 20) for number in (1, 2, 3)]


def findings(*answers: Status | CallFailed) -> list[tuple[Level, str]]:
    return [(each.level, each.seen) for each in judge(list(zip(ENDPOINTS, answers, strict=False)))]


def worst(*answers: Status | CallFailed) -> tuple[Level, str]:
    found = findings(*answers)
    level = max(level for level, _ in found)
    return level, "; ".join(text for each, text in found if each is level)


def changed(number: int, **fields: object) -> list[Status]:
    return [msgspec.structs.replace(each, **fields) if at == number else each for at, each in enumerate(SOUND)]


def test_sound_members_are_shown_with_their_versions_and_sizes() -> None:
    assert findings(*SOUND) == [
        (Level.OK, "a:2379 follows, version 3.5.16, 10.0 of 40.0 MiB in use"),
        (Level.OK, "b:2379 leads, version 3.5.16, 10.0 of 40.0 MiB in use"),
        (Level.OK, "c:2379 follows, version 3.5.16, 10.0 of 40.0 MiB in use"),
    ]


@pytest.mark.parametrize(
    ("answers", "level", "text"),
    [
        (changed(0, version="3.5.15"), Level.WARNING, "a:2379: 3.5.15; b:2379, c:2379: 3.5.16"),
        (changed(1, cluster_id=9), Level.ERROR, "b:2379: 0000000000000009"),
        (changed(2, is_learner=True), Level.WARNING, "c:2379 is a learner"),
        (changed(2, errors=["memberID:3 alarm:NOSPACE"]), Level.ERROR, "c:2379: memberID:3 alarm:NOSPACE"),
        (changed(0, version="3.5.2"), Level.ERROR, "a:2379: members of version 3.5.2 may disagree"),
        ([CallFailed(Meaning.NO_ANSWER, "a:2379: refused"), *SOUND[1:]], Level.WARNING, "no answer: a:2379: refused"),
        ([CallFailed(Meaning.DENIED, "denied"), *SOUND[1:]], Level.OK, "a:2379 does not describe itself"),
    ],
)
def test_each_fault_of_a_member_is_named(answers: list[Status | CallFailed], level: Level, text: str) -> None:
    found = worst(*answers)
    assert found[0] is level
    assert text in found[1]


@pytest.mark.parametrize(
    ("version", "level"),
    [
        ("3.4.20", Level.ERROR),
        ("3.4.21", Level.OK),
        ("3.5.0", Level.ERROR),
        ("3.5.3", Level.ERROR),
        ("3.5.4", Level.ERROR),
        ("3.5.5", Level.OK),
        ("3.6.0-rc.1", Level.OK),
    ],
)
def test_one_member_alone_needs_a_version_that_keeps_what_it_confirmed(version: str, level: Level) -> None:
    assert worst(*changed(0, version=version)[:1])[0] is level
    if version != "3.5.0":
        assert worst(*(changed(0, version=version)[:1] * 3))[0] is Level.OK
