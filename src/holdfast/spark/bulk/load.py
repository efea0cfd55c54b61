"""``load``: the four commit stages as a Spark job: a table of commit requests becomes batch objects of a log.

Owns: the order of the steps, the plan of each wave, and going on after a crash. Does not own: the stages: sequencing
and verdicts (``resolve``), batches (``wave``), leading (``commit.leadership``, ``commit.takeover``).

    step        what happens                                              what a crash after it leaves
    stage       the requests are sorted, checked and packed               nothing
    resolve     every request has its verdict                             nothing
    claim       a living leader steps down; this job leads                a claim; the next run claims again
    wave        tasks create up to ``window`` objects, side by side       some of them; those up to the first hole count
    confirm     all of the wave are created and nobody leads since        the same
    resign      the last record: the next leader need not wait            nothing is left to do but the verdicts
    release     the table of verdicts                                     all of it or nothing

Exactly once: every batch writes how many requests it and those before it have settled, so what the durable chain says
is what was done, whatever died. A run claims before it reads that, so an older run can add nothing after it. The
verdicts follow from the requests and the first base alone, and are the same in every run; only where others wrote in
between, what was read before that is ``too_old``, as after any change of leader. Two loads at once depose one another
by the protocol; the deposed one is Fenced and nothing that it wrote after that counts.

A version of a committed request is the base plus its ordinal, as a leader would have given it that took the requests
one by one; after a crash the later part has versions above the new leader's base.

Failure model: Closed (another leader is alive and does not step down), Fenced (deposed), Unavailable, InvalidRequest.
Every one of them may be followed by another run with the same arguments.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

import msgspec
import numpy as np
import numpy.typing as npt
from pyspark.sql import DataFrame, SparkSession

from holdfast.commit.format.batch import SPAN_MAX, VERSION_JUMP, Header
from holdfast.errors import Code, InvalidRequest
from holdfast.spark.bulk.load_progress import (
    LoadProgress,
    decode_progress,
    newest_nearby,
    newest_of_log,
    progress_key,
)
from holdfast.spark.bulk.looked_up import look_up
from holdfast.spark.bulk.reign import BulkLeading, Reign
from holdfast.spark.bulk.request_frame import AS_NAMED, RequestFormat
from holdfast.spark.bulk.resolve import Resolution, resolve_requests
from holdfast.spark.bulk.sequencing import Fate, Windows
from holdfast.spark.bulk.staging import ChunkPlace, Staged, stage
from holdfast.spark.bulk.verdict_table import write_verdicts
from holdfast.spark.bulk.wave import BatchPlan, ReignPlan, write_wave
from holdfast.spark.runtime.store_thread import StoreThread, is_directory

__all__ = ["LoadOptions", "LoadReport", "load_requests"]

WAVE_DEFAULT: Final = 256

Numbers = npt.NDArray[np.int64]
Step = Callable[[str, Mapping[str, object]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """How to load. ``name`` names the load for good: by default after its input, so that no input is loaded twice.

    ``window`` bounds the conflict window to so many requests; by default it holds the whole input. ``wave`` objects are
    written side by side, at most 1000. ``token`` is the bearer token with which a leader is asked to step down.
    """

    request_format: RequestFormat = AS_NAMED
    name: str | None = None
    window: int | None = None
    wave: int = WAVE_DEFAULT
    partitions: int = 8
    resolve_partitions: int | None = None
    take_over: bool = False
    silence_ms: float = 2_000.0
    token: str | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.wave <= SPAN_MAX:
            raise InvalidRequest(f"a wave has 1 to {SPAN_MAX} objects", code=Code.BAD_CONFIGURATION, wave=self.wave)
        if self.window is not None and self.window < 1:
            raise InvalidRequest("a window holds at least one request", code=Code.BAD_CONFIGURATION)
        if self.partitions < 1:
            raise InvalidRequest("at least one partition", code=Code.BAD_CONFIGURATION)


@dataclass(slots=True)
class LoadReport:
    """What a load did. ``continued_at`` requests had been settled by earlier runs."""

    name: str
    requests: int = 0
    committed: int = 0
    not_committed: int = 0
    invalid: int = 0
    continued_at: int = 0
    batches: int = 0
    object_bytes: int = 0
    found_batches: int = 0
    waves: int = 0
    first_version: int = 0
    last_version: int = 0
    rounds: int = 0
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

    ``step`` hears of each step as it is done. Raises, and after a crash: see the module.
    """
    return _Load(spark, log_url, verdicts_url, options or LoadOptions(), step or _nobody_listens).run(requests)


def _nobody_listens(name: str, facts: Mapping[str, object]) -> None:
    del name, facts


