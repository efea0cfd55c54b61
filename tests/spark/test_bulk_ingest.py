"""A stream of commit requests: the service's verdicts, each request once whatever dies, ids that stay known."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import msgspec
import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from tests.matrix import matrix
from tests.spark.bulk_requests import SCHEMA, Request, as_transaction, draw_requests
from tests.spark.service_process import ServiceProcess
from tests.spark.test_bulk_load import Killed, live, transactions

from holdfast.commit.format.transaction import Delete, JobChange, PointRead, RangeDelete, RangeRead, Transaction, Write
from holdfast.commit.stages.attempts import Attempts
from holdfast.commit.stages.events import CommitEntry
from holdfast.commit.stages.resolve import Resolve
from holdfast.commit.stages.sequence import Sequence as SequenceStage
from holdfast.errors import Closed, InvalidRequest
from holdfast.spark import audit
from holdfast.spark.bulk.leadership import LeadershipOptions
from holdfast.spark.bulk.requests import ParsedRequest, RequestFormat
from holdfast.spark.ingest import micro_batches, verdict_output
from holdfast.spark.ingest.ingest import Ingest
from holdfast.spark.ingest.record import GroupRecord, requests_digest

COLUMNS = "order int, key string, value string, request_id string, read_version string"
PROVE = bool(os.environ.get("HOLDFAST_PROVE"))
POLITE = LeadershipOptions(sign_interval_ms=50.0)


def an_ingest(root: Path, *, group_requests: int = 10) -> Ingest:
    log, verdicts = (root / "log").as_uri(), (root / "verdicts").as_uri()
    return Ingest(log, verdicts, "orders", leading=POLITE, group_requests=group_requests)


def rows_of(root: Path) -> list[dict[str, object]]:
    table = DeltaTable(str(root / "verdicts")).to_pyarrow_table()
    rows: list[dict[str, object]] = table.to_pylist()
    return sorted(rows, key=lambda row: (int(str(row["order"])), str(row["position"])))


def values_of(root: Path) -> list[bytes]:
    """The values that requests wrote, in log order."""
    found = [each for txn in transactions(root / "log") for each in txn.operations if isinstance(each, Write)]
    return [each.value for each in found]


def batch(spark: SparkSession, first: int, past: int) -> DataFrame:
    rows = [(place, f"key/{place % 7}", f"value {place}", None, None) for place in range(first, past)]
    return spark.createDataFrame(rows, COLUMNS)


def deaths() -> Iterator[tuple[str, int]]:
    """Every place at which a micro-batch of five groups can die: in a PUT, before or after it, and before the table."""
    numbers = range(5) if PROVE else (0, 2, 4)
    yield from (("before", number) for number in numbers)
    yield from (("after", number) for number in numbers)
    yield "table", 0


@pytest.mark.matrix
@pytest.mark.parametrize("death", [*deaths()])
def test_a_micro_batch_killed_anywhere_is_replayed_and_each_request_counts_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, death: tuple[str, int]
) -> None:
    kind, number = death
    first = an_ingest(tmp_path)
    first.micro_batch(batch(spark, 0, 20), 0)
    if kind == "table":
        monkeypatch.setattr(verdict_output, "write_table", _dies)
    else:
        monkeypatch.setattr(micro_batches, "put_batch", _Dying(kind, number).put_batch)
    with pytest.raises(Killed):
        first.micro_batch(batch(spark, 20, 70), 1)
    monkeypatch.undo()
    second = an_ingest(tmp_path)
    second.micro_batch(batch(spark, 20, 70), 1)
    second.micro_batch(batch(spark, 20, 70), 1)
    second.micro_batch(batch(spark, 70, 75), 2)
    second.close()
    assert values_of(tmp_path) == [b"value %d" % place for place in range(75)]
    rows = rows_of(tmp_path)
    assert [row["order"] for row in rows] == [str(place) for place in range(75)]
    committed = {each.version for each in transactions(tmp_path / "log")}
    assert {row["version"] for row in rows} <= committed and len({row["version"] for row in rows}) == 75
    assert audit(spark, (tmp_path / "log").as_uri()).findings == []


def _dies(*_: object) -> None:
    raise Killed("before the table")


class _Dying:
    """PUTs of which the ``number``-th kills the driver, before or after it is carried out."""

    def __init__(self, kind: str, number: int) -> None:
        self._kind = kind
        self._left = number
        self._real = micro_batches.put_batch

    async def put_batch(self, store: object, header: object, data: bytes) -> None:
        self._left -= 1
        if self._left < 0 and self._kind == "before":
            raise Killed("before a put")
        await self._real(store, header, data)  # type: ignore[arg-type]
        if self._left < 0:
            raise Killed("after a put")


@pytest.mark.matrix
def test_an_id_is_known_within_a_micro_batch_across_them_and_after_a_restart(
    spark: SparkSession, tmp_path: Path
) -> None:
    ingest = an_ingest(tmp_path)
    ingest.micro_batch(batch(spark, 0, 1), 0)
    base = live(tmp_path / "log")[0].header.last_version
    attempt = ("again", "request-0000000000000001", str(base))

    def offered(*rows: tuple[str, str, str]) -> DataFrame:
        return spark.createDataFrame([(10 + n, "k", *row) for n, row in enumerate(rows)], COLUMNS)

    ingest.micro_batch(offered(attempt, attempt, ("other", *attempt[1:])), 1)
    ingest.micro_batch(offered(attempt, ("other", *attempt[1:])), 2)
    ingest.close()
    after = an_ingest(tmp_path)
    after.micro_batch(offered(attempt, ("other", *attempt[1:])), 3)
    after.close()
    rows = [row for row in rows_of(tmp_path) if row["request_id"] is not None]
    committed = [row for row in rows if row["outcome"] == "committed"]
    assert len(committed) == 4 and len({row["version"] for row in committed}) == 1
    assert [row["code"] for row in rows if row["outcome"] == "invalid"] == ["request_id_reused"] * 3
    assert values_of(tmp_path).count(b"again") == 1


@pytest.mark.matrix  # test_refused_checkpoint plays it without Spark
def test_a_stream_that_lost_its_checkpoint_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    ingest = an_ingest(tmp_path)
    ingest.micro_batch(batch(spark, 0, 5), 0)
    ingest.micro_batch(batch(spark, 5, 9), 1)
    ingest.close()
    again = Ingest((tmp_path / "log").as_uri(), (tmp_path / "other").as_uri(), "orders", leading=POLITE)
    with pytest.raises(InvalidRequest, match="further than its checkpoint"):
        again.micro_batch(batch(spark, 0, 5), 0)
    again.close()


@pytest.mark.matrix  # test_numbered_ingest counts each once
def test_requests_with_ids_are_offered_again_under_another_name_and_committed_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The way on for files whose checkpoint is lost: here the job was killed between the log and the verdicts."""
    first = an_ingest(tmp_path)
    first.micro_batch(batch(spark, 0, 1), 0)
    base = live(tmp_path / "log")[0].header.last_version
    rows = [(place, "key", f"value {place}", f"request-{place:020}", str(base)) for place in range(1, 6)]
    frame = spark.createDataFrame(rows, COLUMNS)
    with monkeypatch.context() as patch:
        patch.setattr(verdict_output, "write_table", _dies)
        with pytest.raises(Killed):
            first.micro_batch(frame, 1)
    again = Ingest((tmp_path / "log").as_uri(), (tmp_path / "verdicts-2").as_uri(), "orders-2", leading=POLITE)
    again.micro_batch(frame, 0)
    again.close()
    assert again.counts.committed == 5
    assert values_of(tmp_path) == [b"value %d" % place for place in range(6)]


