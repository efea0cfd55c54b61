"""The message stores over HTTP: what is sent with curl, and what is seen."""

from __future__ import annotations

import asyncio
import errno
import json
import sqlite3
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest
import structlog
from prometheus_client import CollectorRegistry
from tests.integration.http_harness import request, run, until
from tests.integration.stores_harness import JSON, MSGPACK, bodies, stores_serving, text64

from holdfast.errors import LimitExceeded
from holdfast.server.http.auth import Role
from holdfast.server.metrics import ServerMetrics
from holdfast.server.stores import operations as operations_module
from holdfast.server.stores.figures import Statistics
from holdfast.server.stores.hosting import StoreHost
from holdfast.server.stores.opening import _put_in_force
from holdfast.server.stores.operations import POLL_MESSAGES_MAX
from holdfast.server.stores.store_metrics import store_metrics
from holdfast.stores.definitions import parts
from holdfast.stores.definitions.cluster import definition_of
from holdfast.stores.service import StoreService
from holdfast.stores.storage.index import Index, IndexChanges
from holdfast.stores.storage.log import MessageLog
from holdfast.stores.values.messages import FIELDS_RULE

pytestmark = pytest.mark.usefixtures("durability")

SHARED: dict[str, object] = {"type": "shared"}
STANDARD: dict[str, object] = {"type": "standard"}
MAP: dict[str, object] = {"type": "map"}


# ---- publishing, polling, acknowledging -----------------------------------------------------------------------------


