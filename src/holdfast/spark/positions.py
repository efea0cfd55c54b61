"""How far a reader has read: positions in logs, queues and stores, as checkpoints keep them and as options name them.

The offset of a position is the JSON object of the fields that are known. Any other object is not an offset.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, TypeAlias, TypeVar

import msgspec
from msgspec import Meta, Struct

from holdfast.errors import InvalidRequest
from holdfast.spark.runtime.refusals import bad_configuration
from holdfast.values import VERSION_MAX

Offset: TypeAlias = dict[str, int | str]
Given: TypeAlias = Mapping[str, int | str]
S = TypeVar("S", bound=Struct)

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
_Number: TypeAlias = Annotated[int, Meta(ge=0, le=2**63 - 1)]
_Version: TypeAlias = Annotated[int, Meta(ge=0, le=VERSION_MAX)]
_LogId: TypeAlias = Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]


class Position(Struct, frozen=True, forbid_unknown_fields=True):
    """A position between two objects of the log, and between two versions.

    Shape: everything up to ``seq`` has been read, and every row up to ``version``. -1 and 0 are before the first of
    each. ``seq`` None: the position follows from the version alone. ``log_id`` None: of the log at the URL.
    """

    seq: Annotated[int, Meta(ge=-1, le=2**63 - 1)] | None = None
    version: _Version = 0
    log_id: _LogId | None = None
    example: ClassVar[str] = '{"version": 17} or {"seq": 4, "version": 17}'


class QueuePosition(Struct, frozen=True, forbid_unknown_fields=True):
    """The last message of a queue that was read, 0 for none.

    Shape: ``queue`` is the id of the queue, 32 hexadecimal digits, ``time_ns`` when this message arrived. None: not
    known.
    """

    seq: _Number
    queue: _LogId | None = None
    time_ns: _Number | None = None
    example: ClassVar[str] = '{"seq": 17}'


class StorePosition(Struct, frozen=True, forbid_unknown_fields=True):
    """The last message of a store that was read, 0 for none.

    Shape: holes up to ``backlog`` are not losses. ``store_id`` is the store's id, ``history`` that of its numbers;
    ``version`` and ``log_id`` are the state of the log that the store lives in. None: any.
    """

    seq: _Number
    backlog: _Number | None = None
    store_id: Annotated[int, Meta(ge=1, lt=2**40)] | None = None
    history: str | None = None
    version: _Version | None = None
    log_id: _LogId | None = None
    example: ClassVar[str] = '{"seq": 17}'

    def __post_init__(self) -> None:
        if (self.version is None) != (self.log_id is None):
            raise ValueError("version and log_id belong together")

    @property
    def at(self) -> Position | None:
        """The state of the log."""
        return None if self.version is None else Position(None, self.version, self.log_id)


class ServedPosition(Struct, frozen=True, forbid_unknown_fields=True):
    """The last message of a durable that was read, 0 for none.

    Shape: ``token`` names the durable (``stores.values.identity``), ``query`` the checkpoint.
    """

    seq: _Number
    token: str
    query: str


class TablePosition(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a stream of a table has returned: all up to ``version``, then ``files`` of what comes next.

    Shape: ``base`` is the version of the table under way while ``version`` is -1.
    """

    version: Annotated[int, Meta(ge=-1)]
    table_id: str
    files: _Number = 0
    base: _Number | None = None


def offset_of(position: Struct) -> Offset:
    """The offset of a position."""
    fields: Mapping[str, Any] = msgspec.to_builtins(position)
    return {name: value for name, value in fields.items() if value is not None}


def position_in(offset: Given, kind: type[S]) -> S:
    """The position in a checkpoint. Raises: InvalidRequest.

    >>> position_in({"seq": 4, "version": 17}, Position)
    Position(seq=4, version=17, log_id=None)
    """
    try:
        return msgspec.convert(dict(offset), kind)
    except msgspec.ValidationError as error:
        raise foreign(offset, str(error)) from None


def foreign(offset: Given, cause: str) -> InvalidRequest:
    """The error for an offset of another source."""
    return bad_configuration("checkpoint holds an offset that is not this source's", offset=dict(offset), cause=cause)
