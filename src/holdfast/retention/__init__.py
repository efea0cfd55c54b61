"""Retention: which versions of a log must stay, and the removal of the objects below them.

``policies`` says what a policy, a hold and a generation are. ``generations`` stores them: a sequence of objects in
which every change, and every truncation, is the next one. ``cut`` finds the newest object that nothing needs any more.
``sweep`` deletes objects. ``truncator`` is the leader's loop: decide, write the generation, write the truncation into
the log, wait until that is durable, delete. ``docs/explain/retention.md`` gives the reasons for this order.

Policies permit deletion, holds only forbid it. Without a policy nothing is deleted.
"""
