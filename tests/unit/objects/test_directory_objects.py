"""The order of writes and syncs in the directory store: what a crash or a failed operation can and cannot do."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from random import Random

import pytest
from tests.unit.objects.forgetful_files import Crash, ForgetfulFiles
from tests.unit.objects.recording_files import RecordingFiles, failure

from holdfast.objects.directory.files import PosixFiles
from holdfast.objects.directory.objects import DirectoryObjects, Poisoned, UnfitPlace

KEY = "batches/18446744073709551615"
NEXT = "batches/18446744073709551614"
DATA = b"batch " * 300
WITHOUT_UNNAMED = ("create_unnamed",)
WITHOUT_LINKS = ("create_unnamed", "link")


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(
    ("lacking", "operations"),
    [
        ((), ["create_unnamed", "write", "sync_data", "give_name", "close", "sync_directory", "identity_at"]),
        (WITHOUT_UNNAMED, ["create", "write", "sync_data", "link", "close", "sync_directory", "identity_at"]),
        (WITHOUT_LINKS, ["create", "write", "sync_data", "rename", "close", "sync_directory", "identity_at"]),
    ],
)
def test_created_is_answered_only_after_the_file_and_then_its_directory_are_synced(
    tmp_path: Path, lacking: tuple[str, ...], operations: list[str]
) -> None:
    files = RecordingFiles(lacking=lacking)
    objects = DirectoryObjects(files, str(tmp_path), "one")
    assert objects.create(KEY, DATA)
    files.operations.clear()
    assert objects.create(NEXT, DATA)
    assert files.operations == operations


@pytest.mark.parametrize("lacking", [(), WITHOUT_UNNAMED])
def test_the_file_prepared_after_an_answer_takes_its_creation_off_the_next_one(
    tmp_path: Path, lacking: tuple[str, ...]
) -> None:
    files = RecordingFiles(lacking=lacking)
    objects = DirectoryObjects(files, str(tmp_path), "one")
    assert objects.create(KEY, DATA)
    objects.tidy()
    files.operations.clear()
    assert objects.create(NEXT, DATA)
    assert [name for name in files.operations if name.startswith("create")] == []
    assert objects.read(NEXT) == DATA


def test_a_new_directory_is_durable_in_the_one_above_before_anything_is_created_in_it(tmp_path: Path) -> None:
    files = RecordingFiles()
    objects = DirectoryObjects(files, str(tmp_path), "one")
    (tmp_path / "meta").mkdir()  # made by somebody who may not have synced it
    assert objects.page("", "", 10) == []
    files.operations.clear()
    assert objects.create("meta/retention/00000000000000000001", DATA)
    before_the_file = files.operations[: files.operations.index("write")]
    assert before_the_file.count("sync_directory") == 2


@pytest.mark.parametrize(("operation", "complaint"), [("sync_data", "a file"), ("sync_directory", "a directory")])
def test_a_failed_sync_poisons_and_nothing_is_tried_again(tmp_path: Path, operation: str, complaint: str) -> None:
    files = RecordingFiles()
    objects = DirectoryObjects(files, str(tmp_path), "one")
    assert objects.create(KEY, DATA)
    files.fail = lambda number, name: failure(errno.EIO) if name == operation else None
    with pytest.raises(Poisoned, match=f"the sync of {complaint} failed"):
        objects.create(NEXT, DATA)
    files.fail = lambda number, name: None
    files.operations.clear()
    for ask in (
        lambda: objects.create(NEXT, DATA),
        lambda: objects.read(KEY),
        lambda: objects.page("batches/", "", 1),
        lambda: objects.delete(KEY),
    ):
        with pytest.raises(Poisoned):
            ask()
    assert files.operations == []


@pytest.mark.parametrize(
    ("lacking", "operation"),
    [((), name) for name in ("create_unnamed", "write", "sync_data", "give_name")]
    + [(WITHOUT_UNNAMED, name) for name in ("create", "write", "sync_data", "link")],
)
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_told_leaves_nothing_and_passes(
    tmp_path: Path, lacking: tuple[str, ...], operation: str, number: int
) -> None:
    files = RecordingFiles(lacking=lacking)
    objects = DirectoryObjects(files, str(tmp_path), "one")
    assert objects.create(KEY, DATA)
    files.fail = lambda count, name: failure(number) if name == operation else None
    with pytest.raises(OSError, match=r"[Ss]pace|quota") as caught:
        objects.create(NEXT, DATA)
    assert not isinstance(caught.value, Poisoned)
    files.fail = lambda count, name: None
    assert objects.read(NEXT) is None
    objects.tidy()
    assert len(names_in(tmp_path / ".holdfast/writing/one")) == len(lacking[:1])  # at most the one for the next object
    assert objects.create(NEXT, DATA)


def test_a_full_disk_at_the_directory_sync_poisons_for_the_name_is_there_already(tmp_path: Path) -> None:
    files = RecordingFiles()
    objects = DirectoryObjects(files, str(tmp_path), "one")
    assert objects.create(KEY, DATA)
    files.fail = lambda number, name: failure(errno.ENOSPC) if name == "sync_directory" else None
    with pytest.raises(Poisoned):
        objects.create(NEXT, DATA)


@pytest.mark.parametrize("lacking", [(), WITHOUT_UNNAMED, WITHOUT_LINKS])
@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_whichever_operation_fails_a_name_is_complete_or_absent_and_created_is_true(
    tmp_path: Path, number: int, lacking: tuple[str, ...]
) -> None:
    at = 0
    while True:
        at += 1
        root = tmp_path / str(at)
        root.mkdir()
        failed: list[str] = []

        def fail(count: int, name: str, at: int = at, failed: list[str] = failed) -> OSError | None:
            if count != at or name == "close":
                return None
            failed.append(name)
            return failure(number)

        files = RecordingFiles(fail, lacking)
        created: list[str] = []
        try:
            objects = DirectoryObjects(files, str(root), "one")
            for key in (KEY, NEXT):
                if objects.create(key, DATA):
                    created.append(key)
                objects.tidy()
        except OSError:
            assert failed
        files.fail = lambda count, name: None
        after = DirectoryObjects(PosixFiles(), str(root), "two")
        for key in (KEY, NEXT):
            data = after.read(key)
            assert data in (None, DATA)
            assert data == DATA or key not in created
        if at > len(files.operations):
            assert created == [KEY, NEXT]
            break
    assert at > 20


@pytest.mark.parametrize("lacking", [(), WITHOUT_UNNAMED, WITHOUT_LINKS])
def test_a_writer_creates_when_there_is_room_again_whichever_operation_of_its_first_create_was_refused(
    tmp_path: Path, lacking: tuple[str, ...]
) -> None:
    refused: list[str] = []
    for at in range(1, 100):
        root = tmp_path / str(at)
        root.mkdir()
        files = RecordingFiles(lacking=lacking)
        objects = DirectoryObjects(files, str(root), "one")
        files.operations.clear()

        def fail(count: int, name: str, at: int = at) -> OSError | None:
            return failure(errno.ENOSPC) if count == at and name != "close" else None

        files.fail = fail
        try:
            assert objects.create(KEY, DATA)
        except Poisoned:
            continue
        except OSError:
            refused.append(files.operations[at - 1])
        files.fail = lambda count, name: None
        assert objects.create(NEXT, DATA), files.operations
        objects.close()
        if at > len(files.operations):
            break
    else:
        pytest.fail("a create has not so many operations")
    # Among them the second of the two files with which a writer sees what the file system can do.
    assert refused.count("create") >= 2


@pytest.mark.parametrize("lacking", [(), WITHOUT_UNNAMED, WITHOUT_LINKS])
@pytest.mark.parametrize("tidied", [False, True])
def test_a_writer_whose_folder_is_removed_makes_it_again(
    tmp_path: Path, tidied: bool, lacking: tuple[str, ...]
) -> None:
    files = RecordingFiles(lacking=lacking)
    objects = DirectoryObjects(files, str(tmp_path), "one")
    keys = [f"batches/{2**64 - 1 - 32 * turn:020d}" for turn in range(6)]
    assert objects.create(keys[0], DATA)
    objects.tidy()
    assert objects.create(keys[1], DATA)
    if tidied:
        objects.tidy()
    shutil.rmtree(tmp_path / ".holdfast")
    for key in keys[2:]:
        assert objects.create(key, DATA)
        objects.tidy()
    assert names_in(tmp_path / ".holdfast/writing") == ["one"]
    assert "newest" in names_in(tmp_path / ".holdfast")
    objects.close()
    assert names_in(tmp_path / ".holdfast/writing") == []


def test_a_writer_whose_folder_is_removed_closes(tmp_path: Path) -> None:
    files = RecordingFiles()
    objects = DirectoryObjects(files, str(tmp_path), "one")
    assert objects.create(KEY, DATA)
    objects.tidy()
    shutil.rmtree(tmp_path / ".holdfast")
    objects.close()


def test_a_hint_that_cannot_be_written_keeps_no_file_open(tmp_path: Path) -> None:
    files = RecordingFiles(lacking=("open_note",))
    objects = DirectoryObjects(files, str(tmp_path), "one")
    open_files: list[int] = []
    for turn in range(4):
        assert objects.create(f"batches/{2**64 - 1 - turn:020d}", DATA)
        objects.tidy()
        open_files.append(len(os.listdir("/proc/self/fd")))
    assert len(set(open_files)) == 1


@pytest.mark.parametrize("unnamed", [True, False])
def test_a_crash_at_any_operation_loses_nothing_created_and_shows_nothing_incomplete(unnamed: bool) -> None:
    seen_absent = seen_unanswered = crashes = 0
    for crash_at in range(1, 200):
        files = ForgetfulFiles(crash_at=crash_at, unnamed=unnamed)
        created: list[str] = []
        wanted = [f"{2**64 - 1 - turn:020d}" for turn in range(3)]
        try:
            objects = DirectoryObjects(files, "", "one")
            for name in wanted:
                assert objects.create(f"batches/{name}", DATA)
                created.append(name)
                objects.tidy()
        except Crash:
            crashes += 1
        for seed in range(30):
            after = files.crashed(Random(seed)).objects_under("batches")
            for name in created:
                assert after.get(name) == DATA, f"lost after a crash at operation {crash_at}, seed {seed}"
            for name, data in after.items():
                assert data == DATA, f"{name} is incomplete after a crash at operation {crash_at}, seed {seed}"
                seen_unanswered += name not in created
            seen_absent += len(after) < len(wanted)
        if created == wanted:
            break
    assert created == wanted
    # The file system really forgets, and a create whose answer was never given really may be there.
    assert crashes > 20
    assert seen_absent > 0
    assert seen_unanswered > 0


class _WithoutTheFileSync(ForgetfulFiles):
    def sync_data(self, file: int) -> None:
        self._step()


class _WithoutTheDirectorySync(ForgetfulFiles):
    def sync_directory(self, directory: int) -> None:
        self._step()


@pytest.mark.parametrize("mutant", [_WithoutTheFileSync, _WithoutTheDirectorySync])
def test_the_crash_test_catches_a_store_without_one_of_its_syncs(mutant: type[ForgetfulFiles]) -> None:
    files = mutant()
    assert DirectoryObjects(files, "", "one").create(KEY, DATA)
    name = KEY.partition("/")[2]
    assert any(files.crashed(Random(seed)).objects_under("batches").get(name) != DATA for seed in range(30))


def test_what_a_reader_was_told_survives_a_crash() -> None:
    unsynced = 0
    for seed in range(200):
        files = ForgetfulFiles()
        writer = DirectoryObjects(files, "", "one")
        assert writer.create(KEY, DATA)
        # The writer stops between giving the name and the sync of the directory.
        files.crash_at = files.count + 5
        with pytest.raises(Crash):
            writer.create(NEXT, DATA)
        files.crash_at = 0
        assert len(files.objects_under("batches")) == 2
        unsynced += len(files.crashed(Random(seed)).objects_under("batches")) == 1
        reader = DirectoryObjects(files, "", "two")
        if seed % 2:
            assert reader.read(NEXT) == DATA
        else:
            assert [key for key, _ in reader.page("batches/", "", 10)] == [NEXT, KEY]
        assert len(files.crashed(Random(seed)).objects_under("batches")) == 2
    assert unsynced > 0


def test_a_name_is_synced_once_and_an_own_one_not_again(tmp_path: Path) -> None:
    files = RecordingFiles()
    objects = DirectoryObjects(files, str(tmp_path), "one")
    assert objects.create(KEY, DATA)
    files.operations.clear()
    assert objects.read(KEY) == DATA
    assert "sync_directory" not in files.operations
    reader_files = RecordingFiles()
    reader = DirectoryObjects(reader_files, str(tmp_path), "two")
    assert reader.read(KEY, 6, 5) == b"batch"
    assert reader.read(KEY) == DATA
    assert reader.page("batches/", "", 5) == [(KEY, len(DATA))]
    assert reader_files.operations.count("sync_directory") == 1


def test_a_reader_writes_nothing_and_on_a_read_only_mount_syncs_nothing(tmp_path: Path) -> None:
    assert DirectoryObjects(PosixFiles(), str(tmp_path), "one").create(KEY, DATA)
    files = RecordingFiles()
    files.read_only = True
    reader = DirectoryObjects(files, str(tmp_path), "two")
    assert reader.read(KEY) == DATA
    assert reader.page("", "", 5) == [(KEY, len(DATA))]
    assert reader.read("batches/absent") is None
    looks = {"open_directory", "identity", "identity_at"}
    assert set(files.operations) <= looks | {"open", "read", "close", "names", "size"}


def test_what_dead_writers_left_is_removed_and_what_the_living_hold_stays(tmp_path: Path) -> None:
    living = DirectoryObjects(PosixFiles(), str(tmp_path), "living")
    assert living.create(KEY, DATA)
    living.tidy()
    dead = tmp_path / ".holdfast/writing/dead"
    dead.mkdir()
    (dead / "1").write_bytes(b"half a bat")
    newcomer = DirectoryObjects(PosixFiles(), str(tmp_path), "newcomer")
    assert newcomer.create(NEXT, DATA)
    assert names_in(tmp_path / ".holdfast/writing") == ["living", "newcomer"]
    assert living.create("batches/18446744073709551613", DATA)
    living.close()
    newcomer.close()
    assert names_in(tmp_path / ".holdfast/writing") == []
    assert names_in(tmp_path / "batches") == sorted([KEY[8:], NEXT[8:], "18446744073709551613"])


class _Cleaning(PosixFiles):
    """Another writer that starts at the same time cleans this one's new folder away before it is opened or locked."""

    def __init__(self) -> None:
        self.left = ["open_directory", "lock", "open_directory"]

    def _cleans(self, operation: str, path: str) -> None:
        if self.left and self.left[0] == operation and path.endswith("/one"):
            del self.left[0]
            Path(path).rmdir()

    def open_directory(self, path: str) -> int:
        self._cleans("open_directory", path)
        return super().open_directory(path)

    def lock(self, directory: int) -> bool:
        self._cleans("lock", os.readlink(f"/proc/self/fd/{directory}"))
        return super().lock(directory)


