"""Reading a queue, in the writer's process or any other, without locks and without writing.

Owns: the way from a starting point to the end and along it, across pages, damage and removed pages. Does not own:
verification (``page_scan``), decisions at a stop (``recovery``), waiting (``following``).

Failure model: reads only; works on a read-only mount. What does not verify at the end of a log is not there *yet*. What
does not verify although the writer is past it is damage: ``Gap``. A page that retention removed before it was read:
``Trimmed``. Both go to the policy: ``"raise"`` (nothing is lost by it: reading again raises again), ``"skip"``, or a
callable that is told. ``OSError`` from the port passes.
"""

from __future__ import annotations

from operator import itemgetter

from holdfast.errors import InvalidRequest
from holdfast.queue.frame import COMPRESSED, HEAD_BYTES, payloads, raw_body
from holdfast.queue.index_reader import IndexReader
from holdfast.queue.messages import Block, Gap, Message, Trimmed, block_of_singles, messages_of
from holdfast.queue.opening import find_end
from holdfast.queue.page_header import HEADER_BYTES
from holdfast.queue.page_scan import FIRST_WINDOW_BYTES, WINDOW_BYTES, PageScan
from holdfast.queue.recovery import Following, Here, Owed, Step, decide
from holdfast.queue.slots import SLOTS_BYTES, newest_slot
from holdfast.queue.write_mark import decode_mark

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import TypeAlias

    from holdfast.queue.index_reader import KeptIndexes
    from holdfast.queue.page_files import PageDirectory
    from holdfast.queue.page_header import PageHeader
    from holdfast.queue.page_scan import Anchors, FrameView, Window
    from holdfast.queue.write_mark import WriteMark

    DamagePolicy: TypeAlias = str | Callable[["Gap | Trimmed"], None]

__all__ = ["LogReader", "read_mark", "read_numbered_mark"]

SINGLES_MIN = 8
_messages_of_part: Callable[[tuple[int, Iterable[Message]]], Iterable[Message]] = itemgetter(1)
NEAR_BYTES = 8 << 10
SINGLES_WINDOW_BYTES = 128 << 10
"""Windows of single messages are smaller: thousands of small objects at a time cost more than a system call."""


def read_mark(pages: PageDirectory) -> WriteMark | None:
    """The writer's newest mark, or None."""
    return read_numbered_mark(pages)[1]


def read_numbered_mark(pages: PageDirectory) -> tuple[int | None, WriteMark | None]:
    """The same with its generation, where there is one."""
    try:
        file = pages.port.open(pages.directory, pages.names.write_meta, write=False)
    except FileNotFoundError:
        return None, None
    try:
        slot = newest_slot(pages.port.read(file, 0, SLOTS_BYTES))
    finally:
        pages.port.close(file)
    return (None, None) if slot is None else (slot[0], decode_mark(slot[1]))


def check_damage_policy(damage: DamagePolicy) -> None:
    """Raise ``InvalidRequest`` for what is no policy."""
    if damage not in ("raise", "skip") and not callable(damage):
        raise InvalidRequest("unknown damage policy", damage=repr(damage), hint="raise, skip or a callable")


