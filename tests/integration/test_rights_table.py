"""The table of rights, asked: every route, WebSocket and stream with every kind of token, against a file made by hand.

``tests/expected_rights.txt`` has one line for each request and one letter for each caller: ``.`` allowed, ``U`` 401
unauthenticated, ``D`` 403 permission_denied, ``T`` id_needs_tag, ``-`` not asked. A request that is allowed may fail
for other reasons. ``test_rights_by_rule`` has the same answers from a few rules.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from tests.integration import test_ended_rights, test_ended_rights_of_stores
from tests.integration.http_harness import Answered, Client, request, run
from tests.integration.virtual_time import run_virtually
from tests.integration.whole_application import Application, application
from tests.matrix import matrix

from holdfast.commit.leadership.suspensions import Suspending
from holdfast.server.http import rights_table
from holdfast.server.http.auth import Authenticator, Grant, HeldRight, RightsWatch, Role
from holdfast.server.http.key_scope import EVERYTHING, KeyScope, tag_of
from holdfast.server.http.rights_table import DEAD_LETTERS, RIGHTS, Need, ScopeRule
from holdfast.server.http.routes import Call, Route
from holdfast.server.stores.access import StoreAccess
from holdfast.stores.definitions.permissions import Right

EXPECTED = Path(__file__).parent.parent / "expected_rights.txt"
SEAT = KeyScope((b"seat/",))
TOKENS: dict[str, Role | Grant] = {
    "expired": Grant(Role.ADMIN, until=1.0),
    "read": Role.READ,
    "write": Role.WRITE,
    "job": Role.JOB,
    "admin": Role.ADMIN,
    "read-seat": Grant(Role.READ, scope=SEAT),
    "write-seat": Grant(Role.WRITE, scope=SEAT),
    "job-seat": Grant(Role.JOB, scope=SEAT),
}
CALLERS = ("nobody", "stranger", *TOKENS)
ROLES: dict[str, dict[str, Any]] = {
    "publisher": {"stores": {"orders": ["publish"]}},
    "subscriber": {"stores": {"ord*": ["subscribe"]}},
    "browser": {"stores": {"*": ["browse"]}},
    "administrator": {"stores": {"orders": ["administer"]}},
    "elsewhere": {"stores": {"other": ["publish", "subscribe", "browse", "administer"]}},
    "of-cluster": {"cluster": ["browse"]},
    "root": {"cluster": ["administer"]},
    "nothing": {},
}
USERS = ("nobody", "stranger", *ROLES)
KEEPER = "keeper"
"""Repairs what allowed requests changed."""
LETTERS = {401: "U", 403: "D"}

KEY, FOREIGN = "c2VhdC8x", "cm93LzE"
OWN_ID, FOREIGN_ID = tag_of(b"seat/") + "r" * 20, "r" * 28
PARTS = {
    "{request_id}": OWN_ID, "{key}": KEY, "{policy_id}": "all", "{version}": "1", "{application}": "job",
    "{write}": "write", "{name}": "part", "{store}": "orders", "{durable}": "work", "{template}": "jobs",
    "{map}": "map", "{seq}": "1", "{revision}": "1",
}  # fmt: skip
DYNAMIC = "made"
"""A durable by a template."""


def change(key: str, **more: object) -> dict[str, object]:
    return {"operations": [{"type": "delete", "key_text": key}], **more}


ID = {"request_id": OWN_ID, "read_version": 1}
PUBLISH = {"operations": [], "publish": [{"store": "orders", "publisher_id": "p", "messages": [{"body": "aGk="}]}]}
MAPS = {"operations": [], "maps": [{"store": "orders", "map": "map", "changes": [{"key": "k", "value": "dg=="}]}]}
ACKNOWLEDGE = {
    "operations": [],
    **ID,
    "acknowledge": [{"store": "orders", "durable": "work", "subscriber": "s", "ack": [1]}],
}
JOBS = {"operations": [], "jobs": [{"name": "sink/a", "value": "eA=="}], "read_version": 1}
VARIANTS: Mapping[str, tuple[tuple[str, str, object], ...]] = {
    # name, query, body; "{...}" of the path may be overridden by "part=value|" before the query
    "POST /v1/commit": (
        ("own key", "", change("seat/1")),
        ("foreign key", "", change("row/1")),
        ("own id", "", change("seat/1", request_id=OWN_ID, read_version=1)),
        ("foreign id", "", change("seat/1", request_id=FOREIGN_ID, read_version=1)),
        ("jobs", "", JOBS),
        ("publish", "", PUBLISH),
        ("maps", "", MAPS),
        ("acknowledge", "", ACKNOWLEDGE),
    ),
    "POST /v1/commits": (
        ("own key", "", change("seat/1")),
        ("foreign key", "", change("row/1")),
        ("own id", "", change("seat/1", request_id=OWN_ID, read_version=1)),
        ("foreign id", "", change("seat/1", request_id=FOREIGN_ID, read_version=1)),
        ("jobs", "", JOBS),
        ("publish", "", PUBLISH),
        ("maps", "", MAPS),
        ("acknowledge", "", ACKNOWLEDGE),
    ),
    "GET /v1/status/{request_id}": (
        ("own id", "?min_version=1", None),
        ("foreign id", f"{{request_id}}={FOREIGN_ID}|?min_version=1", None),
    ),
    "POST /v1/status/{request_id}": (
        ("own id", "?min_version=1", None),
        ("foreign id", f"{{request_id}}={FOREIGN_ID}|?min_version=1", None),
    ),
    "GET /v1/subscribe": (
        ("own keys", f"?prefix={KEY}", None),
        ("all keys", "", None),
        ("stores", f"?prefix={KEY}&stores=orders", None),
    ),
    "GET /v1/keys/{key}": (("own key", "", None), ("foreign key", f"{{key}}={FOREIGN}|", None)),
    "GET /v1/range": (("own keys", f"?prefix={KEY}", None), ("all keys", "", None)),
    "POST /v1/read": (
        ("own keys", "", {"items": [{"type": "range", "prefix_text": "seat/"}]}),
        ("all keys", "", {"items": [{"type": "range"}]}),
    ),
    "PUT /v1/admin/log-level": (("", "", {"level": "info"}),),
    "GET /v1/stores/{store}/durables/{durable}/messages": (
        ("", "?subscriber=s", None),
        ("take_over", "?subscriber=s&take_over=true", None),
    ),
    "POST /v1/stores/{store}/durables/{durable}/messages": (
        ("", "?subscriber=s", None),
        ("take_over", "?subscriber=s&take_over=true", None),
    ),
    "GET /v1/stores/{store}/durables/{durable}/subscribe": (
        ("", "?subscriber=s", None),
        ("take_over", "?subscriber=s&take_over=true", None),
    ),
    "DELETE /v1/stores/{store}/durables/{durable}": (
        ("dynamic", f"{{durable}}={DYNAMIC}|", None),
        ("static", "", None),
    ),
}  # fmt: skip
STEP_DOWN = "POST /v1/admin/step-down"
LAST = ("POST /v1/cluster/suspend", "DELETE /v1/stores/{store}", STEP_DOWN)
"""Where they are allowed, later requests would find another service."""


@pytest.fixture(autouse=True)
def nobody_suspends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who may suspend the log of these stores is the question here. The act itself would end all that follows."""

    async def suspend(*_: object) -> None:
        return

    monkeypatch.setattr(Suspending, "suspend", suspend)


