"""``ingest``: the four commit stages on a stream of commit requests, micro-batch by micro-batch.

    with holdfast.spark.commit_stream(requests, log="s3://bucket/log", verdicts="s3://lake/verdicts", ...) as running:

``live_requests`` names sources and verdicts. ``ingest`` runs the stream and gives each micro-batch to one of the two
protocols of ``micro_batches``, which commits what is not decided by the stages of a leader, with a ``record`` in each
group, and gives the verdicts to ``verdict_output``. ``numbered_source`` has requests that are messages.
"""
