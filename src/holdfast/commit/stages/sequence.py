"""Stage 1, sequence: each commit request gets its version, or the reason why it gets none.

Versions rise by one per request; a request that stage 2 (resolve) rejects leaves a hole. The stage waits when the
assigned versions are 90,000,000 ahead of the durable ones, so that no version can reach the base (start version) of the
next leader.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeVar

from holdfast.commit.format.batch import VERSION_JUMP
from holdfast.commit.format.transaction import Committed, Rejected, Reused
from holdfast.commit.stages.attempts import Attempts, Ban, Known, fingerprint
from holdfast.commit.stages.events import CommitEntry, Records
from holdfast.errors import Code, InvalidRequest

HOLD_BACK: Final = 90_000_000
assert HOLD_BACK < VERSION_JUMP, "assigned versions stay below the next base"

Item = TypeVar("Item", bound=CommitEntry | Records)
_BANNED: Final = Rejected("banned")


class Sequence:
    """The order of all requests under one leader. After a crash: gone, and nothing of it was promised."""

    __slots__ = ("assigned", "attempts")

    def __init__(self, base: int, attempts: Attempts) -> None:
        self.assigned = base
        self.attempts = attempts

    def room(self, durable_version: int) -> int:
        """How many more versions may be assigned before something must become durable."""
        return HOLD_BACK - (self.assigned - durable_version)

    def order(self, entries: Iterable[Item], floor: int) -> tuple[list[Item], list[CommitEntry]]:
        """Give versions to entries and records, in the order they came.

        Returns the entries that continue, with a version or an outcome, and those that must be looked up in the log
        because their read version is below the window. A repeat of an entry in flight is in neither: it follows the
        original.
        """
        onward: list[Item] = []
        look_up: list[CommitEntry] = []
        attempts = self.attempts
        for entry in entries:
            if isinstance(entry, Records):
                self.assigned += 1
                entry.version = self.assigned
                onward.append(entry)
                continue
            txn = entry.txn
            read_version, request_id = txn.read_version, txn.request_id
            earlier: Known | Ban | None = None
            if read_version is not None and read_version > self.assigned:
                entry.outcome = self._future(read_version)
            elif request_id is not None:
                assert read_version is not None, "a request id comes with a read version"
                earlier = attempts.find(request_id)
                is_new = earlier is None and read_version >= floor
                if not is_new and not self._admit_attempt(entry, earlier, read_version, floor, look_up):
                    continue
            if entry.outcome is None:
                for precondition in txn.preconditions:
                    if precondition.version is not None and precondition.version > self.assigned:
                        entry.outcome = self._future(precondition.version)
                        break
                else:
                    self.assigned += 1
                    entry.version = self.assigned
                    if request_id is not None:
                        self._remember(entry, request_id, earlier)
            onward.append(entry)
        return onward, look_up

    def _remember(self, entry: CommitEntry, request_id: str, known: Known | Ban | None) -> None:
        banned_through = known.version if type(known) is Ban else 0
        digest = fingerprint(entry.txn, entry.parts_digest)
        self.attempts.put(request_id, Known(entry.version, digest, entry, banned_through))

    def _future(self, version: int) -> InvalidRequest:
        return InvalidRequest(
            "version was never handed out", code=Code.FUTURE_VERSION, version=version, newest=self.assigned
        )

    def _admit_attempt(
        self, entry: CommitEntry, known: Known | Ban | None, read_version: int, floor: int, look_up: list[CommitEntry]
    ) -> bool:
        """False when the entry stops here: it follows an original or has to be looked up in the log."""
        if isinstance(known, Known):
            if known.fingerprint != fingerprint(entry.txn, entry.parts_digest):
                entry.outcome = Reused()
            elif known.entry is None:
                entry.outcome = Committed(known.version, known.results)
            else:
                original = known.entry
                if original.followers is None:
                    original.followers = []
                original.followers.append(entry)
                return False
        elif read_version < floor:
            # Only the log knows, even for a banned attempt: it may have committed long before the ban.
            look_up.append(entry)
            return False
        elif known is not None and read_version <= known.version:
            entry.outcome = _BANNED
        return True

    def ban(self, request_id: str) -> Known | None:
        """Forbid every attempt under ``request_id`` that could have begun by now.

        Returns the attempt that committed or is in flight (the ban then takes effect if it is rejected), or None.
        """
        known = self.attempts.find(request_id)
        if isinstance(known, Known):
            # Put again, it stays known until the ban is no longer needed: a committed one would be forgotten before.
            known.banned_through = self.assigned
            self.attempts.drop(request_id)
            self.attempts.put(request_id, known)
            return known
        self.attempts.put(request_id, Ban(self.assigned))
        return None

    def complete(self, entry: CommitEntry) -> None:
        """Note a final outcome: a committed attempt is remembered at its version, a rejected one is forgotten."""
        request_id = entry.txn.request_id
        if request_id is None or not entry.version:
            return
        known = self.attempts.find(request_id)
        assert isinstance(known, Known), "an attempt in flight is known"
        assert known.entry is entry, "an attempt in flight is known by its entry"
        if entry.accepted:
            known.entry, known.results = None, entry.results
            return
        self.attempts.drop(request_id)
        banned_through = known.banned_through
        if isinstance(entry.outcome, Rejected) and entry.outcome.reason == "store_refused":
            # The stores may take later what they refuse now, and a late copy of this attempt must not find that out.
            banned_through = max(banned_through, entry.txn.read_version or 0)
        if banned_through:
            self.attempts.put(request_id, Ban(banned_through))

    def check(self) -> None:
        """Assert the invariants."""
        self.attempts.check()
