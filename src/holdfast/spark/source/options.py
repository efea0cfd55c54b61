"""The options of the Spark source, parsed once and checked together.

Owns: the names, values and combinations that ``spark.read.format("holdfast")`` accepts, and the errors that list them.
Does not own: what the options do (``plan`` picks the objects, ``shapes`` the columns and rows).

Failure model: an option that is unknown, misspelled, malformed or without effect on the chosen shape or on a batch (a
stream) raises InvalidRequest before anything is read. Spark compares option names without regard to case; so does this.

No option carries a secret: query plans print options. A store's credentials come from the environment or the role of
the machine that reads.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from difflib import get_close_matches
from enum import StrEnum
from typing import Final, TypeVar
from urllib.parse import urlsplit

from holdfast.commit.format.batch import ItemKind
from holdfast.commit.format.transaction import VERSION_MAX
from holdfast.errors import Code, InvalidRequest
from holdfast.spark.source.shapes import OPERATION_KINDS, Shape, column_names, default_columns
from holdfast.values import is_log_id

__all__ = [
    "EARLIEST",
    "LATEST",
    "Admission",
    "Mode",
    "Position",
    "ReadOptions",
    "boolean",
    "iso_time",
    "parse_duration_ms",
    "parse_read_options",
    "partition_bytes",
    "recognised",
]

EARLIEST: Final = "earliest"
LATEST: Final = "latest"

PARTITION_BYTES_DEFAULT: Final = 64 * 2**20
"""A Python task costs some 40 ms of processor time before it reads anything: as much as reading 10 MiB."""
PARTITION_BYTES_MIN: Final = 2**20
PARTITION_BYTES_MAX: Final = 2**31
DELAY_MS_DEFAULT: Final = 15 * 60 * 1000
DURATION_MS_MAX: Final = 24 * 60 * 60 * 1000
_DURATION: Final = re.compile(r"(\d{1,9}(?:\.\d{1,3})?)(ms|s|m|h)")
_UNITS_MS: Final[Mapping[str, int]] = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}


class KeyEncoding(StrEnum):
    """How the text of a key option stands for bytes."""

    UTF8 = "utf8"
    HEX = "hex"
    BASE64 = "base64"


class Mode(StrEnum):
    """How the source is read."""

    BATCH = "batch"
    STREAM = "stream"


_E = TypeVar("_E", bound=StrEnum)

_EVERY_SHAPE: Final = frozenset(Shape)
_KEYED: Final = frozenset({Shape.OPERATIONS})
_ROWS: Final = frozenset({Shape.OPERATIONS, Shape.TRANSACTIONS})
_BOTH: Final = frozenset(Mode)
_BATCH: Final = frozenset({Mode.BATCH})
_STREAM: Final = frozenset({Mode.STREAM})

_APPLIES: Final[Mapping[str, tuple[frozenset[Shape], frozenset[Mode]]]] = {
    "url": (_EVERY_SHAPE, _BOTH),
    "shape": (_EVERY_SHAPE, _BOTH),
    "columns": (_EVERY_SHAPE, _BOTH),
    "startingVersion": (_EVERY_SHAPE, _BOTH),
    "startingTimestamp": (_EVERY_SHAPE, _BOTH),
    "startingOffsets": (_EVERY_SHAPE, _BOTH),
    "endingVersion": (_EVERY_SHAPE, _BATCH),
    "asOfVersion": (_EVERY_SHAPE, _BATCH),
    "failOnDataLoss": (_EVERY_SHAPE, _BOTH),
    "verify": (_ROWS, _BOTH),
    "targetPartitionBytes": (_EVERY_SHAPE, _BOTH),
    "pushdown": (_EVERY_SHAPE, _BATCH),
    "segments": (_KEYED, _BOTH),
    "kinds": (_KEYED, _BOTH),
    "keyPrefix": (_KEYED, _BOTH),
    "keyBegin": (_KEYED, _BOTH),
    "keyEnd": (_KEYED, _BOTH),
    "keyEncoding": (_KEYED, _BOTH),
    "maxObjectsPerTrigger": (_EVERY_SHAPE, _STREAM),
    "maxBytesPerTrigger": (_EVERY_SHAPE, _STREAM),
    "maxRowsPerTrigger": (_ROWS, _STREAM),
    "minRowsPerTrigger": (_ROWS, _STREAM),
    "maxTriggerDelay": (_ROWS, _STREAM),
    "pollInterval": (_EVERY_SHAPE, _STREAM),
}
"""Every option, and the shapes and the modes in which it has an effect."""


@dataclass(frozen=True, slots=True)
class Position:
    """A place between two objects of the log, and between two versions: what an offset says.

    Shape: everything at or below ``seq`` has been read, and so has every row at or below ``version``. -1 and 0 stand
    before the first of each. ``seq`` None: the place follows from the version alone. ``log_id`` None: the offset is
    from before offsets had one, and belongs to the log that is there.
    """

    seq: int | None
    version: int
    log_id: str | None = None


@dataclass(frozen=True, slots=True)
class Admission:
    """How much one micro-batch takes; None for no bound. Bounds are soft: an object is taken whole, and at least one.

    Units: ``rows`` are counted as the headers count them, by transaction. ``rows_min`` waits for that many, at most
    ``delay_ms_max`` after the last micro-batch.
    """

    objects_max: int | None = None
    bytes_max: int | None = None
    rows_max: int | None = None
    rows_min: int | None = None
    delay_ms_max: int = DELAY_MS_DEFAULT

    @property
    def is_limited(self) -> bool:
        """Whether a micro-batch may end before the log does."""
        return any(bound is not None for bound in (self.objects_max, self.bytes_max, self.rows_max))


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What a read is asked for.

    Shape: versions are inclusive; without ``starting_version``, ``starting_ms`` and ``starting_after`` reading begins
    at the oldest object still kept, and ``from_latest`` means the newest version of the log (a stream: what comes
    after it); ``ending_version`` None means the end of the log when the read is planned. Keys are raw
    bytes in ``[key_begin, key_end)``, a ``key_end`` of None means to the last key. ``kinds`` are the operations wanted.
    ``poll_ms`` None leaves the interval to the kind of store. ``segments_url`` is a table of segments to be preferred.
    """

    url: str
    shape: Shape
    columns: tuple[str, ...]
    starting_version: int | None = None
    starting_ms: int | None = None
    starting_after: Position | None = None
    from_latest: bool = False
    ending_version: int | None = None
    fail_on_data_loss: bool = True
    verify: bool = True
    pushdown: bool = False
    target_partition_bytes: int = PARTITION_BYTES_DEFAULT
    kinds: tuple[ItemKind, ...] = OPERATION_KINDS
    key_begin: bytes = b""
    key_end: bytes | None = None
    admission: Admission = Admission()
    poll_ms: int | None = None
    segments_url: str | None = None


