"""Stage 4, release: answers leave in version order, and only after the batch is durable.

When the last proof of ownership (an acknowledged PUT or an ownership check) was sent longer than ``PROOF_MS_MAX`` ago,
durable batches are held until a check has passed. Otherwise a leader could be paused while its slots are claimed,
written and removed. It would then acknowledge commits that no reader finds.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from holdfast.commit.format.transaction import Committed, Unanswered
from holdfast.commit.stages.events import Batch, CommitEntry, Place

PROOF_MS_MAX: Final = 10_000.0


class Release:
    """Everything that waits for its reply until a batch is durable."""

    __slots__ = ("_held", "_proof_ms", "durable_version", "held_since_ms", "released")

    def __init__(self, base: int, proved_ms: float) -> None:
        self.durable_version = base
        self.released = 0
        self._proof_ms = proved_ms
        self._held: list[Batch] = []
        self.held_since_ms = proved_ms

    @property
    def bytes_held(self) -> int:
        """Bytes of durable batches that wait for a proof of ownership."""
        return sum(len(batch.payload) for batch in self._held)

    @property
    def holding(self) -> bool:
        """Whether durable batches wait for a proof of ownership."""
        return bool(self._held)

    def offer(self, batches: list[Batch], now_ms: float) -> list[Batch]:
        """Take batches that became durable, in slot order; return those that may be answered now."""
        if self._held or now_ms - self._proof_ms > PROOF_MS_MAX:
            if not self._held:
                self.held_since_ms = now_ms
            self._held += batches
            return []
        for batch in batches:
            # A batch that was refused and recognised as own was created at some time before: it proves nothing now.
            if batch.proved_ms is not None:
                self._proof_ms = max(self._proof_ms, batch.proved_ms)
        return batches

    def owned(self, asked_ms: float, now_ms: float) -> list[Batch]:
        """The ownership check sent at ``asked_ms`` passed: the batches that it releases, none if it took too long."""
        self._proof_ms = max(self._proof_ms, asked_ms)
        if now_ms - self._proof_ms > PROOF_MS_MAX:
            return []
        held, self._held = self._held, []
        return held

    def answers(self, entries: Iterable[CommitEntry | Place]) -> tuple[list[CommitEntry], list[Place]]:
        """The answers to give, in order, now that everything before them is durable."""
        answers: list[CommitEntry] = []
        positions: list[Place] = []
        durable_version = self.durable_version
        for entry in entries:
            if type(entry) is not CommitEntry:
                assert isinstance(entry, Place), "only entries and positions travel"
                positions.append(entry)
                continue
            if entry.accepted:
                assert entry.version <= durable_version, "a reply waits for its durable batch"
                entry.outcome = Committed(entry.version, entry.results)
            entry.durable_version = durable_version
            answers.append(entry)
            if entry.followers:
                answers += self._join(entry)
        self.released += len(answers)
        return answers, positions

    @staticmethod
    def _join(entry: CommitEntry) -> list[CommitEntry]:
        followers = entry.followers or []
        for follower in followers:
            follower.outcome = entry.outcome
            follower.durable_version = entry.durable_version
        return followers

    def abandon(self, entries: Iterable[CommitEntry | Place]) -> tuple[list[CommitEntry], list[Place]]:
        """The answers to give when this leader can prove nothing more: whatever was accepted is unknown."""
        answers: list[CommitEntry] = []
        positions: list[Place] = []
        waiting = [entry for batch in self._held for entry in batch.entries]
        self._held = []
        for entry in (*waiting, *entries):
            if isinstance(entry, Place):
                positions.append(entry)
                continue
            # A rejection may name versions that this leader never proved durable, so it is unknown as well.
            entry.outcome = Unanswered()
            entry.durable_version = self.durable_version
            answers.append(entry)
            answers += self._join(entry)
        return answers, positions

    def check(self) -> None:
        """Assert the invariants."""
        assert all(batch.done for batch in self._held), "only durable batches are held"
