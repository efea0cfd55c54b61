"""A client of ``holdfast spark ingest``: one verdict for each request, in time or later. A program answers here."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import cast

import pytest
from tests.integration.test_stores_in_log import machines

from holdfast import Conflict, InvalidRequest, NotFound, OutcomeUnknown, StoreClient, Write, aio
from holdfast.client import CommitReceipt
from holdfast.client.stores import SparkCommitter, SubscriberOptions, define_spark_stores


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    root = tmp_path_factory.mktemp("serving")
    with machines(root, (root / "log").as_uri(), 1) as (machine,):
        machine.serve("--init")
        yield f"http://127.0.0.1:{machine.port}"


@pytest.fixture
def url(address: str) -> str:
    """One service for all tests, without the stores of the test before."""
    with StoreClient(address) as client:
        for store in ("requests", "verdicts"):
            with suppress(NotFound):
                client.delete_store(store)
    return address


@contextmanager
def answering(url: str, token: str | None = None) -> Iterator[None]:
    """Commits each request at the next version; the value ``conflict`` conflicts, and ``bad`` breaks a rule."""
    done = threading.Event()

    def answer() -> None:
        version = 0
        options = SubscriberOptions(explicit_ack=True)
        with (
            StoreClient(url, token=token) as client,
            client.publisher("verdicts") as publisher,
            client.subscriber("requests", "spark", options=options) as requests,
        ):
            while not done.is_set():
                message = requests.receive(timeout=0.1)
                if message is None:
                    continue
                value = json.loads(message.body)["operations"][0]["value"]
                version += 1
                verdict: dict[str, object] = {"status": "committed", "version": version, "leader_id": "l"}
                if value == "Y29uZmxpY3Q=":
                    verdict = {
                        "status": "not_committed", "reason": "conflict", "version": version,
                        "conflicts": [{"precondition": 0, "version": 7}],
                    }  # fmt: skip
                elif value == "YmFk":
                    verdict = {"error": {"code": "bad_range", "message": "begin must be below end"}}
                body = json.dumps(verdict).encode()
                publisher.publish(body, fields=message.fields, key=str(message.fields["request_id"]))
                requests.acknowledge(message)

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def test_each_verdict_reaches_who_sent_its_request(url: str) -> None:
    with StoreClient(url) as client:
        define_spark_stores(client)
        define_spark_stores(client)
        receipts: dict[int, CommitReceipt] = {}
        with answering(url), SparkCommitter(client) as committer, SparkCommitter(client) as other:

            def commit(number: int) -> None:
                one = committer if number % 2 else other
                receipts[number] = one.commit(
                    [Write(b"k%d" % number, b"v")], request_id=f"request-{number}", read_version=0
                )

            threads = [threading.Thread(target=commit, args=(number,)) for number in range(40)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert sorted(receipt.version for receipt in receipts.values()) == list(range(1, 41))
            with pytest.raises(Conflict) as conflict:
                committer.commit([Write(b"k", b"conflict")], read_version=3)
            assert conflict.value.fields["conflicts"] == ((0, 7),)
            with pytest.raises(InvalidRequest, match="begin must be below end"):
                committer.commit([Write(b"k", b"bad")])
        # A later reader finds the newest verdict of a request by its id.
        with client.subscriber("verdicts", "by-request", key="request-7") as verdicts:
            message = verdicts.receive(timeout=10)
            assert message is not None
            assert json.loads(message.body)["version"] == receipts[7].version


def test_tasks_share_a_committer(url: str) -> None:
    async def commit_many(url: str) -> list[CommitReceipt]:
        async with aio.StoreClient(url) as client:
            await aio.define_spark_stores(client)
            async with aio.SparkCommitter(client) as committer:
                with answering(url):
                    return await asyncio.gather(*(committer.commit([Write(b"k", b"v")]) for _ in range(50)))

    receipts = asyncio.run(commit_many(url))
    assert sorted(receipt.version for receipt in receipts) == list(range(1, 51))


def test_a_verdict_that_is_late_comes_when_it_is_asked_for_again(url: str) -> None:
    with StoreClient(url) as client:
        define_spark_stores(client)
        with SparkCommitter(client, name="desk") as committer:
            with pytest.raises(OutcomeUnknown) as late:
                committer.commit([Write(b"k", b"v")], request_id="the-first", read_version=0, timeout=0.3)
            assert late.value.fields["request_id"] == "the-first"
            committer.send([Write(b"k", b"v")], request_id="the-second", read_version=0)
            # The same attempt once more: Spark would answer both messages with one verdict.
            committer.send([Write(b"k", b"v")], request_id="the-first", read_version=0)
            with answering(url):
                assert committer.verdict("the-second").version == 2
                assert committer.verdict("the-first").version == 1


def test_a_verdict_that_no_caller_got_comes_to_the_next_of_its_name(url: str) -> None:
    with StoreClient(url) as client:
        define_spark_stores(client)
        with answering(url):
            with SparkCommitter(client, name="desk") as before:
                for name in ("received", "wanted", "in-flight"):
                    before.send([Write(b"k", b"v")], request_id=name, read_version=0)
                # This receives the verdict of the first request, too.
                assert before.verdict("wanted").version == 2
            with SparkCommitter(client, name="desk") as after:
                assert after.verdict("in-flight").version == 3
                assert after.verdict("received").version == 1
                with pytest.raises(OutcomeUnknown):
                    after.verdict("wanted", timeout=0.3)


def test_requests_that_nobody_would_keep_are_refused(url: str) -> None:
    with StoreClient(url) as client:
        define_spark_stores(client)
        client.delete_durable("requests", "spark")
        with SparkCommitter(client) as committer, pytest.raises(NotFound, match="no durable keeps the requests"):
            committer.commit([Write(b"k", b"v")])
        with pytest.raises(NotFound) as missing, SparkCommitter(client, verdicts="nowhere"):
            pass
        assert "spark ingest" in missing.value.hint and "define_spark_stores" in missing.value.hint
        with SparkCommitter(client, requests="nowhere") as committer, pytest.raises(NotFound) as missing:
            committer.commit([Write(b"k", b"v")])
        assert "define_spark_stores" in missing.value.hint


def test_only_a_request_that_was_dropped_is_refused_as_dropped(url: str) -> None:
    async def send_many(url: str) -> tuple[list[str | BaseException], set[str]]:
        async with aio.StoreClient(url) as client:
            await aio.define_spark_stores(client, requests=None)
            matched = {"type": "standard", "prefetch": 0, "matcher": {"request_id": {"prefix": "kept"}}}
            await client.define_store("requests", {"durables": {"spark": matched}})
            names = [f"{kind}-{number}" for number in range(20) for kind in ("kept", "dropped")]
            async with aio.SparkCommitter(client) as committer:
                sent = await asyncio.gather(
                    *(committer.send([Write(b"k", b"v")], request_id=name, read_version=0) for name in names),
                    return_exceptions=True,
                )
            browsed = {str(message.fields["request_id"]) async for message in client.browser("requests", "spark")}
            return sent, browsed

    sent, kept = asyncio.run(send_many(url))
    refused = [result for result in sent if isinstance(result, BaseException)]
    assert refused, "requests that were sent together have one count"
    assert {type(error) for error in refused} <= {OutcomeUnknown, NotFound}
    for error in refused:
        if isinstance(error, NotFound):
            assert error.fields["request_id"] not in kept
    assert kept == {f"kept-{number}" for number in range(20)}


def test_the_stores_bound_requests_and_leave_room_for_verdicts(url: str) -> None:
    with StoreClient(url) as client:
        define_spark_stores(client)
        definition = cast("dict[str, dict[str, dict[str, int]]]", client.definition()["definition"])
        assert definition["stores"]["requests"]["bytelimit"] == 1 << 30
        assert definition["stores"]["verdicts"]["bytelimit"] == 0
