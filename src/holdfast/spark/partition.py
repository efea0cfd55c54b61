"""What Spark carries to a task: a piece of the log and the rows wanted from it.

Owns: the one class that is pickled. Does not own: what a piece is (``plan``), what a task does with it (``scan``).
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql.datasource import InputPartition

from holdfast.spark.plan import Piece
from holdfast.spark.shapes import RowFilter

__all__ = ["LogPartition"]


@dataclass
class LogPartition(InputPartition):
    """One piece of the log and the rows wanted from it."""

    piece: Piece
    wanted: RowFilter
