"""The embedded view in a process of its own: killed, restarted, overtaken, and always the state of the log."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from tests.crash.server_process import ServerProcess
from tests.integration.test_client_server import PATIENT
from tests.mount_namespace import mount_namespace
from tests.rgw import free_port

from holdfast.client import Client
from holdfast.commit.format.transaction import Delete, RangeDelete, Transaction, Write
from holdfast.errors import Code, CorruptData
from holdfast.server.view.messages import ViewStart
from holdfast.view import View

KILLS = 1 if os.environ.get("HOLDFAST_SMALL") == "1" else 3
SECONDS_MAX = 30.0
NO_VIEW = {"HOLDFAST_VIEW__ENABLED": "false"}


def until(condition: Callable[[], object]) -> None:
    """Wait for another process, for a bounded time."""
    end = time.monotonic() + SECONDS_MAX
    while not condition():
        assert time.monotonic() < end, "it never came to that"
        time.sleep(0.005)


def view_processes(server: ServerProcess) -> list[int]:
    """The running view processes of a server."""
    found: list[int] = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
            if (
                int(parent) == server.pid
                and state != "Z"
                and b"holdfast.server.view.process" in (folder / "cmdline").read_bytes()
            ):
                found.append(int(folder.name))
    return found


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@contextlib.contextmanager
def serving(
    folder: Path, *flags: str, environment: dict[str, str] | None = None, url: str = ""
) -> Iterator[ServerProcess]:
    server = ServerProcess(
        folder, url or (folder / "log").as_uri(), free_port(), flags=("--init", *flags), environment=environment
    )
    try:
        server.wait_until_leading()
        yield server
    finally:
        if server.running:
            server.kill()


def connected(server: ServerProcess) -> Client:
    return Client(f"http://127.0.0.1:{server.port}", options=PATIENT)


def assert_shows_the_log(client: Client) -> None:
    """What the service's view shows at its newest version is what its change stream amounts to."""
    last = client.version().version
    with View.memory() as mine, client.subscribe(0) as events:
        for batch in events.batches():
            mine.apply(batch)
            if mine.version >= last:
                break
        rows: list[tuple[bytes, bytes, int]] = []
        begin = b""
        while True:
            page = client.range(begin, limit=10_000, at=last)
            rows += [(item.key, item.value, item.version) for item in page.items]
            if not page.more:
                break
            begin = page.items[-1].key + b"\0"
        assert rows == mine.range(limit=1_000_000)


@pytest.mark.matrix
def test_a_new_view_begins_with_the_newest_snapshot_and_passes_over_a_damaged_one(tmp_path: Path) -> None:
    url = (tmp_path / "log").as_uri()
    for damaged in (False, True):
        with serving(tmp_path, environment=NO_VIEW) as server, connected(server) as client:
            for number in range(50):
                client.commit(mixed(number).operations)
        make = [sys.executable, "-m", "holdfast.cli.main", "log", "snapshot", url, "--json"]
        made = msgspec.json.decode(subprocess.run(make, check=True, capture_output=True).stdout)
        if damaged:
            part = next(Path(made["folder"].removeprefix("file://")).glob("part-*"))
            part.write_bytes(part.read_bytes()[:-1])
        with serving(tmp_path) as server, connected(server) as client:
            assert_shows_the_log(client)
            wanted = "view_passes_over_snapshot" if damaged else "view_reads_snapshot"
            assert wanted in server.output.read_text()
        for file in tmp_path.rglob("*.sqlite*"):
            file.unlink()


def mixed(number: int) -> Transaction:
    """Writes, deletes and range deletes that meet one another."""
    key = b"m/%03d" % (number % 400)
    match number % 7:
        case 3:
            return Transaction([Delete(key), Write(b"last-delete", key)])
        case 5:
            begin = number * 13 % 400
            return Transaction([RangeDelete(b"m/%03d" % begin, b"m/%03d" % (begin + 9)), Write(key, b"after")])
        case _:
            return Transaction([Write(key, b"%d" % number), Write(b"n/%05d" % number, b"")])


def test_a_killed_view_process_costs_its_readers_time_and_nothing_else(tmp_path):
    with serving(tmp_path) as server, connected(server) as client:
        stop = threading.Event()
        failures: list[Exception] = []

        def load() -> None:
            try:
                with connected(server) as mine:
                    number = 0
                    while not stop.is_set():
                        list(mine.commits_many([mixed(number + more) for more in range(50)]))
                        number += 50
            except Exception as error:  # noqa: BLE001 - reported by the test's own thread
                failures.append(error)

        loader = threading.Thread(target=load)
        loader.start()
        try:
            killed: set[int] = set()
            for _ in range(KILLS):
                until(lambda: set(view_processes(server)) - killed)
                (pid,) = set(view_processes(server)) - killed
                receipt = client.commit([Write(b"mine", b"%d" % pid)])
                found = client.get(b"mine")
                assert found is not None
                assert (found.value, found.version) == (b"%d" % pid, receipt.version)
                os.kill(pid, signal.SIGKILL)
                killed.add(pid)
                # The leader goes on meanwhile, and the read waits for the next process.
                receipt = client.commit([Write(b"mine", b"again")])
                found = client.get(b"mine", at=receipt.version)
                assert found is not None
                assert found.value == b"again"
        finally:
            stop.set()
            loader.join(60)
        assert not failures
        assert_shows_the_log(client)
        assert "view_starts_over" not in server.tail()


