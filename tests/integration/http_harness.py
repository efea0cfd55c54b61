"""A whole HTTP server in the test's own event loop: the real front, the real commit service, a store in memory.

Owns: starting it, a store that can be stalled, and a client that speaks bytes, because most laws are about bytes.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import uvloop

from holdfast.commit.leadership.takeover import now
from holdfast.commit.reading.feed import EventBatch
from holdfast.commit.service import CommitService, ServiceOptions
from holdfast.commit.subscription import subscribe
from holdfast.objects.budget import TimeLimited
from holdfast.objects.memory import MemoryStore
from holdfast.objects.port import CreateAnswer, ObjectStore
from holdfast.retention.truncator import Truncator, TruncatorOptions
from holdfast.server.commit.log_job_routes import LogJobs
from holdfast.server.commit.retention_routes import RetentionHost
from holdfast.server.commit.sse import Subscriptions
from holdfast.server.gateway import Gateway, GatewayLimits
from holdfast.server.health import STALLED_MS_MAX, StoreWatch
from holdfast.server.http.auth import Authenticator, Grant, Role
from holdfast.server.http.exchange import Exchange
from holdfast.server.http.http_server import HttpServer
from holdfast.server.http.routes import Route
from holdfast.server.metrics import ServerMetrics
from holdfast.server.route_table import route_table
from holdfast.server.view.embedded_view import EmbeddedView
from holdfast.server.view.messages import ViewStart

BY_FRAMEWORK = {"Sec_Fetch_Site": "none"}
"""A header of browsers, which makes a request one for the framework."""
SECONDS_MAX = 90.0  # below pytest's own limit, above what any scenario takes on a machine that is ten times slower


def run(scenario: Callable[[], Awaitable[None]], *, seconds_max: float = SECONDS_MAX) -> None:
    """Run one scenario on uvloop, as the product does, and give up after a bound."""

    async def bounded() -> None:
        async with asyncio.timeout(seconds_max):
            await scenario()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(bounded())


async def until(condition: Callable[[], object]) -> None:
    """Let the loop run until something is so. The scenario's own bound ends it when that never comes."""
    while not condition():  # noqa: ASYNC110  # conditions of many kinds; nothing sets an event for them
        await asyncio.sleep(0)


class GatedStore(MemoryStore):
    """A store in memory whose creates wait while the gate is shut."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.gate.set()

    async def create(self, key: str, data: bytes) -> CreateAnswer:
        await self.gate.wait()
        return await super().create(key, data)


@dataclass
class Answered:
    """One response as it came."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        return str(self.json["error"]["code"])


@dataclass
class Client:
    """One connection, byte by byte."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def answer(self, *, head_only: bool = False) -> Answered:
        head = await self.reader.readuntil(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        headers = {
            name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:] if line)
        }
        status = int(lines[0].split()[1])
        if head_only:
            return Answered(status, headers, b"")
        if headers.get("transfer-encoding") == "chunked":
            return Answered(status, headers, b"".join([part async for part in self.chunks()]))
        return Answered(status, headers, await self.reader.readexactly(int(headers["content-length"])))

    async def chunks(self) -> AsyncIterator[bytes]:
        while True:
            size = int(await self.reader.readline(), 16)
            part = await self.reader.readexactly(size)
            await self.reader.readline()
            if not size:
                return
            yield part

    async def ask(self, method: str, target: str, body: bytes | None = None, **headers: str) -> Answered:
        self.send(request(method, target, body, **headers))
        return await self.answer()

    async def is_closed_by_peer(self) -> bool:
        return await self.reader.read() == b""

    def close(self) -> None:
        self.writer.close()


def request(method: str, target: str, body: bytes | None = None, **headers: str) -> bytes:
    lines = [f"{method} {target} HTTP/1.1", "Host: localhost"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    if body is not None:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + (body or b"")


def write(key: str = "a2V5", **more: object) -> bytes:
    """The body of a commit that writes one key."""
    return json.dumps({"operations": [{"type": "write", "key": key, "value": "dmFs"}], **more}).encode()


def commit(key: str = "a2V5", **more: object) -> bytes:
    """A whole commit request."""
    return request("POST", "/v1/commit", write(key, **more))


@dataclass
class Serving:
    """A running server and what is behind it."""

    server: HttpServer
    front: Gateway
    service: CommitService
    store: GatedStore
    subscriptions: Subscriptions
    view: EmbeddedView
    retention: RetentionHost
    metrics: ServerMetrics
    watch: StoreWatch
    rows: list[Route]
    host: str
    port: int
    clients: list[Client] = field(default_factory=list)

    @property
    def exchanges(self) -> list[Exchange]:
        """The requests that the framework serves now, of connections that are open."""
        return [each.alone for each in self.server.context.open if isinstance(each.alone, Exchange)]

    async def connect(self) -> Client:
        client = Client(*await asyncio.open_connection(self.host, self.port))
        self.clients.append(client)
        return client


@asynccontextmanager
async def serving(
    *,
    limits: GatewayLimits | None = None,
    tokens: Mapping[str, Role | Grant] | None = None,
    view: bool = True,
    options: ServiceOptions | None = None,
    store: GatedStore | None = None,
    reading: ObjectStore | None = None,
    stalled_ms_max: float = STALLED_MS_MAX,
    names: Iterable[str] = (),
    hosts: Iterable[str] = (),
) -> AsyncGenerator[Serving]:
    """A server that leads a log; everything ends with the block. ``reading``: how history is read, if not directly."""
    store = store or GatedStore()
    authenticator = Authenticator(tokens or {})
    front = Gateway(limits=limits or GatewayLimits(), authenticator=authenticator, names=names, hosts=hosts)
    options = options or ServiceOptions(address="test", allow_new=True, probe=False)
    own = None if reading is None else TimeLimited(store, options.request_timeout_ms)
    service = await CommitService.lead(reading or store, options, own)

    def subscribed(after: int, durable: bool, with_segments: bool = True) -> AsyncIterator[EventBatch]:
        del with_segments
        front.leading()
        return subscribe(service, after=after, durable=durable)

    metrics = ServerMetrics(front)
    watch = StoreWatch(front, stalled_ms_max=stalled_ms_max)
    subscriptions = Subscriptions(front, subscribed)
    embedded = EmbeddedView(view, ViewStart(log_url="memory:"), subscribed)
    retention = RetentionHost(front)
    retention.truncator = Truncator(service, store, TruncatorOptions(), now)
    rows = route_table(
        front,
        metrics=metrics,
        watch=watch,
        subscriptions=subscriptions,
        view=embedded,
        retention=retention,
        jobs=LogJobs(front),
        version="test",
    )
    server = HttpServer(front, rows)
    metrics.server, metrics.subscriptions = server, subscriptions
    (address,) = await server.listen(["127.0.0.1:0"])
    host, _, port = address.rpartition(":")
    front.lead(service)
    embedded.follow(service)
    found = Serving(
        server, front, service, store, subscriptions, embedded, retention, metrics, watch, rows, host, int(port)
    )
    try:
        yield found
    finally:
        store.gate.set()
        for client in found.clients:
            client.close()
        await subscriptions.close()
        await server.finish(1.0)
        await embedded.stop()
        await service.close()
