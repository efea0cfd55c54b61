"""``POST /v1/commits``: a stream of commits in, a stream of results out, both as NDJSON or both as msgpack maps.

Items are decided one by one, in order; they do not form one transaction. An item that breaks a rule gets an error
result and the stream continues; an item that cannot be decoded or is too large gets an error result and ends the
stream, as does the end of the caller's right or of the leadership. That result says ``ends``: neither its item nor any
after it was submitted. The status is 200 unless the stream is refused before its first item. Items without a result are
otherwise unknown to the client, which asks for their status. Reading pauses while ``WINDOW_ITEMS`` or ``WINDOW_BYTES``
wait for their outcome, or while the client is over its rate. A stream whose results are not read ends where its client
holds too much (``buffers``).
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

from holdfast.commit.format.json_request import JsonTransaction
from holdfast.commit.format.transaction import Transaction
from holdfast.errors import Code, HoldfastError, Unavailable
from holdfast.server.commit.item_readers import ItemReader, media_type_of, reader_for
from holdfast.server.commit.routes import COMMIT_CODES
from holdfast.server.commit.stream_items import StreamItems
from holdfast.server.commit.whole_stream import WholeStream
from holdfast.server.gateway import Gateway
from holdfast.server.http.auth import LAST_WORDS_SECONDS
from holdfast.server.http.buffers import MARK_BYTES
from holdfast.server.http.exchange import ClientDisconnect
from holdfast.server.http.key_scope import EVERYTHING
from holdfast.server.http.rights_table import ScopeRule
from holdfast.server.http.routes import Call, Route
from holdfast.wire.formats import MSGPACK, NDJSON, WireFormat
from holdfast.wire.log import CommitReceipt, ItemError, NotCommitted

WINDOW_ITEMS: Final = 8192
WINDOW_BYTES: Final = 16 * 1_048_576
RETRY_ADMISSION_SECONDS: Final = 0.02
RATE_SLICES: Final = 20
"""A stream takes its client's rate in this many parts of a second, which leaves room for other requests."""
RATE_LOOK_SECONDS: Final = 0.5
DISCARD_BYTES_MAX: Final = 16 * 1_048_576
DISCARD_SECONDS_MAX: Final = 2.0


async def _commits(gateway: Gateway, call: Call) -> None:
    problem = gateway.admission()
    if problem is not None:
        raise problem
    reader, wire_format = reader_for(call.content_type, call.state.limits.request_bytes_max)
    await call.start(200, {}, media_type_of(wire_format))
    stream = _CommitStream(gateway, call, reader, wire_format)
    gateway.rights.add(stream)
    try:
        await stream.read_items()
        await stream.written()
        if reader.problem is not None:
            await _read_away(call)
        await call.finish()
    except ClientDisconnect:
        pass  # what was submitted stands
    finally:
        gateway.rights.discard(stream)
        stream.end()
    if reader.problem is not None:
        call.connection.close()


async def _read_away(call: Call) -> None:
    """Drop the rest of a refused request, within bounds, so that its sender reads the results."""
    left = DISCARD_BYTES_MAX
    try:
        async with asyncio.timeout(DISCARD_SECONDS_MAX):
            async for part in call.parts():
                left -= len(part)
                if left < 0:
                    return
    except TimeoutError:
        return


