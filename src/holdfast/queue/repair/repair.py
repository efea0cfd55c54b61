"""Repairing a queue: everything that is whole becomes readable, everything that is damaged is kept aside.

Owns: what is changed, in which order. Does not own: finding damage (``queue_survey``), a damaged header
(``queue_header``), the end of the log, which every opening mends (``queue.opening``).

Failure model: nothing is deleted, and nothing is changed before a copy of it is durable. Safe to be stopped anywhere
and run again. Holds the writer's lock, so ``AlreadyOpen`` while a writer runs. The steps:

1. Headers that can be restored from their page are restored; the 64 damaged bytes are kept in a file.
2. The queue is opened and closed as by a writer: its end is mended, torn pages are set aside as ``*.torn``.
3. For each gap inside a page the damaged bytes are copied to ``<prefix>-N.page.POSITION.damaged``, the copy is synced,
   and a line about it goes to ``<prefix>-damage.jsonl``. Only then the bytes are replaced by a *bridge*: a head that
   never verifies, whose length leads to the next whole frame, and zeros. So readers find what lies behind the gap even
   where there is no index. A page whose header is lost is renamed to ``<prefix>-N.page.damaged``.
4. Indexes that are absent or damaged are made anew.

A gap stays a gap: readers report it as before, because these messages did exist. ``verify`` knows it from the list.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Final

from holdfast.errors import AlreadyOpen
from holdfast.queue import Queue
from holdfast.queue.files.pages import PageDirectory
from holdfast.queue.format.checksum import checksum_for_reading
from holdfast.queue.format.frame import HEAD, HEAD_BYTES, encode_seal, page_seed
from holdfast.queue.format.page import HEADER_BYTES, encode_header
from holdfast.queue.repair.header import restored_header
from holdfast.queue.repair.survey import GapFound, PageFound, QueueSurvey, survey_queue

__all__ = ["KnownGap", "Repaired", "is_known", "known_gaps", "repair_queue"]

COPY_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class KnownGap:
    """A gap that a repair has dealt with: its bytes are in ``file``; where that is empty there were none."""

    page: int
    position: int
    bytes: int
    first: int
    last: int
    file: str
    time_ms: int


@dataclass(slots=True)
class Repaired:
    """What was done: damaged bytes that were kept, in which files, and what was made anew."""

    gaps: list[KnownGap] = field(default_factory=list[KnownGap])
    mended: list[str] = field(default_factory=list[str])
    kept: list[str] = field(default_factory=list[str])
    after: QueueSurvey = field(default_factory=QueueSurvey)


def damage_list_name(pages: PageDirectory) -> str:
    """The file that lists what was kept aside."""
    return f"{pages.names.prefix}-damage.jsonl"


def known_gaps(pages: PageDirectory) -> list[KnownGap]:
    """Every gap that a repair has dealt with. A line that is torn or foreign does not count."""
    try:
        file = pages.port.open(pages.directory, damage_list_name(pages), write=False)
    except FileNotFoundError:
        return []
    try:
        data = pages.port.read(file, 0, pages.port.size(file))
    finally:
        pages.port.close(file)
    found: list[KnownGap] = []
    for line in data.splitlines():
        try:
            found.append(KnownGap(**json.loads(line)))
        except (ValueError, TypeError):
            continue
    return found


def is_known(gap: GapFound, known: list[KnownGap]) -> bool:
    """Whether these messages are accounted for."""
    return any(one.page == gap.page and one.first <= gap.first and gap.last <= one.last for one in known)


def repair_queue(path: str, pages: PageDirectory, moved: Callable[[int, int | None], None]) -> Repaired:
    """Repair the queue at ``path``, whose files are ``pages``. Raises: ``AlreadyOpen``; ``OSError``.

    Cost: two readings of all pages.
    """
    done = Repaired()
    lock = pages.port.lock(pages.directory, pages.names.lock)
    try:
        _restore_headers(pages, done)
    finally:
        pages.port.close(lock)
    before = set(pages.port.names(pages.directory))
    had_identity = pages.names.identity in before
    Queue(path, background=False).close()
    torn = sorted(name for name in set(pages.port.names(pages.directory)) - before if name.endswith(".torn"))
    done.kept += torn
    if not had_identity:
        done.mended.append(f"{pages.names.identity} was made anew")
    lock = pages.port.lock(pages.directory, pages.names.lock)
    try:
        _mend_pages(pages, survey_queue(pages, moved), done)
    finally:
        pages.port.close(lock)
    done.after = survey_queue(pages, moved)
    return done


def _restore_headers(pages: PageDirectory, done: Repaired) -> None:
    for number in pages.numbers():
        if pages.header_of(number) is not None:
            continue
        file = pages.open(number, write=True)
        if file is None:
            continue
        try:
            header = restored_header(pages, file, number)
            if header is None:
                continue
            done.kept.append(_keep(pages, file, number, 0, HEADER_BYTES))
            pages.port.write(file, 0, (encode_header(header),))
            pages.port.sync_data(file)
            done.mended.append(f"page {number}: its header was restored")
        finally:
            pages.port.close(file)


def _mend_pages(pages: PageDirectory, found: QueueSurvey, done: Repaired) -> None:
    known = known_gaps(pages)
    by_number = {page.number: page for page in found.pages}
    for gap in found.gaps:
        if is_known(gap, known):
            continue
        page = by_number.get(gap.page)
        if page is not None and gap.bytes:
            name = _bridge(pages, gap, done)
        else:
            name = ""
        if page is None and gap.page in found.unreadable:
            name = f"{pages.names.page(gap.page)}.damaged"
        _list(pages, gap, name, done)
    for number in found.unreadable:
        name = pages.names.page(number)
        kept = _free_name(pages, f"{name}.damaged")
        pages.port.rename(pages.directory, name, kept)
        pages.port.sync_directory(pages.directory)
        done.kept.append(kept)
    for page in found.doubtful_indexes:
        _remake_index(pages, page)
        done.mended.append(f"page {page.number}: its index was made anew")


def _list(pages: PageDirectory, gap: GapFound, name: str, done: Repaired) -> None:
    """Write a line about a gap, durably."""
    known = KnownGap(
        page=gap.page,
        position=gap.position,
        bytes=gap.bytes,
        first=gap.first,
        last=gap.last,
        file=name,
        time_ms=time.time_ns() // 1_000_000,
    )
    port, list_name = pages.port, damage_list_name(pages)
    try:
        file = port.open(pages.directory, list_name, write=True)
    except FileNotFoundError:
        file = port.create(pages.directory, list_name)
    try:
        end = port.size(file)
        # A line that a crash has torn gets its end first.
        start = b"" if end == 0 or port.read(file, end - 1, 1) == b"\n" else b"\n"
        port.write(file, end, (start + json.dumps(asdict(known)).encode() + b"\n",))
        port.sync_data(file)
        port.sync_directory(pages.directory)
    finally:
        port.close(file)
    done.gaps.append(known)


def _bridge(pages: PageDirectory, gap: GapFound, done: Repaired) -> str:
    """Keep the damaged bytes of a gap, then lay the bridge over them. Returns the name of the file that keeps them."""
    file = pages.open(gap.page, write=True)
    if file is None:
        raise AlreadyOpen("a page went while it was repaired", page=gap.page, hint="something else changes the files")
    try:
        name = _keep(pages, file, gap.page, gap.position, gap.bytes)
        done.kept.append(name)
        end = gap.position + gap.bytes
        # Also where nothing follows yet: after a clean close the writer goes on right behind.
        bridge = HEAD.pack(gap.bytes - HEAD_BYTES, 0, 0, 0) if gap.bytes >= HEAD_BYTES else b""
        pages.port.write(file, gap.position, (bridge + bytes(min(gap.bytes, COPY_BYTES) - len(bridge)),))
        for start in range(gap.position + COPY_BYTES, end, COPY_BYTES):
            pages.port.write(file, start, (bytes(min(COPY_BYTES, end - start)),))
        pages.port.sync_data(file)
    finally:
        pages.port.close(file)
    return name


def _keep(pages: PageDirectory, file: int, number: int, position: int, length: int) -> str:
    """Copy bytes of a page to a file of their own, durably."""
    port = pages.port
    name = _free_name(pages, f"{pages.names.page(number)}.{position}.damaged")
    kept = port.create(pages.directory, name)
    try:
        for start in range(0, length, COPY_BYTES):
            port.write(kept, start, (port.read(file, position + start, min(COPY_BYTES, length - start)),))
        port.sync_data(kept)
        port.sync_directory(pages.directory)
    finally:
        port.close(kept)
    return name


def _free_name(pages: PageDirectory, name: str) -> str:
    """The name, or one with a number where it is taken: what was kept before stays."""
    taken = set(pages.port.names(pages.directory))
    found, number = name, 1
    while found in taken:
        number += 1
        found = f"{name}.{number}"
    return found


def _remake_index(pages: PageDirectory, page: PageFound) -> None:
    """Replace an index by one made from the page, then tell the page's SEAL of it."""
    port, directory, name = pages.port, pages.directory, pages.names.index(page.number)
    data = bytes(page.records.pending)
    temporary = pages.names.temporary(name)
    pages.remove(temporary)
    file = port.create(directory, temporary)
    try:
        port.write(file, 0, (data,))
        port.sync_data(file)
    finally:
        port.close(file)
    port.rename(directory, temporary, name)
    port.sync_directory(directory)
    if not page.sealed:
        return
    header = page.header
    checksum = checksum_for_reading(header.checksum_id)
    seal = encode_seal(
        checksum,
        page_seed(checksum, header.salt, header.number),
        page.next_seq,
        page.seal_frames,
        page.last_time_ns,
        checksum(data, 0),
    )
    page_file = pages.open(page.number, write=True)
    if page_file is None:
        return
    try:
        port.write(page_file, page.seal_position, (seal,))
        port.sync_data(page_file)
    finally:
        port.close(page_file)