def parse_read_options(given: Mapping[str, str], mode: Mode | None = None) -> ReadOptions:
    """The options of a read; without ``mode`` those of either are accepted, which is what naming columns needs.

    Raises: InvalidRequest naming the option, the reason and what is valid.

    >>> parse_read_options({"url": "file:///log", "STARTINGVERSION": "7"}).starting_version
    7
    """
    _refuse_other_sources(given)
    options = recognised(given, _APPLIES)
    shape = _choice("shape", options.get("shape", Shape.OPERATIONS), Shape)
    for name in options:
        shapes, modes = _APPLIES[name]
        if shape not in shapes:
            raise _invalid(name, f"has no effect on shape={shape}; it applies to {', '.join(sorted(shapes))}")
        if mode is not None and mode not in modes:
            raise _invalid(name, f"has no effect on a {mode} read; valid options: {', '.join(_valid(shape, mode))}")
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
        starting_ms=_timestamp(options),
        starting_after=_offsets(options),
        from_latest=from_latest,
        ending_version=ending,
        fail_on_data_loss=boolean(options, "failOnDataLoss", default=True),
        verify=boolean(options, "verify", default=True),
        pushdown=boolean(options, "pushdown", default=False),
        target_partition_bytes=partition_bytes(options),
        kinds=_kinds(options),
        key_begin=key_begin,
        key_end=key_end,
        admission=_admission(options),
        poll_ms=parse_duration_ms("pollInterval", options["pollInterval"]) if "pollInterval" in options else None,
        segments_url=_url(options, "segments") if "segments" in options else None,
    )


