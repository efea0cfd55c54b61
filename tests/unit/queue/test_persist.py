"""``holdfast.persist``: what both sides see, how a run ends, what is refused."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import pytest
from tests.worlds.queue import CrashFiles

import holdfast
from holdfast.errors import AlreadyOpen, Closed, Code, InvalidRequest, LimitExceeded, Unavailable
from holdfast.queue import Queue, Serializer, Stored, Trimmed
from holdfast.queue import persist as persist_module
from holdfast.queue.log.reader import LogReader
from holdfast.queue.persist import Persisted
from holdfast.queue.persist_flow import Work
from holdfast.queue.persist_run import PersistArguments, PersistRun

PAGE_BYTES = 4096
WAIT_S = 60
Answer = TypeVar("Answer")

persist = partial(holdfast.persist, page_size=PAGE_BYTES)


class Inline(Executor):
    """Runs each turn at once, so that a test sees the state after it."""

    def submit(self, work: Callable[..., Answer], /, *args: object, **kwargs: object) -> Future[Answer]:
        future: Future[Answer] = Future()
        future.set_result(work(*args, **kwargs))
        return future


def numbers(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(first, count)]


def resuming(count: int) -> Callable[[Stored[bytes]], Iterable[bytes]]:
    return lambda stored: numbers(count, stored.count)


def taken(items: Iterable[bytes], count: int) -> list[bytes]:
    return [item for _, item in zip(range(count), items, strict=False)]


# ---- what passes, and where a run continues --------------------------------------------------------------------------


def test_all_items_pass_in_order_and_the_result_closes_itself_at_the_end(tmp_path: Path) -> None:
    items = persist(numbers(500), tmp_path)
    assert list(items) == numbers(500)
    assert list(items) == []
    assert list(persist([b"more"], tmp_path)) == [b"more"]


def test_an_item_that_was_given_and_not_followed_comes_again_and_what_is_left_comes_first(tmp_path: Path) -> None:
    with persist(resuming(20), tmp_path) as items:
        assert taken(items, 5) == numbers(5)
    with persist(resuming(20), tmp_path) as items:
        assert list(items) == numbers(20, 4)


def test_a_committed_item_does_not_come_again(tmp_path: Path) -> None:
    with persist(resuming(20), tmp_path) as items:
        for item in items:
            if item == b"4":
                items.commit(durable=True)
                items.commit()
                break
        assert items.consumed_seq == 5
        items.close()
        with pytest.raises(Closed):
            items.commit()
    assert list(persist(resuming(20), tmp_path)) == numbers(20, 5)


def test_a_source_learns_how_many_items_are_stored_and_the_last_one(tmp_path: Path) -> None:
    learned: list[Stored[object]] = []

    def source(stored: Stored[object]) -> Iterator[object]:
        learned.append(stored)
        yield {"n": stored.count}

    for _ in range(3):
        assert len(list(persist(source, tmp_path, serializer="json"))) == 1
    assert learned == [Stored(0, None), Stored(1, {"n": 0}), Stored(2, {"n": 1})]


def test_items_come_as_the_serializer_makes_them(tmp_path: Path) -> None:
    assert list(persist(["é", ""], tmp_path, serializer="str", prefix="text")) == ["é", ""]
    whole = Serializer(lambda value: repr(value).encode(), lambda data: int(data))
    assert list(persist([1, 22], tmp_path, serializer=whole, prefix="whole")) == [1, 22]
    assert (tmp_path / "text-1.page").exists()


def test_the_serializer_is_recorded_used_without_naming_it_and_another_one_is_refused(tmp_path: Path) -> None:
    source = [{"n": 1}, {"n": 2}]
    with persist(source, tmp_path, serializer="json") as items:
        assert next(items) == source[0]
    for other in ("str", "bytes"):
        with pytest.raises(InvalidRequest, match=r"another serializer .*recorded=json"):
            persist([], tmp_path, serializer=other)
    assert list(persist(resuming_values([*source, {"n": 3}]), tmp_path)) == [*source, {"n": 3}]
    with Queue(tmp_path / "persist") as queue:
        assert list(queue.values()) == [*source, {"n": 3}]


def resuming_values(values: list[Any]) -> Callable[[Stored[Any]], list[Any]]:
    def source(stored: Stored[Any]) -> list[Any]:
        assert stored.last == values[stored.count - 1]
        return values[stored.count :]

    return source


def test_a_queue_that_records_a_serializer_takes_items_of_persist(tmp_path: Path) -> None:
    with Queue(tmp_path / "persist", serializer="json") as queue:
        queue.append({"n": 1})
    assert list(persist([{"n": 2}], tmp_path, serializer="json")) == [{"n": 1}, {"n": 2}]
    assert list(persist([{"n": 3}], tmp_path, sync="always")) == [{"n": 3}]


def test_a_queue_of_an_earlier_version_adopts_the_first_serializer_that_is_named(tmp_path: Path) -> None:
    with Queue(tmp_path / "persist", page_size=PAGE_BYTES) as queue:  # no serializer was recorded for ``persist``
        queue.append_many([b"1", b"2"])
    with persist([b"3"], tmp_path, scheduler=Inline()) as items:
        assert taken(items, 2) == [b"1", b"2"]
    assert list(persist([4], tmp_path, serializer="json")) == [2, 3, 4]
    assert list(persist([5], tmp_path)) == [5]


def test_a_serializer_that_has_to_be_named_is_asked_for_before_the_source(tmp_path: Path) -> None:
    number = Serializer(lambda value: b"%d" % value, int, "number")
    assert list(persist([1], tmp_path, serializer=number)) == [1]
    source = iter([2])
    with pytest.raises(InvalidRequest, match=r"to be named .*number"):
        persist(source, tmp_path)
    assert list(persist(source, tmp_path, serializer=number)) == [2]


def test_an_item_that_cannot_be_loaded_stays_next(tmp_path: Path) -> None:
    with persist([b"{}", b"not json"], tmp_path, scheduler=Inline()) as items:
        assert next(items) == b"{}"
    with Queue(tmp_path / "persist", read_only=True) as queue:
        assert queue.last_seq == 2
    with persist([], tmp_path, serializer="json") as loaded:
        assert next(loaded) == {}
        for _ in range(2):
            with pytest.raises(ValueError, match="Expecting value"):
                next(loaded)
        assert loaded.consumed_seq == 1


def test_consumers_have_places_of_their_own_and_since_keeps_none(tmp_path: Path) -> None:
    assert list(persist(numbers(3), tmp_path, consumer="a", lifetime=timedelta(days=1))) == numbers(3)
    assert list(persist([], tmp_path, consumer="b", lifetime=timedelta(days=1))) == numbers(3)
    between = datetime.now(UTC)
    assert list(persist([b"new"], tmp_path, since=between)) == [b"new"]
    for since in ("earliest", lambda: "earliest", datetime(2000, 1, 1, tzinfo=UTC)):
        assert list(persist([], tmp_path, since=since)) == [*numbers(3), b"new"]
    assert list(persist([b"newer"], tmp_path, since="latest")) == [b"newer"]
    assert list(persist([b"last"], tmp_path, since=datetime(2100, 1, 1, tzinfo=UTC))) == [b"last"]
    assert list(persist([], tmp_path, consumer="a")) == [b"new", b"newer", b"last"]


def test_the_space_of_consumed_items_is_freed_and_the_last_item_stays(tmp_path: Path) -> None:
    source = [b"%d" % number * 100 for number in range(1000)]
    pages: set[int] = set()
    items = persist(source, tmp_path, max_bytes=3 * PAGE_BYTES)
    for item, expected in zip(items, source, strict=True):
        assert item == expected
        pages.add(sum(path.suffix == ".page" for path in tmp_path.iterdir()))
    assert max(pages) < 15
    stored: list[Stored[bytes]] = []

    def nothing(found: Stored[bytes]) -> list[bytes]:
        stored.append(found)
        return []

    assert list(persist(nothing, tmp_path)) == []
    assert stored == [Stored(1000, source[-1])]
    assert sum(path.suffix == ".page" for path in tmp_path.iterdir()) < 5


def test_space_is_not_freed_before_every_consumer_has_consumed(tmp_path: Path) -> None:
    source = [b"%d" % number * 100 for number in range(300)]
    with persist(source, tmp_path, consumer="slow", scheduler=Inline()) as slow:
        assert taken(slow, 10) == source[:10]
    assert list(persist([], tmp_path, consumer="fast")) == source
    assert list(persist([], tmp_path, consumer="slow")) == source[9:]


def test_space_is_kept_for_a_consumer_of_the_queue_that_does_not_hold(tmp_path: Path) -> None:
    list(persist([b"first"], tmp_path))
    with Queue(tmp_path / "persist") as queue:
        queue.consumer("audit").close()
    source = [b"%d" % number * 100 for number in range(300)]
    assert list(persist(source, tmp_path)) == source
    with Queue(tmp_path / "persist") as queue, queue.consumer("audit") as audit:
        found: list[bytes] = []
        while messages := audit.poll(0.0):
            found += [message.payload for message in messages]
        assert found == [b"first", *source]
        audit.commit()
    before = len([*tmp_path.glob("*.page")])
    assert list(persist([], tmp_path)) == []
    assert len([*tmp_path.glob("*.page")]) < before


# ---- how far the source runs ahead -----------------------------------------------------------------------------------


def test_the_source_waits_at_the_bound_and_goes_on_when_half_is_consumed(tmp_path: Path) -> None:
    asked: list[int] = []

    def source() -> Iterator[bytes]:
        for number in range(100):
            asked.append(number)
            yield b"x" * 76  # counts 100

    with persist(source(), tmp_path, max_bytes=1000, scheduler=Inline()) as items:
        assert len(asked) == 10
        assert items.waiting
        assert items.stored_seq == 10
        for _ in range(5):
            next(items)  # four are consumed: the fifth is with the consumer
        assert len(asked) == 10
        next(items)
        assert len(asked) == 15
        assert items.waiting
        assert len(list(items)) == 94
    assert len(asked) == 100


def test_an_item_above_the_bound_passes_alone(tmp_path: Path) -> None:
    source = [b"a" * 5000, b"b" * 5000, b"c"]
    with persist(iter(source), tmp_path, max_bytes=100, scheduler=Inline()) as items:
        assert items.stored_seq == 1
        assert list(items) == source


def test_what_is_left_counts_against_the_bound(tmp_path: Path) -> None:
    asked: list[int] = []

    def source(stored: Stored[bytes]) -> Iterator[bytes]:
        for number in range(stored.count, 60):
            asked.append(number)
            yield b"x" * 76

    with persist(source, tmp_path, max_bytes=2000, scheduler=Inline()):
        assert len(asked) == 20
    asked.clear()
    with persist(source, tmp_path, max_bytes=1000, scheduler=Inline()) as items:
        for consumed in range(15):
            assert asked == [], f"{consumed} consumed"
            next(items)
        next(items)
        assert asked == list(range(20, 25))
        assert len(list(items)) == 44


@pytest.mark.parametrize("begun", [True, False])
def test_items_that_are_consumed_and_removed_before_they_are_measured_do_not_loosen_the_bound(
    tmp_path: Path, *, begun: bool
) -> None:
    with Queue(tmp_path / "persist", page_size=PAGE_BYTES) as queue:
        for _ in range(100):
            queue.append(b"x" * 76)
    settings = settings_for(tmp_path, max_bytes=1 << 20, lifetime=timedelta(days=1))
    run = PersistRun(settings, settings.open)
    if begun:  # a read is under way
        run.measure()
    for _ in range(70):
        run.given = run.next_item()[0]
        run.consume()
    run.queue.flush()
    assert run.queue.trim(before_seq=71)
    while run.flow.work is Work.MEASURE:
        run.measure()
    assert run.flow.ahead_bytes == 30 * 100
    run.close()


# ---- the end of the source -------------------------------------------------------------------------------------------


class SourceFailed(Exception):
    """What a source raises."""


def failing(count: int) -> Iterator[bytes]:
    yield from numbers(count)
    raise SourceFailed


def test_an_error_of_the_source_comes_after_the_items_before_it_and_is_not_stored(tmp_path: Path) -> None:
    found: list[bytes] = []
    items = persist(failing(100), tmp_path)
    with pytest.raises(SourceFailed):
        found.extend(items)  # extend keeps what came before the error
    assert found == numbers(100)
    assert list(items) == []
    assert list(persist([b"next run"], tmp_path)) == [b"next run"]


@pytest.mark.parametrize("fails", [True, False])
@pytest.mark.parametrize("moment", ["before", "after"])
def test_the_end_comes_although_an_interrupt_has_stopped_the_closing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str, *, fails: bool
) -> None:
    real = PersistRun.close
    interrupts = [KeyboardInterrupt()]

    def interrupted(self: PersistRun) -> None:
        if moment == "after":
            real(self)
        if interrupts:
            raise interrupts.pop()
        real(self)

    monkeypatch.setattr(PersistRun, "close", interrupted)
    items = persist(failing(3) if fails else numbers(3), tmp_path)
    assert taken(items, 3) == numbers(3)
    with pytest.raises(KeyboardInterrupt):
        next(items)
    with pytest.raises(SourceFailed if fails else StopIteration):
        next(items)
    assert list(items) == []
    assert list(persist([b"next run"], tmp_path)) == [b"next run"]


def test_an_error_of_the_source_is_raised_with_the_failure_of_closing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = PersistRun.close
    failures = [Closed("not durable"), Closed("not durable, either")]

    def failed(self: PersistRun) -> None:
        real(self)
        if failures:
            raise failures.pop(0)

    monkeypatch.setattr(PersistRun, "close", failed)
    items = persist(failing(1), tmp_path)
    next(items)
    with pytest.raises(SourceFailed) as caught:
        next(items)
    assert "not durable" in caught.value.__notes__[0]
    assert isinstance(caught.value.__context__, Closed)
    assert list(items) == []

    items = persist(numbers(1), tmp_path)  # an end without an error: the failure itself, and then the end
    next(items)
    with pytest.raises(Closed, match="either"):
        next(items)
    assert list(items) == []


def test_an_item_that_cannot_be_stored_is_an_error_after_the_items_before_it(tmp_path: Path) -> None:
    for wrong, error in (("text", InvalidRequest), (b"x" * (65 << 20), LimitExceeded)):
        items = persist([b"good", wrong, b"never"], tmp_path)
        assert next(items) == b"good"
        with pytest.raises(error):
            next(items)
        assert list(items) == []


def test_a_callable_that_gives_no_iterable_is_named(tmp_path: Path) -> None:
    for wrong, named in ((7, "int"), ("text", "str"), (len, "builtin_function_or_method")):
        items = persist(lambda _, wrong=wrong: wrong, tmp_path)
        with pytest.raises(InvalidRequest, match=f"source must return .* source={named}"):
            next(items)


def leaks(_: object) -> Any:
    return next(iter(()))


def test_stop_iteration_that_a_source_lets_escape_is_an_error_and_not_the_end(tmp_path: Path) -> None:
    for number, source in enumerate((leaks, lambda _: Broken())):
        items = persist(source, tmp_path / str(number))
        with pytest.raises(RuntimeError, match="StopIteration") as caught:
            next(items)
        assert isinstance(caught.value.__cause__, StopIteration)


class Broken:
    """An iterable that has no first item, and does not say so in the right place."""

    def __iter__(self) -> Iterator[bytes]:
        return iter([leaks(None)])


def test_stop_iteration_that_a_serializer_lets_escape_is_an_error_and_no_item_is_lost(tmp_path: Path) -> None:
    for prefix, serializer in (("dump", Serializer(leaks, int, "n")), ("load", Serializer(str_bytes, leaks, "n"))):
        with persist([1], tmp_path, prefix=prefix, serializer=serializer) as items:
            with pytest.raises(RuntimeError, match="StopIteration"):
                next(items)
            assert items.consumed_seq == 0
    assert list(persist([], tmp_path, prefix="load", serializer=Serializer(str_bytes, int, "n"))) == [1]


def str_bytes(value: object) -> bytes:
    return str(value).encode()


def test_a_full_disk_is_an_error_after_the_items_and_the_next_run_goes_on(tmp_path: Path) -> None:
    files = CrashFiles(Random(1))
    source = [b"%d" % number * 200 for number in range(100)]

    def opened(end: int = 100) -> Persisted[bytes]:
        return Persisted(
            lambda stored: source[stored.count : end],
            settings_for(tmp_path),
            scheduler=Inline(),
            open_queue=lambda: Queue("d/q", page_size=PAGE_BYTES, files=files, background=False),
        )

    assert list(opened(1)) == source[:1]
    files.refuse = lambda operation, name: OSError(errno.ENOSPC, name) if operation == "allocate" else None
    items = opened()
    found: list[bytes] = []
    with pytest.raises(Unavailable) as caught:
        found.extend(items)  # extend keeps what came before the error
    assert caught.value.code is Code.DISK_FULL
    assert 0 < len(found) < 99
    files.refuse = None
    assert [*source[:1], *found, *opened()] == source


# ---- closing ---------------------------------------------------------------------------------------------------------


class Watched:
    """A source that says when its generator is closed, and on which thread."""

    def __init__(self) -> None:
        self.closed = threading.Event()
        self.threads: list[str] = []

    def items(self) -> Generator[bytes, None, None]:
        try:
            while True:
                yield b"item"
        finally:
            self.threads.append(threading.current_thread().name)
            self.closed.set()


def test_closing_stops_the_source_and_closes_its_generator_on_its_thread(tmp_path: Path) -> None:
    watched = Watched()
    items = persist(watched.items(), tmp_path, max_bytes=1000)
    assert next(items) == b"item"
    assert items.close()
    assert watched.threads == ["holdfast-persist"]
    assert items.close()
    with pytest.raises(Closed):
        next(items)


@pytest.mark.parametrize("error", [SourceFailed, KeyboardInterrupt])
def test_an_error_in_the_loop_closes_and_the_item_comes_again(tmp_path: Path, error: type[BaseException]) -> None:
    watched = Watched()
    with pytest.raises(error), persist(watched.items(), tmp_path, max_bytes=1000) as items:
        raise error(next(items))
    assert watched.closed.is_set()
    with Queue(tmp_path / "persist", read_only=True) as queue, queue.consumer("main") as main:
        assert main.committed_seq == 0


def drop_after_one(source: Iterable[bytes], folder: Path) -> None:
    for _ in persist(source, folder, max_bytes=1000):
        break


def test_a_dropped_result_is_closed_with_a_warning_and_the_queue_can_be_opened_at_once(tmp_path: Path) -> None:
    for number in range(20):
        watched, folder = Watched(), tmp_path / str(number)
        with pytest.warns(ResourceWarning, match=r"the subscription .*persist was not closed; .*test_persist\.py:\d+"):
            drop_after_one(watched.items(), folder)
        with persist([], folder) as items:
            assert next(items) == b"item"
        assert watched.closed.is_set()


def test_an_opening_does_not_wait_long_for_a_dropped_result_whose_source_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(persist_module, "DROPPED_S", 0.01)
    release, ended = threading.Event(), threading.Event()

    def source() -> Iterator[bytes]:
        try:
            yield b"first"
            release.wait(WAIT_S)
        finally:
            ended.set()

    with pytest.warns(ResourceWarning):
        drop_after_one(source(), tmp_path)
    with persist([], tmp_path) as items:
        assert not ended.is_set()
        release.set()
        assert ended.wait(WAIT_S)
        assert list(items) == [b"first"]


def test_a_dropped_result_whose_generator_fails_is_closed_and_reported(tmp_path: Path) -> None:
    def source() -> Iterator[bytes]:
        try:
            while True:
                yield b"item"
        finally:
            raise SourceFailed

    def drop_and_open() -> None:
        for dropped in (source(), [b"item"]):  # the thread that closes goes on
            drop_after_one(dropped, tmp_path)
            Queue(tmp_path / "persist").close()

    with pytest.warns(ResourceWarning) as caught:
        drop_and_open()
    assert any("SourceFailed" in str(warning.message) for warning in caught)


def test_a_source_that_blocks_is_abandoned_after_the_timeout(tmp_path: Path) -> None:
    release, ended = threading.Event(), threading.Event()

    def source() -> Iterator[bytes]:
        try:
            yield b"first"
            release.wait(WAIT_S)
            yield b"too late"
        finally:
            ended.set()

    items = persist(source(), tmp_path)
    assert next(items) == b"first"
    assert not items.close(timeout=0.01)
    assert not ended.is_set()
    with persist([], tmp_path) as again:
        release.set()
        assert ended.wait(WAIT_S)
        assert list(again) == [b"first"]


def test_closing_wakes_a_consumer_that_waits(tmp_path: Path) -> None:
    asks, release = threading.Event(), threading.Event()
    found: list[BaseException] = []

    def source() -> Iterator[bytes]:
        asks.set()
        release.wait(WAIT_S)
        yield b"never seen"

    items = persist(source(), tmp_path)

    def consume() -> None:
        try:
            next(items)
        except Closed as error:
            found.append(error)

    consumer = threading.Thread(target=consume)
    consumer.start()
    assert asks.wait(WAIT_S)
    items.close(timeout=0)
    consumer.join(WAIT_S)
    release.set()
    assert [error.code for error in found if isinstance(error, Closed)] == [Code.CLOSED]


def test_closing_waits_for_a_read_that_is_under_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    began, reading, closes = threading.Event(), threading.Event(), threading.Event()
    overlaps: list[bool] = []
    read, close = LogReader.read_messages, LogReader.close

    def slow_read(self: LogReader) -> object:
        reading.set()
        began.set()
        closes.wait(0.2)  # in vain: the file is closed after the read
        found = read(self)
        reading.clear()
        return found

    def noted_close(self: LogReader) -> None:
        overlaps.append(reading.is_set())
        closes.set()
        close(self)

    list(persist([b"item"], tmp_path, since="earliest"))
    items = persist([], tmp_path, since="earliest")
    monkeypatch.setattr(LogReader, "read_messages", slow_read)
    monkeypatch.setattr(LogReader, "close", noted_close)
    with ThreadPoolExecutor(2) as pool:
        asking = pool.submit(next, items)
        assert began.wait(WAIT_S)
        assert pool.submit(items.close).result(WAIT_S)
        assert asking.exception(WAIT_S) is None or isinstance(asking.exception(), Closed)
    assert overlaps
    assert not any(overlaps)


def test_the_source_itself_may_close(tmp_path: Path) -> None:
    opened: list[Persisted[bytes]] = []
    closed = threading.Event()
    go = threading.Event()

    def source() -> Iterator[bytes]:
        go.wait(WAIT_S)
        try:
            opened[0].close()
            yield b"not stored"
        finally:
            closed.set()

    opened.append(persist(source(), tmp_path))
    go.set()
    assert closed.wait(WAIT_S)
    with pytest.raises(Closed):
        next(opened[0])


def test_closing_waits_for_the_end_of_the_generator_and_not_for_a_turn_that_has_not_begun(tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as pool:
        closes, busy = threading.Event(), threading.Event()
        ended: list[bool] = []

        def source() -> Iterator[bytes]:
            try:
                while True:
                    yield b"item"
            finally:
                closes.set()
                busy.wait(WAIT_S)
                ended.append(True)

        items = persist(source(), tmp_path, max_bytes=100, scheduler=pool)
        next(items)
        with ThreadPoolExecutor(1) as other:
            closing = other.submit(items.close, WAIT_S)
            assert closes.wait(WAIT_S)
            assert not closing.done()
            busy.set()
            assert closing.result(WAIT_S)
        assert ended == [True]

        holds = threading.Event()
        held = pool.submit(holds.wait, WAIT_S)
        waits = persist(source(), tmp_path, consumer="other", scheduler=pool)
        assert waits.close(timeout=0)
        holds.set()
        assert held.result(WAIT_S)


def test_what_closing_the_generator_raises_is_raised_by_close(tmp_path: Path) -> None:
    def source() -> Iterator[bytes]:
        try:
            while True:
                yield b"item"
        finally:
            raise SourceFailed

    items = persist(source(), tmp_path, max_bytes=100)
    next(items)
    with pytest.raises(SourceFailed):
        items.close()
    items.close()
    with persist([], tmp_path) as again:
        assert next(again) == b"item"


@pytest.mark.parametrize("begun", [True, False])
def test_closing_closes_the_result_of_persist_that_is_the_source(tmp_path: Path, *, begun: bool) -> None:
    watched = Watched()
    inner = persist(watched.items(), tmp_path / "inner", max_bytes=100)
    outer = persist(inner, tmp_path / "outer", max_bytes=100)
    if begun:
        assert next(outer) == b"item"
    assert outer.close()
    with persist([], tmp_path / "inner"):
        pass
    with pytest.raises(Closed):
        next(inner)


def test_closing_does_not_wait_for_an_item_of_the_inner_result(tmp_path: Path) -> None:
    waits, release = threading.Event(), threading.Event()

    def source() -> Iterator[bytes]:
        yield b"item"
        waits.set()
        release.wait(WAIT_S)

    outer = persist(persist(source(), tmp_path / "inner"), tmp_path / "outer")
    assert next(outer) == b"item"
    assert waits.wait(WAIT_S)
    with ThreadPoolExecutor(1) as pool:
        closing = pool.submit(outer.close, WAIT_S)
        with pytest.raises(Closed):
            next(outer)
        release.set()
        assert closing.result(WAIT_S)
    assert list(persist([], tmp_path / "inner")) == []  # it was stored by the outer one
    assert list(persist([], tmp_path / "outer")) == [b"item"]


# ---- schedulers ------------------------------------------------------------------------------------------------------


def test_a_source_that_waits_takes_no_thread_of_an_executor(tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as pool, persist(numbers(100), tmp_path, max_bytes=100, scheduler=pool) as items:
        for number, item in enumerate(items):
            assert item == b"%d" % number
            assert pool.submit(lambda: "free").result(WAIT_S) == "free"
        assert number == 99


def test_an_executor_that_is_shut_down_is_an_error_after_the_items(tmp_path: Path) -> None:
    watched = Watched()
    pool = ThreadPoolExecutor(1)
    items = persist(watched.items(), tmp_path, max_bytes=1000, scheduler=pool)
    assert next(items) == b"item"
    pool.shutdown()
    found = [b"item"] * (items.stored_seq - 1)
    assert taken(items, len(found)) == found
    with pytest.raises(Closed, match="scheduler"):
        next(items)
    assert watched.closed.is_set()


def test_an_executor_of_processes_is_refused_before_a_file_is_touched(tmp_path: Path) -> None:
    with ProcessPoolExecutor(1) as pool, pytest.raises(InvalidRequest, match="another process"):
        persist([b"item"], tmp_path / "queue", scheduler=pool)
    assert not (tmp_path / "queue").exists()


def test_an_executor_that_fails_is_an_error_and_the_source_is_closed(tmp_path: Path) -> None:
    class Failing(Executor):
        """As one of processes, to which no source can be sent."""

        def submit(self, work: Callable[..., Answer], /, *args: object, **kwargs: object) -> Future[Answer]:
            future: Future[Answer] = Future()
            future.set_exception(TypeError("cannot pickle this"))
            return future

    source = iter(numbers(3))
    items = persist(source, tmp_path, scheduler=Failing())
    with pytest.raises(TypeError, match="pickle"):
        next(items)
    assert list(persist(source, tmp_path)) == numbers(3)


@pytest.fixture
def _switching() -> Iterator[None]:
    """Threads take turns as often as the interpreter allows."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("_switching")
