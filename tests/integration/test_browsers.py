"""What a page of another site can do to a service without tokens: nothing, in both lanes and over a WebSocket."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from tests.integration.http_harness import Answered, Client, Serving, commit, request, run, serving, write
from tests.integration.stores_harness import JSON, Subscriber, stores_serving

from holdfast.server.http.auth import Role
from holdfast.server.stores.routes import store_routes

REQUEST_ID = "r" * 20
TOKEN = "0123456789abcdef-token"
FAST = ("POST", "/v1/commit")
LANES = [
    FAST,
    ("GET", "/v1/version"),
    ("GET", "/v1/version?consistency=local"),
    ("POST", "/v1/commits"),
    ("GET", "/metrics"),
]
"""The first two are served by the fast lane, unless the request has a field of a browser."""


def asked(line: tuple[str, str], host: str, *fields: str) -> bytes:
    """A request with this Host and these other header fields."""
    method, target = line
    body = write() if target == "/v1/commit" else write() + b"\n" if method == "POST" else b""
    lines = [f"{method} {target} HTTP/1.1", *([f"Host: {host}"] if host else ["Host:"]), *fields]
    return "\r\n".join([*lines, f"Content-Length: {len(body)}"]).encode() + b"\r\n\r\n" + body


async def answered(here: Serving, sent: bytes) -> Answered:
    """The answer on a connection of its own."""
    client = await here.connect()
    client.send(sent)
    found = await client.answer()
    client.close()
    return found


@pytest.mark.parametrize("line", LANES)
def test_a_name_that_is_pointed_at_the_service_reaches_nothing(line: tuple[str, str]) -> None:
    async def scenario() -> None:
        async with serving(hosts=["log.example"], names=["machine"]) as here:
            before = here.service.local_version()
            for host in ("evil.example", "evil.example:8080", "localhost.evil.example", "127.0.0.1.evil.example", "x"):
                refused = await answered(here, asked(line, host))
                assert (refused.status, refused.code) == (421, "misdirected"), host
                assert "server.hosts" in refused.json["error"]["hint"]
            assert here.service.local_version() == before, "nothing was carried out"
            own = (
                "",
                "localhost:1",
                "LOG.example",
                "log.example.:99",
                "machine:80",
                "127.0.0.1",
                "10.1.2.3:80",
                "[::1]:8",
            )
            for host in own:
                assert (await answered(here, asked(line, host))).status == 200, host

    run(scenario)


def test_a_connection_that_was_right_once_is_asked_again_when_its_host_changes() -> None:
    async def scenario() -> None:
        async with serving() as here:
            client = await here.connect()
            for host in ("localhost", "127.0.0.1"):
                client.send(asked(FAST, host) * 2)
                assert [(await client.answer()).status for _ in range(2)] == [200, 200]
            client.send(asked(("GET", "/livez"), "evil.example") + asked(FAST, "evil.example"))
            assert (await client.answer()).status == 200, "a probe may use any name"
            assert (await client.answer()).code == "misdirected"
            assert await client.is_closed_by_peer()
            assert here.front.counters.framework_requests == 0
            assert here.front.counters.answers["/v1/commit", 421] == 1

    run(scenario)


@pytest.mark.parametrize("line", LANES)
@pytest.mark.parametrize(
    "fields",
    [
        ("Origin: http://evil.example",),
        ("Origin: null",),
        ("Origin: http://localhost:9999",),
        ("Origin: http://localhost",),
        ("Origin: http://localhost:8080", "Sec-Fetch-Site: cross-site"),
        ("Sec-Fetch-Site: cross-site",),
        ("Sec-Fetch-Site: same-site",),
        ("Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: document"),
        ("Content-Type: text/plain", "Origin: https://evil.example", "Sec-Fetch-Site: none"),
    ],
)
def test_a_page_of_another_site_reaches_nothing(line: tuple[str, str], fields: tuple[str, ...]) -> None:
    async def scenario() -> None:
        async with serving() as here:
            refused = await answered(here, asked(line, "localhost:8080", *fields))
            assert (refused.status, refused.code) == (403, "permission_denied")
            assert "another site" in refused.json["error"]["message"]
            # After requests without any field of a browser, on the same connection.
            client = await here.connect()
            client.send(commit() + asked(line, "localhost:8080", *fields))
            assert (await client.answer()).status == 200
            assert (await client.answer()).code == "permission_denied"
            assert here.front.counters.answers["/v1/commit", 200] == 1, "only the commit of no page"

    run(scenario)


@pytest.mark.parametrize("line", LANES)
def test_a_page_of_the_service_and_a_listed_page_are_served(line: tuple[str, str]) -> None:
    async def scenario() -> None:
        async with serving(hosts=["app.example:3000", "log.example"]) as here:
            for host, fields in (
                ("localhost:8080", ("Origin: http://localhost:8080", "Sec-Fetch-Site: same-origin")),
                ("localhost:8080", ("Origin: https://LOCALHOST:8080",)),
                ("log.example", ("Origin: https://log.example", "Sec-Fetch-Site: same-origin")),
                ("log.example:443", ("Origin: https://log.example",)),
                ("localhost:8080", ("Origin: http://app.example:3000", "Sec-Fetch-Site: cross-site")),
                ("localhost:8080", ("Sec-Fetch-Site: none", "User-Agent: Mozilla/5.0")),
                ("localhost:8080", ("User-Agent: Mozilla/5.0",)),
            ):
                assert (await answered(here, asked(line, host, *fields))).status == 200, (host, fields)

    run(scenario)


def test_a_get_that_changes_something_is_not_for_a_link_of_another_site() -> None:
    async def scenario() -> None:
        async with serving() as here:
            status = f"/v1/status/{REQUEST_ID}?min_version=1"
            browser = ("Host: localhost", "User-Agent: Mozilla/5.0 (X11; Linux x86_64)")
            for fields, codes in (
                (browser, {"GET": "permission_denied", "HEAD": None, "POST": ""}),
                ((*browser, "Sec-Fetch-Site: same-origin"), {"GET": "", "POST": ""}),
                ((*browser, "Sec-Fetch-Site: cross-site"), {"GET": "permission_denied", "POST": "permission_denied"}),
                (("Host: localhost", "User-Agent: curl/8.5.0"), {"GET": "", "POST": ""}),
            ):
                for method, code in codes.items():
                    client = await here.connect()
                    client.send("\r\n".join([f"{method} {status} HTTP/1.1", *fields]).encode() + b"\r\n\r\n")
                    found = await client.answer(head_only=method == "HEAD")
                    if code is None:
                        assert found.status == 403
                    else:
                        assert (found.code if found.status != 200 else "") == code, (method, fields, found.body)

    run(scenario)


def test_every_get_that_changes_something_has_a_post_form(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving() as here, stores_serving(tmp_path) as stores:
            rows = {(row.method, row.name): row for row in (*here.rows, *store_routes(stores.host))}
            by_get = {path for (method, path), row in rows.items() if method == "GET" and row.changes}
            assert by_get == {"/v1/status/{request_id}", "/v1/stores/{store}/durables/{durable}/messages"}
            for path in by_get:
                assert rows["POST", path].parameters == rows["GET", path].parameters
                assert rows["POST", path].need == rows["GET", path].need

    run(scenario)


def test_probes_and_links_to_the_documentation_are_for_everybody() -> None:
    link = ("Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: document")

    async def scenario() -> None:
        async with serving() as here:
            for path in ("/livez", "/readyz", "/ok"):
                for fields in ((), ("Origin: http://evil.example", "Sec-Fetch-Site: cross-site"), link):
                    assert (await answered(here, asked(("GET", path), "evil.example", *fields))).status == 200, path
            for path in ("/docs", "/openapi.json"):
                assert (await answered(here, asked(("GET", path), "localhost", *link))).status == 200, path
                framed = (*link[:2], "Sec-Fetch-Dest: iframe")
                for fields in (link[:1], link[:2], framed, (*link, "Origin: http://evil.example")):
                    assert (await answered(here, asked(("GET", path), "localhost", *fields))).status == 403, fields
                assert (await answered(here, asked(("GET", path), "evil.example", *link))).status == 421

    run(scenario)


def test_with_tokens_nothing_else_is_asked() -> None:
    async def scenario() -> None:
        async with serving(tokens={TOKEN: Role.ADMIN}) as here:
            fields = (f"Authorization: Bearer {TOKEN}", "Origin: http://evil.example", "Sec-Fetch-Site: cross-site")
            for line in LANES:
                assert (await answered(here, asked(line, "evil.example", *fields))).status == 200, line
                assert (await answered(here, asked(line, "localhost", *fields[1:]))).status == 401, line

    run(scenario)


def test_a_unix_socket_is_not_for_browsers(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving() as here:
            await here.server.listen([f"unix:{tmp_path / 'socket'}"])
            for line in LANES:
                client = Client(*await asyncio.open_unix_connection(str(tmp_path / "socket")))
                client.send(asked(line, "holdfast"))
                assert (await client.answer()).status == 200, line
                client.close()

    run(scenario)


def test_curl_sends_a_commit_without_more_options() -> None:
    async def scenario() -> None:
        async with serving() as here:
            for method in ((), ("-X", "POST")):
                curl = await asyncio.create_subprocess_exec(
                    *("curl", "-sS", *method, "-d", write().decode(), f"http://127.0.0.1:{here.port}/v1/commit"),
                    stdout=asyncio.subprocess.PIPE,
                )
                output, _ = await curl.communicate()
                assert json.loads(output)["status"] == "committed"

    run(scenario)


def test_a_web_socket_of_another_site_is_refused_and_attaches_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.ask("PUT", "/v1/stores/a", {})
            await stores.ask("PUT", "/v1/stores/a/durables/d", {"type": "shared"})
            target = "/v1/stores/a/durables/d/subscribe?subscriber=s"
            for fields, status in (
                ({"Origin": "http://evil.example"}, 403),
                ({"Origin": "null"}, 403),
                ({"Sec-Fetch-Site": "cross-site"}, 403),
                ({"Origin": "http://localhost"}, 101),
                ({}, 101),
            ):
                end = Subscriber(await stores.connect(), JSON)
                found = await end.asked_for(target, **fields)
                assert found.status == status, (fields, found.body)
                counted = (await stores.ask("GET", "/v1/stores/a/durables/d")).json
                assert ("s" in json.dumps(counted["subscribers"])) == (status == 101), counted
                end.client.close()

    run(scenario)


@pytest.mark.parametrize("fast", [True, False])
def test_a_page_of_another_site_reaches_no_message(tmp_path: Path, fast: bool) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.ask("PUT", "/v1/stores/a", {})
            await stores.ask("PUT", "/v1/stores/a/durables/d", {"type": "shared"})
            more = "" if fast else "&key=k"
            poll = f"/v1/stores/a/durables/d/messages?subscriber=s{more}"
            publish = b'{"messages":[{"body":"YQ=="}]}'
            for fields, code in (
                ({"Origin": "http://evil.example"}, "permission_denied"),
                ({"Sec-Fetch-Site": "cross-site"}, "permission_denied"),
            ):
                for method, target, body in (
                    ("POST", "/v1/stores/a/messages", publish),
                    ("GET", poll, None),
                    ("POST", poll, b""),
                ):
                    client = await stores.connect()
                    named = {name.replace("-", "_"): value for name, value in fields.items()}
                    client.send(request(method, target, body, **named))
                    assert (await client.answer()).code == code, (method, target)
            client = await stores.connect()
            client.send(request("GET", poll, User_Agent="Mozilla/5.0"))
            refused = await client.answer()
            assert (refused.code, refused.json["error"]["hint"]) == (
                "permission_denied",
                "send the same request with POST",
            )
            client = await stores.connect()
            client.send(request("POST", poll.replace(more, ""), b"", User_Agent="Mozilla/5.0"))
            assert (await client.answer()).status == 200

    run(scenario)
