"""Worlds of revocations: one application on virtual time, callers of every kind, and the moments at which rights end.

All that a world draws comes from its seed. Callers overlap. Some streams belong to nobody whose right ends: they go on.
"""

from __future__ import annotations

import asyncio
import base64
import builtins
import json
import shutil
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from socket import SO_SNDBUF, SOL_SOCKET
from tempfile import mkdtemp
from typing import Any

from tests.integration.http_harness import Client
from tests.integration.revocations import (
    BOUND_SECONDS,
    BrokenLaw,
    ChangeStream,
    CommitStream,
    Making,
    MapWatch,
    Socket,
    StoresStream,
    Stream,
    Taken,
    Wire,
    kinds,
    need_of_kind,
)
from tests.integration.virtual_time import run_virtually, until
from tests.integration.whole_application import EPOCH_MS, Application, application

from holdfast.objects.memory import MemoryStore
from holdfast.objects.port import CreateAnswer, Listed
from holdfast.server.http.auth import Grant, Role
from holdfast.server.http.connection import HttpConnection
from holdfast.server.http.key_scope import EVERYTHING, KeyScope
from holdfast.server.http.rights_table import ScopeRule
from holdfast.snapshots import make_snapshot
from holdfast.stores.definitions.permissions import Right
from holdfast.stores.values import commands
from holdfast.wire.log import LogJobState

ROOT = "root-has-a-long-token"
SEAT, ROW = KeyScope((b"seat/",)), KeyScope((b"row/",))
ROLE_FOR = {
    Right.PUBLISH: Role.WRITE,
    Right.SUBSCRIBE: Role.WRITE,
    Right.BROWSE: Role.READ,
    Right.ADMINISTER: Role.ADMIN,
}
STORES: dict[str, Any] = {
    "orders": {
        "durables": {"work": {"type": "shared"}, "spare": {"type": "shared"}, "map": {"type": "map"}},
        "templates": {"jobs": {"type": "shared"}},
    }
}
ACTS_OF_CALLERS = (
    commands.Publish, commands.Acknowledge, commands.MapChange, commands.MapLock, commands.MapUnlock,
    commands.Purge, commands.Rewind, commands.Drop, commands.Redeliver, commands.Attach,
)  # fmt: skip


def is_given_back(command: commands.Command) -> bool:
    """Whether the service gives back what it could not send."""
    if not isinstance(command, commands.Acknowledge):
        return False
    return not (command.ack or command.nack or command.reject or command.extend or command.started)


