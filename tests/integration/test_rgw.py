"""The real S3 server of the testing kit keeps its own promises."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.rgw import PACKAGES, Gateway
from tests.s3_lane import require_gateway

from holdfast.errors import InvalidRequest, Unavailable
from holdfast.objects.open import open_store
from holdfast.objects.port import Created, Refused


def running(pid: int) -> bool:
    """Whether a process exists and is not merely waiting to be reaped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until_gone(pids: list[int]) -> list[int]:
    """The processes that still run after a generous wait."""
    deadline = time.monotonic() + 10
    while (left := [pid for pid in pids if running(pid)]) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left


def test_absent_packages_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unavailable) as refused:
        Gateway(tmp_path / "gateway")
    assert all(package in refused.value.hint for package in PACKAGES)


def test_a_gateway_refuses_a_directory_that_holds_something(tmp_path: Path) -> None:
    require_gateway()
    (tmp_path / "precious").write_text("data")
    with pytest.raises(InvalidRequest):
        Gateway(tmp_path).start()
    assert (tmp_path / "precious").read_text() == "data"


def test_the_second_create_of_a_name_is_refused_and_changes_nothing(s3_url: str) -> None:
    async def story() -> None:
        store = open_store(s3_url)
        assert isinstance(await store.create("a/1", b"first"), Created)
        assert isinstance(await store.create("a/1", b"second"), Refused)
        assert await store.read("a/1") == b"first"
        await store.close()

    asyncio.run(story())


@pytest.mark.matrix
def test_daemons_inherit_no_descriptors(tmp_path: Path) -> None:
    require_gateway()
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    try:
        pipe = os.readlink(f"/proc/self/fd/{writer}")
        with Gateway(tmp_path / "gateway") as gateway:
            held = [
                os.readlink(entry)
                for pid in gateway.pids.values()
                for entry in Path(f"/proc/{pid}/fd").iterdir()
                if entry.is_symlink()
            ]
        assert held, "the daemons' descriptors were seen"
        assert pipe not in held
    finally:
        os.close(reader)
        os.close(writer)


def test_no_daemon_outlives_a_killed_parent(tmp_path: Path) -> None:
    require_gateway()
    parent = subprocess.Popen(
        [sys.executable, "-m", "tests.rgw", str(tmp_path / "gateway")],
        stdout=subprocess.PIPE,
        env=dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path)),
    )
    try:
        assert parent.stdout is not None
        assert any(b"ready at" in line for line in parent.stdout)
        children = [int(pid) for pid in Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()]
        assert len(children) == 3
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.communicate()
    assert wait_until_gone(children) == []


@pytest.mark.matrix
def test_a_stopped_gateway_leaves_no_daemon_and_memstore_does_not_come_back_empty(tmp_path: Path) -> None:
    require_gateway()
    gateway = Gateway(tmp_path / "gateway")
    with gateway:
        pids = list(gateway.pids.values())
        assert len(pids) == 3
    assert wait_until_gone(pids) == []
    with pytest.raises(InvalidRequest):
        gateway.restart()
    assert gateway.pids == {}
