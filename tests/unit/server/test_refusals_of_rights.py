"""Each refusal of a right: when it comes, its words, its code, its hint and its fields."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import pytest

from holdfast.browsers import BrowserGuard, Browsers, problem_with_browser
from holdfast.commit.format.transaction import (
    Delete,
    Operation,
    PointRead,
    Precondition,
    RangeDelete,
    RangeRead,
    Transaction,
    Write,
)
from holdfast.errors import Code, HoldfastError, InvalidRequest, PermissionDenied
from holdfast.server.http import auth
from holdfast.server.http.auth import Authenticator, Grant, HeldRight, Role
from holdfast.server.http.key_scope import EVERYTHING, NOTHING, PREFIX_BYTES_MAX, KeyScope, tag_of, tagged_prefix
from holdfast.server.http.rights_table import ACKNOWLEDGE, JOBS, need_of
from holdfast.server.stores.access import StoreAccess
from holdfast.stores.definitions.permissions import CLUSTER, OPEN, Permissions, Right, User, token_hash
from holdfast.stores.definitions.permissions import StoreRole as StoreRole

Refusal = tuple[type[HoldfastError], Code, str, str, dict[str, object]]

READER, WRITER, SEATS, UNKNOWN = (b"Bearer " + name + b"-0123456789abcdef" for name in (b"r", b"w", b"s", b"u"))
SEAT_SCOPE = KeyScope((b"seat/", b"row/"))
TOKENS: dict[str, Role | Grant] = {
    READER.decode()[7:]: Role.READ,
    WRITER.decode()[7:]: Grant(Role.WRITE, 100.0),
    SEATS.decode()[7:]: Grant(Role.WRITE, None, SEAT_SCOPE),
}
OPERATOR = "ask the operator of the service for a new token"
SEND_TOKEN = "send Authorization: Bearer <token>; commands take --token or HOLDFAST_TOKEN"
PREFIX_TOKEN = "ask the operator of the service for a token with this prefix"


def refusal_of(problem: HoldfastError | None) -> Refusal | None:
    if problem is None:
        return None
    return type(problem), problem.code, problem.message, problem.hint, dict(problem.fields)


def denied(text: str, hint: str = "", *, code: Code = Code.PERMISSION_DENIED, **fields: object) -> Refusal:
    return PermissionDenied, code, text, hint, fields


NO_TOKEN = denied("a valid bearer token is needed", SEND_TOKEN, code=Code.UNAUTHENTICATED)
EXPIRED = denied("the bearer token has expired", OPERATOR, code=Code.UNAUTHENTICATED)


@pytest.fixture
def tokens(monkeypatch: pytest.MonkeyPatch) -> Authenticator:
    """At 99 seconds, one before the writer's token ends."""
    monkeypatch.setattr(auth.time, "time", lambda: 99.0)
    return Authenticator(TOKENS)


# ---- tokens of the service -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "role", "expected"),
    [
        (READER, Role.OPEN, None),
        (None, Role.OPEN, None),
        (READER, Role.READ, None),
        (b"bEARER \t" + READER[7:] + b" ", Role.READ, None),
        (WRITER, Role.READ, None),
        (WRITER, Role.WRITE, None),
        (READER, Role.WRITE, denied("this token lacks the `write` role")),
        (WRITER, Role.JOB, denied("this token lacks the `job` role")),
        (WRITER, Role.ADMIN, denied("this token lacks the `admin` role")),
        (None, Role.READ, NO_TOKEN),
        (b"", Role.READ, NO_TOKEN),
        (UNKNOWN, Role.READ, NO_TOKEN),
        (b"Basic" + READER[6:], Role.READ, NO_TOKEN),
        (READER[7:], Role.READ, NO_TOKEN),
    ],
)
def test_a_role_is_had_by_a_token_of_it_or_of_a_higher_one(
    tokens: Authenticator, header: bytes | None, role: Role, expected: Refusal | None
) -> None:
    assert refusal_of(tokens.problem_with(header, role)) == expected


def test_a_token_ends_at_its_moment(tokens: Authenticator, monkeypatch: pytest.MonkeyPatch) -> None:
    assert tokens.problem_with(WRITER, Role.WRITE) is None and tokens.knows(WRITER)
    assert tokens.scope_of(WRITER) is EVERYTHING
    monkeypatch.setattr(auth.time, "time", lambda: 100.0)
    assert refusal_of(tokens.problem_with(WRITER, Role.WRITE)) == EXPIRED
    assert not tokens.knows(WRITER) and tokens.knows(READER)
    assert tokens.scope_of(WRITER) is NOTHING and tokens.scope_of(READER) is EVERYTHING


