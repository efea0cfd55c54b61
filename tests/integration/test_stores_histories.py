"""Restored, promoted, moved: the stores are the same in another history, so what is remembered of them is judged.

The rows are those of ``test_stores_identity``. ``kept`` was remembered before the copy was made, ``lost`` after it, of
the same store and with the same token.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.integration.http_harness import run
from tests.integration.stores_harness import DURABILITY, StoresServing, stores_serving
from tests.integration.test_stores_identity import ROWS, WORK, Remembered, fill, go_on, state_of
from tests.integration.test_stores_move import Place, opened

from holdfast.commit.reading.reader import find_frontier
from holdfast.commit.service import CommitService, ServiceOptions
from holdfast.copies.mirroring import Mirror, MirrorOptions
from holdfast.copies.promoting import promote
from holdfast.copies.restoring import Point, restore
from holdfast.errors import Code
from holdfast.stores.repair import backup
from holdfast.stores.storage.index import draw_history
from holdfast.stores.values import commands
from holdfast.stores.values.identity import HISTORIES_MAX, Histories
from holdfast.wire.parts import Message


@dataclass
class Parted:
    """Where the stores go on, and what is remembered of them."""

    folder: Path
    durability: str
    kept: Remembered
    lost: Remembered | None = None
    """None where nothing can be lost on the way."""


@asynccontextmanager
async def serving(folder: Path, durability: str) -> AsyncIterator[StoresServing]:
    """The stores in ``folder``, or in the log in it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(DURABILITY, durability)
        async with stores_serving(folder) as stores:
            yield stores


async def restored_files(tmp_path: Path) -> Parted:
    async with serving(tmp_path / "stores", "disk") as stores:
        kept = await fill(stores)
        await stores.opened.service.checkpoint()
        await stores.opened.service.copy_files(str(tmp_path / "copy"))
        lost = await go_on(stores, kept)
    backup.restore(str(tmp_path / "copy"), str(tmp_path / "restored"))
    return Parted(tmp_path / "restored", "disk", kept, lost)


async def another_index(tmp_path: Path) -> Parted:
    async with serving(tmp_path / "stores", "disk") as stores:
        kept = await fill(stores)
    draw_history(str(tmp_path / "stores" / "index.sqlite"))
    return Parted(tmp_path / "stores", "disk", kept)


async def version_of(folder: Path) -> int:
    async with opened((folder / "log").as_uri()) as store:
        frontier = await find_frontier(store)
    assert frontier is not None
    return frontier[0].last_version


async def restored_log(tmp_path: Path) -> Parted:
    source, target = tmp_path / "source", tmp_path / "target"
    async with serving(source, "log") as stores:
        kept = await fill(stores)
    cut = await version_of(source)
    async with serving(source, "log") as stores:
        lost = await go_on(stores, kept)
    async with (
        opened((source / "log").as_uri()) as log,
        opened((target / "log").as_uri(), create_missing=True) as copy,
    ):
        await restore(log, copy, Point(version=cut))
    return Parted(target, "log", kept, lost)


async def promoted_mirror(tmp_path: Path) -> Parted:
    source, target = tmp_path / "source", tmp_path / "target"
    async with serving(source, "log") as stores:
        kept = await fill(stores)
    async with opened((target / "log").as_uri(), create_missing=True) as copy:
        async with opened((source / "log").as_uri()) as log:
            await Mirror(log, copy, MirrorOptions()).run()
        async with serving(source, "log") as stores:
            lost = await go_on(stores, kept)
        await promote(copy)
    return Parted(target, "log", kept, lost)


async def moved_into_the_log(tmp_path: Path) -> Parted:
    with pytest.MonkeyPatch.context() as patch:
        place = Place(tmp_path, patch)
        async with opened(place.url, create_missing=True) as store:
            leader = await CommitService.lead(store, ServiceOptions(probe=False, take_over=True, allow_new=True))
            await leader.step_down()
            await leader.close()
        async with serving(place.disk, "disk") as stores:
            kept = await fill(stores)
        assert (await place.move("log")).changed
    return Parted(tmp_path, "log", kept)


async def moved_to_a_disk(tmp_path: Path) -> Parted:
    with pytest.MonkeyPatch.context() as patch:
        place = Place(tmp_path, patch)
        async with serving(tmp_path, "log") as stores:
            kept = await fill(stores)
        assert (await place.move("disk")).changed
    return Parted(place.disk, "disk", kept)


