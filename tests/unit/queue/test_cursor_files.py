"""The small files of cursors, slots and identities: what is written in which order, and what each content means."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from struct import pack
from zlib import crc32

import pytest
from tests.property.queue_memory_files import MemoryFiles

from holdfast.errors import AlreadyOpen, Code, CorruptData, InvalidRequest, PermissionDenied
from holdfast.queue.consumers.consumer import ConsumerFiles
from holdfast.queue.core import QueueCore
from holdfast.queue.files.cursors import (
    CursorFile,
    committed_seqs,
    first_held_seq,
    first_unconsumed_seq,
    lock_name,
    read_cursor,
    sync_holds,
)
from holdfast.queue.files.pages import PageDirectory
from holdfast.queue.format.file_names import FileNames
from holdfast.queue.format.meta import (
    COMMITTED_MAX,
    SLOT_BYTES,
    SLOTS_BYTES,
    VALUE_BYTES_MAX,
    PagePosition,
    QueueIdentity,
    WritePosition,
    decode_cursor,
    decode_identity,
    decode_write_position,
    encode_cursor,
    encode_identity,
    encode_slot,
    newest_slot,
    slot_offset,
)
from holdfast.queue.log.messages import Gap, Message, Trimmed

NAME = "q-one.cursor"


class Files(MemoryFiles):
    """Records what changes or ends; ``fails`` names the operations that raise. All is in the directory 1."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[object, ...]] = []
        self.fails: set[str] = set()

    def record(self, name: str, *arguments: object) -> None:
        self.calls.append((name, *arguments))
        if name in self.fails:
            raise OSError(errno.EIO, name)

    def names(self, directory: int) -> list[str]:
        assert directory == 1
        return super().names(directory)

    def lock(self, directory: int, name: str) -> int:
        assert directory == 1
        return super().lock(directory, name)

    def create(self, directory: int, name: str) -> int:
        self.record("create", name)
        return super().create(directory, name)

    def open(self, directory: int, name: str, *, write: bool) -> int:
        assert directory == 1
        self.record("open", name, write)
        return super().open(directory, name, write=write)

    def close(self, file: int) -> None:
        assert file in self.open_files, "a file is closed once"
        self.record("close")
        super().close(file)

    def allocate(self, file: int, length: int) -> None:
        self.record("allocate", length)
        super().allocate(file, length)

    def write(self, file: int, offset: int, parts: Sequence[bytes | bytearray | memoryview]) -> None:
        self.record("write", offset)
        super().write(file, offset, parts)

    def sync_data(self, file: int) -> None:
        self.record("sync_data")
        super().sync_data(file)

    def sync_directory(self, directory: int) -> None:
        self.record("sync_directory", directory)
        super().sync_directory(directory)

    def unlink(self, directory: int, name: str) -> None:
        self.record("unlink", name)
        super().unlink(directory, name)

    def put(self, name: str, data: bytes) -> None:
        """A durable file."""
        file = super().create(1, name)
        super().write(file, 0, (data,))
        super().sync_data(file)
        super().sync_directory(1)
        super().close(file)

    def content(self, name: str) -> bytes:
        return bytes(self.names_now[name].cache)


@pytest.fixture
def files() -> Files:
    return Files()


def pages_of(files: Files, prefix: str = "q") -> PageDirectory:
    return PageDirectory(files, 1, FileNames(prefix))


def value(seq: int, *, holds: bool = False, of_work_queue: bool = False) -> bytes:
    return encode_cursor(seq, of_work_queue=of_work_queue, holds=holds)


def slots(*generations: tuple[int, bytes]) -> bytes:
    """A file with these slots, each in its place."""
    data = bytearray(SLOTS_BYTES)
    for generation, content in generations:
        data[slot_offset(generation) : slot_offset(generation) + SLOT_BYTES] = encode_slot(generation, content)
    return bytes(data)


