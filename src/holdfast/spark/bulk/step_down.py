"""Asking the leader of a log to step down for a bulk job.

Owns: two small HTTP requests to an advertised address. Does not own: what follows (``commit.takeover``).

Failure model: liveness only; safety never depends on the answer. A leader that is there and does not step down is
reported as alive, and the job does not claim over it.
"""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from typing import Final

from holdfast.client.protocol.endpoint import parse_endpoint
from holdfast.client.protocol.http1 import token_of
from holdfast.errors import InvalidRequest

__all__ = ["ask_to_step_down"]

ANSWER_SECONDS_MAX: Final = 2.0
DRAIN_SECONDS_MAX: Final = 60.0


async def ask_to_step_down(address: str, token: str | None) -> str | None:
    """The leader id of the process at ``address`` if it leads and goes on leading, empty when it has stepped down or
    never led, None without an answer."""
    return await asyncio.to_thread(_ask, address, token)


def _ask(address: str, token: str | None) -> str | None:
    try:
        endpoint = parse_endpoint(address)
    except InvalidRequest:  # what the log's newest record says need not be an address
        return None
    if endpoint.unix_path is not None:
        return None
    leader = _leader(f"{endpoint}/livez")
    if not leader:
        return leader
    request = urllib.request.Request(f"{endpoint}/v1/admin/step-down", data=b"", method="POST")
    if token is not None:
        request.add_header("Authorization", f"Bearer {token_of(token)}")
    try:
        with urllib.request.urlopen(request, timeout=DRAIN_SECONDS_MAX):
            return ""
    except (OSError, ValueError):
        # Its answer may be lost in the end of its connections; who leads is what counts.
        return _leader(f"{endpoint}/livez")


def _leader(url: str) -> str | None:
    try:
        with urllib.request.urlopen(url, timeout=ANSWER_SECONDS_MAX) as answer:
            found = json.loads(answer.read(65_536))
    except urllib.error.HTTPError:
        return ""
    except (OSError, ValueError):
        return None
    leading = isinstance(found, dict) and found.get("leading")
    return str(found.get("leader_id", "")) if leading else ""
