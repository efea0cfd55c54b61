"""Stores that live in the log, with real processes that share nothing but the log: any leader serves all of them."""

from __future__ import annotations

import asyncio
import http.client
import json
import shutil
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.command import command
from tests.crash.server_process import NO_VIEW, ServerEnded, ServerProcess
from tests.rgw import free_port

from holdfast import Client, StoreClient
from holdfast.client import BlockingTransaction
from holdfast.client.stores import Delivery, Entry, Lock, SubscriberOptions
from holdfast.commit.format.transaction import Delete, Transaction
from holdfast.commit.service import CommitEntry, CommitService, ServiceOptions
from holdfast.errors import Closed, Code, Conflict
from holdfast.objects.memory import MemoryStore
from holdfast.stores.values.messages import FIELDS_RULE

SETTINGS = {
    "HOLDFAST_LEADER__SIGN_INTERVAL_MS": "800",
    **NO_VIEW,
    "HOLDFAST_STORES__PAGE_SIZE_BYTES": "1 MiB",
}


class Machine:
    """One machine: its own directory for stores, and at most one service."""

    def __init__(self, directory: Path, name: str, log_url: str) -> None:
        self.directory = directory
        self.cache = directory / name
        self._log_url = log_url
        self._server: ServerProcess | None = None
        self.port = free_port()

    @property
    def server(self) -> ServerProcess:
        assert self._server is not None, "it was started"
        return self._server

    def start(self, *flags: str, **environment: str) -> None:
        self._server = ServerProcess(
            self.directory,
            self._log_url,
            self.port,
            flags=flags,
            environment={**SETTINGS, "HOLDFAST_STORES__DIRECTORY": str(self.cache), **environment},
        )

    def serve(self, *flags: str, **environment: str) -> None:
        """Start, and return when its stores are open."""
        self.start(*flags, **environment)
        self.wait()

    def stand_by(self, **environment: str) -> None:
        """Start, and return when it has heard of the leader: only then it takes over soon after the leader's end."""
        self.start("--standby", **environment)
        until = time.monotonic() + 30
        while "standby leader_id=" not in self.server.output.read_text():
            assert self.server.running and time.monotonic() < until, self.server.tail()
            time.sleep(0.02)

    def wait(self) -> None:
        self.server.wait_until_leading()
        until = time.monotonic() + 30
        while self.ask("GET", "/v1/stores")[0] != 200:
            self.server.leads()  # raises when it has ended
            assert time.monotonic() < until, self.server.tail()
            time.sleep(0.02)

    def ask(self, method: str, target: str, body: object = None) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(method, target, None if body is None else json.dumps(body))
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        except (ConnectionError, http.client.HTTPException):
            return 503, None
        finally:
            connection.close()

    def publish(self, *bodies: str) -> dict[str, Any]:
        messages = [{"body": b64encode(body.encode()).decode()} for body in bodies]
        status, answer = self.ask("POST", "/v1/stores/orders/messages", {"messages": messages})
        assert status == 200, answer
        return dict(answer)

    def take(self, count: int, subscriber: str = "s") -> list[tuple[int, str, int]]:
        """Numbers, bodies and delivery counts of what a poll hands out."""
        target = f"/v1/stores/orders/durables/work/messages?subscriber={subscriber}&max={count}"
        status, answer = self.ask("GET", target)
        assert status == 200, answer
        return [(each["seq"], b64decode(each["body"]).decode(), each["delivery_count"]) for each in answer["messages"]]

    def acknowledge(self, *seqs: int, subscriber: str = "s") -> None:
        body = {"subscriber": subscriber, "ack": list(seqs)}
        status, answer = self.ask("POST", "/v1/stores/orders/durables/work/acks", body)
        assert status == 200, answer

    def end(self) -> None:
        if self._server is not None and self._server.running:
            self._server.kill()


@contextmanager
def machines(directory: Path, log_url: str, count: int = 2) -> Iterator[list[Machine]]:
    made = [Machine(directory, f"machine-{number}", log_url) for number in range(count)]
    try:
        yield made
    finally:
        for machine in made:
            machine.end()


def begin(directory: Path) -> str:
    """A new log whose stores live in it."""
    url = (directory / "log").as_uri()
    made = command("log", "init", url, "--no-race", "--stores", "log")
    assert made.returncode == 0, made.stderr
    return url


