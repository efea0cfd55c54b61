"""The options of a read of messages: ``shape=messages`` with the path of an embedded queue.

Owns: the names and values that such a read takes. Does not own: those of a read of a log (``options``), what they do
(``queue_reading``).

Failure model: what is unknown, malformed or without effect raises InvalidRequest before anything is read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from holdfast.errors import Code, InvalidRequest
from holdfast.spark.source.options import EARLIEST, Mode, boolean, iso_time, partition_bytes, recognised

__all__ = ["MESSAGES", "MESSAGE_COLUMNS", "MessageOptions", "is_read_of_messages", "parse_message_options"]

MESSAGES: Final = "messages"
MESSAGE_COLUMNS: Final = ("seq", "time", "payload")
_NAMES: Final = (
    "queue",
    "shape",
    "columns",
    "startingOffsets",
    "startingTimestamp",
    "failOnDataLoss",
    "targetPartitionBytes",
)


@dataclass(frozen=True, slots=True)
class MessageOptions:
    """What a read of messages is asked for.

    Shape: ``queue`` is the path that a program gives to ``Queue``; ``after_seq`` is the last message not wanted,
    0 for none; ``since`` is an aware time. At most one of the two says where to start.
    """

    queue: str
    columns: tuple[str, ...]
    after_seq: int
    since: datetime | None
    fail_on_data_loss: bool
    target_partition_bytes: int


def is_read_of_messages(given: Mapping[str, str]) -> bool:
    """Whether these options name the shape ``messages``.

    >>> is_read_of_messages({"Shape": "messages", "queue": "/data/orders"})
    True
    """
    options = {name.lower(): value for name, value in given.items()}
    return options.get("shape", "").strip().lower() == MESSAGES


def parse_message_options(given: Mapping[str, str], mode: Mode | None = None) -> MessageOptions:
    """The options of a read of messages. Raises: InvalidRequest naming the option, the reason and what is valid.

    >>> parse_message_options({"shape": "messages", "queue": "/data/orders"}).columns
    ('seq', 'time', 'payload')
    """
    if mode is Mode.STREAM:
        raise InvalidRequest(
            "a queue is read as a batch source",
            code=Code.BAD_CONFIGURATION,
            hint="read it again with startingOffsets at the last seq, or follow it with a consumer of holdfast.queue",
        )
    options = recognised(given, _NAMES, path_means="queue")
    queue = options.get("queue", "").strip()
    if not queue:
        raise _invalid(
            "queue",
            'is required with shape=messages, for example .option("queue", "/data/orders"); of a message store: stores '
            "and store",
        )
    if "startingOffsets" in options and "startingTimestamp" in options:
        raise _invalid("startingOffsets", "and startingTimestamp both say where to start; give one")
    return MessageOptions(
        queue,
        _columns(options),
        _after_seq(options),
        iso_time(options, "startingTimestamp"),
        boolean(options, "failOnDataLoss", default=True),
        partition_bytes(options),
    )


def _invalid(option: str, reason: str) -> InvalidRequest:
    return InvalidRequest(f"option {option} {reason}", code=Code.BAD_CONFIGURATION)


def _columns(options: Mapping[str, str]) -> tuple[str, ...]:
    wanted = [part.strip() for part in options.get("columns", ",".join(MESSAGE_COLUMNS)).split(",") if part.strip()]
    if not wanted or len(set(wanted)) != len(wanted) or not set(wanted) <= set(MESSAGE_COLUMNS):
        raise _invalid("columns", f"is {options['columns']!r}; shape=messages has {', '.join(MESSAGE_COLUMNS)}")
    return tuple(wanted)


def _after_seq(options: Mapping[str, str]) -> int:
    text = options.get("startingOffsets", EARLIEST).strip()
    if text.lower() == EARLIEST:
        return 0
    try:
        found: object = json.loads(text)
    except ValueError:
        found = None
    match found:
        case {"seq": int(seq), **rest} if not rest and not isinstance(seq, bool) and 0 <= seq < 2**63:
            return seq
        case _:
            raise _invalid("startingOffsets", f'is {text!r}; valid: {EARLIEST}, {{"seq": 17}}: read what comes after')
