"""The hot store operations (publish, acknowledge, poll) and browsing, from a decoded request to its response's bytes.

A response is given exactly once, and not before what it says is as durable as its store promises. A client that goes
away takes no publish and no acknowledgement back. Messages on their way to its poll are for the next poll of its name,
or for other subscribers when none comes within its timeout.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from heapq import nsmallest
from itertools import islice
from typing import Final, NamedTuple, Protocol, TypeVar
from urllib.parse import parse_qsl, unquote

import msgspec

from holdfast.errors import Code, HoldfastError, InvalidRequest, LimitExceeded, NotFound
from holdfast.server.http.auth import HeldRight, RightsWatch
from holdfast.server.http.requests import whole_number
from holdfast.server.stores.deliveries import Deliveries
from holdfast.server.stores.figures import PublishLatency
from holdfast.server.stores.subscribers import Poller, wall_ms
from holdfast.stores.definitions.cluster import (
    DurableDefinition,
    DurableType,
    PublisherMode,
    StoreDefinition,
)
from holdfast.stores.definitions.reader import STATISTICS
from holdfast.stores.durables.consumption import Consumption
from holdfast.stores.durables.map import MapDurable
from holdfast.stores.durables.pending import Browsed
from holdfast.stores.machine.map_commands import map_of
from holdfast.stores.machine.state import State
from holdfast.stores.machine.store import Durable
from holdfast.stores.matching import Matcher
from holdfast.stores.service import StoreService
from holdfast.stores.values.commands import (
    Acknowledge,
    Acknowledged,
    Attach,
    Attached,
    Publish,
    Published,
    Result,
    highest_of,
)
from holdfast.stores.values.messages import fields_hint
from holdfast.stores.values.ports import KeyEntry
from holdfast.values import ranges_of
from holdfast.view.storage import PAGE_BYTES
from holdfast.wire.formats import UNDECODABLE, WireFormat, decode_each_once, encode, require_few_values
from holdfast.wire.parts import AckedResponse, BatchReceipt, Delivery, Portion
from holdfast.wire.stores import KEEP_RANGES_MAX, NUMBER_MAX, AckRequest, DelayedNack, DeliveredResponse, PublishRequest

POLL_MESSAGES_DEFAULT: Final = 100
POLL_MESSAGES_MAX: Final = 512
POLL_WAIT_MS_MAX: Final = 60_000
BROWSE_LOOKS: Final = 20
READ_AT_ONCE: Final = 16
"""Messages of a page that are read before their bytes are counted."""
LOOKS_MAX: Final = 8_192
"""About how many messages of the store one browse looks at."""
UNHEARD_BYTES_MAX: Final = 64 * 1_048_576
"""Most bytes of publishes that were confirmed before they were written."""
MESSAGE_BYTES: Final = 160
RANGED_NUMBERS_MAX: Final = 1_000_000
REQUEST_VALUES_MAX: Final = 1_000_000
"""A parser of JSON reads a list to its end before it compares its length."""


class OperationReply(Protocol):
    """The response to one request. One of the two is called, once, on the loop; neither raises."""

    wire_format: WireFormat

    def give(self, body: bytes) -> None:
        """Respond with this body, in ``wire_format``."""

    def refuse(self, error: HoldfastError) -> None:
        """Respond with an error."""


class PendingPublish(msgspec.Struct, frozen=True):
    """A publish from its command to its response: the service calls it with the outcome."""

    reply: OperationReply
    token: str
    messages: int
    latency: PublishLatency
    loop: asyncio.AbstractEventLoop
    began_seconds: float

    def __call__(self, outcome: Result | HoldfastError) -> None:
        """Respond."""
        if isinstance(outcome, HoldfastError):
            self.latency.refused += 1
            self.reply.refuse(outcome)
            return
        assert isinstance(outcome, Published), "Publish answers Published"
        self.latency.confirmed(self.loop.time() - self.began_seconds, self.messages)
        self.reply.give(published_bytes(outcome, self.token, self.reply.wire_format))


@dataclass(slots=True, eq=False, repr=False)
class PendingPoll:
    """A poll that waits for its response, for the connection under it. An ``OpenAct`` until it has it."""

    _deliveries: Deliveries
    _poller: Poller
    _reply: OperationReply | None
    _token: str
    _until: float
    """The time of the loop up to which it waits."""
    _held: HeldRight
    _rights: RightsWatch
    abandoned: bool = False
    _hurried: bool = False

    def watch(self) -> None:
        """End it when its caller loses the right while it waits."""
        if self._reply is not None:
            self._rights.add(self)

    def answer(self, answer: Portion | HoldfastError) -> None:
        """Its response, once: what comes after it is dropped."""
        reply, self._reply = self._reply, None
        self._rights.discard(self)
        if reply is None:
            return
        if isinstance(answer, HoldfastError):
            reply.refuse(answer)
        else:
            response = DeliveredResponse(answer.messages, self._token, answer.ack_wait_ms, answer.buffer_wait_ms)
            reply.give(encode(response, reply.wire_format))

    def problem(self) -> HoldfastError | None:
        """None while its caller may have messages, else the error."""
        return self._held.problem()

    def end_for(self, problem: HoldfastError) -> None:
        """See ``OpenAct``."""
        self._drop()
        self.answer(problem)

    def abandon(self) -> None:
        """Nobody waits for it any more: it is given nothing."""
        self._rights.discard(self)
        self._reply = None
        self._drop()

    def _drop(self) -> None:
        self.abandoned = True
        self._deliveries.newcomers.forget(self._poller)
        self._poller.abandon(self.answer)

    def hurry(self) -> None:
        """It waits no longer: it is answered with what is there."""
        self._hurried = True
        self._deliveries.newcomers.hurry(self._poller)
        self._poller.hurry(self.answer)

    @property
    def wait_seconds(self) -> float:
        """How long it may wait from now on, for its durable or for messages."""
        return 0.0 if self._hurried else max(0.0, self._until - self._deliveries.loop.time())


class StoreOperations:
    """The operations of one open service."""

    def __init__(self, service: StoreService, deliveries: Deliveries, definitions: InForce) -> None:
        self._service = service
        self._state = service.state
        self._deliveries = deliveries
        self._definitions = definitions
        self.latencies: defaultdict[str, PublishLatency] = defaultdict(PublishLatency)
        self._unheard_bytes = 0

    def publish(self, store: str, request: PublishRequest, reply: OperationReply) -> None:
        """Publish a batch. Where publishers do not wait, the response is given at once, up to ``UNHEARD_BYTES_MAX``.

        Raises: NotFound for the store, Closed (``store_replaced``); every other refusal goes to ``reply``.
        """
        command = Publish(0, store, request.publisher_id, request.messages)  # type: ignore[arg-type]  # only ever read
        definition = self._definitions.store(store)
        if request.token:
            first = command.messages[0].publisher_seq if command.messages else 1
            self._service.require_publisher(request.token, store, command.publisher, first)
        token = self._service.token(store)
        if definition.publisher_mode is PublisherMode.NO_CONFIRM:
            self._publish_unheard(command, token, reply)
        else:
            latency, loop = self.latencies[store], self._deliveries.loop
            pending = PendingPublish(reply, token, len(request.messages), latency, loop, loop.time())
            self._service.submit_nowait(command, pending)

    def _publish_unheard(self, command: Publish, token: str, reply: OperationReply) -> None:
        """Respond at once, unless too much waits to be written."""
        answer = published_bytes(Published(0, 0, 0, 0), token, reply.wire_format)
        size = sum(len(message.body) + MESSAGE_BYTES for message in command.messages)
        waits = self._unheard_bytes + size > UNHEARD_BYTES_MAX and self._unheard_bytes > 0
        self._unheard_bytes += size

        def unheard(_: Result | HoldfastError) -> None:
            self._unheard_bytes -= size
            if waits:
                reply.give(answer)

        self._service.submit_nowait(command, unheard)
        if not waits:
            reply.give(answer)

    def acknowledge(self, store: str, durable: str, request: AckRequest, reply: OperationReply) -> None:
        """Complete held messages; for a detached subscriber all are stale.

        Raises: NotFound, InvalidRequest, LimitExceeded, Closed (``store_replaced``).
        """
        durable = self._definitions.named(store, durable, request.subscriber)
        command = acknowledge_of(store, durable, request)

        def highest() -> int:
            return max(highest_of(command) or 0, *(last for _, last in pairs_of(request.started or [0])))

        self._service.require(request.token, store, durable, through=highest)
        # The command is applied in this turn of the loop: of a durable that is there it finds no subscriber, or all.
        is_there = durable in self._state.store(store).durables

        def acknowledged(result: Result | HoldfastError) -> None:
            if isinstance(result, NotFound) and is_there:
                result = Acknowledged(0, _numbers_of(command))
            if isinstance(result, HoldfastError):
                reply.refuse(result)
                return
            assert isinstance(result, Acknowledged), "Acknowledge answers Acknowledged"
            self._deliveries.settled(command, result)
            # One by one, at most as many as were sent.
            stale = [seq for first, last in result.stale for seq in range(first, last + 1)]
            reply.give(encode(AckedResponse(result.acknowledged, stale, result.causes), reply.wire_format))

        self._deliveries.seen(store, durable, request.subscriber)
        subscriber = self._deliveries.find(store, durable, request.subscriber)
        if subscriber is not None:
            subscriber.acknowledged_ms = wall_ms()
            if request.started is not None:
                self._deliveries.started(subscriber, pairs_of(request.started))
            if request.extend:
                self._deliveries.before_extension(subscriber)
        if is_there and not (command.ack or command.nack or command.reject or command.extend):
            acknowledged(Acknowledged(0, []))  # a sign of life: nothing changes, so nothing is written
            return
        self._service.submit_nowait(command, acknowledged)

    def poll(self, poll: PollRequest, reply: OperationReply, held: HeldRight, rights: RightsWatch) -> PendingPoll:
        """Reply with messages as soon as there are some. Returns the poll, to be abandoned with its connection.

        A poll that repeats the poller's last one does not attach it again, so it keeps what it holds. While another
        subscriber has the standard durable, the poll waits for that; then it is refused (durable_busy). The right is
        asked for again while it waits and when there are messages. Raises: NotFound, InvalidRequest (type_mismatch).
        """
        deliveries = self._deliveries
        durable = self._definitions.named(poll.store, poll.durable, poll.subscriber)
        terms = self._definitions.terms(poll.store, durable)
        if terms.type is DurableType.MAP:
            raise InvalidRequest("the keys of a map are read instead", code=Code.TYPE_MISMATCH)
        require_keys(terms, poll.key)

        self._service.require_continued(poll.token, poll.store, durable)
        token = self._service.token(poll.store, durable)

        known = deliveries.find(poll.store, durable, poll.subscriber)
        if isinstance(known, Poller) and known.key == poll.key and known.keeps:
            poller, is_attached = known, True
        else:
            place, seconds = (poll.store, durable, poll.subscriber), terms.subscriber_timeout_ms / 1000
            poller, is_attached = Poller(deliveries, *place, timeout_seconds=seconds, key=poll.key), False
        poller.address = poll.address
        until = deliveries.loop.time() + poll.wait_seconds
        pending = PendingPoll(deliveries, poller, reply, token, until, held, rights)
        if is_attached:
            deliveries.poll(poller, poll.messages, poll.wait_seconds, pending.answer, held.problem)
        else:

            def attached(result: Attached | HoldfastError) -> None:
                if isinstance(result, HoldfastError):
                    pending.answer(result)
                elif pending.abandoned:
                    deliveries.leave(poller, "closed")
                else:
                    deliveries.poll(poller, poll.messages, pending.wait_seconds, pending.answer, held.problem)

            attach = Attach(0, poll.store, durable, poll.subscriber, key=poll.key, polls=True, take_over=poll.take_over)
            require = partial(self._service.require, token, poll.store, durable)
            deliveries.attach(poller, attach, attached, poll.wait_seconds, require)

        pending.watch()
        return pending

    def browse(
        self, store: str, durable: str, *, after: int, count: int, match: bytes, parked: bool = False
    ) -> tuple[list[Delivery], int | None]:
        """Up to ``count`` messages of a durable above number ``after``, ascending, and the number to continue after.

        None: there are no more. With a matcher there may be few or no messages and still more to come. Raises:
        NotFound, InvalidRequest. Cost: reads at most ``BROWSE_LOOKS`` times ``count`` messages, and looks at about
        ``LOOKS_MAX``: some 100 ms. Memory: ``PAGE_BYTES`` and ``READ_AT_ONCE`` messages.
        """
        _, source = self._state.find(store, durable)
        matcher = Matcher.parse(match) if match else None
        messages: list[Delivery] = []
        reads, looks = count * (1 if matcher is None else BROWSE_LOOKS), LOOKS_MAX
        reached: int | None = after
        size = 0
        while len(messages) < count and size < PAGE_BYTES and reached is not None and reads > 0 and looks > 0:
            if parked:
                page, reached = _parked(source, reached, min(count, reads, READ_AT_ONCE))
            else:
                page, reached, looks = _numbers(source, reached, min(count, reads, READ_AT_ONCE), looks)
            read = self._service.messages(store, [(seq, seq, deliveries) for seq, deliveries in page])
            read = self._deliveries.with_replayed(store, durable, read)
            matches = [one for one in read if matcher is None or matcher.matches(one.fields)]
            messages += matches
            size += sum(len(one.body) for one in matches)
            reads -= len(page)
        if len(messages) > count:
            return messages[:count], messages[count - 1].seq
        return messages, reached

    def entries(self, store: str, name: str, *, after: str, count: int) -> tuple[list[tuple[str, bytes, int]], bool]:
        """The first entries of a map above ``after``, as far as a page goes, and whether more follow. Raises: as
        ``entry``."""
        scan = map_of(self._state.store(store), name).keyed.scan(after)
        page: list[tuple[str, bytes, int]] = []
        size = 0
        while some := list(islice(scan, READ_AT_ONCE)):
            for key, body, revision in self._with_bodies(store, some):
                size += len(key) + len(body)
                if len(page) >= count or (page and size > PAGE_BYTES):
                    return page, True
                page.append((key, body, revision))
        return page, False

    def entry(self, store: str, name: str, key: str) -> tuple[str, bytes, int] | None:
        """An entry of a map, None where it has none. Raises: NotFound, InvalidRequest."""
        entry = map_of(self._state.store(store), name).keyed.get(key)
        return None if entry is None else next(iter(self._with_bodies(store, [entry])), None)

    def _with_bodies(self, store: str, entries: Sequence[KeyEntry]) -> list[tuple[str, bytes, int]]:
        numbers = sorted((entry.revision, entry.revision, 1) for entry in entries)
        bodies = {one.seq: one.body for one in self._service.messages(store, numbers)}
        return [(entry.key, bodies[entry.revision], entry.revision) for entry in entries if entry.revision in bodies]


def _numbers(durable: Durable, after: int, count: int, looks: int) -> Browsed:
    if isinstance(durable, Consumption):
        return durable.browse_page(after, count, looks)
    if isinstance(durable, MapDurable):
        raise InvalidRequest("the keys of a map are read instead", code=Code.TYPE_MISMATCH)
    entries, reached, left = durable.keyed.browse_page(after, count, looks)
    return [(entry.revision, 0) for entry in entries], reached, left


def _parked(durable: Durable, after: int, count: int) -> tuple[list[tuple[int, int]], int | None]:
    if not isinstance(durable, Consumption):
        raise InvalidRequest("only standard and shared durables park messages", code=Code.TYPE_MISMATCH)
    seqs = nsmallest(count + 1, (seq for seq in durable.dying if seq > after and durable.parks))
    page = [(seq, durable.dying[seq][1]) for seq in seqs[:count]]
    return page, page[-1][0] if len(seqs) > count else None


class PollRequest(NamedTuple):
    """``GET .../messages`` as it was asked."""

    store: str
    durable: str
    subscriber: str
    messages: int
    wait_seconds: float
    key: str | None
    take_over: bool
    address: str
    token: str

    @classmethod
    def read(cls, store: str, durable: str, parameters: Mapping[str, str], address: str) -> PollRequest:
        """A request with these query parameters. Raises: InvalidRequest."""
        subscriber, text = parameters.get("subscriber", ""), parameters.get
        if not 1 <= len(subscriber) <= 256:
            raise InvalidRequest("subscriber is a name of 1 to 256 characters")
        messages = whole_number("max", text("max", str(POLL_MESSAGES_DEFAULT)), low=1, high=POLL_MESSAGES_MAX)
        wait_ms = whole_number("wait_ms", text("wait_ms", "0"), low=0, high=POLL_WAIT_MS_MAX)
        take_over = flag("take_over", text("take_over"))
        return cls(
            store, durable, subscriber, messages, wait_ms / 1000, text("key"), take_over, address, text("token", "")
        )


def flag(name: str, text: str | None) -> bool:
    """A query parameter that is true or false. Raises: InvalidRequest."""
    if text not in (None, "true", "false"):
        raise InvalidRequest(f"{name} is true or false")
    return text == "true"


SUBSCRIBE_PARAMETERS: Final = frozenset(
    {
        *("subscriber", "template", "matcher", "key", "prefix", "prefetch", "token", "wait_ms", "take_over"),
        *("session", "keep"),
    }
)


SESSION_LENGTH_MAX: Final = 64


class SubscribeRequest:
    """What the request line asks for."""

    __slots__ = (
        "durable", "keep", "key", "matcher", "prefetch", "prefix", "session", "store", "subscriber", "take_over",
        "template", "token", "wait_ms",
    )  # fmt: skip

    def __init__(self, target: str) -> None:
        """Raises: InvalidRequest; NotFound where the path is another one."""
        path, _, query = target.partition("?")
        parts = path.split("/")
        if len(parts) != 7 or parts[1:3] != ["v1", "stores"] or parts[4] != "durables" or parts[6] != "subscribe":
            raise NotFound("no WebSocket is served there", hint="GET /v1/stores/{store}/durables/{durable}/subscribe")
        self.store, self.durable = unquote(parts[3]), unquote(parts[5])
        try:
            pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query), max_num_fields=16)
        except ValueError as error:
            raise InvalidRequest("the query cannot be read") from error
        texts = dict(pairs)
        if len(texts) != len(pairs):
            raise InvalidRequest("a query parameter is given more than once")
        unknown = texts.keys() - SUBSCRIBE_PARAMETERS
        if unknown:
            raise InvalidRequest(f"the route has no query parameter {min(unknown)[:64]!r}")
        self.subscriber = texts.get("subscriber", "")
        if not 1 <= len(self.subscriber) <= 256:
            raise InvalidRequest("subscriber is a name of 1 to 256 characters")
        self.template = texts.get("template", "")
        self.matcher = texts.get("matcher", "").encode()
        self.key = texts.get("key")
        self.prefix = texts.get("prefix")
        """Also an empty prefix means a watch."""
        self.token = texts.get("token", "")
        """Of the durable that the subscriber was attached to before, so that it does not go on with another one."""
        self.prefetch = whole_number("prefetch", texts.get("prefetch", "0"), low=0, high=999_999)
        self.wait_ms = whole_number("wait_ms", texts.get("wait_ms", "0"), low=0, high=POLL_WAIT_MS_MAX)
        self.take_over = flag("take_over", texts.get("take_over"))
        self.session = texts.get("session", "")
        if len(self.session) > SESSION_LENGTH_MAX:
            raise InvalidRequest(f"session has at most {SESSION_LENGTH_MAX} characters")
        self.keep = _kept(texts.get("keep", ""))
        if self.keep and not (self.session and self.token):
            raise InvalidRequest("keep needs session and token: numbers mean nothing to another one")

    def command(self, *, is_watch: bool) -> Attach:
        """What asks the state machine for it. The key of a watch is the watch's own."""
        key = None if is_watch else self.key
        return Attach(
            0,
            self.store,
            self.durable,
            self.subscriber,
            self.template,
            self.matcher,
            key,
            take_over=self.take_over,
            session=self.session,
            keep=self.keep,
        )


