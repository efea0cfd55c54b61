"""What Spark carries to a task: a piece of the log, a segment, part of a queue or of a store, and what is wanted of it.

Owns: the classes that are pickled. Does not own: what a piece is (``plan``, ``segment_plan``, ``queue_reading``,
``store_reading``), what a task does with it (the same, and ``scan``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

if TYPE_CHECKING:
    from holdfast.spark.source.plan import Piece
    from holdfast.spark.source.shapes import RowFilter
    from holdfast.stores.storage.locations import Extent

__all__ = ["LogPartition", "MessagePartition", "SegmentPartition", "StorePartition"]


@dataclass
class LogPartition(InputPartition):
    """One piece of the log and the rows wanted from it."""

    piece: Piece
    wanted: RowFilter


@dataclass
class SegmentPartition(InputPartition):
    """One file of the table of segments at ``table_url``, the versions in it (both inclusive), and the rows wanted from
    it, those since a time at most."""

    table_url: str
    path: str
    version_min: int
    version_max: int
    wanted: RowFilter
    since_ms: int | None


@dataclass
class MessagePartition(InputPartition):
    """The messages ``first_seq`` to ``last_seq`` of a queue, both included."""

    first_seq: int
    last_seq: int


@dataclass
class StorePartition(InputPartition):
    """Messages of a store by where they were when the read was planned, those published up to ``until_ms``, and of each
    extent whether it is an error when not all of its messages are there."""

    extents: tuple[tuple[Extent, bool], ...]
    until_ms: int
