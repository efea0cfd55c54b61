"""The commands that change the state of the stores, and their results.

Their bytes are msgpack arrays and append-only: a new field goes to the end with a default, and a tag never changes its
meaning. Every command carries ``at_ms``, the service's time, which never goes back within one log: the state machine
reads no clock. A log record is a command with its result; a replay must give the same result.
"""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.wire.parts import Message


class _Command(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=True):
    at_ms: int


class _OfDurable(_Command, frozen=True):
    store: str
    durable: str


class _OfMap(_Command, frozen=True):
    store: str
    map: str


class _Result(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=True):
    pass


class DefinitionPart(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One part of a definition as JSON, by its path (see ``definitions.parts``); an empty ``document`` removes it."""

    path: tuple[str, ...]
    document: bytes = b""


class Redefine(_Command, frozen=True):
    """Change parts of the definition: all of them or nothing. ``revision`` is its number in the history."""

    parts: list[DefinitionPart]
    revision: int
    author: str = ""
    delete: bool = False
    """Whether messages may be deleted by it; otherwise a change that deletes any is refused (``deletes_messages``)."""
    drawn: int = 0
    """A random number, of which the ids of the stores and durables that it makes are derived (``values.identity``)."""


class Publish(_Command, frozen=True):
    """Publish a batch: all of it or nothing. ``publisher`` is empty where the messages have no publisher's numbers."""

    store: str
    publisher: str
    messages: list[Message]


class Attach(_OfDurable, frozen=True):
    """Attach a subscriber. A dynamic durable is made of ``template``, with ``matcher`` (JSON, empty for none).

    ``key``: the one key of a last-value subscriber.
    """

    subscriber: str
    template: str = ""
    matcher: bytes = b""
    key: str | None = None
    polls: bool = False
    """Whether it asks for each portion, and may hold messages while it is silent."""
    drawn: int = 0
    """As that of ``Redefine``, for a durable that is made; 0 where there is no ``template``."""
    take_over: bool = False
    """Whether it takes a standard durable from the subscriber that has it."""
    session: str = ""
    """The same for every connection of one subscriber of one process; empty for none."""
    keep: list[tuple[int, int]] = []
    """Ranges that the application works on. What of them this session holds stays with it, and its ``ack_wait`` begins
    again; everything else that the name held comes back."""


class Detach(_OfDurable, frozen=True):
    """Remove a subscriber: its leases are delivered to others. ``cause`` is for advisories.

    The delivery counts for what it reported as started; without a report for the oldest message that it holds.
    """

    subscriber: str
    cause: str = "closed"


class Unsubscribe(_OfDurable, frozen=True):
    """Delete a dynamic durable and what it keeps."""


class Deliver(_OfDurable, frozen=True):
    """Give ``subscriber`` up to ``count`` messages, within its window."""

    subscriber: str
    count: int


class Acknowledge(_OfDurable, frozen=True):
    """Ranges are pairs [first, last] of sequence numbers. Only what this subscriber holds now counts."""

    subscriber: str
    ack: list[tuple[int, int]] = []
    nack: list[tuple[int, int]] = []
    """Pairs of a sequence number and its delay in milliseconds."""
    reject: list[int] = []
    extend: list[tuple[int, int]] = []
    """Ranges whose ``ack_wait`` begins again."""
    started: list[tuple[int, int, int]] | None = None
    """First, last and time of what the application was handed: its ``ack_wait`` begins then. None from a subscriber
    that does not report it."""
    unsent: list[tuple[int, int]] = []
    """Ranges that it holds and was never sent: if they come back, they were not delivered."""


class DeadLetter(_OfDurable, frozen=True):
    """Move one dying message to the dead-letter store of its durable; one step with its release.

    ``message`` is the original with its origin. If ``to_store`` is empty the message is
    dropped. The result is ``Published``, in the numbers of ``to_store`` (0 and 0 if nothing was published).
    """

    seq: int
    message: Message
    to_store: str = ""


EXPIRE_LOOKS: Final = 4_096


class Expire(_Command, frozen=True):
    """Carry out every deadline up to ``at_ms``. One command removes at most ``count`` messages and reads about
    ``looks``; the rest is due again."""

    count: int = 10_000
    volatile: bool = False
    """Of the stores in memory only, or of all others: only the latter are in the log."""
    looks: int = EXPIRE_LOOKS
    contended: list[tuple[str, str]] = []
    """Standard durables (store and durable) that another subscriber waits for: a holder of one of them and lets an
    ``ack_wait`` lapse loses it."""


class Purge(_OfDurable, frozen=True):
    """Forget every message that a durable keeps."""


class Drop(_OfDurable, frozen=True):
    """Delete one message of one durable (an administrator's browse and delete)."""

    seq: int


class Restarted(_Command, frozen=True):
    """The service has started: leases are from before, no delivery counts for the restart, and nothing lapses before
    its subscriber could return."""


class Redeliver(_OfDurable, frozen=True):
    """Put parked messages back: they are delivered again, counted from one.

    ``messages`` are ranges of sequence numbers, empty for all; ``match`` is a matcher's JSON, empty for none; ``count``
    bounds the messages examined, in order of their numbers above ``after``.
    """

    messages: list[tuple[int, int]] = []
    match: bytes = b""
    count: int = 1_000
    after: int = 0


class Resend(_OfDurable, frozen=True):
    """Move a dead letter back to the durable that it came from, and to no other; one step with its release.

    ``message`` is published there. ``store`` is empty if only the second half is requested, because one of the stores
    is in memory. The result is ``Published``, in the numbers of ``to_store``.
    """

    seq: int
    message: Message
    to_store: str
    to_durable: str


class Rewind(_OfDurable, frozen=True):
    """Deliver retained messages again, from ``seq`` (0: all) or, if given, from ``time_ms`` on.

    One command reads about ``EXPIRE_LOOKS`` messages, newest first; ``Expire`` does the rest. Until then the durable
    delivers nothing.
    """

    seq: int = 0
    time_ms: int = 0


class MapChange(_OfMap, frozen=True):
    """Set (``body`` given) or remove (None) keys of a map. All or nothing.

    ``if_revision``: None changes in any case, 0 only if there is no such key, n only if n is its revision. ``fence``:
    the token of a lock that must still be held, 0 for none.
    """

    changes: list[tuple[str, bytes | None, int | None]]
    fence: int = 0
    remove_all: bool = False


class MapLock(_OfMap, frozen=True):
    """Take, extend or ``steal`` the lock of a key (empty: of the whole map) until ``at_ms + ttl_ms``."""

    key: str
    owner: str
    ttl_ms: int
    steal: bool = False


class MapUnlock(_OfMap, frozen=True):
    """Give a lock back, by its holder and with its token."""

    key: str
    owner: str
    fence: int


class Inherit(_Command, frozen=True):
    """The stores' numbers go on in another history: after a restore, a promotion, a move (``values.identity``)."""

    history: str
    """The part of a token that names it."""


CommitPart = Acknowledge | MapChange | Publish


def highest_of(command: Acknowledge | MapChange) -> int | None:
    """The highest number of its store that a command names; None where it rests on something else: a fence, a name."""
    if isinstance(command, MapChange):
        revisions = [revision for _, _, revision in command.changes if revision is not None]
        return max(revisions) if revisions and not command.fence else None
    ranges = (*command.ack, *command.extend, *command.unsent)
    started = (last for _, last, _ in command.started or ())
    return max((0, *(last for _, last in ranges), *(seq for seq, _ in command.nack), *command.reject, *started))


class CommitParts(_Command, frozen=True):
    """What a commit has for the stores: all of it or nothing. Each part has the time of the whole.

    In this order: acknowledgements, of which every message must be held; changes of maps; publications without
    duplicates. No two parts are of one durable, map, or publisher of a store.
    """

    parts: list[CommitPart]
    tokens: list[str] = []
    """Of each part, empty for none (``values.identity``). Checked before it is carried out; no record has them."""


OfAnyStore = Redefine | Expire | Restarted | CommitParts | Inherit
OfSubscriber = Attach | Detach | Unsubscribe | Deliver | Acknowledge | Rewind
OfDurable = OfSubscriber | DeadLetter | Purge | Drop | Redeliver | Resend
Command = OfAnyStore | OfDurable | Publish | MapChange | MapLock | MapUnlock


class Done(_Result, frozen=True):
    """The command was carried out; there is no other result."""


class Published(_Result, frozen=True):
    """``first_seq`` to ``last_seq`` include duplicates, which have the numbers they got the first time. ``discarded``:
    messages that durables gave up for these because of their limits, added over the durables."""

    first_seq: int
    last_seq: int
    duplicates: int
    unmatched: int
    discarded: int = 0


class Attached(_Result, frozen=True):
    """``created``: a dynamic durable was made. ``displaced``: the older subscriber of a standard durable, or empty."""

    created: bool
    displaced: str


class Delivered(_Result, frozen=True):
    """New leases: triples of first, last and delivery count, in order of delivery.

    A count of -1 is 1, for messages that a subscriber had before without a delivery that counted.
    """

    runs: list[tuple[int, int, int]]


class Acknowledged(_Result, frozen=True):
    """How many were acknowledged, put back or rejected, and which messages were not the subscriber's. ``causes`` says
    why, of those that were removed while it held them: first, last and ``limit_old``, ``deleted`` or ``purged``."""

    acknowledged: int
    stale: list[tuple[int, int]]
    causes: list[tuple[int, int, str]] = []


class Expired(_Result, frozen=True):
    """How many messages and dynamic durables an expiry removed."""

    messages: int
    durables: int
    more: bool
    """Whether deadlines up to ``at_ms`` are left."""


class Purged(_Result, frozen=True):
    """What the durable no longer keeps."""

    messages: int
    bytes: int


class Redelivered(_Result, frozen=True):
    """How many messages were put back, and above which number to continue, 0 at the end."""

    messages: int
    after: int = 0


class MapChanged(_Result, frozen=True):
    """The revision of the last change: a sequence number of the store for each changed key, or one for all removed
    keys.

    ``absent`` are the positions of removals that had nothing to remove: they have no revision.
    """

    revision: int
    changed: int
    absent: list[int] = []


class MapLocked(_Result, frozen=True):
    """``fence`` rises with every new holder of this map's locks; ``until_ms`` is when it is free again."""

    fence: int
    until_ms: int


class PartsCommitted(_Result, frozen=True):
    """The result of each part, in their order."""

    results: list[Acknowledged | MapChanged | Published]


Messaged = Published | Attached | Delivered | Acknowledged | Expired | Purged | Redelivered
Result = Done | Messaged | MapChanged | MapLocked | PartsCommitted


RULES: Final = 1
"""The rules by which this code carries commands out. A change of what a command does is a new number."""


class Record(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One frame of the log: a command, its result, and the rules by which the command gave it."""

    command: Command
    result: Result
    rules: int
