"""The types of durable: standard, shared, key-ordered, last value and map.

Read ``backlog`` first: the messages that a durable was never given, as one cursor, and the residue that a purge gives
back in steps. ``leases`` has the messages that subscribers hold, and those that wait to be handed out again.
``PendingMessages`` (``pending``) joins them and keeps the limits, ``expiry`` ends messages by time, and ``Consumption``
has the transitions of standard and shared durables; ``key_ordered`` adds the order by key. ``keyed`` keeps one message
for each key: last values, and the base of ``map``.
"""
