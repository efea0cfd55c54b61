"""What is finished refuses every call with the same error, which must not keep what its callers had in their hands."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.errors import Closed
from holdfast.queue import Queue
from holdfast.queue.queue import core_of


class Payload:
    """What a caller holds while it is refused."""


def still_held(call: Callable[[], object], times: int = 20) -> int:
    """Of so many callers that were refused, how many left something behind."""
    held: list[weakref.ref[Payload]] = []

    def refused() -> None:
        payload = Payload()
        held.append(weakref.ref(payload))
        with pytest.raises(Closed):
            call()

    for _ in range(times):
        refused()
    return sum(reference() is not None for reference in held)


def test_a_queue_in_a_forked_child_keeps_no_more_than_its_last_caller(tmp_path: Path) -> None:
    with Queue(tmp_path / "q") as queue:
        core_of(queue)._poison_after_fork()
        assert still_held(lambda: queue.append(b"x")) <= 1
        assert still_held(queue.flush) <= 1


def test_a_closed_consumer_keeps_no_more_than_its_last_caller(tmp_path: Path) -> None:
    with Queue(tmp_path / "q") as queue:
        consumer = queue.consumer("c")
        consumer.close()
        for call in (consumer.poll, consumer.commit, consumer.rewind, consumer.lag, lambda: next(iter(consumer))):
            assert still_held(call) <= 1


def test_a_closed_work_queue_keeps_no_more_than_its_last_caller(tmp_path: Path) -> None:
    with Queue(tmp_path / "q") as queue:
        work = queue.work_queue("w")
        work.close()
        for call in (lambda: work.get(0), lambda: work.get_many(3), work.lag):
            assert still_held(call) <= 1
