"""Errors that are kept lose their tracebacks, whatever their chain looks like."""

from __future__ import annotations

import pytest

from holdfast.errors import HoldfastError, InvalidRequest, Unavailable
from holdfast.server.http.responses import without_traceback


def raised(error: HoldfastError, cause: HoldfastError | None = None) -> HoldfastError:
    with pytest.raises(HoldfastError):
        raise error from cause
    assert error.__traceback__ is not None
    return error


def test_causes_and_contexts_lose_their_tracebacks() -> None:
    first, second, third = (raised(Unavailable(name)) for name in ("first", "second", "third"))
    second.__cause__, second.__context__ = first, third
    assert without_traceback(second) is second
    assert first.__traceback__ is second.__traceback__ is third.__traceback__ is None


def test_a_circle_of_causes_ends() -> None:
    first = raised(Unavailable("first"))
    second = raised(InvalidRequest("second"), first)
    first.__context__ = second
    assert without_traceback(second) is second
    assert first.__traceback__ is second.__traceback__ is None