def lines_of(name: str) -> Iterator[tuple[str, str, object]]:
    """The requests of a route: what they are called, their target, their body."""
    method, _, path = name.partition(" ")
    body = None if method in ("GET", "DELETE") else {}
    for variant, query, own in VARIANTS.get(name, (("", "", body),)):
        parts = dict(PARTS)
        if "|" in query:
            given, _, query = query.partition("|")
            part, _, value = given.partition("=")
            parts[part] = value
        target = path
        for part, value in parts.items():
            target = target.replace(part, value)
        assert not re.search(r"[{}]", target), f"this test fills no such part: {target}"
        yield f"{name} {variant}".strip(), target + query, own


def has_users(line: str) -> bool:
    """Whether users of the definition are asked, too: with permissions and without tokens all else is open."""
    return any(part in line for part in ("/v1/stores", "/v1/cluster", "/metrics", *PARTS_OF_STORES))


PARTS_OF_STORES = (" publish", " maps", " acknowledge", "/v1/subscribe stores")


def read_expected() -> dict[str, str]:
    found: dict[str, str] = {}
    for line in EXPECTED.read_text().splitlines():
        if line and not line.startswith("#"):
            letters, _, name = line.partition("  ")
            assert name not in found, f"twice: {name}"
            found[name] = letters
    return found


