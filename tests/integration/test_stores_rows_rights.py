"""Rights, as a table: every role, every operation, every way in; what nobody granted is refused, at once and by name.

The ways in are HTTP with JSON and with msgpack, the WebSocket in both its formats, and the command line, against one
real ``holdfast serve``. Who is refused has changed nothing.
"""

from __future__ import annotations

import http.client
import itertools
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from tests.crash.server_process import POLL_SECONDS, ServerProcess
from tests.matrix import matrix
from tests.rgw import free_port

from holdfast.cli.main import main
from holdfast.cli.output import Exit

pytestmark = pytest.mark.usefixtures("durability")

JSON, MSGPACK = "application/json", "application/msgpack"
SOCKET = "holdfast.stores.v1"
ORDERS = "/v1/stores/orders"
WORK = f"{ORDERS}/durables/work"
EVERYTHING = ["publish", "subscribe", "browse", "administer"]
ROOT = "root"
NUMBERS = itertools.count(1)
REFUSED: Counter[str] = Counter()
"""Attempts that were refused, by the way in; told at the end."""

ROLES: dict[str, dict[str, Any]] = {
    "publisher": {"stores": {"orders": ["publish"]}},
    "subscriber": {"stores": {"orders": ["subscribe"]}},
    "browser": {"stores": {"orders": ["browse"]}},
    "administrator": {"stores": {"orders": ["administer"]}},
    "by-prefix": {"stores": {"ord*": EVERYTHING}},
    "elsewhere": {"stores": {"other": EVERYTHING}, "cluster": ["browse"]},
    "of-the-cluster": {"cluster": ["administer"]},
    "nothing": {},
    ROOT: {"stores": {"*": EVERYTHING}, "cluster": ["browse", "administer"]},
}
STRANGERS = ("", "a-token-that-nobody-was-given")
"""Without a token, and with one of nobody."""


def token_of(role: str) -> str:
    return f"the-token-of-{role}-is-long"


def definition() -> dict[str, Any]:
    durables = {"work": {"type": "shared", "retention_time": "1h"}, "map": {"type": "map"}}
    return {
        "stores": {"orders": {"durables": durables}, "other": {}},
        "permissions": {
            "enabled": True,
            "users": {role: {"token": token_of(role), "roles": [role]} for role in ROLES},
            "roles": ROLES,
        },
    }


def granted(role: str, right: str, store: str) -> bool:
    """What the table above says, read once more and otherwise than the product reads it."""
    if not store:
        return right in ROLES[role].get("cluster", [])
    names = {"orders": ("orders", "ord*", "*"), "other": ("other", "*"), "new": ("*",)}[store]
    return any(right in ROLES[role].get("stores", {}).get(name, []) for name in names)


@dataclass(frozen=True)
class Operation:
    """One thing to do, and the right that it needs on a store, or on the cluster where the store is empty."""

    name: str
    right: str
    store: str = "orders"
    method: str = ""
    path: str = ""
    body: object = None
    command: tuple[str, ...] = ()
    """The same on the command line; none where there is no such command."""


