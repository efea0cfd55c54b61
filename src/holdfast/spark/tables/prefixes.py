"""One table for each key prefix of a log: the same job for each prefix, each table with its own offset.

A run takes the tables in turn, so the log is read once for each of them. A table that fails ends the run; the tables
before it have their rows, and the next run continues every table where it is.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from threading import Event
from typing import Final

from holdfast.errors import Code, InvalidRequest
from holdfast.spark.log.runner import STEP_BYTES_DEFAULT, PipelineJob, RunReport, Schedule, StepReport, run_pipeline
from holdfast.spark.typed.table import RowOptions

_NAME: Final = re.compile(r"[A-Za-z0-9_.-]*[A-Za-z0-9_-]")


def tables_of_prefixes(rows: RowOptions, output_url: str) -> Sequence[tuple[str, RowOptions]]:
    """The place and the rows of each table: ``flight/`` is ``flight`` below the output.

    Raises: InvalidRequest without a prefix, and for prefixes that do not name two places.

    >>> [url for url, _ in tables_of_prefixes(RowOptions((b"flight/", b"plane/")), "s3://lake/tables?region=eu")]
    ['s3://lake/tables/flight?region=eu', 's3://lake/tables/plane?region=eu']
    """
    if not rows.key_prefixes:
        raise InvalidRequest(
            "a table per prefix needs prefixes", code=Code.BAD_CONFIGURATION, hint="give --key-prefix for each table"
        )
    place, mark, query = output_url.partition("?")
    found: dict[str, RowOptions] = {}
    for prefix in rows.key_prefixes:
        name = prefix.decode(errors="replace").rstrip("/:|#-").replace("/", "_")
        if not _NAME.fullmatch(name) or name.endswith("-quarantine"):
            raise InvalidRequest(
                "a prefix does not name a table: ASCII letters, digits, '.', '_', '-' and '/' do",
                code=Code.BAD_CONFIGURATION,
                prefix=prefix,
            )
        url = f"{place.rstrip('/')}/{name}{mark}{query}"
        if url in found:
            raise InvalidRequest("two prefixes have one table", code=Code.BAD_CONFIGURATION, prefix=prefix, table=name)
        found[url] = replace(rows, key_prefixes=(prefix,))
    return list(found.items())


def run_tables(
    jobs: Sequence[tuple[str, PipelineJob]],
    log_url: str,
    *,
    schedule: Schedule,
    step_bytes: int = STEP_BYTES_DEFAULT,
    stop: Event,
    progress: Callable[[str, StepReport], None],
) -> list[RunReport]:
    """Run each job, with its output's URL, as ``run_pipeline`` does; with ``every_seconds`` all of them in each pass.

    The reports are those of the last pass. Raises: as ``run_pipeline``.
    """
    once = Schedule(until=schedule.until)
    while True:
        began = time.monotonic()
        reports: list[RunReport] = []
        for url, job in jobs:
            if stop.is_set() and reports:
                break

            def step_done(step: StepReport, of: str = url) -> None:
                progress(of, step)

            made = run_pipeline(job, log_url, url, schedule=once, step_bytes=step_bytes, stop=stop, progress=step_done)
            reports.append(made)
        if schedule.every_seconds is None or stop.is_set():
            return reports
        if stop.wait(max(0.0, began + schedule.every_seconds - time.monotonic())):
            return reports