def _kept(text: str) -> list[tuple[int, int]]:
    """Numbers and ranges, such as ``3,7-9``, as ranges."""
    ranges: list[tuple[int, int]] = []
    before = 0
    for part in text.split(",") if text else ():
        first, _, last = part.partition("-")
        low, high = _sequence(first), _sequence(last or first)
        if not before < low <= high:
            raise InvalidRequest("keep has ascending numbers and ranges, such as 3,7-9")
        ranges.append((low, high))
        before = high
    if len(ranges) > KEEP_RANGES_MAX:
        raise InvalidRequest(f"keep has at most {KEEP_RANGES_MAX} ranges")
    return ranges


def _sequence(text: str) -> int:
    """A sequence number, 0 for anything else."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= len(str(NUMBER_MAX)) else 0


def require_keys(terms: DurableDefinition, key: str | None) -> None:
    """Raises: InvalidRequest (type_mismatch) for a key that no subscriber of this durable can follow."""
    if key is not None and terms.type is not DurableType.LAST_VALUE:
        raise InvalidRequest(
            "only subscribers of a last_value durable follow a key",
            code=Code.TYPE_MISMATCH,
            facts={"durable": terms.name, "type": str(terms.type)},
            hint="leave the parameter key out, or give the durable a matcher",
        )


def acknowledge_of(store: str, durable: str, request: AckRequest) -> Acknowledge:
    """The command of an acknowledgement. Raises: LimitExceeded where its ranges are of too many numbers."""
    numbers = sum(last - first + 1 for first, last in request.ranges)
    if numbers > RANGED_NUMBERS_MAX:
        raise LimitExceeded(
            "the ranges contain too many numbers",
            code=Code.TOO_LARGE,
            hint="acknowledge only delivered messages; send several requests if there are too many for one",
            numbers=numbers,
            max=RANGED_NUMBERS_MAX,
        )
    return Acknowledge(
        0,
        store,
        durable,
        request.subscriber,
        ack=[*ranges_of(request.ack), *request.ranges] if request.ack else request.ranges,
        nack=nacks_of(request.nack),
        reject=request.reject,
        extend=ranges_of(request.extend),
    )


def pairs_of(spans: Iterable[int | list[int]]) -> list[tuple[int, int]]:
    """Numbers and ranges as ranges: the runs of the numbers, then the ranges as they are.

    >>> pairs_of([7, [2, 4], 8])
    [(7, 8), (2, 4)]
    """
    numbers: list[int] = []
    ranges: list[tuple[int, int]] = []
    for span in spans:
        if isinstance(span, int):
            numbers.append(span)
        else:
            ranges.append((span[0], span[1]))
    return [*ranges_of(numbers), *ranges]


def nacks_of(given: Iterable[tuple[int, int] | DelayedNack]) -> list[tuple[int, int]]:
    """Numbers with their delays in milliseconds, from both forms in which a client gives messages back.

    >>> nacks_of([(8, 500), DelayedNack(9, 20)])
    [(8, 500), (9, 20)]
    """
    return [(one.seq, one.delay_ms) if isinstance(one, DelayedNack) else one for one in given]


def _numbers_of(command: Acknowledge) -> list[tuple[int, int]]:
    singles = [(seq, seq) for seq, _ in command.nack] + [(seq, seq) for seq in command.reject]
    return [*command.ack, *singles, *command.extend]


T = TypeVar("T")


def decode(data: bytes, kind: type[T], wire_format: WireFormat) -> T:
    """The request that these bytes hold. Raises: InvalidRequest (malformed, bad_base64), LimitExceeded."""
    if wire_format == "json":  # in msgpack the bounds of a request's lists come first
        require_few_values(data, REQUEST_VALUES_MAX)
    try:
        return decode_each_once(data, kind, wire_format)
    except UNDECODABLE as error:
        text = "text is not UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)
        code = Code.BAD_BASE64 if text.startswith("Invalid base64") else Code.MALFORMED
        raise InvalidRequest(f"the request cannot be decoded: {text}", code=code, hint=fields_hint(text)) from error


def published_bytes(result: Published, token: str, wire_format: WireFormat) -> bytes:
    """The answer to a publish; the same as encoding a ``BatchReceipt``, at a third of the cost in JSON."""
    if wire_format == "json":
        return b'{"first_seq":%d,"last_seq":%d,"duplicates":%d,"unmatched":%d,"discarded":%d,"token":"%s"}' % (
            result.first_seq,
            result.last_seq,
            result.duplicates,
            result.unmatched,
            result.discarded,
            token.encode(),
        )
    first, last, discarded = result.first_seq, result.last_seq, result.discarded
    return encode(BatchReceipt(first, last, result.duplicates, result.unmatched, discarded, token), wire_format)


DEFAULT_DURABLE: Final = "-"
"""In a path: the subscriber's own durable."""


