"""Numbers, sizes, times and byte strings as people read them, each with its unit."""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final, Literal

import msgspec

Form = Literal["auto", "text", "json", "msgpack", "hex"]
FORMS: Final[tuple[Form, ...]] = ("auto", "text", "json", "msgpack", "hex")
SHOWN_BYTES_MAX: Final = 4_096
"""Of one value on a page; the rest is cut off, and the page says so."""
_SIZES: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def count(value: float) -> str:
    """A whole number with its thousands apart.

    >>> count(1234567), count(2.0)
    ('1,234,567', '2')
    """
    return f"{int(value):,}"


def counted(value: int, noun: str) -> str:
    """A number of things.

    >>> counted(1, "operation"), counted(2000, "operation")
    ('1 operation', '2,000 operations')
    """
    return f"{value:,} {noun}{'' if value == 1 else 's'}"


def size(value: float) -> str:
    """Bytes.

    >>> size(512), size(1536), size(3 << 30)
    ('512 B', '1.5 KiB', '3.0 GiB')
    """
    unit = 0
    while abs(value) >= 1024 and unit < len(_SIZES) - 1:
        value /= 1024
        unit += 1
    return f"{value:,.0f} B" if unit == 0 else f"{value:,.1f} {_SIZES[unit]}"


def rate(value: float) -> str:
    """Events a second.

    >>> rate(0), rate(0.25), rate(12.3), rate(4321.9)
    ('0 /s', '0.25 /s', '12.3 /s', '4,322 /s')
    """
    if value == 0:
        return "0 /s"
    return f"{value:,.2f} /s" if value < 1 else f"{value:,.1f} /s" if value < 100 else f"{value:,.0f} /s"


def duration(seconds: float) -> str:
    """A time span, in two units at most.

    >>> duration(0.0042), duration(1.5), duration(75), duration(7300), duration(200000)
    ('4.2 ms', '1.5 s', '1 min 15 s', '2 h 1 min', '2 d 7 h')
    """
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms"
    if seconds < 60:
        return f"{seconds:.3g} s"
    for unit, name, below, lower in ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "min"), (60, "min", 1, "s")):
        if seconds >= unit:
            rest = int(seconds % unit // below)
            return f"{int(seconds // unit)} {name}" + (f" {rest} {lower}" if rest else "")
    raise AssertionError("at least a minute")


def utc(time_ms: float) -> str:
    """A moment in UTC, as ISO 8601 with milliseconds."""
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def bytes_text(data: bytes, form: Form = "auto") -> str:
    """A byte string in a form; ``auto`` takes JSON, text, msgpack and hex in this order, whichever fits first.

    Raises: ValueError when the bytes do not have the form.

    >>> bytes_text(b"ann"), bytes_text(bytes([255, 0])), bytes_text(b'{"a":1}', "json")
    ('ann', 'ff 00', '{\\n  "a": 1\\n}')
    """
    shown = data[:SHOWN_BYTES_MAX]
    match form:
        case "text":
            return _text(shown)
        case "json":
            return _json(data)
        case "msgpack":
            try:
                decoded: object = msgspec.msgpack.decode(data)
                return _json(msgspec.json.encode(decoded))
            except (TypeError, RecursionError) as error:
                raise ValueError("no JSON shows it") from error
        case "hex":
            return shown.hex(" ")
        case "auto":
            return bytes_text(data, form_of(data))


def _json(data: bytes) -> str:
    try:
        msgspec.json.decode(data)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    return msgspec.json.format(data, indent=2).decode()[:SHOWN_BYTES_MAX]


def form_of(data: bytes) -> Form:
    """The form that suits the bytes: JSON for objects and lists, text, msgpack for maps and lists, else hex."""
    if data[:1] in (b"{", b"["):
        with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            msgspec.json.decode(data)
            return "json"
    with suppress(ValueError):
        _text(data[:SHOWN_BYTES_MAX])
        return "text"
    with suppress(msgspec.MsgspecError, TypeError, ValueError, RecursionError):
        decoded: object = msgspec.msgpack.decode(data)
        msgspec.json.encode(decoded)
        if isinstance(decoded, dict | list):
            return "msgpack"
    return "hex"


def _text(data: bytes) -> str:
    """UTF-8 that people can read. A character that is cut off at the end is left out. Raises: ValueError."""
    for cut in range(4):
        try:
            text = data[: len(data) - cut].decode()
        except UnicodeDecodeError:
            if len(data) < SHOWN_BYTES_MAX:
                raise
            continue
        if all(character.isprintable() or character in "\n\t" for character in text):
            return text
        break
    raise ValueError("not text")


def key_text(key: bytes) -> str:
    """A key on one line: text where it is readable, else hex after 0x.

    >>> key_text(b"seat/12A"), key_text(b"a" + bytes([0]))
    ('seat/12A', '0x6100')
    """
    try:
        text = _text(key)
    except ValueError:
        return f"0x{key.hex()}"
    return f"0x{key.hex()}" if "\n" in text or "\t" in text else text


NAME_CHARACTERS: Final = 80
"""Of a longer name only its ends are shown in lists and headings."""


def shortened(text: str) -> str:
    """A name as lists show it: the ends of a long one.

    >>> shortened("seat/12A"), len(shortened("x" * 3_000))
    ('seat/12A', 80)
    """
    return text if len(text) <= NAME_CHARACTERS else f"{text[: NAME_CHARACTERS - 21]}…{text[-20:]}"


def in_heading(text: str) -> str:
    """A name in a heading: shortened, and with a mark for each space that a reader would not see.

    >>> in_heading(" lead and  trail ")
    '␣lead and␣␣trail␣'
    """
    short = shortened(text)
    return re.sub(r"^ +| +$| {2,}", lambda spaces: "␣" * len(spaces[0]), short)


def version(value: float) -> str:
    """A version, as it is written in an address or a command: without separators.

    >>> version(597474421643.0)
    '597474421643'
    """
    return str(int(value))