def define(machine: Machine) -> None:
    work = {"type": "shared", "ack_wait": 3600}
    assert machine.ask("PUT", "/v1/stores/orders", {"durables": {"work": work}})[0] == 200


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    directory = tmp_path_factory.mktemp("serving")
    with machines(directory, begin(directory), 1) as (machine,):
        machine.serve()
        yield machine


@pytest.fixture
def shared(serving: Machine) -> Machine:
    """One service for the tests that end as they began, with no message in the store ``orders``."""
    serving.ask("DELETE", "/v1/stores/orders")
    define(serving)
    return serving


def test_another_machine_serves_what_a_killed_leader_confirmed(tmp_path: Path) -> None:
    url = begin(tmp_path)
    with machines(tmp_path, url) as (first, second):
        first.serve()
        define(first)
        first.publish(*(f"m{number}" for number in range(20)))
        taken = first.take(5)
        assert [body for _, body, _ in taken] == [f"m{number}" for number in range(5)]
        first.acknowledge(*(seq for seq, _, _ in taken[:3]))
        first.server.kill()
        second.serve("--take-over")
        # What was acknowledged stays so, and what was held stays held: its subscriber may acknowledge it here.
        assert second.ask("GET", "/v1/stores/orders/durables/work")[0] == 200
        again = second.take(100, "s")
        assert {body for _, body, _ in again} == {f"m{number}" for number in range(5, 20)}
        second.acknowledge(*(seq for seq, _, _ in taken[3:]))
        assert second.publish("later")["first_seq"] == 21
        # And back to the first machine, whose files are behind now.
        second.server.kill()
        first.serve("--take-over")
        assert first.publish("last")["first_seq"] == 22
        assert first.server.stop() == 0
    assert "the log is intact" in command("log", "verify", url).stdout


@pytest.mark.matrix
def test_a_standby_takes_the_stores_over_by_itself(tmp_path: Path) -> None:
    url = begin(tmp_path)
    with machines(tmp_path, url) as (first, second):
        first.serve()
        define(first)
        first.publish("kept")
        second.stand_by()
        first.server.kill()
        second.wait()
        assert [body for _, body, _ in second.take(5)] == ["kept"]


def test_a_cache_that_is_gone_or_damaged_is_made_again(tmp_path: Path) -> None:
    url = begin(tmp_path)
    with machines(tmp_path, url, 1) as (machine,):
        machine.serve()
        define(machine)
        machine.publish("one", "two")
        assert machine.server.stop() == 0
        shutil.rmtree(machine.cache)
        machine.serve()
        assert machine.publish("three")["first_seq"] == 3
        assert machine.server.stop() == 0
        (index,) = machine.cache.glob("*/*/index.sqlite")
        data = bytearray(index.read_bytes())
        data[4096:8192] = bytes(4096)
        index.write_bytes(bytes(data))
        machine.serve()
        assert machine.publish("four")["first_seq"] == 4
        assert {body for _, body, _ in machine.take(10)} == {"one", "two", "three", "four"}


def test_commits_and_stores_share_one_log_and_readers_of_keys_see_keys_only(tmp_path: Path) -> None:
    url = begin(tmp_path)
    with machines(tmp_path, url, 1) as (machine,):
        machine.serve()
        define(machine)
        versions: list[int] = []
        for number in range(10):
            machine.publish(f"m{number}")
            key = b64encode(b"k%d" % number).decode()
            status, answer = machine.ask("POST", "/v1/commit", {"operations": [{"type": "delete", "key": key}]})
            assert status == 200, answer
            versions.append(answer["version"])
        assert machine.server.stop() == 0
    lines = command("log", "cat", url, "--json").stdout.splitlines()
    assert [json.loads(line)["version"] for line in lines] == versions
    assert "the log is intact" in command("log", "verify", url).stdout