@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("max_bytes", [1, 60, 1000])
def test_neither_side_misses_that_the_other_has_moved(tmp_path: Path, workers: int, max_bytes: int) -> None:
    with ThreadPoolExecutor(max(1, workers)) as pool:
        scheduler = pool if workers else None
        assert list(persist(numbers(1000), tmp_path, max_bytes=max_bytes, scheduler=scheduler)) == numbers(1000)


# ---- one subscription ------------------------------------------------------------------------------------------------


def test_a_second_subscription_is_refused(tmp_path: Path) -> None:
    with persist([b"item"], tmp_path, max_bytes=1), pytest.raises(AlreadyOpen):
        persist([], tmp_path, consumer="other")


def test_a_second_thread_that_asks_is_refused(tmp_path: Path) -> None:
    inside, leave = threading.Event(), threading.Event()

    def load(data: bytes) -> object:
        inside.set()
        leave.wait(WAIT_S)
        return data

    serializer = Serializer(lambda value: b"%d" % value, load)
    with persist([7], tmp_path, serializer=serializer) as items, ThreadPoolExecutor(1) as pool:
        first = pool.submit(next, items)
        assert inside.wait(WAIT_S)
        with pytest.raises(AlreadyOpen, match="thread"):
            next(items)
        leave.set()
        assert first.result(WAIT_S) == b"7"


