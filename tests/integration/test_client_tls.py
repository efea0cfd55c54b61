"""TLS between client and service: what no repeating mends is told at once, by name, and nothing else is."""

from __future__ import annotations

import asyncio
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.integration.http_harness import Serving, run, serving, until
from tests.unit.client.conftest import AsyncFace, BlockingFace
from tests.unit.client.scripted_server import Drop, Reply, ScriptedServer, Step, Stream, Unsealed

from holdfast import StoreClient, aio
from holdfast.client import Client, ClientOptions
from holdfast.client.stores import PublisherOptions
from holdfast.commit.format.transaction import Transaction, Write
from holdfast.errors import Code, HoldfastError, InvalidRequest, OutcomeUnknown
from holdfast.server.http import http_server as listener

WRITE = [Write(b"k", b"v")]
PATIENT = ClientOptions(retry_base_ms=1, retry_max_ms=4)
"""Its bounds in time are above that of a scenario, so who waits for them fails."""


def self_signed(folder: Path, name: str, *, expired: bool = False) -> Path:
    """A certificate; its key is beside it."""
    made = folder / f"{name}{'-expired' if expired else ''}.crt"
    key, request, names = made.with_suffix(".key"), made.with_suffix(".csr"), made.with_suffix(".ext")
    lasting = ["-days", "-1" if expired else "2", "-extfile", str(names)]
    names.write_text(f"subjectAltName=DNS:{name}")
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    for command in (
        ["req", "-new", *curve, "-subj", f"/CN={name}", "-keyout", str(key), "-out", str(request)],
        ["x509", "-req", "-in", str(request), "-signkey", str(key), *lasting, "-out", str(made)],
    ):
        subprocess.run(["openssl", *command], check=True, capture_output=True)
    return made


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("certificates")
    return {
        "good": self_signed(folder, "localhost"),
        "expired": self_signed(folder, "localhost", expired=True),
        "other": self_signed(folder, "elsewhere.example"),
    }


@pytest.fixture(params=[BlockingFace, AsyncFace], ids=["blocking", "asyncio"])
def face(request: pytest.FixtureRequest) -> Any:
    """One kind of client."""
    return request.param


def scripted(certificate: Path, *steps: Step) -> ScriptedServer:
    """A server of TLS that reads each request whole before it does anything."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, certificate.with_suffix(".key"))
    return ScriptedServer(*steps, tls=tls)


def url_of(server: ScriptedServer) -> str:
    """By the name that the certificate has."""
    return f"https://localhost:{server.address.rpartition(':')[2]}"


def trusting(certificate: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(certificate))


@asynccontextmanager
async def listening(here: Serving, certificate: Path) -> AsyncIterator[str]:
    """The address of another port of a server, which speaks TLS with this certificate."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, certificate.with_suffix(".key"))
    here.server._tls = tls  # one server has one certificate; these tests want several
    address = (await here.server.listen(["127.0.0.1:0"]))[-1]
    yield f"localhost:{address.rpartition(':')[2]}"


def blocking_errors(urls: list[str], tls: ssl.SSLContext | None) -> list[HoldfastError]:
    """What each kind of operation fails with."""
    errors: list[HoldfastError] = []

    def tried(operation: Callable[[], object]) -> None:
        with pytest.raises(HoldfastError) as raised:
            operation()
        errors.append(raised.value)

    with Client(urls, tls=tls, options=PATIENT) as client:
        tried(lambda: client.commit(WRITE, read_version=0))
        tried(client.version)
        tried(lambda: client.status("x" * 24, 0))
        tried(lambda: next(client.subscribe()))
        tried(lambda: client.transact(lambda txn: txn.get(b"k")))
    with StoreClient(urls, tls=tls, options=PATIENT) as stores:
        tried(lambda: stores.describe_store("orders"))
        messages = stores.subscriber("orders", "work")
        tried(messages.__enter__)
        publisher = stores.publisher("orders")
        tried(lambda: publisher.publish(b"m"))
    return errors


async def asynchronous_errors(urls: list[str], tls: ssl.SSLContext | None) -> list[HoldfastError]:
    errors: list[HoldfastError] = []

    async def tried(operation: Awaitable[object]) -> None:
        with pytest.raises(HoldfastError) as raised:
            await operation
        errors.append(raised.value)

    async with aio.Client(urls, tls=tls, options=PATIENT) as client:
        await tried(client.commit(WRITE, read_version=0))
        await tried(client.version())
        await tried(client.status("x" * 24, 0))
        await tried(anext(client.subscribe()))
        await tried(client.transact(lambda txn: txn.get(b"k")))
    async with aio.StoreClient(urls, tls=tls, options=PATIENT) as stores:
        await tried(stores.describe_store("orders"))
        messages = stores.subscriber("orders", "work")
        await tried(messages.__aenter__())
        publisher = stores.publisher("orders")
        await tried(publisher.publish(b"m"))
    return errors


