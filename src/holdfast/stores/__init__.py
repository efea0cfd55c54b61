"""Message stores and durables: messages kept for named subscribers until they are consumed.

A *store* keeps one stream of messages, numbered from 1. A *durable* in it keeps one subscriber identity's interest,
what was delivered to whom, and what was acknowledged. A *map* is a durable of keys and values.

    messages     a message, as published and as kept            commands     what changes the state, and its results
    matcher      which messages a durable is interested in      definitions  stores, durables, templates as configured
    store        one store's state machine                      durables/    one module per type of durable
    state        all stores of a cluster: apply(command)        ports        what the machine reads of what is stored
    message_log  commands on the embedded queue's pages         index        the checkpointed state, in SQLite
    service      the shell: commands, commit, deadlines         deliveries   who is connected, and for how many messages

The state machine is pure. Its log is the log of its commands with their results; a service is a cluster of one.
"""
