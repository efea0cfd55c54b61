"""Permissions: nothing is allowed that no role grants, and what is refused says who, what and where."""

from __future__ import annotations

import pytest

from holdfast.errors import Code, InvalidRequest, PermissionDenied
from holdfast.server.http.auth import Authenticator, Role
from holdfast.server.stores.access import StoreAccess
from holdfast.server.stores.routes import store_routes
from holdfast.stores.definitions.cluster import definition_of
from holdfast.stores.definitions.permissions import CLUSTER, OPEN, Permissions, Right, permissions_document, token_hash
from holdfast.stores.definitions.reader import NAME_RULE
from holdfast.stores.values import commands

TOKEN_RULE = "at least 16 printable characters without a space"
HASH_RULE = "the 64 hexadecimal digits of a token's SHA-256"
RIGHTS_RULE = "a list of publish, subscribe, browse, administer"

ROLES = {
    "trader": {"stores": {"orders": ["publish", "subscribe"], "quotes-*": ["subscribe"]}},
    "viewer": {"stores": {"*": ["browse"]}, "cluster": ["browse"]},
    "admin": {"cluster": ["administer"]},
}
USERS = {
    "ann": {"token": "ann-has-this-token", "roles": ["trader", "viewer"]},
    "bob": {"token_sha256": token_hash("bob-has-this-token"), "roles": ["trader"]},
    "root": {"token": "root-has-this-token", "roles": ["admin"]},
}

STORE = "/v1/stores/{store}"
DURABLE = f"{STORE}/durables/{{durable}}"
MAP = f"{STORE}/maps/{{map}}"
DEFINING = (
    *(
        f"{method} {path}"
        for path in (STORE, f"{STORE}/templates/{{template}}")
        for method in ("PUT", "PATCH", "DELETE")
    ),
    *(f"{method} {path}" for path in (DURABLE, "/v1/cluster/definition") for method in ("PUT", "PATCH")),
    f"DELETE {DURABLE}",
    "POST /v1/cluster/rollback",
)
RECEIVING = (f"GET {DURABLE}/messages", f"POST {DURABLE}/messages", f"GET {DURABLE}/subscribe")
ROUTES_OF = {
    "Publish": (Right.PUBLISH, (f"POST {STORE}/messages",)),
    "MapChange": (Right.PUBLISH, (f"POST {MAP}", f"PUT {MAP}/{{key:any}}", f"DELETE {MAP}/{{key:any}}")),
    "MapLock": (Right.PUBLISH, (f"POST {MAP}/lock",)),
    "MapUnlock": (Right.PUBLISH, (f"POST {MAP}/unlock",)),
    "Attach": (Right.SUBSCRIBE, RECEIVING),
    "Detach": (Right.SUBSCRIBE, RECEIVING),
    "Deliver": (Right.SUBSCRIBE, RECEIVING),
    "Acknowledge": (Right.SUBSCRIBE, (f"POST {DURABLE}/acks", *RECEIVING)),
    "Rewind": (Right.SUBSCRIBE, (f"POST {DURABLE}/rewind",)),
    "Unsubscribe": (Right.SUBSCRIBE, (f"DELETE {DURABLE}",)),
    "Redefine": (Right.ADMINISTER, DEFINING),
    "Purge": (Right.ADMINISTER, (f"POST {DURABLE}/purge",)),
    "Drop": (Right.ADMINISTER, (f"DELETE {DURABLE}/messages/{{seq}}",)),
    "Redeliver": (Right.ADMINISTER, (f"POST {DURABLE}/redeliver",)),
    "Resend": (Right.ADMINISTER, (f"POST {DURABLE}/redeliver",)),
}
"""The right that each command of a client needs, and the routes that carry it out."""
OF_THE_SERVICE_ALONE = {"DeadLetter", "Expire", "Inherit", "Restarted"}
OF_A_COMMIT = {"CommitParts"}  # each part needs the right of its own command
WITHOUT_A_COMMAND = {
    f"POST /v1/cluster/{name}"
    for name in ("force-quorum", "suspend", "resume", "save", "compact", "backup", "definition/check")
}


