"""What Spark carries to a task: a piece of the log, a segment or part of a queue, and what is wanted from it.

Owns: the classes that are pickled. Does not own: what a piece is (``plan``, ``segment_plan``, ``queue_reading``), what
a task does with it (``scan``, ``segment_plan``, ``queue_reading``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

if TYPE_CHECKING:
    from holdfast.spark.plan import Piece
    from holdfast.spark.shapes import RowFilter

__all__ = ["LogPartition", "MessagePartition", "SegmentPartition"]


@dataclass
class LogPartition(InputPartition):
    """One piece of the log and the rows wanted from it."""

    piece: Piece
    wanted: RowFilter


@dataclass
class SegmentPartition(InputPartition):
    """One file of the table of segments at ``table_url`` and the rows wanted from it, those since a time at most."""

    table_url: str
    path: str
    wanted: RowFilter
    since_ms: int | None


@dataclass
class MessagePartition(InputPartition):
    """The messages ``first_seq`` to ``last_seq`` of a queue, both included."""

    first_seq: int
    last_seq: int
