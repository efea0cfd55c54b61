"""To browse looks at a bounded part of a store at a time, and a page says where the next one begins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.integration.http_harness import run
from tests.integration.stores_harness import stores_serving
from tests.stores.state_harness import Machine

from holdfast.server.stores.operations import LOOKS_MAX
from holdfast.stores.durables.backlog import CHUNK
from holdfast.stores.durables.consumption import Consumption
from holdfast.wire.parts import Message

if TYPE_CHECKING:
    from pathlib import Path

LOOKS = 700


@pytest.fixture
def machine() -> Machine:
    """Eight blocks; of one durable one message in forty, of the keys half are set again."""
    machine = Machine(
        all={"type": "shared"}, few={"type": "shared", "matcher": {"kind": "a"}}, keys={"type": "last_value"}
    )
    machine.checked = False
    for first in range(0, 8_000, 500):
        machine.publish(
            *[
                Message(fields={"kind": "a" if number % 40 == 0 else "b"}, key=str(number % 4_100))
                for number in range(first, first + 500)
            ]
        )
    machine.attach("few", "me")
    machine.deliver("few", "me", 20)
    return machine


def pages(machine: Machine, name: str, count: int) -> list[list[int]]:
    """Every page, each within its bound."""
    durable, read = machine.durable(name), 0
    plain = machine.messages.read

    def counted(store: str, first: int, last: int) -> Any:
        nonlocal read
        read += last - first + 1
        return plain(store, first, last)

    machine.messages.read = counted  # type: ignore[method-assign]
    found: list[list[int]] = []
    after: int | None = 0
    while after is not None:
        read = 0
        if isinstance(durable, Consumption):
            page, after, left = durable.browse_page(after, count, LOOKS)
            found.append([seq for seq, _ in page])
        else:
            entries, after, left = durable.keyed.browse_page(after, count, LOOKS)
            found.append([entry.revision for entry in entries])
        assert len(found[-1]) <= count
        assert read <= LOOKS + CHUNK
        assert left <= LOOKS - read
    machine.messages.read = plain  # type: ignore[method-assign]
    return found


@pytest.mark.parametrize("count", [70, 1_000, 5_000])
@pytest.mark.parametrize("name", ["all", "few", "keys"])
def test_pages_together_are_everything_in_order_each_once(machine: Machine, name: str, count: int) -> None:
    durable = machine.durable(name)
    if isinstance(durable, Consumption):
        expected = [seq for seq, _ in durable.browse(0, 1 << 40)]
    else:
        expected = sorted(entry.revision for entry in durable.keyed.scan())
    assert len(expected) >= 200
    found = pages(machine, name, count)
    assert [seq for page in found for seq in page] == expected


def test_blocks_that_nobody_keeps_are_passed_in_one_look() -> None:
    machine = Machine(all={"type": "shared"}, few={"type": "shared", "matcher": {"kind": "a"}})
    machine.checked = False
    wanted = Message(fields={"kind": "a"})
    machine.publish(wanted)
    for _ in range(8):
        machine.publish(*[""] * 500)
    machine.publish(wanted)
    machine.attach("all", "me")
    while numbers := machine.numbers("all", "me", 500):
        machine.ack("all", "me", *numbers)
    durable = machine.durable("few")
    assert isinstance(durable, Consumption)
    assert durable.browse_page(0, 10, 2_100)[:2] == ([(1, 0), (4_002, 0)], None)


def test_a_browse_that_found_nothing_yet_says_where_to_go_on(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stores_serving(tmp_path) as stores:
            await stores.define(
                "s", durables={"all": {"type": "shared"}, "rare": {"type": "shared", "matcher": {"kind": "a"}}}
            )
            # Its backlog begins with the first message that it wants, and the next is far behind that.
            await stores.publish("s", "first", fields={"kind": "a"})
            published = 0
            while published < LOOKS_MAX + 2_000:
                await stores.publish("s", *[""] * 1_000)
                published += 1_000
            await stores.publish("s", "last", fields={"kind": "a"})
            after, found, empty = 0, [], 0
            while after is not None:
                target = f"/v1/stores/s/durables/rare/browse?after={after}&max=1"
                page = (await stores.ask("GET", target)).json
                found += [one["seq"] for one in page["messages"]]
                empty += not page["messages"] and page["next_after"] is not None
                after = page["next_after"]
            assert found == [1, published + 2]
            assert empty >= 1

    run(scenario)