def bearer(caller: str) -> dict[str, str]:
    return {} if caller == "nobody" else {"Authorization": f"Bearer {token_of(caller)}"}


def token_of(caller: str) -> str:
    return f"the-token-of-{caller}-is-long"


Connect = Callable[[], Awaitable[Client]]


async def letter_of(
    connect: Connect, name: str, target: str, body: object, caller: str, headers: Mapping[str, str]
) -> str:
    """What this caller gets."""
    method = name.partition(" ")[0]
    client = await connect()
    headers = {**headers, **bearer(caller)}
    if target.partition("?")[0].endswith("/subscribe") and "/durables/" in target:
        headers |= {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13"}
        headers |= {
            "Sec-WebSocket-Key": "MDEyMzQ1Njc4OWFiY2RlZg==",
            "Sec-WebSocket-Protocol": "holdfast.stores.v1+json",
        }
    data = None if body is None else json.dumps(body).encode() + b"\n"
    if data is not None:
        headers["Content-Type"] = "application/x-ndjson" if target == "/v1/commits" else "application/json"
    client.send(request(method, target, data, **headers))
    has_errors = target.startswith(("/v1/commit", "/v1/read"))
    answer = await client.answer(head_only=not has_errors)
    client.close()
    if not has_errors:
        return LETTERS.get(answer.status, ".")
    answered = json.loads(answer.body)
    answered = answered["items"][0] if "items" in answered else answered
    code = answered.get("error", {}).get("code")
    return {"unauthenticated": "U", "permission_denied": "D", "id_needs_tag": "T"}.get(code, ".")


DEFINITION: dict[str, Any] = {
    "stores": {
        "orders": {
            "durables": {"work": {"type": "shared"}, "map": {"type": "map"}},
            "templates": {"jobs": {"type": "shared"}},
        },
        "other": {},
    }
}
Ask = Callable[..., Awaitable[Answered]]


def definition_of(*, users: bool) -> dict[str, Any]:
    if not users:
        return DEFINITION
    roles = ROLES | {KEEPER: {"stores": {"*": list(Right)}, "cluster": list(Right)}}
    named = {each: {"token": token_of(each), "roles": [each]} for each in roles}
    return {**DEFINITION, "permissions": {"enabled": True, "users": named, "roles": roles}}


BY_FRAMEWORK = {"Sec-Fetch-Site": "none"}
"""A header of browsers, which the fast lane leaves to the framework."""


async def ask_all(
    connect: Connect,
    ask: Ask,
    names: list[str],
    *,
    users: bool,
    headers: Mapping[str, str],
    is_whole: Callable[[], object],
) -> dict[str, str]:
    """The letters of each line. Where ``users``, rights come from the definition; else from tokens.

    ``is_whole``: whether everything is as at the beginning; else it is restored after each request that was allowed.
    """
    definition, keeper = definition_of(users=users), bearer(KEEPER if users else "admin")

    async def restore() -> None:
        if not is_whole():
            await ask("POST", "/v1/cluster/resume", **keeper)
            answered = await ask("PUT", "/v1/cluster/definition?delete=true", definition, **keeper)
            assert answered.status == 200, answered.body
            answered = await ask("PUT", f"/v1/stores/orders/durables/{DYNAMIC}", {"template": "jobs"}, **keeper)
            assert answered.status == 200, answered.body

    await restore()
    letters: dict[str, str] = {}
    lines = [(name, *each) for name in names for each in lines_of(name) if not users or has_users(each[0])]
    for name, line, target, body in sorted(lines, key=lambda each: LAST.index(each[0]) if each[0] in LAST else -1):
        letters[line] = ""
        for caller in USERS if users else CALLERS:
            if name == STEP_DOWN and caller == "admin":
                letters[line] += "-"
                continue
            letter = await letter_of(connect, name, target, body, caller, headers)
            letters[line] += letter
            if letter == "." and not name.startswith("GET") and name != STEP_DOWN:
                await restore()
    return letters


def joined(by_token: dict[str, str], by_user: dict[str, str]) -> dict[str, str]:
    return {line: f"{letters} {by_user[line]}" if line in by_user else letters for line, letters in by_token.items()}


def is_unchanged(here: Application, *, users: bool) -> bool:
    defined = here.opened.state.definition
    orders = defined.stores.get("orders")
    whole = orders is not None and {"work", "map"} <= orders.durables.keys() and "jobs" in orders.templates
    whole = whole and DYNAMIC in here.opened.state.store("orders").durables
    return whole and not here.host.suspended and defined.permissions.enabled is users


async def letters(folder: Path, names: list[str], headers: Mapping[str, str]) -> dict[str, str]:
    found: list[dict[str, str]] = []
    for users in (False, True):
        tokens: dict[str, Role | Grant] = {} if users else {token_of(each): grant for each, grant in TOKENS.items()}
        (folder / str(users)).mkdir(exist_ok=True)
        async with application(folder / str(users), tokens=tokens) as here:
            is_whole = partial(is_unchanged, here, users=users)
            found.append(await ask_all(here.connect, here.ask, names, users=users, headers=headers, is_whole=is_whole))
    return joined(*found)


def differences(folder: Path, names: list[str], headers: Mapping[str, str] = MappingProxyType({})) -> list[str]:
    """Lines whose answers are not those of the file."""
    found = run_virtually(lambda: letters(folder, names, headers))
    assert found.keys() == {line for name in names for line, *_ in lines_of(name)}
    return unexpected(found)


def unexpected(found: dict[str, str]) -> list[str]:
    expected = read_expected()
    return [f"{found[line]}  {line}" for line in found if expected.get(line) != found[line]]


@pytest.mark.parametrize("headers", matrix([{}, BY_FRAMEWORK]), ids=["as it comes", "by the framework"])
def test_every_route_answers_every_caller_as_the_file_says(tmp_path: Path, headers: dict[str, str]) -> None:
    names = list(RIGHTS)
    wrong = differences(tmp_path, names, headers)
    assert wrong == [], "\n".join(wrong)
    assert read_expected().keys() == {line for name in names for line, *_ in lines_of(name)}


def test_a_route_without_a_row_does_not_start() -> None:
    with pytest.raises(AssertionError, match="a row in the table of rights: GET /v1/new"):
        _ = Route(method="GET", path="/v1/new", summary="", answers={}).need


LOWER_ROLE = {Role.READ: Role.OPEN, Role.WRITE: Role.READ, Role.JOB: Role.WRITE, Role.ADMIN: Role.JOB}
OTHER_RIGHT = {
    Right.PUBLISH: Right.SUBSCRIBE,
    Right.SUBSCRIBE: Right.PUBLISH,
    Right.BROWSE: Right.SUBSCRIBE,
    Right.ADMINISTER: Right.BROWSE,
}
UNSEEN_PARTS = {"POST /v1/stores/{store}/durables/{durable}/redeliver"}
"""Its part needs more than one request: ``test_dead_letters_rights`` makes them."""


def with_weaker_needs(need: Need) -> Need:
    right = None if need.right is None else OTHER_RIGHT[need.right]
    return replace(need, role=LOWER_ROLE.get(need.role, need.role), right=right)


def with_weaker_parts(need: Need) -> Need:
    weaker = {
        part: LOWER_ROLE[each] if isinstance(each, Role) else OTHER_RIGHT[each] for part, each in need.parts.items()
    }
    return replace(need, parts=weaker, others={kind: OTHER_RIGHT[right] for kind, right in need.others.items()})


@pytest.mark.parametrize(
    ("mutant", "is_seen"),
    [
        (with_weaker_needs, lambda name, need: need.role is not Role.OPEN or (need.right and name != "GET /v1/stores")),
        (
            lambda need: replace(need, scope=ScopeRule.NO_KEYS),
            lambda _, need: need.scope is not ScopeRule.NO_KEYS and Role.OPEN < need.role < Role.ADMIN,
        ),
        (
            with_weaker_parts,
            lambda name, need: need.others or (need.parts.keys() - {DEAD_LETTERS} and name not in UNSEEN_PARTS),
        ),
    ],
    ids=["role or right lowered", "scope dropped", "part lowered"],
)
def test_every_row_that_is_weaker_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    mutant: Callable[[Need], Need],
    is_seen: Callable[[str, Need], object],
) -> None:
    """All rows at once: each one alone is wrong then, and the file says so of each."""
    names = [name for name, need in RIGHTS.items() if is_seen(name, need)]
    monkeypatch.setattr(rights_table, "RIGHTS", {name: mutant(need) for name, need in RIGHTS.items()})
    wrong = differences(tmp_path, names)
    unnoticed = [name for name in names if not any(f"  {name}" in line for line in wrong)]
    assert unnoticed == []


