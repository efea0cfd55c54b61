"""What a transaction's reads leave behind, and how the loop goes on after a conflict."""

from __future__ import annotations

import base64
import dataclasses

import pytest
from tests.unit.client.conftest import QUICK
from tests.unit.client.scripted_server import Drop, Reply, ScriptedServer, coded
from tests.unit.client.test_commit_retries import VERSION, commits_of, committed, not_committed, status
from tests.view_events import apply_txns

from holdfast.client.protocol.transaction import SnapshotMoved, TransactionBuilder, ViewSource
from holdfast.commit.format.transaction import PointRead, RangeRead, Write
from holdfast.errors import Conflict
from holdfast.view import View


def value(key: bytes, text: bytes, version: int) -> Reply:
    return Reply(200, item(key, text, version))


def item(key: bytes, text: bytes, version: int) -> dict[str, object]:
    return {"key": base64.b64encode(key).decode(), "value": base64.b64encode(text).decode(), "version": version}


def increment(txn):
    found = yield txn.get(b"n")
    txn.write(b"n", b"%d" % (int(found or b"0") + 1))


def test_a_read_is_a_precondition_at_the_newer_of_its_version_and_the_read_version(connect):
    def body(txn):
        yield txn.get(b"new")
        yield txn.get(b"old")
        yield txn.get(b"absent")
        txn.write(b"k", b"v")

    script = (VERSION, value(b"new", b"2", 55), value(b"old", b"1", 8), coded(404, "not_found"), committed(60))
    with ScriptedServer(*script) as server:
        assert connect(server.url).transact(body).version == 60
        (sent,) = commits_of(server)
        versions = {read["key"]: read["version"] for read in sent["preconditions"]}
        assert versions == {"b2xk": 55, "bmV3": 55, "YWJzZW50": 55}
        assert [asked.target for asked in server.asked[1:4]] == [
            "/v1/keys/bmV3?at=50",
            "/v1/keys/b2xk?at=55",
            "/v1/keys/YWJzZW50?at=55",
        ]


def test_a_conflict_is_decided_anew_from_the_version_it_named(connect):
    script = (
        VERSION,
        value(b"n", b"1", 40),
        not_committed(70),
        value(b"n", b"2", 70),
        committed(71),
    )
    with ScriptedServer(*script) as server:
        assert connect(server.url).transact(increment).version == 71
        first, second = commits_of(server)
        assert (first["read_version"], second["read_version"]) == (50, 70)
        assert first["request_id"] != second["request_id"]
        assert second["operations"] == [{"type": "write", "key": "bg==", "value": "Mw=="}]


def test_an_unknown_outcome_that_was_a_commit_is_not_decided_again(connect):
    with ScriptedServer(VERSION, value(b"n", b"1", 40), Drop(), status("committed", 66)) as server:
        assert connect(server.url).transact(increment).version == 66
        assert len(commits_of(server)) == 1


def test_an_unknown_outcome_that_was_none_is_decided_again_without_another_question(connect):
    script = (
        VERSION,
        value(b"n", b"1", 40),
        Drop(),
        status("not_committed"),
        value(b"n", b"5", 79),
        committed(81),
    )
    with ScriptedServer(*script) as server:
        assert connect(server.url).transact(increment).version == 81
        assert commits_of(server)[1]["operations"] == [{"type": "write", "key": "bg==", "value": "Ng=="}]


def test_conflicts_without_end_end_with_the_conflict(connect):
    options = dataclasses.replace(QUICK, attempts_max=3)
    turns = [step for number in (70, 71, 72) for step in (value(b"n", b"1", 40), not_committed(number))]
    with ScriptedServer(VERSION, *turns) as server:
        with pytest.raises(Conflict):
            connect(server.url, options=options).transact(increment)
        assert len(commits_of(server)) == 3
        assert server.finished()


def test_what_the_function_raises_ends_the_transaction_without_a_commit(connect):
    def body(txn):
        yield txn.get(b"n")
        raise LookupError("no")

    with ScriptedServer(VERSION, value(b"n", b"1", 40)) as server:
        with pytest.raises(LookupError):
            connect(server.url).transact(body)
        assert commits_of(server) == []


def test_a_function_that_writes_nothing_commits_nothing(connect):
    def body(txn):
        return (yield txn.get(b"n"))

    with ScriptedServer(VERSION, value(b"n", b"1", 40)) as server:
        result = connect(server.url).transact(body)
        assert (result.value, result.version) == (b"1", None)


def test_a_transaction_sees_its_own_writes(connect):
    def body(txn):
        txn.write(b"b", b"own")
        txn.delete_range(b"d", b"f")
        txn.write(b"e", b"again")
        assert (yield txn.get(b"b")) == b"own"
        assert (yield txn.get(b"d")) is None
        assert (yield txn.get(b"e")) == b"again"
        return (yield txn.range(b"a", b"z"))

    rows = {"items": [item(b"a", b"1", 3), item(b"d", b"2", 4), item(b"y", b"3", 5)], "version": 52, "more": False}
    with ScriptedServer(VERSION, Reply(200, rows), committed(60)) as server:
        result = connect(server.url).transact(body)
        assert result.value == [(b"a", b"1"), (b"b", b"own"), (b"e", b"again"), (b"y", b"3")]
        (sent,) = commits_of(server)
        assert sent["preconditions"] == [{"type": "range_read", "begin": "YQ==", "end": "eg==", "version": 52}]


