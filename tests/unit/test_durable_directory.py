"""A directory that a start has made or found survives a power cut, whatever an earlier start left."""

from __future__ import annotations

import errno
import logging
import os
import socket
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from types import ModuleType

import pytest
from tests.one_line_mutants import mutated

from holdfast.files import durable_directory
from holdfast.files.durable_directory import SystemDirectories, replace_durably, sync_tree

OWN = "/disk/a/b/c/own"
MOUNT = "/disk"


class Stopped(Exception):
    """The process was killed before this operation."""


class ForgetfulTree(SystemDirectories):
    """Directories that forget the names that no sync covered. ``there``: path to whether its name is durable.

    Everything from ``MOUNT`` on is one file system. ``stop_at`` kills before the operation with that number, from 1.
    """

    def __init__(self, there: dict[str, bool], stop_at: int = 0) -> None:
        self.there = {"/": True, MOUNT: True} | there
        self.stop_at = stop_at
        self.operations: list[str] = []
        self.denied: set[str] = set()
        self.failing = ""
        self.read_only = False
        self._open: dict[int, str] = {}

    def _step(self, operation: str) -> None:
        self.operations.append(operation)
        if len(self.operations) == self.stop_at:
            raise Stopped

    def make_directory(self, path: str) -> None:
        self._step(f"make {path}")
        if path in self.there:
            raise FileExistsError(path)
        if os.path.dirname(path) not in self.there:
            raise FileNotFoundError(path)
        self.there[path] = False

    def open_directory(self, path: str) -> int:
        if path in self.denied:
            raise PermissionError(errno.EACCES, "denied", path)
        self._step(f"open {path}")
        handle = 3 + len(self.operations)
        self._open[handle] = path
        return handle

    def sync_directory(self, directory: int) -> None:
        path = self._open[directory]
        self._step(f"sync {path}")
        if path == self.failing:
            raise OSError(errno.EIO, "failed")
        self.there |= {each: True for each in self.there if os.path.dirname(each) == path}

    def close(self, handle: int) -> None:
        del self._open[handle]

    def device(self, path: str) -> int | None:
        if path not in self.there:
            return None
        return 2 if path == MOUNT or path.startswith(f"{MOUNT}/") else 1

    def real_path(self, path: str) -> str:
        return path

    def is_read_only(self, directory: int) -> bool:
        return self.read_only

    @property
    def open_handles(self) -> int:
        return len(self._open)

    def is_durable(self, path: str) -> bool:
        return all(self.there[each] for each in (path, *map(str, Path(path).parents)))


def levels() -> list[str]:
    path, found = OWN, []
    while path != MOUNT:
        found.append(path)
        path = os.path.dirname(path)
    return found[::-1]


def beginnings() -> Iterator[dict[str, bool]]:
    """Everything that earlier starts and users may have left: the first levels are there, each durable or not."""
    for count in range(len(levels()) + 1):
        for durable in product((False, True), repeat=count):
            yield dict(zip(levels()[:count], durable, strict=True))


def lost(module: ModuleType = durable_directory) -> list[str]:
    """The cases in which a directory that was promised may be gone after a power cut."""
    found: list[str] = []
    for there in beginnings():
        stop_at = 0
        while True:
            stop_at += 1
            tree = ForgetfulTree(dict(there), stop_at)
            try:
                module.make_durable_directory(OWN, tree)
            except Stopped:
                tree.stop_at = 0
                module.make_durable_directory(OWN, tree)
            assert tree.open_handles <= 1, "a killed process closes its handles by itself"
            if not tree.is_durable(OWN):
                found.append(f"{there} killed before {stop_at}")
            if stop_at > len(tree.operations):
                break
    return found


def test_a_directory_is_durable_after_every_start_whatever_was_there_and_wherever_a_start_before_was_killed() -> None:
    assert lost() == []


@pytest.mark.parametrize(
    ("honest", "broken"),
    [
        pytest.param("own, above = above, os.path.dirname(above)", "return", id="levels-above-are-not-synced"),
        pytest.param(
            "    _sync_above(files.real_path(path)",
            "    if missing: _sync_above(files.real_path(path)",
            id="a-directory-that-is-there-is-not-synced",
        ),
        pytest.param(
            "        made -= 1", "        made -= 1\n        if made <= 0: return", id="only-what-was-made-is-synced"
        ),
        pytest.param("        files.sync_directory(handle)", "        pass", id="nothing-is-synced"),
        pytest.param(
            "    above = os.path.dirname(own)\n    while",
            "    above = os.path.dirname(os.path.dirname(own))\n    while",
            id="the-directory-directly-above-is-not-synced",
        ),
        pytest.param(
            """    for each in reversed(missing):
        with suppress(FileExistsError):
            files.make_directory(each)
    device = files.device(path)
    if device is None:
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
    _sync_above(files.real_path(path), device, files, made=len(missing))
""",
            """    _sync_above(files.real_path(path), 2, files, made=0)
    for each in reversed(missing):
        with suppress(FileExistsError):
            files.make_directory(each)
""",
            id="synced-before-it-is-made",
        ),
    ],
)
def test_a_function_that_leaves_a_sync_out_loses_a_directory(honest: str, broken: str) -> None:
    assert lost(mutated(durable_directory, honest, broken)), "the mutant lives"


