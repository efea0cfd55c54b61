"""Removes the oldest pages of a queue: by arrival time, by sequence number or by size."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from holdfast.errors import InvalidRequest
from holdfast.queue import Gap, Queue, Trimmed
from holdfast.queue.files.cursors import committed_seqs
from holdfast.queue.files.pages import PageDirectory
from holdfast.queue.log.space import ClosedPage, closed_pages
from holdfast.queue.options import moment_ns
from holdfast.queue.repair.files import open_files


@dataclass(frozen=True, slots=True)
class TrimReport:
    """What a trim removed, or would remove. ``held_by`` names the consumers that kept wanted pages, sorted."""

    path: str
    removed_pages: int
    first_seq: int
    last_seq: int
    held_by: tuple[str, ...]
    dry_run: bool


def trim_queue(
    path: str,
    *,
    before: datetime | None = None,
    before_seq: int | None = None,
    max_bytes: int | None = None,
    ignore_cursors: bool = False,
    dry_run: bool = False,
) -> TrimReport:
    """Remove the oldest pages, whole pages only; give exactly one bound. The page being written always stays.

    Units: ``max_bytes`` bounds all pages together. ``ignore_cursors`` also removes messages that a named consumer has
    not committed. Raises: ``InvalidRequest``, ``NotFound``, ``AlreadyOpen`` while a writer runs.
    """
    if sum(bound is not None for bound in (before, before_seq, max_bytes)) != 1:
        raise InvalidRequest("trim needs one of --before, --before-seq and --max-bytes")
    with open_files(path) as pages, Queue(path, read_only=dry_run, background=False) as queue:
        last_page = max(pages.numbers(), default=0)
        closed, total = closed_pages(pages, last_page, last_page + 1, {})
        if before is not None:
            wanted = _first_seq_since(pages, queue, before)
        elif max_bytes is not None:
            wanted = _first_seq_within(closed, total - max_bytes)
        else:
            wanted = before_seq or 1
        held = {} if ignore_cursors else committed_seqs(pages)
        bound = min([wanted, *(seq + 1 for seq in held.values())])
        removed = sum(page.last_seq < bound for page in closed) if dry_run else queue.trim(before_seq=bound)
        held_by = tuple(sorted(name for name, seq in held.items() if seq + 1 < wanted))
        return TrimReport(path, removed, queue.first_seq, queue.last_seq, held_by, dry_run)


def _first_seq_since(pages: PageDirectory, queue: Queue, moment: datetime) -> int:
    """The first message that arrived at ``moment`` or later. Damage directly before it counts as late, except in a page
    before one that was begun before ``moment``.
    """
    damaged: list[Gap] = []

    def note(report: Gap | Trimmed) -> None:
        if isinstance(report, Gap):
            damaged.append(report)

    message = next(iter(queue.read(since=moment, damage=note)), None)
    first = message.seq if message is not None else queue.last_seq + 1
    for gap in reversed(damaged):
        if gap.last + 1 < first:
            break
        first = min(first, gap.first)
    headers = [header for number in pages.numbers() if (header := pages.header_of(number)) is not None]
    begun_before = [
        header.base_seq for header in headers if not header.prepared and header.base_time_ns < moment_ns(moment)
    ]
    return max([first, *begun_before])


def _first_seq_within(closed: list[ClosedPage], bytes_over: int) -> int:
    """The first message that may stay if pages of so many bytes go."""
    first = 1
    for page in closed:
        if bytes_over <= 0:
            break
        bytes_over -= page.bytes
        first = page.last_seq + 1
    return first
