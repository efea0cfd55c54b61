"""The file port on the operating system: what only it can get wrong."""

from __future__ import annotations

import os
from pathlib import Path

from holdfast.queue.local_files import LocalFiles


def test_a_listing_is_whole_while_another_is_on_its_way(tmp_path: Path) -> None:
    expected = [f"{number}.page" for number in range(500)]
    for name in expected:
        (tmp_path / name).touch()
    files = LocalFiles()
    directory = files.open_directory(str(tmp_path))
    with os.scandir(directory) as entries:
        next(entries)
        assert sorted(files.names(directory)) == sorted(expected)
    files.close(directory)
