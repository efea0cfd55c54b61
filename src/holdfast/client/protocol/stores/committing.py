"""Commit requests and verdicts as messages, for ``holdfast spark ingest``. Pure."""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.client.protocol.messages import decode_commit, error_of
from holdfast.commit.format.transaction import Transaction
from holdfast.errors import Code, CorruptData, HoldfastError
from holdfast.wire.formats import UNDECODABLE
from holdfast.wire.log import CommitReceipt, ErrorResponse, NotCommitted

CLIENT: Final = "client"
REQUEST_ID: Final = "request_id"
"""The fields of a request's message. Its verdict has the same."""
TEMPLATE: Final = "client"
"""Of the durables in which clients find their verdicts; each is deleted a day after its client has gone."""
REQUESTS_DURABLE: Final = {"type": "standard", "prefetch": 0}
"""Spark reads it under one name, in the order of the numbers."""
VERDICTS_STORE: Final = {
    "durables": {"by-request": {"type": "last_value", "message_ttl": "7d"}},
    "templates": {TEMPLATE: {"type": "shared", "durable_ttl": "1d", "message_ttl": "7d"}},
}
_ERROR: Final = msgspec.json.Decoder(ErrorResponse)


def request_body(txn: Transaction) -> bytes:
    """The message of a request, as ``POST /v1/commit`` takes it."""
    return msgspec.json.encode(txn)


def verdict_of(body: bytes) -> CommitReceipt | HoldfastError:
    """What a verdict's message says: a receipt, or the error that the service would raise. Raises: CorruptData."""
    verdict = decode_commit(body)
    if isinstance(verdict, NotCommitted):
        return verdict.error()
    if verdict is not None:
        return verdict
    try:
        error = _ERROR.decode(body).error
        Code(error.code)
    except (*UNDECODABLE, ValueError) as problem:
        raise CorruptData("a message is no verdict", body=body[:80].decode(errors="replace")) from problem
    return error_of(error, 400)
