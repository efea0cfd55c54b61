"""The table of rights, asked of real services over real sockets, in both lanes of HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import pytest
from tests.crash.server_process import ServerProcess
from tests.integration.http_harness import Answered, Client
from tests.integration.test_rights_table import BY_FRAMEWORK, TOKENS, ask_all, joined, token_of, unexpected
from tests.rgw import free_port

from holdfast.server.http.auth import Grant, Role
from holdfast.server.http.rights_table import RIGHTS

OVER = "2020-01-01T00:00:00Z"


def token_file(folder: Path) -> Path:
    """The tokens of the table as an operator writes them."""
    lines: list[str] = []
    for caller, held in TOKENS.items():
        grant = held if isinstance(held, Grant) else Grant(Role(held))
        words = [f"{grant.role.name.lower()}:{token_of(caller)}"]
        words += [] if grant.until is None else [f"until={OVER}"]
        words += [] if grant.scope.is_everything else [f"prefix={each.decode()}" for each in grant.scope.prefixes]
        lines.append(" ".join(words))
    file = folder / "tokens"
    file.write_text("\n".join(lines))
    return file


async def letters_of(folder: Path, names: list[str], *, users: bool, headers: Mapping[str, str]) -> dict[str, str]:
    port = free_port()
    environment = {
        "HOLDFAST_STORES__DURABILITY": "log",
        "HOLDFAST_STORES__DIRECTORY": str(folder / "stores"),
    }
    if not users:
        environment["HOLDFAST_SERVER__TOKENS_FILE"] = str(token_file(folder))
    server = ServerProcess(folder, (folder / "log").as_uri(), port, flags=("--init",), environment=environment)

    async def connect() -> Client:
        return Client(*await asyncio.open_connection("127.0.0.1", port))

    async def ask(method: str, target: str, body: object = None, **more: str) -> Answered:
        client = await connect()
        try:
            return await client.ask(method, target, None if body is None else json.dumps(body).encode(), **more)
        finally:
            client.close()

    try:
        await asyncio.to_thread(server.wait_until_leading)
        bearer = {"Authorization": f"Bearer {token_of('admin')}"}
        while (await ask("GET", "/v1/stores/none", **bearer)).status != 404:  # noqa: ASYNC110  # another process
            await asyncio.sleep(0.02)  # the stores are not open yet
        return await ask_all(connect, ask, names, users=users, headers=headers, is_whole=bool)
    finally:
        server.kill()


@pytest.mark.matrix
@pytest.mark.parametrize("headers", [{}, BY_FRAMEWORK], ids=["as it comes", "by the framework"])
def test_a_service_answers_every_caller_as_the_file_says(tmp_path: Path, headers: dict[str, str]) -> None:
    for each in ("tokens", "users"):
        (tmp_path / each).mkdir()

    async def scenario() -> list[str]:
        letters = partial(letters_of, names=list(RIGHTS), headers=headers)
        by_token = await letters(tmp_path / "tokens", users=False)
        return unexpected(joined(by_token, await letters(tmp_path / "users", users=True)))

    wrong = asyncio.run(scenario())
    assert wrong == [], "\n".join(wrong)
