"""One WebSocket for each subscriber: credit, acknowledgements, collisions, silence, slow readers."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.definitions import define
from tests.integration.http_harness import run, until
from tests.integration.stores_harness import JSON, MSGPACK, Subscriber, bodies, stores_serving, text64

from holdfast.errors import CorruptData, HoldfastError
from holdfast.server.stores import socket as socket_module
from holdfast.stores.values.commands import Command, Deliver, Detach, Publish, Result
from holdfast.wire.parts import Delivery, Message

pytestmark = pytest.mark.usefixtures("durability")

SHARED = {"type": "shared", "prefetch": 1_024}
STANDARD = {"type": "standard", "prefetch": 1_024}


def test_messages_come_as_far_as_credit_goes(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define("orders", durables={"work": SHARED})
            await stores.publish("orders", *(str(number) for number in range(10)))
            subscriber = await stores.subscribe("orders", "work")
            attached = await subscriber.next()
            token = (await stores.ask("GET", "/v1/stores/orders/durables/work")).json["token"]
            assert attached == {
                "type": "attached",
                "created": False,
                "token": token,
                "prefetch": 1024,
                "ack_mode": "async",
                "ack_batch_count": 1000,
                "ack_batch_time_ms": 100,
                "started_reports": True,
                "buffer_wait_ms": 30_000,
                "order": "",
                "kept": [],
            }
            subscriber.send(type="credit", messages=3)
            assert bodies(await subscriber.messages(3)) == ["0", "1", "2"]
            assert stores.opened.state.stores["orders"].durables["work"].leases.held == 3
            subscriber.send(type="credit", messages=100)
            assert bodies(await subscriber.messages(7)) == [str(number) for number in range(3, 10)]

    run(scenario)


@pytest.mark.parametrize("subprotocol", [JSON, MSGPACK])
def test_an_acknowledgement_with_an_id_is_answered_with_what_was_stale(tmp_path: Path, subprotocol: str) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define("orders", durables={"work": SHARED})
            await stores.publish("orders", "a", "b", "c", "d", "e")
            subscriber = await stores.subscribe("orders", "work", subprotocol=subprotocol)
            assert (await subscriber.next())["type"] == "attached"
            subscriber.send(type="credit", messages=10)
            got = await subscriber.messages(5)
            assert got[0]["body"] == (text64("a") if subprotocol == JSON else b"a")
            subscriber.send(type="ack", ranges=[[1, 2], [9, 9]], id=7)
            assert await subscriber.next() == {"type": "answer", "id": 7, "acknowledged": 2, "stale": [[9, 9]]}
            subscriber.send(type="nack", messages=[[3, 0]])
            (again,) = await subscriber.messages(1)
            assert (again["seq"], again["delivery_count"], again["redelivered"]) == (3, 2, True)
            subscriber.send(type="extend", messages=[4], id=8)
            assert (await subscriber.next())["id"] == 8
            subscriber.send(type="reject", messages=[5], id=9)
            assert await subscriber.next() == {"type": "answer", "id": 9, "acknowledged": 1, "stale": []}

    run(scenario)


def test_a_message_is_pushed_to_who_waits_for_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define("orders", durables={"work": SHARED})
            subscriber = await stores.subscribe("orders", "work")
            subscriber.send(type="credit", messages=2)
            await subscriber.next()
            await stores.publish("orders", "a")
            assert bodies(await subscriber.messages(1)) == ["a"]

    run(scenario)


def test_shared_subscribers_take_turns(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define("orders", durables={"work": SHARED})
            ends = [await stores.subscribe("orders", "work", f"s{number}") for number in range(4)]
            for end in ends:
                assert (await end.next())["type"] == "attached"
                end.send(type="credit", messages=100)
            await until(lambda: all(one.room == 100 for one in stores.opened.deliveries.connected("orders", "work")))
            await stores.publish("orders", *(str(number) for number in range(40)))
            got = [bodies(await end.messages(10)) for end in ends]
            assert sorted(int(body) for part in got for body in part) == list(range(40))

    run(scenario)


def test_a_standard_durable_is_taken_over_and_its_holder_is_told(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define("orders", durables={"mine": STANDARD})
            older = await stores.subscribe("orders", "mine", "older")
            await older.next()
            older.send(type="credit", messages=10)
            await stores.publish("orders", "a")
            await older.messages(1)
            newer = await stores.subscribe("orders", "mine", "newer", more="&take_over=true")
            await newer.next()
            advisory = await older.next()
            assert (advisory["type"], advisory["kind"]) == ("advisory", "durable_collision")
            assert advisory["facts"]["cause"] == "taken_over"
            assert await older.next() == {"type": "closed", "code": 4409, "reason": "durable_collision"}
            newer.send(type="credit", messages=10)
            (again,) = await newer.messages(1)
            assert (again["seq"], again["delivery_count"]) == (1, 2)

    run(scenario)


@pytest.mark.parametrize("durable", [SHARED, STANDARD])
def test_a_subscriber_that_comes_again_replaces_itself(tmp_path: Path, durable: dict[str, Any]) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define("orders", durables={"mine": durable})
            first = await stores.subscribe("orders", "mine", "same")
            await first.next()
            second = await stores.subscribe("orders", "mine", "same")
            await second.next()
            assert (await first.next())["kind"] == "durable_collision"
            second.send(type="credit", messages=1)
            await stores.publish("orders", "a")
            assert bodies(await second.messages(1)) == ["a"]

    run(scenario)


def test_what_a_lost_connection_held_goes_to_another(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define("orders", durables={"work": SHARED})
            await stores.publish("orders", "a")
            dies = await stores.subscribe("orders", "work", "dies")
            dies.send(type="credit", messages=1)
            await dies.next()
            await dies.messages(1)
            lives = await stores.subscribe("orders", "work", "lives")
            await lives.next()
            lives.send(type="credit", messages=1)
            dies.client.close()
            (again,) = await lives.messages(1)
            assert (again["seq"], again["delivery_count"], again["redelivered"]) == (1, 2, True)

    run(scenario)


def test_a_peer_that_answers_no_ping_is_detached(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define("orders", durables={"work": {**SHARED, "subscriber_timeout": "60ms"}})
            await stores.publish("orders", "a")
            silent = await stores.subscribe("orders", "work", "silent")
            silent.send(type="credit", messages=1)
            await silent.next()
            await silent.messages(1)
            await until(lambda: not stores.opened.deliveries.connected("orders", "work"))
            (again,) = await stores.poll("orders", "work", "other")
            assert again["delivery_count"] == 2

    run(scenario)


def test_a_peer_that_answers_pings_stays(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            # Five pings, three a time-out: longer than the time-out, which the pauses of a slow machine do not reach.
            await stores.define("orders", durables={"work": {**SHARED, "subscriber_timeout": "2s"}})
            lives = await stores.subscribe("orders", "work", "lives")
            await lives.next()
            for _ in range(5):
                opcode, data = await lives.frame()
                assert opcode == 9
                lives.send_raw(10, data)
            assert [one.name for one in stores.opened.deliveries.connected("orders", "work")] == ["lives"]

    run(scenario)


def test_a_pause_of_the_service_is_not_its_peers_silence(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define("orders", durables={"work": {**SHARED, "subscriber_timeout": "400ms"}})
            spoke = await stores.subscribe("orders", "work", "spoke")
            await spoke.next()
            _, data = await spoke.frame()
            spoke.send_raw(10, data)
            time.sleep(0.5)  # noqa: ASYNC251  # nobody's code runs, and what was said waits in the kernel
            opcode, _ = await spoke.frame()
            assert opcode == 9
            assert [one.name for one in stores.opened.deliveries.connected("orders", "work")] == ["spoke"]

    run(scenario)


def test_a_close_frame_gives_back_at_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define("orders", durables={"work": SHARED})
            subscriber = await stores.subscribe("orders", "work")
            await subscriber.next()
            subscriber.send(type="close")
            assert await subscriber.next() == {"type": "closed", "code": 1000, "reason": ""}
            assert not stores.opened.deliveries.connected("orders", "work")

    run(scenario)


@pytest.mark.parametrize(
    "frame", [b"{", b'{"type":"shout"}', b'{"type":"credit"}', b'{"type":"credit","messages":0}', b"\xff\xfe"]
)
def test_a_frame_that_is_wrong_ends_the_connection_with_its_code(tmp_path: Path, frame: bytes) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define("orders", durables={"work": SHARED})
            subscriber = await stores.subscribe("orders", "work")
            await subscriber.next()
            subscriber.send_raw(2, frame)
            closed = await subscriber.next()
            assert (closed["code"], closed["reason"]) == (4400, "malformed")

    run(scenario)


@pytest.mark.parametrize(
    ("target", "status", "code"),
    [
        ("/v1/stores/none/durables/work/subscribe?subscriber=s", 404, "not_found"),
        ("/v1/stores/orders/durables/none/subscribe?subscriber=s", 404, "not_found"),
        ("/v1/stores/orders/durables/work/subscribe", 400, "malformed"),
        ("/v1/stores/orders/durables/work/subscribe?subscriber=s&x=1", 400, "malformed"),
        ("/v1/stores/orders/durables/work/subscribe?subscriber=s&subscriber=t", 400, "malformed"),
        ("/v1/stores/orders/durables/work/subscribe?subscriber=s&prefetch=x", 400, "malformed"),
        ("/v1/stores/orders/durables/work/subscribe?subscriber=s&matcher=%7B%22a%22:1%7D", 409, "matcher_mismatch"),
        ("/v1/commit", 404, "not_found"),
    ],
)
def test_a_handshake_that_is_refused_is_an_answer_of_the_api(
    tmp_path: Path, target: str, status: int, code: str
) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define("orders", durables={"work": SHARED})
            answered = await Subscriber(await stores.connect(), JSON).asked_for(target)
            assert (answered.status, answered.code) == (status, code)

    run(scenario)


def test_a_durable_is_made_of_a_template_on_subscribing(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define("orders")
            subscriber = await stores.subscribe(
                "orders", "mine", more="&template=shared&matcher=%7B%22kind%22%3A%22a%22%7D&prefetch=5"
            )
            attached = await subscriber.next()
            assert (attached["created"], attached["prefetch"]) == (True, 5)
            subscriber.send(type="credit", messages=5)
            await stores.publish("orders", "not mine", fields={"kind": "b"})
            await stores.publish("orders", "mine", fields={"kind": "a"})
            assert bodies(await subscriber.messages(1)) == ["mine"]
            answered = await stores.ask("DELETE", "/v1/stores/orders/durables/mine")
            assert answered.status == 200
            assert (await subscriber.next())["kind"] == "durable_deleted"
            assert (await subscriber.next())["kind"] == "not_found"
            assert (await subscriber.next())["code"] == 4404

    run(scenario)


def test_a_last_value_subscriber_gets_the_newest_of_its_key(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define("prices", durables={"last": {"type": "last_value"}})
            await stores.publish("prices", "1", "2", key="x")
            await stores.publish("prices", "9", key="y")
            subscriber = await stores.subscribe("prices", "last", more="&key=x")
            await subscriber.next()
            subscriber.send(type="credit", messages=5)
            assert bodies(await subscriber.messages(1)) == ["2"]
            await stores.publish("prices", "3", key="x")
            assert bodies(await subscriber.messages(1)) == ["3"]

    run(scenario)


def test_a_reader_that_does_not_read_is_given_no_more_than_its_connection_holds(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define("orders", durables={"work": {**SHARED, "prefetch": 60_000}})
            body = "x" * 100_000
            for _ in range(30):
                await stores.publish("orders", *([body] * 10))
            slow = await stores.subscribe("orders", "work")
            slow.client.writer.transport.pause_reading()  # type: ignore[attr-defined]
            slow.send(type="credit", messages=300)
            (subscriber,) = stores.opened.deliveries.connected("orders", "work")
            await until(lambda: subscriber.paused)
            held = stores.opened.state.stores["orders"].durables["work"].leases.held
            assert held <= 300
            slow.client.writer.transport.resume_reading()  # type: ignore[attr-defined]
            assert (await slow.next())["type"] == "attached"
            assert len(await slow.messages(300)) == 300

    run(scenario)


@pytest.mark.matrix
def test_who_asks_and_reads_no_answer_is_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket_module, "UNREAD_BYTES_MAX", 300_000)
    monkeypatch.setattr(socket_module, "CLOSE_SECONDS_MAX", 0.0)
    monkeypatch.setattr(socket_module, "LAST_WORDS_SECONDS_MAX", 0.0)
    nothing = [[number, number] for number in range(1_000_001, 1_020_000, 2)]

    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define("orders", durables={"work": {**SHARED, "prefetch": 60_000}})
            for _ in range(30):
                await stores.publish("orders", *(["x" * 100_000] * 10))
            deaf = await stores.subscribe("orders", "work")
            deaf.client.writer.transport.pause_reading()  # type: ignore[attr-defined]
            deaf.send(type="credit", messages=300)
            (subscriber,) = stores.opened.deliveries.connected("orders", "work")
            await until(lambda: subscriber.paused)
            for number in range(1, 9):
                deaf.send(type="ack", ranges=nothing, id=number)
            await until(lambda: not stores.host.sockets)
            durable = stores.opened.state.stores["orders"].durables["work"]
            await until(lambda: not durable.leases.of)
            assert durable.pending == 300

    run(scenario)


@pytest.mark.parametrize("how", ["delivery", "frame", "ping"])
def test_who_loses_the_right_to_subscribe_gets_nothing_more(tmp_path: Path, how: str) -> None:
    def definition(**stores: list[str]) -> dict[str, Any]:
        return {
            "cluster": {},
            "stores": {"orders": {"durables": {"work": {**SHARED, "subscriber_timeout": "1s"}}}},
            "permissions": {
                "enabled": True,
                "users": {
                    "ann": {"token": "the-token-of-ann-is-long", "roles": ["r"]},
                    "root": {"token": "the-token-of-root-is-long", "roles": ["all"]},
                },
                "roles": {"r": {"stores": stores}, "all": {"cluster": ["administer"]}},
            },
        }

    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            service = stores.opened.service

            async def set_rights(**rights: list[str]) -> None:
                document = json.dumps(definition(**rights)).encode()
                await service.submit(define(document, service.state))

            await set_rights(orders=["subscribe"])
            bearer = {"Authorization": "Bearer the-token-of-ann-is-long"}
            subscriber = await stores.subscribe("orders", "work", **bearer)
            assert (await subscriber.next())["type"] == "attached"
            subscriber.send(type="credit", messages=5)
            await set_rights(orders=["subscribe", "browse"])
            await service.submit(Publish(0, "orders", "", [Message(b"before")]))
            assert bodies(await subscriber.messages(1)) == ["before"]
            await set_rights(orders=["publish"])
            if how == "delivery":
                await service.submit(Publish(0, "orders", "", [Message(b"after")]))
            elif how == "frame":
                subscriber.send(type="ack", ranges=[[1, 1]])
            closed = await subscriber.next()
            assert (closed["type"], closed["code"], closed["reason"]) == ("closed", 4403, "permission_denied")
            durable = service.state.stores["orders"].durables["work"]
            await until(lambda: not durable.leases.of)
            assert durable.pending == (2 if how == "delivery" else 1)

    run(scenario)


def test_a_service_that_stops_closes_its_sockets(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define("orders", durables={"work": SHARED})
            subscriber = await stores.subscribe("orders", "work")
            await subscriber.next()
            await stores.host.close()
            assert (await subscriber.next())["code"] == 1001

    run(scenario)


def test_frames_in_one_piece_with_a_close_harm_nobody(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define("orders", durables={"work": SHARED})
            await stores.publish("orders", "a", "b")
            leaves = await stores.subscribe("orders", "work", "leaves")
            await leaves.next()
            leaves.send(type="credit", messages=2)
            leaves.send(type="ack", ranges=[[9, 9]], id=1)
            leaves.send_raw(8, (1000).to_bytes(2, "big"))
            leaves.send_raw(1, b"{")
            got = await stores.poll("orders", "work", "stays", wait_ms=15_000)
            assert bodies(got) == ["a", "b"]
            assert stores.opened.service.failure is None

    run(scenario)


def test_what_cannot_be_read_ends_the_subscriber_and_nobody_else(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define("orders", durables={"work": SHARED})
            await stores.publish("orders", "a")
            service = stores.opened.service
            whole = service.messages

            def unreadable(store: str, runs: Iterable[tuple[int, int, int]]) -> list[Delivery]:
                del store, runs
                raise CorruptData("a page is damaged")

            service.messages = unreadable  # type: ignore[method-assign]
            subscriber = await stores.subscribe("orders", "work")
            await subscriber.next()
            subscriber.send(type="credit", messages=1)
            assert (await subscriber.next())["kind"] == "corrupt_log"
            assert (await subscriber.next())["code"] == 4500
            service.messages = whole  # type: ignore[method-assign]
            (again,) = await stores.poll("orders", "work", "other", wait_ms=15_000)
            assert (again["delivery_count"], again["redelivered"]) == (1, False), "it was not sent"

    run(scenario)


@pytest.mark.parametrize("count", [200])
def test_many_subscribers_of_one_durable_share_what_comes(tmp_path: Path, count: int) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define("orders", durables={"work": SHARED})
            ends = [await stores.subscribe("orders", "work", f"s{number}") for number in range(count)]
            for end in ends:
                await end.next()
                end.send(type="credit", messages=10)
            connected = stores.opened.deliveries.connected
            await until(lambda: all(one.room == 10 for one in connected("orders", "work")))
            await stores.publish("orders", *(str(number) for number in range(count)))
            got = [bodies(await end.messages(1)) for end in ends]
            assert sorted(int(body) for (body,) in got) == list(range(count))

    run(scenario)


def test_large_messages_come_in_portions_that_memory_can_hold(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define("orders", durables={"work": SHARED})
            for _ in range(12):
                await stores.publish("orders", "x" * 1_000_000)
            asked: list[int] = []
            service = stores.opened.service
            submit = service.submit_nowait

            def submitted(command: Command, done: Callable[[Result | HoldfastError], None]) -> None:
                if isinstance(command, Deliver):
                    asked.append(command.count)
                submit(command, done)

            service.submit_nowait = submitted  # type: ignore[method-assign]
            subscriber = await stores.subscribe("orders", "work", subprotocol=MSGPACK)
            await subscriber.next()
            subscriber.send(type="credit", messages=100)
            assert len(await subscriber.messages(12)) == 12
            assert max(asked) == 4

    run(scenario)


def test_an_older_connection_that_ends_late_takes_nothing_from_the_newer_one(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define("orders", durables={"work": SHARED})
            older = await stores.subscribe("orders", "work", "same")
            await older.next()
            (known,) = stores.opened.deliveries.connected("orders", "work")
            newer = Subscriber(await stores.connect(), JSON)
            coming = asyncio.ensure_future(
                newer.shake_hands("/v1/stores/orders/durables/work/subscribe?subscriber=same")
            )
            attaching = stores.opened.deliveries.attaching
            await until(lambda: attaching("orders", "work", "same"))
            stores.opened.deliveries.leave(known, "disconnected")
            await coming
            await newer.next()
            newer.send(type="credit", messages=1)
            await stores.publish("orders", "a")
            assert bodies(await newer.messages(1)) == ["a"]

    run(scenario)


def test_what_is_delivered_while_a_newer_session_attaches_is_the_newer_ones(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define("orders", durables={"work": SHARED})
            subscriber = await stores.subscribe("orders", "work")
            await subscriber.next()
            await stores.opened.service.submit(Detach(0, "orders", "work", "s"))
            await stores.publish("orders", "a")
            subscriber.send(type="credit", messages=1)
            again = await stores.subscribe("orders", "work", "s")
            await again.next()
            again.send(type="credit", messages=1)
            assert bodies(await again.messages(1)) == ["a"]

    run(scenario)


@pytest.mark.parametrize(
    ("count", "message"),
    [
        (10, {"body": text64("x" * 200_000)}),
        (400, {"fields": {f"field {number}": "x" * 250 for number in range(32)}}),
        (200, {"fields": {f"field {number}": "\x01" * 250 for number in range(32)}}),
        (900, {"key": "k" * 1_000, "fields": {}}),
        (100, {"fields": {f"field {number}": "\N{SNOWMAN}" * 80 for number in range(250)}}),
    ],
    ids=["bodies", "fields", "escaped", "keys", "wide"],
)
@pytest.mark.parametrize("subprotocol", [JSON, MSGPACK])
def test_many_messages_are_cut_into_frames_that_usual_clients_take(
    tmp_path: Path, count: int, message: dict[str, Any], subprotocol: str
) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define("orders", durables={"work": SHARED})
            published = await stores.ask("POST", "/v1/stores/orders/messages", {"messages": [message] * count})
            assert published.status == 200, published.body
            subscriber = await stores.subscribe("orders", "work", subprotocol=subprotocol)
            await subscriber.next()
            subscriber.send(type="credit", messages=count)
            sizes: list[int] = []
            numbers: list[int] = []
            while len(numbers) < count:
                opcode, data = await subscriber.frame()
                if opcode in (1, 2):
                    sizes.append(len(data))
                    frame = json.loads(data) if opcode == 1 else msgspec.msgpack.decode(data)
                    numbers += [one["seq"] for one in frame["messages"]]
            assert numbers == list(range(1, count + 1))
            assert len(sizes) > 1
            assert max(sizes) <= 1 << 20

    run(scenario)


@pytest.mark.parametrize(("asked", "told"), [("", 10), ("&prefetch=0", 10), ("&prefetch=4", 4), ("&prefetch=1000", 10)])
def test_a_subscriber_is_told_the_window_that_it_has(tmp_path: Path, asked: str, told: int) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define("orders", durables={"work": {**SHARED, "prefetch": 10}})
            subscriber = await stores.subscribe("orders", "work", more=asked)
            assert (await subscriber.next())["prefetch"] == told

    run(scenario)


@pytest.mark.parametrize("ends", ["lapse", "close", "displaced"])
def test_what_was_started_counts_when_it_comes_back(tmp_path: Path, ends: str) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define(
                "orders", durables={"work": {**SHARED, "ack_wait": "300ms" if ends == "lapse" else "1h"}}
            )
            await stores.publish("orders", "a", "b", "c")
            subscriber = await stores.subscribe("orders", "work")
            await subscriber.next()
            subscriber.send(type="credit", messages=9)
            assert len(await subscriber.messages(3)) == 3
            subscriber.send(type="started", ranges=[[2, 2], [9, 9]])
            if ends == "close":
                subscriber.send(type="close")
            if ends != "lapse":
                subscriber = await stores.subscribe("orders", "work")
                await subscriber.next()
                subscriber.send(type="credit", messages=9)
            again = await subscriber.messages(3)
            found = sorted((one["seq"], one["delivery_count"], one["redelivered"]) for one in again)
            assert found == [(1, 1, True), (2, 2, True), (3, 1, True)]

    run(scenario)


def test_a_first_report_that_is_empty_means_that_no_delivery_counts_yet(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define("orders", durables={"work": {**SHARED, "ack_wait": "300ms", "max_delivery": 1}})
            await stores.publish("orders", "a", "b")
            subscriber = await stores.subscribe("orders", "work")
            await subscriber.next()
            subscriber.send(type="started", ranges=[])
            subscriber.send(type="credit", messages=6)
            counted = [(one["seq"], one["delivery_count"]) for one in await subscriber.messages(6)]
            assert sorted(counted) == [(1, 1)] * 3 + [(2, 1)] * 3

    run(scenario)


def test_a_poller_reports_with_its_acknowledgements(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define("orders", durables={"work": {**SHARED, "ack_wait": "2s"}})
            await stores.publish("orders", "a", "b", "c")
            assert len(await stores.poll("orders", "work")) == 3
            await stores.acks("orders", "work", ack=[1], started=[3])
            again = await stores.poll("orders", "work", wait_ms=15_000)
            if len(again) == 1:  # the time of the other one ran from the report
                again += await stores.poll("orders", "work", wait_ms=15_000)
            found = [(one["seq"], one["delivery_count"], one["redelivered"]) for one in again]
            assert found == [(2, 1, True), (3, 2, True)]

    run(scenario)


def test_one_key_of_last_values_is_polled(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define("orders", durables={"last": {"type": "last_value"}})
            await stores.publish("orders", "1", key="a")
            await stores.publish("orders", "2", key="b")
            assert bodies(await stores.poll("orders", "last", key="b")) == ["2"]
            assert await stores.poll("orders", "last", key="b") == []
            await stores.publish("orders", "3", key="b")
            assert bodies(await stores.poll("orders", "last", key="b")) == ["3"]
            assert bodies(await stores.poll("orders", "last", key="a")) == ["1"]

    run(scenario)


def test_a_key_on_a_durable_without_keys_is_refused_and_takes_nothing_back(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define("orders", durables={"work": {**SHARED, "max_delivery": 1}})
            await stores.publish("orders", "a", "b")
            assert len(await stores.poll("orders", "work")) == 2
            route = "/v1/stores/orders/durables/work"
            for _ in range(2):
                refused = await stores.ask("GET", f"{route}/messages?subscriber=s&key=k")
                assert (refused.status, refused.code) == (409, "type_mismatch")
                assert "only subscribers of a last_value durable follow a key" in refused.body.decode()
            # Every parameter that a poll may repeat with another value: the poller stays the same.
            assert await stores.poll("orders", "work", max=1) == await stores.poll("orders", "work", wait_ms=1) == []
            with pytest.raises(AssertionError, match="type_mismatch"):
                await stores.subscribe("orders", "work", "t", more="&key=k")
            described = (await stores.ask("GET", route)).json
            assert [(one["name"], one["unacknowledged"]) for one in described["subscribers"]] == [("s", 2)]
            assert (described["counts"]["parked"], described["counts"]["delivered"]) == (0, 2)

    run(scenario)
