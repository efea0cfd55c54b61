"""The pages that a writer takes, one after the other: made ahead of their use, or when one is needed.

Owns: the number of the next page, the page made ahead, that a number is never left out. Does not own: how a page file
comes to be (``page_files``), what is written into it (``writer``).

Failure model: ``OSError`` from the port; then the page does not exist, and the next call tries again. A page that was
taken and could not be begun, or whose taker was interrupted, stays the next one: a number left out would end the log
there.
"""

from __future__ import annotations

import threading

from holdfast.queue.format.page_header import PageHeader
from holdfast.queue.log.open_page import OpenPage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.queue.files.pages import PageDirectory

__all__ = ["FIRST_PAGE_BYTES", "PageSupply"]

FIRST_PAGE_BYTES = 1 << 20
"""The size of the first page of a queue. Each later page is twice as large, up to the size that the queue was opened
with. So twenty queues that are hardly used take 20 MiB."""


class PageSupply:
    """Pages of ``page_bytes``, or larger for a frame that needs it. Thread-safe. ``number`` is the last page taken."""

    __slots__ = (
        "_ahead",
        "_checksum_id",
        "_entropy",
        "_first_page_bytes",
        "_lock",
        "_page_bytes",
        "_pages",
        "_taken",
        "number",
    )

    def __init__(
        self,
        pages: PageDirectory,
        number: int,
        *,
        page_bytes: int,
        checksum_id: int,
        entropy: Callable[[int], bytes],
        first_page_bytes: int,
    ) -> None:
        self._pages = pages
        self._page_bytes = page_bytes
        self._first_page_bytes = first_page_bytes
        self._checksum_id = checksum_id
        self._entropy = entropy
        self._lock = threading.Lock()
        self._ahead: OpenPage | None = None
        self._taken: OpenPage | None = None  # the last that was handed out
        self.number = number

    @property
    def next_bytes(self) -> int:
        """The size of the next page. It depends on the number of the page only, so a start continues the growth."""
        return min(self._page_bytes, self._first_page_bytes << min(self.number, 32))

    @property
    def has_page(self) -> bool:
        """Whether a page was made ahead."""
        return self._ahead is not None

    def adopt(self, page: OpenPage) -> None:
        """Use a page that an earlier process has made ahead."""
        self._ahead = page

    def prepare(self, wanted: Callable[[], bool]) -> None:
        """Make a page ahead, if it is still ``wanted`` once no other thread makes one. Raises: ``OSError``."""
        with self._lock:
            if wanted():
                self._ahead = self._create(self.next_bytes)

    def take(self, needed_bytes: int, current: OpenPage | None) -> OpenPage:
        """The next page, of at least so many bytes, behind the ``current`` one. Raises: ``OSError``."""
        with self._lock:
            if self._taken is not None and self._taken is not current:
                # Its taker was interrupted before it could begin it, or give it back.
                self._ahead, self.number = self._taken, self._taken.header.number - 1
            self._taken = None
            ahead, self._ahead = self._ahead, None
            if ahead is not None and ahead.header.page_bytes >= needed_bytes:
                self.number, self._taken = ahead.header.number, ahead
                return ahead
            # One of its own for a message that does not fit: its name replaces that of the page made ahead, which is
            # let go of first. Should this fail half way, that page may have no name any more, and nothing may go into
            # it.
            size = max(needed_bytes, self.next_bytes) if ahead is None else needed_bytes
            if ahead is not None:
                ahead.close(self._pages.port)
            page = self._create(size)
            self.number, self._taken = page.header.number, page
            return page

    def give_back(self, page: OpenPage) -> None:
        """A page that was taken and not begun, whatever its header says by now: it is the next one again."""
        with self._lock:
            self._ahead, self._taken, self.number = page, None, page.header.number - 1

    def _create(self, page_bytes: int) -> OpenPage:
        header = PageHeader(
            number=self.number + 1,
            page_bytes=page_bytes,
            salt=int.from_bytes(self._entropy(8), "little"),
            checksum_id=self._checksum_id,
            prepared=True,
        )
        return OpenPage(self._pages.port, self._pages.create(header), header)

    def close(self) -> None:
        """Close the file of the page made ahead. The page stays."""
        with self._lock:
            ahead, self._ahead = self._ahead, None
            if ahead is not None:
                ahead.close(self._pages.port)

    def renew_lock(self) -> None:
        """In a forked child, where another thread of the parent may have held it."""
        self._lock = threading.Lock()
