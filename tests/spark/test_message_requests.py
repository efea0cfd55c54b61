"""Requests that come as messages: the service's verdict for each, once, in a store; whatever a message holds."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.matrix import matrix
from tests.spark.service_process import NO_VIEW, ServiceProcess
from tests.spark.test_bulk_load import live

from holdfast import StoreClient
from holdfast.client.stores import Message, Receipt
from holdfast.client.sync.publisher import Publisher
from holdfast.commit.reading.status import AttemptHistory, FirstCommit
from holdfast.errors import Closed, Code, InvalidRequest, NotFound
from holdfast.spark.bulk.leadership import LeadershipOptions
from holdfast.spark.ingest.ingest import Ingest
from holdfast.spark.ingest.numbered_source import requests_in
from holdfast.spark.ingest.verdict_output import VerdictStore

POLITE = LeadershipOptions(sign_interval_ms=50.0)
COLUMNS = "seq long, body binary, fields string"


def text64(text: str) -> str:
    return b64encode(text.encode()).decode()


def write(key: str, value: str = "v") -> dict[str, str]:
    return {"type": "write", "key": text64(key), "value": text64(value)}


def read(key: str) -> dict[str, str]:
    return {"type": "point_read", "key": text64(key)}


def messages(spark: SparkSession, bodies: Sequence[bytes], first: int = 1) -> DataFrame:
    rows = [(seq, body, json.dumps({"client": "ann", "n": seq})) for seq, body in enumerate(bodies, first)]
    # Spark may give them in any order.
    return spark.createDataFrame(list(reversed(rows)), COLUMNS)


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    with ServiceProcess(tmp_path_factory.mktemp("served"), NO_VIEW) as started:
        yield started


@pytest.fixture
def service(serving: ServiceProcess) -> ServiceProcess:
    """One service for all tests, whose store ``verdicts`` is new and keeps everything."""
    with StoreClient(serving.url) as client:
        with suppress(NotFound):
            client.delete_store("verdicts")
        client.define_store("verdicts")
        client.define_durable("verdicts", "all", {"type": "shared"})
    return serving


def an_ingest(root: Path, service: ServiceProcess, *, group_requests: int = 10) -> Ingest:
    output = VerdictStore(service.url, "verdicts")
    log = (root / "log").as_uri()
    return Ingest(log, output, "orders", request_format=None, leading=POLITE, group_requests=group_requests)


def verdicts_of(service: ServiceProcess) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Fields and body of each verdict, in the order of the store."""
    with StoreClient(service.url) as client:
        found = list(client.browser("verdicts", "all"))
    return [(dict(each.fields), json.loads(each.body)) for each in found]


