"""The rows of the cluster's parameters."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from unittest.mock import patch

from tests.integration.stores_harness import StoresServing, bodies
from tests.stores.parameter_rows import (
    ORDERS,
    Table,
    counts,
    eventually,
    numbered,
    refused,
    send,
    swapped_files,
)

from holdfast.stores.storage.log import MessageLog

CLUSTER = Table("cluster")
row = CLUSTER.row
ONE_KILOBYTE = "x" * 1_024
HALF_A_MEGABYTE = "x" * (512 << 10)
IN_MEMORY = {"store": {"replicated": False, "swap_bytelimit": 0}}


@row("name", "eu-1")
async def the_cluster_is_called_so(stores: StoresServing) -> None:
    assert (await stores.ask("GET", "/v1/cluster")).json["name"] == "eu-1"


@row("services", ["a"])
async def one_service_is_its_quorum_and_two_are_refused(stores: StoresServing) -> None:
    assert (await stores.ask("GET", "/v1/cluster/quorum")).json["members_in_quorum"] == ["a"]
    status, code, message = await refused(stores, {"cluster": {"services": ["a", "b"]}})
    assert (status, code) == (400, "bad_configuration")
    assert "cluster.services" in message and "with 2 the loss of either stops both" in message
    _, _, message = await refused(stores, {"cluster": {"services": ["a", "b", "c"]}})
    assert "does not replicate" in message


async def syncs_of_a_publication(stores: StoresServing) -> int:
    """How often the log was synced for one message."""
    with patch.object(MessageLog, "sync", autospec=True, side_effect=MessageLog.sync) as syncs:
        assert await send(stores, "a") == (200, "")
        return syncs.call_count


async def it_is_there(stores: StoresServing) -> None:
    assert bodies(await stores.poll("orders", "work")) == ["a"]


async def it_is_not_there(stores: StoresServing) -> None:
    assert (await counts(stores, ORDERS))["messages"] == 0


@row("persistence", "sync")
async def a_message_is_synced_and_survives(stores: StoresServing) -> Callable[[StoresServing], Awaitable[None]]:
    assert await syncs_of_a_publication(stores) >= 1
    return it_is_there


@row("persistence", "async")
async def a_message_is_not_synced_and_survives(stores: StoresServing) -> Callable[[StoresServing], Awaitable[None]]:
    assert await syncs_of_a_publication(stores) == 0
    return it_is_there


@row("persistence", "none")
async def a_message_is_in_memory_only(stores: StoresServing) -> Callable[[StoresServing], Awaitable[None]]:
    assert await syncs_of_a_publication(stores) == 0
    assert (await counts(stores, ORDERS))["messages"] == 1
    return it_is_not_there


@row("bytelimit", 1_500)
async def the_bytes_of_all_stores_are_limited_together(stores: StoresServing) -> None:
    assert await send(stores, ONE_KILOBYTE) == (200, "")
    assert await send(stores, ONE_KILOBYTE, store="other") == (409, "cluster_full")
    assert len(await stores.poll("orders", "work")) == 1
    await stores.acks("orders", "work", ack=[1])
    assert await send(stores, ONE_KILOBYTE, store="other") == (200, "")


@row("message_limit", 2)
async def the_messages_of_all_stores_are_limited_together(stores: StoresServing) -> None:
    assert await send(stores, "a") == (200, "")
    assert await send(stores, "b", "c", store="other") == (409, "cluster_full")
    assert await send(stores, "b", store="other") == (200, "")


@row("swap", True, around=IN_MEMORY)
async def bodies_of_a_store_in_memory_go_to_disk(stores: StoresServing) -> None:
    await stores.publish("orders", ONE_KILOBYTE)
    assert swapped_files(stores.host.directory) == 1
    assert bodies(await stores.poll("orders", "work")) == [ONE_KILOBYTE]


@row("swap", False, around=IN_MEMORY)
async def every_swap_bytelimit_is_ignored(stores: StoresServing) -> None:
    await stores.publish("orders", ONE_KILOBYTE)
    assert swapped_files(stores.host.directory) == 0
    assert bodies(await stores.poll("orders", "work")) == [ONE_KILOBYTE]


@row("publisher_ttl", 1)
async def an_idle_publisher_is_forgotten(stores: StoresServing) -> None:
    assert await numbered(stores, "p", 1) == (200, "")

    async def forgotten() -> bool:
        return (await counts(stores, ORDERS))["publishers"] == 0

    await eventually(forgotten)
    assert await numbered(stores, "p", 3) == (409, "unknown_publisher")
    assert await numbered(stores, "p", 1) == (200, "")


@row("publisher_ttl", 604_800)
async def a_publisher_that_is_known_goes_on(stores: StoresServing) -> None:
    assert await numbered(stores, "p", 1) == (200, "")
    assert await numbered(stores, "p", 3) == (409, "sequence_gap")
    assert await numbered(stores, "p", 2) == (200, "")


@row("max_disk_fraction", 0.000001)
async def publishing_is_refused_and_acknowledging_goes_on(stores: StoresServing) -> None:
    disk = (await stores.ask("GET", "/v1/cluster")).json["disk"]
    assert disk["limit"] == int(disk["capacity"] * 0.000001) < disk["used"]
    assert await send(stores, "a") == (507, "disk_limit")
    for fraction in (1.5, -0.1):
        status, code, message = await refused(stores, {"cluster": {"max_disk_fraction": fraction}})
        assert (status, code) == (400, "bad_configuration")
        assert "cluster.max_disk_fraction: a number from 0 to 1" in message


@row("max_disk_fraction", 0)
async def without_a_limit_nobody_looks(stores: StoresServing) -> None:
    assert await send(stores, "a") == (200, "")
    assert stores.opened.service.disk_limit.use is None


@row("max_disk_fraction", 0.000001, persistence="none")
async def nothing_on_disk_means_no_limit(stores: StoresServing) -> None:
    assert await send(stores, "a") == (200, "")


async def leave_a_hole(stores: StoresServing) -> int:
    """A message that is kept at the front of the log, nine consumed ones behind it. Returns the log's bytes."""
    for _ in range(10):
        await stores.publish("orders", HALF_A_MEGABYTE)
    taken: list[int] = []
    while len(taken) < 10:
        taken += [message["seq"] for message in await stores.poll("orders", "work", max=10)]
    await stores.acks("orders", "work", ack=taken[1:])
    allocated = stores.opened.service.compaction.space().allocated
    assert (await stores.ask("POST", "/v1/cluster/save")).status == 200
    return allocated


