"""One finding: how bad it is, what was seen, and what to do."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class Level(IntEnum):
    """How bad a finding is. The highest level of all findings is the exit code of ``holdfast doctor``."""

    OK = 0
    WARNING = 1
    """The service works, but not as well or as safely as it could."""
    ERROR = 2
    """The service does not start, or data is in danger."""


@dataclass(frozen=True, slots=True)
class Finding:
    """``check`` names what was looked at; ``fix`` is empty where nothing has to be done."""

    level: Level
    check: str
    seen: str
    fix: str = ""
