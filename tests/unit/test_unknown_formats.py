"""Every JSON record has format 1, and any other number is refused."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import msgspec
import pytest
from tests.unit.test_sealed import RECORDS

from holdfast.commit.leadership.log_remains import BINDING_NAME, bind_stores, bound_log
from holdfast.errors import CorruptData
from holdfast.foundations.readings import FoundationsRecord as FoundationRecord
from holdfast.foundations.readings import key_of, newest_record
from holdfast.objects.memory import MemoryStore
from holdfast.sealed import encode_sealed
from holdfast.spark.bulk.load import LoadProgress
from holdfast.spark.ingest.record import GroupRecord
from holdfast.spark.sink.record import PartitionProgress, SinkRecord, decode
from holdfast.stores.repair.backup import MANIFEST_NAME, BackupManifest, check_copy

JOB_RECORDS = [
    (SinkRecord("intent", "9f" * 16, 7), lambda data: decode(data, "job", SinkRecord)),
    (PartitionProgress(0, "0:0"), lambda data: decode(data, "job", PartitionProgress)),
    (LoadProgress("input", None, 1, 0, 0, ()), lambda data: decode(data, "job", LoadProgress)),
    (GroupRecord(0, 0, ()), lambda data: decode(data, "job", GroupRecord)),
]


def _of_format_2(data: bytes) -> bytes:
    changed, count = re.subn(rb'"format": ?1', b'"format":2', data)
    assert count == 1, "each record says its format once"
    return changed


@pytest.mark.parametrize("at", range(len(JOB_RECORDS)))
def test_a_record_of_a_job_in_another_format_is_refused(at: int) -> None:
    record, read = JOB_RECORDS[at]
    data = msgspec.json.encode(record)
    assert read(data) == record
    with pytest.raises(CorruptData, match="not one of this version"):
        read(_of_format_2(data))


@pytest.mark.parametrize("name", RECORDS)
def test_a_sealed_record_in_another_format_is_refused(name: str) -> None:
    data, read = RECORDS[name]
    fields = msgspec.json.decode(data, type=dict[str, object])
    fields.pop("sha256")
    again = msgspec.defstruct("Again", [(key, object) for key in fields])
    assert read(encode_sealed(again(**fields))) == read(data), "the checksum is right"
    with pytest.raises(CorruptData):
        read(encode_sealed(again(**{**fields, "format": 2})))


def test_a_record_of_readings_in_another_format_is_refused() -> None:
    async def read() -> None:
        store, record = MemoryStore(), FoundationRecord(number=1, log_id="ab" * 16, epoch=1, version=7, readings=[])
        await store.create(key_of(1), encode_sealed(record))
        assert await newest_record(store) == record
        await store.create(key_of(2), encode_sealed(msgspec.structs.replace(record, format=2)))
        with pytest.raises(CorruptData):
            await newest_record(store)

    asyncio.run(read())


def test_files_next_to_stores_in_another_format_are_refused(tmp_path: Path) -> None:
    for name, make, read in (
        (BINDING_NAME, lambda: bind_stores(str(tmp_path), "ab" * 16), bound_log),
        (MANIFEST_NAME, lambda: (tmp_path / MANIFEST_NAME).write_bytes(msgspec.json.encode(BackupManifest(0, 0, {}))),
         check_copy),
    ):  # fmt: skip
        make()
        read(str(tmp_path))
        (tmp_path / name).write_bytes(_of_format_2((tmp_path / name).read_bytes()))
        with pytest.raises(CorruptData):
            read(str(tmp_path))
