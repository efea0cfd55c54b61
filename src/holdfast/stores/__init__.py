"""Message stores: messages kept for named subscribers until they are consumed.

A *store* keeps one stream of messages, numbered from 1. A *durable* belongs to a store. It records, for one subscriber
identity, which messages are wanted, which were delivered to whom, and which were acknowledged. A *map* is a durable of
keys and values.

The state machine is pure. The log has its commands with their results, and recovery applies the commands again.

Read in this order; each package imports only those before it:

1. ``values``: messages, commands and their results, effects, and the ports through which the machine reads
2. ``matching``: which messages a durable wants, by their fields
3. ``definitions``: clusters, stores and durables as an administrator configures them
4. ``durables``: one class per type of durable; ``Consumption`` handles most messages
5. ``machine``: ``State.apply(command)`` for all stores of a cluster
6. ``storage``: the log of commands, the index in SQLite, and the ports on top of both
7. ``clock``: time; ``group_commit``: replies after the sync; ``checkpoints``: the space of the log
8. ``service``: the shell that joins them and does the I/O
9. ``repair``: backup, restore, repair, and reading the files directly

For each command the shell does this::

    applied = state.apply(command)            # raises HoldfastError where it is refused
    log.append(command, applied.result)       # unless nothing changed
    wait until the log has it                 # as the cluster's persistence demands
    reply(applied.result)
    for effect in applied.effects: ...        # carrying one out twice is harmless
"""
