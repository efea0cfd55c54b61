"""Tables with chosen rows and typed columns against the plain reading of the same log."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from pyspark.sql import SparkSession
from tests.matrix import matrix
from tests.spark.local_frames import local
from tests.spark.log_builder import Leader, LogBuilder, latest_plainly, read_plainly
from tests.spark.plain import operation_rows
from tests.spark.test_pipeline_tables import KINDS, Kind, history_plainly, opened

from holdfast.commit.format.transaction import Delete, Operation, RangeDelete, Write
from holdfast.errors import InvalidRequest
from holdfast.spark import Changes, History, Latest, RowOptions, RunReport, run_pipeline
from holdfast.spark.log.delta_output import DeltaOutput
from holdfast.spark.tables.typed import quarantine_url

__all__ = ["local"]

SCHEMA = "n bigint, s string, day int"
JSON = RowOptions(key_format="utf8", value_format="json", schema=SCHEMA, unfit="quarantine", key_prefixes=(b"f/",))
VALUES: list[object] = [
    {"n": 1, "s": "grün", "day": 3}, {"n": 2}, {}, {"day": 4, "other": [1]}, {"n": "two"}, {"n": 2**70}, b"not json",
    [1],
]  # fmt: skip


def written(value: object) -> bytes:
    return value if isinstance(value, bytes) else json.dumps(value).encode()


def random_flights(seed: int, batches: int = 30) -> LogBuilder:
    """Values that fit and values that do not, under several prefixes, with deletes and range deletes among them."""
    leader = (builder := LogBuilder(seed)).lead()
    draw = builder.random
    keys = [b"f/%d" % number for number in range(8)] + ["f/ü".encode(), b"f0", b"e/1", b"spark/x", b"spark/x/1"]

    def operation() -> Operation:
        kind = draw.random()
        if kind < 0.75:
            return Write(draw.choice(keys), written(draw.choice(VALUES)))
        if kind < 0.9:
            return Delete(draw.choice(keys))
        begin, end = sorted((draw.choice(keys), draw.choice(keys)))
        return RangeDelete(begin, None if draw.random() < 0.2 else end)

    for _ in range(batches):
        leader.commit(*([operation() for _ in range(draw.randrange(1, 4))] for _ in range(draw.randrange(1, 4))))
    return builder


def fitting(value: bytes) -> tuple[object, ...] | None:
    """The columns of a value, None for one that does not fit; said a second time, without the product's decoder."""
    try:
        found = json.loads(value)
    except ValueError:
        return None
    if not isinstance(found, dict) or not isinstance(found.get("n", 0), int) or found.get("n", 0) >= 2**63:
        return None
    return found.get("n"), found.get("s"), found.get("day")


def run(spark: SparkSession, kind: Kind, log: str, to: Path, rows: RowOptions, step_bytes: int = 2**30) -> RunReport:
    made: Any = kind
    more = {} if kind is Changes else {"buckets": 3}
    return run_pipeline(made(spark, log, to.as_uri(), rows=rows, **more), log, to.as_uri(), step_bytes=step_bytes)


def rows_of(path: Path, *names: str) -> list[tuple[Any, ...]]:
    table = opened(path)
    return sorted(zip(*(table[name].to_pylist() for name in names), strict=True), key=repr)


def as_key(key: bytes) -> str:
    return key.decode()


def of_changes(builder: LogBuilder) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    kept: list[tuple[Any, ...]] = []
    aside: list[tuple[Any, ...]] = []
    for row in operation_rows(read_plainly(builder.objects)):
        key, end, value = row["key"], row["end"], row["value"]
        is_range = row["kind"] == "range_delete"
        if not (key < b"f0" and (end is None or end > b"f/") if is_range else key.startswith(b"f/")):
            continue
        columns = (None, None, None) if value is None else fitting(value)
        if columns is None:
            aside.append((row["version"], row["position"], key, value))
        else:
            kept.append((row["version"], row["position"], row["kind"], as_key(key), end, *columns))
    return sorted(kept, key=repr), sorted(aside, key=repr)


