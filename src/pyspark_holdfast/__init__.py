"""Makes ``format("holdfast")`` known to Spark without registration.

Owns: the name ``DefaultSource``, which Spark looks for in every top-level module called ``pyspark_...``.
Does not own: the source itself (``holdfast.spark.data_source``).
"""

from holdfast.extras import needs

with needs("spark"):
    from holdfast.spark.data_source import HoldfastDataSource as DefaultSource

__all__ = ["DefaultSource"]
