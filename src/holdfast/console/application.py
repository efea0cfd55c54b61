"""The console as an ASGI application: it lets requests through the guard, and gives pages and actions their call.

Owns the sessions, and a ``Watcher`` of the service for each token that is in use.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Message, Receive, Scope, Send

from holdfast.browsers import BrowserGuard
from holdfast.console.call import CONFIRM_FIELD, SEEN_FIELD, Action, ActionDone, PageCall, Screen, link
from holdfast.console.connections import connection_of
from holdfast.console.frame import bare_page, form_of, page
from holdfast.console.html import Content, Html, element
from holdfast.console.options import ConsoleOptions
from holdfast.console.pages import ACTIONS, PAGES
from holdfast.console.parts import notice, refusal, why
from holdfast.console.reading.service import WatchedService
from holdfast.console.reading.watcher import Watcher
from holdfast.console.security import CSRF_FIELD, HEADERS, BrowserSession, Guard, Logins, PageRefusal, Sessions
from holdfast.errors import Code, HoldfastError, InvalidRequest, Unavailable
from holdfast.files.document_process import DocumentReader
from holdfast.values import GivenTwice, pairs_once

STATIC: Final = Path(__file__).with_name("static")
BODY_BYTES_MAX: Final = 4 << 20
LOGIN_BYTES_MAX: Final = 16 << 10
"""Of a form of somebody who has not logged in, where a login is needed."""
BODY_SECONDS_MAX: Final = 30.0
QUERY_BYTES_MAX: Final = 16 << 10
REFRESH_HEADER: Final = "Holdfast-Refresh"
"""Sent by the script."""
SERVICES_MAX: Final = 32
"""Tokens in use at the same time; the one that was idle for longest loses its history."""
PATHS: Final = frozenset(each.path for each in PAGES) | frozenset(each.path for each in ACTIONS)
"""Where a login may lead."""
CHANGED_MEANWHILE: Final = "Nothing was done: what this form is about has changed since it was made. Look again."
OF_STORES: Final = ("Stores", "Messages", "Maps")


class Console:
    """The state of a running console."""

    def __init__(self, options: ConsoleOptions) -> None:
        self.options = options
        self.sessions = Sessions()
        self.documents = DocumentReader()
        self.logins = Logins()
        browsers = BrowserGuard(options.own_hosts, with_ports=True, scheme=options.scheme)
        self.guard = Guard(browsers, not options.acts)
        self.cookie = f"{'__Host-' if options.scheme == 'https' else ''}holdfast_{options.listen_port}"
        self._own_token = options.tokens()[0] if options.token_file is not None and not options.needs_login else None
        self._watchers: dict[str | None, Watcher] = {}

    async def watcher(self, token: str | None) -> Watcher:
        """Who watches the service as a token sees it."""
        watcher = self._watchers.pop(token, None)
        if watcher is None:
            while len(self._watchers) >= SERVICES_MAX:
                await self._watchers.pop(next(iter(self._watchers))).aclose()
            options = self.options
            watcher = Watcher(WatchedService(options.services, token, options.service_tls(), options.trusted_hosts))
            watcher.begin()
        self._watchers[token] = watcher
        return watcher

    async def begin(self) -> None:
        """Begin to remember, where the console has one view of the service for all."""
        if not self.options.needs_login:
            await self.watcher(self._own_token)

    async def aclose(self) -> None:
        """End every task and connection."""
        for watcher in self._watchers.values():
            await watcher.aclose()

    # requests

    async def call(self, request: Request, session: BrowserSession) -> PageCall:
        """What a page gets."""
        # Where each user logs in, the service is shown as the user's token sees it.
        watcher = await self.watcher(session.token if self.options.needs_login else self._own_token)
        watcher.watched()
        await watcher.first_look()
        path, query, is_refresh = request.url.path, dict(request.query_params), REFRESH_HEADER in request.headers
        views = watcher.service, watcher, self.options
        return PageCall(path, query, session, *views, documents=self.documents, is_refresh=is_refresh)

    def session_of(self, request: Request) -> BrowserSession | None:
        """The session of the login that the cookie names."""
        session = self.sessions.find(request.cookies.get(self.cookie), time.monotonic())
        if session is not None:
            connection_of(request.scope).has_login = True
        return session

    def visitor_of(self, request: Request) -> tuple[str, BrowserSession]:
        """Who asks without a login, and the cookie."""
        return self.sessions.visitor(request.cookies.get(self.cookie), time.monotonic())

    def sender_of(self, request: Request) -> tuple[str | None, BrowserSession] | None:
        """The session of a request, with the cookie of a visitor; None where a login is needed first."""
        session = self.session_of(request)
        if session is not None:
            return None, session
        return None if self.options.needs_login else self.visitor_of(request)

    def with_cookie(self, response: Response, cookie: str) -> Response:
        """A response with a cookie. ``Lax``: a link on another site finds the user logged in; see the guard."""
        response.set_cookie(
            self.cookie, cookie, path="/", httponly=True, samesite="lax", secure=self.options.scheme == "https"
        )
        return response

    async def look(self, shown: Screen, request: Request) -> Response:
        """A page."""
        sender = self.sender_of(request)
        if sender is None:
            return self.to_login(request)
        cookie, session = sender
        call = await self.call(request, session)
        status = 200
        try:
            title = shown.title if isinstance(shown.title, str) else shown.title(call)
            content = await shown.render(call)
        except HoldfastError as error:
            title, status = "Not shown", 400 if isinstance(error, InvalidRequest) else 200
            content = element("div", refusal(error), data_gone=_is_answer(error))
        response = HTMLResponse(page(call, theme_of(request), title, shown.section, content), status)
        if cookie is None:
            return response
        if session.flashes:
            self.sessions.keep(cookie, session)  # a refresh has not said them
        return response if cookie == request.cookies.get(self.cookie) else self.with_cookie(response, cookie)

    async def ask(self, shown: Action, request: Request) -> Response:
        """The form of an action."""
        if self.guard.read_only:
            return self.refuse(request, PageRefusal(403, "This console only reads."))
        return await self.look(Screen(shown.path, shown.title, shown.section, partial(_form, shown)), request)

    async def act(self, shown: Action, request: Request, fields: dict[str, str]) -> Response:
        """Carry an action out, or show its form again with what is wrong."""
        sender = self.sender_of(request)
        if sender is None:
            return self.to_login(request)
        cookie, session = sender
        call = replace(await self.call(request, session), form=fields)
        call.service.forget()  # what is confirmed is compared with what is there now
        try:
            form = await shown.form(call)
            problems = form.problems_with(fields)
            if not problems:
                done = await shown.act(call)
                call.service.forget()
                if isinstance(done, ActionDone):
                    session.flash("good", done.text)
                    if cookie is not None:
                        self.sessions.keep(cookie, session)
                    return RedirectResponse(done.to, 303)
                form = done
                was_asked = CONFIRM_FIELD in fields or any(each.field in fields for each in form.limits)
                problems = form.problems_with(fields) if was_asked else []
                if SEEN_FIELD in fields and not form.is_seen_in(fields):
                    problems = [*problems, CHANGED_MEANWHILE]
            content = form_of(call, form, problems)
        except HoldfastError as error:
            content = await self._after_error(shown, call, error)
        return HTMLResponse(page(call, theme_of(request), shown.title, shown.section, content), 409)

    async def _after_error(self, shown: Action, call: PageCall, error: HoldfastError) -> Html:
        call.service.forget()
        try:
            return form_of(call, await shown.form(call), [f"Not done: {error} ({error.code.value})"])
        except HoldfastError as problem:
            return refusal(problem)

    def to_login(self, request: Request) -> Response:
        """Where a request without a login goes; 401 for the script, which has a page that it can keep."""
        if REFRESH_HEADER in request.headers:
            return PlainTextResponse("A login is needed.\n", 401)
        page = own_address(f"{request.url.path}?{request.url.query}")
        return RedirectResponse(link("/login", to=None if page == "/" else page), 303)

    async def login_page(
        self, request: Request, problem: str = "", status: int = 200, to: str | None = None
    ) -> Response:
        """The form to log in. ``to``: the page that was asked for, by default as the address says."""
        if not self.options.needs_login:
            return RedirectResponse("/", 303)
        cookie, visitor = self.visitor_of(request)
        session = self.session_of(request) or visitor
        to = request.query_params.get("to", "") if to is None else to
        form = element(
            "form",
            element("input", type="hidden", name=CSRF_FIELD, value=session.csrf),
            element("input", type="hidden", name="to", value=own_address(to)),
            element("p", problem, class_="notice bad", role="alert") if problem else None,
            element(
                "label",
                element("span", "Token of the service"),
                element("input", type="password", name="token", autocomplete="current-password", required=True),
            ),
            element("div", element("button", "Log in", type="submit", class_="primary"), class_="actions"),
            method="post",
            action="/login",
            class_="act",
        )
        response = HTMLResponse(bare_page(theme_of(request), "Log in", form), status)
        return response if cookie == request.cookies.get(self.cookie) else self.with_cookie(response, cookie)

    async def log_in(self, request: Request, fields: dict[str, str]) -> Response:
        """Begin a session of a user, with a new cookie, so that no page from before knows it; an older one ends."""
        if not self.options.needs_login:
            return RedirectResponse("/", 303)
        to = own_address(fields.get("to", ""))
        try:
            tokens = self.options.tokens()
        except HoldfastError as error:
            return await self.login_page(request, str(error), 503, to)
        address = "" if request.client is None else request.client.host
        token = self.logins.token_of(fields.get("token", ""), tokens, address, time.monotonic())
        if isinstance(token, PageRefusal):
            return await self.login_page(request, token.reason, token.status, to)
        self.sessions.end(request.cookies.get(self.cookie))
        cookie, _ = self.sessions.begin(time.monotonic(), token)
        return self.with_cookie(RedirectResponse(to, 303), cookie)

    async def log_out(self, request: Request, fields: dict[str, str]) -> Response:
        """End the session."""
        del fields
        self.sessions.end(request.cookies.get(self.cookie))
        return RedirectResponse("/login" if self.options.needs_login else "/", 303)

    def refuse(self, request: Request, refused: PageRefusal) -> Response:
        """Why a request is not served."""
        content = [element("p", refused.reason), element("p", element("a", "To the overview", href="/"))]
        return HTMLResponse(bare_page(theme_of(request), "PageRefusal", content), refused.status)


def _is_answer(error: HoldfastError) -> bool:
    """Whether the service said that it does not show this, and did not just fail to answer."""
    return not isinstance(error, Unavailable) or error.code is Code.NO_QUORUM


async def _form(shown: Action, call: PageCall) -> Content:
    """The form of an action, after what the token may not do."""
    refused = await call.service.refusal_of(shown.needs)
    rest = " unless a role of the stores' definition allows it" if shown.section in OF_STORES else ""
    warning = None if refused is None else notice("warn", f"The service will refuse this{rest}: {why(refused)}.")
    return [warning, form_of(call, await shown.form(call))]


def own_address(text: str) -> str:
    """The address of a page of this console, as a login may lead to it; any other text is the overview.

    >>> own_address("/key?key=YQ"), own_address("https://evil.example/"), own_address("//evil.example/keys")
    ('/key?key=YQ', '/', '/')
    """
    path, _, query = text.partition("?")
    given = dict(parse_qsl(query, keep_blank_values=True, max_num_fields=100)) if query.count("&") < 100 else {}
    return link(path, **given) if path in PATHS else "/"


def theme_of(request: Request) -> str:
    """The theme that the viewer chose."""
    return request.cookies.get("holdfast_theme", "system")


Fields = dict[str, str]
Posted = Callable[[Request, Fields], Awaitable[Response]]


async def _fields_of(request: Request, bytes_max: int) -> Fields | PageRefusal:
    """The fields of a posted form."""
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/x-www-form-urlencoded":
        return PageRefusal(415, "Only forms are taken.")
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS_MAX):
            async for part in request.stream():
                body += part
                if len(body) > bytes_max:
                    return PageRefusal(413, f"The form has more than {bytes_max} bytes.")
    except TimeoutError:
        return PageRefusal(408, f"The form has not arrived within {BODY_SECONDS_MAX:g} s.")
    try:
        return pairs_once(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=100, errors="strict"))
    except GivenTwice as error:
        return PageRefusal(400, f"The form cannot be read: {error}.")
    except ValueError:
        return PageRefusal(400, "The form cannot be read.")


def _posted(console: Console, act: Posted) -> Callable[[Request], Awaitable[Response]]:
    """A handler of POST that the guard stands before."""

    async def handle(request: Request) -> Response:
        problem = console.guard.problem_with_page(request.headers)
        if problem is not None:
            return console.refuse(request, problem)
        is_known = console.session_of(request) is not None or not console.options.needs_login
        fields = await _fields_of(request, BODY_BYTES_MAX if is_known else LOGIN_BYTES_MAX)
        if isinstance(fields, PageRefusal):
            return console.refuse(request, fields)
        cookie, csrf = request.cookies.get(console.cookie), fields.pop(CSRF_FIELD, "")
        is_own_form = console.sessions.accepts(cookie, csrf, time.monotonic())
        problem = console.guard.problem_with_change(request.url.path, is_own_form=is_own_form)
        return console.refuse(request, problem) if problem is not None else await act(request, fields)

    return handle


class Guarded:
    """Every response has the headers of the guard, and a request for another host gets nothing else."""

    def __init__(self, app: Starlette, console: Console) -> None:
        self._app = app
        self._guard = console.guard
        self.console = console

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        connection = connection_of(scope)
        connection.request_began()
        try:
            await self._serve(scope, receive, send)
        finally:
            connection.request_ended(asyncio.get_running_loop().time())

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_static = scope["path"].startswith("/static/")

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                added = {**HEADERS, "Cache-Control": "max-age=3600" if is_static else "no-store"}
                message["headers"] = [
                    *message["headers"],
                    *((name.lower().encode(), value.encode()) for name, value in added.items()),
                ]
            await send(message)

        problem = self._guard.problem_with_host(Request(scope).headers.get("host", ""))
        if problem is None and len(scope["query_string"]) > QUERY_BYTES_MAX:
            problem = PageRefusal(414, f"The address has more than {QUERY_BYTES_MAX} bytes.")
        if problem is not None:
            await PlainTextResponse(problem.reason + "\n", problem.status)(scope, receive, with_headers)
            return
        await self._app(scope, receive, with_headers)


def application(options: ConsoleOptions) -> Guarded:
    """The whole console. Its sessions, history and connections end with its lifespan."""
    console = Console(options)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[None]:
        await console.begin()
        try:
            yield
        finally:
            await console.aclose()

    routes: list[BaseRoute] = [
        *(Route(each.path, partial(console.look, each), methods=["GET"]) for each in PAGES),
        *(Route(each.path, partial(console.ask, each), methods=["GET"]) for each in ACTIONS),
        *(Route(each.path, _posted(console, partial(console.act, each)), methods=["POST"]) for each in ACTIONS),
        Route("/login", console.login_page, methods=["GET"]),
        Route("/login", _posted(console, console.log_in), methods=["POST"]),
        Route("/logout", _posted(console, console.log_out), methods=["POST"]),
        Mount("/static", StaticFiles(directory=STATIC)),
    ]

    def refused(status: int, reason: str) -> Callable[[Request, Exception], Awaitable[Response]]:
        async def handle(request: Request, _: Exception) -> Response:
            return console.refuse(request, PageRefusal(status, reason))

        return handle

    handlers: dict[int | type[Exception], Callable[[Request, Exception], Awaitable[Response]]] = {
        404: refused(404, "The console has no such page."),
        500: refused(500, "This is a bug of ours: the console's output has its trace."),
    }
    return Guarded(Starlette(routes=routes, lifespan=lifespan, exception_handlers=handlers), console)