class Frame:
    """A micro-batch without Spark: as much of a data frame as an ingest asks for itself."""

    sparkSession = None  # noqa: N815  Spark's name

    def __init__(self, first: int, past: int) -> None:
        self.requests = [
            ParsedRequest(str(place), None, Transaction([Write(b"key", b"value %d" % place)]), None)
            for place in range(first, past)
        ]


def test_an_object_holds_no_more_bytes_than_its_bound_and_one_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Ingest, "_requests", lambda _, frame: frame.requests)
    monkeypatch.setattr(micro_batches, "GROUP_BYTES", 300_000)
    frame = Frame(0, 0)
    values = [bytes(size) for size in (100_000, 100_000, 100_000, 700_000, 1, 1, 299_000, 200_000, 200_000)]
    for place, value in enumerate(values):
        frame.requests.append(ParsedRequest(str(place), None, Transaction([Write(b"key", value)]), None))
    ingest = an_ingest(tmp_path, group_requests=5_000)
    ingest.micro_batch(cast("DataFrame", frame), 0)
    ingest.close()
    assert values_of(tmp_path) == values
    objects = [path.stat().st_size for path in (tmp_path / "log" / "batches").iterdir()]
    assert len([size for size in objects if size > 10_000]) == 4
    assert max(objects) < 300_000 + 700_000


