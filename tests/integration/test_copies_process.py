"""Copies of the log of a real service: a mirror that is killed, a promotion, a restore, and what clients see."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from tests.command import command
from tests.crash.server_process import NO_VIEW, ServerEnded, ServerProcess
from tests.rgw import Gateway, free_port, missing_programs

from holdfast import Client, Code, Conflict, InvalidRequest, Write
from holdfast.client import ClientOptions, LogPosition, TransactionEvent
from holdfast.view import View
from holdfast.view.storage import MemoryStorage

HOLDFAST = (sys.executable, "-m", "holdfast.cli.main")
PLAIN = {"HOLDFAST_STORES__ENABLED": "false"}
REQUEST = "request-of-the-parent-log"
KILLS = 20 if os.environ.get("HOLDFAST_PROVE") == "1" else 1 if os.environ.get("HOLDFAST_SMALL") == "1" else 2


def served(folder: Path, name: str, port: int, *flags: str) -> ServerProcess:
    """The service of a log; only a copy is asked for its keys."""
    environment = PLAIN | NO_VIEW if name == "source" else PLAIN
    return ServerProcess(folder, (folder / name).as_uri(), port, flags=flags, environment=environment)


def client_of(port: int) -> Client:
    return Client(f"http://127.0.0.1:{port}", options=ClientOptions(retry_max_ms=100))


def copied(*words: str) -> dict[str, object]:
    done = command("log", *words, "--json")
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


def refused(*words: str) -> str:
    done = command("log", *words)
    assert done.returncode not in (0, 1), done.stdout
    return done.stderr


def transactions(url: str) -> list[str]:
    done = command("log", "cat", url, "--json")
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def batches(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / "batches").iterdir() if path.name.isdigit()}


def test_a_killed_mirror_is_equal_to_its_source_and_once_promoted_it_is_another_log(tmp_path: Path) -> None:
    port, other = free_port(), free_port()
    source, copy = (tmp_path / "source").as_uri(), (tmp_path / "copy").as_uri()
    server = served(tmp_path, "source", port, "--init", "--take-over")
    stop = threading.Event()
    try:
        server.wait_until_leading()
        with client_of(port) as client:
            read_version = client.version().version
            first = client.commit([Write(b"key/first", b"1")], request_id=REQUEST, read_version=read_version)

            def write() -> None:
                with client_of(port) as writer:
                    number = 0
                    while not stop.is_set():
                        number += 1
                        writer.commit([Write(b"key/%d" % (number % 50), b"x" * 200)])

            writing = threading.Thread(target=write)
            writing.start()
            for _ in range(KILLS):
                follower = subprocess.Popen(
                    [*HOLDFAST, "log", "mirror", source, copy, "--follow", "--json"],
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
                time.sleep(1.2)
                follower.send_signal(signal.SIGKILL)
                follower.wait()
            stop.set()
            writing.join()
            mirrored = copied("mirror", source, copy)
            assert mirrored["lag_versions"] == 0
            assert batches(tmp_path / "copy") == batches(tmp_path / "source")

            with pytest.raises(ServerEnded, match="nobody may lead"):
                served(tmp_path, "copy", other, "--take-over").wait_until_leading()
            promoted = copied("promote", copy)
            assert promoted["version"] == mirrored["version"]
            assert "was promoted" in refused("mirror", source, copy)
            last = client.commit([Write(b"key/only-in-the-source", b"1")])
            position = client.version()

        replica = served(tmp_path, "copy", other, "--take-over")
        replica.wait_until_leading()
        try:
            with client_of(other) as moved:
                old_id = position.log_id
                assert moved.version().log_id == promoted["log_id"] != old_id
                before_fork = LogPosition(first.version, old_id)
                with moved.subscribe(after=before_fork) as events:
                    event = next(each for each in events if isinstance(each, TransactionEvent))
                assert event.version > first.version
                assert event.log_id == old_id, "what was committed before the fork is the parent's"
                for after, code in (
                    (LogPosition(last.version, old_id), Code.ROLLED_BACK),
                    (LogPosition(1, "ab" * 16), Code.LOG_MISMATCH),
                ):
                    with pytest.raises(InvalidRequest) as caught, moved.subscribe(after=after) as gone:
                        next(iter(gone))
                    assert caught.value.code is code
                    if code is Code.ROLLED_BACK:
                        assert caught.value.fields["roll_back_to"] == promoted["version"]
                with pytest.raises((Conflict, InvalidRequest)) as stale:
                    moved.commit([Write(b"key/x", b"1")], read_version=last.version, log_id=old_id)
                assert stale.value.code in (Code.ROLLED_BACK, Code.TOO_OLD)
                attempt = {"request_id": REQUEST, "read_version": read_version, "log_id": old_id}
                again = moved.commit([Write(b"key/first", b"1")], **attempt)  # type: ignore[arg-type]
                assert again.version == first.version, "what the parent committed is found here"
                assert moved.get(b"key/first") is not None
                assert moved.get(b"key/only-in-the-source") is None
                after = moved.commit([Write(b"key/first", b"2")])
                assert after.version > int(str(promoted["version"]))
                view = View(MemoryStorage())
                with moved.subscribe(after=0) as events:
                    for event in events:
                        view.apply([event])
                        if view.version >= after.version:
                            break
                assert view.get(b"key/first") == (b"2", after.version), "a view goes on over the fork"
                assert view.log_id == promoted["log_id"]
        finally:
            replica.stop()
    finally:
        stop.set()
        server.stop()


@pytest.mark.matrix
def test_a_planned_switch_loses_nothing_and_nobody_leads_the_old_log(tmp_path: Path) -> None:
    port, other = free_port(), free_port()
    source, copy = (tmp_path / "source").as_uri(), (tmp_path / "copy").as_uri()
    server = served(tmp_path, "source", port, "--init", "--take-over")
    server.wait_until_leading()
    with client_of(port) as client:
        for number in range(20):
            client.commit([Write(b"key/%d" % number, b"1")])
    copied("mirror", source, copy)
    with client_of(port) as client:
        last = client.commit([Write(b"key/last", b"1")])
    promoted = copied("promote", copy, "--retire-source", source)
    assert promoted["version"] == last.version
    assert server.wait() == 4, "the leader is deposed"
    with pytest.raises(ServerEnded, match="was retired"):
        served(tmp_path, "source", port, "--take-over").wait_until_leading()
    assert transactions(source) == transactions(copy)
    replica = served(tmp_path, "copy", other)
    replica.wait_until_leading()
    replica.stop()


@pytest.mark.matrix  # tests/unit/copies restores to every version and time
def test_a_restore_goes_back_to_a_version_and_to_a_time(tmp_path: Path) -> None:
    port = free_port()
    source = (tmp_path / "source").as_uri()
    server = served(tmp_path, "source", port, "--init", "--take-over")
    try:
        server.wait_until_leading()
        with client_of(port) as client:
            versions = [client.commit([Write(b"key/%d" % number, b"good")]).version for number in range(10)]
            time.sleep(1.1)
            moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            time.sleep(1.1)
            client.commit([Write(b"key/%d" % number, b"bad") for number in range(10)])
            whole = transactions(source)
            by_version = copied("restore", source, (tmp_path / "version").as_uri(), "--at", str(versions[4]))
            assert by_version["version"] == versions[4]
            assert transactions((tmp_path / "version").as_uri()) == whole[:5]
            by_time = copied("restore", source, (tmp_path / "time").as_uri(), "--at", moment)
            assert transactions((tmp_path / "time").as_uri()) == whole[:10]
            assert len({by_version["log_id"], by_time["log_id"], client.version().log_id}) == 3
            client.commit([Write(b"key/0", b"the source goes on")])
        assert "has not reached" in refused("restore", source, (tmp_path / "no").as_uri(), "--at", str(2**52))
        assert "with its zone" in refused("restore", source, (tmp_path / "no").as_uri(), "--at", "yesterday")
        assert "one place" in refused("restore", source, source)
        assert "empty prefix" in refused("restore", (tmp_path / "time").as_uri(), source)
        assert not (tmp_path / "no" / "batches").exists() or not batches(tmp_path / "no")
    finally:
        server.stop()
    restored = served(tmp_path, "time", port)
    restored.wait_until_leading()
    try:
        with client_of(port) as client:
            assert client.get(b"key/3").value == b"good"  # type: ignore[union-attr]
            client.commit([Write(b"key/3", b"better")])
    finally:
        restored.stop()


@pytest.mark.matrix
@pytest.mark.skipif(bool(missing_programs()), reason="no S3 server is installed")
def test_logs_are_copied_on_an_object_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Gateway(tmp_path / "gateway") as gateway:
        gateway.create_bucket("copies")
        for name, value in gateway.environment().items():
            monkeypatch.setenv(name, value)
        source, mirror, restored = (gateway.url("copies", prefix=name) for name in ("source", "mirror", "restored"))
        port = free_port()
        server = ServerProcess(tmp_path, source, port, flags=("--init", "--take-over"), environment=PLAIN)
        try:
            server.wait_until_leading()
            with client_of(port) as client:
                versions = [client.commit([Write(b"key/%d" % (n % 9), b"%d" % n)]).version for n in range(30)]
                copied("snapshot", source)
                client.commit([Write(b"key/after", b"the snapshot")])
            whole = transactions(source)
            assert copied("restore", source, restored, "--at", str(versions[19]))["version"] == versions[19]
            assert transactions(restored) == whole[:20]
            assert copied("mirror", source, mirror)["lag_versions"] == 0
            assert transactions(mirror) == whole
            promoted = copied("promote", mirror, "--retire-source", source)
            assert promoted["version"] == json.loads(whole[-1])["version"]
            assert copied("verify", mirror)["ok"] is True
        finally:
            server.stop()
        leader = ServerProcess(tmp_path, mirror, port, flags=("--take-over",), environment=PLAIN)
        try:
            leader.wait_until_leading()
            with client_of(port) as client:
                assert client.commit([Write(b"key/0", b"in the mirror")]).version > versions[-1]
            assert transactions(mirror)[: len(whole)] == whole
        finally:
            leader.stop()
