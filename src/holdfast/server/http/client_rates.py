"""How many commits each client may send in a second.

Owns: the budget of every client and what is remembered of them. Does not own: who a client is and what it is told (the
lanes), what the service as a whole can take (``front``'s admission).

Each client has a bucket that holds one second's worth and fills evenly. It is kept as one number, the instant at which
the bucket will be full again: a commit moves that instant on by its share of a second, and is refused when the instant
would then be more than a second away (the generic cell rate algorithm of ATM Forum TM 4.0, its virtual scheduling).

Failure model: pure; the caller brings the time. At most ``clients_max`` clients are remembered. When one more comes,
the one that was heard least recently is forgotten and would find a full bucket on its return, which it has anyway once
it was silent for a second: so the bound lets too much through only while more clients than that commit within one
second, and then for those alone that it forgets; it never refuses too much.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

__all__ = ["CLIENTS_MAX", "ClientRates"]

CLIENTS_MAX: Final = 16_384
BURST_SECONDS: Final = 1.0
_ROUNDING_SECONDS: Final = 1e-6
"""Sums of fractions of a second do not meet a second exactly."""

ClientKey = bytes | str


class ClientRates:
    """The buckets of all clients. ``now`` is seconds of a clock that never steps back, the same in every call.

    >>> rates = ClientRates(2)
    >>> [rates.wait_for_one("peer", 10.0) for _ in range(3)]
    [0.0, 0.0, 0.5]
    >>> rates.wait_for_one("peer", 10.5)
    0.0
    """

    __slots__ = ("_clients_max", "_full_at", "_share_seconds", "per_second_max")

    def __init__(self, per_second_max: int, *, clients_max: int = CLIENTS_MAX) -> None:
        assert per_second_max >= 1, "a rate of none is no limit but an end"
        assert clients_max >= 1, "at least the client that asks is remembered"
        self.per_second_max = per_second_max
        self._share_seconds = 1.0 / per_second_max
        self._clients_max = clients_max
        self._full_at: OrderedDict[ClientKey, float] = OrderedDict()
        """Least recently heard first."""

    def __len__(self) -> int:
        """How many clients are remembered."""
        return len(self._full_at)

    def wait_for_one(self, client: ClientKey, now: float) -> float:
        """Take one commit from the budget and return 0; or take nothing and return the seconds until one is there."""
        full_at = max(self._full_at.pop(client, now), now)
        moved = full_at + self._share_seconds
        wait = moved - now - BURST_SECONDS
        if wait <= _ROUNDING_SECONDS:
            self._remember(client, moved)
            return 0.0
        self._remember(client, full_at)
        return wait

    def wait_after_taking(self, client: ClientKey, commits: int, now: float) -> float:
        """Take ``commits`` from the budget in any case, and return the seconds until it bears them.

        For streams, which are slowed and not refused: whoever takes must wait that long before it goes on.
        """
        moved = max(self._full_at.pop(client, now), now) + commits * self._share_seconds
        self._remember(client, moved)
        return max(0.0, moved - now - BURST_SECONDS)

    def check(self) -> None:
        """Assert the invariants."""
        assert len(self._full_at) <= self._clients_max, "the table is bounded"

    def _remember(self, client: ClientKey, full_at: float) -> None:
        table = self._full_at
        if len(table) >= self._clients_max:
            table.popitem(last=False)
        table[client] = full_at
