"""What waits for peers that take nothing is bounded for each client: the stream that holds most ends as ``lagging``.

Peers have small buffers in the kernel and read nothing. What the service holds for them is counted in its transports.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import pytest
from tests.integration.http_harness import Client, request, run, serving, until
from tests.integration.stores_harness import JSON, stores_serving
from tests.matrix import matrix

from holdfast.commit.service import ServiceOptions
from holdfast.server.commit import stream_source
from holdfast.server.gateway import GatewayLimits
from holdfast.server.http.auth import Role
from holdfast.server.http.buffers import CLIENT_PART, MARK_BYTES, Buffers
from holdfast.server.stores.socket import SubscribeSocket

BOUND = 16 << 20
PART = BOUND // CLIENT_PART
VALUE = 300_000
TEXT = VALUE * 4 // 3 + 1_000
STREAMS = 24
SOCKETS = 8
SLOW, OTHER = "a-slow-long-random-token", "another-long-random-token"


PEERS: list[socket.socket] = []


def end_peers() -> None:
    while PEERS:
        PEERS.pop().close()


@pytest.fixture(autouse=True)
def ended_peers() -> Iterator[None]:
    yield
    end_peers()


async def slow_peer(address: tuple[str, int], data: bytes) -> socket.socket:
    """A connection that sent this, and whose kernel takes little for it."""
    peer = socket.socket()
    PEERS.append(peer)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    peer.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(peer, address)
    await loop.sock_sendall(peer, data)
    return peer


async def rest_of(peer: socket.socket, data: bytearray | None = None) -> bytes:
    """All that comes until the service ends the connection; ``data`` has what came so far."""
    data = bytearray() if data is None else data
    while part := await asyncio.get_running_loop().sock_recv(peer, 1 << 20):
        data += part
    return bytes(data)


def held(here: Any) -> int:
    """What the service holds unsent, in all transports."""
    framework = here.server.context
    return sum(connection.transport.get_write_buffer_size() for connection in framework.open)


async def commit(client: Client, key: str) -> None:
    value = base64.b64encode(os.urandom(VALUE)).decode()
    operations = [{"type": "write", "key": base64.b64encode(key.encode()).decode(), "value": value}]
    body = json.dumps({"operations": operations}).encode()
    assert (await client.ask("POST", "/v1/commit", body, Authorization=f"Bearer {OTHER}")).status == 200


def subscribe(token: str, more: str = "") -> bytes:
    return request("GET", f"/v1/subscribe?after=0{more}", Authorization=f"Bearer {token}")


def events_of(data: bytes) -> list[bytes]:
    """The kinds of the events in the text of a stream."""
    return [line.partition(b": ")[2] for line in data.splitlines() if line.startswith(b"event: ")]


LIMITS = GatewayLimits(request_bytes_max=1 << 20, unsent_bytes_max=BOUND)
FEW_RECENT = ServiceOptions(address="test", allow_new=True, probe=False, feed_bytes_max=1)
TOKENS = {SLOW: Role.READ, OTHER: Role.WRITE}


@pytest.mark.parametrize("more", matrix(["", "&prefix_text=k"]), ids=["all", "filtered"])
def test_live_streams_of_one_token_hold_its_part_and_the_largest_end_as_lagging(
    more: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What an ended stream has not sent stays until its last words are sent or late: then it is gone.
    monkeypatch.setattr("holdfast.server.commit.sse.LAST_WORDS_SECONDS", 0.05)

    async def scenario() -> None:
        async with serving(limits=LIMITS, tokens=TOKENS) as here:
            address = here.host, here.port
            writer = await here.connect()
            await commit(writer, "k")
            for _ in range(STREAMS):
                await slow_peer(address, subscribe(SLOW, more))
            other = await here.connect()
            other.send(subscribe(OTHER, more))
            await until(lambda: len(here.subscriptions.open) == STREAMS + 1)
            reading = asyncio.ensure_future(other.reader.read())
            most = 0
            for number in range(40):
                await commit(writer, f"k{number}")
                await until(lambda: len(here.exchanges) <= STREAMS + 1 - here.front.buffers.ended)
                most = max(most, held(here))
            assert PART // 2 <= most <= PART + PART // 2 + (STREAMS + 1) * MARK_BYTES + 4 * TEXT
            assert 0 < here.subscriptions.lagged <= STREAMS
            assert here.front.buffers.ended == here.subscriptions.lagged
            here.front.buffers.check()
            await here.subscriptions.close()
            assert events_of(await reading).count(b"transaction") == 41, "the stream of another token is not touched"

    run(scenario)


def test_a_stream_that_ends_for_its_client_says_that_it_lags(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.server.commit.sse.LAST_WORDS_SECONDS", 30.0)

    async def scenario() -> None:
        async with serving(limits=LIMITS, tokens=TOKENS) as here:
            writer = await here.connect()
            await commit(writer, "k")
            peers = [await slow_peer((here.host, here.port), subscribe(SLOW)) for _ in range(2)]
            await until(lambda: len(here.subscriptions.open) == 2)
            number = 0
            while not here.subscriptions.lagged:
                number += 1
                await commit(writer, f"k{number}")
            await here.subscriptions.close()
            last = {events_of(text)[-1] for text in await asyncio.gather(*map(rest_of, peers))}
            assert last == {b"lagging", b"checkpoint"}

    run(scenario)


def test_history_is_read_for_a_few_streams_of_a_client_and_not_for_one_that_takes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stream_source, "STALLED_SECONDS", 0.05)
    open_now: set[int] = set()
    most = 0

    async def scenario() -> None:
        nonlocal most
        async with serving(limits=LIMITS, tokens=TOKENS, options=FEW_RECENT) as here:
            subscriptions = here.subscriptions
            subscribed = subscriptions._open_batches  # pyright: ignore[reportPrivateUsage]

            async def watched(after: int, durable: bool, with_segments: bool) -> Any:
                nonlocal most
                batches = subscribed(after, durable, with_segments)
                mark = object()
                open_now.add(id(mark))
                most = max(most, len(open_now))
                try:
                    async for batch in batches:
                        yield batch
                finally:
                    open_now.discard(id(mark))

            subscriptions._open_batches = watched  # pyright: ignore[reportPrivateUsage]
            writer = await here.connect()
            for number in range(30):
                await commit(writer, f"k{number}")
            stalled = [await slow_peer((here.host, here.port), subscribe(SLOW)) for _ in range(8)]
            await until(lambda: len(subscriptions.open) == 8)
            reader = await slow_peer((here.host, here.port), subscribe(SLOW))
            received = bytearray()
            reading = asyncio.ensure_future(rest_of(reader, received))
            await until(lambda: len(open_now) == 1 and received.count(b"event: transaction") == 30)
            assert most <= stream_source.READERS_OF_CLIENT
            for peer in stalled:
                peer.close()
            await subscriptions.close()
            await reading

    run(scenario)


def input_of(each: SubscribeSocket) -> int:
    """What a socket has of messages that are not whole."""
    protocol = each._protocol  # pyright: ignore[reportPrivateUsage]
    return len(each._message_begun) + len(each._unread) + len(protocol.reader.buffer)  # pyright: ignore[reportPrivateUsage]


HALF = bytes(100_000)
HALVES = {
    "of a frame": b"\x01\xff" + (1 << 19).to_bytes(8, "big") + bytes(4) + HALF,
    "in parts": b"".join(bytes([opcode, 0xFE, 0x61, 0xA8, 0, 0, 0, 0]) + HALF[:25_000] for opcode in (1, 0, 0, 0)),
}


@pytest.mark.parametrize("half", matrix(HALVES))
def test_half_messages_of_one_client_hold_its_part_and_those_of_ended_sockets_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, half: str
) -> None:
    """Timers keep a socket that has ended for seconds."""
    bound = 1 << 20
    made: list[SubscribeSocket] = []
    connected = SubscribeSocket.connection_made

    def connection_made(self: SubscribeSocket, transport: asyncio.BaseTransport) -> None:
        made.append(self)
        connected(self, transport)

    monkeypatch.setattr(SubscribeSocket, "connection_made", connection_made)

    async def scenario() -> None:
        async with stores_serving(tmp_path) as here:
            here.front.buffers = Buffers(bound)
            await here.define("orders", templates={"each": {"type": "standard"}})
            ends = [await here.subscribe("orders", f"d{number}", more="&template=each") for number in range(SOCKETS)]
            for number, end in enumerate(ends):
                end.client.send(HALVES[half])
                await until(lambda number=number: input_of(made[number]) or here.front.buffers.ended)  # type: ignore[misc]
            fit = bound // CLIENT_PART // len(HALF)
            await until(lambda: here.front.buffers.ended == SOCKETS - fit)
            await until(lambda: sum(map(input_of, made)) == fit * len(HALF))
            here.front.buffers.check()
            assert (await ends[0].next())["type"] == "attached"
            closed = await ends[0].next()
            assert closed == {"type": "closed", "code": 4503, "reason": "lagging"}

    run(scenario)


@pytest.mark.parametrize("what", matrix(["messages", "half a message"]))
def test_sockets_of_one_client_hold_its_part(tmp_path: Path, what: str) -> None:
    """What was delivered and not read, and what was sent of messages that are not whole."""
    credit = b'{"type":"credit","messages":1000}'
    half = b'\x01\xff\x00\x00\x00\x00\x00\x0f\x00\x00\x00\x00\x00\x00{"type":"' + b"x" * 600_000

    async def scenario() -> None:
        async with stores_serving(tmp_path) as here:
            here.front.buffers = Buffers(BOUND)
            await here.define("orders", templates={"each": {"type": "standard"}})
            body = base64.b64encode(bytes(900_000)).decode()
            sent = b"\x81" + bytes([0x80 | len(credit)]) + bytes(4) + credit if what == "messages" else half
            for number in range(SOCKETS):
                target = f"/v1/stores/orders/durables/d{number}/subscribe?subscriber=s&template=each"
                peer = await slow_peer(
                    here.address,
                    request(
                        "GET", target, Upgrade="websocket", Connection="Upgrade", Sec_WebSocket_Version="13",
                        Sec_WebSocket_Key=base64.b64encode(bytes(16)).decode(), Sec_WebSocket_Protocol=JSON,
                    ),
                )  # fmt: skip
                loop, received = asyncio.get_running_loop(), b""
                while b'"attached"' not in received:
                    received += await loop.sock_recv(peer, 4_096)
                with suppress(OSError):
                    await loop.sock_sendall(peer, sent)
            most = 0
            for _ in range(4):
                answered = await here.ask("POST", "/v1/stores/orders/messages", {"messages": [{"body": body}]})
                assert answered.status == 200
                most = max(most, sum(cast(SubscribeSocket, each).held_bytes() for each in here.host.sockets))
            await until(lambda: here.front.buffers.ended)
            assert most <= PART + SOCKETS * MARK_BYTES + 8 * TEXT
            here.front.buffers.check()
            end_peers()

    run(scenario)


def test_a_stream_of_commits_whose_results_are_not_read_ends_for_its_client() -> None:
    """Its items wait for their results to be written."""
    small = json.dumps({"operations": [{"type": "delete", "key_text": "k"}]}).encode() + b"\n"
    large = json.dumps({"operations": [{"type": "write", "key_text": "k", "value_text": "x" * VALUE}]}).encode() + b"\n"

    async def scenario() -> None:
        async with serving(limits=LIMITS, tokens=TOKENS) as here:
            head = request("POST", "/v1/commits", Authorization=f"Bearer {OTHER}", Transfer_Encoding="chunked")
            peer = await slow_peer((here.host, here.port), head)
            await until(lambda: here.server.context.open)
            (connection,) = here.server.context.open
            connection.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
            blocks = [small * 1_000] * 6 + [large] * 40

            async def send() -> None:
                with suppress(OSError):
                    for block in blocks:
                        await asyncio.get_running_loop().sock_sendall(peer, b"%x\r\n%b\r\n" % (len(block), block))

            sending = asyncio.ensure_future(send())
            await until(lambda: here.front.buffers.ended)
            await until(lambda: not here.server.context.open)
            await sending
            here.front.buffers.check()

    run(scenario)