class _CommitStream:
    """One stream: a reading side and a writing side, which share the window."""

    def __init__(self, gateway: Gateway, call: Call, reader: ItemReader, wire_format: WireFormat) -> None:
        self._call = call
        self._gateway = gateway
        self._reader = reader
        self._items = StreamItems(gateway, wire_format, self._wake_writer)
        self._ended = False
        self._room: asyncio.Future[None] | None = None
        self._ready: asyncio.Future[None] | None = None
        self._writer: asyncio.Task[None] | None = None
        """Writes the results, from the first item on: a stream that sends none is kept as small as it can be."""
        self._reading: asyncio.Task[object] | None = None
        self._lost_right: HoldfastError | None = None
        self._held = call.held_right()
        self._client = call.client
        self._is_counted = False
        rates = self._gateway.client_rates
        self._block_items = (
            WINDOW_ITEMS if rates is None else min(WINDOW_ITEMS, max(1, rates.per_second_max // RATE_SLICES))
        )

    # Reading

    async def read_items(self) -> None:
        """Submit items as they arrive, until the stream ends, an item ends it, or its caller has lost the right."""
        self._reading = asyncio.current_task()
        self._call.exchange.awaits_item(0)
        try:
            async for part in self._call.parts():
                await self._submit(part, last=False)
                if self._reader.problem is not None:
                    return
            await self._submit(b"", last=True)
        except asyncio.CancelledError:
            if self._lost_right is None or self._reading is None or self._reading.uncancel():
                raise
            self._end_with(self._lost_right)
        finally:
            self._reading = None
            self._ended = True
            self._wake_writer()

    def problem(self) -> HoldfastError | None:
        """See ``OpenAct``."""
        return self._held.problem()

    def end_for(self, problem: HoldfastError) -> None:
        """See ``OpenAct``. No item is taken any more; the results of those that were are sent, for a while."""
        self._lost_right = problem
        if self._reading is not None:
            self._reading.cancel()
        self._gateway.loop.call_later(self._gateway.limits.receipts_seconds_max, self._cut_off)

    def _cut_off(self) -> None:
        if self._writer is not None and not self._writer.done():
            self._call.connection.close_within(0.0)

    # What it holds: see ``Buffer``

    def _count(self) -> None:
        held = self.held_bytes()
        if held > MARK_BYTES or self._is_counted:
            self._is_counted = True
            self._gateway.buffers.count(self._client, self, held)

    def held_bytes(self) -> int:
        """Results that the peer has not taken, and the items of those that cannot be written for that reason."""
        connection = self._call.connection
        return connection.unsent_bytes() + (0 if connection.takes_more else self._items.due_bytes)

    def end_lagging(self, problem: Unavailable) -> None:
        """See ``Buffer``."""
        self._lost_right = problem
        if self._reading is not None:
            self._reading.cancel()
        self._gateway.loop.call_later(LAST_WORDS_SECONDS, self._cut_off)

    def abort(self) -> None:
        """See ``Buffer``."""
        self._call.connection.abort()

    async def _submit(self, part: bytes, *, last: bool) -> None:
        reader = self._reader
        size = reader.unfinished_bytes + len(part)
        txns = reader.take(part, last=last)
        if txns:
            self._call.exchange.awaits_item(0)  # what waits here is not due from the client
            weight = max(1, (size - reader.unfinished_bytes) // len(txns))
            for start in range(0, len(txns), self._block_items):
                block = txns[start : start + self._block_items]
                await self._within_rate(len(block))
                await self._room_for(len(block))
                problem = await self._admitted() or self._held.problem()
                if problem is not None:
                    self._end_with(problem)
                    return
                self._submit_block(block, weight)
            self._call.exchange.awaits_item(reader.unfinished_bytes)
        elif self._call.exchange.body_since is None:
            self._call.exchange.awaits_item(reader.unfinished_bytes)
        if self._reader.problem is not None:
            self._add_problem(self._reader.problem)
        self._count()

    def _submit_block(self, txns: list[Transaction], weight: int) -> None:
        call = self._call
        scope = call.scope if call.need.scope is ScopeRule.COMMITS else EVERYTHING
        self._begin_writing()
        self._items.submit(txns, weight, call.authorization, None if scope is EVERYTHING else scope)

    def _end_with(self, problem: HoldfastError) -> None:
        self._reader.problem = problem
        self._add_problem(problem)

    def _add_problem(self, problem: HoldfastError) -> None:
        self._begin_writing()
        self._items.end_with(problem)

    async def _within_rate(self, items: int) -> None:
        """Wait until the client's rate allows these items. Raises: ClientDisconnect."""
        gateway = self._gateway
        rates = gateway.client_rates
        if rates is None:
            return
        now = gateway.loop.time()
        until = now + rates.wait_after_taking(self._client, items, now)
        if until > now:
            gateway.counters.rate_slowed_items += items
        while (left := until - gateway.loop.time()) > 0 and gateway.service is not None and not gateway.draining:
            await asyncio.sleep(min(left, RATE_LOOK_SECONDS))
            if self._call.connection.is_over:
                raise ClientDisconnect

    async def _room_for(self, items: int) -> None:
        waiting = self._items
        while waiting.due and (len(waiting.due) + items > WINDOW_ITEMS or waiting.due_bytes > WINDOW_BYTES):
            self._room = self._gateway.loop.create_future()
            await self._room

    async def _admitted(self) -> HoldfastError | None:
        """Wait while the service is full. Returns None when it takes more, else the permanent refusal."""
        while True:
            problem = self._gateway.admission()
            if problem is None or problem.code is not Code.OVERLOADED or self._gateway.draining:
                return problem
            await asyncio.sleep(RETRY_ADMISSION_SECONDS)

    # Results

    def _begin_writing(self) -> None:
        if self._writer is None:
            self._writer = asyncio.create_task(self._write_results())

    async def written(self) -> None:
        """Return when every result is written, after the last item was read."""
        if self._writer is not None:
            await self._writer

    def end(self) -> None:
        """Stop writing, and drop the results that are still due, each of which refers to this stream."""
        writer, self._writer = self._writer, None  # its task refers to this stream too
        if writer is not None:
            writer.cancel()
        self._items.end()
        if self._is_counted:
            self._gateway.buffers.discard(self._client, self)

    def _wake_writer(self) -> None:
        ready = self._ready
        if ready is not None and not ready.done():
            ready.set_result(None)

    async def _write_results(self) -> None:
        """Write results in the order of their items, as many at a time as are ready."""
        while True:
            text = self._items.results()
            if text:
                room = self._room
                if room is not None and not room.done():
                    room.set_result(None)
                await self._call.write(text)
            elif self._ended and not self._items.due:
                return
            else:
                self._ready = self._gateway.loop.create_future()
                await self._ready


def stream_route(gateway: Gateway) -> Route:
    """The row of the route table."""
    return Route(
        method="POST", path="/v1/commits",
        summary="A stream of commits; one result per item, in order",
        stream=partial(_commits, gateway),
        fast=WholeStream(gateway) if gateway.client_rates is None else None,  # else an item may have to wait
        body={NDJSON: JsonTransaction, MSGPACK: Transaction},
        answers={NDJSON: (CommitReceipt | NotCommitted, ItemError), MSGPACK: (CommitReceipt | NotCommitted, ItemError)},
        codes=COMMIT_CODES,
    )  # fmt: skip
