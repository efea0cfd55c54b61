"""Commit requests in JSON: keys and values in canonical base64, or as text.

A key, value or bound has two fields, of which a request gives one: ``key`` in standard base64 with padding, or
``key_text``, the text whose UTF-8 is meant. Any bytes give a ``Transaction`` or an ``InvalidRequest``. Most requests
are decoded directly into a ``Transaction``; a request with text, or with base64 that may not be canonical, is decoded
a second time, more slowly, into the types below. A name that is given twice is refused.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Sequence
from typing import Annotated, Final, TypeAlias

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from holdfast.commit.format.transaction import (
    Delete,
    JobChange,
    Operation,
    Part,
    PointRead,
    Precondition,
    RangeDelete,
    RangeRead,
    RequestVersion,
    Transaction,
    Write,
)
from holdfast.errors import Code, InvalidRequest
from holdfast.values import GivenTwice
from holdfast.wire.formats import UNDECODABLE, require_each_once

_QUAD: Final = "[A-Za-z0-9+/]"
_CANONICAL: Final = f"^({_QUAD}{{4}})*({_QUAD}[AQgw]==|{_QUAD}{{2}}[AEIMQUYcgkosw048]=)?$"

# What the schema says and the decoder does not check: ``_bytes_of`` does, with a code of its own.
_Base64: TypeAlias = Annotated[str, Meta(extra_json_schema={"contentEncoding": "base64", "pattern": _CANONICAL})]
Given: TypeAlias = _Base64 | UnsetType
"""A field in base64."""
Text: TypeAlias = str | UnsetType
"""The same field as text, in its place."""


class JsonPointRead(Struct, tag_field="type", tag="point_read", frozen=True, forbid_unknown_fields=True):
    """Holds when nothing changed the key after ``version`` (default: the transaction's read version)."""

    key: Given = UNSET
    key_text: Text = UNSET
    version: RequestVersion | None = None


class JsonRangeRead(Struct, tag_field="type", tag="range_read", frozen=True, forbid_unknown_fields=True):
    """Holds when nothing changed in [begin, end) after ``version`` (default: the transaction's read version)."""

    begin: Given = UNSET
    begin_text: Text = UNSET
    end: Given | None = UNSET
    end_text: Text = UNSET
    version: RequestVersion | None = None


class JsonWrite(Struct, tag_field="type", tag="write", frozen=True, forbid_unknown_fields=True):
    """Set a key to a value."""

    key: Given = UNSET
    key_text: Text = UNSET
    value: Given = UNSET
    value_text: Text = UNSET


class JsonDelete(Struct, tag_field="type", tag="delete", frozen=True, forbid_unknown_fields=True):
    """Remove a key. Counts as a change of it whether or not it was there."""

    key: Given = UNSET
    key_text: Text = UNSET


class JsonRangeDelete(Struct, tag_field="type", tag="range_delete", frozen=True, forbid_unknown_fields=True):
    """Remove every key in [begin, end). Counts as a change of every key in it."""

    begin: Given = UNSET
    begin_text: Text = UNSET
    end: Given | None = UNSET
    end_text: Text = UNSET


class JsonJobChange(Struct, frozen=True, forbid_unknown_fields=True):
    """Set the record of a job, or with null remove it and those of all jobs below ``name/``. It holds when nothing
    changed the record after ``version`` (default: the transaction's read version); without a value it is that alone."""

    name: str
    value: Given | None = UNSET
    value_text: Text = UNSET
    version: RequestVersion | None = None


class JsonTransaction(Struct, frozen=True, forbid_unknown_fields=True):
    """A commit request: apply the operations if every precondition holds.

    Each key, value and bound is given in base64 or as text. Later operations win over earlier ones on the same key.
    ``leader_id`` refuses any other leader, and ``log_id`` any other log than the one that the versions of the request
    belong to. ``request_id`` (with ``read_version``) names the attempt.
    """

    operations: list[JsonWrite | JsonDelete | JsonRangeDelete]
    preconditions: list[JsonPointRead | JsonRangeRead] = []
    request_id: str | None = None
    leader_id: str | None = None
    read_version: RequestVersion | None = None
    log_id: str | None = None
    acknowledge: Part = UNSET
    maps: Part = UNSET
    publish: Part = UNSET
    jobs: list[JsonJobChange] = []


SEARCHED_BYTES_MIN: Final = 256
"""So many bytes for each member: searching, which is quick for long values and slow for each hit, beats counting."""

WRITE_MEMBERS: Final = 4
"""Those of one write: ``operations``, ``type``, ``key`` and ``value``."""

_DECODER: Final = msgspec.json.Decoder(Transaction)
_EXACT_DECODER: Final = msgspec.json.Decoder(JsonTransaction)

# Begins with a character, so that the search is one for it: quicker than any other way that was tried.
_loose_base64: Final = re.compile(rb'=(?:"(?<![AEIMQUYcgkosw048=]=")|="(?<![AQgw]=="))').search
"""Finds padding after bits that the decoder ignores. A match means the slow decoder, never an error."""
_FIELD: Final = re.compile(r"`\$\S*?(key|value|begin|end)`$")


def decode_json(data: bytes) -> Transaction:
    """The transaction in this JSON document. Raises: InvalidRequest (malformed, bad_base64)."""
    try:
        txn = _DECODER.decode(data)
        if _loose_base64(data) is not None:
            return _decode_exactly(data)
        if not _writes_once(data, txn) and not _has_colons(data, _members_of((txn,))):
            require_each_once(data)
    except UNDECODABLE as error:
        if not isinstance(error, GivenTwice) and (b"_text" in data or b"\\u" in data):
            return _decode_exactly(data)
        raise undecodable(error) from error
    return txn


def decode_json_lines(block: bytes) -> list[Transaction]:
    """The transactions of a block of complete lines, in order, without blank lines.

    Raises: InvalidRequest when a line is undecodable; the caller then decodes line by line.
    """
    try:
        txns = _DECODER.decode_lines(block)
    except UNDECODABLE as error:
        if b"_text" not in block and b"\\u" not in block:
            raise undecodable(error) from error
    else:
        if _loose_base64(block) is None and _has_colons(block, _members_of(txns)):
            return txns
    return [decode_json(line) for line in block.split(b"\n") if line.strip()]


def _writes_once(data: bytes, txn: Transaction) -> bool:
    """Whether this is one write in as few members as that takes: the usual commit, and a quick look at it."""
    operations = txn.operations
    if len(operations) != 1 or type(operations[0]) is not Write or len(data) > SEARCHED_BYTES_MIN * WRITE_MEMBERS:
        return False
    return data.count(b":") == WRITE_MEMBERS


def _members_of(txns: Sequence[Transaction]) -> int:
    """How many members of objects it takes to write the transactions: of each name one, and none for a default."""
    members = 0
    for txn in txns:
        members += 1
        for operation in txn.operations:
            if type(operation) is Write:
                members += 3
            else:
                members += 2
                if type(operation) is RangeDelete and operation.end is not None:
                    members += 1
        if reads := txn.preconditions:
            members += 1
            for read in reads:
                members += 2 if read.version is None else 3
                if type(read) is RangeRead and read.end is not None:
                    members += 1
        if txn.request_id is not None:
            members += 1
        if txn.read_version is not None:
            members += 1
        if txn.leader_id is not None:
            members += 1
        if txn.log_id is not None:
            members += 1
    return members


def _has_colons(data: bytes, count: int) -> bool:
    """Whether there are exactly so many. With ``_members_of`` it proves that no name is given twice.

    A document has a colon for each member, and those of its texts. So it has at least the members that were kept, and
    more if one was dropped, is a default, or if a text or a part for the stores has one: then the proof fails.
    """
    if len(data) < SEARCHED_BYTES_MIN * count:
        return data.count(b":") == count
    position = -1
    for _ in range(count):
        position = data.find(b":", position + 1)
        if position < 0:
            return False
    return data.find(b":", position + 1) < 0


def undecodable(error: Exception) -> InvalidRequest:
    """The error for bytes that a decoder refused."""
    # Only the decoder's text distinguishes base64 errors; the tests pin the text for the locked version.
    text = "text is not UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)
    if not text.startswith("Invalid base64"):
        return InvalidRequest(f"the request cannot be decoded: {text}", code=Code.MALFORMED)
    return _bad_base64(text)


def _bad_base64(text: str) -> InvalidRequest:
    field = _FIELD.search(text)
    instead = "" if field is None else f"; give plain text in {field[1]}_text"
    return InvalidRequest(
        f"the request cannot be decoded: {text}",
        code=Code.BAD_BASE64,
        hint=f"bytes are standard base64 with padding{instead}",
    )


def _decode_exactly(data: bytes) -> Transaction:
    try:
        request = _EXACT_DECODER.decode(data)
        require_each_once(data)
    except UNDECODABLE as error:
        raise undecodable(error) from error
    return Transaction(
        [_operation(each, f"$.operations[{index}]") for index, each in enumerate(request.operations)],
        [_precondition(each, f"$.preconditions[{index}]") for index, each in enumerate(request.preconditions)],
        request.request_id,
        request.leader_id,
        request.read_version,
        request.log_id,
        request.acknowledge,
        request.maps,
        request.publish,
        tuple(_job(each, f"$.jobs[{index}]") for index, each in enumerate(request.jobs)),
    )


def _operation(given: JsonWrite | JsonDelete | JsonRangeDelete, path: str) -> Operation:
    match given:
        case JsonWrite():
            key = required_bytes("key", given.key, given.key_text, path)
            return Write(key, required_bytes("value", given.value, given.value_text, path))
        case JsonDelete():
            return Delete(required_bytes("key", given.key, given.key_text, path))
        case JsonRangeDelete():
            begin = required_bytes("begin", given.begin, given.begin_text, path)
            return RangeDelete(begin, optional_bytes("end", given.end, given.end_text, path))


def _precondition(given: JsonPointRead | JsonRangeRead, path: str) -> Precondition:
    match given:
        case JsonPointRead():
            return PointRead(required_bytes("key", given.key, given.key_text, path), given.version)
        case JsonRangeRead():
            begin = required_bytes("begin", given.begin, given.begin_text, path)
            return RangeRead(begin, optional_bytes("end", given.end, given.end_text, path), given.version)


def _job(given: JsonJobChange, path: str) -> JobChange:
    if given.value is UNSET and given.value_text is UNSET:
        return JobChange(given.name, UNSET, given.version)
    return JobChange(given.name, optional_bytes("value", given.value, given.value_text, path), given.version)


def required_bytes(name: str, given: str | UnsetType, text: str | UnsetType, path: str) -> bytes:
    """The bytes of a field that is given in base64, or as text. Raises: InvalidRequest (malformed, bad_base64)."""
    value = optional_bytes(name, given, text, path)
    if value is None:
        raise InvalidRequest(f"the request cannot be decoded: {name} or {name}_text is required - at `{path}`")
    return value


def optional_bytes(name: str, given: str | UnsetType | None, text: str | UnsetType, path: str) -> bytes | None:
    """The same, or None where neither is given."""
    if text is UNSET:
        return None if given is UNSET or given is None else _bytes_of(given, f"{path}.{name}")
    if given is not UNSET:
        raise InvalidRequest(f"the request cannot be decoded: {name} and {name}_text exclude each other - at `{path}`")
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(
            f"the request cannot be decoded: the text is not Unicode - at `{path}.{name}_text`"
        ) from None


def _bytes_of(text: str, path: str) -> bytes:
    try:
        value = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        value = None
    if value is None or base64.b64encode(value).decode() != text:
        raise _bad_base64(f"Invalid base64 encoded string - at `{path}`")
    return value
