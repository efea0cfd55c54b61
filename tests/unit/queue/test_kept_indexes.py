"""Where a seek gets a page's index from, and that what is kept of it is only ever a hint."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.queue import Queue
from holdfast.queue.files.index import KEPT_BYTES_MAX, KEPT_MAX, IndexReader
from holdfast.queue.files.local import LocalFiles
from holdfast.queue.files.pages import PageDirectory
from holdfast.queue.format.file_names import FileNames
from holdfast.queue.format.frame import HEAD_BYTES
from holdfast.queue.format.page import RECORD, RECORD_BYTES, SINGLES_SPACING_BYTES
from holdfast.queue.queue import core_of

if TYPE_CHECKING:
    from holdfast.queue.files.index import KeptIndexes

START_NS = 1_700_000_000_000_000_000
MESSAGES = 20 * KEPT_MAX


class IndexOpenings(LocalFiles):
    """Counts openings of index files for reading."""

    count = 0

    def open(self, directory: int, name: str, *, write: bool) -> int:
        self.count += name.endswith(".idx") and not write
        return super().open(directory, name, write=write)


class Ticking:
    """A clock that moves a millisecond with each look."""

    def __init__(self) -> None:
        self.now = START_NS

    def __call__(self) -> int:
        self.now += 1_000_000
        return self.now


def moment(number: int) -> datetime:
    """When the message of this number arrived, or a little before it."""
    return datetime.fromtimestamp(START_NS // 10**9, UTC) + timedelta(milliseconds=number)


def filled(path: Path, files: LocalFiles | None = None) -> Queue:
    """Some 80 pages of four messages."""
    queue = Queue(path, page_size=4096, background=False, clock=Ticking(), files=files)
    for number in range(1, MESSAGES + 1):
        queue.append(b"%04d" % number + bytes(900))
    return queue


def found(queue: Queue, number: int) -> list[int]:
    """The payload of the first two messages from when this one arrived."""
    messages = queue.read(since=moment(number))
    return [int(next(messages).payload[:4]) for _ in range(2)]


def test_the_index_of_a_finished_page_is_opened_once(tmp_path: Path) -> None:
    files = IndexOpenings()
    with filled(tmp_path / "q", files) as queue:
        numbers = [9, 10, 11]
        assert [found(queue, number) for number in numbers] == [[number, number + 1] for number in numbers]
        before = files.count
        for _ in range(3):
            assert [found(queue, number) for number in numbers] == [[number, number + 1] for number in numbers]
        assert files.count == before


def test_kept_indexes_are_bounded(tmp_path: Path) -> None:
    with filled(tmp_path / "q") as queue:
        most = 0
        for number in range(1, MESSAGES - 1):
            assert found(queue, number) == [number, number + 1]
            most = max(most, len(core_of(queue)._caches.indexes))
        assert most == KEPT_MAX


def test_the_index_of_the_page_being_written_is_read_each_time(tmp_path: Path) -> None:
    clock = Ticking()
    with Queue(tmp_path / "q", background=False, clock=clock) as queue:
        for number in range(1, 200):
            queue.append_many([b"%04d" % number + bytes(900)] * 2)
            queue.flush()  # the index is in the file with each sync
            assert found(queue, number) == [number, number]
            assert core_of(queue)._caches.indexes == {}


@pytest.mark.parametrize("harm", ["removed", "emptied", "zeros", "of another page"])
def test_a_seek_is_right_whatever_becomes_of_an_index(tmp_path: Path, harm: str) -> None:
    with filled(tmp_path / "q") as queue:
        assert found(queue, 10) == [10, 11]
        index = tmp_path / "q-3.idx"
        if harm == "removed":
            index.unlink()
        else:
            size = index.stat().st_size
            index.write_bytes({"emptied": b"", "zeros": bytes(size)}.get(harm) or (tmp_path / "q-9.idx").read_bytes())
        for number in range(1, 30):
            assert found(queue, number) == [number, number + 1]
        core_of(queue)._caches.indexes.clear()  # as a process has it that opens the queue now
        for number in range(1, 30):
            assert found(queue, number) == [number, number + 1]
        times, positions = list(core_of(queue)._caches.indexes.values())[-1]
        for salt in core_of(queue)._caches.indexes:
            core_of(queue)._caches.indexes[salt] = times + times, positions[::-1] * 2
        core_of(queue)._caches.anchors.clear()
        for number in range(1, 30):
            assert found(queue, number) == [number, number + 1]


class IndexReads(LocalFiles):
    """Counts reads and what they read."""

    count = bytes = 0

    def read(self, file: int, offset: int, length: int) -> bytes:
        data = super().read(file, offset, length)
        self.count += 1
        self.bytes += len(data)
        return data


def seeks(path: Path, records: int) -> list[tuple[int, int]]:
    """Reads, and bytes read, of each of three searches in a finished page's index of so many records."""
    index = b"".join(RECORD.pack(START_NS + number, 64 + number) for number in range(records))
    (path / "q-1.idx").write_bytes(index)
    files = IndexReads()
    directory = files.open_directory(str(path))
    pages = PageDirectory(files, directory, FileNames("q"))
    kept: KeptIndexes = {}
    cost: list[tuple[int, int]] = []
    for number in (records // 3, records - 1, 5):
        before = files.count, files.bytes
        reader = IndexReader(pages, 1, 7, kept)
        assert reader.last_earlier(START_NS + number) == (number, START_NS + number - 1, 64 + number - 1)
        reader.close()
        cost.append((files.count - before[0], files.bytes - before[1]))
    files.close(directory)
    return cost


def test_the_index_of_a_page_of_64_mib_is_read_once(tmp_path: Path) -> None:
    records = (64 << 20) // SINGLES_SPACING_BYTES
    assert seeks(tmp_path, records) == [(1, records * RECORD_BYTES), (0, 0), (0, 0)]


def test_what_a_kept_index_may_take_is_kept_and_of_one_record_more_a_little_is_read_each_time(tmp_path: Path) -> None:
    records = KEPT_BYTES_MAX // RECORD_BYTES
    assert seeks(tmp_path, records) == [(1, records * RECORD_BYTES), (0, 0), (0, 0)]
    for count, read in seeks(tmp_path, records + 1):
        assert 1 < count < 10
        assert read <= (16 << 10) + 10 * RECORD_BYTES


class EmptiedAtOnce(dict[tuple[int, int], tuple[int, int, int, int]]):
    """Places that seeks have found, as another reader leaves them that empties them behind each look."""

    def get(self, key: tuple[int, int], default: Any = None) -> Any:
        found = super().get(key, default)
        self.clear()
        return found


def test_a_seek_goes_on_where_another_reader_empties_what_they_share(tmp_path: Path) -> None:
    with filled(tmp_path / "q") as queue:
        core_of(queue)._caches = core_of(queue)._caches._replace(anchors=EmptiedAtOnce())
        for number in (10, 10, 11, 10):
            assert found(queue, number) == [number, number + 1]
            assert next(queue.read(seq=number)).seq == number


class Reads(LocalFiles):
    """How far pages were read."""

    furthest = 0

    def read(self, file: int, offset: int, length: int) -> bytes:
        self.furthest = max(self.furthest, offset + length)
        return super().read(file, offset, length)


def test_a_seek_in_the_page_being_written_reads_no_further_than_a_head_behind_its_end(tmp_path: Path) -> None:
    files = Reads()
    with Queue(tmp_path / "q", page_size=1 << 20, background=False) as queue:
        for _ in range(30):
            queue.append_many([bytes(1_000)] * 10)
        end = core_of(queue)._writer.tail.position if core_of(queue)._writer is not None else 0
    with Queue(tmp_path / "q", read_only=True, files=files) as queue:
        core_of(queue).reader(seq=300).close()
    assert 0 < files.furthest <= end + HEAD_BYTES
