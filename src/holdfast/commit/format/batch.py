"""The batch object, byte by byte: names, the 512-byte header, and the body as an Arrow stream.

Name: ``batches/`` and the slot as 20 decimal digits. A claim is exactly 512 bytes; every other object is at least 1,024
bytes (padded with zeros), so the sizes in a listing distinguish claims from data.

Header, little-endian, 512 bytes:

    offset  bytes  field
    0       8      magic ``HOLDFAST``
    8       2      format version: 1
    10      1      kind: 1 claim, 2 data, 3 resign
    11      1      flags: bit 0, the body's buffers are compressed with lz4; bit 1, a claim retires the log; bit 2, the
                   writer's wall clock has stepped and is not believed
    12      4      transactions: how many the body holds
    16      16     log_id
    32      8      slot
    40      8      claim: slot of this leader's claim (a claim: its own slot)
    48      8      prev: slot of the predecessor in the chain (genesis: its own slot)
    56      8      epoch: 1 at genesis, one more at each claim
    64      16     leader_id
    80      16     nonce
    96      8      first_version
    104     8      last_version
    112     8      prev_version: the last committed transaction's version before this object
    120     8      window_floor: the oldest read version that resolve accepted for this batch
    128     8      durable: the writer's watermark slot when this object was frozen (claim: prev; genesis: its own slot)
    136     8      truncated_through: versions at or below it may have been removed; 0: no version was removed
    144     8      time_ms: milliseconds since the Unix epoch as far as known, never falling along the chain
    152     8      body_length: bytes of the body, without padding
    160     4      CRC-32 of the body
    164     2      length of the address
    166     256    the leader's advertised address, UTF-8
    422     16     boot id of the writer's machine; zero: unknown
    438     8      inode of the namespace in which the address is valid: of the network, or of mounts for a ``unix:``
                   address; 0: unknown
    446     16     parent_log_id: the log that a fork claim leaves; zero in every other object
    462     8      forked_at: the last version that a fork claim takes over from its parent; 0 in every other object
    470     2      stores_mode: 0, the stores are not in the log; 1, they are; 2, they were
    472     4      entries: how many versions of the body are the stores' own, and no transactions
    476     8      last_transaction_version: the last committed transaction's, at or before this object
    484     8      lived_ms: at most how long the log has existed, by boot clocks alone; never falling along the chain
    492     8      boot_ms: milliseconds since the boot at 422
    500     4      ahead_s: by how many seconds the writer's wall clock was ahead of time_ms, signed
    504     4      clock_steps: how often a writer's wall clock has stepped between two objects, so far
    508     4      CRC-32 of bytes 0..507

``log_clock`` says what the fields of time mean and how each follows from the header before.

A **fork claim** begins a log of its own after a part of another one: it has a new ``log_id``. Nothing may follow a
claim that **retires** the log.

A **log with stores** is one from the claim on that moved its stores, which for most logs is the first. Only such a
claim changes ``stores_mode``: from 0 or 2 to 1, or from 1 to 2. Bodies of mode 1 also have what the message stores
have done: rows of kind 5, in which ``key`` is the name of the store (empty: of no single one) and
``value`` a command of the stores with its result (``docs/formats/message-stores.md``). A version whose rows are all of
kind 5 with no ``at`` is the stores' own: no transaction, and the transaction after it does not name it as its
predecessor. A transaction has at most one such row, for its parts: with ``at`` 0, and in ``end`` the digest of the
parts as they were sent. The fields from 470 on are zero where ``stores_mode`` is.

A row of kind 6 changes the **record of a job**: ``key`` is the name of the job in UTF-8, ``value`` its record, null
where the record is removed, and with it those of all jobs below ``key`` and a slash. ``at`` is the version after which
no other transaction changed the record, null where that was not asked. A row of kind 7 has ``key`` and ``at`` alone and
changes nothing: it is such an expectation by itself. These rows belong to a transaction, after its operations. Records
of jobs are a key space of their own, which nothing but these rows reaches.

Body: one Arrow IPC stream with the columns of ``BODY_SCHEMA``, one row per item in commit order; the request id is
repeated in each row of its transaction. An object without transactions and entries has no body. Its
``first_version`` equals its ``last_version``, every version at or below that is final, and ``prev_version`` is that of
the last committed transaction.

Valid when: both CRCs match, the size fits the kind, and the object's name is its slot.

The stream is written without an Arrow library, because building the library's arrays took 18 % of the leader's time
(py-spy, 64 clients). It consists of the schema message, one record batch message and the end mark. The record batch
message consists of 0xFFFFFFFF, the length of the metadata (int32, 536), the metadata and the buffers.
The metadata is a flatbuffer (Arrow's ``Message.fbs``, metadata version V5) of constant shape. Its fields, by their
offset in it:

    offset  bytes  field
    0       4      position of the message table, 16
    4       12     vtable: 12, 20, then where in the table: version 16, header type 18, header 4, body length 8
    16      20     message: 12 back to its vtable; header is 36 further on; body length; version 4 (V5); type 3
    46      10     vtable: 10, 20, then where in the table: length 8, nodes 4, buffers 16
    56      20     record batch: 10 back to its vtable; nodes are 16 further on; rows; buffers are 140 further on
    76      132    nodes: how many (8), then int64 rows and int64 nulls of each column
    212     324    buffers: how many (20), then int64 offset and int64 bytes of each buffer, without its padding

Every buffer starts at a multiple of 8 bytes after the first. A column without nulls has an empty validity buffer.
Except in ``value``, the offsets of texts are int32, so a column must stay below 2 GiB. The bounds on requests and
batches ensure this.
"""

