"""Killed programs that use every kind of queue at once: nothing is lost, and everything comes in its order.

After each kill a copy of the files is opened and compared with what the process reported. The next process opens the
files themselves, and what it gets is compared with the copy: each part says what comes next.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from copy import deepcopy
from itertools import pairwise
from pathlib import Path
from queue import Empty
from random import Random

import pytest
from tests.crash.persist_program import number_in
from tests.crash.queue_mixed_program import CONSUMER, DELIVERIES_MAX, ITEMS, LOG, TASKS, WORK, message_of, serializer

import holdfast
from holdfast.queue import FileQueue, Queue
from holdfast.queue.work.machine import WorkMachine

PROVE = os.environ.get("HOLDFAST_PROVE") == "1"
KILLS = 3 if os.environ.get("HOLDFAST_SMALL") == "1" and not PROVE else 100
SEED = int(os.environ.get("HOLDFAST_CRASH_SEED", "20250101"))
PROGRAM = Path(__file__).parent / "queue_mixed_program.py"
LATER_NS = 3_600 * 10**9
"""The copy is opened with a clock that is ahead, so that all leases have ended."""
RecordProperty = Callable[[str, object], None]

pytestmark = pytest.mark.timeout(1_800)


class Log:
    """The log: each appended message is there, under its number. The consumer gets all in order from its position."""

    def __init__(self) -> None:
        self.appended = 0
        self.last = 0
        self.commits = [0, 0]  # the last one that was asked for, and the last one that was confirmed
        self.next_read = 1

    def hear(self, word: str, seq: int) -> None:
        if word == "append":
            self.appended = seq
        elif word == "read":
            assert seq == self.next_read, f"message {seq} was read, not {self.next_read}"
            self.next_read = seq + 1
        else:
            self.commits[word == "commit"] = seq

    def check(self, log: Queue) -> None:
        messages = list(log.read())
        assert [message.seq for message in messages] == list(range(1, len(messages) + 1)), "the log is in order"
        assert all(message.payload == message_of(message.seq) for message in messages)
        assert len(messages) >= max(self.appended, self.last), "an appended message is lost"
        self.last = len(messages)
        with log.consumer(CONSUMER) as consumer:
            position = consumer.committed_seq
            assert position in self.commits, "a confirmed commit is lost"
            assert list(consumer) == messages[position:], "the consumer gets the rest in order"
        self.commits = [position, position]
        self.next_read = position + 1


class Jobs:
    """The work queue: a message that is not acknowledged comes again, and no other. New ones come in order."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.finished: set[int] = set()
        self.next_new = 1

    def hear(self, word: str, seq: int, deliveries: int = 0) -> None:
        if word == "job":
            assert seq not in self.finished, f"acknowledged message {seq} came back"
            if deliveries == 1:
                assert seq == self.next_new, f"new message {seq} came, not {self.next_new}"
                self.next_new += 1
        elif word == "ack?":
            self.asked.append(seq)
        else:
            self.asked.remove(seq)
            if word == "ack":
                self.finished.add(seq)

    def check(self, log: Queue) -> None:
        found: list[int] = []
        new: list[int] = []
        with log.work_queue(WORK, max_deliveries=DELIVERIES_MAX) as work:
            while (job := work.get(timeout=0)) is not None:
                found.append(job.seq)
                new += [job.seq] if job.deliveries == 1 else []
                work.ack(job)
            assert not work.lag()
        assert len(set(found)) == len(found)
        missing = set(range(1, log.last_seq + 1)) - set(found)
        assert self.finished <= missing, "an acknowledged message came back"
        assert missing <= self.finished | set(self.asked), "a message that nobody acknowledged is lost"
        first_new = new[0] if new else log.last_seq + 1
        assert new == list(range(first_new, log.last_seq + 1)), "new messages come in order"
        assert self.next_new <= first_new <= self.next_new + 1, "one job was taken and not reported at most"
        self.finished, self.asked, self.next_new = missing, [], first_new


