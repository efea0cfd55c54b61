"""Marks the cases of a parametrised test that `make test` leaves out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

__all__ = ["matrix"]


def matrix(cases: Iterable[Any], kept: Callable[[Any], bool] | int = 1) -> list[Any]:
    """The cases as parameters; all have the mark ``matrix`` except the first ``kept``, or those that ``kept`` chooses.

    A case that is a ``pytest.param`` keeps its marks. A tuple is one value: for tests with one parameter name.
    """
    found: list[Any] = []
    for number, case in enumerate(cases):
        value = case.values[0] if hasattr(case, "marks") else case
        marks = [*getattr(case, "marks", ())]
        if not (number < kept if isinstance(kept, int) else kept(value)):
            marks.append(pytest.mark.matrix)
        found.append(pytest.param(value, marks=marks))
    assert any(not any(mark.name == "matrix" for mark in case.marks) for case in found), "one case stays in make test"
    return found
