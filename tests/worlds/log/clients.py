"""The clients of a world of the log. Workloads: bank, ring, exactly-once counter, blind writes, range deletes.

After an unknown outcome a client asks for the status of its attempt. It never sends it again blindly.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from tests.worlds.log.promises import BANK, COUNTER, OPENING_BALANCE, RING, Attempt, Promises

from holdfast.commit.format.transaction import (
    Delete,
    Operation,
    PointRead,
    Precondition,
    RangeDelete,
    RangeRead,
    Transaction,
    Write,
)

if TYPE_CHECKING:
    from tests.worlds.log.node import Node
    from tests.worlds.log.world import World

__all__ = ["Client"]

ANSWER_TIMEOUT_MS = 900.0


class Client:
    """One client with one attempt at a time."""

    __slots__ = ("_asked_early", "_asks", "_world", "attempt", "attempts", "name", "number", "reuse", "txn")

    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self.name = name
        self.number = 0
        self.attempt: Attempt | None = None
        self.txn: Transaction | None = None
        self.attempts: list[Attempt] = []
        self.reuse: tuple[str, int] | None = None
        self._asked_early: Attempt | None = None
        self._asks = 0

    # -- making an attempt --------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Read something, decide something, send it."""
        world = self._world
        if self.attempt is not None or world.closing:
            return
        node = world.believed_leader()
        if node is None:
            world.agenda.after(50.0, None, self.begin)
            return
        if self._asked_early is None and self._ask_early(node):
            return
        early = node.early_versions()[-1:] if self._asked_early else []
        self._asked_early = None
        read_version = early[0] if early else self._read_version(node)
        reuses = self.reuse is not None
        request_id = self._request_id(read_version)
        self.number += 1
        marker = f"m/{self.name}-{self.number}"
        operations, preconditions = draw_work(world.random, world.promises, world.shape.hot_keys, read_version)
        if early:
            # What was shown early may vanish: nothing may follow from it.
            operations.clear()
            operations.append(Write(b"x/early", b""))
            preconditions.clear()
        elif reuses and world.random.random() < 0.7 and len(world.promises.versions) > 30:
            # A second attempt under the same id that is bound to fail: what was said of the first must stay true.
            preconditions.append(RangeRead(b"", None, world.promises.versions[-30]))
        if request_id is None:
            operations.append(Write(marker.encode(), b""))
        txn = Transaction(operations, preconditions, request_id, None, read_version)
        attempt = Attempt((request_id or marker, read_version if request_id else 0), request_id)
        self.attempt, self.txn = attempt, txn
        self.attempts.append(attempt)
        self._send(node, attempt, txn)
        if request_id is not None and world.strikes("client_copy", 0.05):
            elsewhere = world.believed_leader() or node
            world.agenda.after(world.random.choice((10.0, 500.0, 5_000.0)), elsewhere, elsewhere.receive, attempt, txn)
        world.agenda.after(ANSWER_TIMEOUT_MS, None, self._no_answer, attempt)

    def _ask_early(self, node: Node) -> bool:
        """Ask once more for the attempt whose id is used again, and begin a moment later from what is shown early.

        The new attempt is then in flight after the question, under its id.
        """
        world = self._world
        if self.reuse is None or not world.strikes("status_copy", 0.3):
            return False
        self._asked_early = next(a for a in reversed(self.attempts) if a.request_id == self.reuse[0])
        world.agenda.after(0.0, node, node.asked_status, self._asked_early)
        world.agenda.after(world.shape.latency_ms * world.random.random(), None, self.begin)
        return True

    def _read_version(self, node: Node) -> int:
        random = self._world.random
        newest = node.readable_version()
        if random.random() < 0.1 and self._world.promises.versions:
            # An old snapshot: some still inside the window, some long below it.
            return min(newest, random.choice(self._world.promises.versions[-50:]))
        return newest

    def _request_id(self, read_version: int) -> str | None:
        if self.reuse is not None and read_version > self.reuse[1]:
            request_id, self.reuse = self.reuse[0], None
            self._world.seen["request_id_used_again"] += 1
            return request_id
        self.reuse = None
        return None if self._world.random.random() < 0.2 else f"{self.name}-{self.number}"

    def _send(self, node: Node, attempt: Attempt, txn: Transaction) -> None:
        world = self._world
        if world.strikes("client_request_lost", 0.03):
            return
        delay = world.network.delay_ms()
        if world.strikes("client_request_late", 0.05):
            # It arrives when its client has long asked for its status.
            delay = ANSWER_TIMEOUT_MS + world.random.choice((100.0, 300.0, 2_000.0)) * world.random.random()
        world.agenda.after(delay, node, node.receive, attempt, txn)

    # -- answers ------------------------------------------------------------------------------------------------------

    def committed(self, attempt: Attempt, version: int) -> None:
        """The leader says: committed."""
        if attempt is self.attempt:
            attempt.committed_at = version
            self._settle(attempt)

    def denied(self, attempt: Attempt) -> None:
        """The leader says: not committed, and never will be."""
        if attempt is self.attempt:
            attempt.denied = True
            if attempt.request_id is not None and self._world.random.random() < 0.4:
                self.reuse = (attempt.request_id, attempt.txn_read_version)
            self._settle(attempt)

    def unknown(self, attempt: Attempt) -> None:
        """The outcome is unknown: ask status by the request id; without one the attempt stays unknown."""
        if attempt is not self.attempt:
            return
        if attempt.request_id is None:
            self._settle(attempt)
        else:
            self._ask(attempt)

    def _no_answer(self, attempt: Attempt) -> None:
        if attempt is self.attempt and not self._asks:
            self.unknown(attempt)

    def _ask(self, attempt: Attempt) -> None:
        if attempt is not self.attempt:
            return
        self._asks += 1
        world = self._world
        node = world.believed_leader()
        if node is not None:
            world.seen["status_asked"] += 1
            world.agenda.after(world.network.delay_ms(), node, node.asked_status, attempt)
            if world.strikes("status_copy", 0.2):
                # The question arrives once more, when its client may have gone on with another attempt under the id.
                late_ms = world.random.choice((20.0, 100.0, 500.0, 3_000.0)) * world.random.random()
                elsewhere = world.believed_leader() or node
                world.agenda.after(late_ms, elsewhere, elsewhere.asked_status, attempt)
        world.agenda.after(ANSWER_TIMEOUT_MS, None, self._ask_again, attempt, self._asks)

    def _ask_again(self, attempt: Attempt, asks: int) -> None:
        if attempt is self.attempt and self._asks == asks:
            self._ask(attempt)

    def _settle(self, attempt: Attempt) -> None:
        attempt.complete = True
        self.attempt = self.txn = None
        self._asks = 0
        world = self._world
        world.agenda.after(world.shape.think_ms * (0.1 + 2 * world.random.random()), None, self.begin)


