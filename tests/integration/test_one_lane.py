"""One connection serves hot requests itself and all others through the framework, one at a time and in order."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path
from random import Random

import pytest
from tests.integration.http_harness import BY_FRAMEWORK, Answered, Client, commit, request, run, serving, until, write
from tests.integration.stores_harness import stores_serving
from tests.matrix import matrix

from holdfast import aio
from holdfast.commit.format.transaction import Write
from holdfast.server.http.auth import Grant, Role
from holdfast.server.http.exchange import BODY_BYTES_KEPT
from holdfast.server.http.key_scope import KeyScope

LIVEZ = request("GET", "/livez")
READYZ = request("GET", "/readyz")
TOKEN = "0123456789abcdef"


async def hot_before(client: Client) -> None:
    """The connection has served hot requests."""
    client.send(commit() + LIVEZ + request("GET", "/v1/keys/a2V5"))
    assert (await client.answer()).json["status"] == "committed"
    assert (await client.answer()).json["leading"] is True
    assert (await client.answer()).json["value"] == "dmFs"


async def hot_after(client: Client) -> None:
    client.send(commit() + LIVEZ)
    assert (await client.answer()).json["status"] == "committed"
    assert (await client.answer()).json["leading"] is True


def test_what_a_program_asks_most_needs_no_framework() -> None:
    async def scenario() -> None:
        async with serving() as here, aio.Client(f"http://{here.host}:{here.port}") as client:
            for _ in range(2):  # the second time from a position
                await client.commit([Write(b"a", b"1"), Write(b"b", b"2")])
                assert (found := await client.get(b"a")) is not None and found.value == b"1"
                assert (await client.get(b"a", linearizable=True)) is not None
                assert len((await client.range(b"a", b"c")).items) == 2
                assert len((await client.range(prefix=b"a", linearizable=True)).items) == 1
                await asyncio.gather(*(client.get(key) for key in (b"a", b"b", b"c")))

                async def add(txn: aio.Transaction) -> None:
                    assert await txn.get(b"a") == b"1"
                    txn.write(b"b", b"2")

                await client.transact(add)
            assert here.front.counters.framework_requests == 0

    run(scenario)


def test_expect_is_answered_on_a_connection_that_served_hot_requests() -> None:
    async def scenario() -> None:
        async with serving() as here:
            client = await here.connect()
            for served in (1, 2):
                await hot_before(client)
                body = write()
                client.send(request("POST", "/v1/commit", body, Expect="100-continue")[: -len(body)])
                assert (await client.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100")
                client.send(body + LIVEZ)
                assert (await client.answer()).json["status"] == "committed"
                assert (await client.answer()).json["leading"] is True
                assert here.front.counters.framework_requests == served
            await hot_after(client)

    run(scenario)


@pytest.mark.parametrize("size", matrix([1_000_000, 1, 7]))
def test_a_chunked_body_is_read_to_its_end_and_no_further(size: int) -> None:
    body = write(request_id="r" * 20 + "\r\n\r\n0", read_version=0)
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(body[at : at + 9]), body[at : at + 9]) for at in range(0, len(body), 9))
    head = b"POST /v1/commit HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    ends = (b"0\r\n\r\n", b"0\r\nTrailer: x\r\n\r\n", b"0000;extension=1\r\n\r\n")
    whole = b"".join(head + chunks + end + LIVEZ for end in ends)

    async def scenario() -> None:
        async with serving() as here:
            client = await here.connect()
            await hot_before(client)
            for at in range(0, len(whole), size):
                client.send(whole[at : at + size])
                await asyncio.sleep(0)
            for _ in ends:
                first, second = await client.answer(), await client.answer()
                assert first.code == "bad_request_id", "the body came as it was sent"
                assert second.json["leading"] is True
            assert here.front.counters.framework_requests == len(ends)
            await hot_after(client)

    run(scenario)


@pytest.mark.parametrize("size", matrix([1_000_000, 1, 50]))
@pytest.mark.parametrize("offer", [b"h2c", b"foo"])
def test_an_upgrade_is_ignored_on_a_connection_that_served_hot_requests(offer: bytes, size: int) -> None:
    body = write()
    asked = b"POST /v1/commit HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: %b\r\n" % offer
    whole = asked + b"Content-Length: %d\r\n\r\n%b" % (len(body), body) + LIVEZ

    async def scenario() -> None:
        async with serving() as here:
            client = await here.connect()
            await hot_before(client)
            for at in range(0, len(whole), size):
                client.send(whole[at : at + size])
                await asyncio.sleep(0)
            assert (await client.answer()).json["status"] == "committed"
            assert (await client.answer()).json["leading"] is True
            assert here.front.counters.framework_requests == 1
            await hot_after(client)

    run(scenario)


def test_a_socket_is_opened_on_a_connection_that_served_hot_requests_after_their_answers(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define("orders", durables={"work": {"type": "shared"}})
            client = await stores.connect()
            text = json.dumps({"messages": [{"body": "YQ=="}]}).encode()
            key = base64.b64encode(bytes(16)).decode()
            upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec_WebSocket_Version": "13"}
            client.send(
                request("POST", "/v1/stores/orders/messages", text)
                + request("GET", "/v1/stores")
                + request("POST", "/v1/stores/orders/messages", text)
                + request(
                    "GET",
                    "/v1/stores/orders/durables/work/subscribe?subscriber=s",
                    None,
                    Sec_WebSocket_Key=key,
                    Sec_WebSocket_Protocol="holdfast.json",
                    **upgrade,
                )
            )
            assert [(await client.answer()).status for _ in range(3)] == [200, 200, 200]
            assert (await client.answer(head_only=True)).status == 101
            assert b"attached" in await client.reader.readuntil(b"}")

    run(scenario)


def test_a_request_of_the_framework_begins_when_all_before_it_are_answered_and_the_next_one_after_it() -> None:
    async def scenario() -> None:
        async with serving() as here:
            here.store.gate.clear()
            client = await here.connect()
            slow = request("POST", "/v1/commit?", write())
            client.send(commit() + READYZ + slow + LIVEZ + READYZ)
            await until(lambda: here.front.in_flight_commits == 1)
            await asyncio.sleep(0.05)
            counters = here.front.counters
            assert counters.framework_requests == 0, "the commit before it is not answered"
            here.store.gate.set()
            assert (await client.answer()).json["status"] == "committed"
            assert (await client.answer()).json["ready"] is True
            assert (await client.answer()).json["status"] == "committed"
            assert (await client.answer()).json["leading"] is True
            assert (await client.answer()).json["ready"] is True
            assert counters.framework_requests == 3
            here.store.gate.clear()
            client.send(slow)
            await until(lambda: here.front.in_flight_commits == 1)
            client.send(LIVEZ + READYZ)
            before = counters.answers["/livez", 200]
            await asyncio.sleep(0.05)
            assert counters.answers["/livez", 200] == before, "the commit before it is not answered"
            here.store.gate.set()
            assert [(await client.answer()).status for _ in range(3)] == [200, 200, 200]

    run(scenario)


def test_a_peer_that_sends_no_more_gets_the_answers_of_its_reads() -> None:
    async def scenario() -> None:
        async with serving() as here:
            here.store.gate.clear()
            client = await here.connect()
            client.send(commit() + request("GET", "/v1/keys/a2V5") + request("GET", "/v1/range") + LIVEZ)
            await until(lambda: here.front.in_flight_commits == 1)
            client.writer.write_eof()
            await asyncio.sleep(0.02)
            here.store.gate.set()
            assert [(await client.answer()).status for _ in range(4)] == [200, 200, 200, 200]
            assert await client.is_closed_by_peer()

    run(scenario)


def mixed(random: Random, number: int) -> tuple[bytes, str]:
    """A request that names ``number``, and what its answer has in it."""
    name = f"number-{number:05}"
    absent = f"/v1/keys/{name}"
    body = json.dumps(
        {"operations": [{"type": "delete", "key_text": "k"}], "request_id": f"{name}-too-short"[:19]}
    ).encode()
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(body[at : at + 11]), body[at : at + 11]) for at in range(0, len(body), 11))
    post = b"POST /v1/commit HTTP/1.1\r\nHost: localhost\r\n"
    kinds = [
        (request("GET", f"/v1/log/transactions/{number + 10**9}"), str(number + 10**9)),
        (request("GET", absent + "?text=true"), "no such key"),
        (request("GET", absent + "?text=true", **BY_FRAMEWORK), "no such key"),
        (request("GET", f"/v1/keys/{name}?at={name}"), "at is"),
        (request("GET", f"/{name}"), "no such route"),
        (request("GET", f"/v1/range?limit={number + 20_000}"), "limit is"),
        (LIVEZ, "leading"),
        (request("GET", "/v1/version?consistency=local"), "version"),
        (commit(), "committed"),
        (request("POST", "/v1/commit", body), "bad_request_id"),
        (post + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n", "bad_request_id"),
        (
            post + b"Connection: upgrade\r\nUpgrade: x\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body),
            "bad_request_id",
        ),
        (request("POST", "/v1/commits", write() + b"\n" + write() + b"\n"), "committed"),
    ]
    return random.choice(kinds)


@pytest.mark.parametrize("seed", matrix(range(12)))
def test_requests_of_all_kinds_are_answered_in_their_order_wherever_their_bytes_are_cut(seed: int) -> None:
    random = Random(seed)
    asked = [mixed(random, number) for number in range(150)]
    whole = b"".join(data for data, _ in asked)
    most = random.choice([3, 60, 900, 20_000])

    async def scenario() -> None:
        async with serving() as here:
            client = await here.connect()

            async def send() -> None:
                at = 0
                while at < len(whole):
                    size = random.randint(1, most)
                    client.send(whole[at : at + size])
                    at += size
                    await asyncio.sleep(0)

            sending = asyncio.ensure_future(send())
            for data, part in asked:
                answered = await client.answer()
                assert part in answered.body.decode(), (data, answered)
            await sending

    run(scenario)


BAD_READS = [
    *("/v1/keys/!!!!", "/v1/keys/a2V", "/v1/keys/a2V5=", "/v1/keys/", "/v1/keys/%6b", "/v1/keys/a2V5/x"),
    *(
        "/v1/keys/a2V5?at=x",
        "/v1/keys/a2V5?at=",
        "/v1/keys/a2V5?at=1&at=1",
        "/v1/keys/a2V5?no=1",
        "/v1/keys/a2V5?text=1",
    ),
    *(
        "/v1/keys/a2V5?at=1@" + "0" * 32,
        "/v1/keys/a2V5?at=-1",
        "/v1/keys/a2V5?at=99999999999999999",
        "/v1/keys/key?text=true",
    ),
    *("/v1/keys/none", "/v1/keys/a2V5?at=1&text=false", "/v1/keys/%ff?text=true", "/v1/keys/YWJj?&at=1"),
    *(
        "/v1/range",
        "/v1/range?",
        "/v1/range?limit=0",
        "/v1/range?limit=10001",
        "/v1/range?limit=1x",
        "/v1/range?limit=1",
    ),
    *("/v1/range?begin=Yg==&end=YQ==", "/v1/range?prefix=YQ&begin=YQ", "/v1/range?begin=YQ&begin_text=a"),
    *("/v1/range?prefix=a2V5&text=true", "/v1/range?prefix_text=k+y", "/v1/range?at=1~" + "0" * 32, "/v1/range?x"),
    *(
        "/v1/status/short?min_version=0",
        "/v1/status/" + "i" * 20,
        "/v1/status/" + "i" * 20 + "?min_version=99999999999",
    ),
    *("/v1/status/" + "i" * 20 + "?min_version=x", "/v1/status/" + "i" * 256 + "?min_version=0"),
]


async def both(client: Client, target: str, **headers: str) -> tuple[Answered, Answered]:
    """The answers to a request as it is, and to one that only the framework serves."""
    hot, framework = (
        await client.ask("GET", target, **headers),
        await client.ask("GET", target, **BY_FRAMEWORK, **headers),
    )
    for answered in (hot, framework):
        answered.headers.pop("date", None)
    return hot, framework


def test_a_read_is_answered_as_the_framework_answers_it() -> None:
    async def scenario() -> None:
        async with serving() as here:
            client = await here.connect()
            await client.ask("POST", "/v1/commit", write())
            for target in BAD_READS:
                hot, framework = await both(client, target)
                assert hot == framework, target

    run(scenario)


@pytest.mark.parametrize("role", [None, Role.READ, Role.WRITE, Grant(Role.WRITE, scope=KeyScope((b"ke",)))])
@pytest.mark.parametrize("view", [True, False])
def test_a_read_needs_the_rights_that_it_needs_in_the_framework(role: Role | Grant | None, view: bool) -> None:
    targets = [
        "/v1/keys/a2V5",
        "/v1/keys/b3RoZXI",
        "/v1/range",
        "/v1/range?prefix=a2V5",
        "/v1/status/%s?min_version=0" % ("i" * 20),
    ]

    async def scenario() -> None:
        async with serving(tokens={TOKEN: role or Role.ADMIN}, view=view) as here:
            client = await here.connect()
            token = {} if role is None else {"Authorization": f"Bearer {TOKEN}"}
            await client.ask("POST", "/v1/commit", write(), **token)
            for target in targets:
                hot, framework = await both(client, target, **token)
                assert hot == framework, target
            counted = here.front.counters
            assert counted.framework_requests == len(targets)

    run(scenario)


def test_a_host_that_one_route_takes_is_not_taken_by_the_next_one() -> None:
    """Heads that are equal but for their lines are not parsed again."""

    def to(host: str, line: str, body: bytes = b"") -> bytes:
        return f"{line} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body

    lines = ["GET /v1/version?consistency=local", "GET /v1/keys/a2V5", "GET /v1/range", "GET /livez"]

    async def scenario() -> None:
        async with serving() as here:
            for line in lines:
                client = await here.connect()
                client.send(to("evil.example", "GET /livez") + to("evil.example", line))
                assert (await client.answer()).status == 200
                assert (await client.answer()).status == (200 if line == "GET /livez" else 421)
            client = await here.connect()
            for line in lines * 2:
                client.send(to("localhost", line))
                assert (await client.answer()).status == (404 if "keys" in line else 200)
            client.send(to("evil.example", "GET /v1/version?consistency=local"))
            assert (await client.answer()).status == 421
            assert here.front.counters.framework_requests == 0

    run(scenario)


def test_a_token_counts_for_the_request_that_has_it() -> None:
    async def scenario() -> None:
        async with serving(tokens={TOKEN: Role.WRITE}) as here:
            client = await here.connect()
            with_token, wrong = {"Authorization": f"Bearer {TOKEN}"}, {"Authorization": f"Bearer {TOKEN[::-1]}"}
            await client.ask("POST", "/v1/commit", write(), **with_token)
            for target in ("/v1/keys/a2V5", "/v1/range", "/v1/version?consistency=local", "/v1/keys/a2V5?at=1"):
                for header, status in ((with_token, 200), (wrong, 401), ({}, 401), (with_token, 200)):
                    assert (await client.ask("GET", target, **header)).status == status
            assert here.front.counters.framework_requests == 0

    run(scenario)


def test_reads_are_served_without_the_framework() -> None:
    async def scenario() -> None:
        async with serving() as here:
            client = await here.connect()
            await client.ask("POST", "/v1/commit", write())
            for target in ("/v1/keys/a2V5", "/v1/keys/a2V5?at=1", "/v1/range?limit=5&prefix=a2V5", "/v1/range"):
                assert (await client.ask("GET", target)).status == 200
            await client.ask("GET", "/v1/status/" + "i" * 20 + "?min_version=0")
            assert here.front.counters.framework_requests == 0

    run(scenario)


def test_a_body_that_the_framework_does_not_take_is_held_within_bounds() -> None:
    async def scenario() -> None:
        async with serving() as here:
            client = await here.connect()
            await hot_before(client)
            here.store.gate.clear()
            item = write() + b"\n"
            head = b"POST /v1/commits HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
            client.send(head + (b"%x\r\n%b\r\n" % (len(item) * 100, item * 100)) * 120 + b"0\r\n\r\n" + LIVEZ)
            await until(lambda: any(each.is_full for each in here.exchanges))
            await asyncio.sleep(0.05)
            (exchange,) = here.exchanges
            assert len(exchange.body) <= 2 * BODY_BYTES_KEPT
            here.store.gate.set()
            assert (await client.answer()).body.count(b"committed") == 12_000
            assert (await client.answer()).json["leading"] is True

    run(scenario)