from __future__ import annotations

import struct
import sys
import zlib
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import accumulate, chain, pairwise
from typing import Final

import pyarrow as pa
from msgspec import UNSET, Struct, UnsetType

from holdfast import values
from holdfast.commit.format.transaction import (
    Delete,
    JobChange,
    Operation,
    PointRead,
    Precondition,
    RangeDelete,
    RangeRead,
    Transaction,
    Write,
)
from holdfast.crc32 import fastest_crc32
from holdfast.errors import Code, CorruptData
from holdfast.values import LeaderId, LogId, Slot, Version, parse_slot, slot_text

# pyarrow ships no types, so its tables are unknown to the checker; ours are not.
# pyright: reportUnknownParameterType=false

PREFIX: Final = "batches/"
FIRST_SLOT: Final = Slot(2**64 - 1)
SPAN_MAX: Final = 1000
"""W: the widest span of unacknowledged slots, and the size of the one LIST page that recovery reads."""
VERSION_JUMP: Final = values.VERSION_JUMP
HEADER_BYTES: Final = 512
CLAIM_BYTES: Final = HEADER_BYTES
DATA_BYTES_MIN: Final = 1024
ADDRESS_BYTES_MAX: Final = 256
MAGIC: Final = b"HOLDFAST"
FORMAT_VERSION: Final = 1
FLAG_LZ4: Final = 1
FLAG_RETIRES: Final = 2
FLAG_CLOCK_DOUBTED: Final = 4
FORK_JUMP_MAX: Final = 10**12
"""A fork claim's base is ``FORK_JUMP_MIN`` to this much above ``forked_at``: two forks almost never share versions."""

_FIELDS: Final = struct.Struct("<8sHBBI16sQQQQ16s16sQQQQQQQQIH256s16sQ16sQHIQQQiI")
_CRC: Final = struct.Struct("<I")
NO_LOG: Final = bytes(16)
NO_VERSION: Final = Version(0)
assert _FIELDS.size + _CRC.size == HEADER_BYTES, "the header is 512 bytes"


class Kind(IntEnum):
    """What an object is."""

    CLAIM = 1
    DATA = 2
    RESIGN = 3


