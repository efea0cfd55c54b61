"""Laws at the edges: two threads at one moment, a page that goes under its reader, bounds, versions to come, forks."""

from __future__ import annotations

import errno
import os
import signal
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any
from zlib import crc32

import pytest
from tests.worlds.queue import CrashFiles

from holdfast.errors import Closed, Code, CorruptData, InvalidRequest, LimitExceeded, Unavailable
from holdfast.queue import Queue, Trimmed
from holdfast.queue.files.cursors import committed_seqs
from holdfast.queue.files.local import LocalFiles
from holdfast.queue.format.frame import HEAD_BYTES, compress_body, encode_head, page_seed
from holdfast.queue.format.page import HEADER_BYTES, decode_header, encode_header
from holdfast.queue.queue import core_of

MESSAGE = b"x" * 1000


def payloads(queue: Queue, **where: Any) -> list[bytes]:
    return [message.payload for message in queue.read(**where)]


class HookedLock:
    """A lock that calls ``released`` after each release: another thread's turn, at a place that is chosen."""

    def __init__(self, released: Any) -> None:
        self._lock = threading.Lock()
        self._released = released

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()
        self._released()


@pytest.mark.parametrize("turn", range(1, 8))
def test_a_batch_is_told_its_own_numbers_whoever_appends_meanwhile(tmp_path: Path, turn: int) -> None:
    with Queue(tmp_path / "q", background=False) as queue:
        queue.append(b"first")
        writer: Any = core_of(queue)._writer
        tail = writer.tail
        releases = iter(range(1, 100))

        def released() -> None:
            # While the batch is being written others wait: only where they would not does one come in between.
            if next(releases) == turn and tail.limit > 0:
                queue.append(b"between")

        tail.lock = HookedLock(released)
        first, last = queue.append_many([b"a", b"b", b"c"])
        tail.lock = threading.Lock()
        found = {message.seq: message.payload for message in queue.read()}
        assert [found[seq] for seq in range(first, last + 1)] == [b"a", b"b", b"c"]


def test_a_reader_whose_next_page_went_while_it_was_known_is_told(tmp_path: Path) -> None:
    with Queue(tmp_path / "q", page_size=4096) as queue:
        for _ in range(20):
            queue.append(MESSAGE)
        slow = core_of(queue).reader()
        assert slow.read_messages() is not None
        assert len(payloads(queue)) == 20  # all pages are known now
        queue.flush()
        assert queue.trim(before_seq=15) > 2
        with pytest.raises(Trimmed) as told:
            slow.read_messages()
        assert told.value.first_seq == queue.first_seq
        slow.close()


@pytest.mark.parametrize("wrong", ["text", 5, None, [1, 2]], ids=str)
@pytest.mark.parametrize("level", ["os", "always"])
@pytest.mark.parametrize("many", [False, True], ids=["one", "many"])
def test_what_is_not_bytes_is_refused_at_once_and_spoils_nothing(
    tmp_path: Path, wrong: object, level: str, many: bool
) -> None:
    with Queue(tmp_path / "q", sync=level) as queue:
        queue.append(b"before")
        with pytest.raises(InvalidRequest, match=r"a message is bytes, not .*: give the queue a serializer"):
            queue.append_many([b"good", wrong]) if many else queue.append(wrong)
        assert queue.append(b"after") == 2
        queue.flush()
        assert payloads(queue) == [b"before", b"after"]


@pytest.mark.parametrize("level", ["os", "always"])
@pytest.mark.parametrize("many", [False, True], ids=["one", "many"])
def test_the_bound_of_a_message_is_of_what_is_read_and_not_of_what_it_is_compressed_to(
    tmp_path: Path, level: str, many: bool
) -> None:
    with Queue(tmp_path / "q", sync=level, compression=6, max_message=1000) as queue:
        with pytest.raises(LimitExceeded):
            queue.append_many([bytes(1001)]) if many else queue.append(bytes(1001))
        incompressible = os.urandom(1000)
        assert len(compress_body([incompressible], 6)[0]) > 1000
        queue.append_many([incompressible]) if many else queue.append(incompressible)
        queue.flush()
        assert payloads(queue) == [incompressible]


