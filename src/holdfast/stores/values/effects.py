"""What the state machine asks of its shell, besides answering.

Owns: the effects. Does not own: carrying them out (``service``, ``deliveries``). An effect waits for the same position
of the log as the answer of its command, and carrying one out twice is harmless.
"""

from __future__ import annotations

import msgspec

from holdfast.stores.values.commands import Result

__all__ = ["Advise", "Applied", "Changed", "Displaced", "Dying", "Effect", "Ready"]

Fact = str | int | bool


class Ready(msgspec.Struct, frozen=True):
    """A subscriber of this durable could be given a message: submit a ``Deliver`` for one with credit."""

    store: str
    durable: str


class Advise(msgspec.Struct, frozen=True):
    """Tell the subscriber (every one of the durable where ``subscriber`` is empty) what happened."""

    store: str
    durable: str
    subscriber: str
    kind: str
    facts: tuple[tuple[str, Fact], ...] = ()


class Displaced(msgspec.Struct, frozen=True):
    """A newer session took this subscriber's place: close the older one with ``durable_collision``."""

    store: str
    durable: str
    subscriber: str


class Dying(msgspec.Struct, frozen=True):
    """A message that nobody could take goes to ``dead_letter_store``: read it and submit its ``DeadLetter``.

    ``cause`` is ``max_delivery`` or ``rejected``. The durable keeps the message until then.
    """

    store: str
    durable: str
    seq: int
    cause: str
    delivery_count: int
    dead_letter_store: str


class Changed(msgspec.Struct, frozen=True):
    """Keys of a map changed: tell whoever watches it. Triples of key, revision and cause, in order of revision.

    ``cause`` is ``set``, ``removed``, ``expired``, ``discarded`` or ``deleted``; the last three have the revision that
    the value had.
    """

    store: str
    map: str
    changes: tuple[tuple[str, int, str], ...]


Effect = Ready | Advise | Displaced | Dying | Changed


class Applied(msgspec.Struct, frozen=True):
    """What one command did. ``changed`` is False where nothing did: then it need not be logged."""

    result: Result
    effects: list[Effect]
    changed: bool = True
