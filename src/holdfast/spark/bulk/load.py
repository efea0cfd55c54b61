"""``load``: the four commit stages as a Spark job. A table of commit requests becomes batch objects of a log.

    step        action                                                    what a crash in this step leaves
    fix         tasks keep the rows, a manifest names them                the rows, see ``fixed_rows``
    stage       the requests are sorted, checked and packed               the same
    resolve     every request gets its verdict                            nothing
    claim       a leader steps down if ``step_down``; this job leads      a claim; the next run claims again
    wave        tasks create up to ``wave`` objects in parallel           some of them; those up to the first hole count
    confirm     the whole wave exists and no other leader has claimed     the same as in a wave
    resign      the last record: the next leader need not wait            everything except the verdicts
    release     the table of verdicts; then the rows are removed          all of it or nothing

Exactly once: every batch also writes a progress record, the number of finished requests. A run claims before it reads
this record. Verdicts depend only on the requests and the first base. The plan of a wave fixes everything that two
attempts of a task could do differently, so both write the same bytes. The progress record is the record of a job: one
more row of the last committed request of a batch, or a transaction of its own. Requests read and change keys alone, so
none of them notices it. A request that was read under an earlier leader of this load is written with the new base as
its read version.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Literal

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from holdfast.commit.format.batch import BODY_SCHEMA, SPAN_MAX, VERSION_JUMP, Header, ItemKind, encode_object
from holdfast.errors import InvalidRequest, LimitExceeded
from holdfast.files.durable_directory import make_durable_directory
from holdfast.files.file_urls import path_of
from holdfast.segments.table_location import table_location
from holdfast.spark.bulk.fixed_rows import FixedRows
from holdfast.spark.bulk.leadership import (
    DEFAULT_LEADERSHIP,
    JobLeadership,
    LeadershipOptions,
    put_batch,
    require_no_leader,
)
from holdfast.spark.bulk.requests import (
    AS_NAMED,
    ChunkSummary,
    RequestFormat,
    Staged,
    chunk_parts,
    in_order,
    read_stream,
    stage,
    stream,
)
from holdfast.spark.bulk.resolve import Resolution, look_up, resolve_requests
from holdfast.spark.bulk.sequencing import BELOW, Fate, Numbers, Windows, plain_numbers
from holdfast.spark.bulk.verdicts import write_verdicts
from holdfast.spark.log.job_records import newest_record
from holdfast.spark.runtime.refusals import bad_configuration
from holdfast.spark.runtime.session import task_errors
from holdfast.spark.runtime.store_thread import StoreThread, is_directory
from holdfast.spark.sink.record import decode


class LoadProgress(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How far a load has come: JSON, the record of the job ``load/{name}``, written by every batch.

    Shape: ``input`` and ``window`` name the input of ``requests``; ``through``: how many of them this batch and those
    before it have finished; ``base``: of the first leadership; ``reigns``: for each leadership that wrote a part, the
    ordinal before its first and its base; ``cuts``: after how many requests the conflict window was restarted, because
    others had written to the log. Any other bytes raise CorruptData.
    """

    input: str
    window: int | None
    requests: int
    through: int
    base: int
    leaderships: tuple[tuple[int, int], ...] = msgspec.field(name="reigns")
    cuts: tuple[int, ...] = ()
    format: Literal[1] = 1


def job_of_load(name: str) -> str:
    """The job of a load."""
    return f"load/{name}"


PUTS_IN_FLIGHT: Final = 4
BAD_ROWS: Final = (InvalidRequest, LimitExceeded, PySparkException)
"""What a load raises where the rows themselves are wrong, or too many."""


