"""The values that the parts of the stores exchange, and the data structures that they share.

``messages``, ``commands`` with their results, and ``effects`` enter and leave the state machine; it reads through
``ports``. ``reference_counts``, ``sequence_set`` and ``deadlines`` are the structures below the durables.
"""
