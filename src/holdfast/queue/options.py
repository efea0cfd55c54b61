"""The arguments of the public calls, checked where they come in: numbers, delays, times, sync levels.

Every refusal, also of a wrong type, is ``InvalidRequest`` with the argument, its value and what is allowed.
``datetime`` is imported by the first call that needs it.
"""

from __future__ import annotations

from functools import wraps
from operator import index
from typing import NamedTuple

from holdfast.errors import InvalidRequest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from datetime import datetime
    from typing import Any, Concatenate, ParamSpec, TypeVar

    Since = datetime | str | None
    """Where reading starts: an aware time, "earliest", "latest"; None: the default."""

    Arguments = ParamSpec("Arguments")
    Owner = TypeVar("Owner")
    Result = TypeVar("Result")

DELAY_S_MAX = 10 * 365 * 86_400
NS = 1_000_000_000


def same_arguments(
    model: Callable[Concatenate[Any, Arguments], object],
) -> Callable[[Callable[Concatenate[Owner, ...], Result]], Callable[Concatenate[Owner, Arguments], Result]]:
    """A method that takes the arguments of ``model``, as type checkers, editors and ``help`` show."""
    return wraps(model)


def whole_number(name: str, value: object, least: int, most: int) -> int:
    """An integer within bounds, both inclusive.

    >>> whole_number("page_size", 4096, 4096, 1 << 32)
    4096
    """
    if not isinstance(value, int) or not least <= value <= most:
        facts = {name: repr(value), "min": least, "max": most}
        raise InvalidRequest(f"{name} is a whole number within its bounds", facts=facts)
    return int(value)


def seconds_ns(name: str, seconds: object) -> int:
    """Nanoseconds of a delay: zero to ten years.

    >>> seconds_ns("ack_wait", 0.5)
    500000000
    """
    if not isinstance(seconds, int | float) or not 0 <= seconds <= DELAY_S_MAX:
        raise InvalidRequest(
            f"{name} is a number of seconds", facts={name: repr(seconds), "min": 0, "max": DELAY_S_MAX}
        )
    return int(seconds * NS)


def each_of(payloads: Iterable[object]) -> Iterator[object]:
    """An iterator over the messages of a batch.

    >>> [*each_of({b"one": 1})]
    [b'one']
    """
    try:
        return iter(payloads)
    except TypeError:
        raise InvalidRequest(f"a batch is messages one after the other, not {type(payloads).__name__}") from None


TIME_NS_MIN, TIME_NS_MAX = -1 << 63, (1 << 63) - 1


def clock_ns(time_ns: object) -> int:
    """What a clock has returned, as nanoseconds since 1970 that fit into a frame.

    >>> clock_ns(1_767_225_600_000_000_000)
    1767225600000000000
    """
    try:
        ns = index(time_ns)  # type: ignore[arg-type]  # refused if it is something else
    except TypeError:
        ns = TIME_NS_MAX + 1
    if not TIME_NS_MIN <= ns <= TIME_NS_MAX:
        facts = {"clock": repr(time_ns), "min": TIME_NS_MIN, "max": TIME_NS_MAX}
        raise InvalidRequest("the clock returns whole nanoseconds since 1970", facts=facts, hint="time.time_ns")
    return ns


def lifetime_ns(lifetime: object) -> int:
    """Nanoseconds of a ``timedelta`` above zero."""
    from datetime import timedelta

    if not isinstance(lifetime, timedelta) or lifetime <= timedelta(0):
        hint = "for example timedelta(days=7)"
        raise InvalidRequest("lifetime must be a timedelta above zero", lifetime=repr(lifetime), hint=hint)
    return lifetime // timedelta(microseconds=1) * 1000


def moment_ns(since: object) -> int:
    """Nanoseconds since 1970 of an aware moment, exactly."""
    import datetime as dt  # not its names: they take longer, and a seek is short

    if not isinstance(since, dt.datetime):
        hint = "give since=earliest, latest or a datetime, or give seq="
        raise InvalidRequest("unknown starting point", since=repr(since), hint=hint)
    if since.utcoffset() is None:
        raise InvalidRequest("a time needs a time zone", since=since.isoformat(), hint="datetime.now(UTC)")
    passed = since - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    return (passed.days * 86_400 + passed.seconds) * 1_000_000_000 + passed.microseconds * 1000


COUNT_MAX = 1 << 60
MS_MAX = 86_400_000


class SyncBounds(NamedTuple):
    """A level, with the bounds of ``every``; 0 means no bound."""

    name: str
    messages_max: int = 0
    bytes_max: int = 0
    ms_max: int = 0


class SyncLevel:
    """What ``every`` returns."""

    __slots__ = ("_bounds",)

    _bounds: SyncBounds

    def __repr__(self) -> str:
        _, messages, size, ms = self._bounds
        return f"every(messages={messages}, bytes={size}, ms={ms})"


def every(*, messages: int = 0, bytes: int = 0, ms: int = 0) -> SyncLevel:  # noqa: A002 - the words of the API
    """Sync after this many messages, bytes or milliseconds since the last sync, whichever is first.

    Raises: ``InvalidRequest`` without a bound, or with an impossible one; ``ms`` is at most a day.

    >>> every(messages=1000, ms=50)
    every(messages=1000, bytes=0, ms=50)
    """
    messages = whole_number("messages", messages, 0, COUNT_MAX)
    bytes = whole_number("bytes", bytes, 0, COUNT_MAX)  # noqa: A001 - the words of the API
    ms = whole_number("ms", ms, 0, MS_MAX)
    if not (messages or bytes or ms):
        raise InvalidRequest("every() needs a bound above zero", messages=messages, bytes=bytes, ms=ms)
    level = SyncLevel()
    level._bounds = SyncBounds("every", messages, bytes, ms)  # pyright: ignore[reportPrivateUsage] - of this module
    return level


def sync_level(level: SyncLevel | str) -> SyncBounds:
    """The level of an argument: an ``every(...)`` or a name."""
    if isinstance(level, SyncLevel):
        return level._bounds  # pyright: ignore[reportPrivateUsage] - of this module
    if level not in ("os", "always"):
        raise InvalidRequest("unknown sync level", sync=level, hint="os, every(...) or always")
    return SyncBounds(level)
