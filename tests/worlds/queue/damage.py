"""Media damage: a damaged message is reported and never delivered.

A log that was closed cleanly is damaged on a copy, one file at a time: a bit is flipped, a sector zeroed, a block put
in the place of another, the file cut or emptied. Damage to anything but a page must not cost a message (I5). Sometimes
the marks are gone too; then the end of the last page, and nothing else, may be missing without a report, because
nothing that knows of it is left. In uniform worlds all frames of a page have one size, so that a misplaced block brings
whole frames whose only fault is their place.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from random import Random
from typing import Final

from tests.worlds.harness import PromiseBroken
from tests.worlds.queue.files import DIRECTORY, PATH, PREFIX, CrashFiles
from tests.worlds.queue.page_cache import BLOCK_BYTES

from holdfast.queue import Gap, Message, Queue, Trimmed
from holdfast.queue.files.pages import PageDirectory
from holdfast.queue.format.file_names import FileNames
from holdfast.queue.format.frame import seal_fields
from holdfast.queue.format.page import decode_header
from holdfast.queue.log.page_scan import PageScan

__all__ = ["DAMAGE_KINDS", "check_damaged", "check_seals", "damaged"]

MARKS: Final = FileNames(PREFIX).write_meta
MARKS_GONE: Final = 0.3
DAMAGE_KINDS: Final = ("bit flipped", "sector zeroed", "block misplaced", "file cut", "file emptied")


def damaged(data: bytes, kind: str, random: Random) -> bytes:
    """The bytes of a file after one kind of damage."""
    if not data or kind == "file emptied":
        return b""
    place = random.randrange(len(data))
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


def check_damaged(files: CrashFiles, random: Random, rounds: int, seen: Counter[str]) -> int:
    """Damage a copy of a closed log so many times; returns how many states were read.

    Raises: ``PromiseBroken``.
    """
    with Queue(PATH, files=files, read_only=True) as reader:
        expected = {message.seq: message for message in reader.read()}
    contents = files.contents(DIRECTORY)
    names = [name for name in contents if not name.endswith((".lock", ".torn"))]
    for _ in range(rounds):
        name, kind = random.choice(names), random.choice(DAMAGE_KINDS)
        after = damaged(contents[name], kind, random)
        if after == contents[name]:
            continue
        copy = files.after_kill(Random(random.random()))
        copy.set_content(DIRECTORY, name, after)
        is_page = name.endswith(".page")
        seen[f"{kind}: {'page' if is_page else 'hint'}"] += 1
        blind = is_page and random.random() < MARKS_GONE
        if blind:
            copy.set_content(DIRECTORY, MARKS, None)
            seen["damaged without marks"] += 1
        silent_from = _last_base(contents) if blind else max(expected) + 1
        _check_reader(copy, expected, may_lose=is_page, silent_from=silent_from, what=f"{kind} in {name}")
    return rounds


def _last_base(contents: dict[str, bytes]) -> int:
    """The first message of the last page that was begun."""
    names = FileNames(PREFIX)
    numbers = {name: number for name in contents if (number := names.page_number(name)) is not None}
    headers = [decode_header(contents[name], number) for name, number in numbers.items()]
    return max(header.base_seq for header in headers if header is not None)


def _check_reader(
    files: CrashFiles, expected: dict[int, Message], *, may_lose: bool, silent_from: int, what: str
) -> None:
    reported: set[int] = set()
    reports: list[Gap | Trimmed] = []
    with Queue(PATH, files=files, read_only=True) as reader:
        found = list(reader.read(damage=reports.append))
    for report in reports:
        first = report.first if isinstance(report, Gap) else report.wanted_seq
        last = report.last if isinstance(report, Gap) else report.first_seq - 1
        reported.update(range(first, last + 1))
    for message in found:
        if expected.get(message.seq) != message:
            raise PromiseBroken(f"I1: {what}: message {message.seq} is delivered as {message.payload[:40]!r}")
    missing = expected.keys() - {message.seq for message in found}
    if missing and not may_lose:
        raise PromiseBroken(f"I5: {what}: {sorted(missing)[:5]} are missing")
    unreported = missing - reported
    if unreported and (min(unreported) < silent_from or len(unreported) != max(expected) + 1 - min(unreported)):
        raise PromiseBroken(f"I2: {what}: {sorted(unreported)[:5]} are missing without a report")
    if len(found) != len({message.seq for message in found}):
        raise PromiseBroken(f"I4: {what}: a message is delivered twice")


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
            while scan.read() is not None:
                pass
            files.close(file)
            if scan.seal is None:
                raise PromiseBroken(f"page {header.number} was closed without a SEAL")
            frames, last_seq, last_time_ns, _ = seal_fields(scan.seal)
            if (frames, last_seq, last_time_ns) != (scan.frames, following.base_seq - 1, scan.last_time_ns):
                raise PromiseBroken(f"the SEAL of page {header.number} says {last_seq}, {frames} frames")
    finally:
        files.close(directory)