def _refuse_other_sources(given: Mapping[str, str]) -> None:
    names = {name.lower() for name in given}
    for name in ("queue", "store", "stores"):
        if name in names:
            raise _invalid(name, "has no effect without shape=messages")


def _valid(shape: Shape, mode: Mode) -> list[str]:
    return [name for name, (shapes, modes) in _APPLIES.items() if shape in shapes and mode in modes]


def _invalid(option: str, reason: str) -> InvalidRequest:
    return InvalidRequest(f"option {option} {reason}", code=Code.BAD_CONFIGURATION)


def recognised(given: Mapping[str, str], known_names: Iterable[str], path_means: str = "url") -> dict[str, str]:
    """The options by their own spelling. ``load(url)`` arrives as Spark's ``path``, another word for ``url``.

    Raises: InvalidRequest for an unknown one, with the nearest known and all of them.
    """
    names = list(known_names)
    spelling = {name.lower(): name for name in names} | {"path": path_means}
    options: dict[str, str] = {}
    for name, value in given.items():
        known = spelling.get(name.lower())
        if known is None:
            close = get_close_matches(name.lower(), spelling, n=1)
            meant = f"; did you mean {spelling[close[0]]}?" if close else ";"
            raise _invalid(name, f"is unknown{meant} valid options: {', '.join(names)}")
        if known in options and options[known] != value:
            raise _invalid(known, f"is given twice with different values (load(path) and {path_means} mean the same)")
        options[known] = value
    return options


def _url(options: Mapping[str, str], name: str = "url") -> str:
    url = options.get(name, "").strip()
    if not url:
        raise _invalid(name, f'is required, for example .option("{name}", "s3://bucket/log")')
    parts = urlsplit(url)
    if parts.password is not None:
        raise _invalid(name, "carries a password; credentials come from the environment, because plans print options")
    return url


def _choice(name: str, text: str, choices: type[_E]) -> _E:
    try:
        return choices(text.strip().lower())
    except ValueError:
        also = ", messages" if choices is Shape else ""
        raise _invalid(name, f"is {text!r}; valid: {', '.join(choices)}{also}") from None


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
    """The starting version, and whether to start at the newest; ``startingOffsets`` knows the same two words."""
    places = [name for name in ("startingVersion", "startingTimestamp", "startingOffsets") if name in options]
    if len(places) > 1:
        raise _invalid(places[0], f"and {places[1]} both say where to start; give one")
    if options.get("startingOffsets", "").strip().lower() == LATEST:
        return None, True
    text = options.get("startingVersion", EARLIEST).strip().lower()
    if text == EARLIEST:
        return None, False
    if text == LATEST:
        return None, True
    return _version("startingVersion", text, (EARLIEST, LATEST)), False


def _timestamp(options: Mapping[str, str]) -> int | None:
    """Milliseconds since the Unix epoch."""
    instant = iso_time(options, "startingTimestamp")
    return None if instant is None else int(instant.timestamp() * 1000)


def iso_time(options: Mapping[str, str], name: str) -> datetime | None:
    """The aware time that an option gives. One without a zone would mean something else on every machine.

    Raises: InvalidRequest.
    """
    if name not in options:
        return None
    try:
        instant = datetime.fromisoformat(options[name].strip())
    except ValueError:
        instant = None
    if instant is None or instant.tzinfo is None:
        raise _invalid(name, f"is {options[name]!r}; valid: an ISO time with its zone, such as 2026-01-31T12:00:00Z")
    return instant


