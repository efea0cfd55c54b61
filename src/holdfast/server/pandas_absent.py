"""Keeping pandas out of the processes of a server.

Owns: the one finder that does it. Does not own: who calls it (``run``, ``view_process``).
"""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

__all__ = ["keep_pandas_out"]


class _PandasIsAbsent(MetaPathFinder):
    """Makes pyarrow believe that pandas is not installed.

    Where it is, pyarrow imports it at the first array it makes: two seconds in which the first commit, and everything
    else on the loop, would wait, and 60 MB that a server never uses.
    """

    def find_spec(self, fullname: str, path: object, target: ModuleType | None = None) -> ModuleSpec | None:
        """Refuse pandas; leave everything else to the next finder."""
        del path, target
        if fullname == "pandas":
            raise ModuleNotFoundError("the serving process does without pandas", name=fullname)
        return None


def keep_pandas_out() -> None:
    """Call it before pyarrow makes its first array."""
    sys.meta_path.insert(0, _PandasIsAbsent())
