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
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from functools import partial
from typing import Final

import msgpack
from starlette.requests import ClientDisconnect

from holdfast.commit.format.json_request import JsonTransaction, decode_json, decode_json_lines
from holdfast.commit.format.transaction import Committed, Transaction
from holdfast.commit.stages.events import CommitEntry
from holdfast.errors import Code, HoldfastError, InvalidRequest, LimitExceeded, Unavailable
from holdfast.server.commit.routes import COMMIT_CODES
from holdfast.server.gateway import Gateway
from holdfast.server.http.buffers import MARK_BYTES
from holdfast.server.http.key_scope import EVERYTHING
from holdfast.server.http.requests import decode_msgpack, decode_msgpack_items, problem_with
from holdfast.server.http.responses import without_traceback
from holdfast.server.http.rights_table import ScopeRule
from holdfast.server.http.rights_watch import LAST_WORDS_SECONDS
from holdfast.server.http.routes import Call, Route
from holdfast.wire.formats import MSGPACK, MSGPACK_NAMES, NDJSON, WireFormat
from holdfast.wire.log import CommitReceipt, ItemError, NotCommitted

WINDOW_ITEMS: Final = 8192
WINDOW_BYTES: Final = 16 * 1_048_576
RETRY_ADMISSION_SECONDS: Final = 0.02
RATE_SLICES: Final = 20
"""A stream takes its client's rate in this many parts of a second, which leaves room for other requests."""
RATE_LOOK_SECONDS: Final = 0.5
DISCARD_BYTES_MAX: Final = 16 * 1_048_576
DISCARD_SECONDS_MAX: Final = 2.0
UNPACKER_BYTES_MAX: Final = (1 << 31) - 1
"""The bound of an item is ``item_bytes_max``; this is the largest that the scanner takes."""


class ItemReader(ABC):
    """Cuts a stream of bytes into transactions.

    ``take`` gives the whole items that have arrived so far; when one of them is wrong it gives those before it, and
    ``problem`` is set. Bytes of an unfinished item are kept, at most ``item_bytes_max`` and one part of the stream.
    """

    def __init__(self, item_bytes_max: int) -> None:
        self.item_bytes_max = item_bytes_max
        self.problem: HoldfastError | None = None
        self._kept = bytearray()

    @abstractmethod
    def take(self, part: bytes, *, last: bool = False) -> list[Transaction]:
        """The whole items up to and including ``part``; ``last`` when nothing follows it."""

    @property
    def unfinished_bytes(self) -> int:
        """Bytes of the item that has not arrived whole."""
        return len(self._kept)

    def _too_large(self) -> LimitExceeded:
        return LimitExceeded("the item is too large", bytes_max=self.item_bytes_max)


class JsonLines(ItemReader):
    """One commit a line; blank lines are skipped; the last line may lack its end."""

    def take(self, part: bytes, *, last: bool = False) -> list[Transaction]:
        """See ``ItemReader``."""
        kept = self._kept
        end = len(part) if last else part.rfind(b"\n") + 1
        if end == 0 and not (last and kept):
            kept += part
            if len(kept) > self.item_bytes_max:
                self.problem = self._too_large()
            return []
        block = bytes(kept) + part[:end] if kept else part[:end]
        self._kept = bytearray(part[end:])
        # No item can exceed a limit that the whole block keeps, which is the usual case.
        if len(block) <= self.item_bytes_max:
            try:
                items = decode_json_lines(block)
            except InvalidRequest:
                pass  # line by line, to find which
            else:
                if len(items) == block.count(b"\n") + (last and not block.endswith(b"\n") and bool(block.strip())):
                    return items
        items = list(self._line_by_line(block))
        if self.problem is None and len(self._kept) > self.item_bytes_max:
            self.problem = self._too_large()
        return items

    def _line_by_line(self, block: bytes) -> Iterator[Transaction]:
        for line in block.split(b"\n"):
            if len(line) > self.item_bytes_max:
                self.problem = self._too_large()
                return
            if not line.strip():
                continue
            try:
                yield decode_json(line)
            except InvalidRequest as error:
                self.problem = without_traceback(error)
                return


