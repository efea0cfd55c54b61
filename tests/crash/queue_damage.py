"""Damages every file of small queues, alone and in pairs, and judges what the queue then delivers and reports.

    python -m tests.crash.queue_damage                      every case that ``make test-all`` runs
    python -m tests.crash.queue_damage --case NAME          one case, with each step
    python -m tests.crash.queue_damage --queue 2-small-closed --kind pair

A black box: it uses the public names and the layout of files. ``PLANS`` are the queues. A case is a queue and one or
two faults; its name is ``QUEUE/FILE=FAULT`` or ``QUEUE/FILE=FAULT,FILE=FAULT`` and reproduces it. The laws:

| law | |
|---|---|
| exact | a delivered message is byte-exact and is delivered once for each reading, in order |
| reported | an old message is delivered or is in a reported ``Gap`` or ``Trimmed``, at every reading |
| kept | a message that a reading delivered is delivered by every later reading |
| new | a flushed new message is delivered after an opening; its number is above that of each old message |
| verify | while an old message cannot be delivered, ``verify_queue`` is not ok, until a repair |
| agree | ``verify_queue`` is ok if and only if a reader reports no damage, until a repair |
| lag | the lag of a consumer is above 0 while it has not committed a message |
| true | no message is in a report and delivered; with intact pages nothing is reported and ``verify_queue`` is ok |
| errors | nothing raises an error; an opening for writing succeeds |
| repair | after ``repair_queue`` verify is ok, and readers deliver and report as before |

A case that removes every proof of some messages may lose these without a report: ``proof_is_gone`` names the reason by
a rule over the faults. The laws of ``WITHOUT_PROOF`` hold for it too.

A ``FileQueue`` raises a report instead, each time, and keeps the items after it: these wait, and none is lost.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import re
import shutil
import signal
import struct
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import combinations, count
from multiprocessing.connection import Connection, wait
from pathlib import Path
from queue import Empty
from random import Random
from typing import Final
from unittest.mock import patch
from zlib import crc32

from holdfast.errors import CorruptData, NotFound
from holdfast.queue import FileQueue, Gap, Message, Queue, Trimmed, file_queue
from holdfast.queue.files.local import LocalFiles
from holdfast.queue.format.frame import HEAD, HEAD_BYTES, SEAL
from holdfast.queue.format.page import HEADER, HEADER_BYTES
from holdfast.queue.queue import core_of
from holdfast.queue.repair import repair_queue, verify_queue

__all__ = [
    "CASES_MAX",
    "FIELDS",
    "PLANS",
    "REASONS",
    "SEED",
    "Broken",
    "Case",
    "Fault",
    "Progress",
    "Reading",
    "Summary",
    "built",
    "case_named",
    "chosen_cases",
    "every_case",
    "fast_folder",
    "header_fields",
    "judge_case",
    "pairs_of",
    "proof_is_gone",
    "ranges",
    "run",
    "singles_of",
    "small_choice",
]

SEED: Final = int(os.environ.get("HOLDFAST_CRASH_SEED", "20250101"))
CASES_MAX: Final = 40_000
SMALL_CASES: Final = 150
CASE_S_MAX: Final = 20.0
PROCESSES: Final = 2
NAME: Final = "q"
CONSUMER: Final = "c"
EARLIEST_NS: Final = 1_700_000_000_000_000_000
NEW_MESSAGES: Final = 3
REPAIRED: Final = 8
"""The test repairs one case in this many at its end, and another one before its first opening."""


# ---- the queues ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Plan:
    """A queue to build: begun pages, the kind of messages, and how its last process ended.

    Kinds: "small" messages have 20 bytes; "large" ones have 900 bytes, and one before the last page is larger than a
    page; with "jumbo" the last one is larger than a page. "item" is for tasks. Ends: "closed"; "killed" after a flush;
    "restarted": as killed, and the machine was started since; "consumer": closed, and a consumer has committed the
    first half; "prepared": closed, with a prepared page ahead; "tasks": a closed ``FileQueue`` with some items done and
    some got.
    """

    pages: int
    size: str
    end: str

    @property
    def name(self) -> str:
        """The name in the names of cases."""
        return f"{self.pages}-{self.size}-{self.end}"

    @property
    def page_bytes(self) -> int:
        """The argument ``page_size``."""
        return 4096 if self.size in ("small", "item") else 8192


PLANS: Final = {
    plan.name: plan
    for plan in (
        *(Plan(pages, size, "closed") for pages in (1, 2, 7) for size in ("small", "large")),
        Plan(2, "jumbo", "closed"),
        *(Plan(1, "small", end) for end in ("killed", "consumer", "prepared")),
        *(Plan(2, "small", end) for end in ("killed", "restarted", "consumer", "prepared")),
        *(Plan(7, "small", end) for end in ("killed", "consumer")),
        Plan(7, "large", "prepared"),
        Plan(3, "item", "tasks"),
    )
}
MOMENTS: Final = ("page", "few")
"""When older copies were made, in order: before the last page, after a clean close; a few messages before the end,
after a flush."""
JUMBO_BYTES: Final = 9000


@dataclass(frozen=True, slots=True)
class Built:
    """The bytes of a queue's files at its end and at each moment before, and the messages that it holds. Those up to
    ``committed`` are committed; of a ``FileQueue``, they are done.
    """

    plan: Plan
    files: dict[str, bytes]
    older: dict[str, dict[str, bytes]]
    messages: dict[int, Message]
    committed: int

    @property
    def last_page(self) -> str:
        """The file of the last begun page."""
        return page_name(self.plan.pages)

    @property
    def page_names(self) -> list[str]:
        """The files of all pages, the prepared one too."""
        return [page_name(number) for number in range(1, self.plan.pages + 1 + (self.plan.end == "prepared"))]

    @property
    def headed(self) -> list[str]:
        """The files with a page header, also those of a work queue."""
        return [file for file in self.files if file.endswith(".page")]


def page_name(number: int) -> str:
    """The file of a page."""
    return f"{NAME}-{number}.page"


WRITE_META: Final = f"{NAME}-writeMeta"


class OtherRun(LocalFiles):
    """The files of a machine in another run: its boot id is another one."""

    def boot_id(self) -> bytes:
        """See ``FilePort``."""
        return b"an earlier start"


class Builder:
    """Writes the messages of one queue. ``number`` is the last message."""

    def __init__(self, plan: Plan, path: Path) -> None:
        self.plan = plan
        self.path = path
        self.number = 0
        self._clock = count(EARLIEST_NS, 1_000_000)
        self._salts = Random(plan.name)
        self._turn = 0

    def open(self) -> Queue:
        """A writer whose files have the same bytes in each process."""
        return Queue(
            self.path,
            page_size=self.plan.page_bytes,
            files=OtherRun() if self.plan.end == "restarted" else None,
            clock=lambda: next(self._clock),
            entropy=self._salts.randbytes,
            background=False,
        )

    def payload(self, size: int = 0) -> bytes:
        """The next message."""
        self.number += 1
        size = size or {"small": 20, "item": 300}.get(self.plan.size, 900)
        return (b"old %d " % self.number + Random(self.number).randbytes(size))[:size]

    def step(self, queue: Queue) -> None:
        """A few messages: at each third step one by one, else in one batch."""
        self._turn += 1
        messages = [self.payload() for _ in range(6 if self.plan.size == "small" else 2)]
        if self._turn % 3 == 0:
            for message in messages:
                queue.append(message)
        else:
            queue.append_many(messages)

    def fill_until(self, queue: Queue, pages: int) -> None:
        """Append until there are this many pages."""
        while self.pages() < pages:
            self.step(queue)
            if self.plan.size == "large" and self.plan.pages > 1 and self.pages() == self.plan.pages // 2:
                queue.append(self.payload(JUMBO_BYTES))

    def pages(self) -> int:
        """The pages that have a name."""
        return len(list(self.path.parent.glob(f"{NAME}-[0-9]*.page")))

    def copy(self) -> dict[str, bytes]:
        """The bytes of all files."""
        return {file.name: file.read_bytes() for file in sorted(self.path.parent.iterdir())}

    def tasks(self) -> Built:
        """A ``FileQueue`` with small pages: the oldest items are done, and the next three are got."""
        older: dict[str, dict[str, bytes]] = {}
        done = 0

        def go_on(tasks: FileQueue, pages: int, more: int, finished: int) -> None:
            nonlocal done
            while self.pages() < pages or more > 0:
                more -= self.pages() >= pages
                tasks.put(self.payload())
            for _ in range(finished):
                tasks.get_nowait()
                tasks.task_done()
            done += finished

        small = partial(
            Queue,
            page_size=self.plan.page_bytes,
            clock=lambda: next(self._clock),
            entropy=self._salts.randbytes,
            background=False,
        )
        with patch.object(file_queue, "Queue", small):
            with FileQueue(self.path) as tasks:
                go_on(tasks, self.plan.pages - 1, 3, 4)
            older["page"] = self.copy()
            with FileQueue(self.path) as tasks:
                go_on(tasks, self.plan.pages, 3, 2)
                older["few"] = self.copy()
                go_on(tasks, self.plan.pages, 2, 1)
                for _ in range(3):
                    tasks.get_nowait()
        with Queue(self.path, read_only=True) as reader:
            messages = {message.seq: message for message in reader.read()}
        found = Built(self.plan, self.copy(), older, messages, done)
        assert sorted(messages) == list(range(1, self.number + 1)), "every item is there"
        assert self.pages() == self.plan.pages, f"a FileQueue has the pages {found.headed}"
        return found


@cache
def built(name: str) -> Built:
    """The queue of this name. It is built once in each process, with the same bytes."""
    plan = PLANS[name]
    with tempfile.TemporaryDirectory(dir=fast_folder()) as folder, ExitStack() as opened:
        builder = Builder(plan, Path(folder) / NAME)
        if plan.end == "tasks":
            return builder.tasks()
        older: dict[str, dict[str, bytes]] = {}
        with builder.open() as queue:
            if plan.pages > 1:
                if plan.size == "large" and plan.pages == 2:
                    queue.append(builder.payload(JUMBO_BYTES))
                builder.fill_until(queue, plan.pages - 1)
                if plan.size != "large" or plan.pages > 2:  # the large message fills its page
                    builder.step(queue)
                if plan.size == "jumbo":
                    builder.step(queue)
            commit_half(queue, plan)
        older["page"] = builder.copy()
        queue = opened.enter_context(builder.open())
        if plan.size != "jumbo":
            builder.fill_until(queue, plan.pages)
            for _ in range(10 if plan.size == "small" else 2):
                builder.step(queue)
        commit_half(queue, plan)
        queue.flush()
        older["few"] = builder.copy()
        if plan.size == "jumbo":
            queue.append(builder.payload(JUMBO_BYTES))
        else:
            builder.step(queue)
        committed = commit_half(queue, plan)
        if plan.end == "prepared":
            core_of(queue).run_background_work()
        queue.flush()
        messages = {message.seq: message for message in queue.read()}
        if plan.end not in ("killed", "restarted"):
            queue.close()
        found = Built(plan, builder.copy(), older, messages, committed)
    assert sorted(messages) == list(range(1, builder.number + 1)), "a healthy queue holds every message"
    assert found.headed == sorted(found.page_names), f"{name} has the pages {found.headed}"
    return found


def commit_half(queue: Queue, plan: Plan) -> int:
    """Let the consumer commit the first half; returns the last message of it, 0 without a consumer."""
    if plan.end != "consumer":
        return 0
    half = queue.last_seq // 2
    with queue.consumer(CONSUMER) as consumer:
        while consumer.next_seq <= half:
            consumer.poll(max_messages=half - consumer.next_seq + 1)
        if half:
            consumer.commit(half, durable=True)
    return half


def fast_folder() -> str | None:
    """A folder in memory where there is one, because a case makes and syncs many small files."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