class ItemKind(IntEnum):
    """What one row of a body is."""

    WRITE = 0
    DELETE = 1
    RANGE_DELETE = 2
    POINT_READ = 3
    RANGE_READ = 4
    RECORD = 5
    JOB = 6
    JOB_READ = 7


class StoresMode(IntEnum):
    """Where the message stores of a log keep what they do. ``RETURNED``: on a disk again, as ``DISK``."""

    DISK = 0
    LOG = 1
    RETURNED = 2

    @property
    def durability(self) -> str:
        """What the setting ``stores.durability`` calls it."""
        return "log" if self is StoresMode.LOG else "disk"


BODY_SCHEMA: Final = pa.schema(
    [
        pa.field("version", pa.uint64(), nullable=False),
        pa.field("request_id", pa.utf8()),
        pa.field("read_version", pa.uint64()),
        pa.field("kind", pa.uint8(), nullable=False),
        pa.field("key", pa.binary(), nullable=False),
        pa.field("end", pa.binary()),
        pa.field("value", pa.large_binary()),
        pa.field("at", pa.uint64()),
    ]
)
_SCHEMA_MESSAGE: Final[bytes] = BODY_SCHEMA.serialize().to_pybytes()
_LZ4: Final = pa.ipc.IpcWriteOptions(compression="lz4")


@dataclass(frozen=True, slots=True)
class AddressScope:
    """Where an object was written, one boot of one machine, and where on it the address is valid, one namespace.

    Zeros mean unknown.
    """

    boot_id: bytes = bytes(16)
    namespace: int = 0

    def is_known(self) -> bool:
        """Whether it is known where the address is valid: two unknown scopes are not equal."""
        return bool(self.namespace) and any(self.boot_id)


UNKNOWN_SCOPE: Final = AddressScope()


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The first 512 bytes of every object, as values. ``size`` of the whole object follows from it."""

    kind: Kind
    log_id: LogId
    slot: Slot
    claim: Slot
    prev: Slot
    epoch: int
    leader_id: LeaderId
    nonce: bytes
    first_version: Version
    last_version: Version
    prev_version: Version
    window_floor: Version
    durable: Slot
    truncated_through: Version
    time_ms: int
    address: str
    transactions: int = 0
    body_length: int = 0
    body_crc: int = 0
    flags: int = 0
    scope: AddressScope = UNKNOWN_SCOPE
    parent_log_id: LogId | None = None
    forked_at: Version = NO_VERSION
    stores_mode: StoresMode = StoresMode.DISK
    entries: int = 0
    newest_transaction: Version = NO_VERSION
    """As ``last_transaction_version``, in a log with stores only."""
    lived_ms: int = 0
    boot_ms: int = 0
    ahead_s: int = 0
    clock_steps: int = 0

    @property
    def is_fork(self) -> bool:
        """Whether this claim begins another log than the one before it."""
        return self.parent_log_id is not None

    @property
    def retires(self) -> bool:
        """Whether this claim ends the log: nobody leads after it."""
        return bool(self.flags & FLAG_RETIRES)

    @property
    def doubts_clock(self) -> bool:
        """Whether the writer's wall clock had stepped and was not believed."""
        return bool(self.flags & FLAG_CLOCK_DOUBTED)

    @property
    def last_transaction_version(self) -> Version:
        """The version of the last committed transaction at or before this object."""
        if self.stores_mode:
            return self.newest_transaction
        return self.last_version if self.transactions else self.prev_version

    @property
    def has_body(self) -> bool:
        """Whether a body follows."""
        return bool(self.transactions or self.entries)

    def spans(self, first: int, last: int) -> bool:
        """Whether its transactions may be those with the versions ``first`` to ``last``."""
        begins = self.first_version <= first if self.entries else self.first_version == first
        return begins and last == self.last_transaction_version

    def object_bytes(self) -> int:
        """The size of the whole object in bytes, padding included."""
        if self.kind is Kind.CLAIM:
            return CLAIM_BYTES
        return max(HEADER_BYTES + self.body_length, DATA_BYTES_MIN)


