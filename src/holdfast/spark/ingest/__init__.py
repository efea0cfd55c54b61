"""``ingest``: the four commit stages on a stream of commit requests, micro-batch by micro-batch.

    with holdfast.spark.commit_stream(requests, log="s3://bucket/log", verdicts="s3://lake/verdicts", ...) as running:

``live_requests`` and ``commit_stream`` start a stream, which gives each micro-batch to ``ingest``. One of two protocols
says what is not decided yet: ``checkpointed``, or ``numbered`` for messages with requests (``message_requests``) of a
``numbered_source``. ``micro_batches`` commits that by the ``stages``, with a ``record`` in each group, and gives the
verdicts to ``verdict_output``.
``record_search`` finds the records of an earlier run; ``refusals`` say why a run may not continue them.
"""
