"""``holdfast stores move``: nothing is lost on the way into the log and back, whatever stops it in the middle."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.crash.server_process import ServerEnded
from tests.integration.test_stores_in_log import SETTINGS, Machine, define, holdfast, machines

from holdfast.commit.service import CommitService
from holdfast.errors import AlreadyOpen, Closed
from holdfast.objects.open import open_store
from holdfast.server import moving
from holdfast.server.moving import Moved, move_stores
from holdfast.settings import load_configuration
from holdfast.stores.checkpoint_objects import PREFIX

KEY = {"operations": [{"type": "write", "key": "aw==", "value": "dg=="}]}


def move(machine: Machine, url: str, to: str) -> Moved:
    """As the command does, in this process."""

    async def run() -> Moved:
        store = open_store(url)
        try:
            environ = {**SETTINGS, "HOLDFAST_STORES__DIRECTORY": str(machine.cache)}
            settings = load_configuration(flags={"log.url": url}, environ=environ).settings
            return await move_stores(store, settings, to)
        finally:
            await store.close()

    return asyncio.run(run())


def take_all(machine: Machine) -> set[str]:
    return {body for _, body, _ in machine.take(100)}


def begin(machine: Machine) -> None:
    """A service on a new log with stores on the disk: five messages, of which two are done and one is held."""
    machine.serve("--init")
    define(machine)
    machine.publish("a", "b", "c", "d", "e")
    taken = machine.take(3)
    machine.acknowledge(*(seq for seq, _, _ in taken[:2]))
    assert machine.ask("POST", "/v1/commit", KEY)[0] == 200


def test_stores_move_into_the_log_and_back(tmp_path: Path) -> None:
    url = (tmp_path / "log").as_uri()
    with machines(tmp_path, url) as (first, second):
        begin(first)
        assert first.server.stop() == 0
        words = ("stores", "move", url, "--set", f"stores.directory={first.cache}")
        moved = json.loads(holdfast(*words, "--to", "log", "--json").stdout)
        assert (moved["changed"], moved["stores"], moved["messages"]) == (True, 2, 3)
        assert (Path(moved["set_aside"]) / "index.sqlite").exists(), "the files are kept"
        second.serve()
        assert take_all(second) == {"d", "e"}
        second.acknowledge(3)  # which the subscriber held
        assert second.publish("f")["first_seq"] == 6
        assert second.ask("POST", "/v1/commit", KEY)[0] == 200
        assert second.server.stop() == 0
        words = ("stores", "move", url, "--set", f"stores.directory={second.cache}")
        told = holdfast(*words, "--to", "disk").stdout
        assert "2 stores with 3 messages live on the disk" in told
        assert "nothing was moved" in holdfast(*words, "--to", "disk").stdout
        second.serve()
        assert take_all(second) == {"f"}
        second.acknowledge(4, 5)
        assert second.publish("g")["first_seq"] == 7
        assert second.ask("POST", "/v1/commit", KEY)[0] == 200
        assert second.server.stop() == 0
        # And into the log again: nothing of the first time may count.
        assert move(second, url, "log").messages == 2
        shutil.rmtree(second.cache)
        first.serve()
        assert take_all(first) == {"g"}
        first.acknowledge(6)
        assert first.server.stop() == 0
    assert "the log is intact" in holdfast("log", "verify", url).stdout
    assert len(holdfast("log", "cat", url, "--json").stdout.splitlines()) == 3


@pytest.mark.matrix
def test_stores_that_are_served_do_not_move(tmp_path: Path) -> None:
    url = (tmp_path / "log").as_uri()
    with machines(tmp_path, url) as (first, second):
        begin(first)
        with pytest.raises(AlreadyOpen):
            move(first, url, "log")
        assert first.server.stop() == 0
        move(first, url, "log")
        first.serve()
        with pytest.raises(Closed, match="another leader is alive"):
            move(second, url, "disk")
        assert first.publish("f")["first_seq"] == 6
        assert take_all(first) == {"d", "e", "f"}


@pytest.mark.matrix
@pytest.mark.parametrize("step", ["upload_files", "_name_checkpoint", "lead"])
def test_a_move_that_ends_early_leaves_the_stores_where_they_were(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = (tmp_path / "log").as_uri()

    async def stop(*_: object, **__: object) -> None:
        raise OSError("the machine is gone")

    owner: object = {"upload_files": moving, "_name_checkpoint": moving._Mover, "lead": CommitService}[step]  # pyright: ignore[reportPrivateUsage]
    with machines(tmp_path, url, 1) as (machine,):
        begin(machine)
        assert machine.server.stop() == 0
        with monkeypatch.context() as patch:
            patch.setattr(owner, step, stop)
            with pytest.raises(OSError, match="is gone"):
                move(machine, url, "log")
        machine.serve()
        assert machine.publish("f")["first_seq"] == 6
        assert machine.server.stop() == 0
        assert move(machine, url, "log").messages == 4
        if step == "lead":
            with monkeypatch.context() as patch:
                patch.setattr(owner, step, stop)
                with pytest.raises(OSError, match="is gone"):
                    move(machine, url, "disk")
        machine.serve()
        assert machine.publish("g")["first_seq"] == 7
        assert machine.server.stop() == 0
        assert move(machine, url, "disk").messages == 5
        machine.serve()
        assert take_all(machine) == {"d", "e", "f", "g"}


def _went_on(url: str) -> Callable[..., Any]:
    """``CommitService.lead`` of a mover that is late: another leader was faster."""
    lead = CommitService.lead

    async def late(*arguments: Any, **named: Any) -> CommitService:
        moves = arguments[1].moves_stores
        if moves is not None:
            other = await lead(open_store(url), type(arguments[1])(take_over=True))
            await other.step_down()
            await other.close()
        return await lead(*arguments, **named)

    return late


@pytest.mark.matrix
def test_a_log_that_went_on_meanwhile_keeps_its_stores_where_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = (tmp_path / "log").as_uri()
    with machines(tmp_path, url, 1) as (machine,):
        begin(machine)
        assert machine.server.stop() == 0
        with monkeypatch.context() as patch:
            patch.setattr(CommitService, "lead", _went_on(url))
            with pytest.raises(Closed, match="went on while its stores were copied"):
                move(machine, url, "log")
        machine.serve()
        assert take_all(machine) == {"d", "e"}


@pytest.mark.matrix
def test_without_the_checkpoint_of_the_move_no_leader_serves_empty_stores(tmp_path: Path) -> None:
    url = (tmp_path / "log").as_uri()
    with machines(tmp_path, url, 1) as (machine,):
        begin(machine)
        assert machine.server.stop() == 0
        move(machine, url, "log")
        for path in (tmp_path / "log" / PREFIX).iterdir():
            path.unlink()
        with pytest.raises(ServerEnded, match="the checkpoint that was made then is missing"):
            machine.serve()
