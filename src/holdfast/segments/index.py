"""The format of a table of segments, and its index.

A table of segments is a Delta table; its Delta log is the manifest:

    description                 {"holdfast": {"pipeline": "segments", "log_id": 32 hexadecimal digits, "format": 1}}
    application transaction     ``holdfast/segments``: every version of the log up to this one is in the table
    each file's statistics      ``numRecords``, and the lowest and highest ``version`` and ``seq`` in it

Each file holds rows of the shape ``operations`` with every column, in log order: by version, then by position. The
versions of two files do not overlap. Keys and request ids have Parquet's bloom filters in every row group, and every
page its checksum. A version that is in no file and not above the offset has no operation. So a read of versions [a, b]
takes the files that meet [a, min(b, offset)], and the log from offset + 1 on. A segment that a vacuum removed after a
rewrite raises NotFound when it is read; the index read again has the new ones.
"""

# deltalake and pyarrow ship few types, so the checker cannot know their classes; mypy checks the rest.
# pyright: reportUnknownParameterType=false, reportUnknownLambdaType=false

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from holdfast.errors import Code, InvalidRequest, NotFound, Unavailable

APPLICATION: Final = "holdfast/segments"
FORMAT: Final = 1
"""Of every table that a pipeline makes, in its description."""


@dataclass(frozen=True, slots=True)
class Segment:
    """One file: its path in the table, its size, its rows, and the versions in it (both inclusive)."""

    path: str
    size: int
    rows: int
    version_min: int
    version_max: int


@dataclass(frozen=True, slots=True)
class SegmentIndex:
    """The segments of one log, oldest first. ``through``: every version up to it is in them."""

    log_id: str
    through: int
    segments: tuple[Segment, ...]

    def between(self, version_min: int, version_max: int) -> tuple[Segment, ...]:
        """The segments that hold any version of ``[version_min, version_max]``. Cost: O(segments)."""
        return tuple(s for s in self.segments if s.version_min <= version_max and s.version_max >= version_min)


def read_segment_index(uri: str, options: Mapping[str, str]) -> SegmentIndex:
    """The index of the table of segments at ``uri``, with the storage ``options`` of deltalake. Raises: NotFound (no
    table), InvalidRequest, Unavailable. Cost: the Delta log. Memory: a row a segment."""
    try:
        table = DeltaTable(uri, storage_options=dict(options))
    except TableNotFoundError:
        raise NotFound("there are no segments here", url=uri) from None
    except (DeltaError, OSError) as error:
        raise Unavailable("the table of segments cannot be read", url=uri, cause=str(error)) from error
    about = json.loads(table.metadata().description or "{}").get("holdfast", {})
    through = table.transaction_version(APPLICATION)
    if about.get("pipeline") != "segments" or about.get("format") != FORMAT or through is None:
        raise InvalidRequest("this is not a table of segments", code=Code.BAD_CONFIGURATION, url=uri)
    flat = pa.table(table.get_add_actions(flatten=True))
    segments: list[Segment] = []
    if flat.num_rows:
        names = ("path", "size_bytes", "num_records", "min.version", "max.version")
        columns = (flat[name].to_pylist() for name in names)
        segments = [Segment(*row) for row in zip(*columns, strict=True)]
    return SegmentIndex(about["log_id"], through, tuple(sorted(segments, key=lambda each: each.version_min)))
