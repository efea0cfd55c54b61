"""A fault-injecting HTTP/1.1 proxy in front of an object store.

It decides for each request what fails, does it on real sockets, and records it. ``fault_proxy_process`` runs it in a
process of its own. Each fault, as the server and the client see it:

    fault              the server                         the client
    SLOWDOWN           nothing                            503 SlowDown, Retry-After
    ERROR_BEFORE       nothing                            500 InternalError
    ERROR_AFTER        the request, once                  500 InternalError
    CONFLICT           nothing                            409 ConditionalRequestConflict
    RESET_BEFORE       nothing                            a TCP reset
    RESET_AFTER        the request, once                  a TCP reset
    BLACKHOLE_BEFORE   nothing                            silence
    BLACKHOLE_AFTER    the request, once                  silence
    TRUNCATE           the request, once                  half the answer, then a TCP reset
    DUPLICATE          the request, twice, in order       the second answer
    HOLD               the request, once, *later*         a TCP reset at once
    DELAY              the request, once                  the answer, later
    partition (switch) nothing, or what was on its way    silence on every connection

A held request is sent when ``release`` is called, or after the rule's delay. Requests are forwarded byte for byte,
because the client signs the proxy's address in the Host header. Each connection of a client has one connection to the
server. The proxy repeats no request: when the server closes in the middle, so does the proxy. Bounds: a log of the
newest 200,000 requests (``requests`` and ``faults_done`` count all), messages as in ``http_message``.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import re
import socket
import struct
import time
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import TracebackType
from typing import Final, Self

from holdfast.errors import InvalidRequest
from holdfast.testing.http_message import (
    HEAD_BYTES_MAX,
    BrokenMessage,
    HttpMessage,
    error_answer,
    no_delay,
    read_message,
)

__all__ = ["Fault", "FaultProxy", "Latency", "Rule", "Trace"]

_LOG_ENTRIES_MAX: Final = 200_000
_NORMAL_QUANTILE_99: Final = 2.3263478740408408
_ABORT: Final = struct.pack("ii", 1, 0)
"""SO_LINGER with a zero timeout: closing sends a reset instead of an orderly end."""


class Fault(StrEnum):
    """What can go wrong with one request; the module's table says what each side sees."""

    SLOWDOWN = "slowdown"
    ERROR_BEFORE = "error_before"
    ERROR_AFTER = "error_after"
    CONFLICT = "conflict"
    RESET_BEFORE = "reset_before"
    RESET_AFTER = "reset_after"
    BLACKHOLE_BEFORE = "blackhole_before"
    BLACKHOLE_AFTER = "blackhole_after"
    TRUNCATE = "truncate"
    DUPLICATE = "duplicate"
    HOLD = "hold"
    DELAY = "delay"


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """A log-normal latency, by the two figures people quote. Equal figures make it constant.

    Units: milliseconds, of the whole request as the client sees it; half of it passes before the server is asked.
    """

    median_ms: float
    p99_ms: float

    def __post_init__(self) -> None:
        if not 0 < self.median_ms <= self.p99_ms:
            raise InvalidRequest("latency needs 0 < median_ms <= p99_ms", median_ms=self.median_ms, p99_ms=self.p99_ms)

    def draw_ms(self, source: random.Random) -> float:
        """One latency."""
        sigma = math.log(self.p99_ms / self.median_ms) / _NORMAL_QUANTILE_99
        return self.median_ms * math.exp(sigma * source.gauss(0.0, 1.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Which requests meet which fault. The first rule that applies wins; later ones do not see the request.

    ``method`` matches exactly and ``path`` is a regular expression searched in the request target; empty matches all.
    The first ``skip`` matching requests pass, then each meets the fault with ``probability``, at most ``times`` times.
    ``delay_ms`` is the Retry-After of SLOWDOWN (rounded up to seconds), the delay of DELAY, and when a held request
    lands by itself (0: only when released).
    """

    fault: Fault
    method: str = ""
    path: str = ""
    skip: int = 0
    times: int | None = None
    probability: float = 1.0
    delay_ms: float = 0.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.probability <= 1.0 or self.skip < 0 or self.delay_ms < 0:
            raise InvalidRequest("rule out of bounds", rule=self.fault.value)
        try:
            re.compile(self.path)
        except re.error as error:
            raise InvalidRequest("path of a rule is not a regular expression", path=self.path) from error


@dataclass(slots=True)
class Trace:
    """What happened to one request. ``status`` is the server's answer, 0 when there was none (yet)."""

    number: int
    method: str
    target: str
    fault: Fault | None
    status: int = 0
    answered: bool = False


@dataclass(slots=True)
class _ArmedRule:
    rule: Rule
    matched: int = 0
    fired: int = 0

    def fires(self, method: str, target: str, source: random.Random) -> bool:
        rule = self.rule
        if (rule.method and rule.method != method) or not re.search(rule.path, target):
            return False
        self.matched += 1
        if self.matched <= rule.skip or (rule.times is not None and self.fired >= rule.times):
            return False
        if rule.probability < 1.0 and source.random() >= rule.probability:
            return False
        self.fired += 1
        return True


@dataclass(slots=True, eq=False)
class _Link:
    """A client's connection and the server's connection that belongs to it."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    server: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
    task: asyncio.Task[None] | None = field(default=None)


class FaultProxy:
    """The proxy, inside the event loop of the test. Used as an asynchronous context manager.

    Cost: about 0.3 ms of one core a request, so a few thousand requests a second.
    """

    def __init__(
        self,
        server_host: str,
        server_port: int,
        *,
        rules: Sequence[Rule] = (),
        latency: Latency | None = None,
        seed: int = 0,
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        self._server_address = (server_host, server_port)
        self._address = (host, port)
        self._random = random.Random(seed)
        self._rules = [_ArmedRule(rule) for rule in rules]
        self.latency = latency
        self._links: set[_Link] = set()
        self._held: deque[tuple[HttpMessage, Trace]] = deque()
        self._landings: set[asyncio.Task[None]] = set()
        self._connected = asyncio.Event()
        self._connected.set()
        self._listener: asyncio.Server | None = None
        self._log: deque[Trace] = deque(maxlen=_LOG_ENTRIES_MAX)
        self.requests = 0
        """How many requests have arrived."""
        self.faults_done: Counter[Fault] = Counter()

    # --- steering -------------------------------------------------------------------------------------------------

    @property
    def host(self) -> str:
        """The address listened on."""
        return self._address[0]

    @property
    def port(self) -> int:
        """The port listened on, once started."""
        return self._address[1]

    @property
    def endpoint(self) -> str:
        """The address to give to clients instead of the server's."""
        return f"http://{self.host}:{self.port}"

    @property
    def log(self) -> tuple[Trace, ...]:
        """Every request so far, in order of arrival, as far back as the bound allows."""
        return tuple(self._log)

    @property
    def held(self) -> int:
        """How many requests are parked."""
        return len(self._held)

    @property
    def partitioned(self) -> bool:
        """Whether the proxy swallows everything."""
        return not self._connected.is_set()

    def set_rules(self, rules: Iterable[Rule]) -> None:
        """Replace the rules; their counts start afresh."""
        self._rules = [_ArmedRule(rule) for rule in rules]

    def partition(self, partitioned: bool = True) -> None:
        """Cut both directions of every connection, or heal: what was cut is reset, since its answers are lost."""
        if partitioned:
            self._connected.clear()
            return
        if self.partitioned:
            self._connected.set()
            for link in list(self._links):
                self._abort(link.writer)

    async def release(self) -> list[Trace]:
        """Deliver every parked request to the server now, oldest first; their traces, with the server's verdicts."""
        delivered: list[Trace] = []
        while self._held:
            message, trace = self._held.popleft()
            await self._land(message, trace)
            delivered.append(trace)
        return delivered

    async def start(self) -> None:
        """Listen."""
        self._listener = await asyncio.start_server(
            self._accept, *self._address, limit=HEAD_BYTES_MAX, backlog=1024, reuse_address=True
        )
        self._address = self._listener.sockets[0].getsockname()[:2]

    async def stop(self) -> None:
        """Close every connection and forget what was parked. Stopping twice is harmless."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        self._held.clear()
        tasks = [link.task for link in self._links if link.task is not None] + list(self._landings)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    # --- one connection -------------------------------------------------------------------------------------------

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = _Link(reader, writer, task=asyncio.current_task())
        self._links.add(link)
        try:
            # A broken or reset connection, ours or theirs, ends this link and nothing else.
            with contextlib.suppress(BrokenMessage, OSError, asyncio.CancelledError):
                while await self._serve_one(link):
                    pass
        finally:
            self._links.discard(link)
            writer.close()
            if link.server is not None:
                link.server[1].close()

    async def _serve_one(self, link: _Link) -> bool:
        """Carry one request and its answer, or its fault. False when the connection is finished."""
        request = await read_message(link.reader, request=True)
        if request is None:
            return False
        arrived = time.monotonic()
        self.requests += 1
        method, target, _protocol = request.first_line
        armed = next((rule for rule in self._rules if rule.fires(method, target, self._random)), None)
        trace = Trace(self.requests, method, target, armed.rule.fault if armed else None)
        self._log.append(trace)
        if self.partitioned:
            return await self._silence(link)
        whole_ms = self.latency.draw_ms(self._random) if self.latency else 0.0
        if armed is not None:
            self.faults_done[armed.rule.fault] += 1
            if armed.rule.fault is Fault.DELAY:
                whole_ms += armed.rule.delay_ms
            else:
                return await self._misbehave(link, request, trace, armed.rule)
        if whole_ms:
            await asyncio.sleep(whole_ms / 2000)
        response = await self._ask(link, request, trace)
        if whole_ms:
            await asyncio.sleep(max(0.0, arrived + whole_ms / 1000 - time.monotonic()))
        return await self._answer(link, request, trace, response)

    async def _answer(self, link: _Link, request: HttpMessage, trace: Trace, response: HttpMessage) -> bool:
        if self.partitioned:
            return await self._silence(link)
        link.writer.write(response.encode())
        await link.writer.drain()
        trace.answered = True
        return request.keep_alive and response.keep_alive

    async def _misbehave(self, link: _Link, request: HttpMessage, trace: Trace, rule: Rule) -> bool:
        """One fault that is more than a delay. The cases are the rows of the module's table."""
        method = trace.method
        match rule.fault:
            case Fault.SLOWDOWN:
                wait = f"Retry-After: {math.ceil(rule.delay_ms / 1000)}\r\n" if rule.delay_ms else ""
                return await self._answer(link, request, trace, error_answer(503, "SlowDown", method, wait))
            case Fault.ERROR_BEFORE:
                return await self._answer(link, request, trace, error_answer(500, "InternalError", method))
            case Fault.CONFLICT:
                return await self._answer(link, request, trace, error_answer(409, "ConditionalRequestConflict", method))
            case Fault.RESET_BEFORE:
                self._abort(link.writer)
                return False
            case Fault.BLACKHOLE_BEFORE:
                return await self._silence(link)
            case Fault.HOLD:
                self._hold(request, trace, rule.delay_ms)
                self._abort(link.writer)
                return False
            case _:
                pass
        response = await self._ask(link, request, trace)
        match rule.fault:
            case Fault.ERROR_AFTER:
                return await self._answer(link, request, trace, error_answer(500, "InternalError", method))
            case Fault.BLACKHOLE_AFTER:
                return await self._silence(link)
            case Fault.DUPLICATE:
                response = await self._ask(link, request, trace)
                return await self._answer(link, request, trace, response)
            case Fault.TRUNCATE:
                whole = response.encode()
                link.writer.write(whole[: len(whole) // 2])
                await link.writer.drain()
            case _:
                assert rule.fault is Fault.RESET_AFTER, "every fault is a row of the table"
        self._abort(link.writer)
        return False

    async def _ask(self, link: _Link, request: HttpMessage, trace: Trace) -> HttpMessage:
        """Send the request to the server, once, and read its answer."""
        if link.server is None:
            link.server = await asyncio.open_connection(*self._server_address, limit=HEAD_BYTES_MAX)
            no_delay(link.server[1])
        reader, writer = link.server
        writer.write(request.encode())
        await writer.drain()
        response = await read_message(reader, request=False, bodiless=trace.method == "HEAD")
        if response is None:
            raise BrokenMessage
        trace.status = response.status
        if not response.keep_alive:
            writer.close()
            link.server = None
        return response

    async def _silence(self, link: _Link) -> bool:
        """Say nothing until the client goes away or the partition heals, which resets the connection."""
        while await link.reader.read(HEAD_BYTES_MAX):
            pass
        return False

    def _hold(self, request: HttpMessage, trace: Trace, delay_ms: float) -> None:
        if not delay_ms:
            self._held.append((request, trace))
            return

        async def land_later() -> None:
            await asyncio.sleep(delay_ms / 1000)
            await self._land(request, trace)

        task = asyncio.get_running_loop().create_task(land_later())
        self._landings.add(task)
        task.add_done_callback(self._landings.discard)

    async def _land(self, request: HttpMessage, trace: Trace) -> None:
        """Deliver a parked request on a connection of its own. A server that is gone leaves status 0 in the trace."""
        await self._connected.wait()
        with contextlib.suppress(BrokenMessage, OSError):
            reader, writer = await asyncio.open_connection(*self._server_address, limit=HEAD_BYTES_MAX)
            try:
                writer.write(request.encode())
                await writer.drain()
                response = await read_message(reader, request=False, bodiless=trace.method == "HEAD")
                trace.status = response.status if response is not None else 0
            finally:
                writer.close()

    @staticmethod
    def _abort(writer: asyncio.StreamWriter) -> None:
        raw = writer.get_extra_info("socket")
        if raw is not None and raw.fileno() >= 0:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABORT)
        writer.transport.abort()
