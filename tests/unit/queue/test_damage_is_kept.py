"""An opening never makes damage disappear, and no number is given out twice.

Each case is damage that a user has seen: a whole queue had vanished without a report after it.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from holdfast.errors import HoldfastError
from holdfast.queue import FileQueue, Gap, Queue, Trimmed
from holdfast.queue.log.judgement import LOST_PAGES_MAX, PAGE_MESSAGES_MAX
from holdfast.queue.repair import repair_queue, verify_queue

PAGE_BYTES = 4096
LAST = 1000
HARMS = {
    "bit of the header": lambda data: data[:20] + bytes((data[20] ^ 1,)) + data[21:],
    "first block zeroed": lambda data: bytes(4096) + data[4096:],
    "header overwritten": lambda data: b"\xff" * 64 + data[64:],
    "emptied": lambda _: b"",
}


def a_queue(path: Path, messages: int = LAST, page_size: int = 64 << 20) -> None:
    with Queue(path, page_size=page_size, background=False) as queue:
        for number in range(1, messages + 1):
            queue.append(b"%d" % number * 8)
        queue.flush()


def delivered_and_lost(path: Path, **options: object) -> tuple[list[int], set[int]]:
    reports: list[Gap | Trimmed] = []
    with Queue(path, background=False, **options) as queue:  # type: ignore[arg-type]
        found = [message.seq for message in queue.read(damage=reports.append)]
    gaps = [(report.first, report.last) for report in reports if isinstance(report, Gap)]
    return found, {seq for first, last in gaps for seq in range(first, min(last, 10 * LAST) + 1)}


def test_a_first_page_of_zeros_is_lost_and_not_unused_where_no_record_is_left(tmp_path: Path) -> None:
    path, page = tmp_path / "q", tmp_path / "q-1.page"
    a_queue(path, 3)
    page.write_bytes(bytes(page.stat().st_size))
    for name in ("q-writeMeta", "q-1.idx"):
        (tmp_path / name).unlink()
    assert not verify_queue(str(path)).ok
    for _ in range(2):
        found, lost = delivered_and_lost(path)
        assert not found
        assert lost >= {1, 2, 3}
    with Queue(path, background=False) as queue:
        assert queue.append(b"new") > 3


@pytest.mark.parametrize("harm", HARMS)
def test_a_queue_of_one_page_never_loses_a_message_without_a_report(tmp_path: Path, harm: str) -> None:
    path, page = tmp_path / "q", tmp_path / "q-1.page"
    a_queue(path)
    page.write_bytes(HARMS[harm](page.read_bytes()))
    ok_before = verify_queue(str(path)).ok
    every = {*range(1, LAST + 1)}
    for _ in range(2):
        found, lost = delivered_and_lost(path)
        assert {*found} | lost >= every
        assert verify_queue(str(path)).ok == ok_before == (not lost)
    with Queue(path, background=False) as queue:
        assert queue.last_seq == LAST
        assert queue.append(b"new") == LAST + 1
        with queue.consumer("c", damage="skip") as consumer:
            assert consumer.lag() == LAST + 1, "lost messages are not committed"
    found, lost = delivered_and_lost(path)
    assert found[-1] == LAST + 1
    assert {*found} | lost >= every
    repair_queue(str(path))
    assert verify_queue(str(path)).ok
    assert delivered_and_lost(path) == (found, lost), "a repair accepts the loss, and readers still report it"


def test_one_bit_of_a_header_costs_no_message_wherever_it_is(tmp_path: Path) -> None:
    a_queue(tmp_path / "whole/q", 20)
    data = (tmp_path / "whole/q-1.page").read_bytes()
    for offset in range(64):
        path = tmp_path / f"{offset}/q"
        shutil.copytree(tmp_path / "whole", path.parent)
        flipped = data[:offset] + bytes((data[offset] ^ 1 << offset % 8,)) + data[offset + 1 :]
        path.with_name("q-1.page").write_bytes(flipped)
        for options in ({"read_only": True}, {}):
            assert delivered_and_lost(path, **options) == ([*range(1, 21)], set())
        assert path.with_name("q-1.page").read_bytes() == data, "the opening has written the header again"


def test_a_file_queue_whose_page_is_damaged_is_never_empty_without_a_report(tmp_path: Path) -> None:
    with FileQueue(tmp_path / "q") as queue:
        for number in range(10):
            queue.put(b"%d" % number)
    (tmp_path / "q-1.page").write_bytes(b"")
    for _ in range(2):
        with FileQueue(tmp_path / "q") as queue:
            assert queue.qsize() == 10
            with pytest.raises(HoldfastError, match="damaged"):
                queue.get(block=False)


@pytest.mark.parametrize("harm", HARMS)
def test_messages_appended_after_damage_to_the_last_page_are_all_delivered(tmp_path: Path, harm: str) -> None:
    path = tmp_path / "q"
    a_queue(path, 300, PAGE_BYTES)
    pages = sorted(tmp_path.glob("q-*.page"), key=lambda page: int(page.stem.rpartition("-")[2]))
    page = max((page for page in pages if any(page.read_bytes()[64:])), key=pages.index)
    page.write_bytes(HARMS[harm](page.read_bytes()))
    Queue(path, page_size=PAGE_BYTES, background=False).close()
    with Queue(path, page_size=PAGE_BYTES, background=False) as queue:
        new = [queue.append(b"new") for _ in range(3)]
        queue.flush()
    found, lost = delivered_and_lost(path)
    assert new == [301, 302, 303] == found[-3:]
    assert {*found} | lost >= {*range(1, 304)}
    assert not lost & {*new}


@pytest.mark.parametrize("pages", [1, 6])
def test_a_missing_last_page_is_reported_and_its_numbers_are_never_given_again(tmp_path: Path, pages: int) -> None:
    path = tmp_path / "q"
    a_queue(path, 20 if pages == 1 else 300, PAGE_BYTES)
    last = 20 if pages == 1 else 300
    begun = [page for page in tmp_path.glob("q-*.page") if any(page.read_bytes()[64:])]
    max(begun, key=lambda page: int(page.stem.rpartition("-")[2])).unlink()
    assert not verify_queue(str(path)).ok
    for _ in range(2):
        found, lost = delivered_and_lost(path)
        assert {*found} | lost >= {*range(1, last + 1)}
        assert not verify_queue(str(path)).ok
    with Queue(path, page_size=PAGE_BYTES, background=False) as queue:
        assert queue.append(b"new") == last + 1


def test_where_every_page_and_the_write_position_are_gone_the_loss_is_unknown_until_a_repair(tmp_path: Path) -> None:
    path = tmp_path / "q"
    a_queue(path, 20)
    for file in [*tmp_path.glob("q-*.page"), tmp_path / "q-writeMeta"]:
        file.unlink()
    unknown = LOST_PAGES_MAX * PAGE_MESSAGES_MAX
    for _ in range(2):
        check = verify_queue(str(path))
        assert [(gap.first, gap.last) for gap in check.gaps] == [(1, unknown)]
        assert not check.ok
        Queue(path, background=False).close()
    with Queue(path, background=False) as queue:
        assert queue.append(b"new") == unknown + 1
    repair_queue(str(path))
    assert verify_queue(str(path)).ok


def test_a_damaged_page_goes_with_the_pages_of_its_age_and_that_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "q"
    a_queue(path, 300, PAGE_BYTES)
    (tmp_path / "q-2.page").write_bytes(b"")
    assert not verify_queue(str(path)).ok
    with Queue(path, page_size=PAGE_BYTES, background=False) as queue:
        queue.trim(before_seq=250)
    assert [record.getMessage() for record in caplog.records if "retention" in record.getMessage()] == [
        "retention removes a damaged page page=2"
    ]
    assert verify_queue(str(path)).ok
