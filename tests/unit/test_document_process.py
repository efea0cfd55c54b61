"""A document that somebody else sent: bounded before it is parsed, and a large one never stops the event loop."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable

import pytest

from holdfast.files.document_process import AT_ONCE, PROCESSES_MAX, WAITING_MAX, DocumentReader
from holdfast.files.documents import FORM, AboveBounds, Bounds, read_yaml

BOMB = "\n".join(
    ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    + [f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]" for level in range(1, 9)]
)
LARGE = "\n".join(f"key{number}: [1, 2.5, text, true, null, {{a: b}}]" for number in range(300))


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    """Run one scenario, with a bound."""

    async def bounded() -> None:
        async with asyncio.timeout(60):
            await scenario()

    asyncio.run(bounded())


def test_a_small_text_and_a_large_one_have_the_values_that_they_have_in_a_file() -> None:
    async def scenario() -> None:
        reader = DocumentReader(seconds_max=50)
        assert AT_ONCE.bytes_max < len(LARGE) < FORM.bytes_max
        for text in ("a: 1\nb: [x, 2.5, true, null]\n", "", "just text", LARGE, "é: [.inf]\n" + LARGE):
            assert await reader.read(text) == read_yaml(text)[0]
        with pytest.raises(ValueError, match=r"line 301: 'key0' is given twice"):
            await reader.read(LARGE + "\nkey0: 1")

    run(scenario)


def test_aliases_that_grow_are_refused_and_cost_no_memory() -> None:
    async def scenario() -> None:
        assert len(BOMB) < 600
        with pytest.raises(AboveBounds, match="more than 2000 values"):
            read_yaml(BOMB, AT_ONCE)
        with pytest.raises(ValueError, match="more than 100000 values"):
            await DocumentReader(seconds_max=50).read(BOMB)

    run(scenario)


def test_a_text_above_the_bound_is_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    def parsed(*_: object) -> None:
        raise AssertionError("it is parsed")

    async def scenario() -> None:
        monkeypatch.setattr("holdfast.files.documents._check_bounds", parsed)
        with pytest.raises(AboveBounds, match="more than 262144 bytes"):
            await DocumentReader(command=("false",)).read("é" * (FORM.bytes_max // 2 + 1))
        with pytest.raises(AboveBounds, match="more than 10 bytes"):
            read_yaml("a: 123456789", Bounds(10, 100))

    run(scenario)


def test_the_loop_goes_on_while_a_large_text_is_read() -> None:
    """The reading process waits for a word of this loop, so a loop that waited for it would never give it."""

    async def scenario() -> None:
        program = "import sys; sys.stdin.buffer.read(); print('{\"value\": 7}')"
        reading = asyncio.ensure_future(
            DocumentReader(seconds_max=50, command=(sys.executable, "-c", program)).read(LARGE)
        )
        turns = 0
        while not reading.done():
            await asyncio.sleep(0)
            turns += 1
        assert reading.result() == 7
        assert turns > 10

    run(scenario)


def test_a_process_that_takes_too_long_is_killed() -> None:
    async def scenario() -> None:
        program = "import time; time.sleep(600)"
        reader = DocumentReader(seconds_max=0.2, command=(sys.executable, "-c", program))
        began = time.monotonic()
        with pytest.raises(AboveBounds, match="to read"):
            await reader.read(LARGE)
        assert time.monotonic() - began < 300
        with pytest.raises(AboveBounds, match="to read"):
            await DocumentReader(seconds_max=50, command=(sys.executable, "-c", "raise MemoryError")).read(LARGE)

    run(scenario)


def test_few_processes_run_and_few_texts_wait() -> None:
    async def scenario() -> None:
        reader = DocumentReader(seconds_max=1.0, command=(sys.executable, "-c", "import time; time.sleep(600)"))
        waiting = [asyncio.ensure_future(reader.read(LARGE)) for _ in range(WAITING_MAX)]
        await asyncio.sleep(0)
        with pytest.raises(AboveBounds, match="too many"):
            await reader.read(LARGE)
        assert await reader.read("a: 1") == {"a": 1}, "a small text waits for none"
        assert PROCESSES_MAX < WAITING_MAX
        for each in waiting:
            each.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    run(scenario)