EVENTS: dict[str, Callable[[Path], Awaitable[Parted]]] = {
    "files restored": restored_files,
    "index made again": another_index,
    "log restored": restored_log,
    "mirror promoted": promoted_mirror,
    "moved into the log": moved_into_the_log,
    "moved to a disk": moved_to_a_disk,
}


@pytest.mark.parametrize("event", EVENTS)
def test_in_another_history_a_number_counts_up_to_where_the_histories_parted(tmp_path: Path, event: str) -> None:
    """Above it is another message. What rests on anything else than a number is refused, and changes nothing."""

    async def scenario() -> None:
        parted = await EVENTS[event](tmp_path)
        async with serving(parted.folder, parted.durability) as stores:
            token = (await stores.ask("GET", WORK)).json["token"]
            old = parted.kept["work"]
            assert token.partition(".")[2] == old.partition(".")[2], "the store and the durable are the same"
            assert token.partition(".")[0] != old.partition(".")[0], "in another history"
            before = await state_of(stores)
            for name, row in ROWS.items():
                for remembered in [parted.lost, parted.kept if row.later == "refused" else None]:
                    if remembered is None or row.later == "goes on":
                        continue
                    refused = await row.use(stores, remembered)
                    assert (refused.status, refused.code) == (409, "store_replaced"), (name, refused.body)
                    assert await state_of(stores) == before, name
            for name, row in ROWS.items():
                if row.later != "refused":
                    used = await row.use(stores, parted.kept)
                    assert used.status in row.works, (name, used.body)

    run(scenario)


def test_what_two_restores_of_one_backup_have_is_not_confused(tmp_path: Path) -> None:
    """Each restore is a history of its own, and a number of one means nothing in the other above the backup."""

    async def scenario() -> None:
        parted = await restored_files(tmp_path)
        async with serving(parted.folder, "disk") as stores:
            token = (await stores.ask("GET", WORK)).json["token"]
            first = await go_on(stores, {**parted.kept, "work": token, "store": token.rpartition(".")[0]})
        backup.restore(str(tmp_path / "copy"), str(tmp_path / "restored again"))
        async with serving(tmp_path / "restored again", "disk") as stores:
            for remembered in (first, {**first, "above": 0}):
                refused = await ROWS["cursor_of_browse"].use(stores, remembered)
                assert refused.code == "store_replaced", "this history was never met"
            assert (await ROWS["cursor_of_browse"].use(stores, parted.kept)).status == 200

    run(scenario)


def test_what_was_judged_once_is_judged_alike_after_a_restart_and_a_checkpoint(tmp_path: Path) -> None:
    async def scenario() -> None:
        parted = await restored_files(tmp_path)
        for has_checkpoint in (False, True, True):
            async with serving(parted.folder, "disk") as stores:
                assert parted.lost is not None
                assert (await ROWS["cursor_of_browse"].use(stores, parted.lost)).code == "store_replaced"
                assert (await ROWS["cursor_of_browse"].use(stores, parted.kept)).status == 200
                if has_checkpoint:
                    await stores.opened.service.checkpoint()

    run(scenario)


def test_a_part_of_a_commit_is_judged_as_the_request_by_itself(tmp_path: Path) -> None:
    """What counts is refused for another reason here: it is not held, has another revision, is there already."""

    def parts_of(it: Remembered, above: int) -> list[tuple[str, commands.CommitPart, Code]]:
        numbered = [Message(b"", publisher_seq=it["publisher_seq"] - 1)]
        return [
            (it["work"], commands.Acknowledge(0, "orders", "work", "x", [(above + 5, above + 5)]), Code.LEASE_LOST),
            (
                it["prices"],
                commands.MapChange(0, "orders", "prices", [("none", b"", it["tea"])]),
                Code.REVISION_MISMATCH,
            ),
            (it["store"], commands.Publish(0, "orders", "p", numbered), Code.DUPLICATE),
        ]

    async def scenario() -> None:
        parted = await restored_log(tmp_path)
        assert parted.lost is not None
        async with serving(parted.folder, "log") as stores:

            def refusal(token: str, part: commands.CommitPart) -> Code:
                stores.opened.service.flush()
                refused = stores.opened.service.carry_out_parts(commands.CommitParts(0, [part], [token]))
                assert len(refused) == 2
                return refused[1].code

            for token, part, code in parts_of(parted.kept, 0):
                assert refusal(token, part) is code, part
            for token, part, _ in parts_of(parted.lost, parted.lost["above"]):
                assert refusal(token, part) is Code.STORE_REPLACED, part
            locked = commands.MapChange(0, "orders", "prices", [("coffee", b"", None)], parted.kept["fence"])
            assert refusal(parted.kept["prices"], locked) is Code.STORE_REPLACED

    run(scenario)


