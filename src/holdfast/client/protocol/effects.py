"""Effects that a client procedure asks for, the replies to them, and the events of a subscription.

Every reply but ``Item`` carries ``now_ms`` of a monotonic clock. A request has three results: ``Response`` (all of it
arrived); ``Failed(perhaps_accepted=False)`` (its last byte was not handed over; no byte at all, where the service
accepts it in parts); ``Failed(perhaps_accepted=True)`` (unknown, also when in doubt). Effects are structs: a frozen
dataclass costs seven times as much.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from holdfast.commit.format.transaction import Operation, Transaction
from holdfast.wire.log import CommitReceipt, Found, NotCommitted, StreamMessage

if TYPE_CHECKING:
    from holdfast.client.protocol.endpoint import Endpoint
    from holdfast.errors import HoldfastError


@dataclass(frozen=True, slots=True)
class TransactionEvent:
    """One committed transaction (``durable``), or one that was resolved and is not durable yet.

    ``prev_version`` is the version of the committed transaction before it in the log, filtered or not. ``log_id`` names
    the log, here and in the other events; None from a service before log ids.
    ``operations`` are in order: later ones win. A filtered stream carries the operations that the filter lets through.
    ``published``: what it published in the stores that the stream shows, in order.
    """

    version: int
    prev_version: int
    request_id: str | None
    leader_id: str
    time_ms: int
    operations: tuple[Operation, ...]
    durable: bool = True
    log_id: str | None = None
    published: tuple[StreamMessage, ...] = ()


@dataclass(frozen=True, slots=True)
class PublishedEvent:
    """What was published without a transaction, together and durably, in the stores that the stream shows.

    ``more``: the next event has further messages of this version, because one event would be too large. A reader that
    starts again after the position gets all messages of the version again.
    """

    version: int
    leader_id: str
    time_ms: int
    published: tuple[StreamMessage, ...]
    log_id: str | None = None
    more: bool = False

    @property
    def committed_version(self) -> int:
        """As that of a checkpoint: everything at or below is durable and was delivered, so not a version in parts."""
        return self.version - 1 if self.more else self.version


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Everything at or below ``committed_version`` is durable and, in a durable stream, was delivered before this."""

    committed_version: int
    leader_id: str
    log_id: str | None = None


@dataclass(frozen=True, slots=True)
class RolledBack:
    """Forget every transaction above ``to``: it never became durable. Only in streams with ``durable=False``."""

    to: int
    leader_id: str
    log_id: str | None = None


Event = TransactionEvent | PublishedEvent | Checkpoint | RolledBack


class Request(msgspec.Struct, frozen=True):
    """One HTTP request, without what belongs to the connection (host, token, framing). ``accepted_in_parts``: the
    service acts on the body as it arrives, so its first byte may already be accepted."""

    method: str
    target: str
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()
    accepted_in_parts: bool = False


class Send(msgspec.Struct, frozen=True):
    """Send the request once and collect the whole response. The reply is ``Response`` or ``Failed``.

    ``in_turn``: only ``IN_TURN_MAX`` such requests of a client are under way, and the others wait.
    """

    endpoint: Endpoint
    request: Request
    timeout_ms: float
    in_turn: bool = False


IN_TURN_MAX: Final = 32
"""A broken connection may leave the outcome of a thousand commits open, each of which is asked for."""


class Item(msgspec.Struct, eq=False):
    """What one caller offers, once. ``data``: it in its request. ``key``: what its answer names. ``group``: one request
    has items of one group. ``at``: of a read, the version that it must reach. ``txn``: of a commit, what it is.

    ``settled``: first ``ALONE`` where its caller is to send it alone; then its answer, set once. ``endpoint``: where it
    was sent; where a connection was sought, before that. ``is_awaited``: others wait while it travels alone.
    """

    key: str
    data: bytes
    group: tuple[str | None, bool] | None = None
    at: int = 0
    txn: Transaction | None = None
    endpoint: Endpoint | None = None
    offered_ms: float = 0.0
    deadline_ms: float = 0.0
    settled: Answer | None = None
    has_left: bool = False
    is_awaited: bool = False

    def again(self) -> Item:
        """The same, to be offered another time."""
        return Item(self.key, self.data, self.group, self.at, self.txn)


class Share(msgspec.Struct, frozen=True):
    """Send this commit, or this read, together with others that wait at the same time. The reply is the
    item, settled: with its result, or with what ``Send`` would have given."""

    item: Item
    reads: bool = False


