"""A request that was not committed says why."""

from __future__ import annotations

import pytest

from holdfast.commit.format.transaction import RejectedBecause
from holdfast.wire.log import NotCommitted


@pytest.mark.parametrize("reason", ["conflict", "too_old", "banned"])
def test_the_message_of_the_error_has_the_reason(reason: RejectedBecause) -> None:
    error = NotCommitted(reason, version=7).error()
    assert error.code == reason and f"({reason})" in error.message
