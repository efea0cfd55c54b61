"""What a dead letter says of the message that it was.

Owns: its fields. Does not own: when a message dies (``durables``), where its letter goes (``service``). Failure model:
pure.
"""

from __future__ import annotations

from itertools import islice
from typing import Final

import msgspec

from holdfast.stores.values.messages import FIELDS_MAX, Delivery, FieldValue, Message

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.stores.values.effects import Dying

__all__ = ["Origin", "dead_letter_of", "origin_of"]

DEAD_FIELDS: Final = frozenset({"dead_store", "dead_durable", "dead_seq", "dead_cause", "dead_delivery_count"})


class Origin(msgspec.Struct, frozen=True):
    """Where a dead letter came from, and the message that it was."""

    store: str
    durable: str
    message: Message


def origin_of(letter: Delivery) -> Origin | None:
    """What a dead letter says of itself, None where the message is no dead letter."""
    store, durable = letter.fields.get("dead_store"), letter.fields.get("dead_durable")
    if not isinstance(store, str) or not isinstance(durable, str):
        return None
    fields = {name: value for name, value in letter.fields.items() if name not in DEAD_FIELDS}
    return Origin(store, durable, Message(body=letter.body, fields=fields, key=letter.key))


def dead_letter_of(message: Message, dying: Dying) -> Message:
    """The message with its own key, body and fields, and what became of it.

    The bound on fields holds for what is added too; those in front stay.
    """
    fields: dict[str, FieldValue] = {
        **dict(islice(message.fields.items(), FIELDS_MAX - len(DEAD_FIELDS))),
        "dead_store": dying.store,
        "dead_durable": dying.durable,
        "dead_seq": dying.seq,
        "dead_cause": dying.cause,
        "dead_delivery_count": dying.delivery_count,
    }
    return Message(body=message.body, fields=fields, key=message.key)
