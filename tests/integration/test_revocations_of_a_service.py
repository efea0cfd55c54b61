"""Fifty moments at which a right ends, with a real service: its token file is replaced, and it gets a signal.

The exact bound is proved on virtual time (``test_revocations``). Here a busy machine has ``SLACK_SECONDS`` more.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

from tests.crash.server_process import NO_VIEW, ServerProcess
from tests.integration.http_harness import Answered, Client
from tests.integration.revocation_world import ROLE_FOR, ROOT, STORES
from tests.integration.revocations import (
    BOUND_SECONDS,
    Act,
    ChangeStream,
    CommitStream,
    Making,
    MapWatch,
    Socket,
    Stream,
    Taken,
    Wire,
    kinds,
    need_of_kind,
)
from tests.rgw import free_port

from holdfast.server.http.auth import Role

SMALL = os.environ.get("HOLDFAST_SMALL") == "1"
MOMENTS = 16 if SMALL else 50
STARTS_SECONDS = 2.0 if SMALL else 6.0
SLACK_SECONDS = 2.0
LEFT_OUT = (
    *(
        "GET /v1/keys/{key}",
        "GET /v1/range",
        "POST /v1/read",
        "GET /v1/jobs",
        "GET /v1/jobs/{name}",
    ),  # the service keeps no view
    *("POST /v1/admin/snapshot", "POST /v1/admin/verify", "POST /v1/cluster/backup"),  # processes and copies
    *("PUT /v1/cluster/definition", "POST /v1/cluster/resume", "Snapshot", "StoresStream"),
    *("SlowChangeStream", "SlowSocket"),  # what the kernel of the sender holds cannot be told from what is sent later
)
STAYING: tuple[tuple[type[Stream], Role], ...] = (
    (ChangeStream, Role.READ),
    (CommitStream, Role.WRITE),
    (Socket, Role.WRITE),
    (MapWatch, Role.WRITE),
)


class Service:
    """The service. It is a ``Place`` for callers."""

    observed_seconds = 2.0

    def __init__(self, server: ServerProcess, file: Path) -> None:
        self.random = Random(1)
        self.server, self.file = server, file
        self.taken: list[Taken] = []
        self.tokens: dict[str, Role] = {ROOT: Role.ADMIN}
        self.wires: list[Wire] = []
        self.newest = 1

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def version(self) -> int:
        return self.newest

    async def connect(self) -> Wire:
        loop = asyncio.get_running_loop()
        _, wire = await loop.create_connection(lambda: Wire(self.now), "127.0.0.1", self.server.port)
        self.wires.append(wire)
        return wire

    async def ask(self, method: str, target: str, body: object = None, token: str = ROOT) -> Answered:
        client = Client(*await asyncio.open_connection("127.0.0.1", self.server.port))
        data = None if body is None else json.dumps(body).encode()
        answered = await client.ask(method, target, data, Authorization=f"Bearer {token}")
        client.close()
        return answered

    def reload(self) -> None:
        """Write the token file, whole, and say so."""
        new = self.file.with_suffix(".new")
        new.write_text("".join(f"{role.name.lower()}:{token}\n" for token, role in self.tokens.items()))
        new.replace(self.file)
        os.kill(self.server.pid, signal.SIGHUP)

    async def in_force(self, token: str, *, status: int) -> None:
        """Return when a request with this token gets this status."""
        target = "/v1/version?consistency=local"
        while (await self.ask("GET", target, token=token)).status != status:  # noqa: ASYNC110  # another process
            await asyncio.sleep(0.01)

    async def write(self) -> None:
        """Something for streams to show."""
        number = 0
        while True:
            number += 1
            text = base64.b64encode(b"%d" % number * 100).decode()
            operations = [{"type": "write", "key_text": "seat/1", "value": text}]
            answered = await self.ask("POST", "/v1/commit", {"operations": operations})
            self.newest = int(answered.json["version"])
            await self.ask("POST", "/v1/stores/orders/messages", {"messages": [{"body": text}]})
            await self.ask("PUT", "/v1/stores/orders/maps/map/tea", {"value": text})
            await asyncio.sleep(0.05)

    async def moment(self, number: int, line: str, making: Making) -> Act:
        await asyncio.sleep(self.random.uniform(0, STARTS_SECONDS))
        name, need = f"c{number}", need_of_kind(line)
        token = f"token-of-{name}-is-long"
        self.tokens[token] = need.role if need.right is None else ROLE_FOR[need.right]
        self.reload()
        await self.in_force(token, status=200)
        act = making(self, name, token)
        act.way = "removed"
        playing = asyncio.create_task(act.play())
        try:
            await asyncio.sleep(self.random.uniform(0, 3))
            del self.tokens[token]
            self.reload()
            await self.in_force(token, status=401)
            late = self.now() + BOUND_SECONDS + SLACK_SECONDS
            await act.watch(late)
            act.judge(late, is_scoped=False)
        finally:
            playing.cancel()
            await asyncio.wait({playing})
        return act


@asynccontextmanager
async def serving(folder: Path) -> AsyncGenerator[Service]:
    file, port = folder / "tokens", free_port()
    file.write_text(f"admin:{ROOT}\n")
    environment = {"HOLDFAST_SERVER__TOKENS_FILE": str(file), **NO_VIEW}
    server = ServerProcess(folder, (folder / "log").as_uri(), port, flags=("--init",), environment=environment)
    service = Service(server, file)
    try:
        await asyncio.to_thread(server.wait_until_leading)
        while (await service.ask("PUT", "/v1/cluster/definition", {"stores": STORES})).status != 200:  # noqa: ASYNC110
            await asyncio.sleep(0.02)  # the stores are not open yet
        yield service
    finally:
        for wire in service.wires:
            wire.close()
        server.kill()


def test_nothing_is_done_or_shown_after_a_reload_that_removes_the_token(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    drawn = [each for each in kinds() if each[0] not in LEFT_OUT]
    streams = [each for each in drawn if each[0] in {stream.__name__ for stream, _ in STAYING}]
    order = Random(2)
    cases = [*streams, *order.sample([each for each in drawn if each not in streams], MOMENTS - len(streams))]

    async def scenario() -> None:
        async with serving(tmp_path) as service:
            staying = [stream(service, f"by{number}", f"token-of-by{number}-is-long")
                       for number, (stream, _) in enumerate(STAYING)]  # fmt: skip
            service.tokens |= {act.token: role for act, (_, role) in zip(staying, STAYING, strict=True)}
            service.reload()
            await service.in_force(staying[-1].token, status=200)
            background: list[asyncio.Task[Any]] = [asyncio.create_task(service.write())]
            background += [asyncio.create_task(act.play()) for act in staying]
            try:
                await asyncio.gather(
                    *(service.moment(number, line, making) for number, (_, line, making) in enumerate(cases))
                )
                since = service.now()
                for act in staying:
                    wire = act.wire
                    assert wire is not None, "it was opened"
                    while not wire.is_over and not wire.after(since):  # noqa: ASYNC110  # another process
                        await asyncio.sleep(0.01)
                    act.judge_untouched(since)
            finally:
                for task in background:
                    task.cancel()
                await asyncio.wait(background)

    asyncio.run(scenario())
    record_property("revocations", MOMENTS)
