"""How the service of the stores ends: a disk that refuses while it serves, a stop in the middle; and TLS to it."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import http.client
import json
import resource
import socket
import ssl
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tests.crash.server_process import POLL_SECONDS, ServerProcess
from tests.integration.http_harness import run, until
from tests.integration.stores_harness import stores_serving
from tests.rgw import free_port

from holdfast.aio import StoreClient as AsyncStoreClient
from holdfast.client.stores import Message, StoreClient
from holdfast.client.transport.aio import ClosingConnections, Connection
from holdfast.errors import Code, HoldfastError, InvalidRequest
from holdfast.objects.port import CreateAnswer

pytestmark = pytest.mark.usefixtures("durability")

PAGE_BYTES = 1 << 20
SHARED = {"type": "shared"}


def ask(port: int, method: str, target: str, body: object) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, target, json.dumps(body))
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def test_a_full_disk_ends_the_process_by_name_or_refuses_publishes_where_the_files_are_a_copy(
    tmp_path: Path, durability: str
) -> None:
    environment = {"HOLDFAST_STORES__PAGE_SIZE_BYTES": "1 MiB", "HOLDFAST_VIEW__ENABLED": "false"}
    log = (tmp_path / "log").as_uri()
    server = ServerProcess(tmp_path, log, free_port(), flags=["--init"], environment=environment)
    try:
        server.wait_until_leading()
        while ask(server.port, "GET", "/v1/stores", None)[0] == 503:
            server.leads()  # raises when it has ended
            time.sleep(POLL_SECONDS)
        assert ask(server.port, "PUT", "/v1/stores/orders", {"durables": {"work": SHARED}})[0] == 200
        # From now on the kernel refuses what would make a file longer than half a page: there is no next page.
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (PAGE_BYTES // 2, resource.RLIM_INFINITY))
        publish = {"messages": [{"body": base64.b64encode(bytes(50_000)).decode()}]}
        confirmed = 0
        for _ in range(200):
            try:
                status, answer = ask(server.port, "POST", "/v1/stores/orders/messages", publish)
            except (ConnectionError, http.client.HTTPException):
                break  # it has ended
            if status != 200 and durability == "log":
                assert (status, answer["error"]["code"]) == (507, Code.DISK_LIMIT), answer
                break
            if status != 200:
                assert answer["error"]["code"] == Code.OUTCOME_UNKNOWN, answer
                assert "cause_code=disk_full" in answer["error"]["message"], answer
                break
            confirmed = answer["last_seq"]
        if durability == "log":
            resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            while ask(server.port, "POST", "/v1/stores/orders/messages", publish)[0] == 507:
                time.sleep(0.05)
            assert server.stop() == 0, server.tail()
        else:
            assert server.wait() == 6, server.tail()
            said = server.tail()
            assert "stores_failed" in said and "the stores' log" in said, said
        assert "Traceback" not in server.tail(), server.tail()
    finally:
        if server.running:
            server.kill()
    assert confirmed > 0
    again = ServerProcess(tmp_path, log, free_port(), flags=["--take-over"], environment=environment)
    try:
        again.wait_until_leading()
        with StoreClient(f"http://127.0.0.1:{again.port}") as client:
            kept = [message.seq for message in client.browser("orders", "work")]
        assert kept[:confirmed] == list(range(1, confirmed + 1)), "what was confirmed is there"
    finally:
        again.kill()


class Publishers:
    """Threads that publish large messages of their own, each behind the last one's confirmation, until they are told.

    Several at once make one group of several frames, of which a full disk takes some.
    """

    COUNT = 8

    def __init__(self, url: str) -> None:
        self.confirmed: list[list[str]] = [[] for _ in range(self.COUNT)]
        self.errors: list[HoldfastError] = []
        self._url = url
        self._stopped = False
        self._changed = threading.Condition()
        self._threads = [threading.Thread(target=self._publish, args=(number,)) for number in range(self.COUNT)]
        for thread in self._threads:
            thread.start()

    def _publish(self, number: int) -> None:
        body = bytes(100_000)
        try:
            with StoreClient(self._url) as client, client.publisher("orders") as publisher:
                while not self._stopped:
                    name = f"{number}.{len(self.confirmed[number])}"
                    publisher.publish(body, fields={"name": name})
                    with self._changed:
                        self.confirmed[number].append(name)
                        self._changed.notify_all()
        except HoldfastError as error:
            self.errors.append(error)

    def wait_for(self, more: int) -> None:
        """Until each has so many confirmed in addition."""
        with self._changed:
            wanted = [len(names) + more for names in self.confirmed]
            assert self._changed.wait_for(
                lambda: all(len(names) >= most for names, most in zip(self.confirmed, wanted, strict=True)), 120
            ), self.errors

    def stop(self) -> None:
        self._stopped = True
        for thread in self._threads:
            thread.join(120)


@pytest.mark.matrix  # test_stores_full_disk shows it
def test_what_is_confirmed_around_a_full_disk_is_kept_once_and_in_order(tmp_path: Path, durability: str) -> None:
    environment = {"HOLDFAST_STORES__PAGE_SIZE_BYTES": "4 MiB", "HOLDFAST_VIEW__ENABLED": "false"}
    log, port = (tmp_path / "log").as_uri(), free_port()
    servers = [ServerProcess(tmp_path, log, port, flags=["--init"], environment=environment)]
    publishers = None
    try:
        servers[0].wait_until_leading()
        while ask(port, "GET", "/v1/stores", None)[0] == 503:
            servers[0].leads()
            time.sleep(POLL_SECONDS)
        assert ask(port, "PUT", "/v1/stores/orders", {"durables": {"work": SHARED}})[0] == 200
        publishers = Publishers(f"http://127.0.0.1:{port}")
        publishers.wait_for(1)
        resource.prlimit(servers[0].pid, resource.RLIMIT_FSIZE, (2 * PAGE_BYTES, resource.RLIM_INFINITY))
        if durability == "log":
            while "stores_disk_full" not in servers[0].tail():
                assert servers[0].running, servers[0].tail()
                time.sleep(0.05)
            resource.prlimit(servers[0].pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        else:
            assert servers[0].wait() == 6, servers[0].tail()
            servers.append(ServerProcess(tmp_path, log, port, flags=["--take-over"], environment=environment))
        publishers.wait_for(2)
        publishers.stop()
        assert publishers.errors == []
        with StoreClient(f"http://127.0.0.1:{port}") as client:
            kept = [str(message.fields["name"]) for message in client.browser("orders", "work")]
        for number, confirmed in enumerate(publishers.confirmed):
            assert [name for name in kept if name.startswith(f"{number}.")] == confirmed
    finally:
        if publishers is not None:
            publishers._stopped = True
        for server in servers:
            if server.running:
                server.kill()


def test_a_poll_whose_attachment_is_under_way_is_answered_when_the_service_stops(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define("orders", durables={"work": SHARED})
            loop = asyncio.get_running_loop()
            storage = stores.opened.service._storage
            arrived, released, sync = asyncio.Event(), asyncio.Event(), storage.log.sync

            def slow(*, mark: bool = True) -> None:
                loop.call_soon_threadsafe(arrived.set)
                asyncio.run_coroutine_threadsafe(released.wait(), loop).result(60)
                sync(mark=mark)

            storage.log.sync = slow  # type: ignore[method-assign]
            poll = asyncio.ensure_future(
                stores.ask("GET", "/v1/stores/orders/durables/work/messages?subscriber=s&wait_ms=60000")
            )
            await arrived.wait()
            closing = asyncio.ensure_future(stores.host.close())
            await until(lambda: stores.host.current is None)
            released.set()
            answered = await poll
            assert (answered.status, answered.json["error"]["code"]) == (503, Code.OVERLOADED)
            await closing

    run(scenario)


def test_a_read_waits_until_what_it_shows_is_safe(tmp_path: Path) -> None:
    """A value that a crash could still take back is shown to nobody: neither by a map, nor by browsing."""

    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define("orders", durables={"m": {"type": "map"}, "work": SHARED})
            loop, arrived, released = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()
            if stores.leader is None:
                log = stores.opened.service._storage.log
                sync = log.sync

                def slow(*, mark: bool = True) -> None:
                    loop.call_soon_threadsafe(arrived.set)
                    asyncio.run_coroutine_threadsafe(released.wait(), loop).result(60)
                    sync(mark=mark)

                log.sync = slow  # type: ignore[method-assign]
            else:
                own = stores.leader._leader_store
                create = own.create

                async def held(name: str, data: bytes) -> CreateAnswer:
                    arrived.set()
                    await released.wait()
                    return await create(name, data)

                own.create = held  # type: ignore[method-assign]
            writes = [
                asyncio.ensure_future(stores.ask("PUT", "/v1/stores/orders/maps/m/k", {"value": "dg=="})),
                asyncio.ensure_future(stores.publish("orders", "1")),
            ]
            await arrived.wait()
            reads = [
                asyncio.ensure_future(stores.ask("GET", "/v1/stores/orders/" + target))
                for target in ("maps/m/k", "maps/m", "durables/work/browse")
            ]
            done, _ = await asyncio.wait(reads, timeout=0.2)
            assert not done
            released.set()
            assert [(await read).status for read in reads] == [200, 200, 200]
            await asyncio.gather(*writes)

    run(scenario)


# TLS


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A certificate for localhost that signs itself; its key is beside it."""
    made = tmp_path / "localhost.crt"
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", str(made.with_suffix(".key"))]
    subprocess.run(
        ["openssl", "req", "-x509", "-days", "2", *names, *key, "-out", str(made)], check=True, capture_output=True
    )
    return made


