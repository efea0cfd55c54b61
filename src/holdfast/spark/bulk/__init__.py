"""Commit requests in bulk: the four commit stages as Spark jobs, for inputs that outgrow one machine.

    load_requests(spark, spark.read.parquet("requests"), "s3://bucket/log", "s3://lake/verdicts")

``requests`` stages the input. ``sequencing`` gives ordinals (stage 1); ``resolve`` judges (stage 2) with
the compiled loops of ``sweep``; ``load`` persists as a leader (``leadership``), keeps a record of its progress in
the log and writes ``verdicts``. ``holdfast.commit`` defines verdicts and batches.
"""
