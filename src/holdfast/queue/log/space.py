"""The space of a queue: its limit, the policies when it is full, and which pages are removed.

Only closed pages are removed, oldest first, up to the first page that must stay; the page that was begun last always
stays, because it carries the sequence number. A page is *expired* when its last message is older than the lifetime by
the writer's clock **and** the file by the file system's clock: a clock that jumps ahead removes nothing.

The name of a page is removed before its index, and the directory is synced before the next page. A reader that has the
page open reads it to its end; a later one gets ``Trimmed``. When another page would exceed ``max_bytes``:

| full | then |
|---|---|
| ``"drop_oldest"`` | the oldest pages go, read or not, except what a consumer holds |
| ``"block"`` | the append waits until consumers have confirmed, or the lifetime has freed, a page |
| ``"raise"`` | ``Backpressure`` (queue_full); nothing was appended |

With ``"block"`` and ``"raise"`` only pages are removed that every consumer has confirmed; without a consumer only the
lifetime removes pages. The cursors are read again before each page. The prepared page is not counted: a queue takes at
most ``max_bytes``, one page and the small indexes.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager

from holdfast.errors import Backpressure, Closed, Code, InternalError, InvalidRequest
from holdfast.queue.files.pages import DurableRename, PageDirectory, cached_header
from holdfast.queue.format.page import PageHeader
from holdfast.queue.log.restoration import end_before

_logger = logging.getLogger("holdfast.queue")


class ClosedPage:
    """A full page. Its last sequence number and its times may be too high; then the page only stays longer."""

    __slots__ = ("bytes", "last_seq", "last_time_ns", "modified_ns", "number")

    def __init__(self, number: int, size: int, last_seq: int, last_time_ns: int, modified_ns: int) -> None:
        self.number = number
        self.bytes = size
        self.last_seq = last_seq
        self.last_time_ns = last_time_ns
        self.modified_ns = modified_ns


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
    going: list[int] = []
    for page in pages:
        if unconsumed_seq is None or page.last_seq >= unconsumed_seq:
            break
        going.append(page.number)
    return going


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
    """Retention of one queue. ``current`` returns the page being written; pages below ``safe_below()`` may be removed,
    and ``make_durable`` raises that number. ``first_held`` returns the first message that a holding consumer needs, or
    None, ``first_unconsumed`` the first that any consumer needs; ``sync_holds`` makes their cursors durable.
    ``note_removal`` records durably that pages below this one are removed. ``sync_failed`` gets the error of a failed
    sync and raises ``Closed``.
    """

    __slots__ = (
        "__weakref__", "_clock", "_closed", "_current", "_freed", "_first_held", "_first_unconsumed", "_full",
        "_headers", "_lifetime_ns", "_lock", "_max_bytes", "_make_durable", "_note_removal", "_pages", "_safe_below",
        "_sync_failed", "_sync_holds", "_waits", "on_consumed",
    )  # fmt: skip

    def __init__(
        self,
        pages: PageDirectory,
        *,
        lifetime_ns: int | None,
        max_bytes: int | None,
        full: str,
        clock: Callable[[], int],
        current: Callable[[], int],
        safe_below: Callable[[], int],
        make_durable: Callable[[], None],
        first_held: Callable[[], int | None],
        first_unconsumed: Callable[[], int | None] | None,
        sync_holds: Callable[[Callable[[OSError], None]], None],
        note_removal: Callable[[int, int], None],
        sync_failed: Callable[[OSError], None],
    ) -> None:
        self._pages = pages
        self._lifetime_ns = lifetime_ns
        self._max_bytes = max_bytes
        self._full = full
        self._clock = clock
        self._current = current
        self._safe_below = safe_below
        self._make_durable = make_durable
        self._first_held = first_held
        self._first_unconsumed = first_unconsumed
        self.on_consumed: Callable[[], None] = _nothing
        self._sync_holds = sync_holds
        self._note_removal = note_removal
        self._sync_failed = sync_failed
        self._headers: dict[int, PageHeader] = {}
        self._lock = threading.RLock()
        # A separate lock: an interrupt inside the condition's own ``with`` would leave it locked.
        self._waits = threading.Lock()
        self._freed = threading.Condition(self._waits)
        self._closed = False

    def confirmed(self) -> None:
        """A consumer has committed: wake appends that wait for space, and the helper thread."""
        if self._first_unconsumed is not None:
            self.on_consumed()
        with self._waits:
            self._freed.notify_all()

    def before_roll(self, page_bytes: int) -> None:
        """Make room for one more page, or apply the policy. Raises: ``Backpressure`` (queue_full); ``Closed``."""
        if self._max_bytes is None:
            return
        while True:
            over = self.trim(page_bytes)
            if over > 0 and self._safe_below() < self._current():
                # Only durable pages may be removed.
                self._make_durable()
                over = self.trim(page_bytes)
            if over <= 0 or (self._full == "drop_oldest" and self._first_held() is None):
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
        if self._lifetime_ns is None and self._max_bytes is None and self._first_unconsumed is None:
            return 0
        with self._lock:
            closed, total = self._survey()
            limit = self._max_bytes
            over = total + page_bytes - limit if limit is not None else 0
            going = self._may_go(closed, over)
            if going:
                # Removal is durable. If lost power took back the commit that allowed it, the consumer would get
                # ``Trimmed``.
                self._sync_holds(self._sync_failed)
            for page in closed[: len(going)]:
                # Another process may have made a consumer, or moved one back.
                if not self._may_go([page], over):
                    break
                self.remove([page.number])
                over -= page.bytes
            return over

    def _may_go(self, closed: list[ClosedPage], over: int) -> list[int]:
        """The numbers of the closed pages to remove now. Cost: reads each cursor."""
        held = self._first_held()
        dropping = over if self._full == "drop_oldest" or held is not None else 0
        going = pages_that_may_go(
            closed, now_ns=self._clock(), lifetime_ns=self._lifetime_ns, bytes_over=dropping, held_seq=held
        )
        if self._first_unconsumed is not None:
            # Both begin at the oldest page.
            going = max(going, pages_consumed(closed, self._first_unconsumed()), key=len)
        return going

    def removes_nothing(self) -> AbstractContextManager[object]:
        """A block in which no other thread removes pages, for making a cursor."""
        return self._lock

    def trim_before(self, seq: int) -> int:
        """Remove the closed pages whose messages are all below ``seq``; returns how many. Raises: ``Closed``."""
        with self._lock:
            going = [page.number for page in self._survey()[0] if page.last_seq < seq]
            self.remove(going)
            return len(going)

    def _survey(self) -> tuple[list[ClosedPage], int]:
        """The closed pages, oldest first, and the bytes of these and of the page being written. Damaged pages are
        included: otherwise later pages would be removed before them.
        """
        pages, current, safe_below = self._pages, self._current(), self._safe_below()
        numbers = [number for number in pages.numbers() if number <= current]
        closed: list[ClosedPage] = []
        total = 0
        after: PageHeader | None = None  # of the next page that can be read
        for number in reversed(numbers):
            name = pages.names.page(number)
            size = pages.port.size_of(pages.directory, name)
            total += size
            if after is not None and number < safe_below:
                # The next page's first time and number are no earlier than the last ones here: at worst a page stays
                # longer.
                modified_ns = pages.port.modified_ns(pages.directory, name)
                closed.append(ClosedPage(number, size, after.base_seq - 1, after.base_time_ns, modified_ns))
            header = cached_header(pages, number, self._headers)
            if header is not None and not header.prepared:
                after = header
        return closed[::-1], total

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
                    self._note_removal(numbers[-1] + 1, self._first_seq_after(numbers[-1]))
                going.remove(pages.names.page(number))
                pages.remove(pages.names.index(number))
                self._headers.pop(number, None)
                going.sync()
            except OSError as error:
                self._sync_failed(error)

    def _first_seq_after(self, number: int) -> int:
        """The first message after a page; 0 if the next page does not say it and this one neither."""
        header = cached_header(self._pages, number + 1, self._headers)
        if header is not None and not header.prepared:
            return header.base_seq
        return end_before(self._pages, number + 1)[0]

    def poison_after_fork(self) -> None:
        """In a forked child: make new locks, because the parent's threads may have held them."""
        self._lock, self._waits = threading.RLock(), threading.Lock()
        self._freed = threading.Condition(self._waits)

    def break_off(self, _reason: InternalError) -> None:
        """An invariant is broken."""
        self.close()

    def close(self) -> None:
        """End every wait for space."""
        with self._waits:
            self._closed = True
            self._freed.notify_all()


def _nothing() -> None:
    """There is no helper thread to wake."""
