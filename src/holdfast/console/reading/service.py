"""One service as one token sees it: what the pages read and do, through the client library, within short bounds.

A read that the service answers slowly is not repeated at once: its result is kept for twenty times as long as it took,
at most ten seconds, so that pages that refresh themselves cost the service little. Only ``/livez`` is asked each time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ssl import SSLContext
from typing import Final, cast
from urllib.parse import urlencode

import msgspec
import yaml

from holdfast.client.aio.client import Client
from holdfast.client.aio.stores import StoreClient
from holdfast.client.protocol.effects import Request, Response
from holdfast.client.protocol.messages import COORDINATION_CODES, decode
from holdfast.client.protocol.options import ClientOptions
from holdfast.client.protocol.stores.administration import ask
from holdfast.client.protocol.stores.messages import request_of
from holdfast.client.transport.clock import now_ms
from holdfast.errors import HoldfastError, InvalidRequest, PermissionDenied, Unavailable
from holdfast.files.document_process import DocumentReader
from holdfast.wire.log import Liveness, Readiness

Document = dict[str, object]

REQUEST_MS: Final = 5_000
KEPT_TIMES: Final = 20
KEPT_SECONDS_MIN: Final = 0.5
KEPT_SECONDS_MAX: Final = 10.0
KEPT_MAX: Final = 128
"""Results that are kept at the same time."""
PAGE_MAX: Final = 500
COLLECTION_MAX: Final = 50_000
NEED_ROLE: Final[Mapping[str, str]] = {"admin": "/v1/admin/log-level", "write": "/v1/status"}
"""A read that needs each role. The second one is refused for its missing parameters after that."""
STORES_PATHS: Final = ("/v1/stores", "/v1/cluster")
"""Their requests may be msgpack, which has bytes; the log's routes take JSON."""


def client_options(trusted_hosts: tuple[str, ...] = (), *, follow_leader: bool = True) -> ClientOptions:
    """Short bounds: a page that says "the service does not answer" is better than none."""
    return ClientOptions(
        request_timeout_ms=REQUEST_MS,
        give_up_after_ms=REQUEST_MS,
        resolve_within_ms=REQUEST_MS,
        stream_give_up_after_ms=REQUEST_MS,
        connections_max=16,
        follow_leader=follow_leader,
        trusted_hosts=trusted_hosts,
    )


@dataclass(frozen=True, slots=True)
class Member:
    """One address: ``alive`` is what it says of itself, or ``problem`` why it does not, after ``seconds``."""

    url: str
    alive: Liveness | None
    problem: HoldfastError | None
    seconds: float

    @property
    def leads(self) -> bool:
        """Whether it says that it leads."""
        return self.alive is not None and self.alive.leading


