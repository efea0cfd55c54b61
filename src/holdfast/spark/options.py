"""Every option of ``format("holdfast")``: one table for each kind of read or write.

An option that is unknown, malformed, missing or without effect raises InvalidRequest before anything is read or sent.
No option carries a secret, because query plans print options: credentials of a store come from the environment or the
machine's role, and a service's token from ``HOLDFAST_TOKEN``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, TypeAlias, cast

import pyarrow as pa

from holdfast.commit.format.batch import ItemKind
from holdfast.spark import option_values as parse
from holdfast.spark.columns import (
    COLUMNS,
    OPERATION_KINDS,
    QUEUE_COLUMNS,
    SERVED_STORE_COLUMNS,
    STORE_COLUMNS,
    RowShape,
    default_columns,
)
from holdfast.spark.option_values import (
    BATCH,
    STREAM,
    GivenOptions,
    KeyEncoding,
    Mode,
    Option,
    Table,
    TableFilter,
    declared,
    invalid,
    option,
)
from holdfast.spark.positions import EARLIEST, LATEST, Position, QueuePosition, StorePosition
from holdfast.spark.typed.decode import Encoding, Format, Unfit
from holdfast.spark.typed.infer import SAMPLE_MAX
from holdfast.spark.typed.rows import Typing, key_after

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
TOKEN_LENGTH_MAX: Final = 512
STORE_NAME_MAX: Final = 256
_APPLICATION: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_KEYED: Final = frozenset({RowShape.OPERATIONS})
_TRANSACTIONS: Final = frozenset({RowShape.TRANSACTIONS})
_ROWS: Final = _KEYED | _TRANSACTIONS
_PARTITION_BYTES: Final = parse.whole(PARTITION_BYTES_MIN, PARTITION_BYTES_MAX, "a number of bytes")
_AFTER: Final = "read what comes after"


@dataclass(frozen=True, slots=True)
class Admission:
    """How much one micro-batch takes; None for no bound. Bounds are soft: whole objects, and at least one.

    Units: ``rows`` are counted as the headers count them, by transaction. ``rows_min`` waits for that many, at most
    ``delay_ms_max`` after the last micro-batch.
    """

    objects_max: int | None = option("maxObjectsPerTrigger", parse.count, None, STREAM)
    bytes_max: int | None = option("maxBytesPerTrigger", parse.count, None, STREAM)
    rows_max: int | None = option("maxRowsPerTrigger", parse.count, None, STREAM, _ROWS)
    rows_min: int | None = option("minRowsPerTrigger", parse.count, None, STREAM, _ROWS)
    delay_ms_max: int = option("maxTriggerDelay", parse.duration_ms, DELAY_MS_DEFAULT, STREAM, _ROWS)

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
    ``typing`` says how keys and values become columns. ``infer`` is the number of values that give the type of all; the
    type in ``typing`` then counts only after ``source.reader.with_value_type``.
    """

    url: str = option("url", parse.url, "", required='for example .option("url", "s3://bucket/log")')
    shape: RowShape = option("shape", parse.one_of(RowShape, MESSAGES), RowShape.OPERATIONS)
    columns: tuple[str, ...] = option("columns", parse.columns_of(None), ())
    starting_version: int | None = None
    starting_ms: int | None = option("startingTimestamp", parse.time_ms, None)
    starting_after: Position | None = None
    from_latest: bool = False
    ending_version: int | None = None
    ending_ms: int | None = option("endingTimestamp", parse.time_ms, None, BATCH)
    ending_at: Position | None = None
    as_of_ms: int | None = option("timestampAsOf", parse.time_ms, None, BATCH)
    fail_on_data_loss: bool = option("failOnDataLoss", parse.boolean, default=True)
    verify: bool = option("verify", parse.boolean, default=True, shapes=_ROWS)
    pushdown: bool = option("pushdown", parse.boolean, default=False, modes=BATCH)
    target_partition_bytes: int = option("targetPartitionBytes", _PARTITION_BYTES, PARTITION_BYTES_DEFAULT)
    partitions_min: int | None = option("minPartitions", parse.whole(1, PARTITIONS_MAX), None)
    kinds: tuple[ItemKind, ...] = option("kinds", parse.kinds, OPERATION_KINDS, shapes=_KEYED)
    key_begin: bytes = b""
    key_end: bytes | None = None
    key_prefixes: tuple[bytes, ...] = ()
    request_ids: tuple[str, ...] | None = option("requestIds", parse.request_ids, None, shapes=_ROWS)
    admission: Admission = Admission()
    poll_ms: int | None = option("pollInterval", parse.duration_ms, None, STREAM)
    segments_url: str | None = option("segments", parse.url, None, shapes=_KEYED)
    typing: Typing = field(default_factory=Typing)
    infer: int | None = option("infer", parse.whole(1, SAMPLE_MAX), None, BATCH, _KEYED)

    @property
    def column_types(self) -> Mapping[str, pa.DataType]:
        """The types of all columns of this read."""
        if self.typing.is_plain:
            return COLUMNS[self.shape]
        typed = {"key": self.typing.key.column_type, "value": self.typing.value.column_type}
        return {**COLUMNS[self.shape], **typed}