class SlowStore(MemoryStore):
    """A store that needs some time, and now and then much."""

    def __init__(self, random: Random) -> None:
        super().__init__()
        self._random = random
        self.is_slow = False
        self.taken: list[Taken] = []

    async def _wait(self, often: float) -> None:
        if self.is_slow:
            seconds = self._random.choice([1.2, 2.5]) if self._random.random() < often else 0.02
            await asyncio.sleep(seconds)

    async def create(self, key: str, data: bytes) -> CreateAnswer:
        if key.startswith("staged/"):
            self.taken.append(Taken(asyncio.get_running_loop().time(), f"{key.replace('/', '.')}."))
        await self._wait(0.05)
        return await super().create(key, data)

    async def read(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
        await self._wait(0.03)
        return await super().read(key, start=start, length=length)

    async def list(self, prefix: str, *, after: str = "", limit: int = 1000) -> builtins.list[Listed]:
        await self._wait(0.3)
        return await super().list(prefix, after=after, limit=limit)


class Job:
    """A job that does nothing."""

    state = LogJobState("idle")
    is_running = False

    def begin(self, parameters: object) -> None:
        del parameters

    async def cancel(self) -> None:
        """It has ended."""

    async def close(self) -> None:
        """It has ended."""


@dataclass
class Tally:
    """What a world did."""

    moments: Counter[str] = field(default_factory=Counter)
    """By the way in which the right ended."""
    kinds: Counter[str] = field(default_factory=Counter)


class World:
    """One world. It is a ``Place`` for its callers."""

    observed_seconds = 12.0

    def __init__(self, seed: int, here: Application, store: SlowStore, *, by_users: bool) -> None:
        self.random = Random(seed)
        self.here, self.store = here, store
        self.by_users = by_users
        self.tokens: dict[str, Role | Grant] = {ROOT: Role.ADMIN}
        self.narrowed: dict[str, Role] = {}
        """The role of each token after its right was narrowed."""
        self.permissions: dict[str, Any] = {
            "enabled": by_users,
            "users": {"root": {"token": ROOT, "roles": ["root"]}},
            "roles": {"root": {"stores": {"*": list(Right)}, "cluster": list(Right)}},
        }
        self.taken: list[Taken] = store.taken
        self.tally = Tally()
        self.bystanders: list[Stream] = []
        self.wires: list[Wire] = []
        self.written = 0
        self._defining = asyncio.Lock()
        self._tap()

    # What callers know

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def version(self) -> int:
        return self.here.service.local_version()

    async def connect(self) -> Wire:
        _, wire = await asyncio.get_running_loop().create_unix_connection(lambda: Wire(self.now), self.here.path)
        self.wires.append(wire)
        return wire

    def _tap(self) -> None:
        """Note what the application takes, in the moment in which it takes it."""
        front, service = self.here.front, self.here.opened.service
        submit, command = front.submit, service.submit_nowait
        status = front.status

        def note(what: object) -> None:
            self.taken.append(Taken(self.now(), f"{what}"))

        def submitted(entries: Any, size: int) -> None:
            for entry in entries:
                note((entry.txn.operations, entry.txn.jobs))
            submit(entries, size)

        def carried_out(given: Any, *done: Any) -> None:
            if isinstance(given, commands.Redefine):  # what it removes may be of another caller
                note([part for part in given.parts if part.document])
            elif isinstance(given, ACTS_OF_CALLERS) and not is_given_back(given):
                note(given)
            command(given, *done)

        async def asked(request_id: str, min_version: int) -> Any:
            note(f"{request_id}")
            return await status(request_id, min_version)

        front.submit, front.status = submitted, asked  # type: ignore[method-assign]
        service.submit_nowait = carried_out  # type: ignore[method-assign, assignment]

    # Rights

    def reload(self) -> None:
        self.here.front.authenticator.replace(self.tokens)

    def definition(self) -> dict[str, Any]:
        return {"stores": deepcopy(STORES), "permissions": self.permissions}

    async def define(self) -> None:
        """Put the permissions in force."""
        async with self._defining:
            bearer = {"Authorization": f"Bearer {ROOT}"}
            target = "/v1/cluster/definition?delete=true"
            answered = await self.here.ask("PUT", target, self.definition(), **bearer)
            assert answered.status == 200, answered.body

    async def admit(self, name: str, line: str, *, ends: bool) -> tuple[str, list[str]]:
        """A new caller, with what one kind of request needs: its token, and the ways in which its right may end."""
        need, token = need_of_kind(line), f"token-of-{name}-is-long"
        role = need.role if need.right is None else ROLE_FOR[need.right]
        if shows_stores(line):
            role = Role.WRITE
        scope = EVERYTHING
        is_of_stores = need.right is not None
        if self.by_users and (is_of_stores or shows_stores(line)):
            right = Right.SUBSCRIBE if need.right is None else need.right
            where = {"cluster": [right]} if "/v1/cluster" in line else {}
            self.permissions["users"][name] = {"token": token, "roles": [name]}
            self.permissions["roles"][name] = {"stores": {"*": [right]}, **where}
            if not is_of_stores:
                self.tokens[token] = Role.READ
                self.reload()
            if ends:  # those that stay are admitted together
                await self.define()
            return token, ["user removed", "roles withdrawn", "role narrowed"]
        ways = ["removed", "expired", "narrowed"]
        if need.scope is not ScopeRule.NO_KEYS and role is not Role.ADMIN:
            ways.append("scoped")
            if need.checks_scope and "stores" not in line and self.random.random() < 0.5:
                scope = SEAT
        self.tokens[token] = Grant(role, None, scope)
        # Below every right with which it may ask.
        self.narrowed[token] = Role(min([role, *(ROLE_FOR[other] for other in need.others.values())]) - 1)
        self.reload()
        return token, ways

    async def end(self, name: str, token: str, way: str) -> float:
        """End the right in this way. Returns when."""
        held = self.tokens.get(token)
        match way:
            case "removed":
                del self.tokens[token]
            case "narrowed":
                assert isinstance(held, Grant)
                lower = self.narrowed[token]
                if lower is Role.OPEN:
                    del self.tokens[token]
                else:
                    self.tokens[token] = Grant(lower)
            case "scoped":
                assert isinstance(held, Grant)
                self.tokens[token] = Grant(held.role, None, ROW)
            case "expired":
                assert isinstance(held, Grant)
                later = self.now() + self.random.uniform(0.5, 1.5)
                self.tokens[token] = Grant(held.role, EPOCH_MS / 1000 + later, held.scope)
                self.reload()
                await asyncio.sleep(later - self.now())
                return later
            case "wider":
                assert isinstance(held, Grant)
                self.tokens[token] = Grant(Role.ADMIN)
            case "user removed":
                del self.permissions["users"][name]
            case "roles withdrawn":
                self.permissions["users"][name]["roles"] = []
            case _:
                self.permissions["roles"][name] = {"stores": {"elsewhere": list(Right)}}
        if way in ("user removed", "roles withdrawn", "role narrowed"):
            await self.define()
        else:
            self.reload()
        return self.now()

    # What goes on meanwhile

    async def write(self) -> None:
        """Writes of another one, so that streams have something to show."""
        client: Client = await self.here.connect()
        bearer = {"Authorization": f"Bearer {ROOT}"}

        async def ask(method: str, target: str, body: object) -> None:
            answered = await client.ask(method, target, json.dumps(body).encode(), **bearer)
            assert answered.status == 200, answered.body

        while True:
            self.written += 1
            text = base64.b64encode(b"%d" % self.written * 800).decode()
            operations = [{"type": "write", "key_text": f"{each}/1", "value": text} for each in ("seat", "row")]
            await ask("POST", "/v1/commit", {"operations": operations})
            await ask("POST", "/v1/stores/orders/messages", {"messages": [{"body": text}] * 3})
            await ask("PUT", "/v1/stores/orders/maps/map/tea", {"value": text})
            await asyncio.sleep(self.random.choice([0.05, 0.2]))

    async def stand_by(self, group: asyncio.TaskGroup) -> list[asyncio.Task[None]]:
        """Streams whose rights stay."""
        playing: list[asyncio.Task[None]] = []
        for number, (stream, line, _) in enumerate(STAYING):
            token, _ = await self.admit(f"by{number}", line, ends=False)
            self.bystanders.append(stream(self, f"by{number}", token))
        if self.by_users:
            await self.define()
        playing += [group.create_task(each.play()) for each in self.bystanders]
        return playing

    async def check_bystanders(self) -> None:
        """Each of them has something of now to show."""
        since = self.now()
        for each in self.bystanders:
            wire = each.wire
            assert wire is not None, "it was opened"
            await until(lambda wire=wire: wire.ended is not None or wire.after(since))  # type: ignore[misc]
            each.judge_untouched(since)

    # Moments

    async def moment(self, number: int, kind: str, line: str, making: Making, *, is_wider: bool) -> None:
        await asyncio.sleep(self.random.uniform(0, 8))
        name = f"c{number}"
        token, ways = await self.admit(name, line, ends=True)
        if kind.endswith(" jobs"):
            self.tokens[token] = Role.JOB
            self.tokens[token] = Grant(Role.JOB)
            ways.remove("scoped")
            self.reload()
        elif kind.endswith(" publish"):
            self.tokens[token] = Grant(Role.WRITE)
            self.reload()
        way = "wider" if is_wider else self.random.choice(ways)
        act = making(self, name, token)
        act.way = way
        playing = asyncio.create_task(act.play())
        try:
            await asyncio.sleep(self.random.uniform(0, 4))
            ended = await self.end(name, token, way)
            await act.watch(ended + BOUND_SECONDS)
            if playing.done():
                playing.result()
            if is_wider:
                act.judge_untouched(ended)
            else:
                act.judge(ended + BOUND_SECONDS, is_scoped=way == "scoped")
        finally:
            playing.cancel()
            with suppress(asyncio.CancelledError):
                await playing
        self.tally.moments[way] += 1
        self.tally.kinds[kind] += 1


SUBSCRIBE = "GET /v1/stores/{store}/durables/{durable}/subscribe"
STAYING: tuple[tuple[type[Stream], str, str], ...] = (
    (ChangeStream, "GET /v1/subscribe", ""),
    (StoresStream, "GET /v1/subscribe stores", ""),
    (CommitStream, "POST /v1/commits", ""),
    (Socket, SUBSCRIBE, ""),
    (MapWatch, SUBSCRIBE, ""),
)


def shows_stores(line: str) -> bool:
    """A stream of the log that needs a right on stores, too."""
    return line.endswith(" stores")


def of_stores(line: str) -> bool:
    return need_of_kind(line).right is not None or shows_stores(line)


SEND_BUFFER_BYTES = 8_192
"""Of the service's sockets: what a slow reader does not take waits in the service."""
accepted = HttpConnection.connection_made


def accepted_with_small_buffer(self: HttpConnection, transport: asyncio.BaseTransport) -> None:
    transport.get_extra_info("socket").setsockopt(SOL_SOCKET, SO_SNDBUF, SEND_BUFFER_BYTES)
    accepted(self, transport)


async def _play(seed: int, folder: Path, count: int, only: Sequence[str], *, by_users: bool) -> Tally:
    random = Random(seed)
    store = SlowStore(random)
    drawn = drawn_kinds(by_users=by_users, only=only)
    async with application(folder, tokens={ROOT: Role.ADMIN}, store=store) as here:
        world = World(seed, here, store, by_users=by_users)
        here.jobs.lead(Job(), Job())  # type: ignore[arg-type]
        bearer = {"Authorization": f"Bearer {ROOT}"}
        await world.define()
        for key in range(60):
            value = base64.b64encode(random.randbytes(12_000)).decode()
            body = {"operations": [{"type": "write", "key_text": f"seat/filler/{key}", "value": value}]}
            assert (await here.ask("POST", "/v1/commit", body, **bearer)).status == 200
        assert (await here.ask("PUT", "/v1/staged/root/w/p1", {}, **bearer)).status == 200
        await make_snapshot(store, part_bytes=200_000)
        store.is_slow = True
        try:
            await _moments(world, drawn, range(seed * count, (seed + 1) * count), is_all=not only)
        finally:
            for wire in world.wires:
                wire.close()
            await asyncio.sleep(0.01)
        return world.tally


async def _moments(
    world: World, drawn: Sequence[tuple[str, str, Making]], numbers: Iterable[int], *, is_all: bool
) -> None:
    async with asyncio.TaskGroup() as group:
        background = [group.create_task(world.write()), *await world.stand_by(group)]
        await asyncio.sleep(1.0)
        moments = [
            world.moment(
                number,
                *drawn[number % len(drawn)],
                is_wider=is_all and is_wider(number, by_users=world.by_users),
            )
            for number in numbers
        ]
        await asyncio.gather(*moments)
        await world.check_bystanders()
        for task in background:
            task.cancel()


def drawn_kinds(*, by_users: bool, only: Sequence[str] = ()) -> list[tuple[str, str, Making]]:
    """The kinds of which a world takes one after another."""
    return [each for each in kinds() if (not by_users or of_stores(each[1])) and (not only or each[0] in only)]


def is_wider(number: int, *, by_users: bool) -> bool:
    """Whether this moment of a world of all kinds is one at which a right becomes wider, so that nothing ends."""
    return not by_users and number % 16 == 15


def play(seed: int, count: int, *, by_users: bool, only: Sequence[str] = ()) -> Tally:
    """Run the world of this seed, with ``count`` moments, of all kinds or of these. Raises: BrokenLaw."""
    folder = Path(mkdtemp(prefix="revocations-"))
    HttpConnection.connection_made = accepted_with_small_buffer  # type: ignore[method-assign]
    try:
        return run_virtually(lambda: _play(seed, folder, count, only, by_users=by_users))
    except BaseExceptionGroup as group:
        broken = group.subgroup(BrokenLaw)
        if broken is not None:
            raise first_of(broken) from group
        raise
    finally:
        HttpConnection.connection_made = accepted  # type: ignore[method-assign]
        shutil.rmtree(folder, ignore_errors=True)


def first_of(group: BaseException) -> BaseException:
    return first_of(group.exceptions[0]) if isinstance(group, BaseExceptionGroup) else group