class _Load:
    def __init__(
        self, spark: SparkSession, log_url: str, verdicts_url: str | None, options: LoadOptions, step: Step
    ) -> None:
        self._spark = spark
        self._url = log_url
        self._verdicts_url = verdicts_url
        self._options = options
        self._step = step
        self._report = LoadReport("")

    def run(self, requests: DataFrame) -> LoadReport:
        began = time.monotonic()
        options = self._options
        staged = stage(requests, options.request_format, partitions=options.partitions)
        try:
            self._report.name = options.name or staged.digest
            self._report.requests = staged.requests
            self._report.stage_seconds = time.monotonic() - began
            self._step("stage", {"requests": staged.requests, "items": staged.items})
            if is_directory(self._url):
                Path(unquote(urlsplit(self._url).path)).mkdir(parents=True, exist_ok=True)
            self._run_staged(staged)
        finally:
            staged.release()
        self._report.seconds = time.monotonic() - began
        return self._report

    def _run_staged(self, staged: Staged) -> None:
        options = self._options
        windows = Windows.trailing(staged.requests, options.window)
        # Where no request names a version of the log, the verdicts do not depend on the base, and the log is led for
        # as short as possible.
        resolution = None if staged.has_versions else self._resolve(staged, 0, windows)
        with StoreThread(self._url) as thread:
            reign = Reign(thread, BulkLeading(options.take_over, options.silence_ms, options.token))
            claim = reign.claim()
            self._step("claim", {"base": claim.last_version})
            progress = self._find_progress(thread, claim, staged)
            if progress is not None and progress.cuts:
                # Others have written in between, so what was read before cannot be judged any more: as after any
                # change of leader. What was settled before the cut is not touched by it.
                windows, resolution = windows.cut(progress.cuts), None
            if resolution is None:
                base = progress.base if progress is not None else claim.last_version
                resolution = self._resolve(staged, base, windows)
            if progress is None:
                progress = LoadProgress(staged.digest, self._options.window, staged.requests, 0, claim.last_version, ())
            # What the log held before the first of this load's leaders: its own part is judged and not looked up.
            resolution = look_up(self._spark, self._url, staged, resolution, progress.base - VERSION_JUMP)
            self._report.continued_at = progress.through
            began = time.monotonic()
            progress = self._write(staged, resolution, windows, reign, progress)
            reign.resign()
            self._report.write_seconds = time.monotonic() - began
            self._step("resign", {})
        self._tell(staged, resolution, progress, claim.log_id.hex())

    def _resolve(self, staged: Staged, base: int, windows: Windows) -> Resolution:
        began = time.monotonic()
        resolution = resolve_requests(staged, base, windows=windows, partitions=self._options.resolve_partitions)
        self._report.resolve_seconds = time.monotonic() - began
        self._report.rounds = resolution.rounds
        self._step("resolve", {"rounds": resolution.rounds, "residue": list(resolution.residue)})
        return resolution

    def _find_progress(self, thread: StoreThread, claim: Header, staged: Staged) -> LoadProgress | None:
        key = progress_key(self._report.name)
        found, complete, others = thread.start(lambda store: newest_nearby(store, claim, key)).result()
        if found is None and not complete:
            found = newest_of_log(self._spark, self._url, key)
        if found is None:
            return None
        progress = decode_progress(found, key)
        if (progress.input, progress.window, progress.requests) != (
            staged.digest, self._options.window, staged.requests,
        ):  # fmt: skip
            raise InvalidRequest(
                "a load of this name has begun with other requests, or another window",
                code=Code.BAD_CONFIGURATION,
                hint="finish it with its own input, or give this one a name of its own",
                name=self._report.name,
                settled=progress.through,
            )
        if others and progress.through < progress.requests and progress.through not in progress.cuts:
            return msgspec.structs.replace(progress, cuts=(*progress.cuts, progress.through))
        return progress

    # -- persist ------------------------------------------------------------------------------------------------------

    def _write(
        self, staged: Staged, resolution: Resolution, windows: Windows, reign: Reign, progress: LoadProgress
    ) -> LoadProgress:
        if progress.through == staged.requests:
            return progress
        assigned = resolution.assigned()
        ordinal_before = int(assigned[progress.through])
        progress = msgspec.structs.replace(
            progress, reigns=(*progress.reigns, (ordinal_before, reign.head.last_version))
        )
        plan = ReignPlan(
            progress_key(self._report.name),
            progress.base,
            reign.head.last_version,
            ordinal_before,
            np.flatnonzero(resolution.ordinals == 0),
        )
        planner = _Planner(staged, resolution, windows, plan, progress)
        batches = planner.batches(reign)
        while wave := [batch for _, batch in zip(range(self._options.wave), batches, strict=False)]:
            result = write_wave(self._spark, staged, self._url, plan, wave)
            self._step("wave", {"objects": len(wave)})
            reign.confirm(wave[-1].header, len(wave))
            self._report.waves += 1
            self._report.batches += len(wave)
            self._report.object_bytes += result.object_bytes
            self._report.found_batches += result.found
            self._report.first_version = self._report.first_version or wave[0].header.first_version
            self._report.last_version = wave[-1].header.last_version
            progress = planner.progress
            self._step("confirm", {"settled": progress.through, "version": wave[-1].header.last_version})
        return progress

    # -- release ------------------------------------------------------------------------------------------------------

    def _tell(self, staged: Staged, resolution: Resolution, progress: LoadProgress, log_id: str) -> None:
        subjects = resolution.fates.copy()
        for place, original in resolution.originals.items():
            subjects[place] = resolution.fates[original]
        committed = int(np.count_nonzero(subjects == Fate.COMMITTED))
        rejected = np.isin(subjects, (Fate.CONFLICT, Fate.TOO_OLD, Fate.LOOK_UP))
        self._report.committed = committed
        self._report.not_committed = int(np.count_nonzero(rejected))
        self._report.invalid = staged.requests - committed - self._report.not_committed
        if self._verdicts_url is None:
            return
        reigns: Numbers = np.array(progress.reigns or ((0, progress.base),), np.int64)

        def version_of(ordinals: Numbers) -> Numbers:
            which = np.maximum(np.searchsorted(reigns[:, 0], ordinals) - 1, 0)
            found: Numbers = reigns[which, 1] + ordinals - reigns[which, 0]
            return found

        write_verdicts(
            self._spark,
            staged,
            resolution,
            version_of,
            self._verdicts_url,
            made_by="load",
            identity=f"{log_id}/{self._report.name}",
        )
        self._step("release", {"requests": staged.requests})