def test_a_token_for_some_keys_reaches_only_routes_that_look_at_its_keys(tokens: Authenticator) -> None:
    words = "the token is for some keys only, and this route for the whole service"
    assert refusal_of(tokens.problem_with(SEATS, Role.WRITE)) == denied(words)
    assert tokens.problem_with(SEATS, Role.WRITE, checks_scope=True) is None
    assert tokens.problem_with(WRITER, Role.WRITE, checks_scope=True) is None
    assert refusal_of(tokens.problem_with(SEATS, Role.ADMIN, checks_scope=True)) == denied(
        "this token lacks the `admin` role"
    )
    assert tokens.scope_of(SEATS) is SEAT_SCOPE


def test_a_service_without_tokens_knows_everybody_and_tells_them_apart_by_their_address() -> None:
    service = Authenticator({})
    assert not service.required and not service.expires
    assert service.problem_with(None, Role.ADMIN) is None
    assert service.knows(None) and service.scope_of(None) is EVERYTHING
    assert service.until_of(UNKNOWN) is None and service.name_of(None) == "" == service.name_of(UNKNOWN)
    peers = [("10.0.0.7", 4711), ("10.0.0.7", 4712), ("10.0.0.8", 4711), "/run/socket", None, (), (7, 8)]
    assert [service.client_of(UNKNOWN, peer) for peer in peers] == ["10.0.0.7", "10.0.0.7", "10.0.0.8", *["unix"] * 4]


def test_what_a_token_shows_of_its_caller(tokens: Authenticator) -> None:
    assert tokens.required and tokens.expires
    assert [tokens.knows(header) for header in (READER, SEATS, UNKNOWN, None)] == [True, True, False, False]
    assert [tokens.until_of(header) for header in (READER, WRITER, UNKNOWN, None)] == [None, 100.0, None, None]
    digest = sha256(WRITER[7:]).digest()
    assert [tokens.name_of(header) for header in (WRITER, UNKNOWN, None)] == [f"write#{digest.hex()[:8]}", "", ""]
    assert tokens.client_of(WRITER, ("10.0.0.7", 1)) == digest and tokens.client_of(None, ("10.0.0.7", 1)) == b""
    assert tokens.client_of(b"Basic" + READER[6:], None) == b""


def test_a_token_is_not_looked_up_for_its_end_where_none_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    service = Authenticator({READER.decode()[7:]: Role.READ})
    monkeypatch.delattr(auth, "sha256")
    assert service.until_of(READER) is None


def test_tokens_are_replaced_and_counted_and_a_service_with_tokens_keeps_some(tokens: Authenticator) -> None:
    assert tokens.generation == 0
    tokens.replace({UNKNOWN.decode()[7:]: Role.ADMIN})
    assert tokens.generation == 1 and not tokens.expires
    assert tokens.problem_with(UNKNOWN, Role.ADMIN) is None
    assert refusal_of(tokens.problem_with(READER, Role.READ)) == NO_TOKEN
    with pytest.raises(AssertionError, match=r"^a service is neither opened nor closed while it runs"):
        tokens.replace({})


def test_a_held_right_of_a_token_without_an_end_and_without_a_basis_is_looked_up_once(tokens: Authenticator) -> None:
    lookups: list[None] = []

    def ask() -> None:
        lookups.append(None)

    right = HeldRight(tokens, READER, ask)
    assert [right.problem() for _ in range(3)] == [None] * 3
    assert len(lookups) == 1


def test_a_right_that_begins_to_be_held_after_tokens_were_replaced_is_looked_up(tokens: Authenticator) -> None:
    tokens.replace(TOKENS)
    right = HeldRight(tokens, READER, lambda: tokens.problem_with(READER, Role.ADMIN))
    assert refusal_of(right.problem()) == denied("this token lacks the `admin` role")


def test_a_part_of_a_request_needs_a_role_or_a_right() -> None:
    need = need_of("POST", "/v1/commit")
    assert need.role_of(JOBS) is Role.JOB and need.right_of(ACKNOWLEDGE) is Right.SUBSCRIBE
    with pytest.raises(AssertionError, match=r"^this part needs a right"):
        need.right_of(JOBS)
    with pytest.raises(AssertionError, match=r"^this part needs a role"):
        need.role_of(ACKNOWLEDGE)
    with pytest.raises(AssertionError, match=r"^a route has a row in the table of rights: GET /v1/nothing"):
        need_of("GET", "/v1/nothing")


# ---- keys of a token -------------------------------------------------------------------------------------------------

