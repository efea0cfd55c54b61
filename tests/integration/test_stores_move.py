"""``holdfast stores move``: nothing is lost on the way into the log and back, whatever stops it in the middle."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.command import command
from tests.integration.stores_harness import DURABILITY, StoresServing, bodies, stores_serving
from tests.integration.test_stores_in_log import Machine, define, machines

from holdfast.commit.format.batch import Header, StoresMode
from holdfast.commit.leadership import takeover_machine
from holdfast.commit.leadership.log_remains import bind_stores
from holdfast.commit.reading import entries
from holdfast.commit.reading.reader import find_frontier
from holdfast.commit.service import CommitService, ServiceOptions
from holdfast.copies.mirroring import Mirror, MirrorOptions
from holdfast.copies.promoting import promote
from holdfast.copies.restoring import Point, restore
from holdfast.errors import AlreadyOpen, Closed, CorruptData, HoldfastError, InvalidRequest, NotFound, Unavailable
from holdfast.objects.open import open_store
from holdfast.objects.port import ObjectStore
from holdfast.server import moving
from holdfast.server.moving import MovedStores, _Mover, move_stores  # pyright: ignore[reportPrivateUsage]
from holdfast.settings import load_configuration
from holdfast.stores.checkpoint_objects import PREFIX

KEY = {"operations": [{"type": "write", "key": "aw==", "value": "dg=="}]}
WORK = {"work": {"type": "shared", "ack_wait": "1h"}}


def take_all(machine: Machine) -> set[str]:
    return {body for _, body, _ in machine.take(100)}


@pytest.mark.matrix
def test_the_command_moves_stores_into_the_log_and_back(tmp_path: Path) -> None:
    url = (tmp_path / "log").as_uri()
    with machines(tmp_path, url) as (first, second):
        first.serve("--init")
        define(first)
        first.publish("a", "b", "c", "d", "e")
        taken = first.take(3)
        first.acknowledge(*(seq for seq, _, _ in taken[:2]))
        assert first.ask("POST", "/v1/commit", KEY)[0] == 200
        served = command("stores", "move", url, "--set", f"stores.directory={first.cache}", "--to", "log")
        assert "another process has it open" in served.stderr
        assert first.server.stop() == 0
        words = ("stores", "move", url, "--set", f"stores.directory={first.cache}")
        moved = json.loads(command(*words, "--to", "log", "--json").stdout)
        assert (moved["changed"], moved["stores"], moved["messages"]) == (True, 2, 3)
        assert (Path(moved["set_aside"]) / "index.sqlite").exists(), "the files are kept"
        second.serve()
        assert take_all(second) == {"d", "e"}
        second.acknowledge(3)  # which the subscriber held
        assert second.publish("f")["first_seq"] == 6
        assert second.ask("POST", "/v1/commit", KEY)[0] == 200
        words = ("stores", "move", url, "--set", f"stores.directory={second.cache}")
        assert "another leader is alive" in command(*words, "--to", "disk").stderr
        assert second.server.stop() == 0
        printed = command(*words, "--to", "disk").stdout
        assert "2 stores with 3 messages live on the disk" in printed
        assert "nothing was moved" in command(*words, "--to", "disk").stdout
        second.serve()
        assert take_all(second) == {"f"}
        assert second.publish("g")["first_seq"] == 7
        assert second.ask("POST", "/v1/commit", KEY)[0] == 200
        assert second.server.stop() == 0
    assert "the log is intact" in command("log", "verify", url).stdout
    assert len(command("log", "cat", url, "--json").stdout.splitlines()) == 3


# -- in one process ---------------------------------------------------------------------------------------------------


@asynccontextmanager
async def opened(url: str, *, create_missing: bool = False) -> AsyncIterator[ObjectStore]:
    store = open_store(url, create_missing=create_missing)
    try:
        yield store
    finally:
        await store.close()


class Place:
    """A log and the directory of its stores, in the folder ``root``."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.url = (root / "log").as_uri()
        self.disk = root / "copy"
        self._patch = patch

    async def begin(self) -> None:
        async with opened(self.url, create_missing=True) as store:
            leader = await CommitService.lead(store, ServiceOptions(probe=False, take_over=True, allow_new=True))
            await leader.step_down()
            await leader.close()
        await self.on_disk(publish="a")

    async def on_disk(self, publish: str) -> None:
        """Serve the stores on the disk, and publish a message."""
        self._patch.setenv(DURABILITY, "disk")
        async with stores_serving(self.disk) as stores:
            await stores.define("orders", durables=WORK)
            await stores.publish("orders", publish)

    async def in_log(self, publish: str) -> None:
        """Serve the stores in the log, and publish a message."""
        self._patch.setenv(DURABILITY, "log")
        async with stores_serving(self.root) as stores:
            await stores.publish("orders", publish)

    async def messages(self, durability: str) -> list[str]:
        """All messages, served from where they live."""
        self._patch.setenv(DURABILITY, durability)
        async with stores_serving(self.root if durability == "log" else self.disk) as stores:
            return await kept(stores)

    async def version(self) -> int:
        return (await self._newest()).last_version

    async def mode(self) -> StoresMode:
        return (await self._newest()).stores_mode

    async def _newest(self) -> Header:
        async with opened(self.url) as store:
            frontier = await find_frontier(store)
        assert frontier is not None, "there is a log"
        return frontier[0]

    async def restored_from(self, other: Place, version: int) -> None:
        async with opened(other.url) as source, opened(self.url, create_missing=True) as target:
            await restore(source, target, Point(version=version))

    async def move(self, to: str) -> MovedStores:
        flags = {"log.url": self.url, "stores.directory": str(self.disk), "stores.page_size_bytes": "1 MiB"}
        async with opened(self.url) as store:
            return await move_stores(store, load_configuration(flags=flags, environ={}).settings, to)


