"""What every option declares, and the parsers of their texts: (name, text) to a value, or InvalidRequest.

The options of a read are the fields of data classes: each field declares the option that fills it, and ``declared``
lists them. Option names ignore case, as in Spark.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from difflib import get_close_matches
from enum import StrEnum
from functools import partial
from typing import Any, Final, Generic, TypeAlias, TypeVar, cast
from urllib.parse import urlsplit

import msgspec
import pyarrow as pa

from holdfast.commit.format.batch import ItemKind
from holdfast.errors import InvalidRequest
from holdfast.spark.columns import READABLE_KINDS, RowShape
from holdfast.spark.positions import Position, QueuePosition, StorePosition
from holdfast.spark.runtime.refusals import bad_configuration
from holdfast.spark.typed.ddl import parse_schema
from holdfast.values import VERSION_MAX, pairs_once

DURATION_MS_MAX: Final = 24 * 60 * 60 * 1000
_DURATION: Final = re.compile(r"(\d{1,9}(?:\.\d{1,3})?)(ms|s|m|h)")
_UNITS_MS: Final[Mapping[str, int]] = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}
LIKE_ENOUGH: Final = 0.65
"""How like a known name, of 1, an unknown one is for the question whether that was meant."""
TABLE_OPERATORS: Final = ("=", "<", "<=", ">", ">=", "in")
TableFilter: TypeAlias = tuple[str, str, object]

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
D = TypeVar("D")
E = TypeVar("E", bound=StrEnum)
P = TypeVar("P", Position, QueuePosition, StorePosition)
Parse: TypeAlias = Callable[[str, str], T]


class Mode(StrEnum):
    """A batch or a stream."""

    BATCH = "batch"
    STREAM = "stream"


class KeyEncoding(StrEnum):
    """How the text of a key option stands for bytes."""

    UTF8 = "utf8"
    HEX = "hex"
    BASE64 = "base64"


_KINDS: Final = {kind.name.lower(): kind for kind in READABLE_KINDS}
EVERY_SHAPE: Final = frozenset(RowShape)
BOTH: Final = frozenset(Mode)
BATCH: Final = frozenset({Mode.BATCH})
STREAM: Final = frozenset({Mode.STREAM})


def invalid(option: str, reason: str) -> InvalidRequest:
    """The error for an option."""
    return bad_configuration(f"option {option} {reason}")


@dataclass(frozen=True, slots=True)
class Option(Generic[T_co]):
    """One option: its parser, its value where it is not given, and where it has an effect.

    ``required``: what a read without it lacks, with an example.
    """

    name: str
    parse: Parse[T_co]
    default: T_co
    modes: frozenset[Mode] = BOTH
    shapes: frozenset[RowShape] = EVERY_SHAPE
    required: str = ""


Table: TypeAlias = Mapping[str, Option[object]]
"""Options by name."""


def option(
    name: str,
    parse: Parse[T],
    default: D,
    modes: frozenset[Mode] = BOTH,
    shapes: frozenset[RowShape] = EVERY_SHAPE,
    required: str = "",
) -> T | D:
    """A field of a data class that the option ``name`` fills."""
    declared: Option[object] = Option(name, parse, default, modes, shapes, required)
    option_field: T | D = field(default=default, metadata={"option": declared})
    return option_field


def declared(*kinds: Any) -> Table:
    """The options of the fields of these data classes; of each its own before those that it inherits."""
    options: dict[str, Option[object]] = {}
    for kind in kinds:
        for each in sorted(fields(kind), key=lambda each: each.name not in kind.__annotations__):
            if "option" in each.metadata:
                declaration: Option[object] = each.metadata["option"]
                options[declaration.name] = declaration
    return options


class GivenOptions:
    """The given options of one table, by their own spelling. ``load(path)`` arrives as ``path``, means ``path_means``.

    Raises: InvalidRequest for an unknown option, with the nearest name and all names.
    """

    def __init__(self, given: Mapping[str, str], table: Table, path_means: str = "url") -> None:
        self._table = table
        self._texts: dict[str, str] = {}
        spelling = {name.lower(): name for name in table} | {"path": path_means}
        for name, value in given.items():
            known = spelling.get(name.lower())
            if known is None:
                close = get_close_matches(name.lower(), spelling, n=1, cutoff=LIKE_ENOUGH)
                meant = f"; did you mean {spelling[close[0]]}?" if close else ";"
                raise invalid(name, f"is unknown{meant} valid options: {', '.join(table)}")
            if self._texts.get(known, value) != value:
                raise invalid(
                    known, f"is given twice with different values (load(path) and {path_means} mean the same)"
                )
            self._texts[known] = value

    def __contains__(self, name: str) -> bool:
        return name in self._texts

    def __getitem__(self, wanted: Option[T]) -> T:
        """The value of an option. Raises: InvalidRequest."""
        text = self._texts.get(wanted.name)
        if wanted.required and not (text or "").strip():
            raise invalid(wanted.name, f"is required {wanted.required}")
        return wanted.default if text is None else wanted.parse(wanted.name, text)

    def text(self, name: str) -> str:
        """The text of an option without spaces around it; empty where it is not given."""
        return self._texts.get(name, "").strip()

    def made(self, kind: Callable[..., D], **others: object) -> D:
        """A data class whose fields have the values of their options, or of ``others``. Raises: InvalidRequest."""
        values = dict(others)
        for each in fields(cast("Any", kind)):
            if "option" in each.metadata and each.name not in values:
                values[each.name] = self[each.metadata["option"]]
        return kind(**values)

    def require_effect(self, what: str, mode: Mode | None, shape: RowShape = RowShape.OPERATIONS) -> None:
        """Raise InvalidRequest for an option without effect; ``what`` is a read or a write."""
        for name in self._texts:
            shapes, modes = self._table[name].shapes, self._table[name].modes
            if shape not in shapes:
                raise invalid(name, f"has no effect on shape={shape}; it applies to {', '.join(sorted(shapes))}")
            if mode is not None and mode not in modes:
                valid = [each.name for each in self._table.values() if shape in each.shapes and mode in each.modes]
                raise invalid(name, f"has no effect on a {mode} {what}; valid options: {', '.join(valid)}")

    def require_one_of(self, what: str, *names: str) -> None:
        """Raise InvalidRequest when two of these options are given; ``what`` is what both say."""
        names_given = [name for name in names if name in self._texts]
        if len(names_given) > 1:
            raise invalid(names_given[0], f"and {names_given[1]} both say {what}; give one")


# -- parsers ----------------------------------------------------------------------------------------------------------


def checked(convert: Callable[[str], T], valid: str) -> Parse[T]:
    """The parser of a text without spaces around it. ``convert`` raises for what is not ``valid``."""

    def parse(name: str, text: str) -> T:
        try:
            return convert(text.strip())
        except (ValueError, KeyError, msgspec.ValidationError):
            raise invalid(name, f"is {text.strip()!r}; valid: {valid}") from None

    return parse


def _within(lowest: int, highest: int, text: str) -> int:
    if not (text.isascii() and text.isdigit() and lowest <= int(text) <= highest):
        raise ValueError(text)
    return int(text)


def whole(lowest: int, highest: int = 2**63 - 1, what: str = "a number") -> Parse[int]:
    """A whole number within these bounds, both inclusive."""
    valid = f"at least {lowest}" if highest == 2**63 - 1 else f"{lowest} to {highest}"
    return checked(partial(_within, lowest, highest), f"{what}, {valid}")


def one_of(choices: type[E], *also: str) -> Parse[E]:
    """One of these words; the error also names those that other readers take."""
    return checked(lambda text: choices(text.lower()), ", ".join([*choices, *also]))


def version(*words: str) -> Parse[int | str]:
    """A version, or one of these words."""

    def convert(text: str) -> int | str:
        return text.lower() if text.lower() in words else _within(0, VERSION_MAX, text)

    return checked(convert, ", ".join([*words, "a version number"]))


def offset(kind: type[P], meaning: str, *words: str) -> Parse[P | str]:
    """A position as a stream's progress prints it, or one of these words.

    A progress also prints the ``lag`` of a log, which is not part of the position.
    """

    def convert(text: str) -> P | str:
        if text.lower() in words:
            return text.lower()
        members: dict[str, object] = from_json(text, dict)
        if not members.keys() & {"seq", "version"}:
            raise ValueError(text)
        return msgspec.convert({name: each for name, each in members.items() if name != "lag"}, kind)

    return checked(convert, f"{', '.join([*words, kind.example])}: {meaning}")


def _aware_time(text: str) -> datetime:
    """One without a zone would mean something else on every machine."""
    instant = datetime.fromisoformat(text)
    if instant.tzinfo is None:
        raise ValueError(text)
    return instant


def _milliseconds(text: str) -> int:
    parts = _DURATION.fullmatch(text.lower())
    milliseconds = int(float(parts[1]) * _UNITS_MS[parts[2]]) if parts else 0
    if not 1 <= milliseconds <= DURATION_MS_MAX:
        raise ValueError(text)
    return milliseconds


def _kinds(text: str) -> tuple[ItemKind, ...]:
    wanted = {_KINDS[each] for each in names_in(text.lower()) or ("",)}
    return tuple(kind for kind in READABLE_KINDS if kind in wanted)


def _request_ids(text: str) -> tuple[str, ...]:
    """Names with commas, or a JSON array of texts, for ids with commas and spaces of their own."""
    wanted: list[object] = from_json(text, list) if text.startswith("[") else [*names_in(text)]
    ids = [each for each in wanted if isinstance(each, str) and each]
    if not ids or len(ids) != len(wanted):
        raise ValueError(text)
    return tuple(dict.fromkeys(ids))


def _matcher(text: str) -> dict[str, object]:
    members: dict[str, object] = from_json(text, dict)
    if not members:
        raise ValueError(text)
    return members


_TIMES: Final = "an ISO time with its zone, such as 2026-01-31T12:00:00Z"
time: Final = checked(_aware_time, _TIMES)
time_ms: Final = checked(lambda text: math.floor(_aware_time(text).timestamp() * 1000), _TIMES)
duration_ms: Final = checked(_milliseconds, "a time such as 200ms, 5s, 15m, 2h, at most a day")
count: Final = whole(1)
boolean: Final = checked(lambda text: {"true": True, "false": False}[text.lower()], "true, false")
stripped: Final = checked(str, "")
kinds: Final = checked(_kinds, f"any of {', '.join(_KINDS)}")
request_ids: Final = checked(_request_ids, "ids with commas, or a JSON array of them")
matcher: Final = checked(_matcher, 'a matcher as a JSON object, such as {"kind": "drink"}')


def schema(_name: str, text: str) -> pa.DataType:
    """A type in SQL syntax."""
    return parse_schema(text)


def as_given(_name: str, text: str) -> str:
    """The text itself, with spaces around it."""
    return text


def names_in(text: str) -> tuple[str, ...]:
    """Names with commas between them."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def columns_of(types: Mapping[str, object] | None, owner: str = "") -> Parse[tuple[str, ...]]:
    """Some columns of these ``types`` (None: any), each once; ``owner`` has them."""

    def parse(name: str, text: str) -> tuple[str, ...]:
        wanted = names_in(text)
        unknown = [each for each in wanted if types is not None and each not in types]
        if unknown or not wanted:
            what = f"names unknown columns {', '.join(unknown)}" if unknown else "names no column"
            raise invalid(name, what if types is None else f"{what}; {owner} has {', '.join(types)}")
        if len(set(wanted)) != len(wanted):
            raise invalid(name, "names a column twice")
        return wanted

    return parse


