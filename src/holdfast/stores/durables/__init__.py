"""The types of durable: standard, shared, key-ordered, last value and map.

Read ``backlog`` first: the messages that a durable was never given, as one cursor. ``redelivery`` has those that wait
to be handed out again, ``leases`` those that subscribers hold. ``PendingMessages`` (``pending``) joins the three, and
``aging`` ends messages by time. ``Consumption`` has the transitions of standard and shared durables; ``key_ordered``
changes only which messages a subscriber may be given. ``residue`` gives back what a purge has left, in steps.

``keyed`` keeps one message for each key; ``last_value`` and ``map`` are built on it.
"""