class WatchedService:
    """The addresses of one service, asked with one token."""

    def __init__(
        self,
        urls: Sequence[str],
        token: str | None,
        tls: SSLContext | None = None,
        trusted_hosts: tuple[str, ...] = (),
    ) -> None:
        self.urls = tuple(urls)
        self.has_token = token is not None
        options = client_options(trusted_hosts)
        self._log = Client(self.urls, token=token, tls=tls, options=options)
        self._stores = StoreClient(self.urls, token=token, tls=tls, options=options)
        self._members = {
            url: Client(url, token=token, tls=tls, options=client_options(follow_leader=False)) for url in self.urls
        }
        self._kept: dict[tuple[str, str], tuple[float, Response]] = {}
        self.away: HoldfastError | None = None
        """Why no process of the service answers, as far as the watcher knows: then nothing is asked of it."""
        self._asking: dict[tuple[str, str], asyncio.Task[Response]] = {}

    @property
    def log(self) -> Client:
        """The client of the log. Raises: Unavailable while the service is away, instead of waiting for it."""
        self._require_answer()
        return self._log

    @property
    def stores(self) -> StoreClient:
        """The client of the message stores. Raises: as ``log``."""
        self._require_answer()
        return self._stores

    def _require_answer(self) -> None:
        if self.away is not None:
            raise Unavailable("the service does not answer", cause=self.away)

    async def aclose(self) -> None:
        """Close every connection."""
        await self._log.aclose()
        await self._stores.aclose()
        for member in self._members.values():
            await member.aclose()

    async def read(self, target: str, *, member: str = "") -> Document:
        """A document of the service, at most as old as the module says. Raises: what the service refuses with."""
        return decode(await self._kept_response(request_of("GET", target), member), Document)

    async def collection(self, target: str, name: str) -> list[Document]:
        """Every document of a collection of the stores, page by page, so that no request is long. Raises: as ``read``;
        InvalidRequest above ``COLLECTION_MAX``."""
        collected: list[Document] = []
        after = ""
        while True:
            query = urlencode({"max": PAGE_MAX, **({"after": after} if after else {})})
            page = await self.read(f"{target}{'&' if '?' in target else '?'}{query}")
            collected += documents(page.get(name))
            if not page.get("more"):
                return collected
            if len(collected) >= COLLECTION_MAX:
                raise InvalidRequest(f"there are more than {COLLECTION_MAX:,} {name}: the console does not show them")
            after = str(collected[-1]["name"])

    async def read_text(self, target: str, *, member: str = "") -> str:
        """The same of a route that answers text."""
        return (await self._kept_response(Request("GET", target), member)).body.decode()

    def member_named(self, url: str) -> str:
        """One of the addresses, that of a page's query; without one the first. Raises: InvalidRequest."""
        if url and url not in self._members:
            raise InvalidRequest("the console was not started with this address", address=url[:200])
        return url or self.urls[0]

    async def members(self) -> list[Member]:
        """Every address asked by itself, once, at the same time."""
        return list(await asyncio.gather(*(self._member(url) for url in self.urls)))

    async def _member(self, url: str) -> Member:
        began = time.monotonic()
        try:
            response = await self._read(Request("GET", "/livez"), url)
        except HoldfastError as error:
            return Member(url, None, error, time.monotonic() - began)
        alive = msgspec.json.decode(response.body, type=Liveness)
        return Member(url, alive, None, time.monotonic() - began)

    async def readiness(self, member: str) -> Readiness:
        """Whether a process accepts commits. Raises: the reason why it does not."""
        response = await self._kept_response(Request("GET", "/readyz"), member)
        return msgspec.json.decode(response.body, type=Readiness)

    async def refusal_of(self, role: str) -> PermissionDenied | None:
        """Why the token lacks a role, by a read that needs it; None where it has it, or where that is not known."""
        try:
            await self.read(NEED_ROLE[role])
        except PermissionDenied as error:
            return error
        except HoldfastError:
            return None  # it passed the check of roles, or the service does not answer
        return None

    async def change(
        self, method: str, target: str, body: Mapping[str, object] | None = None, *, member: str = ""
    ) -> Document:
        """Ask for a change that no call of the client has, of ``member`` where one is named. Raises: as the service
        does."""
        if body is None or target.startswith(STORES_PATHS):
            request = request_of(method, target, None if body is None else dict(body))
        else:
            request = Request(method, target, msgspec.json.encode(body), (("content-type", "application/json"),))
        client = self._members[member] if member else self.log
        response = await client.run(ask(client.session, request, now_ms(), REQUEST_MS, repeatable=False))
        return decode(response, Document) if response.body else {}

    def forget(self) -> None:
        """Ask again: something was changed."""
        self._kept.clear()

    async def _kept_response(self, request: Request, member: str) -> Response:
        key = (member, request.target)
        until, response = self._kept.get(key, (0.0, None))
        if response is not None and time.monotonic() < until:
            return response
        task = self._asking.get(key)
        if task is None:
            task = self._asking[key] = asyncio.ensure_future(self._timed(key, request, member))
            task.add_done_callback(lambda done: self._asked(key, done))
        return await asyncio.shield(task)

    def _asked(self, key: tuple[str, str], task: asyncio.Task[Response]) -> None:
        self._asking.pop(key, None)
        if not task.cancelled():
            task.exception()  # a reader that waits gets it; without one it is read here

    async def _timed(self, key: tuple[str, str], request: Request, member: str) -> Response:
        began = time.monotonic()
        response = await self._read(request, member)
        took = time.monotonic() - began
        if len(self._kept) >= KEPT_MAX:
            self._kept.pop(next(iter(self._kept)))
        self._kept[key] = (time.monotonic() + min(max(KEPT_SECONDS_MIN, KEPT_TIMES * took), KEPT_SECONDS_MAX), response)
        return response

    async def _read(self, request: Request, member: str) -> Response:
        """The response of one try; each address has one where none is named, so that the leader is found."""
        client = self._members[member] if member else self.log
        tries = 1 if member else len(self.urls) + 1
        while True:
            tries -= 1
            try:
                return await client.run(ask(client.session, request, now_ms(), 0))
            except HoldfastError as error:
                if not tries or (error.code not in COORDINATION_CODES and not isinstance(error, Unavailable)):
                    raise


def documents(value: object) -> list[Document]:
    """A list of documents within a document."""
    return cast("list[Document]", value) if isinstance(value, list) else []


def document(value: object) -> Document:
    """A document within a document."""
    return cast(Document, value) if isinstance(value, dict) else {}


def number(value: object) -> float:
    """A number within a document; 0 where it has none."""
    return value if isinstance(value, int | float) else 0


COUNTS: Final = "counts"
NOT_PARAMETERS: Final = frozenset(
    {"name", "store", "dynamic", "template", COUNTS, "subscribers", "durables", "templates", "locks"}
)


def count_of(part: Document, name: str) -> float:
    """One of the counts of a store or durable."""
    return number(document(part.get(COUNTS)).get(name))


def name_of(part: Document) -> str:
    """Its name."""
    return str(part["name"])


def yaml_of(value: object) -> str:
    """A document as a person edits it."""
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True, default_flow_style=False)


async def document_of(text: str, what: str, reader: DocumentReader) -> Document:
    """A document that a person wrote as YAML or JSON; nothing is an empty one. Raises: InvalidRequest."""
    try:
        value = await reader.read(text) if text.strip() else {}
    except ValueError as error:
        raise InvalidRequest(f"{what} cannot be read: {error}") from None
    if not isinstance(value, dict):
        raise InvalidRequest(f"{what} must be a map, such as name: value")
    return cast(Document, value)