async def kept(stores: StoresServing) -> list[str]:
    return bodies(await stores.poll("orders", "work", subscriber="all", max=100))


Scenario = Callable[[Place, pytest.MonkeyPatch], Awaitable[None]]


async def goes_and_comes_back(place: Place, _: pytest.MonkeyPatch) -> None:
    await place.begin()
    assert (await place.move("log")).messages == 1
    await place.in_log("b")
    assert (await place.move("disk")).messages == 2
    await place.on_disk("c")
    # Nothing of the first time in the log may count.
    assert (await place.move("log")).messages == 3
    for path in place.disk.iterdir():
        shutil.rmtree(path)
    assert await place.messages("log") == ["a", "b", "c"]


async def ends_before_each_step(place: Place, patch: pytest.MonkeyPatch) -> None:
    async def stop(*_: object, **__: object) -> None:
        raise Unavailable("the machine is gone")

    steps: list[tuple[object, str]] = [(moving, "upload_files"), (_Mover, "_make_checkpoint"), (CommitService, "lead")]
    await place.begin()
    for number, (owner, name) in enumerate(steps):
        with patch.context() as patched:
            patched.setattr(owner, name, stop)
            with pytest.raises(Unavailable, match="is gone"):
                await place.move("log")
        await place.on_disk(f"disk {number}")
    await place.move("log")
    with patch.context() as patched:
        patched.setattr(CommitService, "lead", stop)
        with pytest.raises(Unavailable, match="is gone"):
            await place.move("disk")
    with pytest.raises(CorruptData, match="did not finish"):
        await place.on_disk("what is there is of a move that was not claimed")
    await place.in_log("log")
    with patch.context() as patched:
        patched.setattr(_Mover, "finish", stop)
        with pytest.raises(Unavailable, match="is gone"):
            await place.move("disk")
    assert (await place.move("disk")).changed, "what is claimed is finished"
    assert not (await place.move("disk")).changed
    assert await place.messages("disk") == ["a", "disk 0", "disk 1", "disk 2", "log"]


def before_the_claim(act: Callable[[], Awaitable[None]]) -> Callable[..., Any]:
    """``CommitService.lead`` that acts before a claim that moves stores."""
    lead = CommitService.lead

    async def late(*arguments: Any, **named: Any) -> CommitService:
        if arguments[1].moves_stores is not None:
            CommitService.lead = lead  # type: ignore[method-assign]
            await act()
        return await lead(*arguments, **named)

    return late


async def goes_on_meanwhile(place: Place, patch: pytest.MonkeyPatch) -> None:
    await place.begin()
    await place.move("log")
    with patch.context() as patched:
        patched.setattr(CommitService, "lead", before_the_claim(lambda: place.in_log("late")))
        with pytest.raises(Closed, match="went on while its stores were copied"):
            await place.move("disk")
    assert await place.messages("log") == ["a", "late"]


