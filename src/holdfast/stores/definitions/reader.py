"""Reads the values of a definition and notes every wrong one with its path.

    size    a whole number of bytes, or text: 100, "100", "100k", "100mb", "1g" (powers of 1024, in either case)
    time    a number of seconds, or text: 0.1, "30", "100ms", "30s", "5m", "2h", "7d"; kept in milliseconds
    name    1 to 256 letters and digits of any script and . _ - : @ ~ of which the first is a letter or a digit; in NFC,
            and by Unicode 3.2, which each Python has: all machines that replay a log must accept the same names

For an optional limit, null, "" and 0 mean none. A reader never raises on a wrong value: it notes the problem, continues
with the default, and ``raise_problems`` refuses the whole definition.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from enum import StrEnum
from typing import Any, Final, TypeGuard, TypeVar, cast

from holdfast.errors import Code, InvalidRequest
from holdfast.stores.matching import Matcher

NAME_LENGTH_MAX: Final = 256
TIME_MS_MAX: Final = 10 * 365 * 86_400_000
SIZE_MAX: Final = 1 << 60
PROBLEMS_SHOWN_MAX: Final = 50

STATISTICS: Final = "_statistics"
"""The store that the service makes itself; see ``cluster.STATISTICS_STORE``."""
NAME_RULE: Final = (
    f"1 to {NAME_LENGTH_MAX} letters and digits of any script (Unicode 3.2) and . _ - : @ ~, "
    "the first a letter or a digit"
)
_ASCII_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@~-]*", re.ASCII)
_SIGNS: Final = frozenset("._:@~-")
_SIZE: Final = re.compile(r"(\d+)\s*([kmgt]?)(?:i?b)?", re.ASCII | re.IGNORECASE)
_SHIFTS: Final = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}
_TIME: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)?", re.ASCII)
_UNITS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}

_TEXT_RULE: Final = "a text of at most 4096 characters"

Word = TypeVar("Word", bound=StrEnum)
T = TypeVar("T")


def check_name(kind: str, name: object) -> str:
    """``name`` itself where it is one; ``kind`` is for the error. Raises ``InvalidRequest``.

    >>> check_name("durable", "orders.eu-1"), check_name("store", "Bestellungen-für-東京")
    ('orders.eu-1', 'Bestellungen-für-東京')
    """
    if isinstance(name, str) and is_name(name):
        return name
    hint = ""
    if isinstance(name, str) and 0 < len(name) <= NAME_LENGTH_MAX:
        if name.startswith("_"):
            hint = "names that begin with _ are those of the service"
        elif _has_name_characters(_in_nfc(name)):
            hint = f"characters are composed (NFC): write {_in_nfc(name)!a}"
    raise InvalidRequest(f"the name of a {kind} is {NAME_RULE}", hint=hint, given=repr(name)[:80])


def is_name(text: str) -> bool:
    """Whether ``check_name`` accepts it."""
    if not 0 < len(text) <= NAME_LENGTH_MAX:
        return False
    return bool(_ASCII_NAME.fullmatch(text)) or (_has_name_characters(text) and _in_nfc(text) == text)


def _in_nfc(name: str) -> str:
    return unicodedata.ucd_3_2_0.normalize("NFC", name)


def _has_name_characters(name: str) -> bool:
    """Letters, marks, decimal digits and signs; the first one a letter or a digit."""
    kinds = [unicodedata.ucd_3_2_0.category(character) for character in name]
    return _is_letter_or_digit(kinds[0]) and all(
        character in _SIGNS or _is_letter_or_digit(kind) or kind in ("Mn", "Mc")
        for character, kind in zip(name, kinds, strict=True)
    )


def _is_letter_or_digit(kind: str) -> bool:
    return kind[0] == "L" or kind == "Nd"


def byte_size(value: object) -> int:
    """Bytes of a size; ``ValueError`` says what is valid.

    >>> byte_size("100k"), byte_size("100MB"), byte_size(7)
    (102400, 104857600, 7)
    """
    if isinstance(value, str) and (match := _SIZE.fullmatch(value.strip())):
        value = int(match[1]) << _SHIFTS[match[2].lower()]
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= SIZE_MAX:
        raise ValueError('a number of bytes, or text such as "100k", "100mb" or "1g"')
    return value


def milliseconds(value: object) -> int:
    """Milliseconds of a time; ``ValueError`` says what is valid. What is above 0 is never rounded to 0.

    >>> milliseconds(0.1), milliseconds("30"), milliseconds("7d")
    (100, 30000, 604800000)
    """
    rule = 'a number of seconds up to ten years, or text such as "100ms", "30s", "5m", "2h" or "7d"'
    unit = 1_000
    if isinstance(value, str) and (match := _TIME.fullmatch(value.strip())):
        value, unit = float(match[1]), _UNITS_MS[match[2] or "s"]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(rule)
    # Compared before anything else is done with it: a whole number may be too large to become a float.
    if not 0 <= value <= TIME_MS_MAX or not (exact := value * unit) <= TIME_MS_MAX:
        raise ValueError(rule)
    return max(1, round(exact)) if exact else 0


def seconds_document(ms: int) -> int | float:
    """A time as it is written in a definition: whole seconds where it has no part."""
    return ms // 1_000 if ms % 1_000 == 0 else ms / 1_000


def raise_problems(problems: Sequence[str]) -> None:
    """Refuse the whole definition where there is any problem. Raises ``InvalidRequest``, code ``bad_configuration``."""
    if not problems:
        return
    shown = "; ".join(problems[:PROBLEMS_SHOWN_MAX])
    raise InvalidRequest(
        f"the definition has {len(problems)} problem{'s' * (len(problems) > 1)}: {shown}",
        code=Code.BAD_CONFIGURATION,
        hint="nothing was applied: correct every value named and send the whole definition again",
        facts={"problems": len(problems)},
    )


class FieldReader:
    """Reads the values of one object; all readers of one definition share the list of problems.

    A value that is not given has its default. ``finish`` reports the names that were not read.
    """

    def __init__(self, document: object, path: str, problems: list[str]) -> None:
        self.path = path
        self.problems = problems
        self._asked: set[str] = set()
        if isinstance(document, Mapping):
            self._values = dict(cast("Mapping[object, object]", document))
        else:
            self._values = {}
            self.problem("", "an object", document)

    def problem(self, name: str, rule: str, given: object = None) -> None:
        """Note that the value at ``name`` (empty: the object itself) is not ``rule``."""
        path = self._place(name)
        shown = "" if given is None else f", not {repr(given)[:80]}"
        self.problems.append(f"{path}: {rule}{shown}")

    def given(self, name: str) -> bool:
        """Whether the object has this value at all."""
        return name in self._values

    def expect(self, names: Iterable[str]) -> None:
        """These need not be given, nor read."""
        self._asked.update(names)

    def finish(self) -> None:
        """Note every name that was not asked for, with the nearest that was."""
        for name in self._values:
            if name in self._asked:
                continue
            near = get_close_matches(str(name), sorted(self._asked), n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            self.problem(str(name), f"there is no such parameter{hint}")

    def text(self, name: str, default: str = "") -> str:
        """A text of at most 4,096 characters."""
        return self._one(name, default, lambda value: isinstance(value, str) and len(value) <= 4_096, _TEXT_RULE)

    def name(self, name: str, default: str, kind: str) -> str:
        """The name of a thing, the default where it is empty."""
        value = self._take(name, "")
        if value is None or value == "":
            return default
        return str(value) if self.is_name(name, kind, value) else default

    def names(self, name: str, default: tuple[str, ...], kind: str) -> tuple[str, ...]:
        """A list of names, each once."""
        items = self._one(name, default, lambda value: isinstance(value, list | tuple), f"a list of names of {kind}s")
        return tuple(dict.fromkeys(item for item in items if self.is_name(name, kind, item)))

    def list_of(self, name: str) -> list[object]:
        """A list of anything, which the caller checks."""
        return self._one(name, [], lambda value: isinstance(value, list), "a list")

    def flag(self, name: str, default: bool) -> bool:
        """True or false."""
        return self._one(name, default, lambda value: isinstance(value, bool), "true or false")

    def word(self, name: str, default: Word) -> Word:
        """One of a closed list of words."""
        words = type(default)
        value = self._take(name, default)
        if isinstance(value, str) and value in words.__members__.values():
            return words(value)
        self.problem(name, "one of " + ", ".join(words), value)
        return default

    def whole(self, name: str, default: int, least: int, most: int) -> int:
        """A whole number; both bounds are included."""
        value = self._take(name, default)
        if isinstance(value, int) and not isinstance(value, bool) and least <= value <= most:
            return value
        self.problem(name, f"a whole number {least} to {most}", value)
        return default

    def limit(self, name: str, default: int = 0) -> int:
        """A number of messages or other things; 0, null and an empty text are none."""
        return self.whole(name, default, 0, SIZE_MAX) if self._take(name, default) not in (None, "") else 0

    def fraction(self, name: str, default: float) -> float:
        """A number from 0 to 1, both included."""
        rule = "a number from 0 to 1"
        return float(self._one(name, default, lambda value: type(value) in (int, float) and 0 <= value <= 1, rule))

    def size(self, name: str, default: int = 0, least: int = 0, most: int = SIZE_MAX) -> int:
        """A number of bytes."""
        return self._parsed(name, default, byte_size, least, most, "a number of bytes {} to {}")

    def swap_limit(self, name: str, default: int) -> int:
        """A number of bytes held in memory: 0 swaps everything, -1 nothing."""
        return -1 if self._take(name, default) in (-1, "-1") else self.size(name, default)

    def time_ms(self, name: str, default_ms: int = 0, least_ms: int = 0) -> int:
        """A time, in milliseconds."""
        return self._parsed(name, default_ms, milliseconds, least_ms, TIME_MS_MAX, "")

    def _one(self, name: str, default: T, is_right: Callable[[Any], bool], rule: str) -> T:
        value = self._take(name, default)
        if is_right(value):
            return cast("T", value)
        self.problem(name, rule, value)
        return default

    def _parsed(self, name: str, default: int, parse: Callable[[object], int], least: int, most: int, rule: str) -> int:
        value = self._take(name, None)
        if name not in self._values or value in (None, ""):
            return default
        try:
            parsed = parse(value)
        except ValueError as error:
            rule, parsed = str(error), least - 1
        if least <= parsed <= most:
            return parsed
        self.problem(name, rule.format(least, most) or f"a time of at least {seconds_document(least)} s", value)
        return default

    def matcher(self, name: str, default: Matcher) -> Matcher:
        """A matcher; none is the default."""
        try:
            value = self._take(name, None)
            return default if value is None else Matcher.of(value)
        except InvalidRequest as error:
            self.problem(name, str(error))
            return default

    def section(self, name: str) -> FieldReader:
        """The object at ``name``; an empty one where it is not given."""
        value = self._take(name, {})
        return FieldReader({} if value is None else value, self._place(name), self.problems)

    def sections(self, name: str, kind: str) -> dict[str, FieldReader]:
        """The objects at ``name`` by their own names, in the order given."""
        parent = self.section(name)
        return {
            key: parent.section(key) for key in parent._values if isinstance(key, str) and parent.is_name("", kind, key)
        }

    def entries(self) -> dict[str, object]:
        """Every value of this object; the caller checks names and values."""
        self._asked.update(str(key) for key in self._values)
        return {str(key): value for key, value in self._values.items()}

    def _take(self, name: str, default: object) -> object:
        self._asked.add(name)
        return self._values.get(name, default)

    def is_name(self, name: str, kind: str, value: object) -> TypeGuard[str]:
        """Whether the value at ``name`` is the name of a thing; otherwise that is a problem."""
        try:
            check_name(kind, value)
        except InvalidRequest as error:
            self.problem(name, str(error))
            return False
        return True

    def _place(self, name: str) -> str:
        return f"{self.path}.{name}" if self.path and name else self.path or name or "definition"
