"""Every option of ``format("holdfast")``: one table for each kind of read or write, and one parser.

An option that is unknown, malformed, missing or without effect raises InvalidRequest before anything is read or sent.
Option names ignore case, as in Spark. No option carries a secret, because query plans print options: credentials of a
store come from the environment or the machine's role, and a service's token from ``HOLDFAST_TOKEN``.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from difflib import get_close_matches
from enum import StrEnum
from typing import Final, TypeAlias, TypeVar, cast
from urllib.parse import urlsplit

import pyarrow as pa

from holdfast.commit.format.batch import ItemKind
from holdfast.errors import Code, InvalidRequest
from holdfast.given_twice import pairs_once
from holdfast.spark.columns import (
    COLUMNS,
    OPERATION_KINDS,
    QUEUE_COLUMNS,
    SERVED_STORE_COLUMNS,
    STORE_COLUMNS,
    Shape,
    default_columns,
)
from holdfast.spark.typed.ddl import parse_schema
from holdfast.spark.typed.decode import Encoding, Format, Unfit
from holdfast.spark.typed.infer import SAMPLE_MAX
from holdfast.spark.typed.rows import Typing, key_after
from holdfast.values import VERSION_MAX, is_log_id

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
MESSAGES: Final = "messages"

PARTITION_BYTES_DEFAULT: Final = 64 * 2**20
"""A Python task costs about 40 ms of processor time before it reads anything: as much as reading 10 MiB."""
PARTITION_BYTES_MIN: Final = 2**20
PARTITION_BYTES_MAX: Final = 2**31
PARTITIONS_MAX: Final = 100_000
DELAY_MS_DEFAULT: Final = 15 * 60 * 1000
STORE_POLL_MS: Final = 50
STORE_POLL_MS_REMOTE: Final = 200
SERVED_STORE_POLL_MS: Final = 100
SERVED_STORE_RETRY_MS: Final = 60_000
TABLE_POLL_MS: Final = 1000
DURATION_MS_MAX: Final = 24 * 60 * 60 * 1000
TOKEN_LENGTH_MAX: Final = 512
STORE_NAME_MAX: Final = 256
_DURATION: Final = re.compile(r"(\d{1,9}(?:\.\d{1,3})?)(ms|s|m|h)")
_UNITS_MS: Final[Mapping[str, int]] = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}
_APPLICATION: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")

LIKE_ENOUGH: Final = 0.65
"""How like a known name, of 1, an unknown one is for the question whether that was meant."""
T = TypeVar("T")
D = TypeVar("D")
E = TypeVar("E", bound=StrEnum)


class KeyEncoding(StrEnum):
    """How the text of a key option stands for bytes."""

    UTF8 = "utf8"
    HEX = "hex"
    BASE64 = "base64"


class Mode(StrEnum):
    """A batch or a stream."""

    BATCH = "batch"
    STREAM = "stream"


_EVERY_SHAPE: Final = frozenset(Shape)
_KEYED: Final = frozenset({Shape.OPERATIONS})
_ROWS: Final = frozenset({Shape.OPERATIONS, Shape.TRANSACTIONS})
_BOTH: Final = frozenset(Mode)
_BATCH: Final = frozenset({Mode.BATCH})
_STREAM: Final = frozenset({Mode.STREAM})

Table: TypeAlias = Mapping[str, tuple[frozenset[Shape], frozenset[Mode]]]
"""Option names, with the shapes and modes in which an option has an effect."""

ENDINGS: Final = (
    "endingVersion", "endingTimestamp", "endingOffsets", "asOfVersion", "versionAsOf", "timestampAsOf",
)  # fmt: skip
"""Options that say where a batch ends: at most one of them."""

LOG_OPTIONS: Final[Table] = {
    **dict.fromkeys(
        ("url", "shape", "columns", "startingVersion", "startingTimestamp", "startingOffsets"), (_EVERY_SHAPE, _BOTH)
    ),
    **dict.fromkeys(ENDINGS, (_EVERY_SHAPE, _BATCH)),
    "failOnDataLoss": (_EVERY_SHAPE, _BOTH),
    "verify": (_ROWS, _BOTH),
    "targetPartitionBytes": (_EVERY_SHAPE, _BOTH),
    "minPartitions": (_EVERY_SHAPE, _BOTH),
    "pushdown": (_EVERY_SHAPE, _BATCH),
    **dict.fromkeys(("segments", "kinds", "keyPrefix", "keyBegin", "keyEnd", "keyEncoding"), (_KEYED, _BOTH)),
    "requestIds": (_ROWS, _BOTH),
    "includePreconditions": (frozenset({Shape.TRANSACTIONS}), _BOTH),
    **dict.fromkeys(("maxObjectsPerTrigger", "maxBytesPerTrigger"), (_EVERY_SHAPE, _STREAM)),
    **dict.fromkeys(("maxRowsPerTrigger", "minRowsPerTrigger", "maxTriggerDelay"), (_ROWS, _STREAM)),
    "pollInterval": (_EVERY_SHAPE, _STREAM),
    **dict.fromkeys(
        ("keyFormat", "keySchema", "valueFormat", "valueSchema", "unfit", "includeSystem"), (_KEYED, _BOTH)
    ),
    "infer": (_KEYED, _BATCH),
}
_MESSAGE_OPTIONS: Final = (
    "shape", "columns", "startingOffsets", "startingTimestamp", "failOnDataLoss", "targetPartitionBytes",
)  # fmt: skip
QUEUE_OPTIONS: Final[Table] = {
    **dict.fromkeys(("queue", *_MESSAGE_OPTIONS), (_EVERY_SHAPE, _BOTH)),
    **dict.fromkeys(("maxRowsPerTrigger", "maxBytesPerTrigger", "pollInterval"), (_EVERY_SHAPE, _STREAM)),
}
STORE_OPTIONS: Final[Table] = {
    **dict.fromkeys(("stores", "store", "url", *_MESSAGE_OPTIONS), (_EVERY_SHAPE, _BOTH)),
    **dict.fromkeys(("maxRowsPerTrigger", "maxBytesPerTrigger", "pollInterval"), (_EVERY_SHAPE, _STREAM)),
}
SERVED_STORE_OPTIONS: Final[Table] = {
    **dict.fromkeys(("url", "store", "durable", "shape", "columns", "targetPartitionBytes"), (_EVERY_SHAPE, _BOTH)),
    **dict.fromkeys(
        (
            *("template", "matcher", "failOnDataLoss", "acknowledge"),
            *("maxRowsPerTrigger", "maxBytesPerTrigger", "pollInterval"),
        ),
        (_EVERY_SHAPE, _STREAM),
    ),
    "retryDuration": (_EVERY_SHAPE, _BOTH),
}
TABLE_OPTIONS: Final[Table] = {
    **dict.fromkeys(("table", "columns", "filters", "targetPartitionBytes"), (_EVERY_SHAPE, _BOTH)),
    **dict.fromkeys(("versionAsOf", "timestampAsOf", "pushdown"), (_EVERY_SHAPE, _BATCH)),
    **dict.fromkeys(
        ("startingVersion", "skipChangeCommits", "pollInterval", "maxFilesPerTrigger", "maxBytesPerTrigger"),
        (_EVERY_SHAPE, _STREAM),
    ),
}
WRITE_OPTIONS: Final[Table] = {
    "url": (_EVERY_SHAPE, _BOTH),
    "application": (_EVERY_SHAPE, _BOTH),
    "token": (_EVERY_SHAPE, _BATCH),
    "transactionKey": (_EVERY_SHAPE, _BOTH),
    "supersede": (_EVERY_SHAPE, _BOTH),
    "stagingLocation": (_EVERY_SHAPE, _BOTH),
    "direct": (_EVERY_SHAPE, _BOTH),
    **dict.fromkeys(("checkpointLocation", "queryName"), (_EVERY_SHAPE, _STREAM)),
}
STORE_WRITE_OPTIONS: Final[Table] = {
    "url": (_EVERY_SHAPE, _BOTH),
    "store": (_EVERY_SHAPE, _BOTH),
    **{name: modes for name, modes in WRITE_OPTIONS.items() if name not in ("url", "transactionKey")},
}


@dataclass(frozen=True, slots=True)
class Position:
    """A position between two objects of the log, and between two versions: the meaning of an offset.

    Shape: everything up to ``seq`` has been read, and every row up to ``version``. -1 and 0 are before the first of
    each. ``seq`` None: the position follows from the version alone. ``log_id`` None: an old offset without one, which
    belongs to the log at the URL.
    """

    seq: int | None
    version: int
    log_id: str | None = None


@dataclass(frozen=True, slots=True)
class Admission:
    """How much one micro-batch takes; None for no bound. Bounds are soft: whole objects, and at least one.

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
    """The options of a read of a log.

    Shape: versions are inclusive. Without ``starting_version``, ``starting_ms`` and ``starting_after`` the read begins
    at the oldest object; ``from_latest`` means the newest version of the log (a stream: what comes after it). At most
    one of ``ending_version``, ``ending_ms``, ``ending_at`` and ``as_of_ms`` says where it ends, all inclusive; without
    one it ends with the log at planning time. ``as_of_ms`` is refused where it is before the log. Keys are raw bytes in
    ``[key_begin, key_end)``; ``key_end`` None means to the last key. ``key_prefixes`` are several prefixes, of which a
    key has one; empty where one range of keys says it. ``kinds`` are the operations wanted;
    ``request_ids`` None means of any id, or of none. ``partitions_min`` None means one for each core, if each has
    enough to read. ``poll_ms`` None: by the kind of store. ``segments_url`` is a table of segments to prefer.
    ``typing`` says how keys and values become columns, and ``include_system`` whether the records that Holdfast keeps
    in the log are wanted. ``infer`` is the number of values that give the type of all; the type in ``typing`` then
    counts only after ``source.infer.with_value_type``.
    """

    url: str
    shape: Shape
    columns: tuple[str, ...]
    starting_version: int | None = None
    starting_ms: int | None = None
    starting_after: Position | None = None
    from_latest: bool = False
    ending_version: int | None = None
    ending_ms: int | None = None
    ending_at: Position | None = None
    as_of_ms: int | None = None
    fail_on_data_loss: bool = True
    verify: bool = True
    pushdown: bool = False
    target_partition_bytes: int = PARTITION_BYTES_DEFAULT
    partitions_min: int | None = None
    kinds: tuple[ItemKind, ...] = OPERATION_KINDS
    key_begin: bytes = b""
    key_end: bytes | None = None
    key_prefixes: tuple[bytes, ...] = ()
    request_ids: tuple[str, ...] | None = None
    admission: Admission = Admission()
    poll_ms: int | None = None
    segments_url: str | None = None
    typing: Typing = field(default_factory=Typing)
    include_system: bool = True
    infer: int | None = None

    @property
    def column_types(self) -> Mapping[str, pa.DataType]:
        """The types of all columns of this read."""
        if self.typing.is_plain:
            return COLUMNS[self.shape]
        typed = {"key": self.typing.key.column_type, "value": self.typing.value.column_type}
        return {**COLUMNS[self.shape], **typed}


