"""The register search accepts what some order explains, and nothing else."""

from __future__ import annotations

import pytest
from tests.registers import RegisterCall, register_is_linearizable


def read(begin: int, end: int, value: int | None) -> RegisterCall:
    return RegisterCall(begin=begin, end=end, kind="read", value=value)


def write(begin: int, end: int | None, value: int) -> RegisterCall:
    return RegisterCall(begin=begin, end=end, kind="write", value=value)


def swap(begin: int, end: int | None, expected: int | None, value: int, swapped: bool) -> RegisterCall:
    return RegisterCall(begin=begin, end=end, kind="swap", expected=expected, value=value, swapped=swapped)


@pytest.mark.parametrize(
    ("calls", "linearizable"),
    [
        ([], True),
        ([read(0, 1, None), write(2, 3, 1), read(4, 5, 1)], True),
        ([write(0, 1, 1), read(2, 3, None)], False),
        ([write(0, 10, 1), read(1, 2, 1), read(3, 4, None)], False),
        ([write(0, 10, 1), read(1, 2, None), read(3, 4, 1)], True),
        ([write(0, 9, 1), write(0, 9, 2), read(1, 2, 1), read(3, 4, 2), read(5, 6, 1)], False),
        ([write(0, None, 1), read(5, 6, None), read(7, 8, 1)], True),
        ([write(0, None, 1), read(5, 6, 1), read(7, 8, None)], False),
        ([write(5, None, 1), read(1, 2, 1)], False),
        ([swap(0, 9, None, 1, True), swap(0, 9, None, 2, True)], False),
        ([swap(0, 9, None, 1, True), swap(0, 9, None, 2, False), read(10, 11, 1)], True),
        ([swap(0, None, None, 1, True), read(5, 6, 1)], True),
    ],
)
def test_the_register_search_tells_linearizable_histories(calls: list[RegisterCall], linearizable: bool) -> None:
    assert register_is_linearizable(calls) == linearizable
