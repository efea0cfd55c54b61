"""A sync that failed, of names or of a cursor, is believed by nobody later: not by the next call, and not by the next
start. The files are in memory; a refused sync drops some of what it was to write, and the next one succeeds."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from itertools import count
from random import Random
from typing import Any

import pytest
from tests.worlds.queue import CrashFiles

from holdfast.errors import Closed, Code, HoldfastError
from holdfast.queue import Gap, Message, Queue, Trimmed
from holdfast.queue.format.meta import newest_slot
from holdfast.queue.queue import core_of

SEEDS = range(40)


def opened(files: CrashFiles, seed: int, **settings: Any) -> Queue:
    ticks = count(1_700_000_000_000_000_000, 1000)
    standard: dict[str, Any] = {"page_size": 4096, "background": False, "clock": lambda: next(ticks)}
    return Queue("d/q", files=files, entropy=Random(seed).randbytes, **{**standard, **settings})


def a_log(seed: int, messages: int, **settings: Any) -> tuple[CrashFiles, Queue]:
    files = CrashFiles(Random(seed))
    queue = opened(files, seed, **settings)
    for number in range(messages):
        queue.append(b"%04d" % number * 200)
    return files, queue


def fail_once(files: CrashFiles, operation: str, name: str = "", after: int = 0) -> Callable[[], bool]:
    """The operation on files whose name ends so fails once, after so many. Returns what tells whether it has."""
    left = [after + 1]

    def refuse(asked: str, asked_name: str) -> OSError | None:
        if asked != operation or not asked_name.endswith(name) or left[0] == 0:
            return None
        left[0] -= 1
        return OSError(errno.EIO, "input/output error") if left[0] == 0 else None

    files.refuse = refuse
    return lambda: left[0] == 0


def fail_as_page_one_goes(files: CrashFiles) -> Callable[[], bool]:
    """The first sync of the directory once the first page has no name fails. Returns what tells whether it has."""
    left = [1]

    def refuse(asked: str, _: str) -> OSError | None:
        gone = "q-1.page" not in files.directories["d"].entries
        if asked != "sync directory" or not gone or left[0] == 0:
            return None
        left[0] -= 1
        return OSError(errno.EIO, "input/output error")

    files.refuse = refuse
    return lambda: left[0] == 0


def read_after_power_loss(files: CrashFiles, seed: int) -> tuple[list[Message], list[Gap | Trimmed]]:
    told: list[Gap | Trimmed] = []
    with opened(files.after_power_loss(Random(seed)), seed) as queue:
        return list(queue.read(damage=told.append)), told


def refused_as_after_any_sync(call: Callable[[], object]) -> None:
    with pytest.raises(Closed) as found:
        call()
    assert found.value.code is Code.SYNC_FAILED


def append_for(queue: Queue, seconds: float, payload: bytes) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        queue.append(payload)
        time.sleep(0.001)


# ---- retention ------------------------------------------------------------------------------------------------------


def test_a_sync_of_names_that_fails_in_a_trim_ends_the_queue() -> None:
    files, queue = a_log(1, 60, sync="always")
    fail_once(files, "sync directory")
    refused_as_after_any_sync(lambda: queue.trim(before_seq=12))
    refused_as_after_any_sync(lambda: queue.trim(before_seq=30))
    refused_as_after_any_sync(lambda: queue.append(b"m"))
    refused_as_after_any_sync(core_of(queue).run_background_work)


def test_a_sync_of_names_that_fails_in_an_append_that_trims_ends_the_queue() -> None:
    files, queue = a_log(1, 12, sync="always")
    queue.close()
    failed = fail_as_page_one_goes(files)
    queue = opened(files, 2, sync="always", max_bytes=2 * 4096)
    refused_as_after_any_sync(lambda: append_for(queue, 10, b"m" * 800))
    assert failed()
    refused_as_after_any_sync(lambda: queue.append(b"m"))


def test_a_sync_that_fails_on_the_helper_thread_is_told_to_who_appends_and_the_thread_lives() -> None:
    files, queue = a_log(1, 40)
    queue.close()
    failed = fail_as_page_one_goes(files)
    later = 1_800_000_000_000_000_000
    queue = opened(files, 2, background=True, lifetime=timedelta(days=1), clock=lambda: later)  # expired, all of them
    refused_as_after_any_sync(lambda: append_for(queue, 30, b"m"))
    assert failed()
    assert any(thread.name == "holdfast-queue" for thread in threading.enumerate())
    with suppress(HoldfastError):
        queue.close()
    assert files.open_handles == 0


@pytest.mark.parametrize("seed", SEEDS)
def test_no_page_comes_back_without_its_successors(seed: int) -> None:
    """The pages go on going after the sync that failed, in this life of the queue or in the next."""
    files, queue = a_log(seed, 60, sync="always")
    failed = fail_once(files, "sync directory", after=seed % 2)
    with suppress(HoldfastError):
        queue.trim(before_seq=12)
    assert failed()
    with suppress(HoldfastError):
        queue.trim(before_seq=30)
    messages, told = read_after_power_loss(files, seed + 1)
    assert messages[-1].seq == 60
    assert not told
    files = files.after_kill(Random(seed))
    with opened(files, seed + 2) as queue:
        queue.append(b"m")
        queue.flush()
        queue.trim(before_seq=30)
        messages, told = read_after_power_loss(files, seed + 3)
        assert messages[-1].seq == 61
        assert not told


@pytest.mark.parametrize("seed", SEEDS)
def test_what_a_consumer_committed_is_not_told_as_trimmed(seed: int) -> None:
    """Its cursor's sync fails, in the trim that needs it or in a commit before."""
    files, queue = a_log(seed, 20, sync="always", max_bytes=5 * 4096, full="raise")
    consumer = queue.consumer("c")
    consumer.poll(max_messages=18)
    failed = fail_once(files, "sync", ".cursor")
    with suppress(HoldfastError):
        consumer.commit(durable=seed % 2 == 0)
    for _ in range(10):
        with suppress(HoldfastError):
            queue.append(b"m" * 800)
    assert failed()
    told: list[Gap | Trimmed] = []
    files = files.after_power_loss(Random(seed + 1))
    with opened(files, seed + 2, damage=told.append) as queue, queue.consumer("c") as consumer:
        consumer.poll()
    assert not told


