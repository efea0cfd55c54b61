"""Pipelines: tables and files made from a log, kept up to date, exactly once.

Owns: the runner and everything that it runs. Does not own: the source that they read through (``holdfast.spark``).

    from holdfast.spark import session
    from holdfast.spark.pipeline import Latest, run_pipeline

    spark = session()
    run_pipeline(Latest(spark, "s3://bucket/log", "s3://lake/latest"), "s3://bucket/log", "s3://lake/latest")

The names below are imported when they are first used: a task that needs one of them must not pay for all.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.spark.pipeline.changes import Changes
    from holdfast.spark.pipeline.history import History
    from holdfast.spark.pipeline.latest import Latest
    from holdfast.spark.pipeline.replay import Replay
    from holdfast.spark.pipeline.runner import RunReport, Schedule, StepReport, run_pipeline
    from holdfast.spark.pipeline.segments import Segments, read_operations
    from holdfast.spark.pipeline.snapshot import Snapshot
    from holdfast.spark.pipeline.verify import Verify, audit

__all__ = [
    "Changes",
    "History",
    "Latest",
    "Replay",
    "RunReport",
    "Schedule",
    "Segments",
    "Snapshot",
    "StepReport",
    "Verify",
    "audit",
    "read_operations",
    "run_pipeline",
]

_HOMES = {
    "Changes": "changes",
    "History": "history",
    "Latest": "latest",
    "Replay": "replay",
    "RunReport": "runner",
    "Schedule": "runner",
    "Segments": "segments",
    "Snapshot": "snapshot",
    "StepReport": "runner",
    "Verify": "verify",
    "audit": "verify",
    "read_operations": "segments",
    "run_pipeline": "runner",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