def test_signals_to_the_whole_group_do_not_end_it_and_the_end_of_the_server_does(tmp_path):
    with serving(tmp_path) as server, connected(server) as client:
        client.commit([Write(b"a", b"1")])
        assert client.get(b"a") is not None
        assert client.jobs().items == ()  # only the view has them: it runs now
        (pid,) = view_processes(server)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            os.kill(pid, number)
        client.commit([Write(b"a", b"2")])
        found = client.get(b"a")
        assert found is not None
        assert found.value == b"2"
        assert view_processes(server) == [pid]
        server.kill()
        until(lambda: not is_running(pid))
    with serving(tmp_path) as server, connected(server) as client:
        client.get(b"a")
        (pid,) = view_processes(server)
        assert server.stop() == 0
        assert not is_running(pid)


PROCESS = (sys.executable, "-m", "holdfast.server.view.process")


def ended(command: list[str]) -> tuple[int, bytes]:
    """The exit code and the errors of a process that ends although its input does not."""
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        return process.wait(60), process.stderr.read()


def test_a_process_that_a_killed_server_left_makes_no_directory(tmp_path):
    # Nobody makes the directory of a log that was removed again: the next log would take it for another log's view.
    directory = tmp_path / "log" / "view"
    start = ViewStart(log_url=(tmp_path / "log").as_uri(), log_id="1" * 32, directory=str(directory))
    code, errors = ended([*PROCESS, msgspec.json.encode(start).decode()])
    assert code != 0
    assert b"view_has_no_place" in errors
    assert b"Traceback" not in errors
    assert not (tmp_path / "log").exists()


def test_a_view_without_an_inode_for_its_file_says_so_in_one_line(tmp_path: Path) -> None:
    """Its server starts another process after a while. It used to end with a traceback."""
    start = ViewStart(log_url=(tmp_path / "log").as_uri(), log_id="1" * 32, directory="/mnt/view")
    small = 'mount -t tmpfs -o nr_inodes=2 none /mnt && mkdir /mnt/view && exec "$@"'
    words = [*PROCESS, msgspec.json.encode(start).decode()]
    code, errors = ended([*mount_namespace(), "sh", "-c", small, "sh", *words])
    assert code == 1, errors.decode()
    assert b"view_has_no_place" in errors
    assert b"No space left on device" in errors
    assert b"Traceback" not in errors


@pytest.mark.matrix
def test_a_restarted_server_goes_on_from_the_files_position(tmp_path):
    """Shown by a row that only the file holds: a view that began anew would not have it."""
    with serving(tmp_path) as server, connected(server) as client:
        list(client.commits_many([mixed(number) for number in range(300)]))
        before = client.range(limit=10_000)
        assert server.stop() == 0
    (file,) = (tmp_path / "log" / "view").glob("*.sqlite")
    with contextlib.closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("INSERT INTO latest VALUES (?, ?, 1)", (b"only-here", b"v"))
    with serving(tmp_path) as server, connected(server) as client:
        keys = [item.key for item in client.range(limit=10_000).items]
        assert keys == sorted([*(item.key for item in before.items), b"only-here"])
        receipt = client.commit([RangeDelete(b"m/", b"m0"), Write(b"new", b"")])
        shown = client.range(limit=10_000, at=receipt.version)
        left = [key for key in keys if not key.startswith(b"m/")]
        assert [item.key for item in shown.items] == sorted([*left, b"new"])
        assert "view_starts_over" not in server.tail()


@pytest.mark.matrix
def test_a_leader_without_a_view_in_between_leaves_no_gap(tmp_path):
    for turn, environment in enumerate([None, NO_VIEW, NO_VIEW, None]):
        with serving(tmp_path, environment=environment) as server, connected(server) as client:
            list(client.commits_many([mixed(turn * 100 + more) for more in range(100)]))
            if environment is None:
                assert_shows_the_log(client)
            if turn % 2:
                assert server.stop() == 0
            else:
                server.kill()