def test_a_mirror_and_a_restored_log_have_the_stores(tmp_path: Path) -> None:
    url = begin(tmp_path)
    with machines(tmp_path, url, 1) as (machine,):
        machine.serve()
        define(machine)
        machine.publish("before")
        status, cut = machine.ask("GET", "/v1/version")
        assert status == 200
        machine.publish("after")
        assert machine.server.stop() == 0
    restored, mirrored = (tmp_path / "restored").as_uri(), (tmp_path / "mirror").as_uri()
    done = command("log", "restore", url, restored, "--at", str(cut["version"]))
    assert done.returncode == 0, done.stderr
    done = command("log", "mirror", url, mirrored)
    assert done.returncode == 0, done.stderr
    with machines(tmp_path, restored, 1) as (machine,):
        machine.serve()
        assert [body for _, body, _ in machine.take(10)] == ["before"]
    done = command("log", "promote", mirrored)
    assert done.returncode == 0, done.stderr
    with machines(tmp_path / "m", mirrored, 1) as (machine,):
        (tmp_path / "m").mkdir()
        machine.serve()
        assert [body for _, body, _ in machine.take(10)] == ["before", "after"]


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"HOLDFAST_STORES__DURABILITY": "disk"}, "the stores of this log are of durability log"),
        ({"HOLDFAST_STORES__ENABLED": "false"}, "the log has stores, and this service would serve none"),
    ],
)
def test_a_service_that_cannot_serve_the_stores_does_not_claim(
    tmp_path: Path, environment: dict[str, str], said: str
) -> None:
    url = begin(tmp_path)
    before = command("log", "ls", url, "--json").stdout
    with machines(tmp_path, url, 1) as (machine,):
        machine.start(**environment)
        with pytest.raises(ServerEnded) as caught:
            machine.server.wait_until_leading()
    assert "exit code 2" in str(caught.value)
    assert said in str(caught.value)
    assert command("log", "ls", url, "--json").stdout == before


def test_a_backup_of_the_copy_is_refused_and_names_what_to_do(shared: Machine) -> None:
    status, answer = shared.ask("POST", "/v1/cluster/backup", {"name": "b"})
    assert (status, "log mirror" in json.dumps(answer)) == (400, True)


# -- one step for keys and messages -----------------------------------------------------------------------------------


def commit(machine: Machine, **request: Any) -> tuple[int, Any]:
    return machine.ask("POST", "/v1/commit", {"operations": [], **request})


def write(key: str, value: str) -> dict[str, str]:
    return {"type": "write", "key_text": key, "value_text": value}


def message(body: str) -> dict[str, str]:
    return {"body": b64encode(body.encode()).decode()}


def test_keys_messages_and_acknowledgements_are_one_step(tmp_path: Path) -> None:
    url = begin(tmp_path)
    with machines(tmp_path, url) as (first, second):
        first.serve()
        define(first)
        assert first.ask("PUT", "/v1/stores/invoices", {"durables": {"all": {"type": "shared"}}})[0] == 200
        first.publish("2 x coffee", "1 x tea")
        (order, body, _), (tea, _, _) = first.take(2)
        version = first.ask("GET", "/v1/version")[1]["version"]
        step = {
            "operations": [write("stock/coffee", "5")],
            "acknowledge": [{"store": "orders", "durable": "work", "subscriber": "s", "ack": [order]}],
            "publish": [{"store": "invoices", "messages": [message(body)]}],
            "request_id": "one-step-of-the-work-1",
            "read_version": version,
        }
        status, answer = commit(first, **step)
        assert (status, answer["status"]) == (200, "committed"), answer
        stores = answer["stores"]
        assert stores["acknowledge"] == [{"acknowledged": 1, "stale": []}]
        assert stores["publish"] == [{"first_seq": 1, "last_seq": 1, "duplicates": 0, "unmatched": 0, "discarded": 0}]
        # The same attempt again, and a question about it, have the same answer, also from the next leader.
        assert commit(first, **step)[1]["stores"] == stores
        about = f"/v1/status/{step['request_id']}?min_version={version}"
        assert first.ask("GET", about)[1]["stores"] == stores
        first.server.kill()
        second.serve("--take-over")
        assert second.ask("GET", about)[1]["stores"] == stores
        status, again = commit(second, **step)
        assert (again["status"], again["version"], again["stores"]) == ("committed", answer["version"], stores)
        assert second.take(5) == []
        second.acknowledge(tea)
        assert second.ask("GET", "/v1/stores/invoices/durables/all/browse")[1]["messages"][0]["seq"] == 1
        assert second.server.stop() == 0
    assert "the log is intact" in command("log", "verify", url).stdout
    (line,) = command("log", "cat", url, "--json").stdout.splitlines()
    assert json.loads(line)["version"] == answer["version"]