@row("disk_compact", True)
async def space_comes_back_by_itself(stores: StoresServing) -> None:
    before = await leave_a_hole(stores)

    async def smaller() -> bool:
        return (await stores.ask("GET", "/v1/cluster")).json["log"]["allocated"] < before

    await eventually(smaller)
    assert (await counts(stores))["messages"] == 1


@row("disk_compact", False)
async def space_comes_back_when_it_is_asked_for(stores: StoresServing) -> None:
    before = await leave_a_hole(stores)
    assert stores.opened.service.compaction.runs == 0
    assert stores.opened.service.compaction.space().allocated == before
    assert (await stores.ask("POST", "/v1/cluster/compact")).json["allocated"] < before


@row("min_disk_inuse_ratio", 0.01)
async def what_is_above_the_ratio_stays_where_it_is(stores: StoresServing) -> None:
    before = await leave_a_hole(stores)
    assert stores.opened.service.compaction.runs == 0
    assert stores.opened.service.compaction.space().allocated == before


@row("min_disk_inuse_ratio", 0.9)
async def what_is_below_the_ratio_moves(stores: StoresServing) -> None:
    before = await leave_a_hole(stores)

    async def smaller() -> bool:
        return stores.opened.service.compaction.space().allocated < before

    await eventually(smaller)


@row("max_deployment_history", 2)
async def so_many_definitions_can_be_put_in_force_again(stores: StoresServing) -> None:
    await stores.define("third")
    await stores.define("fourth")
    history = (await stores.ask("GET", "/v1/cluster/history")).json["history"]
    assert [one["revision"] for one in history] == [2, 3]
    gone = await stores.ask("POST", "/v1/cluster/rollback", {"revision": 1})
    assert (gone.status, gone.code) == (404, "not_found")
    back = await stores.ask("POST", "/v1/cluster/rollback", {"revision": 2})
    assert "fourth" not in back.json["definition"]["stores"]
