"""Commit requests and verdicts as messages, for ``holdfast spark ingest``. Pure."""

from __future__ import annotations

from typing import Final

from holdfast.client.protocol.messages import decode_commit, error_in, error_of
from holdfast.errors import CorruptData, HoldfastError, NotFound, OutcomeUnknown
from holdfast.wire.log import CommitReceipt, NotCommitted

CLIENT: Final = "client"
REQUEST_ID: Final = "request_id"
"""The fields of a request's message. Its verdict has the same."""
TEMPLATE: Final = "client"
"""Of the durables in which clients find their verdicts; each is deleted a day after its client has gone."""
HELD_MAX: Final = 10_000
"""Verdicts that a committer holds at most while no caller asks for them. The store keeps them and all later ones."""
PREFETCH: Final = HELD_MAX + 1_024
"""Held verdicts are unacknowledged. The rest of the window is for those that a caller waits for."""
REQUESTS_DURABLE: Final = {"type": "standard", "prefetch": 0}
"""Spark reads it under one name, in the order of the numbers."""
VERDICTS_STORE: Final = {
    "durables": {"by-request": {"type": "last_value", "message_ttl": "7d"}},
    "templates": {
        # A held verdict has the whole ``message_ttl``: a visibility timeout would deliver it again and again.
        TEMPLATE: {
            "type": "shared",
            "durable_ttl": "1d",
            "message_ttl": "7d",
            "ack_wait": "7d",
            "prefetch": PREFETCH,
        }
    },
}


def perhaps_sent(request_id: str, reason: str) -> OutcomeUnknown:
    """The store did not confirm the request."""
    return OutcomeUnknown(
        "it is not known whether the store has the request",
        hint="verdict(request_id) waits for its verdict; repeat it only with the same request_id and read_version",
        request_id=request_id,
        reason=reason,
    )


def no_stores(error: NotFound) -> NotFound:
    """The error of a store that does not exist, with what makes it."""
    hint = "start `holdfast spark ingest`, or call define_spark_stores: either makes the stores that are missing"
    return NotFound(error.message, code=error.code, hint=hint, facts=error.fields)


def no_verdict(request_id: str, reason: str, held: int, oldest: str | None) -> OutcomeUnknown:
    """The verdict of a request is not here. ``held``: how many verdicts are that no caller asks for; ``oldest``: the
    request of the first of them."""
    hint = "ask again by verdict(request_id); is `holdfast spark ingest` running?"
    if held:
        hint += " Held verdicts take room: ask for them too, by verdict(oldest_held)"
    return OutcomeUnknown(
        f"{reason}: the request may be committed later",
        hint=hint,
        request_id=request_id,
        verdicts_held=held or None,
        oldest_held=oldest,
    )


def verdict_of(body: bytes) -> CommitReceipt | HoldfastError:
    """What a verdict's message says: a receipt, or the error that the service would raise. Raises: CorruptData."""
    verdict = decode_commit(body)
    if isinstance(verdict, NotCommitted):
        return verdict.error()
    if verdict is not None:
        return verdict
    error = error_in(body)
    if error is None:
        raise CorruptData("a message is no verdict", body=body[:80].decode(errors="replace"))
    return error_of(error, 400)
