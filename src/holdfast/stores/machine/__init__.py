"""The state machine of a cluster: ``State.apply(command)`` changes the state and returns a result.

Read ``store`` first: one store with its durables and publishers, and ``Cluster``, all stores with their deadlines.
``State`` (``state``) adds the commands; those of maps and of definitions are in ``map_commands`` and ``redefine``.
``snapshots`` has the bytes of the state. ``explain`` reports the fate of one message. Only a repair uses ``repairs``.
"""
