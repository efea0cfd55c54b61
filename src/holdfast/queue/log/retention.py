"""Which pages may go: the decision alone.

Owns: the rules of lifetime, of the limit on space and of the hold for consumers. Does not own: finding out
(``space``), removing.

Failure model: pure. Only pages that are closed may go, the oldest first, and never past one that has to stay: what is
left is always a run without holes. The last page that was begun always stays, because it carries the sequence number.

A page is *expired* when its last message is older than the lifetime by the writer's clock **and** the file was last
written longer ago than that by the file system's: a clock that jumps ahead removes nothing by itself.
"""

from __future__ import annotations

__all__ = ["ClosedPage", "pages_consumed", "pages_that_may_go"]


class ClosedPage:
    """A page that is full: its number, bytes on disk, last sequence number, and the two ages' beginnings.

    The sequence number may be above the page's last, and the ages too young: the page only stays longer then.
    """

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
    """The numbers of the pages to remove, oldest first.

    ``bytes_over`` is by how much the queue is above its limit. Nothing at or above ``held_seq`` goes: it is the lowest
    message that a consumer has yet to confirm.

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
    """The numbers of the pages that every consumer is done with, oldest first; none where there is no consumer.

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