# ---- one cursor file -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("exists", [False, True])
def test_a_new_cursor_is_two_empty_slots_under_a_durable_name(files: Files, exists: bool) -> None:
    if exists:
        files.put(NAME, b"")
    cursor = CursorFile(pages_of(files), "one")
    made: list[tuple[object, ...]] = [] if exists else [("create", NAME)]
    order = [("open", NAME, True), *made, ("allocate", SLOTS_BYTES), ("sync_data",), ("sync_directory", 1)]
    assert files.calls == order
    assert files.content(NAME) == bytes(SLOTS_BYTES)
    assert cursor.stored is None and cursor.damaged is False
    files.calls.clear()
    cursor.write(value(60))
    assert files.calls == [("write", slot_offset(1))] and files.content(NAME) == slots((1, value(60)))
    cursor.close()
    assert files.calls[1:] == [("close",)] and not files.open_files


def test_a_cursor_that_is_there_is_opened_and_goes_on_with_the_other_slot(files: Files) -> None:
    files.put(NAME, slots((6, value(59)), (7, value(60, holds=True))))
    cursor = CursorFile(pages_of(files), "one")
    assert files.calls == [("open", NAME, True)]
    assert cursor.stored is not None and not cursor.damaged
    assert (cursor.stored.committed_seq, cursor.stored.holds, cursor.stored.of_work_queue) == (60, True, False)
    cursor.write(value(61))
    cursor.write(value(62))
    assert files.calls[1:] == [("write", 0), ("write", SLOT_BYTES)]
    assert newest_slot(files.content(NAME)) == (9, value(62))
    assert newest_slot(files.content(NAME)[:SLOT_BYTES].ljust(SLOTS_BYTES, b"\0")) == (8, value(61))


@pytest.mark.parametrize("data", [b"x" * SLOTS_BYTES, b"\0" * 999 + b"x", slots((1, b"no cursor"))])
def test_a_file_with_bytes_and_without_a_value_is_damaged(files: Files, data: bytes) -> None:
    files.put(NAME, data)
    cursor = CursorFile(pages_of(files), "one")
    assert cursor.damaged is True and cursor.stored is None
    held = read_cursor(pages_of(files), "two")
    assert held is None


def test_a_damaged_cursor_holds_and_has_committed_nothing(files: Files) -> None:
    files.put(NAME, b"x")
    cursor = read_cursor(pages_of(files), "one")
    assert cursor is not None and (cursor.committed_seq, cursor.holds, cursor.of_work_queue) == (0, True, False)
    files.put("q-two.cursor", bytes(SLOTS_BYTES))
    assert read_cursor(pages_of(files), "two") is None
    files.put("q-three.cursor", slots((3, value(9, of_work_queue=True))))
    third = read_cursor(pages_of(files), "three")
    assert third is not None and (third.committed_seq, third.holds, third.of_work_queue) == (9, False, True)
    files.put("q-four.cursor", slots((3, value(9))) + b"more than the slots")
    assert read_cursor(pages_of(files), "four") is not None
    files.put("q-five.cursor", bytes(SLOTS_BYTES) + b"more than the slots")
    assert read_cursor(pages_of(files), "five") is None


def test_after_an_error_the_same_slot_is_written_again(files: Files) -> None:
    cursor = CursorFile(pages_of(files), "one")
    cursor.write(value(60))
    files.fails = {"write"}
    with pytest.raises(OSError, match="write"):
        cursor.write(value(61))
    files.fails.clear()
    files.calls.clear()
    cursor.write(value(62))
    assert files.calls == [("write", slot_offset(2))]
    assert newest_slot(files.content(NAME)) == (2, value(62))


def test_a_failed_sync_leaves_the_newest_value_to_be_written_again(files: Files) -> None:
    cursor = CursorFile(pages_of(files), "one")
    cursor.write(value(60))
    cursor.write(value(61))
    cursor.sync()
    files.calls.clear()
    files.fails = {"sync_data"}
    with pytest.raises(OSError, match="sync_data"):
        cursor.sync()
    assert files.calls == [("sync_data",), ("write", slot_offset(2))]
    assert newest_slot(files.content(NAME)) == (2, value(61))
    files.fails = {"sync_data", "write"}
    with pytest.raises(OSError, match="sync_data"):
        cursor.sync()


