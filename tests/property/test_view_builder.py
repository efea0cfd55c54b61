"""The bulk way from objects to a view's file: it amounts to what applying every transaction amounts to."""

from __future__ import annotations

import os
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.commit.builders import genesis, record
from tests.view_events import apply_txns

from holdfast.commit.format.batch import Header, LoggedTransaction, decode_header, encode_body, encode_object
from holdfast.commit.format.transaction import Delete, Operation, PointRead, RangeDelete, RangeRead, Write
from holdfast.errors import CorruptData
from holdfast.server.view.process import ViewBuilder
from holdfast.values import Version
from holdfast.view import View
from holdfast.view.storage import Row

KEYS = st.binary(max_size=2).map(lambda key: bytes(byte % 4 * 85 for byte in key))
ENDS = st.none() | KEYS
WRITES = st.lists(st.builds(Write, KEYS, st.binary(max_size=3)), min_size=1, max_size=5)
ANYTHING = st.lists(
    st.one_of(
        st.builds(Write, KEYS, st.binary(max_size=3)), st.builds(Delete, KEYS), st.builds(RangeDelete, KEYS, ENDS)
    ),
    min_size=1,
    max_size=5,
)
READS = st.lists(st.one_of(st.builds(PointRead, KEYS), st.builds(RangeRead, KEYS, ENDS)), max_size=2)
OBJECTS = st.lists(st.lists(st.tuples(WRITES | ANYTHING, READS), max_size=5), max_size=8)

CLAIM = genesis()
LOG_ID = CLAIM.log_id.hex()


def objects_of(contents: list[list[tuple[list[Operation], list[PointRead | RangeRead]]]]) -> list[tuple[Header, bytes]]:
    """A chain of data objects with these transactions."""
    head, version = CLAIM, int(CLAIM.last_version)
    made: list[tuple[Header, bytes]] = []
    for content in contents:
        txns = []
        for operations, reads in content:
            version += 3
            txns.append(LoggedTransaction(version, None, None, operations, reads))
        head = replace(record(head, CLAIM, *(txn.version for txn in txns)))
        data = encode_object(head, encode_body(txns))
        head = decode_header(data, slot=head.slot)
        made.append((head, data))
    return made


def rows_in(path: Path) -> tuple[list[Row], int]:
    with View.sqlite(path) as view:
        return view.read_page(b"", None, 1_000)[:2]


@settings(max_examples=30 if os.environ.get("HOLDFAST_SMALL") == "1" else 150)
@given(OBJECTS, st.lists(st.integers(0, 9), max_size=6))
def test_in_bulk_or_one_by_one_the_state_is_the_same(contents, interruptions):
    """``interruptions``: before these objects the file is written, closed, and taken up again where it stands."""
    with tempfile.TemporaryDirectory() as folder, View.memory() as plain:
        path = Path(folder) / "view"
        builder = ViewBuilder(path, LOG_ID)
        prev = int(CLAIM.prev_version)
        builder.add(CLAIM, b"")
        for number, (header, data) in enumerate(objects_of(contents)):
            if number in interruptions:
                builder.flush()
                builder.close()
                assert rows_in(path)[0] == plain.range(limit=1_000)
                builder = ViewBuilder(path, LOG_ID)
            builder.add(header, data)
            txns = [
                (int(version), operations)
                for version, (operations, _) in zip(
                    range(header.first_version, header.last_version + 1, 3), contents[number], strict=False
                )
            ]
            apply_txns(plain, txns, prev_version=prev)
            prev = int(header.last_transaction_version)
        builder.flush()
        reached = builder.position[0]
        builder.close()
        assert rows_in(path) == (plain.range(limit=1_000), reached)


@pytest.mark.parametrize("missing", [0, 1])
def test_a_missing_object_is_noticed_and_changes_nothing(tmp_path, missing):
    made = objects_of([[([Write(b"%d" % number, b"v")], [])] for number in range(3)])
    builder = ViewBuilder(tmp_path / "view", LOG_ID)
    for header, data in made[: missing + 1]:
        builder.add(header, data)
    builder.flush()
    with pytest.raises(CorruptData, match=r"missing|passed"):
        builder.add(*(made[2] if missing == 0 else made[0]))
    builder.flush()
    builder.close()
    assert [row[0] for row in rows_in(tmp_path / "view")[0]] == [b"%d" % number for number in range(missing + 1)]


def test_rows_that_do_not_keep_the_headers_versions_are_damage(tmp_path):
    ((header, _),) = objects_of([[([Write(b"k", b"v")], []), ([Write(b"k", b"w")], [])]])
    first, last = int(header.first_version), int(header.last_version)
    for versions in ([last, first], [first, first], [first + 1, last], [first, last - 1]):
        txns = [LoggedTransaction(version, None, None, [Write(b"k", b"x")], []) for version in versions]
        data = encode_object(header, encode_body(txns))
        builder = ViewBuilder(tmp_path / "view", LOG_ID)
        with pytest.raises(CorruptData):
            builder.add(decode_header(data, slot=header.slot), data)
        assert builder.seen == (0, None, None)
        builder.close()


def test_a_version_that_was_passed_is_not_taken_again(tmp_path):
    ((header, data),) = objects_of([[([Write(b"k", b"v")], [])]])
    builder = ViewBuilder(tmp_path / "view", LOG_ID)
    builder.add(replace(CLAIM, last_version=Version(header.last_version)), b"")
    with pytest.raises(CorruptData, match="passed already"):
        builder.add(header, data)
    builder.close()
