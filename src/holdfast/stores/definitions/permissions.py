"""Permissions: which user may publish to, subscribe to, browse and administer which store.

    {"enabled": true,
     "users": {"alice": {"token_sha256": "9f86…", "roles": ["traders"]}},
     "roles": {"traders": {"stores": {"orders": ["publish", "subscribe"], "audit-*": ["browse"]},
                           "cluster": ["browse"]}}}

Disabled, everything is allowed. Enabled, only what a role of the user grants is allowed; no right contains another. A
role names a store exactly, by a prefix that ends with ``*``, or as ``*`` for all. ``Right`` lists what each allows.

Definitions are kept, shown and logged, so they hold the SHA-256 of a token, never the token. A ``token`` in a request
is hashed at once; it must have at least 16 characters and be random, because a plain hash does not protect a password.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import sha256
from typing import Final

from holdfast.errors import PermissionDenied
from holdfast.stores.definitions.reader import STATISTICS, FieldReader, is_name

CLUSTER: Final = ""  # stands for the cluster itself where a store is asked for; no store has an empty name
TOKEN_LENGTH_MIN: Final = 16
_HASH: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)


class Right(StrEnum):
    """What a role can grant."""

    PUBLISH = "publish"
    """Publish messages; set and remove keys of maps, take and return their locks."""
    SUBSCRIBE = "subscribe"
    """Attach, receive, acknowledge, rewind, unsubscribe; read and watch maps."""
    BROWSE = "browse"
    """Browse durables without consuming, see definitions and figures."""
    ADMINISTER = "administer"
    """Define and delete; purge, delete one message; on the cluster also save, back up, compact."""


@dataclass(frozen=True, slots=True)
class User:
    """One user: the hash of the token (empty: no token works) and the roles."""

    name: str
    token_sha256: str = field(default="", repr=False)
    roles: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StoreRole:
    """What one role grants: by store or pattern of stores, and on the cluster itself."""

    name: str
    stores: Mapping[str, frozenset[Right]] = field(default_factory=dict[str, frozenset[Right]])
    cluster: frozenset[Right] = frozenset()

    def grants(self, right: Right, store: str) -> bool:
        """Whether this role has ``right`` on ``store``, or on the cluster for ``CLUSTER``."""
        if store == CLUSTER:
            return right in self.cluster
        return any(right in rights and _covers(pattern, store) for pattern, rights in self.stores.items())


@dataclass(frozen=True, slots=True)
class Permissions:
    """Users and roles of a cluster.

    >>> trader = StoreRole("trader", {"orders": frozenset({Right.PUBLISH})})
    >>> permissions = Permissions(True, {"ann": User("ann", token_hash("a-long-random-token"), ("trader",))},
    ...                           {"trader": trader})
    >>> permissions.user_of("a-long-random-token")
    'ann'
    >>> permissions.allows("ann", Right.PUBLISH, "orders"), permissions.allows("ann", Right.SUBSCRIBE, "orders")
    (True, False)
    """

    enabled: bool = False
    users: Mapping[str, User] = field(default_factory=dict[str, User])
    roles: Mapping[str, StoreRole] = field(default_factory=dict[str, StoreRole])

    def user_of(self, token: str) -> str | None:
        """The user with this token, or None. Hashes are compared, so the time taken reveals nothing about the token."""
        digest = token_hash(token)
        return next((name for name, user in self.users.items() if user.token_sha256 == digest), None)

    def allows(self, user: str | None, right: Right, store: str = CLUSTER) -> bool:
        """Whether ``user`` (None: nobody known) has ``right`` on ``store``, by default on the cluster."""
        if not self.enabled:
            return True
        if user is None or (known := self.users.get(user)) is None:
            return False
        return any(role.grants(right, store) for name in known.roles if (role := self.roles.get(name)) is not None)

    def require(self, user: str | None, right: Right, store: str = CLUSTER) -> None:
        """Raises ``PermissionDenied`` with the user, the right and the store if it is not allowed."""
        if self.allows(user, right, store):
            return
        scope = "the cluster" if store == CLUSTER else f"store {store}"
        raise PermissionDenied(
            f"{user or 'nobody'} may not {right} on {scope}",
            hint=f"ask an administrator for a role with the right {right}: a retry gets the same answer",
            user=user or "",
            right=str(right),
            store=store or None,
        )


OPEN: Final = Permissions()  # everything is allowed to everybody


def token_hash(token: str) -> str:
    """The SHA-256 of a token, in hexadecimal."""
    return sha256(token.encode()).hexdigest()


def _covers(pattern: str, store: str) -> bool:
    return store.startswith(pattern[:-1]) if pattern.endswith("*") else store == pattern


def read_permissions(reader: FieldReader) -> Permissions:
    """The permissions of a definition; problems are left with the reader."""
    enabled = reader.flag("enabled", False)
    roles = {name: _read_role(name, section) for name, section in reader.sections("roles", "role").items()}
    users = {name: _read_user(name, section, roles) for name, section in reader.sections("users", "user").items()}
    reader.finish()
    places: dict[str, str] = {}
    for user in users.values():
        if user.token_sha256 and user.token_sha256 in places:
            reader.problem(f"users.{user.name}", f"a token of one user, and {places[user.token_sha256]} has the same")
        places[user.token_sha256] = user.name
    names = {name for user in users.values() if user.token_sha256 for name in user.roles}
    if enabled and not any(roles[name].grants(Right.ADMINISTER, CLUSTER) for name in names):
        # Applied, it could never be changed again.
        reader.problem("enabled", "true only where some user with a token may administer the cluster")
    return Permissions(enabled, users, roles)


def _read_user(name: str, reader: FieldReader, roles: Mapping[str, StoreRole]) -> User:
    digest = reader.text("token_sha256").lower()
    if digest and not _HASH.fullmatch(digest):
        reader.problem("token_sha256", "the 64 hexadecimal digits of a token's SHA-256")
    token = reader.text("token")
    if token:
        # The token itself is in no error: errors are logged and shown.
        if len(token) < TOKEN_LENGTH_MIN or not token.isascii() or not token.isprintable() or " " in token:
            reader.problem("token", f"at least {TOKEN_LENGTH_MIN} printable characters without a space")
        if digest:
            reader.problem("token", "given either so or as token_sha256")
        digest = token_hash(token)
    names = reader.names("roles", (), "role")
    for role in names:
        if role not in roles:
            reader.problem("roles", "roles that are defined", role)
    reader.finish()
    return User(name, digest, tuple(role for role in names if role in roles))


def _read_role(name: str, reader: FieldReader) -> StoreRole:
    stores: dict[str, frozenset[Right]] = {}
    section = reader.section("stores")
    for pattern in section.entries():
        if pattern not in ("*", STATISTICS) and not is_name(pattern.removesuffix("*")):
            section.problem(pattern, "the name of a store, a prefix with * at its end, or *", pattern)
        stores[pattern] = _read_rights(section, pattern)
    cluster = _read_rights(reader, "cluster")
    reader.finish()
    return StoreRole(name, stores, cluster)


def _read_rights(reader: FieldReader, name: str) -> frozenset[Right]:
    items = reader.list_of(name)
    rights = [Right(item) for item in items if isinstance(item, str) and item in list(Right)]
    if len(rights) < len(items):
        reader.problem(name, "a list of " + ", ".join(Right), items)
    return frozenset(rights)


def permissions_document(permissions: Permissions) -> dict[str, object]:
    """The JSON of permissions; ``read_permissions`` of it is equal. It has no token in it."""
    return {
        "enabled": permissions.enabled,
        "users": {
            user.name: {"token_sha256": user.token_sha256, "roles": list(user.roles)}
            for user in permissions.users.values()
        },
        "roles": {
            role.name: {
                "stores": {pattern: sorted(rights) for pattern, rights in role.stores.items()},
                "cluster": sorted(role.cluster),
            }
            for role in permissions.roles.values()
        },
    }