class LoggedTransaction(Struct, frozen=True, gc=False):
    """One committed transaction as the log keeps it, with the preconditions that it passed. Treat as immutable."""

    version: int
    request_id: str | None
    read_version: int | None
    operations: list[Operation]
    preconditions: list[Precondition]
    record: bytes | None = None
    """What the stores did for its parts."""
    parts_digest: bytes = b""
    """Of the parts as they were sent; empty where there were none."""
    jobs: tuple[JobChange, ...] = ()


class LoggedEntry(Struct, frozen=True, gc=False):
    """What the stores did by themselves at one version: their records, each with its store. Treat as immutable."""

    version: int
    records: list[tuple[str, bytes]]


Logged = LoggedTransaction | LoggedEntry


def object_name(slot: int) -> str:
    """The object's name.

    >>> object_name(FIRST_SLOT)
    'batches/18446744073709551615'
    """
    return PREFIX + slot_text(slot)


def slot_of(name: str) -> Slot | None:
    """The slot that an object name stands for, or None when it is not a batch's name."""
    return parse_slot(name[len(PREFIX) :]) if name.startswith(PREFIX) else None


def jump(claim: int) -> Slot:
    """J(c): where the data of the claim at ``c`` start. Every slot strictly between is permanently dead."""
    return Slot(claim - 1 if claim == FIRST_SLOT else claim - SPAN_MAX)


def encode_object(header: Header, body: bytes = b"") -> bytes:
    """The whole object. The header's lengths and CRCs are taken from ``body``; those in ``header`` are ignored."""
    address = header.address.encode()
    if len(address) > ADDRESS_BYTES_MAX:
        raise ValueError(f"address longer than {ADDRESS_BYTES_MAX} bytes: {header.address}")
    head = _FIELDS.pack(
        MAGIC, FORMAT_VERSION, header.kind, header.flags, header.transactions,
        header.log_id, header.slot, header.claim, header.prev, header.epoch,
        header.leader_id, header.nonce,
        header.first_version, header.last_version, header.prev_version,
        header.window_floor, header.durable, header.truncated_through, header.time_ms,
        len(body), fastest_crc32()(body, 0),
        len(address), address, header.scope.boot_id, header.scope.namespace,
        header.parent_log_id or NO_LOG, header.forked_at,
        header.stores_mode, header.entries, header.newest_transaction,
        header.lived_ms, header.boot_ms, header.ahead_s, header.clock_steps,
    )  # fmt: skip
    whole = head + _CRC.pack(zlib.crc32(head)) + body
    if header.kind is not Kind.CLAIM and len(whole) < DATA_BYTES_MIN:
        whole = whole.ljust(DATA_BYTES_MIN, b"\0")
    return whole


def _corrupt(slot: int, rule: str, **facts: str | int) -> CorruptData:
    return CorruptData(rule, code=Code.CORRUPT_BATCH, facts={"slot": slot_text(slot), **facts})