def of_latest(builder: LogBuilder) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    state = {key: held for key, held in latest_plainly(builder.objects).items() if key.startswith(b"f/")}
    kept = [(as_key(key), version, *columns) for key, (value, version) in state.items() if (columns := fitting(value))]
    return sorted(kept, key=repr), [(key, version) for key, (value, version) in state.items() if fitting(value) is None]


def of_history(builder: LogBuilder) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    rows = [row for row in history_plainly(builder) if row[0].startswith(b"f/")]
    kept = [(as_key(key), *bounds, *columns) for key, value, *bounds in rows if (columns := fitting(value))]
    aside = [(key, bounds[0]) for key, value, *bounds in rows if fitting(value) is None]
    return sorted(kept, key=repr), sorted(aside, key=repr)


EXPECTED: Mapping[Kind, tuple[Callable[[LogBuilder], Any], tuple[str, ...], tuple[str, ...]]] = {
    Changes: (
        of_changes,
        ("version", "position", "kind", "key", "end", "n", "s", "value_day"),
        ("version", "position", "key", "value"),
    ),
    Latest: (of_latest, ("key", "version", "n", "s", "day"), ("key", "version")),
    History: (of_history, ("key", "valid_from", "valid_to", "n", "s", "day"), ("key", "version")),
}


@pytest.mark.parametrize("kind", matrix(KINDS))
def test_a_typed_table_has_what_fits_and_its_quarantine_the_rest(
    local: SparkSession, tmp_path: Path, kind: Kind
) -> None:
    compare(local, tmp_path, kind)


@pytest.mark.parametrize("kind", matrix([Latest, Changes, History]))
def test_spark_makes_the_same_typed_tables(spark: SparkSession, tmp_path: Path, kind: Kind) -> None:
    compare(spark, tmp_path, kind)


