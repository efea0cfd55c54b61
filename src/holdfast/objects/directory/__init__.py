"""Objects in a directory of a file system, with the guarantees of an object store.

Read ``objects`` first: the order of writes and syncs on the file operations of ``files``. ``store`` is the port; it
sends requests to worker processes (``worker``), whose time slice is set by ``time_slice``.
"""