def test_an_interrupt_while_an_item_is_given_loses_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = PersistRun.next_item
    interrupts = Random(1)

    def interrupted(self: PersistRun) -> object:
        found = real(self)
        if interrupts.random() < 0.3:
            raise KeyboardInterrupt
        return found

    monkeypatch.setattr(PersistRun, "next_item", interrupted)
    found: list[bytes] = []
    with persist(numbers(200), tmp_path) as items:
        while len(found) < 200:
            try:
                found.append(next(items))
            except KeyboardInterrupt:
                continue
    assert found == numbers(200)


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """SIGINT raises ``KeyboardInterrupt``: a process that a shell starts in the background ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_ends_the_wait_for_an_item_and_loses_none(tmp_path: Path) -> None:
    release = threading.Event()

    def source() -> Iterator[bytes]:
        yield b"first"
        release.wait(WAIT_S)
        yield b"second"

    def next_under_ctrl_c(items: Iterator[bytes]) -> bytes:
        main = threading.get_ident()
        interrupt = threading.Thread(target=lambda: signal.pthread_kill(main, signal.SIGINT))
        interrupt.start()
        found = next(items)
        interrupt.join()
        return found

    with persist(source(), tmp_path) as items:
        assert next(items) == b"first"
        with pytest.raises(KeyboardInterrupt):
            next_under_ctrl_c(items)
        release.set()
        assert list(items) == [b"second"]


def test_items_that_an_interrupt_drops_on_the_way_are_taken_again(tmp_path: Path) -> None:
    for since in (None, "earliest"):
        settings = settings_for(tmp_path / str(since), since=since)
        with Queue(settings.path, page_size=PAGE_BYTES) as queue:
            queue.append_many(numbers(10))
        run = PersistRun(settings, settings.open)
        run._subscription.poll(0.0, 1000)
        assert run.next_item()[1] == b"0"
        run.close()


def settings_for(
    folder: Path, since: str | None = None, max_bytes: int | None = None, lifetime: timedelta | None = None
) -> PersistArguments:
    return PersistArguments(
        folder,
        consumer=None,
        since=since,
        serializer=None,
        lifetime=lifetime,
        max_bytes=max_bytes,
        sync="os",
        page_size=PAGE_BYTES,
        prefix=None,
    )


def test_a_failed_sync_of_a_cursor_ends_the_subscription(tmp_path: Path) -> None:
    files = CrashFiles(Random(1))
    settings = settings_for(tmp_path)
    source = [b"%d" % number * 200 for number in range(100)]
    items = Persisted(
        source,
        settings,
        scheduler=Inline(),
        open_queue=lambda: Queue("d/q", page_size=PAGE_BYTES, files=files, background=False),
    )
    files.refuse = lambda operation, name: (
        OSError(errno.EIO, name) if operation == "sync" and name.endswith(".cursor") else None
    )
    items._run.queue.flush()
    for _ in range(2):
        with pytest.raises(Closed) as caught:
            list(items)
        assert caught.value.code is Code.SYNC_FAILED
        files.refuse = None


def test_trimmed_items_are_reported_each_time(tmp_path: Path) -> None:
    source = [b"%d" % number * 100 for number in range(300)]
    with persist(source, tmp_path, scheduler=Inline()) as items:
        assert items.stored_seq == 300
    with Queue(tmp_path / "persist", page_size=PAGE_BYTES) as queue:
        assert queue.trim(before_seq=100)
    with persist([], tmp_path) as items:
        for _ in range(2):
            with pytest.raises(Trimmed):
                next(items)


# ---- processes -------------------------------------------------------------------------------------------------------


def test_a_forked_child_is_refused_and_the_parent_goes_on(tmp_path: Path) -> None:
    with persist(numbers(100), tmp_path, max_bytes=100) as items:
        assert next(items) == b"0"
        child = os.fork()
        if child == 0:
            refused = False
            try:
                next(items)
            except Closed as error:
                refused = error.code is Code.FORKED
            items.close()
            os._exit(0 if refused else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert list(items) == numbers(100, 1)


EXIT = """
import sys, threading
from concurrent.futures import ThreadPoolExecutor
import holdfast

