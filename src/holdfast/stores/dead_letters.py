"""What a dead letter says of the message that it was.

Owns: its fields. Does not own: when a message dies (``durables``), where its letter goes (``service``). Failure model:
pure.
"""

from __future__ import annotations

from itertools import islice
from typing import Final

from holdfast.stores.messages import FIELDS_MAX, FieldValue, Message

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.stores.effects import Dying

__all__ = ["dead_letter_of"]

DEAD_FIELDS: Final = 5


def dead_letter_of(message: Message, dying: Dying) -> Message:
    """The message with its own key, body and fields, and what became of it.

    The bound on fields holds for what is added too; those in front stay.
    """
    fields: dict[str, FieldValue] = {
        **dict(islice(message.fields.items(), FIELDS_MAX - DEAD_FIELDS)),
        "dead_store": dying.store,
        "dead_durable": dying.durable,
        "dead_seq": dying.seq,
        "dead_cause": dying.cause,
        "dead_delivery_count": dying.delivery_count,
    }
    return Message(body=message.body, fields=fields, key=message.key)
