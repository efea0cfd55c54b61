"""Every option of a read has the effect it names, on a directory and on a real S3 server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.rgw import Gateway
from tests.s3_lane import gateway, s3_bucket
from tests.spark.log_builder import LogBuilder, random_log, read_plainly, seq
from tests.spark.plain import precondition_row

from holdfast.commit.format.batch import FIRST_SLOT, object_name
from holdfast.errors import CorruptData
from holdfast.objects.open import open_store
from holdfast.objects.port import Created
from holdfast.spark.option_values import Mode
from holdfast.spark.options import LOG_OPTIONS, parse_read_options
from holdfast.spark.source.reader import log_reader
from holdfast.spark.source.stream import HoldfastStreamReader

__all__ = ["gateway", "s3_bucket"]

Rows = list[dict[str, object]]
WITH_POSITION = "version,position,seq,request_id,kind,key,end,value"


@dataclass(frozen=True)
class Question:
    """One option with a value, those beside it, and whether these rows are what it names, all rows being known."""

    value: str
    is_right: Callable[[Rows, Rows], bool]
    beside: tuple[tuple[str, str], ...] = ()
    mode: Mode = Mode.BATCH


def builder_of_log() -> LogBuilder:
    return random_log(63, reigns=8, batches=14)


def questions(builder: LogBuilder) -> dict[str, Question]:
    """By the name of the option; ``url`` and ``segments`` say where to read; see ``test_segment_plan``."""
    live = [batch for batch in read_plainly(builder.objects) if batch.transactions]
    middle = live[len(live) // 2].header
    version = middle.last_version
    named = next(txn.request_id for txn in live[len(live) // 2].transactions if txn.request_id)
    time = datetime.fromtimestamp(middle.time_ms / 1000, UTC).isoformat()

    def same(found: Rows, everything: Rows) -> bool:
        return found == everything

    def up_to(found: Rows, everything: Rows) -> bool:
        return found == [row for row in everything if row["version"] <= version]  # type: ignore[operator]

    def until_time(found: Rows, everything: Rows) -> bool:
        last = max(seq(batch.header.slot) for batch in live if batch.header.time_ms <= middle.time_ms)
        return found == [row for row in everything if row["seq"] <= last]  # type: ignore[operator]

    def with_preconditions(found: Rows, _everything: Rows) -> bool:
        logged = [txn for batch in live for txn in batch.transactions]
        return [(row["version"], row["preconditions"]) for row in found] == [
            (txn.version, [precondition_row(read, txn.read_version) for read in txn.preconditions]) for txn in logged
        ]

    def behind(found: Rows, everything: Rows) -> bool:
        return found == [row for row in everything if row["version"] > version]  # type: ignore[operator]

    def of(wanted: Callable[[dict[str, Any]], bool]) -> Callable[[Rows, Rows], bool]:
        return lambda found, everything: found == [row for row in everything if wanted(row)]

    def reaches_b(row: dict[str, Any]) -> bool:
        if row["kind"] == "range_delete":  # meets the wanted range, which an empty one does not
            return row["end"] is None or row["end"] > b"b"
        return bool(row["key"] >= b"b")

    def text_of(data: bytes | None) -> str | None:
        try:
            return None if data is None else data.decode()
        except UnicodeDecodeError:
            return None

    def decoded(column: str, value_of: Callable[[bytes | None], object]) -> Callable[[Rows, Rows], bool]:
        return lambda found, everything: found == [{**row, column: value_of(row[column])} for row in everything]  # type: ignore[arg-type]

    stream = Mode.STREAM
    return {
        "shape": Question("operations", same),
        "columns": Question(
            "key,version", lambda found, all_: [list(row) for row in found] == [["key", "version"]] * len(all_)
        ),
        "startingVersion": Question(str(version + 1), behind),
        "startingTimestamp": Question(
            time, lambda found, all_: 0 < len(found) <= len(all_) and found == all_[-len(found) :]
        ),
        "startingOffsets": Question(f'{{"version": {version}}}', behind),
        "endingVersion": Question(str(version), up_to),
        "asOfVersion": Question(str(version), up_to),
        "versionAsOf": Question(str(version), up_to),
        "timestampAsOf": Question(time, until_time),
        "endingTimestamp": Question(time, until_time),
        "endingOffsets": Question(f'{{"seq": {seq(middle.slot)}}}', up_to),
        "minPartitions": Question("3", same),
        "includePreconditions": Question("true", with_preconditions, (("shape", "transactions"), ("columns", ""))),
        "failOnDataLoss": Question("false", same),
        "verify": Question("false", same),
        "targetPartitionBytes": Question(str(2**20), same),
        "pushdown": Question("true", same),
        "requestIds": Question(named, of(lambda row: row["request_id"] == named)),
        "kinds": Question("delete", of(lambda row: row["kind"] == "delete")),
        "keyPrefix": Question("b", of(lambda row: row["key"] < b"c" and reaches_b(row))),
        "keyBegin": Question("b", of(reaches_b)),
        "keyEnd": Question("b", of(lambda row: row["key"] < b"b")),
        "keyEncoding": Question("hex", of(reaches_b), (("keyBegin", "62"),)),
        "maxObjectsPerTrigger": Question("3", same, mode=stream),
        "maxBytesPerTrigger": Question("5000", same, mode=stream),
        "maxRowsPerTrigger": Question("2", same, mode=stream),
        "minRowsPerTrigger": Question("1", same, mode=stream),
        "maxTriggerDelay": Question("1ms", same, (("minRowsPerTrigger", "1"),), stream),
        "pollInterval": Question("1ms", same, mode=stream),
        "keyFormat": Question("utf8", decoded("key", text_of), (("unfit", "null"),)),
        "keySchema": Question("int", decoded("key", lambda key: None), (("keyFormat", "json"), ("unfit", "null"))),
        "valueFormat": Question("utf8", decoded("value", text_of), (("unfit", "null"),)),
        "valueSchema": Question(
            "double", decoded("value", lambda value: None), (("valueFormat", "json"), ("unfit", "null"))
        ),
        "unfit": Question("null", decoded("value", text_of), (("valueFormat", "utf8"),)),
    }


def rows_of(url: str, mode: Mode, given: dict[str, str]) -> Rows:
    """What Spark would be handed, in log order."""
    asked = {"columns": WITH_POSITION, **given, "url": url}
    options = parse_read_options({name: value for name, value in asked.items() if value}, mode)
    if mode is Mode.BATCH:
        reader = log_reader(options)
        return [row for piece in reader.partitions() for batch in reader.read(piece) for row in batch.to_pylist()]
    stream = HoldfastStreamReader(options)
    rows: Rows = []
    offset = stream.initialOffset()
    stream.prepareForTriggerAvailableNow()
    while (end := stream.latestOffset(offset, stream.getDefaultReadLimit())) != offset:
        pieces = stream.partitions(offset, end)
        rows += [row for piece in pieces for batch in stream.read(piece) for row in batch.to_pylist()]
        offset = end
    stream.stop()
    return rows


async def put_all(url: str, objects: dict[int, bytes]) -> None:
    store = open_store(url)
    for slot, data in objects.items():
        assert isinstance(await store.create(object_name(slot), data), Created)
    await store.close()


def test_each_option_names_the_same_rows_in_a_directory_and_on_s3(
    tmp_path: Path, s3_bucket: str, gateway: object
) -> None:
    assert isinstance(gateway, Gateway)
    builder = builder_of_log()
    places = {"directory": builder.write_to(tmp_path / "log"), "s3": gateway.url(s3_bucket, prefix="log")}
    asyncio.run(put_all(places["s3"], builder.objects))
    asked = questions(builder)
    elsewhere = {"url", "segments", "infer"}  # the values of this log have no type; see ``test_typed_source``
    assert asked.keys() | elsewhere == LOG_OPTIONS.keys(), "an option without a question"
    everything = rows_of(places["directory"], Mode.BATCH, {})
    assert len(everything) > 50
    for name, question in asked.items():
        found = {}
        for place, url in places.items():
            found[place] = rows_of(url, question.mode, {name: question.value, **dict(question.beside)})
            assert question.is_right(found[place], everything), (name, place)
        assert found["directory"] == found["s3"], name


def test_without_verify_a_body_is_taken_as_it_is_and_headers_are_checked_all_the_same(tmp_path: Path) -> None:
    builder = builder_of_log()
    victim = next(
        batch.header for batch in read_plainly(builder.objects) if batch.transactions and not batch.header.flags
    )
    url = builder.write_to(tmp_path / "log")
    path = tmp_path / "log" / object_name(victim.slot)
    data = path.read_bytes()
    everything = rows_of(url, Mode.BATCH, {})
    values = [row["value"] for row in everything if row["seq"] == FIRST_SLOT - victim.slot]
    at = data.rfind(max((value for value in values if isinstance(value, bytes)), key=len))
    assert at > 512
    path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    with pytest.raises(CorruptData, match="body CRC"):
        rows_of(url, Mode.BATCH, {})
    taken = rows_of(url, Mode.BATCH, {"verify": "false"})
    assert len(taken) == len(everything) and sum(a != b for a, b in zip(taken, everything, strict=True)) == 1
    path.write_bytes(data[:100] + bytes([data[100] ^ 1]) + data[101:])
    with pytest.raises(CorruptData, match="header CRC"):
        rows_of(url, Mode.BATCH, {"verify": "false"})
