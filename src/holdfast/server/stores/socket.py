"""``GET .../subscribe``: one WebSocket for each subscriber.

    handshake    the attachment is durable before the upgrade; an error is an HTTP response with the API's error body;
                 for a standard durable that another subscriber has it waits up to ``wait_ms``
    then         {"type": "attached", ...}; messages come as far as credit was given
    client       credit, ack, nack, reject, extend, started, close; an acknowledgement with an "id" gets its reply when
                 it is durable
    server       attached, messages, answer, error, advisory; of a map changes and current (``map_watch``)
    end          close code 4000 + the HTTP status of the error, its code as the reason; 1000 when the client asked

A connection gets a part of each turn of the loop (``turns``); the rest of its input waits.
A wrong frame ends the connection with ``malformed``. A slow reader (``UNSENT_BYTES_MAX``) gets nothing more; one that
sends and reads no reply (``UNREAD_BYTES_MAX``) is ``lagging``, as is one whose client holds too much (``buffers``).
A peer that is silent for the durable's subscriber
timeout is detached, and what it held is delivered to others.
"""

from __future__ import annotations

import asyncio
import collections.abc
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from http import HTTPStatus
from typing import Final, Literal, cast

import msgspec
from websockets.datastructures import Headers
from websockets.frames import Frame, Opcode
from websockets.http11 import Request, Response
from websockets.protocol import State
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from holdfast.browsers import problem_with_browser
from holdfast.errors import Code, HoldfastError, InvalidRequest, Unavailable
from holdfast.server.gateway import Gateway
from holdfast.server.http.auth import LAST_WORDS_SECONDS, ClientKey, HeldRight
from holdfast.server.http.buffers import MARK_BYTES
from holdfast.server.http.responses import STATUS_OF, error_response, without_traceback
from holdfast.server.http.rights_table import TAKE_OVER, need_of
from holdfast.server.stores.deliveries import DISCONNECTED, STOPPING
from holdfast.server.stores.hosting import OpenStores, StoreHost
from holdfast.server.stores.map_watch import MapWatch, WatchedMap
from holdfast.server.stores.operations import SubscribeRequest, nacks_of, require_keys
from holdfast.server.stores.subscribers import ServedSubscriber, address_of, wall_ms
from holdfast.stores.definitions.cluster import DurableDefinition, DurableType
from holdfast.stores.values.commands import Acknowledge, Acknowledged, Attached, Result, highest_of
from holdfast.values import ranges_of
from holdfast.wire import stores as wire
from holdfast.wire.formats import UNDECODABLE, WireFormat, decode_each_once, encode
from holdfast.wire.parts import Delivery, Portion
from holdfast.wire.stores import CREDIT_MAX, SUBPROTOCOLS

FRAME_BYTES_MAX: Final = 1_048_576
UNSENT_BYTES_MAX: Final = 4 * 1_048_576
UNREAD_BYTES_MAX: Final = 4 * 1_048_576
"""Bytes of replies and pongs written for a peer that reads nothing; messages wait instead."""
PIECE_BYTES: Final = 256
"""What the parser gets at once: it reads every frame in it, and the smallest has six bytes."""
FRAME_UNITS: Final = 2
MESSAGE_UNITS: Final = 8
"""What they take of a turn. An acknowledgement costs several times what a request to the fast routes does: it is parsed
by Python, and its record written."""
CLOSE_SECONDS_MAX: Final = 2.0
LAST_WORDS_SECONDS_MAX: Final = 10.0
PINGS_PER_TIMEOUT: Final = 3