class MsgpackItems(ItemReader):
    """Maps one after another. An item that has not arrived whole is scanned on from where the last part ended."""

    def __init__(self, item_bytes_max: int) -> None:
        super().__init__(item_bytes_max)
        self._unpacker = msgpack.Unpacker(max_buffer_size=UNPACKER_BYTES_MAX, use_list=True)
        self._begun_at = 0
        """Where the kept bytes begin in the whole stream."""

    def take(self, part: bytes, *, last: bool = False) -> list[Transaction]:
        """See ``ItemReader``."""
        self._kept += part
        ends = list(self._ends(part))
        end = ends[-1] if ends else 0
        block = bytes(memoryview(self._kept)[:end])
        del self._kept[:end]
        self._begun_at += end
        if self.problem is None:
            if len(self._kept) > self.item_bytes_max:
                self.problem = self._too_large()
            elif last and self._kept:
                self.problem = InvalidRequest("the stream ends inside an item")
        if not ends:
            return []
        try:
            return decode_msgpack_items(len(ends), block)
        except InvalidRequest:
            return list(self._one_by_one(block, ends))

    def _ends(self, part: bytes) -> Iterator[int]:
        """Where whole items end in the kept bytes. Cost: each byte once, however small the parts are."""
        unpacker, size = self._unpacker, len(self._kept)
        unpacker.feed(part)
        start = 0
        while start < size:
            try:
                unpacker.skip()
            except msgpack.OutOfData:
                return
            except (ValueError, msgpack.exceptions.UnpackException):
                self.problem = InvalidRequest("the stream is not msgpack")
                return
            end = unpacker.tell() - self._begun_at
            if end - start > self.item_bytes_max:
                self.problem = self._too_large()
                return
            yield end
            start = end

    def _one_by_one(self, block: bytes, ends: list[int]) -> Iterator[Transaction]:
        start = 0
        for end in ends:
            try:
                yield decode_msgpack(block[start:end])
            except InvalidRequest as error:
                self.problem = without_traceback(error)
                return
            start = end


async def _commits(gateway: Gateway, call: Call) -> None:
    problem = gateway.admission()
    if problem is not None:
        raise problem
    reader, wire_format = _reader_for(call)
    await call.start(200, {}, NDJSON if wire_format == "json" else MSGPACK)
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


def _reader_for(call: Call) -> tuple[ItemReader, WireFormat]:
    media_type = (call.content_type or NDJSON).partition(";")[0].strip().lower()
    bytes_max = call.state.limits.request_bytes_max
    if media_type in MSGPACK_NAMES:
        return MsgpackItems(bytes_max), "msgpack"
    # Whatever else a client calls it, it is JSON or it is malformed; many tools send their own default type.
    return JsonLines(bytes_max), "json"