async def is_opened_meanwhile(place: Place, patch: pytest.MonkeyPatch) -> None:
    async def open_again() -> None:
        with pytest.raises(AlreadyOpen):
            await place.on_disk("late")

    await place.begin()
    with patch.context() as patched:
        patched.setattr(CommitService, "lead", before_the_claim(open_again))
        await place.move("log")
    assert await place.messages("log") == ["a"]


async def is_promoted_without_its_checkpoint(place: Place, _: pytest.MonkeyPatch) -> None:
    await place.begin()
    await place.move("log")
    async with opened(place.url) as source, opened((place.root / "mirror").as_uri(), create_missing=True) as mirror:
        await Mirror(source, mirror, MirrorOptions()).run()
        for path in (place.root / "mirror" / PREFIX).iterdir():
            path.unlink()
        with pytest.raises(NotFound, match="no checkpoint of them is left"):
            await promote(mirror)
        await Mirror(source, mirror, MirrorOptions()).run()
        await promote(mirror)


async def meets_files_of_another_log(place: Place, _: pytest.MonkeyPatch) -> None:
    await place.begin()
    await place.move("log")
    bind_stores(str(place.disk), "another log")
    with pytest.raises(InvalidRequest, match="not the stores of this log"):
        await place.move("disk")
    assert await place.messages("log") == ["a"]


async def has_lost_its_checkpoint(place: Place, _: pytest.MonkeyPatch) -> None:
    await place.begin()
    await place.move("log")
    for path in (place.root / "log" / PREFIX).iterdir():
        path.unlink()
    with pytest.raises(CorruptData, match="the checkpoint that was made then is missing"):
        await place.messages("log")


async def is_restored_at_each_stay(place: Place, patch: pytest.MonkeyPatch) -> None:
    await place.begin()
    versions = [await place.version()]
    await place.move("log")
    await place.in_log("b")
    versions.append(await place.version())
    await place.move("disk")
    versions.append(await place.version())
    for number, version in enumerate(versions):
        other = Place(place.root / f"restored-{number}", patch)
        other.root.mkdir()
        await other.restored_from(place, version)
        if number == 1:
            assert await other.messages("log") == ["a", "b"]
        else:
            assert await other.mode() is not StoresMode.LOG


SCENARIOS: tuple[Scenario, ...] = (
    goes_and_comes_back,
    ends_before_each_step,
    goes_on_meanwhile,
    is_opened_meanwhile,
    has_lost_its_checkpoint,
    is_promoted_without_its_checkpoint,
    meets_files_of_another_log,
    is_restored_at_each_stay,
)


def play(scenario: Scenario, root: Path, patch: pytest.MonkeyPatch) -> None:
    root.mkdir()
    asyncio.run(asyncio.wait_for(scenario(Place(root, patch), patch), 60))


@pytest.mark.parametrize(
    "scenario",
    [SCENARIOS[0], *(pytest.param(each, marks=pytest.mark.matrix) for each in SCENARIOS[1:])],
    ids=lambda scenario: scenario.__name__,
)
def test_no_message_is_lost_when_a_move(scenario: Scenario, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    play(scenario, tmp_path / "place", monkeypatch)


# -- mutants: a move with one rule taken out, which a scenario above must notice ---------------------------------------


async def _count_any(self: _Mover, storage: Any, *, make: Any = _Mover._make_checkpoint) -> bool:
    await make(self, storage)
    return True


MUTANTS: dict[str, tuple[object, str, object]] = {
    "claims_whatever_came_between": (takeover_machine, "_require_nothing_between", lambda *_: None),
    "begins_with_empty_stores": (entries, "_require_in_log", lambda *_: None),
    "counts_any_checkpoint_of_the_version": (_Mover, "_make_checkpoint", _count_any),
    "copies_without_the_version": (
        _Mover,
        "_copy",
        lambda self, storage, target, _, copy=_Mover._copy: copy(self, storage, target, None),
    ),
    "leaves_the_old_files_where_they_were": (_Mover, "set_files_aside", lambda _: None),
}


@pytest.mark.matrix
@pytest.mark.parametrize("name", MUTANTS)
def test_every_mutant_of_the_move_is_caught(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*MUTANTS[name])
    for number, scenario in enumerate(SCENARIOS):
        try:
            play(scenario, tmp_path / f"place-{number}", monkeypatch)
        except (AssertionError, HoldfastError, OSError, pytest.fail.Exception):
            return
    pytest.fail(f"no scenario notices {name}")
