"""A request says its id once and the log says it with every row: what that takes is counted, and has a bound."""

from __future__ import annotations

import msgspec
import pytest
from tests.unit.commit.builders import BASE, at, entry, pipeline, puts

from holdfast.commit.format.batch import (
    REPEATED_BYTES_MAX,
    LoggedTransaction,
    decode_body,
    decode_header,
    encode_body,
    repeated_bytes,
)
from holdfast.commit.format.request_rules import REQUEST_ID_LENGTH_MAX
from holdfast.commit.format.transaction import Delete, PointRead, Transaction
from holdfast.commit.stages.events import Arrived, request_bytes
from holdfast.errors import Code, HoldfastError, InvalidRequest, LimitExceeded
from holdfast.server.http.requests import problem_with
from holdfast.settings import load_configuration

COLUMN_BYTES_MAX = 2**31 - 1
"""The last offset that an int32 can say."""
LONGEST = "\U0001f600" * REQUEST_ID_LENGTH_MAX
DELETE_BYTES_MIN = len(msgspec.msgpack.encode({"type": "delete", "key": b""}))


def deletes(count: int, request_id: str, reads: int = 0) -> Transaction:
    return Transaction([Delete(b"")] * count, [PointRead(b"")] * reads, request_id, None, BASE)


def problem(txn: Transaction) -> HoldfastError | None:
    limits = {"operations_max": 1_000_000, "preconditions_max": 1_000_000}
    return problem_with(txn, leader_id="here", log_id="this", request_id_length_min=20, **limits)


@pytest.mark.parametrize("request_id", ["r" * 20, "ü" * 100, LONGEST])
def test_the_size_of_a_request_counts_its_id_once_for_each_row(request_id: str) -> None:
    txn = deletes(200, request_id, reads=100)
    nameless = Transaction(txn.operations, txn.preconditions, None, None, BASE)
    logged = LoggedTransaction(BASE + 1, request_id, BASE, txn.operations, txn.preconditions)
    assert repeated_bytes(txn) == 300 * len(request_id.encode())
    assert repeated_bytes(nameless) == 0
    assert request_bytes(txn) == request_bytes(nameless) + repeated_bytes(txn)
    assert len(encode_body([logged])) >= repeated_bytes(txn)


def test_a_batch_closes_by_what_the_ids_take_in_it() -> None:
    stage = pipeline()
    # The first is sent at once; the others wait, and leave as soon as they fill a batch.
    ids = [f"{number}".rjust(REQUEST_ID_LENGTH_MAX, "\U0001f600") for number in range(9)]
    first = stage.step(Arrived(at(0), [entry(deletes(1, "f" * 20))]))
    rest = stage.step(Arrived(at(0), [entry(deletes(600, name)) for name in ids]))
    assert len(puts([*first])) == 1
    assert [len(decode_body(put.data, decode_header(put.data, slot=put.slot))) for put in puts([*rest])] == [2, 2, 2, 2]
    assert all(len(put.data) < 2 << 20 for put in puts([*rest]))


def test_an_id_that_takes_too_much_in_the_log_is_too_large() -> None:
    rows = REPEATED_BYTES_MAX // len(LONGEST.encode())
    assert problem(deletes(rows, LONGEST)) is None
    assert problem(deletes(rows - 1, LONGEST, reads=1)) is None
    for refused in (deletes(rows + 1, LONGEST), deletes(rows, LONGEST, reads=1)):
        found = problem(refused)
        assert isinstance(found, LimitExceeded)
        assert found.code is Code.TOO_LARGE
        assert found.fields["bytes_max"] == REPEATED_BYTES_MAX


def test_no_ascii_id_is_too_large_in_a_request_of_the_default_size() -> None:
    rows = load_configuration(environ={}).settings.server.max_request_size_bytes // DELETE_BYTES_MIN
    assert problem(deletes(rows, "r" * REQUEST_ID_LENGTH_MAX)) is None


def configured(key: str, value: int) -> None:
    load_configuration(flags={key: str(value)}, environ={})


@pytest.mark.parametrize(
    ("key", "most"), [("server.max_request_size_bytes", 256 << 20), ("persist.batch_size_threshold", 1 << 30)]
)
def test_no_configured_size_lets_a_column_exceed_what_its_offsets_can_say(key: str, most: int) -> None:
    configured(key, most)
    with pytest.raises(InvalidRequest, match=key) as caught:
        configured(key, most + 1)
    assert caught.value.code is Code.BAD_CONFIGURATION
    # A batch is closed once it reaches its size, and the last commit comes on top of that.
    assert most + (256 << 20) + REPEATED_BYTES_MAX <= COLUMN_BYTES_MAX
