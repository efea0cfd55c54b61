"""The options of a read of a message store: ``shape=messages`` with the stores' directory and a store's name.

Owns: the names and values that such a read takes. Does not own: those of a queue (``queue_options``) and of a log
(``options``), what they do (``store_reading``).

Failure model: what is unknown, malformed or without effect raises InvalidRequest before anything is read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from holdfast.errors import Code, InvalidRequest
from holdfast.spark.messages.queue_options import MESSAGES
from holdfast.spark.source.options import (
    EARLIEST,
    LATEST,
    Mode,
    boolean,
    iso_time,
    parse_duration_ms,
    partition_bytes,
    recognised,
)

__all__ = ["STORE_COLUMNS", "StoreOptions", "is_read_of_store", "parse_store_options"]

STORE_COLUMNS: Final = ("seq", "time", "key", "fields", "body", "publisher_seq", "ttl_ms", "deliver_at")
_ON_REQUEST: Final = frozenset({"publisher_seq", "ttl_ms", "deliver_at"})
_STREAM: Final = frozenset({"maxRowsPerTrigger", "pollInterval"})
_NAMES: Final = (
    "stores",
    "store",
    "shape",
    "columns",
    "startingOffsets",
    "startingTimestamp",
    "failOnDataLoss",
    "targetPartitionBytes",
    "maxRowsPerTrigger",
    "pollInterval",
)
POLL_MS: Final = 50


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """What a read of a store is asked for.

    Shape: ``directory`` is the service's ``stores.directory``; at most one of ``after_seq`` (the last message not
    wanted), ``since`` (an aware time) and ``from_latest`` says where to start; ``rows_max`` bounds a micro-batch.
    """

    directory: str
    store: str
    columns: tuple[str, ...]
    after_seq: int
    since: datetime | None
    from_latest: bool
    fail_on_data_loss: bool
    target_partition_bytes: int
    rows_max: int | None
    poll_ms: int


def is_read_of_store(given: Mapping[str, str]) -> bool:
    """Whether these options are of a message store.

    >>> is_read_of_store({"shape": "messages", "Store": "orders"})
    True
    """
    options = {name.lower(): value for name, value in given.items()}
    return options.get("shape", "").strip().lower() == MESSAGES and bool(options.keys() & {"store", "stores"})


def parse_store_options(given: Mapping[str, str], mode: Mode | None = None) -> StoreOptions:
    """The options of a read of a store. Raises: InvalidRequest naming the option, the reason and what is valid.

    >>> parse_store_options({"shape": "messages", "stores": "/data/stores", "store": "orders"}).columns
    ('seq', 'time', 'key', 'fields', 'body')
    """
    options = recognised(given, _NAMES, path_means="stores")
    for name, example in (("stores", "/data/stores"), ("store", "orders")):
        if not options.get(name, "").strip():
            raise _invalid(name, f'is required to read a message store, for example .option("{name}", "{example}")')
    if "startingOffsets" in options and "startingTimestamp" in options:
        raise _invalid("startingOffsets", "and startingTimestamp both say where to start; give one")
    for name in options.keys() & _STREAM:
        if mode is Mode.BATCH:
            raise _invalid(name, "has no effect on a batch read")
    after_seq, from_latest = _starting(options)
    return StoreOptions(
        options["stores"].strip(),
        options["store"].strip(),
        _columns(options),
        after_seq,
        iso_time(options, "startingTimestamp"),
        from_latest,
        boolean(options, "failOnDataLoss", default=True),
        partition_bytes(options),
        _rows_max(options),
        parse_duration_ms("pollInterval", options["pollInterval"]) if "pollInterval" in options else POLL_MS,
    )


def _invalid(option: str, reason: str) -> InvalidRequest:
    return InvalidRequest(f"option {option} {reason}", code=Code.BAD_CONFIGURATION)


def _columns(options: Mapping[str, str]) -> tuple[str, ...]:
    if "columns" not in options:
        return tuple(name for name in STORE_COLUMNS if name not in _ON_REQUEST)
    wanted = [part.strip() for part in options["columns"].split(",") if part.strip()]
    if not wanted or len(set(wanted)) != len(wanted) or not set(wanted) <= set(STORE_COLUMNS):
        raise _invalid("columns", f"is {options['columns']!r}; a message store has {', '.join(STORE_COLUMNS)}")
    return tuple(wanted)


def _starting(options: Mapping[str, str]) -> tuple[int, bool]:
    """The last message not wanted, 0 for none, and whether to start behind the newest one."""
    text = options.get("startingOffsets", EARLIEST).strip()
    if text.lower() in (EARLIEST, LATEST):
        return 0, text.lower() == LATEST
    try:
        found: object = json.loads(text)
    except ValueError:
        found = None
    match found:
        # A stream's progress also says how far its backlog went, which is nothing to another read.
        case {"seq": int(seq), **rest} if set(rest) <= {"backlog"} and not isinstance(seq, bool) and 0 <= seq < 2**63:
            return seq, False
        case _:
            raise _invalid(
                "startingOffsets", f'is {text!r}; valid: {EARLIEST}, {LATEST}, {{"seq": 17}}: read what comes after'
            )


def _rows_max(options: Mapping[str, str]) -> int | None:
    text = options.get("maxRowsPerTrigger")
    if text is None:
        return None
    if not (text.strip().isdigit() and 0 < int(text) < 2**63):
        raise _invalid("maxRowsPerTrigger", f"is {text!r}; valid: a whole number above 0")
    return int(text)
