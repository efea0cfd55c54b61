"""Who may ask the console for what, over ASGI: each rule has a request that must be refused."""

from __future__ import annotations

import asyncio
import html
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from tests.unit.test_document_process import BOMB

from holdfast.console.application import LOGIN_BYTES_MAX, application
from holdfast.console.options import ConsoleOptions
from holdfast.console.security import (
    LOGIN_FAILURES_MAX,
    LOGIN_FAILURES_SECONDS,
    LOGIN_PLACES_MAX,
    SESSION_SECONDS,
    SESSIONS_MAX,
    VISITORS_MAX,
    Logins,
    PageRefusal,
    Sessions,
)

TOKEN = "0123456789abcdef-the-token"
OTHER = "fedcba9876543210-the-other"
OWN = "http://127.0.0.1:8081"
ACTION = "/retention/snapshot"
"""Any action: it is refused before the service is asked, or finds that the service does not answer."""


def options_of(tmp_path: Path, *tokens: str, **given: object) -> ConsoleOptions:
    """A console of a service that does not run."""
    file = tmp_path / "tokens"
    file.write_text("".join(f"{token}\n" for token in tokens))
    settings: dict[str, object] = {
        "services": ("http://127.0.0.1:1",),
        "listen_host": "127.0.0.1",
        "listen_port": 8081,
        "token_file": file if tokens else None,
    }
    return ConsoleOptions(**{**settings, **given})  # type: ignore[arg-type]


@asynccontextmanager
async def browser(options: ConsoleOptions, base: str = OWN) -> AsyncIterator[httpx.AsyncClient]:
    """A client that keeps cookies and follows nothing."""
    app = application(options)
    transport = httpx.ASGITransport(app=app)  # type: ignore[arg-type]
    async with httpx.AsyncClient(transport=transport, base_url=base) as client:
        try:
            yield client
        finally:
            await app.console.aclose()


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    """Run one scenario, with a bound."""

    async def bounded() -> None:
        async with asyncio.timeout(60):
            await scenario()

    asyncio.run(bounded())