@dataclass(frozen=True, slots=True)
class LeadershipPlan:
    """What all batches of one leader share."""

    job: str
    origin_base: int
    base: int
    ordinal_before: int

    def versions(self, ordinals: Numbers) -> Numbers:
        """The log versions that stand for these ordinals; what came before this leadership is its base."""
        return self.base + np.maximum(ordinals - self.ordinal_before, 0)


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """One batch: its header without lengths and CRCs, and the fates of its chunk's requests.

    ``finished`` requests of the chunk are in an earlier batch.
    ``unsequenced`` are the positions without a version that count for the chunk, in order, after ``skipped`` ones.
    """

    header: Header
    finished: int
    fates: npt.NDArray[np.uint8]
    progress: bytes
    skipped: int
    unsequenced: Numbers

    def ordinals_after(self, indexes: Numbers) -> Numbers:
        """The ordinal after k requests, for each k that the chunk names; 0 or more, and before this leadership up to
        its first."""
        ordinals: Numbers = indexes - self.skipped - np.searchsorted(self.unsequenced, indexes)
        return np.maximum(ordinals, 0)


def write_wave(
    staged: Staged, url: str, leadership: LeadershipPlan, plans: Sequence[tuple[ChunkSummary, BatchPlan]]
) -> int:
    """Write every batch of the plan. Returns the bytes of all objects.

    Raises: Fenced, Unavailable, InvalidRequest when a chunk is not the one that was judged.
    """

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        done: list[dict[str, object]] = []
        waiting: deque[tuple[int, int, Future[None]]] = deque()
        with StoreThread(url) as thread:
            for chunk, plan, row in chunk_parts(batches):
                data = batch_object(chunk, plan, leadership, row)
                waiting.append((chunk.key, len(data), thread.start(partial(put_batch, header=plan.header, data=data))))
                done += _ended(waiting, PUTS_IN_FLIGHT - 1)
            done += _ended(waiting, 0)
        yield pa.RecordBatch.from_pylist(done, schema=pa.schema([("key", pa.int64()), ("size", pa.int64())]))

    with task_errors():
        results = [
            row
            for frame in staged.with_parts(["asks", "item_rows", "values"], plans)
            for row in frame.mapInArrow(write, "key long, size long").toArrow().to_pylist()
        ]
    assert {row["key"] for row in results} == {chunk.key for chunk, _ in plans}, (
        "a wave is over when each of its batches is created"
    )
    return sum(row["size"] for row in results)


def _ended(waiting: deque[tuple[int, int, Future[None]]], left: int) -> Iterator[dict[str, object]]:
    """The oldest PUTs, when they have ended, until only these are ``left``."""
    while len(waiting) > left:
        key, size, future = waiting.popleft()
        future.result()
        yield {"key": key, "size": size}


def batch_object(chunk: ChunkSummary, plan: BatchPlan, leadership: LeadershipPlan, streams: Mapping[str, Any]) -> bytes:
    """The whole object of a plan. Cost: O(rows), in native code."""
    return encode_object(plan.header, stream(_rows(chunk, plan, leadership, streams).combine_chunks()))


def _rows(chunk: ChunkSummary, plan: BatchPlan, leadership: LeadershipPlan, streams: Mapping[str, Any]) -> pa.Table:
    """The rows of the committed requests and the progress record, in the columns of a body."""
    asks, items = read_stream(streams["asks"]), read_stream(streams["item_rows"])
    values = read_stream(streams["values"])["value"]
    fates = plan.fates
    versions = leadership.versions(plan.ordinals_after(np.arange(chunk.first + 1, chunk.past + 1)))
    accepted = fates == Fate.COMMITTED
    accepted[: plan.finished] = False
    read_versions = _translated(asks["read_index"], asks["read_version"], plan, leadership)
    owners = np.repeat(np.arange(len(fates)), asks["items"].to_numpy())
    accepted_items = np.flatnonzero(accepted[owners])
    owner, rows = pa.array(owners[accepted_items]), pa.array(accepted_items)
    kinds = items["kind"].to_numpy()[accepted_items]
    is_range = (kinds == ItemKind.RANGE_DELETE) | (kinds == ItemKind.RANGE_READ)
    keys, ends = items["key"].take(rows).combine_chunks(), items["end"].take(rows).combine_chunks()
    ends = pc.if_else(pa.array(is_range), ends, pa.scalar(None, pa.binary()))
    written = pc.if_else(pa.array(kinds == ItemKind.WRITE), values.take(rows), pa.scalar(None, pa.large_binary()))
    items = items.take(rows)
    at = _translated(items["at_index"], items["at_version"], plan, leadership).cast(pa.uint64())
    table = pa.Table.from_arrays(
        [
            pa.array(versions[owners[accepted_items]].astype(np.uint64)),
            asks["request_id"].take(owner),
            read_versions.take(owner).cast(pa.uint64()),
            pa.array(kinds.astype(np.uint8)),
            keys,
            ends,
            written,
            at,
        ],
        schema=BODY_SCHEMA,
    )
    return pa.concat_tables([table, _progress_row(plan, leadership, table)])