def permissions(**changes: object) -> Permissions:
    return definition_of({"permissions": {"enabled": True, "users": USERS, "roles": ROLES} | changes}).permissions


@pytest.mark.parametrize("right", list(Right))
@pytest.mark.parametrize("user", ["ann", "bob", "root", "nobody", None])
@pytest.mark.parametrize("store", ["orders", "orders2", "quotes-eu", "quotes", CLUSTER])
def test_a_right_is_had_only_where_a_role_grants_it(right: Right, user: str | None, store: str) -> None:
    granted = {
        ("ann", "publish", "orders"),
        ("ann", "subscribe", "orders"),
        ("ann", "subscribe", "quotes-eu"),
        *(("ann", "browse", place) for place in ("orders", "orders2", "quotes-eu", "quotes", CLUSTER)),
        ("bob", "publish", "orders"),
        ("bob", "subscribe", "orders"),
        ("bob", "subscribe", "quotes-eu"),
        ("root", "administer", CLUSTER),
    }
    allowed = (user, str(right), store) in granted
    assert permissions().allows(user, right, store) is allowed
    if not allowed:
        with pytest.raises(PermissionDenied) as refused:
            permissions().require(user, right, store)
        assert refused.value.code is Code.PERMISSION_DENIED
        assert (refused.value.fields["user"], refused.value.fields["right"]) == (user or "", str(right))
        assert refused.value.fields["store"] == (store or None)
        assert "store= " not in refused.value.statement() + " "


def test_off_everything_is_allowed_to_everybody() -> None:
    for right in Right:
        assert OPEN.allows(None, right, "orders")
        assert OPEN.allows(None, right, CLUSTER)
        OPEN.require(None, right)


def test_a_user_is_known_by_the_token_alone() -> None:
    known = permissions()
    assert known.user_of("ann-has-this-token") == "ann"
    assert known.user_of("bob-has-this-token") == "bob"
    assert known.user_of("") is None
    assert known.user_of(token_hash("bob-has-this-token")) is None