async def csrf_of(client: httpx.AsyncClient, path: str = ACTION) -> str:
    """The token in a form."""
    found = re.search(r'name="csrf" value="([^"]+)"', (await client.get(path)).text)
    assert found is not None
    return found[1]


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1:9999", "localhost.evil.example:8081", ""])
def test_a_request_for_another_host_is_refused(tmp_path: Path, host: str) -> None:
    async def scenario() -> None:
        async with browser(options_of(tmp_path)) as client:
            for path in ("/", "/log", "/static/console.js"):
                assert (await client.get(path, headers={"Host": host})).status_code == 421
            assert (await client.get("/runbooks")).status_code == 200
            assert (await client.get("/runbooks", headers={"Host": "localhost:8081"})).status_code == 200

    run(scenario)


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "https://127.0.0.1:8081"},
        {"Origin": "http://127.0.0.1:9999"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_an_action_from_another_site_is_refused(tmp_path: Path, headers: dict[str, str]) -> None:
    async def scenario() -> None:
        async with browser(options_of(tmp_path, TOKEN)) as client:
            fields = {"csrf": await csrf_of(client)}
            refused = await client.post(ACTION, data=fields, headers=headers)
            assert refused.status_code == 403
            assert "another site" in refused.text
            own = {"Origin": OWN, "Sec-Fetch-Site": "same-origin"}
            passed = await client.post(ACTION, data=fields, headers=own)
            assert passed.status_code == 409  # it passed the guard, and the service does not answer
            assert "does not answer" in passed.text or "cannot be reached" in passed.text

    run(scenario)


def test_an_action_without_the_csrf_token_of_its_session_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        options = options_of(tmp_path, TOKEN)
        async with browser(options) as client:
            of_another = await csrf_of(client)
            client.cookies.clear()
            own = await csrf_of(client)
            assert own != of_another
            for fields in ({"x": "y"}, {"csrf": ""}, {"csrf": of_another}, {"csrf": own + "x"}):
                assert (await client.post(ACTION, data=fields)).status_code == 403
            client.cookies.clear()
            assert (await client.post(ACTION, data={"csrf": own})).status_code == 403

    run(scenario)


@pytest.mark.parametrize("given", [{}, {"read_only": True}])
def test_a_console_without_a_token_file_or_with_read_only_refuses_actions(
    tmp_path: Path, given: dict[str, object]
) -> None:
    async def scenario() -> None:
        options = options_of(tmp_path, *((TOKEN,) if given else ()), **given)
        assert not options.acts
        async with browser(options) as client:
            assert (await client.get(ACTION)).status_code == 403
            page = (await client.get("/retention")).text
            assert ACTION not in page
            assert "read only" in page
            session = next(iter(client.cookies.jar)).value
            assert session
            refused = await client.post(ACTION, data={"csrf": ""})
            assert refused.status_code == 403

    run(scenario)


def test_a_read_only_console_refuses_an_action_that_has_its_csrf_token(tmp_path: Path) -> None:
    async def scenario() -> None:
        options = options_of(tmp_path, TOKEN, OTHER, read_only=True, login=True)
        async with browser(options) as client:
            csrf = await csrf_of(client, "/login")
            await client.post("/login", data={"csrf": csrf, "token": TOKEN})
            csrf = await csrf_of(client, "/runbooks")  # in the form to log out
            refused = await client.post(ACTION, data={"csrf": csrf})
            assert refused.status_code == 403
            assert "only reads" in refused.text

    run(scenario)


def test_a_body_that_is_not_a_form_and_one_that_is_too_long_are_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with browser(options_of(tmp_path, TOKEN)) as client:
            csrf = await csrf_of(client)
            assert (await client.post(ACTION, json={"csrf": csrf})).status_code == 415
            assert (await client.post(ACTION, data={"csrf": csrf, "x": "y" * (5 << 20)})).status_code == 413
            assert (await client.get("/log", params={"key": "k" * (17 << 10)})).status_code == 414

    run(scenario)


def test_a_form_whose_yaml_grows_is_refused_and_the_others_are_served_meanwhile(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with browser(options_of(tmp_path, TOKEN)) as client:
            csrf = await csrf_of(client)
            for parameters, problem in ((BOMB, "more than 100000 values"), ("x" * 300_000, "more than 262144 bytes")):
                fields = {"csrf": csrf, "name": "a", "parameters": parameters}
                posting = asyncio.ensure_future(client.post("/stores/define", data=fields))
                served = 0
                while not (await asyncio.wait({posting}, timeout=0.01))[0] or not served:
                    assert (await client.get("/runbooks")).status_code == 200
                    served += 1
                assert posting.result().status_code == 409
                assert problem in posting.result().text or "to read" in posting.result().text, "on a slow machine"

    run(scenario)


def test_pages_need_a_login_where_the_options_say_so(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with browser(options_of(tmp_path, TOKEN, OTHER, login=True)) as client:
            for path in ("/", "/keys", ACTION):
                away = await client.get(path)
                assert (away.status_code, away.headers["location"].partition("?")[0]) == (303, "/login")
            csrf = await csrf_of(client, "/login")
            assert (await client.post(ACTION, data={"csrf": csrf})).headers[
                "location"
            ] == "/login?to=%2Fretention%2Fsnapshot"
            wrong = await client.post("/login", data={"csrf": csrf, "token": TOKEN + "x"})
            assert wrong.status_code == 403
            assert (await client.get("/keys")).status_code == 303
            before = dict(client.cookies)
            right = await client.post("/login", data={"csrf": csrf, "token": OTHER})
            assert (right.status_code, right.headers["location"]) == (303, "/")
            assert dict(client.cookies) != before, "the session of the form ends at the login"
            assert (await client.get("/runbooks")).status_code == 200
            after = dict(client.cookies)
            client.cookies.clear()
            assert (await client.get("/runbooks", headers={"Cookie": cookie_of(before)})).status_code == 303
            assert (await client.get("/runbooks", headers={"Cookie": cookie_of(after)})).status_code == 200
            client.cookies.update(after)
            await client.post("/logout", data={"csrf": await csrf_of(client, "/runbooks")})
            client.cookies.clear()
            assert (await client.get("/runbooks", headers={"Cookie": cookie_of(after)})).status_code == 303

    run(scenario)


def test_a_login_leads_to_the_page_that_was_asked_for_and_never_to_another_site(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with browser(options_of(tmp_path, TOKEN, login=True)) as client:
            asked = "/durable?store=a+b&durable=x%26y"
            away = (await client.get(asked)).headers["location"]
            form = (await client.get(away)).text
            assert html.escape(asked) in form
            csrf = await csrf_of(client, "/login")
            wrong = await client.post("/login", data={"csrf": csrf, "token": "wrong", "to": asked})
            assert html.escape(asked) in wrong.text, "also after a wrong token"
            foreign = (
                "https://evil.example/",
                "//evil.example/keys",
                "/\\evil.example",
                "/static/x.js",
                "/keys@evil.example",
            )
            for to, place in [(asked, asked), *((each, "/") for each in foreign)]:
                csrf = await csrf_of(client, "/login")
                done = await client.post("/login", data={"csrf": csrf, "token": TOKEN, "to": to})
                assert (done.status_code, done.headers["location"]) == (303, place)

    run(scenario)


def test_a_refresh_without_a_login_is_answered_and_not_sent_elsewhere(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with browser(options_of(tmp_path, TOKEN, login=True)) as client:
            refreshed = await client.get("/log", headers={"Holdfast-Refresh": "1"})
            assert refreshed.status_code == 401
            assert "set-cookie" not in refreshed.headers

    run(scenario)


def cookie_of(cookies: dict[str, str]) -> str:
    """The header."""
    return "; ".join(f"{name}={value}" for name, value in cookies.items())


def test_a_token_file_that_cannot_be_read_refuses_every_login(tmp_path: Path) -> None:
    async def scenario() -> None:
        options = options_of(tmp_path, TOKEN, login=True)
        async with browser(options) as client:
            csrf = await csrf_of(client, "/login")
            assert options.token_file is not None
            options.token_file.unlink()
            refused = await client.post("/login", data={"csrf": csrf, "token": TOKEN})
            assert refused.status_code == 503
            assert "cannot be read" in refused.text
            assert (await client.get("/nothing")).status_code == 404

    run(scenario)


def test_guessing_tokens_is_slowed_down(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with browser(options_of(tmp_path, TOKEN, login=True)) as client:
            csrf = await csrf_of(client, "/login")
            codes = [
                (await client.post("/login", data={"csrf": csrf, "token": f"guess-{number}"})).status_code
                for number in range(11)
            ]
            assert codes == [403] * 10 + [429]
            assert (await client.post("/login", data={"csrf": csrf, "token": TOKEN})).status_code == 429

    run(scenario)


def test_a_session_cookie_is_not_for_scripts_nor_other_sites(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with browser(options_of(tmp_path)) as client:
            cookie = (await client.get("/runbooks")).headers["set-cookie"].lower()
            assert "httponly" in cookie
            assert "samesite=lax" in cookie
        certificate = tmp_path / "c.pem"
        secure = options_of(tmp_path, TOKEN, login=True, tls_certificate=certificate, tls_key=certificate)
        async with browser(secure, "https://127.0.0.1:8081") as client:
            cookie = (await client.get("/login")).headers["set-cookie"]
            assert cookie.startswith("__Host-")
            assert "secure" in cookie.lower()

    run(scenario)


def test_every_response_forbids_other_hosts_scripts_and_frames(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with browser(options_of(tmp_path, TOKEN)) as client:
            for path in ("/", "/runbooks", "/nothing", "/static/console.css", "/login"):
                headers = (await client.get(path)).headers
                policy = headers["content-security-policy"]
                assert "default-src 'none'" in policy
                assert "unsafe" not in policy
                assert "frame-ancestors 'none'" in policy
                assert headers["x-content-type-options"] == "nosniff"
                assert headers["cache-control"] == ("max-age=3600" if path.startswith("/static") else "no-store")

    run(scenario)


def test_visitors_have_no_sessions_and_cannot_end_one_anothers_forms() -> None:
    sessions = Sessions()
    cookie, _ = sessions.begin(0.0, TOKEN)
    first, form = sessions.visitor(None, 0.0)
    for number in range(VISITORS_MAX + 10):
        other, of_other = sessions.visitor(None, float(number))
        of_other.flash("good", "done")
        sessions.keep(other, of_other)
        assert not sessions.accepts(other, form.csrf, float(number)), "a form is for one browser"
    assert len(sessions._sessions) == 1
    assert len(sessions._said) == VISITORS_MAX
    assert sessions.accepts(first, form.csrf, 1_000.0)
    assert not sessions.accepts(first, form.csrf, 2.0 + SESSION_SECONDS), "it ends with its time"
    assert not sessions.accepts(first, "9" + form.csrf, 1_000.0)
    assert not Sessions().accepts(first, form.csrf, 1_000.0), "another console has another secret"
    found = sessions.find(cookie, 1.0)
    assert found is not None
    assert found.token == TOKEN
    assert sessions.find(cookie, 2.0 + SESSION_SECONDS) is None, "it ends when it is idle"


def test_the_idlest_login_ends_where_there_are_too_many() -> None:
    sessions = Sessions()
    cookies = [sessions.begin(float(number), TOKEN)[0] for number in range(SESSIONS_MAX)]
    assert sessions.find(cookies[0], 5.0) is not None
    newest, _ = sessions.begin(6.0, TOKEN)
    assert [sessions.find(each, 7.0) is None for each in (cookies[0], cookies[1], newest)] == [False, True, False]


def test_a_thousand_visits_of_the_login_page_leave_every_form_as_it_was(tmp_path: Path) -> None:
    async def scenario() -> None:
        app = application(options_of(tmp_path, TOKEN, login=True))
        transport = httpx.ASGITransport(app=app)  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url=OWN) as user:
            csrf = await csrf_of(user, "/login")
            for _ in range(SESSIONS_MAX):
                async with httpx.AsyncClient(transport=transport, base_url=OWN) as other:
                    assert (await other.get("/login")).status_code == 200
            assert not app.console.sessions._sessions
            of_another = await csrf_of(other := httpx.AsyncClient(transport=transport, base_url=OWN), "/login")
            await other.aclose()
            assert (await user.post("/login", data={"csrf": of_another, "token": TOKEN})).status_code == 403
            done = await user.post("/login", data={"csrf": csrf, "token": TOKEN})
            assert (done.status_code, done.headers["location"]) == (303, "/")
        await app.console.aclose()

    run(scenario)


def test_who_has_not_logged_in_sends_a_small_form(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with browser(options_of(tmp_path, TOKEN, login=True)) as client:
            csrf = await csrf_of(client, "/login")
            large = "y" * (LOGIN_BYTES_MAX + 1)
            assert (await client.post("/login", data={"csrf": csrf, "token": large})).status_code == 413
            assert (await client.post(ACTION, data={"csrf": csrf, "x": large})).status_code == 413
            await client.post("/login", data={"csrf": csrf, "token": TOKEN})
            csrf = await csrf_of(client, "/runbooks")
            passed = await client.post(ACTION, data={"csrf": csrf, "x": large})
            assert passed.status_code == 409, "it passed the guard, and the service does not answer"

    run(scenario)


def test_what_is_said_once_is_not_said_to_a_refresh(tmp_path: Path) -> None:
    async def scenario() -> None:
        options = options_of(tmp_path, TOKEN)
        app = application(options)
        transport = httpx.ASGITransport(app=app)  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url=OWN) as client:
            await client.get("/runbooks")
            cookie, session = app.console.sessions.visitor(client.cookies.get(app.console.cookie), time.monotonic())
            session.flash("good", "it is done")
            app.console.sessions.keep(cookie, session)
            assert "it is done" not in (await client.get("/runbooks", headers={"Holdfast-Refresh": "1"})).text
            assert "it is done" in (await client.get("/runbooks")).text
            assert "it is done" not in (await client.get("/runbooks")).text
        await app.console.aclose()

    run(scenario)


def test_no_page_has_the_token_and_what_an_address_says_is_escaped(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with browser(options_of(tmp_path, TOKEN)) as client:
            evil = '"><script>alert(1)</script>'
            for path in ("/", "/log", "/keys", "/durable", "/messages", "/map", "/cluster", ACTION, "/store/edit"):
                page = (
                    await client.get(path, params={"store": evil, "durable": evil, "key": evil, "t.find": evil})
                ).text
                assert TOKEN not in page
                assert "<script>alert" not in page

    run(scenario)


def test_failed_logins_are_counted_by_address_in_a_bounded_table() -> None:
    logins, tokens = Logins(), [TOKEN]

    def log_in(token: str, address: str, now: float = 0.0) -> int:
        found = logins.token_of(token, tokens, address, now)
        return found.status if isinstance(found, PageRefusal) else 200

    assert [log_in("wrong", "10.0.0.7") for _ in range(LOGIN_FAILURES_MAX + 1)] == [403] * LOGIN_FAILURES_MAX + [429]
    assert log_in(TOKEN, "10.0.0.7") == 429, "not even the right one"
    assert log_in(TOKEN, "10.0.0.8") == 200, "another address may"
    assert log_in(TOKEN, "10.0.0.7", LOGIN_FAILURES_SECONDS) == 200
    for number in range(LOGIN_FAILURES_MAX):
        assert log_in("wrong", f"2001:db8::{number:x}") == 403
    assert log_in(TOKEN, "2001:db8::ffff") == 429, "one network has one count"
    for number in range(2 * LOGIN_PLACES_MAX):
        log_in("wrong", f"10.1.{number >> 8}.{number & 255}")
    assert len(logins._failed_at) == LOGIN_PLACES_MAX