MESSAGE = {"messages": [{}]}
OPERATIONS = (
    Operation("publish", "publish", "orders", "POST", f"{ORDERS}/messages", MESSAGE, ("publish", "orders", "a")),
    Operation("publish-other", "publish", "other", "POST", "/v1/stores/other/messages", MESSAGE),
    Operation("set", "publish", "orders", "PUT", f"{ORDERS}/maps/map/k", {"value": b"v"}),
    Operation("set-many", "publish", "orders", "POST", f"{ORDERS}/maps/map", {"changes": [{"key": "k"}]}),
    Operation("remove", "publish", "orders", "DELETE", f"{ORDERS}/maps/map/j"),
    Operation("lock", "publish", "orders", "POST", f"{ORDERS}/maps/map/lock", {"owner": "o", "ttl_ms": 1}),
    Operation("poll", "subscribe", "orders", "GET", f"{WORK}/messages?subscriber=s"),
    Operation(
        "acknowledge", "subscribe", "orders", "POST", f"{WORK}/acks", {"subscriber": "s", "ack": [9]},
        ("tail", "orders/work", "--limit", "1", "--no-ack"),
    ),
    Operation(
        "rewind", "subscribe", "orders", "POST", f"{WORK}/rewind", {"to": "start"}, ("rewind", "orders/work")
    ),
    Operation("get", "subscribe", "orders", "GET", f"{ORDERS}/maps/map"),
    Operation("browse", "browse", "orders", "GET", f"{WORK}/browse", None, ("browse", "orders/work")),
    Operation("explain", "browse", "orders", "GET", f"{ORDERS}/messages/1/explain", None, ("explain", "orders", "1")),
    Operation("show-store", "browse", "orders", "GET", ORDERS, None, ("show", "orders")),
    Operation("show-durable", "browse", "orders", "GET", WORK, None, ("show", "orders/work")),
    Operation("list-durables", "browse", "orders", "GET", f"{ORDERS}/durables", None, ("ls", "orders")),
    Operation("list-templates", "browse", "orders", "GET", f"{ORDERS}/templates"),
    Operation("purge", "administer", "orders", "POST", f"{WORK}/purge", None, ("purge", "orders/work", "--yes")),
    Operation("redeliver", "administer", "orders", "POST", f"{WORK}/redeliver", {}, ("redeliver", "orders/work")),
    Operation("delete-message", "administer", "orders", "DELETE", f"{WORK}/messages/99"),
    Operation(
        "define-durable", "administer", "orders", "PUT", f"{ORDERS}/durables/more", {"type": "shared"},
        ("define", "orders/more", "type=shared"),
    ),
    Operation(
        "define-template", "administer", "orders", "PUT", f"{ORDERS}/templates/jobs", {"type": "shared"},
        ("define", "orders/jobs", "type=shared", "--template"),
    ),
    Operation("define-store", "administer", "new", "PUT", "/v1/stores/new", {}, ("define", "new")),
    Operation("cluster", "browse", "", "GET", "/v1/cluster"),
    Operation("definition", "browse", "", "GET", "/v1/cluster/definition"),
    Operation("check", "administer", "", "POST", "/v1/cluster/definition/check", {}),
    Operation("history", "browse", "", "GET", "/v1/cluster/history"),
    Operation("save", "administer", "", "POST", "/v1/cluster/save"),
    Operation("resume", "administer", "", "POST", "/v1/cluster/resume"),
    Operation("compact", "administer", "", "POST", "/v1/cluster/compact", None, ("compact",)),
    Operation("rollback", "administer", "", "POST", "/v1/cluster/rollback", {"revision": 99}),
    Operation("backup", "administer", "", "POST", "/v1/cluster/backup", {"name": "NEW"}, ("backup", "NEW")),
)  # fmt: skip


@pytest.fixture(scope="module")
def service(
    durability: str, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("rights")
    environment = {"HOLDFAST_STORES__PAGE_SIZE_BYTES": "1 MiB", "HOLDFAST_VIEW__ENABLED": "false"}
    flags = ("--init",)
    process = ServerProcess(folder, (folder / "log").as_uri(), free_port(), flags=flags, environment=environment)
    process.wait_until_leading()
    while asked(process, "PUT", "/v1/cluster/definition", definition(), token="").status == 503:
        assert process.running, process.tail()
        time.sleep(POLL_SECONDS)
    yield process
    process.kill()
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        for way_in, refusals in sorted(REFUSED.items()):
            print(f"\n{way_in}: {refusals} attempts without the right refused by name, nothing changed", end="")
        print()


PASSING = ("disk", "log", "sockets", "subscribers", "counts")


@dataclass(frozen=True)
class Answer:
    """What came back."""

    status: int
    code: str = ""
    message: str = ""


def asked(
    service: ServerProcess, method: str, path: str, body: object, *, token: str, media: str = JSON, **headers: str
) -> Answer:
    """One request in one format."""
    encode = msgspec.json.encode if media == JSON else msgspec.msgpack.encode
    given = {"Content-Type": media, "Accept": media, **headers}
    if token:
        given["Authorization"] = f"Bearer {token}"
    connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=30)
    try:
        connection.request(method, path, None if body is None else encode(body), given)
        answer = connection.getresponse()
        if answer.status == 101:
            return Answer(101)
        data = answer.read()
        decoded: Any = (msgspec.msgpack if answer.getheader("content-type") == MSGPACK else msgspec.json).decode(data)
        error = decoded.get("error", {})
        return Answer(answer.status, error.get("code", ""), error.get("message", ""))
    finally:
        connection.close()


def state_of(service: ServerProcess) -> tuple[Any, ...]:
    """All that a refused request might have changed."""
    connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=30)
    found: list[Any] = []
    for path in ("/v1/cluster/definition", "/v1/cluster", "/v1/stores", WORK, f"{ORDERS}/durables/map"):
        connection.request("GET", path, headers={"Authorization": f"Bearer {token_of(ROOT)}"})
        answer = json.loads(connection.getresponse().read())
        # What others on this machine write, and who comes and goes, is no change of ours.
        found.append({name: value for name, value in answer.items() if name not in PASSING})
        counts = answer.get("counts", {})
        found.append([counts.get(name) for name in ("messages", "bytes", "acknowledged", "dead_letters", "expired")])
    connection.close()
    return tuple(found)


