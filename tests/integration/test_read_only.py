"""A service that only reads its log, a mirror or any other, and a standby that answers readers."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tests.crash.server_process import ServerProcess
from tests.integration.test_retention_process import until
from tests.rgw import free_port

from holdfast import Client, Code, InvalidRequest, Unavailable, Write
from holdfast.client import ClientOptions, TransactionEvent

HOLDFAST = (sys.executable, "-m", "holdfast.cli.main")
PLAIN = {"HOLDFAST_STORES__ENABLED": "false"}


def served(folder: Path, name: str, port: int, *flags: str) -> ServerProcess:
    return ServerProcess(folder, (folder / name).as_uri(), port, flags=flags, environment=PLAIN)


def client_of(port: int) -> Client:
    return Client(f"http://127.0.0.1:{port}", options=ClientOptions(retry_max_ms=100, give_up_after_ms=20_000))


def asked(port: int, path: str) -> tuple[int, dict[str, object]]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, dict(json.loads(answer.read()))
    except (OSError, ValueError):
        return 0, {}
    finally:
        connection.close()


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_a_reader_follows_its_log_over_leaders_and_writes_nothing(tmp_path: Path) -> None:
    port, other, second = free_port(), free_port(), free_port()
    leader = served(tmp_path, "log", port, "--init", "--take-over")
    leader.wait_until_leading()
    reader = served(tmp_path, "log", other, "--read-only")
    seen: list[int] = []
    try:
        with client_of(port) as client:
            first = client.commit([Write(b"key", b"1")])
        until(lambda: asked(other, "/v1/version?consistency=local")[1].get("version") == first.version)
        assert asked(other, "/readyz")[0] == 200
        with client_of(other) as client:
            until(lambda: client.get(b"key") is not None)
            with pytest.raises(InvalidRequest) as refused:
                client.commit([Write(b"key", b"2")], read_version=first.version)
            assert refused.value.code is Code.READ_ONLY
            assert asked(other, "/v1/version")[1]["error"]["code"] == "read_only"  # type: ignore[index]
            with pytest.raises(InvalidRequest, match="only reads"), client.subscribe(durable=False) as events:
                next(iter(events))

            def read() -> None:
                with client.subscribe(after=0) as events:
                    for event in events:
                        if isinstance(event, TransactionEvent):
                            seen.append(event.version)
                            if len(seen) == 6:
                                return

            reading = threading.Thread(target=read)
            reading.start()
            with client_of(port) as writer:
                wanted = [first.version, writer.commit([Write(b"key", b"2")]).version]
            leader.kill()
            leader = served(tmp_path, "log", second, "--take-over")
            leader.wait_until_leading()
            before = files(tmp_path / "log")
            with client_of(second) as writer:
                wanted += [writer.commit([Write(b"key", b"%d" % number)]).version for number in range(4)]
            reading.join(30)
            assert seen == wanted
            until(lambda: client.get(b"key").value == b"3")  # type: ignore[union-attr]
        added = {name for name in files(tmp_path / "log") - before if "batches" not in name and "hint" not in name}
        assert not {name for name in added if not name.startswith(("view", "stores", "meta", "probe"))}
        assert reader.stop() == 0
    finally:
        leader.stop()


@pytest.mark.matrix
def test_a_mirror_is_read_while_it_grows(tmp_path: Path) -> None:
    port, other = free_port(), free_port()
    leader = served(tmp_path, "log", port, "--init", "--take-over")
    mirror: subprocess.Popen[bytes] | None = None
    try:
        leader.wait_until_leading()
        with client_of(port) as client:
            client.commit([Write(b"key", b"1")])
            words = ("log", "mirror", (tmp_path / "log").as_uri(), (tmp_path / "copy").as_uri())
            subprocess.run([*HOLDFAST, *words], check=True, capture_output=True)
            mirror = subprocess.Popen([*HOLDFAST, *words, "--follow", "--metrics-file", str(tmp_path / "lag.prom")])
            reader = served(tmp_path, "copy", other, "--read-only")
            last = client.commit([Write(b"key", b"2")])
            until(lambda: asked(other, "/v1/version?consistency=local")[1].get("version") == last.version)
            with client_of(other) as readers:
                until(lambda: readers.get(b"key") is not None and readers.get(b"key").value == b"2")  # type: ignore[union-attr]
            lag = tmp_path / "lag.prom"  # written a moment after the first batch
            until(lambda: lag.exists() and "holdfast_mirror_lag_versions 0" in lag.read_text())
            reader.stop()
    finally:
        if mirror is not None:
            mirror.kill()
            mirror.wait()
        leader.stop()


@pytest.mark.matrix
def test_a_standby_answers_readers_and_refuses_commits(tmp_path: Path) -> None:
    port, other = free_port(), free_port()
    leader = served(tmp_path, "log", port, "--init", "--take-over")
    leader.wait_until_leading()
    standby = served(tmp_path, "log", other, "--standby")
    try:
        with client_of(port) as client:
            first = client.commit([Write(b"key", b"1")])
        until(lambda: asked(other, "/v1/version?consistency=local")[1].get("version") == first.version)
        options = ClientOptions(follow_leader=False, give_up_after_ms=500)
        with Client(f"http://127.0.0.1:{other}", options=options) as client:
            with client.subscribe(after=0) as events:
                assert next(each for each in events if isinstance(each, TransactionEvent)).version == first.version
            with pytest.raises(Unavailable) as refused:
                client.commit([Write(b"key", b"2")], read_version=first.version)
            assert refused.value.code is Code.NOT_LEADER
        leader.kill()
        standby.wait_until_leading()
        with client_of(other) as client:
            assert client.commit([Write(b"key", b"2")]).version > first.version
    finally:
        standby.stop()
