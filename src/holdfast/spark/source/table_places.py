"""The places of a stream in a table, and how many files a micro-batch takes from one place to the next.

An offset is ``{"version": 12, "table_id": "..."}``: everything up to that version has been returned. With
``"files": 3`` also the first three files of what comes next: of the table as of the version ``"base"`` while
``version`` is -1, else of what the next version adds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

from holdfast.spark.positions import Given, Offset, TablePosition, offset_of, position_in

Row: TypeAlias = Mapping[str, Any]

BEFORE_FIRST: Final = -1
"""The version of a stream that has not returned the table as it was at its start."""


class Place(NamedTuple):
    """All of ``version``, then ``files`` of what comes next; ``base`` is the version of a table under way."""

    version: int
    files: int = 0
    base: int | None = None

    def offset(self, table_id: object) -> Offset:
        """The place as a checkpoint keeps it."""
        base = self.base if self.files else None
        return offset_of(TablePosition(self.version, str(table_id), self.files or None, base))


def place_of(offset: Given) -> Place:
    """The place that a checkpoint keeps. Raises: InvalidRequest for an offset that is not a table's.

    >>> place_of({"version": 7, "table_id": "x", "files": 3})
    Place(version=7, files=3, base=None)
    """
    found = position_in(offset, TablePosition)
    return Place(found.version, found.files or 0, found.base)


@dataclass(frozen=True, slots=True)
class Addition:
    """Files that come next in a stream, in their order: those after ``begin``, and ``end`` when all are returned."""

    begin: Place
    rows: Sequence[Row]
    end: Place


def end_of_batch(start: Place, additions: Iterable[Addition], files_max: int | None, bytes_max: int | None) -> Place:
    """Where a micro-batch from ``start`` ends: within the bounds, but after at least one file if there is one.

    >>> one = Addition(Place(0), [{"size_bytes": 5}, {"size_bytes": 5}], Place(1))
    >>> end_of_batch(Place(0), [one], 1, None), end_of_batch(Place(0, 1), [one], 1, None)
    (Place(version=0, files=1, base=None), Place(version=1, files=0, base=None))
    """
    files = size = 0
    place = start
    for each in additions:
        done = start.files if each.begin.version == start.version else 0
        for index, row in enumerate(each.rows[done:], done):
            size += row["size_bytes"]
            is_over = (files_max is not None and files >= files_max) or (bytes_max is not None and size > bytes_max)
            if files and is_over:
                return each.begin._replace(files=index) if index else place
            files += 1
        place = each.end
        if each.begin.version == BEFORE_FIRST:
            break  # what the table was is returned whole, even if a later version cannot be
    return place


def rows_between(start: Place, end: Place, additions: Iterable[Addition]) -> list[Row]:
    """The files from one place to another."""
    found: list[Row] = []
    for each in additions:
        done = start.files if each.begin.version == start.version else 0
        if each.end.version <= end.version:
            found += each.rows[done:]
        elif each.begin.version == end.version:
            found += each.rows[done : end.files]
    return found
