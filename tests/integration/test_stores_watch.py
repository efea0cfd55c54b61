"""Watching a map: what is there, then each change, over a WebSocket and by both clients; and locks of who is gone."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.integration.http_harness import run, until
from tests.integration.stores_harness import JSON, MSGPACK, StoresServing, Subscriber, stores_serving, text64

from holdfast.aio import StoreClient
from holdfast.client.protocol.options import ClientOptions
from holdfast.client.stores import StoreClient as BlockingClient
from holdfast.client.stores import SubscriberOptions
from holdfast.errors import Code, Conflict, HoldfastError, InvalidRequest, NotFound, Unavailable
from holdfast.server.stores.subscribers import Poller

pytestmark = pytest.mark.usefixtures("durability")

PLAIN: dict[str, object] = {}
MAP = {"type": "map"}
QUICK = ClientOptions(retry_base_ms=1, retry_max_ms=5)


async def put(stores: StoresServing, key: str, value: str) -> int:
    answered = await stores.ask("PUT", f"/v1/stores/s/maps/m/{key}", {"value": text64(value)})
    assert answered.status == 200, answered.body
    return int(answered.json["revision"])


async def watch(stores: StoresServing, subprotocol: str = JSON, more: str = "", name: str = "w") -> Subscriber:
    watcher = await stores.subscribe("s", "m", name, subprotocol, more)
    assert (await watcher.next())["type"] == "attached"
    return watcher


async def changes(watcher: Subscriber, count: int) -> list[dict[str, Any]]:
    """The next changes, as many frames as it takes."""
    found: list[dict[str, Any]] = []
    while len(found) < count:
        frame = await watcher.next()
        if frame["type"] == "changes":
            found += frame["changes"]
    return found


@pytest.mark.parametrize("subprotocol", [JSON, MSGPACK])
@pytest.mark.parametrize("parameters", [PLAIN, {"replicated": False}])
def test_a_watch_begins_with_what_is_there_and_goes_on_with_what_changes(
    tmp_path: Path, subprotocol: str, parameters: dict[str, object]
) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define("s", durables={"m": MAP}, **parameters)
            first = await put(stores, "b", "one")
            second = await put(stores, "a", "two")
            watcher = await watch(stores, subprotocol)
            text = text64 if subprotocol == JSON else str.encode
            assert await watcher.next() == {
                "type": "changes",
                "changes": [
                    {"key": "a", "revision": second, "cause": "present", "value": text("two")},
                    {"key": "b", "revision": first, "cause": "present", "value": text("one")},
                ],
            }
            assert await watcher.next() == {"type": "current"}
            third = await put(stores, "b", "three")
            (told,) = await changes(watcher, 1)
            assert told == {"key": "b", "revision": third, "cause": "set", "value": text("three")}
            assert (await stores.ask("DELETE", "/v1/stores/s/maps/m/a")).status == 200
            (told,) = await changes(watcher, 1)
            assert (told["key"], told["cause"], told["value"]) == ("a", "removed", None)
            assert (await stores.ask("DELETE", f"/v1/stores/s/durables/m/messages/{third}")).status == 200
            (told,) = await changes(watcher, 1)
            assert (told["key"], told["revision"], told["cause"]) == ("b", third, "deleted")
            await put(stores, "c", "four")
            await changes(watcher, 1)
            assert (await stores.ask("POST", "/v1/stores/s/durables/m/purge")).status == 200
            (told,) = await changes(watcher, 1)
            assert (told["key"], told["cause"]) == ("c", "deleted")

    run(scenario)


@pytest.mark.parametrize(("query", "expected"), [("&key=ab", ["ab"]), ("&prefix=ab", ["ab", "abc"]), ("", None)])
def test_a_watch_is_of_one_key_or_of_those_with_a_prefix_or_of_all(
    tmp_path: Path, query: str, expected: list[str] | None
) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define("s", durables={"m": MAP})
            keys = ["a", "ab", "abc", "ac", "b"]
            for key in keys:
                await put(stores, key, "before")
            watcher = await watch(stores, more=query)
            wanted = keys if expected is None else expected
            assert [one["key"] for one in await changes(watcher, len(wanted))] == wanted
            assert (await watcher.next())["type"] == "current"
            for key in keys:
                await put(stores, key, "after")
            assert [one["key"] for one in await changes(watcher, len(wanted))] == wanted

    run(scenario)


def test_more_keys_than_a_page_are_told_once_each_and_then_the_watch_is_current(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define("s", durables={"m": MAP})
            keys = [f"k{number:05}" for number in range(2_500)]
            for begin in range(0, 2_500, 500):
                body = {"changes": [{"key": key, "value": text64(key)} for key in keys[begin : begin + 500]]}
                assert (await stores.ask("POST", "/v1/stores/s/maps/m", body)).status == 200
            watcher = await watch(stores)
            told: list[dict[str, Any]] = []
            while (frame := await watcher.next())["type"] == "changes":
                told += frame["changes"]
            assert frame == {"type": "current"}
            assert [(one["key"], one["value"]) for one in told] == [(key, text64(key)) for key in keys]

    run(scenario)


def test_a_watcher_that_does_not_read_is_told_less_and_in_the_end_the_newest(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define("s", durables={"m": MAP})
            slow = await watch(stores)
            assert (await slow.next())["type"] == "current"
            slow.client.writer.transport.pause_reading()  # type: ignore[attr-defined]
            (subscriber,) = stores.opened.deliveries.connected("s", "m")
            written = 0
            while not subscriber.paused:
                written += 1
                await put(stores, "k", f"{written:0300000}")
            for number in range(written + 1, written + 20):
                await put(stores, "k", f"{number:0300000}")
            slow.client.writer.transport.resume_reading()  # type: ignore[attr-defined]
            told = 0
            while (await changes(slow, 1))[0]["value"] != text64(f"{written + 19:0300000}"):
                told += 1
            assert told < written + 18, "what came while it did not read is one change"

    run(scenario)


@pytest.mark.parametrize(
    ("durable", "query", "code"),
    [
        ("m", "&key=a&prefix=b", Code.MALFORMED),
        ("work", "&prefix=b", Code.TYPE_MISMATCH),
        ("work", "&prefix=", Code.TYPE_MISMATCH),
    ],
)
def test_a_watch_that_cannot_be_is_refused(tmp_path: Path, durable: str, query: str, code: Code) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define("s", durables={"m": MAP, "work": {"type": "shared"}})
            end = Subscriber(await stores.connect(), JSON)
            answered = await end.asked_for(f"/v1/stores/s/durables/{durable}/subscribe?subscriber=w{query}")
            assert answered.json["error"]["code"] == code

    run(scenario)


def test_the_watch_of_a_map_that_is_deleted_ends(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define("s", durables={"m": MAP})
            watcher = await watch(stores)
            assert (await watcher.next())["type"] == "current"
            await stores.define("s", durables={})
            while (frame := await watcher.next())["type"] != "closed":
                assert frame["type"] == "advisory"
            assert frame == {"type": "closed", "code": 4404, "reason": "not_found"}

    run(scenario)


@pytest.mark.parametrize("how", ["closes", "vanishes"])
def test_the_locks_of_a_watch_end_with_its_connection(tmp_path: Path, how: str) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define("s", durables={"m": MAP})
            watcher = await watch(stores, name="ann")
            lock = {"owner": "ann", "key": "k", "ttl_ms": 3_600_000}
            fence = (await stores.ask("POST", "/v1/stores/s/maps/m/lock", lock)).json["fence"]
            other = {**lock, "owner": "bob"}
            assert (await stores.ask("POST", "/v1/stores/s/maps/m/lock", other)).status == 409
            if how == "closes":
                watcher.send(type="close")
            else:
                watcher.client.close()
            locks = stores.opened.state.stores["s"].durables["m"].locks
            await until(lambda: len(locks) == 0)
            assert (await stores.ask("POST", "/v1/stores/s/maps/m/lock", other)).json["fence"] > fence
            late = await stores.ask("PUT", f"/v1/stores/s/maps/m/k?fence={fence}", {"value": text64("late")})
            assert late.json["error"]["code"] == Code.NOT_HOLDER

    run(scenario)


def test_a_session_that_does_not_come_back_after_a_restart_loses_its_locks(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path / "first") as stores:
            await stores.define("s", durables={"m": MAP})
            await watch(stores, name="ann")
            lock = {"owner": "ann", "key": "k", "ttl_ms": 3_600_000}
            assert (await stores.ask("POST", "/v1/stores/s/maps/m/lock", lock)).status == 200
            # What a power cut would leave: all that was answered, and nobody has said good-bye.
            shutil.copytree(tmp_path / "first", tmp_path / "second")
        async with stores_serving(tmp_path / "second") as stores:
            locks = stores.opened.state.stores["s"].durables["m"].locks
            assert len(locks) == 1
            (absent,) = stores.opened.deliveries.everybody()
            assert isinstance(absent, Poller)
            absent.timeout_seconds = 0.0
            await until(lambda: len(locks) == 0)

    run(scenario)


# the clients


def test_the_clients_watch_comes_back_and_tells_what_differs(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            stores_serving(tmp_path) as stores,
            StoreClient(f"http://{stores.address[0]}:{stores.address[1]}", options=QUICK) as client,
        ):
            await client.define_store("s")
            await client.define_durable("s", "m", MAP)
            keys = client.map("s", "m")
            await keys.set("stays", b"1")
            await keys.set("goes", b"2")
            async with keys.watch() as watched:
                first = [await anext(watched), await anext(watched)]
                assert [(one.key, one.cause, one.value) for one in first] == [
                    ("goes", "present", b"2"),
                    ("stays", "present", b"1"),
                ]
                await keys.set("stays", b"3")
                told = await anext(watched)
                assert (told.key, told.cause, told.value) == ("stays", "set", b"3")
                await until(lambda: watched.is_current)
                for socket in list(stores.host.sockets):
                    socket.fail(Unavailable("the watcher is too slow", code=Code.LAGGING))
                await keys.remove("goes")
                gone = await anext(watched)
                assert (gone.key, gone.value) == ("goes", None)
                assert await watched.receive(0.01) is None
                kinds = [one.kind for one in watched.take_advisories()]
                assert kinds == ["store_unavailable", "store_available"]

    run(scenario)


def test_the_locks_of_a_clients_watch_are_its_own(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            stores_serving(tmp_path) as stores,
            StoreClient(f"http://{stores.address[0]}:{stores.address[1]}", options=QUICK) as client,
        ):
            await client.define_store("s")
            await client.define_durable("s", "m", MAP)
            keys = client.map("s", "m", retry_duration=0)
            async with keys.watch(owner="ann", key="k") as watched:
                await until(lambda: watched.is_current)
                lock = await keys.lock("k", owner="ann", ttl_ms=3_600_000)
                await keys.set("k", b"1", fence=lock.fence)
                assert (await anext(watched)).value == b"1"
                await keys.lock("k", owner="bob", ttl_ms=3_600_000, steal=True)
                advisories: list[str] = []

                def told() -> bool:
                    advisories.extend(one.kind for one in watched.take_advisories())
                    return "lock_lost" in advisories

                await until(told)
            with pytest.raises(Conflict):
                await keys.set("k", b"2", fence=lock.fence)

    run(scenario)


def test_a_watch_of_what_is_no_map_raises(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            stores_serving(tmp_path) as stores,
            StoreClient(f"http://{stores.address[0]}:{stores.address[1]}", options=QUICK) as client,
        ):
            await client.define_store("s")
            cases: list[tuple[type[HoldfastError], dict[str, str]]] = [
                (NotFound, {}),
                (NotFound, {"prefix": "a"}),
            ]
            for error, how in cases:
                with pytest.raises(error):
                    async with client.map("s", "none").watch(**how):
                        raise AssertionError("entering waits for the answer")
            await client.define_durable("s", "m", MAP)
            with pytest.raises(InvalidRequest):
                async with client.map("s", "m").watch(key="a", prefix="a"):
                    raise AssertionError("entering waits for the answer")
            await client.define_durable("s", "work", {"type": "shared"})
            async with client.publisher("s") as publisher:
                await publisher.publish(b"for workers")
            for wanted in (None, "k"):
                with pytest.raises(HoldfastError) as refused:
                    async with client.map("s", "work").watch(key=wanted):
                        raise AssertionError("entering waits for the answer")
                assert refused.value.code == Code.TYPE_MISMATCH
            described = await client.describe_durable("s", "work")
            counted = described["counts"]
            assert isinstance(counted, dict)
            assert counted["delivered"] == 0, "a watch takes no message from those who work"

    run(scenario)


def test_the_blocking_client_watches_too(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define("s", durables={"m": MAP})
            await put(stores, "a", "one")
            await asyncio.to_thread(blocking, f"http://{stores.address[0]}:{stores.address[1]}")

    def blocking(url: str) -> None:
        with (
            BlockingClient(url, options=QUICK) as client,
            client.map("s", "m").watch(options=SubscriberOptions(retry_duration=0)) as watched,
        ):
            assert [one.value for one in (next(watched),)] == [b"one"]
            client.map("s", "m").set("b", b"two")
            told = watched.receive(60)
            assert told is not None and (told.key, told.cause, told.value) == ("b", "set", b"two")
            assert watched.receive(0) is None
            watched.close()
            assert list(watched) == []

    run(scenario)
