"""When a writer syncs: the three levels.

Owns: the levels and their bounds. Does not own: syncing (``durability``).

Failure model: pure; a level that cannot be is ``InvalidRequest``.

| level | ``append`` returns when | killed process | lost power |
|---|---|---|---|
| ``"os"`` | the operating system has it | loses nothing | loses what was not flushed |
| ``every(...)`` | the operating system has it | loses nothing | loses at most what the bounds allow |
| ``"always"`` | it is on disk | loses nothing | loses nothing |

``flush()`` returns when everything before it is on disk, at every level.
"""

from __future__ import annotations

from holdfast.errors import InvalidRequest
from holdfast.queue.arguments import whole_number

__all__ = ["SyncLevel", "every", "sync_level"]

COUNT_MAX = 1 << 60
MS_MAX = 86_400_000


class SyncLevel:
    """A level, with the bounds of ``every``: 0 where there is none."""

    __slots__ = ("bytes_max", "messages_max", "ms_max", "name")

    def __init__(self, name: str, messages_max: int = 0, bytes_max: int = 0, ms_max: int = 0) -> None:
        self.name = name
        self.messages_max = messages_max
        self.bytes_max = bytes_max
        self.ms_max = ms_max

    def __repr__(self) -> str:
        if self.name != "every":
            return repr(self.name)
        return f"every(messages={self.messages_max}, bytes={self.bytes_max}, ms={self.ms_max})"


def every(*, messages: int = 0, bytes: int = 0, ms: int = 0) -> SyncLevel:  # noqa: A002 - the words of the API
    """Sync when so many messages, bytes or milliseconds have passed since the last sync, whichever is first.

    Raises: ``InvalidRequest`` when no bound is given, or one that cannot be; ``ms`` is a day at most.

    >>> every(messages=1000, ms=50)
    every(messages=1000, bytes=0, ms=50)
    """
    messages = whole_number("messages", messages, 0, COUNT_MAX)
    bytes = whole_number("bytes", bytes, 0, COUNT_MAX)  # noqa: A001 - the words of the API
    ms = whole_number("ms", ms, 0, MS_MAX)
    if not (messages or bytes or ms):
        raise InvalidRequest("every() needs a bound above zero", messages=messages, bytes=bytes, ms=ms)
    return SyncLevel("every", messages, bytes, ms)


def sync_level(level: SyncLevel | str) -> SyncLevel:
    """The level of an argument: an ``every(...)`` or a name."""
    if isinstance(level, SyncLevel):
        return level
    if level not in ("os", "always"):
        hint = "os, every(...) or always"
        if level == "buffered":
            hint += "; the level buffered was removed: os is faster and loses nothing when the process ends"
        raise InvalidRequest("unknown sync level", sync=level, hint=hint)
    return SyncLevel(level)
