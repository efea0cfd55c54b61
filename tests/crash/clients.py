"""Many clients at once, each recording what it asked and what it was told."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from dataclasses import dataclass, field

import msgspec
from tests.crash.wire import (
    STATUS_SECONDS_MAX,
    Address,
    Connection,
    NoAnswer,
    NotSent,
    StreamedTransaction,
    events,
)
from tests.crash.workload import ACCOUNTS, COUNTERS, ROOMS, Chooser, Model, account, counter, opening, room
from tests.histories import CommitCall, ReadCall, StatusCall, VersionCall

from holdfast.commit.format.transaction import (
    Committed,
    FailedPrecondition,
    Rejected,
    RejectedBecause,
    Transaction,
    Write,
)
from holdfast.wire.log import ReadAnswer, ReadKey, ReadRange, ReadRequest

PAUSE_SECONDS = 0.02
ASK_STATUS = 0.7
SEND_AGAIN = 0.15


class CommitAnswer(msgspec.Struct, frozen=True):
    """Both answers of ``POST /v1/commit``."""

    status: str
    version: int
    reason: RejectedBecause | None = None
    conflicts: tuple[FailedPrecondition, ...] = ()


class VersionAnswer(msgspec.Struct, frozen=True):
    """The answer of ``GET /v1/version``."""

    version: int


class StatusAnswer(msgspec.Struct, frozen=True):
    """The answer of ``GET /v1/status``."""

    status: str
    version: int = 0


class ErrorInside(msgspec.Struct, frozen=True):
    """The part of an error that the clients act on."""

    code: str
    message: str


class ErrorResponse(msgspec.Struct, frozen=True):
    """Every error."""

    error: ErrorInside


class UnexpectedAnswer(Exception):
    """An answer that the API does not allow here."""


@dataclass(slots=True)
class Recording:
    """What all clients heard, in the order of hearing."""

    commits: list[CommitCall] = field(default_factory=list)
    versions: list[VersionCall] = field(default_factory=list)
    statuses: list[StatusCall] = field(default_factory=list)
    reads: list[ReadCall] = field(default_factory=list)
    streamed: list[StreamedTransaction] = field(default_factory=list)
    refused: int = 0


class Clients:
    """A crowd of clients, one subscriber that shows them the data, and one that asks for the version."""

    def __init__(self, address: Address, *, seed: int, count: int = 64) -> None:
        self.recording = Recording()
        self.model = Model()
        self._address = address
        self._random = random.Random(seed)
        self._count = count
        self._stopping = asyncio.Event()
        self._shown = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._subscriber: asyncio.Task[None] | None = None
        self._heard = 0
        """The newest version that a commit was answered with."""

    async def start(self) -> None:
        """Commit the opening, see it come back through the stream, then let the crowd in."""
        connection = Connection(self._address)
        answer = await connection.ask("GET", "/v1/version")
        version = msgspec.json.decode(answer.body, type=VersionAnswer).version
        outcome = await self._commit(connection, opening(version))
        connection.close()
        assert isinstance(outcome, Committed), f"the opening of a new log was answered {outcome}"
        self._subscriber = asyncio.create_task(self._subscribe())
        shown = asyncio.create_task(self._shown.wait())
        await asyncio.wait([shown, self._subscriber], return_when=asyncio.FIRST_COMPLETED)
        shown.cancel()
        self.check()
        for number in range(self._count):
            source = random.Random(self._random.getrandbits(64))
            self._tasks.append(asyncio.create_task(self._client(f"client-{number:03d}", source)))
        self._tasks.append(asyncio.create_task(self._ask_versions()))
        for linearizable in (True, False, False):
            source = random.Random(self._random.getrandbits(64))
            self._tasks.append(asyncio.create_task(self._read_on(source, linearizable=linearizable)))

    async def stop(self) -> None:
        """Let every client finish what it is doing, then end the stream. Raises what a client raised."""
        self._stopping.set()
        await asyncio.gather(*self._tasks)
        await self._end_stream()

    async def abandon(self) -> None:
        """End everything at once, after a failure."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._end_stream()

    async def provoke(self, port: int) -> None:
        """Ask a server that may be deposed for the version and for a commit, and record what it says like any answer.

        A leader with nothing to write does not notice that it was deposed; either question makes it find out.
        """
        asking, committing = Connection(Address(port)), Connection(Address(port))
        try:
            await asyncio.gather(self._ask_version(asking), self._provoke_commit(committing, port))
        finally:
            asking.close()
            committing.close()

    async def _provoke_commit(self, connection: Connection, port: int) -> None:
        value = f"to the server at {port}, {time.monotonic_ns()}".encode()
        txn = Transaction(operations=[Write(b"note/provoked", value)])
        begin = time.monotonic_ns()
        outcome: Committed | None = None
        try:
            answer = await connection.ask("POST", "/v1/commit", msgspec.json.encode(txn))
        except NotSent:
            return
        except NoAnswer:
            pass
        else:
            if answer.status == 200:
                outcome = Committed(msgspec.json.decode(answer.body, type=CommitAnswer).version)
        self._record(begin, txn, outcome, 0)

    def check(self) -> None:
        """Raise what a client raised so far."""
        for task in [*self._tasks, *([self._subscriber] if self._subscriber else [])]:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                raise error

    async def _end_stream(self) -> None:
        if self._subscriber is not None:
            self._subscriber.cancel()
            await asyncio.gather(self._subscriber, return_exceptions=True)

    # --- one client -------------------------------------------------------------------------------------------------

    async def _client(self, name: str, source: random.Random) -> None:
        chooser = Chooser(source, name)
        connection = Connection(self._address)
        try:
            while not self._stopping.is_set():
                txn = chooser.next(self.model)
                heard = await self._commit(connection, txn)
                if heard is None and txn.request_id is not None:
                    await self._find_out(connection, txn, source.random())
        finally:
            connection.close()

    async def _find_out(self, connection: Connection, txn: Transaction, choice: float) -> None:
        """After an unknown outcome: ask, or send the same attempt again (which must be harmless), or leave it."""
        if choice < ASK_STATUS:
            await self._ask_status(connection, txn)
        elif choice < ASK_STATUS + SEND_AGAIN:
            await self._commit(connection, txn)

    async def _commit(self, connection: Connection, txn: Transaction) -> Committed | Rejected | None:
        """One commit, recorded; repeated only while it was certainly not accepted. None: the outcome is not known."""
        body = msgspec.json.encode(txn)
        while True:
            begin = time.monotonic_ns()
            try:
                answer = await connection.ask("POST", "/v1/commit", body)
            except NotSent:
                await asyncio.sleep(PAUSE_SECONDS)
                continue
            except NoAnswer:
                return self._record(begin, txn, None, 0)
            match answer.status:
                case 200:
                    heard = msgspec.json.decode(answer.body, type=CommitAnswer)
                    if heard.status == "committed":
                        return self._record(begin, txn, Committed(heard.version), 0)
                    if heard.reason is None:
                        raise UnexpectedAnswer(answer.body.decode())
                    return self._record(begin, txn, Rejected(heard.reason, heard.conflicts), heard.version)
                case 503 | 429:
                    self.recording.refused += 1
                    await asyncio.sleep(PAUSE_SECONDS)
                case 504 | 409:
                    code = msgspec.json.decode(answer.body, type=ErrorResponse).error.code
                    if code not in ("outcome_unknown", "leader_changed"):
                        raise UnexpectedAnswer(answer.body.decode())
                    return self._record(begin, txn, None, 0)
                case _:
                    raise UnexpectedAnswer(f"{answer.status} {answer.body!r} for {body!r}")

    def _record(
        self, begin: int, txn: Transaction, outcome: Committed | Rejected | None, durable_version: int
    ) -> Committed | Rejected | None:
        if isinstance(outcome, Committed):
            self._heard = max(self._heard, outcome.version)
        self.recording.commits.append(
            CommitCall(begin=begin, end=time.monotonic_ns(), txn=txn, outcome=outcome, durable_version=durable_version)
        )
        return outcome

    async def _ask_status(self, connection: Connection, txn: Transaction) -> None:
        assert txn.request_id is not None
        assert txn.read_version is not None
        target = f"/v1/status/{txn.request_id}?min_version={txn.read_version}"
        while True:
            begin = time.monotonic_ns()
            try:
                answer = await connection.ask("GET", target, seconds_max=STATUS_SECONDS_MAX)
            except (NotSent, NoAnswer):
                await asyncio.sleep(PAUSE_SECONDS)
                continue
            if answer.status in (409, 503, 504):
                await asyncio.sleep(PAUSE_SECONDS)
                continue
            if answer.status != 200:
                raise UnexpectedAnswer(f"{answer.status} {answer.body!r} for {target}")
            break
        told = msgspec.json.decode(answer.body, type=StatusAnswer)
        if told.status not in ("committed", "not_committed"):
            raise UnexpectedAnswer(answer.body.decode())
        self.recording.statuses.append(
            StatusCall(
                begin=begin,
                end=time.monotonic_ns(),
                request_id=txn.request_id,
                read_version=txn.read_version,
                status="committed" if told.status == "committed" else "not_committed",
                version=told.version,
            )
        )

    # --- the stream and the version -----------------------------------------------------------------------------------

    async def _subscribe(self) -> None:
        """Follow the durable stream over every crash, resuming where it broke, and prove that nothing was missed."""
        last_transaction = position = 0
        while True:
            with contextlib.suppress(NotSent):
                async for event in events(self._address, position):
                    if not isinstance(event, StreamedTransaction):
                        position = max(position, event.committed_version)
                        self.model.version = max(self.model.version, position)
                        continue
                    if event.prev_version != last_transaction:
                        raise UnexpectedAnswer(f"the stream shows {event.prev_version} before {event.version}")
                    last_transaction = position = event.version
                    self.recording.streamed.append(event)
                    self.model.apply(event.version, event.operations)
                    self._shown.set()
            await asyncio.sleep(PAUSE_SECONDS)

    async def _read_on(self, source: random.Random, *, linearizable: bool) -> None:
        """Read what was just written, again and again: never older than what any client here was answered."""
        connection = Connection(self._address)
        while not self._stopping.is_set():
            await self._read(connection, source, linearizable=linearizable)
            await asyncio.sleep(0.0 if source.random() < 0.5 else PAUSE_SECONDS)
        connection.close()

    async def _read(self, connection: Connection, source: random.Random, *, linearizable: bool) -> None:
        points = [account(source.randrange(ACCOUNTS)), counter(source.randrange(COUNTERS))]
        spans = [room(source.randrange(ROOMS))]
        if source.random() < 0.75:  # memory alone has them, also while the view of a new leader starts
            spans = []
        elif source.random() < 0.5:
            points.append(b"never written")
        ranges = [*((key, key + b"\0") for key in points), *spans]
        asked = ReadRequest(
            [*map(ReadKey, points), *(ReadRange(begin, end, 10_000) for begin, end in spans)],
            str(self._heard),
            "linearizable" if linearizable else "local",
        )
        at, begin = self._heard, time.monotonic_ns()
        try:
            answer = await connection.ask("POST", "/v1/read", msgspec.json.encode(asked))
        except (NotSent, NoAnswer):
            return
        if answer.status in (409, 503, 504):
            return
        if answer.status != 200:
            raise UnexpectedAnswer(f"{answer.status} {answer.body!r} for {asked}")
        read = msgspec.json.decode(answer.body, type=ReadAnswer)
        assert not read.more
        assert len(read.items) == len(ranges)
        shown: list[tuple[bytes, bytes | None]] = []
        rows: list[tuple[tuple[bytes, bytes, int], ...]] = []
        for span, item in zip(ranges, read.items, strict=True):
            if item.error is not None:  # the view of a new leader may not be ready
                self.recording.refused += 1
                continue
            shown.append(span)
            if item.rows is not None:
                rows.append(tuple((row.key, row.value, row.version) for row in item.rows))
            else:
                rows.append(() if item.value is None else ((span[0], item.value, item.version or 0),))
        self.recording.reads.append(
            ReadCall(
                begin=begin,
                end=time.monotonic_ns(),
                at=at,
                version=read.version,
                ranges=shown,
                rows=rows,
                linearizable=linearizable,
            )
        )

    async def _ask_versions(self) -> None:
        connection = Connection(self._address)
        while not self._stopping.is_set():
            await self._ask_version(connection)
            await asyncio.sleep(PAUSE_SECONDS)
        connection.close()

    async def _ask_version(self, connection: Connection) -> None:
        begin = time.monotonic_ns()
        with contextlib.suppress(NotSent, NoAnswer):
            answer = await connection.ask("GET", "/v1/version")
            if answer.status == 200:
                version = msgspec.json.decode(answer.body, type=VersionAnswer).version
                self.recording.versions.append(VersionCall(begin=begin, end=time.monotonic_ns(), version=version))
