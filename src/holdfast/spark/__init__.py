"""The log on Spark: a data source, the tables made from it, and a session that fits.

Owns: everything that imports pyspark. Does not own: the log's format and rules (``commit``), stores (``objects``).

``spark.read.format("holdfast").option("url", "s3://bucket/log").load()`` needs nothing from here: Spark finds the
source by the module ``pyspark_holdfast``.

The names below are imported when they are first used: Spark starts a Python process for every plan, which imports this
package for the source alone, and a session and SQL functions would double what that costs.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

from holdfast.extras import MissingExtra, needs

if TYPE_CHECKING:
    from holdfast.spark.runtime.doctor import diagnose
    from holdfast.spark.runtime.spark_session import find_java, session
    from holdfast.spark.source.decoding import with_decoded
    from holdfast.spark.source.reading import read_log
    from holdfast.spark.source.source import HoldfastDataSource
    from holdfast.spark.tables.state import last_version, materialise_latest

if find_spec("pyspark") is None:
    raise MissingExtra("spark", "pyspark")

__all__ = [
    "HoldfastDataSource",
    "diagnose",
    "find_java",
    "last_version",
    "materialise_latest",
    "read_log",
    "session",
    "with_decoded",
]

_HOMES = {
    "diagnose": "runtime.doctor",
    "with_decoded": "source.decoding",
    "HoldfastDataSource": "source.source",
    "find_java": "runtime.spark_session",
    "last_version": "tables.state",
    "materialise_latest": "tables.state",
    "read_log": "source.reading",
    "session": "runtime.spark_session",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with needs("spark"):
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
