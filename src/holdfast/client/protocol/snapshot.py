"""Loading a snapshot of the service: every row of one version, by key, over as many connections as it takes.

The first answer names the snapshot. When a connection breaks, the next one asks for the same snapshot after the last
whole row. The number of rows proves that none is missing: an answer that ends early is only a broken connection. Its
last line may say why it ended.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import urlencode

import msgspec

from holdfast.client.protocol.effects import (
    Chunk,
    DeliverRows,
    Failed,
    Open,
    Opened,
    Procedure,
    Receive,
    Request,
    Response,
)
from holdfast.client.protocol.messages import base64url
from holdfast.client.protocol.retry_budget import RetryBudget, Session
from holdfast.client.protocol.stream import pause_or_give_up, why_a_stream_ended
from holdfast.errors import CorruptData
from holdfast.values import LogPosition
from holdfast.wire.log import (
    SNAPSHOT_LAST_TRANSACTION,
    SNAPSHOT_LOG_ID,
    SNAPSHOT_ROWS,
    SNAPSHOT_VERSION,
    ErrorBody,
    Found,
    ItemError,
)

SNAPSHOT_ATTEMPTS: Final = 3
"""How many snapshots are begun, where each was removed before its end."""
_ROWS: Final = msgspec.json.Decoder(Found)


_ERROR: Final = msgspec.json.Decoder(ItemError)
_ERROR_BEGINS: Final = b'{"error":'


def _error_of_line(line: bytes) -> ErrorBody:
    try:
        return _ERROR.decode(line).error
    except msgspec.DecodeError as error:
        raise CorruptData("the last line of a snapshot cannot be read") from error


class SnapshotProgress:
    """What was received of one snapshot. ``position`` is None before the first answer."""

    def __init__(self) -> None:
        self.position: LogPosition | None = None
        self.last_transaction = 0
        self.rows = 0
        self._received = 0
        self._last_key: bytes | None = None
        self._rest = b""
        self.why_it_ended: ErrorBody | None = None
        """What the service said at the end of the answer."""

    @property
    def is_complete(self) -> bool:
        """Whether every row was received."""
        return self.position is not None and self._received == self.rows

    def begin(self, opened: Opened) -> None:
        """A connection begins to send. Raises: CorruptData when it is not the snapshot that was asked for."""
        self._rest, self.why_it_ended = b"", None
        headers = opened.headers
        try:
            version, last, rows = (
                int(headers[name.lower()]) for name in (SNAPSHOT_VERSION, SNAPSHOT_LAST_TRANSACTION, SNAPSHOT_ROWS)
            )
            position = LogPosition(version, headers[SNAPSHOT_LOG_ID.lower()])
        except (KeyError, ValueError) as error:
            raise CorruptData("a snapshot has a head that cannot be read", field=str(error)) from error
        if self.position is None:
            self.position, self.last_transaction, self.rows = position, last, rows
        elif (position, last, rows) != (self.position, self.last_transaction, self.rows):
            raise CorruptData("a snapshot was answered with another one", asked=self.position, received=position)

    def take(self, data: bytes) -> list[Found]:
        """The rows that these bytes complete. Raises: CorruptData."""
        lines, end, rest = data.rpartition(b"\n")
        if not end:
            self._rest += rest
            return []
        whole = self._rest + lines
        begun, _, last_line = whole.rpartition(b"\n")
        if last_line.startswith(_ERROR_BEGINS):
            whole, self.why_it_ended = begun, _error_of_line(last_line)
        try:
            found = _ROWS.decode_lines(whole)
        except msgspec.DecodeError as error:
            raise CorruptData("a row of a snapshot cannot be read", after=self._last_key) from error
        self._rest = rest
        last = self._last_key
        for row in found:
            if last is not None and row.key <= last:
                raise CorruptData("the rows of a snapshot are not in order", key=row.key, after=last)
            last = row.key
        self._last_key = last
        self._received += len(found)
        if self._received > self.rows:
            raise CorruptData("a snapshot has more rows than it said", rows=self.rows)
        return found

    def request(self) -> Request:
        """What is asked for next."""
        query = {"format": "ndjson"}
        if self.position is not None:
            query["version"] = str(self.position)
        if self._last_key is not None:
            query["after"] = base64url(self._last_key)
        return Request("GET", f"/v1/snapshot?{urlencode(query)}")


def load_snapshot(session: Session, progress: SnapshotProgress, now_ms: float) -> Procedure[None]:
    """Deliver the rows of the newest snapshot. ``progress`` names it from the first delivery on.

    Raises: NotFound (there is none, or it was removed meanwhile), CorruptData, PermissionDenied, InvalidRequest;
    Unavailable when nothing arrived for ``stream_give_up_after_ms``.
    """
    options = session.options
    budget = RetryBudget(session, now_ms, options.stream_give_up_after_ms)
    while True:
        asked = session.route.current
        reply = yield Open(asked, progress.request(), options.request_timeout_ms)
        if isinstance(reply, Opened):
            progress.begin(reply)
            while not progress.is_complete:
                reply = yield Receive(options.stream_silence_ms)
                if not isinstance(reply, Chunk):
                    break
                budget = RetryBudget(session, reply.now_ms, options.stream_give_up_after_ms)
                rows = progress.take(reply.data)
                if rows:
                    yield DeliverRows(tuple(rows))
                if progress.why_it_ended is not None:
                    reply = Failed(reply.now_ms, False, why_a_stream_ended(progress.why_it_ended))
                    break
            if progress.is_complete:
                return
        assert isinstance(reply, Response | Failed), "the reply to Open is Opened, Response or Failed"
        position = 0 if progress.position is None else progress.position.version
        yield from pause_or_give_up(session, budget, asked, reply, position)
