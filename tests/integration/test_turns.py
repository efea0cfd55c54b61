"""No connection keeps the others waiting: what one turn of the event loop does for the input of connections is bounded.

The attackers send as fast as their sockets take it. What is counted is work that was done, turn by turn.
"""

from __future__ import annotations

import asyncio
import struct
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.integration.http_harness import Client, Serving, commit, request, run, serving, until, write
from tests.integration.stores_harness import StoresServing, stores_serving
from tests.matrix import matrix
from tests.one_line_mutants import mutated

from holdfast.server.gateway import GatewayLimits
from holdfast.server.http import turns as turns_module
from holdfast.server.http.auth import Role
from holdfast.server.http.connection import HELD_BYTES_MAX
from holdfast.server.http.turns import TURN, UNKNOWN, UNKNOWN_VISIT, VISIT, LoopTurns
from holdfast.server.stores.socket import FRAME_UNITS, MESSAGE_UNITS, PIECE_BYTES, SubscribeSocket

LIVEZ = request("GET", "/livez")
NOTHING = request("GET", "/v1/nothing")
TOKEN = "0123456789abcdef"
READ_BYTES_MAX = 256_000
"""What uvloop reads at once."""


class Watched:
    """How much a counter rises in a turn of the loop, at most."""

    def __init__(self, count: Callable[[], int]) -> None:
        self._count = count
        self._before = count()
        self.turns = 0
        self.most = 0
        self.is_over = False

    def tick(self) -> None:
        now = self._count()
        self.most = max(self.most, now - self._before)
        self._before = now
        self.turns += 1
        if not self.is_over:
            asyncio.get_running_loop().call_soon(self.tick)


@contextmanager
def watched(count: Callable[[], int]) -> Iterator[Watched]:
    watch = Watched(count)
    watch.tick()
    try:
        yield watch
    finally:
        watch.is_over = True


async def answers(client: Client, count: int, status: int) -> None:
    for _ in range(count):
        assert (await client.answer()).status == status


@pytest.mark.parametrize("line", matrix([LIVEZ, NOTHING]), ids=lambda line: line[:12].decode())
def test_sixteen_that_pipeline_get_a_part_of_each_turn_and_every_answer(line: bytes) -> None:
    status = 200 if line == LIVEZ else 404

    async def scenario() -> None:
        async with serving() as here:
            clients = [await here.connect() for _ in range(16)]
            with watched(lambda: here.front.counters.answers.total()) as watch:
                for client in clients:
                    client.send(line * 2_000)
                await asyncio.gather(*(answers(client, 2_000, status) for client in clients))
            assert watch.most <= 2 * TURN, "two turns of ours may be in one of the ticker's"

    run(scenario)


@pytest.mark.parametrize("crowd", matrix([1_000, 100]))
def test_a_crowd_without_a_token_leaves_three_quarters_of_each_turn(crowd: int) -> None:
    async def scenario() -> None:
        async with serving(tokens={TOKEN: Role.WRITE}) as here:
            clients = [await here.connect() for _ in range(crowd)]
            user = await here.connect()
            await user.ask("GET", "/v1/version", Authorization=f"Bearer {TOKEN}")
            alive = here.front.counters.answers
            for client in clients:
                client.send(LIVEZ * 2_000)
            await until(lambda: alive["/livez", 200] > UNKNOWN)
            with watched(lambda: alive["/livez", 200]) as watch:
                for _ in range(20):
                    user.send(commit_with_token())
                    assert (await user.answer()).status == 200
                before = watch.turns
                assert watch.turns < 20 * 50, "a commit takes a few turns, however many others wait"
                newcomer = await here.connect()
                newcomer.send(commit_with_token())
                assert (await newcomer.answer()).status == 200
                visits = UNKNOWN // UNKNOWN_VISIT
                assert watch.turns - before < 100 + 3 * crowd // visits, "a small visit of each of those that wait"
            assert watch.most <= 2 * UNKNOWN

    run(scenario)


