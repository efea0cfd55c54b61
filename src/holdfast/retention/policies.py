"""Policies, holds and generations: their JSON, their rules, and the changes of a generation. Pure.

A policy is one JSON object with exactly one of the fields of ``RetentionPolicy``. Each means "keep at least this much":
the log is kept from the lowest version that any policy, hold or snapshot needs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec
from msgspec import Struct

from holdfast.commit.format.log_clock import Moment
from holdfast.errors import Code, CorruptData, InvalidRequest, NotFound
from holdfast.sealed import decode_sealed
from holdfast.values import VERSION_MAX
from holdfast.wire.formats import UNDECODABLE, decode_each_once
from holdfast.wire.log import RetentionPolicy

FORMAT: Final = 1
POLICIES_MAX: Final = 64
HOLDS_MAX: Final = 1_000
DAY_MS: Final = 86_400_000
LOAD_PREFIX: Final = "load:"
"""How the holds of readers begin that a service sends a snapshot."""
CONFIGURATION: Final = "configuration"
"""The policy that the configuration file gives. Requests cannot change it."""
_ID: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,127}")


Policy = RetentionPolicy


class Hold(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A reader that still needs ``from_version`` and all later versions, until it releases, or for ``lasts_ms``.

    ``snapshot`` and ``checkpoint``: the versions of a snapshot, and of a checkpoint of the stores, that it also needs.
    The reader's clock does not count: the time begins when the leader first sees the hold, and ends when both of the
    log's times have reached what the leader then notes, ``expires_ms`` and ``expires_lived_ms``.
    """

    from_version: int
    lasts_ms: int = DAY_MS
    snapshot: int | None = None
    checkpoint: int | None = None
    expires_ms: int | None = None
    expires_lived_ms: int | None = None

    def begun(self, now: Moment) -> Hold:
        """The same hold, whose time begins now unless it has begun."""
        if self.expires_lived_ms is not None:
            return self
        return msgspec.structs.replace(
            self, expires_ms=now.time_ms + self.lasts_ms, expires_lived_ms=now.lived_ms + self.lasts_ms
        )

    def holds(self, now: Moment) -> bool:
        """Whether it is in force."""
        if self.expires_ms is None or self.expires_lived_ms is None:
            return True
        return now.time_ms < self.expires_ms or now.lived_ms < self.expires_lived_ms


class Generation(Struct, frozen=True, kw_only=True):
    """The policies and holds in force from here on, and how far the log may be truncated.

    ``truncate_through`` never falls. The log may not have reached it: only the newest header says what was truncated.
    ``nonce`` identifies the writer of this very object, so that a lost answer can be read back.
    """

    format: int = FORMAT
    number: int
    policies: Mapping[str, Policy]
    holds: Mapping[str, Hold]
    truncate_through: int
    author: str
    time_ms: int
    nonce: str


@dataclass(frozen=True, slots=True)
class Content:
    """The part of a generation that a change makes."""

    policies: Mapping[str, Policy]
    holds: Mapping[str, Hold]
    truncate_through: int

    @classmethod
    def of(cls, generation: Generation | None) -> Content:
        """The content of a generation; empty before the first one."""
        if generation is None:
            return cls({}, {}, 0)
        return cls(generation.policies, generation.holds, generation.truncate_through)


Change = Callable[[Content], Content]
"""Applied to the newest generation, again whenever another writer was faster. Raises what the writer is to get."""


def decode_policy(data: bytes) -> Policy:
    """The policy of a request. Raises: InvalidRequest naming what is wrong."""
    try:
        policy = decode_each_once(data, Policy)
    except UNDECODABLE as error:
        raise InvalidRequest(f"the policy is not valid: {error}", hint=_HINT) from error
    require_valid(policy)
    return policy


_HINT: Final = (
    'a policy is one of {"keep_from_version": N}, {"max_age_seconds": S}, {"max_bytes": B} and {"keep": "everything"}'
)


def require_valid(policy: Policy) -> None:
    """Check the values of a policy. Raises: InvalidRequest naming the field."""
    fields = [name for name in policy.__struct_fields__ if getattr(policy, name) is not None]
    if len(fields) != 1:
        names = "none" if not fields else " and ".join(fields)
        raise InvalidRequest(f"a policy has exactly one field; this one has {names}", hint=_HINT)
    if policy.keep_from_version is not None and not 0 < policy.keep_from_version <= VERSION_MAX:
        raise InvalidRequest(f"keep_from_version is a version from 1 to {VERSION_MAX}", given=policy.keep_from_version)
    if policy.max_age_seconds is not None and not 0 < policy.max_age_seconds < float("inf"):
        raise InvalidRequest("max_age_seconds is a number above 0", given=policy.max_age_seconds)
    if policy.max_bytes is not None and policy.max_bytes < 1:
        raise InvalidRequest("max_bytes is at least 1", given=policy.max_bytes)


