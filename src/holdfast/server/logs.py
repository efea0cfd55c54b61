"""The log lines of a serving process: structlog to standard error, as logfmt or JSON.

The order is timestamp, level, event, then the facts. A line that cannot be written is lost. The level can be changed
while the process runs.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Final, Literal, TextIO, TypeAlias, cast

import structlog

from holdfast.command_logs import StandardError

LogLevel: TypeAlias = Literal["debug", "info", "warning", "error"]
_LEVELS: Final[Mapping[str, int]] = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}
"""Of the methods of a logger. Any other one is for errors."""
_ORDER: Final = ("timestamp", "level", "event")


class LevelInForce:
    """The level of this process: lines below it are dropped."""

    def __init__(self) -> None:
        self.configured: LogLevel = "info"
        self.level: LogLevel = "info"

    def change(self, level: LogLevel) -> None:
        """From the next line on."""
        self.level = level

    def is_written(self, level: LogLevel, *, at: LogLevel) -> bool:
        """Whether a line of ``level`` is written while ``at`` is in force."""
        return _LEVELS[level] >= _LEVELS[at]

    def drop_below(
        self, logger: structlog.typing.WrappedLogger, method: str, event: structlog.typing.EventDict
    ) -> structlog.typing.EventDict:
        """The first of structlog's processors. Raises: DropEvent."""
        del logger
        if _LEVELS.get(method, logging.ERROR) < _LEVELS[self.level]:
            raise structlog.DropEvent
        return event


in_force: Final = LevelInForce()
"""That of this process, as structlog has one configuration for a process."""


def configure_logs(log_format: Literal["logfmt", "json"], level: LogLevel) -> None:
    """Set up logging for this process."""
    in_force.configured = in_force.level = level
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer()
        if log_format == "json"
        else structlog.processors.LogfmtRenderer(key_order=_ORDER, drop_missing=True, bool_as_flag=False)
    )
    structlog.configure(
        processors=[
            in_force.drop_below,
            structlog.stdlib.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG),
        logger_factory=structlog.PrintLoggerFactory(file=cast(TextIO, StandardError())),
        cache_logger_on_first_use=True,
    )


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
