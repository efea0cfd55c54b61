"""What is acknowledged is in the directory at its path, whatever is moved, removed, replaced or mounted meanwhile."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from tests.one_line_mutants import mutated

from holdfast.errors import Code, CorruptData, InvalidRequest
from holdfast.objects.directory import objects as module
from holdfast.objects.directory.files import LOOKS_MAX, PosixFiles, settled
from holdfast.objects.directory.identity import Inode, Replaced, Unstable, file_system_of
from holdfast.objects.directory.store import DirectoryStore
from holdfast.objects.port import Created, Unknown

FOLDERS = ["batches", "meta", "meta/retention", "snapshots", "snapshots/7/parts", "stores", "probe"]


def slot(number: int) -> str:
    return f"{2**64 - 1 - number:020d}"


def moved(path: Path) -> None:
    path.rename(path.with_name(path.name + ".away"))


def removed(path: Path) -> None:
    shutil.rmtree(path)


def replaced_empty(path: Path) -> None:
    moved(path)
    path.mkdir()


def replaced_by_a_copy(path: Path) -> None:
    moved(path)
    # What is being written has no final name yet, and may go while it is copied.
    shutil.copytree(
        path.with_name(path.name + ".away"), path, ignore=lambda at, names: names if at.endswith("/writing") else []
    )


def replaced_by_a_link(path: Path) -> None:
    replaced_by_a_copy(path)
    path.rename(path.with_name(path.name + ".other"))
    path.symlink_to(path.with_name(path.name + ".other"))


def replaced_by_a_file(path: Path) -> None:
    moved(path)
    path.write_bytes(b"")


CHANGES = [moved, removed, replaced_empty, replaced_by_a_copy, replaced_by_a_link, replaced_by_a_file]


def is_at(root: Path, key: str, data: bytes) -> bool:
    """Whether who opens the path now finds the object."""
    return (root / key).is_file() and (root / key).read_bytes() == data


def acknowledged_elsewhere(code: ModuleType, root: Path, folder: str, change: Callable[[Path], None]) -> bool:
    """Whether a create says "created" of an object that is not at its path, after ``folder`` was changed."""
    root.mkdir()
    objects = code.DirectoryObjects(PosixFiles(), str(root), "one")
    for key in (f"batches/{slot(1)}", f"{folder}/{slot(2)}"):
        assert objects.create(key, b"before")
        objects.tidy()
    change(root / folder if folder else root)
    key = f"{folder}/{slot(3)}" if folder else f"batches/{slot(3)}"
    try:
        created = objects.create(key, b"after")
    except OSError:
        return False
    return created and not is_at(root, key, b"after")


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("folder", ["", *FOLDERS])
def test_a_create_in_a_folder_that_was_changed_is_at_its_path_or_fails(
    tmp_path: Path, folder: str, change: Callable[[Path], None]
) -> None:
    assert not acknowledged_elsewhere(module, tmp_path / "log", folder, change)


@pytest.mark.parametrize(
    ("honest", "broken"),
    [
        ("if now == self._identities[folder]:", "if True:"),
        ("            if self._is_in_place(folder):\n                break", "            break"),
    ],
)
def test_a_store_that_does_not_look_is_noticed(tmp_path: Path, honest: str, broken: str) -> None:
    assert acknowledged_elsewhere(mutated(module, honest, broken), tmp_path / "log", "", replaced_by_a_copy)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("folder", ["", "batches"])
def test_the_error_names_the_directory_and_what_happened_to_it(
    tmp_path: Path, folder: str, change: Callable[[Path], None]
) -> None:
    root = tmp_path / "log"
    root.mkdir()
    objects = module.DirectoryObjects(PosixFiles(), str(root), "one")
    assert objects.create(f"batches/{slot(1)}", b"before")
    where = root / folder if folder else root
    change(where)
    expected = "was moved or removed" if change in (moved, removed) else "was replaced by another directory"
    for ask in (
        lambda: objects.create(f"batches/{slot(2)}", b"after"),
        lambda: objects.read(f"batches/{slot(1)}"),
        lambda: objects.page("batches/", "", 10),
        lambda: objects.delete(f"batches/{slot(1)}"),
    ):
        with pytest.raises(Replaced) as caught:
            ask()
        assert f"{where} {expected}" in str(caught.value.strerror)


def test_a_folder_other_than_the_batches_is_opened_again_where_its_path_leads(tmp_path: Path) -> None:
    objects = module.DirectoryObjects(PosixFiles(), str(tmp_path), "one")
    assert objects.create("snapshots/1", b"old")
    replaced_empty(tmp_path / "snapshots")
    assert objects.page("snapshots/", "", 10) == []
    assert objects.read("snapshots/1") is None
    assert objects.create("snapshots/1", b"new")
    assert is_at(tmp_path, "snapshots/1", b"new")
    removed(tmp_path / "snapshots")
    assert objects.read("snapshots/1") is None
    objects.delete("snapshots/1")


@pytest.mark.parametrize("begun", [False, True])
def test_every_worker_of_a_store_compares_with_what_the_first_one_saw(tmp_path: Path, begun: bool) -> None:
    """``begun``: whether the log had batches when it was opened."""
    root = tmp_path / "log"
    (root / "batches").mkdir(parents=True) if begun else root.mkdir()

    async def scenario() -> None:
        store = DirectoryStore.open(root)
        if not begun:
            assert await store.create(f"batches/{slot(1)}", b"before") == Created()
        replaced_by_a_copy(root / "batches")
        # A reader that was not there when the log was opened.
        with pytest.raises(CorruptData) as caught:
            await store.list("batches/")
        assert caught.value.code is Code.DIRECTORY_REPLACED
        answer = await store.create(f"batches/{slot(2)}", b"after")
        assert isinstance(answer, Unknown)
        assert answer.final
        assert str(root / "batches") in answer.detail
        # It stays so: what was created meanwhile is not known.
        removed(root / "batches")
        (root / "batches.away").rename(root / "batches")
        answer = await store.create(f"batches/{slot(3)}", b"after")
        assert isinstance(answer, Unknown)
        assert answer.final
        await store.close()

    asyncio.run(scenario())


def test_a_store_keeps_no_directory_open_after_its_end(tmp_path: Path) -> None:
    async def scenario() -> None:
        before = len(os.listdir("/proc/self/fd"))
        store = DirectoryStore.open(tmp_path)
        assert await store.create(f"batches/{slot(1)}", b"one") == Created()
        await store.close()
        assert len(os.listdir("/proc/self/fd")) == before

    asyncio.run(scenario())


class Drifting(PosixFiles):
    """A file system that gives a directory another inode at each of the first ``looks`` looks."""

    def __init__(self, looks: int) -> None:
        self.left = looks

    def identity_at(self, path: str) -> Inode:
        found = super().identity_at(path)
        self.left -= 1
        return Inode(found.device, found.inode + max(0, self.left + 1))


def test_a_file_system_without_lasting_inodes_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Unstable, match=file_system_of(str(tmp_path))[0]):
        settled(Drifting(1_000), str(tmp_path))
    handle, identity = settled(Drifting(LOOKS_MAX - 1), str(tmp_path))  # it was replaced while it was opened
    assert identity == PosixFiles().identity_at(str(tmp_path))
    os.close(handle)
    looks = iter(range(1, 1_000))
    monkeypatch.setattr(PosixFiles, "identity_at", lambda self, path: Inode(0, next(looks)))
    with pytest.raises(InvalidRequest) as caught:
        DirectoryStore.open(tmp_path)
    assert caught.value.code is Code.STORE_UNFIT
    assert file_system_of(str(tmp_path))[0] in caught.value.message
    assert str(tmp_path) in caught.value.message


def test_an_open_directory_whose_inode_changes_is_not_taken_for_a_replaced_one(tmp_path: Path) -> None:
    class Remembering(PosixFiles):
        drift = 0

        def identity(self, directory: int) -> Inode:
            found = super().identity(directory)
            return Inode(found.device, found.inode + self.drift)

        def identity_at(self, path: str) -> Inode:
            found = super().identity_at(path)
            return Inode(found.device, found.inode + self.drift)

    files = Remembering()
    objects = module.DirectoryObjects(files, str(tmp_path), "one")
    assert objects.create(f"batches/{slot(1)}", b"before")
    files.drift = 1
    with pytest.raises(Unstable, match="another inode at each look"):
        objects.create(f"batches/{slot(2)}", b"after")


def test_the_type_of_a_file_system_is_that_of_the_mount_nearest_to_the_path(tmp_path: Path) -> None:
    assert file_system_of("/proc/self") == ("proc", "/proc")
    assert file_system_of(str(tmp_path))[0] not in ("proc", "")
