"""Pages that openings after crashes set aside are bounded: the newest stay. A damaged page is never set aside."""

from __future__ import annotations

import os
from pathlib import Path

from holdfast.queue import Gap, Queue, Trimmed
from holdfast.queue.format.page import PageHeader, encode_header
from holdfast.queue.log.opening import SET_ASIDE_PAGES_MAX
from holdfast.queue.queue import core_of
from holdfast.queue.repair import verify_queue


def a_page(number: int, content: bytes) -> bytes:
    """A begun page of an earlier history, which cannot follow the log."""
    header = PageHeader(number=number, page_bytes=4096, salt=number, checksum_id=1, base_seq=1)
    return (encode_header(header) + content).ljust(4096, b"\0")


def test_of_the_pages_that_openings_set_aside_the_newest_stay(tmp_path: Path) -> None:
    """Each round a page follows the end that is not part of the log."""
    for number in range(1, 3 * SET_ASIDE_PAGES_MAX):
        with Queue(tmp_path / "q", page_size=4096, background=False) as queue:
            queue.append(b"%d" % number)
            last = core_of(queue).pages.numbers()[-1]
        page = tmp_path / f"q-{last + 1}.page"
        page.write_bytes(a_page(last + 1, b"round %d." % number))
        os.utime(page, ns=(number, number))
        Queue(tmp_path / "q", page_size=4096, background=False).close()
        kept = {path.read_bytes()[64:].partition(b".")[0] for path in tmp_path.glob("*.torn")}
        newest = range(max(1, number + 1 - SET_ASIDE_PAGES_MAX), number + 1)
        assert kept == {b"round %d" % each for each in newest}
    with Queue(tmp_path / "q", read_only=True) as queue:
        assert [message.payload for message in queue.read()] == [b"%d" % n for n in range(1, 3 * SET_ASIDE_PAGES_MAX)]


def test_what_one_opening_sets_aside_stays_however_much_it_is(tmp_path: Path) -> None:
    with Queue(tmp_path / "q", page_size=4096, background=False) as queue:
        queue.append(b"one")
    (tmp_path / "q-500.page.torn").write_bytes(b"of an earlier opening")
    (tmp_path / "q-other-7.page.torn").write_bytes(b"of another queue")
    for number in range(2, 4 + SET_ASIDE_PAGES_MAX):
        (tmp_path / f"q-{number}.page").write_bytes(a_page(number, b"x"))
    Queue(tmp_path / "q", page_size=4096, background=False).close()
    kept = sorted(path.name for path in tmp_path.glob("*.torn"))
    assert len(kept) == SET_ASIDE_PAGES_MAX + 3
    assert "q-500.page.torn" not in kept
    assert "q-other-7.page.torn" in kept


def test_a_damaged_page_after_the_end_stays_under_its_name_and_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "q"
    with Queue(path, page_size=4096, background=False) as queue:
        queue.append(b"one")
    (tmp_path / "q-2.page").write_bytes(b"what was a page")
    assert not verify_queue(str(path)).ok
    for _ in range(2):
        reports: list[Gap | Trimmed] = []
        with Queue(path, page_size=4096, background=False) as queue:
            assert [message.seq for message in queue.read(damage=reports.append)] == [1]
        assert [type(report) for report in reports] == [Gap]
        assert (tmp_path / "q-2.page").read_bytes() == b"what was a page"
        assert not verify_queue(str(path)).ok
