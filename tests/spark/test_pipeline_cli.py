"""``holdfast spark`` as people run it: a process of its own, on a real S3 server too, and killed in the middle."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable
from tests.s3_lane import gateway, s3_bucket, s3_url
from tests.spark.command_process import CommandProcess
from tests.spark.log_builder import LogBuilder, latest_plainly, random_log
from tests.spark.test_pipeline_audit import damageable, world
from tests.spark.test_pipeline_tables import content, expected

from holdfast.commit.batch import object_name
from holdfast.objects.open import open_store
from holdfast.objects.port import Created
from holdfast.spark.pipeline import Changes
from holdfast.spark.pipeline.table_location import table_location

__all__ = ["gateway", "s3_bucket", "s3_url"]

# Each of these starts a Java process or two, which takes long on a machine that does much else.
pytestmark = pytest.mark.timeout(420)

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


def test_log_and_tables_on_a_real_s3_server(commands: CommandProcess, s3_bucket: str, gateway: object) -> None:
    import asyncio

    from holdfast.testing.rgw import Gateway

    assert isinstance(gateway, Gateway)
    objects = world(next(damageable()))
    log = gateway.url(s3_bucket, prefix="log")
    table, findings = gateway.url(s3_bucket, prefix="lake/latest"), gateway.url(s3_bucket, prefix="lake/verify")
    asyncio.run(put_all(log, objects))
    reports = [
        report_of(commands, "latest", *common(log, table), "--buckets", "2", "--step-bytes", "100000"),
        report_of(commands, "verify", *common(log, findings)),
        report_of(commands, "latest", *common(log, table)),
    ]
    assert reports[0]["steps"] != 1 and reports[0]["version"] == reports[0]["head_version"]
    assert (reports[1]["findings"], reports[1]["verified"]) == (0, reports[1]["head_version"])
    assert (reports[2]["steps"], reports[2]["started_at_version"]) == (0, reports[0]["version"])
    where = table_location(table)
    rows = DeltaTable(where.uri, storage_options=dict(where.options)).to_pyarrow_table()
    held = zip(rows["value"].to_pylist(), rows["version"].to_pylist(), strict=True)
    assert dict(zip(rows["key"].to_pylist(), held, strict=True)) == latest_plainly(dict(objects))


def test_a_killed_process_is_continued_by_the_next(commands: CommandProcess, tmp_path: Path) -> None:
    builder: LogBuilder = random_log(41, reigns=4, batches=16)
    log = builder.write_to(tmp_path / "log")
    output = tmp_path / "table"
    words = [sys.executable, "-m", "holdfast.cli.main", "spark", "changes", *common(log, output.as_uri())]
    process = subprocess.Popen(
        [*words, "--step-bytes", "200000"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    while not list(output.glob("data/*.parquet")):
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait(30)
    assert report_of(commands, "changes", *common(log, output.as_uri()))["behind_versions"] == 0
    assert content(Changes, output) == expected(Changes, builder)


def test_damage_ends_verify_with_exit_code_6_and_a_wrong_command_with_2(
    commands: CommandProcess, tmp_path: Path
) -> None:
    objects = dict(world(next(damageable())))
    builder = LogBuilder()
    builder.objects = objects
    victim = sorted(objects)[len(objects) // 2]
    objects[victim] = objects[victim][:-1] + bytes([objects[victim][-1] ^ 1])
    objects[victim] = objects[victim][:600] + bytes([objects[victim][600] ^ 1]) + objects[victim][601:]
    log = builder.write_to(tmp_path / "log")
    findings = (tmp_path / "verify").as_uri()
    code, lines = commands.run("spark", "verify", *common(log, findings))
    assert code == 6
    found = lines[-1]["findings"]
    assert [row["slot"] for row in found] == [object_name(victim).removeprefix("batches/")]  # type: ignore[attr-defined]
    assert commands.run("spark", "verify", *common(log, findings), "--once", "--every", "5")[0] == 2
    assert commands.run("spark", "latest", *common(log, findings))[0] == 2
