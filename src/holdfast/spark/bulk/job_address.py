"""The address of a job that leads a log: it answers ``GET /livez`` as a service does, and refuses everything else.

A service that starts, and a standby, ask the leader that the newest record names before they claim. Without an answer
they would take an idle job for dead. Liveness only: what a deposed job wrote is never live, whatever it answers.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import Callable
from typing import Final

from holdfast.commit.leadership.evidence import Shown
from holdfast.commit.leadership.takeover import outward_host
from holdfast.errors import Code
from holdfast.objects.port import ObjectStore
from holdfast.spark.runtime.refusals import bad_configuration
from holdfast.spark.runtime.store_thread import LoopThread
from holdfast.values import slot_text

HEAD_BYTES_MAX: Final = 16_384
REQUEST_SECONDS_MAX: Final = 5.0
CONNECTIONS_MAX: Final = 64


class JobAddress:
    """Listens from construction until ``close``, on the loop of the job's store. ``leader_id`` is what it answers, from
    the first answer on, with what the job has ``shown`` of itself.

    Raises: InvalidRequest (nothing can listen there). Cost: nothing while nobody asks.
    """

    def __init__(
        self, thread: LoopThread[ObjectStore], listen: str, leader_id: str, shown: Callable[[], Shown]
    ) -> None:
        self._leader_id = leader_id
        self._shown = shown
        self._connections = 0
        host, port = _parts(listen)
        try:
            self._listening = socket.create_server(
                (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET
            )
        except OSError as error:
            raise bad_configuration(
                "a job cannot listen at this address",
                hint="give --listen HOST:PORT, an address of this machine that services of the log can reach",
                listen=listen,
                cause=str(error),
            ) from error
        text = f"[{host}]" if ":" in host else host
        self.address = f"http://{text}:{self._listening.getsockname()[1]}"
        self._server = thread.run(
            lambda _: asyncio.start_server(self._answer, sock=self._listening, limit=HEAD_BYTES_MAX)
        )

    def close(self) -> None:
        """Answer no more. Harmless when repeated."""
        try:
            self._server.get_loop().call_soon_threadsafe(self._server.close)
        except RuntimeError:  # the loop is closed, which leaves the socket open
            self._listening.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        try:
            if self._connections <= CONNECTIONS_MAX:
                async with asyncio.timeout(REQUEST_SECONDS_MAX):
                    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                    writer.write(self._response(head.partition("\r\n")[0]))
                    await writer.drain()
                    if re.search(r"\n\s*(content-length|transfer-encoding)\s*:", head, re.IGNORECASE):
                        # A connection that is closed before its request was read may lose the answer.
                        while await reader.read(HEAD_BYTES_MAX):
                            pass
        except (OSError, TimeoutError, ValueError, EOFError, asyncio.LimitOverrunError):
            pass  # the other side gets no answer, and asks again
        finally:
            self._connections -= 1
            writer.close()

    def _response(self, line: str) -> bytes:
        method, _, target = line.partition(" ")
        path = target.partition(" ")[0].partition("?")[0]
        if method != "GET" or path != "/livez":
            return _encode("503 Service Unavailable", _REFUSAL, "Retry-After: 1\r\n")
        shown = self._shown()
        slot = "" if shown.slot is None else slot_text(shown.slot)
        alive = {"leader_id": self._leader_id, "leading": True, "address": self.address, "job": True}
        return _encode("200 OK", {**alive, "slot": slot, "sign": shown.sign})


_REFUSAL: Final = {
    "error": {
        "code": str(Code.NOT_LEADER),
        "message": "a Spark job leads this log, and takes no requests over HTTP",
    }
}


def _encode(status: str, body: object, more: str = "") -> bytes:
    data = json.dumps(body).encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n{more}"
    return f"{head}Connection: close\r\n\r\n".encode() + data


def own_address(*, shared_by_machines: bool) -> str:
    """Where a job listens by default, with any free port: this machine alone, or its address in the network."""
    return f"{outward_host() if shared_by_machines else '127.0.0.1'}:0"


def _parts(listen: str) -> tuple[str, int]:
    host, _, port = listen.rpartition(":")
    host = host.strip("[]")
    if not host or not port.isdecimal() or int(port) > 65_535:
        raise bad_configuration(
            "not an address to listen at",
            hint="give HOST:PORT, for example 10.0.0.7:8090; port 0 is any free one",
            listen=listen,
        )
    return host, int(port)
