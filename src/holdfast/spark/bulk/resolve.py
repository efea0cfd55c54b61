"""The first two stages for requests in bulk: one verdict for each, the very one that a leader would give.

Owns: where the work is done (one task, or many), and the resolution that comes of it. Does not own: ordering
(``sequencing``), the kernel (``sweep``), rounds over many tasks (``rounds``).

The reference is a leader that starts at ``base`` with an empty window and the given floors, and takes the requests in
their order: ``commit.sequence`` and ``commit.resolve``. The result does not depend on partitions or tasks.

Where the encoded problem is small, one task does it all: once keys are numbers a core judges faster than Spark could
hand them around. A larger one is cut by ranges of keys and judged in rounds.

Failure model: whatever staging and tasks raise. Nothing is written anywhere.

Memory: a byte for each request and 16 for each failed precondition on the driver; in the one task about 100 bytes for
each item and its keys.
"""

# pyarrow ships no types, so the checker cannot know its classes where they are parameters; mypy checks the rest.
# pyright: reportUnknownParameterType=false, reportUnknownLambdaType=false

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812  the name that every Spark program uses

from holdfast.spark.bulk.key_ranks import make_problem, place_items
from holdfast.spark.bulk.request_chunk import read_stream
from holdfast.spark.bulk.rounds import Resolved, resolve_in_rounds
from holdfast.spark.bulk.sequencing import WHOLE_INPUT, Fate, Sequencing, Windows, sequence_requests
from holdfast.spark.bulk.staging import Staged, chunk_key
from holdfast.spark.bulk.sweep import REJECTED, conflicting_changes, load_loops, sweep
from holdfast.spark.log.task_errors import task_errors

__all__ = ["Resolution", "resolve_requests"]

ITEMS_IN_ONE_TASK: Final = 40_000_000

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Resolution:
    """The verdicts. Places count from 0; an ordinal plus the base is a version.

    Shape: ``ordinals`` are 0 for a request that got no version; ``found_versions`` are those that the log had for
    requests that were looked up in it. ``conflict_places`` rise; for each failed precondition its request, its number
    there and the ordinal of the newest change that broke it. ``residue`` is what was unknown after each round.
    ``kernel_seconds`` are the processor's in the one task, and by the clock for rounds.
    """

    fates: npt.NDArray[np.uint8]
    originals: Mapping[int, int]
    conflict_places: Numbers
    conflict_numbers: npt.NDArray[np.int32]
    conflict_ordinals: npt.NDArray[np.int32]
    ordinals: npt.NDArray[np.int32]
    base: int
    rounds: int
    residue: tuple[int, ...]
    kernel_seconds: float
    found_versions: Mapping[int, int] = field(default_factory=dict[int, int])

    def assigned(self) -> npt.NDArray[np.int32]:
        """The ordinal after k requests, for each k."""
        found: npt.NDArray[np.int32] = np.concatenate(([0], np.maximum.accumulate(self.ordinals))).astype(np.int32)
        return found

    def count(self, fate: Fate) -> int:
        """How many requests have this fate."""
        return int(np.count_nonzero(self.fates == fate))


def resolve_requests(
    staged: Staged, base: int, *, windows: Windows = WHOLE_INPUT, partitions: int | None = None
) -> Resolution:
    """Judge all of ``staged`` as a leader with this base would. ``partitions`` forces rounds over so many tasks.

    Raises: what tasks raise. Cost: see the module; a pass over the keys of all requests.
    """
    if not staged.requests:
        empty = np.zeros(0, np.int64)
        narrow = empty.astype(np.int32)
        return Resolution(np.zeros(0, np.uint8), {}, empty, narrow, narrow, narrow, base, 0, (), 0.0)
    if staged.plain:
        return _all_committed(staged.requests, base)
    if partitions is None and staged.items <= ITEMS_IN_ONE_TASK:
        sequencing, resolved = _in_one_task(staged, base, windows, judge=True)
    else:
        sequencing, _ = _in_one_task(staged, base, windows, judge=False)
        resolved = resolve_in_rounds(staged, sequencing, base, windows, partitions)
    fates = sequencing.fates.copy()
    pending = fates == Fate.PENDING
    fates[pending] = np.where(resolved.states[pending] == REJECTED, Fate.CONFLICT, Fate.COMMITTED)
    fates[resolved.too_old] = Fate.TOO_OLD
    return Resolution(
        fates,
        sequencing.originals,
        resolved.conflict_places,
        resolved.conflict_numbers,
        resolved.conflict_ordinals,
        np.where(pending, sequencing.assigned[1:], 0).astype(np.int32),
        base,
        resolved.rounds,
        resolved.residue,
        resolved.kernel_seconds,
    )