def _progress_row(plan: BatchPlan, leadership: LeadershipPlan, table: pa.Table) -> pa.Table:
    """The record, as the last row of the last transaction, or as a transaction of its own."""
    last = table.slice(table.num_rows - 1).to_pylist() if table.num_rows else []
    row = {
        "version": plan.header.last_version,
        "request_id": last[0]["request_id"] if last else None,
        "read_version": last[0]["read_version"] if last else None,
        "kind": int(ItemKind.JOB),
        "key": leadership.job.encode(),
        "end": None,
        "value": plan.progress,
        "at": None,
    }
    return pa.Table.from_pylist([row], schema=BODY_SCHEMA)


def _translated(
    index: pa.ChunkedArray, version: pa.ChunkedArray, plan: BatchPlan, leadership: LeadershipPlan
) -> pa.Array:
    """Read versions as this leadership's log has them: null for none, and unchanged where no precondition uses it."""
    indexes, versions = plain_numbers(index), plain_numbers(version)
    after = plan.ordinals_after(np.maximum(indexes, 0))
    ordinals = np.where(indexes >= 0, after, versions - leadership.origin_base)
    translated = np.where(ordinals <= BELOW, versions, leadership.versions(ordinals))
    return pa.array(translated, pa.int64(), mask=(indexes < 0) & (versions < 0))


WAVE_DEFAULT: Final = 256