def test_what_is_published_is_polled_and_acknowledged(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define("orders", durables={"work": SHARED})
            published = await stores.publish("orders", "a", "b", "c")
            assert published == {"first_seq": 1, "last_seq": 3, "duplicates": 0, "unmatched": 0, "discarded": 0}
            got = await stores.poll("orders", "work")
            assert bodies(got) == ["a", "b", "c"]
            assert [message["delivery_count"] for message in got] == [1, 1, 1]
            answer = await stores.acks("orders", "work", ack=[1, 3, 9])
            assert answer == {"acknowledged": 2, "stale": [9]}
            assert await stores.poll("orders", "work", wait_ms=10) == []

    run(scenario)


def test_both_kinds_of_connection_admit_a_publish_by_the_size_of_its_body(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    admitted: list[int] = []
    returned: list[int] = []
    admit, settled = StoreHost.admit, StoreHost.settled

    def count(host: StoreHost, size: int) -> None:
        admitted.append(size)
        admit(host, size)

    def count_back(host: StoreHost, size: int) -> None:
        returned.append(size)
        settled(host, size)

    monkeypatch.setattr(StoreHost, "admit", count)
    monkeypatch.setattr(StoreHost, "settled", count_back)

    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define("orders", durables={"work": SHARED})
            body = {"messages": [{"body": text64("a"), "fields": {"note": "n" * 100}}]}
            for store in ("orders", "%6Frders"):  # the framework reads lines with an escape
                assert (await stores.ask("POST", f"/v1/stores/{store}/messages", body)).status == 200
            assert len(set(admitted)) == 1
            assert admitted[0] > 100
            assert returned == admitted
            assert len(admitted) == 2

    run(scenario)


@pytest.mark.parametrize(
    ("ranges", "status", "code"),
    [([[1, 2**53 - 1]], 413, "too_large"), ([[3, 1]], 400, "malformed"), ([[1, 2**53 - 1], [2**53 - 1, 1]], 400, "")],
)
def test_ranges_that_are_none_or_too_long_are_refused_and_settle_nothing(
    tmp_path: Path, ranges: list[list[int]], status: int, code: str
) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define("orders", durables={"work": SHARED})
            await stores.publish("orders", "a", "b", "c")
            assert len(await stores.poll("orders", "work")) == 3
            body = {"subscriber": "s", "ranges": ranges}
            answered = await stores.ask("POST", "/v1/stores/orders/durables/work/acks", body)
            assert (answered.status, answered.json["error"]["code"]) == (status, code or "malformed")
            assert await stores.acks("orders", "work", ranges=[[1, 9]]) == {
                "acknowledged": 3,
                "stale": [4, 5, 6, 7, 8, 9],
            }

    run(scenario)


def test_a_change_of_the_definition_that_is_too_large_for_a_log_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            monkeypatch.setattr(parts, "CHANGE_BYTES_MAX", 500)
            notes = {"description": "x" * 500}
            refused = await stores.ask("PUT", "/v1/stores/orders", notes)
            assert (refused.status, refused.json["error"]["code"]) == (413, "too_large")
            assert (await stores.ask("GET", "/v1/stores/orders")).status == 404
            with pytest.raises(LimitExceeded):
                await _put_in_force(stores.opened.service, definition_of({"stores": {"orders": notes}}), "file")

    run(scenario)


def test_a_poll_waits_for_the_first_message(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define("orders", durables={"work": SHARED})
            polling = asyncio.ensure_future(stores.poll("orders", "work", wait_ms=15_000))
            await until(lambda: stores.opened.deliveries.connected("orders", "work"))
            await stores.publish("orders", "a")
            assert bodies(await polling) == ["a"]

    run(scenario)


def test_a_poll_takes_no_more_than_it_asks_for(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define("orders", durables={"work": SHARED})
            await stores.publish("orders", "a", "b", "c")
            assert bodies(await stores.poll("orders", "work", max=2)) == ["a", "b"]
            assert bodies(await stores.poll("orders", "work", max=2)) == ["c"]

    run(scenario)


def test_messages_on_their_way_to_a_lost_poll_are_delivered_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define("orders", durables={"work": SHARED})
            lost = await stores.connect()
            lost.send(request("GET", "/v1/stores/orders/durables/work/messages?subscriber=s&wait_ms=15000"))
            await until(lambda: any(one.room for one in stores.opened.deliveries.connected("orders", "work")))
            lost.close()
            await until(lambda: not any(one.room for one in stores.opened.deliveries.connected("orders", "work")))
            await stores.publish("orders", "a")
            (got,) = await stores.poll("orders", "work", "s", wait_ms=5_000)
            assert got["delivery_count"] == 1

    run(scenario)


def test_a_subscriber_that_polls_no_more_is_detached(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            times = {"subscriber_timeout": "50ms", "ack_wait": "100ms"}
            await stores.define("orders", durables={"work": {**SHARED, **times}})
            await stores.publish("orders", "a")
            assert len(await stores.poll("orders", "work", "gone")) == 1
            (again,) = await stores.poll("orders", "work", "other", wait_ms=15_000)
            assert (again["delivery_count"], again["redelivered"]) == (2, True)
            assert await stores.acks("orders", "work", "other", ack=[1]) == {"acknowledged": 1, "stale": []}

    run(scenario)


@pytest.mark.parametrize("lane", ["fast", "framework"])
def test_a_poller_has_the_address_of_its_newest_poll(tmp_path: Path, lane: str) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define("orders", durables={"work": SHARED})
            query = "subscriber=s" if lane == "fast" else "subscriber=%73"  # names with escapes are the framework's
            for _ in range(2):
                client = await stores.connect()
                polled = await client.ask("GET", f"/v1/stores/orders/durables/work/messages?{query}", None)
                assert polled.status == 200
                host, port = client.writer.get_extra_info("sockname")
                described = (await stores.ask("GET", "/v1/stores/orders/durables/work")).json
                assert [one["address"] for one in described["subscribers"]] == [f"{host}:{port}"]

    run(scenario)


def test_only_the_holder_settles(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define("orders", durables={"work": SHARED})
            await stores.publish("orders", "a")
            await stores.poll("orders", "work", "holder")
            assert await stores.poll("orders", "work", "other") == []
            assert await stores.acks("orders", "work", "other", ack=[1]) == {"acknowledged": 0, "stale": [1]}
            assert await stores.acks("orders", "work", "holder", ack=[1]) == {"acknowledged": 1, "stale": []}

    run(scenario)


def test_a_message_given_back_with_a_delay_comes_after_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define("orders", durables={"work": SHARED})
            await stores.publish("orders", "a")
            await stores.poll("orders", "work")
            assert (await stores.acks("orders", "work", nack=[{"seq": 1, "delay_ms": 200}]))["acknowledged"] == 1
            assert await stores.poll("orders", "work") == []
            (again,) = await stores.poll("orders", "work", wait_ms=15_000)
            assert again["delivery_count"] == 2

    run(scenario)


@pytest.mark.parametrize("over", ["http", JSON, MSGPACK])
@pytest.mark.parametrize("given", [{"seq": 1, "delay_ms": 0}, {"seq": 1}, [1, 0]])
def test_a_message_is_given_back_in_the_same_forms_over_http_and_websocket(
    tmp_path: Path, over: str, given: object
) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define("orders", durables={"work": SHARED})
            await stores.publish("orders", "a")
            if over == "http":
                await stores.poll("orders", "work")
                assert await stores.acks("orders", "work", nack=[given]) == {"acknowledged": 1, "stale": []}
                (again,) = await stores.poll("orders", "work", wait_ms=15_000)
            else:
                subscriber = await stores.subscribe("orders", "work", subprotocol=over)
                assert (await subscriber.next())["type"] == "attached"
                subscriber.send(type="credit", messages=2)
                await subscriber.messages(1)
                subscriber.send(type="nack", messages=[given])
                (again,) = await subscriber.messages(1)
            assert again["delivery_count"] == 2

    run(scenario)


@pytest.mark.parametrize("started", [[1, 2], [[1, 2]], [1, [2, 2]]])
def test_started_messages_are_reported_as_numbers_or_as_ranges(tmp_path: Path, started: list[object]) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define("orders", durables={"work": SHARED})
            await stores.publish("orders", "a", "b", "c")
            assert len(await stores.poll("orders", "work")) == 3
            await stores.acks("orders", "work", started=started)
            (poller,) = stores.opened.deliveries.connected("orders", "work")
            stores.opened.deliveries.leave(poller, "closed")
            again = await stores.poll("orders", "work", "other", wait_ms=15_000)
            assert [(one["seq"], one["delivery_count"]) for one in again] == [(1, 2), (2, 2), (3, 1)]

    run(scenario)


def test_a_report_of_a_range_that_begins_with_its_highest_is_refused_and_spoils_no_other(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define("orders", durables={"work": SHARED})
            await stores.publish("orders", "a", "b", "c")
            assert len(await stores.poll("orders", "work")) == 3
            await stores.acks("orders", "work", started=[1])
            path, body = "/v1/stores/orders/durables/work", {"subscriber": "s", "started": [[3, 2]]}
            refused = await stores.ask("POST", f"{path}/acks", body)
            assert (refused.status, "begins with its lowest" in refused.json["error"]["message"]) == (400, True)
            (poller,) = stores.opened.deliveries.connected("orders", "work")
            stores.opened.deliveries.leave(poller, "closed")
            again = await stores.poll("orders", "work", "other", wait_ms=15_000)
            assert [(one["seq"], one["delivery_count"]) for one in again] == [(1, 2), (2, 1), (3, 1)]
            socket = await stores.subscribe("orders", "work", "third")
            await socket.next()
            socket.send(type="started", ranges=[[3, 2]])
            assert (await socket.next())["code"] == 4400

    run(scenario)


@pytest.mark.parametrize("subscriber", ["s", "%73"])
@pytest.mark.parametrize("count", [POLL_MESSAGES_MAX + 1, 10**9, 10**30])
def test_a_poll_for_more_than_it_may_have_is_refused_with_the_bound(
    tmp_path: Path, subscriber: str, count: int
) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define("orders", durables={"work": SHARED})
            target = f"/v1/stores/orders/durables/work/messages?subscriber={subscriber}"
            answered = await stores.ask("GET", f"{target}&max={count}")
            assert answered.status == 400
            assert str(POLL_MESSAGES_MAX) in answered.json["error"]["message"]
            assert (await stores.ask("GET", f"{target}&max={POLL_MESSAGES_MAX}")).status == 200

    run(scenario)


@pytest.mark.parametrize("value", [1.5, None, [1], {}, 2**64, "x" * 257])
@pytest.mark.parametrize("store", ["orders", "%6Frders"])
def test_a_field_of_another_kind_is_refused_with_all_that_is_allowed(tmp_path: Path, value: object, store: str) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define("orders", durables={"work": SHARED})
            body = {"messages": [{"fields": {"a": value}}]}
            answered = await stores.ask("POST", f"/v1/stores/{store}/messages", body)
            assert answered.status == 400
            assert answered.json["error"]["hint"] == FIELDS_RULE

    run(scenario)


def test_a_rejected_message_goes_to_the_dead_letters_with_its_cause(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define("dead", durables={"all": SHARED})
            await stores.define("orders", durables={"work": {**SHARED, "dead_letter_store": "dead"}})
            await stores.publish("orders", "a", fields={"kind": "x"}, key="k")
            await stores.poll("orders", "work")
            await stores.acks("orders", "work", reject=[1])
            (dead,) = await stores.poll("dead", "all", wait_ms=15_000)
            assert (dead["body"], dead["key"], dead["fields"]["kind"]) == (text64("a"), "k", "x")
            assert (dead["origin"]["cause"], dead["origin"]["seq"]) == ("rejected", 1)

    run(scenario)


def test_msgpack_carries_bodies_as_bytes_on_both_lanes(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define("orders", durables={"work": SHARED})
            body = msgspec.msgpack.encode({"messages": [{"body": b"\x00\xff"}], "publisher_id": ""})
            packed = {"Content_Type": "application/msgpack", "Accept": "application/msgpack"}
            for target in ("/v1/stores/orders/messages", "/v1/stores/%6frders/messages"):
                client = await stores.connect()
                answered = await client.ask("POST", target, body, **packed)
                assert answered.headers["content-type"] == "application/msgpack"
                assert msgspec.msgpack.decode(answered.body)["duplicates"] == 0
            answered = await stores.ask(
                "GET", "/v1/stores/orders/durables/work/messages?subscriber=s", Accept="application/msgpack"
            )
            assert [one["body"] for one in msgspec.msgpack.decode(answered.body)["messages"]] == [b"\x00\xff"] * 2

    run(scenario)


def test_both_lanes_publish_alike(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define("orders", durables={"work": SHARED})
            text = json.dumps({"messages": [{"body": "YQ=="}]}).encode()
            for target in ("/v1/stores/orders/messages", "/v1/stores/%6frders/messages"):
                client = await stores.connect()
                answered = await client.ask("POST", target, text)
                assert answered.status == 200
                named = ["first_seq", "last_seq", "duplicates", "unmatched", "discarded", "token"]
                assert list(answered.json) == named
            handed_over = stores.front.counters.framework_requests
            assert handed_over == 2, "the definition and the escaped name"

    run(scenario)


def test_pipelined_publishes_are_answered_in_order(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define("orders")
            client = await stores.connect()
            one = request("POST", "/v1/stores/orders/messages", b'{"messages":[{"body":"YQ=="}]}')
            client.send(one * 300)
            assert [(await client.answer()).json["first_seq"] for _ in range(300)] == list(range(1, 301))

    run(scenario)


def test_a_publisher_that_sends_again_is_told_the_first_numbers(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define("orders", durables={"work": SHARED})
            batch = {"publisher_id": "p", "messages": [{"publisher_seq": 5}, {"publisher_seq": 6}]}
            target = "/v1/stores/orders/messages"
            assert (await stores.ask("POST", target, batch)).json["first_seq"] == 1
            again = (await stores.ask("POST", target, batch)).json
            assert (again["first_seq"], again["last_seq"], again["duplicates"]) == (1, 2, 2)
            gap = await stores.ask("POST", target, {"publisher_id": "p", "messages": [{"publisher_seq": 9}]})
            assert (gap.status, gap.code) == (409, "sequence_gap")

    run(scenario)


def test_publishers_that_do_not_wait_hear_neither_success_nor_failure(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define(
                "fast", publisher_mode="store_send_noconfirm", message_limit=1, durables={"work": SHARED}
            )
            for _ in range(3):
                assert await stores.publish("fast", "a") == {
                    "first_seq": 0,
                    "last_seq": 0,
                    "duplicates": 0,
                    "unmatched": 0,
                    "discarded": 0,
                }
            assert len(await stores.poll("fast", "work")) == 1

    run(scenario)


@pytest.mark.parametrize("durability", ["disk"], indirect=True)
@pytest.mark.usefixtures("durability")
def test_publishers_that_do_not_wait_wait_when_the_disk_falls_too_far_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the log no sync of a file holds replies."""
    monkeypatch.setattr(operations_module, "UNHEARD_BYTES_MAX", 1_000)
    sync, go_on = MessageLog.sync, threading.Event()

    def late(log: MessageLog, *, mark: bool = True) -> None:
        assert go_on.wait(60)
        sync(log, mark=mark)

    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define("fast", publisher_mode="store_send_noconfirm", durables={"work": SHARED})
            monkeypatch.setattr(MessageLog, "sync", late)
            body = "x" * 5_000
            await stores.publish("fast", body)
            second = asyncio.ensure_future(stores.publish("fast", body))
            # It is applied, so it could have been answered; a third one behind it shows that it was not.
            await until(lambda: stores.opened.state.stores["fast"].counts.live == 2)
            third = asyncio.ensure_future(stores.publish("fast", body))
            await until(lambda: stores.opened.state.stores["fast"].counts.live == 3)
            assert not second.done()
            assert not third.done()
            go_on.set()
            assert (await second)["first_seq"] == (await third)["first_seq"] == 0

    run(scenario)


PUBLISHES_REFUSED: list[tuple[dict[str, Any], dict[str, Any], int, str]] = [
    ({"message_limit": 1}, {"messages": [{}, {}]}, 409, "store_full"),
    ({"bytelimit": 10}, {"messages": [{"body": text64("x" * 11)}]}, 409, "store_full"),
    ({"max_message_size": "1k"}, {"messages": [{"body": text64("x" * 1025)}]}, 413, "message_too_large"),
    ({}, {"messages": []}, 400, "malformed"),
    ({}, {"messages": [{"body": "%"}]}, 400, "bad_base64"),
    ({}, {"messages": [{"colour": "red"}]}, 400, "malformed"),
    ({}, {"messages": [{"ttl_ms": -1}]}, 400, "malformed"),
    ({}, {"messages": [{"fields": {"a": 1.5}}]}, 400, "malformed"),
    ({}, {"messages": [{"fields": {"a": "x" * 257}}]}, 400, "malformed"),
    ({}, {"message": []}, 400, "malformed"),
]


@pytest.mark.parametrize(("parameters", "batch", "status", "code"), PUBLISHES_REFUSED)
def test_a_publish_that_is_refused_says_why_and_changes_nothing(
    tmp_path: Path, parameters: dict[str, Any], batch: dict[str, Any], status: int, code: str
) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define("orders", durables={"work": SHARED}, **parameters)
            answered = await stores.ask("POST", "/v1/stores/orders/messages", batch)
            assert (answered.status, answered.code) == (status, code)
            assert (await stores.ask("GET", "/v1/stores/orders")).json["counts"]["messages"] == 0

    run(scenario)


ASKED_WRONGLY = [
    ("GET", "/v1/stores/none", None, 404, "not_found"),
    ("GET", "/v1/stores/orders/durables/none", None, 404, "not_found"),
    ("GET", "/v1/stores/orders/durables/none/messages?subscriber=s", None, 404, "not_found"),
    ("GET", "/v1/stores/orders/durables/work/messages", None, 400, "malformed"),
    ("GET", "/v1/stores/orders/durables/work/messages?subscriber=s&max=0", None, 400, "malformed"),
    ("GET", "/v1/stores/orders/durables/work/messages?subscriber=s&wait_ms=60001", None, 400, "malformed"),
    ("GET", "/v1/stores/orders/durables/work/messages?subscriber=s&subscriber=t", None, 400, "malformed"),
    ("GET", "/v1/stores/orders/durables/work/messages?subscriber=s&colour=red", None, 400, "malformed"),
    ("GET", "/v1/stores/orders/durables/map/messages?subscriber=s", None, 409, "type_mismatch"),
    ("POST", "/v1/stores/none/messages", {"messages": [{}]}, 404, "not_found"),
    ("POST", "/v1/stores/orders/durables/work/acks", {"ack": [1]}, 400, "malformed"),
    ("POST", "/v1/stores/orders/durables/work/acks", {"subscriber": "s", "ack": [0]}, 400, "malformed"),
    ("POST", "/v1/stores/orders/durables/none/acks", {"subscriber": "s", "ack": [1]}, 404, "not_found"),
    ("POST", "/v1/stores/orders/durables/work/rewind", {"to": "start"}, 409, "type_mismatch"),
    ("POST", "/v1/stores/orders/durables/work/rewind", {}, 400, "malformed"),
    ("POST", "/v1/stores/orders/durables/work/rewind", {"seq": 1, "time_ms": 1}, 400, "malformed"),
    ("GET", "/v1/stores/orders/durables/work/browse?match=%7B", None, 400, "malformed"),
    ("GET", "/v1/stores/orders/durables/work/subscribe?subscriber=s", None, 400, "malformed"),
    ("DELETE", "/v1/stores/orders/durables/work/messages/7", None, 404, "not_found"),
    ("GET", "/v1/stores/orders/maps/work/k", None, 409, "type_mismatch"),
    ("GET", "/v1/stores/orders/maps/map/none", None, 404, "no_such_key"),
    ("GET", "/v1/stores/orders/maps/none/k", None, 404, "not_found"),
    ("TRACE", "/v1/stores/orders", None, 405, "method_not_allowed"),
    ("PUT", "/v1/stores/orders", {"bytelimt": 1}, 400, "bad_configuration"),
    ("PUT", "/v1/stores/orders/durables/x", {"type": "round"}, 400, "bad_configuration"),
    ("PUT", "/v1/stores/orders/durables/work", {"type": "standard"}, 409, "type_mismatch"),
    ("DELETE", "/v1/stores/none", None, 404, "not_found"),
    ("DELETE", "/v1/stores/orders/templates/none", None, 404, "not_found"),
    ("POST", "/v1/cluster/rollback", {"revision": 99}, 404, "not_found"),
]


@pytest.mark.parametrize(("method", "target", "body", "status", "code"), ASKED_WRONGLY)
def test_what_is_asked_wrongly_is_named(
    tmp_path: Path, method: str, target: str, body: object, status: int, code: str
) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define("orders", durables={"work": SHARED, "map": MAP})
            answered = await stores.ask(method, target, body)
            assert (answered.status, answered.code) == (status, code)

    run(scenario)


# ---- looking and forgetting -----------------------------------------------------------------------------------------


def test_browsing_consumes_nothing_and_filters(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define("orders", durables={"work": SHARED})
            for number in range(6):
                await stores.publish("orders", str(number), fields={"odd": number % 2 == 1, "n": number})
            browse = "/v1/stores/orders/durables/work/browse"
            assert bodies((await stores.ask("GET", browse)).json["messages"]) == list("012345")
            assert bodies((await stores.ask("GET", f"{browse}?after=2&max=2")).json["messages"]) == ["2", "3"]
            odd = (await stores.ask("GET", f"{browse}?match=%7B%22n%22%3A%5B1%2C5%5D%7D")).json["messages"]
            assert bodies(odd) == ["1", "5"]
            assert len(await stores.poll("orders", "work")) == 6

    run(scenario)


def test_purge_and_delete_forget(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define("orders", durables={"work": SHARED})
            await stores.publish("orders", "a", "b", "c")
            assert (await stores.ask("DELETE", "/v1/stores/orders/durables/work/messages/2")).status == 200
            assert bodies(await stores.poll("orders", "work", max=1)) == ["a"]
            purged = (await stores.ask("POST", "/v1/stores/orders/durables/work/purge")).json
            assert purged["messages"] == 2
            assert await stores.poll("orders", "work") == []

    run(scenario)


def test_what_was_acknowledged_comes_again_by_rewinding(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define("orders", durables={"work": {**SHARED, "retention_time": "1h"}})
            await stores.publish("orders", "a", "b", "c")
            await stores.poll("orders", "work")
            await stores.acks("orders", "work", ack=[1, 2, 3])
            rewind = "/v1/stores/orders/durables/work/rewind"
            assert (await stores.ask("POST", rewind, {"seq": 2})).status == 200
            await stores.publish("orders", "d")
            again = await stores.poll("orders", "work")
            assert bodies(again) == ["b", "c", "d"]
            assert [one.get("replayed", False) for one in again] == [True, True, False]
            await stores.acks("orders", "work", ack=[2, 3])
            assert (await stores.ask("POST", rewind, {"to": "start"})).status == 200
            again = await stores.poll("orders", "work")
            assert bodies(again) == ["a", "b", "c", "d"]
            assert [one["replayed"] for one in again] == [True] * 4
            browsed = await stores.ask("GET", "/v1/stores/orders/durables/work/browse")
            assert [one["replayed"] for one in browsed.json["messages"]] == [True] * 4

    run(scenario)


# ---- maps -----------------------------------------------------------------------------------------------------------


def test_a_map_is_changed_on_conditions(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define("state", durables={"map": MAP})
            key = "/v1/stores/state/maps/map/a/b%20c"
            first = await stores.ask("PUT", key, {"value": text64("1")}, If_None_Match="*")
            assert (first.status, first.headers["etag"]) == (200, '"1"')
            assert (await stores.ask("PUT", key, {"value": text64("2")}, If_None_Match="*")).status == 412
            refused = await stores.ask("PUT", key, {"value": text64("2")}, If_Match='"9"')
            assert (refused.status, refused.code) == (412, "revision_mismatch")
            assert "revision=1" in refused.json["error"]["message"]
            second = await stores.ask("PUT", key, {"value": text64("2")}, If_Match=first.headers["etag"])
            assert second.json == {"revision": 2, "changed": 1}
            read = await stores.ask("GET", key)
            assert read.json["token"].count(".") == 2
            assert (read.json, read.headers["etag"]) == (
                {"key": "a/b c", "value": text64("2"), "revision": 2, "token": read.json["token"]},
                '"2"',
            )
            assert (await stores.ask("DELETE", key, If_Match='"2"')).status == 200
            assert (await stores.ask("GET", key)).status == 404

    run(scenario)


def test_a_map_is_listed_in_the_order_of_its_keys_and_changed_whole(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define("state", durables={"map": MAP})
            whole = "/v1/stores/state/maps/map"
            changes = [{"key": key, "value": text64(key)} for key in "cab"]
            assert (await stores.ask("POST", whole, {"changes": changes})).json["changed"] == 3
            listed = (await stores.ask("GET", f"{whole}?max=2")).json
            assert ([entry["key"] for entry in listed["entries"]], listed["more"]) == (["a", "b"], True)
            rest = (await stores.ask("GET", f"{whole}?after=b")).json
            assert ([entry["key"] for entry in rest["entries"]], rest["more"]) == (["c"], False)
            half = {"changes": [{"key": "a", "value": text64("x")}, {"key": "b", "if_revision": 99}]}
            assert (await stores.ask("POST", whole, half)).code == "revision_mismatch"
            assert (await stores.ask("GET", f"{whole}/a")).json["value"] == text64("a")
            assert (await stores.ask("POST", whole, {"remove_all": True})).json["changed"] == 3
            nothing = (await stores.ask("GET", whole)).json
            assert nothing == {"entries": [], "more": False, "token": nothing["token"]}

    run(scenario)


def test_a_lock_fences_older_holders(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define("state", durables={"map": MAP})
            whole = "/v1/stores/state/maps/map"
            held = (await stores.ask("POST", f"{whole}/lock", {"key": "k", "owner": "a", "ttl_ms": 60_000})).json
            other = await stores.ask("POST", f"{whole}/lock", {"key": "k", "owner": "b", "ttl_ms": 60_000})
            assert (other.status, other.code) == (409, "lock_held")
            stolen = {"key": "k", "owner": "b", "ttl_ms": 60_000, "steal": True}
            assert (await stores.ask("POST", f"{whole}/lock", stolen)).json["fence"] > held["fence"]
            late = await stores.ask("PUT", f"{whole}/k?fence={held['fence']}", {"value": ""})
            assert (late.status, late.code) == (409, "not_holder")
            shown = (await stores.ask("GET", whole.replace("/maps/", "/durables/"))).json["locks"]
            assert [(lock["key"], lock["owner"]) for lock in shown] == [("k", "b")]
            back = await stores.ask("POST", f"{whole}/unlock", {"key": "k", "owner": "a", "fence": held["fence"]})
            assert back.code == "not_holder"

    run(scenario)


# ---- definitions ----------------------------------------------------------------------------------------------------


def test_collections_are_filtered_by_attributes(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define("a", durables={"one": SHARED, "two": STANDARD}, description="first")
            await stores.define("b")
            listed = (await stores.ask("GET", "/v1/stores")).json["stores"]
            assert [store["name"] for store in listed] == ["a", "b"]
            listed = (await stores.ask("GET", "/v1/stores?description=first&replicated=true")).json["stores"]
            assert [store["name"] for store in listed] == ["a"]
            listed = (await stores.ask("GET", "/v1/stores/a/durables?type=standard&counts.messages=0")).json["durables"]
            assert [durable["name"] for durable in listed] == ["two"]
            assert (await stores.ask("GET", "/v1/stores?colour=red")).code == "malformed"

    run(scenario)


def test_collections_have_pages_by_name(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            for name in ("c", "a", "b"):
                await stores.define(name, durables={f"d{number}": SHARED for number in range(5)}, description=name)
            pages, after = [], ""
            while True:
                page = (await stores.ask("GET", f"/v1/stores?max=2{after}")).json
                pages.append([store["name"] for store in page["stores"]])
                if not page["more"]:
                    break
                after = f"&after={pages[-1][-1]}"
            assert pages == [["a", "b"], ["c"]]
            page = (await stores.ask("GET", "/v1/stores/a/durables?max=2&after=d1&type=shared")).json
            assert ([each["name"] for each in page["durables"]], page["more"]) == (["d2", "d3"], True)
            page = (await stores.ask("GET", "/v1/stores?after=a&description=c")).json
            assert ([store["name"] for store in page["stores"]], page["more"]) == (["c"], False)
            assert (await stores.ask("GET", "/v1/stores/a/templates?max=1")).json == {"templates": [], "more": False}
            for wrong in ("max=0", "max=1001", "max=x"):
                assert (await stores.ask("GET", f"/v1/stores?{wrong}")).code == "malformed"

    run(scenario)


def test_a_store_is_defined_again_without_losing_its_durables(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define("orders", durables={"work": SHARED}, bytelimit="1k")
            await stores.publish("orders", "a")
            await stores.define("orders", bytelimit="2k")
            answered = (await stores.ask("GET", "/v1/stores/orders")).json
            assert (answered["bytelimit"], list(answered["durables"])) == (2048, ["work"])
            assert bodies(await stores.poll("orders", "work")) == ["a"]

    run(scenario)


def test_a_template_makes_durables_by_request(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define("orders")
            template = await stores.ask("PUT", "/v1/stores/orders/templates/jobs", {"type": "shared", "prefetch": 7})
            assert template.json["prefetch"] == 7
            made = await stores.ask(
                "PUT", "/v1/stores/orders/durables/mine", {"template": "jobs", "matcher": {"kind": "a"}}
            )
            assert (made.status, made.json["dynamic"], made.json["prefetch"]) == (200, True, 7)
            assert made.json["subscribers"] == []
            again = await stores.ask("PUT", "/v1/stores/orders/durables/mine", {"template": "jobs"})
            assert again.status == 200
            assert (await stores.ask("GET", "/v1/stores/orders/templates")).json["templates"][0]["name"] == "jobs"
            assert (await stores.ask("DELETE", "/v1/stores/orders/durables/mine")).status == 200
            assert (await stores.ask("GET", "/v1/stores/orders/durables/mine")).status == 404

    run(scenario)


def test_a_definition_has_history_and_is_rolled_back(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define("a")
            await stores.define("b")
            whole = await stores.ask("GET", "/v1/cluster/definition")
            assert (whole.json["revision"], whole.headers["etag"]) == (2, '"2"')
            history = (await stores.ask("GET", "/v1/cluster/history")).json["history"]
            assert [one["revision"] for one in history] == [1, 2]
            assert list((await stores.ask("GET", "/v1/cluster/history/1")).json["definition"]["stores"]) == ["a"]
            back = await stores.ask("POST", "/v1/cluster/rollback", {"revision": 1})
            assert (back.json["revision"], list(back.json["definition"]["stores"])) == (3, ["a"])
            late = await stores.ask("PUT", "/v1/cluster/definition", {}, If_Match='"2"')
            assert (late.status, late.code) == (412, "revision_mismatch")
            checked = await stores.ask("POST", "/v1/cluster/definition/check", {"stores": {"c": {"bytelimit": "x"}}})
            assert "stores.c.bytelimit" in checked.json["error"]["message"]
            assert list((await stores.ask("GET", "/v1/cluster/definition")).json["definition"]["stores"]) == ["a"]

    run(scenario)


# ---- the cluster ----------------------------------------------------------------------------------------------------


def test_a_cluster_of_one_has_its_quorum_until_it_is_suspended(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define("orders", durables={"work": SHARED})
            await stores.publish("orders", "a")
            cluster = (await stores.ask("GET", "/v1/cluster")).json
            assert (cluster["name"], cluster["messages"], cluster["persistence"]) == ("default", 1, "sync")
            quorum = (await stores.ask("GET", "/v1/cluster/quorum")).json
            assert (quorum["have_quorum"], quorum["members_in_quorum"]) == (True, ["default"])
            assert (await stores.ask("POST", "/v1/cluster/force-quorum")).json == quorum
            assert (await stores.ask("POST", "/v1/cluster/suspend")).json["have_quorum"] is False
            refused = await stores.ask("POST", "/v1/stores/orders/messages", {"messages": [{}]})
            assert (refused.status, refused.code) == (412, "no_quorum")
            assert (await stores.ask("POST", "/v1/cluster/save")).status == 200
            assert (await stores.ask("POST", "/v1/cluster/force-quorum")).code == "no_quorum"
            assert (await stores.ask("POST", "/v1/cluster/resume")).json == quorum
            await stores.publish("orders", "b")
            assert (await stores.ask("GET", "/v1/cluster")).json["messages"] == 2

    run(scenario)


def test_a_suspension_ends_with_its_leadership(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.ask("POST", "/v1/cluster/suspend")
            await stores.host.close()
            stores.host.open(await StoreService.open(str(tmp_path), page_bytes=1 << 20))
            assert stores.host.condition == "open", "another leader may have served since"

    run(scenario)


def test_metrics_show_how_full_a_store_and_the_cluster_are_and_that_they_are_suspended(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:

            def value(name: str) -> float:
                found = (each.samples for each in store_metrics(stores.host) if each.name == name)
                return next(found)[0].value

            await stores.define("orders", durables={"work": SHARED}, message_limit=4)
            await stores.publish("orders", "a")
            assert value("holdfast_message_store_used_fraction") == 0.25
            assert value("holdfast_message_stores_used_fraction") == 0.0, "the cluster has no limit"
            limited = await stores.ask("PATCH", "/v1/cluster/definition", {"cluster": {"message_limit": 1}})
            assert limited.status == 200
            assert value("holdfast_message_stores_used_fraction") == 1.0
            refused = await stores.ask("POST", "/v1/stores/orders/messages", {"messages": [{}]})
            assert refused.code == "cluster_full"
            assert value("holdfast_message_stores_open") == 1
            await stores.ask("POST", "/v1/cluster/suspend")
            assert value("holdfast_message_stores_open") == 0

    run(scenario)


def test_a_full_disk_refuses_what_writes_to_it_by_name_and_nothing_else(
    durability: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, full = Index.write, [True]

    def on_a_full_disk(index: Index, checkpoint: IndexChanges) -> int:
        if full[0]:
            raise sqlite3.OperationalError("database or disk is full")
        return write(index, checkpoint)

    def no_copy(_index: Index, _path: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async def scenario() -> None:
        async with stores_serving(tmp_path / "stores") as stores:
            await stores.define("orders", durables={"work": SHARED})
            monkeypatch.setattr(Index, "write", on_a_full_disk)
            for path in ("save", "compact"):
                refused = await stores.ask("POST", f"/v1/cluster/{path}")
                assert (refused.status, refused.code) == (503, "store_unavailable")
                assert "disk is full" in refused.json["error"]["message"]
            await stores.publish("orders", "a")
            full[0] = False
            assert (await stores.ask("POST", "/v1/cluster/save")).status == 200
            monkeypatch.setattr(Index, "copy_to", no_copy)
            refused = await stores.ask("POST", "/v1/cluster/backup", {"name": "first"})
            if durability == "disk":
                assert (refused.status, refused.code) == (503, "store_unavailable")
                assert "No space left" in refused.json["error"]["message"]
            assert bodies(await stores.poll("orders", "work")) == ["a"]

    run(scenario)


def test_a_backup_opens_as_stores_with_everything_in_it(durability: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path / "live") as stores:
            await stores.define("orders", durables={"work": SHARED})
            await stores.publish("orders", "a", "b")
            made = await stores.ask("POST", "/v1/cluster/backup", {"name": "first"})
            if durability == "log":
                assert (made.status, made.code) == (400, "malformed")
                assert "log mirror" in made.json["error"]["hint"], "a copy of the log is the backup"
                return
            assert made.json == {"path": str(tmp_path / "live-backups" / "first")}
            again = await stores.ask("POST", "/v1/cluster/backup", {"name": "first"})
            assert (again.status, again.code) == (409, "already_open")
            assert (await stores.ask("POST", "/v1/cluster/backup", {"name": "../x"})).code == "malformed"
            assert (await stores.ask("POST", "/v1/cluster/compact")).json["allocated"] > 0

    run(scenario)


def test_everything_is_there_after_a_restart(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            times = {"subscriber_timeout": "50ms", "ack_wait": "2s"}
            await stores.define("orders", durables={"work": {**SHARED, **times}, "map": MAP})
            await stores.publish("orders", "a", "b", "c")
            await stores.poll("orders", "work", max=2)
            await stores.acks("orders", "work", ack=[1])
            await stores.ask("PUT", "/v1/stores/orders/maps/map/k", {"value": text64("v")})
        async with stores_serving(tmp_path) as stores:
            got = await stores.poll("orders", "work", "other", wait_ms=15_000)
            # Else they might come again before the one that is held: all have the same two seconds.
            await stores.acks("orders", "work", "other", ack=[one["seq"] for one in got])
            got += await stores.poll("orders", "work", "other", wait_ms=15_000)
            counts = sorted((one["seq"], one["delivery_count"], one["redelivered"]) for one in got)
            assert counts == [(2, 1, True), (3, 1, False)], "a start of the service counts no delivery"
            assert (await stores.ask("GET", "/v1/stores/orders/maps/map/k")).json["value"] == text64("v")

    run(scenario)


# ---- permissions ----------------------------------------------------------------------------------------------------

ALICE, BOB, ROOT = "alice-has-a-long-token", "bob-has-a-long-token-too", "root-has-the-longest-token"

PERMISSIONS = {
    "stores": {"orders": {"durables": {"work": SHARED, "map": MAP}}, "other": {"durables": {"work": SHARED}}},
    "permissions": {
        "enabled": True,
        "users": {
            "alice": {"token": ALICE, "roles": ["publisher"]},
            "bob": {"token": BOB, "roles": ["reader"]},
            "root": {"token": ROOT, "roles": ["root"]},
        },
        "roles": {
            "publisher": {"stores": {"orders": ["publish"]}},
            "reader": {"stores": {"ord*": ["subscribe", "browse"]}},
            "root": {"stores": {"*": ["publish", "subscribe", "browse", "administer"]}, "cluster": ["administer"]},
        },
    },
}

# method, path, body, and who may
RIGHTS: list[tuple[str, str, object, set[str]]] = [
    ("POST", "/v1/stores/orders/messages", {"messages": [{}]}, {ALICE, ROOT}),
    ("POST", "/v1/stores/other/messages", {"messages": [{}]}, {ROOT}),
    ("GET", "/v1/stores/orders/durables/work/messages?subscriber=s", None, {BOB, ROOT}),
    ("GET", "/v1/stores/other/durables/work/messages?subscriber=s", None, {ROOT}),
    ("POST", "/v1/stores/orders/durables/work/rewind", {"to": "start"}, {BOB, ROOT}),
    ("GET", "/v1/stores/orders/durables/work/browse", None, {BOB, ROOT}),
    ("GET", "/v1/stores/orders", None, {BOB, ROOT}),
    ("GET", "/v1/stores/orders/durables", None, {BOB, ROOT}),
    ("GET", "/v1/stores/orders/maps/map", None, {BOB, ROOT}),
    ("PUT", "/v1/stores/orders/maps/map/k", {"value": ""}, {ALICE, ROOT}),
    ("POST", "/v1/stores/orders/durables/work/purge", None, {ROOT}),
    ("DELETE", "/v1/stores/orders/durables/work/messages/1", None, {ROOT}),
    ("PUT", "/v1/stores/orders/durables/more", SHARED, {ROOT}),
    ("DELETE", "/v1/stores/orders/durables/work", None, {ROOT}),
    ("PUT", "/v1/stores/new", {}, {ROOT}),
    ("POST", "/v1/cluster/save", None, {ROOT}),
    ("GET", "/v1/cluster", None, set()),
]


@pytest.mark.parametrize(("method", "target", "body", "allowed"), RIGHTS)
def test_only_who_was_given_the_right_may(
    tmp_path: Path, method: str, target: str, body: object, allowed: set[str]
) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path, definition=PERMISSIONS) as stores:
            unknown = await stores.ask(method, target, body)
            assert (unknown.status, unknown.code) == (401, "unauthenticated")
            for token in (ALICE, BOB, ROOT):
                answered = await stores.ask(method, target, body, Authorization=f"Bearer {token}")
                if token in allowed:
                    assert answered.status not in (401, 403), answered.body
                else:
                    assert (answered.status, answered.code) == (403, "permission_denied")

    run(scenario)


def test_a_list_shows_everybody_what_they_may_see(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path, definition=PERMISSIONS) as stores:
            for token, seen in ((ALICE, []), (BOB, ["orders"]), (ROOT, ["orders", "other"])):
                listed = await stores.ask("GET", "/v1/stores", Authorization=f"Bearer {token}")
                assert [store["name"] for store in listed.json["stores"]] == seen

    run(scenario)


def test_a_socket_needs_the_right_to_subscribe(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path, definition=PERMISSIONS) as stores:
            with pytest.raises(AssertionError, match="permission_denied"):
                await stores.subscribe("orders", "work", Authorization=f"Bearer {ALICE}")
            subscriber = await stores.subscribe("orders", "work", Authorization=f"Bearer {BOB}")
            assert (await subscriber.next())["type"] == "attached"

    run(scenario)


def test_no_token_of_the_definition_is_ever_shown(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path, tokens={"adminadmin": Role.ADMIN}) as stores:
            made = await stores.ask("PUT", "/v1/cluster/definition", PERMISSIONS, Authorization="Bearer adminadmin")
            assert made.status == 200
            shown = await stores.ask("GET", "/v1/cluster/definition", Authorization="Bearer adminadmin")
            assert shown.status == 200
            assert not any(token.encode() in shown.body for token in (ALICE, BOB, ROOT))

    run(scenario)


@pytest.mark.parametrize(
    ("role", "method", "target", "status"),
    [
        (Role.READ, "GET", "/v1/stores/orders", 200),
        (Role.READ, "POST", "/v1/stores/orders/messages", 403),
        (Role.WRITE, "POST", "/v1/stores/orders/messages", 200),
        (Role.WRITE, "POST", "/v1/stores/orders/durables/work/purge", 403),
        (Role.ADMIN, "POST", "/v1/stores/orders/durables/work/purge", 200),
    ],
)
def test_without_permissions_the_roles_of_the_log_count(
    tmp_path: Path, role: Role, method: str, target: str, status: int
) -> None:
    async def scenario() -> None:
        tokens = {"admin-token": Role.ADMIN, "some-token": role}
        async with stores_serving(tmp_path, tokens=tokens) as stores:
            definition = {"durables": {"work": SHARED}}
            made = await stores.ask("PUT", "/v1/stores/orders", definition, Authorization="Bearer admin-token")
            assert made.status == 200
            body = {"messages": [{}]} if target.endswith("/messages") else None
            answered = await stores.ask(method, target, body, Authorization="Bearer some-token")
            assert answered.status == status

    run(scenario)


# ---- the durable of who names none ----------------------------------------------------------------------------------


def test_who_names_no_durable_gets_its_own_or_the_default_one(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define(
                "orders", durables={"all": SHARED, "hers": SHARED}, default_durable="all", subscribers={"ann": "hers"}
            )
            await stores.publish("orders", "a")
            assert bodies(await stores.poll("orders", "-", "ann")) == ["a"]
            assert bodies(await stores.poll("orders", "-", "bob")) == ["a"]
            assert await stores.acks("orders", "-", "ann", ack=[1]) == {"acknowledged": 1, "stale": []}
            counts = (await stores.ask("GET", "/v1/stores/orders/durables/hers")).json["counts"]
            assert counts["acknowledged"] == 1
            subscriber = await stores.subscribe("orders", "-", "ann")
            assert (await subscriber.next())["type"] == "attached"
            assert stores.opened.deliveries.find("orders", "hers", "ann") is not None
            await stores.define("orders", default_durable="", subscribers={})
            refused = await stores.ask("GET", "/v1/stores/orders/durables/-/messages?subscriber=s")
            assert (refused.status, refused.code) == (404, "not_found")

    run(scenario)


# ---- what is told about them ----------------------------------------------------------------------------------------


def test_every_durable_has_its_metrics(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define("orders", durables={"work": SHARED})
            await stores.publish("orders", "a", "b", "c")
            await stores.poll("orders", "work", max=2)
            await stores.acks("orders", "work", ack=[1])
            registry = CollectorRegistry()
            metrics = ServerMetrics(stores.front)
            metrics.stores = stores.host
            registry.register(metrics)

            def value(name: str, **labels: str) -> float | None:
                return registry.get_sample_value(f"holdfast_{name}", labels)

            await stores.define("swift", replicated=False, swap_bytelimit=0, durables={"work": SHARED})
            await stores.publish("swift", "abc")
            assert value("message_store_swapped_messages", store="swift") == 1
            assert value("message_store_swapped_bytes", store="swift") == 3
            assert value("message_store_swapped_messages", store="orders") is None
            assert (value("message_stores_written_bytes_total") or 0) > 0
            place = {"store": "orders", "durable": "work"}
            assert value("durable_parked", **place) == 0
            assert value("durable_messages", **place) == 2
            assert value("durable_unacknowledged", **place) == 1
            assert value("durable_backlog", **place) == 1
            assert value("durable_acknowledged_total", **place) == 1
            assert value("message_store_messages", store="orders") == 2
            assert value("message_store_publish_seconds_count", store="orders") == 1
            assert value("message_store_confirmed_total", store="orders") == 3
            assert (value("message_stores_disk_capacity_bytes") or 0) > 0

    run(scenario)


def test_statistics_are_told_with_rates_of_the_time_between(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define("orders", durables={"work": SHARED})
            statistics = Statistics(0.0)
            statistics.tell(stores.opened.service, 1.0)
            await stores.publish("orders", *("abcde"))
            with structlog.testing.capture_logs() as lines:
                statistics.tell(stores.opened.service, 3.0)
            disk, store, durable = lines
            assert disk["event"] == "disk_statistics"
            assert disk["allocated_bytes"] > 0 and disk["written_per_second"] > 0
            assert (store["event"], store["messages"], store["published_per_second"]) == ("store_statistics", 5, 2.5)
            assert (durable["durable"], durable["backlog"]) == ("work", 5)

    run(scenario)


def test_a_poll_that_the_framework_serves_is_abandoned_with_its_connection(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define("orders", durables={"work": SHARED})
            lost = await stores.connect()
            lost.send(request("GET", "/v1/stores/%6frders/durables/work/messages?subscriber=s&wait_ms=15000"))
            await until(lambda: any(one.room for one in stores.opened.deliveries.connected("orders", "work")))
            lost.close()
            await until(lambda: not any(one.room for one in stores.opened.deliveries.connected("orders", "work")))
            await stores.publish("orders", "a")
            (got,) = await stores.poll("orders", "work", "s", wait_ms=5_000)
            assert got["delivery_count"] == 1

    run(scenario)


def test_a_service_that_stops_answers_the_polls_that_wait(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define("orders", durables={"work": SHARED})
            target = "/v1/stores/orders/durables/work/messages?subscriber=s&wait_ms=15000"
            waiting = asyncio.ensure_future(stores.ask("GET", target))
            await until(lambda: any(one.room for one in stores.opened.deliveries.connected("orders", "work")))
            await stores.host.close()
            answered = await waiting
            assert (answered.status, answered.code) == (503, "overloaded")
            refused = await stores.ask("GET", target)
            assert (refused.status, refused.code) == (503, "not_leader")

    run(scenario)
