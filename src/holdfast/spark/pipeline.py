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
    from holdfast.spark.log.replay import Replay
    from holdfast.spark.log.runner import RunReport, Schedule, StepReport, run_pipeline
    from holdfast.spark.log.verify import Verify, audit
    from holdfast.spark.tables.changes import Changes
    from holdfast.spark.tables.history import History
    from holdfast.spark.tables.latest import Latest
    from holdfast.spark.tables.segments import Segments, read_operations
    from holdfast.spark.tables.snapshot import Snapshot

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
    "Changes": "tables.changes",
    "History": "tables.history",
    "Latest": "tables.latest",
    "Replay": "log.replay",
    "RunReport": "log.runner",
    "Schedule": "log.runner",
    "Segments": "tables.segments",
    "Snapshot": "tables.snapshot",
    "StepReport": "log.runner",
    "Verify": "log.verify",
    "audit": "log.verify",
    "read_operations": "tables.segments",
    "run_pipeline": "log.runner",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"holdfast.spark.{_HOMES[name]}"), name)
