"""Worlds of the message stores: the real state machine against plain models, with crashes at any command.

``promises`` lists what is promised and which module judges it. ``world`` is what users and administrators do, ``stage``
the service's part and the crashes, ``machine`` the state machine with its log and checkpoints on ``memory_ports``.
``store_model``, ``consumed_model`` and ``keyed_model`` are the judges, ``mutants`` proves them. ``small_blocks`` has
the same worlds with blocks of 4 messages. ``clocks`` has worlds of the stores' clock, with their judge and mutants.
"""