def test_syncs_end_at_the_root_of_the_file_system() -> None:
    tree = ForgetfulTree(dict.fromkeys(levels(), True))
    durable_directory.make_durable_directory(OWN, tree)
    synced = [each.removeprefix("sync ") for each in tree.operations if each.startswith("sync")]
    assert synced == ["/disk/a/b/c", "/disk/a/b", "/disk/a", "/disk"]


@pytest.mark.parametrize(("made", "level"), [(False, logging.INFO), (True, logging.WARNING)])
def test_a_directory_that_may_not_be_opened_is_skipped_and_logged_once(
    made: bool, level: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durable_directory, "_reported", set())
    caplog.set_level(logging.INFO, "holdfast.files.durable_directory")
    there = dict.fromkeys(levels()[:-2] if made else levels(), True)
    tree = ForgetfulTree(there)
    tree.denied = {"/disk/a/b"}
    for _ in range(3):
        tree.there = {"/": True, MOUNT: True} | there
        durable_directory.make_durable_directory(OWN, tree)
    assert [(one.levelno, one.args[0]) for one in caplog.records if one.args] == [(level, "/disk/a/b")]
    assert "sync /disk/a" in tree.operations, "the ones above it are synced"
    assert not tree.open_handles


def test_a_failed_sync_is_raised_unless_nothing_can_be_written_there() -> None:
    tree = ForgetfulTree(dict.fromkeys(levels(), True))
    tree.failing = "/disk/a"
    with pytest.raises(OSError, match="failed"):
        durable_directory.make_durable_directory(OWN, tree)
    assert not tree.open_handles
    tree.read_only = True
    durable_directory.make_durable_directory(OWN, tree)


class Recorded(SystemDirectories):
    """The system's directories, with what was synced."""

    def __init__(self) -> None:
        self.synced: list[str] = []

    def sync_directory(self, directory: int) -> None:
        super().sync_directory(directory)
        self.synced.append(os.readlink(f"/proc/self/fd/{directory}"))


def test_the_directories_behind_a_symbolic_link_are_synced(tmp_path: Path) -> None:
    (tmp_path / "real" / "below").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "real" / "below")
    files = Recorded()
    durable_directory.make_durable_directory(f"{tmp_path}/link/own/", files)
    real = tmp_path.resolve() / "real"
    assert files.synced[:3] == [str(real / "below"), str(real), str(real.parent)]
    assert (real / "below" / "own").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("path", ["", ".", "own", "x/../own", "x//y/"])
def test_a_relative_path_is_one_from_here(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    files = Recorded()
    durable_directory.make_durable_directory(path, files)
    assert Path(path).is_dir()
    expected = tmp_path.resolve() if os.path.normpath(path) != "." else tmp_path.resolve().parent
    assert str(expected) in files.synced


@pytest.mark.parametrize("kind", ["file", "socket", "dangling"])
@pytest.mark.parametrize("below", ["", "/x", "/x/y"])
def test_a_name_that_is_not_a_directory_is_refused_and_stays(kind: str, below: str, tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    if kind == "file":
        taken.write_bytes(b"data")
    elif kind == "dangling":
        taken.symlink_to(tmp_path / "nowhere")
    else:
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(str(taken))
    with pytest.raises((NotADirectoryError, FileNotFoundError)):
        durable_directory.make_durable_directory(f"{taken}{below}")
    assert os.listdir(tmp_path) == ["taken"]


def test_a_replaced_file_is_durable_under_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    happened: list[str] = []
    sync, replace = os.fsync, os.replace

    def synced(handle: int) -> None:
        happened.append("sync " + os.path.basename(os.readlink(f"/proc/self/fd/{handle}")))
        sync(handle)

    def replaced(old: str, new: str) -> None:
        happened.append("replace " + os.path.basename(new))
        replace(old, new)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", replaced)
    replace_durably(str(tmp_path / "file"), b"one")
    assert happened == ["sync file.new", "replace file", f"sync {tmp_path.name}"]
    assert (tmp_path / "file").read_bytes() == b"one"
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600


def test_a_tree_is_synced_in_all_its_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    for name in ("one", "a/two", "a/b/three"):
        (tmp_path / name).write_bytes(b"data")
    synced: set[str] = set()
    monkeypatch.setattr(os, "fsync", lambda handle: synced.add(os.readlink(f"/proc/self/fd/{handle}")))
    sync_tree(str(tmp_path))
    root = tmp_path.resolve()
    assert synced == {str(root / name) for name in (".", "a", "a/b", "one", "a/two", "a/b/three")} - {f"{root}/."} | {
        str(root)
    }
    with pytest.raises(FileNotFoundError):
        sync_tree(str(tmp_path / "nowhere"))
