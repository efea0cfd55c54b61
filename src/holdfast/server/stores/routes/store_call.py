"""What the handlers of store routes share: rights, formats, names in paths, and how their rows are made."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal, TypeVar

from holdfast.errors import Code, HoldfastError, InvalidRequest
from holdfast.server.http.responses import without_traceback
from holdfast.server.http.routes import Call, Parameter, Response, Route
from holdfast.server.stores.hosting import OpenStores, StoreHost
from holdfast.server.stores.hot_routes import HotRequest
from holdfast.server.stores.operations import DEFAULT_DURABLE, decode
from holdfast.stores.definitions.permissions import CLUSTER
from holdfast.wire.formats import (
    MSGPACK,
    UNDECODABLE,
    decode_each_once,
    encode,
    format_of,
    require_few_values,
)
from holdfast.wire.parts import TOKEN_MAX

DOCUMENT_VALUES_MAX: Final = 200_000
DOCUMENT_BYTES_MAX: Final = 1 << 20
"""Of a document of plain values, such as a definition: in JSON and in msgpack. It is decoded on the loop."""
JSON: Final = "application/json"
EVERY_STORE: Final = "/v1/stores"
DOCUMENT: Final = dict[str, Any]
"""A JSON object that the reference page describes."""
T = TypeVar("T")
Result = TypeVar("Result")
TOKEN: Final[Parameter] = Parameter(
    "token", "query", {"type": "string", "maxLength": TOKEN_MAX}, "Of an earlier answer; of another one it is refused"
)
"""Which store and durable the request means, of all that had the name."""

STORE_CODES: Final = (
    *(Code.NOT_LEADER, Code.OVERLOADED, Code.NOT_FOUND, Code.BAD_BASE64, Code.TOO_LARGE, Code.NO_QUORUM),
    *(Code.OUTCOME_UNKNOWN, Code.CLOSED),
)
"""The error codes of every store route, in addition to those of any route."""

_PATH_PARAMETERS: Final[Mapping[str, tuple[object, str]]] = {
    "store": ("orders", "The store's name"),
    "durable": ("work", "The durable's name"),
    "template": ("jobs", "The template's name"),
    "map": ("prices", "The name of the durable of type map"),
    "key": ("k", "The key"),
    "seq": (1, "The number of the message in its store"),
    "revision": (1, "The number of the definition in the history"),
}
"""An example and a description of each."""


@dataclass(slots=True, eq=False)
class StoreCall:
    """One request to a store route, after its rights were checked. Raises: Closed (``store_replaced``).

    ``has_token``: the query may have one. ``through``: the number of the store that the request remembers, where it
    remembers one.
    """

    call: Call
    host: StoreHost
    opened: OpenStores
    has_token: bool
    through: Callable[[Call], int | None]

    def __post_init__(self) -> None:
        self.require_token()

    @property
    def store(self) -> str:
        """The store of the path; ``CLUSTER`` where it names none."""
        return _store_of(self.call)

    @property
    def durable(self) -> str:
        """The durable of the path, or the map."""
        path = self.call.path
        return path["durable"] if "durable" in path else path["map"]

    async def raw_body(self) -> bytes:
        """The request's body as it came. Raises: LimitExceeded; PermissionDenied for a right that has ended."""
        return await self.call.body(self.host.request_bytes_max)

    async def body(self, kind: type[T]) -> T:
        """The request's body; a token in it is checked. Raises: InvalidRequest, LimitExceeded, Closed."""
        request = decode(await self.raw_body(), kind, format_of(self.call.header("content-type")))
        self.require_token(getattr(request, "token", ""))
        return request

    async def document(self) -> object:
        """The request's body as plain values. Raises: InvalidRequest, LimitExceeded, Closed (``store_replaced``)."""
        data = await self.raw_body()
        self.require_token()
        body_format = format_of(self.call.header("content-type"))
        require_few_values(data, DOCUMENT_VALUES_MAX if body_format == "json" else DOCUMENT_BYTES_MAX, body_format)
        try:
            return decode_each_once(data, object, body_format)
        except UNDECODABLE as error:
            raise InvalidRequest(f"the request cannot be decoded: {error}") from error

    def answer(self, body: object, *, headers: Mapping[str, str] | None = None) -> Response:
        """A whole answer in the format that was asked for."""
        wire_format = format_of(self.call.header("accept"))
        media_type = JSON if wire_format == "json" else MSGPACK
        return Response(encode(body, wire_format), 200, headers or {}, media_type)

    async def hot(
        self, route: str, body: bytes = b"", *, durable: str = "", poll: Mapping[str, str] | None = None
    ) -> Response:
        """Serve a hot route by the handler of both kinds of connection."""
        return await self.call.serve(HotRequest(self.host, route, self.call.need, self.store, durable, poll), body)

    def require_token(self, of_body: str = "") -> None:
        """Return if the tokens of the query and of the body are of the durable, map or store of the path.

        Call it in the turn of the loop in which the request is carried out. Raises: Closed (``store_replaced``),
        InvalidRequest, NotFound.
        """
        for given in (of_body, self.call.text("token") if self.has_token else None):
            if given:
                durable = self.durable if "durable" in self.call.path or "map" in self.call.path else None
                # The subscriber's own durable is looked up later, and so is its token.
                named = None if durable == DEFAULT_DURABLE else durable
                self.opened.service.require(given, self.store, named, through=partial(self.through, self.call))

    @property
    def token(self) -> str:
        """Of the durable or map of the path as it is now. Raises: NotFound."""
        return self.opened.service.token(self.store, self.durable)

    async def submit(self, submitted: Awaitable[object], kind: type[Result]) -> Result:
        """The result of a command, of the type that it has."""
        result = await submitted
        assert isinstance(result, kind), f"a command is answered with {kind.__name__}"
        return result


