"""Power cuts between an append and its sync, with followers: the queue reports no damage and gives no number again.

    python -m tests.crash.test_queue_power_cuts followers/os/17     one world

A world has some lives of one queue on simulated files (``CrashFiles``), with a consumer and a work queue, or of one
``FileQueue``. The test takes images of what a power cut leaves, between calls and in the middle of them. It writes an
image to a real directory, where the boot id is another one, and judges it there. The last image of a life begins the
next one.

| law | |
|---|---|
| healthy | ``verify_queue`` is ok, and no report has the reason "damage" |
| durable | what was flushed, or is durable by its level, is delivered |
| exact | what is delivered was appended under this number; it comes once for each reading, in order |
| committed | a consumer continues after its durable commit; at "always" an acknowledged job does not come again |
| number | a new message has no number that a cursor or the log of a work queue has seen, and each follower gets it |
| opens | nothing raises an error |
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import Empty
from random import Random
from types import SimpleNamespace
from typing import Any, Final
from unittest.mock import patch

import pytest
from tests.crash.queue_damage import Reading, fast_folder, ranges
from tests.matrix import matrix
from tests.worlds.queue.files import DIRECTORY, PATH, PREFIX, CrashFiles

from holdfast.errors import HoldfastError
from holdfast.queue import FileQueue, Gap, Message, Queue, SyncLevel, Trimmed, every, file_queue
from holdfast.queue.consumers.consumer import Consumer
from holdfast.queue.format.commands import STATE_KIND, CommandKind, decode_command, decode_state
from holdfast.queue.format.meta import decode_cursor, newest_slot
from holdfast.queue.queue import core_of
from holdfast.queue.repair import verify_queue
from holdfast.queue.work.work_queue import WorkQueue

PROVE: Final = os.environ.get("HOLDFAST_PROVE") == "1"
SMALL: Final = os.environ.get("HOLDFAST_SMALL") == "1"
WORLDS: Final = 400 if PROVE else 3 if SMALL else 40
"""Worlds of each kind and level."""
SEED: Final = int(os.environ.get("HOLDFAST_CRASH_SEED", "20250101"))
EVERY: Final = 5
LEVELS: Final[dict[str, SyncLevel | str]] = {"os": "os", "every": every(messages=EVERY), "always": "always"}
PAGE_BYTES: Final = 4096
SIZES: Final = (0, 20, 20, 20, 700, 1500, 5000)
CONSUMER: Final = "c"
WORKER: Final = "w"
TASKS: Final = "tasks"
AFTER: Final = b"after the cut"
IN_A_CALL: Final = 0.02
BETWEEN_CALLS: Final = 0.15
RecordProperty = Callable[[str, object], None]


class Broken(Exception):  # no AssertionError: that of a file call would be the queue's own
    """A law does not hold."""


def require(holds: object, law: str, text: str) -> None:
    if not holds:
        raise Broken(f"{law}: {text}")


@dataclass(frozen=True, slots=True)
class Image:
    """What a power cut leaves, and what it may not take.

    ``appended`` are the messages in order, each with its number; of a ``FileQueue``, the items, numbered from 1.
    ``durable`` is the last one that is durable, ``committed`` the last durable commit. ``called`` were acknowledged,
    ``finished`` durably.
    """

    contents: dict[str, bytes]
    appended: dict[int, bytes]
    durable: int
    committed: int
    called: frozenset[int]
    finished: frozenset[int]

    def place(self, folder: Path) -> Path:
        """Write the files; returns the path of the queue."""
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        for name, data in self.contents.items():
            (folder / name).write_bytes(data)
        return folder / PREFIX

    def has(self, queue: str) -> bool:
        """Whether there is a queue of this name."""
        return f"{queue}-allMeta" in self.contents or f"{queue}-1.page" in self.contents

    def cursor(self, name: str) -> int:
        """The last message that this cursor has committed; 0 without one."""
        slot = newest_slot(self.contents.get(f"{PREFIX}-{name}.cursor", b""))
        cursor = decode_cursor(slot[1]) if slot is not None else None
        return cursor.committed_seq if cursor is not None else 0

    def taken(self, name: str, path: Path) -> int:
        """The last message that the log of this work queue has handed out; 0 without one."""
        last = 0
        if self.has(f"{PREFIX}-{name}.work"):
            with Queue(f"{path}-{name}.work", read_only=True) as log:
                for message in log.read(damage="skip"):
                    if message.payload[:1] == STATE_KIND:
                        last = max(last, decode_state(message.payload).next_seq - 1)
                        continue
                    kind, _, numbers = decode_command(message.payload)
                    if kind in (CommandKind.TAKE, CommandKind.DONE):
                        last = max(last, *numbers)
        return last


class Reports(Reading):
    """A reading that accepts only reports of a crash."""

    def note(self, report: Gap | Trimmed) -> None:
        """See ``Reading``. A ``Gap`` without a reason is damage."""
        Reading.note(self, report)
        reason = getattr(report, "reason", "damage") if isinstance(report, Gap) else "trimmed"
        require(reason == "crash", "healthy", f"the report is {report!r}")

    def check(self, name: str, appended: dict[int, bytes]) -> None:
        """Check what was delivered."""
        seqs = [message.seq for message in self.messages]
        require(seqs == sorted({*seqs}), "exact", f"{name} is out of order or repeats: {seqs[:500]}")
        for message in self.messages:
            right = message.payload == appended.get(message.seq)
            require(right, "exact", f"{name}: {message.seq} is {message.payload[:30]!r}")


def check_healthy(path: Path | str, when: str) -> None:
    check = verify_queue(str(path))
    require(check.ok, "healthy", f"verify {when} is not ok: {check.new_gaps}")


def read_all(queue: Queue, name: str, image: Image, appended: dict[int, bytes]) -> set[int]:
    """Read everything; returns the numbers."""
    reading = Reports()
    for message in queue.read(damage=reading.note):
        reading.messages.append(message)
    reading.check(name, appended)
    missing = [seq for seq in image.appended if seq <= image.durable and seq not in reading.seqs]
    require(not missing, "durable", f"{name}: {ranges(missing)} is not delivered; it {reading}")
    return reading.seqs


def judge(image: Image, folder: Path) -> None:
    """Judge an image of a queue with a consumer and a work queue. Raises: ``Broken``, ``HoldfastError``."""
    path = image.place(folder)
    appended = dict(image.appended)
    found: set[int] = set()
    seen = {"cursor": image.cursor(CONSUMER), "cursor of the work queue": image.cursor(WORKER)}
    if image.has(PREFIX):
        check_healthy(path, "before the first opening")
        seen["log of the work queue"] = image.taken(WORKER, path)
        with Queue(path, read_only=True) as reader:
            found = read_all(reader, "the read-only reading", image, appended)
    with Queue(path, page_size=PAGE_BYTES, background=False) as queue:
        again = read_all(queue, "the first opening", image, appended)
        require(found <= again, "durable", f"the opening loses {ranges(found - again)}")
        new = queue.append(AFTER)
        for name, last in seen.items():
            require(new > last, "number", f"{new} is given again; the {name} has seen {last}")
        require(new > max(again, default=0), "number", f"{new} is given twice")
        appended[new] = AFTER
        again.add(new)
        check_consumer(queue, image, appended, again)
        check_worker(queue, image, appended, again)
    check_healthy(path, "after the first opening")
    check_healthy(f"{path}-{WORKER}.work", "of the work queue")
    with Queue(path, page_size=PAGE_BYTES, background=False) as queue:
        last_found = read_all(queue, "the second opening", image, appended)
        require(last_found == again, "durable", f"the second opening delivers {ranges(last_found)}")
    check_healthy(path, "after the second opening")


def check_consumer(queue: Queue, image: Image, appended: dict[int, bytes], there: set[int]) -> None:
    reading = Reports()
    with queue.consumer(CONSUMER, damage=reading.note) as consumer:
        lag = consumer.lag()
        reading.messages += list(consumer)
    reading.check("the consumer", appended)
    wanted = {seq for seq in there if seq > image.cursor(CONSUMER)}
    require(wanted <= reading.seqs, "number", f"the consumer does not get {ranges(wanted - reading.seqs)}")
    require(lag >= len(wanted), "number", f"the lag is {lag}, and {ranges(wanted)} is not committed")
    again = [seq for seq in reading.seqs if seq <= image.committed]
    require(not again, "committed", f"the consumer gets {ranges(again)}, and {image.committed} is committed")


def check_worker(queue: Queue, image: Image, appended: dict[int, bytes], there: set[int]) -> None:
    reading = Reports()
    with queue.work_queue(WORKER, damage=reading.note) as work:
        jobs = work.get_many(len(there) + 1)
    for job in jobs:
        require(job.payload == appended.get(job.seq), "exact", f"job {job.seq} is {job.payload[:30]!r}")
    seqs = {job.seq for job in jobs}
    require(len(seqs) == len(jobs), "exact", f"a job comes twice: {[job.seq for job in jobs]}")
    missing = there - image.called - seqs
    require(not missing, "number", f"the work queue does not get {ranges(missing)}; it gets {ranges(seqs)}")
    again = seqs & image.finished
    require(not again, "committed", f"the jobs {ranges(again)} come again")


class World:
    """Lives of a queue with a consumer and a work queue."""

    def __init__(self, seed: str, level: str, folder: Path) -> None:
        self.random = Random(seed)
        self.level = level
        self.folder = folder
        self.files = CrashFiles(Random(self.random.random()))
        self.appended: dict[int, bytes] = {}
        self.durable = self.committed = self.serial = self.images = 0
        self.called: set[int] = set()
        self.finished: set[int] = set()
        self.now_ns = 1_700_000_000_000_000_000

    def clock(self) -> int:
        """The time of day."""
        self.now_ns += self.random.choice((0, 1000, 50_000_000))
        return self.now_ns

    def payload(self) -> bytes:
        """A message like no other."""
        self.serial += 1
        return b"%d:" % self.serial + self.random.randbytes(self.random.choice(SIZES))

    def run(self) -> int:
        """Live; returns the number of images. Raises: ``Broken``, ``HoldfastError``."""
        for _ in range(self.random.randint(1, 3)):
            self.files.before = self.perhaps_judge
            self.live()
            self.files.before = None
            image, self.files = self.image()
            self.judge(image)
        return self.images

    def opened(self, sync: SyncLevel | str) -> Callable[..., Queue]:
        """How this world opens its queue."""
        return partial(
            Queue,
            files=self.files,
            page_size=PAGE_BYTES,
            sync=sync,
            clock=self.clock,
            entropy=self.random.randbytes,
            background=False,
        )

    def live(self) -> None:
        """One life."""
        queue = self.opened(LEVELS[self.level])(PATH)
        self.begin(queue)
        consumer = queue.consumer(CONSUMER, damage=Reports().note)
        work = queue.work_queue(WORKER, damage=Reports().note)
        for _ in range(self.random.randint(5, 25)):
            act = self.random.choice((self.append, self.append, self.append, self.consume, self.work, self.upkeep))
            act(queue, consumer, work)
            self.durable = max(self.durable, queue.durable_seq)
            if self.random.random() < BETWEEN_CALLS:
                self.judge(self.image()[0])
        if self.random.random() < 0.3:
            last = queue.last_seq
            queue.close()
            self.durable = last

    def begin(self, queue: Queue) -> None:
        """A life goes on with what the cut has left. The rest was never durable."""
        found = {message.seq: message.payload for message in queue.read(damage=Reports().note)}
        require(found.items() <= self.appended.items(), "exact", "a life begins with other messages")
        self.appended = found
        self.durable = max(found, default=0)
        self.called &= found.keys()
        self.finished &= found.keys()

    def append(self, queue: Queue, consumer: Consumer, work: WorkQueue) -> None:
        """One or more messages. A cut in the middle of the call may leave them."""
        payloads = [self.payload() for _ in range(self.random.choice((1, 1, 1, 4)))]
        following = queue.last_seq + 1
        for seq, payload in enumerate(payloads, following):
            require(seq not in self.appended, "number", f"{seq} is given twice")
            self.appended[seq] = payload
        first = queue.append(payloads[0]) if len(payloads) == 1 else queue.append_many(payloads)[0]
        require(first == following, "number", f"the append gives {first}, and {following} is next")

    def consume(self, queue: Queue, consumer: Consumer, work: WorkQueue) -> None:
        """Some messages; most are committed."""
        found = consumer.poll(max_messages=self.random.choice((1, 3, 100)))
        if found and self.random.random() < 0.8:
            durable = self.random.random() < 0.3
            consumer.commit(found, durable=durable)
            if durable:
                self.committed = found[-1].seq
                self.durable = max(self.durable, found[-1].seq)

    def work(self, queue: Queue, consumer: Consumer, work: WorkQueue) -> None:
        """Some jobs; most are acknowledged."""
        for job in work.get_many(self.random.choice((1, 3))):
            self.called.discard(job.seq)
            if self.random.random() < 0.7:
                self.called.add(job.seq)
                work.ack(job)
                if self.level == "always":
                    self.finished.add(job.seq)

    def upkeep(self, queue: Queue, consumer: Consumer, work: WorkQueue) -> None:
        """A flush, or the work of the helper thread."""
        if self.random.random() < 0.5:
            last = queue.last_seq
            queue.flush()
            self.durable = last
        else:
            core_of(queue).run_background_work()

    def image(self) -> tuple[Image, CrashFiles]:
        """What a power cut leaves now, as bytes and as files."""
        self.images += 1
        files = self.files.after_power_loss(Random(self.random.random()))
        contents = files.contents(DIRECTORY) if DIRECTORY in files.directories else {}
        sets = frozenset(self.called), frozenset(self.finished)
        return Image(contents, dict(self.appended), self.durable, self.committed, *sets), files

    def perhaps_judge(self, operation: str) -> None:
        """Before each operation on files: sometimes the power fails here."""
        if self.random.random() < IN_A_CALL:
            self.judge(self.image()[0])

    def judge(self, image: Image) -> None:
        """Judge an image."""
        judge(image, self.folder)


class TasksWorld(World):
    """Lives of a ``FileQueue``. Items have numbers of their own, from 1."""

    def live(self) -> None:
        """One life."""
        with patch.object(file_queue, "Queue", self.opened("os")):
            tasks = FileQueue(PATH, sync=LEVELS[self.level])
        self.begin_tasks()
        doubtful = frozenset(self.called)  # done in an earlier life; the cut may have taken that
        got: deque[int] = deque()
        for _ in range(self.random.randint(5, 25)):
            self.random.choice((self.put, self.put, self.get, self.finish))(tasks, got)
            if self.random.random() < BETWEEN_CALLS:
                self.judge(self.image()[0])
        if self.random.random() < 0.4:
            tasks.close()
            self.durable = self.serial
            self.finished |= self.called - doubtful

    def begin_tasks(self) -> None:
        """A life goes on with what the cut has left."""
        with Queue(PATH, files=self.files, read_only=True) as reader:
            found = {message.payload for message in reader.read(damage=Reports().note)}
        require(found <= {*self.appended.values()}, "exact", "a life begins with other items")
        self.appended = {number: item for number, item in self.appended.items() if item in found}
        self.durable = max(self.durable, *self.appended, 0)
        self.called &= self.appended.keys()
        self.finished &= self.appended.keys()

    def put(self, tasks: FileQueue, got: deque[int]) -> None:
        """One item."""
        item = self.payload()
        self.appended[self.serial] = item
        tasks.put(item)
        bound = {"os": None, "every": self.serial - EVERY + 1, "always": self.serial}[self.level]
        self.durable = max(self.durable, bound or 0)

    def get(self, tasks: FileQueue, got: deque[int]) -> None:
        """One item, which is not done yet."""
        try:
            item = tasks.get_nowait()
        except Empty:
            return
        number = next((number for number, each in self.appended.items() if each == item), 0)
        require(number, "exact", f"get gives {item!r:.100}")
        require(number not in self.finished, "committed", f"get gives {number}, which is done")
        self.called.discard(number)
        got.append(number)

    def finish(self, tasks: FileQueue, got: deque[int]) -> None:
        """The oldest item that was got is done."""
        if got:
            number = got.popleft()
            self.called.add(number)
            tasks.task_done()
            if self.level == "always":
                self.finished.add(number)

    def judge(self, image: Image) -> None:
        """Judge an image of a ``FileQueue``."""
        if image.has(PREFIX):
            with patch.object(file_queue, "Queue", Queue):  # the power may fail while ``live`` opens the simulated one
                judge_tasks(image, self.folder)


def judge_tasks(image: Image, folder: Path) -> None:
    """Judge an image of a ``FileQueue``. Raises: ``Broken``, ``HoldfastError``."""
    path = image.place(folder)
    check_healthy(path, "before the first opening")
    seen = {"cursor": image.cursor(TASKS), "log of the work queue": image.taken(TASKS, path)}
    for name in ("the first opening", "the second opening"):
        with FileQueue(path) as tasks:
            if name == "the first opening":
                tasks.put(AFTER)
            found: list[object] = []
            try:
                while True:
                    found.append(tasks.get_nowait())
            except Empty:
                pass
        require(found[-1:] == [AFTER], "number", f"{name} does not give the new item")
        numbers = {item: number for number, item in image.appended.items()}
        order = [numbers.get(item, 0) for item in found[:-1] if isinstance(item, bytes)]
        given = {*order}
        require(order == sorted(given) and 0 not in given, "exact", f"{name} gives the items {order}")
        missing = {number for number in image.appended if number <= image.durable} - image.called - given
        require(not missing, "durable", f"{name} does not give {ranges(missing)}")
        require(
            not given & image.finished, "committed", f"{name} gives {ranges(given & image.finished)}: they are done"
        )
        check_healthy(path, f"after {name}")
        check_healthy(f"{path}-{TASKS}.work", f"of the work queue after {name}")
    with Queue(path, read_only=True) as reader:
        new = [message.seq for message in reader.read(damage=Reports().note) if message.payload == AFTER]
    require(len(new) == 1, "exact", f"the new item has the numbers {new}")
    for name, last in seen.items():
        require(new[0] > last, "number", f"{new[0]} is given again; the {name} has seen {last}")


# ---- running ---------------------------------------------------------------------------------------------------------

KINDS: Final[dict[str, type[World]]] = {"followers": World, "tasks": TasksWorld}
NAMES: Final = [f"{kind}/{level}" for kind in KINDS for level in LEVELS]


def run_world(name: str) -> int:
    """Run the world ``KIND/LEVEL/NUMBER``; returns the number of images. Raises: ``Broken``."""
    kind, level, _ = name.split("/")
    with tempfile.TemporaryDirectory(dir=fast_folder()) as folder:
        world = KINDS[kind](f"{SEED}/{name}", level, Path(folder) / "image")
        try:
            return world.run()
        except (HoldfastError, OSError) as error:
            raise Broken(f"opens: {error!r}") from error


def broken_worlds(names: list[str]) -> tuple[dict[str, str], int]:
    """The worlds that break a law, with the law, and the number of images."""
    broken: dict[str, str] = {}
    images = 0
    for name in names:
        try:
            images += run_world(name)
        except Broken as error:
            broken[name] = str(error)
    return broken, images


def shown(broken: dict[str, str]) -> str:
    """The laws with their counts, and a few worlds."""
    laws = Counter(text.partition(":")[0] for text in broken.values())
    lines = [f"python -m tests.crash.test_queue_power_cuts {name}\n    {text[:400]}" for name, text in broken.items()]
    return "\n".join([*lines[:8], f"{len(broken)} worlds are broken: {dict(laws)}"])


@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("kind", matrix(NAMES, lambda name: name in ("followers/os", "tasks/always")))
def test_a_power_cut_is_not_damage_and_no_number_that_was_seen_is_given_again(
    kind: str, record_property: RecordProperty
) -> None:
    broken, images = broken_worlds([f"{kind}/{number}" for number in range(WORLDS)])
    record_property("queue_power_cuts", images)
    if broken:
        pytest.fail(shown(broken), pytrace=False)


class Hiding(Queue):
    """A reader leaves the first message out."""

    def read(self, **arguments: Any) -> Iterator[Message]:
        """See ``Queue``."""
        return (message for message in super().read(**arguments) if message.seq > 1)


class Reusing(Queue):
    """An append after the cut gives an old number."""

    def append(self, message: object) -> int:
        """See ``Queue``."""
        return super().append(message) - (message == AFTER)


@pytest.mark.parametrize(("law", "mutant"), [("durable", Hiding), ("number", Reusing)])
def test_a_law_catches_a_queue_that_breaks_it(law: str, mutant: type[Queue], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "Queue", mutant)
    broken, _ = broken_worlds([f"followers/always/{number}" for number in range(3)])
    assert {text.partition(":")[0] for text in broken.values()} == {law}


def test_a_law_catches_a_verify_that_calls_a_power_cut_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        sys.modules[__name__], "verify_queue", lambda path: SimpleNamespace(ok=False, new_gaps=("invented",))
    )
    with pytest.raises(Broken, match="healthy"):
        run_world("followers/always/0")


def main(names: list[str]) -> int:
    """Run these worlds, or the first 40 of each kind and level."""
    names = names or [f"{kind}/{number}" for kind in NAMES for number in range(40)]
    broken, images = broken_worlds(names)
    print(shown(broken))
    print(f"{len(names)} worlds, {images} images in worlds that are not broken, seed {SEED}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
