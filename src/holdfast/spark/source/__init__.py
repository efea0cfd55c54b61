"""Read a log, or a table that a pipeline keeps of it: as a batch and as a stream.

Start with ``plan`` (which objects), then ``scan`` (one piece in a task), ``bodies`` and ``shapes`` (bytes to rows).
``reader`` plans a batch and ``stream`` a micro-batch, and follows the end of the log; Spark calls them through
``reading``. ``segments`` reads the older part of a log from its segments. ``frames`` are the functions that users call.
A table: ``table``, and ``table_filters`` (what Spark pushes down).
"""