def test_an_ingest_is_refused_while_a_service_leads_and_nothing_is_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Ingest, "_requests", lambda _, frame: frame.requests)
    (tmp_path / "log").mkdir()
    ingest = an_ingest(tmp_path)
    with ServiceProcess(tmp_path / "log") as service:
        with pytest.raises(Closed, match="a service leads this log") as refused:
            ingest.micro_batch(cast("DataFrame", Frame(0, 5)), 0)
        assert "step_down=True" in refused.value.hint and service.address in refused.value.hint
        assert service.process.poll() is None
    ingest.micro_batch(cast("DataFrame", Frame(0, 5)), 0)
    ingest.close()
    assert values_of(tmp_path) == [b"value %d" % place for place in range(5)]


@pytest.mark.parametrize("offered", matrix([(0, 13), (0, 5)]))
def test_a_new_checkpoint_is_refused_by_the_table_too_and_nothing_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, offered: tuple[int, int]
) -> None:
    """The stream begins at 0 again, with files that were never offered among the first ones: none may be left out."""
    monkeypatch.setattr(Ingest, "_requests", lambda _, frame: frame.requests)
    ingest = an_ingest(tmp_path)
    for number, frame in enumerate((Frame(0, 5), Frame(5, 9), Frame(9, 9))):
        ingest.micro_batch(cast("DataFrame", frame), number)
        ingest.micro_batch(cast("DataFrame", frame), number)  # as Spark repeats the last one
    ingest.close()
    again = an_ingest(tmp_path)
    with pytest.raises(InvalidRequest, match="further than its checkpoint"):
        again.micro_batch(cast("DataFrame", Frame(*offered)), 0)
    again.micro_batch(cast("DataFrame", Frame(9, 9)), 2)
    again.micro_batch(cast("DataFrame", Frame(9, 11)), 3)
    again.close()
    assert values_of(tmp_path) == [b"value %d" % place for place in range(11)]


@pytest.mark.parametrize("count", matrix([4, 6]))
def test_the_last_micro_batch_comes_again_with_the_same_requests_or_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.setattr(Ingest, "_requests", lambda _, frame: frame.requests)
    ingest = an_ingest(tmp_path, group_requests=2)
    ingest.micro_batch(cast("DataFrame", Frame(0, 5)), 0)
    ingest.close()
    for verdicts in ("verdicts", "other"):
        again = Ingest((tmp_path / "log").as_uri(), (tmp_path / verdicts).as_uri(), "orders", leading=POLITE)
        if (verdicts, count) != ("other", 6):  # more requests than are settled may be those that a crash left
            with pytest.raises(InvalidRequest, match="further than its checkpoint"):
                again.micro_batch(cast("DataFrame", Frame(0, count)), 0)
        again.micro_batch(cast("DataFrame", Frame(0, 5)), 0)
        again.close()
    assert values_of(tmp_path) == [b"value %d" % place for place in range(5)]


def other_id(request: ParsedRequest) -> ParsedRequest:
    txn = request.transaction
    assert txn is not None
    named = msgspec.structs.replace(txn, request_id="request-0000000000000001", read_version=0)
    return msgspec.structs.replace(request, request_id=named.request_id, transaction=named)


def other_value(request: ParsedRequest) -> ParsedRequest:
    return msgspec.structs.replace(request, transaction=Transaction([Write(b"key", b"another")]))


def other_order(request: ParsedRequest) -> ParsedRequest:
    return msgspec.structs.replace(request, order=request.order + "0")


