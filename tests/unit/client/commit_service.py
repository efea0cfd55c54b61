"""A service on a real socket that commits what it is sent, and callers that commit at the same time."""

from __future__ import annotations

import base64
import json
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Self

from tests.unit.client.conftest import AsyncFace
from tests.unit.client.scripted_server import Asked, _read_request

from holdfast.commit.format.transaction import Write
from holdfast.errors import HoldfastError

__all__ = ["WRITE", "CommitService", "Crowd", "Exchange", "error_line", "ids_of", "line_of", "until"]

WRITE = [Write(b"k", b"v")]
LEADER = "ab" * 16
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/x-ndjson\r\ntransfer-encoding: chunked\r\n\r\n"
Answer = Callable[["Exchange"], None]


def until(condition: Callable[[], object], what: str = "it happens") -> None:
    """Wait for a condition. Raises: AssertionError."""
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end, f"not in time: {what}"
        time.sleep(0.001)


def ids_of(asked: Asked) -> list[str]:
    return [json.loads(line)["request_id"] for line in asked.body.splitlines()]


def line_of(request_id: str, version: int) -> bytes:
    verdict = {"status": "committed", "version": version, "leader_id": LEADER, "request_id": request_id}
    return json.dumps(verdict).encode() + b"\n"


def error_line(code: str, index: int, **fields: object) -> bytes:
    return json.dumps({"error": {"code": code, "message": code}, "index": index, **fields}).encode() + b"\n"


