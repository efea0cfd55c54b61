"""The file port on the operating system: what only it can get wrong."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from holdfast.queue import Queue
from holdfast.queue.files.local import LocalFiles


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


def test_a_file_system_without_allocation_gets_zeros(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(file: int, offset: int, length: int) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(os, "posix_fallocate", refused)
    with Queue(tmp_path / "q", page_size=1 << 20) as queue:
        queue.append(b"one")
    assert (tmp_path / "q-1.page").stat().st_blocks * 512 >= 1 << 20
    with Queue(tmp_path / "q") as queue:
        assert [message.payload for message in queue.read()] == [b"one"]


def test_pages_are_mapped_only_where_a_data_sync_is_known_to_write_what_was_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = LocalFiles()
    path = tmp_path / "page"
    path.write_bytes(bytes(4096))
    file = os.open(path, os.O_RDWR)
    try:
        view = files.map(file, 4096)
        assert view is not None
        files.unmap(view)
        monkeypatch.setattr("sys.platform", "darwin")
        assert files.map(file, 4096) is None
    finally:
        os.close(file)
