"""The tables that a pipeline keeps: changes, history, latest, snapshots and segments.

``latest`` and ``history`` share ``buckets``: each step changes the buckets of keys that it touches. ``log_snapshot``
makes the newest value of every key without a table.
"""
