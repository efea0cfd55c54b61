"""Laws of ``GET /v1/subscribe``."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
from tests.integration.http_harness import Client, Serving, request, run, serving, until, write

from holdfast.commit.format.transaction import Delete, prefix_end
from holdfast.commit.reading.feed import EventBatch, FeedCheckpoint
from holdfast.errors import Backpressure, Code, CorruptData
from holdfast.server.commit import sse
from holdfast.server.commit.sse import KeyFilter
from holdfast.server.gateway import GatewayLimits


@dataclass(frozen=True)
class Event:
    """One Server-Sent Event; a comment has neither name nor data."""

    name: str
    data: dict[str, Any]
    identity: str | None
    comment: str = ""


class Stream:
    """A subscription, event by event."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._events = self._read()

    @classmethod
    async def open(cls, here: Serving, query: str = "", **headers: str) -> Stream:
        client = await here.connect()
        client.send(request("GET", f"/v1/subscribe{query}", **headers))
        head = await client.answer(head_only=True)
        assert (head.status, head.headers["content-type"]) == (200, "text/event-stream")
        return cls(client)

    async def _read(self) -> AsyncIterator[Event]:
        text = b""
        async for part in self.client.chunks():
            text += part
            *blocks, text = text.split(b"\n\n")
            for block in blocks:
                fields: dict[str, str] = {}
                for line in block.decode().split("\n"):
                    name, _, value = line.partition(": ")
                    fields[name] = value
                if "event" in fields:
                    yield Event(fields["event"], json.loads(fields["data"]), fields.get("id"))
                else:
                    yield Event("", {}, None, fields[""] if "" in fields else next(iter(fields)))

    async def next(self, *names: str) -> Event:
        """The next event with one of these names."""
        async for event in self._events:
            if event.name in names:
                return event
        raise EOFError

    async def until(self, version: int) -> list[Event]:
        """The transactions up to a version."""
        found: list[Event] = []
        while not found or found[-1].data["version"] < version:
            found.append(await self.next("transaction"))
        return found

    async def comment(self, text: str) -> None:
        async for event in self._events:
            if text in event.comment:
                return


async def commit_keys(client: Client, *keys: str) -> list[int]:
    return [(await client.ask("POST", "/v1/commit", write(key))).json["version"] for key in keys]


def test_history_then_live_without_gap_or_repeat() -> None:
    async def scenario() -> None:
        async with serving() as here:
            writer = await here.connect()
            before = await commit_keys(writer, *["a2V5"] * 20)
            stream = await Stream.open(here)
            busy = asyncio.ensure_future(commit_keys(writer, *["a2V5"] * 50))
            versions = before + await busy
            found = await stream.until(versions[-1])
            assert [event.data["version"] for event in found] == versions
            previous = [0, *versions]
            assert [event.data["prev_version"] for event in found] == previous[: len(versions)]
            assert [event.identity for event in found] == [f"{version}@{here.service.log_id}" for version in versions]
            assert found[0].data["operations"] == [{"type": "write", "key": "a2V5", "value": "dmFs"}]
            assert found[0].data["leader_id"] == here.service.leader_id
            assert found[0].data["timestamp"].endswith("Z") and len(found[0].data["timestamp"]) == 24
            checkpoint = await stream.next("checkpoint")
            assert checkpoint.data == {"committed_version": versions[-1], "leader_id": here.service.leader_id}

    run(scenario)


@pytest.mark.parametrize("how", ["after", "header", "header with leader", "header wins"])
def test_a_reader_resumes_after_what_it_saw(how: str) -> None:
    async def scenario() -> None:
        async with serving() as here:
            writer = await here.connect()
            versions = await commit_keys(writer, *["a2V5"] * 10)
            seen = str(versions[4])
            match how:
                case "after":
                    stream = await Stream.open(here, f"?after={seen}")
                case "header":
                    stream = await Stream.open(here, Last_Event_ID=seen)
                case "header with leader":
                    stream = await Stream.open(here, Last_Event_ID=f"{seen}~{here.service.leader_id}")
                case _:
                    stream = await Stream.open(here, "?after=0", Last_Event_ID=seen)
            assert [event.data["version"] for event in await stream.until(versions[-1])] == versions[5:]

    run(scenario)


