"""The value of the ``Date`` header."""

from __future__ import annotations

import time
from typing import Final

__all__ = ["http_date"]

_DAYS: Final = (b"Mon", b"Tue", b"Wed", b"Thu", b"Fri", b"Sat", b"Sun")
_MONTHS: Final = tuple(b"Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split())


def http_date(timestamp: float) -> bytes:
    """A moment in seconds since 1970, in English whatever the locale.

    ``datetime`` is not used: each of its conversions leaves a small string in the interpreter's cache of attributes,
    and each of these strings can keep 1 MiB of freed memory in use (``freed_memory``).
    """
    year, month, day, hour, minute, second, weekday, _, _ = time.gmtime(timestamp)
    return b"%b, %02d %b %d %02d:%02d:%02d GMT" % (_DAYS[weekday], day, _MONTHS[month - 1], year, hour, minute, second)