def test_a_batch_that_could_not_be_read_again_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.queue.log.writer.RAW_BODY_BYTES_MAX", 5000)
    with Queue(tmp_path / "q", compression=6) as queue:
        with pytest.raises(LimitExceeded):
            queue.append_many([bytes(1000)] * 5, atomic=True)
        queue.append_many([bytes(1000)] * 4, atomic=True)
        assert len(payloads(queue)) == 4


@pytest.mark.parametrize("level", ["os", "always"])
def test_a_child_that_was_forked_while_a_thread_worked_is_refused_and_does_not_hang(tmp_path: Path, level: str) -> None:
    with Queue(tmp_path / "q", sync=level) as queue:
        queue.append(b"before")
        inside = core_of(queue)
        locks: list[Any] = [inside.writer.durability._condition, inside.space._freed, inside.space._lock]
        for lock in locks:
            lock.acquire()  # as a thread that is not in the child
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            codes: list[object] = []
            for call in (
                lambda: queue.append(b"child"),
                lambda: queue.append_many([b"child"]),
                queue.flush,
                lambda: core_of(queue).wait_durable(10),
                core_of(queue).run_background_work,
                lambda: queue.trim(before_seq=1),
            ):
                try:
                    call()
                except Closed as error:
                    codes.append(error.code)
            queue.close()
            os._exit(0 if codes == [Code.FORKED] * 6 else 1)
        for lock in locks:
            lock.release()
        assert os.waitpid(child, 0)[1] == 0
        queue.append(b"after")
        queue.flush()
        assert payloads(queue) == [b"before", b"after"]


def test_a_queue_is_let_go_of_whatever_its_consumers_raise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = Queue(tmp_path / "q")
    queue.append(b"before")
    consumer = queue.consumer("one")
    monkeypatch.setattr(consumer, "close", lambda: (_ for _ in ()).throw(Closed("a sync failed")).__next__())
    with pytest.raises(Closed):
        queue.close()
    with Queue(tmp_path / "q") as again:
        assert payloads(again) == [b"before"]


def test_a_reader_of_a_closed_queue_never_reads_another_one(tmp_path: Path) -> None:
    first = Queue(tmp_path / "a" / "q", page_size=4096)
    for _ in range(20):
        first.append(MESSAGE)
    reader = core_of(first).reader()
    first.close()
    with Queue(tmp_path / "b" / "q", page_size=4096) as second:
        for _ in range(20):
            second.append(b"y" * 1000)
        found: list[bytes] = []
        with pytest.raises(OSError, match="Bad file descriptor"):
            found.extend(message.payload for messages in iter(reader.read_messages, None) for message in messages)
        assert set(found) == {MESSAGE}


@pytest.mark.parametrize("newer", ["q-allMeta", "q-1.page", "q-2.page"])
@pytest.mark.parametrize("read_only", [False, True])
def test_files_of_a_later_format_are_left_as_they_are(tmp_path: Path, newer: str, read_only: bool) -> None:
    with Queue(tmp_path / "q", page_size=4096) as queue:
        for _ in range(6):
            queue.append(MESSAGE)
    later = bytearray((tmp_path / newer).read_bytes())
    later[8:10] = (2).to_bytes(2, "little")
    later[60:64] = crc32(later[:60]).to_bytes(4, "little")
    (tmp_path / newer).write_bytes(later)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.suffix in (".page", ".torn", "")}
    with pytest.raises(CorruptData, match="later version"), Queue(tmp_path / "q", read_only=read_only) as queue:
        payloads(queue)
    after = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.suffix in (".page", ".torn", "")}
    del before["q-writeMeta"], after["q-writeMeta"]
    assert after == before


