"""The messages of etcd's API v3 that Holdfast sends and receives, to and from the bytes of protocol buffers.

Field numbers are etcd's; fields that are not in these tables are skipped, so a newer etcd may send more.

| message | fields |
|---|---|
| ``RangeRequest`` | 1 key, 2 range_end, 3 limit, 7 serializable |
| ``PutRequest`` | 1 key, 2 value |
| ``DeleteRangeRequest`` | 1 key |
| ``RequestOp`` | 1 range, 2 put, 3 delete_range |
| ``Compare`` | 1 result (0 =, 3 not =), 2 target (1 create_revision, 3 value), 3 key, 5 create_revision, 7 value |
| ``TxnRequest`` | 1 compare, 2 success, 3 failure |
| ``AuthenticateRequest`` | 1 name, 2 password |
| ``ResponseHeader`` | 1 cluster_id, 2 member_id, 3 revision |
| ``RangeResponse`` | 1 header, 2 kvs, 3 more |
| ``KeyValue`` | 1 key, 5 value |
| ``TxnResponse`` | 1 header, 2 succeeded, 3 responses |
| ``ResponseOp`` | 1 range |
| ``AuthenticateResponse`` | 1 header, 2 token |
| ``CompactionRequest`` | 1 revision |
| ``CompactionResponse`` | 1 header |
| ``StatusRequest`` | none |
| ``StatusResponse`` | 1 header, 2 version, 3 dbSize, 4 leader, 8 errors, 9 dbSizeInUse, 10 isLearner |
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import Struct

RANGE: Final = "/etcdserverpb.KV/Range"
TXN: Final = "/etcdserverpb.KV/Txn"
COMPACT: Final = "/etcdserverpb.KV/Compact"
AUTHENTICATE: Final = "/etcdserverpb.Auth/Authenticate"
STATUS: Final = "/etcdserverpb.Maintenance/Status"
_CREATE_REVISION, _VALUE = 1, 3
_NOT_EQUAL: Final = 3
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class Malformed(ValueError):
    """An answer is not a message of etcd's API."""


class GetKeys(Struct, frozen=True):
    """Read a key, or with ``end`` the keys from ``key`` to before ``end``, in byte order.

    ``limit`` 0 means all. ``any_member``: the member that is asked answers from what it has (``serializable``), which
    may be old; otherwise the answer is linearizable.
    """

    key: bytes
    end: bytes = b""
    limit: int = 0
    any_member: bool = False


class PutKey(Struct, frozen=True):
    """Set a key."""

    key: bytes
    value: bytes


class RemoveKey(Struct, frozen=True):
    """Remove a key; an absent one is not an error."""

    key: bytes


class Exists(Struct, frozen=True):
    """A condition: the key exists (its create_revision is not 0), or with ``negated`` it does not."""

    key: bytes
    negated: bool = False


class Holds(Struct, frozen=True):
    """A condition: the key exists and has this value."""

    key: bytes
    value: bytes


Condition = Exists | Holds
Operation = GetKeys | PutKey | RemoveKey


class Txn(Struct, frozen=True):
    """One atomic step: ``then`` if all conditions hold, else ``otherwise``. A key occurs once in the puts and removals
    of a branch."""

    conditions: Sequence[Condition]
    then: Sequence[Operation]
    otherwise: Sequence[Operation] = ()

    @property
    def writes(self) -> bool:
        """Whether it may change something."""
        return any(not isinstance(each, GetKeys) for each in (*self.then, *self.otherwise))


class Compact(Struct, frozen=True):
    """Forget what every key was before ``revision``. Reads of the newest values go on."""

    revision: int


Request = GetKeys | Txn | Compact


class Row(Struct, frozen=True):
    """A key and its value."""

    key: bytes
    value: bytes


class RowPage(Struct, frozen=True):
    """What a ``GetKeys`` found. ``more``: its limit left keys out."""

    rows: Sequence[Row] = ()
    more: bool = False


class EtcdReply(Struct, frozen=True):
    """What a cluster answered. ``pages``: one for a ``GetKeys``; of a ``Txn`` one for each operation of the
    branch that was taken, empty for puts and removals. ``succeeded`` is False only for a ``Txn``. ``revision``: the
    number of changes of the key space so far."""

    cluster_id: int
    pages: Sequence[RowPage]
    succeeded: bool = True
    revision: int = 0


class Status(Struct, frozen=True):
    """What a member says of itself. ``leader``: the member id of the leader that it knows, 0 for none. ``errors``:
    alarms and the like. ``bytes_used`` is the part of ``bytes_allocated`` that has data."""

    cluster_id: int = 0
    member_id: int = 0
    version: str = ""
    leader: int = 0
    bytes_allocated: int = 0
    bytes_used: int = 0
    is_learner: bool = False
    errors: Sequence[str] = ()


# -- to bytes ----------------------------------------------------------------------------------------------------------


def encode_request(request: Request) -> bytes:
    """The message of a request.

    >>> encode_request(GetKeys(b"a", limit=300)).hex(" ")
    '0a 01 61 18 ac 02'
    """
    if isinstance(request, GetKeys):
        return _get(request)
    if isinstance(request, Compact):
        return _number(1, request.revision)
    return b"".join(
        (
            *(_part(1, _condition(each)) for each in request.conditions),
            *(_part(2, _operation(each)) for each in request.then),
            *(_part(3, _operation(each)) for each in request.otherwise),
        )
    )


def encode_login(name: str, password: str) -> bytes:
    """The message that asks for a token."""
    return _part(1, name.encode()) + _part(2, password.encode())