def test_a_stream_that_does_not_wait_for_durability_says_which_is_which() -> None:
    async def scenario() -> None:
        async with serving() as here:
            stream = await Stream.open(here, "?durable=false")
            await stream.next("checkpoint")
            writer = await here.connect()
            here.store.gate.clear()
            writer.send(request("POST", "/v1/commit", write()))
            early = await stream.next("transaction")
            identity = f"{early.data['version']}~{here.service.leader_id}@{here.service.log_id}"
            assert early.identity == identity
            assert here.service.local_version() < early.data["version"]
            here.store.gate.set()
            checkpoint = await stream.next("checkpoint")
            while checkpoint.data["committed_version"] < early.data["version"]:
                checkpoint = await stream.next("checkpoint")
            assert checkpoint.identity is None

    run(scenario)


@pytest.mark.parametrize("query", ["?prefix=YWI", "?prefix_text=ab"])
def test_a_filtered_stream_carries_its_keys_and_all_progress(query: str) -> None:
    async def scenario() -> None:
        async with serving() as here:
            writer = await here.connect()
            stream = await Stream.open(here, query)
            versions = await commit_keys(writer, "YWE=", "YWJj", "YWM=", "YWI=", "YWM=")
            ranged = {"operations": [{"type": "range_delete", "begin": "YQ==", "end": "Yg=="}]}
            versions.append((await writer.ask("POST", "/v1/commit", json.dumps(ranged).encode())).json["version"])
            versions += await commit_keys(writer, "eno=")
            seen: list[int] = []
            while True:
                event = await stream.next("transaction", "checkpoint")
                if event.name == "checkpoint":
                    if event.data["committed_version"] >= versions[-1]:
                        break
                else:
                    seen.append(event.data["version"])
            assert seen == [versions[1], versions[3], versions[5]]

    run(scenario)


def test_a_filter_keeps_the_operations_it_lets_through_and_no_others() -> None:
    async def scenario() -> None:
        async with serving() as here:
            stream = await Stream.open(here, "?begin=Yg&end=ZA")  # b..d
            keys = ["YQ==", "Yg==", "Yw==", "ZA=="]
            body = {"operations": [{"type": "delete", "key": key} for key in keys]}
            await (await here.connect()).ask("POST", "/v1/commit", json.dumps(body).encode())
            event = await stream.next("transaction")
            assert [operation["key"] for operation in event.data["operations"]] == ["Yg==", "Yw=="]

    run(scenario)


@pytest.mark.parametrize(
    ("prefix", "inside", "outside"),
    [
        (b"ab", [b"ab", b"ab\x00", b"ab\xff\xff"], [b"a", b"ac", b"aa\xff", b"b"]),
        (b"a\xff", [b"a\xff", b"a\xff\xff"], [b"a\xfe", b"b"]),
        (b"\xff", [b"\xff", b"\xff\xff"], [b"\xfe\xff"]),
        (b"", [b"", b"\x00", b"\xff"], []),
    ],
)
def test_a_prefix_is_exactly_the_keys_that_start_so(prefix: bytes, inside: list[bytes], outside: list[bytes]) -> None:
    found = KeyFilter(prefix, prefix_end(prefix))
    for key in inside + outside:
        assert bool(found.operations([Delete(key)])) is (key in inside)


