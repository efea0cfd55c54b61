"""The newest value of every key, against a dict that applies the operations one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.matrix import matrix
from tests.spark.log_builder import LogBuilder, latest_plainly, random_log, read_plainly

from holdfast.commit.format.transaction import Delete, Operation, RangeDelete, Write
from holdfast.errors import InvalidRequest, NotFound
from holdfast.spark import materialise_latest


def table(frame: DataFrame) -> dict[bytes, tuple[bytes, int]]:
    rows = frame.collect()
    found = {bytes(row.key): (bytes(row.value), row.version) for row in rows}
    assert len(found) == len(rows), "one row a key"
    return found


@pytest.mark.parametrize("seed", matrix([11, 12]))
def test_the_table_equals_a_dict_that_applies_every_operation(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    builder = random_log(seed, reigns=6, batches=20)
    assert table(materialise_latest(spark, builder.write_to(tmp_path))) == latest_plainly(builder.objects)


def test_the_table_as_of_a_version_knows_nothing_later(spark: SparkSession, tmp_path: Path) -> None:
    builder = random_log(13, reigns=4, batches=20)
    url = builder.write_to(tmp_path)
    versions = [txn.version for batch in read_plainly(builder.objects) for txn in batch.transactions]
    version = versions[len(versions) // 2]
    found = table(materialise_latest(spark, url, as_of_version=version))
    assert found == latest_plainly(builder.objects, as_of=version)
    assert found != latest_plainly(builder.objects)


ONE_TRANSACTION: Sequence[tuple[Sequence[Operation], dict[bytes, bytes]]] = [
    ([Write(b"k", b"1"), Write(b"k", b"2")], {b"k": b"2"}),
    ([Write(b"k", b"1"), Delete(b"k")], {}),
    ([Delete(b"k"), Write(b"k", b"1")], {b"k": b"1"}),
    ([Write(b"k", b"1"), RangeDelete(b"a", b"z")], {}),
    ([RangeDelete(b"a", b"z"), Write(b"k", b"1")], {b"k": b"1"}),
    ([Write(b"a", b"1"), Write(b"z", b"1"), RangeDelete(b"a", b"z")], {b"z": b"1"}),
    ([Write(b"\xff", b"1"), Write(b"", b"1"), RangeDelete(b"\x00", None)], {b"": b"1"}),
    ([Write(b"k", b""), RangeDelete(b"k", b"k")], {b"k": b""}),
]


def test_the_last_operation_within_a_transaction_wins(spark: SparkSession, tmp_path: Path) -> None:
    """Each case under a prefix of its own, so that one table holds them all."""
    builder = LogBuilder()
    leader = builder.lead()
    expected: dict[bytes, bytes] = {}
    for number, (operations, left) in enumerate(ONE_TRANSACTION):
        prefix, past = b"case%d/" % number, b"case%d0" % number
        leader.commit([_prefixed(operation, prefix, past) for operation in operations])
        expected |= {prefix + key: value for key, value in left.items()}
    found = table(materialise_latest(spark, builder.write_to(tmp_path)))
    assert {key: value for key, (value, _) in found.items()} == expected


def _prefixed(operation: Operation, prefix: bytes, past: bytes) -> Operation:
    match operation:
        case Write(key, value):
            return Write(prefix + key, value)
        case Delete(key):
            return Delete(prefix + key)
        case RangeDelete(begin, end):
            return RangeDelete(prefix + begin, past if end is None else prefix + end)


def test_a_log_without_transactions_is_an_empty_table(spark: SparkSession, tmp_path: Path) -> None:
    builder = LogBuilder()
    builder.lead()
    url = builder.write_to(tmp_path)
    assert table(materialise_latest(spark, url)) == {}


def test_a_version_that_the_log_has_not_reached_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    builder = LogBuilder()
    claim = builder.lead().claim
    with pytest.raises(InvalidRequest, match="has not reached this version"):
        materialise_latest(spark, builder.write_to(tmp_path), as_of_version=claim.last_version + 1)


def test_the_table_of_a_growing_log_stays_at_its_version(spark: SparkSession, tmp_path: Path) -> None:
    builder = LogBuilder()
    leader = builder.lead()
    leader.commit([Write(b"k", b"old")])
    frame = materialise_latest(spark, builder.write_to(tmp_path))
    leader.commit([Write(b"k", b"new")], [RangeDelete(b"", None)])
    builder.write_to(tmp_path)
    assert {key: value for key, (value, _) in table(frame).items()} == {b"k": b"old"}


def test_a_truncated_log_is_refused_because_its_state_is_not_in_it(spark: SparkSession, tmp_path: Path) -> None:
    from tests.spark.test_plan import truncated_log

    with pytest.raises(NotFound, match="retention has removed versions"):
        materialise_latest(spark, truncated_log().write_to(tmp_path))