def decode_header(data: bytes, *, slot: int) -> Header:
    """The header of the object in ``slot``, from its first bytes. Raises: CorruptData naming slot and rule."""
    if len(data) < HEADER_BYTES:
        raise _corrupt(slot, "object is shorter than its header", bytes=len(data))
    head = bytes(data[: HEADER_BYTES - _CRC.size])
    if not head.startswith(MAGIC):
        raise _corrupt(slot, "object does not start with the magic of a batch")
    (
        _magic, format_version, kind, flags, transactions,
        log_id, own_slot, claim, prev, epoch,
        leader_id, nonce,
        first_version, last_version, prev_version,
        window_floor, durable, truncated_through, time_ms,
        body_length, body_crc,
        address_length, address, boot_id, namespace,
        parent_log_id, forked_at,
        stores_mode, entries, newest_transaction,
        lived_ms, boot_ms, ahead_s, clock_steps,
    ) = _FIELDS.unpack(head)  # fmt: skip
    if format_version != FORMAT_VERSION:
        raise _corrupt(slot, "object has an unknown format version", format_version=format_version)
    if zlib.crc32(head) != _CRC.unpack_from(data, HEADER_BYTES - _CRC.size)[0]:
        raise _corrupt(slot, "header CRC does not match")
    if own_slot != slot:
        raise _corrupt(slot, "header names another slot", header_slot=slot_text(own_slot))
    if kind not in (Kind.CLAIM, Kind.DATA, Kind.RESIGN) or address_length > ADDRESS_BYTES_MAX:
        raise _corrupt(slot, "header has an impossible field", kind=kind, address_length=address_length)
    if kind == Kind.CLAIM and (body_length or claim != slot):
        raise _corrupt(slot, "claim has a body or names another claim")
    if stores_mode not in (StoresMode.DISK, StoresMode.LOG, StoresMode.RETURNED):
        raise _corrupt(slot, "header has an unknown mode of the stores", stores_mode=stores_mode)
    if (transactions == 0 and entries == 0) != (body_length == 0):
        raise _corrupt(
            slot,
            "transaction count does not fit the body",
            transactions=transactions,
            entries=entries,
            body_length=body_length,
        )
    is_fork = parent_log_id != NO_LOG
    header = Header(
        kind=Kind(kind),
        log_id=log_id,
        slot=Slot(own_slot),
        claim=Slot(claim),
        prev=Slot(prev),
        epoch=epoch,
        leader_id=leader_id,
        nonce=nonce,
        first_version=Version(first_version),
        last_version=Version(last_version),
        prev_version=Version(prev_version),
        window_floor=Version(window_floor),
        durable=Slot(durable),
        truncated_through=Version(truncated_through),
        time_ms=time_ms,
        address=address[:address_length].decode("utf-8", "replace"),
        transactions=transactions,
        body_length=body_length,
        body_crc=body_crc,
        flags=flags,
        scope=AddressScope(boot_id, namespace),
        parent_log_id=LogId(parent_log_id) if is_fork else None,
        forked_at=Version(forked_at),
        stores_mode=StoresMode(stores_mode),
        entries=entries,
        newest_transaction=Version(newest_transaction),
        lived_ms=lived_ms,
        boot_ms=boot_ms,
        ahead_s=ahead_s,
        clock_steps=clock_steps,
    )
    if (is_fork or header.retires) and kind != Kind.CLAIM:
        raise _corrupt(slot, "only a claim forks a log or retires it", kind=kind)
    if (stores_mode != StoresMode.LOG and entries) or (not stores_mode and newest_transaction):
        raise _corrupt(slot, "header has an impossible field", entries=entries, newest_transaction=newest_transaction)
    return header


def encode_body(logged: Iterable[Logged], *, compress: bool = False) -> bytes:
    """The Arrow IPC stream of these transactions and entries, empty bytes for none. Cost: O(rows)."""
    message = encode_record_batch(logged)
    if not message:
        return b""
    stream = b"".join((_SCHEMA_MESSAGE, message, END_OF_STREAM))
    if not compress:
        return stream
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, BODY_SCHEMA, options=_LZ4) as writer:
        writer.write_table(pa.ipc.open_stream(stream).read_all())
    return bytes(sink.getvalue())


def body_bytes(data: bytes, header: Header) -> memoryview:
    """The body inside a whole object. Raises: CorruptData when its size or CRC does not match the header."""
    body = memoryview(data)[HEADER_BYTES : HEADER_BYTES + header.body_length]
    if len(body) != header.body_length or len(data) != header.object_bytes():
        expected = header.object_bytes()
        raise _corrupt(header.slot, "object size does not fit its header", bytes=len(data), expected=expected)
    if fastest_crc32()(body, 0) != header.body_crc:
        raise _corrupt(header.slot, "body CRC does not match")
    return body


def read_body_table(data: bytes, header: Header) -> pa.Table:
    """The transactions of a whole object as an Arrow table of ``BODY_SCHEMA``. Raises: CorruptData.

    Without copying, unless the object has entries of the stores, which are left out.
    """
    return without_entries(_read_whole_table(data, header), header)