Step = Callable[[str, Mapping[str, object]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """How to load. ``name`` is the permanent name of the load; by default the input gives the name, so that no input is
    loaded twice.

    ``window`` is the number of requests in the conflict window; by default the whole input. ``wave`` objects are
    written in parallel, at most 1000. ``judging_bytes_max``: as ``resolve_requests``.
    ``direct``: the input has the same rows each time that Spark computes it, so they are not kept (``fixed_rows``);
    with others the load is refused.

    ``leading``: a load is refused while a service leads the log, unless it may ask that service to stand by, or depose
    it.
    """

    request_format: RequestFormat = AS_NAMED
    name: str | None = None
    window: int | None = None
    wave: int = WAVE_DEFAULT
    partitions: int = 8
    judging_bytes_max: int | None = None
    direct: bool = False
    leading: LeadershipOptions = DEFAULT_LEADERSHIP

    def __post_init__(self) -> None:
        if not 1 <= self.wave <= SPAN_MAX:
            raise bad_configuration(f"a wave has 1 to {SPAN_MAX} objects", wave=self.wave)
        if self.window is not None and self.window < 1:
            raise bad_configuration("a window holds at least one request")
        if self.partitions < 1:
            raise bad_configuration("at least one partition")


@dataclass(slots=True)
class LoadReport:
    """What a load did. ``continued_at`` requests were finished by earlier runs."""

    name: str
    requests: int = 0
    committed: int = 0
    not_committed: int = 0
    invalid: int = 0
    continued_at: int = 0
    batches: int = 0
    object_bytes: int = 0
    waves: int = 0
    first_version: int = 0
    last_version: int = 0
    fix_seconds: float = 0.0
    stage_seconds: float = 0.0
    resolve_seconds: float = 0.0
    write_seconds: float = 0.0
    seconds: float = 0.0


def load_requests(
    spark: SparkSession,
    requests: DataFrame,
    log_url: str,
    verdicts_url: str | None,
    options: LoadOptions | None = None,
    *,
    step: Step | None = None,
) -> LoadReport:
    """Load ``requests`` into the log at ``log_url``, making it when there is none, and write the verdicts as a table.

    ``step`` is called after each step. The version of a committed request is base + ordinal; after a crash the later
    part is above a new base. Only when others wrote in between, older read versions are ``too_old``.

    Raises: Closed ``leader_alive`` (a service leads the log: see ``LeadershipOptions``), Fenced (another load
    deposed this one), Unavailable, InvalidRequest. After any of them, and after a crash, a run with the same arguments
    loads the rest.
    """
    return _Load(spark, log_url, verdicts_url, options or LoadOptions(), step or (lambda _name, _facts: None)).run(
        requests
    )


@dataclass
class _Load:
    spark: SparkSession
    url: str
    verdicts_url: str | None
    options: LoadOptions
    step: Step
    report: LoadReport = field(default_factory=lambda: LoadReport(""))
    has_begun: bool = False
    """Whether the log may have a part of the load."""

    def run(self, requests: DataFrame) -> LoadReport:
        began = time.monotonic()
        options = self.options
        folder = path_of(self.url) if is_directory(self.url) else None
        if self.verdicts_url is not None:
            table_location(self.verdicts_url)  # before a request is committed whose verdict has no place
        if folder is None or folder.exists():
            with StoreThread(self.url) as thread:
                thread.run(partial(require_no_leader, options=options.leading))
        in_order(requests, options.request_format, options.partitions)  # before rows are kept that are not requests
        if folder is not None:
            make_durable_directory(str(folder))
        if options.direct:
            self._run_fixed(requests, began)
        else:
            self._fix_and_run(requests, began)
        self.report.seconds = time.monotonic() - began
        return self.report

    def _fix_and_run(self, requests: DataFrame, began: float) -> None:
        rows = FixedRows.of(self.url, self.options.name)
        is_own = False
        try:
            manifest = None if self.options.name is None else rows.found()
            if manifest is None:
                manifest, is_own = rows.fix(requests)
            self.report.fix_seconds = time.monotonic() - began
            self.step("fix", {"found": not is_own})
            self._run_fixed(rows.read(manifest, requests), began)
        except Exception as error:
            # Rows of which none was written, because of what they are, must not be those of the next run of the name.
            are_bad = is_own and not self.has_begun and isinstance(error, BAD_ROWS)
            if self.options.name is None or are_bad:
                rows.remove()
            raise
        rows.remove()

    def _run_fixed(self, requests: DataFrame, began: float) -> None:
        options = self.options
        staged = stage(requests, options.request_format, partitions=options.partitions)
        try:
            self.report.name = options.name or staged.digest
            self.report.requests = staged.requests
            self.report.stage_seconds = time.monotonic() - began
            self.step("stage", {"requests": staged.requests, "items": staged.items})
            self._run_staged(staged)
        finally:
            staged.release()

    def _run_staged(self, staged: Staged) -> None:
        options = self.options
        windows = Windows.trailing(staged.requests, options.window)
        # Where no request names a version of the log, the verdicts do not depend on the base, and the log is led for
        # as short as possible.
        resolution = None if staged.has_versions else self._resolve(staged, 0, windows)
        with StoreThread(self.url) as thread, ExitStack() as cleanup:
            leadership = JobLeadership(thread, options.leading)
            cleanup.callback(leadership.stop)
            claim = leadership.claim()
            self.step("claim", {"base": claim.last_version})
            progress = self._find_progress(thread, claim, staged)
            self.has_begun = progress is not None
            if progress is not None and progress.cuts:
                # Others have written in between, so what was read before cannot be judged any more: as after any
                # change of leader. Verdicts before the cut stay.
                windows, resolution = windows.cut(progress.cuts), None
            if resolution is None:
                base = progress.base if progress is not None else claim.last_version
                resolution = self._resolve(staged, base, windows)
            if progress is None:
                progress = LoadProgress(staged.digest, self.options.window, staged.requests, 0, claim.last_version, ())
            # What the log held before the first of this load's leaders: its own part is judged and not looked up.
            resolution = look_up(self.spark, self.url, staged, resolution, progress.base - VERSION_JUMP)
            self.report.continued_at = progress.through
            began = time.monotonic()
            progress = self._write(staged, resolution, windows, leadership, progress)
            leadership.resign()
            self.report.write_seconds = time.monotonic() - began
            self.step("resign", {})
        self._release(staged, resolution, progress, claim.log_id.hex())

    def _resolve(self, staged: Staged, base: int, windows: Windows) -> Resolution:
        began = time.monotonic()
        resolution = resolve_requests(staged, base, windows=windows, judging_bytes_max=self.options.judging_bytes_max)
        self.report.resolve_seconds = time.monotonic() - began
        self.step("resolve", {"kernel_seconds": round(resolution.kernel_seconds, 3)})
        return resolution

    def _find_progress(self, thread: StoreThread, claim: Header, staged: Staged) -> LoadProgress | None:
        job = job_of_load(self.report.name)
        record, others = newest_record(self.spark, thread, self.url, claim, job)
        if record is None:
            return None
        progress = decode(record, job, LoadProgress)
        if (progress.input, progress.window, progress.requests) != (
            staged.digest, self.options.window, staged.requests,
        ):  # fmt: skip
            raise bad_configuration(
                "a load of this name has begun with other requests, or another window",
                hint="finish it with its own input, or give this one a name of its own",
                name=self.report.name,
                settled=progress.through,
            )
        if others and progress.through < progress.requests and progress.through not in progress.cuts:
            return msgspec.structs.replace(progress, cuts=(*progress.cuts, progress.through))
        return progress

    # -- persist ------------------------------------------------------------------------------------------------------

    def _write(
        self,
        staged: Staged,
        resolution: Resolution,
        windows: Windows,
        leadership: JobLeadership,
        progress: LoadProgress,
    ) -> LoadProgress:
        if progress.through == staged.requests:
            return progress
        assigned = resolution.assigned()
        ordinal_before = int(assigned[progress.through])
        progress = msgspec.structs.replace(
            progress, leaderships=(*progress.leaderships, (ordinal_before, leadership.head.last_version))
        )
        plan = LeadershipPlan(
            job_of_load(self.report.name),
            progress.base,
            leadership.head.last_version,
            ordinal_before,
        )
        planner = Planner(staged, resolution, assigned, windows, plan, progress)
        batches = planner.batches(leadership)
        while True:
            with leadership.writing():
                wave = [batch for _, batch in zip(range(self.options.wave), batches, strict=False)]
                if not wave:
                    break
                self.has_begun = True
                object_bytes = write_wave(staged, self.url, plan, wave)
                self.step("wave", {"objects": len(wave)})
                leadership.confirm(wave[-1][1].header, len(wave))
            self.report.waves += 1
            self.report.batches += len(wave)
            self.report.object_bytes += object_bytes
            self.report.first_version = self.report.first_version or wave[0][1].header.first_version
            self.report.last_version = wave[-1][1].header.last_version
            progress = planner.progress
            self.step("confirm", {"settled": progress.through, "version": wave[-1][1].header.last_version})
        return progress

    # -- release ------------------------------------------------------------------------------------------------------

    def _release(self, staged: Staged, resolution: Resolution, progress: LoadProgress, log_id: str) -> None:
        subjects = resolution.fates.copy()
        for position, original in resolution.originals.items():
            subjects[position] = resolution.fates[original]
        committed = int(np.count_nonzero(subjects == Fate.COMMITTED))
        rejected = np.isin(subjects, (Fate.CONFLICT, Fate.TOO_OLD, Fate.LOOK_UP))
        self.report.committed = committed
        self.report.not_committed = int(np.count_nonzero(rejected))
        self.report.invalid = staged.requests - committed - self.report.not_committed
        if self.verdicts_url is None:
            return
        leaderships: Numbers = np.array(progress.leaderships or ((0, progress.base),), np.int64)

        def version_of(ordinals: Numbers) -> Numbers:
            which = np.maximum(np.searchsorted(leaderships[:, 0], ordinals) - 1, 0)
            versions: Numbers = leaderships[which, 1] + ordinals - leaderships[which, 0]
            return versions

        write_verdicts(
            staged,
            resolution,
            version_of,
            self.verdicts_url,
            made_by="load",
            identity=f"{log_id}/{self.report.name}",
        )
        self.step("release", {"requests": staged.requests})


@dataclass
class Planner:
    """The batches of a load, in order: one for each chunk with a request that has a version and is not finished."""

    staged: Staged
    resolution: Resolution
    assigned: npt.NDArray[np.int32]
    windows: Windows
    plan: LeadershipPlan
    progress: LoadProgress

    def __post_init__(self) -> None:
        self._unsequenced = np.flatnonzero(self.resolution.ordinals == 0)
        self._begin = self.progress.through

    def batches(self, leadership: JobLeadership) -> Iterator[tuple[ChunkSummary, BatchPlan]]:
        """Plan batch after batch. Drawn wave by wave, so that each is planned after the wave before it is durable."""
        through = self._begin
        chunks = [chunk for chunk in self.staged.chunks if chunk.past > through]
        wanted = [chunk for chunk in chunks if self.assigned[chunk.past] > self.assigned[max(chunk.first, through)]]
        for number, chunk in enumerate(wanted):
            # What follows without a version belongs to the batch before it.
            past = wanted[number + 1].first if number + 1 < len(wanted) else self.staged.requests
            yield chunk, self._batch(leadership, chunk, max(chunk.first, through), past)

    def _batch(self, leadership: JobLeadership, chunk: ChunkSummary, begin: int, past: int) -> BatchPlan:
        fates = self.resolution.fates[chunk.first : chunk.past]
        ordinals = self.resolution.ordinals[begin : chunk.past]
        # A request that the log holds is committed there and has no ordinal here.
        accepted = ordinals[(fates[begin - chunk.first :] == Fate.COMMITTED) & (ordinals > 0)]
        transactions = max(len(accepted), 1)
        first, last = (accepted[0], accepted[-1]) if len(accepted) else (ordinals.max(), ordinals.max())
        versions = self.plan.versions(np.array([first, last], np.int64)).tolist()
        floor_index = self.windows.indexes_at(np.array([begin + 1], np.int64))
        floor = int(self.plan.versions(self.assigned[floor_index].astype(np.int64))[0])
        self.progress = msgspec.structs.replace(self.progress, through=past)
        header = leadership.next_header(versions[0], versions[1], floor, transactions)
        own_fates = np.where(
            (fates == Fate.COMMITTED) & (self.resolution.ordinals[chunk.first : chunk.past] == 0), 0, fates
        )
        # What a request read before this leadership is its base, whatever the ordinal.
        earliest = chunk.first if chunk.index_min < 0 else min(chunk.index_min, chunk.first)
        skipped, end = np.searchsorted(self._unsequenced, (max(earliest, min(chunk.first, self._begin)), chunk.past))
        return BatchPlan(
            header,
            begin - chunk.first,
            own_fates.astype(np.uint8),
            msgspec.json.encode(self.progress),
            int(skipped),
            self._unsequenced[skipped:end],
        )
