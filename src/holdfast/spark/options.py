"""The options of the Spark source, parsed once and checked together.

Owns: the names, values and combinations that ``spark.read.format("holdfast")`` accepts, and the errors that list them.
Does not own: what the options do (``plan`` picks the objects, ``shapes`` the columns and rows).

Failure model: an option that is unknown, misspelled, malformed or without effect on the chosen shape raises
InvalidRequest before anything is read. Spark compares option names without regard to case, so this does too.

No option carries a secret: query plans print options. A store's credentials come from the environment or the role of
the machine that reads.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum
from typing import Final, TypeVar
from urllib.parse import urlsplit

from holdfast.commit.batch import ItemKind
from holdfast.commit.transaction import VERSION_MAX
from holdfast.errors import Code, InvalidRequest
from holdfast.spark.shapes import OPERATION_KINDS, Shape, column_names, default_columns

__all__ = ["EARLIEST", "LATEST", "ReadOptions", "parse_read_options"]

EARLIEST: Final = "earliest"
LATEST: Final = "latest"

PARTITION_BYTES_DEFAULT: Final = 32 * 2**20
PARTITION_BYTES_MIN: Final = 2**20
PARTITION_BYTES_MAX: Final = 2**31


class KeyEncoding(StrEnum):
    """How the text of a key option stands for bytes."""

    UTF8 = "utf8"
    HEX = "hex"
    BASE64 = "base64"


_E = TypeVar("_E", bound=StrEnum)

_EVERY_SHAPE: Final = frozenset(Shape)
_KEYED: Final = frozenset({Shape.OPERATIONS})

_APPLIES: Final[Mapping[str, frozenset[Shape]]] = {
    "url": _EVERY_SHAPE,
    "shape": _EVERY_SHAPE,
    "columns": _EVERY_SHAPE,
    "startingVersion": _EVERY_SHAPE,
    "endingVersion": _EVERY_SHAPE,
    "asOfVersion": _EVERY_SHAPE,
    "failOnDataLoss": _EVERY_SHAPE,
    "verify": frozenset({Shape.OPERATIONS, Shape.TRANSACTIONS}),
    "targetPartitionBytes": _EVERY_SHAPE,
    "kinds": _KEYED,
    "keyPrefix": _KEYED,
    "keyBegin": _KEYED,
    "keyEnd": _KEYED,
    "keyEncoding": _KEYED,
}
"""Every option and the shapes on which it has an effect."""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What one batch read is asked for.

    Shape: versions are inclusive; ``starting_version`` None means the oldest object still kept, ``from_latest`` the
    newest version of the log; ``ending_version`` None means the end of the log when the read is planned. Keys are raw
    bytes in ``[key_begin, key_end)``, a ``key_end`` of None means to the last key. ``kinds`` are the operations wanted.
    """

    url: str
    shape: Shape
    columns: tuple[str, ...]
    starting_version: int | None = None
    from_latest: bool = False
    ending_version: int | None = None
    fail_on_data_loss: bool = True
    verify: bool = True
    target_partition_bytes: int = PARTITION_BYTES_DEFAULT
    kinds: tuple[ItemKind, ...] = OPERATION_KINDS
    key_begin: bytes = b""
    key_end: bytes | None = None


def parse_read_options(given: Mapping[str, str]) -> ReadOptions:
    """The options of a batch read. Raises: InvalidRequest naming the option, the reason and what is valid.

    >>> parse_read_options({"url": "file:///log", "STARTINGVERSION": "7"}).starting_version
    7
    """
    options = _recognised(given)
    shape = _choice("shape", options.get("shape", Shape.OPERATIONS), Shape)
    for name in options:
        if shape not in _APPLIES[name]:
            applies = ", ".join(sorted(_APPLIES[name]))
            raise _invalid(name, f"has no effect on shape={shape}; it applies to {applies}")
    starting, from_latest = _starting(options)
    ending = _ending(options)
    if starting is not None and ending is not None and starting > ending:
        raise _invalid("startingVersion", f"is above the ending version, {starting} > {ending}")
    key_begin, key_end = _key_range(options)
    return ReadOptions(
        url=_url(options),
        shape=shape,
        columns=_columns(options, shape),
        starting_version=starting,
        from_latest=from_latest,
        ending_version=ending,
        fail_on_data_loss=_boolean(options, "failOnDataLoss", default=True),
        verify=_boolean(options, "verify", default=True),
        target_partition_bytes=_partition_bytes(options),
        kinds=_kinds(options),
        key_begin=key_begin,
        key_end=key_end,
    )


def _invalid(option: str, reason: str) -> InvalidRequest:
    return InvalidRequest(f"option {option} {reason}", code=Code.BAD_CONFIGURATION)


def _recognised(given: Mapping[str, str]) -> dict[str, str]:
    """The options by their own spelling. ``load(url)`` arrives as Spark's ``path``, another word for ``url``."""
    spelling = {name.lower(): name for name in _APPLIES} | {"path": "url"}
    options: dict[str, str] = {}
    for name, value in given.items():
        known = spelling.get(name.lower())
        if known is None:
            close = get_close_matches(name.lower(), spelling, n=1)
            meant = f"; did you mean {spelling[close[0]]}?" if close else ";"
            raise _invalid(name, f"is unknown{meant} valid options: {', '.join(_APPLIES)}")
        if known in options and options[known] != value:
            raise _invalid(known, "is given twice with different values (load(path) and url mean the same)")
        options[known] = value
    return options


