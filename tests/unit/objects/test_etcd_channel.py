"""The channel to one member, on a gRPC channel without a network: its target, logins, and its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import grpc
import pytest
from tests.unit.objects.test_etcd_members import answer_of

from holdfast.objects.etcd import channel as module
from holdfast.objects.etcd.address import EtcdCredentials
from holdfast.objects.etcd.channel import EtcdChannel
from holdfast.objects.etcd.failures import CallFailed, Meaning
from holdfast.objects.etcd.wire import AUTHENTICATE, GetKeys

READ = GetKeys(b"log/o/a")
USER = EtcdCredentials(user="holdfast", password="secret")


class Wire:
    """Takes the place of gRPC's channel. ``calls``: the method and the token of each."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.calls: list[tuple[str, str | None]] = []
        self.logins_wait: asyncio.Event | None = None
        self.fails: Callable[[str | None], grpc.aio.AioRpcError | None] = lambda _: None
        self.flying: set[asyncio.Future[bytes]] = set()
        self.hangs = False

    def get_state(self) -> grpc.ChannelConnectivity:
        return grpc.ChannelConnectivity.READY

    def unary_unary(self, method: str) -> Callable[..., object]:
        async def call(_: bytes, timeout: float, metadata: tuple[tuple[str, str], ...] | None) -> bytes:
            assert timeout == module.CALL_SECONDS
            token = metadata[0][1] if metadata else None
            self.calls.append((method, token))
            if method == AUTHENTICATE:
                if self.logins_wait is not None:
                    await self.logins_wait.wait()
                logins = sum(each == AUTHENTICATE for each, _ in self.calls)
                return b"\x12\x02t" + str(logins).encode()
            if self.hangs:
                self.flying.add(reply := asyncio.get_running_loop().create_future())
                return await reply
            error = self.fails(token)
            if error is not None:
                raise error
            return answer_of(READ, 7)

        return call

    async def close(self, _: object) -> None:
        for reply in self.flying:
            reply.cancel()


@pytest.fixture
def wires(monkeypatch: pytest.MonkeyPatch) -> list[Wire]:
    made: list[Wire] = []

    def insecure(target: str, options: object) -> Wire:
        made.append(Wire(target))
        return made[-1]

    monkeypatch.setattr(module.grpc.aio, "insecure_channel", insecure)
    return made


def refused(code: grpc.StatusCode, text: str) -> grpc.aio.AioRpcError:
    nothing = grpc.aio.Metadata()
    return grpc.aio.AioRpcError(code, nothing, nothing, details=text)


@pytest.mark.parametrize("endpoint", ["unix:2379", "dns:2379", "ipv4:2379", "a.example:2379", "[::1]:2379"])
def test_the_name_of_a_host_is_never_taken_for_a_scheme(wires: list[Wire], endpoint: str) -> None:
    async def scenario() -> None:
        await EtcdChannel(endpoint, EtcdCredentials()).call(READ)
        assert wires[0].target == f"dns:///{endpoint}"

    asyncio.run(scenario())


def test_calls_that_wait_for_a_token_share_one_login(wires: list[Wire]) -> None:
    async def scenario() -> None:
        channel = EtcdChannel("a:1", USER)
        await channel.call(READ)
        channel._token = None
        wires[0].logins_wait = asyncio.Event()
        wires[0].calls.clear()
        calls = [asyncio.create_task(channel.call(READ)) for _ in range(9)]
        while not wires[0].calls:  # noqa: ASYNC110  # the channel has no event for it
            await asyncio.sleep(0)
        calls.pop(0).cancel()  # the others need what it began
        wires[0].logins_wait.set()
        await asyncio.gather(*calls)
        assert [method for method, _ in wires[0].calls].count(AUTHENTICATE) == 1
        assert len(wires[0].calls) == 1 + len(calls)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (grpc.StatusCode.UNAUTHENTICATED, "etcdserver: invalid auth token"),
        (grpc.StatusCode.INVALID_ARGUMENT, "etcdserver: revision of auth store is old"),
        (grpc.StatusCode.UNKNOWN, "auth: revision in header is old"),
    ],
)
def test_a_token_that_ended_is_replaced_before_the_next_call(
    wires: list[Wire], code: grpc.StatusCode, text: str
) -> None:
    async def scenario() -> None:
        channel = EtcdChannel("a:1", USER)
        await channel.call(READ)
        wires[0].fails = lambda token: refused(code, text) if token == "t1" else None
        with pytest.raises(CallFailed) as caught:
            await channel.call(READ)
        assert caught.value.meaning is Meaning.LOG_IN_AGAIN
        await channel.call(READ)
        assert wires[0].calls[-1][1] == "t2"

    asyncio.run(scenario())


def test_a_failure_of_an_old_token_keeps_the_new_one(wires: list[Wire]) -> None:
    async def scenario() -> None:
        channel = EtcdChannel("a:1", USER)
        await channel.call(READ)
        ended = refused(grpc.StatusCode.UNAUTHENTICATED, "etcdserver: invalid auth token")

        def replaced(_: str | None) -> grpc.aio.AioRpcError:
            channel._token = "t2"  # by another call, meanwhile
            return ended

        wires[0].fails = replaced
        with pytest.raises(CallFailed):
            await channel.call(READ)
        assert channel._token == "t2"

    asyncio.run(scenario())


def test_calls_in_flight_and_later_ones_fail_when_the_connection_is_closed(wires: list[Wire]) -> None:
    async def scenario() -> None:
        channel = EtcdChannel("a:1", EtcdCredentials())
        await channel.call(READ)
        wires[0].hangs = True
        flying, cancelled = (asyncio.create_task(channel.call(READ)) for _ in range(2))
        while len(wires[0].flying) < 2:  # noqa: ASYNC110  # the channel has no event for it
            await asyncio.sleep(0)
        cancelled.cancel()
        await channel.close()
        with pytest.raises(CallFailed, match="closed here"):
            await flying
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        with pytest.raises(CallFailed, match="closed here"):
            await channel.call(READ)

    asyncio.run(scenario())
