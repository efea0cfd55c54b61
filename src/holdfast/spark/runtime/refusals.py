"""Errors that many parts of this package raise."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.errors import Code, InvalidRequest, NotFound


def bad_configuration(
    message: str, *, hint: str = "", facts: Mapping[str, object] | None = None, **fields: object
) -> InvalidRequest:
    """The error for options, arguments or inputs that cannot be used."""
    return InvalidRequest(message, code=Code.BAD_CONFIGURATION, hint=hint, facts={**(facts or {}), **fields})


def log_truncated(message: str, *, hint: str = "", **fields: object) -> NotFound:
    """The error for what retention, or a consumer of messages, has removed before it was read."""
    return NotFound(message, code=Code.LOG_TRUNCATED, hint=hint, facts=fields)