def commit_with_token() -> bytes:
    return commit().replace(b"\r\n\r\n", f"\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode(), 1)


def frame(opcode: int, *, is_last: bool, data: bytes = b"") -> bytes:
    """A frame of a client, with a mask of zeros."""
    return struct.pack("!BBI", opcode | (0x80 if is_last else 0), 0x80 | len(data), 0) + data


FLOODS = {
    "empty parts": (frame(1, is_last=False), frame(0, is_last=False), FRAME_UNITS),
    "pings": (b"", frame(9, is_last=True), FRAME_UNITS),
    "acknowledgements": (b"", frame(1, is_last=True, data=b'{"type":"ack","ranges":[[1,1]]}'), MESSAGE_UNITS),
}
"""What a connection sends once, what it sends again and again, and the units of each."""


@pytest.mark.parametrize("flood", matrix(list(FLOODS)))
def test_small_frames_get_a_part_of_each_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flood: str) -> None:
    begins, each, units = FLOODS[flood]
    seen = 0
    carried_out = SubscribeSocket._frame

    def counted(self: SubscribeSocket, arrived: object) -> bool:
        nonlocal seen
        seen += 1
        return carried_out(self, arrived)  # type: ignore[arg-type]

    monkeypatch.setattr(SubscribeSocket, "_frame", counted)

    async def scenario() -> None:
        async with stores_serving(tmp_path) as here:
            await here.define("orders")
            ends = [await attacker(here, str(number)) for number in range(4)]
            with watched(lambda: seen) as watch:
                for end in ends:
                    end.send(begins + each * 20_000)
                await until(lambda: seen >= 40_000)
            assert watch.most <= 2 * (TURN // units + PIECE_BYTES // len(each))

    run(scenario)


async def attacker(here: StoresServing, name: str) -> Client:
    await here.ask("PUT", f"/v1/stores/orders/durables/d{name}", {"type": "standard"})
    return (await here.subscribe("orders", f"d{name}", name)).client


def items_of(socket: SubscribeSocket) -> int:
    """How much is in all that a socket and its parser keep."""
    protocol = socket._protocol
    kept = [*vars(socket).values(), *vars(protocol).values(), protocol.reader.buffer]
    return sum(len(each) for each in kept if isinstance(each, list | dict | set | deque | bytes | bytearray | str))


def test_empty_parts_make_nothing_grow_and_their_message_is_carried_out(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as here:
            await here.define("orders")
            await here.ask("PUT", "/v1/stores/orders/durables/d", {"type": "standard"})
            end = await here.subscribe("orders", "d")
            assert (await end.next())["type"] == "attached"
            (socket,) = here.host.sockets
            assert isinstance(socket, SubscribeSocket)
            before = items_of(socket)
            begins, ends = b'{"type":"credit",', b'"messages":1}'
            end.client.send(frame(1, is_last=False, data=begins) + frame(0, is_last=False) * 20_000)
            end.client.send(frame(9, is_last=True))
            while (await end.frame())[0] != 10:
                pass
            assert items_of(socket) <= before + len(begins)
            end.client.send(frame(0, is_last=True, data=ends))
            await here.ask("POST", "/v1/stores/orders/messages", {"messages": [{"body": "aGk="}]})
            assert [message["body"] for message in await end.messages(1)] == ["aGk="]

    run(scenario)


class Waiting:
    """A connection that always has more."""

    def __init__(self, turns: LoopTurns, taken: list[int], name: int, *, is_known: bool) -> None:
        self._turns = turns
        self._taken = taken
        self._name = name
        self.is_known = is_known

    def go_on(self) -> None:
        left = self._turns.left(self)
        self._taken += [self._name] * left
        self._turns.took(left, is_known=self.is_known)
        self._turns.wait(self)


class Failing(Waiting):
    """A connection whose turn ends with an exception."""

    def go_on(self) -> None:
        raise ZeroDivisionError


def test_an_exception_of_one_leaves_no_other_waiting() -> None:
    later: list[Callable[[], None]] = []
    turns, taken = LoopTurns(later.append), list[int]()
    turns.wait(Failing(turns, taken, 0, is_known=True))
    turns.wait(Waiting(turns, taken, 1, is_known=True))
    with pytest.raises(ZeroDivisionError):
        later.pop()()
    later.pop()()
    assert set(taken) == {1}


def test_those_that_wait_are_served_in_a_circle() -> None:
    later: list[Callable[[], None]] = []
    turns, taken = LoopTurns(later.append), list[int]()
    for name in range(40):
        turns.wait(Waiting(turns, taken, name, is_known=name >= 20))
    for _ in range(20):
        (turn,) = later
        later.clear()
        before = len(taken)
        turn()
        assert len(taken) - before == TURN
        assert sum(name < 20 for name in taken[before:]) == UNKNOWN
        assert max(Counter(taken[before:]).values()) <= VISIT
        assert max(Counter(name for name in taken[before:] if name < 20).values()) <= UNKNOWN_VISIT
    counts = [taken.count(name) for name in range(40)]
    assert set(counts[:20]) == {20 * UNKNOWN // 20}
    assert max(counts[20:]) - min(counts[20:]) <= VISIT


MUTANTS = {
    "a visit without a bound": ("return min(self._left, VISIT)", "return self._left"),
    "long visits without a token": ("UNKNOWN_VISIT: Final = 4", "UNKNOWN_VISIT: Final = VISIT"),
    "a turn without a bound": ("self._left -= units", "pass"),
    "no share for those without a token": ("UNKNOWN: Final = TURN // 4", "UNKNOWN: Final = TURN"),
    "no circle": ("self._waiting[connection.is_known].append(connection)",
                  "self._waiting[connection.is_known].appendleft(connection)"),
    "those without a token are served last": ("for waiting in self._waiting:", "for waiting in self._waiting[::-1]:"),
}  # fmt: skip


@pytest.mark.parametrize("mutant", MUTANTS)
def test_turns_that_are_wrong_are_noticed(monkeypatch: pytest.MonkeyPatch, mutant: str) -> None:
    monkeypatch.setattr(sys.modules[__name__], "LoopTurns", mutated(turns_module, *MUTANTS[mutant]).LoopTurns)
    with pytest.raises(AssertionError):
        test_those_that_wait_are_served_in_a_circle()


def test_input_that_is_not_counted_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a connection takes all it has at once."""
    monkeypatch.setattr(LoopTurns, "left", lambda *_: 1_000_000)
    with pytest.raises(AssertionError, match="in one of the ticker"):
        test_sixteen_that_pipeline_get_a_part_of_each_turn_and_every_answer(LIVEZ)


SLOW = [("POST", "/v1/commit"), ("PUT", "/v1/admin/log-level")]


@pytest.mark.parametrize(("method", "target"), SLOW)
def test_a_body_that_comes_too_slowly_is_refused_and_nothing_of_it_is_done(method: str, target: str) -> None:
    body = b'{"operations": [{"type": "write", "key": "a2V5", "value": "dmFs"}]}'

    async def scenario() -> None:
        async with serving() as here:
            client = await here.connect()
            head = f"{method} {target} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode()
            client.send(head + body[:10])
            lanes = here.server.context
            await until(
                lambda: any(each._needed for each in lanes.open) or any(not each.is_whole for each in here.exchanges)
            )
            pass_seconds(here, 29)
            client.send(body[10:20])
            await asyncio.sleep(0.05)
            assert not (any(each._discard_left >= 0 for each in lanes.open)), "thirty seconds are for every body"
            pass_seconds(here, 2)
            answered = await client.answer()
            assert (answered.status, answered.code) == (408, "too_slow")
            client.send(body[20:])
            assert await client.is_closed_by_peer()
            counted = here.front.counters.answers
            assert counted["/v1/commit", 200] == 0
            assert counted["/v1/commit", 408] == (target == "/v1/commit")

    run(scenario)


def pass_seconds(here: Serving, seconds: int) -> None:
    here.server.context.seconds += seconds
    here.server.context.close_stalled(partial_seconds_max=30, idle_seconds_max=600)


def test_an_item_of_a_stream_that_comes_too_slowly_ends_it_and_a_pause_between_items_does_not() -> None:
    item = b'{"operations": [{"type": "write", "key": "a2V5", "value": "dmFs"}]}\n'

    async def scenario() -> None:
        async with serving() as here:
            client = await here.connect()
            client.send(b"POST /v1/commits HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
            await client.answer(head_only=True)
            parts = client.chunks()
            for _ in range(3):
                pass_seconds(here, 100)
                client.send(b"%x\r\n%b\r\n" % (len(item), item))
                assert b"committed" in await anext(parts)
            client.send(b"a\r\n" + item[:10] + b"\r\n")
            await until(lambda: any(each.body_since is not None for each in here.exchanges))
            pass_seconds(here, 31)
            assert await client.is_closed_by_peer()

    run(scenario)


def test_of_those_without_a_token_the_one_that_was_silent_longest_goes() -> None:
    async def scenario() -> None:
        async with serving(tokens={TOKEN: Role.WRITE}, limits=GatewayLimits(connections_max=16)) as here:
            user = await here.connect()
            await user.ask("GET", "/v1/version", Authorization=f"Bearer {TOKEN}")
            silent, spoke, slow_lane = [await here.connect() for _ in range(3)]
            for client in (silent, spoke):
                assert (await client.ask("GET", "/livez")).status == 200
            assert (await slow_lane.ask("GET", "/v1/nothing")).status == 404
            last = await here.connect()
            assert (await last.ask("GET", "/livez")).status == 200
            assert (await spoke.ask("GET", "/livez")).status == 200
            another = await here.connect()
            assert (await another.ask("GET", "/livez")).status == 200
            assert await silent.is_closed_by_peer()
            one_more = await here.connect()
            assert (await one_more.ask("GET", "/livez")).status == 200
            assert await slow_lane.is_closed_by_peer()
            assert (await spoke.ask("GET", "/livez")).status == 200
            assert (await user.ask("GET", "/v1/version", Authorization=f"Bearer {TOKEN}")).status == 200
            assert here.front.unknown.closed == 2

    run(scenario)


def test_what_comes_after_a_request_of_the_framework_waits_unread_and_is_bounded() -> None:
    many = NOTHING * 40_000

    async def scenario() -> None:
        async with serving() as here:
            here.store.gate.clear()
            client = await here.connect()
            client.send(request("POST", "/v1/commit?", write()) + many)
            await until(lambda: here.front.in_flight_commits)
            (lane,) = here.server.context.open
            await until(lambda: lane.reading_paused)
            held = len(lane._unread)
            await asyncio.sleep(0.05)
            assert len(lane._unread) == held <= HELD_BYTES_MAX + READ_BYTES_MAX < len(many)
            assert here.front.counters.framework_requests == 1, "nothing after it is parsed"
            here.store.gate.set()
            await answers(client, 1, 200)
            await answers(client, 40_000, 404)

    run(scenario)