def test_a_user_without_a_token_can_be_nobody() -> None:
    assert permissions(users=USERS | {"ghost": {"roles": ["admin"]}}).user_of("") is None


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"users": {}}, "enabled: true only where some user with a token may administer the cluster"),
        ({"users": USERS | {"x": {"roles": ["no"]}}}, "users.x.roles: roles that are defined, not 'no'"),
        ({"users": USERS | {"x": {"roles": "no"}}}, "users.x.roles: a list of names of roles, not 'no'"),
        ({"users": USERS | {"x": {"roles": ["-"]}}}, f"users.x.roles: the name of a role is {NAME_RULE} given='-'"),
        ({"users": USERS | {"-": {}}}, f"users: the name of a user is {NAME_RULE} given='-'"),
        ({"roles": ROLES | {"-": {}}}, f"roles: the name of a role is {NAME_RULE} given='-'"),
        ({"users": USERS | {"x": {"token": "short"}}}, f"users.x.token: {TOKEN_RULE}"),
        ({"users": USERS | {"x": {"token": "short of one cha"}}}, f"users.x.token: {TOKEN_RULE}"),
        ({"users": USERS | {"x": {"token": "short-of-one-ch"}}}, f"users.x.token: {TOKEN_RULE}"),
        ({"users": USERS | {"x": {"token": "short\x7fof-one-cha"}}}, f"users.x.token: {TOKEN_RULE}"),
        ({"users": USERS | {"x": {"token": "short-of-\u00f6ne-cha"}}}, f"users.x.token: {TOKEN_RULE}"),
        ({"users": USERS | {"x": {"token_sha256": "ab"}}}, f"users.x.token_sha256: {HASH_RULE}"),
        (
            {"users": USERS | {"x": {"token": "a-long-random-token", "token_sha256": "0" * 64}}},
            "users.x.token: given either so or as token_sha256",
        ),
        (
            {"users": USERS | {"x": {"token": "ann-has-this-token"}}},
            "users.x: a token of one user, and ann has the same",
        ),
        (
            {"roles": ROLES | {"x": {"stores": {"a*b": ["browse"]}}}},
            "roles.x.stores.a*b: the name of a store, a prefix with * at its end, or *, not 'a*b'",
        ),
        (
            {"roles": ROLES | {"x": {"stores": {"a": ["browse", "write"]}}}},
            f"roles.x.stores.a: {RIGHTS_RULE}, not ['browse', 'write']",
        ),
        ({"roles": ROLES | {"x": {"stores": {"a": "browse"}}}}, "roles.x.stores.a: a list, not 'browse'"),
        ({"roles": ROLES | {"x": {"cluster": "all"}}}, "roles.x.cluster: a list, not 'all'"),
        ({"roles": ROLES | {"x": {"cluster": ["all"]}}}, f"roles.x.cluster: {RIGHTS_RULE}, not ['all']"),
        ({"roles": ROLES | {"x": {"cluster": [7]}}}, f"roles.x.cluster: {RIGHTS_RULE}, not [7]"),
        ({"enable": True}, "enable: there is no such parameter; did you mean enabled?"),
    ],
)
def test_wrong_permissions_are_named_by_their_path(changes: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        permissions(**changes)
    assert refused.value.message == f"the definition has 1 problem: permissions.{said}"
    assert "short" not in str(refused.value)


def test_permissions_are_off_until_they_are_enabled_and_a_token_of_the_least_length_is_one() -> None:
    read = definition_of({"permissions": {"users": {"x": {"token": "0123456789abcde~"}}}}).permissions
    assert not read.enabled and read.allows(None, Right.ADMINISTER)
    assert read.user_of("0123456789abcde~") == "x"


def test_every_command_of_a_client_needs_a_right_on_every_route() -> None:
    routes = {
        f"{route.method} {route.path}": {route.need.right, *route.need.others.values()}
        for route in store_routes(None)  # type: ignore[arg-type]
    }
    commands_of_clients = (
        {command.__name__ for command in commands.Command.__args__} - OF_THE_SERVICE_ALONE - OF_A_COMMIT
    )
    assert set(ROUTES_OF) == commands_of_clients
    for right, paths in ROUTES_OF.values():
        assert paths and all(right in routes[path] for path in paths), paths
    changing = {path for path in routes if not path.startswith("GET ")}
    assert changing <= {path for _, paths in ROUTES_OF.values() for path in paths} | WITHOUT_A_COMMAND
    assert all(routes[path] == {Right.ADMINISTER} for path in WITHOUT_A_COMMAND)


def test_permissions_are_shown_as_they_are_read_and_without_a_token() -> None:
    document = permissions_document(permissions())
    assert document == {
        "enabled": True,
        "users": {
            "ann": {"token_sha256": token_hash("ann-has-this-token"), "roles": ["trader", "viewer"]},
            "bob": {"token_sha256": token_hash("bob-has-this-token"), "roles": ["trader"]},
            "root": {"token_sha256": token_hash("root-has-this-token"), "roles": ["admin"]},
        },
        "roles": {
            "trader": {"stores": {"orders": ["publish", "subscribe"], "quotes-*": ["subscribe"]}, "cluster": []},
            "viewer": {"stores": {"*": ["browse"]}, "cluster": ["browse"]},
            "admin": {"stores": {}, "cluster": ["administer"]},
        },
    }
    assert definition_of({"permissions": document}).permissions == permissions()


def test_a_refusal_without_a_token_names_the_option_of_commands() -> None:
    authenticator = Authenticator({"a-long-random-token": Role.ADMIN})
    for problem in (
        authenticator.problem_with(None, Role.READ),
        StoreAccess(authenticator, permissions).problem_with(None, Right.BROWSE, "orders"),
    ):
        assert problem is not None
        assert "--token" in problem.hint and "HOLDFAST_TOKEN" in problem.hint
