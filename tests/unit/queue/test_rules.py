"""Small rules of the writer and of cursors, which no larger test notices. Each test fails if its rule is taken out."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from random import Random
from zlib import crc32

import pytest
from tests.worlds.queue import CrashFiles

from holdfast.errors import Closed, Code, Unavailable
from holdfast.queue import Queue
from holdfast.queue.consumers.consumer import Consumer
from holdfast.queue.consumers.hand_outs import Owner
from holdfast.queue.files.cursors import CursorFile
from holdfast.queue.files.index import PageIndex
from holdfast.queue.files.local import LocalFiles
from holdfast.queue.files.pages import PageDirectory
from holdfast.queue.format.checksum import CRC32
from holdfast.queue.format.file_names import FileNames
from holdfast.queue.format.meta import SLOT_BYTES, WritePosition, decode_write_position, newest_slot
from holdfast.queue.format.page import HEADER_BYTES, RECORD, PageHeader, encode_header
from holdfast.queue.log.writer import PageSupply
from holdfast.queue.queue import core_of

PAGE_BYTES = 4096
SEEDS = range(10)


def opened(files: CrashFiles, **settings: object) -> Queue:
    return Queue("d/q", page_size=PAGE_BYTES, files=files, background=False, **settings)  # type: ignore[arg-type]


def refuse_once(files: CrashFiles, operation: str, name: str) -> None:
    """The next operation of this kind on this file is refused."""

    def refuse(asked: str, asked_name: str) -> OSError | None:
        if asked != operation or asked_name.removesuffix(".tmp") != name:
            return None
        files.refuse = None
        return OSError(errno.EIO, "input/output error")

    files.refuse = refuse


# ---- the record of the write position -------------------------------------------------------------------------------


def records(files: CrashFiles) -> list[WritePosition | None]:
    """What each slot of the record says, None if it does not verify."""
    data = files.contents("d")["q-writeMeta"]
    slots = [newest_slot(data[:SLOT_BYTES]), newest_slot(bytes(SLOT_BYTES) + data[SLOT_BYTES:])]
    return [None if slot is None else decode_write_position(slot[1]) for slot in slots]


def closed_cleanly(seed: int) -> CrashFiles:
    files = CrashFiles(Random(seed))
    with opened(files) as queue:
        queue.append(b"one")
    assert any(record is not None and record.clean for record in records(files))
    return files


def test_at_the_first_append_both_slots_say_durably_that_the_queue_is_open() -> None:
    for seed in SEEDS:
        files = closed_cleanly(seed)
        opened(files).append(b"two")
        for chance in range(20):
            found = records(files.after_power_loss(Random(chance)))
            assert [record.clean for record in found if record] == [False, False]


@pytest.mark.parametrize("operation", ["write", "sync"])
def test_a_refused_record_of_the_opening_is_written_at_the_next_append(operation: str) -> None:
    for seed in SEEDS:
        files = closed_cleanly(seed)
        queue = opened(files)
        refuse_once(files, operation, "q-writeMeta")
        with pytest.raises(Unavailable):
            queue.append(b"two")
        assert queue.append(b"two") == 2
        for chance in range(20):
            found = records(files.after_power_loss(Random(chance)))
            assert [record.clean for record in found if record] == [False, False]


def test_after_a_removal_both_slots_say_durably_which_page_is_the_first() -> None:
    files = CrashFiles(Random(1))
    queue = opened(files)
    while len(core_of(queue).pages.numbers()) < 4:
        queue.append(bytes(900))
    queue.flush()
    assert queue.trim(before_seq=queue.last_seq) == 3
    for seed in SEEDS:
        found = records(files.after_power_loss(Random(seed)))
        assert [(record.first_page, record.first_seq) for record in found if record] == [(4, queue.first_seq)] * 2


def test_a_sync_of_closed_pages_alone_takes_nothing_back_that_is_durable() -> None:
    files = CrashFiles(Random(1))
    queue = opened(files)
    while core_of(queue).pages.numbers() != [1, 2]:
        queue.append(bytes(900))
    queue.append(b"in the second page")
    queue.flush()
    assert core_of(queue)._writer is not None
    # The helper thread asks for it when a flush of another thread has just done the same.
    core_of(queue)._writer.durability.sync_sealed()
    core_of(queue)._writer.progress.record_owed_position()
    assert queue.durable_seq == queue.last_seq
    newest = max((record for record in records(files) if record), key=lambda record: record.durable.next_seq)
    latest = newest_slot(files.contents("d")["q-writeMeta"])
    assert latest is not None
    assert decode_write_position(latest[1]).durable.next_seq == newest.durable.next_seq == queue.last_seq + 1  # type: ignore[union-attr]


@pytest.mark.parametrize("level", ["os", "always"])
@pytest.mark.parametrize("batch", [1, 2])
def test_a_falling_clock_makes_no_message_earlier_than_the_one_before(level: str, batch: int) -> None:
    ticks = [50, 40, 30, 60, 10, 70]
    clock = iter(ticks)
    queue = opened(CrashFiles(Random(1)), sync=level, clock=lambda: next(clock))
    for _ in ticks:  # the first takes the slow path, the others of a single message the fast path of the level
        queue.append(b"x") if batch == 1 else queue.append_many([b"x"] * batch)
    assert [message.time_ns for message in queue.read()][::batch] == [50, 50, 50, 60, 60, 70]


@pytest.mark.parametrize("level", ["os", "always"])
def test_after_a_failed_sync_no_append_is_accepted_on_the_fast_path_either(level: str) -> None:
    files = CrashFiles(Random(1))
    queue = opened(files, sync=level)
    queue.append(b"one")
    queue.append(b"two, on the fast path")
    refuse_once(files, "sync", "q-1.page")
    with pytest.raises(Closed):
        queue.append(b"three") if level == "always" else queue.flush()
    last_seq = queue.last_seq
    with pytest.raises(Closed) as caught:
        queue.append(b"four")
    assert caught.value.code is Code.SYNC_FAILED
    assert core_of(queue).append_at_once(b"five") is None
    assert queue.last_seq == last_seq


def test_a_listener_that_is_taken_back_during_a_notification_hides_no_other() -> None:
    queue = opened(CrashFiles(Random(1)))
    writer = core_of(queue)._writer
    assert writer is not None
    called: list[str] = []

    def first() -> None:
        called.append("first")
        known.remove(first)  # as ``notify_no_more`` of another thread, which has just looked at the list

    for listener in (first, lambda: called.append("second"), lambda: called.append("third")):
        writer.notify_once(listener)
    known = writer._listeners
    queue.append(b"one")
    assert called == ["first", "second", "third"]


def test_a_close_makes_durable_what_an_interrupted_append_has_left_whole() -> None:
    class Interrupted(CrashFiles):
        armed = False

        def map(self, file: int, length: int) -> None:
            return None

        def write(self, file: int, offset: int, parts: Sequence[bytes | bytearray | memoryview]) -> None:
            super().write(file, offset, parts)
            if self.armed:
                self.armed = False
                raise KeyboardInterrupt

    files = Interrupted(Random(1))
    queue = opened(files)
    queue.append(b"one")
    queue.flush()
    files.armed = True
    with pytest.raises(KeyboardInterrupt):
        queue.append(b"two")
    queue.close()
    for seed in SEEDS:
        with opened(files.after_power_loss(Random(seed))) as found:
            assert [message.payload for message in found.read()] == [b"one", b"two"]


def test_a_flush_covers_the_page_that_a_killed_process_has_just_sealed() -> None:
    files = CrashFiles(Random(1))
    queue = opened(files)
    for _ in range(3):
        queue.append(bytes(900))
    core_of(queue).run_background_work()
    images: list[CrashFiles] = []
    files.before = lambda _: images.append(files.after_kill(Random(1)))
    queue.append(bytes(2000))
    assert len(images) > 3
    for image in images:
        with opened(image) as found:
            count = found.append(b"last")
            found.flush()
            for seed in SEEDS:
                with opened(image.after_power_loss(Random(seed))) as later:
                    assert [message.seq for message in later.read()] == list(range(1, count + 1))


# ---- pages ----------------------------------------------------------------------------------------------------------


def test_after_a_seal_no_message_goes_into_that_page_though_the_next_page_was_refused() -> None:
    files = CrashFiles(Random(1))
    queue = opened(files)
    for _ in range(3):
        queue.append(bytes(900))
    core_of(queue).run_background_work()
    assert core_of(queue).pages.numbers() == [1, 2]
    reader = core_of(queue).reader()
    assert len(reader.read_messages() or ()) == 3
    refuse_once(files, "write", "q-2.page")
    with pytest.raises(Unavailable):
        queue.append(bytes(2000))
    assert files.refuse is None
    assert reader.read_messages() is None  # the reader is at the SEAL
    assert queue.append(b"short enough for the first page") == 4
    header = core_of(queue).pages.header_of(2)
    assert header is not None
    assert (header.prepared, header.base_seq) == (False, 4)
    assert [message.seq for message in reader.read_messages() or ()] == [4]
    reader.close()


def supply(files: CrashFiles) -> PageSupply:
    files.make_directory("d")
    pages = PageDirectory(files, files.open_directory("d"), FileNames("q"))
    sizes = {"page_bytes": PAGE_BYTES, "first_page_bytes": PAGE_BYTES}
    return PageSupply(pages, 0, checksum_id=CRC32, entropy=Random(1).randbytes, **sizes)


def test_a_page_that_was_taken_and_not_begun_is_taken_again() -> None:
    supplied = supply(CrashFiles(Random(1)))
    first = supplied.take(100, None)
    # An interrupt came: nothing has begun the page, and nothing has given it back.
    assert supplied.take(100, None) is first
    assert supplied.number == 1
    second = supplied.take(100, first)
    assert second.header.number == supplied.number == 2
    assert supplied.take(100, first) is second


def test_a_page_whose_name_may_not_be_durable_is_not_there_for_a_later_use() -> None:
    files = CrashFiles(Random(1))
    supplied = supply(files)
    refuse_once(files, "sync directory", "")
    with pytest.raises(OSError, match="input/output error"):
        supplied.take(100, None)
    assert [*files.contents("d")] == []


def test_a_prepared_page_whose_successor_was_refused_is_not_written_to() -> None:
    files = CrashFiles(Random(1))
    supplied = supply(files)
    supplied.prepare(lambda: True)
    refuse_once(files, "sync directory", "")
    with pytest.raises(OSError, match="input/output error"):
        supplied.take(PAGE_BYTES + 1, None)  # a message that does not fit: another page gets the name
    assert supplied.prepared is None
    page = supplied.take(100, None)
    assert page.header.number == 1
    assert files.contents("d")["q-1.page"][:HEADER_BYTES] == encode_header(page.header)


def test_a_listing_during_which_a_page_is_made_is_not_taken_for_the_newest() -> None:
    class Racing(CrashFiles):
        meanwhile: Callable[[], object] | None = None

        def names(self, directory: int) -> list[str]:
            found = super().names(directory)
            meanwhile, self.meanwhile = self.meanwhile, None
            if meanwhile is not None:
                meanwhile()
            return found

    files = Racing(Random(1))
    files.make_directory("d")
    pages = PageDirectory(files, files.open_directory("d"), FileNames("q"))
    pages.is_sole = True
    header = PageHeader(number=1, page_bytes=PAGE_BYTES, salt=1, checksum_id=CRC32, prepared=True)
    files.meanwhile = lambda: pages.create(header)
    assert pages.numbers() == []
    assert pages.known_numbers() == [1]


def test_index_records_whose_write_was_refused_are_written_next_time_in_the_same_place() -> None:
    files = CrashFiles(Random(1))
    files.make_directory("d")
    file = files.create(files.open_directory("d"), "q-1.idx")
    index = PageIndex()
    index.note(7, 64, 2)
    refuse_once(files, "write", "q-1.idx")
    with pytest.raises(OSError, match="input/output error"):
        index.write(files, file, crc32)
    index.note(8, 128, 2)
    index.write(files, file, crc32)
    expected = RECORD.pack(7, 64) + RECORD.pack(8, 128)
    assert files.contents("d")["q-1.idx"] == expected
    assert (index.records, index.check) == (2, crc32(expected))


def test_a_clock_that_jumps_from_the_past_to_the_present_removes_no_page(tmp_path: Path) -> None:
    now = [1_000]
    settings = {"lifetime": timedelta(days=1), "clock": lambda: now[0], "background": False}
    with Queue(tmp_path / "q", page_size=PAGE_BYTES, **settings) as queue:  # type: ignore[arg-type]
        while len(core_of(queue).pages.numbers()) < 4:
            queue.append(bytes(900))
        queue.flush()
        now[0] = time.time_ns()
        core_of(queue).run_background_work()  # by the file system's clock the pages are young
        assert queue.first_seq == 1
        now[0] += timedelta(days=2) // timedelta(microseconds=1) * 1000
        core_of(queue).run_background_work()
        assert queue.first_seq > 1


# ---- cursors --------------------------------------------------------------------------------------------------------


class HalfWrites(LocalFiles):
    """A disk that writes the first half and refuses the rest, while it is ``broken``."""

    broken = False

    def write(self, file: int, offset: int, parts: Sequence[bytes | bytearray | memoryview]) -> None:
        if self.broken:
            data = b"".join(parts)
            super().write(file, offset, (data[: len(data) // 2],))
            raise OSError(errno.EIO, "input/output error")
        super().write(file, offset, parts)


def test_refused_writes_of_a_cursor_spare_the_value_before_them(tmp_path: Path) -> None:
    files = HalfWrites()
    pages = PageDirectory(files, files.open_directory(str(tmp_path)), FileNames("q"))
    cursor = CursorFile(pages, "c")
    path = tmp_path / pages.names.cursor("c")
    cursor.write(b"one")
    cursor.write(b"two")
    for _ in range(3):
        files.broken = True
        with pytest.raises(OSError, match="input/output error"):
            cursor.write(b"three")
        assert newest_slot(path.read_bytes()) == (2, b"two")
        files.broken = False
    cursor.write(b"four")
    assert newest_slot(path.read_bytes()) == (3, b"four")
    cursor.close()
    files.close(pages.directory)


def test_a_refused_commit_twice_over_moves_no_consumer(tmp_path: Path) -> None:
    files = HalfWrites()
    with Queue(tmp_path / "q", files=files) as queue:
        queue.append_many([b"one", b"two"])
        with queue.consumer("c") as consumer:
            messages = consumer.poll()
            consumer.commit(messages[0])
            files.broken = True
            for _ in range(2):
                with pytest.raises(Unavailable):
                    consumer.commit(messages[1])
            files.broken = False
            assert consumer.committed_seq == 1
        with queue.consumer("c") as consumer:
            assert [message.payload for message in consumer] == [b"two"]


def two_owners(queue: Queue) -> tuple[Consumer, Owner, Owner]:
    """A consumer that two owners share; each has one message."""
    queue.append_many([b"one", b"two"])
    consumer, first, second = queue.consumer("c"), Owner(), Owner()
    assert consumer._fill()
    assert len(consumer._take(first, 1)) == len(consumer._take(second, 1)) == 1
    return consumer, first, second


def test_a_durable_commit_stays_within_the_durable_log_whatever_others_finish_meanwhile() -> None:
    files = CrashFiles(Random(1))
    queue = opened(files)
    consumer, first, second = two_owners(queue)

    def others() -> None:
        files.during_sync = None
        queue.append(b"three, not durable yet")
        assert consumer._fill()
        assert len(consumer._take(second, 1)) == 1
        consumer._commit_by(second, durable=False)

    files.during_sync = others
    consumer._commit_by(first, 1, durable=True)
    assert files.during_sync is None
    assert consumer.committed_seq == queue.durable_seq == 2
    consumer._commit_by(first, durable=True)
    assert consumer.committed_seq == queue.durable_seq == 3


class LateLock:
    """A lock before which others do something, once."""

    def __init__(self, lock: threading.Lock, others: Callable[[], None]) -> None:
        self._lock = lock
        self._others: list[Callable[[], None]] = [others]

    def __enter__(self) -> None:
        if self._others:
            self._others.pop()()
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def test_a_durable_commit_includes_what_others_have_finished_meanwhile_if_that_is_durable() -> None:
    queue = opened(CrashFiles(Random(1)), sync="always")
    consumer, first, second = two_owners(queue)
    lock = consumer._file_lock

    def others() -> None:
        consumer._file_lock = lock
        queue.append(b"three")
        assert consumer._fill()
        assert len(consumer._take(second, 1)) == 1
        consumer._commit_by(second)

    consumer._file_lock = LateLock(lock, others)  # type: ignore[assignment]
    consumer._commit_by(first, 1)
    assert consumer.committed_seq == queue.durable_seq == 3


def test_messages_that_are_taken_back_while_another_thread_reads_are_handed_out_again() -> None:
    class Hooked(CrashFiles):
        during_read: Callable[[], None] | None = None

        def read(self, file: int, offset: int, length: int) -> bytes:
            hook, self.during_read = self.during_read, None
            if hook is not None:
                hook()
            return super().read(file, offset, length)

    files = Hooked(Random(1))
    queue = opened(files)
    consumer, first, second = two_owners(queue)
    queue.append_many([b"three", b"four"])
    assert consumer._fill()
    missed = consumer._take(second, 2)
    assert len(missed) == 2
    queue.append(b"five")

    def interrupted() -> None:
        """The interrupt comes as ``take`` returns, while the other thread reads."""
        with consumer._lock:
            consumer._take_back(second, missed, 2, consumer._moves, (2, consumer._moves))

    files.during_read = interrupted
    found = []
    while consumer._fill():
        found += consumer._take(first, 9)
    assert files.during_read is None
    assert [message.seq for message in found] == [3, 4, 5]