def test_a_part_that_is_refused_leaves_the_keys_alone(tmp_path: Path) -> None:
    url = begin(tmp_path)
    with machines(tmp_path, url, 1) as (machine,):
        machine.serve()
        define(machine)
        machine.publish("a")
        version = machine.ask("GET", "/v1/version")[1]["version"]
        step = {
            "operations": [write("k", "v")],
            "publish": [{"store": "orders", "messages": [message("b")]}],
            "acknowledge": [{"store": "orders", "durable": "work", "subscriber": "s", "ack": [1]}],
            "request_id": "a-step-that-is-refused",
            "read_version": version,
        }
        status, answer = commit(machine, **step)
        assert (status, answer["status"], answer["reason"]) == (200, "not_committed", "store_refused")
        assert answer["refused"] == {
            "part": "acknowledge",
            "index": 0,
            "code": "lease_lost",
            "message": answer["refused"]["message"],
        }
        # The message is held now, and a late copy of the refused attempt must not find that out.
        assert machine.take(1)[0][0] == 1
        assert commit(machine, **step)[1]["reason"] == "banned"
        assert machine.publish("c")["first_seq"] == 2
    assert command("log", "cat", url, "--json").stdout == ""


def test_a_commit_changes_a_locked_key_with_the_fence_of_the_lock_only(tmp_path: Path) -> None:
    with machines(tmp_path, begin(tmp_path), 1) as (machine,):
        machine.serve()
        assert machine.ask("PUT", "/v1/stores/prices", {"durables": {"now": {"type": "map"}}})[0] == 200
        service = f"http://127.0.0.1:{machine.port}"
        with Client(service) as client, StoreClient(service) as stores:
            prices = stores.map("prices", "now")
            mine = prices.lock("coffee", owner="me", ttl_ms=60_000)

            def step(txn: BlockingTransaction, fence: int) -> None:
                txn.write(b"changed", b"yes")
                txn.change_map("prices", "now", "coffee", b"3", fence=fence)
                txn.change_map("prices", "now", "tea", b"2")

            for fence in (0, mine.fence + 1):
                with pytest.raises(Conflict) as refused:
                    client.transact(lambda txn, fence=fence: step(txn, fence))
                assert refused.value.code == Code.STORE_REFUSED
                assert refused.value.fields["store_code"] == Code.NOT_HOLDER
                assert prices.get("tea") is None
            client.transact(lambda txn: step(txn, mine.fence))
            coffee, tea = prices.get("coffee"), prices.get("tea")
            assert coffee is not None and tea is not None
            assert (coffee.value, tea.value) == (b"3", b"2")
            yours = prices.lock("coffee", owner="you", ttl_ms=60_000, steal=True)
            with pytest.raises(Conflict):
                client.transact(lambda txn: step(txn, mine.fence))
            client.transact(lambda txn: step(txn, yours.fence))


def test_a_part_with_the_token_of_another_store_is_refused_and_a_committed_one_is_still_found(tmp_path: Path) -> None:
    with machines(tmp_path, begin(tmp_path), 1) as (machine,):
        machine.serve()
        define(machine)
        durables = {"map": {"type": "map"}, "work": {"type": "shared"}}

        def parts(name: str, value: str) -> dict[str, Any]:
            token = machine.ask("GET", f"/v1/stores/{name}/durables/work")[1]["token"]
            map_token = machine.ask("GET", f"/v1/stores/{name}/durables/map")[1]["token"]
            change = {"key": "k", "value": ""}
            return {
                "acknowledge": [{"store": name, "durable": "work", "subscriber": "s", "ack": [1], "token": token}],
                "maps": [{"store": name, "map": "map", "changes": [change], "token": map_token}],
                "publish": [{"store": name, "messages": [message(value)], "token": token.rpartition(".")[0]}],
            }

        def make() -> None:
            assert machine.ask("PUT", "/v1/stores/other", {"durables": durables})[0] == 200
            machine.ask("POST", "/v1/stores/other/messages", {"messages": [message("a")]})
            polled = machine.ask("GET", "/v1/stores/other/durables/work/messages?subscriber=s&max=1")[1]
            assert [one["seq"] for one in polled["messages"]] == [1]

        make()
        old = parts("other", "b")
        version = machine.ask("GET", "/v1/version")[1]["version"]
        step = {"operations": [write("k", "v")], "request_id": "a-step-that-has-tokens", "read_version": version, **old}
        assert commit(machine, **step)[1]["status"] == "committed"
        assert machine.ask("DELETE", "/v1/stores/other")[0] == 200
        make()
        assert commit(machine, **step)[1]["status"] == "committed", "its outcome is known"
        for number, (name, part) in enumerate(old.items()):
            other = {"operations": [write("k", "w")], "request_id": f"a-step-for-another-{number}", name: part}
            answer = commit(machine, read_version=machine.ask("GET", "/v1/version")[1]["version"], **other)[1]
            assert (answer["status"], answer["reason"]) == ("not_committed", "store_refused")
            assert (answer["refused"]["part"], answer["refused"]["code"]) == (name, "store_replaced")
        counts = machine.ask("GET", "/v1/stores/other/durables/work")[1]["counts"]
        assert (counts["messages"], counts["acknowledged"]) == (1, 0)