class FillingFiles(LocalFiles):
    """Real files without maps. Once ``left`` is set, so many bytes can be written to pages; then the disk is full."""

    left: int | None = None

    def write(self, file: int, offset: int, parts: Any) -> None:
        whole = b"".join(parts)
        if self.left is None or len(whole) < 1000:
            super().write(file, offset, (whole,))
            return
        self.left -= len(whole)
        super().write(file, offset, (whole[: len(whole) + min(0, self.left)],))
        if self.left < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def map(self, file: int, length: int) -> None:
        return None


@pytest.mark.parametrize("left", [250_000, 450_000, 799_999])
def test_what_another_reader_was_given_of_a_batch_that_met_a_full_disk_stays(tmp_path: Path, left: int) -> None:
    files = FillingFiles()
    with Queue(tmp_path / "q", page_size=4 << 20, files=files) as queue:
        queue.append(b"before")
        files.left = left
        batch = [bytes([place]) * 200_000 for place in range(1, 5)]
        with pytest.raises(Unavailable) as told:
            queue.append_many(batch)
        with Queue(tmp_path / "q", read_only=True) as elsewhere:
            given = payloads(elsewhere)
            appended = told.value.fields["appended"]
            assert isinstance(appended, int)
            assert given == [b"before", *batch[:appended]]
            files.left = None
            queue.append(b"z" * 200_000)
            assert payloads(elsewhere) == payloads(queue) == [*given, b"z" * 200_000]


def with_a_frame_inside(folder: Path, *, ahead: int) -> tuple[bytes, int]:
    """A message that contains what would be a frame at any place of page 1, ``ahead`` numbers after its first, and
    zeros behind it; and where in the message. Any payload is one for some number, mostly too large for the page."""
    header = decode_header((folder / "q-1.page").read_bytes(), 1)
    assert header is not None
    inner = b"never appended"
    seed = page_seed(crc32, header.salt, 1)
    head = encode_head(crc32, seed, header.base_seq + ahead, header.base_time_ns + 5, 1, 0, (inner,))
    return bytes(100) + head + inner + bytes(1000), 100


@pytest.mark.parametrize("where", ["time", "seq"])
def test_a_damaged_index_never_leads_into_a_message(tmp_path: Path, where: str) -> None:
    now = iter(range(1_000_000_000, 2_000_000_000, 10))
    with Queue(tmp_path / "q", clock=lambda: next(now), background=False) as queue:
        queue.append(b"first")
        trap, inside = with_a_frame_inside(tmp_path, ahead=2)
        expected = [b"first", *[trap] * 20]
        for payload in expected[1:]:
            queue.append(payload)
        second = core_of(queue).reader(seq=2)
        assert second.read_messages() is not None
    index = bytearray((tmp_path / "q-1.idx").read_bytes())
    for record in range(0, len(index), 12):
        index[record + 8 : record + 12] = (HEADER_BYTES + HEAD_BYTES + 5 + HEAD_BYTES + inside).to_bytes(4, "little")
    (tmp_path / "q-1.idx").write_bytes(index)
    with Queue(tmp_path / "q", read_only=True) as queue:
        since = datetime.fromtimestamp(1, UTC) + timedelta(microseconds=100)
        found = payloads(queue, since=since) if where == "time" else payloads(queue, seq=4)
        assert set(found) <= set(expected)


def test_a_damaged_length_never_leads_into_a_message(tmp_path: Path) -> None:
    with Queue(tmp_path / "q", background=False) as queue:
        queue.append(b"first")
        trap, inside = with_a_frame_inside(tmp_path, ahead=7)
        expected = [b"first", *[trap] * 5]
        for payload in expected[1:]:
            queue.append(payload)
    page = bytearray((tmp_path / "q-1.page").read_bytes())
    # The first frame's length: what follows it begins inside the next message.
    page[HEADER_BYTES : HEADER_BYTES + 4] = (5 + HEAD_BYTES + inside).to_bytes(4, "little")
    (tmp_path / "q-1.page").write_bytes(page)
    (tmp_path / "q-1.idx").unlink()
    with Queue(tmp_path / "q", read_only=True) as queue:
        assert set(payloads(queue, damage="skip")) <= set(expected)


