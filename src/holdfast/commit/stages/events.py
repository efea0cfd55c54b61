"""The data of the pipeline: commit requests, batches, events and effects.

Every event carries its instant. Every effect is complete, and is carried out once; a request to the store (``Put``,
``ReadBack``, ``CheckOwnership``) may reach it twice without harm.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Literal

from msgspec import UNSET, Struct

from holdfast.commit.format.batch import Header, Logged, repeated_bytes
from holdfast.commit.format.transaction import Outcome, Transaction, Write
from holdfast.errors import HoldfastError
from holdfast.objects.port import CreateAnswer, Unknown
from holdfast.values import Instant, Slot, Version

NO_STORE_PARTS: Final = object()
"""``CommitEntry.parts`` of a request that has nothing but ``jobs`` in addition to its operations."""

WhenDurable = Callable[[int | HoldfastError], None]
"""Called once: with the version of what the log has durably, or with why it is unknown whether the log has it."""

Asker = object
"""Who waits for the answer to a question. The pipeline hands it back, never looks at it; the service's are futures."""

ITEM_BYTES = 32
"""What an item costs besides its value and the request id, for the size bound of a batch."""


class CommitEntry(Struct, eq=False):
    """One commit request on its way.

    ``reply`` is called exactly once, with this entry, when ``outcome`` is final; ``durable_version`` is then a durable
    version at least as new as every version the outcome names. ``ticket`` is the caller's own: the pipeline never looks
    at it (a request has its ``PendingResponse`` there, an item of a stream the error that it is answered with).
    ``size``: the bytes of the request, and with them what its id takes in a batch, where it stands in every row; 0
    leaves it to the pipeline.

    ``parts``: what the stores are to do in the same step, in their own form, with a digest of how it was sent;
    ``NO_STORE_PARTS`` where records of jobs change and the stores have nothing to do. When the stores have done it,
    ``record`` and ``results`` are theirs, and ``when_durable`` is called before ``reply``.
    """

    txn: Transaction
    reply: Callable[[CommitEntry], None]
    ticket: object = None
    size: int = 0
    parts: object = None
    parts_digest: bytes = b""
    arrived_ms: float = 0.0
    version: int = 0
    accepted: bool = False
    outcome: Outcome | HoldfastError | None = None
    durable_version: int = 0
    followers: list[CommitEntry] | None = None
    record: bytes | None = None
    results: bytes | None = None
    when_durable: WhenDurable | None = None


class Place:
    """A place in the order of all entries: reached when everything accepted before it is durable."""

    __slots__ = ("ticket",)

    def __init__(self, ticket: Asker | StatusQuestion) -> None:
        self.ticket = ticket


class Records(Place):
    """What the stores did by themselves, on its way into the log: records, each with its store.

    ``when_durable`` is called in the order of the versions.
    """

    __slots__ = ("records", "size", "version", "when_durable")

    def __init__(self, records: list[tuple[str, bytes]], when_durable: WhenDurable) -> None:
        super().__init__(self)
        self.records = records
        self.when_durable = when_durable
        self.size = sum([ITEM_BYTES + len(record) for _, record in records])
        self.version = 0


@dataclass(slots=True)
class Batch:
    """One slot in flight. ``payload`` never changes once it is set.

    ``sends_ms``: when each attempt was sent. ``proved_ms``: when the one was sent that was answered ``created``, None
    for a batch that was only recognised as own.
    """

    header: Header
    payload: bytes
    entries: list[CommitEntry | Place]
    logged: list[Logged]
    formed_ms: float
    sent_ms: float = 0.0
    requests: int = 0
    attempts: int = 0
    retry_at_ms: float | None = None
    hedged: bool = False
    reading: bool = False
    done: bool = False
    sends_ms: list[float] = field(default_factory=list[float])
    proved_ms: float | None = None


def request_bytes(txn: Transaction) -> int:
    """Roughly the bytes a transaction takes in a batch; at least 1."""
    items = len(txn.operations) + len(txn.preconditions) + len(txn.jobs)
    values = sum([len(op.value) for op in txn.operations if type(op) is Write])
    parts = sum([len(bytes(part)) for part in txn.parts if part is not UNSET]) if txn.has_store_parts else 0
    parts += sum([job.size for job in txn.jobs])
    return items * ITEM_BYTES + values + parts + repeated_bytes(txn)


EndKind = Literal["resigned", "deposed", "gave_up", "abandoned"]


# -- events -----------------------------------------------------------------------------------------------------------


class _Timed(Struct, frozen=True):
    now: Instant


