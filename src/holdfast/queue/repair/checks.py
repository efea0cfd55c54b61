"""What ``holdfast queue verify``, ``repair`` and ``trim`` do and print.

Owns: these three, as functions of plain arguments. Does not own: their options (``queue``), finding damage
(``queue_survey``), mending it (``queue_repair``), removing pages (``Queue.trim``).

Failure model: verify only reads. Lost messages end a command with ``CorruptData`` (exit code 6) after everything was
printed; those that a repair has dealt with are shown and do not. repair and trim need the writer's place:
``AlreadyOpen`` (exit code 7) while a writer runs.
"""

from __future__ import annotations

import re
from dataclasses import asdict
from datetime import datetime
from typing import Final

from holdfast.cli.output import answering, print_fields, print_json, print_line, progress
from holdfast.cli.queue_files import opened_files, parse_time
from holdfast.cli.queue_views import counted, size_text
from holdfast.errors import Code, CorruptData, InvalidRequest
from holdfast.queue import Gap, Queue, Trimmed
from holdfast.queue.consumers.cursor_file import committed_seqs
from holdfast.queue.files.pages import PageDirectory
from holdfast.queue.options import moment_ns
from holdfast.queue.repair.repair import KnownGap, Repaired, is_known, known_gaps, repair_queue
from holdfast.queue.repair.survey import GapFound, QueueSurvey, survey_queue

__all__ = ["repair", "trim", "verify"]

_SIZE: Final = re.compile(r"([0-9]+)(?:([KMGT])i?)?B?", re.IGNORECASE)


# ---- verify ---------------------------------------------------------------------------------------------------------


def verify(path: str, *, as_json: bool) -> None:
    """Read everything, print every gap, and raise ``CorruptData`` where messages are lost that no repair knows of."""
    with opened_files(path) as pages:
        with progress("verifying, MiB", shown=not as_json) as moved:
            found = survey_queue(pages, moved)
        known = known_gaps(pages)
    fresh = [gap for gap in found.gaps if not is_known(gap, known)]
    with answering():
        if as_json:
            print_json(_survey_fields(path, found, known))
        else:
            _print_survey(path, found, known)
    if fresh:
        raise CorruptData(
            "messages are lost",
            code=Code.CORRUPT_QUEUE,
            path=path,
            gaps=len(fresh),
            messages=sum(gap.messages for gap in fresh),
            hint=f"`holdfast queue repair {path}` keeps the damaged bytes and makes the rest readable",
        )


def _survey_fields(path: str, found: QueueSurvey, known: list[KnownGap]) -> dict[str, object]:
    return {
        "path": path,
        "ok": all(is_known(gap, known) for gap in found.gaps),
        "messages": found.messages,
        "lost": found.lost,
        "bytes": found.bytes,
        "pages": len(found.pages),
        "gaps": [_gap_fields(gap, known=is_known(gap, known)) for gap in found.gaps],
        "indexes": [{"page": page.number, "state": page.index} for page in found.doubtful_indexes],
        "unreadable_pages": found.unreadable,
        "pages_outside": found.outside,
        "tail_bytes": found.tail_bytes,
    }


def _gap_fields(gap: GapFound, *, known: bool) -> dict[str, object]:
    return {**asdict(gap), "messages": gap.messages, "known": known}


def _gap_line(gap: GapFound, *, known: bool) -> str:
    numbers = f"message {gap.first}" if gap.messages == 1 else f"messages {gap.first}..{gap.last}"
    place = f"page {gap.page} position {gap.position}"
    behind = ", set aside by a repair" if known else ""
    return f"{place}: {numbers} lost ({gap.messages:,} in {gap.bytes:,} bytes): {gap.rule}{behind}"


def _print_survey(path: str, found: QueueSurvey, known: list[KnownGap]) -> None:
    print_fields(
        {
            "queue": path,
            "messages": f"{found.messages:,}",
            "lost": f"{found.lost:,}",
            "pages": f"{len(found.pages)} ({size_text(found.bytes)})",
        }
    )
    for gap in found.gaps:
        print_line(_gap_line(gap, known=is_known(gap, known)))
    for page in found.doubtful_indexes:
        print_line(f"page {page.number}: its index is {page.index}; nothing is lost, repair makes it anew")
    for number in found.outside:
        print_line(f"page {number}: behind the end of the log; never durable, the next start sets it aside")
    if found.tail_bytes:
        print_line(
            f"{found.tail_bytes:,} bytes behind the end are of a write that was cut off; the next start mends it"
        )
    if not found.gaps:
        print_line("every message is whole")


# ---- repair ---------------------------------------------------------------------------------------------------------


def repair(path: str, *, dry_run: bool, as_json: bool) -> None:
    """Repair, or only say what a repair would find."""
    if dry_run:
        _say_what_repair_would_find(path, as_json=as_json)
        return
    with opened_files(path) as pages, progress("repairing, MiB", shown=not as_json) as moved:
        done = repair_queue(path, pages, moved)
    if as_json:
        print_json(_repair_fields(path, done))
    else:
        _print_repair(done)


def _say_what_repair_would_find(path: str, *, as_json: bool) -> None:
    with opened_files(path) as pages, progress("looking, MiB", shown=not as_json) as moved:
        found, known = survey_queue(pages, moved), known_gaps(pages)
    if as_json:
        print_json({"dry_run": True} | _survey_fields(path, found, known))
        return
    fresh = sum(not is_known(gap, known) for gap in found.gaps)
    _print_survey(path, found, known)
    print_line(f"a repair would keep aside {counted(fresh, 'damaged place')}; nothing was changed")


