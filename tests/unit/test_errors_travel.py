"""Errors go from one process to another: a worker of a pool raises, and whoever waits for it is told what and why."""

from __future__ import annotations

import copy
import errno
import os
import pickle
import re
from pathlib import Path

import pytest

from holdfast import errors
from holdfast.client.protocol.messages import KIND_OF
from holdfast.errors import Code, HoldfastError, Unavailable
from holdfast.extras import MissingExtra
from holdfast.queue import Gap, Trimmed
from holdfast.queue.files.disk_errors import Refusal
from holdfast.server.http.responses import STATUS_OF

PUBLIC = [getattr(errors, name) for name in errors.__all__]
KINDS = [kind for kind in PUBLIC if isinstance(kind, type) and issubclass(kind, HoldfastError)]
ONE_OF_EACH = [
    *(kind("it failed", code=Code.RATE_LIMITED, hint="wait", retry_after_ms=5, seq=7, cause="why") for kind in KINDS),
    Gap(3, 9, 2),
    Trimmed(1, 40),
    MissingExtra("server", "uvicorn"),
    Refusal(OSError(errno.EIO, os.strerror(errno.EIO))),
    Refusal(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))),
]


ROOT = Path(__file__).parents[2]
OF_THE_QUEUE = {Code.QUEUE_FULL, Code.QUEUE_TRIMMED, Code.FORKED}
NAMED = re.compile(r"\b([A-Z][A-Za-z]+)(?:`{1,2})?(?: \(|, | with )`{1,2}([a-z_]+)`{1,2}")
PROMISES = [
    *sorted((ROOT / "src/holdfast/client").rglob("*.py")), *sorted((ROOT / "docs/reference").glob("*client.md")),
]  # fmt: skip


def test_every_code_of_a_response_has_its_kind_of_error() -> None:
    assert set(STATUS_OF) - set(KIND_OF) == OF_THE_QUEUE


def test_the_client_raises_the_kind_that_its_reference_names_for_a_code() -> None:
    kinds = {kind.__name__: kind for kind in KINDS}
    named = {
        (path.name, kinds[kind], Code(code))
        for path in PROMISES
        for kind, code in NAMED.findall(path.read_text(encoding="utf-8"))
        if kind in kinds and code in list(Code)
    }
    assert len(named) > 10
    assert [(name, kind, code) for name, kind, code in named if not issubclass(KIND_OF[code], kind)] == []


def told(error: HoldfastError) -> dict[str, object]:
    """All that a program can ask an error for."""
    own = {
        name: getattr(error, name, None)
        for name in ("first", "last", "wanted_seq", "first_seq", "errno", "strerror", "extra", "name")
    }
    return {"kind": type(error), "text": str(error), **own, **vars(error)}


def test_every_public_error_is_among_those_that_are_tried() -> None:
    assert {HoldfastError, Unavailable} <= set(KINDS)
    assert [each for each in PUBLIC if each not in KINDS] == [Code, errors.statement_of]


@pytest.mark.parametrize("error", ONE_OF_EACH, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_an_error_that_was_pickled_tells_the_same(error: HoldfastError, protocol: int) -> None:
    again = pickle.loads(pickle.dumps(error, protocol))
    assert told(again) == told(error)
    assert again.args == error.args
    assert {"message", "code", "hint", "retry_after_ms", "fields"} <= set(told(again))


@pytest.mark.parametrize("error", ONE_OF_EACH, ids=lambda error: type(error).__name__)
def test_a_copy_of_an_error_is_its_own_and_tells_the_same(error: HoldfastError) -> None:
    again = copy.copy(error)
    assert again is not error
    assert told(again) == told(error)
    again.fields = {**again.fields, "more": 1}
    assert "more" not in error.fields