NAME = "a-request-id-of-enough-characters"
CHANGE, READ = "the token may not change these keys", "the token may not read these keys"
OWN: Operation = Write(b"seat/1", b"")


@pytest.mark.parametrize(
    ("operations", "preconditions", "expected"),
    [
        ([OWN, Delete(b"row/1"), RangeDelete(b"seat/1", b"seat/2")], [], None),
        ([OWN], [PointRead(b"row/1"), RangeRead(b"row/", b"row0")], None),
        ([OWN, Write(b"x", b"")], [], denied(CHANGE, PREFIX_TOKEN, operation=1)),
        ([Delete(b"x"), Write(b"x", b"")], [], denied(CHANGE, PREFIX_TOKEN, operation=0)),
        ([OWN, OWN, RangeDelete(b"seat/1")], [], denied(CHANGE, PREFIX_TOKEN, operation=2)),
        ([RangeDelete(b"a", b"row/1")], [], denied(CHANGE, PREFIX_TOKEN, operation=0)),
        ([OWN], [PointRead(b"seat/1"), PointRead(b"x")], denied(READ, PREFIX_TOKEN, precondition=1)),
        ([OWN], [RangeRead(b"row/1", b"row00")], denied(READ, PREFIX_TOKEN, precondition=0)),
        ([Write(b"x", b"")], [PointRead(b"x")], denied(CHANGE, PREFIX_TOKEN, operation=0)),
    ],
)
def test_a_transaction_names_keys_of_the_token_alone(
    operations: list[Operation], preconditions: list[Precondition], expected: Refusal | None
) -> None:
    txn = Transaction(operations=operations, preconditions=preconditions, request_id=None, read_version=None)
    assert refusal_of(SEAT_SCOPE.problem_with(txn)) == expected
    assert EVERYTHING.problem_with(txn) is None


@pytest.mark.parametrize(
    ("name", "is_own"),
    [
        (tag_of(b"seat/") + NAME, True),
        (tag_of(b"row/9") + NAME, True),
        (tag_of(b"row/" + b"x" * (PREFIX_BYTES_MAX - 4)) + NAME, True),
        (tag_of(b"row/" + b"x" * (PREFIX_BYTES_MAX - 3)) + NAME, False),
        (tag_of(b"sea") + NAME, False),
        (tag_of(b"") + NAME, False),
        (NAME, False),
    ],
)
def test_an_id_begins_with_the_tag_of_a_prefix_of_the_token(name: str, is_own: bool) -> None:
    txn = Transaction(operations=[OWN], request_id=name, read_version=7)
    words, hint = "the request id does not begin with the tag of a prefix of the token", "begin it with c2VhdC8:"
    expected: Refusal = (
        InvalidRequest,
        Code.ID_NEEDS_TAG,
        words,
        f"{hint}: nothing was accepted",
        {"tag": tag_of(b"seat/")},
    )
    assert refusal_of(SEAT_SCOPE.problem_with(txn)) == (None if is_own else expected)
    assert SEAT_SCOPE.owns(name) is is_own and EVERYTHING.owns(name) and not NOTHING.owns(name)


def test_a_writer_s_tag_is_of_its_first_prefix() -> None:
    assert SEAT_SCOPE.id_tag == "c2VhdC8:"
    assert EVERYTHING.id_tag is None and NOTHING.id_tag is None and KeyScope((b"a", b"")).id_tag is None


@pytest.mark.parametrize(
    "prefix", [b"", b"a", b"ab", b"abc", b"abcd", b"seven/7", b"\0\0\x17", b"\xff\xfe\xfb", b"x" * PREFIX_BYTES_MAX]
)
def test_a_tag_is_read_back(prefix: bytes) -> None:
    assert tagged_prefix(tag_of(prefix) + "rest:of it") == prefix


@pytest.mark.parametrize("name", ["c2VhdC8", "c2VhdC8=:x", "c2Vh dC8:x", "c2VhdC9:x", "cé:x", "a:x", "+/+/:x"])
def test_what_only_looks_like_a_tag_is_none(name: str) -> None:
    assert tagged_prefix(name) is None


def test_a_range_is_within_one_prefix_from_its_begin_to_its_end() -> None:
    scope = KeyScope((b"seat/", b"\xff"))
    assert (
        scope.holds_range(b"seat/", b"seat0") and scope.holds_range(b"\xff", None) and scope.holds_range(b"\xff", b"")
    )
    assert not scope.holds_range(b"seat/", None) and not scope.holds_range(b"seat/", b"seat0\0")
    assert not scope.holds_range(b"seat", b"seat/1") and not NOTHING.holds_range(b"seat/", b"seat/1")
    assert scope.problem_with_range(b"seat/", b"seat0") is None
    assert refusal_of(scope.problem_with_range(b"seat/", None)) == denied(READ, PREFIX_TOKEN)
    assert scope.holds(b"seat/") and not scope.holds(b"seat") and not scope.is_everything and EVERYTHING.is_everything