def _all_committed(requests: int, base: int) -> Resolution:
    """Where nothing is read there is nothing to judge: each request gets the next version, and holds."""
    none = np.zeros(0, np.int64)
    narrow = none.astype(np.int32)
    ordinals = np.arange(1, requests + 1, dtype=np.int32)
    fates: npt.NDArray[np.uint8] = np.full(requests, Fate.COMMITTED, np.uint8)
    return Resolution(fates, {}, none, narrow, narrow, ordinals, base, 0, (), 0.0)


_ONE: Final = {
    "fates": pa.binary(),
    "duplicates": pa.binary(),
    "originals": pa.binary(),
    "states": pa.binary(),
    "too_old": pa.binary(),
    "places": pa.binary(),
    "numbers": pa.binary(),
    "ordinals": pa.binary(),
    "seconds": pa.float64(),
}
_ONE_TYPE: Final = (
    "fates binary, duplicates binary, originals binary, states binary, too_old binary, places binary, numbers binary, "
    "ordinals binary, seconds double"
)


def _in_one_task(staged: Staged, base: int, windows: Windows, *, judge: bool) -> tuple[Sequencing, Resolved]:
    """Sequence all requests in one task and, with ``judge``, decide them there."""
    wanted = staged.frame.select("partition", "number", "asks", *(["item_rows"] if judge else []))

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = sorted(
            (chunk_key(row["partition"], row["number"]), row["asks"], row.get("item_rows"))
            for batch in batches
            for row in batch.to_pylist()
        )
        asks = pa.concat_tables([read_stream(ask) for _, ask, _ in rows])
        sequencing = sequence_requests(asks, base, windows)
        items = pa.concat_tables([read_stream(item) for _, _, item in rows]) if judge else None
        resolved = Resolved.empty() if items is None else _judge(asks, items, sequencing, base, windows)
        duplicates, originals = list(sequencing.originals), list(sequencing.originals.values())
        row = {
            "fates": sequencing.fates.tobytes(),
            "duplicates": np.array(duplicates, np.int64).tobytes(),
            "originals": np.array(originals, np.int64).tobytes(),
            "states": resolved.states.tobytes(),
            "too_old": resolved.too_old.tobytes(),
            "places": resolved.conflict_places.tobytes(),
            "numbers": resolved.conflict_numbers.tobytes(),
            "ordinals": resolved.conflict_ordinals.tobytes(),
            "seconds": resolved.kernel_seconds,
        }
        yield pa.RecordBatch.from_pylist([row], schema=pa.schema(list(_ONE.items())))

    with task_errors():
        row = wanted.repartition(1).mapInArrow(work, _ONE_TYPE).select(*map(F.col, _ONE)).toArrow().to_pylist()[0]
    fates = np.frombuffer(row["fates"], np.uint8)
    duplicates = np.frombuffer(row["duplicates"], np.int64).tolist()
    originals = np.frombuffer(row["originals"], np.int64).tolist()
    assigned: npt.NDArray[np.int32] = np.concatenate(([0], np.cumsum(fates == Fate.PENDING))).astype(np.int32)
    resolved = Resolved(
        states=np.frombuffer(row["states"], np.uint8),
        too_old=np.frombuffer(row["too_old"], np.int64),
        conflict_places=np.frombuffer(row["places"], np.int64),
        conflict_numbers=np.frombuffer(row["numbers"], np.int32),
        conflict_ordinals=np.frombuffer(row["ordinals"], np.int32),
        rounds=1,
        residue=(0,),
        kernel_seconds=row["seconds"],
    )
    return Sequencing(fates, assigned, dict(zip(duplicates, originals, strict=True))), resolved


def _judge(asks: pa.Table, rows: pa.Table, sequencing: Sequencing, base: int, windows: Windows) -> Resolved:
    """Decide all requests, in this process."""
    count = asks.num_rows
    floors = windows.indexes_at(np.arange(1, count + 1))
    assigned, pending = sequencing.assigned, sequencing.pending
    items, too_old = place_items(asks, rows, 0, base, assigned, pending, floors)
    judged = pending.copy()
    judged[too_old] = False
    places = np.flatnonzero(judged)
    problem = make_problem(items, places, assigned[1:][places])
    load_loops()
    began = time.thread_time()
    everyone: npt.NDArray[np.bool_] = np.ones(len(places), np.bool_)
    verdicts = sweep(problem, np.zeros(len(places), np.uint8), everyone, ~everyone)
    seconds = time.thread_time() - began
    broken = conflicting_changes(problem, verdicts)
    failed = np.flatnonzero(broken)
    states: npt.NDArray[np.uint8] = np.zeros(count, np.uint8)
    states[places] = verdicts
    reads = np.flatnonzero(items.is_read)[failed]
    return Resolved(states, too_old, items.owners[reads], items.numbers[reads], broken[failed], 1, (0,), seconds)