def test_a_commit_that_rests_on_another_store_of_the_name_commits_nothing(tmp_path: Path) -> None:
    """A lock, an entry and a delivery know their store; a number alone is that of whatever has the name."""
    url = begin(tmp_path)
    with machines(tmp_path, url, 1) as (machine,):
        machine.serve()
        service = f"http://127.0.0.1:{machine.port}"
        durables = {"now": {"type": "map"}, "work": {"type": "shared"}}
        with Client(service) as client, StoreClient(service) as stores:

            def make() -> tuple[Lock, Entry, Delivery]:
                stores.define_store("prices", {"durables": durables})
                prices = stores.map("prices", "now")
                prices.set("coffee", b"3")
                entry, lock = prices.get("coffee"), prices.lock("tea", owner="me", ttl_ms=60_000)
                machine.ask("POST", "/v1/stores/prices/messages", {"messages": [message("a")]})
                with stores.subscriber("prices", "work", subscriber="me") as messages:
                    held = messages.receive(timeout=60)
                    assert entry is not None and held is not None
                    return lock, entry, held

            lock, entry, held = make()
            stores.delete_store("prices")
            new_lock, new_entry, _ = make()
            assert (lock.fence, entry.revision) == (new_lock.fence, new_entry.revision), "by numbers they are the same"

            def change(key: str, **rests_on: Any) -> Callable[[BlockingTransaction], None]:
                def step(txn: BlockingTransaction) -> None:
                    txn.write(b"changed", b"yes")
                    txn.change_map("prices", "now", key, b"4", **rests_on)

                return step

            def answer(txn: BlockingTransaction) -> None:
                txn.acknowledge("prices", "work", "me", held)
                txn.publish("prices", b"answer")

            for step in (change("tea", fence=lock), change("coffee", if_revision=entry), answer):
                with pytest.raises(Closed) as refused:
                    client.transact(step)
                assert refused.value.code == Code.STORE_REPLACED
            assert stores.describe_store("prices")["counts"]["next_seq"] == new_entry.revision + 2
            client.transact(change("tea", fence=new_lock))
            client.transact(change("coffee", if_revision=new_entry))
    assert len(command("log", "cat", url, "--json").stdout.splitlines()) == 2, "what was refused wrote no key"


def test_a_conflict_of_keys_leaves_the_stores_alone(shared: Machine) -> None:
    version = shared.ask("GET", "/v1/version")[1]["version"]
    commit(shared, operations=[write("k", "1")])
    key = b64encode(b"k").decode()
    status, answer = commit(
        shared,
        preconditions=[{"type": "point_read", "key": key, "version": version}],
        publish=[{"store": "orders", "messages": [message("b")]}],
    )
    assert (status, answer["reason"]) == (200, "conflict")
    assert shared.publish("c")["first_seq"] == 1


def test_a_field_of_another_kind_is_refused_in_a_commit_with_all_that_is_allowed(shared: Machine) -> None:
    status, answer = commit(shared, publish=[{"store": "orders", "messages": [{"fields": {"a": 1.5}}]}])
    assert (status, answer["error"]["hint"]) == (400, FIELDS_RULE)


PART = {"store": "orders", "messages": [message("b")]}
ACK = {"store": "orders", "durable": "work", "subscriber": "s", "ack": [1]}


