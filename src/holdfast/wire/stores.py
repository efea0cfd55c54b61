"""Requests, responses and WebSocket frames of the message stores, with their fields and bounds."""

from __future__ import annotations

from collections import abc
from collections.abc import Mapping
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from holdfast.wire.formats import WireFormat
from holdfast.wire.parts import (
    FIELD_BYTES_MAX,
    FIELDS_MAX,
    KEY_BYTES_MAX,
    TOKEN_MAX,
    Delivery,
    Message,
)

NUMBER_MAX: Final = 2**53 - 1
"""The largest whole number that every JSON reader keeps exactly."""
MESSAGES_MAX: Final = 10_000
"""Messages of one request, and numbers of one acknowledgement."""
REDELIVER_MAX: Final = 10_000
"""Messages that one request delivers again."""
CHANGES_MAX: Final = 10_000
LOCK_MS_MAX: Final = 86_400_000
DAYS_MAX_MS: Final = 100 * 366 * 86_400_000
CREDIT_MAX: Final = 1_000_000
KEEP_RANGES_MAX: Final = 128
"""Ranges of what an application works on, in the request line of a handshake."""
SUBPROTOCOLS: Final[Mapping[str, WireFormat]] = {
    "holdfast.stores.v1+msgpack": "msgpack",
    "holdfast.stores.v1+json": "json",
}

Number = Annotated[int, Meta(ge=0, le=NUMBER_MAX)]
Sequence = Annotated[int, Meta(ge=1, le=NUMBER_MAX)]
Milliseconds = Annotated[int, Meta(ge=0, le=DAYS_MAX_MS)]
Name = Annotated[str, Meta(min_length=1, max_length=256)]
Key = Annotated[str, Meta(max_length=KEY_BYTES_MAX)]
MapKey = Annotated[str, Meta(min_length=1, max_length=KEY_BYTES_MAX)]
FieldText = Annotated[str, Meta(max_length=FIELD_BYTES_MAX)]
FieldNumber = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Fields = Annotated[dict[FieldText, FieldText | FieldNumber | bool], Meta(max_length=FIELDS_MAX)]
Token = Annotated[str, Meta(max_length=TOKEN_MAX)]
Numbers = Annotated[list[Sequence], Meta(max_length=MESSAGES_MAX)]
Ranges = Annotated[list[tuple[Sequence, Sequence]], Meta(max_length=MESSAGES_MAX)]
Pair = Annotated[list[Sequence], Meta(min_length=2, max_length=2)]
Spans = Annotated[list[Sequence | Pair], Meta(max_length=MESSAGES_MAX)]
"""Numbers, and ranges [first, last]. A union of a number and a tuple would crash msgspec 0.22, so these are lists."""
FolderName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$(?!\n)")]
"""Python's ``$`` alone also matches before a last line feed."""


class NothingMore(msgspec.Struct, frozen=True):
    """The change is made; there is nothing else to report."""


# Messages


