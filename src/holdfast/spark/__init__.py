"""The log on Spark: a data source, the tables made from it, and a session that fits.

Owns: everything that imports pyspark. Does not own: the log's format and rules (``commit``), stores (``objects``).

``spark.read.format("holdfast").option("url", "s3://bucket/log").load()`` needs nothing from here: Spark finds the
source by the module ``pyspark_holdfast``.
"""

from holdfast.spark.latest import last_version, materialise_latest
from holdfast.spark.session import find_java, session
from holdfast.spark.source import HoldfastDataSource

__all__ = ["HoldfastDataSource", "find_java", "last_version", "materialise_latest", "session"]
