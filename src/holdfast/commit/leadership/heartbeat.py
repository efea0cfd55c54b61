"""When an idle leader writes an empty batch: after a standby has stopped to ask.

Owns: which standbys ask, which of them missed a question, and when the next heartbeat is due. Does not own: timers
(``service``), the empty batch (``persist``), what a standby makes of a silent log (``takeover_machine``).

While the questions of every standby arrive, nothing is written. A standby that missed one may be cut off from this
process and see the log only: for it a heartbeat is written every ``heartbeat_ms`` for a minute, then every 30 s, until
it asks again, for at most a day. Liveness only; safety never depends on it.
"""

from __future__ import annotations

import re
from typing import Final

from holdfast.values import Slot

__all__ = ["Heartbeat", "encode_proof", "parse_proof"]

_PROOF: Final = re.compile(r"([0-9]{1,20}):([0-9a-f]{32})")

FAST_MS: Final = 61_000.0
"""A second more than a standby reckons with (``TakeoverRules.fresh_ms``)."""
SLOW_EVERY_MS: Final = 30_000.0
FORGOTTEN_MS: Final = 86_400_000.0
STANDBYS_MAX: Final = 64
"""Standbys beyond are counted as one: while any of them asks, none has missed a question."""
OTHERS: Final = ""


def encode_proof(slot: Slot, nonce: bytes) -> str:
    """What a standby sends to prove that it can read the log: the slot and the nonce of an object of the leader."""
    return f"{slot}:{nonce.hex()}"


def parse_proof(proof: str) -> tuple[Slot, bytes] | None:
    """The slot and the nonce, None for any other text."""
    match = _PROOF.fullmatch(proof)
    if match is None or (slot := int(match[1])) >= 1 << 64:
        return None
    return Slot(slot), bytes.fromhex(match[2])


class Heartbeat:
    """The questions of standbys and the heartbeats that follow from them.

    A question is missed when none came for half of ``silence_ms``, which is longer than the time between two.
    """

    __slots__ = ("_asked_ms", "_beaten_ms", "_heartbeat_ms", "_missed_ms")

    def __init__(self, *, silence_ms: float, heartbeat_ms: float) -> None:
        self._missed_ms = silence_ms / 2.0
        self._heartbeat_ms = heartbeat_ms
        self._asked_ms: dict[str, float] = {}
        self._beaten_ms = -FORGOTTEN_MS

    def asked(self, standby: str, now_ms: float) -> None:
        """A standby asked; ``standby`` tells it from others, also after a restart of its process."""
        if standby not in self._asked_ms and len(self._asked_ms) >= STANDBYS_MAX:
            standby = OTHERS
        self._asked_ms[standby] = now_ms

    def written(self, now_ms: float) -> None:
        """A batch was written: it is as good a sign of life as a heartbeat."""
        self._beaten_ms = now_ms

    def due(self, now_ms: float) -> bool:
        """Whether a heartbeat is to be written now."""
        due_ms = self.next_ms(now_ms)
        return due_ms is not None and due_ms <= now_ms

    def next_ms(self, now_ms: float) -> float | None:
        """When the next heartbeat is due if no question comes until then, None for never."""
        due: list[float] = []
        for standby, asked_ms in [*self._asked_ms.items()]:
            missed_ms = asked_ms + self._missed_ms
            if now_ms >= missed_ms + FORGOTTEN_MS:
                del self._asked_ms[standby]
                continue
            fast_ms = max(missed_ms, self._beaten_ms + self._heartbeat_ms)
            slow_ms = max(missed_ms, self._beaten_ms + SLOW_EVERY_MS)
            due_ms = fast_ms if fast_ms < missed_ms + FAST_MS else slow_ms
            if due_ms < missed_ms + FORGOTTEN_MS:
                due.append(due_ms)
        return min(due, default=None)
