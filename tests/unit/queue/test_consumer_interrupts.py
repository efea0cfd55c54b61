"""Ctrl-C at any point of a consumer: no commit passes a message that the program did not get."""

from __future__ import annotations

import dis
import gc
import os
import random
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Self

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.worlds.queue import CrashFiles

from holdfast.queue import Queue
from holdfast.queue.consumers import consumer, hand_outs
from holdfast.queue.consumers.consumer import Consumer
from holdfast.queue.consumers.hand_outs import HandOuts, Owner
from holdfast.queue.log.messages import Message

COUNT = 6
INTERRUPTS = 2000 if os.environ.get("HOLDFAST_PROVE") == "1" else 60
FILES = (consumer.__file__, hand_outs.__file__)


class InterruptAt:
    """Raise ``KeyboardInterrupt`` at the n-th point of the consumer's code where the interpreter may handle a signal.

    These points are the beginning of a function, a jump backwards, and the return from a call of C code.
    """

    def __init__(self, point: int) -> None:
        self.left = point
        self._names: dict[CodeType, dict[int, str]] = {}
        self._last: dict[FrameType, str] = {}

    def __enter__(self) -> Self:
        sys.settrace(self._enter)
        return self

    def __exit__(self, *error: object) -> None:
        sys.settrace(None)

    def _enter(self, frame: FrameType, event: str, argument: object) -> Any:
        del event, argument
        if frame.f_back is not None:
            self._last.pop(frame.f_back, None)  # a call of Python code: nothing is handled at its return
        if frame.f_code.co_filename not in FILES:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._step

    def _step(self, frame: FrameType, event: str, argument: object) -> Any:
        del argument
        if event != "opcode":
            return self._step
        names = self._names.get(frame.f_code)
        if names is None:
            names = self._names[frame.f_code] = {
                step.offset: step.opname for step in dis.get_instructions(frame.f_code)
            }
        name = names[frame.f_lasti]
        last = self._last.get(frame, "")
        self._last[frame] = name
        if last == "RESUME" or last.startswith("CALL") or "BACKWARD" in last:
            self.left -= 1
            if self.left == 0:
                sys.settrace(None)
                raise KeyboardInterrupt
        return self._step


def poll(shared: Consumer, seen: list[Message]) -> None:
    while True:
        found = shared.poll(max_messages=2)
        seen += found
        if not found:
            return
        shared.commit(seen[-1])


def iterate(shared: Consumer, seen: list[Message]) -> None:
    for message in shared:
        seen += (message,)
        shared.commit(message)


def join(shared: Consumer, seen: list[Message]) -> None:
    """One message of what another thread has begun."""
    seen += shared.poll(max_messages=1)


def missed(point: int, work: Callable[[Consumer, list[Message]], None], first: int) -> set[int] | None:
    """The messages that the program never gets, where ``work`` is interrupted at a point; None where it ends before.

    Another thread takes the first messages. After the interrupt both go on, and the consumer is opened again.
    """
    seen: list[Message] = []
    theirs: list[Message] = []
    with Queue("d/q", files=CrashFiles(random.Random(0)), background=False) as queue:
        queue.append_many([b"x"] * COUNT)
        shared = queue.consumer("c")
        mine = iter(shared)
        ready, go_on = threading.Event(), threading.Event()

        def another() -> None:
            theirs.extend(message for _, message in zip(range(first), mine, strict=False))
            ready.set()
            assert go_on.wait(60)
            theirs.extend(shared.poll())
            if theirs:
                shared.commit()

        thread = threading.Thread(target=another, daemon=True)
        thread.start()
        assert ready.wait(60)
        interrupted = False
        try:
            with InterruptAt(point):
                work(shared, seen)
        except KeyboardInterrupt:
            interrupted = True
        seen += shared.poll(max_messages=1)
        if seen:
            shared.commit(seen[-1])
        go_on.set()
        thread.join(60)
        assert not thread.is_alive()
        seen += shared.poll()
        shared.close()
        with queue.consumer("c") as again:
            seen += again.poll()
    numbers = {message.seq for message in [*seen, *theirs]}
    return set(range(1, COUNT + 1)) - numbers if interrupted else None


@pytest.mark.parametrize(("work", "first"), [(poll, 0), (poll, 2), (iterate, 2), (join, 2)])
def test_an_interrupt_at_any_point_loses_no_message(
    work: Callable[[Consumer, list[Message]], None], first: int
) -> None:
    point = 1
    while (lost := missed(point, work, first)) is not None:
        assert not lost, f"interrupted at point {point}"
        point += 1
    assert point > 10, "it was interrupted"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # an alarm in a finalizer
