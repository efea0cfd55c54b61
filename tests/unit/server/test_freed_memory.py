"""When freed memory is returned to the system: soon after a burst of connections, seldom while they come and go."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.server.http.freed_memory import COLLECTIONS, CONNECTIONS_MIN, TRIM_SECONDS, FreedMemory

MANY = 10 * CONNECTIONS_MIN


def collections_at(
    monkeypatch: pytest.MonkeyPatch, seconds: list[tuple[int, int]], *, in_flight: int = 0
) -> tuple[list[int], list[int]]:
    """The seconds of the collections and of the trims, for the (ended, open) connections of each second."""
    collected: list[int] = []
    trimmed: list[int] = []

    async def run() -> None:
        memory = FreedMemory(asyncio.get_running_loop())
        second = 0
        monkeypatch.setattr(memory, "_trim", lambda _: trimmed.append(second))
        monkeypatch.setattr(memory, "_collect", lambda: collected.append(second))
        for second, (ended, opened) in enumerate(seconds, start=1):  # noqa: B007 - the two functions above read it
            memory.look(ended=ended, opened=opened, in_flight=in_flight)
            for _ in range(4):  # the turns of the loop until the collection
                await asyncio.sleep(0)

    asyncio.run(run())
    return collected, trimmed


def test_a_burst_is_followed_by_every_collection_within_five_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    quiet = [(0, 0)] * 7
    collected, _ = collections_at(monkeypatch, [*quiet, (MANY, 0), *[(MANY, 0)] * 20])
    assert len(collected) == COLLECTIONS
    assert collected[-1] <= len(quiet) + 1 + 5
    assert collected[-1] - collected[0] == COLLECTIONS - 1, "a second apart"


def test_few_connections_cause_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert collections_at(monkeypatch, [(second, 1) for second in range(CONNECTIONS_MIN)]) == ([], [])


def test_while_connections_end_memory_is_trimmed_at_intervals_and_nothing_is_collected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    collected, trimmed = collections_at(monkeypatch, [(second * MANY, MANY) for second in range(1, 31)])
    assert collected == []
    assert trimmed == [second for second in range(1, 31) if second % TRIM_SECONDS == 0]


def test_nothing_is_collected_while_a_commit_is_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    assert collections_at(monkeypatch, [(MANY, 0)] * 20, in_flight=1)[0] == []
