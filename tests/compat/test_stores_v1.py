"""Directories that the message stores wrote by rules 1 open with equal contents and move to the rules of now."""

from __future__ import annotations

import hashlib
import json
import shutil
import sqlite3
from pathlib import Path

import pytest
from tests.compat.write_stores_v1 import PAGE_BYTES, summary

from holdfast.stores.definitions.cluster import PREFETCH_UNSET, DurableType
from holdfast.stores.machine.redefine import definition_at
from holdfast.stores.repair.backup import verify
from holdfast.stores.storage.storage import Storage
from holdfast.stores.values.commands import RULES

HERE = Path(__file__).parent / "stores-v1"
NAMES = ("stopped", "killed", "killed_after_expiry")
CONTENTS = json.loads((HERE / "contents.json").read_text())
DIGEST = "d74c6a414f43e03bb489f81c82adbffa9cfc722091770217b51c7f9624e201ff"


def digest(folder: Path) -> str:
    """Of every file with its name. SQLite may touch the shared-memory file of a read-only index."""
    whole = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.endswith("-shm")):
        whole.update(str(path.relative_to(folder)).encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return whole.hexdigest()


@pytest.fixture
def directory(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return Path(shutil.copytree(HERE / request.param, tmp_path / "stores"))


def contents(directory: Path, *, read_only: bool = False) -> object:
    storage = Storage.open(str(directory), page_bytes=PAGE_BYTES, read_only=read_only)
    try:
        storage.state.check()
        return json.loads(json.dumps(summary(storage.state)))
    finally:
        storage.close()


def test_golden_directories_are_the_ones_that_were_released() -> None:
    assert digest(HERE) == DIGEST


@pytest.mark.parametrize("directory", NAMES, indirect=True)
def test_directory_of_rules_1_opens_with_equal_contents(directory: Path, request: pytest.FixtureRequest) -> None:
    expected = CONTENTS[request.node.callspec.params["directory"]]
    assert contents(directory, read_only=True) == expected
    assert contents(directory) == expected
    # The first opening has written a checkpoint by the new rules, so the second one replays nothing.
    assert contents(directory) == expected


@pytest.mark.parametrize("directory", NAMES, indirect=True)
def test_opening_a_directory_of_rules_1_writes_a_checkpoint_by_the_rules_of_now(directory: Path) -> None:
    contents(directory)
    with sqlite3.connect(directory / "index.sqlite") as database:
        meta = dict(database.execute("SELECT name, value FROM meta WHERE name IN ('format', 'rules', 'frame')"))
    assert (meta["format"], meta["rules"]) == (3, RULES)
    storage = Storage.open(str(directory), page_bytes=PAGE_BYTES)
    assert meta["frame"] == storage.log.last
    storage.close()


@pytest.mark.parametrize("directory", NAMES, indirect=True)
def test_durables_of_rules_1_keep_the_prefetch_that_they_had(directory: Path) -> None:
    given = {"orders/work": 8, "s/work": 10_000}
    for _ in range(2):  # by replays of records and from the snapshots of rules 1, then from the new snapshot
        storage = Storage.open(str(directory), page_bytes=PAGE_BYTES)
        found = {
            f"{store.name}/{name}": durable.definition.prefetch
            for store in storage.state.stores.values()
            for name, durable in store.durables.items()
            if durable.definition.type is not DurableType.MAP
        }
        definition = definition_at(storage.state, storage.state.revision)
        assert found and found == {name: given.get(name, PREFETCH_UNSET) for name in found}
        assert definition == storage.state.definition
        templates = [one.pattern.prefetch for store in definition.stores.values() for one in store.templates.values()]
        assert set(templates) <= {PREFETCH_UNSET}
        storage.close()


@pytest.mark.parametrize("directory", NAMES, indirect=True)
def test_directory_of_rules_1_is_verified_without_a_change(directory: Path) -> None:
    before = {path: path.read_bytes() for path in directory.iterdir() if not path.name.endswith("-shm")}
    verify(str(directory))
    assert {path: path.read_bytes() for path in before} == before
