"""A leader whose directory is moved, removed, replaced or mounted over stops with exit 6 and names what happened."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.integration.test_log_replaced import serving
from tests.mount_namespace import mount_namespace
from tests.rgw import free_port
from tests.unit.objects.test_directory_replaced import (
    moved,
    removed,
    replaced_by_a_copy,
    replaced_empty,
)

from holdfast import Client, HoldfastError, Write


def removed_while_busy(path: Path) -> None:
    while path.exists():
        shutil.rmtree(path, ignore_errors=True)


def written_in(batches: Path) -> bytes:
    """The bytes of all batches in a folder."""
    return b"".join(batch.read_bytes() for batch in batches.iterdir())


class Writer(threading.Thread):
    """Commits without a pause; ``acknowledged`` are the keys of those that succeeded."""

    def __init__(self, port: int, name: str) -> None:
        super().__init__(daemon=True)
        self.port, self.prefix = port, name
        self.acknowledged: list[bytes] = []
        self.over = threading.Event()

    def run(self) -> None:
        with Client(f"http://127.0.0.1:{self.port}") as client:
            number = 0
            while not self.over.is_set():
                key = f"key-{self.prefix}-{number}".encode()
                number += 1
                try:
                    client.commit([Write(key, b"")])
                except HoldfastError:
                    return
                self.acknowledged.append(key)


ALONE, AS_STANDBY = ("--init",), ("--init", "--standby")
SMALL = [("", replaced_by_a_copy, ALONE), ("batches", removed_while_busy, ALONE), ("", moved, AS_STANDBY)]
BUSY = [
    pytest.param(place, change, flags, marks=() if (place, change, flags) in SMALL else pytest.mark.matrix)
    for place in ("", "batches")
    for change in (moved, removed_while_busy, replaced_empty, replaced_by_a_copy)
    for flags in (ALONE, AS_STANDBY)
]
OTHERS = [
    pytest.param(place, change, marks=() if (place, change) == ("meta", removed) else pytest.mark.matrix)
    for place in ("meta", "snapshots", "probe", ".holdfast", ".holdfast/writing")
    for change in (moved, removed, replaced_empty)
]


@pytest.mark.parametrize(("place", "change", "flags"), BUSY)
def test_a_busy_leader_stops_and_acknowledges_nothing_elsewhere(
    tmp_path: Path, place: str, change: Callable[[Path], None], flags: tuple[str, ...]
) -> None:
    log = tmp_path / "log"
    with serving(tmp_path, free_port(), *flags, view=False) as server:
        writers = [Writer(server.port, str(number)) for number in range(4)]
        for writer in writers:
            writer.start()
        while not all(writer.acknowledged for writer in writers):
            server.leads()
        change(log / place if place else log)
        assert server.wait() == 6
        for writer in writers:
            writer.over.set()
        if change is not removed_while_busy:
            # Everything that was acknowledged is where the log was, and so in a copy that was made of it afterwards.
            away = log / "batches.away" if place else tmp_path / "log.away" / "batches"
            kept = written_in(log / "batches" if change is replaced_by_a_copy else away)
            assert all(key in kept for writer in writers for key in writer.acknowledged)
        assert str(log / place if place else log) in server.tail()
        assert "while it was open" in server.tail()
        assert "invariant_violated" not in server.tail()


@pytest.mark.parametrize("change", [pytest.param(moved, marks=pytest.mark.matrix), replaced_by_a_copy])
def test_an_idle_leader_stops_too(tmp_path: Path, change: Callable[[Path], None]) -> None:
    with serving(tmp_path, free_port(), "--init", view=False) as server:
        change(tmp_path / "log")
        assert server.wait() == 6
        assert "while it was open" in server.tail()


@pytest.mark.parametrize(("place", "change"), OTHERS)
def test_commits_go_on_when_another_folder_of_the_log_is_changed(
    tmp_path: Path, place: str, change: Callable[[Path], None]
) -> None:
    with serving(tmp_path, free_port(), "--init", view=False) as server, Client(server_url(server.port)) as client:
        client.commit([Write(b"key-before", b"")])
        (tmp_path / "log" / place).mkdir(parents=True, exist_ok=True)
        change(tmp_path / "log" / place)
        client.commit([Write(b"key-after", b"")])
        assert server.running
        assert server.stop() == 0


@pytest.mark.parametrize("change", [pytest.param(moved, marks=pytest.mark.matrix), replaced_empty])
def test_stores_in_files_stop_when_their_directory_is_elsewhere(tmp_path: Path, change: Callable[[Path], None]) -> None:
    with serving(tmp_path, free_port(), "--init", stores=True, view=False) as server:
        [stores] = (path.parent for path in tmp_path.rglob("index.sqlite"))
        change(stores)
        assert server.wait() == 6
        assert f"{stores} was " in server.tail()
        assert "while it was open" in server.tail()


def served_until_mounted_over(tmp_path: Path) -> None:
    """For a process in a mount namespace of its own."""
    log = tmp_path / "log"
    with serving(tmp_path, free_port(), "--init", view=False) as server:
        writer = Writer(server.port, "0")
        writer.start()
        while not writer.acknowledged:
            server.leads()
        subprocess.run(["mount", "-t", "tmpfs", "none", str(log)], check=True, timeout=20)
        assert server.wait() == 6
        writer.over.set()
        assert f"{log} was replaced" in server.tail(), server.tail()
        subprocess.run(["umount", str(log)], check=True, timeout=20)
        kept = written_in(log / "batches")
        assert all(key in kept for key in writer.acknowledged)


def test_a_file_system_mounted_over_a_log_ends_its_leader(tmp_path: Path) -> None:
    code = f"import sys, pathlib, {__name__} as here; here.served_until_mounted_over(pathlib.Path(sys.argv[1]))"
    done = subprocess.run(
        [*mount_namespace(), sys.executable, "-c", code, str(tmp_path)],
        env=dict(os.environ, PYTHONPATH=os.pathsep.join([str(Path.cwd()), *sys.path])),
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def server_url(port: int) -> str:
    return f"http://127.0.0.1:{port}"
