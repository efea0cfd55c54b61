"""Subscribers of a world of the log: what they saw must be the log, whichever node led.

This is a model of the change stream (history, then live, over changes of the leader), proved by ``prev_version``. It
has no ring and no requests as the real stream has (``commit/reading/feed``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.commit.format.batch import Header, LoggedTransaction

if TYPE_CHECKING:
    from tests.worlds.log.node import Node
    from tests.worlds.log.world import World

__all__ = ["Follower"]


class Follower:
    """One subscriber. A durable one keeps what it saw; the other also sees early, and rolls back at a leader's end."""

    __slots__ = ("_after", "_durable", "_early_upto", "_node", "_world", "seen")

    def __init__(self, world: World, *, durable: bool) -> None:
        self._world = world
        self._durable = durable
        self._node: Node | None = None
        self._after = 0
        self._early_upto = 0
        self.seen: list[int] = []

    def heard(self, node: Node, header: Header, transactions: Sequence[LoggedTransaction]) -> None:
        """A leader shows a durable batch."""
        if self._node is None:
            self._attach(node, header)
        if node is not self._node:
            return
        previous: int = header.prev_version
        for txn in transactions:
            self._take(txn.version, previous)
            previous = txn.version
        if not self._durable:
            self._peek(node)

    def _attach(self, node: Node, header: Header) -> None:
        """History from the store up to where the live stream goes on."""
        self._node = node
        self._after = after = self.seen[-1] if self.seen else 0
        for version in self._world.promises.versions:
            if after < version <= header.prev_version:
                self.seen.append(version)
        self._early_upto = self.seen[-1] if self.seen else 0

    def _take(self, version: int, previous: int) -> None:
        last = self.seen[-1] if self.seen else 0
        if version <= self._after:
            # A deposed leader may still learn what it made durable. A subscriber that resumed above it sees it once.
            if version not in self._world.promises.transactions:
                self._world.promises.break_("a subscriber misses nothing", f"{version} is shown and not in the log")
            return
        if version <= self._early_upto and not self._durable:
            if version not in self.seen[-200:]:
                self._world.promises.break_("what is shown early becomes durable in order", f"{version} was not shown")
            return
        if previous != last:
            self._world.promises.break_(
                "a subscriber misses nothing", f"{version} follows {previous}, seen up to {last}"
            )
        self.seen.append(version)

    def _peek(self, node: Node) -> None:
        """Everything accepted and not durable yet is shown early as well."""
        for version in node.early_versions():
            if not self.seen or version > self.seen[-1]:
                self.seen.append(version)
        self._early_upto = max(self._early_upto, self.seen[-1] if self.seen else 0)

    def lost(self, node: Node) -> None:
        """The leader's stream ended: roll back to what the log kept of its leadership, as the next leader will say."""
        if node is not self._node:
            return
        self._node = None
        kept = self._world.promises.transactions
        while self.seen and self.seen[-1] not in kept:
            self.seen.pop()
        self._early_upto = self.seen[-1] if self.seen else 0

    def lost_at_the_end(self) -> None:
        """The world is over."""
        if self._node is not None:
            self.lost(self._node)

    def check(self) -> None:
        """What was seen is a beginning of the log, without a gap."""
        if self.seen != self._world.promises.versions[: len(self.seen)]:
            self._world.promises.break_("a subscriber misses nothing", f"{len(self.seen)} seen")
