"""The application behind the framework lane: the route table made servable.

Owns: joining the rows of all route modules, and the answers to what matches none of them. Does not own: any route.

Failure model: every answer, 404 and 405 included, has the error body of the API; there is no other kind of error
answer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence

from starlette.applications import Starlette
from starlette.convertors import Convertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as FrameworkRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from holdfast.errors import Code, HoldfastError, InternalError, InvalidRequest, NotFound
from holdfast.server.front import Front
from holdfast.server.responses import error_answer
from holdfast.server.routes import Endpoint, Route

__all__ = ["make_app"]


class _AnyText(Convertor[str]):
    """The rest of a path, whatever it holds: the framework's own ``path`` stops at a line feed."""

    regex = "(?s:.*)"

    def convert(self, value: str) -> str:
        """The text as it is."""
        return value

    def to_string(self, value: str) -> str:
        """The text as it is."""
        return value


register_url_convertor("any", _AnyText())


class _ByMethod:
    """The routes of one path. One row of the framework's table, so that its 405 names every method of the path."""

    def __init__(self, endpoints: Mapping[str, Endpoint]) -> None:
        self._endpoints = endpoints

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve by the method; HEAD is a GET whose body the connection leaves out."""
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        await self._endpoints[method](scope, receive, send)


class _Direct:
    """The routes without parameters in their path, served past the framework; the framework serves everything else.

    A request that waits in the framework's hands keeps a dozen coroutines and what they hold in memory, and every part
    of a streamed answer goes through them.
    """

    def __init__(self, app: Starlette, by_path: Mapping[str, Mapping[str, Endpoint]]) -> None:
        self._app = app
        self.routes = app.routes
        """The framework's table of all routes."""
        self._endpoints = {
            (method, path): endpoint
            for path, endpoints in by_path.items()
            if self._first(path) == path
            for method, endpoint in endpoints.items()
        }

    def _first(self, path: str) -> str | None:
        """The first row of the framework's table that ``path`` fits."""
        rows = (row for row in self.routes if isinstance(row, FrameworkRoute))
        return next((row.path for row in rows if row.path_regex.match(path)), None)

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Serve one request."""
        endpoint = self._endpoints.get((scope["method"], scope["path"]))
        return (self._app if endpoint is None else endpoint)(scope, receive, send)


def make_app(front: Front, routes: Sequence[Route]) -> ASGIApp:
    """The ASGI application that serves ``routes``."""

    def refuse(error: HoldfastError) -> Response:
        status, headers, body = error_answer(error, front.leader)
        front.counters.answers["unknown", status] += 1
        return Response(body, status, headers, "application/json")

    async def no_such_route(_: Request, exception: Exception) -> Response:
        assert isinstance(exception, HTTPException), "registered for this exception alone"
        if exception.status_code == 405:
            allow = (exception.headers or {}).get("Allow", "")
            return refuse(
                InvalidRequest(
                    "the route has other methods",
                    code=Code.METHOD_NOT_ALLOWED,
                    allow=", ".join(sorted(allow.replace(" ", "").split(","))),
                )
            )
        return refuse(NotFound("there is no such route", hint="GET /openapi.json lists them"))

    async def bug(_: Request, exception: Exception) -> Response:
        return refuse(InternalError("a bug of ours; it is logged", cause=type(exception).__name__))

    by_path: dict[str, dict[str, Endpoint]] = {}
    for row in routes:
        by_path.setdefault(row.path, {})[row.method] = Endpoint(front, row)
    app = Starlette(
        routes=[
            FrameworkRoute(path, _ByMethod(endpoints), methods=list(endpoints)) for path, endpoints in by_path.items()
        ],
        exception_handlers={HTTPException: no_such_route, Exception: bug},
    )
    app.router.redirect_slashes = False
    return _Direct(app, by_path)