def _condition(condition: Condition) -> bytes:
    if isinstance(condition, Holds):
        return _number(2, _VALUE) + _part(3, condition.key) + _part(7, condition.value)
    result = b"" if condition.negated else _number(1, _NOT_EQUAL)
    return result + _number(2, _CREATE_REVISION) + _part(3, condition.key) + b"\x28\x00"  # field 5: create_revision 0


def _operation(operation: Operation) -> bytes:
    match operation:
        case GetKeys():
            return _part(1, _get(operation))
        case PutKey(key, value):
            return _part(2, _part(1, key) + _part(2, value))
        case RemoveKey(key):
            return _part(3, _part(1, key))


def _get(get: GetKeys) -> bytes:
    # etcd takes an empty range_end that is sent for one above all keys, and one that is not sent for none.
    end = _part(2, get.end) if get.end else b""
    return _part(1, get.key) + end + _number(3, get.limit) + _number(7, int(get.any_member))


def _part(field: int, data: bytes) -> bytes:
    return _varint(field << 3 | _BYTES) + _varint(len(data)) + data


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3 | _VARINT) + _varint(value) if value else b""


def _varint(value: int) -> bytes:
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


# -- from bytes --------------------------------------------------------------------------------------------------------


def decode_reply(request: Request, data: bytes) -> EtcdReply:
    """The answer to ``request``. Raises: Malformed. Cost: O(bytes)."""
    if not isinstance(request, Txn):
        header, page = _range(data)
        cluster_id, revision = _place(header)
        return EtcdReply(cluster_id, (page,) if isinstance(request, GetKeys) else (), revision=revision)
    cluster_id, revision, succeeded, pages = 0, 0, False, list[RowPage]()
    for field, value in _fields(data):
        match field, value:
            case 1, bytes():
                cluster_id, revision = _place(value)
            case 2, int():
                succeeded = value != 0
            case 3, bytes():
                ranges = [
                    _range(inner)[1] for which, inner in _fields(value) if which == 1 and isinstance(inner, bytes)
                ]
                pages.append(ranges[-1] if ranges else RowPage())
            case _:
                pass
    if len(pages) != len(request.then if succeeded else request.otherwise):
        raise Malformed("an answer has another number of parts than its request")
    return EtcdReply(cluster_id, pages, succeeded, revision)


def decode_token(data: bytes) -> str:
    """The token of a login. Raises: Malformed."""
    try:
        return next(value.decode("ascii") for field, value in _fields(data) if field == 2 and isinstance(value, bytes))
    except (StopIteration, UnicodeDecodeError):
        raise Malformed("an answer to a login has no token") from None


def decode_status(data: bytes) -> Status:
    """The answer of a member about itself. Raises: Malformed."""
    header, numbers, texts, errors = b"", dict[int, int](), dict[int, str](), list[str]()
    for field, value in _fields(data):
        if isinstance(value, int):
            numbers[field] = value
        elif field == 1:
            header = value
        elif field == 8:
            errors.append(value.decode("utf-8", "replace"))
        else:
            texts[field] = value.decode("utf-8", "replace")
    ids = {field: value for field, value in _fields(header) if isinstance(value, int)}
    return Status(
        ids.get(1, 0),
        ids.get(2, 0),
        texts.get(2, ""),
        numbers.get(4, 0),
        numbers.get(3, 0),
        numbers.get(9, 0),
        numbers.get(10, 0) != 0,
        errors,
    )


def _range(data: bytes) -> tuple[bytes, RowPage]:
    header, rows, more = b"", list[Row](), False
    for field, value in _fields(data):
        match field, value:
            case 2, bytes():
                rows.append(_row(value))
            case 1, bytes():
                header = value
            case 3, int():
                more = value != 0
            case _:
                pass
    return header, RowPage(rows, more)


def _row(data: bytes) -> Row:
    key, content = b"", b""
    for field, value in _fields(data):
        if isinstance(value, bytes):
            if field == 1:
                key = value
            elif field == 5:
                content = value
    return Row(key, content)


def _place(header: bytes) -> tuple[int, int]:
    """The id of the cluster and its revision."""
    numbers = {field: value for field, value in _fields(header) if isinstance(value, int)}
    return numbers.get(1, 0), numbers.get(3, 0)


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a message with their numbers: an int for a varint, bytes for what has a length. Others are
    skipped. Raises: Malformed."""
    at, size = 0, len(data)
    try:
        while at < size:
            tag = data[at]
            at += 1
            if tag >= 0x80:
                tag, at = _read_varint(data, at - 1)
            value = data[at] if (kind := tag & 7) in (_VARINT, _BYTES) else 0
            at += kind in (_VARINT, _BYTES)
            if value >= 0x80:
                value, at = _read_varint(data, at - 1)
            if kind == _VARINT:
                yield tag >> 3, value
            elif kind == _BYTES:
                if at + value > size:
                    raise Malformed("an answer ends within a field")
                yield tag >> 3, data[at : at + value]
                at += value
            elif kind in (_FIXED64, _FIXED32):
                at += 8 if kind == _FIXED64 else 4
            else:
                raise Malformed(f"an answer has a field of the kind {kind}")
    except IndexError:
        raise Malformed("an answer ends within a field") from None
    if at != size:
        raise Malformed("an answer ends within a field")


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    """The number at ``at``, and where it ends. Raises: IndexError, Malformed."""
    value = 0
    for shift in range(0, 70, 7):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise Malformed("an answer has a number of more than ten bytes")