def require_id(policy_id: str) -> str:
    """The id itself. Raises: InvalidRequest.

    >>> require_id("audit-7")
    'audit-7'
    """
    if _ID.fullmatch(policy_id) is None:
        raise InvalidRequest(
            "the id of a policy has 1 to 128 ASCII letters, digits and _.:- and begins with a letter, a digit or _",
            given=policy_id[:160],
        )
    return policy_id


def set_policy(policy_id: str, policy: Policy, *, head: int) -> Change:
    """The change that sets a policy. ``head`` is the newest version of the log."""

    def change(now: Content) -> Content:
        if policy.keep_from_version is not None:
            if policy.keep_from_version > head:
                raise InvalidRequest(
                    "keep_from_version is above the newest version of the log",
                    code=Code.FUTURE_VERSION,
                    given=policy.keep_from_version,
                    newest=head,
                )
            _require_kept(policy.keep_from_version, now)
        if policy_id not in now.policies and len(now.policies) >= POLICIES_MAX:
            raise InvalidRequest(
                f"a log has at most {POLICIES_MAX} retention policies", hint="remove one that is not needed any more"
            )
        return Content({**now.policies, policy_id: policy}, now.holds, now.truncate_through)

    return change


def remove_policy(policy_id: str) -> Change:
    """The change that removes a policy. It raises NotFound where there is none."""

    def change(now: Content) -> Content:
        if policy_id not in now.policies:
            raise NotFound("there is no retention policy of this name", policy=policy_id)
        rest = {name: policy for name, policy in now.policies.items() if name != policy_id}
        return Content(rest, now.holds, now.truncate_through)

    return change


def set_hold(hold_id: str, hold: Hold) -> Change:
    """The change that sets or moves a hold."""

    def change(now: Content) -> Content:
        _require_kept(hold.from_version + 1, now)
        holds = {name: each for name, each in now.holds.items() if name != hold_id}
        if len(holds) >= HOLDS_MAX:
            raise InvalidRequest(f"a log has at most {HOLDS_MAX} holds")
        return Content(now.policies, {**holds, hold_id: hold}, now.truncate_through)

    return change


def settle_holds(now: Moment) -> Change:
    """The leader's change: the time of new holds begins, and holds whose time is over go.

    It is for a generation that was read before ``now``: a hold that was set or renewed since begins later.
    """

    def change(content: Content) -> Content:
        holds = {name: hold.begun(now) for name, hold in content.holds.items() if hold.holds(now)}
        return Content(content.policies, holds, content.truncate_through)

    return change


def release_hold(hold_id: str) -> Change:
    """The change that ends a hold; nothing where it has ended."""

    def change(now: Content) -> Content:
        rest = {name: hold for name, hold in now.holds.items() if name != hold_id}
        return Content(now.policies, rest, now.truncate_through)

    return change


def set_content(content: Content) -> Change:
    """The change that replaces all: for the copy of a log, which begins with the policies of its source."""
    return lambda now: Content(content.policies, content.holds, max(now.truncate_through, content.truncate_through))


def truncate_to(through: int) -> Change:
    """The change that permits the log to be truncated through a version."""
    return lambda now: Content(now.policies, now.holds, max(now.truncate_through, through))


def _require_kept(version: int, now: Content) -> None:
    if version <= now.truncate_through:
        raise NotFound(
            "the log is, or is about to be, truncated past this version",
            code=Code.LOG_TRUNCATED,
            version=version,
            truncated_through=now.truncate_through,
        )


def decode_generation(data: bytes, key: str) -> Generation:
    """The generation in the object ``key``. Raises: CorruptData."""
    try:
        generation = decode_sealed(data, Generation)
    except msgspec.DecodeError as error:
        raise CorruptData("a retention generation is damaged", key=key, cause=str(error)) from error
    if generation.format != FORMAT:
        raise CorruptData(
            "a retention generation has a format that this version does not read",
            hint="use the newer version of Holdfast that wrote it",
            key=key,
            format=generation.format,
        )
    return generation
