"""Mutants by text: a module of the product with one piece of its source replaced."""

from __future__ import annotations

import inspect
from types import ModuleType


def mutated(module: ModuleType, honest: str, broken: str) -> ModuleType:
    """A second copy of ``module`` in which ``broken`` stands for ``honest``, which the source has exactly once.

    The copy shares the modules that it imports, so its classes and functions can be patched in where the real ones are.
    """
    source = inspect.getsource(module)
    found = source.count(honest)
    assert found == 1, f"{module.__name__} has this text {found} times, so the mutant is stale: {honest}"
    copy = ModuleType(module.__name__, module.__doc__)
    copy.__package__, copy.__file__ = module.__package__, module.__file__
    exec(compile(source.replace(honest, broken), f"<mutant of {module.__name__}>", "exec"), vars(copy))
    return copy