def without_entries(table: pa.Table, header: Header) -> pa.Table:
    """The rows of a whole body that belong to transactions."""
    if not header.entries:
        return table
    kinds, at = table.column("kind").to_pylist(), table.column("at").to_pylist()
    own = [kind == ItemKind.RECORD and place is None for kind, place in zip(kinds, at, strict=True)]
    return table.filter(pa.array([not of_entry for of_entry in own]))


def _read_whole_table(data: bytes, header: Header) -> pa.Table:
    body = body_bytes(data, header)
    if not header.has_body:
        return BODY_SCHEMA.empty_table()
    try:
        table = pa.ipc.open_stream(pa.py_buffer(body)).read_all()
    except (pa.ArrowException, OSError) as error:
        raise _corrupt(header.slot, "body is not an Arrow stream") from error
    if not table.schema.equals(BODY_SCHEMA):
        raise _corrupt(header.slot, "body has other columns")
    return table


def decode_body(data: bytes, header: Header) -> list[LoggedTransaction]:
    """The transactions of a whole object, in commit order.

    Raises: CorruptData, also when the rows do not keep the versions that the header promises.
    """
    return [logged for logged in decode_all(data, header) if type(logged) is LoggedTransaction]


def decode_records(data: bytes, header: Header) -> list[LoggedEntry]:
    """All that the stores did, by themselves and for transactions, in order. Raises: as ``decode_body``."""
    if header.stores_mode is not StoresMode.LOG or not header.has_body:
        return []
    if not header.entries and ItemKind.RECORD not in _read_whole_table(data, header).column("kind").to_pylist():
        return []
    records: list[LoggedEntry] = []
    for logged in decode_all(data, header):
        if isinstance(logged, LoggedEntry):
            records.append(logged)
        elif logged.record is not None:
            records.append(LoggedEntry(logged.version, [("", logged.record)]))
    return records


def decode_all(data: bytes, header: Header) -> list[Logged]:
    """The transactions and entries of a whole object, in order. Raises: as ``decode_body``."""
    everything = list(_group(_read_whole_table(data, header)))
    versions = [logged.version for logged in everything]
    transactions = [logged.version for logged in everything if type(logged) is LoggedTransaction]
    fits = not versions or (versions[0] == header.first_version and versions[-1] == header.last_version)
    fits = fits and (not transactions or transactions[-1] == header.last_transaction_version)
    counts = len(transactions), len(versions) - len(transactions)
    if counts != (header.transactions, header.entries) or not fits or any(a >= b for a, b in pairwise(versions)):
        raise _corrupt(header.slot, "rows do not keep the versions of the header")
    return everything


def job_of_row(key: bytes, value: bytes | UnsetType | None, at: int | None = None) -> JobChange:
    """What a row of kind 6 changes, or with UNSET one of kind 7 expects. Raises: CorruptData."""
    try:
        return JobChange(key.decode(), value, at)
    except UnicodeDecodeError as error:
        raise CorruptData("the name of a job is not UTF-8", code=Code.CORRUPT_BATCH, key=key) from error


