"""Log lines of one-shot commands: on the standard error, because the standard output has the result."""

from __future__ import annotations

import contextlib
import logging
import sys
from typing import TextIO, cast

import structlog


class StandardError:
    """Standard error, as long as it is there: a service goes on when its terminal or its reader has gone."""

    def write(self, text: str) -> None:
        """Write, or drop the text."""
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(text)

    def flush(self) -> None:
        """Flush, or drop what is left."""
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.flush()


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
        logger_factory=structlog.PrintLoggerFactory(file=cast(TextIO, StandardError())),
    )