def _offsets(options: Mapping[str, str]) -> Position | None:
    """An offset as a stream's progress prints it; ``version`` alone is enough, and ``seq`` alone too.

    With a ``log_id`` it is refused where another log is.
    """
    name = "startingOffsets"
    text = options.get(name, EARLIEST).strip()
    if text.lower() in (EARLIEST, LATEST):
        return None
    try:
        found: object = json.loads(text)
    except ValueError:
        found = None
    valid = f'valid: {EARLIEST}, {LATEST}, {{"version": 17}} or {{"seq": 4, "version": 17}}: read what comes after'
    if (
        not isinstance(found, dict)
        or not found
        or not {"seq", "version"} & set(found)
        or not set(found) <= {"seq", "version", "log_id"}
    ):
        raise _invalid(name, f"is {text!r}; {valid}")
    numbers: dict[str, object] = {str(key): value for key, value in found.items()}
    seq, version, log_id = numbers.get("seq"), numbers.get("version", 0), numbers.get("log_id")
    if not (log_id is None or (isinstance(log_id, str) and is_log_id(log_id))):
        raise _invalid(name, f"is {text!r}: log_id is not 32 hexadecimal digits")
    if not _is_count(version, VERSION_MAX) or not (seq is None or _is_count(seq, 2**63 - 1, lowest=-1)):
        raise _invalid(name, f"is {text!r}; {valid}")
    assert isinstance(version, int) and (seq is None or isinstance(seq, int)), "checked just above"
    return Position(seq, version, log_id)


def _is_count(value: object, highest: int, lowest: int = 0) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and lowest <= value <= highest


def _admission(options: Mapping[str, str]) -> Admission:
    if "maxTriggerDelay" in options and "minRowsPerTrigger" not in options:
        raise _invalid("maxTriggerDelay", "has no effect without minRowsPerTrigger")
    rows_max, rows_min = _count(options, "maxRowsPerTrigger"), _count(options, "minRowsPerTrigger")
    if rows_max is not None and rows_min is not None and rows_min > rows_max:
        raise _invalid("minRowsPerTrigger", f"is above maxRowsPerTrigger, {rows_min} > {rows_max}")
    delay = options.get("maxTriggerDelay")
    return Admission(
        objects_max=_count(options, "maxObjectsPerTrigger"),
        bytes_max=_count(options, "maxBytesPerTrigger"),
        rows_max=rows_max,
        rows_min=rows_min,
        delay_ms_max=DELAY_MS_DEFAULT if delay is None else parse_duration_ms("maxTriggerDelay", delay),
    )


def _count(options: Mapping[str, str], name: str) -> int | None:
    if name not in options:
        return None
    text = options[name].strip()
    if not (text.isascii() and text.isdigit() and 1 <= int(text) < 2**63):
        raise _invalid(name, f"is {text!r}; valid: a number, at least 1")
    return int(text)


def parse_duration_ms(name: str, text: str) -> int:
    """Milliseconds of ``200ms``, ``5s``, ``15m`` or ``2h``, at least one. Raises: InvalidRequest naming the option.

    >>> parse_duration_ms("pollInterval", "1.5s")
    1500
    """
    found = _DURATION.fullmatch(text.strip().lower())
    milliseconds = int(float(found[1]) * _UNITS_MS[found[2]]) if found else 0
    if not 1 <= milliseconds <= DURATION_MS_MAX:
        raise _invalid(name, f"is {text!r}; valid: a time such as 200ms, 5s, 15m, 2h, at most a day")
    return milliseconds


def _ending(options: Mapping[str, str]) -> int | None:
    if "asOfVersion" in options:
        if "endingVersion" in options:
            raise _invalid("asOfVersion", "and endingVersion both say where to stop; give one")
        return _version("asOfVersion", options["asOfVersion"], ())
    text = options.get("endingVersion", LATEST).strip().lower()
    return None if text == LATEST else _version("endingVersion", text, (LATEST,))


def boolean(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    """The value of a switch. Raises: InvalidRequest."""
    match options.get(name, str(default)).strip().lower():
        case "true":
            return True
        case "false":
            return False
        case other:
            raise _invalid(name, f"is {other!r}; valid: true, false")


def partition_bytes(options: Mapping[str, str]) -> int:
    """The value of ``targetPartitionBytes``. Raises: InvalidRequest."""
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
