"""What programs hand in as a number or as many messages, checked where it comes in.

Owns: the checks. Does not own: what the bounds are, times (``datetimes``), names (``file_names``, ``neighbours``), the
messages themselves (``frame``).

Failure model: pure; ``InvalidRequest`` that tells the argument, what was given and what it may be. Types are checked,
too: most programs are not, and a text that is taken for a number fails later and far away, if at all.
"""

from __future__ import annotations

from holdfast.errors import InvalidRequest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["DELAY_S_MAX", "NS", "each_of", "seconds_ns", "whole_number"]

DELAY_S_MAX = 10 * 365 * 86_400
NS = 1_000_000_000


def whole_number(name: str, value: object, least: int, most: int) -> int:
    """An integer within its bounds, which are its own.

    >>> whole_number("page_size", 4096, 4096, 1 << 32)
    4096
    """
    if not isinstance(value, int) or not least <= value <= most:
        facts = {name: repr(value), "min": least, "max": most}
        raise InvalidRequest(f"{name} is a whole number within its bounds", facts=facts)
    return int(value)


def seconds_ns(name: str, seconds: object) -> int:
    """Nanoseconds of a delay: zero to ten years.

    >>> seconds_ns("visibility", 0.5)
    500000000
    """
    if not isinstance(seconds, int | float) or not 0 <= seconds <= DELAY_S_MAX:
        raise InvalidRequest(
            f"{name} is a number of seconds", facts={name: repr(seconds), "min": 0, "max": DELAY_S_MAX}
        )
    return int(seconds * NS)


def each_of(payloads: Iterable[object]) -> Iterator[object]:
    """The messages of a batch, one after the other.

    >>> [*each_of({b"one": 1})]
    [b'one']
    """
    try:
        return iter(payloads)
    except TypeError:
        raise InvalidRequest(f"a batch is messages one after the other, not {type(payloads).__name__}") from None
