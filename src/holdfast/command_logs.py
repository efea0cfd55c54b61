"""Log lines of one-shot commands: on the standard error, because the standard output has the result."""

from __future__ import annotations

import logging
import sys

import structlog


def log_to_standard_error() -> None:
    """Write the log lines of this process to the standard error from now on."""
    structlog.configure(
        processors=[
            structlog.stdlib.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.LogfmtRenderer(
                key_order=("timestamp", "level", "event"), drop_missing=True, bool_as_flag=False
            ),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
    )
