"""The names of the pipelines, as ``holdfast.spark`` exports them; this module keeps the older import path working."""

from holdfast.spark import (
    Changes,
    History,
    Latest,
    Replay,
    RunReport,
    Schedule,
    Segments,
    Snapshot,
    StepReport,
    Verify,
    audit,
    read_operations,
    run_pipeline,
)

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
