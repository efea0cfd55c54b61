"""The log lines of a serving process: structlog to standard error, as logfmt or JSON.

The order is timestamp, level, event, then the facts. A line that cannot be written is lost.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Final, Literal, TextIO, cast

import structlog

_LEVELS: Final = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
_ORDER: Final = ("timestamp", "level", "event")


class _StandardError:
    """Standard error, as long as it is there: a service goes on when its terminal or its reader has gone."""

    def write(self, text: str) -> None:
        """Write, or drop the text."""
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(text)

    def flush(self) -> None:
        """Flush, or drop what is left."""
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.flush()


def configure_logs(log_format: Literal["logfmt", "json"], level: Literal["debug", "info", "warning", "error"]) -> None:
    """Set up logging for this process."""
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer()
        if log_format == "json"
        else structlog.processors.LogfmtRenderer(key_order=_ORDER, drop_missing=True, bool_as_flag=False)
    )
    structlog.configure(
        processors=[
            structlog.stdlib.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=structlog.PrintLoggerFactory(file=cast(TextIO, _StandardError())),
        cache_logger_on_first_use=True,
    )
    # The framework's own logger says only what our answers and counters say already.
    logging.getLogger("uvicorn").setLevel(logging.CRITICAL)


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
