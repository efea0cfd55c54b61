"""The application behind the framework lane: the route table made servable.

Owns: joining the rows of all route modules, and the answers to what matches none of them. Does not own: any route.

Failure model: every answer, 404 and 405 included, has the error body of the API; there is no other kind of error
answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from starlette.applications import Starlette
from starlette.convertors import Convertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as FrameworkRoute
from starlette.types import Receive, Scope, Send

from holdfast.errors import Code, HoldfastError, InternalError, InvalidRequest, NotFound
from holdfast.server.gateway import Front
from holdfast.server.http.responses import error_answer
from holdfast.server.http.routes import Endpoint, Route

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


def make_app(front: Front, routes: Sequence[Route]) -> Starlette:
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
    return app
