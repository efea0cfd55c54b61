"""The space of a queue: its limit, the policies when it is full, and which pages are removed.

Only closed pages are removed, oldest first, up to the first page that must stay. A page is *expired* when its last
message is older than the lifetime by the writer's clock **and** the file by the file system's clock: a clock that jumps
ahead removes nothing. A reader that has a removed page open reads it to its end; a later one gets ``Trimmed``.

With ``full="block"`` and ``"raise"`` only pages are removed that every consumer has confirmed; without a consumer only
the lifetime removes pages. The prepared page is not counted: a queue takes at most ``max_bytes``, one page and the
small indexes.
"""

from __future__ import annotations

import logging
import threading
from itertools import takewhile
from typing import NamedTuple

from holdfast.errors import Backpressure, Closed, Code, InternalError, InvalidRequest
from holdfast.queue.files.cursors import first_held_seq, first_unconsumed_seq, sync_holds
from holdfast.queue.files.pages import DurableRename, PageDirectory, cached_header
from holdfast.queue.files.port import RemovedFile
from holdfast.queue.format.page import PageHeader
from holdfast.queue.log.restoration import end_before

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from holdfast.queue.log.writer import Writer

_logger = logging.getLogger("holdfast.queue")


class ClosedPage(NamedTuple):
    """A full page. Its last sequence number and its times may be too high; then the page only stays longer."""

    number: int
    bytes: int
    last_seq: int
    last_time_ns: int
    modified_ns: int


def pages_that_may_go(
    pages: list[ClosedPage], *, now_ns: int, lifetime_ns: int | None, bytes_over: int, held_seq: int | None
) -> list[int]:
    """The numbers of the pages to remove, oldest first. The queue is ``bytes_over`` above its limit. Pages at or above
    ``held_seq``, the first message that a consumer needs, stay.

    >>> pages = [ClosedPage(n, 100, 10 * n + 9, n, n) for n in (1, 2, 3)]
    >>> pages_that_may_go(pages, now_ns=10, lifetime_ns=None, bytes_over=150, held_seq=None)
    [1, 2]
    >>> pages_that_may_go(pages, now_ns=10, lifetime_ns=8, bytes_over=0, held_seq=15)
    []
    """
    going: list[int] = []
    for page in pages:
        expired = (
            lifetime_ns is not None
            and now_ns - page.last_time_ns > lifetime_ns
            and now_ns - page.modified_ns > lifetime_ns
        )
        if not (expired or bytes_over > 0) or (held_seq is not None and page.last_seq >= held_seq):
            break
        going.append(page.number)
        bytes_over -= page.bytes
    return going


def pages_consumed(pages: list[ClosedPage], unconsumed_seq: int | None) -> list[int]:
    """The numbers of the pages that every consumer has finished, oldest first; none without a consumer.

    >>> pages = [ClosedPage(n, 100, 10 * n + 9, n, n) for n in (1, 2, 3)]
    >>> pages_consumed(pages, 30), pages_consumed(pages, 29), pages_consumed(pages, None)
    ([1, 2], [1], [])
    """
    unconsumed = unconsumed_seq or 0
    return [page.number for page in takewhile(lambda page: page.last_seq < unconsumed, pages)]


def closed_pages(
    pages: PageDirectory, current: int, safe_below: int, headers: dict[int, PageHeader]
) -> tuple[list[ClosedPage], int]:
    """The closed pages below ``safe_below``, oldest first, and the bytes of all pages up to ``current``. Damaged pages
    are included: otherwise later pages would be removed before them.
    """
    closed: list[ClosedPage] = []
    total = 0
    after: PageHeader | None = None  # of the next page that can be read
    for number in reversed([number for number in pages.numbers() if number <= current]):
        name = pages.names.page(number)
        size = pages.port.size_of(pages.directory, name)
        total += size
        if after is not None and number < safe_below:
            # The next page's first time and number are no earlier than the last ones here: at worst a page stays
            # longer.
            modified_ns = pages.port.modified_ns(pages.directory, name)
            closed.append(ClosedPage(number, size, after.base_seq - 1, after.base_time_ns, modified_ns))
        header = cached_header(pages, number, headers)
        if header is not None and not header.prepared:
            after = header
    return closed[::-1], total


FULL_POLICIES = ("drop_oldest", "block", "raise")
BLOCKED_LOOK_S = 0.05


def check_limits(max_bytes: object, full: str, page_bytes: int, keep: str) -> None:
    """Raise ``InvalidRequest`` for limits that cannot work."""
    if keep not in ("all", "consumed"):
        raise InvalidRequest("unknown policy for consumed messages", keep=repr(keep), hint="keep is all or consumed")
    if full not in FULL_POLICIES:
        raise InvalidRequest("unknown policy for a full queue", full=repr(full), hint=", ".join(FULL_POLICIES))
    if max_bytes is not None and (not isinstance(max_bytes, int) or max_bytes < 2 * page_bytes):
        raise InvalidRequest(
            "max_bytes is a number of bytes with room for two pages",
            max_bytes=repr(max_bytes),
            page_size=page_bytes,
            hint="a smaller page_size",
        )