def _group(table: pa.Table) -> Iterator[Logged]:
    columns = [column.to_pylist() for column in table.columns]
    current: int | None = None
    request_id: str | None = None
    read_version: int | None = None
    operations: list[Operation] = []
    preconditions: list[Precondition] = []
    records: list[tuple[str, bytes]] = []
    record: bytes | None = None
    digest = b""
    jobs: list[JobChange] = []

    def logged() -> Iterator[Logged]:
        if operations or preconditions or record is not None or jobs:
            assert current is not None, "rows have a version"
            own = current, request_id, read_version, operations, preconditions, record, digest
            yield LoggedTransaction(*own, tuple(jobs))
        elif current is not None:
            yield LoggedEntry(current, records)

    for version, rid, read, kind, key, end, value, at in zip(*columns, strict=True):
        if version != current:
            yield from logged()
            current, request_id, read_version = version, rid, read
            operations, preconditions, records, jobs = [], [], [], []
            record, digest = None, b""
        match kind:
            case ItemKind.RECORD if at is None:
                records.append((key.decode(), value))
            case ItemKind.RECORD:
                record, digest = value, end or b""
            case ItemKind.WRITE:
                operations.append(Write(key, value))
            case ItemKind.DELETE:
                operations.append(Delete(key))
            case ItemKind.RANGE_DELETE:
                operations.append(RangeDelete(key, end))
            case ItemKind.POINT_READ:
                preconditions.append(PointRead(key, at))
            case ItemKind.RANGE_READ:
                preconditions.append(RangeRead(key, end, at))
            case ItemKind.JOB:
                jobs.append(job_of_row(key, value, at))
            case ItemKind.JOB_READ:
                jobs.append(job_of_row(key, UNSET, at))
            case _:
                raise CorruptData("row has an unknown kind", code=Code.CORRUPT_BATCH, kind=kind)
    yield from logged()


assert sys.byteorder == "little", "columns are written as this processor keeps them, and the format is little-endian"

END_OF_STREAM: Final = b"\xff\xff\xff\xff\x00\x00\x00\x00"
REPEATED_BYTES_MAX: Final = 16 << 20
"""Most bytes of a request id in the log, where every row repeats it: an Arrow column has a limit."""
COLUMNS: Final = 8
BUFFERS: Final = 20
METADATA_BYTES: Final = 536
_METADATA: Final = struct.Struct(
    f"<Ii I HHHHHH iIqhBx 10x HHHHH iIqI I{2 * COLUMNS}q 4x I{2 * BUFFERS}q".replace(" ", "")
)
assert _METADATA.size == 8 + METADATA_BYTES, "the record batch's metadata has one size"
_MESSAGE_TABLE: Final = (12, 20, 16, 18, 4, 8)
_RECORD_BATCH_TABLE: Final = (10, 20, 8, 4, 16)
_BITS: Final = bytes.maketrans(b"\0\1", b"01")

_WRITE, _DELETE, _RANGE_DELETE, _POINT_READ, _RANGE_READ, _RECORD, _JOB, _JOB_READ = map(int, ItemKind)


