"""A right is asked for again when the body is complete: what a token may do ends when the token does."""

from __future__ import annotations

import asyncio
import json

import pytest
from tests.integration.http_harness import serving

from holdfast.errors import HoldfastError
from holdfast.server.http.auth import Authenticator, Role

BODIES = {
    "PUT /v1/retention/any": {"keep": "everything"},
    "PUT /v1/admin/log-level": {"level": "debug"},
    "POST /v1/admin/retention-plan": {"policy_id": "any", "policy": {"keep": "everything"}},
    "POST /v1/commit": {"operations": [{"type": "delete", "key_text": "k"}]},
    "PUT /v1/staged/app/write/name": {},
}


@pytest.mark.parametrize("request_line", BODIES)
@pytest.mark.parametrize("is_removed", [False, True], ids=["stays", "removed"])
def test_a_request_whose_token_is_removed_before_its_body_ends_is_refused(
    monkeypatch: pytest.MonkeyPatch, request_line: str, is_removed: bool
) -> None:
    body = json.dumps(BODIES[request_line]).encode()
    problem_with = Authenticator.problem_with

    async def scenario() -> bytes:
        asked = asyncio.Event()

        def noted(self: Authenticator, authorization: bytes | None, role: Role, **more: bool) -> HoldfastError | None:
            asked.set()
            return problem_with(self, authorization, role, **more)

        monkeypatch.setattr(Authenticator, "problem_with", noted)
        async with serving(tokens={"a-long-random-token": Role.ADMIN}) as here:
            reader, writer = await asyncio.open_connection(here.host, here.port)
            lines = [f"{request_line} HTTP/1.1", "Host: h", "Authorization: Bearer a-long-random-token"]
            lines += ["Content-Type: application/json", f"Content-Length: {len(body)}", "Connection: close", "", ""]
            writer.write("\r\n".join(lines).encode() + body[:1])
            await writer.drain()
            await asked.wait()
            if is_removed:
                here.front.authenticator.replace({"another-long-random-token": Role.ADMIN})
            writer.write(body[1:])
            answer = await reader.read()
            writer.close()
            return answer

    status = asyncio.run(scenario()).split(b" ", 2)[1]
    assert (status == b"401") == is_removed, status