def post(service: ServiceProcess, body: bytes) -> dict[str, Any]:
    """The service's own answer to this request."""
    request = urllib.request.Request(f"{service.url}/v1/commit", body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return dict(json.loads(answer.read()))
    except urllib.error.HTTPError as error:
        return dict(json.loads(error.read()))


WRONG: dict[str, bytes] = {
    "not json": b"order 2 coffees",
    "empty": b"",
    "another type": b"[1, 2]",
    "unknown field": json.dumps({"operations": [write("k")], "extra": 1}).encode(),
    "bad base64": json.dumps({"operations": [{"type": "write", "key": "a!", "value": ""}]}).encode(),
    "no operations": json.dumps({"operations": []}).encode(),
    "bad range": json.dumps({"operations": [{"type": "range_delete", "begin": "Yg==", "end": "YQ=="}]}).encode(),
    "no read version": json.dumps({"operations": [write("k")], "preconditions": [read("k")]}).encode(),
    "short id": json.dumps({"operations": [write("k")], "request_id": "short", "read_version": 0}).encode(),
    "id without version": json.dumps({"operations": [write("k")], "request_id": "r" * 20}).encode(),
    "future version": json.dumps(
        {"operations": [write("k")], "preconditions": [read("k")], "read_version": 2**52}
    ).encode(),
    "another log": json.dumps({"operations": [write("k")], "log_id": "ab" * 16, "read_version": 1}).encode(),
    "another leader": json.dumps({"operations": [write("k")], "leader_id": "ab" * 16}).encode(),
    "parts of stores": json.dumps(
        {"operations": [write("k")], "publish": [{"store": "verdicts", "messages": [{"body": ""}]}]}
    ).encode(),
    "too many operations": json.dumps({"operations": [write("k")] * 10_001}).encode(),
    "not utf-8": b'{"operations": "\xff"}',
    "a long unknown field": json.dumps({"operations": [write("k")], "x" * 100_000: 1}).encode(),
}


def test_a_message_that_is_no_request_gets_the_code_of_the_service_and_blocks_nothing(
    spark: SparkSession, tmp_path: Path, service: ServiceProcess
) -> None:
    good = json.dumps({"operations": [write("good")]}).encode()
    bodies = [each for wrong in WRONG.values() for each in (wrong, good)]
    ingest = an_ingest(tmp_path, service)
    ingest.micro_batch(messages(spark, bodies), 0)
    ingest.close()
    found = verdicts_of(service)
    assert [fields["n"] for fields, _ in found] == list(range(1, len(bodies) + 1))
    assert all(fields["client"] == "ann" for fields, _ in found)
    for name, (_, verdict), (_, after) in zip(WRONG, found[::2], found[1::2], strict=True):
        expected = post(service, WRONG[name])["error"]["code"]
        assert verdict["error"]["code"] == expected, name
        assert 0 < len(verdict["error"]["message"]) <= 500, name
        assert after["status"] == "committed"
    assert ingest.counts.committed == ingest.counts.invalid == len(WRONG)


def test_a_request_cannot_write_the_record_of_its_ingest(
    spark: SparkSession, tmp_path: Path, service: ServiceProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be taken for what the killed run had decided: the last request would be said to be committed."""
    forged = json.dumps({"batch": 0, "first": 2, "told": [[None, 7, []]]})
    job = {"name": "ingest/orders", "value_text": forged, "version": 1}
    asked = [{"operations": [write("a", "1")]}, {"operations": [], "jobs": [job]}, {"operations": [write("c", "3")]}]
    bodies = [json.dumps(each).encode() for each in asked]
    first = an_ingest(tmp_path, service, group_requests=1)
    monkeypatch.setattr(VerdictStore, "write", _dies)
    with pytest.raises(Killed):
        first.micro_batch(messages(spark, bodies), 0)
    monkeypatch.undo()
    second = an_ingest(tmp_path, service, group_requests=1)
    second.micro_batch(messages(spark, bodies), 0)
    second.close()
    found = [verdict for _, verdict in verdicts_of(service)]
    assert [verdict.get("status") for verdict in found] == ["committed", None, "committed"]
    assert found[1]["error"]["code"] == "permission_denied"
    committed = [each for each in live(tmp_path / "log") for each in each.transactions]
    assert {each.version for each in committed} >= {found[0]["version"], found[2]["version"]}


def _dies(*_: object) -> None:
    raise Killed


def test_verdicts_are_published_by_a_new_publisher_after_a_silence_and_elsewhere(
    spark: SparkSession, tmp_path: Path, service: ServiceProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store forgets a publisher, and another output has had verdicts meanwhile: neither may stop the stream."""
    bodies = [json.dumps({"operations": [write(f"k{number}")]}).encode() for number in range(40)]
    ingest = an_ingest(tmp_path, service)
    ingest.micro_batch(messages(spark, bodies[:10]), 0)
    monkeypatch.setattr("holdfast.spark.ingest.micro_batches.LIFE_SILENCE_MS", -1.0)
    ingest.micro_batch(messages(spark, bodies[10:20], 11), 1)
    ingest.close()
    log, table = (tmp_path / "log").as_uri(), (tmp_path / "verdicts").as_uri()
    elsewhere = Ingest(log, table, "orders", request_format=None, leading=POLITE)
    elsewhere.micro_batch(messages(spark, bodies[20:30], 21), 2)
    elsewhere.close()
    again = an_ingest(tmp_path, service)
    again.micro_batch(messages(spark, bodies[30:], 31), 3)
    again.close()
    assert [fields["n"] for fields, _ in verdicts_of(service)] == [*range(1, 21), *range(31, 41)]
    with StoreClient(service.url) as client:
        assert client.describe_store("verdicts")["counts"]["publishers"] == 3


def test_a_verdict_without_an_id_has_the_number_of_its_message_as_key(
    spark: SparkSession, tmp_path: Path, service: ServiceProcess
) -> None:
    """A durable of type last_value, which ``define_spark_stores`` makes, keeps messages with keys only."""
    named = json.dumps({"client": "ann", "n": 2, "request_id": "by its field"})
    body = json.dumps({"operations": [write("k")]}).encode()
    frame = spark.createDataFrame([(1, body, None), (2, body, named)], COLUMNS)
    with StoreClient(service.url) as client:
        client.define_durable("verdicts", "by-request", {"type": "last_value"})
        ingest = an_ingest(tmp_path, service)
        ingest.micro_batch(frame, 0)
        ingest.close()
        assert [each.key for each in client.browser("verdicts", "by-request")] == ["#1", "by its field"]


@pytest.mark.parametrize(
    ("parameters", "said"),
    [({"durables": {}}, "no durable"), ({"publisher_mode": "store_send_noconfirm"}, "confirms no messages")],
)
def test_a_store_that_would_lose_verdicts_is_refused_before_anything_is_committed(
    spark: SparkSession, tmp_path: Path, service: ServiceProcess, parameters: dict[str, Any], said: str
) -> None:
    body = json.dumps({"operations": [write("k")]}).encode()
    with StoreClient(service.url) as client:
        client.delete_store("verdicts")
        client.define_store("verdicts", parameters)
        ingest = an_ingest(tmp_path, service)
        with pytest.raises(InvalidRequest, match=said):
            ingest.micro_batch(messages(spark, [body]), 0)
        ingest.close()
        assert [txn for each in live(tmp_path / "log") for txn in each.transactions] == []


def test_an_object_that_is_used_for_another_checkpoint_leaves_no_request_out(
    spark: SparkSession, tmp_path: Path, service: ServiceProcess
) -> None:
    bodies = [json.dumps({"operations": [write(f"k{number}")]}).encode() for number in range(2)]
    ingest = an_ingest(tmp_path, service)
    ingest.micro_batch(messages(spark, bodies[:1]), 0)
    ingest.micro_batch(messages(spark, bodies[:1]), 0)
    with pytest.raises(InvalidRequest, match="further than its checkpoint"):
        ingest.micro_batch(messages(spark, bodies[1:]), 0)
    ingest.close()
    assert len(verdicts_of(service)) == 1


def test_an_attempt_that_the_log_cannot_decide_any_more_blocks_nothing(
    spark: SparkSession, tmp_path: Path, service: ServiceProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def truncated(self: object, request_id: str, min_version: int, newest: object) -> FirstCommit:
        return FirstCommit(None, truncated=True)

    monkeypatch.setattr(AttemptHistory, "find", truncated)
    old = {"operations": [write("k")], "request_id": "r" * 20, "read_version": 1}
    bodies = [json.dumps(old).encode(), json.dumps({"operations": [write("k")]}).encode()]
    ingest = an_ingest(tmp_path, service)
    ingest.micro_batch(messages(spark, bodies), 0)
    ingest.close()
    (_, undecided), (_, committed) = verdicts_of(service)
    assert undecided["error"]["code"] == "log_truncated" and committed["status"] == "committed"


def test_requests_are_taken_in_the_order_of_their_numbers() -> None:
    bodies = [json.dumps({"operations": [write(str(seq))]}).encode() for seq in (3, 1, 2)]
    table = pa.table({"seq": [3, 1, 2], "body": bodies, "fields": pa.nulls(3, pa.string())})
    assert [each.order for each in requests_in(table)] == ["1", "2", "3"]


class Sides:
    """The same requests for Spark and for a service, whose versions are other numbers for the same places."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.spark: dict[int, int] = {}
        """Version by the number of the request that committed."""
        self.served: dict[int, int] = {}

    def body(self, number: int, items: dict[str, Any], after: int, versions: dict[int, int]) -> bytes:
        name = f"request-{self.seed}-{number:016}"
        return json.dumps({**items, "request_id": name, "read_version": versions[after]}).encode()


def plainly(verdict: dict[str, Any], versions: dict[int, int]) -> tuple[object, ...]:
    """A verdict without versions: the outcome, and by which request each precondition is broken."""
    if verdict["status"] == "committed":
        return ("committed",)
    numbers = {version: number for number, version in versions.items()}
    conflicts = [(each["precondition"], numbers[each["version"]]) for each in verdict["conflicts"]]
    return (verdict["status"], verdict["reason"], tuple(conflicts))


@pytest.mark.parametrize("seed", matrix(list(range(4))))
def test_every_verdict_is_the_one_of_the_service_for_the_same_order(
    spark: SparkSession, tmp_path: Path, service: ServiceProcess, seed: int
) -> None:
    random = Random(seed)
    sides = Sides(seed)
    ingest = an_ingest(tmp_path, service)
    begin = json.dumps({"operations": [write("begin")]}).encode()
    ingest.micro_batch(messages(spark, [begin]), 0)
    sides.spark[0] = verdicts_of(service)[0][1]["version"]
    sides.served[0] = post(service, begin)["version"]
    number = 0
    for micro_batch in range(1, 4):
        drawn: list[tuple[int, dict[str, Any], int]] = []
        known = sorted(sides.spark)
        for _ in range(25):
            number += 1
            keys = [f"k{random.randrange(30)}" for _ in range(4)]
            items = {
                "operations": [write(key) for key in keys[:2]],
                "preconditions": [read(key) for key in keys[2:]],
            }
            drawn.append((number, items, random.choice(known[-12:])))
        ingest.micro_batch(messages(spark, [sides.body(*one, sides.spark) for one in drawn], number), micro_batch)
        given = verdicts_of(service)[-len(drawn) :]
        for (own, items, after), (_, verdict) in zip(drawn, given, strict=True):
            answer = post(service, sides.body(own, items, after, sides.served))
            if answer["status"] == "committed":
                sides.served[own] = answer["version"]
                sides.spark[own] = verdict.get("version", -1)
            assert plainly(verdict, sides.spark) == plainly(answer, sides.served)
    ingest.close()
    assert {verdict["status"] for _, verdict in verdicts_of(service)} == {"committed", "not_committed"}


class Killed(Exception):
    """The driver dies here."""


@pytest.mark.parametrize("sent", matrix([7, 0, 15, 30]))
def test_a_driver_killed_while_it_reports_leaves_one_verdict_for_each_request(
    spark: SparkSession, tmp_path: Path, service: ServiceProcess, monkeypatch: pytest.MonkeyPatch, sent: int
) -> None:
    """It dies after ``sent`` of 30 verdicts; the log is further, and a second run repeats the micro-batch."""
    bodies = [json.dumps({"operations": [write(f"k{number}")]}).encode() for number in range(70)]
    first = an_ingest(tmp_path, service)
    first.micro_batch(messages(spark, bodies[:20]), 0)
    left, real = [sent], Publisher.publish_batch

    def dying(self: Publisher, batch: Sequence[Message]) -> Receipt:
        receipt = real(self, batch[: left[0]]) if left[0] else None
        left[0] -= len(batch)
        if left[0] < 0 or receipt is None:
            raise Killed
        return receipt

    monkeypatch.setattr(Publisher, "publish_batch", dying)
    if sent < 30:
        with pytest.raises(Killed):
            first.micro_batch(messages(spark, bodies[20:50], 21), 1)
    else:
        first.micro_batch(messages(spark, bodies[20:50], 21), 1)
        assert first._stages is not None
        first._abandon(first._stages)
    monkeypatch.undo()
    assert len(verdicts_of(service)) == 20 + sent
    second = an_ingest(tmp_path, service)
    second.micro_batch(messages(spark, bodies[20:50], 21), 1)
    second.micro_batch(messages(spark, bodies[50:], 51), 2)
    second.close()
    assert second.counts.found == 30
    found = verdicts_of(service)
    assert [fields["n"] for fields, _ in found] == list(range(1, 71))
    assert len({verdict["version"] for _, verdict in found}) == 70


def test_a_stream_that_begins_again_without_its_checkpoint_is_refused(
    spark: SparkSession, tmp_path: Path, service: ServiceProcess
) -> None:
    bodies = [json.dumps({"operations": [write(f"k{number}")]}).encode() for number in range(30)]
    ingest = an_ingest(tmp_path, service)
    for number in range(3):
        ingest.micro_batch(messages(spark, bodies[number * 10 : number * 10 + 10], number * 10 + 1), number)
    ingest.close()
    again = an_ingest(tmp_path, service)
    with pytest.raises(InvalidRequest, match="further than its checkpoint"):
        again.micro_batch(messages(spark, bodies[:10]), 0)
    again.close()
    assert len(verdicts_of(service)) == 30


def test_rows_that_are_no_messages_are_refused(spark: SparkSession, tmp_path: Path, service: ServiceProcess) -> None:
    ingest = an_ingest(tmp_path, service)
    with pytest.raises(InvalidRequest) as refused:
        ingest.micro_batch(spark.createDataFrame([(1, "a")], "order int, key string"), 0)
    assert refused.value.code == Code.BAD_CONFIGURATION
    assert "order, key" in str(refused.value.fields)
    ingest.close()


def test_a_store_of_verdicts_that_is_made_again_ends_the_stream_and_gets_nothing(
    spark: SparkSession, tmp_path: Path, service: ServiceProcess
) -> None:
    body = json.dumps({"operations": [write("k")]}).encode()
    ingest = an_ingest(tmp_path, service)
    ingest.micro_batch(messages(spark, [body]), 0)
    with StoreClient(service.url) as client:
        client.delete_store("verdicts")
        client.define_store("verdicts")
        client.define_durable("verdicts", "all", {"type": "shared"})
    with pytest.raises(Closed) as refused:
        ingest.micro_batch(messages(spark, [body], first=2), 1)
    assert refused.value.code is Code.STORE_REPLACED
    ingest.close()
    assert verdicts_of(service) == []
    again = an_ingest(tmp_path, service)
    again.micro_batch(messages(spark, [body], first=2), 1)
    again.close()
    assert len(verdicts_of(service)) == 1
