"""Foundations: what the state of a log at a version is made of, besides the chain of objects after them.

    module     what it does
    families   the two sorts of foundations, snapshots of the keys and checkpoints of the stores: read back in full
    state      answers whether a log can produce its state at a version, for everybody who has to know

The beginning of a log is a foundation as long as retention has removed nothing.
"""
