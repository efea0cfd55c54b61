"""An error at start always says what to do next."""

from __future__ import annotations

import pytest

from holdfast.errors import Closed, Code, CorruptData, HoldfastError, InvalidRequest, LimitExceeded, Unavailable
from holdfast.server.exits import hint_of


@pytest.mark.parametrize("code", Code)
@pytest.mark.parametrize("kind", [InvalidRequest, Unavailable, CorruptData, Closed, LimitExceeded, HoldfastError])
def test_every_error_has_a_hint_at_start(kind: type[HoldfastError], code: Code) -> None:
    assert hint_of(kind("it failed", code=code)).strip()


def test_the_hint_of_the_error_itself_wins() -> None:
    assert hint_of(Unavailable("it failed", hint="do this")) == "do this"
