"""A power cut after a first start takes nothing that was confirmed, wherever a start before it was killed.

A first start is killed before each of its operations that make, move or sync something on the disk. What the kill
leaves is started again, and something is confirmed. Then the power is cut: names that no sync covered vanish, with all
below them, in every combination where these are few; files that were never synced are empty. A third start finds what
was confirmed.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import combinations
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Final
from unittest.mock import patch

import pytest
from tests.crash import first_starts as first_starts_module
from tests.crash.first_starts import SetAside, programs
from tests.crash.forgetful_disk import ForgetfulDisk
from tests.crash.queue_damage import fast_folder
from tests.matrix import matrix
from tests.one_line_mutants import mutated

from holdfast.errors import HoldfastError
from holdfast.files import durable_directory
from holdfast.files.durable_directory import make_durable_directory, sync_directory
from holdfast.objects.directory import objects, store
from holdfast.queue.files import local
from holdfast.server import moving
from holdfast.stores import checkpoint_objects
from holdfast.stores.repair import backup, damage

PROVE: Final = os.environ.get("HOLDFAST_PROVE") == "1"
COMBINATIONS_MAX: Final = 6 if PROVE else 2
"""Up to this many pending names, every combination of them is lost."""
RANDOM: Final = 40 if PROVE else 1
KILLED: Final = dict(programs())
"""The programs whose first start may be killed at any operation."""
SEED: Final = int(os.environ.get("HOLDFAST_CRASH_SEED", "20261129"))
PROGRAMS: Final = {**dict(programs()), "set-aside": SetAside()}
QUICK: Final = ("queue", "consumer", "binding", "log", "snapshot", "stores-checkpoint", "fetched-checkpoint")
"""Of these, ``make test`` kills a start at one operation in nine; of the others at one in sixty."""
RecordProperty = Callable[[str, object], None]


class FirstStarts:
    """Crash states of one program with ``levels`` missing directories. ``lost`` says where something is gone.

    ``every``: of the operations of a start, one in so many is a kill. ``kills``: how many starts are killed in turn.
    ``until_lost``: stop at the first state that is broken.
    """

    def __init__(
        self, name: str, levels: int, folder: Path, *, every: int = 1, kills: int = 1, until_lost: bool = False
    ) -> None:
        self._program = PROGRAMS[name]
        self._levels = levels
        self._folder = folder
        self._every = every
        self._until_lost = until_lost
        self._random = Random(f"{SEED}/{name}/{levels}/{every}/{kills}")
        self._number = 0
        self.states = 0
        self.lost: list[str] = []
        self._go_on("", ForgetfulDisk(self._new()), 1, kills)

    def _go_on(self, name: str, disk: ForgetfulDisk, life: int, kills: int) -> None:
        """Start on a disk in every way: killed in ``kills`` starts from here on, and then not."""
        images: list[tuple[str, ForgetfulDisk]] = []
        first = self._random.randrange(self._every)
        number, is_confirmed = 0, False

        def before() -> None:
            nonlocal number
            number += 1
            if kills and not is_confirmed and number % self._every == first:
                images.append((f"{name} killed before operation {number} of start {life},", disk.image(self._new())))

        with disk.recorded(before), self._program.start(disk.root, self._levels, life):
            if kills:
                images.append((f"{name} killed after the confirmation of start {life},", disk.image(self._new())))
            is_confirmed = True
            self._cut(f"{name} power cut in start {life}", disk, life)
        shutil.rmtree(disk.root)
        for killed, image in images:
            if self._until_lost and self.lost:
                return
            self._go_on(killed, image, life + 1, kills - 1)

    def _new(self) -> Path:
        self._number += 1
        return self._folder / str(self._number)

    def _cut(self, name: str, disk: ForgetfulDisk, life: int) -> None:
        for lost in self._losses(disk.pending()):
            for empties in (False, True) if disk.unsynced() else (False,):
                left = disk.power_cut(self._new(), lost, empties=empties)
                self.states += 1
                state = f"{name} without {lost}, {empties=}"
                try:
                    with other_boot():
                        found = self._program.is_there(left, self._levels, life)
                except (HoldfastError, OSError) as error:
                    self.lost.append(f"{state}: {type(error).__name__}: {error}")
                else:
                    if not found:
                        self.lost.append(f"{state}: what was confirmed is gone")
                shutil.rmtree(left)

    def _losses(self, pending: list[str]) -> Iterator[list[str]]:
        if len(pending) <= COMBINATIONS_MAX:
            for count in range(len(pending) + 1):
                yield from map(list, combinations(pending, count))
            return
        yield []
        yield pending
        for _ in range(RANDOM):
            yield [each for each in pending if self._random.random() < 0.5]


@contextmanager
def other_boot() -> Iterator[None]:
    """The machine was started again."""
    with patch("holdfast.queue.files.local.boot_id", lambda: b"another boot ..."):
        yield


def first_starts(name: str, levels: int, *, every: int = 1, kills: int = 1, until_lost: bool = False) -> FirstStarts:
    with TemporaryDirectory(dir=fast_folder()) as folder:
        return FirstStarts(name, levels, Path(folder), every=every, kills=kills, until_lost=until_lost)


def judge(cases: FirstStarts, record_property: RecordProperty) -> None:
    record_property("crash_states_of_first_starts", cases.states)
    assert cases.lost == []


@pytest.mark.parametrize("name", KILLED)
def test_what_was_confirmed_survives_a_power_cut_after_a_first_start(
    name: str, record_property: RecordProperty
) -> None:
    judge(first_starts(name, 2, every=9 if name in QUICK else 60), record_property)


@pytest.mark.matrix
@pytest.mark.parametrize("levels", range(1, 9) if PROVE else (1, 4))
@pytest.mark.parametrize("name", KILLED)
def test_it_does_wherever_the_start_before_was_killed(name: str, levels: int, record_property: RecordProperty) -> None:
    judge(first_starts(name, levels), record_property)


@pytest.mark.matrix
@pytest.mark.parametrize("name", KILLED)
def test_it_does_after_several_starts_that_were_killed(name: str, record_property: RecordProperty) -> None:
    judge(first_starts(name, 3, every=5 if PROVE else 11, kills=2), record_property)


def test_files_that_were_set_aside_survive_a_power_cut(record_property: RecordProperty) -> None:
    judge(first_starts("set-aside", 2, kills=0), record_property)


# ---- mutants: the product without one of its syncs -------------------------------------------------------------------


def only_a_missing_one(path: str, files: durable_directory.SystemDirectories | None = None) -> None:
    """Syncs nothing where the directory is there."""
    if not os.path.isdir(path):
        make_durable_directory(path, files)


def only_the_one_above(path: str, files: durable_directory.SystemDirectories | None = None) -> None:
    """Syncs the directory directly above, and no other."""
    os.makedirs(path, 0o700, exist_ok=True)
    sync_directory(os.path.dirname(path))


def only_above_what_it_makes(path: str, files: durable_directory.SystemDirectories | None = None) -> None:
    """Syncs above the directories that it makes, each after it is made."""
    if not os.path.isdir(path):
        only_above_what_it_makes(os.path.dirname(path))
        os.mkdir(path, 0o700)
        sync_directory(os.path.dirname(path))


def before_it_makes(path: str, files: durable_directory.SystemDirectories | None = None) -> None:
    """Syncs first."""
    above = path
    while not os.path.isdir(above):
        above = os.path.dirname(above)
    make_durable_directory(above)
    os.makedirs(path, 0o700, exist_ok=True)


def no_sync(path: str, files: durable_directory.SystemDirectories | None = None) -> None:
    """Syncs nothing."""
    os.makedirs(path, 0o700, exist_ok=True)


OPENING: Final = {
    "queue": (local,),
    "file-queue": (local,),
    "consumer": (local,),
    "stores": (local,),
    "binding": (local,),
    "backup": (local, backup),
    "stores-restore": (local, backup),
    "copy-before-a-repair": (damage,),
    "log": (store,),
    "snapshot": (store,),
    "stores-checkpoint": (store,),
    "log-init": (store,),
    "log-restore": (store,),
    "log-mirror": (store,),
    "fetched-checkpoint": (checkpoint_objects, first_starts_module),
    "stores-in-the-log": (local, store),
}
"""Where each program makes its directories."""
NEW_EACH_TIME: Final = ("backup", "stores-restore", "copy-before-a-repair", "stores-in-the-log")
"""A start after a kill makes a directory here or next to it, so all above is synced."""
BROKEN: Final = [
    (name, broken)
    for broken in (only_a_missing_one, only_the_one_above, only_above_what_it_makes, before_it_makes, no_sync)
    for name in OPENING
    if broken is not only_a_missing_one or name not in NEW_EACH_TIME
]


def is_caught(name: str, levels: int = 3) -> bool:
    """Whether some crash state of the program is broken. The cut of a start that is not killed comes first."""
    kills = 1 if name in KILLED else 0
    return any(first_starts(name, levels, every=every, kills=kills, until_lost=True).lost for every in (5, 1))


@pytest.mark.parametrize(
    "case",
    matrix(BROKEN, kept=lambda case: case[0] == "queue" or case == ("log", only_a_missing_one)),
    ids=lambda case: f"{case[0]}-{case[1].__name__}",
)
def test_a_start_that_leaves_a_sync_out_is_caught(
    case: tuple[str, Callable[..., None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    name, broken = case
    for module in OPENING[name]:
        monkeypatch.setattr(module, "make_durable_directory", broken)
    assert is_caught(name), "the mutant lives"


def _nothing(path: str) -> None:
    """In place of a sync."""


@pytest.mark.parametrize(
    ("name", "module", "function"),
    [
        ("binding", durable_directory, "sync_directory"),
        ("backup", backup, "sync_tree"),
        ("stores-restore", backup, "sync_tree"),
        ("stores-restore", backup, "sync_directory"),
        ("copy-before-a-repair", damage, "sync_tree"),
        ("fetched-checkpoint", checkpoint_objects, "sync_tree"),
        ("fetched-checkpoint", checkpoint_objects, "sync_directory"),
        ("set-aside", moving, "sync_directory"),
    ],
)
def test_a_file_or_directory_that_is_put_in_place_without_a_sync_is_caught(
    name: str, module: ModuleType, function: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, function, _nothing)
    assert is_caught(name, levels=1), "the mutant lives"


ALSO_THERE: Final = """        except FileExistsError:
            pass
        # Also an existing one: its creator may have stopped before the sync.
        self._sync_directory(above)
"""


@pytest.mark.parametrize(
    "broken",
    [
        pytest.param(ALSO_THERE.replace("self._sync_directory(above)", "pass"), id="no-sync"),
        pytest.param(
            ALSO_THERE.replace("self._", "    self._").replace("        # Also", "        else:\n            # Also"),
            id="only-a-new-one",
        ),
    ],
)
def test_a_folder_of_a_log_without_its_sync_is_caught(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = mutated(objects, ALSO_THERE, broken)
    monkeypatch.setattr(first_starts_module, "DirectoryObjects", module.DirectoryObjects)
    assert is_caught("snapshot", levels=1), "the mutant lives"
