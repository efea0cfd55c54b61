"""Checks of requests: their ``Host``, their parameters, the bytes of commits. Pure; a refused request changed nothing.

Rules of commits, in the order they are checked:

    malformed              not JSON (or msgpack) of the documented shape; unknown fields count as wrong, and a name that
                           is given twice
    bad_base64             a key, value or bound in JSON is not canonical base64 (``commit.format.json_request``)
    no_operations to bad_range  the rules of ``commit.format.request_rules``
    log_mismatch           the request names another log than this one
    rolled_back            it names a log that this one was forked from, with a version after the fork
    leader_changed         the request names another leader than this one
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Sequence
from typing import Final

import msgspec

from holdfast.commit.format.json_request import undecodable
from holdfast.commit.format.request_rules import ITEMS_MAX, problem_with_request
from holdfast.commit.format.transaction import Transaction, prefix_end
from holdfast.commit.reading.lineage import Lineage
from holdfast.errors import Code, Fenced, HoldfastError, InvalidRequest, Unavailable
from holdfast.values import VERSION_MAX, LogPosition, parse_position
from holdfast.wire.formats import UNDECODABLE, require_each_once

LINEAGE_AGAIN_MS: Final = 200

_MSGPACK: Final = msgspec.msgpack.Decoder(Transaction)
_MSGPACK_ITEMS: Final = msgspec.msgpack.Decoder(list[Transaction])
_encode_msgpack: Final = msgspec.msgpack.Encoder().encode


def decode_msgpack(data: bytes) -> Transaction:
    """The transaction in this msgpack map; keys and values are ``bin``. Raises: InvalidRequest (malformed)."""
    try:
        txn = _MSGPACK.decode(data)
        if txn.has_parts or _encode_msgpack(txn) != data:
            require_each_once(data, "msgpack")
    except UNDECODABLE as error:
        raise undecodable(error) from error
    return txn


def decode_msgpack_items(count: int, block: bytes) -> list[Transaction]:
    """The transactions of ``count`` consecutive whole maps. Raises: InvalidRequest when any is undecodable."""
    # Maps in a row are the inside of an array, so one decoder call does them all.
    whole = b"\xdd" + count.to_bytes(4, "big") + block
    try:
        txns = _MSGPACK_ITEMS.decode(whole)
        # What an encoder makes has each name once, so what equals it has, too.
        if b"".join(map(_encode_msgpack, txns)) != block or any(txn.has_parts for txn in txns):
            require_each_once(whole, "msgpack")
    except UNDECODABLE as error:
        raise undecodable(error) from error
    return txns


def problem_with(
    txn: Transaction,
    *,
    leader_id: str,
    log_id: str,
    lineage: Lineage | None = None,
    request_id_length_min: int,
    operations_max: int = ITEMS_MAX,
    preconditions_max: int = ITEMS_MAX,
) -> HoldfastError | None:
    """The first broken rule of a decoded transaction, or None. ``leader_id`` and ``log_id`` are this leader's,
    and ``lineage`` has the ancestors of the log, None while they are not known.
    """
    problem = problem_with_request(
        txn,
        request_id_length_min=request_id_length_min,
        operations_max=operations_max,
        preconditions_max=preconditions_max,
    )
    if problem is not None:
        return problem
    if txn.log_id is not None and txn.log_id != log_id:
        stranger = problem_with_stranger(txn, lineage)
        if stranger is not None:
            return stranger
    if txn.leader_id is not None and txn.leader_id != leader_id:
        return Fenced("another leader was named", code=Code.LEADER_CHANGED, leader_id=leader_id)
    return None


def problem_with_stranger(txn: Transaction, lineage: Lineage | None) -> HoldfastError | None:
    """The problem of a transaction that names another log; None when its versions are in this log as well."""
    if lineage is None:
        return Unavailable("the ancestors of this log are not known yet", retry_after_ms=LINEAGE_AGAIN_MS)
    versions = [read.version for read in txn.preconditions if read.version is not None]
    try:
        lineage.require(txn.log_id, max([txn.read_version or 0, *versions]))
    except InvalidRequest as error:
        return error
    return None


# RFC 3986, section 3.2.2: an address in brackets (with its zone, which careless clients leave there), or a registered
# name, which may be empty and of whose form an IPv4 address is.
_HOST: Final = re.compile(rb"(?:\[[0-9A-Za-z.:%_~-]+\]|(?:[A-Za-z0-9._~!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*)(?::[0-9]*)?")


def problem_with_host(hosts: Sequence[bytes]) -> InvalidRequest | None:
    """What is wrong with a request that has these Host fields, or None.

    >>> problem_with_host([b"log.example:8080"]), problem_with_host([b"[::1]"]), problem_with_host([b""])
    (None, None, None)
    >>> [str(problem_with_host(wrong)) for wrong in ([], [b"a", b"a"], [b"a/b"])]  # doctest: +NORMALIZE_WHITESPACE
    ['a request of HTTP/1.1 has a Host field', 'a request has one Host field', 'the Host field names no host']
    """
    if not hosts:
        return InvalidRequest("a request of HTTP/1.1 has a Host field")
    if len(hosts) > 1:
        return InvalidRequest("a request has one Host field")
    return None if _HOST.fullmatch(hosts[0].strip(b" \t")) else InvalidRequest("the Host field names no host")


def whole_number(name: str, text: str, *, low: int, high: int) -> int:
    """A whole number in plain decimal digits. Raises: InvalidRequest."""
    if text.isascii() and text.isdigit() and len(text) <= 20 and low <= int(text) <= high:
        return int(text)
    raise InvalidRequest(f"{name} is a whole number from {low} to {high}")


def position_of(name: str, text: str) -> LogPosition:
    """A version with or without its log's id, as in event ids. Raises: InvalidRequest."""
    position = parse_position(text)
    if position is None:
        raise InvalidRequest(
            f"{name} is VERSION, VERSION@LOGID or VERSION~LEADER@LOGID: a whole number up to {VERSION_MAX}, and ids of "
            "32 hexadecimal digits"
        )
    return position