def source():
    try:
        while True:
            yield b"item"
            if sys.argv[2] == "blocks":
                threading.Event().wait()
    finally:
        print("source closed", flush=True)

pool = ThreadPoolExecutor(1) if sys.argv[2] == "executor" else None
items = holdfast.persist(source(), sys.argv[1], max_bytes=100, page_size=4096, scheduler=pool)
print(next(items), flush=True)
"""


@pytest.mark.parametrize("how", ["thread", "executor", "blocks"])
def test_an_interpreter_that_exits_without_closing_is_not_held_up(tmp_path: Path, how: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", EXIT, tmp_path, how],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "b'item'\n" + ("source closed\n" if how != "blocks" else "")
    with persist([], tmp_path) as items:
        assert next(items) == b"item"


# ---- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"consumer": "a", "since": "earliest"}, "exclude"),
        ({"source": b"bytes"}, "source=bytes"),
        ({"source": "text"}, "source=str"),
        ({"source": 7}, "source=int"),
        ({"max_bytes": 0}, "max_bytes"),
        ({"max_bytes": 1.5}, "max_bytes"),
        ({"sync": "never"}, "sync"),
        ({"sync": "buffered"}, "buffered"),
        ({"page_size": 1}, "page_size"),
        ({"serializer": "yaml"}, "serializer"),
        ({"lifetime": 7}, "lifetime"),
        ({"prefix": "a/b"}, "name"),
        ({"prefix": ""}, "name"),
        ({"prefix": 7}, "prefix"),
        ({"consumer": ""}, "name"),
        ({"since": "yesterday"}, "since"),
        ({"since": datetime(2026, 1, 1)}, "time zone"),  # noqa: DTZ001 - what is refused
        ({"since": lambda: 7}, "since"),
        ({"since": lambda: None}, "since"),
        ({"scheduler": 7}, "scheduler"),
    ],
)
def test_bad_arguments_are_named_and_leave_nothing_open(tmp_path: Path, arguments: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidRequest, match=named):
        persist(**{"source": [], "directory": tmp_path, **arguments})
    assert list(persist([b"item"], tmp_path)) == [b"item"]