@pytest.fixture
def secure(tmp_path: Path, certificate: Path) -> ServerProcess:
    return ServerProcess(
        tmp_path,
        (tmp_path / "log").as_uri(),
        free_port(),
        flags=["--init"],
        environment={
            "HOLDFAST_SERVER__TLS_CERTIFICATE": str(certificate),
            "HOLDFAST_SERVER__TLS_KEY": str(certificate.with_suffix(".key")),
            "HOLDFAST_VIEW__ENABLED": "false",
        },
    )


def test_subscribing_and_watching_go_over_tls_and_an_unknown_certificate_is_refused(
    secure: ServerProcess, certificate: Path
) -> None:
    url = f"https://localhost:{secure.port}"
    trusting = ssl.create_default_context(cafile=str(certificate))
    try:
        with StoreClient(url, tls=trusting) as client:
            client.define_store("orders", {"durables": {"work": SHARED, "m": {"type": "map"}}})
            with client.publisher("orders") as publisher:
                # More than one TLS record, and more than one read.
                publisher.publish_batch([Message(bytes([number]) * 40_000) for number in range(20)])
            with client.subscriber("orders", "work") as messages:
                got = [messages.receive(60) for _ in range(20)]
                messages.acknowledge(*[message for message in got[-1:] if message is not None])
            assert [message.body[:1] for message in got if message is not None] == [bytes([n]) for n in range(20)]
            client.map("orders", "m").set("k", b"v")
            with client.map("orders", "m").watch() as watched:
                told = watched.receive(60)
            assert told is not None and (told.key, told.value) == ("k", b"v")

        async def scenario() -> None:
            async with AsyncStoreClient(url, tls=trusting) as client:
                async with client.publisher("orders") as publisher:
                    await publisher.publish(b"last")
                async with client.subscriber("orders", "work") as messages:
                    message = await messages.receive(60)
                    assert message is not None and message.body == b"last"

        run(scenario)
        with (
            StoreClient(url) as stranger,
            pytest.raises(InvalidRequest, match="certificate of the service does not verify"),
            stranger.subscriber("orders", "work"),
        ):
            raise AssertionError("entering waits for the answer")
    finally:
        secure.kill()


