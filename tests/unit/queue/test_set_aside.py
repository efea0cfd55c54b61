"""Pages that starts after crashes set aside are bounded: the newest stay."""

from __future__ import annotations

import os
from pathlib import Path

from holdfast.queue import Queue
from holdfast.queue.log.opening import SET_ASIDE_PAGES_MAX


def test_of_the_pages_that_starts_set_aside_the_newest_stay(tmp_path: Path) -> None:
    """Each round a page stands behind the end whose header is not readable."""
    for number in range(1, 3 * SET_ASIDE_PAGES_MAX):
        with Queue(tmp_path / "q", page_size=4096, background=False) as queue:
            queue.append(b"%d" % number)
        page = tmp_path / "q-999.page"
        page.write_bytes(b"round %d" % number)
        os.utime(page, ns=(number, number))
        Queue(tmp_path / "q", page_size=4096, background=False).close()
        kept = {path.read_bytes() for path in tmp_path.glob("*.torn")}
        newest = range(max(1, number + 1 - SET_ASIDE_PAGES_MAX), number + 1)
        assert kept == {b"round %d" % each for each in newest}
    with Queue(tmp_path / "q", read_only=True) as queue:
        assert [message.payload for message in queue.read()] == [b"%d" % n for n in range(1, 3 * SET_ASIDE_PAGES_MAX)]


def test_what_one_start_sets_aside_stays_however_much_it_is(tmp_path: Path) -> None:
    with Queue(tmp_path / "q", page_size=4096, background=False) as queue:
        queue.append(b"one")
    (tmp_path / "q-500.page.torn").write_bytes(b"of an earlier start")
    (tmp_path / "q-other-7.page.torn").write_bytes(b"of another queue")
    for number in range(900, 902 + SET_ASIDE_PAGES_MAX):
        (tmp_path / f"q-{number}.page").write_bytes(b"x")
    Queue(tmp_path / "q", page_size=4096, background=False).close()
    kept = sorted(path.name for path in tmp_path.glob("*.torn"))
    assert len(kept) == SET_ASIDE_PAGES_MAX + 3
    assert "q-500.page.torn" not in kept
    assert "q-other-7.page.torn" in kept