_BY_VERSION: Final = parse.version()


@dataclass(frozen=True, slots=True)
class LogTexts:
    """The options of a read of a log that fill no field of ``ReadOptions`` alone."""

    starting_version: int | str = option("startingVersion", parse.version(EARLIEST, LATEST), EARLIEST)
    starting_offsets: Position | str = option(
        "startingOffsets", parse.offset(Position, _AFTER, EARLIEST, LATEST), EARLIEST
    )
    ending_version: int | str = option("endingVersion", parse.version(LATEST), LATEST, BATCH)
    as_of_version: int | str | None = option("asOfVersion", _BY_VERSION, None, BATCH)
    version_as_of: int | str | None = option("versionAsOf", _BY_VERSION, None, BATCH)
    ending_offsets: Position | str = option(
        "endingOffsets", parse.offset(Position, "read up to it", LATEST), LATEST, BATCH
    )
    key_prefix: str | None = option("keyPrefix", parse.as_given, None, shapes=_KEYED)
    key_begin: str | None = option("keyBegin", parse.as_given, None, shapes=_KEYED)
    key_end: str | None = option("keyEnd", parse.as_given, None, shapes=_KEYED)
    key_encoding: KeyEncoding | None = option("keyEncoding", parse.one_of(KeyEncoding), None, shapes=_KEYED)
    preconditions: bool = option("includePreconditions", parse.boolean, default=False, shapes=_TRANSACTIONS)
    key_format: Format | None = option("keyFormat", parse.one_of(Format), None, shapes=_KEYED)
    key_schema: pa.DataType | None = option("keySchema", parse.schema, None, shapes=_KEYED)
    value_format: Format | None = option("valueFormat", parse.one_of(Format), None, shapes=_KEYED)
    value_schema: pa.DataType | None = option("valueSchema", parse.schema, None, shapes=_KEYED)
    unfit: Unfit | None = option("unfit", parse.one_of(Unfit), None, shapes=_KEYED)


