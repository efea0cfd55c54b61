"""The tables that a pipeline keeps: changes, history, latest, snapshots and segments.

``latest`` and ``history`` share ``buckets``: each step changes the buckets of keys that it touches. ``newest`` makes
the newest value of every key: a frame, the table of ``snapshot``, and a snapshot in the log's own store.
"""
