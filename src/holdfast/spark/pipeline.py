"""The names of the pipelines, as ``holdfast.spark`` exports them; this module keeps the older import path working."""

from __future__ import annotations

from typing import TYPE_CHECKING

import holdfast.spark

if TYPE_CHECKING:
    from holdfast.spark.log.audit import Verify, audit
    from holdfast.spark.log.replay import Replay
    from holdfast.spark.log.runner import RunReport, Schedule, StepReport, run_pipeline
    from holdfast.spark.tables.buckets import History, Latest
    from holdfast.spark.tables.changes import Changes
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


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(holdfast.spark, name)
