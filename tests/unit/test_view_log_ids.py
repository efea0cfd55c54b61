"""A view belongs to one log: it takes the id of the first event that has one, keeps it, and refuses another."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.view_events import apply_txns

from holdfast.client import Checkpoint, TransactionEvent
from holdfast.commit.format.transaction import Write
from holdfast.commit.reading.feed import FeedCheckpoint
from holdfast.errors import Code, CorruptData, InvalidRequest
from holdfast.server.view.process import ViewBuilder
from holdfast.values import LogPosition
from holdfast.view import View

LOG = "1" * 32
OTHER = "2" * 32
NEWEST = 100_000_007


def of_no_known_log(path: Path) -> Path:
    """The file of a view whose events named no log."""
    with View.sqlite(path) as view:
        apply_txns(view, [(NEWEST - 6, [Write(b"a", b"1"), Write(b"b", b"2")])], prev_version=0)
        apply_txns(view, [(NEWEST, [Write(b"b", b"3")])], prev_version=NEWEST - 6)
    return path


def change(version: int, prev: int, log_id: str | None = LOG) -> TransactionEvent:
    return TransactionEvent(version, prev, None, "l", 0, (Write(b"k", b"%d" % version),), True, log_id)


def test_a_view_has_the_position_to_subscribe_after():
    with View.memory() as view:
        assert view.position == LogPosition(0)
        view.apply([change(5, 0), Checkpoint(9, "l", LOG)])
        assert (view.position, view.log_id) == (LogPosition(9, LOG), LOG)


@pytest.mark.parametrize("event", [change(9, 5, OTHER), Checkpoint(9, "l", OTHER)])
def test_a_view_refuses_events_of_another_log_whole(event):
    with View.memory() as view:
        view.apply([change(5, 0)])
        with pytest.raises(InvalidRequest) as caught:
            view.apply([change(7, 5), event])
        assert caught.value.code is Code.LOG_MISMATCH
        assert (caught.value.fields["log_id"], caught.value.fields["view_log_id"]) == (OTHER, LOG)
        assert "new view" in caught.value.hint
        assert (view.version, view.get(b"k")) == (5, (b"5", 5))
        with pytest.raises(InvalidRequest):
            apply_txns(view, [(7, [Write(b"k", b"x")])], prev_version=5, log_id=OTHER)


def test_a_views_file_keeps_its_log(tmp_path):
    with View.sqlite(tmp_path / "view") as view:
        view.apply([Checkpoint(5, "l", LOG)])
    with View.sqlite(tmp_path / "view") as view:
        assert view.position == LogPosition(5, LOG)
        with pytest.raises(InvalidRequest) as caught:
            view.apply([change(9, 3, OTHER)])
        assert caught.value.code is Code.LOG_MISMATCH


def test_a_log_id_is_kept_although_no_version_came_with_it(tmp_path):
    with View.sqlite(tmp_path / "view") as view:
        view.apply([Checkpoint(0, "l", LOG)])
    with View.sqlite(tmp_path / "view") as view:
        assert view.log_id == LOG


def test_a_file_that_knows_no_log_belongs_to_the_first_that_is_named(tmp_path):
    of_no_known_log(tmp_path / "view")
    with View.sqlite(tmp_path / "view") as view:
        assert view.position == LogPosition(NEWEST)
        assert view.range() == [(b"a", b"1", 100_000_001), (b"b", b"3", NEWEST)]
        view.apply([change(NEWEST + 3, NEWEST)])
    with View.sqlite(tmp_path / "view") as view:
        assert view.position == LogPosition(NEWEST + 3, LOG)
        with pytest.raises(InvalidRequest):
            view.apply([change(NEWEST + 5, NEWEST + 3, OTHER)])


def test_the_embedded_views_file_is_refused_by_a_service_of_another_log(tmp_path):
    of_no_known_log(tmp_path / "view")
    builder = ViewBuilder(tmp_path / "view", LOG)
    assert builder.seen == builder.position, "a file that was only opened has nothing to write"
    builder.add_events([FeedCheckpoint(NEWEST + 1, "l")])
    builder.flush()
    builder.close()
    with pytest.raises(CorruptData, match=f"view_log_id={LOG} log_id={OTHER}"):
        ViewBuilder(tmp_path / "view", OTHER)