def _url(options: Mapping[str, str]) -> str:
    url = options.get("url", "").strip()
    if not url:
        raise _invalid("url", 'is required, for example .option("url", "s3://bucket/log")')
    parts = urlsplit(url)
    if parts.password is not None:
        raise _invalid("url", "carries a password; credentials come from the environment, because plans print options")
    return url


def _choice(name: str, text: str, choices: type[_E]) -> _E:
    try:
        return choices(text.strip().lower())
    except ValueError:
        raise _invalid(name, f"is {text!r}; valid: {', '.join(choices)}") from None


def _names(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _columns(options: Mapping[str, str], shape: Shape) -> tuple[str, ...]:
    if "columns" not in options:
        return default_columns(shape)
    wanted = _names(options["columns"])
    valid = column_names(shape)
    unknown = [name for name in wanted if name not in valid]
    if unknown or not wanted:
        what = f"names unknown columns {', '.join(unknown)}" if unknown else "names no column"
        raise _invalid("columns", f"{what}; shape={shape} has {', '.join(valid)}")
    if len(set(wanted)) != len(wanted):
        raise _invalid("columns", "names a column twice")
    return tuple(wanted)


def _version(name: str, text: str, words: Iterable[str]) -> int:
    digits = text.strip()
    if not (digits.isascii() and digits.isdigit() and int(digits) <= VERSION_MAX):
        raise _invalid(name, f"is {text!r}; valid: {', '.join([*words, 'a version number'])}")
    return int(digits)


def _starting(options: Mapping[str, str]) -> tuple[int | None, bool]:
    text = options.get("startingVersion", EARLIEST).strip().lower()
    if text == EARLIEST:
        return None, False
    if text == LATEST:
        return None, True
    return _version("startingVersion", text, (EARLIEST, LATEST)), False


def _ending(options: Mapping[str, str]) -> int | None:
    if "asOfVersion" in options:
        if "endingVersion" in options:
            raise _invalid("asOfVersion", "and endingVersion both say where to stop; give one")
        return _version("asOfVersion", options["asOfVersion"], ())
    text = options.get("endingVersion", LATEST).strip().lower()
    return None if text == LATEST else _version("endingVersion", text, (LATEST,))


def _boolean(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    match options.get(name, str(default)).strip().lower():
        case "true":
            return True
        case "false":
            return False
        case other:
            raise _invalid(name, f"is {other!r}; valid: true, false")


def _partition_bytes(options: Mapping[str, str]) -> int:
    name = "targetPartitionBytes"
    text = options.get(name, str(PARTITION_BYTES_DEFAULT)).strip()
    if not (text.isascii() and text.isdigit() and PARTITION_BYTES_MIN <= int(text) <= PARTITION_BYTES_MAX):
        raise _invalid(name, f"is {text!r}; valid: a number of bytes, {PARTITION_BYTES_MIN} to {PARTITION_BYTES_MAX}")
    return int(text)


def _kinds(options: Mapping[str, str]) -> tuple[ItemKind, ...]:
    if "kinds" not in options:
        return OPERATION_KINDS
    by_name = {kind.name.lower(): kind for kind in OPERATION_KINDS}
    wanted = _names(options["kinds"].lower())
    if not wanted or any(name not in by_name for name in wanted):
        raise _invalid("kinds", f"is {options['kinds']!r}; valid: any of {', '.join(by_name)}")
    return tuple(kind for name, kind in by_name.items() if name in wanted)


def _key_range(options: Mapping[str, str]) -> tuple[bytes, bytes | None]:
    encoding = _choice("keyEncoding", options.get("keyEncoding", KeyEncoding.UTF8), KeyEncoding)
    keyed = [name for name in ("keyPrefix", "keyBegin", "keyEnd") if name in options]
    if "keyEncoding" in options and not keyed:
        raise _invalid("keyEncoding", "has no effect without keyPrefix, keyBegin or keyEnd")
    if "keyPrefix" in options:
        if len(keyed) > 1:
            raise _invalid("keyPrefix", "cannot be combined with keyBegin or keyEnd")
        prefix = _key("keyPrefix", options["keyPrefix"], encoding)
        return prefix, _after_prefix(prefix)
    begin = _key("keyBegin", options.get("keyBegin", ""), encoding)
    end = _key("keyEnd", options["keyEnd"], encoding) if "keyEnd" in options else None
    if end is not None and begin >= end:
        raise _invalid("keyBegin", "is not below keyEnd")
    return begin, end


def _key(name: str, text: str, encoding: KeyEncoding) -> bytes:
    try:
        match encoding:
            case KeyEncoding.UTF8:
                return text.encode()
            case KeyEncoding.HEX:
                return bytes.fromhex(text)
            case KeyEncoding.BASE64:
                return base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error) as error:
        raise _invalid(name, f"is not {encoding}: {error}") from error


def _after_prefix(prefix: bytes) -> bytes | None:
    """The first key after every key that starts with ``prefix``; None when there is none."""
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else None
