"""What a takeover sends, and what it is answered: the events and effects of ``takeover_machine``, as data.

Owns: their shapes. Does not own: what they lead to (``takeover_machine``), carrying them out (``takeover``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from holdfast.commit.format.batch import Header
from holdfast.errors import HoldfastError
from holdfast.objects.port import CreateAnswer
from holdfast.values import Instant, Slot

__all__ = [
    "Answer",
    "AskLeader",
    "ClaimAnswered",
    "ClaimRead",
    "CleanUp",
    "Effect",
    "Event",
    "Fail",
    "Failed",
    "HeaderRead",
    "HeadersRead",
    "LeaderAnswered",
    "Led",
    "ListNewest",
    "ListPage",
    "NewestListed",
    "PageListed",
    "Probe",
    "Probed",
    "ReadClaim",
    "ReadHeader",
    "ReadHeaders",
    "Request",
    "SendClaim",
    "StandBy",
    "Takeover",
    "Wait",
    "Woken",
]


@dataclass(slots=True)
class Takeover:
    """What a takeover did: for the reign, the log line and the metrics.

    ``proved_ms``: when the ownership check that passed was sent. ``waits``: sequential waits on the store.
    """

    claim: Header
    proved_ms: float
    waits: int = 0
    took_ms: float = 0.0
    restarts: int = 0
    deposed_leader_id: str | None = None
    steps_ms: dict[str, float] = field(default_factory=dict)


# -- effects: each but the last four is answered by exactly one event ------------------------------------------------


@dataclass(frozen=True, slots=True)
class Probe:
    """Ask whether the store can hold a log. Answered by Probed, while other requests are under way."""


@dataclass(frozen=True, slots=True)
class ListPage:
    """List the newest ``limit`` keys. Answered by PageListed or Failed."""

    limit: int


@dataclass(frozen=True, slots=True)
class ReadHeaders:
    """Read the headers of these slots, all of which were listed. Answered by HeadersRead or Failed."""

    slots: tuple[Slot, ...]


@dataclass(frozen=True, slots=True)
class ListNewest:
    """List the newest key. Answered by NewestListed or Failed."""


@dataclass(frozen=True, slots=True)
class ReadHeader:
    """Read the header of a slot that may be empty. Answered by HeaderRead or Failed."""

    slot: Slot


@dataclass(frozen=True, slots=True)
class AskLeader:
    """Ask the process at this address which leader it is. Answered by LeaderAnswered.

    ``proof``: the slot and the nonce of the newest object, which only a reader of the log knows.
    """

    address: str
    proof: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class SendClaim:
    """Create the claim, conditionally. Answered by ClaimAnswered."""

    slot: Slot
    data: bytes


@dataclass(frozen=True, slots=True)
class ReadClaim:
    """Read the header that stands in the claim's slot. Answered by ClaimRead or Failed."""

    slot: Slot


@dataclass(frozen=True, slots=True)
class Wait:
    """Answer with Woken after so many milliseconds. ``reason`` is empty or a line for the log, with its facts."""

    ms: float
    reason: str = ""
    facts: Mapping[str, object] = field(default_factory=dict[str, object])


@dataclass(frozen=True, slots=True)
class CleanUp:
    """Remove what the probe left. Not answered."""


@dataclass(frozen=True, slots=True)
class StandBy:
    """This leader is alive and is followed. Not answered."""

    leader_id: str
    address: str


@dataclass(frozen=True, slots=True)
class Led:
    """The claim stands and nobody is past it. The end."""

    takeover: Takeover


@dataclass(frozen=True, slots=True)
class Fail:
    """The lead is not taken. The end."""

    error: HoldfastError


Request = ListPage | ReadHeaders | ListNewest | ReadHeader | AskLeader | SendClaim | ReadClaim
Effect = Probe | Request | Wait | CleanUp | StandBy | Led | Fail


# -- events -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Probed:
    """The answer to Probe: None when the store can hold a log."""

    now: Instant
    error: HoldfastError | None


@dataclass(frozen=True, slots=True)
class PageListed:
    """The answer to ListPage: names and sizes in listing order."""

    now: Instant
    rows: list[tuple[str, int]]


@dataclass(frozen=True, slots=True)
class HeadersRead:
    """The answer to ReadHeaders: the first 512 bytes of each."""

    now: Instant
    objects: dict[Slot, bytes]


@dataclass(frozen=True, slots=True)
class NewestListed:
    """The answer to ListNewest: None for an empty log."""

    now: Instant
    newest: Slot | None


@dataclass(frozen=True, slots=True)
class HeaderRead:
    """The answer to ReadHeader: the first 512 bytes, None for an empty slot."""

    now: Instant
    data: bytes | None


@dataclass(frozen=True, slots=True)
class LeaderAnswered:
    """The answer to AskLeader: a leader id, empty when that process does not lead, None without an answer."""

    now: Instant
    answer: str | None


@dataclass(frozen=True, slots=True)
class ClaimAnswered:
    """The answer to SendClaim."""

    now: Instant
    answer: CreateAnswer


@dataclass(frozen=True, slots=True)
class ClaimRead:
    """The answer to ReadClaim: the first 512 bytes, None for an empty slot."""

    now: Instant
    data: bytes | None


@dataclass(frozen=True, slots=True)
class Failed:
    """A request to the store had no usable answer."""

    now: Instant
    error: HoldfastError


@dataclass(frozen=True, slots=True)
class Woken:
    """The answer to Wait."""

    now: Instant


Answer = PageListed | HeadersRead | NewestListed | HeaderRead | LeaderAnswered | ClaimAnswered | ClaimRead
Event = Probed | Answer | Failed | Woken