def _repair_fields(path: str, done: Repaired) -> dict[str, object]:
    return {
        "path": path,
        "lost": sum(gap.last - gap.first + 1 for gap in done.gaps),
        "gaps": [asdict(gap) for gap in done.gaps],
        "kept": done.kept,
        "mended": done.mended,
        "messages": done.after.messages,
    }


def _print_repair(done: Repaired) -> None:
    for line in done.mended:
        print_line(line)
    for gap in done.gaps:
        found = GapFound(gap.page, gap.position, gap.bytes, gap.first, gap.last, "no frame verifies")
        print_line(_gap_line(found, known=False) + (f"; kept in {gap.file}" if gap.file else ""))
    for name in done.kept:
        if all(name != gap.file for gap in done.gaps):
            print_line(f"kept: {name}")
    if not (done.gaps or done.mended or done.kept):
        print_line("there was nothing to repair")
    print_line(f"{counted(done.after.messages, 'message')} can be read")


# ---- trim -----------------------------------------------------------------------------------------------------------


def trim(
    path: str,
    *,
    before: str | None,
    before_seq: int | None,
    max_bytes: str | None,
    ignore_cursors: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Remove the oldest pages."""
    if sum(bound is not None for bound in (before, before_seq, max_bytes)) != 1:
        raise InvalidRequest("trim needs one of --before, --before-seq and --max-bytes")
    moment = None if before is None else parse_time(before, "--before")
    bytes_max = None if max_bytes is None else _parse_size(max_bytes)
    with opened_files(path) as pages, Queue(path, read_only=dry_run, background=False) as queue:
        if moment is not None:
            wanted = _first_seq_since(pages, queue, moment)
        elif bytes_max is not None:
            wanted = _first_seq_within(pages, bytes_max, queue.last_seq)
        else:
            wanted = before_seq or 1
        held = {} if ignore_cursors else committed_seqs(pages, queue.last_seq)
        bound = min([wanted, *(seq + 1 for seq in held.values())])
        removed = sum(last < bound for _, last in _closed_pages(pages)) if dry_run else queue.trim(before_seq=bound)
        facts: dict[str, object] = {
            "path": path,
            "removed_pages": removed,
            "first_seq": queue.first_seq,
            "last_seq": queue.last_seq,
            "held_by": sorted(name for name, seq in held.items() if seq + 1 < wanted),
            "dry_run": dry_run,
        }
    if as_json:
        print_json(facts)
        return
    verb = "would be removed" if dry_run else "removed"
    print_line(f"{counted(removed, 'page')} {verb}; messages {facts['first_seq']}..{facts['last_seq']} are there")
    if facts["held_by"]:
        print_line(f"held back by {', '.join(name for name, seq in held.items() if seq + 1 < wanted)}")


def _first_seq_since(pages: PageDirectory, queue: Queue, moment: datetime) -> int:
    """The first message that arrived at ``moment`` or later, or may have: when a damaged one arrived is not known.

    It arrived before what lies behind it. So only damage right in front of the first message that is wanted counts, and
    none in front of a page that was begun before ``moment``.
    """
    damaged: list[Gap] = []

    def note(report: Gap | Trimmed) -> None:
        if isinstance(report, Gap):
            damaged.append(report)

    found = next(iter(queue.read(since=moment, damage=note)), None)
    first = found.seq if found is not None else queue.last_seq + 1
    for gap in reversed(damaged):
        if gap.last + 1 < first:
            break
        first = min(first, gap.first)
    headers = [header for number in pages.numbers() if (header := pages.header_of(number)) is not None]
    begun_before = [
        header.base_seq for header in headers if not header.prepared and header.base_time_ns < moment_ns(moment)
    ]
    return max([first, *begun_before])


def _closed_pages(pages: PageDirectory) -> list[tuple[int, int]]:
    """Number and last sequence number of every page that another one follows, as retention sees them.

    Also of those whose header is damaged: the next one that can be read tells where they end at the latest.
    """
    closed: list[tuple[int, int]] = []
    last: int | None = None
    for number in reversed(pages.numbers()):
        if last is not None:
            closed.append((number, last))
        header = pages.header_of(number)
        if header is not None and not header.prepared:
            last = header.base_seq - 1
    return closed


def _first_seq_within(pages: PageDirectory, bytes_max: int, last_seq: int) -> int:
    """The first message of the oldest page that may stay where all pages together take at most ``bytes_max``."""
    total = 0
    first = last_seq + 1
    for number in reversed(pages.numbers()):
        total += pages.port.size_of(pages.directory, pages.names.page(number))
        header = pages.header_of(number)
        if total > bytes_max:
            break
        if header is not None and not header.prepared:
            first = header.base_seq
    return first


def _parse_size(text: str) -> int:
    """Bytes: a number with K, M, G or T, which are powers of 1024.

    >>> _parse_size("512M"), _parse_size("4096"), _parse_size("1GiB")
    (536870912, 4096, 1073741824)
    """
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise InvalidRequest(f"--max-bytes got {text!r}, which is no size", hint="4096, 512M, 10G")
    return int(found[1]) << 10 * (" KMGT".index(found[2].upper()) if found[2] else 0)
