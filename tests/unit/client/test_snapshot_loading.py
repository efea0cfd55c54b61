"""Laws of loading a snapshot: over any breaks of the connection, the view gets all rows of one snapshot, or nothing."""

from __future__ import annotations

import urllib.parse
from pathlib import Path
from random import Random

import msgspec
import pytest

from holdfast.client.protocol.effects import (
    Chunk,
    DeliverRows,
    Effect,
    Failed,
    Open,
    Opened,
    Receive,
    Reply,
    Wait,
    Woken,
)
from holdfast.client.protocol.endpoint import routes_of
from holdfast.client.protocol.messages import base64url
from holdfast.client.protocol.options import ClientOptions
from holdfast.client.protocol.retry_budget import Session
from holdfast.client.protocol.stream import SnapshotProgress, TransactionEvent, load_snapshot
from holdfast.commit.format.transaction import Write
from holdfast.errors import CorruptData, InvalidRequest
from holdfast.values import LogPosition
from holdfast.view import View
from holdfast.wire.log import (
    SNAPSHOT_LAST_TRANSACTION,
    SNAPSHOT_LOG_ID,
    SNAPSHOT_ROWS,
    SNAPSHOT_VERSION,
    Found,
)

LOG = "ab" * 16
POSITION = LogPosition(90, LOG)


def rows_of(draw: Random) -> list[Found]:
    keys = sorted({draw.randbytes(draw.randrange(5)) for _ in range(draw.randrange(40))})
    return [Found(key, draw.randbytes(draw.randrange(9)), draw.randint(1, 80)) for key in keys]


LAST_LINE = b'{"error":{"code":"lagging","message":"too slow"},"index":-1}\n'


class Service:
    """Answers the effects of a procedure: its connections break at random places, and lose what was under way."""

    def __init__(self, rows: list[Found], draw: Random) -> None:
        self.rows = rows
        self.now_ms = 0.0
        self._draw = draw
        self._left = b""
        self._breaks_after = 0
        self.targets: list[str] = []

    def reply(self, effect: Effect) -> Reply:
        self.now_ms += 1.0
        match effect:
            case Wait():
                return Woken(self.now_ms)
            case Open(request=request):
                self.targets.append(request.target)
                if self._draw.random() < 0.2:
                    return Failed(self.now_ms, False, "refused")
                asked = dict(
                    urllib.parse.parse_qsl(urllib.parse.urlsplit(request.target).query, keep_blank_values=True)
                )
                assert asked.get("version", str(POSITION)) == str(POSITION)
                kept = [row for row in self.rows if "after" not in asked or base64url(row.key) != asked["after"]]
                if "after" in asked:
                    last = next(index for index, row in enumerate(self.rows) if base64url(row.key) == asked["after"])
                    kept = self.rows[last + 1 :]
                self._left = msgspec.json.Encoder().encode_lines(kept)
                self._breaks_after = self._draw.randrange(1, len(self._left) + 400)
                if self._draw.random() < 0.4:  # the service ends it, and says why
                    some = kept[: self._draw.randrange(len(kept) + 1)]
                    self._left = msgspec.json.Encoder().encode_lines(some) + LAST_LINE
                    self._breaks_after = len(self._left)
                return Opened(self.now_ms, head(len(self.rows)))
            case Receive():
                if not self._left or self._breaks_after <= 0:
                    return Failed(self.now_ms, False, "broken")
                size = self._draw.randint(1, 120)
                size = min(size, self._breaks_after)
                self._breaks_after -= size
                data, self._left = self._left[:size], self._left[size:]
                return Chunk(self.now_ms, data)
            case _:
                raise AssertionError(effect)


def head(rows: int, **other: str) -> dict[str, str]:
    fields = {SNAPSHOT_VERSION: "90", SNAPSHOT_LOG_ID: LOG, SNAPSHOT_LAST_TRANSACTION: "88", SNAPSHOT_ROWS: str(rows)}
    return {name.lower(): other.get(name, value) for name, value in fields.items()}