# ---- browsers --------------------------------------------------------------------------------------------------------

GUARD = BrowserGuard(frozenset({"log.example"}))
HOST = {"host": "log.example:8080"}
FOREIGN = {**HOST, "origin": "http://evil.example"}
LINK = {**HOST, "sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
PAGE = "the request comes from a page of another site, and this service has no tokens"
GET = "a browser may follow a link of another site to here, and this GET changes something"
BROWSER = {**HOST, "user-agent": "Mozilla/5.0"}
PAGE_HINT = "add the page's host and port to server.hosts if it may, or give the service tokens"
NAME_HINT = "add the name to server.hosts if it is one of this service's, or give the service tokens"


@pytest.mark.parametrize(
    ("fields", "browsers", "expected"),
    [
        ({}, "own", None),
        (HOST, "own", None),
        ({**HOST, "sec-fetch-site": "same-origin"}, "own", None),
        ({**HOST, "origin": "http://log.example:8080"}, "own", None),
        (FOREIGN, "own", denied(PAGE, PAGE_HINT, origin="http://evil.example")),
        ({**HOST, "origin": "http://" + "x" * 300}, "own", denied(PAGE, PAGE_HINT, origin="http://" + "x" * 249)),
        ({**HOST, "sec-fetch-site": "cross-site"}, "own", denied(PAGE, PAGE_HINT, origin=None)),
        (FOREIGN, "any", None),
        ({"host": "evil.example"}, "any", None),
        (LINK, "links", None),
        (LINK, "own", denied(PAGE, PAGE_HINT, origin=None)),
        ({**LINK, "sec-fetch-mode": "cors"}, "links", denied(PAGE, PAGE_HINT, origin=None)),
        ({**LINK, "sec-fetch-dest": "image"}, "links", denied(PAGE, PAGE_HINT, origin=None)),
        ({**LINK, "origin": "http://evil.example"}, "links", denied(PAGE, PAGE_HINT, origin="http://evil.example")),
    ],
)
def test_a_service_without_tokens_takes_no_request_of_a_page_of_another_site(
    fields: dict[str, str], browsers: Browsers, expected: Refusal | None
) -> None:
    assert refusal_of(problem_with_browser(GUARD, fields.get, browsers=browsers)) == expected


def test_a_name_that_was_pointed_here_is_misdirected() -> None:
    words = "the Host field names another host than this service, which has no tokens"
    for host in ("evil.example", "x" * 300):
        problem = problem_with_browser(GUARD, {"host": host}.get)
        assert refusal_of(problem) == (InvalidRequest, Code.MISDIRECTED, words, NAME_HINT, {"host": host[:256]})


def test_a_browser_changes_nothing_by_a_get_that_does_not_say_where_it_comes_from() -> None:
    refused = problem_with_browser(GUARD, BROWSER.get, changes_by_get=True)
    assert refusal_of(refused) == denied(GET, "send the same request with POST")
    assert problem_with_browser(GUARD, BROWSER.get) is None
    for fields in ({**BROWSER, "sec-fetch-site": "none"}, {**HOST, "user-agent": "curl/8"}, HOST):
        assert problem_with_browser(GUARD, fields.get, changes_by_get=True) is None


# ---- stores ----------------------------------------------------------------------------------------------------------

TRADER = StoreRole("trader", {"orders": frozenset({Right.PUBLISH})})
PERMISSIONS = Permissions(
    True,
    {"ann": User("ann", token_hash(UNKNOWN.decode()[7:]), ("trader",)), "ghost": User("ghost", "", ("trader",))},
    {"trader": TRADER},
)
RETRY = "a retry gets the same answer"


@pytest.mark.parametrize(
    ("right", "store", "expected"),
    [
        (Right.PUBLISH, "orders", None),
        (
            Right.BROWSE,
            "orders",
            denied(
                "ann may not browse on store orders",
                f"ask an administrator for a role with the right browse: {RETRY}",
                user="ann",
                right="browse",
                store="orders",
            ),
        ),
        (
            Right.ADMINISTER,
            CLUSTER,
            denied(
                "ann may not administer on the cluster",
                f"ask an administrator for a role with the right administer: {RETRY}",
                user="ann",
                right="administer",
                store=None,
            ),
        ),
    ],
)
def test_a_user_has_the_rights_of_its_roles(right: Right, store: str, expected: Refusal | None) -> None:
    for tokens in ({}, TOKENS):
        access = StoreAccess(Authenticator(tokens), lambda: PERMISSIONS)
        assert refusal_of(access.problem_with(UNKNOWN, right, store)) == expected
        assert access.allows(UNKNOWN, right, store) is (expected is None)
        held = access.held(UNKNOWN, right, store)
        assert refusal_of(held.problem()) == expected
        if expected is None:
            access.require(UNKNOWN, right, store)
        else:
            with pytest.raises(PermissionDenied) as refused:
                access.require(UNKNOWN, right, store)
            assert refusal_of(refused.value) == expected
            assert refused.value.__context__ is None


def test_nobody_is_named_nobody() -> None:
    with pytest.raises(PermissionDenied) as refused:
        PERMISSIONS.require(None, Right.PUBLISH, "orders")
    assert refused.value.message == "nobody may not publish on store orders" and refused.value.fields["user"] == ""


@pytest.mark.parametrize("permissions", [OPEN, PERMISSIONS])
@pytest.mark.parametrize("tokens", [{}, TOKENS])
def test_only_the_service_publishes_its_statistics(permissions: Permissions, tokens: dict[str, Role | Grant]) -> None:
    access = StoreAccess(Authenticator(tokens), lambda: permissions)
    assert refusal_of(access.problem_with(WRITER, Right.PUBLISH, "_statistics")) == denied(
        "only the service publishes here", "names that begin with _ are those of the service", store="_statistics"
    )


@pytest.mark.parametrize(
    ("right", "lacks"), [("publish", "write"), ("subscribe", "write"), ("browse", None), ("administer", "admin")]
)
def test_without_permissions_the_roles_of_tokens_count(tokens: Authenticator, right: str, lacks: str | None) -> None:
    access = StoreAccess(tokens, lambda: OPEN)
    problem = access.problem_with(READER, Right(right), "orders")
    assert refusal_of(problem) == (None if lacks is None else denied(f"this token lacks the `{lacks}` role"))
    assert access.problem_with(READER, Right.BROWSE, "_statistics") is None


def test_a_right_on_a_store_ends_with_the_token(tokens: Authenticator, monkeypatch: pytest.MonkeyPatch) -> None:
    held = StoreAccess(tokens, lambda: OPEN).held(WRITER, Right.PUBLISH, "orders")
    assert held.problem() is None
    monkeypatch.setattr(auth.time, "time", lambda: 100.0)
    assert refusal_of(held.problem()) == EXPIRED


def test_with_permissions_a_user_or_an_administrator_of_the_service_is_needed() -> None:
    admin = b"Bearer an-administrator-of-the-service"
    access = StoreAccess(Authenticator({**TOKENS, admin.decode()[7:]: Role.ADMIN}), lambda: PERMISSIONS)
    for header in (WRITER, None, b"", b"Bearer ", b"Basic" + UNKNOWN[6:], UNKNOWN[7:]):
        assert refusal_of(access.problem_with(header, Right.PUBLISH, "orders")) == NO_TOKEN
        assert access.user_of(header) is None
    assert access.user_of(b"bearer  " + UNKNOWN[7:]) == "ann" == access.user_of(UNKNOWN)
    assert (
        access.problem_with(admin, Right.ADMINISTER) is None and access.problem_with(admin, Right.PUBLISH, "x") is None
    )
    nobody = StoreAccess(Authenticator({}), lambda: PERMISSIONS)
    assert refusal_of(nobody.problem_with(admin, Right.ADMINISTER)) == NO_TOKEN


def test_the_users_of_one_definition_are_read_once() -> None:
    readings: list[None] = []

    class Users(dict[str, User]):
        def items(self) -> Any:
            readings.append(None)
            return super().items()

    force = Permissions(True, Users(PERMISSIONS.users), PERMISSIONS.roles)
    access = StoreAccess(Authenticator({}), lambda: force)
    assert [access.user_of(UNKNOWN) for _ in range(3)] == ["ann"] * 3
    assert len(readings) == 1


def test_permissions_that_were_replaced_count_at_once() -> None:
    forces = [PERMISSIONS]
    access = StoreAccess(Authenticator({}), lambda: forces[0])
    held = access.held(UNKNOWN, Right.PUBLISH, "orders")
    assert access.user_of(UNKNOWN) == "ann" and held.problem() is None and held.problem() is None
    forces[0] = Permissions(True, {"bob": User("bob", token_hash(UNKNOWN.decode()[7:]), ())}, {})
    assert access.user_of(UNKNOWN) == "bob"
    assert held.problem() is not None