def _store_of(call: Call) -> str:
    return call.path.get("store", CLUSTER)


StoreHandler = Callable[[StoreCall], Awaitable[Response]]


def store_route(
    host: StoreHost,
    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"],
    path: str,
    summary: str,
    handler: StoreHandler,
    *,
    answer: object,
    body: object = None,
    parameters: Sequence[Parameter] = (),
    codes: Sequence[Code] = (),
    filters: bool = False,
    cluster: bool = False,
    changes: bool = False,
    is_page: bool = False,
    through: Callable[[Call], int | None] = lambda _: None,
) -> Route:
    """One row: JSON and msgpack. Its right is asked of ``StoreAccess``.

    ``filters``: every query parameter is an attribute to filter by. ``cluster``: served while suspended, too.
    ``through``: the number of the store that a request remembers; without it none.
    """

    has_token = "{store}" in path and not filters

    async def handle(call: Call) -> Response:
        return await handler(StoreCall(call, host, host.opened(cluster=cluster), has_token, through))

    def problem(call: Call) -> HoldfastError | None:
        try:
            access = host.opened(cluster=cluster).access
        except HoldfastError as error:
            return without_traceback(error)
        right = call.need.right
        assert right is not None, "a route of the stores needs a right on one of them, or on the cluster"
        refusal = access.problem_with(call.authorization, right, _store_of(call))
        if refusal is not None and any(
            access.allows(call.authorization, other, _store_of(call)) for other in call.need.others.values()
        ):
            return None
        if path != EVERY_STORE:
            return refusal
        # Every store that the caller may see. To a stranger an empty list would look like a service without stores.
        return refusal if refusal is not None and refusal.code == Code.UNAUTHENTICATED else None

    media_types = (JSON, MSGPACK)
    return Route(
        method=method,
        path=path,
        problem=problem,
        filters=filters,
        changes=changes,
        is_page=is_page,
        summary=summary,
        handler=handle,
        parameters=(*path_parameters(path), *parameters, *((TOKEN,) if has_token else ())),
        body=None if body is None else dict.fromkeys(media_types, body),
        answers=dict.fromkeys(media_types, answer),
        codes=(*STORE_CODES, *((Code.STORE_REPLACED,) if has_token else ()), *codes),
        tag="stores",
    )


def path_parameters(path: str) -> tuple[Parameter, ...]:
    """The described parameters of a path."""
    parameters: list[Parameter] = []
    for name in [part.strip("{}").partition(":")[0] for part in path.split("/") if part.startswith("{")]:
        example, description = _PATH_PARAMETERS[name]
        kind = {"type": "integer", "minimum": 1} if example == 1 else {"type": "string", "minLength": 1}
        parameters.append(Parameter(name, "path", {**kind, "examples": [example]}, description, True))
    return tuple(parameters)


def parameter(name: str, kind: str, description: str, **schema: object) -> Parameter:
    """A query parameter that may be left out."""
    return Parameter(name, "query", {"type": kind, **schema}, description)
