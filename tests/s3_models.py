"""A small S3 server with its objects in memory, and models of stores that only look exclusive.

``Model`` names what a server does with ``If-None-Match: *``. Each of the faulty ones passes a client that sends two
creates one after the other. The server runs on a thread, speaks the part of S3 that the package uses, and checks no
signature. Each connection goes to any of two gateways, as behind a balancer.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import formatdate
from enum import StrEnum
from random import Random
from types import TracebackType
from typing import Final, Self
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

__all__ = ["Model", "S3Models"]

GATEWAYS: Final = 2
BODY_PART_BYTES: Final = 64 * 1024


class Model(StrEnum):
    """How a server decides a conditional create."""

    SOUND = "sound"
    """One lock, taken when the body is there."""
    NO_COMMON_LOCK = "no_common_lock"
    """Two gateways over one backend: each locks a name, and neither knows of the other's lock."""
    CHECKS_EARLY = "checks_early"
    """The check is made before the body has arrived, and not again."""
    TWO_SITES = "two_sites"
    """Each gateway has its own backend, and copies to the other one later."""
    ABSENCE_IS_CACHED = "absence_is_cached"
    """One gateway remembers for a while that a name is absent."""
    OVERWRITES_LATER = "overwrites_later"
    """A refused create takes effect after a second."""


@dataclass(slots=True)
class Request:
    method: str
    key: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes = b""

    @property
    def is_conditional(self) -> bool:
        return self.headers.get("if-none-match") == "*"


@dataclass(frozen=True, slots=True)
class Response:
    status: int
    body: bytes = b""
    headers: str = ""


NOT_FOUND: Final = Response(404, b"<Error><Code>NoSuchKey</Code></Error>")
TAKEN: Final = Response(412, b"<Error><Code>PreconditionFailed</Code></Error>")
STORED: Final = Response(200, headers='ETag: "1"\r\n')


