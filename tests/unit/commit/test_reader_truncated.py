"""Where a reader begins in a log from which retention has removed the oldest objects."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.commit.builders import genesis, record

from holdfast.commit.format.batch import Header, encode_object, object_name
from holdfast.commit.format.chain import ChainWalker
from holdfast.commit.reading.reader import Leadership, follow, start_after
from holdfast.errors import CorruptData, NotFound
from holdfast.objects.memory import MemoryStore

FIRST = genesis()
RECORDS = 13


def headers() -> list[Header]:
    """A reign of batches of two transactions, an empty one among them."""
    found = [FIRST]
    for number in range(RECORDS):
        head = found[-1]
        first = head.last_version + 1
        found.append(record(head, FIRST) if number == 5 else record(head, FIRST, first, first + 1))
    return found[1:]


async def shown(store: MemoryStore, newest: Header, version: int) -> list[int]:
    """The slots that a reader gets who has seen everything up to ``version``, and what they say is after it."""
    walker = await start_after(store, Leadership(FIRST, None, newest), version)
    return [batch.header.slot async for batch in follow(store, walker, until=newest.slot)]


@pytest.mark.parametrize("removed", range(RECORDS))
def test_a_reader_begins_right_behind_what_it_has_or_is_told_that_it_is_gone(removed: int) -> None:
    batches = headers()
    newest = batches[-1]

    async def main() -> None:
        store = MemoryStore()
        for header in (FIRST, *batches[removed:]):
            await store.create(
                object_name(header.slot), encode_object(header, b"x" * 10 if header.transactions else b"")
            )
        gone = max((header.last_version for header in batches[:removed]), default=0)
        for version in range(FIRST.last_version, newest.last_version + 1):
            wanted = [header for header in batches if header.last_version > version]
            if version >= gone:
                assert await shown(store, newest, version) == [header.slot for header in wanted], version
            else:
                with pytest.raises(NotFound):
                    await shown(store, newest, version)

    asyncio.run(main())


def test_the_first_object_behind_what_was_removed_must_be_of_the_reign() -> None:
    one, two, three = headers()[:3]
    walker = ChainWalker.behind_removed(two.slot, FIRST)
    foreign = record(one, FIRST, two.first_version, two.last_version)
    with pytest.raises(CorruptData, match="another slot"):
        ChainWalker.behind_removed(three.slot, FIRST).accept(foreign)
    walker.accept(two)
    walker.accept(three)
    assert walker.head is three