class LogReader:
    """A place in the log that moves forward. One thread at a time.

    ``next_seq`` is the next message to come. ``live_next_seq`` tells how far a writer in this process is; without it,
    its mark in the file is read. ``headers`` caches headers of begun pages, ``anchors`` places found by earlier seeks,
    ``indexes`` the indexes of finished pages; all may be shared by all readers of a queue.
    """

    __slots__ = (
        "_anchors",
        "_damage", "_file", "_from_seq", "_from_time_ns", "_headers", "_index", "_indexes", "_live_next_seq",
        "_message", "_pages", "_scan", "_told_seq", "_window_bytes", "gaps",
    )  # fmt: skip

    def __init__(
        self,
        pages: PageDirectory,
        *,
        damage: DamagePolicy = "raise",
        live_next_seq: Callable[[], int] | None = None,
        headers: dict[int, PageHeader] | None = None,
        anchors: Anchors | None = None,
        indexes: KeptIndexes | None = None,
        message: type[Message] = Message,
    ) -> None:
        check_damage_policy(damage)
        self._pages = pages
        self._message = message
        self._damage = damage
        self._live_next_seq = live_next_seq
        self._headers = {} if headers is None else headers
        self._anchors: Anchors = {} if anchors is None else anchors
        self._indexes: KeptIndexes = {} if indexes is None else indexes
        self._window_bytes = WINDOW_BYTES
        self._scan: PageScan | None = None
        self._file = -1
        self._index: IndexReader | None = None
        self._from_seq = 1
        self._from_time_ns: int | None = None
        # Messages below this one that the scan still looks for were told to be lost. The scan goes on expecting the
        # number that belongs to its place: under another one, damaged bytes may verify.
        self._told_seq = 1
        self.gaps = 0

    # ---- starting points --------------------------------------------------------------------------------------------

    def seek_earliest(self) -> None:
        """Stand at the oldest message that there is."""
        self._from_seq, self._from_time_ns = 1, None
        self._enter_first(self._pages.known_numbers())
        self._from_seq = self.next_seq

    def seek_latest(self) -> None:
        """Stand behind the newest message."""
        end = find_end(self._pages, read_mark(self._pages), self._pages.port.boot_id())
        self._from_seq, self._from_time_ns = end.next_seq, None
        self.close()
        if end.page and self._enter(end.page, None) and self._scan is not None:
            scan = self._scan
            scan.position, scan.next_seq, scan.last_time_ns = end.position, end.expected_seq, end.last_time_ns
            self._told_seq = end.next_seq

    def seek_seq(self, seq: int) -> None:
        """Stand at message ``seq``, or before it where it has yet to come.

        Raises: ``InvalidRequest`` below 1; ``Trimmed`` by the policy where it has been removed.
        Cost: O(log pages) headers and O(log frames) frames of one page.
        """
        if seq < 1:
            raise InvalidRequest("sequence numbers begin at 1", seq=seq)
        self._from_seq, self._from_time_ns = seq, None
        self._seek_page(lambda header: header.base_seq <= seq)
        scan = self._scan
        if scan is None:
            return
        if scan.next_seq > seq:
            first = scan.next_seq
            self._from_seq = first
            self._report(Trimmed(seq, first))
        else:
            scan.seek_seq(seq)

    def seek_time(self, time_ns: int) -> None:
        """Stand before the first message that arrived at or after ``time_ns``. Never misses one; see I6.

        Cost: O(log pages) headers, O(log frames) index records.
        """
        self._from_seq, self._from_time_ns = 1, time_ns
        # Strictly below: a page may end with messages of the very time with which the next one begins.
        self._seek_page(lambda header: header.base_time_ns < time_ns)
        if self._scan is not None:
            self._scan.seek_time(time_ns)

    def _seek_page(self, belongs_before: Callable[[PageHeader], bool]) -> None:
        """Enter the last page for which the condition holds, or the first that there is."""
        numbers = self._pages.known_numbers()
        low, high = 0, len(numbers)
        while low < high:
            middle = (low + high) // 2
            header = self._header(numbers[middle])
            if header is not None and not header.prepared and belongs_before(header):
                low = middle + 1
            else:
                high = middle
        self._enter_first(numbers[max(0, low - 1) :])

    def _enter_first(self, numbers: list[int]) -> bool:
        """Enter the first of these pages that can be read. Those before it that are there and cannot are told."""
        self.close()  # a place before this one says nothing about what may stand here: neither its time nor its number
        self._told_seq = 1
        for place, number in enumerate(numbers):
            if self._enter(number, 1 if number == 1 else None):
                if place:
                    self._tell_unreadable(numbers[:place])
                return True
        return False

    def _tell_unreadable(self, numbers: list[int]) -> None:
        """Tell of the pages in front of the first that could be read, if one of them is there."""
        there = self._pages.numbers()
        if any(self._pages.header_of(number) is None for number in numbers if number in there):
            # Where the log began is not known any more: at most this much is gone.
            self._report(Gap(1, self.next_seq - 1, numbers[0]))

    # ---- moving -----------------------------------------------------------------------------------------------------

    @property
    def next_seq(self) -> int:
        """The sequence number expected next."""
        return max(self._scan.next_seq, self._told_seq) if self._scan is not None else self._from_seq

    @property
    def page(self) -> PageHeader | None:
        """The page that the last messages came from."""
        return self._scan.header if self._scan is not None else None

    def read_window(self) -> Window | None:
        """The next verified frames, or None where there is nothing more now.

        Raises: ``Gap`` and ``Trimmed`` by the policy.
        """
        while True:
            scan = self._scan
            if scan is None:
                numbers = self._pages.numbers()
                if self._enter_first(numbers):
                    continue
                last = (self._owed_seq() or 0) - 1
                if last >= self._from_seq and any(self._pages.header_of(number) is None for number in numbers):
                    self._report(Gap(self._from_seq, last, numbers[0]))
                    self._from_seq = last + 1
                return None
            window = scan.read(self._window_bytes)
            if window is not None:
                many = len(window.frames) > SINGLES_WINDOW_BYTES >> 10
                self._window_bytes = SINGLES_WINDOW_BYTES if many else WINDOW_BYTES
                return window
            if not self._move_on(scan):
                # What was written since the failed read counts: a roll may have happened in between.
                return scan.read(self._window_bytes)

    def _move_on(self, scan: PageScan) -> bool:
        """Decide at a stop. True where reading may go on."""
        following, found = self._following(scan.header.number + 1)
        here = scan.here()
        owed = Owed.NO if following is Following.CONTINUES else self._owed()
        step = decide(here, following, owed)
        if step is Step.END:
            return False
        if step is Step.NEXT_PAGE and following is Following.PREPARED and found is not None:
            return self._enter(found, self.next_seq)
        # The writer is past this place, so a second look tells damage from a frame that was just being written.
        if owed is not Owed.NO and self._verifies_now(scan, *scan.place, here):
            return True
        if step is Step.RESYNC:
            if self._resync(scan, found, here):
                return True
            step = decide(Here.EXHAUSTED, following, owed)
            if step is Step.END:
                return False
        return self._leave_page(scan, step, found)

    def _verifies_now(self, scan: PageScan, position: int, seq: int, last_time_ns: int, here: Here) -> bool:
        """Whether by now something follows a place where nothing did."""
        again = PageScan(
            self._pages.port, self._file, scan.header, next_seq=seq, position=position, last_time_ns=last_time_ns
        )
        return again.read(self._window_bytes) is not None or (again.seal is not None and here is not Here.SEAL)

    def _resync(self, scan: PageScan, following: int | None, here: Here) -> bool:
        """Go on behind damage in this page, and tell what is missing."""
        first, place = self.next_seq, scan.place
        header = None if following is None else self._header(following)
        if not scan.resync((self._owed_seq(), 0 if header is None else header.base_seq)):
            return False
        if self._verifies_now(scan, *place, here):
            # Without a mark nobody knows where the writer is: it may have written this and more since the last look.
            scan.place = place
        elif scan.next_seq > first:
            self._report(Gap(first, scan.next_seq - 1, scan.header.number))
        return True

    def _leave_page(self, scan: PageScan, step: Step, found: int | None) -> bool:
        first, number = self.next_seq, scan.header.number
        if step is Step.NEXT_PAGE and found is not None:
            return self._go_to(found, first)
        for later in self._pages.numbers() if found is not None and step is not Step.END_AFTER_GAP else []:
            header = self._header(later)
            if later <= number or header is None or header.prepared:
                continue
            removed = self._pages.header_of(number) is None
            self._report(Trimmed(first, header.base_seq) if removed else Gap(first, header.base_seq - 1, number))
            return self._go_to(later, None)
        last = (self._owed_seq() or 0) - 1
        if last >= first:
            self._report(Gap(first, last, number))
            # Told is told: what is found of it later stays unread, so that nothing goes back.
            self._from_seq = self._told_seq = last + 1
        return False

    def _go_to(self, number: int, expected: int | None) -> bool:
        """Enter a page whose header said that it comes next. Where that page went since, or was damaged, its header is
        forgotten, so that the next look decides by what is there now."""
        if not self._enter(number, expected):
            self._headers.pop(number, None)
        return True

    def _following(self, number: int) -> tuple[Following, int | None]:
        header = self._header(number)
        if header is None:
            later = [found for found in self._pages.numbers() if found >= number]
            if not later:
                return Following.NONE, None
            number = later[0]
            header = self._header(number)
            if header is None:
                return Following.UNREADABLE, number
        if header.prepared:
            return Following.PREPARED, number
        expected = self.next_seq
        if header.base_seq == expected:
            return Following.CONTINUES, number
        return (Following.AHEAD if header.base_seq > expected else Following.BEHIND), number

    def _owed(self) -> Owed:
        owed = self._owed_seq()
        if owed is None:
            return Owed.UNKNOWN
        return Owed.YES if owed > self.next_seq else Owed.NO

    def _owed_seq(self) -> int | None:
        """Messages below this are there, by the writer's word; None where it has left none."""
        if self._live_next_seq is not None:
            return self._live_next_seq()
        mark = read_mark(self._pages)
        if mark is None:
            return None
        boot_id = self._pages.port.boot_id()
        return mark.next_seq if mark.clean or (any(boot_id) and mark.boot_id == boot_id) else mark.durable.next_seq

    def _header(self, number: int) -> PageHeader | None:
        """The header of a page; kept once the page was begun, because it never changes again."""
        header = self._headers.get(number)
        if header is None:
            header = self._pages.header_of(number)
            if header is not None and not header.prepared:
                self._headers[number] = header
        return header

    def _enter(self, number: int, expected: int | None) -> bool:
        """Stand at the start of a page that was begun; False where it was not, or cannot be read. ``expected`` is its
        base where its header may not say so yet."""
        file = self._pages.open(number)
        if file is None:
            return False
        # Beside the writer of these files nobody else changes them, and what is kept needs no reading.
        header = self._headers.get(number) if self._live_next_seq is not None else None
        try:
            header = header or self._pages.header(file, number)
            if header is not None and header.prepared:
                header = self._begun(file, header, expected) if expected is not None else None
            # Whoever comes from the page before reads on, and in a full page that needs no small first step.
            following = self._header(number + 1) if self._scan is not None else None
        except BaseException:
            self._pages.port.close(file)
            raise
        if header is None:
            self._pages.port.close(file)
            return False
        last_time_ns = self._scan.last_time_ns if self._scan is not None else header.base_time_ns
        self.close()
        self._file = file
        # Whatever follows was begun behind the last message of this one.
        is_finished = number + 1 in self._headers
        self._index = IndexReader(self._pages, number, header.salt, self._indexes if is_finished else None)
        self._scan = PageScan(
            self._pages.port,
            file,
            header,
            next_seq=header.base_seq,
            position=HEADER_BYTES,
            last_time_ns=last_time_ns,
            index=self._index,
            anchors=self._anchors,
            window_bytes=FIRST_WINDOW_BYTES if following is None or following.prepared else WINDOW_BYTES,
        )
        return True

    def _begun(self, file: int, prepared: PageHeader, expected: int) -> PageHeader | None:
        """The header of a prepared page as it is begun with this message, if the message is there, or pages behind it.

        Of the last page a larger one may take the name until then: whoever stands in this one would wait for ever, or
        miss what the other holds.
        """
        header = prepared.started(expected, 0)
        first = PageScan(self._pages.port, file, header, next_seq=expected)
        begun = first.read(HEAD_BYTES) is not None or self._pages.numbers()[-1:] != [header.number]
        return header if begun else None

    def _report(self, report: Gap | Trimmed) -> None:
        if isinstance(report, Gap) and report.last < self._from_seq:
            return  # on the way to the starting point: nobody asked for these
        self.gaps += 1
        if self._damage == "raise":
            raise report
        if callable(self._damage):
            self._damage(report)

    def close(self) -> None:
        """Close the files. Reading goes on from the same place only after another seek."""
        if self._scan is not None:
            self._scan = None
            self._pages.port.close(self._file)
            if self._index is not None:
                self._index.close()
                self._index = None

    # ---- what frames become -----------------------------------------------------------------------------------------

    def read_messages(self) -> list[Message] | None:
        """The next messages, at least one, or None where there is nothing more now."""
        parts = self.read_message_parts()
        return None if parts is None else [message for part in parts for message in part]

    def read_near(self) -> list[Message] | None:
        """As ``read_messages``, little: for those who want one from the middle. Cost: about 8 KiB, or its batch."""
        self._window_bytes = NEAR_BYTES
        return self.read_messages()

    def read_message_parts(self) -> Iterator[Iterable[Message]] | None:
        """As ``read_messages``, made as they are taken: what has been used is free before the next is made.

        The answer must be used up before the reader is asked again.
        """
        parts = self.read_bounded_parts()
        return None if parts is None else map(_messages_of_part, parts)

    def read_bounded_parts(self) -> Iterator[tuple[int, Iterable[Message]]] | None:
        """As ``read_message_parts``, with the number of the last message of each part."""
        while (window := self.read_window()) is not None:
            frames = self._wanted(window)
            if frames:
                return self._parts(window.data, frames)
        return None

    def _parts(self, data: bytes, frames: list[FrameView]) -> Iterator[tuple[int, Iterable[Message]]]:
        message = self._message
        if len(frames) > SINGLES_MIN and all(frame[2] == 1 and not frame[3] for frame in frames):
            yield (
                frames[-1][0],
                [message((seq, time_ns, data[start:end])) for seq, time_ns, _, _, start, end in frames],
            )
            return
        from_seq = self._from_seq
        for seq, time_ns, count, flags, start, end in frames:
            if flags & COMPRESSED:
                raw = raw_body(data[start:end], flags)
                found = payloads(raw, 0, len(raw), count)
            else:
                found = payloads(data, start, end, count)
            if seq < from_seq:
                found, seq = found[from_seq - seq :], from_seq
            yield seq + len(found) - 1, messages_of(seq, time_ns, found, message)

    def read_blocks(self) -> list[Block] | None:
        """The next blocks, at least one, or None where there is nothing more now."""
        while (window := self.read_window()) is not None:
            frames = self._wanted(window)
            blocks: list[Block] = []
            run = 0  # first of the single frames that are not in a block yet
            for place, (seq, time_ns, count, flags, start, end) in enumerate(frames):
                if count == 1 and not flags:
                    continue
                if run < place:
                    blocks.append(block_of_singles(window.data, frames[run:place]))
                run = place + 1
                data = window.data
                if flags & COMPRESSED:
                    data = raw_body(data[start:end], flags)
                    start, end = 0, len(data)
                skip = max(0, min(count, self._from_seq - seq))
                blocks.append(Block(seq, time_ns, count, data, start, end, skip=skip))
            if run < len(frames):
                blocks.append(block_of_singles(window.data, frames[run:]))
            if blocks:
                return blocks
        return None

    def _wanted(self, window: Window) -> list[FrameView]:
        """The frames of a window that are not before the starting point; after the first such, all."""
        frames = window.frames
        if frames[0][0] >= self._from_seq and self._from_time_ns is None:
            return frames
        time_ns = self._from_time_ns
        if time_ns is not None and frames[0][1] >= time_ns:
            self._from_time_ns = None
            return frames
        return [
            frame
            for frame in frames
            if frame[0] + frame[2] > self._from_seq and (time_ns is None or frame[1] >= time_ns)
        ]
