"""Segments: the log's operations rewritten into large Parquet files.

Read ``index`` first: the format of a table of segments. ``history`` reads it as events, for subscribers and views;
``table_location`` turns the URL of a table into the addresses that its readers take.
"""
