"""The log on Spark: a data source, pipelines that keep tables and files of a log, and commits in bulk.

``spark.read.format("holdfast").option("url", "s3://bucket/log").load()`` needs no import: Spark finds the source
through the module ``pyspark_holdfast``. A pipeline is a job and the loop that runs it::

    from holdfast.spark import Latest, run_pipeline, session

    spark = session()
    run_pipeline(Latest(spark, "s3://bucket/log", "s3://lake/latest"), "s3://bucket/log", "s3://lake/latest")

Read in this order: ``data_source`` (what Spark calls) and ``options``; ``source.plan`` and ``source.scan`` (a read of a
log), ``source.table`` (of a table); ``messages`` (of queues and stores); ``sink.record`` and ``sink.task`` (a write);
``log.runner`` and ``log.delta_output`` (a job step by step); ``tables`` (the jobs); ``bulk.load`` (the four commit
stages as Spark jobs). Imports go one way: the contract ``spark`` in pyproject.toml.

The names below are imported when they are first used: Spark starts a Python process for every plan, which imports
this package for the source alone.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

from holdfast.extras import MissingExtra, needs

if TYPE_CHECKING:
    from holdfast.spark.bulk.leadership import LeadershipOptions
    from holdfast.spark.bulk.load import LoadOptions, load_requests
    from holdfast.spark.bulk.requests import RequestFormat, stage
    from holdfast.spark.bulk.resolve import resolve_requests
    from holdfast.spark.bulk.sequencing import Fate
    from holdfast.spark.data_source import HoldfastDataSource
    from holdfast.spark.ingest.ingest import CommitStream, Ingest, commit_stream
    from holdfast.spark.ingest.numbered_source import DurableSource, QueueSource
    from holdfast.spark.ingest.verdict_output import VerdictStore
    from holdfast.spark.log.audit import Verify, audit
    from holdfast.spark.log.replay import Replay
    from holdfast.spark.log.runner import RunReport, Schedule, StepReport, run_pipeline
    from holdfast.spark.runtime.doctor import diagnose
    from holdfast.spark.runtime.session import find_java, session
    from holdfast.spark.source.frames import read_log, read_table, with_decoded
    from holdfast.spark.tables.buckets import History, Latest
    from holdfast.spark.tables.changes import Changes
    from holdfast.spark.tables.newest import Snapshot, materialise_latest
    from holdfast.spark.tables.segments import Segments
    from holdfast.spark.tables.store_tables import StoreChanges, StoreLatest
    from holdfast.spark.typed.table import RowOptions

if find_spec("pyspark") is None:
    raise MissingExtra("spark", "pyspark")

__all__ = [
    "Changes", "CommitStream", "DurableSource", "Fate", "History", "HoldfastDataSource", "Ingest", "Latest",
    "LeadershipOptions", "LoadOptions", "QueueSource", "Replay", "RequestFormat", "RowOptions", "RunReport",
    "Schedule", "Segments", "Snapshot", "StepReport", "StoreChanges", "StoreLatest", "VerdictStore", "Verify",
    "audit", "commit_stream", "diagnose", "find_java", "load_requests", "materialise_latest", "read_log",
    "read_table", "resolve_requests", "run_pipeline", "session", "stage", "with_decoded",
]  # fmt: skip

_NAMES_OF = {
    "ingest.ingest": ("CommitStream", "Ingest", "commit_stream"),
    "ingest.numbered_source": ("DurableSource", "QueueSource"),
    "bulk.leadership": ("LeadershipOptions",),
    "bulk.load": ("LoadOptions", "load_requests"),
    "bulk.requests": ("RequestFormat", "stage"),
    "bulk.resolve": ("resolve_requests",),
    "bulk.sequencing": ("Fate",),
    "ingest.verdict_output": ("VerdictStore",),
    "data_source": ("HoldfastDataSource",),
    "log.audit": ("Verify", "audit"),
    "log.replay": ("Replay",),
    "log.runner": ("RunReport", "Schedule", "StepReport", "run_pipeline"),
    "runtime.doctor": ("diagnose",),
    "runtime.session": ("find_java", "session"),
    "source.frames": ("read_log", "read_table", "with_decoded"),
    "tables.buckets": ("History", "Latest"),
    "tables.changes": ("Changes",),
    "tables.segments": ("Segments",),
    "tables.newest": ("Snapshot", "materialise_latest"),
    "tables.store_tables": ("StoreChanges", "StoreLatest"),
    "typed.table": ("RowOptions",),
}
_HOMES = {name: module for module, names in _NAMES_OF.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with needs("spark"):
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
