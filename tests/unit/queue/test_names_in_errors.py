"""What Python says about public objects names public classes; copies are refused in plain words."""

from __future__ import annotations

import asyncio
import copy
import inspect
import pickle
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from holdfast import aio, every, persist
from holdfast.queue import FileQueue, Queue

LEVELS = ["os", "always", every(messages=5)]


def error_of(call: Callable[..., object], *arguments: object, **keywords: object) -> str:
    with pytest.raises(TypeError) as caught:
        call(*arguments, **keywords)
    return str(caught.value)


@pytest.mark.parametrize("compression", [0, 1])
@pytest.mark.parametrize("level", LEVELS, ids=str)
def test_a_wrong_call_of_append_names_the_queue_s_own_method(tmp_path: Path, level: object, compression: int) -> None:
    queue = Queue(tmp_path / "q", sync=level, compression=compression)  # type: ignore[arg-type]
    for _ in range(2):  # open, then closed
        assert error_of(queue.append) == "Queue.append() missing 1 required positional argument: 'payload'"
        assert error_of(queue.append, b"1", b"2") == "Queue.append() takes 2 positional arguments but 3 were given"
        assert error_of(queue.append, data=b"1") == "Queue.append() got an unexpected keyword argument 'data'"
        assert queue.append.__doc__ == Queue.append.__doc__
        assert str(inspect.signature(queue.append)) == "(payload: 'object') -> 'int'"
        queue.close()


@pytest.mark.parametrize("level", LEVELS, ids=str)
def test_the_representation_of_append_names_the_queue(tmp_path: Path, level: object) -> None:
    with Queue(tmp_path / "q", sync=level) as queue:  # type: ignore[arg-type]
        assert repr(queue.append) == "<bound method Queue.append of <holdfast.Queue>>"


def check_names(shown: object) -> None:
    """Every public method refuses a wrong keyword under the name that the program calls it by."""
    kind = type(shown)
    methods = [name for name in dir(kind) if name[0] != "_" and inspect.isroutine(inspect.getattr_static(kind, name))]
    assert methods
    for name in methods:
        error = error_of(getattr(shown, name), no_such_argument=1)
        assert error.startswith(f"{kind.__name__}.{name}() "), error


async def check_names_of_a_shell(shown: object) -> None:
    """As ``check_names``; a method that runs on a helper thread refuses when it is awaited."""
    kind = type(shown)
    methods = [name for name in dir(kind) if name[0] != "_" and inspect.isroutine(inspect.getattr_static(kind, name))]
    assert methods
    for name in methods:
        with pytest.raises(TypeError) as caught:
            await getattr(shown, name)(no_such_argument=1)
        assert str(caught.value).startswith(f"{kind.__name__}.{name}() "), caught.value


def check_copies(shown: object) -> None:
    """The error of a copy names the class and what to do."""
    kind = type(shown).__name__
    expected = f"a {kind} cannot be pickled or copied: in the other process, open the queue again by its path"
    for copied in (pickle.dumps, copy.copy, copy.deepcopy, lambda it: pickle.dumps([it], protocol=2)):
        assert error_of(copied, shown) == expected


CHECKS = pytest.mark.parametrize("check", [check_names, check_copies])


@CHECKS
def test_public_objects_show_no_private_class(tmp_path: Path, check: Callable[[object], None]) -> None:
    with Queue(tmp_path / "q") as queue, queue.consumer("c") as consumer, queue.work_queue("w") as work:
        for shown in (queue, consumer, work):
            check(shown)
    check(queue)
    with FileQueue(tmp_path / "tasks") as tasks:
        check(tasks)
    with persist([b"one"], tmp_path / "items") as items:
        check(items)


def test_public_objects_of_asyncio_show_no_private_class(tmp_path: Path) -> None:
    async def check(shown: object) -> None:
        await check_names_of_a_shell(shown)
        check_copies(shown)

    async def source() -> AsyncIterator[bytes]:
        yield b"one"

    async def scenario() -> None:
        async with aio.Queue(tmp_path / "q") as queue, queue.consumer("c") as consumer, queue.work_queue("w") as work:
            for shown in (queue, consumer, work):
                await check(shown)
        await check(aio.Queue(tmp_path / "unopened"))
        async with aio.persist(source(), tmp_path / "items") as items:
            await check(items)

    asyncio.run(scenario())


@pytest.mark.parametrize("level", LEVELS, ids=str)
def test_the_append_of_a_queue_is_not_pickled_either(tmp_path: Path, level: object) -> None:
    with Queue(tmp_path / "q", sync=level) as queue:  # type: ignore[arg-type]
        assert "a Queue cannot be pickled or copied" in error_of(pickle.dumps, queue.append)