# ---- faults ----------------------------------------------------------------------------------------------------------

FIELDS: Final = (
    *("magic", "version", "flags", "checksum_id", "page_bytes", "zero"),
    *("number", "base_seq", "base_time_ns", "salt", "skipped"),
)
"""The fields of ``HEADER`` in order. Where the layout changes, only this line changes."""
WHOLE: Final = ("emptied", "deleted", "cut-half", "cut-64", "cut-frame", "older-page", "older-few")


@cache
def header_fields() -> dict[str, int]:
    """The first byte of each field of a page header, by name; the CRC is the last."""
    offsets: dict[str, int] = {}
    layout = HEADER.format.lstrip("<")
    parts = [part for number, kind in re.findall(r"(\d*)([a-zA-Z])", layout) for part in single_parts(number, kind)]
    for index, part in enumerate(parts):
        name = FIELDS[index] if index < len(FIELDS) else f"field_{index}"
        offsets[name] = struct.calcsize("<" + "".join(parts[:index]))
        assert offsets[name] + struct.calcsize(f"<{part}") <= HEADER.size, "a field is within the header"
    return {**offsets, "crc": HEADER.size}


def single_parts(number: str, kind: str) -> list[str]:
    """One part for each field of a layout: ``8s`` is one field, ``3I`` are three."""
    return [number + kind] if kind == "s" else [kind] * int(number or 1)