def check(
    service: ServerProcess,
    operation: Operation,
    way_in: str,
    attempt: Callable[[str], Answer],
    *,
    allowed: tuple[int, ...] = (),
) -> int:
    """Everybody tries it by one way in, those first who may not. Returns how many were refused."""
    may = {role for role in ROLES if granted(role, operation.right, operation.store)}
    assert ROOT in may
    before = state_of(service)
    for role in (*(role for role in ROLES if role not in may), *STRANGERS):
        known = role in ROLES
        answer = attempt(token_of(role) if known else role)
        if known:
            assert (answer.status, answer.code) == (403, "permission_denied"), f"{role} may not {operation.name}"
            place = f"store {operation.store}" if operation.store else "the cluster"
            assert answer.message.startswith(f"{role} may not {operation.right} on {place}"), answer.message
        else:
            assert (answer.status, answer.code) == (401, "unauthenticated"), f"a stranger may not {operation.name}"
    assert state_of(service) == before, f"who was refused {operation.name} has changed something"
    for role in sorted(may):
        answer = attempt(token_of(role))
        assert answer.status not in (401, 403), f"{role} may {operation.name}: {answer}"
        assert not allowed or answer.status in allowed, f"{role}: {answer}"
    refusals = len(ROLES) - len(may) + len(STRANGERS)
    REFUSED[way_in] += refusals
    return refusals


@pytest.mark.parametrize("media", matrix([JSON, MSGPACK]), ids=["json", "msgpack"])
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_who_was_not_granted_the_right_is_refused_over_http(
    service: ServerProcess, operation: Operation, media: str, record_property: Callable[[str, object], None]
) -> None:
    def attempt(token: str) -> Answer:
        body = {"name": f"backup-{next(NUMBERS)}"} if operation.name == "backup" else operation.body
        return asked(service, operation.method, operation.path, body, token=token, media=media)

    record_property("stores_rights_refused", check(service, operation, media, attempt))


@pytest.mark.parametrize("subprotocol", [f"{SOCKET}+json", f"{SOCKET}+msgpack"])
def test_who_was_not_granted_the_right_is_refused_at_the_handshake(
    service: ServerProcess, subprotocol: str, record_property: Callable[[str, object], None]
) -> None:
    headers = {
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Protocol": subprotocol,
    }

    def attempt(token: str) -> Answer:
        return asked(service, "GET", f"{WORK}/subscribe?subscriber=socket", None, token=token, **headers)

    refusals = check(service, Operation("subscribe", "subscribe"), subprotocol, attempt, allowed=(101,))
    record_property("stores_rights_refused", refusals)


WITH_A_COMMAND = [operation for operation in OPERATIONS if operation.command]


@pytest.mark.parametrize("operation", matrix(WITH_A_COMMAND, 2), ids=lambda operation: operation.name)
def test_who_was_not_granted_the_right_is_refused_by_the_command_line(
    service: ServerProcess,
    operation: Operation,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    record_property: Callable[[str, object], None],
) -> None:
    """A command that would wait for ever for a service that is away ends at once here, and its exit code tells."""
    monkeypatch.setenv("HOLDFAST_URL", f"http://127.0.0.1:{service.port}")
    # So that whoever may subscribe receives something, and ends.
    assert asked(service, "POST", f"{ORDERS}/messages", MESSAGE, token=token_of(ROOT)).status == 200

    def attempt(token: str) -> Answer:
        monkeypatch.setenv("HOLDFAST_TOKEN", token) if token else monkeypatch.delenv("HOLDFAST_TOKEN", raising=False)
        words = [f"backup-{next(NUMBERS)}" if word == "NEW" else word for word in operation.command]
        ended = main(["stores", *words, "--json"])
        printed = capsys.readouterr()
        if ended in (Exit.DONE, Exit.NO):
            return Answer(200)
        error = json.loads(printed.err.splitlines()[-1])["error"]
        if error["code"] in ("permission_denied", "unauthenticated"):
            assert ended == Exit.BAD_REQUEST
            return Answer(403 if error["code"] == "permission_denied" else 401, error["code"], error["message"])
        return Answer(400, error["code"], error["message"])

    record_property("stores_rights_refused", check(service, operation, "command line", attempt))


@pytest.mark.parametrize("stranger", STRANGERS)
def test_a_list_of_stores_is_refused_to_strangers(service: ServerProcess, stranger: str) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=30)
    connection.request("GET", "/v1/stores", headers={"Authorization": f"Bearer {stranger}"} if stranger else {})
    answer = connection.getresponse()
    assert (answer.status, json.loads(answer.read())["error"]["code"]) == (401, "unauthenticated")
    connection.close()


def test_a_list_of_stores_shows_what_one_may_browse(service: ServerProcess) -> None:
    for role in ROLES:
        connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=30)
        connection.request("GET", "/v1/stores", headers={"Authorization": f"Bearer {token_of(role)}"})
        shown = {store["name"] for store in json.loads(connection.getresponse().read())["stores"]}
        connection.close()
        assert shown & {"orders", "other"} == {name for name in ("orders", "other") if granted(role, "browse", name)}
