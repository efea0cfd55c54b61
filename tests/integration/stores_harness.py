"""A whole server of message stores in the test's own event loop: the real front, the real service, a real directory.

Owns: starting it, stopping it as a crash would, clients of bytes and of WebSocket frames. The log's routes are not
there.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import struct
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from tests.integration.http_harness import Answered, Client

from holdfast.commit.format.batch import StoresMode
from holdfast.commit.service import CommitService, ServiceOptions
from holdfast.objects.open import open_store
from holdfast.server.gateway import Gateway, GatewayLimits
from holdfast.server.http.auth import Authenticator, Grant, Role
from holdfast.server.http.http_server import HttpServer
from holdfast.server.metrics import ServerMetrics
from holdfast.server.stores.hosting import OpenStores, StoreHost
from holdfast.server.stores.hot_routes import HotStores
from holdfast.server.stores.in_log import LocalCopy, open_in_log
from holdfast.server.stores.routes import store_routes
from holdfast.server.stores.socket import SubscribeSocket
from holdfast.settings import load_configuration
from holdfast.stores.service import StoreService

DURABILITY = "HOLDFAST_STORES__DURABILITY"
"""The setting that a new log takes for its stores. The fixture ``durability`` runs the lane with both values."""
JSON = "holdfast.stores.v1+json"
MSGPACK = "holdfast.stores.v1+msgpack"


@dataclass
class StoresServing:
    """A running server and what is behind it."""

    server: HttpServer
    front: Gateway
    host: StoreHost
    opened: OpenStores
    address: tuple[str, int]
    clients: list[Client] = field(default_factory=list)
    leader: CommitService | None = None
    """Of the log that the stores live in."""

    @property
    def url(self) -> str:
        """Where clients find it."""
        return "http://{}:{}".format(*self.address)

    async def connect(self) -> Client:
        client = Client(*await asyncio.open_connection(*self.address))
        self.clients.append(client)
        return client

    async def ask(self, method: str, target: str, body: object = None, **headers: str) -> Answered:
        """One request on a connection of its own."""
        client = await self.connect()
        data = None if body is None else json.dumps(body).encode()
        return await client.ask(method, target, data, **headers)

    async def define(self, store: str, **parameters: object) -> None:
        answered = await self.ask("PUT", f"/v1/stores/{store}", parameters)
        assert answered.status == 200, answered.body

    async def publish(self, store: str, *bodies: str, **more: object) -> dict[str, Any]:
        messages = [{"body": text64(body), **more} for body in bodies]
        answered = await self.ask("POST", f"/v1/stores/{store}/messages", {"messages": messages})
        assert answered.status == 200, answered.body
        return {name: value for name, value in answered.json.items() if name != "token"}

    async def poll(self, store: str, durable: str, subscriber: str = "s", **parameters: object) -> list[Any]:
        query = "".join(f"&{name}={value}" for name, value in parameters.items())
        answered = await self.ask(
            "GET", f"/v1/stores/{store}/durables/{durable}/messages?subscriber={subscriber}{query}"
        )
        assert answered.status == 200, answered.body
        return list(answered.json["messages"])

    async def acks(self, store: str, durable: str, subscriber: str = "s", **what: object) -> dict[str, Any]:
        answered = await self.ask(
            "POST", f"/v1/stores/{store}/durables/{durable}/acks", {"subscriber": subscriber, **what}
        )
        assert answered.status == 200, answered.body
        return dict(answered.json)

    async def subscribe(
        self, store: str, durable: str, subscriber: str = "s", subprotocol: str = JSON, more: str = "", **headers: str
    ) -> Subscriber:
        """A WebSocket. Raises AssertionError with the answer when the handshake is refused."""
        subscriber_end = Subscriber(await self.connect(), subprotocol)
        await subscriber_end.shake_hands(
            f"/v1/stores/{store}/durables/{durable}/subscribe?subscriber={subscriber}{more}", **headers
        )
        return subscriber_end


@dataclass
class Subscriber:
    """The other end of a WebSocket, frame by frame."""

    client: Client
    subprotocol: str
    withdrawn: list[tuple[str, list[list[int]]]] = field(default_factory=list)

    async def shake_hands(self, target: str, **headers: str) -> None:
        answered = await self.asked_for(target, **headers)
        assert answered.status == 101, answered.body
        assert answered.headers["sec-websocket-protocol"] == self.subprotocol

    async def asked_for(self, target: str, **headers: str) -> Answered:
        """The answer to the handshake."""
        lines = [
            f"GET {target} HTTP/1.1",
            "Host: localhost",
            "Upgrade: websocket",
            "Connection: Upgrade",
            f"Sec-WebSocket-Key: {base64.b64encode(os.urandom(16)).decode()}",
            "Sec-WebSocket-Version: 13",
            f"Sec-WebSocket-Protocol: {self.subprotocol}",
            *(f"{name}: {value}" for name, value in headers.items()),
        ]
        self.client.send("\r\n".join(lines).encode() + b"\r\n\r\n")
        head = await self.client.reader.readuntil(b"\r\n\r\n")
        text = head.decode().split("\r\n")
        fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in text[1:] if line)}
        body = await self.client.reader.readexactly(int(fields.get("content-length", "0")))
        return Answered(int(text[0].split()[1]), fields, body)

    def send(self, **frame: object) -> None:
        is_json = self.subprotocol == JSON
        self.send_raw(1 if is_json else 2, json.dumps(frame).encode() if is_json else msgspec.msgpack.encode(frame))

    def send_raw(self, opcode: int, data: bytes) -> None:
        mask = os.urandom(4)
        size = len(data)
        head = bytes([0x80 | opcode])
        if size < 126:
            head += bytes([0x80 | size])
        elif size < 65_536:
            head += bytes([0x80 | 126]) + struct.pack(">H", size)
        else:
            head += bytes([0x80 | 127]) + struct.pack(">Q", size)
        self.client.send(head + mask + bytes(byte ^ mask[index % 4] for index, byte in enumerate(data)))

    async def frame(self) -> tuple[int, bytes]:
        """The next frame as it is: its opcode and its payload."""
        first, second = await self.client.reader.readexactly(2)
        size = second & 0x7F
        if size == 126:
            (size,) = struct.unpack(">H", await self.client.reader.readexactly(2))
        elif size == 127:
            (size,) = struct.unpack(">Q", await self.client.reader.readexactly(8))
        return first & 0x0F, await self.client.reader.readexactly(size)

    async def next(self) -> dict[str, Any]:
        """The next frame that is not a ping, which is answered."""
        while True:
            opcode, data = await self.frame()
            if opcode == 9:
                self.send_raw(10, data)
                continue
            if opcode == 8:
                return {"type": "closed", "code": int.from_bytes(data[:2], "big"), "reason": data[2:].decode()}
            return dict(json.loads(data) if self.subprotocol == JSON else msgspec.msgpack.decode(data))

    async def messages(self, count: int) -> list[dict[str, Any]]:
        """The next ``count`` messages. What is withdrawn meanwhile is in ``withdrawn``."""
        found: list[dict[str, Any]] = []
        while len(found) < count:
            frame = await self.next()
            if frame["type"] == "withdrawn":
                self.withdrawn.append((frame["cause"], frame["ranges"]))
                continue
            assert frame["type"] == "messages", frame
            found += frame["messages"]
        return found


def text64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def bodies(messages: list[Any]) -> list[str]:
    return [base64.b64decode(message["body"]).decode() for message in messages]


@asynccontextmanager
async def stores_serving(
    directory: Path,
    *,
    tokens: Mapping[str, Role | Grant] | None = None,
    definition: object = None,
    statistics_message_seconds: float = 0.02,
) -> AsyncGenerator[StoresServing]:
    """A server of the stores in ``directory``; everything ends with the block."""
    front = Gateway(limits=GatewayLimits(), authenticator=Authenticator(tokens or {}))
    host = StoreHost(
        front, str(directory), request_bytes_max=16 << 20, statistics_message_seconds=statistics_message_seconds
    )
    metrics = ServerMetrics(front)
    metrics.stores = host
    host.samples = metrics.samples
    socket = partial(SubscribeSocket, front, host)
    server = HttpServer(front, store_routes(host), matcher=HotStores(host), socket=socket)
    leader = None
    if os.environ.get(DURABILITY) == "log":
        service, leader = await open_with_log(directory)
    else:
        service = await StoreService.open(str(directory), page_bytes=1 << 20)
    opened = host.open(service)
    (address,) = await server.listen(["127.0.0.1:0"])
    name, _, port = address.rpartition(":")
    serving = StoresServing(server, front, host, opened, (name, int(port)), leader=leader)
    try:
        if definition is not None:
            answered = await serving.ask("PUT", "/v1/cluster/definition", definition)
            assert answered.status == 200, answered.body
        yield serving
    finally:
        for client in serving.clients:
            client.close()
        await host.close()
        if leader is not None:
            await leader.step_down()
            await leader.close()
            await leader.store.close()
        await server.finish(1.0)


async def open_with_log(directory: Path) -> tuple[StoreService, CommitService]:
    """Stores that live in a log, both in ``directory``, and the log's leader."""
    store = open_store((directory / "log").as_uri(), create_missing=True)
    options = ServiceOptions(allow_new=True, take_over=True, probe=False, stores_mode=StoresMode.LOG)
    leader = await CommitService.lead(store, options)
    flags = {"log.url": "memory:", "stores.directory": str(directory / "copy"), "stores.page_size_bytes": "1 MiB"}
    settings = load_configuration(flags=flags).settings.stores
    return await open_in_log(LocalCopy(store, settings, leader.log_id, "test"), leader, settings), leader
