"""Commit requests in bulk: the four commit stages as Spark jobs, for inputs that outgrow one machine.

    from holdfast.spark import load_requests, session

    spark = session()
    load_requests(spark, spark.read.parquet("requests"), "s3://bucket/log", "s3://lake/verdicts")

``requests`` stages the input. ``sequencing`` gives ordinals (stage 1); ``resolve`` judges (stage 2) with ``problem``
and the compiled loops of ``sweep``; ``load`` and ``ingest`` persist as a leader (``leadership``), keep ``records`` of
their progress in the log and write ``verdicts``. Verdicts
and batches are defined by ``holdfast.commit``; tests compare the two.
"""
