"""Reading the log backwards over the gap that a change of leader left in its versions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Self, cast

import pytest

from holdfast.client.protocol.effects import Checkpoint, TransactionEvent
from holdfast.console.reading import backwards
from holdfast.console.reading.service import WatchedService
from holdfast.errors import Code, HoldfastError

OLD, NEW = (10, 20, 30), (100_000_040, 100_000_050)
"""The versions of two leaders. The service knows that those from 31 on were rolled back to 30."""


class Stream:
    """What ``subscribe`` gives."""

    def __init__(self, after: int) -> None:
        self.after = after

    async def __aenter__(self) -> Self:
        if OLD[-1] < self.after < NEW[0] - 1:
            raise HoldfastError("this version was rolled back", code=Code.ROLLED_BACK, roll_back_to=OLD[-1])
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    async def __aiter__(self) -> AsyncIterator[object]:
        before = 0
        for version in OLD + NEW:
            if version > self.after:
                yield TransactionEvent(version, before, None, "leader", 0, ())
            if version == OLD[-1]:
                yield Checkpoint(version, "older leader")
            before = version
        yield Checkpoint(NEW[-1], "leader")


def service() -> WatchedService:
    async def version(**_: object) -> SimpleNamespace:
        return SimpleNamespace(version=NEW[-1])

    return cast(
        WatchedService,
        SimpleNamespace(log=SimpleNamespace(subscribe=lambda after, **_: Stream(after), version=version)),
    )


def test_the_list_of_transactions_goes_over_the_gap_of_a_change_of_leader() -> None:
    found = asyncio.run(backwards.newest(service(), NEW[-1], 10))
    assert [event.version for event in found.transactions] == [*reversed(NEW), *reversed(OLD)]
    assert found.older is None
    assert not found.truncated


@pytest.mark.parametrize("version", [30, 31, 5_000_000, NEW[0] - 2])
def test_the_transaction_after_a_version_of_the_gap_is_the_first_of_the_new_leader(version: int) -> None:
    event = asyncio.run(backwards.first_after(service(), version))
    assert event is not None
    assert event.version == NEW[0]
