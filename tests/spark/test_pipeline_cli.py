"""``holdfast spark`` as people run it: a process of its own, on a real S3 server too, and killed in the middle."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from tests.rgw import Gateway
from tests.s3_lane import gateway, s3_bucket, s3_url
from tests.spark.command_process import CommandProcess
from tests.spark.log_builder import LogBuilder, random_log, read_plainly
from tests.spark.test_pipeline_audit import damageable, world
from tests.spark.test_pipeline_tables import content, content_of, expected

from holdfast.commit.format.batch import object_name
from holdfast.commit.format.transaction import Write
from holdfast.objects.open import open_store
from holdfast.objects.port import Created
from holdfast.segments.table_location import table_location
from holdfast.spark import Changes, History, Latest

__all__ = ["gateway", "s3_bucket", "s3_url"]

# Each of these starts a Java process or two, which takes long on a machine that does much else.
pytestmark = pytest.mark.timeout(420)

PROVE = os.environ.get("HOLDFAST_PROVE") == "1"
CONF = "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


@pytest.fixture(scope="module")
def commands() -> Iterator[CommandProcess]:
    with CommandProcess() as process:
        yield process


def common(log: str, to: str) -> list[str]:
    return ["--log", log, "--to", to, "--master", "local[2]", "--conf", CONF, "--json"]


def report_of(commands: CommandProcess, *words: str) -> dict[str, object]:
    """The report of a run that ended well."""
    code, lines = commands.run("spark", *words)
    assert code == 0
    report = lines[-1]["report"]
    assert isinstance(report, dict)
    return report


async def put_all(url: str, objects: dict[int, bytes]) -> None:
    store = open_store(url)
    for slot, data in objects.items():
        assert isinstance(await store.create(object_name(slot), data), Created)
    await store.close()


def table_on_s3(url: str) -> pa.Table:
    where = table_location(url)
    return pa.table(DeltaTable(where.uri, storage_options=dict(where.options)).to_pyarrow_table())


@pytest.mark.matrix
def test_every_pipeline_works_by_its_command_on_a_real_s3_server(
    commands: CommandProcess, s3_bucket: str, gateway: object
) -> None:
    """``load`` and ``ingest`` do in ``test_bulk_load``. The tests look at two of them, the proof at all."""
    assert isinstance(gateway, Gateway)
    builder = LogBuilder()
    builder.objects = dict(world(next(damageable())))
    log = gateway.url(s3_bucket, prefix="log")
    asyncio.run(put_all(log, builder.objects))

    def run(name: str, *more: str) -> dict[str, object]:
        return report_of(commands, name, *common(log, at(name)), *more)

    def at(name: str) -> str:
        return gateway.url(s3_bucket, prefix=f"lake/{name}")

    by_steps = run("latest", "--buckets", "2", "--step-bytes", "100000")
    assert by_steps["steps"] != 1 and by_steps["version"] == by_steps["head_version"]
    again = run("latest")
    assert (again["steps"], again["started_at_version"]) == (0, by_steps["version"])
    assert content_of(Latest, table_on_s3(at("latest"))) == expected(Latest, builder)
    audit = run("verify")
    assert (audit["findings"], audit["verified"]) == (0, audit["head_version"])
    if not PROVE:
        return
    run("history", "--buckets", "2")
    for name in ("changes", "snapshot"):
        run(name)
    run("segments", "--min-bytes", "1")
    for kind, name in ((History, "history"), (Changes, "changes"), (Latest, "snapshot"), (Changes, "segments")):
        assert content_of(kind, table_on_s3(at(name))) == expected(kind, builder), name
    replayed = run("replay")
    assert replayed["version"] == replayed["head_version"]
    copied = report_of(commands, "verify", *common(at("replay"), at("verify-of-replay")))
    transactions = sum(len(batch.transactions) for batch in read_plainly(builder.objects))
    assert (copied["findings"], copied["transactions"]) == (0, transactions)


@pytest.mark.matrix
def test_requests_are_resolved_from_and_to_a_real_s3_server(
    commands: CommandProcess, s3_bucket: str, gateway: object, tmp_path: Path
) -> None:
    assert isinstance(gateway, Gateway)
    builder = LogBuilder()
    builder.lead().commit([Write(b"k", b"before")])
    log, verdicts = gateway.url(s3_bucket, prefix="log"), gateway.url(s3_bucket, prefix="verdicts")
    asyncio.run(put_all(log, builder.objects))
    read = [{"key": "k", "version": "#0"}]
    rows = [{"order": n, "key": "k", "value": str(n), "read_version": "#0", "preconditions": read} for n in (1, 2)]
    requests = tmp_path / "requests.json"
    requests.write_text("\n".join(json.dumps(row) for row in rows))
    words = ["--from", str(requests), "--format", "json"]
    report = report_of(commands, "resolve", *words, *common(log, verdicts))
    assert report["requests"] == 2
    assert table_on_s3(verdicts).sort_by("position")["code"].to_pylist() == [None, "conflict"]


@pytest.mark.matrix
def test_a_killed_process_is_continued_by_the_next(commands: CommandProcess, tmp_path: Path) -> None:
    builder: LogBuilder = random_log(41, reigns=4, batches=16)
    log = builder.write_to(tmp_path / "log")
    output = tmp_path / "table"
    words = [sys.executable, "-m", "holdfast.cli.main", "spark", "changes", *common(log, output.as_uri())]
    process = subprocess.Popen(
        [*words, "--step-bytes", "200000"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    while not list(output.rglob("*.parquet")):
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait(30)
    assert report_of(commands, "changes", *common(log, output.as_uri()))["behind_versions"] == 0
    assert content(Changes, output) == expected(Changes, builder)


@pytest.mark.matrix
def test_damage_ends_verify_with_exit_code_6_and_a_wrong_command_with_2(
    commands: CommandProcess, tmp_path: Path
) -> None:
    objects = dict(world(next(damageable())))
    builder = LogBuilder()
    builder.objects = objects
    # An empty batch has nothing but padding there.
    victims = [batch.header.slot for batch in read_plainly(objects) if batch.transactions]
    victim = victims[len(victims) // 2]
    objects[victim] = objects[victim][:600] + bytes([objects[victim][600] ^ 1]) + objects[victim][601:]
    log = builder.write_to(tmp_path / "log")
    findings = (tmp_path / "verify").as_uri()
    code, lines = commands.run("spark", "verify", *common(log, findings))
    assert code == 6
    found = lines[-1]["findings"]
    assert [row["slot"] for row in found] == [object_name(victim).removeprefix("batches/")]  # type: ignore[attr-defined]
    assert commands.run("spark", "verify", *common(log, findings), "--once", "--every", "5")[0] == 2
    assert commands.run("spark", "latest", *common(log, findings))[0] == 2
