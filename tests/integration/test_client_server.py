"""The client against the real server: both shells, a takeover in the middle, and the embedded view."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator

import pytest
from tests.crash.server_process import ServerProcess
from tests.matrix import matrix
from tests.rgw import free_port

from holdfast import aio
from holdfast.client import Client, ClientOptions, CommitReceipt, NotCommitted, TransactionEvent
from holdfast.commit.format.transaction import Delete, PointRead, RangeDelete, RangeRead, Transaction, Write
from holdfast.errors import Code, Conflict, InvalidRequest
from holdfast.view import View

KILLS = 1 if os.environ.get("HOLDFAST_SMALL") == "1" else 2
PATIENT = ClientOptions(request_timeout_ms=5_000, retry_base_ms=5, retry_max_ms=200)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One server for all: each test has keys of its own, and the log is everybody's."""
    folder = tmp_path_factory.mktemp("server")
    process = ServerProcess(folder, (folder / "log").as_uri(), free_port(), flags=("--init",))
    try:
        process.wait_until_leading()
        yield process
    finally:
        process.kill()


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Client]:
    with Client(f"http://127.0.0.1:{server.port}", options=PATIENT) as made:
        yield made


def test_a_request_id_that_ends_as_base64_does_is_taken_with_the_log_id(client):
    read = client.version().version
    receipt = client.commit([Write(b"padded", b"1")], request_id="order-0000000000000003=", read_version=read)
    assert client.status("order-0000000000000003=", read).version == receipt.version
    one, two = client.commits_many(
        Transaction([Write(b"padded", b"2")], request_id=f"order-{number:016}{end}", read_version=read)
        for number, end in enumerate(["=", "=="])
    )
    assert isinstance(one, CommitReceipt)
    assert isinstance(two, CommitReceipt)


def test_a_commit_is_read_back_streamed_and_found_again(client):
    start = client.version().version
    operations = [Write(b"one/a", b"1"), Write(b"one/b", b"2"), Delete(b"one/a")]
    receipt = client.commit(operations, request_id="a-request-id-of-my-own")
    assert client.version().version >= receipt.version > start
    assert client.get(b"one/a") is None
    found = client.get(b"one/b", at=receipt.version)
    assert found is not None
    assert (found.value, found.version) == (b"2", receipt.version)
    assert [item.key for item in client.range(b"one/", b"one0").items] == [b"one/b"]
    with client.subscribe(start) as events:
        event = next(events)
    assert isinstance(event, TransactionEvent)
    assert event.version == receipt.version
    assert event.prev_version <= start
    assert event.operations == tuple(operations)
    assert event.request_id == receipt.request_id == "a-request-id-of-my-own"
    assert client.status("a-request-id-of-my-own", start).version == receipt.version
    assert client.status("another-request-id-of-mine", start).status == "not_committed"


def test_a_broken_precondition_is_a_conflict_that_names_it(client):
    before = client.version().version
    newer = client.commit([Write(b"two/a", b"1")]).version
    reads = [PointRead(b"two/x"), PointRead(b"two/a"), RangeRead(b"two/", b"two0")]
    with pytest.raises(Conflict) as caught:
        client.commit([Write(b"two/a", b"2")], reads, read_version=before)
    assert caught.value.code is Code.CONFLICT
    assert caught.value.fields["conflicts"] == ((1, newer), (2, newer))
    version = caught.value.fields["version"]
    assert isinstance(version, int)
    assert version >= newer
    client.commit([Write(b"two/a", b"2")], [PointRead(b"two/a")], read_version=version)
    with pytest.raises(InvalidRequest) as future:
        client.commit([Write(b"two/a", b"2")], read_version=2**50)
    assert future.value.code is Code.FUTURE_VERSION


def test_a_stream_of_commits_gives_each_item_its_own_verdict(client):
    start = client.version().version
    txns = [Transaction([Write(b"three/k%d" % number, b"v")]) for number in range(2_500)]
    txns[7] = Transaction([Write(b"three/never", b"v")], [PointRead(b"three/k3")], read_version=start)
    results = list(client.commits_many(txns))
    assert [index for index, result in enumerate(results) if not isinstance(result, CommitReceipt)] == [7]
    assert isinstance(results[7], NotCommitted)
    versions = [result.version for result in results if isinstance(result, CommitReceipt)]
    assert versions == sorted(set(versions))
    assert client.get(b"three/never") is None
    with client.subscribe(start, prefix=b"three/k1") as events:
        keys = [next(events).operations[0].key for _ in range(5)]
    assert keys == [b"three/" + name for name in (b"k1", b"k10", b"k11", b"k12", b"k13")]


