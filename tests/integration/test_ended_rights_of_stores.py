"""Polls, WebSockets and requests of the message stores end with the right of their caller, and no others do."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.integration.http_harness import Client, run, until
from tests.integration.stores_harness import StoresServing, Subscriber, stores_serving

from holdfast.errors import HoldfastError
from holdfast.server.http import auth
from holdfast.server.http.auth import Authenticator, Grant, Role
from holdfast.server.http.key_scope import KeyScope
from holdfast.server.stores.access import StoreAccess
from holdfast.stores.values import commands

OWN, OTHER, ROOT = "a-long-random-token", "another-long-random-token", "root-has-the-longest-token"
WORK = "/v1/stores/orders/durables/work"
TOKENS: dict[str, Role | Grant] = {OWN: Role.WRITE, OTHER: Role.WRITE, ROOT: Role.ADMIN}
STORES = {"orders": {"durables": {"work": {"type": "shared"}, "one": {"type": "standard"}, "map": {"type": "map"}}}}
PERMISSIONS: dict[str, Any] = {
    "enabled": True,
    "users": {
        "own": {"token": OWN, "roles": ["workers"]},
        "other": {"token": OTHER, "roles": ["workers"]},
        "root": {"token": ROOT, "roles": ["root"]},
    },
    "roles": {
        "workers": {"stores": {"orders": ["subscribe"]}},
        "nobody": {},
        "root": {"stores": {"*": ["publish", "subscribe", "administer"]}, "cluster": ["administer"]},
    },
}
ENDS = ["removed", "expired", "narrowed", "scoped", "user removed", "right withdrawn"]


CLOCK = [0.0]
"""The time of day by which tokens expire."""


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auth, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(auth, "time", SimpleNamespace(time=lambda: CLOCK[0]))
    CLOCK[0] = 0.0


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@asynccontextmanager
async def serving(folder: Path, ended: str) -> AsyncGenerator[StoresServing]:
    by_definition = ended in ("user removed", "right withdrawn")
    tokens: dict[str, Role | Grant] = {}
    if not by_definition:
        tokens = TOKENS | ({OWN: Grant(Role.WRITE, 1.0)} if ended == "expired" else {})
    async with stores_serving(folder, tokens=tokens) as stores:
        definition = {"stores": STORES, **({"permissions": PERMISSIONS} if by_definition else {})}
        assert (await stores.ask("PUT", "/v1/cluster/definition", definition, **bearer(ROOT))).status == 200
        yield stores


async def end(stores: StoresServing, ended: str) -> tuple[int, str]:
    """End the right of ``OWN``; the status and code that it gets from then on."""
    tokens, permissions = dict(TOKENS), deepcopy(PERMISSIONS)
    match ended:
        case "removed":
            del tokens[OWN]
        case "narrowed":
            tokens[OWN] = Role.READ
        case "scoped":
            tokens[OWN] = Grant(Role.WRITE, None, KeyScope((b"seat/",)))
        case "expired":
            CLOCK[0] = 1.0
            return 401, "unauthenticated"
        case "user removed":
            del permissions["users"]["own"]
        case _:
            permissions["users"]["own"]["roles"] = ["nobody"]
    if ended in ("user removed", "right withdrawn"):
        changed = await stores.ask("PATCH", "/v1/cluster/definition", {"permissions": permissions}, **bearer(ROOT))
        if ended == "user removed":  # a patch removes nothing
            definition = {"stores": STORES, "permissions": permissions}
            changed = await stores.ask("PUT", "/v1/cluster/definition", definition, **bearer(ROOT))
        assert changed.status == 200, changed.body
    else:
        stores.front.authenticator.replace(tokens)
    return (401, "unauthenticated") if ended in ("removed", "user removed") else (403, "permission_denied")


async def publish(stores: StoresServing) -> None:
    answered = await stores.ask("POST", "/v1/stores/orders/messages", {"messages": [{"body": "aGk="}]}, **bearer(ROOT))
    assert answered.status == 200, answered.body


@pytest.mark.parametrize("ended", ENDS)
def test_an_idle_socket_ends_with_its_right_and_says_why_and_no_other_does(tmp_path: Path, ended: str) -> None:
    async def scenario() -> None:
        async with serving(tmp_path, ended) as stores:
            own = await stores.subscribe("orders", "work", "own", **bearer(OWN))
            other = await stores.subscribe("orders", "work", "other", **bearer(OTHER))
            assert [(await each.next())["type"] for each in (own, other)] == ["attached", "attached"]
            status, code = await end(stores, ended)
            assert await own.next() == {"type": "closed", "code": 4000 + status, "reason": code}
            other.send(type="credit", messages=5)
            await publish(stores)
            assert [one["seq"] for one in await other.messages(1)] == [1]
            assert stores.opened.deliveries.find("orders", "work", "own") is None

    run(scenario)


@pytest.mark.parametrize("ended", [each for each in ENDS if each != "expired"])
def test_a_socket_takes_and_gives_nothing_after_its_right_has_ended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ended: str
) -> None:
    """Also before anything looks: it asks at each delivery and at each acknowledgement."""
    monkeypatch.setattr(auth, "LOOK_SECONDS", 1e6)

    async def scenario() -> None:
        async with serving(tmp_path, ended) as stores:
            giving = await stores.subscribe("orders", "one", "own", **bearer(OWN))
            taking = await stores.subscribe("orders", "work", "own", **bearer(OWN))
            watching = await stores.subscribe("orders", "map", "own", more="&prefix=", **bearer(OWN))
            assert [(await each.next())["type"] for each in (giving, taking, watching)] == ["attached"] * 3
            assert (await watching.next())["type"] == "current"
            taking.send(type="credit", messages=5)
            await publish(stores)
            (message,) = await taking.messages(1)
            giving.send(type="credit", messages=5)
            assert len(await giving.messages(1)) == 1
            status, code = await end(stores, ended)
            closed = {"type": "closed", "code": 4000 + status, "reason": code}
            taking.send(type="ack", ranges=[[message["seq"], message["seq"]]], id=1)
            assert await taking.next() == closed
            work = stores.opened.state.stores["orders"].durables["work"]
            assert work.pending == 1  # type: ignore[union-attr]
            await publish(stores)
            assert await giving.next() == closed
            assert (
                await stores.ask("PUT", "/v1/stores/orders/maps/map/k", {"value": "dg=="}, **bearer(ROOT))
            ).status == 200
            assert await watching.next() == closed

    run(scenario)


def test_what_a_socket_acknowledged_before_its_right_ended_is_answered_before_it_closes(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path, "removed") as stores:
            own = await stores.subscribe("orders", "work", "own", **bearer(OWN))
            assert (await own.next())["type"] == "attached"
            own.send(type="credit", messages=5)
            await publish(stores)
            await own.messages(1)
            held: list[Callable[[], object]] = []
            submit = stores.opened.service.submit_nowait

            def later(command: commands.Command, done: Callable[[Any], None]) -> None:
                if isinstance(command, commands.Acknowledge) and command.ack:
                    submit(command, lambda result: held.append(lambda: done(result)))
                else:
                    submit(command, done)

            stores.opened.service.submit_nowait = later  # type: ignore[method-assign]
            own.send(type="ack", ranges=[[1, 1]], id=7)
            await until(lambda: held)
            await end(stores, "removed")
            await until(lambda: stores.opened.deliveries.find("orders", "work", "own") is None)
            own.send(type="ack", ranges=[[1, 1]], id=8)  # not taken
            held.pop()()
            reply = await own.next()
            assert (reply["type"], reply["id"]) == ("answer", 7), reply
            assert (await own.next())["reason"] == "unauthenticated"
            assert not held

    run(scenario)


@pytest.mark.parametrize("ended", ENDS)
@pytest.mark.parametrize("subscriber", ["s", "%73"], ids=["hot", "framework"])
@pytest.mark.parametrize("durable", ["work", "one"], ids=["for messages", "for the durable"])
def test_a_poll_that_waits_ends_with_its_right(tmp_path: Path, ended: str, subscriber: str, durable: str) -> None:
    async def scenario() -> None:
        async with serving(tmp_path, ended) as stores:
            holder = await stores.subscribe("orders", "one", "holder", **bearer(OTHER))
            assert (await holder.next())["type"] == "attached"
            target = f"/v1/stores/orders/durables/{durable}/messages?subscriber={subscriber}&wait_ms=60000"
            polling = [
                asyncio.create_task(stores.ask("GET", target.replace("subscriber=", name), **bearer(token)))
                for name, token in (("subscriber=", OWN), ("subscriber=other", OTHER))
            ]
            await until(lambda: len(stores.front.rights._acts) == 3)
            status, code = await end(stores, ended)
            refused = await polling[0]
            assert (refused.status, refused.code) == (status, code)
            assert not polling[1].done()
            polling[1].cancel()

    run(scenario)


@pytest.mark.parametrize("ended", ENDS)
def test_a_socket_that_waits_for_its_durable_is_refused_when_its_right_ends(tmp_path: Path, ended: str) -> None:
    async def scenario() -> None:
        async with serving(tmp_path, ended) as stores:
            holder = await stores.subscribe("orders", "one", "holder", **bearer(OTHER))
            assert (await holder.next())["type"] == "attached"
            waiting = Subscriber(await stores.connect(), "holdfast.stores.v1+json")
            target = "/v1/stores/orders/durables/one/subscribe?subscriber=own&wait_ms=60000"
            asking = asyncio.create_task(waiting.asked_for(target, **bearer(OWN)))
            await until(lambda: stores.opened.deliveries.newcomers.durables())
            status, code = await end(stores, ended)
            refused = await asking
            assert (refused.status, refused.code) == (status, code)
            assert not stores.opened.deliveries.newcomers.durables()

    run(scenario)


REQUESTS = {
    "PUT /v1/cluster/definition": {"stores": {"stolen": {}}},
    "PATCH /v1/cluster/definition": {"stores": {"stolen": {}}},
    "PUT /v1/stores/stolen": {},
    "PUT /v1/stores/orders/maps/map/k": {"value": "dg=="},
    "POST /v1/stores/orders/maps/map": {"changes": [{"key": "k", "value": "dg=="}]},
    "POST /v1/stores/orders/messages": {"messages": [{"body": "aGk="}]},
    "POST /v1/stores/%6frders/messages": {"messages": [{"body": "aGk="}]},
    f"POST {WORK}/acks": {"subscriber": "s", "ack": [1]},
    f"POST {WORK}/rewind": {"to": "start"},
    f"POST {WORK}/redeliver": {},
    f"PUT {WORK}": {"type": "shared", "window": 7},
}


@pytest.mark.parametrize("line", REQUESTS)
@pytest.mark.parametrize("is_removed", [False, True], ids=["stays", "removed"])
def test_a_request_whose_token_is_removed_before_its_body_ends_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, line: str, is_removed: bool
) -> None:
    body = json.dumps(REQUESTS[line]).encode()
    problem_with = StoreAccess.problem_with

    async def scenario() -> None:
        async with serving(tmp_path, "removed") as stores:
            client: Client = await stores.connect()
            head = [f"{line} HTTP/1.1", "Host: h", "Authorization: Bearer " + ROOT, "Content-Type: application/json"]
            head += [f"Content-Length: {len(body)}", "Connection: close", "", ""]
            asked = asyncio.Event()

            def noted(self: StoreAccess, *arguments: Any) -> HoldfastError | None:
                asked.set()
                return problem_with(self, *arguments)

            monkeypatch.setattr(StoreAccess, "problem_with", noted)
            client.send("\r\n".join(head).encode() + body[:1])
            await asked.wait()
            if is_removed:
                stores.front.authenticator.replace({OTHER: Role.WRITE})
            client.send(body[1:])
            answer = await client.answer()
            assert (answer.status == 401) == is_removed, answer.body
            if is_removed:
                assert "stolen" not in stores.opened.state.stores
                assert not stores.opened.state.stores["orders"].counts.live

    run(scenario)


def test_an_act_that_cannot_be_ended_keeps_no_other_one_open() -> None:
    """Nor does one that was added after the tokens were replaced stay."""

    class Act:
        def __init__(self, ends: Callable[[], Any]) -> None:
            self.ends = ends
            self.ended = asyncio.Event()
            self.may = True

        def problem(self) -> HoldfastError | None:
            return None if self.may else HoldfastError("ended")

        def end_for(self, problem: HoldfastError) -> Any:
            assert not self.ended.is_set(), "it is ended once"
            self.ended.set()
            return self.ends()

    async def fails() -> None:
        raise ConnectionResetError

    async def scenario() -> None:
        tokens = Authenticator({OWN: Role.READ})
        watch = auth.RightsWatch(tokens, asyncio.get_running_loop())
        acts = [Act(lambda: asyncio.sleep(1e6)), Act(fails), Act(lambda: None)]
        for act in acts:
            watch.add(act)
        await asyncio.sleep(0.05)
        for act in acts:
            act.may = False
            tokens.replace({OWN: Role.READ})
            await act.ended.wait()
        late = Act(lambda: None)
        late.may = False
        watch.add(late)
        await late.ended.wait()
        for task in watch._ending:
            task.cancel()

    run(scenario)
