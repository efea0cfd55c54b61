"""The routes of the commit log.

``routes`` has commit, version, status and step-down, ``commit_stream`` the stream of commits, and ``sse`` the change
stream as Server-Sent Events. ``replaced_log`` checks before the start that the places around a log belong to it.
"""