class SubscribeSocket(ServedSubscriber, asyncio.Protocol):
    """One connection after its upgrade, and the subscriber that it has from its handshake on. See the module's text."""

    def __init__(self, gateway: Gateway, host: StoreHost, ended: Callable[[], None]) -> None:
        super().__init__("", "", "")
        self._gateway = gateway
        self._host = host
        self._ended = ended
        self._protocol = ServerProtocol(
            subprotocols=[Subprotocol(name) for name in SUBPROTOCOLS],
            select_subprotocol=lambda _, offered: next((name for name in offered if name in SUBPROTOCOLS), None),
            max_size=FRAME_BYTES_MAX,
        )
        self._transport: asyncio.Transport | None = None
        self._format: WireFormat = "json"
        self._is_subscriber = False
        """Whether it is attached, or about to be."""
        self._opened: OpenStores | None = None
        self._map_watch: MapWatch | None = None
        self._unanswered_pings = 0
        self._timeout_seconds = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._closing = False
        self._open = False
        self._message_begun = bytearray()
        """The parts of a message before its last one."""
        self._unread = bytearray()
        """Input that waits for its turn."""
        self._unread_bytes = 0
        self._held: HeldRight | None = None
        self._client: ClientKey = ""
        self._is_counted = False
        self._token = ""
        """Of the durable that it is attached to."""
        self._unanswered = 0
        """Acknowledgements that were taken and have no reply yet."""
        self._lost_right: HoldfastError | None = None
        """Why it ends as soon as these have their replies."""

    # The transport's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is this protocol's from now on."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=UNSENT_BYTES_MAX)
        self._host.sockets[self] = None

    def connection_lost(self, exc: Exception | None) -> None:
        """The peer is gone; what it held goes back."""
        del exc
        self._transport = None
        self._host.sockets.pop(self, None)
        if self._is_counted:
            self._gateway.buffers.discard(self._client, self)
        self._leave(DISCONNECTED)
        self._drop_input()
        # A suspended parser refers to its protocol, and an error's traceback does: either would keep half a message.
        self._protocol.parser.close()
        for error in (self._protocol.parser_exc, self._protocol.handshake_exc):
            if error is not None:
                without_traceback(error)
        self._ended()

    def pause_writing(self) -> None:
        """The peer reads too slowly: ask for nothing more."""
        if self._is_subscriber:
            self.paused = True

    def resume_writing(self) -> None:
        """The peer has read enough."""
        self._unread_bytes = 0
        self._count()
        if self._is_subscriber and self._opened is not None:
            self._opened.deliveries.resume(self)
        if self._map_watch is not None:
            self._map_watch.resumed()

    def eof_received(self) -> bool:
        """A WebSocket that is half closed is closed."""
        return False

    def data_received(self, data: bytes) -> None:
        """Bytes of the handshake, or of frames."""
        if self._closing:
            # Refused: the rest is read away until the close. Else what comes is the close frame, or as good as one.
            if self._open:
                self._finish()
            return
        self._unanswered_pings = 0
        waits = bool(self._unread)
        self._unread += data
        if not waits:
            self._take()

    def _take(self) -> None:
        protocol, turns, is_known, unread = self._protocol, self._gateway.turns, self.is_known, self._unread
        left = budget = turns.left(self)
        position = 0
        while position < len(unread) and left > 0 and not self._closing:
            protocol.receive_data(unread[position : position + PIECE_BYTES])
            position += PIECE_BYTES
            events = protocol.events_received()
            for event in events:
                if isinstance(event, Request):
                    self._handshake(event)
                elif isinstance(event, Frame):
                    left -= MESSAGE_UNITS if self._frame(event) else FRAME_UNITS
            left -= 1
        if left < budget:
            turns.took(budget - left, is_known=is_known)
        del unread[:position]
        if unread and self._transport is not None and not self._closing:
            self._transport.pause_reading()
            turns.wait(self)
        self._flush()
        self._count()
        if self._unread_bytes > UNREAD_BYTES_MAX:
            self.fail(Unavailable("the subscriber reads no answers", code=Code.LAGGING, bytes_max=UNREAD_BYTES_MAX))
        if protocol.parser_exc is not None or protocol.close_expected():
            self._finish()

    @property
    def is_known(self) -> bool:
        """See ``Visited``."""
        return self._held is not None

    def go_on(self) -> None:
        """See ``Visited``."""
        if self._transport is None or self._transport.is_closing():
            return
        self._take()
        if not self._unread and not self._transport.is_closing():
            self._transport.resume_reading()

    # The handshake

    def _handshake(self, request: Request) -> None:
        try:
            asked = SubscribeRequest(request.path)
            opened = self._opened = self._host.opened()
            self._require_own_page(request)
            self._require_rights(opened, request, asked)
            opened.statistics.want(asked.store)
            asked.durable = opened.definitions.named(asked.store, asked.durable, asked.subscriber)
            if not opened.service.require_continued(asked.token, asked.store, asked.durable):
                asked.keep = []  # the client cannot acknowledge what it was handed in another history
            terms = opened.definitions.terms(asked.store, asked.durable, asked.template)
            watched = self._watched(opened, asked, terms)
        except HoldfastError as error:
            self._refuse(error)
            return
        response = self._protocol.accept(request)
        if response.status_code != HTTPStatus.SWITCHING_PROTOCOLS:
            self._refuse(InvalidRequest(f"not a WebSocket handshake: {response.body.decode('utf-8', 'replace')}"))
            return
        self._format = SUBPROTOCOLS.get(self._protocol.subprotocol or "", "json")
        self._is_subscriber = True
        self.store, self.durable, self.name = asked.store, asked.durable, asked.subscriber
        self.address = address_of(None if self._transport is None else self._transport.get_extra_info("peername"))
        self._timeout_seconds = terms.subscriber_timeout_ms / 1000
        attach = asked.command(is_watch=watched is not None)
        self._gateway.rights.add(self)

        def attached(result: Attached | HoldfastError) -> None:
            if self._closing:
                return  # the right was lost meanwhile
            if isinstance(result, HoldfastError):
                self._is_subscriber = False
                self._refuse(result)
                return
            if (problem := self.problem()) is not None:
                self.end_for(problem)
                return
            self._gateway.counters.answers[ROUTE, 101] += 1
            self._open = True
            self._protocol.send_response(response)
            now = opened.definitions.terms(asked.store, asked.durable, asked.template)
            self._timeout_seconds = now.subscriber_timeout_ms / 1000
            self._token = opened.service.token(asked.store, asked.durable)
            self._send(_attached_frame(now, asked.prefetch, self._token, self.kept, created=result.created))
            self._watch()
            if watched is not None:
                self._map_watch = MapWatch(watched, self, self._gateway.loop.call_soon)
                self._map_watch.begin()

        opened.deliveries.attach(
            self,
            attach,
            attached,
            asked.wait_ms / 1000,
            partial(opened.service.require_continued, asked.token, asked.store, asked.durable),
        )

    def _require_own_page(self, request: Request) -> None:
        """Return unless the service has no tokens, and a page of another site asks. Raises: HoldfastError."""
        guard, transport = self._gateway.guard, self._transport
        if guard is None or transport is None or not isinstance(transport.get_extra_info("peername"), tuple):
            return
        fields = {name: _field_of(request, name) for name in ("host", "origin", "sec-fetch-site")}
        problem = problem_with_browser(guard, fields.get)
        if problem is not None:
            raise problem

    def _require_rights(self, opened: OpenStores, request: Request, asked: SubscribeRequest) -> None:
        field, need = _field_of(request, "authorization"), need_of("GET", ROUTE)
        authorization = None if field is None else field.encode("latin-1", "replace")
        peer = None if self._transport is None else self._transport.get_extra_info("peername")
        self._client = self._gateway.authenticator.client_of(authorization, peer)
        assert need.right is not None, "a subscriber needs a right on the store"
        self._held = opened.access.held(authorization, need.right, asked.store)
        if (problem := self._held.problem()) is not None:
            raise problem
        if asked.take_over:
            opened.access.require(authorization, need.right_of(TAKE_OVER), asked.store)

    @staticmethod
    def _watched(opened: OpenStores, asked: SubscribeRequest, terms: DurableDefinition) -> WatchedMap | None:
        """The watch of a map; None for another durable. Raises: InvalidRequest."""
        if terms.type is DurableType.MAP:
            return WatchedMap(opened.service, asked.store, asked.durable, asked.prefix or "", asked.key)
        if asked.prefix is not None:
            raise InvalidRequest(
                "only a map is watched, and this durable is none", code=Code.TYPE_MISMATCH, durable=asked.durable
            )
        require_keys(terms, asked.key)
        return None

    def _refuse(self, error: HoldfastError) -> None:
        self._gateway.rights.discard(self)
        self._closing = True
        status, headers, body = error_response(error, self._gateway.leader)
        self._gateway.counters.answers[ROUTE, status] += 1
        fields = Headers(
            {**headers, "Content-Type": "application/json", "Content-Length": str(len(body)), "Connection": "close"}
        )
        self._protocol.send_response(Response(status, HTTPStatus(status).phrase, fields, body))
        self._flush()
        self._finish()

    # Frames of the client

    def _frame(self, frame: Frame) -> bool:
        """Whether it completed a message, which is carried out."""
        if frame.opcode not in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
            return False  # pings are answered by the library; pongs and closes need nothing but their arrival
        if not frame.fin:
            self._message_begun += frame.data
            return False
        data = bytes(frame.data)
        if self._message_begun:
            data, self._message_begun = bytes(self._message_begun + data), bytearray()
        self._message(data)
        return True

    def _message(self, data: bytes) -> None:
        if self._closing or self._lost_right is not None or not self._open or not self._may_go_on():
            return
        try:
            self._carry_out(decode_frame(data, self._format))
        except InvalidRequest as error:
            self.fail(error)

    def _carry_out(self, frame: wire.ClientFrame) -> None:
        """Raises: InvalidRequest."""
        opened, place = self._opened, self.place
        assert self._is_subscriber and opened is not None, "frames are read after the handshake"
        match frame:
            case wire.CreditFrame(messages=messages):
                opened.deliveries.add_room(self, min(messages, CREDIT_MAX - self.room))
            case wire.AckFrame(ranges=ranges):
                self._acknowledge(Acknowledge(0, *place, ack=ranges), frame)
            case wire.NackFrame(messages=messages):
                self._acknowledge(Acknowledge(0, *place, nack=nacks_of(messages)), frame)
            case wire.RejectFrame(messages=numbers):
                self._acknowledge(Acknowledge(0, *place, reject=numbers), frame)
            case wire.ExtendFrame(messages=numbers):
                opened.deliveries.before_extension(self)
                self._acknowledge(Acknowledge(0, *place, extend=ranges_of(numbers)), frame)
            case wire.StartedFrame(ranges=ranges):
                opened.deliveries.started(self, ranges)
            case wire.CloseFrame():
                self._leave("closed")
                self._close(1000, "")

    def _acknowledge(
        self,
        command: Acknowledge,
        frame: wire.AckFrame | wire.NackFrame | wire.RejectFrame | wire.ExtendFrame,
    ) -> None:
        opened, identity = self._opened, frame.id
        assert opened is not None, "frames are read after the handshake"
        self.acknowledged_ms = wall_ms()
        self._unanswered += 1

        def acknowledged(result: Result | HoldfastError) -> None:
            self._unanswered -= 1
            if isinstance(result, HoldfastError):
                if identity:
                    self._send(wire.ErrorFrame(identity, str(result.code), result.statement(), result.hint))
                else:
                    # Nobody waits for this answer, so the connection has to tell it.
                    self.fail(result)
                return
            assert isinstance(result, Acknowledged), "Acknowledge answers Acknowledged"
            opened.deliveries.settled(command, result)
            if identity:
                self._send(wire.ReplyFrame(identity, result.acknowledged, result.stale, result.causes or msgspec.UNSET))
            if self._lost_right is not None and not self._unanswered:
                self.fail(self._lost_right)

        try:
            token, through = frame.token or self._token, partial(highest_of, command)
            opened.service.require(token, command.store, command.durable, through=through)
        except HoldfastError as error:
            acknowledged(without_traceback(error))
            return
        opened.service.submit_nowait(command, acknowledged)

    # Frames of the server

    def give(self, portion: Portion) -> None:
        """Write messages, in frames that usual clients take."""
        if not self._may_go_on():
            return  # they go back with all that it holds
        for data in message_frames(portion, self._format):
            self._write(data, counted=False)

    @property
    def is_paused(self) -> bool:
        """Whether the peer reads too slowly to get more."""
        return self._is_subscriber and self.paused

    def tell(self, frame: wire.ChangesFrame | wire.CurrentFrame | wire.AdvisoryFrame | wire.WithdrawnFrame) -> None:
        """Write what happens to the subscriber, or to the map that it watches."""
        if self._may_go_on():
            self._send(frame)

    def changed(self, changes: collections.abc.Sequence[tuple[str, int, str]]) -> None:
        """Keys of the map changed. What happened before the watch began is in what it begins with."""
        if self._map_watch is not None:
            self._map_watch.changed(changes)

    def advise(self, kind: str, facts: Mapping[str, object]) -> None:
        """Write an advisory."""
        self.tell(wire.AdvisoryFrame(kind, facts))

    def withdrawn(self, ranges: collections.abc.Sequence[tuple[int, int]], cause: str) -> None:
        """Write which messages the subscriber does not hold any more, before anybody gets to know it otherwise."""
        self.tell(wire.WithdrawnFrame(list(ranges), cause))

    def _send(self, frame: msgspec.Struct) -> None:
        if self._talks():
            self._write(encode(frame, self._format), counted=not isinstance(frame, wire.ChangesFrame))

    def _write(self, data: bytes, *, counted: bool) -> None:
        if not self._talks():
            return
        if self._format == "json":
            self._protocol.send_text(data)
        else:
            self._protocol.send_binary(data)
        # At once: the peer works on a reply while the messages after it are read. Together they are a fifth slower.
        self._flush(counted=counted)

    def problem(self) -> HoldfastError | None:
        """None while tokens and definition let the subscriber go on, else the error. See ``OpenAct``."""
        return None if self._held is None else self._held.problem()

    def _may_go_on(self) -> bool:
        if self._lost_right is not None:
            return False
        problem = self.problem()
        if problem is not None:
            self.end_for(problem)
        return problem is None

    def end_for(self, problem: HoldfastError) -> None:
        """The right is lost: nothing is delivered and nothing taken any more. See ``OpenAct``.

        What was taken before gets its replies; the connection ends with the last of them.
        """
        if self._lost_right is not None:
            return
        self._lost_right = problem
        self._leave("closed")
        self._gateway.loop.call_later(LAST_WORDS_SECONDS, self._cut_off_if_slow)
        if not self._open:
            self._refuse(problem)
        elif self._unanswered:
            self._gateway.loop.call_later(self._gateway.limits.receipts_seconds_max, self.fail, problem)
        else:
            self.fail(problem)

    def _cut_off_if_slow(self) -> None:
        """A peer that takes nothing would get old messages later."""
        if self._transport is not None and self._transport.get_write_buffer_size():
            self._transport.abort()

    def _talks(self) -> bool:
        return self._open and not self._closing and self._protocol.state is State.OPEN

    def _flush(self, *, counted: bool = True) -> None:
        transport = self._transport
        parts = self._protocol.data_to_send()
        if transport is None or transport.is_closing() or not parts:
            return
        if not parts[-1]:  # the library's sign for the end of our direction
            parts.pop()
        if parts:
            data = parts[0] if len(parts) == 1 else b"".join(parts)
            transport.write(data)
            if counted and self.is_paused:
                self._unread_bytes += len(data)
            if self._is_counted or transport.get_write_buffer_size() > MARK_BYTES:
                self._count()

    # What it holds: see ``Buffer``

    def _count(self) -> None:
        held = self.held_bytes()
        if held > MARK_BYTES or self._is_counted:
            self._is_counted = True
            self._gateway.buffers.count(self._client, self, held)

    def held_bytes(self) -> int:
        """What the peer has not taken, and what it has sent of a message that is not whole."""
        if self._transport is None or self._transport.is_closing():
            return 0
        begun = len(self._message_begun) + len(self._protocol.reader.buffer) + len(self._unread)
        return self._transport.get_write_buffer_size() + begun

    def end_lagging(self, problem: Unavailable) -> None:
        """See ``Buffer``."""
        self.fail(problem)

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    # The end

    def _watch(self) -> None:
        """Ping, and close the connection of a peer that sent nothing since ``PINGS_PER_TIMEOUT`` pings.

        The time alone proves nothing: after a pause of this process timers come before what the peer sent meanwhile.
        """
        if self._transport is None or not self._talks():
            return
        if self._unanswered_pings == PINGS_PER_TIMEOUT:
            self._leave("timeout")
            self._transport.abort()
            return
        if not self._may_go_on():
            return
        self._unanswered_pings += 1
        self._protocol.send_ping(b"")
        self._flush()
        self._timer = self._gateway.loop.call_later(self._timeout_seconds / PINGS_PER_TIMEOUT, self._watch)

    def end(self, error: HoldfastError) -> None:
        """See ``ServedSubscriber``."""
        self.advise(str(error.code), dict(error.fields))
        self.fail(error)

    def fail(self, error: HoldfastError) -> None:
        """End the connection: close code 4000 and the status, the code as the reason."""
        self._leave("closed")
        self._close(4000 + STATUS_OF[error.code], str(error.code))

    def shut_down(self) -> None:
        """The service stops."""
        self._leave(STOPPING)
        self._close(1001, "")

    def _drop_input(self) -> None:
        """Nothing more is read. Timers keep this object for seconds, and would keep half a message."""
        for buffer in (self._unread, self._message_begun, self._protocol.reader.buffer):
            buffer.clear()

    def _close(self, code: int, reason: str) -> None:
        if self._closing:
            return
        self._closing = True
        self._drop_input()
        # The library has replied already to a close frame in the same bytes.
        if self._open and self._transport is not None and self._protocol.state is State.OPEN:
            self._protocol.send_close(code, reason)
            self._flush()
            self._gateway.loop.call_later(CLOSE_SECONDS_MAX, self._finish)
        else:
            self._finish()

    def _leave(self, cause: Literal["closed", "disconnected", "stopping", "timeout"]) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._gateway.rights.discard(self)
        if self._map_watch is not None:
            self._map_watch.end()
            self._map_watch = None
        was_subscriber, self._is_subscriber = self._is_subscriber, False
        if was_subscriber and self._opened is not None:
            self._opened.deliveries.leave(self, cause)

    def _finish(self) -> None:
        self._closing = True
        self._drop_input()
        self._leave(DISCONNECTED)
        if self._transport is not None:
            self._transport.close()
            self._gateway.loop.call_later(LAST_WORDS_SECONDS_MAX, self.abort)


