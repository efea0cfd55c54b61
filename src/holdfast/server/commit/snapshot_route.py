"""``GET /v1/snapshot``: a snapshot of the log, streamed by key, for readers that begin without the history.

A reader that lost its connection goes on after its last key, in the same version. A leader keeps a snapshot that it
sends, and the log after it, by a hold; a service that only reads cannot, so there a reader may have to begin again.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, asynccontextmanager
from io import BytesIO
from typing import Final

import msgspec
import pyarrow as pa
import structlog

from holdfast.errors import Backpressure, Code, HoldfastError, InvalidRequest, NotFound, Unavailable
from holdfast.objects.port import ObjectReader
from holdfast.retention.policies import Hold, release_hold, set_hold
from holdfast.server.commit.retention_routes import RetentionHost
from holdfast.server.gateway import Gateway
from holdfast.server.http.requests import LINEAGE_AGAIN_MS
from holdfast.server.http.rights_watch import LAST_WORDS_SECONDS
from holdfast.server.http.routes import POSITION_SCHEMA, Call, Parameter, Route, ended_by_disconnect, key_parameters
from holdfast.snapshots.manifest import Manifest
from holdfast.snapshots.part import SCHEMA
from holdfast.snapshots.reading import newest_snapshot, read_manifest, read_tables
from holdfast.wire.formats import ARROW_STREAM, NDJSON
from holdfast.wire.log import (
    SNAPSHOT_LAST_TRANSACTION,
    SNAPSHOT_LOG_ID,
    SNAPSHOT_ROWS,
    SNAPSHOT_VERSION,
    Found,
)

# pyarrow ships no types, so its tables are unknown to the checker; ours are not.
# pyright: reportUnknownParameterType=false

LOADS_MAX: Final = 4
"""Snapshots that are sent at once: each needs the memory of two parts."""
LOAD_MS: Final = 3_600_000
LINES: Final = 2_000
"""Rows that one step makes to lines; a longer one would keep the interpreter from the commits."""

log = structlog.get_logger("holdfast.server.commit.snapshot")

Encode = Callable[[pa.RecordBatch], bytes]


class SnapshotSender:
    """Sends the snapshots of the log that this process leads or follows."""

    def __init__(self, gateway: Gateway, retention: RetentionHost) -> None:
        self._gateway = gateway
        self._retention = retention
        self._under_way = 0
        self._releasing: set[asyncio.Task[None]] = set()

    async def stream(self, call: Call) -> None:
        """Answer one request."""
        media_type = _media_type(call)
        after = call.key("after")
        manifest = await self._find(call)
        if self._under_way >= LOADS_MAX:
            raise Backpressure("too many readers load a snapshot", retry_after_ms=1000, readers_max=LOADS_MAX)
        if call.request.method == "HEAD":
            await call.start(200, _headers(manifest), media_type)
            await call.finish()
            return
        self._under_way += 1
        reader = _Reader(call)
        try:
            async with self._held(manifest):
                with ended_by_disconnect(call):
                    await self._send(reader, manifest, after, media_type)
        finally:
            self._under_way -= 1
            self._gateway.rights.discard(reader)

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
    async def _held(self, manifest: Manifest) -> AsyncGenerator[None]:
        truncator = self._retention.truncator
        if self._gateway.service is None or truncator is None:
            yield
            return
        name = f"load:{secrets.token_hex(16)}"
        hold = Hold(from_version=manifest.version, lasts_ms=LOAD_MS, snapshot=manifest.version)
        try:
            await truncator.change(set_hold(name, hold), "request")
        except InvalidRequest as error:  # as many holds as there may be
            raise Backpressure(error.message, retry_after_ms=1000) from error
        try:
            yield
        finally:
            # Not waited for: this task may be cancelled, and the hold ends by itself.
            releasing = asyncio.ensure_future(self._release(name))
            self._releasing.add(releasing)
            releasing.add_done_callback(self._releasing.discard)

    async def _release(self, name: str) -> None:
        truncator = self._retention.truncator
        if truncator is None:
            return
        try:
            await truncator.change(release_hold(name), "request")
        except HoldfastError as error:
            log.info("hold_stays_until_it_expires", hold=name, error=str(error))

    async def _send(self, reader: _Reader, manifest: Manifest, after: bytes | None, media_type: str) -> None:
        call, store = reader.call, self._gateway.reading().store
        parts = _parts_after(store, manifest, after)
        async with aclosing(parts):
            # A part that is damaged or gone is reported while the status can still say so.
            first = await anext(parts, None)
            call.require_right()
            await call.start(200, _headers(manifest), media_type)
            self._gateway.rights.add(reader)
            arrow = _ArrowStream() if media_type == ARROW_STREAM else None
            encode = _lines if arrow is None else arrow.encode
            part = first
            while part is not None:
                for batch in part.to_batches(max_chunksize=LINES if arrow is None else None):
                    rows = await asyncio.to_thread(encode, batch)
                    if (problem := reader.problem()) is not None:
                        reader.end_for(problem)
                        raise problem
                    await call.write(rows)
                part = await anext(parts, None)
            if arrow is not None:
                await call.write(arrow.end())
        await call.finish()


class _Reader:
    """One answer under way."""

    __slots__ = ("_held", "call")

    def __init__(self, call: Call) -> None:
        self.call = call
        self._held = call.held_right()

    def problem(self) -> HoldfastError | None:
        """See ``OpenAct``."""
        return self._held.problem()

    def end_for(self, problem: HoldfastError) -> None:
        """See ``OpenAct``. A row has no place for the reason: the answer breaks off, and the next request gets it."""
        del problem
        self.call.connection.close_within(LAST_WORDS_SECONDS)


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


async def _parts_after(store: ObjectReader, manifest: Manifest, after: bytes | None) -> AsyncGenerator[pa.Table]:
    parts = [part for part in manifest.parts if after is None or part.last_key > after]
    async with aclosing(read_tables(store, manifest, parts)) as tables:
        async for table in tables:
            if after is not None and table["key"][0].as_py() <= after:
                keys = table["key"].to_pylist()
                yield table.slice(next(row for row, key in enumerate(keys) if key > after))
            else:
                yield table


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
        answers={NDJSON: Found, ARROW_STREAM: None},
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
            Code.LOG_TRUNCATED, Code.STORE_UNAVAILABLE, Code.CORRUPT_LOG,
        ),
    )  # fmt: skip