def url(name: str, text: str) -> str:
    """A URL without a secret."""
    if urlsplit(text.strip()).password is not None:
        raise invalid(name, "carries a password; credentials come from the environment, because plans print options")
    return text.strip()


def is_service(text: str) -> bool:
    """Whether a URL is the address of a service; else it is one of a log."""
    return text.strip().startswith(("http://", "https://", "unix:"))


def service(name: str, text: str) -> str:
    """The address of a service, without a secret."""
    if not is_service(text):
        raise invalid(name, "is the address of a service, for example http://127.0.0.1:8080 or unix:/run/holdfast")
    if "@" in text.partition("//")[2].partition("/")[0]:
        raise invalid(name, "carries credentials; the token comes from HOLDFAST_TOKEN, because plans print options")
    return text.strip()


def path_text(more: str = "") -> Parse[str]:
    """A path, and not a URL; ``more`` is what the error adds."""

    def parse(name: str, text: str) -> str:
        path = text.strip()
        if path.startswith("file:"):
            raise invalid(name, f"is a path, not a URL: give {'/' + path.removeprefix('file:').lstrip('/')}{more}")
        return path

    return parse


def from_json(text: str, kind: Callable[[], D]) -> D:
    """What a text holds; an empty ``kind`` where it holds another, or an object that has a name twice."""
    try:
        value: object = json.loads(text, object_pairs_hook=pairs_once)
    except (ValueError, RecursionError):
        value = None
    empty = kind()
    return value if isinstance(value, type(empty)) else empty