class Tasks:
    """The ``FileQueue``: unfinished items come first, all in order of their numbers; a finished item never comes."""

    def __init__(self) -> None:
        self.first = 1  # of the next process
        self.putting: set[int] = set()
        self.unfinished: set[int] = set()
        self.finishing: set[int] = set()
        self.finished = 0
        self.waiting: deque[int] = deque()
        self.next_new = 1

    def hear(self, word: str, number: int = 0) -> None:
        if word == "open":
            self.waiting = deque(sorted(self.unfinished))
        elif word == "put?":
            self.putting.add(number)
            self.first = number + 1
        elif word == "put":
            self.stored(number)
        elif word == "take":
            expected = self.waiting.popleft() if self.waiting else self.next_new
            assert number == expected, f"item {number} came, not {expected}"
            self.next_new += number == self.next_new
            self.stored(number)
        elif word == "done?":
            self.finishing.add(number)
        else:
            self.finishing.remove(number)
            self.unfinished.remove(number)
            self.finished += 1

    def stored(self, number: int) -> None:
        """Another thread may report the next step of an item first."""
        if number in self.putting:
            self.putting.remove(number)
            self.unfinished.add(number)

    def check(self, path: Path) -> None:
        found = list(self.drained(path))
        assert all(before < after for before, after in pairwise(found)), f"the order is {found}"
        assert self.unfinished - self.finishing <= set(found), "an item is lost"
        assert set(found) <= self.unfinished | self.putting, "a finished item came back"
        self.unfinished, self.putting, self.finishing = set(found), set(), set()
        self.next_new = self.first

    @staticmethod
    def drained(path: Path) -> Iterator[int]:
        with FileQueue(path, serializer=serializer()) as tasks:
            while True:
                try:
                    number = tasks.get_nowait()
                except Empty:
                    return
                assert isinstance(number, int)
                yield number


class Items:
    """``persist``: each item in order; at most the last one comes again."""

    def __init__(self) -> None:
        self.next = 0

    def hear(self, _: str, number: int) -> None:
        assert number == self.next, f"item {number} came, not {self.next}"
        self.next += 1

    def check(self, directory: Path) -> None:
        nothing: list[bytes] = []
        with holdfast.persist(nothing, directory) as left:
            found = [number_in(payload) for payload in left]
            stored = left.stored_seq
        first = found[0] if found else stored
        assert first in (self.next - 1, self.next), f"after item {self.next - 1} comes {first}"
        assert found == list(range(first, stored)), "a stored item is missing"
        self.next = first


class Ledger:
    """What all processes together have reported, by what promises it."""

    def __init__(self) -> None:
        self.log, self.jobs, self.tasks, self.items = Log(), Jobs(), Tasks(), Items()
        self.parts: dict[str, Log | Jobs | Tasks | Items] = {
            **dict.fromkeys(("append", "read", "commit?", "commit"), self.log),
            **dict.fromkeys(("job", "ack?", "ack", "late"), self.jobs),
            **dict.fromkeys(("open", "put?", "put", "take", "done?", "done"), self.tasks),
            "item": self.items,
        }

    def hear(self, line: bytes) -> None:
        word, *numbers = line.decode().split()
        if word != "start":
            self.parts[word].hear(word, *map(int, numbers))

    def check(self, directory: Path) -> None:
        """Open what the killed process left, as the next one would."""
        with Queue(directory / LOG, clock=lambda: time.time_ns() + LATER_NS) as log:
            self.log.check(log)
            self.jobs.check(log)
        self.tasks.check(directory / TASKS)
        self.items.check(directory / ITEMS)


def work_until_killed(directory: Path, ledger: Ledger, seed: int, lines: int) -> None:
    """Start a program, kill it after so many steps, and hear all that it reported."""
    program = subprocess.Popen(
        [sys.executable, str(PROGRAM), str(directory), str(seed), str(ledger.tasks.first)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)},
    )
    assert program.stdout is not None
    with program.stdout as pipe:
        heard = [pipe.readline() for _ in range(lines)]
        program.kill()
        heard += pipe.read().splitlines(keepends=True)
    assert program.wait() == -9, f"the program ended with {program.returncode}"
    for line in heard:
        if line.endswith(b"\n"):
            ledger.hear(line)


