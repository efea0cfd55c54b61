"""The words of definitions: each closed list from which a parameter takes its value.

Owns: the words, which are also what is written. Does not own: the parameters (``definitions``). Failure model: pure.
"""

from __future__ import annotations

from enum import StrEnum

__all__ = ["AckMode", "Discard", "DurableType", "Persistence", "PublisherMode"]


class DurableType(StrEnum):
    """What a durable does with messages."""

    STANDARD = "standard"
    SHARED = "shared"
    LAST_VALUE = "last_value"
    MAP = "map"


class AckMode(StrEnum):
    """Whether a subscriber waits for its acknowledgements to be durable."""

    SYNC = "sync"
    ASYNC = "async"


class Discard(StrEnum):
    """Which message goes when a durable is at its limit: its oldest, or the one that arrives."""

    OLD = "old"
    NEW = "new"


class PublisherMode(StrEnum):
    """Whether a publisher learns that the store has its message."""

    CONFIRM = "store_confirm_send"
    NO_CONFIRM = "store_send_noconfirm"


class Persistence(StrEnum):
    """When a message is confirmed: after a data sync, after the operating system has it, or at once."""

    SYNC = "sync"
    ASYNC = "async"
    NONE = "none"
