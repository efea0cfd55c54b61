"""The directory that the message stores wrote by rules 3 opens with equal contents: its rewind is one command."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from tests.compat.test_stores_v1 import contents, digest

HERE = Path(__file__).parent / "stores-v3"
DIGEST = "5431526ea6e68c8084e5a4758ac28ddaf07aa13b5a1fd10cab380b49d197b90b"


def test_golden_directory_is_the_one_that_was_written() -> None:
    assert digest(HERE) == DIGEST


def test_directory_of_rules_3_opens_with_equal_contents(tmp_path: Path) -> None:
    expected = json.loads((HERE / "contents.json").read_text())["killed"]
    directory = Path(shutil.copytree(HERE / "killed", tmp_path / "stores"))
    assert contents(directory, read_only=True) == expected
    assert contents(directory) == expected
    assert contents(directory) == expected, "from the checkpoint that the first opening wrote"