@pytest.mark.parametrize("other", matrix([other_id, other_value, other_order]))
@pytest.mark.parametrize("verdicts", matrix(["verdicts", "other"]))
def test_other_requests_under_the_number_that_is_settled_are_refused_however_many_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verdicts: str, other: Callable[[ParsedRequest], ParsedRequest]
) -> None:
    """Where a run is one micro-batch, a lost checkpoint shows in the requests alone: by the table, and before it."""
    monkeypatch.setattr(Ingest, "_requests", lambda _, frame: frame.requests)
    ingest = an_ingest(tmp_path, group_requests=2)
    ingest.micro_batch(cast("DataFrame", Frame(0, 5)), 0)
    ingest.close()
    offered = Frame(0, 5)
    offered.requests[3] = other(offered.requests[3])
    again = Ingest((tmp_path / "log").as_uri(), (tmp_path / verdicts).as_uri(), "orders", leading=POLITE)
    with pytest.raises(InvalidRequest, match="further than its checkpoint"):
        again.micro_batch(cast("DataFrame", offered), 0)
    again.micro_batch(cast("DataFrame", Frame(0, 5)), 0)
    again.close()
    assert values_of(tmp_path) == [b"value %d" % place for place in range(5)]


def test_a_record_covers_the_requests_of_its_digest() -> None:
    requests = Frame(0, 5).requests
    lost = msgspec.json.decode(b'{"batch":0,"first":3,"told":[[null,7,[]],[null,8,[]]],"format":1}', type=GroupRecord)
    assert lost.covers(requests) and not lost.covers(requests[:4])
    new = GroupRecord(0, 3, lost.outcomes, requests_digest(requests[3:]))
    assert new.covers(requests) and not new.covers(Frame(1, 6).requests)
    assert msgspec.json.decode(msgspec.json.encode(new), type=GroupRecord) == new


def test_the_digest_of_requests_is_kept_in_logs_and_never_changes() -> None:
    reads = [PointRead(b"a"), RangeRead(b"b", None, 3)]
    changes = [Write(b"a", b"1"), Delete(b"b"), RangeDelete(b"c", None)]
    txn = Transaction(changes, reads, "request-0000000000000001", None, 7)
    requests = [
        ParsedRequest("1", txn.request_id, txn, None),
        ParsedRequest("2", None, None, "bad_range"),
        *Frame(3, 4).requests,
    ]
    assert requests_digest(requests) == "959b19e64160a01f8ce4b274b73ba9e1"


@pytest.mark.matrix  # the verdicts: an_ingest_tells_what_the_leaders_stages_tell
def test_conflicts_are_found_across_micro_batches_as_the_service_finds_them(
    spark: SparkSession, tmp_path: Path
) -> None:
    ingest = an_ingest(tmp_path)
    ingest.micro_batch(batch(spark, 0, 3), 0)
    base = live(tmp_path / "log")[0].header.last_version
    reads = "array<struct<key:string,end:string,version:string>>"
    frame = spark.createDataFrame(
        [(10, "x", "1", str(base), [("key/1", None, None)]), (11, "x", "2", str(base), [("key/5", "key/6", None)])],
        f"order int, key string, value string, read_version string, preconditions {reads}",
    )
    ingest.micro_batch(frame, 1)
    ingest.close()
    rows = rows_of(tmp_path)[-2:]
    assert [(row["code"], row["conflicts"]) for row in rows] == [
        ("conflict", [{"precondition": 0, "version": base + 2}]),
        (None, []),
    ]