def test_while_a_deposed_leader_sleeps_on_the_file_the_new_one_keeps_another(tmp_path):
    with serving(tmp_path) as asleep:
        with connected(asleep) as client:
            list(client.commits_many([mixed(number) for number in range(100)]))
            assert client.get(b"last-delete") is not None
        asleep.pause()
        with serving(tmp_path, "--take-over") as server, connected(server) as client:
            list(client.commits_many([mixed(number) for number in range(100, 200)]))
            assert_shows_the_log(client)
            until(lambda: "view_in_temporary_directory" in server.tail())


@pytest.mark.matrix
def test_a_file_that_is_past_the_log_is_begun_anew(tmp_path):
    with serving(tmp_path) as server, connected(server) as client:
        list(client.commits_many([mixed(number) for number in range(50)]))
        assert client.get(b"last-delete") is not None
        assert server.stop() == 0
    (file,) = (tmp_path / "log" / "view").glob("*.sqlite")
    with contextlib.closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("UPDATE position SET version = 1 << 50")
        connection.execute("INSERT INTO latest VALUES (x'00', x'00', 1)")
    with serving(tmp_path) as server, connected(server) as client:
        assert_shows_the_log(client)
        assert "view_starts_over" in server.tail()


def damage(batches: Path, slot: int) -> Path:
    """Flip a bit in the body of one object."""
    path = batches / f"{slot:020d}"
    data = bytearray(path.read_bytes())
    assert len(data) > 600, "an object with a body"
    data[-40] ^= 1
    path.chmod(0o644)
    path.write_bytes(data)
    return path


@pytest.mark.matrix
def test_over_a_damaged_log_reads_name_the_damage_once_it_is_met_and_commits_go_on(tmp_path):
    with serving(tmp_path) as server, connected(server) as client:
        versions = [client.commit([Write(b"k%02d" % number, b"v")]).version for number in range(40)]
        assert client.get(b"k39") is not None
        assert server.stop() == 0
    (file,) = (tmp_path / "log" / "view").glob("*.sqlite")
    file.unlink()
    slots = sorted((int(path.name) for path in (tmp_path / "log" / "batches").iterdir()), reverse=True)
    broken = damage(tmp_path / "log" / "batches", slots[20])
    with serving(tmp_path) as server, connected(server) as client:
        for _ in range(3):
            with pytest.raises(CorruptData, match=f"slot={broken.name}") as caught:
                client.get(b"k39")
            assert caught.value.code is Code.CORRUPT_BATCH
        with pytest.raises(CorruptData, match=f"slot={broken.name}"):
            client.range(at=versions[-1])
        with pytest.raises(CorruptData):
            client.get(b"k00", at=versions[5])  # a read shows the newest version, and the view does not reach it
        version = client.commit([Write(b"after", b"damage")]).version
        assert version > versions[-1]
        after = client.get(b"after", at=version)  # memory has what was committed since
        assert after is not None and after.version == version
        assert server.tail().count("view_stops_at_damage") == 1
        assert "view_starts_over" not in server.tail()


def test_on_s3_a_new_process_goes_on_with_the_file_of_the_last(tmp_path, s3_url):
    with (
        serving(tmp_path, environment={"HOLDFAST_VIEW__ENABLED": "true"}, url=s3_url) as server,
        connected(server) as client,
    ):
        list(client.commits_many([mixed(number) for number in range(200)]))
        assert_shows_the_log(client)
        (pid,) = view_processes(server)
        os.kill(pid, signal.SIGKILL)
        list(client.commits_many([mixed(number) for number in range(200, 300)]))
        assert_shows_the_log(client)
        last = client.version().version

        def shown() -> float:
            with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics") as answer:
                found = re.search(rb"^holdfast_view_version ([0-9.e+]+)$", answer.read(), re.MULTILINE)
            assert found is not None
            return float(found[1])

        until(lambda: shown() >= last)
        assert server.stop() == 0
        assert "view_starts_over" not in server.tail()


@pytest.mark.matrix
@pytest.mark.timeout(180)
def test_a_view_that_begins_late_catches_up(tmp_path):
    with serving(tmp_path, environment=NO_VIEW) as server, connected(server) as client:
        txns = (
            Transaction([Write(b"k/%05d" % (number * 7919 % 100_000), b"%d" % number)]) for number in range(100_000)
        )
        for _ in client.commits_many(txns):
            pass
        client.commit([RangeDelete(b"k/1", b"k/9")])
        assert server.stop() == 0
    with serving(tmp_path) as server, connected(server) as client:
        last = client.version().version
        until(lambda: _version_of(client) >= last)
        keys = [item.key for item in client.range(b"k/0", b"k/1", limit=10_000, at=last).items]
        assert keys == [b"k/%05d" % number for number in range(10_000)]
        found = client.get(b"k/%05d" % (99_999 * 7919 % 100_000), at=last)
        assert found is None or found.value == b"99999"
        assert [item.key for item in client.range(b"k/1", at=last).items][:1] == [b"k/90000"]


def _version_of(client: Client) -> int:
    return client.range(limit=1, at=0).version