class _Planner:
    """The batches of a load, in order: one for each chunk with a request that has a version and is not settled."""

    def __init__(
        self, staged: Staged, resolution: Resolution, windows: Windows, plan: ReignPlan, progress: LoadProgress
    ) -> None:
        self._staged = staged
        self._resolution = resolution
        self._windows = windows
        self._plan = plan
        self._assigned = resolution.assigned()
        self.progress = progress

    def batches(self, reign: Reign) -> Iterator[BatchPlan]:
        """Plan batch after batch. Drawn wave by wave, so that each is planned after the wave before it is durable."""
        settled = self.progress.through
        time_ms = 0
        chunks = [chunk for chunk in self._staged.chunks if chunk.past > settled]
        wanted = [chunk for chunk in chunks if self._assigned[chunk.past] > self._assigned[max(chunk.first, settled)]]
        for number, chunk in enumerate(wanted):
            time_ms = max(time_ms, int(time.time() * 1000))
            # What follows without a version belongs to the batch before it.
            past = wanted[number + 1].first if number + 1 < len(wanted) else self._staged.requests
            yield self._batch(reign, chunk, max(chunk.first, settled), past, time_ms)

    def _batch(self, reign: Reign, chunk: ChunkPlace, begin: int, past: int, time_ms: int) -> BatchPlan:
        fates = self._resolution.fates[chunk.first : chunk.past]
        ordinals = self._resolution.ordinals[begin : chunk.past]
        # One that was found in the log is committed there and has no ordinal here.
        accepted = ordinals[(fates[begin - chunk.first :] == Fate.COMMITTED) & (ordinals > 0)]
        transactions = max(len(accepted), 1)
        first, last = (accepted[0], accepted[-1]) if len(accepted) else (ordinals.max(), ordinals.max())
        versions = self._plan.versions(np.array([first, last], np.int64)).tolist()
        floor_index = self._windows.indexes_at(np.array([begin + 1], np.int64))
        floor = int(self._plan.versions(self._assigned[floor_index].astype(np.int64))[0])
        before = reign.head.last_version
        self.progress = msgspec.structs.replace(self.progress, through=past)
        header = reign.next_header(versions[0], versions[1], floor, transactions, time_ms)
        kept = np.where(
            (fates == Fate.COMMITTED) & (self._resolution.ordinals[chunk.first : chunk.past] == 0), 0, fates
        )
        return BatchPlan(
            header,
            chunk.key,
            chunk.first,
            begin - chunk.first,
            kept.astype(np.uint8).tobytes(),
            before,
            self.progress.encode(),
            chunk.weighted,
        )
