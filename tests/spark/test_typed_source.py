"""The source with typed columns: the choice of rows, the policy for misfits, and Spark's view of the types."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.errors import PySparkException
from pyspark.sql import Row, SparkSession
from tests.spark.log_builder import LogBuilder
from tests.spark.test_options_everywhere import rows_of

from holdfast.commit.format.batch import LoggedTransaction
from holdfast.commit.format.transaction import Delete, JobChange, RangeDelete, Write
from holdfast.errors import InvalidRequest
from holdfast.spark.option_values import Mode
from holdfast.spark.options import parse_read_options
from holdfast.spark.runtime.session import task_errors
from holdfast.spark.source.reader import log_reader, with_value_type
from holdfast.spark.typed.rows import Choice

COLUMNS = "version,kind,key,end,value"
KEYS = st.sampled_from(
    [b"", b"a", b"a/", b"a/1", b"a0", b"b", b"spark", b"spark/", b"spark/x", b"spark0", b"\xff", b"\xff\xff"]
)


@given(
    st.lists(st.tuples(st.sampled_from(["write", "delete", "range_delete"]), KEYS, st.none() | KEYS), max_size=8),
    st.lists(KEYS.filter(bool), max_size=2),
)
def test_the_choice_of_rows_is_by_prefix(
    operations: list[tuple[str, bytes, bytes | None]], prefixes: list[bytes]
) -> None:
    rows = [row if row[0] == "range_delete" else (*row[:2], None) for row in operations]

    def is_wanted(kind: str, key: bytes, end: bytes | None) -> bool:
        def reaches(prefix: bytes) -> bool:
            if kind != "range_delete":
                return key.startswith(prefix)
            return (end is None or end > prefix) and (key.startswith(prefix) or key < prefix)

        return not prefixes or any(reaches(prefix) for prefix in prefixes)

    schema = pa.schema([("kind", pa.string()), ("key", pa.binary()), ("end", pa.binary())])
    table = pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema)
    found = Choice(tuple(prefixes)).of(table)
    assert [tuple(row.values()) for row in found.to_pylist()] == [row for row in rows if is_wanted(*row)]


def flights(tmp_path: Path, *values: object) -> str:
    """A log of writes under ``a``, ``b`` and so on, a delete, a range delete and the record of a job."""
    leader = (builder := LogBuilder()).lead()
    for index, value in enumerate(values):
        leader.commit(
            [Write(b"abc"[index : index + 1], value if isinstance(value, bytes) else json.dumps(value).encode())]
        )
    leader.commit([Delete(b"a"), RangeDelete(b"b\xff", None)])
    record = JobChange("sink/flights", b'{"token": "1"}')
    leader.send([LoggedTransaction(leader.head.last_version + 1, None, None, [], [], jobs=(record,))])
    return builder.write_to(tmp_path / "log")


TYPED = {"columns": COLUMNS, "keyFormat": "utf8", "valueFormat": "json", "valueSchema": "origin string, delay int"}


@pytest.mark.parametrize("mode", list(Mode))
def test_a_typed_read_has_decoded_columns_and_no_records_of_jobs(tmp_path: Path, mode: Mode) -> None:
    log = flights(tmp_path, {"origin": "JFK", "delay": 2}, {"origin": "LGA", "gate": 7})
    assert [(row["kind"], row["key"], row["value"]) for row in rows_of(log, mode, TYPED)] == [
        ("write", "a", {"origin": "JFK", "delay": 2}),
        ("write", "b", {"origin": "LGA", "delay": None}),
        ("delete", "a", None),
        ("range_delete", None, None),
    ]
    assert [row["key"] for row in rows_of(log, mode, {"columns": "key"})] == [b"a", b"b", b"a", b"b\xff"]
    records = rows_of(log, mode, {"columns": "kind,key,value", "kinds": "job", "keyPrefix": "sink/"})
    assert records == [{"kind": "job", "key": b"sink/flights", "value": b'{"token": "1"}'}]


def test_a_value_that_does_not_fit_fails_by_name_or_is_null(tmp_path: Path) -> None:
    log = flights(tmp_path, {"origin": "JFK", "delay": 2}, {"origin": "LGA", "delay": "late"})
    with pytest.raises(InvalidRequest, match=r"a value does not fit: Expected `int`, got `str`") as failed:
        rows_of(log, Mode.BATCH, TYPED)
    written = rows_of(log, Mode.BATCH, {"kinds": "write", "keyPrefix": "b"})[0]
    facts = failed.value.fields
    assert (facts["column"], facts["key"], facts["version"]) == ("value.delay", b"b", written["version"])
    found = rows_of(log, Mode.BATCH, {**TYPED, "unfit": "null", "kinds": "write"})
    assert [row["value"] for row in found] == [{"origin": "JFK", "delay": 2}, {"origin": "LGA", "delay": None}]


@pytest.mark.parametrize(
    ("given_options", "problem"),
    [
        ({"valueFormat": "json"}, "the value format json needs a schema"),
        ({"valueSchema": "a int"}, "the value format binary has no schema"),
        ({"valueFormat": "avro"}, "option valueFormat is 'avro'; valid: utf8, json, msgpack, binary"),
        ({"valueFormat": "utf8", "columns": "key"}, "option valueFormat has no effect: option columns"),
        ({"valueFormat": "utf8", "unfit": "quarantine"}, "which only a pipeline has; valid: fail, null"),
        ({"unfit": "null"}, "has no effect without keyFormat or valueFormat"),
        ({"valueFormat": "json", "valueSchema": "a strin"}, "'strin' is not a type"),
        ({"shape": "transactions", "valueFormat": "utf8"}, "has no effect on shape=transactions"),
    ],
)
def test_options_of_types_that_make_no_sense_are_refused(given_options: dict[str, str], problem: str) -> None:
    with pytest.raises(InvalidRequest, match=problem):
        parse_read_options({"url": "file:///log", **given_options})


def test_a_filter_on_a_decoded_key_prunes_nothing_wrong(tmp_path: Path) -> None:
    from pyspark.sql.datasource import EqualTo

    log = flights(tmp_path, {"origin": "JFK"})
    given: dict[str, Any] = {
        "url": log,
        "columns": "key",
        "pushdown": "true",
        "keyFormat": "json",
        "keySchema": "binary",
    }
    reader = log_reader(parse_read_options({**given, "unfit": "null", "kinds": "write"}))
    reader._pushed[:] = [EqualTo(("key",), b"zz")]
    assert [row for piece in reader.partitions() for batch in reader.read(piece) for row in batch.to_pylist()]


def test_spark_sees_the_types_and_the_error_names_the_value(spark: SparkSession, tmp_path: Path) -> None:
    kinds = "origin string, delay int, at timestamp, cost decimal(9,2), tags map<string,array<double>>"
    value = {"origin": "JFK", "delay": 2, "at": "2013-01-01T05:00:00Z", "cost": 1.5, "tags": {"a": [1, 2.5]}}
    log = flights(tmp_path, value, {"delay": "late"})
    reader = spark.read.format("holdfast").option("valueFormat", "json").option("valueSchema", kinds)
    frame = reader.option("kinds", "write").option("keyFormat", "utf8").load(log)
    assert dict(frame.dtypes)["value"] == (
        "struct<origin:string,delay:int,at:timestamp,cost:decimal(9,2),tags:map<string,array<double>>>"
    )
    chosen = reader.option("keyPrefix", "a").load(log).selectExpr("key", "value.origin", "value.delay + 1 AS later")
    assert chosen.collect() == [Row(key="a", origin="JFK", later=3)]
    with (
        pytest.raises((InvalidRequest, PySparkException), match=r"column=value\.delay version=\d+ key=b'b'"),
        task_errors(),
    ):
        frame.collect()


@pytest.mark.parametrize("mode", list(Mode))
def test_several_prefixes_leave_out_every_other_key(tmp_path: Path, mode: Mode) -> None:
    leader = (builder := LogBuilder()).lead()
    keys = [b"a/1", b"b/1", b"c/1", b"c/\xff", b"d/1"]
    leader.commit(*([Write(key, b"v")] for key in keys))
    leader.commit([RangeDelete(b"b/", b"b/\xff"), RangeDelete(b"b/", None)])
    log = builder.write_to(tmp_path / "log")
    found = rows_of(log, mode, {"keyPrefix": '["c/", "a/"]', "columns": "kind,key"})
    assert [row["key"] for row in found if row["kind"] == "write"] == [b"a/1", b"c/1", b"c/\xff"]
    assert [row["kind"] for row in found if row["key"] == b"b/"] == ["range_delete"], "the open one reaches c/"
    hexadecimal = {"keyPrefix": '["612f", "642f"]', "keyEncoding": "hex", "columns": "key", "kinds": "write"}
    assert [row["key"] for row in rows_of(log, mode, hexadecimal)] == [b"a/1", b"d/1"]


@pytest.mark.parametrize("text", ["[", "[]", '["a", 1]', "[a/"])
def test_a_prefix_that_only_begins_like_a_list_is_one_prefix(text: str) -> None:
    parsed = parse_read_options({"url": "file:///log", "keyPrefix": text})
    assert (parsed.key_begin, parsed.key_prefixes) == (text.encode(), ())


def test_spark_reads_values_with_the_fields_of_a_sample(spark: SparkSession, tmp_path: Path) -> None:
    log = flights(tmp_path, {"origin": "JFK", "delay": 2}, {"origin": "LGA", "gate": [1]}, {"delay": "late"})
    reader = spark.read.format("holdfast").option("keyFormat", "utf8").option("valueFormat", "json")
    frame = reader.option("infer", 2).option("kinds", "write").option("columns", "key,value").load(log)
    assert frame.schema["value"].dataType.simpleString() == "struct<origin:string,delay:bigint,gate:array<bigint>>"
    with pytest.raises(PySparkException, match="a value does not fit: Expected `int"):
        frame.collect()
    found = {row["key"]: row["value"] for row in reader.option("unfit", "null").load(log).collect()}
    assert found["b"] == Row(origin="LGA", delay=None, gate=[1])
    assert found["c"] == Row(origin=None, delay=None, gate=None)


@pytest.mark.parametrize(
    ("given_options", "mode", "problem"),
    [
        ({"infer": "3"}, None, "option infer needs valueFormat json or msgpack"),
        ({"infer": "3", "valueFormat": "utf8"}, None, "option infer needs valueFormat json or msgpack"),
        ({"infer": "3", "valueFormat": "json", "valueSchema": "a int"}, None, "valueSchema and infer both say which"),
        ({"infer": "0", "valueFormat": "json"}, None, "option infer"),
        ({"infer": "3", "valueFormat": "json"}, Mode.STREAM, "option infer has no effect on a stream read"),
    ],
)
def test_a_sample_is_asked_for_where_it_says_something(
    given_options: dict[str, str], mode: Mode | None, problem: str
) -> None:
    with pytest.raises(InvalidRequest, match=problem):
        parse_read_options({"url": "file:///log", **given_options}, mode)


def test_a_log_without_values_gives_no_type(tmp_path: Path) -> None:
    leader = (builder := LogBuilder()).lead()
    leader.commit([Delete(b"a")])
    options = parse_read_options({"url": builder.write_to(tmp_path / "log"), "valueFormat": "json", "infer": "10"})
    with pytest.raises(InvalidRequest, match="no value says which fields values have"):
        with_value_type(options, None)