# ---- the first opening ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("after", [0, 1])
def test_a_queue_whose_first_opening_met_a_failed_sync_keeps_its_identity_and_marks(seed: int, after: int) -> None:
    """The name of the identity, then that of the marks. Without marks, what was torn is told as a gap."""
    files = CrashFiles(Random(seed))
    failed = fail_once(files, "sync directory", after=after)
    with pytest.raises(HoldfastError):
        opened(files, seed)
    assert failed()
    assert files.open_handles == 0
    queue = opened(files, seed + 1)
    for number in range(12):
        queue.append(b"%04d" % number * 150)
    queue.flush()
    for number in range(1 + seed % 30):
        queue.append(b"%04d" % number * 150)
    files = files.after_power_loss(Random(seed + 2))
    assert newest_slot(files.contents("d")["q-writeMeta"]) is not None
    with opened(files, seed + 3) as again:
        assert core_of(again).identity.queue_id == core_of(queue).identity.queue_id
        assert core_of(again).recovered == []
        assert len(list(again.read())) >= 12


# ---- the start after lost power -------------------------------------------------------------------------------------


def lost_power(seed: int) -> CrashFiles:
    files, queue = a_log(seed, 10 + seed % 7)
    queue.flush()
    for number in range(10 + seed):
        queue.append(b"%04d" % number * 200)
    return files.after_power_loss(Random(seed + 1))


def pages_and_indexes(files: CrashFiles) -> set[str]:
    return {name for name in files.contents("d") if name.endswith((".page", ".idx"))}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("after", [0, 1])
def test_what_a_start_whose_sync_failed_took_away_does_not_come_back(seed: int, after: int) -> None:
    """A page of the history that was cut would go on where the log is by then."""
    files = lost_power(seed)
    failed = fail_once(files, "sync directory", after=after)
    with suppress(HoldfastError):
        opened(files, seed + 2).close()
    assert failed() or after
    files = files.after_kill(Random(seed + 3))
    queue = opened(files, seed + 4)
    for again in range(5):
        assert pages_and_indexes(files.after_power_loss(Random(again))) <= pages_and_indexes(files)
    queue.append(b"m")
    queue.flush()
    _, told = read_after_power_loss(files, seed + 5)
    assert not told


@pytest.mark.parametrize("seed", SEEDS)
def test_what_a_start_that_was_killed_took_away_does_not_come_back(seed: int) -> None:
    files = lost_power(seed)
    images: list[CrashFiles] = []
    files.before = lambda _: images.append(files.after_kill(Random(seed)))
    opened(files, seed + 2)
    for image in images:
        opened(image, seed + 3)
        assert pages_and_indexes(image.after_power_loss(Random(seed))) <= pages_and_indexes(image)


def test_a_start_after_a_clean_close_or_a_kill_syncs_no_names() -> None:
    files, queue = a_log(1, 40)
    images = [files.after_kill(Random(1))]
    queue.close()
    images.append(files.after_kill(Random(1)))
    for image in images:
        asked: list[str] = []
        image.before = asked.append
        opened(image, 2)
        assert "sync directory" not in asked
