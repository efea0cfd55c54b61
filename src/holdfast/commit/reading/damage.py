"""What a leader knows of damage in its log.

Owns: counting every time that something met damage, and reporting each damaged place once in the log lines. Does not
own: finding damage (whatever reads, and ``scrub``), what the reader is answered.

Bounds: ``PLACES_MAX`` places are remembered; further ones are counted, and their lines are repeated.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

import structlog

from holdfast.errors import CorruptData

__all__ = ["DamageSeen"]

PLACES_MAX: Final = 1_000
HINT: Final = "do not delete anything; `holdfast log verify` names every damaged object; restore them from a copy"

log = structlog.get_logger("holdfast.commit.reading.damage")


class DamageSeen:
    """The damage that one reign has met. ``newest`` is the newest text, None while there is none."""

    def __init__(self) -> None:
        self.times: Counter[str] = Counter()
        """How often, by what met it: stream, status, view or scrub."""
        self.newest: str | None = None
        self._places: dict[str, None] = {}

    def note(self, met_by: str, error: CorruptData) -> None:
        """``met_by`` met damage. Call it once for each time."""
        self.times[met_by] += 1
        text = self.newest = str(error)
        if text in self._places:
            return
        if len(self._places) < PLACES_MAX:
            self._places[text] = None
        log.error("log_damaged", met_by=met_by, code=str(error.code), error=text, hint=HINT)

    @property
    def places(self) -> int:
        """How many damaged places are known, up to ``PLACES_MAX``."""
        return len(self._places)