class S3Models:
    """One server. ``window_ms``: how long a gateway takes between its check and its write, at least.

    ``trouble(request)`` may give a response in place of the store's, before anything is done.
    """

    def __init__(
        self, model: Model, *, window_ms: float = 0.0, trouble: Callable[[Request], Response | None] | None = None
    ) -> None:
        self.model = model
        self.window_ms = window_ms
        self.trouble = trouble
        self.connections = 0
        backends: list[dict[str, bytes]] = [{} for _ in range(GATEWAYS)]
        self._backends = backends if model is Model.TWO_SITES else [backends[0]] * GATEWAYS
        self._locks: list[defaultdict[str, asyncio.Lock]] = [defaultdict(asyncio.Lock) for _ in range(GATEWAYS)]
        self._absent_until: dict[str, float] = {}
        self._random = Random(7)
        self._started: Future[int] = Future()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self.port = self._started.result(30)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._ended.set_result, None)
        self._thread.join(30)

    def url(self, prefix: str = "log") -> str:
        """Where a log may be."""
        return f"s3://bucket/{prefix}?region=us-east-1&endpoint=http://127.0.0.1:{self.port}"

    @property
    def keys(self) -> list[str]:
        """The names of all objects."""
        return sorted({key for backend in self._backends for key in backend})

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ended = self._loop.create_future()
        server = await asyncio.start_server(self._converse, "127.0.0.1", 0)
        self._started.set_result(server.sockets[0].getsockname()[1])
        await self._ended
        server.close()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        gateway = self._random.randrange(GATEWAYS)
        self.connections += 1
        try:
            while (request := await _read_head(reader)) is not None:
                response = await self._answer(gateway, request, reader)
                length = f"Content-Length: {len(response.body)}\r\n"
                if request.method == "HEAD":
                    response = Response(response.status, b"", response.headers)
                elif response.status == 204:
                    length = ""
                heads = f"{length}Last-Modified: {formatdate(usegmt=True)}\r\n{response.headers}"
                writer.write(f"HTTP/1.1 {response.status} X\r\n{heads}\r\n".encode() + response.body)
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the client or the server has ended
        finally:
            writer.close()

    async def _answer(self, gateway: int, request: Request, reader: asyncio.StreamReader) -> Response:
        length = int(request.headers.get("content-length", "0"))
        backend = self._backends[gateway]
        if request.method != "PUT":
            request.body = await reader.readexactly(length)
            return self._answer_other(backend, request)
        taken = request.key in backend
        checked = self._loop.time()
        request.body = await reader.readexactly(length)
        if self.trouble is not None and (response := self.trouble(request)) is not None:
            return response
        match self.model if request.is_conditional else None:
            case Model.NO_COMMON_LOCK:
                async with self._locks[gateway][request.key]:
                    taken = request.key in backend
                    await asyncio.sleep(self.window_ms / 1000.0)
                    return self._put(backend, request, taken)
            case Model.CHECKS_EARLY:
                await asyncio.sleep(self.window_ms / 1000.0 - (self._loop.time() - checked))
                return self._put(backend, request, taken)
            case Model.TWO_SITES:
                answer = self._put(backend, request, request.key in backend)
                self._soon(0.5, lambda: self._backends[1 - gateway].__setitem__(request.key, request.body), answer)
                return answer
            case Model.ABSENCE_IS_CACHED if gateway == 1:
                absent = self._loop.time() < self._absent_until.get(request.key, 0.0)
                taken = request.key in backend and not absent
                if request.key not in backend:
                    self._absent_until[request.key] = self._loop.time() + self.window_ms / 1000.0
                return self._put(backend, request, taken)
            case Model.OVERWRITES_LATER:
                answer = self._put(backend, request, request.key in backend)
                if answer is TAKEN:
                    self._soon(1.0, lambda: backend.__setitem__(request.key, request.body), STORED)
                return answer
            case _:
                return self._put(backend, request, request.is_conditional and request.key in backend)

    def _soon(self, seconds: float, act: Callable[[], None], answer: Response) -> None:
        if answer is STORED:
            self._loop.call_later(seconds, act)

    @staticmethod
    def _put(backend: dict[str, bytes], request: Request, taken: bool) -> Response:
        if taken:
            return TAKEN
        backend[request.key] = request.body
        return STORED

    def _answer_other(self, backend: dict[str, bytes], request: Request) -> Response:
        if request.method == "POST":
            removed = re.findall(r"<Key>([^<]*)</Key>", request.body.decode())
            for key in removed:
                self._remove(key)
            rows = "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in removed)
            return Response(200, f"<DeleteResult>{rows}</DeleteResult>".encode())
        if request.method == "DELETE":
            self._remove(request.key)
            return Response(204)
        if not request.key:
            return _listing(backend, request.query)
        data = backend.get(request.key)
        if data is None:
            return NOT_FOUND
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", request.headers.get("range", ""))
        if wanted is None:
            return Response(200, data, 'ETag: "1"\r\n')
        first, last = int(wanted[1]), int(wanted[2] or len(data) - 1)
        if first >= len(data):
            return Response(416)
        part = data[first : last + 1]
        span = f"Content-Range: bytes {first}-{first + len(part) - 1}/{len(data)}\r\n"
        return Response(206, part, f'{span}ETag: "1"\r\n')

    def _remove(self, key: str) -> None:
        for backend in self._backends:
            backend.pop(key, None)


async def _read_head(reader: asyncio.StreamReader) -> Request | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.decode("latin-1").split("\r\n")
    method, target, _ = first.split(" ", 2)
    parts = urlsplit(target)
    query = {name: values[0] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)}
    return Request(method, unquote(parts.path).lstrip("/").partition("/")[2], query, headers)


def _listing(backend: dict[str, bytes], query: dict[str, str]) -> Response:
    prefix, limit = query.get("prefix", ""), int(query.get("max-keys", "1000"))
    after = max(query.get("start-after", ""), query.get("continuation-token", ""))
    keys = [key for key in sorted(backend) if key.startswith(prefix) and key > after]
    page = keys[:limit]
    rows = "".join(
        f"<Contents><Key>{escape(key)}</Key><LastModified>{datetime.now(UTC):%Y-%m-%dT%H:%M:%S}.000Z</LastModified>"
        f"<ETag>&quot;1&quot;</ETag><Size>{len(backend[key])}</Size></Contents>"
        for key in page
    )
    more = len(page) < len(keys)
    token = f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>" if more else ""
    body = f"<ListBucketResult><IsTruncated>{str(more).lower()}</IsTruncated>{token}{rows}</ListBucketResult>"
    return Response(200, body.encode(), "Content-Type: application/xml\r\n")
