"""Commit requests in bulk: the four commit stages as Spark jobs, for what outgrows one machine.

Owns: ``resolve`` (verdicts for a table of requests), ``load`` (the same, committed), ``ingest`` (a stream of requests).
Does not own: what a verdict is and what a batch is: that is ``holdfast.commit``, and the tests hold this to it.

    from holdfast.spark import session
    from holdfast.spark.bulk.load import load_requests

    spark = session()
    load_requests(spark, spark.read.parquet("requests"), "s3://bucket/log", "s3://lake/verdicts")
"""