def draw_work(
    random: Random, promises: Promises, keys: int, version: int
) -> tuple[list[Operation], list[Precondition]]:
    """One transaction's operations and preconditions, as decided from what stood at ``version``."""
    kind = random.random()
    if kind < 0.35:
        return _transfer(random, promises, keys, version)
    if kind < 0.55:
        return _turn_ring(random, promises, keys, version)
    if kind < 0.75:
        key = b"%s0" % COUNTER
        before = promises.value(key, version)
        return [Write(key, b"%d" % (int(before or b"0") + 1))], [PointRead(key)]
    if kind < 0.9:
        return [Write(b"x/%d" % random.randrange(keys * 4), b"%d" % version)], []
    begin, end = sorted((b"x/%d" % random.randrange(keys * 4), b"x/%d~" % random.randrange(keys * 4)))
    if kind < 0.95:
        return [RangeDelete(begin, end)], []
    return [Delete(b"x/%d" % random.randrange(keys * 4))], [RangeRead(begin, end, version)]


def _transfer(
    random: Random, promises: Promises, keys: int, version: int
) -> tuple[list[Operation], list[Precondition]]:
    source, target = random.sample(range(keys), 2)
    amount = random.randrange(1, 9)
    operations: list[Operation] = []
    for account, change in ((source, -amount), (target, amount)):
        key = b"%s%d" % (BANK, account)
        before = promises.value(key, version)
        balance = OPENING_BALANCE if before is None else int(before)
        operations.append(Write(key, b"%d" % (balance + change)))
    reads: list[Precondition]
    if random.random() < 0.3:
        reads = [RangeRead(BANK, b"a0")]
    else:
        reads = [PointRead(b"%s%d" % (BANK, account)) for account in (source, target)]
    return operations, reads


def _turn_ring(
    random: Random, promises: Promises, keys: int, version: int
) -> tuple[list[Operation], list[Precondition]]:
    """a -> b -> c -> d becomes a -> c -> b -> d."""
    a = random.randrange(keys)
    b = promises.ring_next(a, version)
    c = promises.ring_next(b, version)
    d = promises.ring_next(c, version)
    name = [b"%s%d" % (RING, node) for node in (a, b, c)]
    if len({a, b, c}) < 3:
        return [Write(b"x/0", b"")], []
    operations: list[Operation] = [Write(name[0], b"%d" % c), Write(name[2], b"%d" % b), Write(name[1], b"%d" % d)]
    return operations, [PointRead(key) for key in name]