@pytest.mark.parametrize("operation", ["allocate", "sync_data", "sync_directory"])
@pytest.mark.parametrize("exists", [False, True])
def test_a_cursor_that_cannot_be_made_durable_is_removed_and_a_damaged_one_stays(
    files: Files, operation: str, exists: bool
) -> None:
    if exists:
        files.put(NAME, b"x" * 7)
    files.fails = {operation}
    with pytest.raises(OSError, match=operation):
        CursorFile(pages_of(files), "one")
    assert (NAME in files.names_now) is exists
    assert not files.open_files
    files.fails = {operation, "unlink"}
    with pytest.raises(OSError, match=operation):
        CursorFile(pages_of(files), "one")
    assert not files.open_files


def test_the_files_of_a_consumer_are_released_even_where_closing_fails(files: Files) -> None:
    class Failing:
        def close(self) -> None:
            raise OSError(errno.EIO, "close")

    class Reader:
        closed = 0

        def close(self) -> None:
            self.closed += 1

    pages = pages_of(files)
    owned = ConsumerFiles(pages, lock_name(pages, "one"))
    assert owned.pages is pages and owned.cursor is None and owned.reader is None
    owned.release()
    assert not files.open_files and not files.locked
    owned = ConsumerFiles(pages, lock_name(pages, "one"))
    owned.cursor, owned.reader = CursorFile(pages, "one"), Reader()  # type: ignore[assignment]
    owned.release()
    assert not files.open_files and not files.locked and owned.reader.closed == 1  # type: ignore[attr-defined]
    owned = ConsumerFiles(pages, lock_name(pages, "one"))
    owned.cursor, owned.reader = Failing(), Reader()  # type: ignore[assignment]
    with pytest.raises(OSError, match="close"):
        owned.release_name()
    assert not files.locked and owned.reader.closed == 0  # type: ignore[attr-defined]


# ---- every cursor of a queue -----------------------------------------------------------------------------------------


def some_cursors(files: Files) -> PageDirectory:
    """Consumers of q, and files that are none."""
    files.put("q-ann.cursor", slots((1, value(70))))
    files.put("q-bob.cursor", slots((1, value(50, holds=True))))
    files.put("q-cid.cursor", slots((1, value(60, holds=True))))
    files.put("q-eve.cursor", slots((1, value(40, of_work_queue=True))))
    files.put("q-eu-allMeta", b"")
    for foreign in ("q-eu-ann.cursor", "q-.cursor", "r-ann.cursor", "q-ann.cursor.lock", "q-ann-cursor"):
        files.put(foreign, slots((1, value(1, holds=True))))
    return pages_of(files)


def test_the_cursors_of_a_queue_are_those_of_its_consumers_and_work_queues(files: Files) -> None:
    pages = some_cursors(files)
    assert list(committed_seqs(pages).items()) == [("ann", 70), ("bob", 50), ("cid", 60), ("eve", 40)]
    assert first_held_seq(pages) == 51
    assert first_unconsumed_seq(pages) == 41


def test_an_empty_cursor_has_consumed_nothing_and_holds_nothing(files: Files) -> None:
    pages = pages_of(files)
    assert (first_held_seq(pages), first_unconsumed_seq(pages), committed_seqs(pages)) == (None, None, {})
    files.put("q-ann.cursor", b"")
    assert (first_held_seq(pages), first_unconsumed_seq(pages), committed_seqs(pages)) == (None, 1, {})
    files.put("q-bob.cursor", b"damaged")
    assert (first_held_seq(pages), first_unconsumed_seq(pages), committed_seqs(pages)) == (1, 1, {"bob": 0})


