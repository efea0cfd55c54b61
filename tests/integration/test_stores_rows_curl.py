"""Every route of message stores, as a table: what curl sends to a real ``holdfast serve`` and what it prints, and the
same through the client. A route that the service describes and that has no row fails.

Each row has a store of its own, with the durables ``work`` (shared, retained for an hour), ``last`` (last values) and
``map``, the template ``jobs``, and the messages 1, 2 and 3, of which the subscriber ``s`` holds the first.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.crash.server_process import POLL_SECONDS, ServerProcess
from tests.integration.curl import CURL, curl
from tests.rgw import free_port

from holdfast.client.stores import StoreClient, SubscriberOptions

pytestmark = pytest.mark.usefixtures("durability")

NUMBERS = itertools.count(1)
STORE = {
    "durables": {
        "work": {"type": "shared", "retention_time": "1h", "subscriber_timeout": "1h", "ack_wait": "1h"},
        "last": {"type": "last_value", "matcher": {"kind": "value"}},
        "map": {"type": "map"},
    },
    "templates": {"jobs": {"type": "shared", "prefetch": 7}},
}
THREE = [{"fields": {"n": number}, "body": body} for number, body in ((1, "YQ=="), (2, "Yg=="), (3, "Yw=="))]
WORK = "/v1/stores/{store}/durables/work"
KEY = "/v1/stores/{store}/maps/map/k"
SET = ("PUT", KEY, {"value": "dg=="})
EXPLICIT = SubscriberOptions(explicit_ack=True)
FORMER = {"revision": "{former}"}
Asked = tuple[str, str, Any]
Through = Callable[[StoreClient, str], object]


@dataclass(frozen=True)
class Row:
    """One request. ``route`` is as the service describes it; ``seen`` must be in the answer."""

    route: str
    path: str
    body: Any = None
    seen: Any = field(default_factory=dict)
    status: int = 200
    headers: tuple[str, ...] = ()
    given: tuple[Asked, ...] = ()
    """What is asked before it."""
    client: Through | None = None
    same: Any = None
    """What the client gives."""

    @property
    def method(self) -> str:
        """Of the route."""
        return self.route.partition(" ")[0]


def receive(client: StoreClient, store: str) -> object:
    with client.subscriber(store, "work", subscriber="other", options=EXPLICIT) as messages:
        message = messages.receive(30)
        return None if message is None else (message.seq, message.body, message.fields, message.delivery_count)


def acknowledge(client: StoreClient, store: str) -> object:
    with client.subscriber(store, "work", subscriber="other", options=EXPLICIT) as messages:
        message = messages.receive(30)
        assert message is not None
        messages.acknowledge(message, confirmed=True)
    return client.describe_durable(store, "work")["counts"]["acknowledged"]


def publish(client: StoreClient, store: str) -> object:
    with client.publisher(store) as publisher:
        confirmed = publisher.publish(b"d")
        return confirmed.first_seq, confirmed.last_seq


def lock_and_unlock(client: StoreClient, store: str) -> object:
    entries = client.map(store, "map")
    lock = entries.lock("k", owner="me", ttl_ms=60_000)
    entries.set("k", b"v", fence=lock.fence)
    entries.unlock(lock)
    return lock.fence > 0


def changed_map(client: StoreClient, store: str) -> object:
    entries = client.map(store, "map")
    revision = entries.set_many({"a": b"1", "b": b"2"})
    return revision, [(entry.key, entry.value) for entry in entries.items()]


ROWS = (
    # stores, durables, templates
    Row("GET /v1/stores", "/v1/stores?name={store}", None, {"stores": [{"name": "{store}"}]},
        client=lambda client, store: [one["name"] for one in client.stores(name=store)["stores"]], same=["{store}"]),
    Row("GET /v1/stores/{store}", "/v1/stores/{store}", None, {"replicated": True, "counts": {"messages": 3}},
        client=lambda client, store: client.describe_store(store)["counts"]["next_seq"], same=4),
    Row("PUT /v1/stores/{store}", "/v1/stores/{store}", {"bytelimit": "1k"}, {"bytelimit": 1024, "name": "{store}"},
        client=lambda client, store: client.define_store(store, {"message_limit": 9})["message_limit"], same=9),
    Row("PUT /v1/stores/{store}", "/v1/stores/{store}", {"bytelimt": 1}, {"error": {"code": "bad_configuration"}}, 400),
    Row("DELETE /v1/stores/{store}", "/v1/stores/{store}", client=lambda client, store: client.delete_store(store)),
    Row("GET /v1/stores/{store}/durables", "/v1/stores/{store}/durables?type=shared", None,
        {"durables": [{"name": "work", "type": "shared"}]},
        client=lambda client, store: [one["name"] for one in client.durables(store, type="map")["durables"]],
        same=["map"]),
    Row("GET /v1/stores/{store}/durables/{durable}", WORK, None, {"counts": {"messages": 3, "unacknowledged": 1}},
        client=lambda client, store: client.describe_durable(store, "work")["counts"]["backlog"], same=2),
    Row("GET /v1/stores/{store}/durables/{durable}", "/v1/stores/{store}/durables/none", None,
        {"error": {"code": "not_found"}}, 404),
    Row("PUT /v1/stores/{store}/durables/{durable}", WORK, {"type": "shared", "max_delivery": 5}, {"max_delivery": 5},
        client=lambda client, store: client.define_durable(store, "more", {"type": "standard"})["type"],
        same="standard"),
    Row("PUT /v1/stores/{store}/durables/{durable}", "/v1/stores/{store}/durables/mine", {"template": "jobs"},
        {"dynamic": True, "prefetch": 7}),
    Row("PUT /v1/stores/{store}/durables/{durable}", WORK, {"type": "map"}, {"error": {"code": "type_mismatch"}}, 409),
    Row("DELETE /v1/stores/{store}/durables/{durable}", WORK,
        client=lambda client, store: client.delete_durable(store, "map")),
    Row("GET /v1/stores/{store}/templates", "/v1/stores/{store}/templates", None, {"templates": [{"name": "jobs"}]}),
    Row("GET /v1/stores/{store}/templates/{template}", "/v1/stores/{store}/templates/jobs", None, {"prefetch": 7}),
    Row("PUT /v1/stores/{store}/templates/{template}", "/v1/stores/{store}/templates/jobs",
        {"type": "shared", "prefetch": 8}, {"prefetch": 8},
        client=lambda client, store: client.define_template(store, "more", {"type": "map"})["type"], same="map"),
    Row("DELETE /v1/stores/{store}/templates/{template}", "/v1/stores/{store}/templates/jobs"),
    # messages
    Row("POST /v1/stores/{store}/messages", "/v1/stores/{store}/messages",
        {"publisher_id": "p", "messages": [
            {"publisher_seq": 1, "fields": {"kind": "a"}, "key": "k", "body": "aGk=", "ttl_ms": 60000,
             "deliver_at_ms": 0}]},
        {"first_seq": 4, "last_seq": 4, "duplicates": 0, "unmatched": 0, "discarded": 0}, client=publish, same=(5, 5)),
    Row("POST /v1/stores/{store}/messages", "/v1/stores/{store}/messages", {"messages": [{"body": "%"}]},
        {"error": {"code": "bad_base64"}}, 400),
    Row("GET /v1/stores/{store}/durables/{durable}/messages", WORK + "/messages?subscriber=other&max=1&wait_ms=1000",
        None, {"messages": [{"seq": 2, "fields": {"n": 2}, "body": "Yg==", "delivery_count": 1, "redelivered": False}]},
        client=receive, same=(2, b"b", {"n": 2}, 2)),
    Row("POST /v1/stores/{store}/durables/{durable}/messages", WORK + "/messages?subscriber=other&max=1&wait_ms=1000",
        None, {"messages": [{"seq": 2, "fields": {"n": 2}, "body": "Yg==", "delivery_count": 1}]}),
    Row("POST /v1/stores/{store}/durables/{durable}/acks", WORK + "/acks",
        {"subscriber": "s", "ack": [1, 2], "nack": [], "reject": [], "extend": []}, {"acknowledged": 1, "stale": [2]},
        client=acknowledge, same=2),
    Row("POST /v1/stores/{store}/durables/{durable}/acks", WORK + "/acks",
        {"subscriber": "s", "nack": [{"seq": 1, "delay_ms": 500}]}, {"acknowledged": 1, "stale": []}),
    Row("POST /v1/stores/{store}/durables/{durable}/acks", WORK + "/acks", {"subscriber": "s", "reject": [1]},
        {"acknowledged": 1, "stale": []}),
    Row("POST /v1/stores/{store}/durables/{durable}/acks", WORK + "/acks", {"subscriber": "s", "extend": [1]},
        {"acknowledged": 0, "stale": []}),
    Row("GET /v1/stores/{store}/durables/{durable}/browse", WORK + "/browse?after=1&max=1", None,
        {"messages": [{"seq": 2}], "next_after": 2, "parked": []},
        client=lambda client, store: [message.body for message in client.browser(store, "work", match={"n": [1, 3]})],
        same=[b"a", b"c"]),
    Row("DELETE /v1/stores/{store}/durables/{durable}/messages/{seq}", WORK + "/messages/2",
        client=lambda client, store: [
            client.browser(store, "work").delete(message) for message in list(client.browser(store, "work"))
        ], same=[None, None]),
    Row("GET /v1/stores/{store}/messages/{seq}/explain", "/v1/stores/{store}/messages/2/explain", None,
        {"seq": 2, "is_kept": True, "durables": [{"name": "map", "fate": "not_wanted"}]},
        client=lambda client, store: client.explain(store, 1)["seq"], same=1),
    Row("GET /v1/stores/{store}/messages/{seq}/explain", "/v1/stores/{store}/messages/99/explain", None,
        {"error": {"code": "not_found"}}, 404),
    Row("POST /v1/stores/{store}/durables/{durable}/purge", WORK + "/purge", None, {"messages": 3},
        client=lambda client, store: client.purge(store, "work").messages, same=0),
    Row("POST /v1/stores/{store}/durables/{durable}/redeliver", WORK + "/redeliver", {"match": {"n": 1}, "max": 2},
        {"redelivered": 0, "next_after": None},
        client=lambda client, store: client.redeliver(store, "work", [(1, 9)]).messages, same=0),
    Row("POST /v1/stores/{store}/durables/{durable}/redeliver", WORK + "/redeliver", {"messages": [[9, 1]]},
        {"error": {"code": "malformed"}}, 400),
    Row("POST /v1/stores/{store}/durables/{durable}/redeliver", "/v1/stores/{store}/durables/map/redeliver", {},
        {"error": {"code": "type_mismatch"}}, 409),
    Row("POST /v1/stores/{store}/durables/{durable}/rewind", WORK + "/rewind", {"to": "start"},
        client=lambda client, store: client.rewind(store, "work")),
    Row("POST /v1/stores/{store}/durables/{durable}/rewind", WORK + "/rewind", {"seq": 2},
        client=lambda client, store: client.rewind(store, "work", seq=2)),
    Row("POST /v1/stores/{store}/durables/{durable}/rewind", WORK + "/rewind", {"time_ms": 1},
        client=lambda client, store: client.rewind(store, "work", time_ms=1)),
    Row("POST /v1/stores/{store}/durables/{durable}/rewind", "/v1/stores/{store}/durables/map/rewind",
        {"to": "start"}, {"error": {"code": "type_mismatch"}}, 409),
    # maps
    Row("PUT /v1/stores/{store}/maps/{map}/{key}", KEY, {"value": "dg=="}, {"revision": 4, "changed": 1},
        client=lambda client, store: client.map(store, "map").set("k", b"w", if_revision=4), same=5),
    Row("PUT /v1/stores/{store}/maps/{map}/{key}", KEY, {"value": "dw=="}, {"revision": 5},
        headers=('If-Match: "4"',), given=(SET,)),
    Row("PUT /v1/stores/{store}/maps/{map}/{key}", KEY, {"value": "dw=="}, {"error": {"code": "revision_mismatch"}},
        412, headers=('If-Match: "9"',), given=(SET,)),
    Row("PUT /v1/stores/{store}/maps/{map}/{key}", KEY, {"value": "dw=="}, {"error": {"code": "revision_mismatch"}},
        412, headers=("If-None-Match: *",), given=(SET,)),
    Row("GET /v1/stores/{store}/maps/{map}/{key}", KEY, None, {"key": "k", "value": "dg==", "revision": 4},
        given=(SET,), client=lambda client, store: client.map(store, "map").get("k").value, same=b"v"),
    Row("DELETE /v1/stores/{store}/maps/{map}/{key}", KEY, None, {"changed": 1}, given=(SET,),
        client=lambda client, store: client.map(store, "map").get("k")),
    Row("GET /v1/stores/{store}/maps/{map}", "/v1/stores/{store}/maps/map?max=1", None,
        {"entries": [{"key": "k", "value": "dg=="}], "more": False}, given=(SET,),
        client=lambda client, store: [entry.key for entry in client.map(store, "map").items()], same=["k"]),
    Row("POST /v1/stores/{store}/maps/{map}", "/v1/stores/{store}/maps/map", {"remove_all": True}, {"changed": 1},
        given=(SET,), client=changed_map, same=(7, [("a", b"1"), ("b", b"2")])),
    Row("POST /v1/stores/{store}/maps/{map}/lock", "/v1/stores/{store}/maps/map/lock",
        {"key": "other", "owner": "me", "ttl_ms": 60000}, {"fence": 1}, client=lock_and_unlock, same=True),
    Row("POST /v1/stores/{store}/maps/{map}/unlock", "/v1/stores/{store}/maps/map/unlock",
        {"key": "k", "owner": "me", "fence": 1},
        given=(("POST", "/v1/stores/{store}/maps/map/lock", {"key": "k", "owner": "me", "ttl_ms": 60000}),)),
    Row("POST /v1/stores/{store}/maps/{map}/unlock", "/v1/stores/{store}/maps/map/unlock",
        {"key": "k", "owner": "me", "fence": 9}, {"error": {"code": "not_holder"}}, 409),
    # the cluster
    Row("GET /v1/cluster", "/v1/cluster", None, {"name": "default", "persistence": "sync", "suspended": False},
        client=lambda client, _: client.cluster()["name"], same="default"),
    Row("GET /v1/cluster/quorum", "/v1/cluster/quorum", None, {"have_quorum": True, "members_in_quorum": ["default"]}),
    Row("GET /v1/cluster/definition", "/v1/cluster/definition", None, {"definition": {"cluster": {"name": "default"}}},
        client=lambda client, store: store in client.definition()["definition"]["stores"], same=True),
    Row("PUT /v1/cluster/definition", "/v1/cluster/definition", {}, {"error": {"code": "revision_mismatch"}}, 412,
        headers=('If-Match: "1"',)),
    Row("PUT /v1/cluster/definition", "/v1/cluster/definition", {"stores": {"{store}": {}}},
        {"error": {"code": "deletes_messages"}}, 409),
    Row("PATCH /v1/cluster/definition", "/v1/cluster/definition", {"stores": {"{store}": {"message_limit": 7}}},
        {"definition": {"stores": {"{store}": {"message_limit": 7}}}}),
    Row("PATCH /v1/stores/{store}", "/v1/stores/{store}", {"message_limit": 7}, {"message_limit": 7},
        client=lambda client, store: client.edit(store, {"message_limit": 9})["message_limit"], same=9),
    Row("PATCH /v1/stores/{store}/durables/{durable}", WORK, {"max_delivery": 7}, {"max_delivery": 7},
        client=lambda client, store: client.edit(f"{store}/work", {"max_delivery": 9})["max_delivery"], same=9),
    Row("PATCH /v1/stores/{store}/templates/{template}", "/v1/stores/{store}/templates/jobs", {"max_delivery": 7},
        {"max_delivery": 7, "prefetch": 7},
        client=lambda client, store: client.edit(f"{store}/jobs", {"prefetch": 9}, template=True)["prefetch"], same=9),
    Row("PUT /v1/cluster/definition", "/v1/cluster/definition?delete=true", {"stores": {"{store}": {}}},
        {"definition": {"stores": {"{store}": {"message_limit": 0}}}},
        client=lambda client, _: list(client.define({"stores": {"a": {}}}, delete=True)["definition"]["stores"]),
        same=["a"]),
    Row("POST /v1/cluster/definition/check", "/v1/cluster/definition/check", {"stores": {"never": {}}},
        {"definition": {"stores": {"never": {"replicated": True}}}},
        client=lambda client, _: list(client.check_definition({"stores": {"b": {}}})["definition"]["stores"]),
        same=["b"]),
    Row("GET /v1/cluster/history", "/v1/cluster/history", None, {"history": [{"author": ""}]}),
    Row("GET /v1/cluster/history/{revision}", "/v1/cluster/history/{former}", None, {"definition": {"cluster": {}}}),
    Row("POST /v1/cluster/rollback", "/v1/cluster/rollback?delete=true", FORMER,
        {"definition": {"cluster": {"name": "default"}}}),
    Row("POST /v1/cluster/save", "/v1/cluster/save", client=lambda client, _: client.cluster_command("save"), same={}),
    Row("POST /v1/cluster/compact", "/v1/cluster/compact",
        client=lambda client, _: sorted(client.cluster_command("compact")),
        same=["allocated", "allocated_before", "in_use"]),
    Row("POST /v1/cluster/backup", "/v1/cluster/backup", {"name": "{store}"},
        client=lambda client, store: client.cluster_command("backup", {"name": f"{store}-2"})["path"].endswith("-2"),
        same=True),
    Row("POST /v1/cluster/force-quorum", "/v1/cluster/force-quorum", None, {"have_quorum": True},
        client=lambda client, _: client.cluster_command("force-quorum")["leader"], same="default"),
    Row("POST /v1/cluster/resume", "/v1/cluster/resume", None, {"have_quorum": True},
        client=lambda client, _: client.cluster_command("resume")["leader"], same="default"),
)  # fmt: skip
ON_THEIR_OWN = {"POST /v1/cluster/suspend", "GET /v1/stores/{store}/durables/{durable}/subscribe"}
"""Routes whose rows are tests below: one ends the service for stores, one ends never."""


@pytest.fixture(scope="module")
def service(durability: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    process = started(tmp_path_factory.mktemp("rows"))
    yield process
    process.kill()


def started(folder: Path) -> ServerProcess:
    """A service whose stores are open."""
    environment = {"HOLDFAST_STORES__PAGE_SIZE_BYTES": "1 MiB", "HOLDFAST_VIEW__ENABLED": "false"}
    flags = ("--init",)
    process = ServerProcess(folder, (folder / "log").as_uri(), free_port(), flags=flags, environment=environment)
    process.wait_until_leading()
    while ask(process, "GET", "/v1/stores")[0] == 503:
        assert process.running, process.tail()
        time.sleep(POLL_SECONDS)
    return process


def ask(
    service: ServerProcess, method: str, path: str, body: object = None, headers: tuple[str, ...] = ()
) -> tuple[int, Any]:
    """The status and the decoded answer."""
    answer = curl(service.port, method, path, None if body is None else json.dumps(body).encode(), headers)
    return answer.status, answer.json


def filled(value: Any, names: dict[str, Any]) -> Any:
    """The same with the names of this row's own things."""
    if isinstance(value, dict):
        return {filled(key, names): filled(part, names) for key, part in value.items()}
    if isinstance(value, list):
        return [filled(part, names) for part in value]
    if isinstance(value, str):
        whole = names.get(value.strip("{}")) if value.startswith("{") else None
        for name, given in names.items():
            value = value.replace(f"{{{name}}}", str(given))
        return whole if isinstance(whole, int) else value
    return value