def test_messages_behind_damage_are_found_in_a_page_of_many_to_the_byte(tmp_path: Path) -> None:
    with Queue(tmp_path / "q", compression=6, background=False) as queue:
        for _ in range(10):
            queue.append_many([b"the same"] * 4000)
        damaged = HEADER_BYTES + HEAD_BYTES
    page = bytearray((tmp_path / "q-1.page").read_bytes())
    page[damaged] ^= 1
    (tmp_path / "q-1.page").write_bytes(page)
    with Queue(tmp_path / "q", read_only=True) as queue:
        assert len(payloads(queue, damage="skip")) == 36_000


def test_messages_behind_damage_are_found_by_an_index_of_any_length(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.queue.files.index.RECORDS_AT_ONCE", 2)
    with Queue(tmp_path / "q", background=False) as queue:
        for place in range(20):
            queue.append_many([b"%d" % place] * 2)
    page = bytearray((tmp_path / "q-1.page").read_bytes())
    page[page.index(b"1010") - 32] ^= 255  # the length of the eleventh frame
    (tmp_path / "q-1.page").write_bytes(page)
    with Queue(tmp_path / "q", read_only=True) as queue:
        assert payloads(queue, damage="skip") == [b"%d" % place for place in range(20) if place != 10 for _ in "12"]


def test_what_was_set_aside_is_never_replaced(tmp_path: Path) -> None:
    """Each round a begun page of another life follows the end, as after a crash."""
    other = tmp_path / "other"
    with Queue(other / "q", page_size=4096, background=False) as queue:
        for _ in range(5):
            queue.append(bytes(1000))
    kept: list[bytes] = []
    for crash in range(3):
        with Queue(tmp_path / "q", page_size=4096, background=False) as queue:
            queue.append(b"of crash %d" % crash)
        last = queue_pages(tmp_path)[-1]
        page = bytearray((other / "q-2.page").read_bytes())
        header = decode_header(bytes(page), 2)
        assert header is not None
        page[:64] = encode_header(header._replace(number=last + 1, base_seq=1, salt=crash))
        (tmp_path / f"q-{last + 1}.page").write_bytes(page)
        kept.append(bytes(page))
        Queue(tmp_path / "q", page_size=4096, background=False).close()
        assert sorted(path.read_bytes() for path in tmp_path.glob("*.torn")) == sorted(kept)


def queue_pages(folder: Path) -> list[int]:
    return sorted(int(path.stem.rpartition("-")[2]) for path in folder.glob("q-*.page"))


@pytest.mark.parametrize("seed", range(8))
def test_a_start_whose_sync_failed_does_not_make_the_next_one_believe_the_cache(seed: int) -> None:
    files = CrashFiles(Random(seed))
    queue = Queue("d/q", page_size=4096, files=files, background=False)
    expected = [bytes([place]) * 1000 for place in range(9)]
    for payload in expected:
        queue.append(payload)
    files = files.after_kill(Random(seed))
    newest = max(name for name in files.contents("d") if name.endswith(".page"))
    files.set_content("d", newest, b"x")  # nothing of it can be read
    files.refuse = lambda operation, name: (
        OSError(errno.EIO, "lost") if operation == "sync" and name.startswith("q-1.page") else None
    )
    with pytest.raises(Unavailable, match="lost"):
        Queue("d/q", page_size=4096, files=files, background=False)
    files.refuse = None
    files = files.after_kill(Random(seed))  # nothing is left of that process
    promised = Queue("d/q", page_size=4096, files=files, background=False, damage="skip")
    found = [message.payload for message in promised.read() if message.seq <= promised.durable_seq]
    files = files.after_power_loss(Random(seed))
    with Queue("d/q", page_size=4096, files=files, background=False) as again:
        assert [message.payload for message in again.read(damage="skip")][: len(found)] == found


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("kind", ["consumer", "work queue"])
def test_no_page_goes_for_a_confirmation_that_lost_power_takes_back(seed: int, kind: str) -> None:
    files = CrashFiles(Random(seed))
    expected = [b"%02d" % place * 500 for place in range(30)]

    def opened(disk: CrashFiles) -> Queue:
        return Queue(
            "d/q", page_size=4096, max_bytes=4 * 4096, full="raise", files=disk, background=False, clock=lambda: 10**18
        )

    queue = opened(files)
    if kind == "consumer":
        consumer = queue.consumer("one")
        for payload in expected:
            queue.append(payload)
            assert [message.payload for message in consumer] == [payload]
            consumer.commit()
    else:
        work = queue.work_queue("one")
        for payload in expected:
            queue.append(payload)
            job = work.get(0)
            assert job is not None
            assert job.payload == payload
            work.ack(job)
            work._note_cursor()
    queue.flush()
    assert queue.first_seq > 1
    with opened(files.after_power_loss(Random(seed))) as again:
        if kind == "consumer":
            found = [message.payload for message in again.consumer("one")]
        else:
            jobs = again.work_queue("one").get_many(100)
            found = [job.payload for job in jobs]
        assert found == expected[len(expected) - len(found) :]


def test_an_acknowledgement_that_counts_is_not_refused_for_the_cursor_s_sake() -> None:
    files = CrashFiles(Random(1))
    with Queue("d/q", files=files, background=False) as queue:
        work = queue.work_queue("one")
        queue.append_many([b"job"] * 600)
        files.refuse = lambda operation, name: (
            OSError(errno.EIO, name) if operation == "write" and name == "q-one.cursor" else None
        )
        for _ in range(300):
            work.ack(work.get_many(1)[0])
        files.refuse = None
        for _ in range(300):
            work.ack(work.get_many(1)[0])
        assert work.get(0) is None
        assert committed_seqs(core_of(queue).pages)["one"] == 600


def test_the_last_message_is_found_behind_a_bridge_without_an_index(tmp_path: Path) -> None:
    with Queue(tmp_path / "q", background=False) as queue:
        for payload in (b"one", b"two", b"three"):
            queue.append(payload)
    page = bytearray((tmp_path / "q-1.page").read_bytes())
    place = HEADER_BYTES + HEAD_BYTES + 3
    page[place + 4 : place + HEAD_BYTES + 3] = bytes(HEAD_BYTES - 4 + 3)
    (tmp_path / "q-1.page").write_bytes(page)
    (tmp_path / "q-1.idx").unlink()
    with Queue(tmp_path / "q", read_only=True) as queue:
        assert payloads(queue, damage="skip") == [b"one", b"three"]


@pytest.mark.parametrize("appends_first", [True, False])
def test_a_page_made_ahead_by_a_killed_process_is_used_once_its_name_is_durable(appends_first: bool) -> None:
    def opened(files: CrashFiles) -> Queue:
        clock, entropy = (lambda: 1), Random(1).randbytes
        return Queue("/d/q", page_size=4096, files=files, clock=clock, entropy=entropy, background=False)

    whole = CrashFiles(Random(1))
    queue = opened(whole)
    for _ in range(3):
        queue.append(bytes(800))
    queue.flush()
    images: list[CrashFiles] = []
    whole.before = lambda _: images.append(whole.after_kill(Random(1)))
    core_of(queue).run_background_work()
    whole.before = None
    images.append(whole.after_kill(Random(1)))
    assert len(images) > 5, "the next page is made"
    for image in images:
        if not appends_first:
            opened(image).close()  # who only looks leaves a clean mark
        again = opened(image)
        last_seq = 0
        for _ in range(3):
            last_seq = again.append(bytes(800))
        again.flush()
        for seed in range(12):
            with opened(image.after_power_loss(Random(seed))) as after:
                assert after.last_seq == last_seq