FEW = ["POST /v1/commit", "GET /v1/keys/{key}", "GET /v1/status/{request_id}", "PUT /v1/admin/log-level"]
FEW += ["GET /v1/subscribe", "GET /v1/stores/{store}", "POST /v1/stores/{store}/messages", "POST /v1/commits"]


@pytest.mark.parametrize(
    ("owner", "name", "broken"),
    [
        (Authenticator, "problem_with", lambda *_, **__: None),
        (Authenticator, "scope_of", lambda *_: EVERYTHING),
        (StoreAccess, "problem_with", lambda *_: None),
        (Call, "problem_with_right", lambda _: None),
        (KeyScope, "owns", lambda *_: True),
        (KeyScope, "problem_with", lambda *_: None),
        (KeyScope, "problem_with_range", lambda *_: None),
    ],
    ids=lambda each: each if isinstance(each, str) else getattr(each, "__name__", ""),
)
def test_enforcement_that_is_missing_is_noticed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, owner: type, name: str, broken: Callable[..., object]
) -> None:
    monkeypatch.setattr(owner, name, broken)
    assert differences(tmp_path, FEW) != []


def asked_once(self: HeldRight) -> object:
    if self._generation != -1:
        return None
    self._generation = 0
    return self._ask()


def test_a_right_that_is_asked_once_only_is_noticed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """At the head, and not when the body is complete, for each act, before the answer, or while nothing happens."""
    quick = partial(run, seconds_max=3.0)
    monkeypatch.setattr(test_ended_rights_of_stores, "run", quick)
    line = "PUT /v1/admin/log-level"
    require_right, asked = Call.require_right, list[Call]()

    def at_the_head(call: Call) -> None:
        if not any(each is call for each in asked):
            asked.append(call)
            require_right(call)

    with monkeypatch.context() as patch:
        patch.setattr(Call, "require_right", at_the_head)
        with pytest.raises(AssertionError):
            test_ended_rights.test_a_request_whose_token_is_removed_before_its_body_ends_is_refused(patch, line, True)
    with monkeypatch.context() as patch:
        patch.setattr(Call, "require_right_to_see", lambda _: None)
        with pytest.raises(AssertionError):
            test_ended_rights.test_what_was_read_for_a_token_that_ended_meanwhile_is_not_shown(
                patch, "/v1/retention", "removed"
            )
    with monkeypatch.context() as patch:
        patch.setattr(HeldRight, "problem", asked_once)
        with pytest.raises((AssertionError, TimeoutError)):
            test_ended_rights_of_stores.test_a_socket_takes_and_gives_nothing_after_its_right_has_ended(
                patch, tmp_path / "once", "removed"
            )
    with monkeypatch.context() as patch:
        patch.setattr(RightsWatch, "_look", lambda _: None)
        with pytest.raises(TimeoutError):
            test_ended_rights_of_stores.test_a_poll_that_waits_ends_with_its_right(
                tmp_path / "idle", "removed", "s", "work"
            )
