"""A server on a real socket that follows a script: one step per request, in the order the requests arrive.

Owns: framing, recording what was asked, carrying out steps. It knows nothing of commits: tests say what is answered.
"""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

__all__ = ["Reply", "Asked", "CutInside", "Drop", "ScriptedServer", "Silence", "Step", "Stream", "Unsealed", "coded"]


@dataclass(frozen=True)
class Asked:
    """One request as it arrived."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes

    def json(self) -> dict[str, object]:
        decoded: dict[str, object] = json.loads(self.body)
        return decoded


@dataclass(frozen=True)
class Reply:
    """Answer with this status and body."""

    status: int
    body: object
    headers: dict[str, str] = field(default_factory=dict)
    close: bool = False

    def encoded(self) -> bytes:
        body = self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()
        lines = [f"HTTP/1.1 {self.status} Scripted", f"content-length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in self.headers.items()]
        if self.close:
            lines.append("connection: close")
        return ("\r\n".join(lines) + "\r\n\r\n").encode() + body


@dataclass(frozen=True)
class Drop:
    """Read the whole request, send these bytes, cut the connection."""

    after: bytes = b""


@dataclass(frozen=True)
class CutInside:
    """Cut the connection in the middle of the request, which has to be longer than what the kernel holds for it.

    Before that, send these bytes.
    """

    after: bytes = b""


@dataclass(frozen=True)
class Unsealed:
    """Read the whole request, send these bytes outside of the connection's TLS, cut the connection."""

    after: bytes = b"HTTP/1.1 502 Bad Gateway\r\n\r\n"


@dataclass(frozen=True)
class Silence:
    """Read the whole request and never answer."""


@dataclass(frozen=True)
class Stream:
    """Open an event stream, send these parts, then end it (or hold it open in silence)."""

    parts: tuple[bytes, ...]
    hold: bool = False


Step = Reply | CutInside | Drop | Silence | Stream | Unsealed


def coded(status: int, code: str, **fields: object) -> Reply:
    """An error answer of the service."""
    return Reply(status, {"error": {"code": code, "message": code, **fields}})


def _is_sign(step: Step) -> bool:
    return isinstance(step, Reply) and isinstance(step.body, dict) and "leading" in step.body


class ScriptedServer:
    def __init__(self, *steps: Step, unix_path: str | None = None, tls: ssl.SSLContext | None = None) -> None:
        self._steps: deque[Step] = deque(steps)
        self._tls = tls
        self._sign: Step | None = None
        self.asked: list[Asked] = []
        self.connections = 0
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        if unix_path is None:
            self._listener = socket.create_server(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
            self.url = f"http{'' if tls is None else 's'}://{self.address}"
        else:
            self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._listener.bind(unix_path)
            self._listener.listen()
            self.address = self.url = f"unix:{unix_path}"
        self._start(self._accept)

    def add(self, *steps: Step) -> None:
        self._steps.extend(steps)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def finished(self) -> bool:
        """Every step was used."""
        return not self._steps

    def close(self) -> None:
        for sock in [self._listener, *self._open]:
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            sock.close()
        for thread in self._threads:
            thread.join(5)
            assert not thread.is_alive(), "the script's threads end with it"

    def _start(self, target: object, *args: object) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            self._open.append(connection)
            self._start(self._serve, connection)

    def _is_cut(self) -> bool:
        return bool(self._steps) and isinstance(self._steps[0], CutInside)

    def _next(self, asked: Asked) -> Step:
        """The next step. A sign of life that is asked for again, as on a slow machine, is the one before, and does not
        count."""
        is_sign = asked.target == "/livez"
        if is_sign and self._sign is not None and not (self._steps and _is_sign(self._steps[0])):
            return self._sign
        self.asked.append(asked)
        step = self._steps.popleft() if self._steps else Reply(500, b"the script is at its end")
        if is_sign and _is_sign(step):
            self._sign = step
        return step

    def _serve(self, connection: socket.socket) -> None:
        try:
            if self._tls is not None:
                connection = self._tls.wrap_socket(connection, server_side=True)
                self._open.append(connection)
            while (asked := _read_request(connection, self._is_cut)) is not None:
                with self._lock:
                    step = self._next(asked)
                if not _carry_out(connection, step):
                    break
        except OSError:
            pass
        finally:
            connection.close()


def _read_request(connection: socket.socket, is_cut: Callable[[], bool]) -> Asked | None:
    data = b""
    while b"\r\n\r\n" not in data:
        more = connection.recv(65536)
        if not more:
            return None
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    method, target, _ = first.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    while not is_cut() and len(body) < int(headers.get("content-length", "0")):
        body += connection.recv(65536)
    return Asked(method, target, headers, body)


def _carry_out(connection: socket.socket, step: Step) -> bool:
    """Whether the connection may carry another request."""
    match step:
        case Reply():
            connection.sendall(step.encoded())
            return not step.close
        case Drop(after=after):
            connection.sendall(after)
            return False
        case CutInside(after=after):
            connection.sendall(after)
            return False
        case Unsealed(after=after):
            assert isinstance(connection, ssl.SSLSocket), "there is TLS to break"
            socket.socket.send(connection, after)
            return False
        case Silence():
            connection.recv(1)
            return False
        case Stream(parts=parts, hold=hold):
            connection.sendall(
                b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
            )
            for part in parts:
                connection.sendall(b"%x\r\n%b\r\n" % (len(part), part))
            if hold:
                connection.recv(1)
            else:
                connection.sendall(b"0\r\n\r\n")
            return False
