"""Connections that have not sent a valid token: they share a part of all connections, the silent ones go first."""

from __future__ import annotations

from typing import Protocol


class Unknown(Protocol):
    """A connection without a valid token."""

    def abort(self) -> None:
        """Close at once."""
        ...


class UnknownConnections:
    """Those that are open, the one that has been silent longest first. ``most`` of them may be open.

    Cost: a move in a dict for each read of such a connection. Memory: one entry for each.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.closed = 0
        """How many had to go."""
        self._open: dict[Unknown, None] = {}

    def __len__(self) -> int:
        return len(self._open)

    def opened(self, connection: Unknown) -> None:
        """One more. At the bound the one that has been silent longest is closed."""
        if len(self._open) >= self.most:
            silent = next(iter(self._open))
            del self._open[silent]
            self.closed += 1
            silent.abort()
        self._open[connection] = None

    def heard(self, connection: Unknown) -> None:
        """It has sent something."""
        if connection in self._open:
            del self._open[connection]
            self._open[connection] = None

    def ended(self, connection: Unknown) -> None:
        """It is gone, or has sent a valid token."""
        self._open.pop(connection, None)