class _CommitStream:
    """One stream: a reading side and a writing side, which share the window."""

    def __init__(self, gateway: Gateway, call: Call, reader: ItemReader, wire_format: WireFormat) -> None:
        self._call = call
        self._authorization = call.authorization
        self._gateway = gateway
        self._reader = reader
        self._wire_format: WireFormat = wire_format
        self._due: deque[CommitEntry] = deque()
        self._due_bytes = 0
        self._last_due: CommitEntry | None = None
        """The entry with the error that ends the stream."""
        self._ended = False
        self._index = 0
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
        return connection.unsent_bytes() + (0 if connection.takes_more else self._due_bytes)

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
        gateway = self._gateway
        leader_id, log_id = gateway.own.leader_id, gateway.log_id
        limits = gateway.limits
        complete, scope = self._complete, self._call.scope
        checks_keys = self._call.need.scope is ScopeRule.COMMITS
        accepted: list[CommitEntry] = []
        due = self._due
        accepted_bytes = 0
        for txn in txns:
            entry = CommitEntry(txn, complete, None, weight)
            problem = problem_with(
                txn,
                leader_id=leader_id,
                log_id=log_id,
                lineage=gateway.lineage,
                request_id_length_min=limits.request_id_length_min,
                operations_max=limits.operations_max,
                preconditions_max=limits.preconditions_max,
            )
            if problem is None and scope is not EVERYTHING and checks_keys:
                problem = scope.problem_with(txn)
            if problem is None and txn.has_parts:
                problem = gateway.read_parts(entry, self._authorization, self._wire_format)
            if problem is None:
                accepted.append(entry)
                accepted_bytes += entry.size
            else:
                entry.ticket = problem
            self._due_bytes += entry.size
            due.append(entry)
        self._begin_writing()
        gateway.counters.stream_items += len(txns)
        if accepted:
            gateway.submit_many(accepted, accepted_bytes)
        if len(accepted) < len(txns):
            self._wake_writer()

    def _end_with(self, problem: HoldfastError) -> None:
        self._reader.problem = problem
        self._add_problem(problem)

    def _add_problem(self, problem: HoldfastError) -> None:
        entry = self._last_due = CommitEntry(Transaction([]), self._complete, problem)
        self._due.append(entry)
        self._begin_writing()
        self._wake_writer()

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
        while self._due and (len(self._due) + items > WINDOW_ITEMS or self._due_bytes > WINDOW_BYTES):
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
        self._due.clear()
        self._last_due = None
        if self._is_counted:
            self._gateway.buffers.discard(self._client, self)

    def _complete(self, entry: CommitEntry) -> None:
        self._gateway.settled(1, entry.size)
        if self._due and self._due[0] is entry:
            self._wake_writer()

    def _wake_writer(self) -> None:
        ready = self._ready
        if ready is not None and not ready.done():
            ready.set_result(None)

    async def _write_results(self) -> None:
        """Write results in the order of their items, as many at a time as are ready."""
        while True:
            text = self._ready_results()
            if text:
                room = self._room
                if room is not None and not room.done():
                    room.set_result(None)
                await self._call.write(text)
            elif self._ended and not self._due:
                return
            else:
                self._ready = self._gateway.loop.create_future()
                await self._ready

    def _ready_results(self) -> bytes:
        due = self._due
        answers = self._gateway.answers
        json = self._wire_format == "json"
        index = self._index
        parts: list[bytes] = []
        plain: list[int] = []
        while due:
            entry = due[0]
            problem = entry.ticket if isinstance(entry.ticket, HoldfastError) else None
            outcome = problem or entry.outcome
            if outcome is None:
                break
            due.popleft()
            self._due_bytes -= entry.size
            index += 1
            request_id = entry.txn.request_id
            if json and request_id is None and type(outcome) is Committed and outcome.results is None:
                plain.append(outcome.version)
                continue
            if plain:
                parts.append(answers.committed_lines(plain))
                plain = []
            if problem is not None:
                is_last = entry is self._last_due
                parts.append(answers.item_error(problem, index=index - 1, wire_format=self._wire_format, ends=is_last))
                continue
            parts.append(
                answers.stream_item(
                    outcome,
                    durable_version=entry.durable_version,
                    request_id=request_id,
                    index=index - 1,
                    wire_format=self._wire_format,
                )
            )
        if plain:
            parts.append(answers.committed_lines(plain))
        self._index = index
        return b"".join(parts)


def stream_route(gateway: Gateway) -> Route:
    """The row of the route table."""
    return Route(
        method="POST", path="/v1/commits",
        summary="A stream of commits; one result per item, in order",
        stream=partial(_commits, gateway), body={NDJSON: JsonTransaction, MSGPACK: Transaction},
        answers={NDJSON: (CommitReceipt | NotCommitted, ItemError), MSGPACK: (CommitReceipt | NotCommitted, ItemError)},
        codes=COMMIT_CODES,
    )  # fmt: skip
