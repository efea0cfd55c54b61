"""Connections, timers and threads: the part of the clients that differs between asyncio and blocking programs.

Read ``aio`` first: a ``Pool`` of connections, an open ``Stream``, ``Event``, ``Lock``; ``sync`` has the same names.
``aio_stores`` and ``sync_stores`` have the drivers of publishers and subscribers: callbacks and tasks in one, threads
in the other. ``clock`` reads the time and draws waits. No module here decides what is sent or retried.
"""
