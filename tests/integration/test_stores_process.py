"""``holdfast serve`` with stores, as a process: what it starts with, what keeps it from starting, how it ends."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.crash.server_process import POLL_SECONDS, ServerEnded, ServerProcess
from tests.rgw import free_port

pytestmark = pytest.mark.usefixtures("durability")

SMALL_PAGES = {"HOLDFAST_STORES__PAGE_SIZE_BYTES": "1 MiB", "HOLDFAST_VIEW__ENABLED": "false"}

DEFINITIONS = """
[stores.orders]
bytelimit = "1g"

[stores.orders.durables.work]
type = "shared"
max_delivery = 5
"""


@contextmanager
def serving(directory: Path, **environment: str) -> Iterator[ServerProcess]:
    """A service whose stores are open."""
    server = ServerProcess(
        directory,
        (directory / "log").as_uri(),
        free_port(),
        flags=("--init",),
        environment={**SMALL_PAGES, **environment},
    )
    try:
        server.wait_until_leading()
        while ask(server, "GET", "/v1/stores")[0] == 503:
            server.leads()  # raises when it has ended
            time.sleep(POLL_SECONDS)
        yield server
    finally:
        if server.running:
            server.kill()


def ask(server: ServerProcess, method: str, target: str, body: object = None) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    try:
        connection.request(method, target, None if body is None else json.dumps(body))
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    except ConnectionError:
        return 503, None
    finally:
        connection.close()


def test_the_definitions_in_a_file_are_in_force_from_the_start(tmp_path: Path) -> None:
    file = tmp_path / "stores.toml"
    file.write_text(DEFINITIONS)
    with serving(tmp_path, HOLDFAST_STORES__DEFINITIONS=str(file)) as server:
        status, durable = ask(server, "GET", "/v1/stores/orders/durables/work")
        assert (status, durable["max_delivery"]) == (200, 5)
        assert ask(server, "PUT", "/v1/stores/more", {})[1]["name"] == "more"
        assert server.stop() == 0
    file.write_text(DEFINITIONS.replace("5", "6"))
    with serving(tmp_path, HOLDFAST_STORES__DEFINITIONS=str(file)) as server:
        _, whole = ask(server, "GET", "/v1/cluster/definition")
        assert (whole["revision"], list(whole["definition"]["stores"])) == (3, ["orders", "more"])
        assert whole["definition"]["stores"]["orders"]["durables"]["work"]["max_delivery"] == 6
        _, history = ask(server, "GET", "/v1/cluster/history")
        assert [one["author"] for one in history["history"]] == ["stores.definitions", "", "stores.definitions"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[stores.orders]\nbytelimt = 1\n", "stores.orders.bytelimt"),
        pytest.param("[stores.orders", "stores.toml cannot be read", marks=pytest.mark.matrix),
        pytest.param(
            "[cluster]\nservices = ['a', 'b']\n", "with 2 the loss of either stops both", marks=pytest.mark.matrix
        ),
        pytest.param("[cluster]\nmax_disk_fraction = 1.5\n", "cluster.max_disk_fraction", marks=pytest.mark.matrix),
    ],
)
def test_a_definitions_file_that_is_wrong_keeps_the_service_from_starting(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "stores.toml"
    file.write_text(text)
    with pytest.raises(ServerEnded) as caught, serving(tmp_path, HOLDFAST_STORES__DEFINITIONS=str(file)):
        pass
    assert "exit code 2" in str(caught.value)
    assert said in str(caught.value)


def test_a_definitions_file_that_would_delete_messages_keeps_the_service_from_starting(tmp_path: Path) -> None:
    file = tmp_path / "stores.toml"
    file.write_text(DEFINITIONS)
    with serving(tmp_path, HOLDFAST_STORES__DEFINITIONS=str(file)) as server:
        assert ask(server, "POST", "/v1/stores/orders/messages", {"messages": [{"body": "YQ=="}, {}, {}]})[0] == 200
        assert server.stop() == 0
    file.write_text(DEFINITIONS + 'message_limit = 1\ndiscard = "old"\n')
    with pytest.raises(ServerEnded) as caught, serving(tmp_path, HOLDFAST_STORES__DEFINITIONS=str(file)):
        pass
    assert "exit code 2" in str(caught.value)
    assert "orders/work (2)" in str(caught.value)
    assert "--delete" in str(caught.value)
    file.write_text(DEFINITIONS)
    with serving(tmp_path, HOLDFAST_STORES__DEFINITIONS=str(file)) as server:
        assert ask(server, "GET", "/v1/stores/orders/durables/work")[1]["counts"]["backlog"] == 3


def test_a_service_without_stores_has_no_routes_for_them(tmp_path: Path) -> None:
    with serving(tmp_path, HOLDFAST_STORES__ENABLED="false") as server:
        status, answer = ask(server, "GET", "/v1/stores")
        assert (status, answer["error"]["message"]) == (404, "there is no such route")
        assert not (tmp_path / "log-stores").exists()


def test_statistics_stand_in_the_log_lines(tmp_path: Path) -> None:
    file = tmp_path / "stores.toml"
    file.write_text(DEFINITIONS)
    environment = {"HOLDFAST_STORES__STATISTICS_SECONDS": "0.1", "HOLDFAST_STORES__DEFINITIONS": str(file)}
    with serving(tmp_path, **environment) as server:
        assert ask(server, "POST", "/v1/stores/orders/messages", {"messages": [{"body": "YQ=="}]})[0] == 200
        while "event=durable_statistics store=orders durable=work messages=1" not in server.tail():
            assert server.running, server.tail()
            time.sleep(POLL_SECONDS)


def test_what_was_confirmed_survives_a_kill(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        ask(server, "PUT", "/v1/stores/orders", {"durables": {"work": {"type": "shared"}}})
        assert ask(server, "POST", "/v1/stores/orders/messages", {"messages": [{"body": "YQ=="}]})[0] == 200
        server.kill()
    with serving(tmp_path) as server:
        _, answer = ask(server, "GET", "/v1/stores/orders/durables/work/messages?subscriber=s")
        assert [message["body"] for message in answer["messages"]] == ["YQ=="]


@pytest.mark.parametrize("durability", ["disk"], indirect=True)
@pytest.mark.usefixtures("durability")
def test_stores_that_another_process_has_open_are_served_when_it_closes_them(tmp_path: Path) -> None:
    """In the log each log and address has a directory of its own."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    shared = {"HOLDFAST_STORES__DIRECTORY": str(tmp_path / "stores")}
    with serving(tmp_path, **shared) as first:
        ask(first, "PUT", "/v1/stores/orders", {})
        second = ServerProcess(
            elsewhere,
            (elsewhere / "log").as_uri(),
            free_port(),
            flags=("--init", "--force-new"),  # it is another log, which gets the stores of the first
            environment={**SMALL_PAGES, **shared},
        )
        try:
            second.wait_until_leading()
            while "stores_held" not in second.tail():
                assert second.running, second.tail()
                time.sleep(POLL_SECONDS)
            status, answer = ask(second, "GET", "/v1/stores")
            assert (status, answer["error"]["message"]) == (503, "the stores are not open yet")
            # Commits get through, so who balances them sends them; who balances messages asks for the stores, too.
            status, answer = ask(second, "GET", "/readyz")
            assert (status, answer["ready"], answer["stores"]) == (200, True, "held")
            assert ask(second, "GET", "/readyz?stores=true")[0] == 503
            assert first.stop() == 0
            while (answered := ask(second, "GET", "/v1/stores"))[0] == 503:
                assert second.running, second.tail()
                time.sleep(POLL_SECONDS)
            assert [store["name"] for store in answered[1]["stores"]] == ["default", "orders"]
            status, answer = ask(second, "GET", "/readyz?stores=true")
            assert (status, answer["stores"]) == (200, "open")
            assert second.stop() == 0
        finally:
            if second.running:
                second.kill()


def test_a_place_that_is_no_directory_keeps_the_service_from_starting(tmp_path: Path) -> None:
    place = tmp_path / "stores"
    place.write_text("not a directory")
    with pytest.raises(ServerEnded) as caught, serving(tmp_path, HOLDFAST_STORES__DIRECTORY=str(place)):
        pass
    assert "exit code 2" in str(caught.value), "a wrong setting"
    assert f"{place}" in str(caught.value)
    assert "Not a directory" in str(caught.value)


def test_subscribers_and_polls_do_not_keep_a_service_from_stopping(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        ask(server, "PUT", "/v1/stores/orders", {"durables": {"work": {"type": "shared"}}})
        polling = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        polling.request("GET", "/v1/stores/orders/durables/work/messages?subscriber=s&wait_ms=60000")
        while not ask(server, "GET", "/v1/stores/orders/durables/work")[1]["subscribers"]:
            assert server.running, server.tail()
            time.sleep(POLL_SECONDS)
        assert server.stop() == 0
        assert polling.getresponse().status == 503
        polling.close()
