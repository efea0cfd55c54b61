"""The limits of stores and of their cluster: what a publication would make of the totals, against what is allowed.

Owns: the rules. Does not own: one message's bounds (``batch``), a durable's own limits (``durables``), the disk's
(``disk_limit``). Failure model: pure; over a limit it raises, with the number exceeded, and nothing was changed.

A publication counts with all that durables want of it. What it would push out of durables that discard their oldest
is not taken off before: whether that frees anything depends on who else keeps it.
"""

from __future__ import annotations

from holdfast.errors import Backpressure, Code

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.stores.definitions.definitions import ClusterDefinition, StoreDefinition
    from holdfast.stores.values.reference_counts import ReferenceCounts

__all__ = ["check_cluster", "check_store"]

_HINT = "consume, purge, or raise the limit; a publisher with a retry duration waits for that by itself"


def check_store(definition: StoreDefinition, counts: ReferenceCounts, messages: int, size: int) -> None:
    """Whether a store takes so many messages and bytes more. Raises ``Backpressure`` (store_full)."""
    if 0 < definition.message_limit < counts.live + messages and messages > 0:
        exceeded = {"messages": counts.live, "message_limit": definition.message_limit}
    elif 0 < definition.bytelimit < counts.live_bytes + size and size > 0:
        exceeded = {"bytes": counts.live_bytes, "bytelimit": definition.bytelimit}
    else:
        return
    raise Backpressure(
        "the store is full",
        code=Code.STORE_FULL,
        hint=_HINT,
        facts={"store": definition.name, "added_messages": messages, "added_bytes": size, **exceeded},
    )


def check_cluster(cluster: ClusterDefinition, stores: Iterable[ReferenceCounts], messages: int, size: int) -> None:
    """Whether all stores together take so much more. Raises ``Backpressure`` (cluster_full). Cost: O(stores)."""
    if not cluster.message_limit and not cluster.bytelimit:
        return
    live = live_bytes = 0
    for counts in stores:
        live += counts.live
        live_bytes += counts.live_bytes
    if 0 < cluster.message_limit < live + messages and messages > 0:
        raise Backpressure(
            "the cluster is full",
            code=Code.CLUSTER_FULL,
            hint=_HINT,
            facts={"messages": live, "added_messages": messages, "message_limit": cluster.message_limit},
        )
    if 0 < cluster.bytelimit < live_bytes + size and size > 0:
        raise Backpressure(
            "the cluster is full",
            code=Code.CLUSTER_FULL,
            hint=_HINT,
            facts={"bytes": live_bytes, "added_bytes": size, "bytelimit": cluster.bytelimit},
        )