class _Buffers:
    """Buffers one after the other, each padded to 8 bytes, and where each one is."""

    __slots__ = ("at", "nodes", "parts", "places")

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.places: list[int] = []
        self.nodes: list[int] = []
        self.at = 0

    def add(self, data: bytes) -> None:
        length = len(data)
        self.places += (self.at, length)
        if length:
            self.parts.append(data)
            padding = -length & 7
            if padding:
                self.parts.append(bytes(padding))
            self.at += length + padding

    def node(self, rows: int, present: Sequence[object] | None) -> int:
        """Begin a column: its counts and its validity. Returns how many values are null."""
        nulls = present.count(None) if present is not None else 0
        self.nodes += (rows, nulls)
        if not nulls or present is None:
            self.add(b"")
        elif nulls == rows:
            self.add(bytes((rows + 7) // 8))
        else:
            # The first row is the lowest bit, so the digits of the number are the rows backwards.
            digits = bytes([value is not None for value in reversed(present)]).translate(_BITS)
            self.add(int(digits, 2).to_bytes((rows + 7) // 8, "little"))
        return nulls

    def numbers(self, values: Sequence[int]) -> None:
        self.node(len(values), None)
        self.add(array("Q", values).tobytes())

    def optional_numbers(self, values: Sequence[int | None]) -> None:
        nulls = self.node(len(values), values)
        if nulls == len(values):
            self.add(bytes(8 * nulls))
        else:
            self.add(array("Q", [value or 0 for value in values]).tobytes())

    def texts(self, values: Sequence[bytes], offset_type: str = "i") -> None:
        self.node(len(values), None)
        self.add(array(offset_type, accumulate(map(len, values), initial=0)).tobytes())
        self.add(b"".join(values))

    def optional_texts(self, values: Sequence[bytes | None], offset_type: str = "i") -> None:
        nulls = self.node(len(values), values)
        if nulls == len(values):
            self.add(bytes(array(offset_type).itemsize * (nulls + 1)))
            self.add(b"")
            return
        whole = [value or b"" for value in values]
        self.add(array(offset_type, accumulate(map(len, whole), initial=0)).tobytes())
        self.add(b"".join(whole))


_Row = tuple[int, bytes | None, int | None, int, bytes, bytes | None, bytes | None, int | None]
"""In the order of the schema: version, request id, read version, kind, key, end, value, version of a precondition."""


def _rows_of(logged: Iterable[Logged]) -> list[_Row]:
    rows: list[_Row] = []
    for txn in logged:
        version = txn.version
        if isinstance(txn, LoggedEntry):
            rows += [
                (version, None, None, _RECORD, store.encode(), None, record, None) for store, record in txn.records
            ]
            continue
        request_id, read_version = None if txn.request_id is None else txn.request_id.encode(), txn.read_version
        attempt = version, request_id, read_version
        for read in txn.preconditions:
            if type(read) is PointRead:
                rows.append((*attempt, _POINT_READ, read.key, None, None, read.version))
            else:
                assert type(read) is RangeRead, "a precondition is a point read or a range read"
                rows.append((*attempt, _RANGE_READ, read.begin, read.end, None, read.version))
        for operation in txn.operations:
            if type(operation) is Write:
                rows.append((version, request_id, read_version, _WRITE, operation.key, None, operation.value, None))
            elif type(operation) is Delete:
                rows.append((*attempt, _DELETE, operation.key, None, None, None))
            else:
                assert type(operation) is RangeDelete, "an operation is a write, a delete or a range delete"
                rows.append((*attempt, _RANGE_DELETE, operation.begin, operation.end, None, None))
        if txn.record is not None:
            rows.append((*attempt, _RECORD, b"", txn.parts_digest, txn.record, 0))
        for job in txn.jobs:
            kind, value = (_JOB_READ, None) if job.value is UNSET else (_JOB, job.value)
            rows.append((*attempt, kind, job.name.encode(), None, value, job.version))
    return rows


def encode_record_batch(logged: Iterable[Logged]) -> bytes:
    """The record batch message of these transactions and entries, empty bytes when they hold no item.

    Cost: O(rows).
    """
    rows = _rows_of(logged)
    if not rows:
        return b""
    version, request_id, read_version, kind, key, end, value, at = zip(*rows, strict=True)
    buffers = _Buffers()
    buffers.numbers(version)
    buffers.optional_texts(request_id)
    buffers.optional_numbers(read_version)
    buffers.node(len(rows), None)
    buffers.add(bytes(kind))
    buffers.texts(key)
    buffers.optional_texts(end)
    buffers.optional_texts(value, "q")
    buffers.optional_numbers(at)
    return b"".join((_metadata(len(rows), buffers), *buffers.parts))


def repeated_bytes(txn: Transaction) -> int:
    """The bytes of the request id in all rows of a transaction: a batch repeats it in each row."""
    if txn.request_id is None:
        return 0
    rows = len(txn.operations) + len(txn.preconditions) + len(txn.jobs) + txn.has_store_parts
    return (len(txn.request_id) if txn.request_id.isascii() else len(txn.request_id.encode())) * rows


def _metadata(rows: int, buffers: _Buffers) -> bytes:
    return _METADATA.pack(
        0xFFFFFFFF, METADATA_BYTES,
        16, *_MESSAGE_TABLE,
        12, 36, buffers.at, 4, 3,
        *_RECORD_BATCH_TABLE,
        10, 16, rows, 140,
        *chain((COLUMNS,), buffers.nodes),
        *chain((BUFFERS,), buffers.places),
    )  # fmt: skip