@dataclass(frozen=True, slots=True)
class QueuePosition:
    """The last message of a queue that was read, 0 for none: the meaning of an offset.

    Shape: ``queue_id`` is 32 hexadecimal digits, ``time_ns`` when this message arrived. None: not known.
    """

    seq: int
    queue_id: str | None = None
    time_ns: int | None = None


@dataclass(frozen=True, slots=True)
class MessageOptions:
    """The options of a read of a queue.

    Shape: ``queue`` is the path that a program gives to ``Queue``; at most one of ``after`` (the last message not
    wanted), ``since`` (an aware time) and ``from_latest`` says where to start; ``rows_max`` and, by the mean message,
    ``bytes_max`` bound a micro-batch.
    """

    queue: str
    columns: tuple[str, ...]
    after: QueuePosition | None
    since: datetime | None
    from_latest: bool
    fail_on_data_loss: bool
    target_partition_bytes: int
    rows_max: int | None
    bytes_max: int | None
    poll_ms: int


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """The options of a read of a message store.

    Shape: either ``directory``, the service's ``stores.directory``, or ``url``, the log that the store lives in; the
    other is empty. At most one of ``after_seq`` (the last message not wanted), ``since`` (an aware time) and
    ``from_latest`` says where to start; ``starting_at`` is the state of the log that ``after_seq`` belongs to, None for
    any, ``store_id`` the store's id, 0 for any, ``store_history`` the history of its numbers, empty for any.
    ``rows_max`` and, by the mean message, ``bytes_max`` bound a micro-batch.
    """

    url: str
    directory: str
    store: str
    columns: tuple[str, ...]
    after_seq: int
    since: datetime | None
    from_latest: bool
    fail_on_data_loss: bool
    target_partition_bytes: int
    rows_max: int | None
    bytes_max: int | None
    poll_ms: int
    starting_at: Position | None = None
    store_id: int = 0
    store_history: str = ""


