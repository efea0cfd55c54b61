"""Read a log, or a table that a pipeline keeps of it: as a batch and as a stream.

Start with ``plan`` (which objects), then ``scan`` (one piece in a task), ``bodies`` and ``shapes`` (bytes to rows).
``reader`` and ``stream`` are what Spark calls; ``tail`` follows the end of the log for ``stream``; ``segments`` reads
the older part of a log from its segments. ``frames`` are the functions that users call. A table: ``table`` (its files),
``table_filters`` (what Spark pushes down), ``table_rows`` (one piece in a task).
"""