def key_from_text(name: str, text: str, *, hint: str = "") -> bytes:
    """The bytes of a key in canonical base64url, padding optional. Raises: InvalidRequest (bad_base64)."""
    plain = text.rstrip("=")
    padded = plain + "=" * (-len(plain) % 4)
    try:
        key = base64.urlsafe_b64decode(padded) if text in (plain, padded) else None
    except (binascii.Error, ValueError):
        key = None
    # What is not of the alphabet was left out, so it does not come back.
    if key is None or base64.urlsafe_b64encode(key).decode() != padded:
        raise InvalidRequest(f"{name} is not base64url", code=Code.BAD_BASE64, hint=hint)
    return key


def range_of(
    begin: bytes | None, end: bytes | None, prefix: bytes | None, place: str = ""
) -> tuple[bytes, bytes | None]:
    """The keys from ``begin`` up to ``end``, or all that start with ``prefix``. Raises: InvalidRequest.

    ``place``: where the request has them, for the error.
    """
    if prefix is not None:
        if begin is not None or end is not None:
            raise InvalidRequest(f"prefix excludes begin and end: it is a range by itself{place}")
        return prefix, prefix_end(prefix)
    if end is not None and (begin or b"") >= end:
        raise InvalidRequest(f"begin must be below end{place}", code=Code.BAD_RANGE)
    return begin or b"", end


def text_key(name: str, text: str) -> bytes:
    """The UTF-8 of a text in a URL. Raises: InvalidRequest where it was not UTF-8 there."""
    if "\ufffd" in text:
        # It stands for bytes that could not be decoded.
        raise InvalidRequest(f"{name} is not UTF-8", hint="a key that is not text is given in base64url")
    return text.encode()