def check_copy(directory: Path, copy: Path, ledger: Ledger) -> None:
    """The files themselves stay as the kill left them."""
    shutil.copytree(directory, copy)
    ledger.check(copy)
    shutil.rmtree(copy)


def moments(random: Random) -> int:
    """The steps before a kill: soon after the opening, where order was lost once, or later."""
    return random.choice((random.randint(1, 10), random.randint(1, 100), random.randint(1, 3_000)))


def test_a_killed_program_loses_nothing_and_every_queue_keeps_its_order(
    tmp_path: Path, record_property: RecordProperty, capsys: pytest.CaptureFixture[str]
) -> None:
    random, ledger = Random(SEED), Ledger()
    directory = tmp_path / "files"
    directory.mkdir()
    unfinished = 0
    for kill in range(KILLS):
        try:
            work_until_killed(directory, ledger, random.getrandbits(30), 3_000 if kill == 0 else moments(random))
            check_copy(directory, tmp_path / "copy", ledger)
        except AssertionError as error:
            error.add_note(f"kill {kill}")
            raise
        unfinished += len(ledger.tasks.unfinished)
    assert ledger.log.last
    assert ledger.jobs.finished
    assert ledger.tasks.finished
    assert unfinished
    assert ledger.items.next
    with capsys.disabled():
        print(
            f"\n{KILLS} kills, 0 lost, 0 out of order: {ledger.log.last} messages, {len(ledger.jobs.finished)} "
            f"acknowledged jobs, {ledger.tasks.finished} items of a FileQueue and {unfinished} unfinished at a kill, "
            f"{ledger.items.next} items of persist"
        )
    record_property("queue_mixed_kills", KILLS)
    record_property("queue_mixed_messages", ledger.log.last)
    record_property("queue_mixed_items", ledger.tasks.finished + ledger.items.next)


def test_a_report_that_the_files_do_not_keep_is_caught(tmp_path: Path) -> None:
    ledger, directory = Ledger(), tmp_path / "files"
    directory.mkdir()
    work_until_killed(directory, ledger, SEED, 3_000)
    check_copy(directory, tmp_path / "copy", deepcopy(ledger))
    item = min(ledger.tasks.unfinished - ledger.tasks.finishing)
    job = min({*range(1, ledger.log.appended)} - ledger.jobs.finished - {*ledger.jobs.asked})
    far = 10**9
    for lines in (
        [f"append {far}"],
        [f"commit? {far}", f"commit {far}"],
        [f"read {ledger.log.next_read + 1}"],
        [f"job {ledger.jobs.next_new + 1} 1"],
        [f"job {min(ledger.jobs.finished)} 2"],
        [f"ack? {job}", f"ack {job}"],
        [f"put? {far}", f"put {far}"],
        [f"done? {item}", f"done {item}"],
        ["open", f"take {far}"],
        [f"item {ledger.items.next + 1}"],
        [f"item {number}" for number in range(ledger.items.next, ledger.items.next + 2)],
    ):
        with pytest.raises(AssertionError):
            hear_and_check(lines, directory, tmp_path / f"copy of {lines[0]}", deepcopy(ledger))


def hear_and_check(lines: list[str], directory: Path, copy: Path, ledger: Ledger) -> None:
    for line in lines:
        ledger.hear(line.encode())
    check_copy(directory, copy, ledger)


def test_a_queue_that_hands_out_the_longest_due_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger, directory = Ledger(), tmp_path / "files"
    directory.mkdir()
    work_until_killed(directory, ledger, SEED, 3_000)
    with FileQueue(directory / TASKS, serializer=serializer()) as tasks:
        tasks.get()  # this item waits for less time than the others from now on
    monkeypatch.setattr(WorkMachine, "oldest_due", WorkMachine.due)
    with pytest.raises(AssertionError, match="the order is"):
        check_copy(directory, tmp_path / "copy", ledger)