def test_timers_lose_no_message_of_threads_that_share_a_consumer(tmp_path: Path) -> None:
    """Real signals, anywhere in a loop that takes and commits."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    seen: list[Message] = []
    theirs: list[Message] = []
    ended = threading.Event()
    with Queue(tmp_path / "q", page_size=1 << 20, background=False) as queue, queue.consumer("c") as shared:
        queue.append_many([b"x"] * 200 * INTERRUPTS)

        def another() -> None:
            while not ended.is_set():
                theirs.extend(shared.poll(max_messages=1))
                shared.commit()

        theirs.extend(shared.poll(max_messages=1))
        thread = threading.Thread(target=another, daemon=True)
        before = signal.signal(signal.SIGALRM, interrupt)
        thread.start()
        interrupts = 0
        try:
            while interrupts < INTERRUPTS:
                try:
                    signal.setitimer(signal.ITIMER_REAL, random.Random(interrupts).uniform(1e-5, 1e-3))
                    iterate(shared, seen)
                    break  # before an alarm the queue came to its end
                except KeyboardInterrupt:
                    interrupts += 1
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
            ended.set()
        thread.join(60)
        assert not thread.is_alive()
        committed = shared.committed_seq
    assert interrupts > 0
    numbers = {message.seq for message in [*seen, *theirs]}
    assert not set(range(1, committed + 1)) - numbers, "committed, and the program did not get it"


def test_a_second_thread_shares_what_the_first_has_read_also_where_a_finalizer_lets_the_first_run() -> None:
    """The garbage collector may run a finalizer at any allocation, and a finalizer may let another thread run."""
    with Queue("d/q", files=CrashFiles(random.Random(0)), background=False) as queue:
        queue.append_many([b"x"] * 2000)
        with queue.consumer("c") as shared:
            admitting: list[int] = []
            collected, took, ended = threading.Event(), threading.Event(), threading.Event()
            first: list[Message] = []
            second: list[Message] = []

            def take_first() -> None:
                mine = iter(shared)
                first.append(next(mine))
                took.set()
                while not ended.is_set():
                    assert collected.wait(60)
                    collected.clear()
                    if not ended.is_set():
                        first.append(next(mine))
                        took.set()
                shared.commit(first[-1])

            def let_the_first_take(phase: str, info: dict[str, int]) -> None:
                del info
                if phase == "stop" and admitting == [threading.get_ident()] and len(first) < 10:
                    took.clear()
                    collected.set()
                    took.wait(0.05)  # it waits for a lock, or it takes a message

            thread = threading.Thread(target=take_first, daemon=True)
            thread.start()
            assert took.wait(60)
            thresholds = gc.get_threshold()
            gc.callbacks.append(let_the_first_take)
            try:
                gc.set_threshold(10, 10, 10)
                admitting.append(threading.get_ident())
                second += shared.poll(max_messages=1)
            finally:
                admitting.clear()
                gc.set_threshold(*thresholds)
                gc.callbacks.remove(let_the_first_take)
            ended.set()
            collected.set()
            thread.join(60)
            assert not thread.is_alive()
            while more := shared.poll():
                second += more
            shared.commit(second)
            assert shared.committed_seq == 2000
    assert sorted(message.seq for message in [*first, *second]) == list(range(1, 2001))


@given(st.integers(0, 4), st.lists(st.integers(1, 3), min_size=1, max_size=5), st.booleans())
def test_messages_that_are_taken_back_are_next_or_stay_uncommitted(before: int, later: list[int], others: bool) -> None:
    mine, another = Owner(), Owner()
    outs = HandOuts(0)
    if before:
        outs.give(mine, before)
    until = before + 3
    outs.give(mine, until)
    if others:
        for number in later:
            outs.give(another, outs.given_seq + number)
    assert outs.take_back(mine, before, until) is not others
    outs.check()
    assert outs.given_seq == (until + sum(later) if others else before)
    for owner in (mine, another):
        if owner.last_seq and outs.given_seq:
            outs.finish(owner, outs.given_seq)
    assert outs.committed_seq == before
    if others:
        for seq in range(before + 1, until + 1):
            outs.finish(another, seq)
        assert outs.committed_seq == outs.given_seq
