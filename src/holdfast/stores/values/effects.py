"""Effects: what the state machine asks of its shell, in addition to the reply.

An effect waits for the same position of the log as the reply of its command, and carrying one out twice is harmless.
"""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.stores.values.commands import Result
from holdfast.wire.parts import Message, Origin

Fact = str | int | bool


class Ready(msgspec.Struct, frozen=True):
    """A subscriber of this durable could be given a message: submit a ``Deliver`` for one with credit."""

    store: str
    durable: str


class Advise(msgspec.Struct, frozen=True):
    """Notify the subscriber (empty: every one of the durable) of what happened."""

    store: str
    durable: str
    subscriber: str
    kind: str
    facts: tuple[tuple[str, Fact], ...] = ()


REMOVED_CAUSES: Final = frozenset({"limit_old", "deleted", "purged"})
"""Causes of a withdrawal after which the message is nowhere."""


class Withdrawn(msgspec.Struct, frozen=True):
    """Messages that the subscriber held are not its own any more: take them out of its buffer and give it room.

    ``cause``: ``lapsed`` (nobody acknowledged them in time), ``order`` (a message before them lapsed), ``acknowledged``
    (by a commit), ``rewound``, or one of ``REMOVED_CAUSES``.
    """

    store: str
    durable: str
    subscriber: str
    ranges: list[tuple[int, int]]
    cause: str


class Displaced(msgspec.Struct, frozen=True):
    """This subscriber does not have the durable any more: close its session with ``durable_collision``.

    ``cause``: ``replaced`` (by a newer session of the same name), ``taken_over``, ``lapsed`` (it let an ``ack_wait``
    lapse while another subscriber waited). The first two follow from the result of an ``Attach``.
    """

    store: str
    durable: str
    subscriber: str
    cause: str


class DeadLettering(msgspec.Struct, frozen=True):
    """A message that could not be delivered goes to ``dead_letter_store``: read it and submit its ``DeadLetter``.

    ``cause`` is ``max_delivery`` or ``rejected``. The durable keeps the message until then.
    """

    store: str
    durable: str
    seq: int
    cause: str
    delivery_count: int
    dead_letter_store: str


class Changed(msgspec.Struct, frozen=True):
    """Keys of a map changed: notify its watchers. Triples of key, revision and cause, in order of revision.

    ``cause`` is ``set``, ``removed``, ``expired``, ``discarded`` or ``deleted``; the last three have the value's
    revision.
    """

    store: str
    map: str
    changes: tuple[tuple[str, int, str], ...]


Effect = Ready | Advise | Withdrawn | Displaced | DeadLettering | Changed


class Applied(msgspec.Struct, frozen=True):
    """What one command did. ``changed`` is False where nothing did: then it need not be logged."""

    result: Result
    effects: list[Effect]
    changed: bool = True


def dead_letter_of(message: Message, dying: DeadLettering) -> Message:
    """The message with its own key, body and fields, and where it came from."""
    origin = Origin(dying.store, dying.durable, dying.seq, dying.cause, dying.delivery_count)
    return Message(body=message.body, fields=message.fields, key=message.key, origin=origin)
