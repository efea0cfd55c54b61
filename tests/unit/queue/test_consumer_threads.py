"""One consumer in several threads: each message goes to one of them, and no commit passes what another has to do."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.aio import Queue as AsyncQueue
from holdfast.errors import Closed, InvalidRequest, LimitExceeded
from holdfast.queue import Queue
from holdfast.queue.consumers import consumer as blocking_consumer
from holdfast.queue.consumers import hand_outs
from holdfast.queue.consumers.consumer import Consumer
from holdfast.queue.consumers.hand_outs import HandOuts, Owner
from holdfast.queue.log.messages import Message
from holdfast.queue.queue import core_of

THREADS = 6
COUNT = 12_000


def in_threads(*works: Callable[[], object]) -> None:
    """Run each in a thread of its own; raises the first error of any."""
    errors: list[BaseException] = []

    def run(work: Callable[[], object]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - raised by the test
            errors.append(error)

    threads = [threading.Thread(target=run, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    if errors:
        raise errors[0]


def take_by_polling(consumer: Consumer, found: list[Message]) -> None:
    while messages := consumer.poll(max_messages=7):
        found.extend(messages)
        consumer.commit()


def take_by_iterating(consumer: Consumer, found: list[Message]) -> None:
    for message in consumer:
        found.append(message)
        consumer.commit(message)


@pytest.mark.parametrize("take", [take_by_polling, take_by_iterating])
@pytest.mark.parametrize("batched", [False, True])
def test_six_threads_get_every_message_once(
    tmp_path: Path, take: Callable[[Consumer, list[Message]], None], *, batched: bool
) -> None:
    with Queue(tmp_path / "q", page_size=1 << 16) as queue:
        payloads = [b"%d" % number for number in range(1, COUNT + 1)]
        if batched:
            queue.append_many(payloads)
        else:
            for payload in payloads:
                queue.append(payload)
        with queue.consumer("c") as consumer:
            found: list[list[Message]] = [[] for _ in range(THREADS)]
            in_threads(*[lambda mine=mine: take(consumer, mine) for mine in found])
            everything = sorted((message.seq, message.payload) for mine in found for message in mine)
            assert everything == [(seq, b"%d" % seq) for seq in range(1, COUNT + 1)]
            assert (consumer.committed_seq, consumer.lag()) == (COUNT, 0)


def test_a_commit_does_not_pass_what_another_thread_has_to_do(tmp_path: Path) -> None:
    with Queue(tmp_path / "q") as queue:
        queue.append_many([b"x"] * 30)
        consumer = queue.consumer("c")
        assert [message.seq for message in consumer.poll(max_messages=10)] == list(range(1, 11))

        def another() -> None:
            mine = consumer.poll(max_messages=10)
            assert [message.seq for message in mine] == list(range(11, 21))
            consumer.commit(mine[-1])
            consumer.commit()

        in_threads(another)
        assert (consumer.committed_seq, consumer.lag()) == (0, 30)
        consumer.commit(4)
        assert consumer.committed_seq == 4
        consumer.commit(2)
        assert consumer.committed_seq == 4
        consumer.close()
        with queue.consumer("c") as consumer:
            assert consumer.poll()[0].seq == 5


def test_a_commit_of_the_slowest_thread_passes_what_the_others_have_done(tmp_path: Path) -> None:
    with Queue(tmp_path / "q") as queue, queue.consumer("c") as consumer:
        queue.append_many([b"x"] * 30)
        consumer.poll(max_messages=10)

        def another() -> None:
            consumer.poll(max_messages=10)
            consumer.commit()

        in_threads(another)
        consumer.commit(durable=True)
        assert (consumer.committed_seq, queue.durable_seq) == (20, 30)


def test_workers_that_commit_what_one_thread_took_skip_nothing(tmp_path: Path) -> None:
    with Queue(tmp_path / "q") as queue, queue.consumer("c") as consumer:
        queue.append_many([b"x"] * 9)
        messages = [message for message, _ in zip(consumer, range(9), strict=True)]
        for message in messages[:3:-1]:
            in_threads(lambda done=message: consumer.commit(done))  # type: ignore[misc]
        assert consumer.committed_seq == 0
        for message in messages[3::-1]:
            in_threads(lambda done=message: consumer.commit(done))  # type: ignore[misc]
        assert consumer.committed_seq == 9


def test_a_thread_commits_the_list_that_another_one_took(tmp_path: Path) -> None:
    with Queue(tmp_path / "q") as queue, queue.consumer("c") as consumer:
        queue.append_many([b"x"] * 30)
        for end in (10, 20):
            messages: list[Message] = []
            in_threads(lambda found=messages: found.extend(consumer.poll(max_messages=10)))  # type: ignore[misc]
            consumer.commit([])
            assert consumer.committed_seq == end - 10
            consumer.commit(messages, durable=True)
            assert consumer.committed_seq == end
        consumer.commit(consumer.poll())
        assert consumer.lag() == 0


def test_a_list_finishes_its_messages_and_no_other(tmp_path: Path) -> None:
    with Queue(tmp_path / "q") as queue, queue.consumer("c") as consumer:
        queue.append_many([b"x"] * 9)
        messages = consumer.poll()
        in_threads(lambda: consumer.commit([messages[6], messages[0], messages[5], messages[1]]))
        assert consumer.committed_seq == 2
        in_threads(lambda: consumer.commit(messages[2:5]))
        assert consumer.committed_seq == 7
        in_threads(lambda: consumer.commit(messages))
        assert consumer.committed_seq == 9


def test_a_number_without_a_message_holds_no_commit_back(tmp_path: Path) -> None:
    with Queue(tmp_path / "q", background=False) as queue:
        for number in range(1, 10):
            queue.append(b"message %d" % number)
    page = next(found for found in tmp_path.glob("q-*.page") if b"message 5" in found.read_bytes())
    page.write_bytes(page.read_bytes().replace(b"message 5", b"damaged 5"))
    with Queue(tmp_path / "q", background=False) as queue, queue.consumer("c", damage="skip") as consumer:
        in_threads(lambda: consumer.poll(max_messages=1))
        messages = [*consumer.poll(max_messages=4), *consumer.poll()]
        assert [message.seq for message in messages] == [2, 3, 4, 6, 7, 8, 9]
        consumer.commit(1)
        for message in messages:
            in_threads(lambda done=message: consumer.commit(done))  # type: ignore[misc]
        assert consumer.committed_seq == 9


def test_a_program_that_commits_one_message_for_many_is_warned_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocking_consumer, "GAPS_WARNED", 4)
    with Queue(tmp_path / "q") as queue, queue.consumer("c") as consumer:
        queue.append_many([b"x"] * 100)
        messages: list[Message] = []

        def work() -> None:
            for _ in range(20):
                in_threads(lambda: messages.extend(consumer.poll(max_messages=5)))
                consumer.commit(messages[-1])

        with pytest.warns(RuntimeWarning, match="commit the list of messages") as warned:
            work()
        assert len(warned) == 1 and warned[0].filename == __file__
        assert (consumer.committed_seq, consumer.lag()) == (0, 100)
        consumer.commit(messages)
        assert consumer.lag() == 0


def test_a_rewind_forgets_the_pages_that_were_read(tmp_path: Path) -> None:
    with Queue(tmp_path / "q", page_size=4096, background=False) as queue, queue.consumer("c") as consumer:
        for _ in range(200):
            queue.append(b"x" * 100)
        for _ in range(5):
            while consumer.poll():
                pass
            assert consumer._page_starts == sorted(set(consumer._page_starts))
            assert len(consumer._page_starts) <= len(core_of(queue).pages.numbers()) + 1
            consumer.rewind()
            assert consumer._page_starts == [0]
        while messages := consumer.poll(max_messages=50):
            consumer.commit(messages[-1])
        assert consumer.lag() == 0
    with Queue(tmp_path / "q", page_size=4096, background=False) as queue, queue.consumer("c") as consumer:
        assert consumer.committed_seq == 200


def test_a_new_thread_does_not_finish_what_a_dead_one_had(tmp_path: Path) -> None:
    with Queue(tmp_path / "q") as queue, queue.consumer("c") as consumer:
        queue.append_many([b"x"] * 30)
        for _ in range(3):  # numbers of threads are used again
            in_threads(lambda: consumer.poll(max_messages=5))
        in_threads(lambda: consumer.commit(consumer.poll(max_messages=5)[-1]))
        assert consumer.committed_seq == 0
        with pytest.raises(InvalidRequest, match="no messages to commit"):
            consumer.commit()
        consumer.rewind()
        assert consumer.poll()[0].seq == 1
        consumer.commit()
        assert consumer.committed_seq == 30


def test_a_thread_that_joins_takes_over_what_the_first_has_not_taken(tmp_path: Path) -> None:
    with Queue(tmp_path / "q") as queue, queue.consumer("c") as consumer:
        queue.append_many([b"x"] * 50)
        mine = iter(consumer)
        assert [next(mine).seq, next(mine).seq] == [1, 2]
        others: list[Message] = []
        in_threads(lambda: others.extend(consumer.poll(max_messages=10)))
        assert [message.seq for message in others] == list(range(3, 13))
        assert next(mine).seq == 13
        consumer.commit()
        assert consumer.committed_seq == 2


def test_a_close_in_another_thread_commits_nothing_and_ends_every_wait(tmp_path: Path) -> None:
    with Queue(tmp_path / "q") as queue:
        queue.append_many([b"x"] * 3)
        consumer = queue.consumer("c")
        waiting = threading.Barrier(THREADS + 1)

        def wait() -> None:
            consumer.poll(max_messages=1)
            waiting.wait(60)
            with pytest.raises(Closed):
                consumer.poll(timeout=None)

        def close() -> None:
            waiting.wait(60)
            consumer.close()

        in_threads(*[wait] * THREADS, close)
        with queue.consumer("c") as again:
            assert again.committed_seq == 0


def test_too_many_stretches_are_refused_and_nothing_is_handed_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hand_outs, "RANGES_MAX", 2)
    with Queue(tmp_path / "q") as queue, queue.consumer("c") as consumer:
        queue.append_many([b"x"] * 9)
        consumer.poll(max_messages=1)
        in_threads(lambda: consumer.poll(max_messages=1))
        with pytest.raises(LimitExceeded):
            consumer.poll(max_messages=1)
        assert consumer.next_seq == 3
        consumer.commit(1)
        assert consumer.poll(max_messages=1)[0].seq == 3


def test_a_task_commits_the_list_that_another_one_took(tmp_path: Path) -> None:
    async def main() -> None:
        async with AsyncQueue(tmp_path / "q") as queue, queue.consumer("c") as consumer:
            await queue.append_many([b"x"] * 1000)
            while await consumer.lag():
                await consumer.commit(await asyncio.create_task(consumer.poll(5, 100)))
            assert consumer.committed_seq == 1000

    asyncio.run(main())


def test_tasks_share_a_consumer_of_the_twin(tmp_path: Path) -> None:
    async def main() -> None:
        async with AsyncQueue(tmp_path / "q") as queue, queue.consumer("c") as consumer:
            await queue.append_many([b"x"] * 3000)
            found: list[int] = []

            async def work() -> None:
                while messages := await consumer.poll(max_messages=70):
                    found.extend(message.seq for message in messages)
                    await consumer.commit()

            first = await consumer.poll(max_messages=5)
            await asyncio.gather(*[work() for _ in range(THREADS)])
            assert sorted(found) == list(range(6, 3001))
            assert consumer.committed_seq == 0
            await consumer.commit(first[-1])
            assert consumer.committed_seq == 3000

    asyncio.run(main())


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 2), st.integers(1, 12)), max_size=40))
def test_the_committed_place_is_below_every_message_that_is_not_done(steps: list[tuple[bool, int, int]]) -> None:
    owners = [Owner() for _ in range(3)]
    outs = HandOuts(0)
    of: dict[int, int] = {}
    undone: set[int] = set()
    for gives, who, number in steps:
        if gives:
            fresh = range(outs.given_seq + 1, outs.given_seq + 1 + number)
            outs.give(owners[who], fresh[-1])
            undone.update(fresh)
            of.update(dict.fromkeys(fresh, who))
        elif number <= outs.given_seq:
            outs.finish(owners[who], number)
            undone -= {seq for seq in undone if seq == number or (seq < number and of[seq] == who)}
        outs.check()
        assert outs.committed_seq == min(undone, default=outs.given_seq + 1) - 1
