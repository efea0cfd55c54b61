"""Decoding values and the doctor: what is promised to a newcomer."""

from __future__ import annotations

from pathlib import Path

import msgpack
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from tests.spark.log_builder import LogBuilder

from holdfast.commit.format.transaction import Write
from holdfast.errors import InvalidRequest
from holdfast.spark import diagnose, with_decoded

SCHEMA = "name string, age int"


@pytest.mark.parametrize(("value_format", "good"), [("json", b'{"name": "Ada", "age": 36}'), ("msgpack", None)])
def test_values_become_columns_and_what_does_not_decode_is_null_or_loud(
    spark: SparkSession, tmp_path: Path, value_format: str, good: bytes | None
) -> None:
    builder = LogBuilder()
    leader = builder.lead()
    leader.commit([Write(b"a", good or msgpack.packb({"name": "Ada", "age": 36}))], [Write(b"b", b"\xc1")])
    frame = spark.read.format("holdfast").load(builder.write_to(tmp_path)).select("key", "value")
    found = {bytes(row.key): row.value for row in with_decoded(frame, value_format, SCHEMA).collect()}
    assert found[b"a"].asDict() == {"name": "Ada", "age": 36}
    assert found[b"b"] is None
    with pytest.raises((PySparkException, Py4JJavaError), match="a value does not fit"):
        with_decoded(frame, value_format, SCHEMA, strict=True).collect()


def test_a_number_that_its_type_would_round_is_null_or_loud(spark: SparkSession) -> None:
    frame = spark.sql('SELECT CAST(\'{"a": 16777217, "b": 1}\' AS BINARY) AS value')
    (row,) = with_decoded(frame, "json", "a float, b int").collect()
    assert row.value.asDict() == {"a": None, "b": 1}
    with pytest.raises((PySparkException, Py4JJavaError), match="does not fit float"):
        with_decoded(frame, "json", "a float, b int", strict=True).collect()


def test_text_needs_no_schema_and_can_stand_beside_the_bytes(spark: SparkSession) -> None:
    frame = spark.sql("SELECT CAST('grün' AS BINARY) AS value")
    row = with_decoded(frame, "utf8", into="text").first()
    assert row is not None
    assert (row.text, bytes(row.value)) == ("grün", "grün".encode())


def test_a_format_without_its_schema_is_refused(spark: SparkSession) -> None:
    frame = spark.sql("SELECT CAST('1' AS BINARY) AS value")
    with pytest.raises(InvalidRequest, match="valid: utf8, json, msgpack"):
        with_decoded(frame, "avro")
    with pytest.raises(InvalidRequest, match="needs a schema"):
        with_decoded(frame, "json")


def test_the_doctor_finds_this_machine_fit_and_leaves_nothing_behind(tmp_path: Path) -> None:
    builder = LogBuilder()
    builder.lead()
    url = builder.write_to(tmp_path)
    found = {each.check: each for each in diagnose(url, writes=True)}
    assert {name: each.verdict for name, each in found.items() if name != "worker python"} == dict.fromkeys(
        ("python", "java", "pyspark", "pandas", "pyarrow", "read access", "write access"), "good"
    )
    assert list((tmp_path / "probe").iterdir()) == []


def test_the_doctor_names_the_next_step_for_what_is_wrong(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "/usr/bin/another-python")
    found = {each.check: each for each in diagnose((tmp_path / "absent").as_uri())}
    assert (found["read access"].verdict, found["worker python"].verdict) == ("bad", "warning")
    assert "log init" in found["read access"].mend
    (empty := tmp_path / "empty").mkdir()
    (reads,) = [each for each in diagnose(empty.as_uri()) if each.check == "read access"]
    assert (reads.verdict, reads.mend) == ("warning", f"holdfast log init {empty.as_uri()}")