class Space:
    """Retention of one queue. ``on_consumed`` wakes the helper thread."""

    def __init__(
        self,
        pages: PageDirectory,
        writer: Writer,
        *,
        lifetime_ns: int | None,
        max_bytes: int | None,
        full: str,
        keeps_all: bool,
        clock: Callable[[], int],
    ) -> None:
        self._pages = pages
        self._writer = writer
        self._lifetime_ns = lifetime_ns
        self._max_bytes = max_bytes
        self._full = full
        self._keeps_all = keeps_all
        self._clock = clock
        self.on_consumed: Callable[[], None] = lambda: None
        self._headers: dict[int, PageHeader] = {}
        self._make_locks()
        self._closed = False

    def _make_locks(self) -> None:
        self._lock = threading.RLock()
        # A separate lock: an interrupt inside the condition's own ``with`` would leave it locked.
        self._waits = threading.Lock()
        self._freed = threading.Condition(self._waits)

    def confirmed(self) -> None:
        """A consumer has committed: wake appends that wait for space, and the helper thread."""
        if not self._keeps_all:
            self.on_consumed()
        with self._waits:
            self._freed.notify_all()

    def before_roll(self, page_bytes: int) -> None:
        """Make room for one more page, or apply the policy. Raises: ``Backpressure`` (queue_full); ``Closed``."""
        writer = self._writer
        if self._max_bytes is None:
            return
        while True:
            over = self.trim(page_bytes)
            if over > 0 and writer.progress.pages_safe_below < writer.page_number:
                # Only durable pages may be removed.
                writer.durability.wait_for(writer.next_seq)
                over = self.trim(page_bytes)
            if over <= 0 or (self._full == "drop_oldest" and first_held_seq(self._pages) is None):
                return
            if self._full != "block":
                raise Backpressure(
                    "the queue is full", code=Code.QUEUE_FULL, max_bytes=self._max_bytes, bytes_over=over
                )
            with self._waits:
                if self._closed:
                    raise Closed("the queue was closed while an append waited for space")
                self._freed.wait(BLOCKED_LOOK_S)

    def trim(self, page_bytes: int = 0) -> int:
        """Remove pages; ``page_bytes`` will be added. Returns the bytes still above the limit, or less than 1. Raises:
        ``Closed`` (sync_failed). Cost: one listing, and the size and time of each page.
        """
        if self._lifetime_ns is None and self._max_bytes is None and self._keeps_all:
            return 0
        with self._lock:
            closed, total = self._closed_pages()
            limit = self._max_bytes
            over = total + page_bytes - limit if limit is not None else 0
            going = self._may_go(closed, over)
            if going:
                # Removal is durable. If lost power took back the commit that allowed it, the consumer would get
                # ``Trimmed``.
                sync_holds(self._pages, self._not_synced, every=not self._keeps_all)
            for page in closed[: len(going)]:
                # Another process may have made a consumer, or moved one back.
                if not self._may_go([page], over):
                    break
                self.remove([page.number])
                over -= page.bytes
            return over

    def _not_synced(self, error: OSError) -> None:
        if not isinstance(error, RemovedFile):  # a cursor without a name holds nothing
            self._writer.durability.fail(error)

    def _may_go(self, closed: list[ClosedPage], over: int) -> list[int]:
        """The numbers of the closed pages to remove now. Cost: reads each cursor."""
        held = first_held_seq(self._pages)
        dropping = over if self._full == "drop_oldest" or held is not None else 0
        going = pages_that_may_go(
            closed, now_ns=self._clock(), lifetime_ns=self._lifetime_ns, bytes_over=dropping, held_seq=held
        )
        if not self._keeps_all:
            # Both begin at the oldest page.
            going = max(going, pages_consumed(closed, first_unconsumed_seq(self._pages)), key=len)
        return going

    def removes_nothing(self) -> AbstractContextManager[object]:
        """A block in which no other thread removes pages, for making a cursor."""
        return self._lock

    def trim_before(self, seq: int) -> int:
        """Remove the closed pages whose messages are all below ``seq``; returns how many. Raises: ``Closed``."""
        with self._lock:
            going = [page.number for page in self._closed_pages()[0] if page.last_seq < seq]
            self.remove(going)
            return len(going)

    def _closed_pages(self) -> tuple[list[ClosedPage], int]:
        writer = self._writer
        return closed_pages(self._pages, writer.page_number, writer.progress.pages_safe_below, self._headers)

    def remove(self, numbers: list[int]) -> None:
        """Remove pages and their indexes, oldest first, with a sync of the directory after each: a crash must not bring
        back an older page alone. Before that, the new first page is recorded durably: any other missing page is damage.
        Raises: ``Closed`` (sync_failed); the name of that page is then back.
        """
        pages = self._pages
        for number in numbers:
            if pages.header_of(number) is None:
                _logger.warning("retention removes a damaged page page=%d", number)
            going = DurableRename(pages)
            try:
                if number == numbers[0]:
                    self._writer.progress.note_removal(numbers[-1] + 1, self._first_seq_after(numbers[-1]))
                going.remove(pages.names.page(number))
                pages.remove(pages.names.index(number))
                self._headers.pop(number, None)
                going.sync()
            except OSError as error:
                self._writer.durability.fail(error)

    def _first_seq_after(self, number: int) -> int:
        """The first message after a page; 0 if the next page does not say it and this one neither."""
        header = cached_header(self._pages, number + 1, self._headers)
        if header is not None and not header.prepared:
            return header.base_seq
        return end_before(self._pages, number + 1)[0]

    def poison_after_fork(self) -> None:
        """In a forked child: make new locks, because the parent's threads may have held them."""
        self._make_locks()

    def close(self, _reason: InternalError | None = None) -> None:
        """End every wait for space. Also after a broken invariant."""
        with self._waits:
            self._closed = True
            self._freed.notify_all()