@dataclass(frozen=True, slots=True, order=True)
class Fault:
    """What happened to a file. ``how`` is one of ``WHOLE``, ``zeroed``, ``flip@BYTE``, ``invert@BYTE``,
    ``field-NAME``, or a bit flipped in a frame: ``start-head``, ``middle-body``, ``seal-head`` and their like.
    """

    file: str
    how: str

    @property
    def kind(self) -> str:
        """What the counts name."""
        how = "field" if self.how.startswith("field-") else self.how.partition("@")[0]
        return f"{how} of a page" if self.file.endswith(".page") else f"{how} of another file"


def damaged(queue: Built, fault: Fault, data: bytes) -> bytes | None:
    """The bytes after a fault; None if the file is gone, or if the fault is impossible here."""
    how = fault.how
    if how.startswith("older-"):
        return queue.older[how.removeprefix("older-")].get(fault.file)
    if how in ("emptied", "deleted", "cut-half", "cut-64", "zeroed"):
        return {
            "emptied": b"",
            "deleted": None,
            "cut-half": data[: len(data) // 2],
            "cut-64": data[:64],
            "zeroed": bytes(min(4096, len(data))) + data[4096:],
        }[how]
    if how.startswith(("flip@", "invert@")):
        offset = int(how.partition("@")[2])
        return changed(data, offset, 1 << offset % 8 if how.startswith("flip@") else 255)
    if how.startswith("field-"):
        return changed(data, header_fields()[how.removeprefix("field-")], 1)
    frames, seal = frames_of(data)
    if how == "cut-frame":
        return data[: frames[-1]] if frames else None
    place, part = how.split("-")
    places = {"start": frames[:1], "middle": frames[len(frames) // 2 :][:1], "end": frames[-1:], "seal": seal}[place]
    return changed(data, places[0] + (4 if part == "head" else HEAD_BYTES + 1), 16) if places else None


def changed(data: bytes, offset: int, bits: int) -> bytes:
    """With some bits of a byte inverted; the same bytes if they end before."""
    return data[:offset] + bytes([data[offset] ^ bits]) + data[offset + 1 :] if offset < len(data) else data


def frames_of(data: bytes) -> tuple[list[int], list[int]]:
    """Where the frames of a healthy page begin, and where its SEAL begins, if it has one."""
    frames: list[int] = []
    position = HEADER_BYTES
    while position + HEAD_BYTES <= len(data):
        length, _, _, tail = HEAD.unpack_from(data, position)
        if not tail:
            break
        if tail >> 32 & SEAL:
            return frames, [position]
        frames.append(position)
        position += HEAD_BYTES + length
    return frames, []


@dataclass(frozen=True, slots=True, order=True)
class Case:
    """A queue and its faults. The later fault is applied to what the earlier one left."""

    queue: str
    faults: tuple[Fault, ...]

    @property
    def name(self) -> str:
        """One line that reproduces the case."""
        return f"{self.queue}/{','.join(f'{fault.file}={fault.how}' for fault in self.faults)}"

    @property
    def is_repaired(self) -> bool:
        """Whether the case ends with a repair."""
        return crc32(self.name.encode()) % REPAIRED == 0

    @property
    def begins_with_a_repair(self) -> bool:
        """Whether the case is also repaired before its first opening."""
        return crc32(self.name.encode()) % REPAIRED == 1

    def files(self) -> dict[str, bytes]:
        """The files after the faults."""
        queue = built(self.queue)
        files = dict(queue.files)
        for fault in self.faults:
            after = damaged(queue, fault, files[fault.file])
            if after is None:
                del files[fault.file]
            else:
                files[fault.file] = after
        return files


def case_named(name: str) -> Case:
    """The case of this name."""
    queue, _, faults = name.partition("/")
    return Case(queue, tuple(Fault(*fault.split("=")) for fault in faults.split(",")))


def whole_faults(queue: Built) -> list[Fault]:
    """The faults of whole files that change something. Of two with the same result the first is taken."""
    found: list[Fault] = []
    for file, data in queue.files.items():
        results: list[bytes | None] = [data]
        for how in WHOLE:
            if how == "cut-frame" and not file.endswith(".page"):
                continue
            after = damaged(queue, Fault(file, how), data)
            if after not in results and (after is not None or how == "deleted"):
                results.append(after)
                found.append(Fault(file, how))
    return found


@cache
def singles_of(name: str) -> list[Case]:
    """Every single fault of a queue."""
    queue = built(name)
    faults = whole_faults(queue)
    for page in queue.headed:
        data = queue.files[page]
        hows = [f"{how}@{offset}" for how in ("flip", "invert") for offset in range(HEADER_BYTES)]
        hows += ["zeroed", *(f"{at}-{part}" for at in ("start", "middle", "end", "seal") for part in ("head", "body"))]
        possible = [Fault(page, how) for how in hows]
        faults += [fault for fault in possible if damaged(queue, fault, data) not in (None, data)]
    return [Case(name, (fault,)) for fault in faults]


@cache
def pairs_of(name: str) -> list[Case]:
    """Every pair of faults of whole files, each of another file."""
    pairs = combinations(whole_faults(built(name)), 2)
    return [Case(name, pair) for pair in pairs if pair[0].file != pair[1].file]


@cache
def field_pairs_of(name: str) -> list[Case]:
    """Every pair of a fault of a whole file and a damaged field of a page header, also of the same page."""
    queue = built(name)
    found: list[Case] = []
    for one in whole_faults(queue):
        kept = None if one.how == "deleted" else damaged(queue, one, queue.files[one.file])
        for page in queue.headed:
            for header_field, offset in header_fields().items():
                if one.file != page or (kept is not None and len(kept) > offset):
                    found.append(Case(name, (one, Fault(page, f"field-{header_field}"))))
    return found


@cache
def header_pairs_of(name: str) -> list[Case]:
    """Every pair of damaged fields: two of one page header, and the same one of two pages."""
    pages = built(name).headed
    two = [
        (Fault(page, f"field-{one}"), Fault(page, f"field-{other}"))
        for page in pages
        for one, other in combinations(header_fields(), 2)
    ]
    same = [
        (Fault(one, f"field-{header_field}"), Fault(other, f"field-{header_field}"))
        for one, other in combinations(pages, 2)
        for header_field in header_fields()
    ]
    return [Case(name, pair) for pair in two + same]


def every_case(name: str) -> list[Case]:
    """All cases of a queue."""
    return singles_of(name) + pairs_of(name) + field_pairs_of(name) + header_pairs_of(name)


def chosen_cases(limit: int = CASES_MAX, seed: int = SEED) -> dict[str, list[Case]]:
    """The cases of each queue: all single faults, all pairs of whole files, all other pairs of queues with one or two
    pages, then as many of the rest as the limit allows, drawn by the seed.
    """
    chosen = {name: singles_of(name) + pairs_of(name) for name in PLANS}
    rest: list[Case] = []
    for name, plan in PLANS.items():
        (chosen[name] if plan.pages <= 2 else rest).extend(field_pairs_of(name) + header_pairs_of(name))
    room = limit - sum(map(len, chosen.values()))
    assert room > 0, "there is room for the other pairs"
    for case in sorted(Random(seed).sample(rest, room)) if len(rest) > room else rest:
        chosen[case.queue].append(case)
    return chosen


def small_choice(seed: int = SEED) -> list[Case]:
    """A few cases of each queue, for ``make test``: at least one of each kind of fault."""
    random = Random(seed)
    queues = list(PLANS)
    kinds: dict[str, Case] = {}
    for name in random.sample(queues, len(queues)):
        for case in random.sample(singles_of(name), len(singles_of(name))):
            kinds.setdefault(case.faults[0].kind, case)
    rest = [case for name in queues for case in random.sample(every_case(name)[len(singles_of(name)) :], 12)]
    return sorted({*kinds.values(), *random.sample(rest, SMALL_CASES - len(kinds))})


# ---- proofs that are gone --------------------------------------------------------------------------------------------

EARLIER: Final = "the last page and writeMeta are both older copies: the queue as it was earlier"
RETENTION: Final = "writeMeta is gone and the oldest page is deleted: as if retention had removed it"
UNRECORDED: Final = "writeMeta is gone and the last page is an older copy: nothing says that it held more"
REASONS: Final = (EARLIER, RETENTION, UNRECORDED)
"""The documented reasons. ``proof_is_gone`` gives these and no other."""
WITHOUT_PROOF: Final = ("exact", "kept", "agree", "errors")
"""The laws that hold in each case."""
GONE: Final = ("emptied", "deleted", "cut-64")
"""What leaves no slot of writeMeta."""


def proof_is_gone(case: Case) -> str:
    """Why this case may lose old messages without a report, or give their numbers again; empty if it may not."""
    how = {fault.file: fault.how for fault in case.faults}
    if len(how) != 2 or WRITE_META not in how:
        return ""
    meta, queue = how[WRITE_META], built(case.queue)
    page = how.get(queue.last_page, "")
    if page.startswith("older-") and meta.startswith("older-"):
        # A newer writeMeta proves that the page held more.
        if MOMENTS.index(meta.removeprefix("older-")) <= MOMENTS.index(page.removeprefix("older-")):
            return EARLIER
    if page.startswith("older-") and meta in GONE:
        return UNRECORDED
    if meta in GONE and how.get(page_name(1)) == "deleted" and queue.plan.pages > 1:
        return RETENTION
    return ""


# ---- the oracle ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Broken:
    """A law that a case breaks, and how."""

    law: str
    text: str


class Hung(BaseException):
    """A case takes too long."""


@dataclass(slots=True)
class Reading:
    """What one reading delivered and reported. Ranges are of the first and the last message."""

    messages: list[Message] = field(default_factory=list)
    gaps: list[tuple[int, int]] = field(default_factory=list)
    damage: bool = False

    def note(self, report: Gap | Trimmed) -> None:
        """Take a report, as the damage policy."""
        if isinstance(report, Gap):
            self.damage |= getattr(report, "reason", "damage") == "damage"
            self.gaps.append((report.first, report.last))
        else:
            self.gaps.append((report.wanted_seq, report.first_seq - 1))

    @property
    def seqs(self) -> set[int]:
        """The numbers of the delivered messages."""
        return {message.seq for message in self.messages}

    def reports(self, seq: int) -> bool:
        """Whether a report covers this message."""
        return any(first <= seq <= last for first, last in self.gaps)

    def unreported(self, wanted: Iterable[int]) -> list[int]:
        """Those that were neither delivered nor reported."""
        seqs = self.seqs
        return [seq for seq in wanted if seq not in seqs and not self.reports(seq)]

    def __str__(self) -> str:
        return f"delivers {ranges(self.seqs)}, reports {self.gaps}"


def ranges(seqs: Iterable[int]) -> str:
    """Numbers as short text.

    >>> ranges([1, 2, 3, 7])
    '1-3 7'
    """
    runs: list[list[int]] = []
    for seq in sorted(seqs):
        if runs and runs[-1][1] == seq - 1:
            runs[-1][1] = seq
        else:
            runs.append([seq, seq])
    return " ".join(f"{first}-{last}" if first < last else f"{first}" for first, last in runs) or "nothing"


class Step:
    """A block whose error goes to a callable and ends there."""

    def __init__(self, raised: Callable[[Exception], object]) -> None:
        self._raised = raised

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, Exception):
            return False
        self._raised(error)
        return True


class Trial:
    """One case on real files in a folder of its own."""

    def __init__(self, case: Case, folder: Path, say: Callable[[str], object] | None = None) -> None:
        self._case = case
        self._queue = built(case.queue)
        self._folder = folder
        self._path = folder / NAME
        self._say = say
        self._proved = not proof_is_gone(case)
        self._old = self._queue.messages
        self._new: dict[int, Message] = {}
        self._seen: set[int] = set()
        self._damage: bool | None = None  # whether the last reading from the start reported damage
        files = case.files()
        self._files = files
        self._pages_intact = all(files.get(name) == self._queue.files[name] for name in self._queue.page_names)
        self.broken: list[Broken] = []

    def judge(self) -> list[Broken]:
        """Every law that the case breaks."""
        try:
            self._place_files()
            if self._case.begins_with_a_repair and self._queue.plan.end != "tasks":
                self._repair_first()
                self._place_files()
            self._judge()
        except Hung:
            self._break("errors", f"takes more than {CASE_S_MAX:.0f} seconds")
        return self.broken

    def _place_files(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir()
        for name, data in self._files.items():
            (self._folder / name).write_bytes(data)

    def _judge(self) -> None:
        before = self._verify("before")
        lost = self._read_only()
        if lost and before:
            self._break("verify", f"ok, and a reader does not get {ranges(lost)}")
        if before is self._damage:
            self._break("agree", f"verify before: {before}, and a reader reports damage: {self._damage}")
        openings = {"first": self._first_opening, "second": self._second_opening, "third": self._third_opening}
        for number, opening in openings.items():
            found = opening()
            if found is None:
                return
            ok = self._verify(f"after the {number} opening")
            if ok and found:
                self._break("verify", f"ok after the {number} opening, and {ranges(found)} is lost")
            if found and before:
                self._break("verify", f"ok, and after the {number} opening {ranges(found)} is lost")
            if ok is self._damage:
                self._break("agree", f"verify after the {number} opening: {ok}, and it reports damage: {self._damage}")
        if self._case.is_repaired:
            self._repair_last()

    def _break(self, law: str, text: str) -> None:
        if self._proved or law in WITHOUT_PROOF:
            self.broken.append(Broken(law, text))
        if self._say is not None:
            self._say(f"  BROKEN {law}: {text}" + ("" if self._proved else " (the proof is gone)"))

    def _tell(self, text: str) -> None:
        if self._say is not None:
            self._say(f"  {text}")

    # ---- steps ------------------------------------------------------------------------------------------------------

    def _step(self, name: str, law: str = "errors") -> Step:
        """A block that may not raise. ``NotFound`` breaks the given law, another error breaks ``errors``."""
        return Step(lambda error: self._break(law if isinstance(error, NotFound) else "errors", f"{name}: {error!r}"))

    def _open(self) -> Queue:
        return Queue(self._path, page_size=self._queue.plan.page_bytes, background=False)

    def _verify(self, when: str) -> bool | None:
        """Whether ``verify_queue`` is ok; None if it raises."""
        with self._step(f"verify {when}", "verify"):
            check = verify_queue(str(self._path))
            self._tell(f"verify {when}: {check}")
            if self._pages_intact and not check.ok:
                self._break("true", f"verify {when} is not ok, and all pages are intact: {check.gaps}")
            return check.ok
        return None

    def _read_only(self) -> list[int]:
        """What a reader without a lock does not get. It reads from the start, and from the middle by number or time."""
        lost = list(self._old)
        middle = len(self._old) // 2 + 1
        with self._step("read-only", "reported"), Queue(self._path, read_only=True) as reader:
            lost = self._read("the read-only reading", reader.read, self._old)
            damage = self._damage
            later = [seq for seq in self._old if seq >= middle]
            moment = self._old[middle].time
            if crc32(self._case.name.encode()) & 64:
                self._read("the reading by time", lambda damage: reader.read(since=moment, damage=damage), later)
            else:
                self._read("the reading by number", lambda damage: reader.read(seq=middle, damage=damage), later)
            self._damage = damage
        return lost

    def _first_opening(self) -> list[int] | None:
        with self._step("the first opening"), self._open() as queue:
            lost = self._read("the first opening", queue.read, self._old)
            wanted = [seq for seq in self._old if seq > self._queue.committed]
            self._consume(queue, "the consumer at the first opening", wanted, 1)
            return lost
        return None

    def _second_opening(self) -> list[int] | None:
        with self._step("the second opening"), self._open() as queue:
            payloads = [b"new %d" % number for number in range(NEW_MESSAGES)]
            seqs = [queue.append(payload) for payload in payloads]
            queue.flush()
            self._tell(f"new messages: {ranges(seqs)}")
            if len({*seqs}) != len(seqs) or min(seqs) <= max(self._old):
                self._break("new", f"the numbers {ranges(seqs)} after the old messages 1-{max(self._old)}")
            # Their times are known from the first reading.
            self._new = {seq: Message((seq, 0, payload)) for seq, payload in zip(seqs, payloads, strict=True)}
            return self._read("the second opening", queue.read, self._old)
        return None

    def _third_opening(self) -> list[int] | None:
        with self._step("the third opening"), self._open() as queue:
            lost = self._read("the third opening", queue.read, self._old)
            self._consume(queue, "the consumer at the third opening", list(self._new), NEW_MESSAGES)
            return lost
        return None

    def _read(self, name: str, read: Callable[..., Iterator[Message]], wanted: Iterable[int]) -> list[int]:
        """Read and judge; returns the old messages that were wanted and not delivered."""
        reading = Reading()
        with self._step(f"{name} reads"):
            for message in read(damage=reading.note):
                reading.messages.append(message)
        self._damage = reading.damage
        self._tell(f"{name} {reading}")
        self._check(name, reading)
        if missing := reading.unreported(wanted):
            self._break("reported", f"{name}: {ranges(missing)} is neither delivered nor reported; it {reading}")
        seqs = reading.seqs
        if missing := [seq for seq in self._new if seq not in seqs]:
            self._break("new", f"{name}: {ranges(missing)} is new and not delivered; it {reading}")
        lost = [seq for seq in wanted if seq not in seqs]
        if gone := self._seen.intersection(lost):
            self._break("kept", f"{name}: {ranges(gone)} was delivered before; it {reading}")
        self._seen |= seqs
        return lost

    def _check(self, name: str, reading: Reading) -> None:
        """What holds for every reading, also of a consumer."""
        seqs = [message.seq for message in reading.messages]
        if seqs != sorted({*seqs}):
            self._break("exact", f"{name}: out of order or twice: {seqs[:1000]}")
        for message in reading.messages:
            new = self._new.get(message.seq)
            if new is not None and not new.time_ns and message.payload == new.payload:
                self._new[message.seq] = message
            elif message != (new or self._old.get(message.seq)):
                self._break("exact", f"{name}: {message.seq} is delivered as {message.payload[:40]!r}")
                break
        if reading.gaps and (invented := [seq for seq in seqs if reading.reports(seq)]):
            self._break("true", f"{name}: {ranges(invented)} is delivered and reported; it {reading}")
        if self._pages_intact and reading.gaps:
            self._break("true", f"{name}: all pages are intact; it {reading}")

    def _consume(self, queue: Queue, name: str, wanted: list[int], lag_min: int) -> None:
        """Read through the consumer, and commit what it delivers."""
        if self._queue.plan.end != "consumer":
            return
        reading = Reading()
        with self._step(name), queue.consumer(CONSUMER, damage=reading.note) as consumer:
            lag = consumer.lag()
            if lag < lag_min:
                self._break("lag", f"{name}: the lag is {lag}, and {ranges(wanted)} is not committed")
            reading.messages += list(consumer)
            if reading.messages:
                consumer.commit(reading.messages, durable=True)
        self._tell(f"{name} {reading}")
        self._check(name, reading)
        if missing := reading.unreported(wanted):
            self._break("reported", f"{name}: {ranges(missing)} is neither delivered nor reported; it {reading}")

    # ---- repairs ----------------------------------------------------------------------------------------------------

    def _repair_first(self) -> None:
        """Repair the files as they are, before any opening."""
        readable: set[int] = set()
        with self._step("read-only before a repair", "reported"), Queue(self._path, read_only=True) as reader:
            readable = {message.seq for message in reader.read(damage=lambda _: None)}
        self._repair("before the first opening", readable)
        self._seen.clear()

    def _repair_last(self) -> None:
        self._repair("after the third opening", set(self._seen))

    def _repair(self, when: str, readable: set[int]) -> None:
        for name in (f"a repair {when}", f"the opening after a repair {when}"):
            with self._step(name, "repair"):
                if name.startswith("a repair"):
                    self._tell(f"{name}: {repair_queue(str(self._path))}")
                reading = Reading()
                with self._open() as queue:
                    reading.messages += list(queue.read(damage=reading.note))
                self._tell(f"{name} {reading}")
                check = verify_queue(str(self._path))
                if not check.ok:
                    self._break("repair", f"{name}: verify is not ok: {check.new_gaps}")
                if gone := readable - reading.seqs:
                    self._break("repair", f"{name}: {ranges(gone)} was readable; it {reading}")
                if self._proved and (missing := reading.unreported(self._old)):
                    self._break("repair", f"{name}: {ranges(missing)} is not reported any more; it {reading}")


class TasksTrial(Trial):
    """A case of a ``FileQueue``. ``_old`` are the items that are not done."""

    def __init__(self, case: Case, folder: Path, say: Callable[[str], object] | None = None) -> None:
        super().__init__(case, folder, say)
        self._all = {message.payload: message for message in self._old.values()}
        self._put: list[bytes] = []
        self._old = {seq: message for seq, message in self._old.items() if seq > self._queue.committed}
        self._progress_intact = all(
            self._files.get(name) == data
            for name, data in self._queue.files.items()
            if name.startswith(f"{NAME}-tasks")
        )

    def _judge(self) -> None:
        before = self._verify("before")
        for name in ("the first opening", "the second opening", "the third opening"):
            if not self._use(name, put=name == "the second opening"):
                return
            lost = self._read_pages(f"after {name}")
            if self._verify(f"after {name}") and lost:
                self._break("verify", f"ok after {name}, and {ranges(lost)} is lost")
            if lost and before:
                self._break("verify", f"ok, and after {name} {ranges(lost)} is lost")

    def _use(self, name: str, *, put: bool) -> bool:
        """Get every item and finish none. False if the queue cannot be opened."""
        reading = Reading()
        with self._step(name):
            try:
                with patch.object(file_queue, "Queue", partial(Queue, page_size=self._queue.plan.page_bytes)):
                    tasks = FileQueue(self._path)
            except (CorruptData, Trimmed) as error:
                self._tell(f"{name} raises {error!r}")
                if self._progress_intact and self._pages_intact:
                    self._break("true", f"{name}: all files are intact, and it raises {error!r}")
                return False
            with tasks:
                self._get_all(name, tasks, reading)
                if put:
                    self._put = [b"new %d" % number for number in range(NEW_MESSAGES)]
                    for item in self._put:
                        tasks.put(item)
            return True
        return False

    def _get_all(self, name: str, tasks: FileQueue, reading: Reading) -> None:
        waiting = tasks.qsize()
        new = list(self._put)
        wanted = [*(message.payload for message in self._old.values()), *new]
        found: list[object] = []
        try:
            while len(found) <= len(self._all) + len(new):
                found.append(tasks.get_nowait())
        except Empty:
            pass
        except (Gap, Trimmed) as report:
            reading.note(report)
        self._tell(f"{name} has {waiting} items, gives {len(found)}, reports {reading.gaps}")
        if self._progress_intact:
            possible = wanted
        else:
            possible = [*(message.payload for message in self._all.values()), *new]
        if found != [payload for payload in possible if payload in found]:
            self._break("exact", f"{name} gives {found!r:.300}")
        behind = [message.seq for message in self._old.values() if message.payload not in found]
        if reading.gaps:
            behind = [seq for seq in behind if seq < reading.gaps[0][0]]
        elif missing := [payload for payload in new if payload not in found]:
            self._break("new", f"{name}: {missing} is not given")
        if behind:
            self._break(
                "reported", f"{name}: {ranges(behind)} is neither given nor reported; it reports {reading.gaps}"
            )
        if waiting < len(self._old):
            self._break("lag", f"{name}: {waiting} items wait, and {len(self._old)} are not done")
        if self._pages_intact and self._progress_intact and reading.gaps:
            self._break("true", f"{name}: all files are intact; it reports {reading.gaps}")

    def _read_pages(self, when: str) -> list[int]:
        """What the pages hold: the items that are not done, and the new ones."""
        reading = Reading()
        with self._step(f"reading {when}", "reported"), Queue(self._path, read_only=True) as reader:
            reading.messages += list(reader.read(damage=reading.note))
        self._tell(f"reading {when} {reading}")
        if new := [item for item in self._put if item not in {message.payload for message in reading.messages}]:
            self._break("new", f"reading {when}: {new} is not delivered; it {reading}")
        for message in reading.messages:
            if message.payload in self._put:
                if message.seq <= len(self._all):
                    self._break("new", f"reading {when}: {message.payload!r} has the number {message.seq}")
            elif message != self._all.get(message.payload):
                self._break("exact", f"reading {when}: {message.seq} is delivered as {message.payload[:40]!r}")
        if missing := reading.unreported(self._old):
            self._break(
                "reported", f"reading {when}: {ranges(missing)} is neither delivered nor reported; it {reading}"
            )
        return [seq for seq in self._old if seq not in reading.seqs]


# ---- the runner ------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Summary:
    """What a run found. ``broken`` has each case that breaks a law. The counters are by kind of fault."""

    cases: int = 0
    seconds: float = 0.0
    broken: dict[str, list[Broken]] = field(default_factory=dict)
    alone: Counter[str] = field(default_factory=Counter)
    in_pairs: Counter[str] = field(default_factory=Counter)
    in_broken: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)

    def add(self, case: Case, broken: list[Broken]) -> None:
        """Count a case."""
        self.cases += 1
        kinds = {fault.kind for fault in case.faults}
        (self.alone if len(case.faults) == 1 else self.in_pairs).update(kinds)
        if reason := proof_is_gone(case):
            self.reasons[reason] += 1
        if broken:
            self.broken[case.name] = broken
            self.in_broken.update(kinds)

    def join(self, other: Summary) -> None:
        """Add the counts of another run."""
        self.cases += other.cases
        self.seconds += other.seconds
        self.broken |= other.broken
        for name in ("alone", "in_pairs", "in_broken", "reasons"):
            getattr(self, name).update(getattr(other, name))

    def laws(self) -> Counter[str]:
        """How many cases break each law."""
        return Counter(law for broken in self.broken.values() for law in {each.law for each in broken})

    def table(self) -> str:
        """The counts as text."""
        lines = ["  alone   pairs  broken  fault"]
        lines += [
            f"{self.alone[kind]:7} {self.in_pairs[kind]:7} {self.in_broken[kind]:7}  {kind}"
            for kind in sorted({*self.alone, *self.in_pairs})
        ]
        lines += [f"{number:7} cases without a proof: {reason}" for reason, number in sorted(self.reasons.items())]
        lines += [f"{number:7} cases break the law: {law}" for law, number in sorted(self.laws().items())]
        lines.append(f"{self.cases} cases, {len(self.broken)} broken, {self.seconds:.1f} s")
        return "\n".join(lines)

    def failures(self, each_law: int = 5) -> str:
        """A few cases for each law, with the command that reproduces them."""
        lines: list[str] = []
        shown: Counter[str] = Counter()
        for name, broken in self.broken.items():
            first = broken[0]
            shown[first.law] += 1
            if shown[first.law] <= each_law:
                lines.append(f"python -m tests.crash.queue_damage --case {name}")
                lines += [f"    {each.law}: {each.text[:300]}" for each in broken[:3]]
        return "\n".join(lines)


def judge_case(case: Case, folder: Path, say: Callable[[str], object] | None = None) -> list[Broken]:
    """Judge one case in a folder; a case that hangs breaks a law. Call on the main thread."""

    def hang(*_: object) -> None:
        raise Hung

    handler = signal.signal(signal.SIGALRM, hang)
    signal.setitimer(signal.ITIMER_REAL, CASE_S_MAX, 1.0)
    try:
        return (TasksTrial if built(case.queue).plan.end == "tasks" else Trial)(case, folder, say).judge()
    except Hung:
        return [Broken("errors", f"takes more than {CASE_S_MAX:.0f} seconds")]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        shutil.rmtree(folder, ignore_errors=True)


def work(cases: Sequence[Case], results: Connection) -> None:
    """Judge cases in a process of its own. The parent knows the case that ends the process."""
    logging.disable()
    with tempfile.TemporaryDirectory(dir=fast_folder()) as folder:
        for case in cases:
            results.send(judge_case(case, Path(folder) / "case"))
    results.close()


def run(
    cases: Sequence[Case], *, processes: int = PROCESSES, progress: Callable[[Summary], object] | None = None
) -> Summary:
    """Judge cases in several processes. A case that kills its process breaks a law, and the rest goes on."""
    summary = Summary()
    began = time.monotonic()
    for name in {case.queue for case in cases}:
        built(name)  # the processes inherit it
    fork = multiprocessing.get_context("fork")
    waiting: dict[Connection, tuple[list[Case], multiprocessing.process.BaseProcess]] = {}

    def begin(part: list[Case]) -> None:
        receiver, sender = fork.Pipe(duplex=False)
        process = fork.Process(target=work, args=(part, sender), daemon=True)
        process.start()
        sender.close()
        waiting[receiver] = part, process

    for index in range(processes):
        if part := list(cases[index::processes]):
            begin(part)
    while waiting:
        for receiver in wait(list(waiting)):
            assert isinstance(receiver, Connection), "it waits for pipes"
            part, process = waiting[receiver]
            try:
                broken: list[Broken] = receiver.recv()
            except EOFError:
                del waiting[receiver]
                receiver.close()
                process.join()
                if part:
                    summary.add(part[0], [Broken("errors", f"the process ends with {process.exitcode}")])
                    if part[1:]:
                        begin(part[1:])
                continue
            summary.add(part.pop(0), broken)
            summary.seconds = time.monotonic() - began
            if progress is not None:
                progress(summary)
    return summary


class Progress:
    """Prints a line every few seconds."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._shown = time.monotonic()

    def __call__(self, summary: Summary) -> None:
        now = time.monotonic()
        if now - self._shown >= 5.0:
            self._shown = now
            rate = summary.cases / max(summary.seconds, 0.001)
            print(
                f"{summary.cases} of {self._total} cases, {len(summary.broken)} broken, {rate:.0f}/s",
                file=sys.stderr,
                flush=True,
            )


def main() -> int:
    """Run cases from the command line; the exit status is 1 if one breaks a law."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash.queue_damage", description="damaged queues")
    parser.add_argument("--case", action="append", default=[], help="one case by its name, with each step")
    parser.add_argument("--queue", action="append", choices=PLANS, help="only cases of this queue")
    parser.add_argument("--kind", choices=("single", "pair"), help="only these")
    parser.add_argument("--small", action="store_true", help="the small choice")
    parser.add_argument("--law", help="show only cases that break this law")
    parser.add_argument("--limit", type=int, default=CASES_MAX, help="the maximum of cases")
    parser.add_argument("--seed", type=int, default=SEED, help="draws the pairs above the limit")
    parser.add_argument("--processes", type=int, default=PROCESSES)
    parser.add_argument("--failures", type=Path, help="write each broken case to this file")
    options = parser.parse_args()
    if options.case:
        return main_of_cases([case_named(name) for name in options.case])
    chosen = chosen_cases(options.limit, options.seed)
    cases = [case for name in options.queue or PLANS for case in chosen[name]]
    if options.small:
        cases = small_choice(options.seed)
    if options.kind:
        cases = [case for case in cases if (len(case.faults) == 2) == (options.kind == "pair")]
    print(f"{len(cases)} cases, seed {options.seed}", flush=True)
    summary = run(cases, processes=options.processes, progress=Progress(len(cases)))
    if options.failures is not None:
        with options.failures.open("w") as file:
            for name, broken in summary.broken.items():
                file.writelines(f"{name}\t{each.law}\t{each.text}\n" for each in broken)
    if options.law:
        summary.broken = {
            name: [each for each in broken if each.law == options.law]
            for name, broken in summary.broken.items()
            if any(each.law == options.law for each in broken)
        }
    print(summary.failures())
    print(summary.table())
    return 1 if summary.broken else 0


def main_of_cases(cases: list[Case]) -> int:
    """Show each step of some cases."""
    found = False
    for case in cases:
        print(case.name, f"proof is gone: {reason}" if (reason := proof_is_gone(case)) else "", flush=True)
        with tempfile.TemporaryDirectory(dir=fast_folder()) as folder:
            found |= bool(judge_case(case, Path(folder) / "case", lambda text: print(text, flush=True)))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
