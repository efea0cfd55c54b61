"""The files of a cluster: the log of commands, the index in SQLite, and caches.

``Storage`` opens and recovers them. ``frames`` has the bytes of a log entry, ``log`` the entries on the queue's pages.
``index`` is the state of the last checkpoint; ``caches`` and ``locations`` hold what has changed since. ``messages``
reads messages from memory or the log. ``volatile`` has stores in memory only. ``disk_limit`` refuses publishers when
the disk is nearly full.
"""