@dataclass(frozen=True, slots=True)
class ServedStoreOptions:
    """The options of a read of a message store over HTTP.

    Shape: ``url`` is the address of the service; ``durable`` keeps the messages that are read, and a stream's place;
    ``template`` and ``matcher`` are those of a durable that a stream makes; ``rows_max`` and, by the mean
    message, ``bytes_max`` bound a micro-batch. ``acknowledge`` False: the program that reads the stream acknowledges.
    ``retry_ms``: how long a request is tried while the service does not answer.
    """

    url: str
    store: str
    durable: str
    columns: tuple[str, ...]
    target_partition_bytes: int
    template: str
    matcher: Mapping[str, object] | None
    fail_on_data_loss: bool
    rows_max: int | None
    bytes_max: int | None
    poll_ms: int
    acknowledge: bool = True
    retry_ms: int = SERVED_STORE_RETRY_MS


TableFilter: TypeAlias = tuple[str, str, object]
TABLE_OPERATORS: Final = ("=", "<", "<=", ">", ">=", "in")


@dataclass(frozen=True, slots=True)
class TableOptions:
    """The options of a read of a Delta table.

    Shape: ``table`` is its URL; ``columns`` None means all; a row is read if it passes all ``filters``, which are
    (column, operator, value) with a value of JSON. A batch reads the newest version, ``version_as_of``, or the
    version at the aware time ``timestamp_as_of``. ``starting_version`` is the first version that a stream returns: 0
    means the table as it is, then what later versions add; None means what comes after the newest version. A
    micro-batch of a stream takes at most ``files_max`` files of at most ``bytes_max`` bytes together, and at least one.
    """

    table: str
    columns: tuple[str, ...] | None = None
    filters: tuple[TableFilter, ...] = ()
    version_as_of: int | None = None
    timestamp_as_of: datetime | None = None
    target_partition_bytes: int = PARTITION_BYTES_DEFAULT
    starting_version: int | None = 0
    skip_change_commits: bool = False
    poll_ms: int = TABLE_POLL_MS
    pushdown: bool = False
    files_max: int | None = None
    bytes_max: int | None = None


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """The options of a write.

    Shape: ``url`` is the service's address, not the log's. ``application`` names the writer permanently: its record is
    under the key ``spark/{application}``. ``token`` names what is written; None for a batch that is new each time.
    ``transaction_key`` is the column whose equal values make one transaction; None: one transaction per row.
    ``supersede`` continues although the record shows other progress. ``store`` is the message store that the rows go
    to; None: the log. The ``application`` then ends with ``@`` and the store, so each store has its own record.
    ``staging_location`` is the object store that keeps the rows until all of them are fixed; None: the service does.
    ``direct``: tasks send their rows at once, so each try must have the same rows in the same order.
    """

    url: str
    application: str
    token: str | None = None
    transaction_key: str | None = None
    supersede: bool = False
    store: str | None = None
    staging_location: str | None = None
    direct: bool = False


