"""What a server and its view process say to each other: JSON objects, one per line.

Owns: the three messages. Does not own: when they are sent (``view_child``, ``view_process``).
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

__all__ = ["Announcement", "Report", "ViewStart"]


class ViewStart(Struct, frozen=True, kw_only=True):
    """What a view process is started with. ``log_id`` and ``directory`` are known when a reign begins."""

    log_url: str
    log_id: str = ""
    directory: str = ""
    request_timeout_ms: int = 10_000
    log_format: Literal["logfmt", "json"] = "logfmt"
    log_level: Literal["debug", "info", "warning", "error"] = "info"


class Announcement(Struct, frozen=True):
    """From the server: everything up to ``slot``, of the reign of ``claim``, is durable. ``flush``: somebody waits."""

    slot: int
    claim: int
    flush: bool


class Report(Struct, frozen=True):
    """From the process: the file at ``path`` is the state at ``version``. ``done``: with the last announcement."""

    path: str
    version: int
    done: bool
