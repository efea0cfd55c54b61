"""What becomes of the exceptions of an application's handler: a log line, a callback, a pause that grows.

Failure model: pure but for the log. An exception of the callback is the application's, and ends the handler.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from holdfast.errors import Code, InvalidRequest
from holdfast.stores.values.messages import Delivery

__all__ = ["RETRY_DELAY", "RETRY_DELAY_MAX", "Failures", "OnError", "at_least_one"]

RETRY_DELAY: Final = 0.1
RETRY_DELAY_MAX: Final = 60.0
OnError = Callable[[Delivery, Exception], None]
"""Called with the message and what its handler raised."""
_logger = logging.getLogger("holdfast.subscriber")


class Failures:
    """The exceptions of one handler, one after the other."""

    def __init__(self, retry_delay: float, on_error: OnError | None, *, stop_on_error: bool) -> None:
        if not _is_delay(retry_delay):
            raise InvalidRequest(
                f"retry_delay is a number of seconds from 0 to {RETRY_DELAY_MAX:g}",
                code=Code.BAD_CONFIGURATION,
                retry_delay=repr(retry_delay)[:80],
            )
        self._first = self._next = retry_delay
        self._on_error = on_error
        self._stops = stop_on_error

    def met(self, message: Delivery, error: Exception) -> float:
        """The handler raised. Returns how many seconds to pause. Raises: the error, where it is to end the handler."""
        if self._on_error is not None:
            self._on_error(message, error)
        if self._stops:
            raise error
        delay, self._next = self._next, min(self._next * 2, RETRY_DELAY_MAX)
        _logger.error(
            "a handler failed seq=%d delivery_count=%d pause_seconds=%g",
            message.seq,
            message.delivery_count,
            delay,
            exc_info=error,
        )
        return delay

    def forget(self) -> None:
        """The handler succeeded."""
        self._next = self._first


def at_least_one(handlers: object) -> int:
    """How many handlers. Raises: InvalidRequest."""
    if isinstance(handlers, bool) or not isinstance(handlers, int) or handlers < 1:
        raise InvalidRequest(
            "handlers is a whole number of at least 1", code=Code.BAD_CONFIGURATION, handlers=repr(handlers)[:80]
        )
    return handlers


def _is_delay(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= RETRY_DELAY_MAX
