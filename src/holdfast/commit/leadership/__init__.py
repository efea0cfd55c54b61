"""How a process becomes the leader of a log and stays it.

``claims`` decides where a new leader claims (a table over one listing) and when an idle leader writes a heartbeat.
``takeover_machine`` is the takeover as a pure step machine, ``takeover`` carries out its requests. ``log_remains``
finds what an earlier log left next to an empty one.
"""
