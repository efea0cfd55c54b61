"""The data of a takeover: what its machine asks for, and what is answered (``takeover_machine``).

Each effect but the last five is answered by exactly one event.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from msgspec import Struct

from holdfast.commit.format.batch import Header
from holdfast.commit.leadership.evidence import LeaderAnswer, Sign
from holdfast.commit.leadership.role import RoleRecords
from holdfast.commit.leadership.suspension import Suspension
from holdfast.errors import HoldfastError
from holdfast.objects.port import CreateAnswer
from holdfast.values import Instant, LeaderId, Slot


@dataclass(slots=True)
class Takeover:
    """What a takeover did: for the leadership, the log line and the metrics.

    ``proved_ms``: when the ownership check that passed was sent. ``waits``: sequential waits on the store.
    """

    claim: Header
    proved_ms: float
    waits: int = 0
    took_ms: float = 0.0
    restarts: int = 0
    deposed_leader_id: str | None = None
    steps_ms: dict[str, float] = field(default_factory=dict)


NO_FACTS: Final[Mapping[str, object]] = {}

# -- effects ----------------------------------------------------------------------------------------------------------


class Probe(Struct, frozen=True):
    """Ask whether the store can hold a log. Answered by Probed, while other requests are under way."""


class ListPage(Struct, frozen=True):
    """List the newest ``limit`` keys. Answered by PageListed or NoAnswer."""

    limit: int


class ReadHeaders(Struct, frozen=True):
    """Read the headers of these slots, all of which were listed, the records of ``role``, and whether the log is
    suspended. Answered by HeadersRead or NoAnswer. It is sent after the listing: an object of a copy is listed only
    after the copy's record exists.
    """

    slots: tuple[Slot, ...]


class ReadHeader(Struct, frozen=True):
    """Read the header of a slot that may be empty. Answered by HeaderRead or NoAnswer."""

    slot: Slot


class Look(Struct, frozen=True):
    """List the newest key, and read the newest sign of this leadership. Answered by Looked or NoAnswer."""

    epoch: int
    leader_id: LeaderId


class AskLeader(Struct, frozen=True):
    """Ask the process at this address whether it leads, for at most ``ms_max``. Answered by LeaderAnswered.

    ``host``: what its certificate has to name.
    """

    address: str
    ms_max: float
    host: str = ""


class SendClaim(Struct, frozen=True):
    """Create the claim, conditionally. Answered by ClaimAnswered."""

    slot: Slot
    data: bytes


class TakeoverWait(Struct, frozen=True):
    """Answer with Woken after this many milliseconds. ``reason`` is empty or a line for the log, with its facts."""

    ms: float
    reason: str = ""
    facts: Mapping[str, object] = NO_FACTS


class CleanUp(Struct, frozen=True):
    """Remove what the probe left. Not answered."""


class StandBy(Struct, frozen=True):
    """This leader is alive and is followed. Not answered."""

    leader_id: str
    address: str


class StayOut(Struct, frozen=True):
    """The log is suspended, and this process waits until it goes on. Not answered."""

    suspension: Suspension


class Led(Struct, frozen=True):
    """The claim stands and no leader is past it. The end."""

    takeover: Takeover


class Fail(Struct, frozen=True):
    """The lead is not taken. The end."""

    error: HoldfastError


Request = ListPage | ReadHeaders | Look | ReadHeader | AskLeader | SendClaim
Effect = Probe | Request | TakeoverWait | CleanUp | StandBy | StayOut | Led | Fail


# -- events -----------------------------------------------------------------------------------------------------------


class _Timed(Struct, frozen=True):
    now: Instant


class Probed(_Timed, frozen=True):
    """The answer to Probe: None when the store can hold a log.

    ``booted_ms``: the wall clock less the boot clock, as the store's clock has it; None where it has none of its own.
    """

    error: HoldfastError | None
    booted_ms: int | None = None


class PageListed(_Timed, frozen=True):
    """The answer to ListPage: names and sizes in listing order."""

    rows: list[tuple[str, int]]


class HeadersRead(_Timed, frozen=True):
    """The answer to ReadHeaders: the first 512 bytes of each, what says whether this is a copy, and the suspension in
    force."""

    objects: dict[Slot, bytes]
    records: RoleRecords = RoleRecords()
    suspension: Suspension | None = None


class HeaderRead(_Timed, frozen=True):
    """The answer to ReadHeader: the first 512 bytes, None for an empty slot."""

    data: bytes | None


class Looked(_Timed, frozen=True):
    """The answer to Look: the newest slot, and the newest sign of the leadership; None for none."""

    newest: Slot | None
    sign: Sign | None


class LeaderAnswered(_Timed, frozen=True):
    """The answer to AskLeader."""

    answer: LeaderAnswer


class ClaimAnswered(_Timed, frozen=True):
    """The answer to SendClaim."""

    answer: CreateAnswer


class NoAnswer(_Timed, frozen=True):
    """A request to the store had no usable answer."""

    error: HoldfastError


class TakeoverWoken(_Timed, frozen=True):
    """The answer to Wait."""


Event = (
    Probed | PageListed | HeadersRead | Looked | HeaderRead | LeaderAnswered | ClaimAnswered | NoAnswer | TakeoverWoken
)
