"""Segments of a log: a Delta table with its older history, read again without Spark.

``history`` makes events of the rows, ``index`` reads which files hold which versions, ``table_location`` translates the
URL of a table for deltalake and for ``holdfast.objects``.
"""