def test_a_key_that_is_no_base64_ends_the_stream_and_is_named(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.createDataFrame([(1, "YQ-_", "Yg==")], "order int, key string, value string")
    log, verdicts = (tmp_path / "log").as_uri(), (tmp_path / "verdicts").as_uri()
    ingest = Ingest(log, verdicts, "orders", request_format=RequestFormat(text="base64"), leading=POLITE)
    with pytest.raises(InvalidRequest, match=r"not base64.*YQ-_"):
        ingest.micro_batch(frame, 0)
    ingest.close()


@pytest.mark.matrix  # test_refused_checkpoint and test_numbered_ingest go on from one
def test_files_that_come_later_are_taken_up_from_the_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "requests"
    folder.mkdir()
    schema = "order bigint, key string, value string"

    def run() -> int:
        ingest = an_ingest(tmp_path)
        stream = spark.readStream.schema(schema).option("maxFilesPerTrigger", "1").json(str(folder))
        writer = stream.writeStream.foreachBatch(ingest.micro_batch)
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
        assert query.awaitTermination(90), query.status
        ingest.close()
        return ingest.counts.committed

    for number in range(3):
        lines = [json.dumps({"order": 10 * number + n, "key": "k", "value": f"{number}/{n}"}) for n in range(4)]
        (folder / f"{number}.json").write_text("\n".join(lines))
        assert run() == 4
    assert values_of(tmp_path) == [b"%d/%d" % (number, n) for number in range(3) for n in range(4)]
    assert len(rows_of(tmp_path)) == 12


@pytest.mark.parametrize("seed", matrix([1, 2]))
def test_an_ingest_tells_what_the_leaders_stages_tell(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    """Requests that name versions of the log, cut into micro-batches and groups anyhow."""
    ingest = an_ingest(tmp_path, group_requests=17)
    ingest.micro_batch(batch(spark, 0, 0), 0)
    base = live(tmp_path / "log")[0].header.last_version
    requests = draw_requests(seed, 120, keys=20, odd=False)
    assert any(is_range and end is None for each in requests for _, end, is_range, _ in each.reads)
    assert any(isinstance(op, RangeDelete) and op.end is None for each in requests for op in each.operations)
    # A record takes a version behind each group, so what was read is named as what the log had by then.
    assigned = [base]
    expected: list[str] = []
    attempts = Attempts(bytes_max=2**40)
    sequence, resolve = SequenceStage(base, attempts), Resolve(base, attempts, window_ms=1e12, bytes_max=2**40)
    plain: list[Request] = []
    for place, request in enumerate(requests):
        txn = as_transaction(request, assigned)
        at = [None if each.version is None else str(each.version) for each in txn.preconditions]
        reads = tuple((*read[:3], version) for read, version in zip(request.reads, at, strict=True))
        plain.append(replace(request, reads=reads, read_version=str(txn.read_version)))
        entry = CommitEntry(txn, lambda _: None)
        resolve.decide(sequence.order([entry], resolve.floor)[0])
        expected.append("committed" if entry.accepted else getattr(entry.outcome, "reason", "follower"))
        assigned.append(sequence.assigned)
        if (place % 60) % 17 == 16 or place % 60 == 59:
            record = CommitEntry(Transaction([]), lambda _: None)
            resolve.decide(sequence.order([record], resolve.floor)[0])
            assigned[-1] = sequence.assigned
    for number in (1, 2):
        part = plain[60 * (number - 1) : 60 * number]
        rows = [request.row(60 * number + place) for place, request in enumerate(part)]
        ingest.micro_batch(spark.createDataFrame(rows, SCHEMA), number)
    ingest.close()
    assert [row["code"] or "committed" for row in rows_of(tmp_path)] == expected
    assert {"committed", "conflict"} <= set(expected)
    assert audit(spark, (tmp_path / "log").as_uri()).findings == []


def test_a_request_reads_and_deletes_every_key_and_reaches_no_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record was a key: such reads conflicted with it, such deletes were refused, and a service takes both."""
    monkeypatch.setattr(Ingest, "_requests", lambda _, frame: frame.requests)
    ingest = an_ingest(tmp_path, group_requests=2)
    ingest.micro_batch(cast("DataFrame", Frame(0, 2)), 0)
    at = live(tmp_path / "log")[-1].header.last_version
    of_keys = RangeRead(b"spark/ingest/", b"spark/ingest0")
    reads = [RangeRead(b""), RangeRead(b"a", None), of_keys, RangeRead(b"ingest/")]
    ops = [RangeDelete(b""), Delete(b"ingest/orders"), Write(b"ingest/orders", b"v"), RangeDelete(b"ingest/", None)]
    frame = Frame(0, 0)
    for place, (read, operation) in enumerate(zip(reads, ops, strict=True)):
        # Each reads what the one before it left: the version of that, or of the group's record, if one came between.
        txn = Transaction([operation], [read], read_version=at + place + place // 2)
        frame.requests.append(ParsedRequest(str(10 + place), None, txn, None))
    named = Transaction([], jobs=(JobChange("ingest/orders", b"forged", at),))
    frame.requests.append(ParsedRequest("20", None, named, None))
    ingest.micro_batch(cast("DataFrame", frame), 1)
    ingest.close()
    codes = {row["order"]: row["code"] for row in rows_of(tmp_path)}
    assert codes == {**dict.fromkeys(("0", "1", "10", "11", "12", "13")), "20": "permission_denied"}
    committed = [txn for txn in transactions(tmp_path / "log") if txn.operations]
    again = an_ingest(tmp_path, group_requests=2)
    again.micro_batch(cast("DataFrame", frame), 1)
    again.close()
    found = [txn for txn in transactions(tmp_path / "log") if txn.operations]
    assert found == committed, "its record is there, and nothing is decided again"