def compare(spark: SparkSession, tmp_path: Path, kind: Kind) -> None:
    builder = random_flights(7)
    log = builder.write_to(tmp_path / "log")
    report = run(spark, kind, log, tmp_path / "table", JSON, step_bytes=sum(map(len, builder.objects.values())) // 2)
    assert report.step_count > 1
    expected, names, names_aside = EXPECTED[kind]
    kept, aside = expected(builder)
    assert rows_of(tmp_path / "table", *names) == kept
    found_aside = rows_of(tmp_path / "table-quarantine", *names_aside)
    assert len(found_aside) == report.rows_quarantined == len(set(found_aside))
    if kind is Latest:  # and what was the newest at the end of an earlier step
        assert set(aside) <= set(found_aside)
    else:
        assert found_aside == aside
    assert run(spark, kind, log, tmp_path / "table", JSON).step_count == 0


def small_log(tmp_path: Path, *values: object) -> tuple[LogBuilder, Leader, str]:
    leader = (builder := LogBuilder(3)).lead()
    for index, value in enumerate(values):
        leader.commit([Write(b"f/%d" % index, written(value))])
    return builder, leader, builder.write_to(tmp_path / "log")


def test_a_value_that_does_not_fit_stops_the_step_with_its_name_and_commits_nothing(
    local: SparkSession, tmp_path: Path
) -> None:
    builder, _, log = small_log(tmp_path, {"n": 1}, {"n": "two"})
    loud = RowOptions(value_format="json", schema=SCHEMA)
    second = [txn.version for batch in read_plainly(builder.objects) for txn in batch.transactions][1]
    with pytest.raises(InvalidRequest, match=rf"Expected `int`, got `str` column=value\.n version={second} key=b'f/1'"):
        run(local, Latest, log, tmp_path / "table", loud)
    assert opened(tmp_path / "table").num_rows == 0
    run(local, Latest, log, tmp_path / "table", RowOptions(value_format="json", schema=SCHEMA, unfit="null"))
    assert rows_of(tmp_path / "table", "key", "n") == [(b"f/0", 1), (b"f/1", None)]


@pytest.mark.parametrize("kind", matrix([Latest, Changes, History]))
def test_new_columns_appear_and_old_rows_are_null_in_them(local: SparkSession, tmp_path: Path, kind: Kind) -> None:
    builder, leader, log = small_log(tmp_path, {"n": 1}, {"n": 2, "gate": "B4"})
    run(local, kind, log, tmp_path / "table", RowOptions(value_format="json", schema="n bigint"))
    leader.commit([Write(b"f/2", written({"n": 3, "gate": "C1"})), Delete(b"f/0")])
    builder.write_to(tmp_path / "log")
    run(local, kind, log, tmp_path / "table", RowOptions(value_format="json", schema="gate string, n bigint"))
    found = rows_of(tmp_path / "table", "key", "n", "gate")
    assert (b"f/1", 2, None) in found and (b"f/2", 3, "C1") in found
    leader.commit([Write(b"f/3", written({"n": 4}))])
    builder.write_to(tmp_path / "log")
    with pytest.raises(InvalidRequest, match=r"cannot change its type in this way column=value\.n table=bigint"):
        run(local, kind, log, tmp_path / "table", RowOptions(value_format="json", schema="n string"))
    run(local, kind, log, tmp_path / "table", RowOptions(value_format="json"))
    assert (b"f/3", 4, None) in rows_of(tmp_path / "table", "key", "n", "gate"), "the table knows its schema"


@pytest.mark.parametrize("kind", matrix([History, Latest, Changes]))
def test_types_widen_and_old_rows_keep_their_values(local: SparkSession, tmp_path: Path, kind: Kind) -> None:
    narrow = "n int, x float, price decimal(4,2), at struct<day: int>, tags array<int>"
    wide = "n bigint, x double, price decimal(9,3), at struct<day: bigint>, tags array<bigint>, gate string"
    first = {"n": 1, "x": 0.5, "price": "12.34", "at": {"day": 3}, "tags": [1, 2]}
    builder, leader, log = small_log(tmp_path, first, {"n": 2})
    run(local, kind, log, tmp_path / "table", RowOptions(value_format="json", schema=narrow))
    second = {"n": 2**40, "x": 0.1, "price": "123456.789", "at": {"day": 2**40}, "tags": [2**40], "gate": "B"}
    leader.commit([Write(b"f/1", written(second))])
    builder.write_to(tmp_path / "log")
    run(local, kind, log, tmp_path / "table", RowOptions(value_format="json", schema=wide))
    names = ("key", "n", "x", "price", "at", "tags", "gate")
    found = rows_of(tmp_path / "table", *names)
    assert (b"f/0", 1, 0.5, Decimal("12.340"), {"day": 3}, [1, 2], None) in found
    assert (b"f/1", 2**40, 0.1, Decimal("123456.789"), {"day": 2**40}, [2**40], "B") in found
    by_polars = pl.read_delta(str(tmp_path / "table")).select(names).rows()
    assert sorted(by_polars, key=repr) == found, "no file has the old types"
    leader.commit([Write(b"f/2", written({"n": 5}))])
    builder.write_to(tmp_path / "log")
    with pytest.raises(
        InvalidRequest, match=r"cannot change its type in this way column=value\.n table=bigint wanted=int"
    ):
        run(local, kind, log, tmp_path / "table", RowOptions(value_format="json", schema=narrow))


@pytest.mark.parametrize("kind", matrix([Changes, History, Latest]))
@pytest.mark.parametrize("change", ["add_columns", "widen"])
def test_a_step_of_another_runner_while_the_columns_change_is_not_applied_twice(
    local: SparkSession, tmp_path: Path, kind: Kind, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    builder, leader, log = small_log(tmp_path, {"n": 1}, {"n": 2})
    before = RowOptions(value_format="json", schema="n int")
    run(local, kind, log, tmp_path / "table", before)
    leader.commit([Write(b"f/7", written({"n": 7}))], [Write(b"f/0", written({"n": 8}))])
    builder.write_to(tmp_path / "log")
    real = getattr(DeltaOutput, change)

    def overtaken(output: DeltaOutput, *given: Any) -> Any:
        with monkeypatch.context() as once:
            once.setattr(DeltaOutput, change, real)
            if change == "add_columns":
                run(local, kind, log, tmp_path / "table", before)
                return real(output, *given)
            find = DeltaOutput.find

            def found_late(self: DeltaOutput) -> Any:
                once.setattr(DeltaOutput, "find", find)
                wide = RowOptions(value_format="json")
                run(local, kind, log, tmp_path / "table", wide)
                return find(self)

            once.setattr(DeltaOutput, "find", found_late)
            return real(output, *given)

    monkeypatch.setattr(DeltaOutput, change, overtaken)
    more = "n int, gate string" if change == "add_columns" else "n bigint"
    run(local, kind, log, tmp_path / "table", RowOptions(value_format="json", schema=more))
    found = [row for row in rows_of(tmp_path / "table", "key", "n") if row[0] in (b"f/7", b"f/0")]
    assert len(found) == {Changes: 3, History: 3, Latest: 2}[kind] == len(set(found))


def test_a_key_that_would_be_null_in_a_table_of_keys_is_an_error_whatever_the_policy(
    local: SparkSession, tmp_path: Path
) -> None:
    leader = (builder := LogBuilder(4)).lead()
    leader.commit([Write(b"f/1", b"v")], [Write(b"f/\xff", b"v")])
    log = builder.write_to(tmp_path / "log")
    null = RowOptions(key_format="utf8", value_format="utf8", unfit="null")
    with pytest.raises(InvalidRequest, match=r"a key does not fit: not UTF-8"):
        run(local, Latest, log, tmp_path / "table", null)
    run(local, Changes, log, tmp_path / "changes", null)
    assert rows_of(tmp_path / "changes", "key", "key_bytes") == [("f/1", b"f/1"), (None, b"f/\xff")]
    aside = RowOptions(key_format="utf8", value_format="utf8", unfit="quarantine")
    run(local, Latest, log, tmp_path / "table", aside)
    assert rows_of(tmp_path / "table", "key") == [("f/1",)]


@pytest.mark.matrix
def test_spark_widens_types_too(spark: SparkSession, tmp_path: Path) -> None:
    builder, leader, log = small_log(tmp_path, {"n": 1}, {"n": 2})
    run(spark, Latest, log, tmp_path / "table", RowOptions(value_format="json", schema="n int"))
    leader.commit([Write(b"f/2", written({"n": 2**40}))])
    builder.write_to(tmp_path / "log")
    run(spark, Latest, log, tmp_path / "table", RowOptions(value_format="json", schema="n bigint"))
    assert rows_of(tmp_path / "table", "key", "n") == [(b"f/0", 1), (b"f/1", 2), (b"f/2", 2**40)]


def test_inferred_columns_follow_from_the_values_of_each_step(local: SparkSession, tmp_path: Path) -> None:
    builder, leader, log = small_log(tmp_path, {"n": 1, "x": 1, "none": None}, {"n": 2, "x": 2.5})
    rows = RowOptions(value_format="json", infer=10, key_format="utf8")
    run(local, Latest, log, tmp_path / "table", rows)
    assert rows_of(tmp_path / "table", "key", "n", "x") == [("f/0", 1, 1.0), ("f/1", 2, 2.5)]
    leader.commit([Write(b"f/2", written({"tags": ["a"], "at": {"gate": "B"}, "x": 1}))])
    builder.write_to(tmp_path / "log")
    run(local, Latest, log, tmp_path / "table", rows)
    assert rows_of(tmp_path / "table", "key", "x", "tags", "at") == [
        ("f/0", 1.0, None, None), ("f/1", 2.5, None, None), ("f/2", 1.0, ["a"], {"gate": "B"}),
    ]  # fmt: skip


def test_keys_of_json_are_typed_and_keep_their_bytes(local: SparkSession, tmp_path: Path) -> None:
    leader = (builder := LogBuilder(3)).lead()
    leader.commit([Write(b'["JFK",1]', b"a"), Write(b'["LGA", 2]', b"b"), Write(b"x", b"c")])
    log = builder.write_to(tmp_path / "log")
    rows = RowOptions(key_format="json", key_schema="array<string>", value_format="utf8", unfit="null")
    run(local, Latest, log, tmp_path / "table", rows)
    leader.commit([Delete(b'["LGA", 2]'), Write(b"x", b"d")])
    builder.write_to(tmp_path / "log")
    run(local, Latest, log, tmp_path / "table", rows)
    assert rows_of(tmp_path / "table", "key_bytes", "key", "value") == [(b'["JFK",1]', None, "a"), (b"x", None, "d")]


def test_a_table_is_continued_with_the_same_choice_of_rows_only(local: SparkSession, tmp_path: Path) -> None:
    builder, leader, log = small_log(tmp_path, {"n": 1})
    run(local, Latest, log, tmp_path / "table", RowOptions(key_prefixes=(b"f/",)))
    leader.commit([Write(b"f/9", b"{}")])
    builder.write_to(tmp_path / "log")
    for other, name in (
        (RowOptions(key_prefixes=(b"g/",)), "key prefixes"),
        (RowOptions(key_prefixes=(b"f/",), value_format="utf8"), "value format"),
    ):
        with pytest.raises(InvalidRequest, match=f"the table was made with another {name}"):
            run(local, Latest, log, tmp_path / "table", other)
    with pytest.raises(InvalidRequest, match="no value says which columns the table has"):
        run(local, Latest, log, tmp_path / "other", RowOptions(value_format="json"))


def test_a_step_that_stops_after_its_quarantine_puts_no_row_there_twice(
    local: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    builder, leader, log = small_log(tmp_path, {"n": "one"})
    with monkeypatch.context() as broken:
        broken.setattr(Changes, "_commit", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            run(local, Changes, log, tmp_path / "table", JSON)
    assert opened(tmp_path / "table-quarantine").num_rows == 1 and opened(tmp_path / "table").num_rows == 0
    leader.commit([Write(b"f/8", b"?"), Write(b"f/9", b'{"n": 2}')])
    builder.write_to(tmp_path / "log")
    run(local, Changes, log, tmp_path / "table", JSON)
    assert rows_of(tmp_path / "table-quarantine", "key", "column") == [(b"f/0", "value.n"), (b"f/8", "value")]
    assert rows_of(tmp_path / "table", "key", "n") == [("f/9", 2)]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"value_format": "avro"}, "value format is 'avro'; valid: utf8, json, msgpack, binary"),
        ({"unfit": "drop", "value_format": "utf8"}, "unfit is 'drop'; valid: fail, null, quarantine"),
        ({"unfit": "null"}, "unfit null has no effect"),
        ({"schema": "a int"}, "the value format binary has no schema"),
        ({"infer": 5}, "infer is a number of JSON or msgpack values"),
        ({"infer": 5, "value_format": "json", "schema": "a int"}, "schema and infer both say"),
        ({"key_format": "json"}, "the key format json needs a schema"),
        ({"key_prefixes": (b"",)}, "a key prefix is empty"),
    ],
)
def test_options_of_rows_that_make_no_sense_are_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidRequest, match=problem):
        RowOptions(**options)


def test_the_quarantine_is_next_to_the_table() -> None:
    assert quarantine_url("file:///lake/table/") == "file:///lake/table-quarantine"
