"""Every right that a route needs, in one table. Routes are served from it: one without a row does not start.

``role``   of ``server.tokens``; ``OPEN`` needs no token
``right``  of a definition's users, on the store of the path, or on the cluster where the path names none
``scope``  what a token for some keys may do (``ScopeRule``)
``parts``  what a part of a request needs in addition
``others`` a right in place of ``right``, for some of what a path may name: the handler asks for the one that counts
``hides``  what an answer leaves out

``docs/reference/rights.md`` is made from this table. ``tests/expected_rights.txt`` has the answers that it must give.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from holdfast.server.http.auth import Role
from holdfast.stores.definitions.permissions import Right


class ScopeRule(StrEnum):
    """What a token for some keys may do."""

    REFUSED = "refused"
    KEYS = "all keys that the request names are its own"
    ITEMS = "the keys of each item are its own; any other item gets the error"
    COMMITS = "all keys and the id of each commit are its own"
    IDS = "the id is its own"
    NO_KEYS = "allowed: no key is shown"


@dataclass(frozen=True, slots=True)
class Need:
    """One row."""

    role: Role = Role.OPEN
    right: Right | None = None
    scope: ScopeRule = ScopeRule.REFUSED
    parts: Mapping[str, Role | Right] = field(default_factory=dict[str, Role | Right])
    others: Mapping[str, Right] = field(default_factory=dict[str, Right])
    hides: str = ""

    @property
    def checks_scope(self) -> bool:
        """Whether a token for some keys may ask at all."""
        return self.scope is not ScopeRule.REFUSED

    def role_of(self, part: str) -> Role:
        """The role that a part needs."""
        role = self.parts[part]
        assert isinstance(role, Role), "this part needs a role"
        return role

    def right_of(self, part: str) -> Right:
        """The right that a part needs."""
        right = self.parts[part]
        assert isinstance(right, Right), "this part needs a right"
        return right


JOBS: Final = "jobs"
ACKNOWLEDGE: Final = "acknowledge"
MAPS: Final = "maps"
PUBLISHES: Final = "publish"
STORES: Final = "stores"
TAKE_OVER: Final = "take_over"
DYNAMIC: Final = "a dynamic durable"
ORIGIN: Final = "the store that a dead letter came from"
DEAD_LETTERS: Final = "a new dead_letter_store"
PERMISSIONS: Final = "without tokens, with permissions"

_OPEN: Final = Need()
_READ, _WRITE, _ADMIN = Need(Role.READ), Need(Role.WRITE), Need(Role.ADMIN)
_JOB: Final = Need(Role.JOB, scope=ScopeRule.NO_KEYS)
_COMMIT: Final = Need(
    Role.WRITE,
    scope=ScopeRule.COMMITS,
    parts={JOBS: Role.JOB, ACKNOWLEDGE: Right.SUBSCRIBE, MAPS: Right.PUBLISH, PUBLISHES: Right.PUBLISH},
)
_STATUS: Final = Need(Role.WRITE, scope=ScopeRule.IDS)
_PUBLISH, _BROWSE = Need(right=Right.PUBLISH), Need(right=Right.BROWSE)
_DEFINE: Final = Need(right=Right.ADMINISTER, parts={DEAD_LETTERS: Right.PUBLISH})
_SUBSCRIBE, _ADMINISTER = Need(right=Right.SUBSCRIBE), Need(right=Right.ADMINISTER)
_ATTACH: Final = Need(right=Right.SUBSCRIBE, parts={TAKE_OVER: Right.ADMINISTER})

_STORE, _DURABLE = "/v1/stores/{store}", "/v1/stores/{store}/durables/{durable}"
_TEMPLATE, _MAP = "/v1/stores/{store}/templates/{template}", "/v1/stores/{store}/maps/{map}"
_STAGED: Final = "/v1/staged/{application}"

RIGHTS: Final[Mapping[str, Need]] = MappingProxyType(
    {
        "GET /livez": _OPEN,
        "GET /readyz": _OPEN,
        "GET /ok": _OPEN,
        "GET /openapi.json": _OPEN,
        "GET /docs": _OPEN,
        "GET /metrics": Need(Role.READ, parts={PERMISSIONS: Right.BROWSE}),
        "POST /v1/commit": _COMMIT,
        "POST /v1/commits": _COMMIT,
        "GET /v1/status/{request_id}": _STATUS,
        "POST /v1/status/{request_id}": _STATUS,
        "GET /v1/version": Need(Role.READ, scope=ScopeRule.NO_KEYS),
        "GET /v1/subscribe": Need(
            Role.READ, scope=ScopeRule.KEYS, parts={STORES: Right.SUBSCRIBE},
            hides="keys of range deletes and request ids that are not the token's own",
        ),
        "GET /v1/snapshot": _READ,
        "GET /v1/keys/{key}": Need(Role.READ, scope=ScopeRule.KEYS),
        "GET /v1/range": Need(Role.READ, scope=ScopeRule.KEYS),
        "POST /v1/read": Need(Role.READ, scope=ScopeRule.ITEMS),
        "GET /v1/jobs": _JOB,
        "GET /v1/jobs/{name}": _JOB,
        "GET /v1/log/objects": _READ,
        "GET /v1/log/transactions/{version}": _READ,
        "GET /v1/log/leaderships": _READ,
        "GET /v1/log/conflicts": _READ,
        "GET /v1/log/storage": _READ,
        "GET /v1/retention": _READ,
        "GET /v1/retention/{policy_id}": _READ,
        "PUT /v1/retention/{policy_id}": _ADMIN,
        "DELETE /v1/retention/{policy_id}": _ADMIN,
        f"GET {_STAGED}": _WRITE,
        f"PUT {_STAGED}/{{write}}/{{name}}": _WRITE,
        f"GET {_STAGED}/{{write}}/{{name}}": _WRITE,
        f"DELETE {_STAGED}/{{write}}": _WRITE,
        "GET /v1/configuration": Need(Role.ADMIN, hides="secrets"),
        "GET /v1/admin/log-level": _ADMIN,
        "PUT /v1/admin/log-level": _ADMIN,
        "POST /v1/admin/retention-plan": _ADMIN,
        "GET /v1/admin/snapshot": _ADMIN,
        "POST /v1/admin/snapshot": _ADMIN,
        "DELETE /v1/admin/snapshot": _ADMIN,
        "GET /v1/admin/verify": _ADMIN,
        "POST /v1/admin/verify": _ADMIN,
        "DELETE /v1/admin/verify": _ADMIN,
        "POST /v1/admin/step-down": _ADMIN,
        "GET /v1/stores": Need(right=Right.BROWSE, hides="stores that the caller may not browse"),
        f"GET {_STORE}": _BROWSE,
        f"PUT {_STORE}": _DEFINE,
        f"PATCH {_STORE}": _DEFINE,
        f"DELETE {_STORE}": _DEFINE,
        f"POST {_STORE}/messages": _PUBLISH,
        f"GET {_STORE}/messages/{{seq}}/explain": _BROWSE,
        f"GET {_STORE}/durables": _BROWSE,
        f"GET {_DURABLE}": _BROWSE,
        f"PUT {_DURABLE}": _DEFINE,
        f"PATCH {_DURABLE}": _DEFINE,
        f"DELETE {_DURABLE}": Need(
            right=Right.ADMINISTER, parts={DEAD_LETTERS: Right.PUBLISH}, others={DYNAMIC: Right.SUBSCRIBE}
        ),
        f"GET {_DURABLE}/messages": _ATTACH,
        f"POST {_DURABLE}/messages": _ATTACH,
        f"GET {_DURABLE}/subscribe": _ATTACH,
        f"POST {_DURABLE}/acks": _SUBSCRIBE,
        f"POST {_DURABLE}/rewind": _SUBSCRIBE,
        f"GET {_DURABLE}/browse": _BROWSE,
        f"POST {_DURABLE}/purge": _ADMINISTER,
        f"POST {_DURABLE}/redeliver": Need(right=Right.ADMINISTER, parts={ORIGIN: Right.PUBLISH}),
        f"DELETE {_DURABLE}/messages/{{seq}}": _ADMINISTER,
        f"GET {_STORE}/templates": _BROWSE,
        f"GET {_TEMPLATE}": _BROWSE,
        f"PUT {_TEMPLATE}": _DEFINE,
        f"PATCH {_TEMPLATE}": _DEFINE,
        f"DELETE {_TEMPLATE}": _DEFINE,
        f"GET {_MAP}": _SUBSCRIBE,
        f"GET {_MAP}/{{key}}": _SUBSCRIBE,
        f"POST {_MAP}": _PUBLISH,
        f"PUT {_MAP}/{{key}}": _PUBLISH,
        f"DELETE {_MAP}/{{key}}": _PUBLISH,
        f"POST {_MAP}/lock": _PUBLISH,
        f"POST {_MAP}/unlock": _PUBLISH,
        "GET /v1/cluster": _BROWSE,
        "GET /v1/cluster/quorum": _BROWSE,
        "POST /v1/cluster/force-quorum": _ADMINISTER,
        "POST /v1/cluster/suspend": _ADMINISTER,
        "POST /v1/cluster/resume": _ADMINISTER,
        "POST /v1/cluster/save": _ADMINISTER,
        "POST /v1/cluster/compact": _ADMINISTER,
        "POST /v1/cluster/backup": _ADMINISTER,
        "GET /v1/cluster/definition": _BROWSE,
        "PUT /v1/cluster/definition": _DEFINE,
        "PATCH /v1/cluster/definition": _DEFINE,
        "POST /v1/cluster/definition/check": _ADMINISTER,
        "POST /v1/cluster/rollback": _DEFINE,
        "GET /v1/cluster/history": _BROWSE,
        "GET /v1/cluster/history/{revision}": _BROWSE,
    }
)  # fmt: skip


def need_of(method: str, path: str) -> Need:
    """The row of a route."""
    name = f"{method} {path}"
    need = RIGHTS.get(name)
    assert need is not None, f"a route has a row in the table of rights: {name}"
    return need
