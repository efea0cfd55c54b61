"""Commit requests in bulk: the four commit stages as Spark jobs, for inputs that outgrow one machine.

    load_requests(spark, spark.read.parquet("requests"), "s3://bucket/log", "s3://lake/verdicts")

``requests`` stages the input. ``sequencing`` gives ordinals (stage 1); ``resolve`` judges (stage 2) with ``problem``
and the compiled loops of ``sweep``; ``load`` and ``ingest`` persist as a leader (``leadership``), keep ``records`` of
their progress in the log and write ``verdicts``. ``holdfast.commit`` defines verdicts and batches.
"""
