"""Verdicts as a table: one row per request, with the outcome that a client of the service would get.

Columns: ``position`` of the request in the total order, from 1; ``order`` as text; ``request_id``; ``outcome``:
``committed``, ``not_committed`` or ``invalid``; ``code``, the reason for the last two, as in the HTTP API; ``version``
of a committed request; ``conflicts``: each failed precondition by its index in the request, from 0, and the newest
version that broke it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa

from holdfast.segments.table_location import table_location
from holdfast.spark.bulk.requests import ChunkSummary, Staged, chunk_parts, other_requests, read_stream
from holdfast.spark.bulk.resolve import Resolution
from holdfast.spark.bulk.sequencing import Fate, Numbers
from holdfast.spark.log.delta_output import DeltaOutput
from holdfast.spark.runtime.session import task_errors
from holdfast.spark.runtime.table_files import FILES_TYPE, file_rows, new_files, write_table
from holdfast.spark.runtime.tasks import grouped

_CONFLICT: Final = pa.struct([("precondition", pa.int32()), ("version", pa.int64())])
VERDICTS: Final = pa.schema(
    [
        ("position", pa.int64()),
        *((name, pa.string()) for name in ("order", "request_id", "outcome", "code")),
        ("version", pa.int64()),
        ("conflicts", pa.list_(pa.field("element", _CONFLICT))),
    ]
)
ROWS_IN_A_FILE: Final = 1_000_000
_INVALID: Final = frozenset(
    {Fate.FUTURE_VERSION, Fate.NO_OPERATIONS, Fate.BAD_REQUEST_ID, Fate.READ_VERSION_REQUIRED, Fate.BAD_RANGE,
     Fate.TOO_LARGE, Fate.REQUEST_ID_REUSED}
)  # fmt: skip
INVALID_CODES: Final = frozenset(fate.name.lower() for fate in _INVALID) | {
    "malformed", "bad_base64", "log_mismatch", "rolled_back", "leader_changed", "stores_not_in_log", "log_truncated",
    "permission_denied",
}  # fmt: skip
"""Of requests that break a rule, or that the log cannot decide any more. Most of the others are for messages."""


def _names() -> tuple[pa.Array, pa.Array]:
    """The outcome and the code of each fate, by its number."""
    outcomes: list[str] = []
    codes: list[str | None] = []
    for fate in Fate:
        committed = fate is Fate.COMMITTED
        outcomes.append("committed" if committed else "invalid" if fate in _INVALID else "not_committed")
        # Only the log could decide these, and it does not hold them: they are too old.
        codes.append(None if committed else (Fate.TOO_OLD if fate is Fate.LOOK_UP else fate).name.lower())
    return pa.array(outcomes, pa.string()), pa.array(codes, pa.string())


def write_verdicts(
    staged: Staged,
    resolution: Resolution,
    version_of: Callable[[Numbers], Numbers],
    to: str,
    *,
    made_by: str,
    identity: str,
) -> int:
    """Write the verdicts to the Delta table at ``to``; how many bytes. Nothing when the table has them already.

    ``version_of`` gives the versions of ordinals; ``identity`` names the input and its log: a table of another is
    refused. Raises: InvalidRequest, Conflict, Unavailable. After a crash: all of it or nothing.
    """
    output = DeltaOutput(table_location(to), made_by, VERDICTS)
    state = output.open(identity, {})
    if state.offset >= staged.requests:
        return 0
    url = output.location.url

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for group in grouped(map(_rows, chunk_parts(batches)), len, ROWS_IN_A_FILE):
            yield file_rows([write_table(url, pa.concat_tables(group), {}, ("position",))])

    verdicts = ((chunk, _verdicts(resolution, chunk, version_of)) for chunk in staged.chunks)
    with task_errors():
        files = [
            file
            for frame in staged.with_parts(["asks"], verdicts)
            for file in new_files(frame.mapInArrow(write, FILES_TYPE))
        ]
    if sum(file.rows for file in files) != staged.requests:
        raise other_requests(0)  # other chunks replaced a judged one
    output.commit(state, staged.requests, files, ())
    return sum(file.size for file in files)


def _rows(part: tuple[ChunkSummary, Any, Mapping[str, Any]]) -> pa.Table:
    """The rows of a chunk, for its requests and their verdicts."""
    chunk, verdict, row = part
    asks = read_stream(row["asks"])
    numbers = pa.array(np.arange(chunk.first + 1, chunk.first + 1 + asks.num_rows))
    outcomes = [verdict[name] for name in VERDICTS.names[3:]]
    return pa.Table.from_arrays([numbers, asks["order"], asks["request_id"], *outcomes], schema=VERDICTS)


def _verdicts(resolution: Resolution, chunk: ChunkSummary, version_of: Callable[[Numbers], Numbers]) -> pa.Table:
    subjects: Numbers = np.arange(chunk.first, chunk.past)
    for position in np.flatnonzero(resolution.fates[chunk.first : chunk.past] == Fate.DUPLICATE).tolist():
        # The same attempt again gets the outcome of the first.
        subjects[position] = resolution.originals[position + chunk.first]
    fates = resolution.fates[subjects]
    ordinals = resolution.ordinals[subjects].astype(np.int64)
    committed = fates == Fate.COMMITTED
    versions = np.where(committed, version_of(ordinals), 0)
    for position in np.flatnonzero(committed & (ordinals == 0)).tolist():
        versions[position] = resolution.found_versions[int(subjects[position])]
    begins = np.searchsorted(resolution.conflict_places, subjects)
    counts = np.searchsorted(resolution.conflict_places, subjects, side="right") - begins
    offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    rows = np.arange(int(offsets[-1])) + np.repeat(begins - offsets[:-1], counts)
    struct = pa.StructArray.from_arrays(
        [
            pa.array(resolution.conflict_numbers[rows]),
            pa.array(version_of(resolution.conflict_ordinals[rows].astype(np.int64))),
        ],
        fields=list(_CONFLICT),
    )
    outcomes, codes = _names()
    taken = pa.array(fates.astype(np.int32))
    return pa.table(
        {
            "outcome": outcomes.take(taken),
            "code": codes.take(taken),
            "version": pa.array(versions, mask=~committed),
            "conflicts": pa.ListArray.from_arrays(pa.array(offsets), struct, type=VERDICTS.field("conflicts").type),
        }
    )