def test_the_cursors_that_retention_waits_for_are_synced(files: Files) -> None:
    pages = some_cursors(files)

    def synced(*, every: bool) -> list[object]:
        """The files that were opened for writing and synced before they were closed."""
        files.calls.clear()
        errors: list[OSError] = []
        sync_holds(pages, errors.append, every=every)
        assert not files.open_files and not errors
        written = [call[1] for call in files.calls if call[0] == "open" and call[2]]
        assert files.calls.count(("sync_data",)) == len(written)
        return written

    assert synced(every=False) == ["q-bob.cursor", "q-cid.cursor"]
    assert synced(every=True) == [f"q-{name}.cursor" for name in ("ann", "bob", "cid", "eve")]
    files.calls.clear()
    sync_holds(pages, pytest.fail)  # type: ignore[arg-type]
    assert files.calls.count(("sync_data",)) == 2, "those that hold, unless every one is meant"


def test_a_sync_that_fails_is_reported_once_and_its_file_is_closed(files: Files) -> None:
    pages = some_cursors(files)
    files.fails = {"sync_data"}

    class Failed(Exception):
        """What the queue raises."""

    def failed(error: OSError) -> None:
        assert error.errno == errno.EIO
        raise Failed

    with pytest.raises(Failed):
        sync_holds(pages, failed)
    assert files.calls.count(("sync_data",)) == 1 and not files.open_files


# ---- names -----------------------------------------------------------------------------------------------------------


def test_a_name_is_locked_for_one_consumer(files: Files) -> None:
    pages = pages_of(files)
    file = lock_name(pages, "one")
    assert files.locked == {"q-one.cursor.lock"}
    with pytest.raises(AlreadyOpen):
        lock_name(pages, "one")
    files.unlock(file)
    assert lock_name(pages, "one") != file


