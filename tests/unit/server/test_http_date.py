"""Law of the Date header: it is the date that the library writes."""

from __future__ import annotations

from email.utils import formatdate

from holdfast.server.http_date import http_date

DAY = 86_400


def test_every_day_and_month_is_written_as_the_library_writes_it() -> None:
    for timestamp in range(0, 5000 * DAY, 7 * DAY + 3_661):
        assert http_date(timestamp + 0.5) == formatdate(timestamp, usegmt=True).encode()
