"""Where a log may be cut: the newest data object that no policy, hold, snapshot, leader or young reader needs.

Every need is a border in the chain, and what lies before all borders may go. So a binary search over headers finds the
cut: about log2(objects) reads for each leadership that it passes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from holdfast.commit.format.batch import PREFIX, SPAN_MAX, Header, slot_of
from holdfast.commit.format.log_clock import Moment
from holdfast.commit.reading.reader import LeadershipWalk, newest_where
from holdfast.objects.port import ObjectStore, Pages
from holdfast.retention.job_holds import JobBorder, JobHold, longest
from holdfast.retention.policies import Content, Hold, Policy
from holdfast.values import Slot

NOTHING: Final = 0
"""The version from which a log is kept when all of it is needed."""


@dataclass(frozen=True, slots=True)
class Border:
    """What one need allows to remove: objects for which all of these hold.

    ``below``: their last version is less. ``older_than_ms``, ``lived_below_ms``: they are older by both of the log's
    times. ``above``: their slot is older (higher) than this.
    """

    below: int | None = None
    older_than_ms: float | None = None
    lived_below_ms: float | None = None
    above: int | None = None

    @classmethod
    def of_age(cls, now: Moment, age_ms: float, *, below: int | None = None, above: int | None = None) -> Border:
        """What is at least this old. A wall clock alone may be wrong, so ``lived_ms`` must say the same."""
        return cls(below, now.time_ms - age_ms, now.lived_ms - age_ms, above)

    def lets_go(self, header: Header) -> bool:
        """Whether this need does without the object. Falls along the chain from True to False at most once."""
        return (
            (self.below is None or header.last_version < self.below)
            and (self.older_than_ms is None or header.time_ms < self.older_than_ms)
            and (self.lived_below_ms is None or header.lived_ms < self.lived_below_ms)
            and (self.above is None or header.slot > self.above)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """Everything that keeps the log, besides policies and holds.

    ``snapshot``: the version of the oldest snapshot that is kept, verified; None when there is none, and then nothing
    may go. ``segments``: the version through which the configured table of segments has the history, if there is one.
    ``stores``: from which version on stores that live in the log need it, ``NOTHING`` for all of it; None without them.
    ``jobs``: the unfinished jobs that hold it.
    """

    snapshot: int | None
    min_age_ms: float
    segments: int | None = None
    stores: int | None = None
    jobs: Sequence[JobHold] = ()


def borders_of(
    content: Content, needs: Needs, *, watermark: Slot, now: Moment, bytes_border: Mapping[int, int]
) -> list[Border | JobBorder] | None:
    """Every border, or None when nothing may be removed: no policy, no snapshot, or a policy that keeps everything.

    ``bytes_border`` gives, for the ``max_bytes`` of each policy, the slot of the oldest object that it keeps.
    """
    if not content.policies or needs.snapshot is None:
        return None
    if any(policy.keep is not None for policy in content.policies.values()):
        return None
    borders: list[Border | JobBorder] = [
        Border.of_age(now, needs.min_age_ms, below=needs.snapshot, above=watermark + SPAN_MAX),
        *(border_of(policy, now, bytes_border) for policy in content.policies.values()),
        *(border_of_hold(hold) for hold in content.holds.values() if hold.holds(now)),
        *(JobBorder(hold, now) for hold in longest(needs.jobs)),
    ]
    if needs.segments is not None:
        borders.append(Border(below=needs.segments + 1))
    if needs.stores is not None:
        borders.append(Border(below=needs.stores))
    return borders


def border_of(policy: Policy, now: Moment, bytes_border: Mapping[int, int]) -> Border:
    """The border of one policy; see ``borders_of``."""
    if policy.keep is not None:
        return Border(below=NOTHING)
    if policy.max_bytes is not None:
        return Border(above=bytes_border[policy.max_bytes])
    if policy.max_age_seconds is not None:
        return Border.of_age(now, policy.max_age_seconds * 1000.0)
    return Border(below=policy.keep_from_version)


def border_of_hold(hold: Hold) -> Border:
    """A reader at ``from_version`` needs the transactions after it."""
    return Border(below=hold.from_version + 1)


async def find_cut(
    store: ObjectStore, claim: Header, newest: Header, borders: Sequence[Border | JobBorder]
) -> Header | None:
    """The newest data object that every border lets go and that still exists; None for none.

    ``newest`` is a durable object under ``claim``. Raises: Unavailable, CorruptData.
    """

    def goes(header: Header) -> bool:
        return all(border.lets_go(header) for border in borders)

    async for leadership in LeadershipWalk(store, claim, newest):
        slot, header = await newest_where(store, leadership, goes)
        if slot is not None:
            return header
    return None


async def slot_through(store: ObjectStore, claim: Header, newest: Header, version: int) -> Slot | None:
    """The slot of the newest data object at or below ``version``, whether it still exists; None for none.

    Arguments and errors as for ``find_cut``.
    """
    async for leadership in LeadershipWalk(store, claim, newest):
        slot, _ = await newest_where(store, leadership, lambda header: header.last_version <= version)
        if slot is not None:
            return slot
        if leadership.before is None and not leadership.is_first:
            return leadership.claim.prev
    return None


async def slot_of_bytes(store: ObjectStore, bytes_max: int) -> int:
    """The slot of the oldest of the newest objects that have ``bytes_max`` bytes together; 2^64: all of them are kept.

    Dead objects count like live ones, because they take space as well. Cost: a LIST for each 1,000 objects that are
    kept. Raises: Unavailable.
    """
    total = 0
    async for rows in Pages(store, PREFIX):
        for row in rows:
            total += row.size
            if total >= bytes_max and (slot := slot_of(row.key)) is not None:
                return slot
    return 1 << 64
