"""Retention of a real service: policies over HTTP, truncation, space that comes back, readers, restarts and kills."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from tests.command import command
from tests.crash.server_process import NO_VIEW, ServerProcess
from tests.rgw import free_port
from tests.spark.log_builder import LogBuilder

from holdfast import Client, Code, InvalidRequest, NotFound, Unavailable, Write
from holdfast.client import ClientOptions, RetentionPolicy, TransactionEvent
from holdfast.retention.job_holds import hold_for, release_for

QUICK = {
    "HOLDFAST_RETENTION__MIN_AGE_SECONDS": "0",
    "HOLDFAST_RETENTION__CHECK_SECONDS": "0.1",
    "HOLDFAST_STORES__ENABLED": "false",
}
BATCHES = 1_300
"""More than the newest 1,000 slots, which always stay, and 100, below which a truncation is not worth it."""


def served(folder: Path, port: int, **settings: str) -> ServerProcess:
    server = ServerProcess(
        folder, (folder / "log").as_uri(), port, flags=("--init", "--take-over"), environment={**QUICK, **settings}
    )
    server.wait_until_leading()
    return server


def client_of(port: int) -> Client:
    return Client(f"http://127.0.0.1:{port}", options=ClientOptions(retry_max_ms=100))


def until(holds: Callable[[], bool], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "not in time"
        time.sleep(0.05)


def objects(folder: Path) -> int:
    return sum(1 for name in (folder / "log" / "batches").iterdir() if name.name.isdigit())


def sizes(folder: Path) -> dict[str, int]:
    return {name.name: name.stat().st_size for name in (folder / "log" / "batches").iterdir() if name.name.isdigit()}


def fill(client: Client, batches: int) -> list[int]:
    receipts = [client.commit([Write(b"key/%d" % (number % 20), b"x" * 50)]) for number in range(batches)]
    return [receipt.version for receipt in receipts]


def test_space_comes_back_and_readers_below_are_refused(tmp_path: Path) -> None:
    port = free_port()
    builder = LogBuilder()
    leader = builder.lead()
    versions = [leader.commit([Write(b"key/%d" % (number % 20), b"x" * 50)])[0].version for number in range(BATCHES)]
    url = builder.write_to(tmp_path / "log")
    server = served(tmp_path, port)
    try:
        with client_of(port) as client:
            answer = client.set_retention("last", RetentionPolicy(max_bytes=50_000))
            assert answer.policies["last"].max_bytes == 50_000
            until(lambda: client.retention().warning is not None)
            assert "no verified snapshot" in str(client.retention().warning)
            assert objects(tmp_path) == BATCHES + 2, "without a snapshot nothing goes"

            made = command("log", "snapshot", url, "--json")
            assert made.returncode == 0, made.stderr
            # The batch that carries the first truncation lets go of the slots that a new leader might have needed.
            until(lambda: objects(tmp_path) < 100)
            through = client.retention().truncated_through
            assert versions[-100] < through < versions[-10]
            assert client.retention().warning is None

            with client.subscribe(after=through) as events:
                first = next(event for event in events if isinstance(event, TransactionEvent))
            assert first.version == min(version for version in versions if version > through)
            found = client.get(b"key/1", at=versions[-1])
            assert found is not None
            with pytest.raises(NotFound, match="truncated"):
                client.set_retention("audit", RetentionPolicy(keep_from_version=versions[0]))
            with pytest.raises(InvalidRequest, match="configuration"):
                client.set_retention("configuration", RetentionPolicy(keep="everything"))

        verified = command("log", "verify", url, "--json")
        assert verified.returncode == 0, verified.stderr
        said = json.loads(verified.stdout)
        assert said["last_transaction"] == versions[-1]
        assert said["truncated_through"] > versions[0]
        removed = command("log", "verify", url, "--after", str(versions[0]))
        assert removed.returncode != 0
        assert "the log was truncated past" in removed.stderr
        catted = command("log", "cat", url)
        assert catted.returncode != 0
        assert "truncated" in catted.stderr
        idle = objects(tmp_path)
        time.sleep(0.5)
        assert objects(tmp_path) == idle, "an idle leader does not truncate again and again"

        server.kill()  # the next leader takes the truncation over, and reads on
        server = served(tmp_path, port)
        with client_of(port) as client:
            assert client.retention().truncated_through >= through
            with pytest.raises(NotFound) as refused, client.subscribe(after=versions[0]) as events:
                next(iter(events))
            assert refused.value.code is Code.LOG_TRUNCATED
            assert client.get(b"key/1", at=versions[-1]) == found
            assert client.status("an-attempt-of-long-ago-00", versions[0]).status == "log_truncated"
            assert client.commit([Write(b"after", b"the kill")]).version > versions[-1]
        assert command("log", "verify", url).returncode == 0
    finally:
        server.kill()
    rotten_snapshots_are_noticed(tmp_path, url)


def rotten_snapshots_are_noticed(folder: Path, url: str) -> None:
    """Each command names them and ends with the code of damage; nobody can lead what they leave."""
    parts = [*(folder / "log" / "snapshots").glob("*/part-*.parquet")]
    assert parts, "the log was truncated on the strength of a snapshot"
    for part in parts:
        data = bytearray(part.read_bytes())
        data[len(data) // 2] ^= 1
        part.chmod(0o600)
        part.write_bytes(bytes(data))
    copy = (folder / "restored").as_uri()
    for words in (("verify", url), ("restore", url, copy), ("repair", url, (folder / "repaired").as_uri())):
        done = command("log", *words)
        assert done.returncode == 6, done.stdout
        assert "no whole snapshot" in done.stderr
        assert "Lead it" not in done.stdout
    mirror = (folder / "mirror").as_uri()
    assert command("log", "mirror", url, mirror).returncode == 6
    assert command("log", "promote", mirror).returncode != 0
    assert not (folder / "restored" / "meta" / "promoted").exists()


@pytest.mark.matrix  # tests/unit/retention plans and removes
def test_a_plan_names_exactly_what_a_policy_then_removes(tmp_path: Path) -> None:
    port = free_port()
    builder = LogBuilder()
    leader = builder.lead()
    versions = [leader.commit([Write(b"key/%d" % (number % 20), b"x" * 50)])[0].version for number in range(BATCHES)]
    url = builder.write_to(tmp_path / "log")
    policy = RetentionPolicy(keep_from_version=versions[-50])  # its border does not move with what is written
    server = served(tmp_path, port)
    try:
        with client_of(port) as client:
            plan = client.plan_retention("last", policy)
            assert (plan.remove_through, plan.objects, plan.bytes) == (0, 0, 0)
            assert "no verified snapshot" in str(plan.warning)
            assert command("log", "snapshot", url).returncode == 0
            until(lambda: client.plan_retention("last", policy).objects > 0)
            assert client.plan_retention("last", RetentionPolicy(keep_from_version=versions[50])).objects == 0, "few"
            plan, before = client.plan_retention("last", policy), sizes(tmp_path)
            assert client.retention().policies == {}
            assert len(before) == BATCHES + 2
            at = ("--url", f"http://127.0.0.1:{port}", "--json")
            kept = command("retention", "set", "last", "--keep-from-version", str(versions[-50]), "--dry-run", *at)
            assert json.loads(kept.stdout)["bytes"] == plan.bytes
            client.set_retention("last", policy)
            until(lambda: client.retention().truncated_through == plan.remove_through)
            batches = tmp_path / "log" / "batches"
            until(lambda: sum(not (batches / name).exists() for name in before) == plan.objects)
            assert sum(size for name, size in before.items() if not (batches / name).exists()) == plan.bytes
            assert client.plan_retention("last", None).warning is None
            assert client.plan_retention("last", None).objects == 0, "without a policy everything stays"
            with pytest.raises(NotFound):
                client.plan_retention("none", None)
    finally:
        server.kill()


@pytest.mark.matrix
def test_kills_during_truncation_lose_nothing_that_is_kept(tmp_path: Path) -> None:
    port = free_port()
    url = (tmp_path / "log").as_uri()
    slow = {"HOLDFAST_RETENTION__DELETES_PER_SECOND": "400"}
    server = served(tmp_path, port, **slow)
    try:
        with client_of(port) as client:
            fill(client, BATCHES + 2_000)
            client.set_retention("last", RetentionPolicy(max_bytes=1_000))
        assert command("log", "snapshot", url).returncode == 0
        for _ in range(6):
            before = objects(tmp_path)
            until(lambda before=before: objects(tmp_path) < before - 20 or objects(tmp_path) < 1_100)  # type: ignore[misc]
            server.kill()
            server = served(tmp_path, port, **slow)
            with client_of(port) as client:
                assert client.commit([Write(b"key/1", b"y")]).version
            verified = command("log", "verify", url)
            assert verified.returncode == 0, verified.stderr
        until(lambda: objects(tmp_path) < 1_200, 60)
    finally:
        server.kill()


def test_the_policy_of_the_configuration_comes_and_goes_with_it(tmp_path: Path) -> None:
    port = free_port()
    server = served(tmp_path, port, **NO_VIEW, HOLDFAST_RETENTION__MAX_AGE_SECONDS="3600")
    try:
        url = f"http://127.0.0.1:{port}"
        with client_of(port) as client:
            until(lambda: "configuration" in client.retention().policies)
        assert command("retention", "set", "audit", "--keep-everything", "--url", url).returncode == 0
        shown = command("retention", "ls", "--url", url)
        assert "the last 3600 s" in shown.stdout
        assert "everything" in shown.stdout
        assert command("retention", "rm", "nothing", "--url", url).returncode != 0
        assert "give one of" in command("retention", "set", "two", "--url", url).stderr
        server.kill()
        server = served(tmp_path, port, **NO_VIEW)
        with client_of(port) as client:
            until(lambda: [*client.retention().policies] == ["audit"])
    finally:
        server.kill()


@pytest.mark.matrix
def test_the_service_makes_snapshots_by_itself_and_keeps_the_newest(tmp_path: Path) -> None:
    port = free_port()
    quick = {
        "HOLDFAST_SNAPSHOTS__EVERY_SECONDS": "0.5",
        "HOLDFAST_SNAPSHOTS__CHECK_SECONDS": "0.1",
        "HOLDFAST_SNAPSHOTS__KEEP": "2",
        **NO_VIEW,
    }
    server = served(tmp_path, port, **quick)
    snapshots = tmp_path / "log" / "snapshots"
    try:
        with client_of(port) as client:

            def has_another(seen: frozenset[str]) -> bool:
                client.commit([Write(b"key/1", b"x")])
                return snapshots.is_dir() and bool({path.name for path in snapshots.iterdir()} - seen)

            seen: set[str] = set()
            for _ in range(3):
                until(lambda seen=frozenset(seen): has_another(seen))  # type: ignore[misc]
                seen |= {path.name for path in snapshots.iterdir()}
            oldest = snapshots / min(seen) / "manifest.json"
            until(lambda: not oldest.exists())
            listed = [
                json.loads(line)
                for line in command("log", "snapshots", (tmp_path / "log").as_uri(), "--json").stdout.splitlines()
            ]
            assert len(listed) >= 2
            until(lambda: "snapshot_made" in server.tail())
            quiet = len(seen)
            head = client.version().version
            until(lambda: (snapshots / f"{head:020d}" / "manifest.json").exists())
            time.sleep(1.5)
            assert max(path.name for path in snapshots.iterdir()) == f"{head:020d}", "without commits none is made"
            assert quiet >= 3
    finally:
        server.kill()


def test_what_an_unfinished_job_needs_stays_until_it_is_done(tmp_path: Path) -> None:
    """Also with a leader that knows of the job by the log alone."""
    port, policy, job = free_port(), RetentionPolicy(max_bytes=50_000), "sink/orders"
    server = served(tmp_path, port)
    try:
        with client_of(port) as client:
            fill(client, 20)
            held = client.commit([], jobs=[hold_for(job)], read_version=client.version().version).version
            versions = fill(client, BATCHES)
            assert command("log", "snapshot", (tmp_path / "log").as_uri(), "--json").returncode == 0
            server.kill()
            server = served(tmp_path, port)

            def would_remove() -> int:
                with suppress(Unavailable):  # the view of the new leader is behind
                    return client.plan_retention("last", policy).remove_through
                return -1

            until(lambda: would_remove() >= 0)
            assert would_remove() < held
            until(lambda: f"job {job}" in client.retention().holds)
            assert client.retention().holds[f"job {job}"].from_version == held
            shown = command("retention", "ls", "--url", f"http://127.0.0.1:{port}")
            assert f"job {job}" in shown.stdout
            client.set_retention("last", policy)
            client.commit([], jobs=[release_for(job)], read_version=client.version().version)
            until(lambda: held < client.retention().truncated_through < versions[-10])
            until(lambda: not client.retention().holds)
    finally:
        server.kill()