@pytest.mark.parametrize(
    ("served", "trusted", "named"),
    [
        ("good", None, "self-signed certificate"),
        ("good", "other", "certificate"),
        ("expired", "expired", "expired"),
        ("other", "other", "Hostname mismatch"),
    ],
    ids=["an unknown authority", "another authority", "expired", "another name"],
)
def test_a_certificate_that_does_not_verify_is_named_at_once(
    certificates: dict[str, Path], served: str, trusted: str | None, named: str
) -> None:
    tls = None if trusted is None else trusting(certificates[trusted])

    async def scenario() -> None:
        async with serving() as here, listening(here, certificates[served]) as address:
            urls = [f"https://{address}"]
            errors = await asyncio.to_thread(blocking_errors, urls, tls)
            errors += await asynchronous_errors(urls, tls)
            assert [(type(error), error.code) for error in errors] == [(InvalidRequest, Code.BAD_CONFIGURATION)] * 16
            for error in errors:
                assert "the certificate of the service does not verify" in str(error)
                assert named in str(error)
                assert address in str(error)

    run(scenario)


def test_who_speaks_tls_to_a_plain_port_is_told_so_at_once(certificates: dict[str, Path]) -> None:
    async def scenario() -> None:
        async with serving() as here:
            urls = [f"https://localhost:{here.port}"]
            errors = await asyncio.to_thread(blocking_errors, urls, trusting(certificates["good"]))
            errors += await asynchronous_errors(urls, trusting(certificates["good"]))
            assert [(type(error), error.code) for error in errors] == [(InvalidRequest, Code.BAD_CONFIGURATION)] * 16
            assert {error.message for error in errors} == {"the server at this address does not speak TLS"}

    run(scenario)


def test_who_speaks_plainly_to_a_tls_port_is_told_so_at_once(certificates: dict[str, Path]) -> None:
    async def scenario() -> None:
        async with serving() as here, listening(here, certificates["good"]) as address:
            urls = [f"http://{address}"]
            errors = await asyncio.to_thread(blocking_errors, urls, None)
            errors += await asynchronous_errors(urls, None)
            assert [(type(error), error.code) for error in errors] == [(InvalidRequest, Code.MALFORMED)] * 16
            assert all("this port speaks TLS" in error.message for error in errors)
            assert here.server.context.connections == 0

    run(scenario)


def test_a_place_with_a_bad_certificate_does_not_keep_a_client_from_the_others(certificates: dict[str, Path]) -> None:
    async def scenario() -> None:
        async with (
            serving() as here,
            listening(here, certificates["expired"]) as expired,
            listening(here, certificates["good"]) as good,
        ):
            urls, tls = [f"https://{expired}", f"https://{good}"], trusting(certificates["good"])

            def blocking() -> None:
                with Client(urls, tls=tls, options=PATIENT) as client, client.subscribe() as events:
                    assert client.commit(WRITE).version == next(events).version  # type: ignore[union-attr]

            await asyncio.to_thread(blocking)
            async with aio.Client(urls, tls=tls, options=PATIENT) as client:
                assert (await client.version()).version

    run(scenario)


def test_a_peer_of_a_tls_port_that_says_nothing_is_closed_with_the_listener(certificates: dict[str, Path]) -> None:
    async def scenario() -> None:
        async with serving() as here, listening(here, certificates["good"]) as address:
            host, _, port = address.rpartition(":")
            reader, writer = await asyncio.open_connection(host, int(port), family=socket.AF_INET)
            accepting = here.server._listeners[-1]
            await until(lambda: accepting.handshakes == 1)
            here.server.stop_accepting()
            assert await reader.read() == b""
            writer.close()

    run(scenario)


def test_what_a_plain_peer_of_a_tls_port_goes_on_sending_is_read_away_within_bounds(
    certificates: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "DISCARD_BYTES_MAX", 1 << 20)

    async def scenario() -> None:
        async with serving() as here, listening(here, certificates["good"]) as address:
            host, _, port = address.rpartition(":")
            reader, writer = await asyncio.open_connection(host, int(port), family=socket.AF_INET)
            writer.write(
                b"POST /v1/commit HTTP/1.1\r\nHost: localhost\r\nContent-Length: 500000\r\n\r\n" + bytes(500_000)
            )
            assert (await reader.read()).startswith(b"HTTP/1.1 400 ")
            writer.write(bytes(1 << 20))
            accepting = here.server._listeners[-1]
            await until(lambda: accepting.handshakes == 0)
            writer.close()

    run(scenario)


ALERT = b"\x15\x03\x03\x00\x02\x02\x0a"
COMMITTED = Reply(200, {"status": "committed", "version": 7})
VERSION = Reply(200, {"version": 7, "leader_id": "ab" * 16})
ONCE = PublisherOptions(retry_duration=0)
LOST = pytest.mark.parametrize(
    "lost", [Unsealed(), Unsealed(ALERT), Drop(ALERT)], ids=["plain", "alert", "sealed alert"]
)
"""What comes in place of an answer when something between the two has lost its TLS."""