class _Given:
    """The given options by their own spelling. ``load(path)`` arrives as ``path``, which means ``path_means``.

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
                raise _invalid(name, f"is unknown{meant} valid options: {', '.join(table)}")
            if self._texts.get(known, value) != value:
                raise _invalid(
                    known, f"is given twice with different values (load(path) and {path_means} mean the same)"
                )
            self._texts[known] = value

    def __contains__(self, name: str) -> bool:
        return name in self._texts

    def value(self, name: str, parse: Callable[[str, str], T], default: D) -> T | D:
        """The parsed value of an option, ``default`` where it is not given. Raises: InvalidRequest."""
        return parse(name, self._texts[name]) if name in self._texts else default

    def text(self, name: str) -> str | None:
        return self._texts.get(name)

    def stripped(self, name: str) -> str:
        """The text of an option without spaces around it; empty where it is not given."""
        return self._texts.get(name, "").strip()

    def require_effect(self, what: str, mode: Mode | None, shape: Shape = Shape.OPERATIONS) -> None:
        """Raise InvalidRequest for an option without effect; ``what`` is a read or a write."""
        for name in self._texts:
            shapes, modes = self._table[name]
            if shape not in shapes:
                raise _invalid(name, f"has no effect on shape={shape}; it applies to {', '.join(sorted(shapes))}")
            if mode is not None and mode not in modes:
                valid = [each for each, (fits, when) in self._table.items() if shape in fits and mode in when]
                raise _invalid(name, f"has no effect on a {mode} {what}; valid options: {', '.join(valid)}")

    def require_one_of(self, what: str, *names: str) -> None:
        """Raise InvalidRequest when two of these options are given; ``what`` is what both say."""
        given = [name for name in names if name in self._texts]
        if len(given) > 1:
            raise _invalid(given[0], f"and {given[1]} both say {what}; give one")


def _invalid(option: str, reason: str) -> InvalidRequest:
    return InvalidRequest(f"option {option} {reason}", code=Code.BAD_CONFIGURATION)


# -- the four kinds of options ----------------------------------------------------------------------------------------


def parse_read_options(given: Mapping[str, str], mode: Mode | None = None) -> ReadOptions:
    """The options of a read of a log; without ``mode`` those of both modes are accepted, to name the columns.

    Raises: InvalidRequest naming the option, the reason and the valid values.

    >>> parse_read_options({"url": "file:///log", "STARTINGVERSION": "7"}).starting_version
    7
    """
    names = {name.lower() for name in given}
    for name in ("queue", "store", "stores"):
        if name in names:
            raise _invalid(name, "has no effect without shape=messages")
    options = _Given(given, LOG_OPTIONS)
    shape = options.value("shape", _one_of(Shape, MESSAGES), Shape.OPERATIONS)
    options.require_effect("read", mode, shape)
    options.require_one_of("where to start", "startingVersion", "startingTimestamp", "startingOffsets")
    options.require_one_of("where to stop", *ENDINGS)
    starting = options.value("startingVersion", _version(EARLIEST, LATEST), EARLIEST)
    after = options.value("startingOffsets", _position, EARLIEST)
    since = options.value("startingTimestamp", _time, None)
    ending = options.value("endingVersion", _version(LATEST), LATEST)
    for name in ("asOfVersion", "versionAsOf"):
        ending = options.value(name, _version(), ending)
    if isinstance(starting, int) and isinstance(ending, int) and starting > ending:
        raise _invalid("startingVersion", f"is above the ending version, {starting} > {ending}")
    until, as_of = options.value("endingTimestamp", _time, None), options.value("timestampAsOf", _time, None)
    last = until or as_of
    if since is not None and last is not None and since > last:
        raise _invalid("startingTimestamp", f"is after the ending time, {since} > {last}")
    ending_at = options.value("endingOffsets", _end_position, LATEST)
    (key_begin, key_end), key_prefixes = _key_range(options)
    columns = _columns(options, COLUMNS[shape], f"shape={shape}", _also(options))
    typing = _typing(options, columns)
    return ReadOptions(
        url=options.value("url", _url, None) or _url("url", ""),
        shape=shape,
        columns=columns,
        starting_version=starting if isinstance(starting, int) else None,
        starting_ms=_milliseconds(since),
        starting_after=after if isinstance(after, Position) else None,
        from_latest=LATEST in (starting, after),
        ending_version=ending if isinstance(ending, int) else None,
        ending_ms=_milliseconds(until),
        ending_at=ending_at if isinstance(ending_at, Position) else None,
        as_of_ms=_milliseconds(as_of),
        fail_on_data_loss=options.value("failOnDataLoss", _boolean, default=True),
        verify=options.value("verify", _boolean, default=True),
        pushdown=options.value("pushdown", _boolean, default=False),
        target_partition_bytes=options.value("targetPartitionBytes", _partition_bytes, PARTITION_BYTES_DEFAULT),
        partitions_min=options.value("minPartitions", _partitions, None),
        kinds=options.value("kinds", _kinds, OPERATION_KINDS),
        key_begin=key_begin,
        key_end=key_end,
        key_prefixes=key_prefixes,
        request_ids=options.value("requestIds", _request_ids, None),
        admission=_admission(options),
        poll_ms=options.value("pollInterval", parse_duration_ms, None),
        segments_url=options.value("segments", _url, None),
        typing=typing,
        include_system=options.value("includeSystem", _boolean, default=typing.is_plain),
        infer=options.value("infer", _sample, None),
    )


def is_read_of_messages(given: Mapping[str, str]) -> bool:
    """Whether these options name the shape ``messages``.

    >>> is_read_of_messages({"Shape": "messages", "queue": "/data/orders"})
    True
    """
    return any(name.lower() == "shape" and value.strip().lower() == MESSAGES for name, value in given.items())


def is_read_of_store(given: Mapping[str, str]) -> bool:
    """Whether these options are of a message store.

    >>> is_read_of_store({"shape": "messages", "Store": "orders"})
    True
    """
    names = {name.lower() for name in given}
    named = bool(names & {"store", "stores"}) or ("url" in names and "queue" not in names)
    return named and is_read_of_messages(given)


def is_read_of_served_store(given: Mapping[str, str]) -> bool:
    """Whether these options are of a message store behind a service's address.

    >>> is_read_of_served_store({"shape": "messages", "url": "http://127.0.0.1:8080", "store": "orders"})
    True
    """
    urls = [text for name, text in given.items() if name.lower() in ("url", "path")]
    return is_read_of_messages(given) and any(is_service(text) for text in urls)


def is_read_of_table(given: Mapping[str, str]) -> bool:
    """Whether these options are of a Delta table.

    >>> is_read_of_table({"Table": "s3://lake/latest"})
    True
    """
    return any(name.lower() == "table" for name in given)


def parse_table_options(given: Mapping[str, str], mode: Mode | None = None) -> TableOptions:
    """The options of a read of a Delta table. Raises: InvalidRequest naming the option, the reason and valid values.

    >>> parse_table_options({"table": "s3://lake/latest", "versionAsOf": "3"}).version_as_of
    3
    """
    options = _Given(given, TABLE_OPTIONS, path_means="table")
    options.require_effect("read", mode)
    if "versionAsOf" in options and "timestampAsOf" in options:
        raise _invalid("versionAsOf", "and timestampAsOf both name a version; give one")
    columns = options.value("columns", _names, None)
    if columns is not None and (not columns or len(set(columns)) != len(columns)):
        raise _invalid("columns", "names no column, or a column twice")
    starting = options.value("startingVersion", _version(EARLIEST, LATEST), EARLIEST)
    return TableOptions(
        options.value("table", _url, None) or _url("table", ""),
        columns,
        options.value("filters", _filters, ()),
        options.value("versionAsOf", _number, None),
        options.value("timestampAsOf", _time, None),
        options.value("targetPartitionBytes", _partition_bytes, PARTITION_BYTES_DEFAULT),
        None if starting == LATEST else 0 if starting == EARLIEST else int(starting),
        options.value("skipChangeCommits", _boolean, default=False),
        options.value("pollInterval", parse_duration_ms, TABLE_POLL_MS),
        options.value("pushdown", _boolean, default=False),
        options.value("maxFilesPerTrigger", _count, None),
        options.value("maxBytesPerTrigger", _count, None),
    )


def parse_message_options(given: Mapping[str, str], mode: Mode | None = None) -> MessageOptions:
    """The options of a read of a queue. Raises: InvalidRequest naming the option, the reason and the valid values.

    >>> parse_message_options({"shape": "messages", "queue": "/data/orders"}).columns
    ('seq', 'time', 'payload')
    """
    options = _Given(given, QUEUE_OPTIONS, path_means="queue")
    queue = options.stripped("queue")
    if not queue:
        raise _invalid(
            "queue",
            'is required with shape=messages, for example .option("queue", "/data/orders"); of a message store: stores '
            "and store",
        )
    _require_path(options, "queue")
    options.require_effect("read", mode)
    options.require_one_of("where to start", "startingOffsets", "startingTimestamp")
    after = options.value("startingOffsets", _queue_position, EARLIEST)
    return MessageOptions(
        queue,
        _columns(options, QUEUE_COLUMNS, "shape=messages"),
        after if isinstance(after, QueuePosition) else None,
        options.value("startingTimestamp", _time, None),
        after == LATEST,
        options.value("failOnDataLoss", _boolean, default=True),
        options.value("targetPartitionBytes", _partition_bytes, PARTITION_BYTES_DEFAULT),
        options.value("maxRowsPerTrigger", _count, None),
        options.value("maxBytesPerTrigger", _count, None),
        options.value("pollInterval", parse_duration_ms, STORE_POLL_MS),
    )


def _require_path(options: _Given, name: str, more: str = "") -> None:
    """Raise InvalidRequest for a URL where a path is meant."""
    text = options.stripped(name)
    if text.startswith("file:"):
        raise _invalid(name, f"is a path, not a URL: give {'/' + text.removeprefix('file:').lstrip('/')}{more}")


def parse_store_options(given: Mapping[str, str], mode: Mode | None = None) -> StoreOptions:
    """The options of a read of a store. Raises: InvalidRequest naming the option, the reason and the valid values.

    >>> parse_store_options({"shape": "messages", "stores": "/data/stores", "store": "orders"}).columns
    ('seq', 'time', 'key', 'fields', 'body')
    """
    is_url = any(name.lower() == "path" and "://" in value for name, value in given.items())
    options = _Given(given, STORE_OPTIONS, path_means="url" if is_url else "stores")
    options.require_one_of("where the store is", "url", "stores")
    in_log = "url" in options
    if not in_log and not options.stripped("stores"):
        raise _invalid(
            "stores",
            'is required to read a message store, for example .option("stores", "/data/stores"); of a store that lives '
            "in a log: url",
        )
    if not options.stripped("store"):
        raise _invalid("store", 'is required to read a message store, for example .option("store", "orders")')
    _require_path(options, "stores", "; stores that live in a log are read with url=file:///path")
    options.require_effect("read", mode)
    options.require_one_of("where to start", "startingOffsets", "startingTimestamp")
    after, at, store_id, history = options.value("startingOffsets", _after_seq_or_latest, (0, None, 0, ""))
    if at is not None and not in_log:
        raise _invalid("startingOffsets", "names a log, and option stores a directory")
    url = options.value("url", _url, "")
    return StoreOptions(
        url,
        options.stripped("stores"),
        options.stripped("store"),
        _columns(options, STORE_COLUMNS, "a message store"),
        after or 0,
        options.value("startingTimestamp", _time, None),
        after is None,
        options.value("failOnDataLoss", _boolean, default=True),
        options.value("targetPartitionBytes", _partition_bytes, PARTITION_BYTES_DEFAULT),
        options.value("maxRowsPerTrigger", _count, None),
        options.value("maxBytesPerTrigger", _count, None),
        options.value(
            "pollInterval",
            parse_duration_ms,
            STORE_POLL_MS_REMOTE if in_log and not url.lower().startswith("file:") else STORE_POLL_MS,
        ),
        at,
        store_id,
        history,
    )


def parse_served_store_options(given: Mapping[str, str], mode: Mode | None = None) -> ServedStoreOptions:
    """The options of a read over HTTP. Raises: InvalidRequest naming the option, the reason and the valid values.

    >>> given = {"shape": "messages", "url": "http://127.0.0.1:8080", "store": "orders", "durable": "lake"}
    >>> parse_served_store_options(given).columns
    ('seq', 'time', 'key', 'fields', 'body')
    """
    options = _Given(given, SERVED_STORE_OPTIONS)
    for name, example in (("store", "orders"), ("durable", "lake")):
        if not options.stripped(name):
            raise _invalid(
                name, f'is required to read a store of a service, for example .option("{name}", "{example}")'
            )
    options.require_effect("read", mode)
    return ServedStoreOptions(
        options.value("url", _service, ""),
        options.stripped("store"),
        options.stripped("durable"),
        _columns(options, SERVED_STORE_COLUMNS, "a store of a service"),
        options.value("targetPartitionBytes", _partition_bytes, PARTITION_BYTES_DEFAULT),
        options.stripped("template") or "standard",
        options.value("matcher", _object, None),
        options.value("failOnDataLoss", _boolean, default=True),
        options.value("maxRowsPerTrigger", _count, None),
        options.value("maxBytesPerTrigger", _count, None),
        options.value("pollInterval", parse_duration_ms, SERVED_STORE_POLL_MS),
        options.value("acknowledge", _boolean, default=True),
        options.value("retryDuration", parse_duration_ms, SERVED_STORE_RETRY_MS),
    )


def parse_write_options(given: Mapping[str, str], mode: Mode) -> WriteOptions:
    """The options of a write. Raises: InvalidRequest naming the option, the reason and the valid values.

    >>> parse_write_options({"url": "http://127.0.0.1:8080", "application": "orders"}, Mode.BATCH).application
    'orders'
    """
    is_into_store = any(name.lower() == "store" for name in given)
    options = _Given(given, STORE_WRITE_OPTIONS if is_into_store else WRITE_OPTIONS)
    options.require_effect("write", mode)
    url = _service("url", options.text("url") or "")
    application = options.stripped("application")
    if not _APPLICATION.fullmatch(application):
        raise _invalid(
            "application", "is required: 1 to 64 ASCII letters, digits, '.', '_' or '-' that name this writer"
        )
    token = options.text("token")
    if token is not None and not (0 < len(token) <= TOKEN_LENGTH_MAX and token.isprintable()):
        raise _invalid("token", f"has 1 to {TOKEN_LENGTH_MAX} printable characters and names what is written")
    supersede = options.value("supersede", _boolean, default=False)
    staging = options.value("stagingLocation", _url, default=None)
    direct = options.value("direct", _boolean, default=False)
    if direct and staging is not None:
        raise _invalid("stagingLocation", "has no effect with direct=true, which stages nothing")
    if not is_into_store:
        key = options.text("transactionKey")
        return WriteOptions(url, application, token, key, supersede, None, staging, direct)
    store = options.text("store") or ""
    if not 0 < len(store) <= STORE_NAME_MAX:
        raise _invalid("store", f"names the message store that the rows go to, 1 to {STORE_NAME_MAX} characters")
    return WriteOptions(url, f"{application}@{store}", token, None, supersede, store, staging, direct)


# -- rules that need several options ----------------------------------------------------------------------------------


def _also(options: _Given) -> tuple[str, ...]:
    """Columns that an option other than ``columns`` adds."""
    if not options.value("includePreconditions", _boolean, default=False):
        return ()
    if "columns" in options:
        raise _invalid("includePreconditions", "and columns both choose columns; name preconditions in columns")
    return ("preconditions",)


def _milliseconds(time: datetime | None) -> int | None:
    return None if time is None else math.floor(time.timestamp() * 1000)


def _columns(
    options: _Given, types: Mapping[str, pa.DataType], owner: str, also: tuple[str, ...] = ()
) -> tuple[str, ...]:
    wanted = options.value("columns", _names, (*default_columns(types), *also))
    unknown = [name for name in wanted if name not in types]
    if unknown or not wanted:
        what = f"names unknown columns {', '.join(unknown)}" if unknown else "names no column"
        raise _invalid("columns", f"{what}; {owner} has {', '.join(types)}")
    if len(set(wanted)) != len(wanted):
        raise _invalid("columns", "names a column twice")
    return wanted


def _typing(options: _Given, columns: Sequence[str]) -> Typing:
    formats = {name: options.value(f"{name}Format", _one_of(Format), Format.BINARY) for name in ("key", "value")}
    schemas = {
        name: options.value(f"{name}Schema", lambda _name, text: parse_schema(text), None) for name in ("key", "value")
    }
    if "infer" in options:
        if formats["value"] not in (Format.JSON, Format.MSGPACK):
            raise _invalid("infer", "needs valueFormat json or msgpack")
        options.require_one_of("which fields values have", "valueSchema", "infer")
        schemas["value"] = pa.struct([])  # until values have been looked at
    encodings = {name: Encoding.of(formats[name], schemas[name], name) for name in formats}
    typing = Typing(encodings["key"], encodings["value"], options.value("unfit", _one_of(Unfit), Unfit.FAIL))
    for name in ("key", "value"):
        if f"{name}Format" in options and name not in columns:
            raise _invalid(f"{name}Format", f"has no effect: option columns does not name {name}")
    if "unfit" in options and typing.is_plain:
        raise _invalid("unfit", "has no effect without keyFormat or valueFormat")
    if typing.unfit is Unfit.QUARANTINE:
        raise _invalid("unfit", "is quarantine, which only a pipeline has; valid: fail, null")
    return typing


def _admission(options: _Given) -> Admission:
    if "maxTriggerDelay" in options and "minRowsPerTrigger" not in options:
        raise _invalid("maxTriggerDelay", "has no effect without minRowsPerTrigger")
    rows_max = options.value("maxRowsPerTrigger", _count, None)
    rows_min = options.value("minRowsPerTrigger", _count, None)
    if rows_max is not None and rows_min is not None and rows_min > rows_max:
        raise _invalid("minRowsPerTrigger", f"is above maxRowsPerTrigger, {rows_min} > {rows_max}")
    return Admission(
        objects_max=options.value("maxObjectsPerTrigger", _count, None),
        bytes_max=options.value("maxBytesPerTrigger", _count, None),
        rows_max=rows_max,
        rows_min=rows_min,
        delay_ms_max=options.value("maxTriggerDelay", parse_duration_ms, DELAY_MS_DEFAULT),
    )


def _key_range(options: _Given) -> tuple[tuple[bytes, bytes | None], tuple[bytes, ...]]:
    """The range of keys that has all wanted ones, and the prefixes if there are several."""
    encoding = options.value("keyEncoding", _one_of(KeyEncoding), KeyEncoding.UTF8)
    given = [name for name in ("keyPrefix", "keyBegin", "keyEnd") if name in options]
    if "keyEncoding" in options and not given:
        raise _invalid("keyEncoding", "has no effect without keyPrefix, keyBegin or keyEnd")

    def key(name: str, text: str) -> bytes:
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

    def keys(name: str, text: str) -> tuple[bytes, ...]:
        return tuple(sorted({key(name, each) for each in _prefixes(text)}))

    prefixes = options.value("keyPrefix", keys, None)
    if prefixes is not None:
        if len(given) > 1:
            raise _invalid("keyPrefix", "cannot be combined with keyBegin or keyEnd")
        ends = [key_after(prefix) for prefix in prefixes]
        last = None if None in ends else max(end for end in ends if end is not None)
        return (prefixes[0], last), prefixes if len(prefixes) > 1 else ()
    begin, end = options.value("keyBegin", key, b""), options.value("keyEnd", key, None)
    if end is not None and begin >= end:
        raise _invalid("keyBegin", "is not below keyEnd")
    return (begin, end), ()


def _prefixes(text: str) -> list[str]:
    """One prefix, or a JSON array of them."""
    try:
        several = json.loads(text, object_pairs_hook=pairs_once) if text.lstrip().startswith("[") else None
    except ValueError:
        several = None
    if isinstance(several, list) and several and all(isinstance(each, str) for each in several):
        return several
    return [text]


# -- the rule of one option: (name, text) to its value; each raises InvalidRequest ------------------------------------


def _names(_name: str, text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _request_ids(name: str, text: str) -> tuple[str, ...]:
    """Names with commas, or a JSON array of texts, for ids with commas and spaces of their own."""
    text = text.strip()
    if not text.startswith("["):
        wanted: object = list(_names(name, text))
    else:
        try:
            wanted = json.loads(text, object_pairs_hook=pairs_once)
        except ValueError:
            wanted = None
    if not isinstance(wanted, list) or not wanted or not all(isinstance(each, str) and each for each in wanted):
        raise _invalid(name, f"is {text!r}; valid: ids with commas, or a JSON array of them")
    return tuple(dict.fromkeys(wanted))


def _url(name: str, text: str) -> str:
    url = text.strip()
    if not url:
        raise _invalid(name, f'is required, for example .option("{name}", "s3://bucket/log")')
    if urlsplit(url).password is not None:
        raise _invalid(name, "carries a password; credentials come from the environment, because plans print options")
    return url


def is_service(text: str) -> bool:
    """Whether a URL is the address of a service; else it is one of a log."""
    return text.strip().startswith(("http://", "https://", "unix:"))


def _service(name: str, text: str) -> str:
    url = text.strip()
    if not is_service(url):
        raise _invalid(name, "is the address of a service, for example http://127.0.0.1:8080 or unix:/run/holdfast")
    if "@" in url.partition("//")[2].partition("/")[0]:
        raise _invalid(name, "carries credentials; the token comes from HOLDFAST_TOKEN, because plans print options")
    return url


def _object(name: str, text: str) -> dict[str, object]:
    fields = _json(text)
    if not fields:
        raise _invalid(name, f'is {text!r}; valid: a matcher as a JSON object, such as {{"kind": "drink"}}')
    return fields


def _one_of(choices: type[E], *also: str) -> Callable[[str, str], E]:
    def parse(name: str, text: str) -> E:
        try:
            return choices(text.strip().lower())
        except ValueError:
            raise _invalid(name, f"is {text!r}; valid: {', '.join([*choices, *also])}") from None

    return parse


def _version(*words: str) -> Callable[[str, str], int | str]:
    def parse(name: str, text: str) -> int | str:
        digits = text.strip().lower()
        if digits in words:
            return digits
        if not (digits.isascii() and digits.isdigit() and int(digits) <= VERSION_MAX):
            raise _invalid(name, f"is {text!r}; valid: {', '.join([*words, 'a version number'])}")
        return int(digits)

    return parse


def _time(name: str, text: str) -> datetime:
    """An aware time. One without a zone would mean something else on every machine."""
    try:
        instant = datetime.fromisoformat(text.strip())
    except ValueError:
        instant = None
    if instant is None or instant.tzinfo is None:
        raise _invalid(name, f"is {text!r}; valid: an ISO time with its zone, such as 2026-01-31T12:00:00Z")
    return instant


def _json(text: str) -> dict[str, object]:
    """The object that a text holds; empty where it holds none, or one that has a name twice."""
    try:
        value: object = json.loads(text, object_pairs_hook=pairs_once)
    except (ValueError, RecursionError):
        return {}
    return {str(key): each for key, each in value.items()} if isinstance(value, dict) else {}


def _position(name: str, text: str) -> Position | str:
    """An offset as a stream's progress prints it; ``version`` or ``seq`` alone is enough. Or one of the two words.

    With a ``log_id`` an offset of another log is refused.
    """
    text = text.strip()
    if text.lower() in (EARLIEST, LATEST):
        return text.lower()
    fields = _json(text)
    valid = f'valid: {EARLIEST}, {LATEST}, {{"version": 17}} or {{"seq": 4, "version": 17}}: read what comes after'
    fields.pop("lag", None)  # of the newest offset that a stream's progress prints
    if not fields.keys() & {"seq", "version"} or not fields.keys() <= {"seq", "version", "log_id"}:
        raise _invalid(name, f"is {text!r}; {valid}")
    seq, version, log_id = fields.get("seq"), fields.get("version", 0), fields.get("log_id")
    if not (log_id is None or (isinstance(log_id, str) and is_log_id(log_id))):
        raise _invalid(name, f"is {text!r}: log_id is not 32 hexadecimal digits")
    if not _is_count(version, VERSION_MAX) or not (seq is None or _is_count(seq, 2**63 - 1, lowest=-1)):
        raise _invalid(name, f"is {text!r}; {valid}")
    assert isinstance(version, int) and (seq is None or isinstance(seq, int)), "checked just above"
    return Position(seq, version, log_id)


def _end_position(name: str, text: str) -> Position | str:
    position = _position(name, text)
    if position == EARLIEST:
        raise _invalid(name, f'is {text.strip()!r}; valid: {LATEST}, {{"version": 17}} or {{"seq": 4, "version": 17}}')
    return position


def _partitions(name: str, text: str) -> int:
    count = _count(name, text)
    if count > PARTITIONS_MAX:
        raise _invalid(name, f"is {count}; valid: a number, 1 to {PARTITIONS_MAX}")
    return count


def _is_count(value: object, highest: int, lowest: int = 0) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and lowest <= value <= highest


def _after_seq(name: str, text: str) -> int:
    text = text.strip()
    if text.lower() == EARLIEST:
        return 0
    fields = _json(text)
    seq = fields.get("seq")
    if fields.keys() != {"seq"} or not _is_count(seq, 2**63 - 1):
        raise _invalid(name, f'is {text!r}; valid: {EARLIEST}, {{"seq": 17}}: read what comes after')
    assert isinstance(seq, int), "checked just above"
    return seq


def _queue_position(name: str, text: str) -> QueuePosition | str:
    """A word, or an offset as a stream's progress prints it; ``seq`` alone is enough."""
    text = text.strip()
    if text.lower() in (EARLIEST, LATEST):
        return text.lower()
    fields = _json(text)
    seq, queue_id, time_ns = fields.get("seq"), fields.get("queue"), fields.get("time_ns")
    is_named = queue_id is None or (isinstance(queue_id, str) and is_log_id(queue_id))
    is_timed = time_ns is None or _is_count(time_ns, 2**63 - 1)
    if not (_is_count(seq, 2**63 - 1) and is_named and is_timed and fields.keys() <= {"seq", "queue", "time_ns"}):
        raise _invalid(name, f'is {text!r}; valid: {EARLIEST}, {LATEST}, {{"seq": 17}}: read what comes after')
    assert isinstance(seq, int), "checked just above"
    return QueuePosition(seq, cast("str | None", queue_id), cast("int | None", time_ns))