def session() -> Session:
    return Session(routes_of("http://127.0.0.1:1"), ClientOptions())


def drive(service: Service, progress: SnapshotProgress) -> list[Found]:
    procedure = load_snapshot(session(), progress, 0.0)
    found: list[Found] = []
    effect = next(procedure)
    while True:
        if isinstance(effect, DeliverRows):
            found += effect.rows
            reply: Reply = Woken(service.now_ms)
        else:
            reply = service.reply(effect)
        try:
            effect = procedure.send(reply)
        except StopIteration:
            return found


@pytest.mark.parametrize("seed", range(40))
def test_over_any_breaks_every_row_comes_once_and_in_order(seed: int) -> None:
    draw = Random(seed)
    service = Service(rows_of(draw), draw)
    progress = SnapshotProgress()
    assert drive(service, progress) == service.rows
    assert (progress.position, progress.last_transaction) == (POSITION, 88)


@pytest.mark.parametrize("wrong", [SNAPSHOT_VERSION, SNAPSHOT_LOG_ID, SNAPSHOT_ROWS, SNAPSHOT_LAST_TRANSACTION])
def test_another_snapshot_after_a_break_is_refused(wrong: str) -> None:
    progress = SnapshotProgress()
    progress.begin(Opened(0.0, head(2)))
    progress.take(msgspec.json.Encoder().encode_lines([Found(b"a", b"", 1)]))
    with pytest.raises(CorruptData, match="another one"):
        progress.begin(Opened(0.0, head(2, **{wrong: "7" if wrong != SNAPSHOT_LOG_ID else "cd" * 16})))


def test_a_head_rows_out_of_order_and_more_rows_than_said_are_refused() -> None:
    with pytest.raises(CorruptData, match="head"):
        SnapshotProgress().begin(Opened(0.0, {}))
    encode = msgspec.json.Encoder().encode_lines
    for rows, rule in (([b"b", b"a"], "order"), ([b"a", b"a"], "order"), ([b"a", b"b", b"c"], "more rows")):
        progress = SnapshotProgress()
        progress.begin(Opened(0.0, head(2)))
        with pytest.raises(CorruptData, match=rule):
            progress.take(encode([Found(key, b"", 1) for key in rows]))
    progress = SnapshotProgress()
    progress.begin(Opened(0.0, head(2)))
    with pytest.raises(CorruptData, match="cannot be read"):
        progress.take(b'{"key": 1}\n')


def view_in(kind: str, folder: Path) -> View:
    return View.memory() if kind == "memory" else View.sqlite(folder / "view.sqlite")


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_a_view_takes_all_of_a_snapshot_or_nothing_and_goes_on_with_the_stream(kind: str, tmp_path: Path) -> None:
    view = view_in(kind, tmp_path)
    rows = [(b"a", b"1", 5), (b"b", b"2", 88)]
    with view.filling() as filling:
        filling.add(rows)
        assert view.range() == []
    assert (view.version, view.range()) == (0, [])
    with view.filling() as filling:
        filling.add(rows[:1])
        filling.add(rows[1:])
        filling.finish(POSITION, 88)
    assert (view.position, view.range()) == (POSITION, rows)
    with pytest.raises(CorruptData):
        view.apply([TransactionEvent(95, 92, None, "", 0, (Write(b"c", b""),), True, LOG)])
    view.apply([TransactionEvent(95, 88, None, "", 0, (Write(b"a", b"3"),), True, LOG)])
    assert view.range() == [(b"a", b"3", 95), (b"b", b"2", 88)]
    with pytest.raises(InvalidRequest), view.filling():
        pass
    if kind == "sqlite":
        view.close()
        with View.sqlite(tmp_path / "view.sqlite") as again:
            assert (again.version, again.get(b"a"), again.get(b"b")) == (95, (b"3", 95), (b"2", 88))
