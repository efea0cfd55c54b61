"""Moments at which a right ends: what one caller does meanwhile, and the law that holds for it.

A caller sends one kind of request again and again, or has a stream open, over real connections. At a random moment its
right ends. Later than ``BOUND_SECONDS`` after the reload that reads this, nothing of it is accepted, done or shown, and
its streams have ended with a coded reason. The one exception: receipts of what was accepted before are still sent.
"""

from __future__ import annotations

import array
import asyncio
import base64
import fcntl
import json
import os
import struct
import termios
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Protocol, cast

from holdfast.server.http.key_scope import tag_of
from holdfast.server.http.rights_table import RIGHTS, Need

BOUND_SECONDS = 1.0
RECEIPTS_SECONDS = 10.0
"""How long receipts of what was accepted are sent, at most."""
ENDED = ("unauthenticated", "permission_denied")


class Wire(asyncio.Protocol):
    """The caller's end of a connection. It remembers what came, and when."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.now = now
        self.came: list[tuple[float, bytes]] = []
        self.ended: float | None = None
        self.paused_at: float | None = None
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self.came.append((self.now(), data))

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self.ended = self.now()

    @property
    def is_over(self) -> bool:
        return self.ended is not None

    def send(self, data: bytes) -> float:
        """Returns when it was sent."""
        assert self.transport is not None, "it was opened"
        self.transport.write(data)
        return self.now()

    def pause(self) -> None:
        """Take nothing more."""
        assert self.transport is not None, "it was opened"
        if self.ended is None and self.paused_at is None:
            self.transport.pause_reading()
            self.paused_at = self.now()

    def resume(self) -> None:
        """Take everything again."""
        if self.transport is not None and self.paused_at is not None:
            self.paused_at = None
            if self.ended is None:
                self.transport.resume_reading()

    def in_kernel(self) -> int:
        """Bytes that the service has sent and this end has not taken."""
        assert self.transport is not None, "it was opened"
        if self.ended is not None:
            return 0
        count = array.array("i", [0])
        fcntl.ioctl(self.transport.get_extra_info("socket").fileno(), termios.FIONREAD, count)
        return count[0]

    def after(self, seconds: float) -> bytes:
        """What came later than that."""
        return b"".join(data for at, data in self.came if at > seconds)

    def close(self) -> None:
        if self.transport is not None:
            self.transport.abort()


@dataclass
class Response:
    """One response: when its head came, and each part of its body."""

    status: int
    head_at: float
    headers: dict[str, str]
    parts: list[tuple[float, bytes]] = field(default_factory=list)
    is_whole: bool = False

    @property
    def body(self) -> bytes:
        return b"".join(data for _, data in self.parts)

    @property
    def last_at(self) -> float:
        return self.parts[-1][0] if self.parts else self.head_at


class _Came:
    """What came, to be read piece by piece."""

    def __init__(self, came: Sequence[tuple[float, bytes]]) -> None:
        self.data = b"".join(data for _, data in came)
        self.position = 0
        ends, end = list[tuple[int, float]](), 0
        for at, data in came:
            end += len(data)
            ends.append((end, at))
        self._ends = ends

    def take(self, count: int) -> tuple[float, bytes] | None:
        """The next bytes, and when the last of them came; None while they have not come."""
        end = self.position + count
        if end > len(self.data):
            return None
        data, self.position = self.data[self.position : end], end
        return next((at for reached, at in self._ends if reached >= end), 0.0), data

    def line(self) -> tuple[float, bytes] | None:
        end = self.data.find(b"\r\n", self.position)
        return None if end < 0 else self.take(end + 2 - self.position)

    def rest(self) -> Iterator[tuple[float, bytes]]:
        for reached, at in self._ends:
            if reached > self.position:
                data = self.data[self.position : reached]
                self.position = reached
                yield at, data


def responses(wire: Wire) -> list[Response]:
    """The responses that came, in order. After 101 the rest is its body."""
    came = _Came(wire.came)
    found: list[Response] = []
    while (end := came.data.find(b"\r\n\r\n", came.position)) >= 0:
        taken = came.take(end + 4 - came.position)
        assert taken is not None, "the head has come"
        lines = taken[1].decode("latin-1").split("\r\n")
        pairs = (line.partition(":") for line in lines[1:] if line)
        headers = {name.lower(): value.strip() for name, _, value in pairs}
        response = Response(int(lines[0].split()[1]), taken[0], headers)
        found.append(response)
        if response.status == 101:
            response.parts = list(came.rest())
            return found
        if headers.get("transfer-encoding") == "chunked":
            if not _read_chunks(came, response):
                return found
        else:
            body = came.take(int(headers.get("content-length", "0")))
            if body is None:
                response.parts = list(came.rest())
                return found
            response.parts, response.is_whole = [body], True
    return found


def _read_chunks(came: _Came, response: Response) -> bool:
    while (line := came.line()) is not None:
        part = came.take(int(line[1], 16) + 2)
        if part is None:
            break
        if part[1] == b"\r\n":
            response.is_whole = True
            return True
        response.parts.append((part[0], part[1][:-2]))
    return False


@dataclass(frozen=True)
class Taken:
    """Something that the service began to do for a request: what, and when."""

    at: float
    what: str


class Place(Protocol):
    """What a caller needs to know of where it is."""

    random: Random
    taken: list[Taken]
    """Empty where nothing is noted."""
    observed_seconds: float
    """How long a caller goes on after its right has ended."""

    def now(self) -> float: ...

    def version(self) -> int: ...

    async def connect(self) -> Wire: ...


class BrokenLaw(AssertionError):
    """What was accepted, done or shown too late, or what ended that should not."""


class Act:
    """What one caller does. ``name`` is in everything that it names, and in nothing else."""

    read = False

    def __init__(self, place: Place, name: str, token: str) -> None:
        self.place, self.name, self.token = place, name, token
        self.random = place.random
        self.number = 0
        self.way = ""
        """In which its right ends."""

    @property
    def kind(self) -> str:
        return type(self).__name__

    async def play(self) -> None:
        """Go on until it is cancelled."""
        raise NotImplementedError

    async def watch(self, late: float) -> None:
        """Return when enough was seen after ``late``."""
        await asyncio.sleep(late - self.place.now() + self.place.observed_seconds)

    def judge(self, late: float, *, is_scoped: bool) -> None:
        """Raises: BrokenLaw for what came or was done later than ``late``."""
        raise NotImplementedError

    def judge_untouched(self, since: float) -> None:
        """Its right stayed: raises BrokenLaw if it was touched."""
        raise NotImplementedError

    def head(self, method: str, target: str, *lines: str) -> bytes:
        first = [f"{method} {target} HTTP/1.1", "Host: localhost", f"Authorization: Bearer {self.token}"]
        return "\r\n".join([*first, *lines, "", ""]).encode()

    def marked(self) -> str:
        self.number += 1
        return f"{self.name}.{self.number}"

    def require(self, law: object, text: str, *facts: object) -> None:
        if not law:
            raise BrokenLaw(f"{self.kind} of {self.name}, {self.way}: {text} {facts}")

    def nothing_taken(self, late: float) -> None:
        found = [each for each in self.place.taken if each.at > late and f"{self.name}." in each.what]
        self.require(not found, "was done after its right had ended", late, found[:2])


@dataclass
class Sent:
    """One request."""

    target: str
    whole_at: float


Body = Callable[["Requests"], object]
"""Gives what is sent as JSON, or bytes as they are."""


def seat(key: str, **more: object) -> dict[str, object]:
    return {"operations": [{"type": "write", "key_text": f"seat/{key}", "value": "dmFs"}], **more}


SPARE = "/v1/stores/orders/durables/spare"
BODIES: Mapping[str, Body] = {
    "POST /v1/commit": lambda act: seat(act.marked()),
    "POST /v1/commit publish": lambda act: seat(
        act.marked(), publish=[{"store": "orders", "messages": [{"body": "aGk=", "key": act.marked()}]}]
    ),
    "POST /v1/commit jobs": lambda act: {
        "operations": [], "jobs": [{"name": f"sink/{act.marked()}", "value": "eA=="}],
        "read_version": act.place.version(),
    },
    "PUT /v1/retention/{policy_id}": lambda _: {"keep": "everything"},
    "PUT /v1/admin/log-level": lambda _: {"level": "info"},
    "POST /v1/admin/retention-plan": lambda act: {"policy_id": act.marked(), "policy": {"keep": "everything"}},
    "PUT /v1/staged/{application}/{write}/{name}": lambda act: act.marked().encode() * 100,
    "PATCH /v1/stores/{store}": lambda act: {"description": act.marked()},
    "PUT /v1/stores/{store}/durables/{durable}": lambda _: {"type": "shared"},
    "PATCH /v1/stores/{store}/durables/{durable}": lambda _: {"ack_wait": 30},
    "PUT /v1/stores/{store}/templates/{template}": lambda _: {"type": "shared"},
    "POST /v1/stores/{store}/messages": lambda act: {"messages": [{"body": "aGk=", "key": act.marked()}]},
    "POST /v1/stores/{store}/durables/{durable}/acks": lambda act: {"subscriber": act.marked(), "ack": [1]},
    "POST /v1/stores/{store}/durables/{durable}/rewind": lambda _: {"to": "start"},
    "POST /v1/stores/{store}/maps/{map}": lambda act: {"changes": [{"key": act.marked(), "value": "dg=="}]},
    "PUT /v1/stores/{store}/maps/{map}/{key}": lambda _: {"value": "dg=="},
    "POST /v1/stores/{store}/maps/{map}/lock": lambda act: {"key": act.marked(), "owner": "me", "ttl_ms": 60_000},
    "POST /v1/stores/{store}/maps/{map}/unlock": lambda act: {"key": act.marked(), "owner": "me", "fence": 1},
    "POST /v1/read": lambda _: {"items": [{"type": "range", "prefix_text": "seat/"}]},
    "PUT /v1/cluster/definition": lambda act: {"stores": {f"made-{act.marked()}": {}}},
    "PATCH /v1/cluster/definition": lambda act: {"stores": {f"made-{act.marked()}": {}}},
    "POST /v1/cluster/definition/check": lambda act: {"stores": {f"made-{act.marked()}": {}}},
    "POST /v1/cluster/rollback": lambda _: {"revision": 999_999},
    "POST /v1/cluster/backup": lambda act: {"name": act.name},
}  # fmt: skip
QUERIES = {
    "GET /v1/status/{request_id}": "?min_version={version}",
    "POST /v1/status/{request_id}": "?min_version={version}",
    "GET /v1/range": "?prefix_text=seat/",
    "GET /v1/stores/{store}/durables/{durable}/messages": "?subscriber={name}.&max=5&wait_ms={wait}",
    "POST /v1/stores/{store}/durables/{durable}/messages": "?subscriber={name}.&max=5&wait_ms={wait}",
}
MADE = {"PUT", "DELETE"}
"""Methods whose target is a thing of the caller."""
ELSEWHERE = (
    *("GET /livez", "GET /readyz", "GET /ok", "GET /openapi.json", "GET /docs"),  # open to everybody
    *("POST /v1/commits", "GET /v1/subscribe", "GET /v1/snapshot"),  # streams
    "GET /v1/stores/{store}/durables/{durable}/subscribe",
    *("POST /v1/admin/step-down", "POST /v1/cluster/suspend", "POST /v1/cluster/force-quorum"),  # they end all others
)
QUESTIONS = ("POST /v1/admin/retention-plan", "POST /v1/cluster/definition/check")
LINES = tuple(name for name in RIGHTS if name not in ELSEWHERE)


def is_question(line: str) -> bool:
    """Whether the answer shows what is there: it is not a receipt."""
    method, _, path = line.partition(" ")
    return method == "GET" or line in QUESTIONS or "/v1/status/" in path or path.endswith("{durable}/messages")


class Requests(Act):
    """One route, asked again and again: whole, with a body that is held back, several at once, in both lanes."""

    def __init__(self, place: Place, name: str, token: str, line: str, variant: str = "") -> None:
        super().__init__(place, name, token)
        self.line, self.variant = line, variant
        self.sent: list[Sent] = []
        self.wire: Wire | None = None
        self.wires: list[tuple[Wire, list[Sent]]] = []
        self.by_framework = self.random.random() < 0.3

    @property
    def kind(self) -> str:
        return f"{self.line} {self.variant}".strip()

    def _target(self) -> str:
        method, _, path = self.line.partition(" ")
        name = self.marked()
        parts = {
            "{request_id}": tag_of(b"seat/") + name + "x" * 20, "{policy_id}": name, "{version}": "1",
            "{application}": self.name.lower() if method != "GET" else "root", "{write}": "w",
            "{name}": f"p{self.number}" if method != "GET" else "p1",
            "{store}": f"made-{name}" if path.endswith("{store}") and method in MADE else "orders",
            "{durable}": f"made-{name}" if path.endswith("{durable}") and method in MADE else "spare",
            "{template}": f"made-{name}" if method in MADE else "jobs", "{map}": "map", "{seq}": "1",
            "{revision}": "1",
        }  # fmt: skip
        parts["{key}"] = name if "{map}" in path else base64.urlsafe_b64encode(b"seat/1").decode().rstrip("=")
        if "/v1/jobs" in path:
            parts["{name}"] = "sink/a"
        if path == "/v1/log/transactions/{version}":
            parts["{version}"] = str(self.place.version())
        for part, value in parts.items():
            path = path.replace(part, value)
        query = QUERIES.get(self.line, "")
        wait = self.random.choice([0, 500, 60_000])
        return path + query.format(version=self.place.version(), name=self.name, wait=wait)

    async def play(self) -> None:
        method = self.line.partition(" ")[0]
        while True:
            wire = await self.place.connect()
            sent: list[Sent] = []
            self.wires.append((wire, sent))
            while not wire.is_over:
                await self._send(wire, sent, method)
                await asyncio.sleep(self.random.choice([0.0, 0.05, 0.3]))
                most = self.random.choice([0, 0, 2])
                while not wire.is_over and len(sent) - len(responses(wire)) > most:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
                if len(sent) > 8 and not most:
                    break
            wire.close()
            await asyncio.sleep(0.05)

    async def _send(self, wire: Wire, sent: list[Sent], method: str) -> None:
        target = self._target()
        lines = ["Sec-Fetch-Site: none"] if self.by_framework else []
        body = BODIES.get(self.kind, BODIES.get(self.line))
        if method in ("GET", "DELETE") or (body is None and method == "POST" and self.line not in BODIES):
            data = b"{}" if method == "POST" else b""
        else:
            given = {} if body is None else body(self)
            data = given if isinstance(given, bytes) else json.dumps(given).encode()
        if method in ("GET", "DELETE"):
            sent.append(Sent(target, wire.send(self.head(method, target, *lines))))
            return
        head = self.head(method, target, "Content-Type: application/json", f"Content-Length: {len(data)}", *lines)
        if body is None:  # the route reads none, so it acts at the head
            sent.append(Sent(target, wire.send(head + data)))
            return
        cut = 0 if self.random.random() < 0.4 else self.random.randrange(len(data))
        wire.send(head + data[:cut])
        if cut or self.random.random() < 0.3:
            await asyncio.sleep(self.random.choice([0.01, 0.5, 2.0]))
        if wire.ended is None:
            sent.append(Sent(target, wire.send(data[cut:])))

    def judge(self, late: float, *, is_scoped: bool) -> None:
        self.nothing_taken(late)
        for wire, sent in self.wires:
            for one, response in zip(sent, responses(wire), strict=False):
                if one.whole_at > late and self.line == "GET /v1/stores":
                    self.require(response.status == 401 or b"orders" not in response.body, "was shown", late, response)
                elif response.last_at > late and is_scoped and self.line == "POST /v1/read":  # each item has its error
                    self.require(b'"value"' not in response.body, "was shown", late, one, response)
                elif one.whole_at > late:
                    self.require(response.status in (401, 403), "was answered", late, one, response)
                elif response.last_at > late and response.status < 300:
                    self.require(not is_question(self.line), "was shown", late, one, response)
                    self.require(response.last_at <= late + RECEIPTS_SECONDS, "was receipted", late, one, response)

    def judge_untouched(self, since: float) -> None:
        for wire, sent in self.wires:
            for one, response in zip(sent, responses(wire), strict=False):
                self.require(response.status not in (401, 403), "was refused", since, one, response)


class Stream(Act):
    """A request whose answer goes on."""

    is_slow = False

    def __init__(self, place: Place, name: str, token: str) -> None:
        super().__init__(place, name, token)
        self.wire: Wire | None = None
        self.pauses_after = self.random.choice([0.0, 0.0, 1.0]) if self.is_slow else None
        self.left_in_kernel = 0
        self.resumed_at = 0.0

    async def begin(self) -> None:
        raise NotImplementedError

    async def go_on(self) -> None:
        await asyncio.sleep(0.2)

    async def play(self) -> None:
        self.wire = await self.place.connect()
        await self.begin()
        began = self.place.now()
        while True:
            await self.go_on()
            if self.pauses_after is not None and self.place.now() - began > self.pauses_after:
                self.wire.pause()

    async def watch(self, late: float) -> None:
        await asyncio.sleep(late - self.place.now())
        self.pauses_after = None
        if self.wire is not None and self.wire.paused_at is not None:
            self.left_in_kernel = self.wire.in_kernel()
            self.resumed_at = self.place.now()
            self.wire.resume()
        await super().watch(late)

    def answered(self) -> Response | None:
        found = [] if self.wire is None else responses(self.wire)
        return found[0] if found else None

    def shown_after(self, late: float) -> bytes:
        """Bytes that the service sent later than that: for a slow reader those that were not in the kernel then."""
        assert self.wire is not None, "it was opened"
        if not self.resumed_at:
            return self.wire.after(late)
        return b"".join(data for at, data in self.wire.came if at >= self.resumed_at)[self.left_in_kernel :]

    def judge(self, late: float, *, is_scoped: bool) -> None:
        del is_scoped
        self.nothing_taken(late)
        response = self.answered()
        wire = self.wire
        if wire is None or response is None:
            self.require(wire is None or wire.ended is not None or not wire.came, "has no answer", late)
            return
        if response.status in (401, 403):
            return
        self.require(response.status in (200, 101), "was answered", response)
        ended = self.ended_at(response)
        slack = self.slack(response)
        until = (self.resumed_at + BOUND_SECONDS if self.resumed_at else late) + slack
        self.require(ended is not None and ended <= until, "goes on", late, ended, wire.after(late)[-300:])
        self.require(not self.shown_after(until), "shows", late, self.shown_after(until)[-300:])
        if not self.resumed_at:
            self.require_reason(response)

    def slack(self, response: Response) -> float:
        del response
        return 0.0

    def ended_at(self, response: Response) -> float | None:
        assert self.wire is not None, "it was opened"
        return response.last_at if response.is_whole else self.wire.ended

    def require_reason(self, response: Response) -> None:
        text = response.body.decode("utf-8", "replace")
        self.require(any(code in text[-600:] for code in ENDED), "gives no reason", text[-300:])

    def judge_untouched(self, since: float) -> None:
        response = self.answered()
        self.require(response is not None and response.status in (200, 101), "was not served", response)
        assert response is not None, "it was answered"
        self.require(self.ended_at(response) is None, "was ended", since, response.body[-300:])


class ChangeStream(Stream):
    """``GET /v1/subscribe`` of some keys."""

    query = "?prefix_text=seat/"

    async def begin(self) -> None:
        assert self.wire is not None, "it was opened"
        self.wire.send(self.head("GET", f"/v1/subscribe{self.query}"))


class SlowChangeStream(ChangeStream):
    """The same, by a reader that stops reading."""

    is_slow = True


class StoresStream(ChangeStream):
    """The same, with the messages of a store."""

    query = "?stores=orders"


class Snapshot(Stream):
    """``GET /v1/snapshot`` by a reader that stops reading."""

    is_slow = True

    async def begin(self) -> None:
        assert self.wire is not None, "it was opened"
        self.wire.send(self.head("GET", "/v1/snapshot"))

    def judge(self, late: float, *, is_scoped: bool) -> None:
        if (response := self.answered()) is None or response.status != 200 or not response.is_whole:
            super().judge(late, is_scoped=is_scoped)
        else:
            self.require(response.last_at <= max(late, self.resumed_at), "shows", late, response.last_at)

    def require_reason(self, response: Response) -> None:
        """A row has no place for one."""

    def judge_untouched(self, since: float) -> None:
        response = self.answered()
        self.require(response is not None and response.status == 200 and response.is_whole, "was cut", since)


class CommitStream(Stream):
    """``POST /v1/commits``: an item now and then."""

    def __init__(self, place: Place, name: str, token: str) -> None:
        super().__init__(place, name, token)
        self.items: list[float] = []
        self._kept = b""

    async def begin(self) -> None:
        assert self.wire is not None, "it was opened"
        lines = ("Content-Type: application/x-ndjson", "Transfer-Encoding: chunked")
        self.wire.send(self.head("POST", "/v1/commits", *lines))

    async def go_on(self) -> None:
        assert self.wire is not None, "it was opened"
        for _ in range(self.random.choice([1, 1, 5])):
            data = json.dumps(seat(f"{self.marked()}:")).encode() + b"\n"
            cut = self.random.choice([0, 0, len(data) // 2])
            if self.wire.ended is None:
                if cut:
                    self.wire.send(b"%x\r\n%b\r\n" % (cut, data[:cut]))
                    await asyncio.sleep(self.random.choice([0.0, 1.5]))
                if self.wire.ended is None:
                    rest = data[cut:]
                    self.items.append(self.wire.send(b"%x\r\n%b\r\n" % (len(rest), rest)))
        await asyncio.sleep(self.random.choice([0.05, 0.4]))

    def lines(self, response: Response) -> list[tuple[float, dict[str, Any]]]:
        found: list[tuple[float, dict[str, Any]]] = []
        rest = b""
        for at, part in response.parts:
            *whole, rest = (rest + part).split(b"\n")
            found += [(at, json.loads(line)) for line in whole if line]
        return found

    def accepted(self) -> set[int]:
        """Numbers of the items that the service took."""
        prefix = f"seat/{self.name}."
        return {
            int(each.what.partition(prefix)[2].partition(":")[0]) - 1
            for each in self.place.taken
            if prefix in each.what and ":" in each.what
        }

    def judge(self, late: float, *, is_scoped: bool) -> None:
        response = self.answered()
        if response is None or response.status != 200:
            super().judge(late, is_scoped=is_scoped)
            return
        lines = self.lines(response)
        if is_scoped:  # the stream goes on for the keys that are left, of which it has none
            self.nothing_taken(late)
            refused = [line for number, (_, line) in enumerate(lines) if self.items[number] > late]
            self.require(all("error" in line for line in refused), "was committed", refused)
            return
        super().judge(late, is_scoped=is_scoped)
        *receipts, (_, last) = lines
        self.require(last.get("error", {}).get("code") in ENDED, "ends without a reason", last)
        self.require(last["index"] == len(receipts), "names another item", last, len(receipts))
        self.require(all(line["status"] == "committed" for _, line in receipts), "has other receipts", receipts)
        if self.place.taken:
            self.require(self.accepted() == set(range(len(receipts))), "names another item", last, self.accepted())

    def ended_at(self, response: Response) -> float | None:
        """When the line with its reason came: what follows is read and dropped for a moment, and nothing is sent."""
        lines = self.lines(response)
        return lines[-1][0] if lines and lines[-1][1].get("error", {}).get("code") in ENDED else None

    def shown_after(self, late: float) -> bytes:
        response = self.answered()
        assert response is not None, "it was answered"
        return b"".join(data for at, data in response.parts if at > late)

    def slack(self, response: Response) -> float:
        return RECEIPTS_SECONDS if len(self.lines(response)) > 1 else 0.0

    def require_reason(self, response: Response) -> None:
        """Its last line says it."""

    def judge_untouched(self, since: float) -> None:
        super().judge_untouched(since)
        response = self.answered()
        assert response is not None, "it was answered"
        self.require(all("error" not in line for _, line in self.lines(response)), "was refused", since)


def frame(opcode: int, data: bytes) -> bytes:
    """A frame of a client, with a mask of zeros."""
    size = len(data)
    length = bytes([0x80 | size]) if size < 126 else bytes([0x80 | 126]) + struct.pack(">H", size)
    return bytes([0x80 | opcode]) + length + bytes(4) + data


def frames(parts: Sequence[tuple[float, bytes]]) -> Iterator[tuple[float, int, bytes]]:
    """The frames of a service: when each was whole, its opcode, its data."""
    came = _Came(parts)
    while (head := came.take(2)) is not None:
        size = head[1][1]
        if size >= 126:
            more = came.take(2 if size == 126 else 8)
            if more is None:
                return
            size = int.from_bytes(more[1])
        data = came.take(size)
        if data is None:
            return
        yield data[0] or head[0], head[1][0] & 15, data[1]


class Socket(Stream):
    """A WebSocket: deliveries and acknowledgements."""

    durable, more = "work", ""

    def __init__(self, place: Place, name: str, token: str) -> None:
        super().__init__(place, name, token)
        self._answered = 0

    async def begin(self) -> None:
        assert self.wire is not None, "it was opened"
        target = f"/v1/stores/orders/durables/{self.durable}/subscribe?subscriber={self.name}.{self.more}"
        lines = ["Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13"]
        lines += [f"Sec-WebSocket-Key: {base64.b64encode(os.urandom(16)).decode()}"]
        lines += ["Sec-WebSocket-Protocol: holdfast.stores.v1+json"]
        self.wire.send(self.head("GET", target, *lines))
        await asyncio.sleep(0.2)

    def say(self, **what: object) -> None:
        assert self.wire is not None, "it was opened"
        if self.wire.ended is None:
            self.wire.send(frame(1, json.dumps(what).encode()))

    async def go_on(self) -> None:
        self.say(type="credit", messages=1_000)
        response = self.answered()
        found = list(frames([] if response is None else response.parts))
        for _, opcode, data in found[self._answered :]:
            if opcode == 9:
                assert self.wire is not None, "it was opened"
                if self.wire.ended is None:
                    self.wire.send(frame(10, data))
            elif opcode == 1 and (message := json.loads(data))["type"] == "messages":
                for each in message["messages"]:
                    self.number += 1
                    self.say(type="ack", ranges=[[each["seq"], each["seq"]]], id=self.number)
        self._answered = len(found)
        if not found:  # an act, although nothing was delivered
            self.number += 1
            self.say(type="ack", ranges=[[1, 1]], id=self.number)
        await asyncio.sleep(self.random.choice([0.05, 0.3]))

    def shown_after(self, late: float) -> bytes:
        """Data that came later, without replies to what was acknowledged before."""
        response = self.answered()
        assert response is not None, "it was answered"
        rest = super().shown_after(late)
        whole, shown = len(response.body), b""
        for at, opcode, data in frames(response.parts):
            whole -= len(data)
            is_late = whole < len(rest) if self.resumed_at else at > late
            if is_late and opcode in (1, 2) and json.loads(data)["type"] not in ("answer", "error"):
                shown += data
        return shown

    def closed(self, response: Response) -> tuple[float, int, str] | None:
        """When the close frame came, its code and its reason."""
        for at, opcode, data in frames(response.parts):
            if opcode == 8:
                return at, int.from_bytes(data[:2]), data[2:].decode()
        return None

    def ended_at(self, response: Response) -> float | None:
        closed = self.closed(response)
        assert self.wire is not None, "it was opened"
        return self.wire.ended if closed is None else closed[0]

    def slack(self, response: Response) -> float:
        late_replies = [data for _, opcode, data in frames(response.parts) if opcode == 1 and b'"answer"' in data]
        return RECEIPTS_SECONDS if late_replies else 0.0

    def require_reason(self, response: Response) -> None:
        closed = self.closed(response)
        self.require(closed is not None and closed[1:] in ((4401, ENDED[0]), (4403, ENDED[1])), "no reason", closed)


class SlowSocket(Socket):
    """The same, by a peer that stops reading."""

    is_slow = True


class MapWatch(Socket):
    """A WebSocket that watches a map."""

    durable, more = "map", "&prefix="


STREAMS: tuple[tuple[type[Stream], str], ...] = (
    (ChangeStream, "GET /v1/subscribe"),
    (SlowChangeStream, "GET /v1/subscribe"),
    (StoresStream, "GET /v1/subscribe stores"),
    (Snapshot, "GET /v1/snapshot"),
    (CommitStream, "POST /v1/commits"),
    (Socket, "GET /v1/stores/{store}/durables/{durable}/subscribe"),
    (SlowSocket, "GET /v1/stores/{store}/durables/{durable}/subscribe"),
    (MapWatch, "GET /v1/stores/{store}/durables/{durable}/subscribe"),
)
VARIANTS = (("POST /v1/commit", "publish"), ("POST /v1/commit", "jobs"))


def need_of_kind(line: str) -> Need:
    return RIGHTS[line.removesuffix(" stores")]


Making = Callable[[Place, str, str], Act]


def kinds() -> list[tuple[str, str, Making]]:
    """What each kind of act is called, the row of the table of rights that it needs, and how it is made."""

    def requests(line: str, variant: str = "") -> Making:
        return lambda place, name, token: Requests(place, name, token, line, variant)

    return [
        *((line, line, requests(line)) for line in LINES),
        *((f"{line} {variant}", line, requests(line, variant)) for line, variant in VARIANTS),
        *((stream.__name__, line, stream) for stream, line in STREAMS),
    ]
