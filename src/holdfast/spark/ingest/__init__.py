"""``ingest``: the four commit stages on a stream of commit requests, micro-batch by micro-batch.

    with holdfast.spark.commit_stream(requests, log="s3://bucket/log", verdicts="s3://lake/verdicts", ...) as running:

``live_requests`` and ``commit_stream`` start a stream. Each micro-batch goes to ``ingest``, which commits what is not
decided yet by the ``stages``, writes a ``record`` with each group, and gives the verdicts to ``verdict_output``.
``numbered_source`` is where messages with requests (``message_requests``) come from, and where they are acknowledged.
``record_search`` finds the records of an earlier run; ``refusals`` say why a run may not continue them.
"""