def test_wrong_parts_are_named_and_change_nothing(shared: Machine) -> None:
    wrong: list[tuple[dict[str, Any], int, str]] = [
        ({"publish": [PART, PART]}, 400, "duplicate_part"),
        ({"publish": [{**PART, "mesages": []}]}, 400, "malformed"),
        ({"publish": [{**PART, "messages": []}]}, 400, "malformed"),
        ({"publish": []}, 400, "no_operations"),
        ({"acknowledge": [ACK]}, 400, "bad_request_id"),
        ({"publish": [{**PART, "messages": [message("b")] * 10_001}]}, 400, "malformed"),
        ({"publish": [PART, {"store": "default", "messages": [message("b")] * 10_000}]}, 413, "too_large"),
        ({}, 400, "no_operations"),
    ]
    for request, status, code in wrong:
        found, answer = commit(shared, **request)
        assert (found, answer["error"]["code"]) == (status, code), answer
    assert shared.publish("c")["first_seq"] == 1


def test_a_log_whose_stores_are_files_refuses_parts_and_names_the_setting(tmp_path: Path) -> None:
    url = (tmp_path / "log").as_uri()
    with machines(tmp_path, url, 1) as (machine,):
        machine.serve("--init")
        status, answer = commit(machine, publish=[{"store": "default", "messages": [message("b")]}])
        assert (status, answer["error"]["code"]) == (400, "stores_not_in_log")
        assert "stores.durability" in answer["error"]["hint"]


def test_a_stream_of_commits_takes_parts(shared: Machine) -> None:
    lines = [{"operations": [write(f"k{number}", "v")], "publish": [PART]} for number in range(50)]
    lines += [{"operations": [write("last", "v")]}]
    connection = http.client.HTTPConnection("127.0.0.1", shared.port, timeout=30)
    connection.request(
        "POST",
        "/v1/commits",
        "".join(json.dumps(line) + "\n" for line in lines),
        {"content-type": "application/x-ndjson"},
    )
    answers = [json.loads(line) for line in connection.getresponse().read().splitlines()]
    assert [each["status"] for each in answers] == ["committed"] * 51
    assert [each["stores"]["publish"][0]["first_seq"] for each in answers[:50]] == list(range(1, 51))
    assert "stores" not in answers[50]


@pytest.mark.matrix
def test_a_worker_consumes_changes_and_publishes_exactly_once(tmp_path: Path) -> None:
    """Each order is acknowledged, counted in a key, and answered by an invoice, in one step; leaders are killed."""
    url = begin(tmp_path)
    with machines(tmp_path, url) as two:
        two[0].serve(HOLDFAST_VIEW__ENABLED="true")
        define(two[0])
        assert two[0].ask("PUT", "/v1/stores/invoices", {"durables": {"all": {"type": "shared"}}})[0] == 200
        two[0].publish(*(str(number) for number in range(40)))
        urls = [f"http://127.0.0.1:{machine.port}" for machine in two]
        leader, done = 0, 0
        with Client(urls) as client:
            while done < 40:
                try:
                    taken = two[leader].take(5)
                except AssertionError:
                    continue
                for seq, body, _ in taken:
                    if done in (7, 23):
                        two[leader].server.kill()
                        leader = 1 - leader
                        two[leader].serve("--take-over", HOLDFAST_VIEW__ENABLED="true")

                    def handle(txn: BlockingTransaction, seq: int = seq, body: str = body) -> None:
                        before = int(txn.get(b"count") or b"0")
                        txn.write(b"count", str(before + 1).encode())
                        txn.publish("invoices", body.encode())
                        txn.acknowledge("orders", "work", "s", seq)

                    try:
                        client.transact(handle)
                    except Closed:  # lease_lost: it is delivered again
                        continue
                    done += 1
        _, page = two[leader].ask("GET", "/v1/stores/invoices/durables/all/browse?max=100")
        bodies = [b64decode(each["body"]).decode() for each in page["messages"]]
        assert sorted(bodies, key=int) == [str(number) for number in range(40)]
        assert two[leader].server.stop() == 0
    lines = command("log", "cat", url, "--json").stdout.splitlines()
    assert len(lines) == 40