def _after_seq_or_latest(name: str, text: str) -> tuple[int | None, Position | None, int, str]:
    """The same, None for the newest message, the state of the log that it belongs to, if it names one, the id of the
    store, 0 without one, and the history of its numbers, empty without one.

    A stream's progress also has a ``backlog``, which other reads ignore.
    """
    if text.strip().lower() == LATEST:
        return None, None, 0, ""
    fields = _json(text)
    version, log_id = fields.get("version"), fields.get("log_id")
    at = None
    if _is_count(version, VERSION_MAX) and isinstance(version, int) and isinstance(log_id, str) and is_log_id(log_id):
        at = Position(None, version, log_id)
        del fields["version"], fields["log_id"]
    store_id = fields.get("store_id")
    is_of_store = _is_count(store_id, 2**40 - 1, lowest=1) and isinstance(store_id, int)
    if is_of_store:
        del fields["store_id"]
    history = fields.pop("history") if is_of_store and isinstance(fields.get("history"), str) else ""
    if "backlog" in fields or at is not None or is_of_store:
        fields.pop("backlog", None)
        text = json.dumps(fields)
    named = store_id if isinstance(store_id, int) and is_of_store else 0
    return _after_seq(name, text), at, named, history if isinstance(history, str) else ""


def _filters(name: str, text: str) -> tuple[TableFilter, ...]:
    try:
        given = json.loads(text, object_pairs_hook=pairs_once)
    except ValueError:
        given = None
    valid = f'valid: [["version", ">=", 7], ...] with the operators {" ".join(TABLE_OPERATORS)}'
    if not isinstance(given, list) or not given:
        raise _invalid(name, f"is {text!r}; {valid}")
    for each in given:
        if not (isinstance(each, list) and len(each) == 3 and isinstance(each[0], str)):
            raise _invalid(name, f"has {json.dumps(each)}, which is not [column, operator, value]; {valid}")
        if each[1] not in TABLE_OPERATORS:
            raise _invalid(name, f"has {json.dumps(each)}, whose operator {each[1]!r} is unknown; {valid}")
    return tuple((column, operator, value) for column, operator, value in given)