def test_live_events_are_encoded_once_for_all_subscribers(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[str] = []
    encode_event = sse.encode_event

    def counted(event: sse.Event, log_id: str, *, durable_stream: bool, **more: Any) -> bytes:
        encoded.append(type(event).__name__)
        return encode_event(event, log_id, durable_stream=durable_stream, **more)

    async def scenario() -> None:
        async with serving() as here:
            streams = [await Stream.open(here) for _ in range(20)]
            for stream in streams:
                await stream.next("checkpoint")
            monkeypatch.setattr(sse, "encode_event", counted)
            (version,) = await commit_keys(await here.connect(), "a2V5")
            for stream in streams:
                await stream.until(version)
                await stream.next("checkpoint")
            assert encoded == ["FeedTransaction", "FeedCheckpoint"]

    run(scenario)


def test_a_quiet_stream_is_kept_alive() -> None:
    async def scenario() -> None:
        async with serving(limits=GatewayLimits(keepalive_interval_seconds=0.05)) as here:
            stream = await Stream.open(here)
            for _ in range(3):
                await stream.comment("keepalive")

    run(scenario)


def test_a_reader_that_lags_is_told_and_closed_and_others_go_on() -> None:
    async def scenario() -> None:
        async with serving(limits=GatewayLimits(subscriber_unsent_bytes_max=100_000)) as here:
            slow_socket = socket.socket()
            slow_socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            slow_socket.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(slow_socket, (here.host, here.port))
            await loop.sock_sendall(slow_socket, request("GET", "/v1/subscribe"))
            await until(lambda: len(here.subscriptions.open) >= 1)
            quick = await Stream.open(here)
            await quick.next("checkpoint")
            writer = await here.connect()
            value = "dmFs" * 5000
            version = 0
            while not here.subscriptions.lagged:
                body = json.dumps({"operations": [{"type": "write", "key": "a2V5", "value": value}]}).encode()
                version = (await writer.ask("POST", "/v1/commit", body)).json["version"]
            await quick.until(version)
            text = b""
            while part := await loop.sock_recv(slow_socket, 1 << 20):
                text += part
            slow_socket.close()
            assert b"event: lagging" in text and text.endswith(b"0\r\n\r\n")
            last = text[: text.index(b"event: lagging")].rsplit(b"id: ", 1)[1].split(b"\n")[0].decode()
            resumed = await Stream.open(here, f"?after={last}")
            if int(last.partition("@")[0]) < version:
                await resumed.until(version)
            assert len(here.subscriptions.open) == 2

    run(scenario)


async def slow_stream(here: Serving, query: str) -> Stream:
    """A subscription whose system takes little at a time."""
    narrow = socket.socket()
    narrow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32_768)
    narrow.setblocking(False)
    await asyncio.get_running_loop().sock_connect(narrow, (here.host, here.port))
    client = Client(*await asyncio.open_connection(sock=narrow, limit=4096))
    here.clients.append(client)
    client.send(request("GET", f"/v1/subscribe{query}"))
    assert (await client.answer(head_only=True)).status == 200
    return Stream(client)


@pytest.mark.parametrize("query", ["", "?durable=false", "?begin="])
def test_a_reader_that_is_up_to_date_gets_an_event_larger_than_its_buffer(query: str) -> None:
    async def scenario() -> None:
        limits = GatewayLimits(subscriber_unsent_bytes_max=10_000, request_bytes_max=16 << 20)
        async with serving(view=False, limits=limits) as here:
            stream, writer = await slow_stream(here, query), await here.connect()
            await stream.next("checkpoint")
            for _ in range(2):
                writes = [{"type": "write", "key": "YQ==", "value": "dmFs" * 200_000}] * 8
                body = json.dumps({"operations": writes}).encode()
                first = (await writer.ask("POST", "/v1/commit", body)).json["version"]
                (second,) = await commit_keys(writer, "Yg==")
                got = await stream.until(second)
                assert [event.data["version"] for event in got] == [first, second]
            assert here.subscriptions.lagged == 0

    run(scenario)


def test_a_reader_that_left_is_forgotten() -> None:
    async def scenario() -> None:
        async with serving() as here:
            streams = [await Stream.open(here) for _ in range(5)]
            for stream in streams:
                await stream.next("checkpoint")
            assert here.service.feed.subscribers == 5 + 1  # the embedded view is one
            for stream in streams:
                stream.client.writer.transport.abort()
            await until(lambda: not (here.subscriptions.open or here.service.feed.subscribers > 1))
            await until(lambda: not here.server.context.tasks)

    run(scenario)