def test_a_writer_whose_new_folder_another_one_cleans_away_makes_it_again(tmp_path: Path) -> None:
    files = _Cleaning()
    objects = DirectoryObjects(files, str(tmp_path), "one")
    assert objects.create(KEY, DATA)
    assert not files.left
    assert objects.read(KEY) == DATA
    objects.close()


def test_private_files_are_never_listed_or_in_the_way(tmp_path: Path) -> None:
    objects = DirectoryObjects(PosixFiles(), str(tmp_path), "one")
    assert objects.create(KEY, DATA)
    objects.tidy()
    (tmp_path / ".snapshot").mkdir()
    (tmp_path / "batches/.copying").write_bytes(b"x")
    assert objects.page("", "", 10) == [(KEY, len(DATA))]


def test_without_hard_links_a_rename_refuses_to_replace(tmp_path: Path) -> None:
    files = RecordingFiles(lacking=WITHOUT_LINKS)
    objects = DirectoryObjects(files, str(tmp_path), "one")
    assert objects.create(KEY, DATA)
    objects.tidy()
    assert not objects.create(KEY, b"other")
    objects.tidy()
    assert objects.read(KEY) == DATA


def test_a_file_system_with_neither_is_refused_by_name(tmp_path: Path) -> None:
    files = RecordingFiles(lacking=(*WITHOUT_LINKS, "rename"))
    objects = DirectoryObjects(files, str(tmp_path), "one")
    with pytest.raises(UnfitPlace, match="neither hard links nor a rename"):
        objects.create(KEY, DATA)


class _Replacing(PosixFiles):
    """A file system where a name that is taken can be given, which no log survives."""

    def give_name(self, file: int, target: int, target_name: str) -> None:
        return None


def test_a_file_system_that_replaces_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnfitPlace):
        DirectoryObjects(_Replacing(), str(tmp_path), "one").create(KEY, DATA)