class InForce:
    """Looks definitions up. O(1) where nothing else is said."""

    __slots__ = ("_state",)

    def __init__(self, state: State) -> None:
        self._state = state

    def store(self, name: str) -> StoreDefinition:
        """Raises: NotFound."""
        definition = self._state.definition.stores.get(name)
        if definition is not None:
            return definition
        if name == STATISTICS and name not in self._state.stores:
            raise NotFound(
                "the store of statistics is there only while a subscriber is attached",
                hint="subscribe to a durable of it, which is made then",
                store=name,
            )
        return self._state.store(name).definition

    def named(self, store: str, durable: str, subscriber: str) -> str:
        """The durable's name; ``DEFAULT_DURABLE`` stands for the subscriber's own. Raises: NotFound."""
        if durable != DEFAULT_DURABLE:
            return durable
        name = self.store(store).durable_for(subscriber)
        if not name:
            raise NotFound(
                "the store has no default durable, and none for this subscriber", store=store, subscriber=subscriber
            )
        return name

    def terms(self, store: str, name: str, template: str | None = None) -> DurableDefinition:
        """The definition of a durable, or the one that ``template`` would give it. Raises: NotFound."""
        durable = self._state.store(store).durables.get(name)
        if durable is not None:
            return durable.definition
        pattern = None if template is None else self.store(store).template(template)
        if pattern is None:
            what = "there is no such template" if template else "there is no such durable"
            raise NotFound(what, store=store, durable=name, template=template or None)
        return pattern.durable(name)