def _number(name: str, text: str) -> int:
    digits = text.strip()
    if not (digits.isascii() and digits.isdigit() and int(digits) < 2**63):
        raise _invalid(name, f"is {digits!r}; valid: a number, at least 0")
    return int(digits)


def _count(name: str, text: str) -> int:
    digits = text.strip()
    if not (digits.isascii() and digits.isdigit() and 1 <= int(digits) < 2**63):
        raise _invalid(name, f"is {digits!r}; valid: a number, at least 1")
    return int(digits)


def _sample(name: str, text: str) -> int:
    count = _count(name, text)
    if count > SAMPLE_MAX:
        raise _invalid(name, f"is {count}; valid: 1 to {SAMPLE_MAX} values")
    return count


def parse_duration_ms(name: str, text: str) -> int:
    """Milliseconds of ``200ms``, ``5s``, ``15m`` or ``2h``, at least one. Raises: InvalidRequest naming the option.

    >>> parse_duration_ms("pollInterval", "1.5s")
    1500
    """
    parts = _DURATION.fullmatch(text.strip().lower())
    milliseconds = int(float(parts[1]) * _UNITS_MS[parts[2]]) if parts else 0
    if not 1 <= milliseconds <= DURATION_MS_MAX:
        raise _invalid(name, f"is {text!r}; valid: a time such as 200ms, 5s, 15m, 2h, at most a day")
    return milliseconds


def _boolean(name: str, text: str) -> bool:
    word = text.strip().lower()
    if word not in ("true", "false"):
        raise _invalid(name, f"is {word!r}; valid: true, false")
    return word == "true"


def _partition_bytes(name: str, text: str) -> int:
    digits = text.strip()
    if not (digits.isascii() and digits.isdigit() and PARTITION_BYTES_MIN <= int(digits) <= PARTITION_BYTES_MAX):
        raise _invalid(name, f"is {digits!r}; valid: a number of bytes, {PARTITION_BYTES_MIN} to {PARTITION_BYTES_MAX}")
    return int(digits)


def _kinds(name: str, text: str) -> tuple[ItemKind, ...]:
    by_name = {kind.name.lower(): kind for kind in OPERATION_KINDS}
    wanted = _names(name, text.lower())
    if not wanted or any(each not in by_name for each in wanted):
        raise _invalid(name, f"is {text!r}; valid: any of {', '.join(by_name)}")
    return tuple(kind for each, kind in by_name.items() if each in wanted)
