"""``GET /v1/snapshot``: a snapshot of the log, streamed by key, for readers that begin without the history.

A reader that lost its connection goes on after its last key, in the same version. A leader keeps a snapshot that it
sends, and the log after it, by a hold; a service that only reads cannot, so there a reader may have to begin again.
A slow reader may have to end (``snapshot_readers``); its hold stays for ``RESUME_MS``. The last line of an answer that
ends before its end says why, as an item of ``/v1/commits`` does; a stream of Arrow breaks off without its mark of the
end.

Memory: one part for each reader, and the one that is being read.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager
from io import BytesIO
from typing import Final

import msgspec
import pyarrow as pa
import structlog

from holdfast.errors import Backpressure, Code, HoldfastError, InvalidRequest, NotFound, PermissionDenied, Unavailable
from holdfast.objects.port import ObjectReader
from holdfast.retention.policies import LOAD_PREFIX, Hold, release_hold, set_hold
from holdfast.server.commit.retention_routes import RetentionHost
from holdfast.server.commit.snapshot_readers import SnapshotReaders
from holdfast.server.gateway import Gateway
from holdfast.server.http.auth import LAST_WORDS_SECONDS
from holdfast.server.http.requests import LINEAGE_AGAIN_MS
from holdfast.server.http.responses import LeaderHint, error_body
from holdfast.server.http.routes import POSITION_SCHEMA, Call, Parameter, Route, ended_by_disconnect, key_parameters
from holdfast.snapshots.manifest import Manifest, Part
from holdfast.snapshots.part import SCHEMA
from holdfast.snapshots.reading import newest_snapshot, read_manifest, read_part
from holdfast.wire.formats import ARROW_STREAM, NDJSON, encode
from holdfast.wire.log import (
    SNAPSHOT_LAST_TRANSACTION,
    SNAPSHOT_LOG_ID,
    SNAPSHOT_ROWS,
    SNAPSHOT_VERSION,
    Found,
    ItemError,
)

# pyarrow ships no types, so its tables are unknown to the checker; ours are not.
# pyright: reportUnknownParameterType=false

LOAD_MS: Final = 3_600_000
RESUME_MS: Final = 600_000
LINGER_SECONDS: Final = 10.0
"""How long a slow reader may take what was written for it, and why it ended."""
LINES: Final = 2_000
STEP_BYTES: Final = 1 << 20
"""Rows, and their bytes, that one step makes to lines; a longer one would keep the interpreter from the commits."""

log = structlog.get_logger("holdfast.server.commit.snapshot")

Encode = Callable[[pa.RecordBatch], bytes]


class SnapshotSender:
    """Sends the snapshots of the log that this process leads or follows."""

    def __init__(self, gateway: Gateway, retention: RetentionHost) -> None:
        self._gateway = gateway
        self._retention = retention
        self._readers = SnapshotReaders(gateway.loop, self._truncation_waits)
        self._reading = asyncio.Lock()
        self._releasing: set[asyncio.Task[None]] = set()

    async def stream(self, call: Call) -> None:
        """Answer one request."""
        media_type = _media_type(call)
        after = call.key("after")
        manifest = await self._find(call)
        if call.method == "HEAD":
            await call.start(200, _headers(manifest), media_type)
            await call.finish()
            return
        reader = _Reader(call, media_type, lambda: self._gateway.leader)
        self._readers.admit(reader)
        try:
            async with self._held(manifest, reader):
                with ended_by_disconnect(call):
                    await self._send(reader, manifest, after)
        finally:
            self._readers.discard(reader)
            self._gateway.rights.discard(reader)

    def _truncation_waits(self) -> bool:
        truncator = self._retention.truncator
        return truncator is not None and truncator.state.waits_for_loads

    async def _find(self, call: Call) -> Manifest:
        reader = self._gateway.reading()
        if reader.lineage is None:
            raise Unavailable("the ancestors of this log are not known yet", retry_after_ms=LINEAGE_AGAIN_MS)
        asked = call.position("version")
        if asked is None:
            manifest = await newest_snapshot(reader.store, reader.lineage, reader.local_version())
        else:
            self._gateway.version_of(asked)
            manifest = await read_manifest(reader.store, asked.version)
            if manifest is not None and not reader.lineage.holds(manifest.log_id, manifest.version):
                manifest = None
        if manifest is None:
            raise NotFound(
                "the log has no snapshot" if asked is None else "the log has no snapshot of this version",
                hint="subscribe from 0, or let the service or `holdfast log snapshot` make one",
            )
        return manifest

    @asynccontextmanager
    async def _held(self, manifest: Manifest, reader: _Reader) -> AsyncGenerator[None]:
        truncator = self._retention.truncator
        if self._gateway.service is None or truncator is None:
            yield
            return
        name = LOAD_PREFIX + secrets.token_hex(16)
        hold = Hold(from_version=manifest.version, lasts_ms=LOAD_MS, snapshot=manifest.version)
        try:
            await truncator.change(set_hold(name, hold), "request")
        except InvalidRequest as error:  # as many holds as there may be
            raise Backpressure(error.message, retry_after_ms=1000) from error
        try:
            yield
        finally:
            # Not waited for: this task may be cancelled, and the hold ends by itself.
            rest = msgspec.structs.replace(hold, lasts_ms=RESUME_MS) if reader.resumes else None
            releasing = asyncio.ensure_future(self._release(name, rest))
            self._releasing.add(releasing)
            releasing.add_done_callback(self._releasing.discard)

    async def _release(self, name: str, rest: Hold | None) -> None:
        """Release a hold, or let it stay for a while: ``rest``."""
        truncator = self._retention.truncator
        if truncator is None:
            return
        try:
            await truncator.change(release_hold(name) if rest is None else set_hold(name, rest), "request")
        except HoldfastError as error:
            log.info("hold_stays_until_it_expires", hold=name, error=str(error))

    async def _send(self, reader: _Reader, manifest: Manifest, after: bytes | None) -> None:
        call, store = reader.call, self._gateway.reading().store
        parts = [part for part in manifest.parts if after is None or part.last_key > after]
        arrow = _ArrowStream() if reader.media_type == ARROW_STREAM else None
        encoded = _lines if arrow is None else arrow.encode
        for number, part in enumerate(parts or [None]):
            # A part that is damaged or gone is reported while the status can still say so.
            table = SCHEMA.empty_table() if part is None else await self._part(store, manifest, part, after)
            if not number:
                call.require_right()
                await call.start(200, _headers(manifest), reader.media_type)
                self._gateway.rights.add(reader)
            for batch in _steps(table):
                rows = await asyncio.to_thread(encoded, batch)
                if reader.ended_for is None and (problem := reader.problem()) is not None:
                    reader.end_for(problem)
                if not await reader.write(rows):
                    await reader.say_why()
                    return
        if arrow is not None:
            await call.write(arrow.end())
        await call.finish()

    async def _part(self, store: ObjectReader, manifest: Manifest, part: Part, after: bytes | None) -> pa.Table:
        """The rows of a part above ``after``. One part is read at a time: that takes twice its memory."""
        async with self._reading:
            table = await read_part(store, manifest, part)
        if after is None or table["key"][0].as_py() > after:
            return table
        keys = table["key"].to_pylist()
        return table.slice(next(row for row, key in enumerate(keys) if key > after))


class _Reader:
    """One answer under way."""

    __slots__ = ("_held", "_leader", "_writing", "_written", "call", "client", "ended_for", "media_type")

    def __init__(self, call: Call, media_type: str, leader: Callable[[], LeaderHint]) -> None:
        self.call = call
        self.client = call.client
        self.media_type = media_type
        self.ended_for: HoldfastError | None = None
        self._held = call.held_right()
        self._leader = leader
        self._written = 0
        self._writing: asyncio.Future[None] | None = None

    @property
    def resumes(self) -> bool:
        """Whether it was ended although it may go on, so that its hold stays for a while."""
        return isinstance(self.ended_for, Unavailable)

    def problem(self) -> HoldfastError | None:
        """See ``OpenAct``."""
        return self._held.problem()

    def taken_bytes(self) -> int:
        """How much its peer has taken."""
        return self._written - self.call.connection.unsent_bytes()

    def end_for(self, problem: HoldfastError) -> None:
        """See ``OpenAct`` and ``SnapshotReaders``."""
        if self.ended_for is not None:
            return
        self.ended_for = problem
        if self._writing is not None:
            self._writing.cancel()
        seconds = LAST_WORDS_SECONDS if isinstance(problem, PermissionDenied) else LINGER_SECONDS
        asyncio.get_running_loop().call_later(seconds, self.call.connection.abort)

    async def write(self, rows: bytes) -> bool:
        """Write rows, unless it has ended: False."""
        if self.ended_for is not None:
            return False
        self._writing = asyncio.ensure_future(self.call.write(rows))
        try:
            await asyncio.wait({self._writing})
            if self._writing.cancelled():
                return False
            self._writing.result()
        finally:
            self._writing.cancel()
            self._writing = None
        self._written += len(rows)
        return True

    async def say_why(self) -> None:
        """The last line: why there are no more rows. A reader that does not take it in time is cut off."""
        assert self.ended_for is not None, "it has ended for a reason"
        if self.media_type == NDJSON:
            await self.call.write(encode(ItemError(error_body(self.ended_for, self._leader()))) + b"\n")
            await self.call.finish()
        self.call.connection.close()


def _headers(manifest: Manifest) -> dict[str, str]:
    return {
        SNAPSHOT_VERSION: str(manifest.version),
        SNAPSHOT_LOG_ID: manifest.log_id,
        SNAPSHOT_LAST_TRANSACTION: str(manifest.last_transaction),
        SNAPSHOT_ROWS: str(manifest.rows),
        "Cache-Control": "no-store",
    }


def _media_type(call: Call) -> str:
    match call.text("format"):
        case None | "ndjson":
            return NDJSON
        case "arrow":
            return ARROW_STREAM
        case _:
            raise InvalidRequest("format is arrow or ndjson")


def _steps(table: pa.Table) -> Iterator[pa.RecordBatch]:
    """The rows in pieces of about ``STEP_BYTES`` and at most ``LINES``."""
    for batch in table.to_batches():
        row = 0
        while row < len(batch):
            count = LINES
            while count > 1 and batch.slice(row, count).nbytes > STEP_BYTES:
                count //= 2
            yield batch.slice(row, count)
            row += count


def _lines(batch: pa.RecordBatch) -> bytes:
    columns = (batch[name].to_pylist() for name in ("key", "value", "version"))
    return msgspec.json.Encoder().encode_lines([Found(*row) for row in zip(*columns, strict=True)])


class _ArrowStream:
    """Record batches as one IPC stream, whose bytes are taken after each."""

    def __init__(self) -> None:
        self._sink = BytesIO()
        self._writer = pa.ipc.new_stream(self._sink, SCHEMA)

    def encode(self, batch: pa.RecordBatch) -> bytes:
        """The bytes that ``batch`` adds."""
        self._writer.write_batch(batch)
        return self._take()

    def end(self) -> bytes:
        """The mark of a whole stream."""
        self._writer.close()
        return self._take()

    def _take(self) -> bytes:
        data = self._sink.getvalue()
        self._sink.seek(0)
        self._sink.truncate()
        return data


def snapshot_route(sender: SnapshotSender) -> Route:
    """The row of the route table."""
    return Route(
        method="GET", path="/v1/snapshot", stream=sender.stream, tag="stream",
        summary="The value of every key at one version, by key, from the newest snapshot",
        answers={NDJSON: (Found, ItemError), ARROW_STREAM: None},
        parameters=(
            Parameter(
                "format", "query", {"type": "string", "enum": ["ndjson", "arrow"], "default": "ndjson"},
                "Lines of JSON, or an Arrow IPC stream with the columns key, value and version",
            ),
            Parameter("version", "query", POSITION_SCHEMA, "The snapshot of this version; the newest one without it"),
            *key_parameters("after", "Only keys above this one: where a broken answer ended"),
        ),
        codes=(
            Code.BAD_BASE64, Code.NOT_FOUND, Code.NOT_LEADER, Code.LOG_MISMATCH, Code.ROLLED_BACK,
            Code.LOG_TRUNCATED, Code.STORE_UNAVAILABLE, Code.CORRUPT_LOG, Code.LAGGING,
        ),
    )  # fmt: skip