@pytest.mark.parametrize("is_same", [True, False])
def test_what_an_application_works_on_is_kept_for_it_in_the_same_history_only(tmp_path: Path, is_same: bool) -> None:
    """In another one it cannot acknowledge that, so it comes again at once and not after an ``ack_wait``."""

    async def scenario() -> None:
        async with serving(tmp_path, "disk") as stores:
            await stores.define("orders", durables={"work": {"type": "shared"}})
            await stores.publish("orders", "a", "b")
            subscriber = await stores.subscribe("orders", "work", "w", more="&session=one")
            token = (await subscriber.next())["token"]
            subscriber.send(type="credit", messages=2)
            await subscriber.messages(2)
        if not is_same:
            draw_history(str(tmp_path / "index.sqlite"))
        async with serving(tmp_path, "disk") as stores:
            more = f"&session=one&token={token}&keep=1"
            subscriber = await stores.subscribe("orders", "work", "w", more=more)
            attached = await subscriber.next()
            assert attached["kept"] == ([[1, 1]] if is_same else [])
            subscriber.send(type="credit", messages=2)
            assert {one["seq"] for one in await subscriber.messages(1 if is_same else 2)} == (
                {2} if is_same else {1, 2}
            )

    run(scenario)


def test_histories_are_remembered_in_order_and_the_oldest_are_forgotten() -> None:
    lineage = Histories()
    lineage.go_on("h0", [])
    for number in range(1, HISTORIES_MAX + 2):
        lineage.go_on(f"h{number}", [(7, number * 10)])
    assert lineage.history == f"h{HISTORIES_MAX + 1}"
    assert not lineage.has("h0", 7, 1), "forgotten"
    assert lineage.has("h1", 7, 20) and not lineage.has("h1", 7, 21)
    assert not lineage.has("h1", 8, 1), "of another store nothing is known"
    assert lineage.has(lineage.history, 8, 1)
    again = Histories()
    again.restore(*lineage.state())
    assert again.state() == lineage.state()


STATED = {
    "numbers of messages in an acknowledgement": (
        *("ack", "ack_ranges", "nack", "reject", "extend", "started"),
        *("ack_frame", "nack_frame", "reject_frame", "extend_frame"),
    ),
    "the number after which a browse continues": ("cursor_of_browse", "explained_number", "deleted_number"),
    "the revision in": ("revision", "revision_of_removal"),
    "the numbers of a publisher": ("publisher",),
    "a subscriber, a watch or a poller": ("subscriber", "watch", "poll"),
    "the key after which": ("cursor_of_map",),
    "a fence or a lock": ("revision_with_a_fence", "fence", "lock", "unlock"),
    "the token alone": (
        *("entry", "rewound_number", "redelivered_number", "purge", "described_durable", "described_store"),
        *("deleted_durable", "changed_durable", "deleted_store"),
    ),
    "the checkpoint of a Spark stream": (),
    "the offset of a Spark stream": (),
}
"""How each line of the table in the reference begins, and its rows. Those of Spark are in ``tests/spark``:
``test_served_store_source``, ``test_store_source``, ``test_store_in_log``."""
REFERENCE = Path(__file__).parents[2] / "docs" / "reference" / "stores.md"


def test_the_reference_states_what_each_row_does() -> None:
    table = REFERENCE.read_text().partition("| what is remembered |")[2].partition("\n\n")[0].splitlines()[2:]
    assert sorted(name for names in STATED.values() for name in names) == sorted(ROWS)
    for line, (begins, names) in zip(table, STATED.items(), strict=True):
        _, what, made_again, later, _ = (cell.strip() for cell in line.split("|"))
        assert what.startswith(begins)
        assert made_again == "refused"
        assert {ROWS[name].later for name in names} <= {"numbers" if later == "judged" else later}, what
