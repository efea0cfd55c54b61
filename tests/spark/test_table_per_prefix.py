"""One table per key prefix: the places of the tables, and what is in them."""

from __future__ import annotations

from pathlib import Path
from threading import Event

import pytest
from pyspark.sql import SparkSession
from tests.spark.command_process import CommandProcess
from tests.spark.local_frames import local
from tests.spark.log_builder import LogBuilder
from tests.spark.test_typed_tables import rows_of

from holdfast.cli.main import main
from holdfast.cli.output import Exit
from holdfast.commit.format.transaction import RangeDelete, Write
from holdfast.errors import InvalidRequest
from holdfast.spark import Latest, RowOptions, Schedule
from holdfast.spark.commands import run_tables, tables_of_prefixes
from holdfast.spark.log.runner import StepReport

__all__ = ["local"]


def test_each_prefix_has_a_table_with_its_keys_and_columns(local: SparkSession, tmp_path: Path) -> None:
    leader = (builder := LogBuilder(3)).lead()
    leader.commit([Write(b"flight/1", b'{"origin": "JFK"}'), Write(b"plane/1", b'{"seats": 2}'), Write(b"x", b"?")])
    log = builder.write_to(tmp_path / "log")
    rows = RowOptions((b"flight/", b"plane/", b"later/"), value_format="json", infer=10, key_format="utf8")
    places = tables_of_prefixes(rows, (tmp_path / "tables").as_uri())

    def run() -> list[int]:
        jobs = [(url, Latest(local, log, url, buckets=1, rows=of)) for url, of in places]
        steps: list[tuple[str, StepReport]] = []
        reports = run_tables(
            jobs, log, schedule=Schedule(), stop=Event(), progress=lambda url, step: steps.append((url, step))
        )
        assert {url for url, _ in steps} <= {url for url, _ in places}
        return [report.rows for report in reports]

    assert run() == [1, 1, 0]
    assert rows_of(tmp_path / "tables" / "flight", "key", "origin") == [("flight/1", "JFK")]
    assert rows_of(tmp_path / "tables" / "plane", "key", "seats") == [("plane/1", 2)]
    leader.commit(
        [Write(b"plane/2", b'{"seats": 3}'), RangeDelete(b"flight/", b"flight0"), Write(b"later/1", b'{"n": 1}')]
    )
    builder.write_to(tmp_path / "log")
    assert run() == [0, 2, 1]
    assert rows_of(tmp_path / "tables" / "flight", "key") == []
    assert rows_of(tmp_path / "tables" / "later", "key", "n") == [("later/1", 1)]


@pytest.mark.parametrize(
    ("prefixes", "problem"),
    [
        ((), "a table per prefix needs prefixes"),
        ((b"a/", b"a:"), "two prefixes have one table"),
        ((b"/",), "a prefix does not name a table"),
        ((b"..",), "a prefix does not name a table"),
        ((b"a b/",), "a prefix does not name a table"),
    ],
)
def test_prefixes_that_do_not_name_a_table_each_are_refused(prefixes: tuple[bytes, ...], problem: str) -> None:
    with pytest.raises(InvalidRequest, match=problem):
        tables_of_prefixes(RowOptions(prefixes), "file:///tables")


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--value-format", "avro"], "value format is 'avro'; valid: utf8, json, msgpack, binary"),
        (["--table-per-prefix"], "a table per prefix needs prefixes"),
        (["--value-format", "json", "--schema", "a strin"], "'strin' is not a type"),
    ],
)
def test_a_command_with_options_that_make_no_sense_says_so_before_it_starts_spark(
    capsys: pytest.CaptureFixture[str], words: list[str], problem: str
) -> None:
    assert main(["spark", "latest", "--log", "file:///absent", "--to", "file:///absent", *words]) == Exit.BAD_REQUEST
    assert problem in capsys.readouterr().err


@pytest.mark.matrix
@pytest.mark.timeout(420)
def test_the_command_keeps_a_typed_table_for_each_prefix(tmp_path: Path) -> None:
    leader = (builder := LogBuilder(3)).lead()
    leader.commit([Write(b"flight/1", b'{"origin": "JFK"}'), Write(b"flight/2", b"?"), Write(b"plane/1", b"{}")])
    log, to = builder.write_to(tmp_path / "log"), (tmp_path / "tables").as_uri()
    (schema := tmp_path / "schema.ddl").write_text("origin string,\n  seats int\n")
    words = ["--key-prefix", "flight/", "--key-prefix", "plane/", "--table-per-prefix", "--unfit", "quarantine"]
    with CommandProcess() as commands:
        code, lines = commands.run(
            "spark", "latest", "--log", log, "--to", to, "--master", "local[2]", "--json", *words,
            "--key-format", "utf8", "--value-format", "json", "--schema", str(schema),
        )  # fmt: skip
    assert code == 0
    tables = lines[-1]["findings"]
    assert isinstance(tables, list)
    assert [(table["rows"], table["rows_quarantined"]) for table in tables] == [(1, 1), (1, 0)]
    assert rows_of(tmp_path / "tables" / "flight", "key", "origin", "seats") == [("flight/1", "JFK", None)]
    assert rows_of(tmp_path / "tables" / "flight-quarantine", "key", "value") == [(b"flight/2", b"?")]
