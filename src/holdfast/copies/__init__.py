"""Copies of a log in another place: a restore to a point, a mirror that follows, and what makes a copy a log.

    module        what it does
    source        the objects of a log in the order of its chain, from where a copy stands, and a cut in them
    chain         carries objects from one store to another, within the window of a leader
    manifests     copies snapshots, and checkpoints of stores, that a copy has reached
    restoring     a new log at an empty prefix that equals another one, cut at a version or a time
    mirroring     a copy that grows with its source
    promoting     makes a mirror a log of its own; ends a log, so that a planned switch to its mirror loses nothing
    repairing     a new log from a damaged one, with what can still be read

A copy never gets an object that its source does not have, and nothing in it is ever replaced. From before its first
object on, ``meta/role`` says what it is (``commit.leadership.role``).
"""
