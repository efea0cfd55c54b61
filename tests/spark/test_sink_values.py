"""What the sink writes for a value that is a struct: JSON, which a typed read of the log reads back."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pytest
from pyspark.sql.types import IntegerType, MapType, StringType, StructType

from holdfast.commit.format.transaction import Delete, Write
from holdfast.errors import InvalidRequest
from holdfast.spark.sink.task import check_schema, transactions_of
from holdfast.spark.typed.ddl import parse_schema
from holdfast.spark.typed.decode import Encoding, Format, decode

SCHEMA = "origin string, delay int, at timestamp, cost decimal(9,2), tags map<string,array<double>>"
VALUE = {
    "origin": "JFK", "delay": None, "at": dt.datetime(2013, 1, 1, 5, tzinfo=dt.timezone(dt.timedelta(hours=2))),
    "cost": Decimal("1.50"), "tags": [("a", [1.0, None])],
}  # fmt: skip
JSON = b'{"origin":"JFK","at":"2013-01-01T03:00:00Z","cost":1.50,"tags":{"a":[1.0,null]}}'


def test_a_struct_is_written_as_json_and_null_deletes() -> None:
    kind = parse_schema(SCHEMA)
    batch = pa.RecordBatch.from_arrays([pa.array(["a", "b"]), pa.array([VALUE, None], kind)], ["key", "value"])
    assert list(transactions_of([batch], None)) == [[Write(b"a", JSON)], [Delete(b"b")]]
    nested = pa.array([[{"key": b"a", "value": VALUE}]], pa.list_(pa.struct([("key", pa.binary()), ("value", kind)])))
    assert list(transactions_of([pa.RecordBatch.from_arrays([nested], ["operations"])], None)) == [[Write(b"a", JSON)]]
    back = decode(pa.array([JSON]), Encoding(Format.JSON, kind))
    assert (back.misfits, back.column) == ([], pa.array([VALUE], kind))


def spark_schema(text: str) -> StructType:
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(pa.schema(list(parse_schema(text))))


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ("key string, value int", r"value is binary or string, or a struct that becomes JSON, not int"),
        ("key struct<a:int>, value string", r"key is binary or string, not struct<a:int>"),
    ],
)
def test_a_column_that_the_sink_cannot_write_is_refused(columns: str, problem: str) -> None:
    with pytest.raises(InvalidRequest, match=problem):
        check_schema(spark_schema(columns), None)


def test_a_struct_is_accepted_unless_json_does_not_have_one_of_its_types() -> None:
    check_schema(spark_schema(f"key string, value struct<{SCHEMA}>"), None)
    keyed = StructType().add("key", "string").add("value", StructType().add("a", MapType(IntegerType(), StringType())))
    with pytest.raises(InvalidRequest, match=r"value\.a is map<int,string>, which JSON does not have"):
        check_schema(keyed, None)