def test_streams_end_when_the_reign_ends() -> None:
    async def scenario() -> None:
        async with serving() as here:
            durable, early = await Stream.open(here), await Stream.open(here, "?durable=false")
            (version,) = await commit_keys(await here.connect(), "a2V5")
            await here.service.step_down()
            assert (await durable.until(version))[-1].data["version"] == version
            change = await early.next("leader_change")
            assert change.data == {"roll_back_to": change.data["roll_back_to"], "leader_id": here.service.leader_id}
            assert change.data["roll_back_to"] >= version
            for stream in (durable, early):
                with pytest.raises(EOFError):
                    await stream.next("transaction")

    run(scenario)


@pytest.mark.parametrize("method", ["HEAD", "GET"])
def test_a_reader_that_leaves_before_the_first_event_is_no_fault(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        open_readers: list[int] = []

        async def silent(after: int, durable: bool, with_segments: bool) -> AsyncIterator[EventBatch]:
            open_readers.append(after)
            try:
                await asyncio.Event().wait()
                yield EventBatch(after, 0, "0" * 32, ())
            finally:
                open_readers.remove(after)

        async with serving(view=False) as here:
            monkeypatch.setattr(here.subscriptions, "_open_batches", silent)
            client = await here.connect()
            client.send(request(method, "/v1/subscribe"))
            if method == "HEAD":
                assert (await client.answer(head_only=True)).status == 200
            else:
                await until(lambda: open_readers)
            client.writer.transport.abort()
            await until(lambda: not here.server.context.tasks)
            assert not open_readers
            told = {status for (route, status) in here.front.counters.answers if route == "/v1/subscribe"}
            assert told == {200}

    run(scenario)


def test_a_reader_without_whom_the_live_events_moved_on_is_told_that_it_lags(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async def moved_on(after: int, durable: bool, with_segments: bool) -> AsyncIterator[EventBatch]:
            yield EventBatch(after, 64, "0" * 32, (FeedCheckpoint(after, "l" * 32),))
            raise Backpressure("subscriber is too far behind", code=Code.LAGGING)

        async with serving(view=False) as here:
            monkeypatch.setattr(here.subscriptions, "_open_batches", moved_on)
            stream = await Stream.open(here)
            await stream.next("checkpoint")
            assert (await stream.next("lagging")).data == {"unsent_bytes": 0}
            with pytest.raises(EOFError):
                await stream.next("checkpoint")
            assert here.subscriptions.lagged == 1

    run(scenario)


def test_damage_in_the_middle_of_a_stream_is_its_last_event(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async def damaged(after: int, durable: bool, with_segments: bool) -> AsyncIterator[EventBatch]:
            yield EventBatch(after, 64, "0" * 32, (FeedCheckpoint(after, "l" * 32),))
            raise CorruptData("an object is damaged", code=Code.CORRUPT_LOG, hint="repair it")

        async with serving(view=False) as here:
            monkeypatch.setattr(here.subscriptions, "_open_batches", damaged)
            stream = await Stream.open(here)
            await stream.next("checkpoint")
            error = (await stream.next("error")).data
            assert error == {"code": "corrupt_log", "message": "an object is damaged", "hint": "repair it"}
            with pytest.raises(EOFError):
                await stream.next("checkpoint")

    run(scenario)


def test_a_lagging_reader_that_never_reads_is_closed_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.server.commit.sse.LINGER_SECONDS", 0.01)

    async def scenario() -> None:
        async with serving(view=False, limits=GatewayLimits(subscriber_unsent_bytes_max=10_000)) as here:
            stuck = socket.socket()
            stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            stuck.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(stuck, (here.host, here.port))
            await loop.sock_sendall(stuck, request("GET", "/v1/subscribe"))
            await until(lambda: here.subscriptions.open)
            writer = await here.connect()
            body = json.dumps({"operations": [{"type": "write", "key": "a2V5", "value": "dmFs" * 200_000}]}).encode()
            while not here.subscriptions.lagged:
                await writer.ask("POST", "/v1/commit", body)
            await until(lambda: not (here.subscriptions.open or here.server.context.tasks))
            await until(lambda: here.server.context.connections == 1)
            stuck.close()

    run(scenario)
