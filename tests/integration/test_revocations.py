"""A thousand moments at which a right ends: what is accepted, done and shown afterwards, and which streams end.

950 of them are on virtual time, in worlds of 25: callers of every kind overlap, and streams of others go on. The rest
is with a real service, real sockets and a real token file. Each mutant leaves out one part of the enforcement.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
from tests.integration.revocation_world import drawn_kinds, is_wider, play
from tests.integration.revocations import BrokenLaw
from tests.matrix import matrix

from holdfast.errors import HoldfastError, PermissionDenied
from holdfast.server.commit import sse
from holdfast.server.http.auth import Authenticator, HeldRight, RightsWatch
from holdfast.server.http.routes import Call
from holdfast.server.stores.access import StoreAccess
from holdfast.server.stores.socket import SubscribeSocket
from holdfast.stores.definitions.permissions import Right

COUNT = 25
"""Moments of a world."""
BY_TOKENS, BY_USERS = range(27), range(100, 113)


@pytest.mark.parametrize("seed", matrix([*BY_TOKENS, *BY_USERS], lambda seed: seed in (0, BY_USERS[0])))
def test_nothing_is_done_or_shown_later_than_a_second_after_the_right_has_ended(
    seed: int, record_property: Callable[[str, object], None]
) -> None:
    """And nothing ends of a caller whose right stays, or becomes wider."""
    tally = play(seed, COUNT, by_users=seed in BY_USERS)
    assert tally.moments.total() == COUNT
    record_property("revocations", COUNT - tally.moments["wider"])


def test_the_worlds_have_950_moments_of_every_kind() -> None:
    numbers = {True: [], False: []}  # type: dict[bool, list[int]]
    for seed in (*BY_TOKENS, *BY_USERS):
        numbers[seed in BY_USERS] += range(seed * COUNT, (seed + 1) * COUNT)
    ends = 0
    for by_users, those in numbers.items():
        drawn = drawn_kinds(by_users=by_users)
        assert {number % len(drawn) for number in those} == set(range(len(drawn)))
        ends += sum(not is_wider(number, by_users=by_users) for number in those)
    assert ends >= 950


def asked_once(self: HeldRight) -> HoldfastError | None:
    if self._generation != -1:
        return None
    self._generation = 0
    return self._ask()


def asked_at_the_head() -> Callable[[Call], None]:
    require_right, asked = Call.require_right, dict[int, Call]()

    def require(call: Call) -> None:
        if id(call) not in asked:
            asked[id(call)] = call  # kept, so that its id is not given again
            require_right(call)

    return require


def scope_of_the_head() -> Callable[[Call], Any]:
    scope, known = Call.scope.fget, dict[int, tuple[Call, Any]]()  # type: ignore[attr-defined]
    assert scope is not None, "the scope is a property"

    def kept(call: Call) -> Any:
        if id(call) not in known:
            known[id(call)] = call, scope(call)
        return known[id(call)][1]

    return kept


def look_ends_all(watch: RightsWatch) -> None:
    look_for_new = watch._known[:1] == [watch._authenticator.generation]
    LOOK(watch)
    for act in [] if look_for_new else list(watch._acts):
        watch._end(act, PermissionDenied("mutant"))


LOOK = RightsWatch._look


def held_without_basis(access: StoreAccess, authorization: bytes | None, right: Right, store: str) -> HeldRight:
    ask = partial(access.problem_with, authorization, right, store)
    return HeldRight(access._authenticator, authorization, ask)


WITH_BODY = ["PUT /v1/admin/log-level", "PUT /v1/retention/{policy_id}", "PATCH /v1/cluster/definition"]
WITH_BODY += ["POST /v1/stores/{store}/maps/{map}/lock", "PUT /v1/staged/{application}/{write}/{name}"]
SLOW_READS = ["GET /v1/log/objects", "GET /v1/staged/{application}", "GET /v1/retention", "GET /v1/log/leaderships"]
Mutant = tuple[Sequence[tuple[Any, str, Any]], Sequence[str], bool]
MUTANTS: dict[str, Callable[[], Mutant]] = {
    "asked once only": lambda: (
        [(HeldRight, "problem", asked_once)], ["ChangeStream", "Socket", "CommitStream"], False
    ),
    "asked at the head only": lambda: ([(Call, "require_right", asked_at_the_head())], WITH_BODY, False),
    "not asked before the answer": lambda: ([(Call, "require_right_to_see", lambda _: None)], SLOW_READS, False),
    "the watch does not run": lambda: ([(RightsWatch, "_look", lambda _: None)], ["Snapshot", "MapWatch"], False),
    "unrelated streams end": lambda: ([(RightsWatch, "_look", look_ends_all)], ["GET /v1/version"], False),
    "the scope of the head": lambda: (
        [(Call, "scope", property(scope_of_the_head()))], ["CommitStream", "CommitStream"], False
    ),
    "tokens that do not expire": lambda: (
        [(Authenticator, "until_of", lambda *_: None)], ["ChangeStream", "Socket"], False
    ),
    "definitions that do not count": lambda: (
        [(StoreAccess, "held", held_without_basis)], ["Socket", "MapWatch"], True
    ),
    "a slow reader gets the rest": lambda: ([(sse, "LAST_WORDS_SECONDS", 1.0)], ["SlowChangeStream"], False),
    "a slow peer gets the rest": lambda: (
        [(SubscribeSocket, "_cut_off_if_slow", lambda _: None)], ["SlowSocket"], False
    ),
}  # fmt: skip


FEW = ("asked once only", "not asked before the answer", "the watch does not run", "unrelated streams end")


@pytest.mark.parametrize("mutant", matrix(MUTANTS, lambda mutant: mutant in FEW))
def test_enforcement_that_is_missing_breaks_the_law(monkeypatch: pytest.MonkeyPatch, mutant: str) -> None:
    patches, only, by_users = MUTANTS[mutant]()
    for owner, name, broken in patches:
        monkeypatch.setattr(owner, name, broken)
    caught: list[BrokenLaw] = []
    for seed in range(SEEDS_MAX):
        try:
            play(seed, 6, by_users=by_users, only=only)
        except BrokenLaw as broken_law:
            caught.append(broken_law)
            break
    assert caught, f"{SEEDS_MAX} worlds do not notice it"


SEEDS_MAX = 8
"""Worlds in which a mutant is looked for."""
