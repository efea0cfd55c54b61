"""Which logs a log goes back to, and whether a position of one of them is in it.

A copy that is restored or promoted begins with a fork claim and has a log id of its own. A position in an ancestor is a
position here as long as it is not after the fork. A log that nobody forked has no ancestors.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from holdfast.commit.format.batch import FIRST_SLOT, PREFIX, Header, Kind
from holdfast.commit.format.chain import broken
from holdfast.commit.reading.reader import LeadershipWalk, claims_after, find_header
from holdfast.errors import Code, InvalidRequest, Unavailable
from holdfast.objects.port import ObjectStore


@dataclass(frozen=True, slots=True)
class Lineage:
    """A log's id, and for each ancestor the version at which this log left it: its ``forked_at``."""

    log_id: str
    forked_at: dict[str, int] = field(default_factory=dict[str, int])

    def holds(self, log_id: str | None, version: int) -> bool:
        """Whether this position is in the log. A position without an id counts as the log's own."""
        return log_id in (None, self.log_id) or version <= self.forked_at.get(log_id or "", -1)

    def require(self, log_id: str | None, version: int) -> None:
        """Return if the position is in the log.

        Raises: InvalidRequest, ``log_mismatch`` for the position of another log, ``rolled_back`` for one that an
        ancestor reached after this log had left it.
        """
        if self.holds(log_id, version):
            return
        assert log_id is not None, "a position without an id is in the log"
        forked_at = self.forked_at.get(log_id)
        if forked_at is None:
            raise log_mismatch(log_id, self.log_id)
        raise InvalidRequest(
            "the version is one of the log that this one was forked from, after the fork",
            code=Code.ROLLED_BACK,
            hint="go back to roll_back_to, and read on from there",
            given_log_id=log_id,
            log_id=self.log_id,
            roll_back_to=forked_at,
        )


def log_mismatch(given: str, log_id: str) -> InvalidRequest:
    """The error for a version or a position that belongs to another log than the one served here."""
    return InvalidRequest(
        "the version belongs to another log than the one served here",
        code=Code.LOG_MISMATCH,
        hint="the log was replaced, or this is another service: read again from the log that is served",
        given_log_id=given[:64],
        log_id=log_id,
    )


async def lineage_of(store: ObjectStore, claim: Header) -> Lineage:
    """The lineage of the log whose newest claim is ``claim``.

    Cost: one header read for a log that was never forked; otherwise two for each leadership back to the first. Where
    retention has removed what links them, a LIST of what is older, and a header read for each claim in it.
    Raises: Unavailable, CorruptData.
    """
    genesis = claim if claim.slot == FIRST_SLOT else await find_header(store, FIRST_SLOT)
    if genesis is None:
        raise broken("the first claim has gone", FIRST_SLOT)
    forked_at: dict[str, int] = {}
    if genesis.log_id != claim.log_id:
        oldest = claim
        async for leadership in LeadershipWalk(store, claim, claim):
            oldest = leadership.claim
            _note(oldest, forked_at)
        if oldest.slot != FIRST_SLOT:
            for slot in await claims_after(store, oldest.slot):
                header = await find_header(store, slot)
                if header is not None and header.kind is Kind.CLAIM:
                    _note(header, forked_at)
    return Lineage(claim.log_id.hex(), forked_at)


def _note(claim: Header, forked_at: dict[str, int]) -> None:
    if claim.parent_log_id is not None:
        forked_at[claim.parent_log_id.hex()] = claim.forked_at


async def require_genesis(store: ObjectStore) -> Header | None:
    """Refuse a log without its first claim, which every reader needs. Returns the claim. Raises: CorruptData."""
    try:
        genesis = await find_header(store, FIRST_SLOT)
        if genesis is not None or not await store.list(PREFIX, limit=1):
            return genesis
        if await find_header(store, FIRST_SLOT) is None:  # the log did not begin between the two requests
            raise broken("the first claim has gone", FIRST_SLOT)
    except Unavailable:
        pass
    return None