def test_a_range_that_was_cut_demands_no_more_than_was_read(connect):
    def body(txn):
        found = yield txn.range(b"a", None, 1)
        txn.write(b"k", b"v")
        return found

    rows = {"items": [item(b"c", b"1", 3)], "version": 50, "more": True}
    with ScriptedServer(VERSION, Reply(200, rows), committed(60)) as server:
        assert connect(server.url).transact(body).value == [(b"c", b"1")]
        (read,) = commits_of(server)[0]["preconditions"]
        assert base64.b64decode(read["end"]) == b"c\0"


def test_a_view_is_read_without_asking_the_service_and_waited_for_after_a_conflict(connect):
    view = View.memory()
    apply_txns(view, [(50, [Write(b"n", b"1")])], prev_version=0)

    def body(txn):
        found = yield txn.get(b"n")
        txn.write(b"n", b"%d" % (int(found) + 1))
        if txn.read_version == 50:  # what made the conflict arrives while the commit is on its way
            apply_txns(view, [(70, [Write(b"n", b"5")])], prev_version=50)

    with ScriptedServer(not_committed(70), committed(71)) as server:
        assert connect(server.url).transact(body, view=view).version == 71
        first, second = commits_of(server)
        assert first["preconditions"] == [{"type": "point_read", "key": "bg==", "version": 50}]
        assert second["preconditions"] == [{"type": "point_read", "key": "bg==", "version": 70}]
        assert second["operations"] == [{"type": "write", "key": "bg==", "value": "Ng=="}]


def read(procedure):
    with pytest.raises(StopIteration) as end:
        next(procedure)
    return end.value.value


def view_at_50():
    view = View.memory()
    apply_txns(view, [(50, [Write(b"m", b"0"), Write(b"n", b"1")])], prev_version=0)
    return view


def test_the_first_read_may_move_the_read_version_and_a_later_one_may_not():
    view = view_at_50()
    builder = TransactionBuilder(ViewSource(None, view), 40)  # type: ignore[arg-type]
    assert read(builder.reading(b"n", 0)) == b"1"
    assert builder.read_version == 50
    apply_txns(view, [(60, [Write(b"n", b"2")])], prev_version=50)
    assert read(builder.reading(b"m", 0)) == b"0"
    for reading in (builder.reading(b"n", 0), builder.reading_range(b"a", b"z", 5, 0)):
        with pytest.raises(SnapshotMoved):
            next(reading)
    assert builder.moved_to == 60
    assert builder.preconditions == [PointRead(b"n", 50), PointRead(b"m", 50)]


def test_a_range_is_unchanged_since_the_version_its_answer_vouches_for():
    view = view_at_50()
    apply_txns(view, [(60, [Write(b"z", b"")])], prev_version=50)
    builder = TransactionBuilder(ViewSource(None, view), 50)  # type: ignore[arg-type]
    assert read(builder.reading_range(b"a", b"o", 5, 0)) == [(b"m", b"0"), (b"n", b"1")]
    assert builder.preconditions == [RangeRead(b"a", b"o", 60)]


def test_a_function_led_astray_by_a_moving_state_runs_again_from_there(connect):
    def body(txn):
        one = yield txn.get(b"one")
        try:
            two = yield txn.get(b"two")
        except Exception as error:
            raise LookupError("the function's own idea of an error") from error
        assert one == two
        txn.write(b"k", one)

    script = (
        VERSION,
        value(b"one", b"1", 8),
        value(b"two", b"2", 55),
        value(b"one", b"2", 55),
        value(b"two", b"2", 55),
    )
    with ScriptedServer(*script, committed(60)) as server:
        assert connect(server.url).transact(body).version == 60
        (sent,) = commits_of(server)
        assert sent["read_version"] == 55


def test_a_transaction_that_began_at_an_old_position_reads_at_the_version_of_its_first_answer(connect):
    """Otherwise each of its keys could move it by a little, and it would run once for each."""

    def body(txn):
        for key in (b"one", b"two", b"three"):
            yield txn.get(key)
        txn.write(b"k", b"v")

    script = [
        Reply(200, item(*stored) | {"at": 90})
        for stored in ((b"one", b"1", 8), (b"two", b"2", 70), (b"three", b"3", 80))
    ]
    with ScriptedServer(committed(60), *script, committed(91)) as server:
        client = connect(server.url)
        client.call("commit", [Write(b"k", b"v")], read_version=50)
        assert client.transact(body).version == 91
        assert commits_of(server)[1]["read_version"] == 90


def test_what_was_demanded_of_a_key_is_not_softened_by_reading_it():
    builder = TransactionBuilder(ViewSource(None, view_at_50()), 50)  # type: ignore[arg-type]
    builder.require_unchanged(b"n", 45)
    assert read(builder.reading(b"n", 0)) == b"1"
    assert builder.preconditions == [PointRead(b"n", 45)]
