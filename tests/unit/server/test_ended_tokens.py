"""A token that was removed or has expired is for no key: it never becomes a token for all of them."""

from __future__ import annotations

import pytest

from holdfast.commit.format.transaction import Delete, Transaction
from holdfast.errors import HoldfastError
from holdfast.server.http import auth
from holdfast.server.http.auth import Authenticator, Grant, HeldRight, Role
from holdfast.server.http.key_scope import EVERYTHING, NOTHING, KeyScope

TOKEN = b"Bearer a-long-random-token"
OWN, FOREIGN = (Transaction(operations=[Delete(key)], request_id=None, read_version=None) for key in (b"seat/1", b"x"))


def authenticator(until: float | None = None) -> Authenticator:
    return Authenticator({"a-long-random-token": Grant(Role.WRITE, until, KeyScope((b"seat/",)))})


def test_a_token_is_for_the_keys_of_its_prefixes() -> None:
    scope = authenticator().scope_of(TOKEN)
    assert scope.problem_with(OWN) is None
    assert scope.problem_with(FOREIGN) is not None


@pytest.mark.parametrize("ended", ["removed", "expired"])
def test_an_ended_token_is_for_no_key(monkeypatch: pytest.MonkeyPatch, ended: str) -> None:
    asked = authenticator(until=100.0)
    if ended == "removed":
        asked.replace({"another-long-random-token": Role.ADMIN})
    monkeypatch.setattr(auth.time, "time", lambda: 100.0)
    scope = asked.scope_of(TOKEN)
    assert scope is NOTHING
    assert scope.problem_with(OWN) is not None and scope.problem_with(FOREIGN) is not None
    assert not scope.holds(b"") and not scope.holds_range(b"", None)


@pytest.mark.parametrize("header", [None, b"", b"Bearer ", b"Bearer unknown", b"Basic a-long-random-token", TOKEN[:-1]])
def test_what_is_no_known_token_is_for_no_key(header: bytes | None) -> None:
    assert authenticator().scope_of(header) is NOTHING


def test_a_token_without_prefixes_and_a_service_without_tokens_are_for_every_key() -> None:
    assert Authenticator({"a-long-random-token": Role.READ}).scope_of(TOKEN) is EVERYTHING
    assert Authenticator({}).scope_of(None) is EVERYTHING
    assert EVERYTHING.problem_with(FOREIGN) is None
    assert EVERYTHING.holds_range(b"", None) and EVERYTHING.holds_range(b"\xff", None) and EVERYTHING.holds(b"")


def test_a_held_right_is_looked_up_again_when_something_was_replaced_and_at_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []
    basis: list[object] = [object()]
    tokens = authenticator(until=100.0)
    monkeypatch.setattr(auth.time, "time", lambda: now)
    now = 50.0

    def ask() -> HoldfastError | None:
        asked.append("")
        return tokens.problem_with(TOKEN, Role.WRITE, checks_scope=True)

    held = HeldRight(tokens, TOKEN, ask, lambda: basis[0])
    assert [held.problem() for _ in range(3)] == [None] * 3 and len(asked) == 1
    basis[0] = object()
    assert held.problem() is None and held.problem() is None and len(asked) == 2
    tokens.replace({"a-long-random-token": Grant(Role.WRITE, 100.0)})
    assert held.problem() is None and held.problem() is None and len(asked) == 3
    now = 100.0
    assert held.problem() is not None and held.problem() is not None and len(asked) == 5
    now = 50.0
    assert held.problem() is None
    tokens.replace({"another-long-random-token": Role.WRITE})
    assert held.problem() is not None
