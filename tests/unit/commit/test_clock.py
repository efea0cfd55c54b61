"""The commit log knows the time only from the clock that it is given."""

from __future__ import annotations

import ast
from pathlib import Path

import holdfast.commit

COMMIT = Path(holdfast.commit.__file__).parent


def clock_readings(tree: ast.AST) -> list[int]:
    """The lines that call ``now``, the clock of the machine, instead of a clock that was handed in."""
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "now"
    ]


def test_no_module_of_the_commit_log_calls_the_clock_of_the_machine() -> None:
    readings = {str(path): clock_readings(ast.parse(path.read_text())) for path in COMMIT.rglob("*.py")}
    assert len(readings) > 20
    assert not any(readings.values()), readings


def test_a_call_of_the_clock_is_noticed() -> None:
    assert clock_readings(ast.parse("waited_ms = now().boot_ms\n")) == [1]
