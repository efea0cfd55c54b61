"""Every fault of the proxy does to both sides exactly what its table says."""

from __future__ import annotations

import asyncio
import os
import random
import statistics
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from holdfast.errors import InvalidRequest
from holdfast.testing.fault_proxy import Fault, FaultProxy, Latency, Rule
from holdfast.testing.fault_proxy_process import FaultProxyProcess
from holdfast.testing.http_message import HttpMessage, read_message

RESET = "reset"
SILENCE = "silence"
SILENT_SECONDS = 1.0


class CountingServer:
    """Answers every request with its number, and remembers the bytes."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []
        self.arrived = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while (request := await read_message(reader, request=True)) is not None:
            self.seen.append(request.encode())
            self.arrived.set()
            body = f"answer {len(self.seen)}".encode()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        writer.close()


@asynccontextmanager
async def proxied(
    *rules: Rule, latency: Latency | None = None, seed: int = 0
) -> AsyncIterator[tuple[CountingServer, FaultProxy]]:
    counting = CountingServer()
    server = await asyncio.start_server(counting.serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()[:2]
    async with FaultProxy(host, port, rules=rules, latency=latency, seed=seed) as proxy:
        yield counting, proxy
    server.close()


PUT = b"PUT /bucket/batches/1 HTTP/1.1\r\nHost: localhost\r\nX-Odd:  kept as it came\r\nContent-Length: 5\r\n\r\nhello"


async def ask(proxy: FaultProxy, request: bytes = PUT, *, seconds_max: float = SILENT_SECONDS) -> HttpMessage | str:
    """One request on a connection of its own: the answer, RESET or SILENCE."""
    reader, writer = await asyncio.open_connection(proxy.host, proxy.port)
    try:
        writer.write(request)
        answer = await asyncio.wait_for(read_message(reader, request=False), seconds_max)
        assert answer is not None, "an orderly end without an answer is no fault of the table"
        return answer
    except ConnectionResetError:
        return RESET
    except TimeoutError:
        return SILENCE
    finally:
        writer.close()


def run(story: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(story(), 30)

    asyncio.run(bounded())


TABLE: list[tuple[Fault, int, int | str]] = [
    (Fault.SLOWDOWN, 0, 503),
    (Fault.ERROR_BEFORE, 0, 500),
    (Fault.ERROR_AFTER, 1, 500),
    (Fault.CONFLICT, 0, 409),
    (Fault.RESET_BEFORE, 0, RESET),
    (Fault.RESET_AFTER, 1, RESET),
    (Fault.BLACKHOLE_BEFORE, 0, SILENCE),
    (Fault.BLACKHOLE_AFTER, 1, SILENCE),
    (Fault.TRUNCATE, 1, RESET),
    (Fault.DUPLICATE, 2, 200),
    (Fault.HOLD, 0, RESET),
    (Fault.DELAY, 1, 200),
]


def test_the_table_names_every_fault() -> None:
    assert {fault for fault, _, _ in TABLE} == set(Fault)


@pytest.mark.parametrize(("fault", "server_sees", "client_sees"), TABLE, ids=[fault.value for fault, _, _ in TABLE])
def test_each_fault_does_what_its_row_says(fault: Fault, server_sees: int, client_sees: int | str) -> None:
    async def story() -> None:
        async with proxied(Rule(fault=fault, times=1)) as (server, proxy):
            answer = await ask(proxy)
            assert (answer.status if isinstance(answer, HttpMessage) else answer) == client_sees
            assert server.seen == [PUT] * server_sees
            assert [trace.fault for trace in proxy.log] == [fault]
            assert proxy.faults_done == {fault: 1}
            after = await ask(proxy)
            assert isinstance(after, HttpMessage)
            assert after.status == 200

    run(story)


def test_bytes_pass_unchanged_both_ways() -> None:
    async def story() -> None:
        async with proxied() as (server, proxy):
            answer = await ask(proxy)
            chunked = b"POST /b?uploads HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n0\r\nT: 1\r\n\r\n"
            await ask(proxy, chunked)
            assert server.seen == [PUT, chunked]
            assert isinstance(answer, HttpMessage)
            assert answer.encode() == b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nanswer 1"

    run(story)


def test_a_slowdown_says_when_to_come_back() -> None:
    async def story() -> None:
        async with proxied(Rule(fault=Fault.SLOWDOWN, delay_ms=1200)) as (_, proxy):
            answer = await ask(proxy)
            assert isinstance(answer, HttpMessage)
            assert b"\r\nRetry-After: 2\r\n" in answer.head

    run(story)


def test_a_duplicate_answers_with_the_second_verdict() -> None:
    async def story() -> None:
        async with proxied(Rule(fault=Fault.DUPLICATE)) as (_, proxy):
            answer = await ask(proxy)
            assert isinstance(answer, HttpMessage)
            assert answer.body == b"answer 2"

    run(story)


def test_a_held_request_lands_when_it_is_released_and_never_before() -> None:
    async def story() -> None:
        async with proxied(Rule(fault=Fault.HOLD, times=1)) as (server, proxy):
            assert await ask(proxy) == RESET
            later = PUT.replace(b"hello", b"later")
            await ask(proxy, later)
            assert (server.seen, proxy.held) == ([later], 1)
            delivered = await proxy.release()
            assert server.seen == [later, PUT]
            assert [(trace.number, trace.status) for trace in delivered] == [(1, 200)]
            assert proxy.held == 0

    run(story)


def test_a_held_request_with_a_delay_lands_by_itself() -> None:
    async def story() -> None:
        async with proxied(Rule(fault=Fault.HOLD, times=1, delay_ms=5)) as (server, proxy):
            assert await ask(proxy) == RESET
            await server.arrived.wait()
            assert server.seen == [PUT]

    run(story)


def test_rules_select_by_method_path_and_number() -> None:
    async def story() -> None:
        rules = [
            Rule(fault=Fault.ERROR_BEFORE, method="GET"),
            Rule(fault=Fault.CONFLICT, path=r"batches/1$", skip=1, times=1),
        ]
        async with proxied(*rules) as (_, proxy):
            get = b"GET /bucket HTTP/1.1\r\n\r\n"
            other = PUT.replace(b"batches/1", b"batches/2")
            statuses = [(await ask(proxy, request)) for request in (get, PUT, other, PUT, PUT)]
            assert [answer.status for answer in statuses if isinstance(answer, HttpMessage)] == [
                500,
                200,
                200,
                409,
                200,
            ]

    run(story)


def test_one_seed_makes_one_history() -> None:
    async def faults(seed: int) -> list[Fault | None]:
        async with proxied(Rule(fault=Fault.CONFLICT, probability=0.5), seed=seed) as (_, proxy):
            for _ in range(40):
                await ask(proxy)
            return [trace.fault for trace in proxy.log]

    async def story() -> None:
        first, again, other = await faults(7), await faults(7), await faults(8)
        assert first == again
        assert first != other

    run(story)


def test_a_partition_is_silent_and_healing_resets_what_was_cut() -> None:
    async def story() -> None:
        async with proxied() as (server, proxy):
            reader, writer = await asyncio.open_connection(proxy.host, proxy.port)
            proxy.partition()
            writer.write(PUT)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(reader.read(1), SILENT_SECONDS)
            assert server.seen == []
            proxy.partition(False)
            with pytest.raises(ConnectionResetError):
                await reader.read(1)
            writer.close()
            assert isinstance(await ask(proxy), HttpMessage)

    run(story)


def test_latency_has_the_median_and_the_tail_that_were_asked_for() -> None:
    source = random.Random(1)
    latency = Latency(median_ms=40, p99_ms=126)
    drawn = sorted(latency.draw_ms(source) for _ in range(20_000))
    assert statistics.median(drawn) == pytest.approx(40, rel=0.05)
    assert drawn[int(len(drawn) * 0.99)] == pytest.approx(126, rel=0.1)
    with pytest.raises(InvalidRequest):
        Latency(median_ms=40, p99_ms=39)


def test_latency_delays_the_answer_and_serves_others_meanwhile() -> None:
    async def story() -> None:
        async with proxied(latency=Latency(median_ms=1_000, p99_ms=1_000)) as (_, proxy):
            loop = asyncio.get_running_loop()
            began = loop.time()
            answers = await asyncio.gather(*(ask(proxy, seconds_max=60.0) for _ in range(20)))
            took = loop.time() - began
            assert all(isinstance(answer, HttpMessage) for answer in answers)
            assert 1 <= took < 20 / 2, "one after the other they take 20 s, on any machine"

    run(story)


def test_the_process_is_steered_over_its_control_port(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))

    async def story() -> None:
        counting = CountingServer()
        server = await asyncio.start_server(counting.serve, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()[:2]
        with FaultProxyProcess(host, port) as process:
            proxy = FaultProxy(host, port, port=int(process.endpoint.rpartition(":")[2]))
            assert isinstance(await ask(proxy), HttpMessage)
            await asyncio.to_thread(process.set_rules, [Rule(fault=Fault.HOLD, times=1)])
            assert await ask(proxy) == RESET
            assert (await asyncio.to_thread(process.report)).held == 1
            state = await asyncio.to_thread(process.release)
            assert (state.held, state.requests, state.faults) == (0, 2, {"hold": 1})
            assert counting.seen == [PUT, PUT]
            await asyncio.to_thread(process.partition)
            assert await ask(proxy) == SILENCE
            with pytest.raises(InvalidRequest):
                await asyncio.to_thread(process.set_rules, [{"fault": "no such fault"}])  # type: ignore[list-item]
        server.close()
        await server.wait_closed()

    run(story)