class Exchange:
    """One request, and the connection to answer it on."""

    def __init__(self, service: CommitService, asked: Asked, connection: socket.socket) -> None:
        self.service, self.asked, self._connection = service, asked, connection
        self.path = asked.target.partition("?")[0]
        self.ids = ids_of(asked) if self.path in ("/v1/commit", "/v1/commits") else []
        self.is_open = self.is_first = False
        self.is_cut = False

    def reply(self, body: object, status: int = 200) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self._connection.sendall(b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n%b" % (status, len(data), data))

    def refuse(self, status: int, code: str) -> None:
        self.reply({"error": {"code": code, "message": code}}, status)

    def lines(self, *lines: bytes) -> None:
        """A part of the response to a stream of commits."""
        data = b"".join(lines)
        head = b"" if self.is_open else HEAD
        self.is_open = True
        self._connection.sendall(b"%b%x\r\n%b\r\n" % (head, len(data), data) if data else head)

    def end(self) -> None:
        if not self.is_open:
            self.lines()
        self._connection.sendall(b"0\r\n\r\n")

    def cut(self) -> None:
        self.is_cut = True

    def commit(self, *ids: str) -> list[bytes]:
        return [self.service.commit(each) for each in ids]


class CommitService:
    """``alone``, ``several`` and ``status`` answer the three kinds of requests; by default everything commits.

    The first commit that is alone gets its answer when ``gate`` is set.
    """

    def __init__(self, *, several: Answer | None = None, status: Answer | None = None, gated: bool = True) -> None:
        self.several, self.status = several or self.commit_several, status or self.say_status
        self.gate = threading.Event()
        if not gated:
            self.gate.set()
        self.asked: list[Asked] = []
        self.versions: dict[str, int] = {}
        self.connections = 0
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._start(self._accept)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.gate.set()
        for sock in (self._listener, *self._open):
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            sock.close()
        for thread in self._threads:
            thread.join(5)
            assert not thread.is_alive(), "the threads of the service end with it"

    def commit(self, request_id: str) -> bytes:
        """Commit; its line. Twice is a mistake of the client."""
        with self._lock:
            assert request_id not in self.versions, "a commit is sent once"
            self.versions[request_id] = 100 + len(self.versions)
            return line_of(request_id, self.versions[request_id])

    def commit_several(self, exchange: Exchange) -> None:
        exchange.lines(*exchange.commit(*exchange.ids))
        exchange.end()

    def say_status(self, exchange: Exchange) -> None:
        request_id = exchange.path.rpartition("/")[2]
        version = self.versions.get(request_id)
        exchange.reply({"status": "not_committed"} if version is None else {"status": "committed", "version": version})

    def targets(self) -> list[str]:
        return [asked.target.partition("?")[0] for asked in self.asked]

    def streams(self) -> list[list[str]]:
        """The ids in each stream of commits."""
        return [ids_of(asked) for asked in self.asked if asked.target == "/v1/commits"]

    def statuses(self) -> list[str]:
        return [target.rpartition("/")[2] for target in self.targets() if target.startswith("/v1/status/")]

    def _start(self, target: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._open.append(connection)
            self._start(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        try:
            while (asked := _read_request(connection, lambda: False)) is not None:
                exchange = Exchange(self, asked, connection)
                with self._lock:
                    self.asked.append(asked)
                    exchange.is_first = self.targets().count("/v1/commit") == 1
                self._answer(exchange)
                if exchange.is_cut:
                    break
        except OSError:
            pass
        finally:
            connection.close()

    def _answer(self, exchange: Exchange) -> None:
        if exchange.path == "/v1/version":
            exchange.reply({"version": 50, "leader_id": LEADER, "log_id": "cd" * 16})
        elif exchange.path == "/v1/commits":
            self.several(exchange)
        elif exchange.path == "/v1/commit":
            assert not exchange.is_first or self.gate.wait(20), "a test opens its gate"
            exchange.reply(exchange.commit(*exchange.ids)[0])
        elif exchange.path.startswith("/v1/keys/"):
            assert self.gate.wait(20), "a test opens its gate"
            text = exchange.path.rpartition("/")[2]
            key = base64.b64encode(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))).decode()
            exchange.reply({"key": key, "value": key, "version": 60})
        elif exchange.path == "/v1/read":
            keys = [item["key"] for item in json.loads(exchange.asked.body)["items"]]
            found = [{"index": index, "value": key, "version": 61} for index, key in enumerate(keys)]
            exchange.reply({"version": 70, "items": found})
        else:
            self.status(exchange)


class Crowd:
    """Callers that commit at the same time through one client, of either kind."""

    def __init__(self, face: Any, service: CommitService) -> None:
        self._face, self._service = face, service
        self._threads: list[threading.Thread] = []
        self.method = "commit"
        self.outcomes: dict[int, Any] = {}
        """By caller: its receipt, or what it raised."""

    @property
    def machine(self) -> Any:
        return self._face.client._commits.machine

    def begin(self, count: int, **arguments: Any) -> None:
        """One that is alone, and ``count`` others that wait for it."""
        self.call([{}, *[arguments] * count])
        until(lambda: len(self.machine._waiting) == count, "everyone waits")

    def read(self, keys: Sequence[bytes]) -> None:
        """One caller that reads each of these; the first is alone, and the others wait for it."""
        self.method, first = "get", "/v1/keys/"
        if isinstance(self._face, AsyncFace):
            self._start(self._tasks, [{"key": key} for key in keys])
        else:
            for number, key in enumerate(keys):
                self._start(self._thread, number, {"key": key})
                if not number:
                    until(lambda: any(first in target for target in self._service.targets()), "the first is sent")
        until(lambda: len(self._face.client._reads.machine._waiting) == len(keys) - 1, "everyone waits")

    def call(self, calls: Sequence[dict[str, Any]]) -> None:
        """One caller for each; the first has sent its request when the second begins."""
        if isinstance(self._face, AsyncFace):
            self._start(self._tasks, calls)
        else:
            for number, arguments in enumerate(calls):
                self._start(self._thread, number, arguments)
                if not number:
                    until(lambda: "/v1/commit" in self._service.targets(), "the first is sent")

    def end(self, count: int | None = None) -> list[Any]:
        """What became of each."""
        for thread in self._threads:
            thread.join(20)
            assert not thread.is_alive(), "every caller gets an answer"
        self.machine.check()
        return [self.outcomes[number] for number in sorted(self.outcomes)]

    def _start(self, target: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _thread(self, number: int, arguments: dict[str, Any]) -> None:
        try:
            self.outcomes[number] = self._call(arguments)
        except HoldfastError as error:
            self.outcomes[number] = error

    def _call(self, arguments: dict[str, Any]) -> Any:
        client = self._face.client
        return client.commit(WRITE, **arguments) if self.method == "commit" else client.get(**arguments)

    def _tasks(self, calls: Sequence[dict[str, Any]]) -> None:
        import asyncio

        async def go() -> None:
            found = await asyncio.gather(*map(self._call, calls), return_exceptions=True)
            self.outcomes.update(enumerate(found))

        self._face._runner.run(go())
