"""Every route of the log with no token, a wrong, an expired, a too low and a right one, and one for other keys."""

from __future__ import annotations

import json
import re

from tests.integration.http_harness import Serving, request, run, serving, write

from holdfast.server.http.auth import Grant, Role
from holdfast.server.http.key_scope import KeyScope

ADMIN, WRITER, READER = "admin-token-0123456789", "write-token-0123456789", "read-token-0123456789"
JOB = "job-token-0123456789"
EXPIRED, FOREIGN, OWN = "expired-token-0123456789", "foreign-token-0123456789", "scoped-token-0123456789"
TOKENS: dict[str, Role | Grant] = {
    ADMIN: Role.ADMIN,
    WRITER: Role.WRITE,
    READER: Role.READ,
    JOB: Role.JOB,
    EXPIRED: Grant(Role.ADMIN, until=1.0),
    FOREIGN: Grant(Role.WRITE, scope=KeyScope((b"other/",))),
    OWN: Grant(Role.WRITE, scope=KeyScope((b"key", b"more/"))),
}
KEY = "a2V5"
BODIES = {
    "POST /v1/commit": write(KEY),
    "POST /v1/commits": write(KEY) + b"\n",
    "POST /v1/read": json.dumps({"items": [{"type": "key", "key": KEY}]}).encode(),
    "PUT /v1/retention/{policy_id}": json.dumps({"keep": "everything"}).encode(),
    "POST /v1/admin/step-down": b"",
    "PUT /v1/admin/log-level": b'{"level": "info"}',
}
QUERIES = {
    "GET /v1/status/{request_id}": "?min_version=1",
    "POST /v1/status/{request_id}": "?min_version=1",
    "GET /v1/range": "?prefix=" + KEY,
    "GET /v1/subscribe": "?prefix=" + KEY,
}
ITEMS = ("POST /v1/commits", "POST /v1/read")
SHOWS_NO_KEYS = {"GET /v1/version"}


async def routes(found: Serving) -> dict[str, str]:
    """The routes that need a token, with the role that each needs."""
    client = await found.connect()
    described = (await client.ask("GET", "/openapi.json")).json
    needed: dict[str, str] = {}
    for path, methods in described["paths"].items():
        for method in methods:
            name = f"{method.upper()} {path}"
            answer = await (await found.connect()).ask(*_asked(name)[:2], _asked(name)[2])
            if answer.status == 401:
                needed[name] = path
    return needed


def _asked(name: str) -> tuple[str, str, bytes | None]:
    method, _, path = name.partition(" ")
    parts = {"{request_id}": "r" * 20, "{key}": KEY, "{policy_id}": "all", "{version}": "1"}
    parts |= {"{application}": "job", "{write}": "write", "{name}": "part"}
    filled = path
    for part, value in parts.items():
        filled = filled.replace(part, value)
    assert not re.search(r"[{}]", filled), f"this test fills no such part: {filled}"
    return method, filled + QUERIES.get(name, ""), BODIES.get(name)


async def status_of(found: Serving, name: str, token: str | None) -> int:
    client = await found.connect()
    method, target, body = _asked(name)
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    client.send(request(method, target, body, **headers))
    answer = await client.answer(head_only=True)
    client.close()
    return answer.status


def test_every_route_checks_the_token_and_its_keys() -> None:
    async def scenario() -> None:
        async with serving(tokens=TOKENS) as found:
            needed = await routes(found)
            assert {"POST /v1/commit", "GET /v1/subscribe", "GET /metrics", "GET /v1/retention"} <= needed.keys()
            assert len(needed) >= 12
            last = "POST /v1/admin/step-down"
            for name in sorted(needed, key=lambda each: each == last):
                assert await status_of(found, name, None) == 401, name
                assert await status_of(found, name, "wrong-token-0123456789") == 401, name
                assert await status_of(found, name, EXPIRED) == 401, name
                if name in SHOWS_NO_KEYS:
                    assert await status_of(found, name, FOREIGN) not in (401, 403), name
                elif name in ITEMS:  # each item has its own result
                    client = await found.connect()
                    answer = await client.ask(*name.split(), BODIES[name], Authorization=f"Bearer {FOREIGN}")
                    assert b"permission_denied" in answer.body, answer.body
                else:
                    assert await status_of(found, name, FOREIGN) == 403, name
                writes = name.startswith(("POST /v1/commit", "GET /v1/status"))
                if writes or (name.startswith(("PUT", "DELETE", "POST")) and name != "POST /v1/read"):
                    assert await status_of(found, name, READER) == 403, name
                if (name.startswith(("PUT", "DELETE")) and "/staged/" not in name) or name == last:
                    assert await status_of(found, name, WRITER) == 403, name
                if name.startswith("GET /v1/jobs"):
                    assert await status_of(found, name, WRITER) == 403, name
                    assert await status_of(found, name, JOB) in (200, 404), name
                if name != last:
                    assert await status_of(found, name, ADMIN) not in (401, 403), name

    run(scenario)


def test_a_token_for_some_keys_reaches_them_and_no_others() -> None:
    async def scenario() -> None:
        async with serving(tokens=TOKENS) as found:
            bearer = {"Authorization": f"Bearer {OWN}"}

            async def ask(method: str, target: str, body: bytes | None = None) -> tuple[int, str]:
                answer = await (await found.connect()).ask(method, target, body, **bearer)
                return answer.status, answer.body.decode()

            assert (await ask("POST", "/v1/commit", write(KEY)))[0] == 200
            outside = {"type": "write", "key": "b3RoZXI=", "value": ""}  # other
            inside = {"type": "write", "key": KEY, "value": ""}
            for operations, preconditions in (
                ([inside, outside], []),
                ([{"type": "range_delete", "begin": KEY, "end": None}], []),
                ([{"type": "range_delete", "begin": "", "end": KEY}], []),
                ([inside], [{"type": "point_read", "key": "b3RoZXI=", "version": 1}]),
                ([inside], [{"type": "range_read", "begin": KEY, "end": None, "version": 1}]),
            ):
                body = json.dumps({"operations": operations, "preconditions": preconditions}).encode()
                status, text = await ask("POST", "/v1/commit", body)
                assert (status, "permission_denied" in text) == (403, True), text
            assert (await ask("GET", f"/v1/keys/{KEY}"))[0] in (200, 404, 503)
            assert (await ask("GET", "/v1/keys/b3RoZXI"))[0] == 403
            assert (await ask("GET", f"/v1/range?prefix={KEY}"))[0] == 200
            assert (await ask("GET", "/v1/range"))[0] == 403
            assert (await ask("GET", "/v1/range?begin=" + KEY))[0] == 403
            assert (await ask("GET", "/v1/subscribe"))[0] == 403
            assert (await ask("GET", "/v1/version"))[0] == 200
            assert (await ask("GET", "/metrics"))[0] == 403

    run(scenario)
