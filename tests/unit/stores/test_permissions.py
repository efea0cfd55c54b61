"""Permissions: nothing is allowed that no role grants, and what is refused says who, what and where."""

from __future__ import annotations

import pytest

from holdfast.errors import Code, InvalidRequest, PermissionDenied
from holdfast.server.http.auth import Authenticator, Role
from holdfast.server.stores.access import StoreAccess
from holdfast.server.stores.routes import store_routes
from holdfast.stores.definitions.cluster import definition_of
from holdfast.stores.definitions.permissions import CLUSTER, OPEN, Permissions, Right, permissions_document, token_hash
from holdfast.stores.values import commands

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
        ({"users": {}}, "permissions.enabled: true only where some user with a token may administer the cluster"),
        ({"users": USERS | {"x": {"roles": ["no"]}}}, "permissions.users.x.roles: roles that are defined, not 'no'"),
        ({"users": USERS | {"x": {"token": "short"}}}, "permissions.users.x.token: at least 16"),
        ({"users": USERS | {"x": {"token_sha256": "ab"}}}, "permissions.users.x.token_sha256: the 64 hexadecimal"),
        ({"users": USERS | {"x": {"token": "ann-has-this-token"}}}, "permissions.users.x: a token of one user"),
        ({"roles": ROLES | {"x": {"stores": {"a*b": ["browse"]}}}}, "permissions.roles.x.stores.a*b: the name of"),
        ({"roles": ROLES | {"x": {"stores": {"a": ["write"]}}}}, "permissions.roles.x.stores.a: a list of publish"),
        ({"roles": ROLES | {"x": {"cluster": "all"}}}, "permissions.roles.x.cluster: a list"),
        ({"enable": True}, "permissions.enable: there is no such parameter; did you mean enabled?"),
    ],
)
def test_wrong_permissions_are_named_by_their_path(changes: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        permissions(**changes)
    assert said in str(refused.value)
    assert "short" not in str(refused.value)


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
