"""A token that was removed or has expired is for no key: it never becomes a token for all of them."""

from __future__ import annotations

import pytest

from holdfast.commit.format.transaction import Delete, Transaction
from holdfast.server.http import auth
from holdfast.server.http.auth import Authenticator, Grant, Role
from holdfast.server.http.key_scope import KeyScope

TOKEN = b"Bearer a-long-random-token"
OWN, FOREIGN = (Transaction(operations=[Delete(key)], request_id=None, read_version=None) for key in (b"seat/1", b"x"))


def authenticator(until: float | None = None) -> Authenticator:
    return Authenticator({"a-long-random-token": Grant(Role.WRITE, until, KeyScope((b"seat/",)))})


def test_a_token_is_for_the_keys_of_its_prefixes() -> None:
    scope = authenticator().scope_of(TOKEN)
    assert scope is not None
    assert scope.problem_with(OWN) is None
    assert scope.problem_with(FOREIGN) is not None


@pytest.mark.parametrize("ended", ["removed", "expired"])
def test_an_ended_token_is_for_no_key(monkeypatch: pytest.MonkeyPatch, ended: str) -> None:
    asked = authenticator(until=100.0)
    if ended == "removed":
        asked.replace({"another-long-random-token": Role.ADMIN})
    monkeypatch.setattr(auth.time, "time", lambda: 100.0)
    scope = asked.scope_of(TOKEN)
    assert scope is not None
    assert scope.problem_with(OWN) is not None and scope.problem_with(FOREIGN) is not None
    assert not scope.holds(b"") and not scope.holds_range(b"", None)
