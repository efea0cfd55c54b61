"""Objects in a directory of a file system, with the guarantees of an object store.

``store`` is the port; it sends requests to worker processes (``worker``). A worker runs ``objects``, which defines the
order of writes and syncs, on the file operations of ``files``.
"""
