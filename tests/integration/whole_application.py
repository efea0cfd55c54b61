"""The whole application in the test's event loop: the log, its view, and message stores that live in the log.

Its clocks are those of the loop, so that it may run on virtual time. It listens on a Unix socket.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.integration.http_harness import Answered, Client

from holdfast.commit.format.batch import StoresMode
from holdfast.commit.reading.feed import EventBatch
from holdfast.commit.service import CommitService, ServiceOptions
from holdfast.commit.subscription import subscribe
from holdfast.objects.memory import MemoryStore
from holdfast.retention.truncator import Truncator, TruncatorOptions
from holdfast.server.commit.log_job_routes import LogJobs
from holdfast.server.commit.retention_routes import RetentionHost
from holdfast.server.commit.sse import Subscriptions
from holdfast.server.gateway import Gateway, GatewayLimits
from holdfast.server.health import StoreWatch
from holdfast.server.http import auth
from holdfast.server.http.auth import Authenticator, Grant, Role
from holdfast.server.http.http_server import HttpServer
from holdfast.server.metrics import ServerMetrics
from holdfast.server.route_table import route_table
from holdfast.server.stores import in_log
from holdfast.server.stores.commit_parts import GatewayStores, StoresOfCommits
from holdfast.server.stores.hosting import OpenStores, StoreHost
from holdfast.server.stores.hot_routes import HotStores
from holdfast.server.stores.in_log import LocalCopy, open_in_log
from holdfast.server.stores.socket import SubscribeSocket
from holdfast.server.view.embedded_view import EmbeddedView
from holdfast.server.view.messages import ViewStart
from holdfast.settings import load_configuration
from holdfast.stores.clock import StoreClock
from holdfast.values import Instant

EPOCH_MS = 1_800_000_000_000


@dataclass
class Application:
    """A running application and what is in it."""

    front: Gateway
    service: CommitService
    store: MemoryStore
    host: StoreHost
    opened: OpenStores
    subscriptions: Subscriptions
    retention: RetentionHost
    jobs: LogJobs
    path: str
    clients: list[Client] = field(default_factory=list)

    async def connect(self) -> Client:
        client = Client(*await asyncio.open_unix_connection(self.path))
        self.clients.append(client)
        return client

    async def ask(self, method: str, target: str, body: object = None, **headers: str) -> Answered:
        """One request on a connection of its own."""
        client = await self.connect()
        data = None if body is None else json.dumps(body).encode()
        answered = await client.ask(method, target, data, **headers)
        client.close()
        return answered


@asynccontextmanager
async def application(
    folder: Path,
    *,
    tokens: Mapping[str, Role | Grant],
    store: MemoryStore | None = None,
    limits: GatewayLimits | None = None,
) -> AsyncGenerator[Application]:
    """It leads a log in memory; everything ends with the block."""
    loop = asyncio.get_running_loop()
    store = store or MemoryStore()

    def wall_ms() -> int:
        return EPOCH_MS + int(loop.time() * 1000)

    def clock() -> Instant:
        return Instant(loop.time() * 1000, wall_ms())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(auth, "time", SimpleNamespace(time=lambda: wall_ms() / 1000))
        steady = partial(StoreClock, wall=wall_ms, steady=lambda: int(loop.time() * 1000))
        patch.setattr(in_log, "StoreClock", steady)
        front = Gateway(limits=limits or GatewayLimits(), authenticator=Authenticator(tokens))
        options = ServiceOptions(allow_new=True, probe=False, stores_mode=StoresMode.LOG)
        service = await CommitService.lead(store, options, clock=clock)

        def subscribed(after: int, durable: bool, with_segments: bool = True) -> AsyncIterator[EventBatch]:
            del with_segments
            return subscribe(service, after=after, durable=durable)

        metrics, watch = ServerMetrics(front), StoreWatch(front)
        subscriptions = Subscriptions(front, subscribed)
        view = EmbeddedView(True, ViewStart(log_url="memory:"), subscribed)
        retention, jobs = RetentionHost(front), LogJobs(front)
        retention.truncator = Truncator(service, store, TruncatorOptions(), clock)
        host = StoreHost(front, str(folder), request_bytes_max=16 << 20)
        front.stores = GatewayStores(host)
        rows = route_table(
            front, metrics=metrics, watch=watch, subscriptions=subscriptions, view=view, retention=retention,
            jobs=jobs, version="test", stores=host,
        )  # fmt: skip
        server = HttpServer(front, rows, matcher=HotStores(host), socket=partial(SubscribeSocket, front, host))
        metrics.server, metrics.subscriptions, metrics.stores = server, subscriptions, host
        flags = {"log.url": "memory:", "stores.directory": str(folder / "copy"), "stores.page_size_bytes": "1 MiB"}
        settings = load_configuration(flags=flags).settings.stores
        stores = await open_in_log(LocalCopy(store, settings, service.log_id, "test"), service, settings)
        opened = host.open(stores)
        service.serve_stores(StoresOfCommits(stores))
        path = str(folder / "socket")
        await server.listen([f"unix:{path}"])
        front.lead(service)
        view.follow(service)
        here = Application(front, service, store, host, opened, subscriptions, retention, jobs, path)
        try:
            yield here
        finally:
            for client in here.clients:
                client.close()
            await subscriptions.close()
            await host.close()
            await server.finish(1.0)
            await view.stop()
            await service.step_down()
            await service.close()
