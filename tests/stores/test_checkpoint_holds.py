"""Everyone waits for a checkpoint that falls behind, and for none that waits for them or that has ended."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.stores.test_storage_service import WORK, Slow, answered_or_held, document, publish, run

from holdfast.stores import checkpoints as checkpoints_module
from holdfast.stores.service import StoreService
from holdfast.stores.storage.index import Index, IndexChanges
from holdfast.stores.values.commands import Published

LOG_BYTES = 10_000
OVERDUE = checkpoints_module.OVERDUE * LOG_BYTES // 1_000 + 1
"""So many publications of a thousand bytes are more than a checkpoint may fall behind."""


def one(service: StoreService) -> asyncio.Future[Published]:
    return asyncio.ensure_future(publish(service, 1, size=1_000))


async def turns(condition: Callable[[], bool]) -> None:
    """Wait for what the loop does next, without waiting for a group."""
    while not condition():  # noqa: ASYNC110  # no event tells of it
        await asyncio.sleep(0)


def test_a_checkpoint_whose_frames_are_not_in_the_log_yet_keeps_nobody_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints_module, "LOG_BYTES", LOG_BYTES)

    async def check(service: StoreService) -> None:
        slow = Slow(service._storage)
        answers = [one(service)]
        await slow.arrived.wait()  # its group is with the thread
        checkpoint = asyncio.ensure_future(service.checkpoint())
        await turns(lambda: service._checkpoints._running is not None)
        answers += [one(service) for _ in range(OVERDUE)]
        await turns(lambda: service._storage.log_bytes >= checkpoints_module.OVERDUE * LOG_BYTES)
        slow.release.set()
        _, unanswered = await asyncio.wait([*answers, checkpoint], timeout=20)
        if unanswered:  # what waits for ever could not be closed either
            service._groups.poison(TimeoutError())
        assert not unanswered
        assert (await one(service)).last_seq == len(answers) + 1

    run(tmp_path, check, document(orders={"durables": WORK}))


def test_a_checkpoint_that_is_cancelled_keeps_nobody_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints_module, "LOG_BYTES", LOG_BYTES)
    write, go_on, written = Index.write, threading.Event(), threading.Event()

    def late(index: Index, checkpoint: IndexChanges) -> int:
        assert go_on.wait(30)
        found = write(index, checkpoint)
        written.set()
        return found

    async def check(service: StoreService) -> None:
        monkeypatch.setattr(Index, "write", late)
        answers: list[asyncio.Future[Published]] = []
        while not answers or answers[-1].done():
            answers.append(one(service))
            await answered_or_held(service, answers[-1])
            assert len(answers) < 3 * OVERDUE
        running = service._checkpoints._running
        assert running is not None
        try:
            running.cancel()
            assert (await answers[-1]).last_seq == len(answers)
            assert (await one(service)).last_seq == len(answers) + 1
        finally:
            go_on.set()
            await asyncio.to_thread(written.wait, 30)
            service._checkpoints._closed = True  # what it froze was never let go: no other can be begun
            service._storage.log_bytes = 0

    run(tmp_path, check, document(orders={"durables": WORK}))