class Arrived(_Timed, frozen=True):
    """Commit requests, in the order they are to be sequenced."""

    entries: list[CommitEntry]


class RecordsReady(_Timed, frozen=True):
    """The stores applied these records, and wait until they are durable."""

    records: Records


class PutAnswered(_Timed, frozen=True):
    """The answer to one Put; ``number`` is that Put's. The first one, if unknown: the oldest proof is the safe one."""

    slot: Slot
    answer: CreateAnswer
    number: int = 1


class HeaderFound(_Timed, frozen=True):
    """The answer to one ReadBack: the header, None for an empty slot, Unknown for no answer."""

    slot: Slot
    found: Header | Unknown | None
    certain: bool


class OwnershipSeen(_Timed, frozen=True):
    """The answer to one CheckOwnership: the newest slot listed, None for an empty log, Unknown for no answer."""

    newest: Slot | Unknown | None


class VersionAsked(_Timed, frozen=True):
    """A caller wants a version at least as new as everything committed by now."""

    ticket: Asker


class StatusQuestion(Struct, frozen=True):
    """What became of the attempt under ``request_id`` whose read version is ``min_version``."""

    request_id: str
    min_version: int
    ticket: Asker


class StatusAsked(_Timed, frozen=True):
    """A caller asks for a final outcome."""

    question: StatusQuestion


class NoopAsked(_Timed, frozen=True):
    """A caller wants proof that the pipeline moves."""

    ticket: Asker


class Tick(_Timed, frozen=True):
    """Time has passed."""


class TruncationDue(_Timed, frozen=True):
    """Write into the log that versions at or below ``through`` may be removed. Reached when that is durable."""

    through: Version
    ticket: Asker


class ClockShown(_Timed, frozen=True):
    """Let the log show what the clocks show. ``accepted``: the wall clock was right then, whatever it showed before."""

    accepted: Instant | None = None


class Drain(_Timed, frozen=True):
    """Accept nothing more, finish work in progress, resign."""


class Abandon(_Timed, frozen=True):
    """The driver stops here: end immediately, and leave unproved work to the next leader."""


Asked = VersionAsked | StatusAsked | NoopAsked
Event = (
    Arrived
    | RecordsReady
    | PutAnswered
    | HeaderFound
    | OwnershipSeen
    | Asked
    | Tick
    | TruncationDue
    | ClockShown
    | Drain
    | Abandon
)


# -- effects ----------------------------------------------------------------------------------------------------------


class Put(Struct, frozen=True):
    """Effect: send these bytes to this slot, conditionally. Doing it twice is harmless."""

    slot: Slot
    data: bytes
    number: int


class ReadBack(Struct, frozen=True):
    """Effect: read the header in this slot, to learn whose object refused the PUT."""

    slot: Slot
    certain: bool


class CheckOwnership(Struct, frozen=True):
    """List the newest key and answer with OwnershipSeen."""


class Resolved(Struct, frozen=True):
    """These entries were resolved, in order; the accepted ones are not durable yet."""

    entries: list[CommitEntry]


class Durable(Struct, frozen=True):
    """These batches are durable and may be shown, in order."""

    batches: list[Batch]


class Answer(Struct, frozen=True):
    """Reply to these entries, in order; each has its final outcome."""

    entries: list[CommitEntry]


class LookUp(Struct, frozen=True):
    """Look these attempts up in the log: their read version is below the window."""

    entries: list[CommitEntry]


class VersionIs(Struct, frozen=True):
    """Answer these version questions."""

    tickets: list[Asker]
    version: int


class StatusReady(Struct, frozen=True):
    """Everything sequenced before the ban is final. ``version`` is the attempt's, when the window knows it, and
    ``results`` those of its parts.

    Otherwise the attempt did not commit above ``complete_above``; the log between ``min_version`` and there must be
    read, and a negative answer needs a proof of ownership begun after this effect.
    """

    question: StatusQuestion
    version: int | None
    complete_above: int
    results: bytes | None = None


class Reached(Struct, frozen=True):
    """These no-ops went through all four stages."""

    tickets: list[Asker]


class Recorded(Struct, frozen=True):
    """What the stores did, by themselves or for a commit, is durable, in order."""

    records: list[Records | CommitEntry]


class Ended(Struct, frozen=True):
    """This leadership is over; ``detail`` says why for people. ``tickets`` are questions that get no answer here."""

    kind: EndKind
    detail: str
    tickets: list[Asker | StatusQuestion | Records]


Asking = LookUp | VersionIs | StatusReady | Reached
Effect = Put | ReadBack | CheckOwnership | Resolved | Durable | Answer | Recorded | Asking | Ended