def filters(name: str, text: str) -> tuple[TableFilter, ...]:
    """Filters of a table as a JSON array."""
    conditions: list[object] = from_json(text, list)
    valid = f'valid: [["version", ">=", 7], ...] with the operators {" ".join(TABLE_OPERATORS)}'
    if not conditions:
        raise invalid(name, f"is {text!r}; {valid}")
    for each in conditions:
        if not (isinstance(each, list) and len(each) == 3 and isinstance(each[0], str)):
            raise invalid(name, f"has {json.dumps(each)}, which is not [column, operator, value]; {valid}")
        if each[1] not in TABLE_OPERATORS:
            raise invalid(name, f"has {json.dumps(each)}, whose operator {each[1]!r} is unknown; {valid}")
    return tuple(cast("Iterable[TableFilter]", map(tuple, cast("list[list[object]]", conditions))))


_KEYS: Final[Mapping[KeyEncoding, Callable[[str], bytes]]] = {
    KeyEncoding.UTF8: str.encode,
    KeyEncoding.HEX: bytes.fromhex,
    KeyEncoding.BASE64: partial(base64.b64decode, validate=True),
}


def key_of(encoding: KeyEncoding) -> Parse[bytes]:
    """A key in this encoding."""

    def parse(name: str, text: str) -> bytes:
        try:
            return _KEYS[encoding](text)
        except ValueError as error:
            raise invalid(name, f"is not {encoding}: {error}") from error

    return parse


def prefixes(text: str) -> list[str]:
    """One prefix, or a JSON array of them."""
    several: list[object] = from_json(text, list) if text.lstrip().startswith("[") else []
    return cast("list[str]", several) if several and all(isinstance(each, str) for each in several) else [text]
