"""Errors of a source or a sink, as Spark shows them: the statement and the hint, without the frames of Python.

A worker of Spark sends the text of an exception to Java, which puts its own words before it and its own trace after it.
Between them Spark would show the frames of both packages, some 20 lines. Errors of Holdfast name what is wrong
themselves. Every other exception is a bug, and keeps its frames.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from functools import wraps
from inspect import isfunction, isgeneratorfunction
from typing import Any, Final, TypeVar

from holdfast.errors import HoldfastError

HIDE_VARIABLE: Final = "SPARK_HIDE_TRACEBACK"
"""A worker looks at it when it sends an exception, and ends after that."""

SHOWN_IN_FRAMES: Final = "streamReader"
"""Where no stream reader can be made, Spark 4.3 fails in its own clean-up, and shows our error in the frames alone."""

C = TypeVar("C", bound=type[object])


def states_errors(source: C) -> C:
    """This class, whose public methods raise errors of Holdfast so that Spark shows their text alone."""
    for name, method in list(vars(source).items()):
        if isfunction(method) and not name.startswith("_") and name != SHOWN_IN_FRAMES:
            setattr(source, name, _stating(method))
    return source


def _stating(method: Callable[..., Any]) -> Callable[..., Any]:
    if isgeneratorfunction(method):

        @wraps(method)
        def generate(*args: Any, **named: Any) -> Iterator[object]:
            with _text_alone():
                yield from method(*args, **named)

        return generate

    @wraps(method)
    def call(*args: Any, **named: Any) -> object:
        with _text_alone():
            return method(*args, **named)

    return call


@contextmanager
def _text_alone() -> Generator[None]:
    try:
        yield
    except HoldfastError:
        if program().startswith("pyspark."):
            os.environ[HIDE_VARIABLE] = "1"
        raise


def program() -> str:
    """The module that this process runs; one of ``pyspark`` where Spark started it, to plan or to run a task."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return "" if spec is None else str(spec.name)