class Learn(msgspec.Struct, frozen=True):
    """Ask the service for its version, once for all that wait for it. The reply is ``Woken``, when a position is known
    or none can be; ``since_ms``: when the operation began."""

    since_ms: float


class Wait(msgspec.Struct, frozen=True):
    """Sleep for a time drawn evenly from the two bounds. The reply is ``Woken``. ``reason`` is for people."""

    at_least_ms: float
    at_most_ms: float
    reason: str = ""


class Decide(msgspec.Struct, frozen=True):
    """Call the caller's function with the transaction's builder. The reply is ``Woken``; an exception ends it all."""


class AwaitVersion(msgspec.Struct, frozen=True):
    """Wait until the transaction's view holds everything up to ``version``. The reply is ``Woken`` or ``Failed``."""

    version: int
    timeout_ms: float


class Open(msgspec.Struct, frozen=True):
    """Close the open stream and open this one. The reply is ``Opened``, ``Response`` (refused) or ``Failed``."""

    endpoint: Endpoint
    request: Request
    timeout_ms: float


class Receive(msgspec.Struct, frozen=True):
    """Wait for more bytes of the open stream. The reply is ``Chunk`` or ``Failed`` (it ended, broke or is silent)."""

    timeout_ms: float


class DeliverEvents(msgspec.Struct, frozen=True):
    """Hand these events to the caller; the reply, ``Woken``, comes when the caller asks for more."""

    events: tuple[Event, ...]


class DeliverRows(msgspec.Struct, frozen=True):
    """Hand these rows of a snapshot to the caller; the reply is ``Woken``."""

    rows: tuple[Found, ...]


Effect = Send | Share | Learn | Wait | Decide | AwaitVersion | Open | Receive | DeliverEvents | DeliverRows


class Response(msgspec.Struct, frozen=True):
    """The whole response. Header names are lowercase."""

    now_ms: float
    status: int
    headers: Mapping[str, str]
    body: bytes


class Failed(msgspec.Struct, frozen=True):
    """No whole response. ``partial`` is the part of its body that arrived.

    ``problem``: why the endpoint is unusable until a configuration is changed; nothing was accepted. ``too_large``: the
    response exceeds the client's bound, and a retry would too. ``asked``: False where this client had no free
    connection, so the endpoint was not asked.
    """

    now_ms: float
    perhaps_accepted: bool
    reason: str
    partial: bytes = b""
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)
    problem: HoldfastError | None = None
    too_large: bool = False
    asked: bool = True

    def __post_init__(self) -> None:
        if self.perhaps_accepted and self.problem is not None:  # not asserted: an optimised run must not lose a commit
            raise AssertionError("a request that was perhaps accepted has no problem that ends an operation")


class KeyRead(msgspec.Struct, frozen=True):
    """What is stored at a key at exactly ``at``: its value and the version that wrote it, or None for nothing."""

    at: int
    value: bytes | None
    version: int | None


class Alone:
    """The answer of an item that is to be sent alone. Nothing of it was accepted."""


ALONE: Final = Alone()


class ItemRefused(msgspec.Struct, frozen=True):
    """A service's answer to an item that is not its result. ``ends``: nothing after it in its request was taken."""

    reply: Response | Failed
    index: int
    ends: bool = False


class Unreadable(msgspec.Struct, frozen=True):
    """Bytes that answer nothing: what follows in the response cannot be trusted. ``is_too_large``: nothing follows."""

    reason: str
    is_too_large: bool = False


Answer = CommitReceipt | NotCommitted | KeyRead | Response | Failed | ItemRefused | Unreadable | Alone
"""What a reader of answers finds, or settles an item."""


class Woken(msgspec.Struct, frozen=True):
    """The effect is done."""

    now_ms: float


class Opened(msgspec.Struct, frozen=True):
    """The stream is open: status 200, bytes follow. The names of ``headers`` are in lower case."""

    now_ms: float
    headers: Mapping[str, str] = msgspec.field(default_factory=dict[str, str])


class Chunk(msgspec.Struct, frozen=True):
    """Some bytes of the stream, never none."""

    now_ms: float
    data: bytes


Reply = Response | Failed | Item | Woken | Opened | Chunk

Result = TypeVar("Result")
Procedure = Generator[Effect, Reply, Result]