def contains(shown: Any, wanted: Any) -> bool:
    """Whether everything that is wanted is shown; of a list, whether each is among the shown."""
    if isinstance(wanted, dict):
        return isinstance(shown, dict) and all(contains(shown.get(key), part) for key, part in wanted.items())
    if isinstance(wanted, list) and wanted:
        return isinstance(shown, list) and all(any(contains(one, part) for one in shown) for part in wanted)
    return bool(shown == wanted)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.route.replace('/v1/', '')}-{row.status}")
def test_what_curl_sends_is_answered_and_the_client_gives_the_same(
    durability: str, service: ServerProcess, row: Row
) -> None:
    url = f"http://127.0.0.1:{service.port}"
    with StoreClient(url) as client:
        names = {"store": f"store-{next(NUMBERS)}", "former": client.definition()["revision"]}
        client.define_store(names["store"], STORE)
        names["former"] = names["former"] or client.definition()["revision"]
        given = (
            ("POST", "/v1/stores/{store}/messages", {"messages": THREE}),
            ("GET", WORK + "/messages?subscriber=s&max=1", None),
            *row.given,
        )
        for method, path, body in given:
            status, answer = ask(service, method, filled(path, names), filled(body, names))
            assert status == 200, answer
        status, answer = ask(service, row.method, filled(row.path, names), filled(row.body, names), row.headers)
        if durability == "log" and row.path == "/v1/cluster/backup":
            assert (status, "log mirror" in answer["error"]["hint"]) == (400, True), "a copy of the log is the backup"
            return
        assert (status, contains(answer, filled(row.seen, names))) == (row.status, True), answer
        if row.client is not None:
            if row.method == "DELETE" and row.route.count("{") == 1:
                client.define_store(names["store"], STORE)
            assert row.client(client, names["store"]) == filled(row.same, names)