def test_transactions_of_many_tasks_lose_no_update(server):
    async def main() -> tuple[bytes, bytes]:
        async with aio.Client(f"http://127.0.0.1:{server.port}", options=PATIENT) as client:

            async def increment(txn: aio.AsyncTransaction) -> None:
                count = int(await txn.get(b"count") or b"0")
                rows = await txn.range(b"row/", b"row0", 10_000)
                assert len(rows) == count
                txn.write(b"count", b"%d" % (count + 1))
                txn.write(b"row/%06d" % count, b"")

            async def worker() -> None:
                for _ in range(5):
                    await client.transact(increment)

            await asyncio.gather(*[worker() for _ in range(6)])
            count = await client.get(b"count")
            assert count is not None
            return count.value, b"%d" % len((await client.range(b"row/", b"row0")).items)

    assert asyncio.run(main()) == (b"30", b"30")


@pytest.mark.parametrize("kind", matrix(["memory", "sqlite"]))
def test_a_view_fed_by_a_subscription_equals_the_services_view(client, tmp_path, kind):
    with View.memory() if kind == "memory" else View.sqlite(tmp_path / "mine") as view:
        for number in range(40):
            client.commit([Write(b"five/%02d" % number, b"v"), Delete(b"five/%02d" % (number // 2))])
        last = client.commit([RangeDelete(b"five/25", b"five/30"), Write(b"five/27", b"again")]).version
        with client.subscribe(view.version) as events:
            for batch in events.batches():
                view.apply(batch)
                if view.version >= last:
                    break
        theirs = client.range(limit=10_000, at=last)
        assert view.range(limit=10_000) == [(item.key, item.value, item.version) for item in theirs.items]
        assert [key[5:] for key, _, _ in view.range(b"five/", b"five0")] == [
            b"%02d" % number for number in (20, 21, 22, 23, 24, 27, *range(30, 40))
        ]


def test_a_killed_leader_costs_its_clients_time_and_nothing_else(tmp_path):
    """Increments from several threads across kill -9 and restart: each counted once, and the stream has no gap."""
    log, port = (tmp_path / "log").as_uri(), free_port()
    server = ServerProcess(tmp_path, log, port, flags=("--init",))
    stop = threading.Event()
    counted: list[int] = []
    failures: list[Exception] = []
    view = View.memory()
    try:
        server.wait_until_leading()
        with Client(f"http://127.0.0.1:{port}", options=PATIENT) as client:
            stream = client.subscribe()

            def work(number: int) -> None:
                key = b"counter/%d" % number
                done = 0

                def increment(txn: object) -> None:
                    txn.write(key, b"%d" % (int(txn.get(key) or b"0") + 1))  # type: ignore[attr-defined]

                try:
                    while not stop.is_set():
                        client.transact(increment)
                        done += 1
                except Exception as error:  # noqa: BLE001 - reported by the test's own thread
                    failures.append(error)
                counted.append(done)

            def follow() -> None:
                try:
                    for batch in stream.batches():
                        view.apply(batch)
                except Exception as error:  # noqa: BLE001 - reported by the test's own thread
                    failures.append(error)

            workers = [threading.Thread(target=work, args=(number,)) for number in range(4)]
            follower = threading.Thread(target=follow)
            for thread in [*workers, follower]:
                thread.start()
            for _ in range(KILLS):
                reached = view.version
                assert view.wait_for(reached + 50, 30)
                server.kill()
                server = ServerProcess(tmp_path, log, port)
                server.wait_until_leading()
            assert view.wait_for(client.version().version + 50, 30)
            stop.set()
            for thread in workers:
                thread.join(60)
            assert not failures
            assert view.wait_for(client.version().version, 30)
            total = sum(int(value) for _, value, _ in view.range(b"counter/"))
            assert total == sum(counted)
            assert [row[1] for row in view.range()] == [item.value for item in client.range().items]
    finally:
        stop.set()
        server.kill()
    follower.join(60)
    assert not follower.is_alive()
