"""Request ids inside the conflict window: duplicates, bans and their expiry, in one bounded structure.

An *attempt* is (request id, read version). Inside the window this structure is complete: an id that it does not know
did not commit at a version above the floor. Attempts with a read version below the floor are looked up in the log.
"""

from __future__ import annotations

from hashlib import blake2b

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from holdfast.commit.format.batch import LoggedTransaction
from holdfast.commit.format.transaction import Committed, Outcome, Rejected, Reused, Transaction, Unanswered
from holdfast.commit.stages.events import CommitEntry

ATTEMPT_BYTES = 320
"""Bytes of memory per attempt: an estimate (the id, the record, the dictionary's share), not a measurement."""

_encode = msgspec.msgpack.Encoder().encode


def fingerprint(txn: Transaction | LoggedTransaction, parts_digest: bytes) -> bytes:
    """16 bytes that are equal when two attempts under one id are the same attempt."""
    whole = _encode((txn.read_version, txn.preconditions, txn.operations))
    if txn.jobs:
        whole += _encode(txn.jobs)
    return blake2b(whole + parts_digest, digest_size=16).digest()


def judge_from_log(entry: CommitEntry, logged: LoggedTransaction | None, *, truncated: bool) -> Outcome:
    """The outcome of an attempt below the conflict window; without the results of its parts.

    ``logged`` is the first commit of its request id after the read version. ``truncated``: part of that range was
    removed, so its absence proves nothing.
    """
    if logged is not None:
        # A load adds its own record to the last transaction of a batch.
        names = {change.name for change in entry.txn.jobs}
        logged = replace(logged, jobs=tuple(change for change in logged.jobs if change.name in names))
        same = fingerprint(logged, logged.parts_digest) == fingerprint(entry.txn, entry.parts_digest)
        return Committed(logged.version) if same else Reused()
    return Unanswered() if truncated else Rejected("too_old")


class Known(Struct, eq=False):
    """An attempt that is in flight (``entry`` is set) or committed at ``version``.

    ``results`` are those of its parts. ``banned_through`` becomes a ban if the attempt in flight is rejected after all;
    until then knowing it is one.
    """

    version: int
    fingerprint: bytes
    entry: CommitEntry | None
    banned_through: int = 0
    results: bytes | None = None


class Ban(Struct, frozen=True):
    """Every attempt with a read version at or below ``version`` is refused."""

    version: int


class Attempts:
    """Request ids in generations, newest first. Cost: one dictionary look-up per live generation."""

    __slots__ = ("_ends", "_generations", "_per_generation")

    def __init__(self, *, bytes_max: int) -> None:
        self._generations: list[dict[str, Known | Ban]] = [{}]
        self._ends: list[int] = [0]
        self._per_generation = max(1, bytes_max // ATTEMPT_BYTES // 8)

    def find(self, request_id: str) -> Known | Ban | None:
        """The newest entry for an id."""
        for generation in self._generations:
            known = generation.get(request_id)
            if known is not None:
                return known
        return None

    def put(self, request_id: str, known: Known | Ban) -> None:
        """Remember ``known``, whose version or ban must not be older than anything put before."""
        newest, ends = self._generations[0], self._ends
        if len(newest) >= self._per_generation:
            newest = {}
            self._generations.insert(0, newest)
            ends.insert(0, 0)
        newest[request_id] = known
        end = known.version
        # A ban speaks of attempts with its own version as read version, which are looked up only below the floor.
        if isinstance(known, Ban):
            end += 1
        elif known.banned_through >= end:
            end = known.banned_through + 1
        if end > ends[0]:
            ends[0] = end

    def drop(self, request_id: str) -> None:
        """Forget the newest entry for an id. A rejected attempt is judged again, with the same verdict."""
        for generation in self._generations:
            if generation.pop(request_id, None) is not None:
                return

    def floor_for_bound(self) -> int:
        """The floor that would bring the structure back within its bound, 0 when it is within."""
        return self._ends[8] if len(self._ends) > 8 else 0

    @property
    def is_full(self) -> bool:
        """Whether twice the bound is held: nothing becomes durable, so nothing can leave."""
        return len(self._ends) > 16

    def expire(self, floor: int) -> None:
        """Drop the generations whose every version is at or below ``floor``."""
        while len(self._ends) > 1 and self._ends[-1] <= floor:
            self._ends.pop()
            self._generations.pop()

    def __len__(self) -> int:
        return sum(map(len, self._generations))

    def bytes_used(self) -> int:
        """Estimated bytes of memory."""
        return len(self) * ATTEMPT_BYTES

    def check(self) -> None:
        """Assert the invariants."""
        for end, generation in zip(self._ends, self._generations, strict=True):
            assert all(known.version <= end for known in generation.values()), "a generation ends at its newest version"