def test_no_route_that_is_described_is_without_a_row(service: ServerProcess) -> None:
    _, description = ask(service, "GET", "/openapi.json")
    described = {
        f"{method.upper()} {path}"
        for path, methods in description["paths"].items()
        for method in methods
        if path.startswith(("/v1/stores", "/v1/cluster"))
    }
    assert described == {row.route for row in ROWS} | ON_THEIR_OWN


@pytest.mark.skipif(CURL is None, reason="no curl; test_stores_socket has the frames")
def test_curl_shakes_hands_and_is_sent_the_first_frame(service: ServerProcess) -> None:
    ask(service, "PUT", "/v1/stores/handshake", STORE)
    headers = (
        "Upgrade: websocket",
        "Connection: Upgrade",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Protocol: holdfast.stores.v1+json",
    )
    url = f"http://127.0.0.1:{service.port}/v1/stores/handshake/durables/work/subscribe?subscriber=me"
    command = [str(CURL), "-s", "-i", "-N", "--http1.1", url, *(word for header in headers for word in ("-H", header))]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        seen = b""
        while b'"prefetch":256' not in seen:
            part = process.stdout.read1()
            assert part, seen
            seen += part
        process.terminate()
    assert seen.startswith(b"HTTP/1.1 101 ")
    assert b'"type":"attached"' in seen


def test_a_suspended_cluster_refuses_until_it_is_resumed_or_started_again(tmp_path: Path) -> None:
    process = started(tmp_path)
    try:
        with StoreClient(f"http://127.0.0.1:{process.port}") as client:
            client.define_store("orders", STORE)
        assert ask(process, "POST", "/v1/cluster/suspend")[1]["have_quorum"] is False
        status, answer = ask(process, "POST", "/v1/stores/orders/messages", {"messages": THREE})
        assert (status, answer["error"]["code"]) == (412, "no_quorum")
        assert ask(process, "POST", "/v1/cluster/resume")[1]["have_quorum"] is True
        assert ask(process, "POST", "/v1/stores/orders/messages", {"messages": THREE})[0] == 200
        assert ask(process, "POST", "/v1/cluster/suspend")[0] == 200
        assert process.stop() == 0
        process = started(tmp_path)
        assert ask(process, "POST", "/v1/stores/orders/messages", {"messages": THREE})[0] == 200
        assert process.stop() == 0
    finally:
        if process.running:
            process.kill()