def _field_of(request: Request, name: str) -> str | None:
    values = request.headers.get_all(name)
    if len(values) > 1:
        raise InvalidRequest(f"the header {name} is given more than once")
    return values[0] if values else None


ROUTE: Final = "/v1/stores/{store}/durables/{durable}/subscribe"


def _attached_frame(
    terms: DurableDefinition, prefetch: int, token: str, kept: list[tuple[int, int]], *, created: bool
) -> wire.AttachedFrame:
    """What a connection begins with. ``prefetch``: the subscriber's own window, 0 for the durable's; ``kept``: what it
    holds still."""
    return wire.AttachedFrame(
        created,
        min(prefetch or terms.window, terms.window),
        str(terms.ack_mode),
        terms.ack_batch_count,
        terms.ack_batch_time_ms,
        started_reports=True,
        buffer_wait_ms=terms.buffered_ms,
        order=terms.order,
        token=token,
        kept=kept,
    )


FRAME_BYTES: Final = 1_048_576
MESSAGES_BYTES: Final = 524_288
"""Bodies of one frame, on average; base64 needs a third more."""


_CLIENT_FRAME: Final = cast("type[wire.ClientFrame]", wire.ClientFrame)


def decode_frame(data: bytes, wire_format: WireFormat) -> wire.ClientFrame:
    """A frame of the client. Raises: InvalidRequest (malformed)."""
    try:
        return decode_each_once(data, _CLIENT_FRAME, wire_format)
    except UNDECODABLE as error:
        raise InvalidRequest(f"the frame cannot be decoded: {error}", code=Code.MALFORMED) from error


def message_frames(portion: Portion, wire_format: WireFormat) -> Iterator[bytes]:
    """Messages as frames of at most ``FRAME_BYTES``; one message alone may exceed it."""
    messages = portion.messages
    size = sum([len(message.body) for message in messages])
    count = max(1, len(messages) * MESSAGES_BYTES // max(size, MESSAGES_BYTES))
    for begin in range(0, len(messages), count):
        yield from _within_bytes(portion, messages[begin : begin + count], wire_format)


def _within_bytes(portion: Portion, messages: list[Delivery], wire_format: WireFormat) -> Iterator[bytes]:
    """One frame, or several where keys, fields, escapes or a few large bodies made it too large."""
    data = encode(wire.MessagesFrame(messages, portion.ack_wait_ms, portion.buffer_wait_ms), wire_format)
    if len(data) <= FRAME_BYTES or len(messages) == 1:
        yield data
        return
    middle = len(messages) // 2
    yield from _within_bytes(portion, messages[:middle], wire_format)
    yield from _within_bytes(portion, messages[middle:], wire_format)
