"""The command that the documentation names for a figure runs from any folder, with nothing set in the environment."""

from __future__ import annotations

import ast
import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.matrix import matrix

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
SCRIPTS = sorted(path for path in FOLDER.glob("*.py") if not path.name.startswith("_"))


@pytest.mark.parametrize(
    "script", matrix(SCRIPTS, lambda path: path.stem == "stores_in_the_log"), ids=lambda path: path.stem
)
def test_a_benchmark_starts_without_an_environment(script: Path, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, str(script), "--help"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.startswith("usage: ")


@pytest.mark.parametrize("script", sorted(FOLDER.rglob("*.py")), ids=lambda path: path.stem)
def test_what_a_benchmark_imports_of_the_product_exists(script: Path) -> None:
    for node in ast.walk(ast.parse(script.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in ("holdfast", "tests"):
            module = importlib.import_module(str(node.module))
            for name in node.names:
                if not hasattr(module, name.name):
                    importlib.import_module(f"{node.module}.{name.name}")
