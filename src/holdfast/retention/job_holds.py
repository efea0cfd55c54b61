"""Jobs that keep the log: the record of a job ``hold/NAME`` holds it for the job NAME, from the record's version on.

An unfinished job asks later what became of its transactions, so what it committed must stay. It sets such a record
together with its intent, and removes it when it is done. A job that never comes back holds nothing that is older than
the ``seconds`` of its record: no clock but the log's own counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from holdfast.commit.format.batch import Header
from holdfast.commit.format.log_clock import Moment
from holdfast.commit.format.transaction import JobChange
from holdfast.wire.formats import UNDECODABLE, decode_each_once

FOLDER: Final = "hold/"
SECONDS: Final = 7 * 86_400
SECONDS_MAX: Final = 30 * 86_400


class HoldRecord(msgspec.Struct, frozen=True):
    """The record: JSON."""

    seconds: int


@dataclass(frozen=True, slots=True)
class JobHold:
    """``job`` needs what was committed at ``version`` or later, while that is younger than ``seconds``."""

    job: str
    version: int
    seconds: int


@dataclass(frozen=True, slots=True)
class JobBorder:
    """What one job allows to remove at a moment: see ``cut.Border``."""

    hold: JobHold
    now: Moment

    def lets_go(self, header: Header) -> bool:
        """Whether it does without the object. Both parts fall along the chain, so this falls at most once."""
        age_ms = self.hold.seconds * 1000
        is_old = header.time_ms < self.now.time_ms - age_ms and header.lived_ms < self.now.lived_ms - age_ms
        return header.last_version < self.hold.version or is_old


def hold_for(job: str) -> JobChange:
    """The change that holds the log from its own version on."""
    return JobChange(FOLDER + job, msgspec.json.encode(HoldRecord(SECONDS)))


def release_for(job: str) -> JobChange:
    """The change that ends the hold."""
    return JobChange(FOLDER + job, None)


def holds_of(rows: Iterable[tuple[bytes, bytes, int]]) -> list[JobHold]:
    """The holds of these records: name, content, version. One that cannot be read holds as long as any may.

    >>> holds_of([(b"hold/sink/orders", b'{"seconds": 60}', 7)])
    [JobHold(job='sink/orders', version=7, seconds=60)]
    """
    return [JobHold(name.decode().removeprefix(FOLDER), version, _seconds(data)) for name, data, version in rows]


def longest(holds: Sequence[JobHold]) -> list[JobHold]:
    """Those that keep all that these keep: of each time the one from the lowest version."""
    lowest: dict[int, JobHold] = {}
    for hold in sorted(holds, key=lambda each: each.version):
        lowest.setdefault(hold.seconds, hold)
    return list(lowest.values())


def _seconds(data: bytes) -> int:
    try:
        seconds = decode_each_once(data, HoldRecord).seconds
    except UNDECODABLE:
        return SECONDS_MAX
    return min(max(seconds, 0), SECONDS_MAX)
