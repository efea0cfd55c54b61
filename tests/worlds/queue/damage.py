"""Media damage between two openings: what is damaged is reported, never delivered and never forgotten.

A log that was closed, killed or cut off from power is damaged on a copy: a bit is flipped, a sector zeroed, a block put
in the place of another, a file cut, emptied, lost or replaced by an older copy of itself. Then it is verified, opened,
written to and opened again. Damage to anything but a page must not cost a message (I5). Sometimes the write position is
lost too. A loss is silent only where nothing proves it: above what is owed and after every message that is left, or,
without a write position, before the first page, as if retention had removed it. In uniform worlds all frames of a page
have one size, so that a misplaced block brings whole frames whose only fault is their place.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from random import Random
from typing import Final

from tests.worlds.harness import PromiseBroken
from tests.worlds.queue.files import DIRECTORY, PATH, PREFIX, CrashFiles
from tests.worlds.queue.page_cache import BLOCK_BYTES

from holdfast.queue import Block, Gap, Message, Queue, Trimmed
from holdfast.queue.evidence import FileEvidence
from holdfast.queue.files.pages import PageDirectory
from holdfast.queue.format.file_names import FileNames
from holdfast.queue.format.frame import SEAL_BODY
from holdfast.queue.format.page import HEADER_BYTES, decode_header
from holdfast.queue.log.judgement import Proof
from holdfast.queue.log.page_scan import PageScan
from holdfast.queue.log.restoration import restored_header
from holdfast.queue.repair.survey import QueueSurvey

__all__ = ["DAMAGE_KINDS", "OpenWriter", "check_damaged", "check_seals", "damaged"]

NAMES: Final = FileNames(PREFIX)
MARKS: Final = NAMES.write_meta
MARKS_GONE: Final = 0.3
DAMAGE_KINDS: Final = (
    "bit flipped", "sector zeroed", "block misplaced", "file cut", "file emptied", "file lost", "older copy",
)  # fmt: skip
OpenWriter = Callable[[CrashFiles], Queue]


def damaged(data: bytes, kind: str, random: Random, older: bytes | None = None) -> bytes | None:
    """The bytes of a file after one kind of damage; None for a file that is lost."""
    if kind == "file lost":
        return None
    if kind == "older copy":
        return data if older is None else older
    if not data or kind == "file emptied":
        return b""
    place = random.randrange(len(data))
    if random.random() < 0.3:
        place = min(place, random.randrange(64))  # headers are small, and matter most
    if kind == "bit flipped":
        return data[:place] + bytes([data[place] ^ 1 << random.randrange(8)]) + data[place + 1 :]
    if kind == "file cut":
        return data[:place]
    if kind == "sector zeroed":
        start = place // 512 * 512
        return data[:start] + bytes(len(data[start : start + 512])) + data[start + 512 :]
    start, other = place // BLOCK_BYTES * BLOCK_BYTES, random.randrange(len(data)) // BLOCK_BYTES * BLOCK_BYTES
    width = min(len(data) - start, len(data) - other, BLOCK_BYTES)
    return data[:start] + data[other : other + width] + data[start + width :]


def check_damaged(
    files: CrashFiles,
    older: dict[str, bytes],
    history: Sequence[bytes],
    open_writer: OpenWriter,
    random: Random,
    rounds: int,
    seen: Counter[str],
) -> int:
    """Damage a copy of a log this many times; returns how many states were read. ``older`` are its files of an earlier
    moment, ``history`` all messages that were appended. Raises: ``PromiseBroken``.
    """
    with open_writer(files.after_kill(Random(random.random()))) as writer:
        expected = {message.seq: message for message in writer.read(damage="skip")}
        # The messages that one damaged bit can cost: those of a frame.
        frames = {seq: block.first_seq for block in writer.batches(damage="skip") for seq in _seqs_of_frame(block)}
    is_ordered = _proof_of(files).ordered
    contents = files.contents(DIRECTORY)
    names = [name for name in contents if not name.endswith((".lock", ".torn", ".tmp"))]
    for _ in range(rounds if names and expected else 0):
        name, kind = random.choice(names), random.choice(DAMAGE_KINDS)
        after = damaged(contents[name], kind, random, _older_of(name, older, contents))
        if after == contents[name]:
            continue
        copy = files.after_kill(Random(random.random()))
        copy.set_content(DIRECTORY, name, after)
        is_page = name.endswith(".page")
        seen[f"{kind}: {'page' if is_page else 'hint'}"] += 1
        # After lost power, without a write position, what was never durable and comes after a hole may be delivered.
        if is_page and is_ordered and random.random() < MARKS_GONE:
            copy.set_content(DIRECTORY, MARKS, None)
            seen["damaged without marks"] += 1
        judge = _Judge(copy, expected, history, open_writer, may_lose=is_page, what=f"{kind} in {name}")
        number = NAMES.page_number(name)
        if number is not None:
            judge.damaged_page(number, kind, frames)
        judge.run()
    return rounds


def _older_of(name: str, older: dict[str, bytes], contents: dict[str, bytes]) -> bytes | None:
    """An older copy of the same life of a page: another life may have other messages under the same numbers."""
    number, copy = NAMES.page_number(name), older.get(name)
    if number is None or copy is None:
        return copy
    before, now = decode_header(copy, number), decode_header(contents[name], number)
    return copy if before is not None and now is not None and before.salt == now.salt else None


def _seqs_of_frame(block: Block) -> range:
    """Of a batch. A block of single messages is many frames."""
    is_batch = block._bounds is None and len(block) > 1
    return range(block.first_seq, block.last_seq + 1) if is_batch else range(0)


def _proof_of(files: CrashFiles) -> Proof:
    directory = files.open_directory(DIRECTORY)
    try:
        return FileEvidence(PageDirectory(files, directory, NAMES, restored_header)).proof()
    finally:
        files.close(directory)


class _Judge:
    """One damaged log: what may be lost silently, and everything that is done to it."""

    def __init__(
        self,
        files: CrashFiles,
        expected: dict[int, Message],
        history: Sequence[bytes],
        open_writer: OpenWriter,
        *,
        may_lose: bool,
        what: str,
    ) -> None:
        self.files = files
        self.expected = expected
        self.history = history
        self.open_writer = open_writer
        self.may_lose = may_lose
        self.what = what
        self.proof = _proof_of(files)
        self.marks_gone = not self.proof.first_page
        self.silent: set[int] = set()
        self.may_be_silent = True
        self.one_bit: dict[int, int] | None = None
        self.frames_lost_max = 0

    def damaged_page(self, number: int, kind: str, frames: dict[int, int]) -> None:
        """What this kind of damage to a page may cost at most."""
        directory = self.files.open_directory(DIRECTORY)
        pages = PageDirectory(self.files, directory, NAMES, restored_header)
        header, numbers = pages.header_of(number), pages.numbers()
        self.files.close(directory)
        # Only what looks like a torn tail may go silently; an unreadable page is always reported, and a lost one if
        # another page follows. After lost power the last page may have been set aside.
        is_last = number > max(numbers, default=0)
        unproved = self.marks_gone or (is_last and not self.proof.ordered)
        content = self.files.contents(DIRECTORY).get(NAMES.page(number), b"")
        is_zeroed = not self.proof.ordered and len(content) > HEADER_BYTES and not any(content)
        self.may_be_silent = header is not None or (kind == "file lost" and unproved) or is_zeroed
        if kind == "bit flipped" and self.proof.ordered:
            self.one_bit = frames
            # Without a record the last frame cannot be confirmed after damage.
            self.frames_lost_max = 0 if header is not None and header.restored else 2

    def run(self) -> None:
        """Verify, read, open twice, write, open again."""
        lost = self._is_lost()
        with Queue(PATH, files=self.files, read_only=True) as reader:
            self._check(reader, {})
        new: dict[int, bytes] = {}
        for opening in range(3):
            with self.open_writer(self.files) as queue:
                self._check(queue, new)
                if opening == 1:
                    for number in range(3):
                        payload = b"new %d" % number
                        new[queue.append(payload)] = payload
                    queue.flush()
                    self._check(queue, new)
            if lost and not self._is_lost():
                raise PromiseBroken(f"D4: {self.what}: a loss is no longer reported after opening {opening + 1}")
        used = new.keys() & (self.expected.keys() - self.silent)
        if used:
            raise PromiseBroken(f"D3: {self.what}: {sorted(used)} are given out twice")

    def _came_after_a_hole(self, message: Message) -> bool:
        """After lost power a lost page makes its hole damage: then what came after it and was never durable stays."""
        index = message.seq - 1
        return message.seq not in self.expected and self.history[index : index + 1] == [message.payload]

    def _is_lost(self) -> bool:
        directory = self.files.open_directory(DIRECTORY)
        try:
            return bool(QueueSurvey(PageDirectory(self.files, directory, NAMES, restored_header), None).gaps)
        finally:
            self.files.close(directory)

    def _check(self, queue: Queue, new: dict[int, bytes]) -> None:
        reports: list[Gap | Trimmed] = []
        found = list(queue.read(damage=reports.append))
        ranges = sorted(
            (report.first, report.last) if isinstance(report, Gap) else (report.wanted_seq, report.first_seq - 1)
            for report in reports
        )
        seqs = [message.seq for message in found]
        if seqs != sorted(set(seqs)):
            raise PromiseBroken(f"I4: {self.what}: a message is delivered twice or out of order")
        for message in found:
            if message.seq in new:
                if message.payload != new[message.seq]:
                    raise PromiseBroken(f"I1: {self.what}: new message {message.seq} is {message.payload[:40]!r}")
            elif self.expected.get(message.seq) != message and not self._came_after_a_hole(message):
                raise PromiseBroken(f"I1: {self.what}: message {message.seq} is delivered as {message.payload[:40]!r}")
        if new.keys() - set(seqs):
            raise PromiseBroken(f"D2: {self.what}: new messages {sorted(new.keys() - set(seqs))} are missing")
        missing = self.expected.keys() - set(seqs)
        if missing and not self.may_lose:
            raise PromiseBroken(f"I5: {self.what}: {sorted(missing)[:5]} are missing")
        firsts = [first for first, _ in ranges]

        def is_reported(seq: int) -> bool:
            return any(first <= seq <= last for first, last in ranges[: bisect_right(firsts, seq)])

        old = [seq for seq in seqs if seq not in new]
        silent = {seq for seq in missing if not is_reported(seq)}
        if self.one_bit is not None:
            lost = {self.one_bit.get(seq, -seq) for seq in missing}
            if len(lost) > self.frames_lost_max:
                raise PromiseBroken(f"D5: {self.what}: one bit costs the messages {sorted(missing)[:9]}")
            if not missing and ranges:
                raise PromiseBroken(f"D6: {self.what}: nothing is missing and {ranges} is reported")
        for seq in silent:
            at_the_end = self.may_be_silent and seq >= self.proof.owed_seq and seq > max(old, default=0)
            # A crash may have stopped retention after its record and before the page was removed.
            at_the_front = seq < self.proof.first_seq or (self.marks_gone and seq < min(old, default=0))
            if not (at_the_end or at_the_front):
                raise PromiseBroken(f"D1: {self.what}: {sorted(silent)[:5]} are missing without a report")
        self.silent |= silent


def check_seals(files: CrashFiles, path: str, prefix: str) -> None:
    """Check the SEAL of every page that has a next one: frames, last sequence number, last arrival.

    ``holdfast queue verify`` and the index's checksum rely on it. A crash may take a SEAL and reading works without it,
    so this holds only for a log that has had no crash. Raises: ``PromiseBroken``.
    """
    directory = files.open_directory(path)
    pages = PageDirectory(files, directory, FileNames(prefix))
    try:
        headers = [header for number in pages.numbers() if (header := pages.header_of(number)) is not None]
        for header, following in pairwise(header for header in headers if not header.prepared):
            file = pages.open(header.number)
            assert file is not None, "a page with a header has a file"
            scan = PageScan(files, file, header, next_seq=header.base_seq)
            frames = 0
            while (window := scan.read()) is not None:
                frames += len(window.frames)
            files.close(file)
            if scan.seal is None:
                raise PromiseBroken(f"page {header.number} was closed without a SEAL")
            written, last_seq, last_time_ns, _ = SEAL_BODY.unpack(scan.seal)
            if (written, last_seq, last_time_ns) != (frames, following.base_seq - 1, scan.last_time_ns):
                raise PromiseBroken(f"the SEAL of page {header.number} says {last_seq}, {written} frames")
    finally:
        files.close(directory)