def test_a_commit_makes_room_in_the_window_of_its_subscriber(shared: Machine) -> None:
    shared.publish(*"abcdefg")
    service = f"http://127.0.0.1:{shared.port}"
    options = SubscriberOptions(explicit_ack=True, prefetch=2)
    seen: list[bytes] = []
    with (
        Client(service) as client,
        StoreClient(service) as stores,
        stores.subscriber("orders", "work", subscriber="s", options=options) as orders,
    ):
        while len(seen) < 7:
            order = orders.receive(timeout=10)
            assert order is not None, seen
            seen.append(order.body)
            client.transact(lambda txn, seq=order.seq: txn.acknowledge("orders", "work", "s", seq))
    assert seen == [b"a", b"b", b"c", b"d", b"e", b"f", b"g"]


# -- checkpoints ------------------------------------------------------------------------------------------------------

QUICK = {
    "HOLDFAST_STORES__CHECKPOINT_SECONDS": "0.2",
    "HOLDFAST_RETENTION__MAX_AGE_SECONDS": "1",
    "HOLDFAST_RETENTION__MIN_AGE_SECONDS": "0",
    "HOLDFAST_RETENTION__CHECK_SECONDS": "0.2",
    "HOLDFAST_SNAPSHOTS__CHECK_SECONDS": "0.2",
}


@pytest.mark.matrix
def test_a_copy_from_before_a_truncation_is_made_again(tmp_path: Path) -> None:
    """Retention removed entries, and later transactions do not name those."""
    url = begin(tmp_path)
    with machines(tmp_path, url) as (first, second):
        first.serve(**QUICK)
        define(first)
        first.publish("seen")
        second.stand_by()
        time.sleep(1)
        second.server.kill()
        first.publish("late")
        for _ in range(1_300):  # the newest 1,000 slots stay
            first.publish("gone")
        key = {"operations": [{"type": "delete", "key": b64encode(b"k").decode()}]}
        assert first.ask("POST", "/v1/commit", key)[0] == 200  # without a transaction there is no snapshot
        until = time.monotonic() + 60
        while not first.ask("GET", "/v1/retention")[1].get("truncated_through"):
            assert time.monotonic() < until, first.ask("GET", "/v1/retention")
            time.sleep(0.1)
        first.server.kill()
        second.serve("--take-over")
        status, kept = second.ask("GET", "/v1/stores/orders/durables/work/browse?max=10")
        assert status == 200, kept
        assert [b64decode(each["body"]).decode() for each in kept["messages"]][:3] == ["seen", "late", "gone"]


async def fill(log: Path, batches: int) -> None:
    """Let another leader add batches to a log, in memory: the newest 1,000 slots always stay."""
    store = MemoryStore()
    names = [f"batches/{path.name}" for path in (log / "batches").iterdir() if path.name.isdigit()]
    for name in names:
        await store.create(name, (log / name).read_bytes())
    leader = await CommitService.lead(store, ServiceOptions(take_over=True, probe=False))
    for _ in range(batches):
        done: asyncio.Future[CommitEntry] = asyncio.get_running_loop().create_future()
        leader.submit([CommitEntry(Transaction([Delete(b"k")]), done.set_result)])
        await done
    await leader.step_down()
    await leader.close()
    for row in await store.list("batches/", limit=2 * batches):
        if row.key not in names:
            (log / row.key).write_bytes(await store.read(row.key))


@pytest.mark.matrix  # another machine without files: the first test
def test_a_machine_without_files_serves_the_stores_of_a_truncated_log(tmp_path: Path) -> None:
    url = begin(tmp_path)
    with machines(tmp_path, url) as (first, second):
        first.serve()
        define(first)
        first.publish("kept")
        first.server.kill()
        asyncio.run(fill(tmp_path / "log", 1_200))
        first.serve("--take-over", **QUICK)
        until = time.monotonic() + 60
        while not first.ask("GET", "/v1/retention")[1].get("truncated_through"):
            first.publish("later")
            assert time.monotonic() < until, first.ask("GET", "/v1/retention")
            time.sleep(0.1)
        first.server.kill()
        second.serve("--take-over")
        status, kept = second.ask("GET", "/v1/stores/orders/durables/work/browse?max=500")
        assert status == 200, kept
        assert b64encode(b"kept").decode() in {each["body"] for each in kept["messages"]}
        assert "stores_begin_with_checkpoint" in second.server.output.read_text()
