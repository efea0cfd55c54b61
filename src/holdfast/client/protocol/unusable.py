"""Failures of a connection that last until somebody mends a configuration, told from those that pass.

Owns: which they are, and their words. Does not own: what follows from them (``core``, ``stream``, ``stores``).

Two kinds are certain. The certificate of the other side does not verify. Or its first bytes are of the other protocol:
something that is not TLS answers TLS, or an alert of TLS answers HTTP. A peer that only closes is none of them, because
a service that starts or stops does so too.

Both come before anything was read: of the handshake, or in place of the first answer of a plain connection. OpenSSL has
the same words for a connection whose TLS breaks later, when a request may have been accepted; then they say nothing of
the configuration. So a shell lets no error of ``ssl`` out of a connection that was made.

Failure model: whatever is not certain passes.
"""

from __future__ import annotations

import ssl
from typing import Final

from holdfast.client.protocol.endpoint import Endpoint
from holdfast.client.protocol.http1 import SpeaksTls
from holdfast.errors import Code, InvalidRequest

__all__ = ["problem_with", "reason_of"]

_NOT_TLS: Final = "WRONG_VERSION_NUMBER"
"""What OpenSSL says of a first record that is none of TLS."""


def problem_with(endpoint: Endpoint, error: BaseException) -> InvalidRequest | None:
    """Why ``endpoint`` cannot be talked to however often it is tried; None when trying again may help.

    An answer other than None says that nothing was accepted. ``error`` of ``ssl`` is of making the connection.
    """
    match error:
        case ssl.SSLCertVerificationError():
            return InvalidRequest(
                f"the certificate of the service does not verify: {error.verify_message or error}",
                code=Code.BAD_CONFIGURATION,
                hint="give tls= a context that trusts its authority, and an address that its certificate names",
                endpoint=endpoint,
            )
        case ssl.SSLError(reason=reason) if reason == _NOT_TLS:
            return InvalidRequest(
                "what listens there does not speak TLS",
                code=Code.BAD_CONFIGURATION,
                hint="use http://, or the port that speaks TLS",
                endpoint=endpoint,
            )
        case SpeaksTls():
            return InvalidRequest(
                "what listens there speaks TLS", code=Code.BAD_CONFIGURATION, hint="use https://", endpoint=endpoint
            )
        case _:
            return None


def reason_of(error: BaseException) -> str:
    """For people. A time-out of asyncio has no text of its own."""
    return f"{type(error).__name__}: {error}" if str(error) else f"{type(error).__name__}: no answer in time"