def test_a_name_of_another_queue_is_refused_before_it_is_locked(files: Files) -> None:
    files.put("q-eu-dead-allMeta", b"")
    pages = pages_of(files)
    lock_name(pages, "eu")
    with pytest.raises(InvalidRequest, match="this name belongs to another queue here"):
        lock_name(pages, "eu", of_work_queue=True)
    with pytest.raises(InvalidRequest, match="this name belongs to another queue here"):
        lock_name(pages, "eu-dead-one")
    assert files.locked == {"q-eu.cursor.lock"}


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_an_error_of_the_disk_while_a_name_is_locked_is_raised_as_it_is(
    files: Files, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def fails(directory: int, name: str) -> int:
        raise OSError(number, "the disk")

    monkeypatch.setattr(files, "lock", fails)
    with pytest.raises(OSError, match="the disk") as raised:
        lock_name(pages_of(files), "one")
    assert type(raised.value) is OSError


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM, errno.EROFS])
def test_a_name_that_may_not_be_locked_is_refused_with_the_cause(
    files: Files, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def forbids(directory: int, name: str) -> int:
        raise OSError(number, "this is forbidden")

    monkeypatch.setattr(files, "lock", forbids)
    with pytest.raises(PermissionDenied) as refused:
        lock_name(pages_of(files), "one")
    assert refused.value.message == "a cursor cannot be kept here"
    assert refused.value.fields == {"name": "one", "cause": "this is forbidden"}


# ---- where a consumer begins -----------------------------------------------------------------------------------------


class Log:
    """A queue whose reader reports ``reports``, and then has messages from ``first``, or none yet."""

    def __init__(self, *reports: Gap | Trimmed, first: int, empty: bool = False) -> None:
        self.reports, self.first, self.empty = reports, first, empty
        self.next_seq = first
        self.closed = 0

    def reader(self, *, since: object, damage: Callable[[Gap | Trimmed], None]) -> Log:
        assert since == "earliest"
        self.damage = damage
        return self

    def read_near(self) -> list[Message] | None:
        for report in self.reports:
            self.damage(report)
        return None if self.empty else [Message((self.first + number, 0, b"")) for number in (0, 1)]

    def close(self) -> None:
        self.closed += 1


def gap(first: int, last: int) -> Gap:
    return Gap(first, last, page=1)


@pytest.mark.parametrize(
    ("reports", "expected"),
    [
        ([], 21),
        ([gap(11, 20)], 11),
        ([gap(1, 5), gap(6, 20)], 1),
        ([gap(1, 5), gap(7, 20)], 7),
        ([gap(11, 19)], 21),
        ([gap(21, 30)], 21),
        ([gap(11, 20), Trimmed(1, 10)], 11),
        ([Trimmed(1, 20)], 21),
    ],
)
@pytest.mark.parametrize("empty", [False, True])
def test_a_consumer_begins_with_the_loss_directly_before_its_first_message(
    reports: list[Gap | Trimmed], expected: int, empty: bool
) -> None:
    log = Log(*reports, first=21, empty=empty)
    assert QueueCore.seq_since(log, "earliest") == expected  # type: ignore[arg-type]
    assert log.closed == 1


# ---- formats ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("holds", [False, True])
@pytest.mark.parametrize("of_work_queue", [False, True])
def test_a_cursor_has_its_bytes_by_the_table(holds: bool, of_work_queue: bool) -> None:
    data = encode_cursor(60, of_work_queue=of_work_queue, holds=holds)
    assert data == pack("<HHIQ", 1, of_work_queue | holds << 1, 0, 60)
    cursor = decode_cursor(data)
    assert cursor is not None
    assert (cursor.committed_seq, cursor.of_work_queue, cursor.holds) == (60, of_work_queue, holds)


def test_other_bytes_are_not_a_cursor() -> None:
    assert decode_cursor(pack("<HHIQ", 1, 0, 0, COMMITTED_MAX - 1)) is not None
    for data in (
        b"", value(60)[:-1], value(60) + b"\0", pack("<HHIQ", 2, 0, 0, 60), pack("<HHIQ", 0, 0, 0, 60),
        pack("<HHIQ", 1, 0, 0, COMMITTED_MAX),
    ):  # fmt: skip
        assert decode_cursor(data) is None
    assert COMMITTED_MAX == 1 << 62


def test_a_slot_has_its_bytes_by_the_table() -> None:
    content = bytes(range(256)) + b"x" * (VALUE_BYTES_MAX - 256)
    for generation, data in ((7, b"new"), (1 << 40, b""), (6, content)):
        fields = (b"HFQS" + pack("<HHQ", 1, len(data), generation) + data).ljust(508, b"\0")
        assert encode_slot(generation, data) == fields + pack("<I", crc32(fields))
        assert newest_slot(slots((generation, data))) == (generation, data)
    with pytest.raises(AssertionError, match=r"^a value fits into its slot"):
        encode_slot(1, content + b"x")
    assert (slot_offset(6), slot_offset(7), SLOT_BYTES, VALUE_BYTES_MAX) == (0, 512, 512, 492)


def sealed(fields: bytes) -> bytes:
    fields = fields.ljust(508, b"\0")
    return fields + pack("<I", crc32(fields))


def test_the_newest_slot_that_verifies_counts() -> None:
    assert newest_slot(slots((6, b"old"), (7, b"new"))) == (7, b"new")
    assert newest_slot(slots((8, b"new"), (7, b"old"))) == (8, b"new")
    old, new = encode_slot(6, b"old"), encode_slot(7, b"new")
    assert newest_slot(old + new[:-1]) == newest_slot(old + new[:-1] + b"\0") == newest_slot(old) == (6, b"old")
    assert newest_slot(bytes(SLOT_BYTES) + new) == newest_slot(new[:-1] + b"x" + new) == (7, b"new")
    assert newest_slot(old + new + b"more") == (7, b"new")
    for wrong in (
        encode_slot(7, b"in the place of another"),
        sealed(b"HFQX" + pack("<HHQ", 1, 0, 6)),
        sealed(b"HFQS" + pack("<HHQ", 2, 0, 6)),
        sealed(b"HFQS" + pack("<HHQ", 1, 493, 6)),
        b"",
        bytes(SLOTS_BYTES),
    ):
        assert newest_slot(wrong) is None


def test_an_identity_has_its_bytes_by_the_table() -> None:
    for serializer in ("", "json", "X"):
        fields = b"HFQUEUE\0" + pack("<HHI16sI24s", 1, 0, 2, bytes(range(16)), 4096, serializer.encode())
        data = encode_identity(QueueIdentity(bytes(range(16)), 4096, 2, serializer))
        assert data == fields + pack("<I", crc32(fields)) and len(data) == 64
        identity = decode_identity(data + b"more")
        assert identity is not None
        assert (identity.queue_id, identity.page_bytes, identity.checksum_id) == (bytes(range(16)), 4096, 2)
        assert identity.serializer == serializer
        assert decode_identity(data[:-1]) is decode_identity(data[:-1] + b"x") is None
    assert QueueIdentity(bytes(16), 4096, 1).serializer == ""


def test_an_identity_of_another_file_is_none_and_of_a_later_version_is_named() -> None:
    def identity(magic: bytes, version: int, serializer: bytes = b"") -> bytes:
        fields = pack("<8sHHI16sI24s", magic, version, 0, 1, bytes(16), 4096, serializer)
        return fields + pack("<I", crc32(fields))

    assert decode_identity(identity(b"HFQUEUX\0", 1)) is None and decode_identity(identity(b"HFQUEUX\0", 2)) is None
    unreadable = decode_identity(identity(b"HFQUEUE\0", 1, b"j\xff"))
    assert unreadable is not None and unreadable.serializer == "j\ufffd"
    with pytest.raises(CorruptData) as refused:
        decode_identity(identity(b"HFQUEUE\0", 2))
    assert refused.value.message == "a queue was written by a later version of holdfast"
    assert (refused.value.code, refused.value.fields) == (Code.CORRUPT_QUEUE, {"format_version": 2})
    assert refused.value.hint == "nothing is damaged: use that version"


def test_a_write_position_has_its_bytes_by_the_table() -> None:
    durable = PagePosition(11, 12, 13, 14, 15)
    boot = bytes(range(16))
    for clean in (False, True):
        data = WritePosition(PagePosition(1, 2, 3, 4, 5), 6, 7, 8, 9, clean, durable, boot, 16, 17).encode()
        numbers = (1, 2, 3, 4, 5, 6, 7, 8, 9, clean, 11, 12, 13, 14, 15, 0)
        assert data == pack("<QQQqIIIIIIQQQqII", *numbers) + boot + pack("<QQ", 16, 17)
        position = decode_write_position(data)
        assert position is not None and position.clean is clean
        assert position.end == (1, 2, 3, 4, 5)
        assert (position.frames, position.index_records, position.index_check, position.index_due) == (6, 7, 8, 9)
        assert (position.boot_id, position.first_page, position.first_seq) == (boot, 16, 17)
        read = position.durable
        assert (read.page, read.salt, read.next_seq, read.last_time_ns, read.position) == (11, 12, 13, 14, 15)
        assert decode_write_position(data[:-1]) is decode_write_position(data + b"\0") is None


@pytest.mark.parametrize(
    ("clean", "recorded", "now", "is_true"),
    [
        (True, b"a" * 16, b"b" * 16, True),
        (True, bytes(16), bytes(16), True),
        (False, b"a" * 16, b"a" * 16, True),
        (False, b"a" * 16, b"b" * 16, False),
        (False, bytes(16), bytes(16), False),
        (False, b"a" * 16, bytes(16), False),
    ],
)
def test_what_was_written_is_true_in_the_same_run_of_the_machine_or_after_a_clean_end(
    clean: bool, recorded: bytes, now: bytes, is_true: bool
) -> None:
    place = PagePosition(1, 2, 3, 4, 5)
    written = WritePosition(place, 6, 7, 8, 9, clean, place, recorded, 16, 17)
    assert written.is_true(now) is is_true