class SilentPeer(threading.Thread):
    """Makes TLS with one client, then neither reads nor says goodbye until it is stopped."""

    def __init__(self, certificate: Path) -> None:
        super().__init__()
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate, certificate.with_suffix(".key"))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.stopped = threading.Event()

    def run(self) -> None:
        connection, _ = self._listener.accept()
        self._listener.close()
        # Who is cut off may be gone before the handshake's last message is read.
        with contextlib.suppress(OSError), connection, self._context.wrap_socket(connection, server_side=True):
            self.stopped.wait(60)


@pytest.mark.parametrize("graceful", [True, False])
def test_a_closed_client_leaves_no_socket_behind_when_the_other_side_never_says_goodbye(
    certificate: Path, *, graceful: bool
) -> None:
    peer = SilentPeer(certificate)
    peer.start()
    trusting = ssl.create_default_context(cafile=str(certificate))
    sockets: list[socket.socket] = []

    async def scenario() -> None:
        departures = ClosingConnections()
        _, connection = await asyncio.get_running_loop().create_connection(
            lambda: Connection(departures), "localhost", peer.port, ssl=trusting
        )
        transport = connection.transport
        assert transport is not None
        sockets.append(transport.get_extra_info("socket"))
        departures.add(transport, transport.abort)
        if graceful:
            transport.close()
        else:
            transport.abort()
        await departures.over()
        assert connection.lost
        assert connection.transport is None

    try:
        run(scenario)  # uvloop's loop refuses to end while a transport is still saying goodbye
        assert sockets[0].fileno() == -1
    finally:
        peer.stopped.set()
        peer.join()