LOG_OPTIONS: Final = declared(ReadOptions, LogTexts, Admission)
ENDINGS: Final = (
    "endingVersion", "endingTimestamp", "endingOffsets", "asOfVersion", "versionAsOf", "timestampAsOf",
)  # fmt: skip
"""Options that say where a batch ends: at most one of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageBounds:
    """What reads of messages share.

    Shape: ``rows_max`` and, by the mean message, ``bytes_max`` bound a micro-batch of at least one message; None for no
    bound. ``poll_ms`` is the time between two looks that find nothing.
    """

    target_partition_bytes: int = option("targetPartitionBytes", _PARTITION_BYTES, PARTITION_BYTES_DEFAULT)
    fail_on_data_loss: bool = option("failOnDataLoss", parse.boolean, default=True)
    rows_max: int | None = option("maxRowsPerTrigger", parse.count, None, STREAM)
    bytes_max: int | None = option("maxBytesPerTrigger", parse.count, None, STREAM)
    poll_ms: int = option("pollInterval", parse.duration_ms, STORE_POLL_MS, STREAM)
    shape: str = option("shape", parse.as_given, MESSAGES)


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageOptions(MessageBounds):
    """The options of a read of a queue.

    Shape: ``queue`` is the path that a program gives to ``Queue``; one of ``after`` (the last message not wanted, or a
    word) and ``since`` (an aware time) says where to start.
    """

    queue: str = option(
        "queue", parse.path_text(), "",
        required='with shape=messages, for example .option("queue", "/data/orders"); of a message store: stores and '
        "store",
    )  # fmt: skip
    columns: tuple[str, ...] = option(
        "columns", parse.columns_of(QUEUE_COLUMNS, "shape=messages"), default_columns(QUEUE_COLUMNS)
    )
    after: QueuePosition | str = option(
        "startingOffsets", parse.offset(QueuePosition, _AFTER, EARLIEST, LATEST), EARLIEST
    )
    since: datetime | None = option("startingTimestamp", parse.time, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions(MessageBounds):
    """The options of a read of a message store.

    Shape: either ``directory``, the service's ``stores.directory``, or ``url``, the log that the store lives in; the
    other is empty. One of ``after`` (the last message not wanted, or a word) and ``since`` (an aware time) says where
    to start.
    """

    directory: str = option("stores", parse.path_text("; stores that live in a log are read with url=file:///path"), "")
    store: str = option(
        "store", parse.stripped, "", required='to read a message store, for example .option("store", "orders")'
    )
    url: str = option("url", parse.url, "")
    columns: tuple[str, ...] = option(
        "columns", parse.columns_of(STORE_COLUMNS, "a message store"), default_columns(STORE_COLUMNS)
    )
    after: StorePosition | str = option(
        "startingOffsets", parse.offset(StorePosition, _AFTER, EARLIEST, LATEST), EARLIEST
    )
    since: datetime | None = option("startingTimestamp", parse.time, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedStoreOptions(MessageBounds):
    """The options of a read of a message store over HTTP.

    Shape: ``url`` is the address of the service; ``durable`` keeps the messages that are read, and a stream's place;
    ``template`` and ``matcher`` are those of a durable that a stream makes. ``acknowledge`` False: the program that
    reads the stream acknowledges. ``retry_ms``: how long a request is tried while the service does not answer.
    """

    url: str = option("url", parse.service, "")
    store: str = option(
        "store", parse.stripped, "", required='to read a store of a service, for example .option("store", "orders")'
    )
    durable: str = option(
        "durable", parse.stripped, "", required='to read a store of a service, for example .option("durable", "lake")'
    )
    columns: tuple[str, ...] = option(
        "columns", parse.columns_of(SERVED_STORE_COLUMNS, "a store of a service"), default_columns(SERVED_STORE_COLUMNS)
    )
    template: str = option("template", parse.stripped, "standard", STREAM)
    matcher: Mapping[str, object] | None = option("matcher", parse.matcher, None, STREAM)
    fail_on_data_loss: bool = option("failOnDataLoss", parse.boolean, default=True, modes=STREAM)
    acknowledge: bool = option("acknowledge", parse.boolean, default=True, modes=STREAM)
    poll_ms: int = option("pollInterval", parse.duration_ms, SERVED_STORE_POLL_MS, STREAM)
    retry_ms: int = option("retryDuration", parse.duration_ms, SERVED_STORE_RETRY_MS)


QUEUE_OPTIONS: Final = declared(MessageOptions)
STORE_OPTIONS: Final = declared(StoreOptions)
SERVED_STORE_OPTIONS: Final = declared(ServedStoreOptions)


def _first_of_table(name: str, text: str) -> int | None:
    first = parse.version(EARLIEST, LATEST)(name, text)
    return None if first == LATEST else 0 if first == EARLIEST else cast("int", first)


@dataclass(frozen=True, slots=True)
class TableOptions:
    """The options of a read of a Delta table.

    Shape: ``table`` is its URL; ``columns`` None means all; a row is read if it passes all ``filters``, which are
    (column, operator, value) with a value of JSON. A batch reads the newest version, ``version_as_of``, or the
    version at the aware time ``timestamp_as_of``. ``starting_version`` is the first version that a stream returns: 0
    means the table as it is, then what later versions add; None means what comes after the newest version. A
    micro-batch of a stream takes at most ``files_max`` files of at most ``bytes_max`` bytes together, and at least one.
    """

    table: str = option("table", parse.url, "", required='for example .option("table", "s3://lake/latest")')
    columns: tuple[str, ...] | None = option("columns", parse.columns_of(None), None)
    filters: tuple[TableFilter, ...] = option("filters", parse.filters, ())
    version_as_of: int | None = option("versionAsOf", parse.whole(0), None, BATCH)
    timestamp_as_of: datetime | None = option("timestampAsOf", parse.time, None, BATCH)
    target_partition_bytes: int = option("targetPartitionBytes", _PARTITION_BYTES, PARTITION_BYTES_DEFAULT)
    starting_version: int | None = option("startingVersion", _first_of_table, 0, STREAM)
    skip_change_commits: bool = option("skipChangeCommits", parse.boolean, default=False, modes=STREAM)
    poll_ms: int = option("pollInterval", parse.duration_ms, TABLE_POLL_MS, STREAM)
    pushdown: bool = option("pushdown", parse.boolean, default=False, modes=BATCH)
    files_max: int | None = option("maxFilesPerTrigger", parse.count, None, STREAM)
    bytes_max: int | None = option("maxBytesPerTrigger", parse.count, None, STREAM)


TABLE_OPTIONS: Final = declared(TableOptions)


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """The options of a write.

    Shape: ``url`` is the service's address, not the log's. ``application`` names the writer permanently: its record is
    that of the job ``sink/{application}``. ``token`` names what is written; None for a batch that is new each time.
    ``transaction_key`` is the column whose equal values make one transaction; None: one transaction per row.
    ``supersede`` continues although the record shows other progress. ``store`` is the message store that the rows go
    to; None: the log. The ``application`` then ends with ``@`` and the store, so each store has its own record.
    ``staging_location`` is the object store that keeps the rows until all of them are fixed; None: the service does.
    ``direct``: tasks send their rows at once, so each try must have the same rows in the same order. ``checkpoint`` and
    ``query_name`` are Spark's own, which it passes on.
    """

    url: str = option("url", parse.service, "")
    application: str = option("application", parse.stripped, "")
    token: str | None = option("token", parse.as_given, None, BATCH)
    transaction_key: str | None = option("transactionKey", parse.as_given, None)
    supersede: bool = option("supersede", parse.boolean, default=False)
    store: str | None = option("store", parse.as_given, None)
    staging_location: str | None = option("stagingLocation", parse.url, None)
    direct: bool = option("direct", parse.boolean, default=False)
    checkpoint: str = option("checkpointLocation", parse.as_given, "", STREAM)
    query_name: str = option("queryName", parse.as_given, "", STREAM)


_WRITES: Final = declared(WriteOptions)
WRITE_OPTIONS: Final[Table] = {name: each for name, each in _WRITES.items() if name != "store"}
STORE_WRITE_OPTIONS: Final[Table] = {name: each for name, each in _WRITES.items() if name != "transactionKey"}


AnyReadOptions: TypeAlias = ReadOptions | MessageOptions | StoreOptions | ServedStoreOptions | TableOptions


def parse_any_read(given: Mapping[str, str], mode: Mode | None = None) -> AnyReadOptions:
    """The options of a read, of the kind that they name: a table, a log, or the shape ``messages``, which is a queue, a
    store, or a store of a service.

    >>> type(parse_any_read({"Shape": "messages", "queue": "/data/orders"})).__name__
    'MessageOptions'
    """
    texts = {name.lower(): text.strip() for name, text in given.items()}
    if "table" in texts:
        return parse_table_options(given, mode)
    if texts.get("shape", "").lower() != MESSAGES:
        return parse_read_options(given, mode)
    if any(parse.is_service(texts.get(name, "")) for name in ("url", "path")):
        return parse_served_store_options(given, mode)
    if "store" in texts or "stores" in texts or ("url" in texts and "queue" not in texts):
        return parse_store_options(given, mode)
    return parse_message_options(given, mode)


# -- the options of each kind; each raises InvalidRequest naming the option, the reason and the valid values ----------


def parse_read_options(given: Mapping[str, str], mode: Mode | None = None) -> ReadOptions:
    """The options of a read of a log; without ``mode`` those of both modes are accepted, to name the columns.

    >>> parse_read_options({"url": "file:///log", "STARTINGVERSION": "7"}).starting_version
    7
    """
    for name in ("queue", "store", "stores"):
        if name in {each.lower() for each in given}:
            raise invalid(name, "has no effect without shape=messages")
    options = GivenOptions(given, LOG_OPTIONS)
    shape = cast("RowShape", options[LOG_OPTIONS["shape"]])
    options.require_effect("read", mode, shape)
    options.require_one_of("where to start", "startingVersion", "startingTimestamp", "startingOffsets")
    options.require_one_of("where to stop", *ENDINGS)
    texts = options.made(LogTexts)
    starting, after, until = texts.starting_version, texts.starting_offsets, texts.ending_offsets
    endings = (texts.ending_version, texts.as_of_version, texts.version_as_of)
    ending = next((each for each in endings if isinstance(each, int)), None)
    if isinstance(starting, int) and ending is not None and starting > ending:
        raise invalid("startingVersion", f"is above the ending version, {starting} > {ending}")
    (key_begin, key_end), key_prefixes = _key_range(texts)
    columns = _columns(options, texts, shape)
    typing = _typing(options, texts, columns)
    read = options.made(
        ReadOptions,
        columns=columns,
        starting_version=starting if isinstance(starting, int) else None,
        starting_after=after if isinstance(after, Position) else None,
        from_latest=LATEST in (starting, after),
        ending_version=ending,
        ending_at=until if isinstance(until, Position) else None,
        key_begin=key_begin,
        key_end=key_end,
        key_prefixes=key_prefixes,
        admission=_admission(options),
        typing=typing,
    )
    last_ms = read.as_of_ms if read.ending_ms is None else read.ending_ms
    if read.starting_ms is not None and last_ms is not None and read.starting_ms > last_ms:
        ends = options.text("endingTimestamp") or options.text("timestampAsOf")
        raise invalid("startingTimestamp", f"is after the ending time, {options.text('startingTimestamp')} > {ends}")
    return read


def parse_table_options(given: Mapping[str, str], mode: Mode | None = None) -> TableOptions:
    """The options of a read of a Delta table.

    >>> parse_table_options({"table": "s3://lake/latest", "versionAsOf": "3"}).version_as_of
    3
    """
    options = GivenOptions(given, TABLE_OPTIONS, path_means="table")
    options.require_effect("read", mode)
    options.require_one_of("which version is read", "versionAsOf", "timestampAsOf")
    return options.made(TableOptions)


def parse_message_options(given: Mapping[str, str], mode: Mode | None = None) -> MessageOptions:
    """The options of a read of a queue.

    >>> parse_message_options({"shape": "messages", "queue": "/data/orders"}).columns
    ('seq', 'time', 'payload')
    """
    options = GivenOptions(given, QUEUE_OPTIONS, path_means="queue")
    options.require_effect("read", mode)
    options.require_one_of("where to start", "startingOffsets", "startingTimestamp")
    return options.made(MessageOptions)


def parse_store_options(given: Mapping[str, str], mode: Mode | None = None) -> StoreOptions:
    """The options of a read of a store.

    >>> parse_store_options({"shape": "messages", "stores": "/data/stores", "store": "orders"}).columns
    ('seq', 'time', 'key', 'fields', 'body')
    """
    is_url = any(name.lower() == "path" and "://" in value for name, value in given.items())
    options = GivenOptions(given, STORE_OPTIONS, path_means="url" if is_url else "stores")
    options.require_one_of("where the store is", "url", "stores")
    if not options.text("url") and not options.text("stores"):
        raise invalid(
            "stores",
            'is required to read a message store, for example .option("stores", "/data/stores"); of a store that lives '
            "in a log: url",
        )
    options.require_effect("read", mode)
    options.require_one_of("where to start", "startingOffsets", "startingTimestamp")
    is_remote = "url" in options and not options.text("url").lower().startswith("file:")
    remote = {"poll_ms": STORE_POLL_MS_REMOTE} if is_remote and "pollInterval" not in options else {}
    read = options.made(StoreOptions, **remote)
    if isinstance(read.after, StorePosition) and read.after.at is not None and not read.url:
        raise invalid("startingOffsets", "names a log, and option stores a directory")
    return read


def parse_served_store_options(given: Mapping[str, str], mode: Mode | None = None) -> ServedStoreOptions:
    """The options of a read over HTTP.

    >>> given = {"shape": "messages", "url": "http://127.0.0.1:8080", "store": "orders", "durable": "lake"}
    >>> parse_served_store_options(given).columns
    ('seq', 'time', 'key', 'fields', 'body')
    """
    options = GivenOptions(given, SERVED_STORE_OPTIONS)
    options.require_effect("read", mode)
    return options.made(ServedStoreOptions)


def parse_write_options(given: Mapping[str, str], mode: Mode) -> WriteOptions:
    """The options of a write.

    >>> parse_write_options({"url": "http://127.0.0.1:8080", "application": "orders"}, Mode.BATCH).application
    'orders'
    """
    is_into_store = any(name.lower() == "store" for name in given)
    options = GivenOptions(given, STORE_WRITE_OPTIONS if is_into_store else WRITE_OPTIONS)
    options.require_effect("write", mode)
    parse.service("url", options.text("url"))
    application = options.text("application")
    if not _APPLICATION.fullmatch(application):
        raise invalid(
            "application", "is required: 1 to 64 ASCII letters, digits, '.', '_' or '-' that name this writer"
        )
    write = options.made(WriteOptions)
    if write.token is not None and not (0 < len(write.token) <= TOKEN_LENGTH_MAX and write.token.isprintable()):
        raise invalid("token", f"has 1 to {TOKEN_LENGTH_MAX} printable characters and names what is written")
    if write.direct and write.staging_location is not None:
        raise invalid("stagingLocation", "has no effect with direct=true, which stages nothing")
    if write.store is None:
        return write
    if not 0 < len(write.store) <= STORE_NAME_MAX:
        raise invalid("store", f"names the message store that the rows go to, 1 to {STORE_NAME_MAX} characters")
    return options.made(WriteOptions, application=f"{application}@{write.store}")


# -- rules that need several options ----------------------------------------------------------------------------------


def _columns(options: GivenOptions, texts: LogTexts, shape: RowShape) -> tuple[str, ...]:
    """The columns of a read of a log: those that are named, or those of its shape."""
    if texts.preconditions and "columns" in options:
        raise invalid("includePreconditions", "and columns both choose columns; name preconditions in columns")
    default = (*default_columns(COLUMNS[shape]), *(("preconditions",) if texts.preconditions else ()))
    return options[Option("columns", parse.columns_of(COLUMNS[shape], f"shape={shape}"), default)]


def _typing(options: GivenOptions, texts: LogTexts, columns: Sequence[str]) -> Typing:
    value_schema = texts.value_schema
    if "infer" in options:
        if texts.value_format not in (Format.JSON, Format.MSGPACK):
            raise invalid("infer", "needs valueFormat json or msgpack")
        options.require_one_of("which fields values have", "valueSchema", "infer")
        value_schema = pa.struct([])  # until values have been looked at
    key = Encoding.of(texts.key_format or Format.BINARY, texts.key_schema, "key")
    value = Encoding.of(texts.value_format or Format.BINARY, value_schema, "value")
    for name in ("key", "value"):
        if f"{name}Format" in options and name not in columns:
            raise invalid(f"{name}Format", f"has no effect: option columns does not name {name}")
    typing = Typing(key, value, texts.unfit or Unfit.FAIL)
    if texts.unfit is not None and typing.is_plain:
        raise invalid("unfit", "has no effect without keyFormat or valueFormat")
    if texts.unfit is Unfit.QUARANTINE:
        raise invalid("unfit", "is quarantine, which only a pipeline has; valid: fail, null")
    return typing


def _admission(options: GivenOptions) -> Admission:
    if "maxTriggerDelay" in options and "minRowsPerTrigger" not in options:
        raise invalid("maxTriggerDelay", "has no effect without minRowsPerTrigger")
    admission = options.made(Admission)
    if admission.rows_max is not None and admission.rows_min is not None and admission.rows_min > admission.rows_max:
        raise invalid("minRowsPerTrigger", f"is above maxRowsPerTrigger, {admission.rows_min} > {admission.rows_max}")
    return admission


def _key_range(texts: LogTexts) -> tuple[tuple[bytes, bytes | None], tuple[bytes, ...]]:
    """The range of keys that has all wanted ones, and the prefixes if there are several."""
    prefix, bounds = texts.key_prefix, (texts.key_begin, texts.key_end)
    if texts.key_encoding is not None and prefix is None and bounds == (None, None):
        raise invalid("keyEncoding", "has no effect without keyPrefix, keyBegin or keyEnd")
    key = parse.key_of(texts.key_encoding or KeyEncoding.UTF8)
    if prefix is not None:
        if bounds != (None, None):
            raise invalid("keyPrefix", "cannot be combined with keyBegin or keyEnd")
        prefixes = tuple(sorted({key("keyPrefix", each) for each in parse.prefixes(prefix)}))
        ends = [key_after(each) for each in prefixes]
        last = None if None in ends else max(end for end in ends if end is not None)
        return (prefixes[0], last), prefixes if len(prefixes) > 1 else ()
    begin, end = (
        None if text is None else key(name, text) for name, text in zip(("keyBegin", "keyEnd"), bounds, strict=True)
    )
    if begin is not None and end is not None and begin >= end:
        raise invalid("keyBegin", "is not below keyEnd")
    return (begin or b"", end), ()