def targets_of(server: ScriptedServer) -> list[str]:
    return [asked.target.rpartition("?")[0] or asked.target for asked in server.asked]


@LOST
def test_a_commit_that_was_read_whole_before_tls_broke_is_asked_for(
    certificates: dict[str, Path], face: Any, lost: Step
) -> None:
    with scripted(certificates["good"], lost, COMMITTED, VERSION, lost, COMMITTED) as server:
        client = face(url_of(server), tls=trusting(certificates["good"]), options=PATIENT)
        try:
            assert client.call("commit", WRITE, read_version=0, request_id="r" * 24).version == 7
            (one,) = client.results([Transaction(operations=WRITE, request_id="s" * 24, read_version=0)])
            assert one.version == 7
        finally:
            client.close()
        first, second = ["/v1/commit", f"/v1/status/{'r' * 24}"], ["/v1/commits", f"/v1/status/{'s' * 24}"]
        assert targets_of(server) == [*first, "/v1/version", *second]


@LOST
def test_a_subscription_whose_tls_breaks_comes_back(certificates: dict[str, Path], face: Any, lost: Step) -> None:
    data = {"version": 5, "prev_version": 0, "request_id": None, "leader_id": "ab" * 16, "operations": []}
    data["timestamp"] = "2024-02-03T04:05:06.789Z"
    event = b"id: 5\nevent: transaction\ndata: %b\n\n" % msgspec.json.encode(data)
    with scripted(certificates["good"], lost, Stream((event,), hold=True)) as server:
        client = face(url_of(server), tls=trusting(certificates["good"]), options=PATIENT)
        try:
            assert [got.version for got in client.take(1)] == [5]
        finally:
            client.close()


def published(url: str, tls: ssl.SSLContext, options: PublisherOptions, *bodies: bytes) -> list[object]:
    """What the blocking publisher says of each."""
    said: list[object] = []
    with StoreClient(url, tls=tls, options=PATIENT) as stores, stores.publisher("orders", options=options) as publisher:
        for body in bodies:
            try:
                said.append(publisher.publish(body).first_seq)
            except HoldfastError as error:
                said.append(type(error))
    return said


async def published_on_asyncio(
    url: str, tls: ssl.SSLContext, options: PublisherOptions, *bodies: bytes
) -> list[object]:
    said: list[object] = []
    async with (
        aio.StoreClient(url, tls=tls, options=PATIENT) as stores,
        stores.publisher("orders", options=options) as publisher,
    ):
        for body in bodies:
            try:
                said.append((await publisher.publish(body)).first_seq)
            except HoldfastError as error:
                said.append(type(error))
    return said


def publish(kind: str, url: str, tls: ssl.SSLContext, options: PublisherOptions, *bodies: bytes) -> list[object]:
    if kind == "blocking":
        return published(url, tls, options, *bodies)
    return asyncio.run(published_on_asyncio(url, tls, options, *bodies))


def numbered(server: ScriptedServer) -> list[tuple[bytes, int]]:
    """The message of each request and its number; they are of the same publisher as long as the number is not 1."""
    requests = [msgspec.msgpack.decode(asked.body) for asked in server.asked]
    return [(message["body"], message["publisher_seq"]) for request in requests for message in request["messages"]]


def publishers(server: ScriptedServer) -> list[str]:
    return [msgspec.msgpack.decode(asked.body)["publisher_id"] for asked in server.asked]


def kept_as(seq: int, *, duplicates: int = 0) -> Reply:
    return Reply(200, {"first_seq": seq, "last_seq": seq, "duplicates": duplicates, "unmatched": 0})


@LOST
@pytest.mark.parametrize("kind", ["blocking", "asyncio"])
def test_no_other_message_gets_the_number_of_one_that_was_read_whole_before_tls_broke(
    certificates: dict[str, Path], kind: str, lost: Step
) -> None:
    with scripted(certificates["good"], lost, kept_as(1, duplicates=1), kept_as(2)) as server:
        assert publish(
            kind, url_of(server), trusting(certificates["good"]), PublisherOptions(), b"first", b"second"
        ) == [1, 2]
        assert numbered(server) == [(b"first", 1), (b"first", 1), (b"second", 2)]
        assert len(set(publishers(server))) == 1


@LOST
@pytest.mark.parametrize("kind", ["blocking", "asyncio"])
def test_a_publisher_that_does_not_repeat_goes_on_under_another_id_when_tls_broke(
    certificates: dict[str, Path], kind: str, lost: Step
) -> None:
    with scripted(certificates["good"], lost, kept_as(2)) as server:
        tls = trusting(certificates["good"])
        assert publish(kind, url_of(server), tls, ONCE, b"first", b"second") == [OutcomeUnknown, 2]
        assert numbered(server) == [(b"first", 1), (b"second", 1)]
        assert len(set(publishers(server))) == 2
