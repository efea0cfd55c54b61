"""How log lines look: one event name that never changes, then key=value.

Owns: the configuration of structlog for a serving process. Does not own: what is logged.

Shape: to standard error, logfmt or JSON, in the order timestamp, level, logger, event, then the facts.
"""

from __future__ import annotations

import logging
import sys
from typing import Final, Literal

import structlog

__all__ = ["configure_logs"]

_LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}
_ORDER: Final = ("timestamp", "level", "event")


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
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )
    # The framework's own logger says only what our answers and counters say already.
    logging.getLogger("uvicorn").setLevel(logging.CRITICAL)