class PublishedMessage(Message, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """One message of a publish request: a ``Message`` whose bounds are checked while it is decoded."""

    body: bytes = b""
    fields: Fields = {}  # noqa: RUF012  # msgspec copies it for each message
    key: Key | None = None
    publisher_seq: Number = 0
    ttl_ms: Milliseconds = 0
    deliver_at_ms: Number = 0
    origin: None = None
    """Only the service says where a dead letter came from."""


class PublishRequest(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """``POST .../messages``: published whole or not at all."""

    messages: Annotated[list[PublishedMessage], Meta(min_length=1, max_length=MESSAGES_MAX)]
    publisher_id: Annotated[str, Meta(max_length=256)] = ""
    token: Token = ""
    """See ``values.identity``; empty where the request is for whatever has the name now."""


class DelayedNack(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """Give one message back, to be delivered again after ``delay_ms``."""

    seq: Sequence
    delay_ms: Milliseconds = 0


Nacks = Annotated[list[tuple[Sequence, Milliseconds] | DelayedNack], Meta(max_length=MESSAGES_MAX)]
"""Messages that are given back: pairs of a number and its delay, or objects with both."""


class AckRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``POST .../acks``. ``ranges`` are pairs [first, last], for long runs in few bytes."""

    subscriber: Name
    ack: Numbers = []
    ranges: Ranges = []
    nack: Nacks = []
    reject: Numbers = []
    extend: Numbers = []
    started: Spans | None = None
    """The messages that the application was handed. From the first report on only their deliveries count."""
    token: Token = ""
    """Of the answer that delivered the messages; empty where the numbers are of whatever has the name now."""


class DeliveredResponse(msgspec.Struct, frozen=True):
    """Messages in the order in which they are delivered. ``token``: the durable's, for their acknowledgements. The two
    times are those of ``MessagesFrame``."""

    messages: list[Delivery]
    token: str = ""
    ack_wait_ms: int = 0
    buffer_wait_ms: int = 0


class Page(msgspec.Struct, frozen=True):
    """Messages of a durable, in order; none of them is consumed.

    ``next_after``: continue above this number; None at the end.
    """

    messages: list[Delivery]
    next_after: int | None = None
    parked: list[int] = []
    """Those of them that were delivered too often and wait for an administrator."""
    token: str = ""
    """The durable's, for the next page."""


class PurgedAnswer(msgspec.Struct, frozen=True):
    """What a durable kept and keeps no more."""

    messages: int = 0
    bytes: int = 0


class RewindRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Exactly one of: everything kept (``"to": "start"``), from a number on, from a time on."""

    to: Annotated[str, Meta(pattern=r"^start$(?!\n)")] | None = None
    seq: Annotated[int, Meta(ge=1, le=2**53 - 1)] | None = None
    time_ms: Number | None = None


class RedeliverRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which messages, all by default: ``messages`` are ranges [first, last], ``match`` is a matcher."""

    messages: Ranges = []
    match: dict[str, Any] = {}
    max: Annotated[int, Meta(ge=1, le=REDELIVER_MAX)] = REDELIVER_MAX
    after: Number = 0


class RedeliveredResponse(msgspec.Struct, frozen=True):
    """``redelivered`` messages go on; ``left`` counts letters that could not go back, by the code of the reason.

    ``next_after``: continue above this number; None at the end.
    """

    redelivered: int
    left: dict[str, int] = {}
    next_after: int | None = None


# Statistics


class Sample(msgspec.Struct, frozen=True, gc=False):
    """One line of ``/metrics``."""

    name: str
    labels: dict[str, str]
    value: float


class StatisticsBody(msgspec.Struct, frozen=True):
    """The body of a message of the store ``_statistics``, as JSON: every number of ``/metrics`` at ``time_ms``."""

    time_ms: int
    samples: list[Sample]


# Maps


class Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One key of a map. ``revision`` rises with every change of it. ``token``: the map's; empty in a list."""

    key: str
    value: bytes
    revision: int
    token: str = ""


class EntriesResponse(msgspec.Struct, frozen=True):
    """Some keys of a map in their order; ``more`` where the limit cut it short."""

    entries: list[Entry]
    more: bool = False
    token: str = ""


class SetRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The value of a key."""

    value: bytes


class OneChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Set a key, or remove it where there is no ``value``. ``if_revision`` 0: only where there is no such key."""

    key: MapKey
    value: bytes | None = None
    if_revision: Number | None = None


class AcknowledgePart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of a commit: acknowledge these messages, all of which ``subscriber`` must hold."""

    store: Name
    durable: Name
    subscriber: Name
    ack: Annotated[list[Sequence], Meta(min_length=1, max_length=MESSAGES_MAX)]
    token: Token = ""


class MapPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of a commit: change keys of a map. ``fence``: the token of a lock that must be held still."""

    store: Name
    map: Name
    changes: Annotated[list[OneChange], Meta(min_length=1, max_length=CHANGES_MAX)]
    fence: Number = 0
    token: Token = ""


class PublishPart(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """Of a commit: publish these messages. With a ``publisher_id`` any duplicate refuses the commit."""

    store: Name
    messages: Annotated[list[PublishedMessage], Meta(min_length=1, max_length=MESSAGES_MAX)]
    publisher_id: Annotated[str, Meta(max_length=256)] = ""
    token: Token = ""


class ChangesRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Several keys, all or nothing; or every key removed. ``fence``: the token of a lock that must be held still."""

    changes: Annotated[list[OneChange], Meta(max_length=CHANGES_MAX)] = []
    fence: Number = 0
    remove_all: bool = False
    token: Token = ""


class LockRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Take, extend or (``steal``) take away the lock of a key; an empty key is the whole map."""

    owner: Name
    ttl_ms: Annotated[int, Meta(ge=1, le=LOCK_MS_MAX)]
    key: Key = ""
    steal: bool = False
    token: Token = ""


class UnlockRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Give a lock back."""

    owner: Name
    fence: Number
    key: Key = ""
    token: Token = ""


class Lock(msgspec.Struct, frozen=True):
    """A lock that is held. ``fence`` rises with every holder, so a resource can refuse writes of an older one."""

    key: str
    owner: str
    fence: int
    until_ms: int
    token: str = ""
    """Of the map that it is in."""


class LockedResponse(msgspec.Struct, frozen=True):
    """``fence`` rises with every new holder; the lock ends at ``until_ms``."""

    fence: int
    until_ms: int
    token: str = ""
    """The map's, for what is done under the lock."""


# The cluster


class Rollback(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which revision of the definition becomes the one in force; it gets a new number."""

    revision: Annotated[int, Meta(ge=1)]


class BackupRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``name``: the folder of the backup, below the one that the service keeps backups in."""

    name: FolderName


class QuorumResponse(msgspec.Struct, frozen=True):
    """Which services of the cluster are present."""

    have_quorum: bool
    leader: str
    max_member_count: int
    min_member_count: int
    current_member_count: int
    members_in_quorum: list[str]
    members_not_in_quorum: list[str]
    errors: list[str]


# Frames of a subscriber


class CreditFrame(msgspec.Struct, frozen=True, tag_field="type", tag="credit", forbid_unknown_fields=True):
    """The client takes this many more messages."""

    messages: Annotated[int, Meta(ge=1, le=CREDIT_MAX)]


class AckFrame(msgspec.Struct, frozen=True, tag_field="type", tag="ack", forbid_unknown_fields=True):
    """Acknowledged: ranges [first, last]."""

    ranges: Ranges
    id: Number = 0
    token: Token = ""
    """Of ``attached``; empty where the numbers are of this connection."""


class NackFrame(msgspec.Struct, frozen=True, tag_field="type", tag="nack", forbid_unknown_fields=True):
    """Given back, to be delivered again after a delay in milliseconds."""

    messages: Nacks
    id: Number = 0
    token: Token = ""


class RejectFrame(msgspec.Struct, frozen=True, tag_field="type", tag="reject", forbid_unknown_fields=True):
    """Never to be delivered again: to the dead letters."""

    messages: Numbers
    id: Number = 0
    token: Token = ""


class ExtendFrame(msgspec.Struct, frozen=True, tag_field="type", tag="extend", forbid_unknown_fields=True):
    """Still in work: the time to acknowledge begins again."""

    messages: Numbers
    id: Number = 0
    token: Token = ""


class StartedFrame(msgspec.Struct, frozen=True, tag_field="type", tag="started", forbid_unknown_fields=True):
    """The application was handed these messages: ranges [first, last], empty to announce that reports will come.

    It gets no reply. From the first report on only the deliveries of reported messages count.
    """

    ranges: Ranges


class CloseFrame(msgspec.Struct, frozen=True, tag_field="type", tag="close", forbid_unknown_fields=True):
    """The subscriber leaves; the messages that it holds go back."""


class AttachedFrame(msgspec.Struct, frozen=True, tag_field="type", tag="attached"):
    """The subscriber is connected; the parameters of its durable. Times are milliseconds."""

    created: bool = False
    prefetch: int = 1_024
    ack_mode: str = "async"
    ack_batch_count: int = 1_000
    ack_batch_time_ms: int = 100
    started_reports: bool = False
    """Whether the service takes reports of the messages that the application was handed."""
    buffer_wait_ms: int = 0
    """How long a message may wait for the application; 0 is without a limit."""
    order: str = ""
    """What is handed over in order: ``durable`` for all of it, ``key`` for the messages of one key."""
    token: str = ""
    """Of the durable that the connection is attached to."""
    kept: list[tuple[int, int]] = []
    """Ranges of what was asked for with ``keep`` and is held still. They are not delivered again unless they come
    back, and their ``ack_wait`` begins now."""


class MessagesFrame(msgspec.Struct, frozen=True, tag_field="type", tag="messages"):
    """Messages that this subscriber holds from now on. Times: see ``Portion``."""

    messages: list[Delivery]
    ack_wait_ms: int = 0
    buffer_wait_ms: int = 0


class KeyChange(msgspec.Struct, frozen=True):
    """What became of one key of a map.

    ``cause``: ``present`` (it was there when the watch began) and ``set`` come with the ``value``; ``removed``,
    ``expired``, ``discarded`` (at the map's limit) and ``deleted`` (by an administrator) with None.
    """

    key: str
    revision: int
    """The value's; of a removed key that of its removal, or that of its last value where a removal took no number."""
    cause: str
    value: bytes | None = None


class ChangesFrame(msgspec.Struct, frozen=True, tag_field="type", tag="changes"):
    """Changes of a map, each key's newest, in the order in which they happened."""

    changes: list[KeyChange]


class CurrentFrame(msgspec.Struct, frozen=True, tag_field="type", tag="current"):
    """Every key that was there when the watch began has been sent. Sent once."""


class ReplyFrame(msgspec.Struct, frozen=True, tag_field="type", tag="answer"):
    """The acknowledgement with this id is durable. ``stale``: ranges that this subscriber did not hold, or numbers;
    ``causes``: first, last and cause of those among them that were removed while it held them."""

    id: int
    acknowledged: int = 0
    stale: abc.Sequence[int | tuple[int, int]] = []
    causes: abc.Sequence[tuple[int, int, str]] | msgspec.UnsetType = msgspec.UNSET


class ErrorFrame(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="type", tag="error"):
    """The frame with this id was refused and changed nothing."""

    id: int
    code: str
    message: str = ""
    hint: str = ""


class AdvisoryFrame(msgspec.Struct, frozen=True, tag_field="type", tag="advisory"):
    """A state of the subscription that no message carries."""

    kind: str
    facts: Mapping[str, object] = {}


class WithdrawnFrame(msgspec.Struct, frozen=True, tag_field="type", tag="withdrawn"):
    """Messages that this subscriber was sent and holds no more: ranges [first, last]. It has their credit again.

    ``cause``: ``lapsed``, ``order`` (a message before them lapsed), ``acknowledged`` (by a commit), ``purged``,
    ``deleted``, ``rewound``.
    """

    ranges: Ranges
    cause: str


ClientFrame = CreditFrame | AckFrame | NackFrame | RejectFrame | ExtendFrame | StartedFrame | CloseFrame
ServerFrame = (
    AttachedFrame
    | MessagesFrame
    | WithdrawnFrame
    | AdvisoryFrame
    | ReplyFrame
    | ErrorFrame
    | ChangesFrame
    | CurrentFrame
)
