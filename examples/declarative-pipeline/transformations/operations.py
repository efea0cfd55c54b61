"""The log as a streaming table: every operation, once, in any number of runs."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

LOG = SparkSession.active().conf.get("orders.log")


@dp.table(comment="Every operation of the log of orders")
def operations() -> DataFrame:
    """Each run goes on where the last one ended."""
    source = SparkSession.active().readStream.format("holdfast").option("url", LOG)
    return source.option("keyPrefix", "order/").option("columns", "version,kind,key,value,timestamp").load()
