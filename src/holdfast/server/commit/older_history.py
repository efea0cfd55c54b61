"""The history that a service is told of beside its log.

Owns: importing what reads it, which needs more than a service does. Does not own: reading it (``segments.history``).

Failure model: without the packages that it takes, InvalidRequest that names what to install.
"""

from __future__ import annotations

from holdfast.commit.subscription import OlderHistory
from holdfast.errors import Code, InvalidRequest
from holdfast.extras import install_command

__all__ = ["segment_history"]


def segment_history(url: str | None) -> OlderHistory | None:
    """The segments at ``url``; None without one. Raises: InvalidRequest."""
    if not url:
        return None
    try:
        from holdfast.segments.history import SegmentHistory
    except ImportError as missing:
        raise InvalidRequest(
            "log.segments_url needs packages that are not installed",
            code=Code.BAD_CONFIGURATION,
            hint=install_command("segments"),
            missing=missing.name,
        ) from missing
    return SegmentHistory(url)
