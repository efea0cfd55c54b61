"""The parts of one commit: acknowledgements, changes of maps, publications. All of them are carried out, or none.

``refusal`` looks at every part in turn, with what the parts before it add and free, and changes nothing. When it finds
none, carrying the parts out cannot fail. Two estimates make this simple, and both only ever refuse too much, near a
limit: a publication counts every message that any durable wants, also one that a full durable with ``discard`` new
would leave out; an acknowledgement frees what no other durable keeps.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from holdfast.errors import Code, Conflict, HoldfastError, InvalidRequest
from holdfast.stores.durables.consumption import Consumption
from holdfast.stores.machine import map_commands
from holdfast.stores.machine.store import Cluster, Store, check_cluster, check_store
from holdfast.stores.values import commands
from holdfast.stores.values.messages import MessageBatch


class _Room:
    """What the parts looked at so far add to each store, in messages and bytes; below 0 where they free more."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._added: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0])

    def take(self, store: Store, messages: int, size: int) -> None:
        """Raises ``Backpressure`` (store_full, cluster_full) where there is no room."""
        added = self._added[store.name]
        totals = [sum(each) for each in zip(*self._added.values(), strict=True)]
        counts = (each.counts for each in self._cluster.defined_stores())
        check_cluster(self._cluster.definition, counts, messages, size, pending=(totals[0], totals[1]))
        check_store(store.definition, store.counts, messages, size, pending=(added[0], added[1]))
        self.give_back(store, -messages, -size)

    def give_back(self, store: Store, messages: int, size: int) -> None:
        """So much becomes free."""
        added = self._added[store.name]
        added[0] -= messages
        added[1] -= size


def refusal(cluster: Cluster, command: commands.CommitParts) -> tuple[int, HoldfastError] | None:
    """The first part that would be refused, by its position, and why; None when all of them can be carried out."""
    room = _Room(cluster)
    for position, part in enumerate(command.parts):
        try:
            if part.store in cluster.volatile_names:
                raise Conflict(
                    "the store is in memory only, and takes no part in commits",
                    code=Code.STORES_NOT_IN_LOG,
                    store=part.store,
                )
            match part:
                case commands.Acknowledge():
                    _look_at_acknowledgement(cluster, part, room)
                case commands.MapChange():
                    _look_at_change(cluster, part, room)
                case commands.Publish():
                    _look_at_publication(cluster, part, room)
        except HoldfastError as error:
            return position, error
    return None


def carry_out(
    cluster: Cluster, command: commands.CommitParts, handle: Callable[[commands.CommitPart], commands.Result]
) -> commands.PartsCommitted:
    """Carry out every part with ``handle``. Raises the refusal of the first that is refused: nothing has changed."""
    refused = refusal(cluster, command)
    if refused is not None:
        raise refused[1]
    results: list[commands.Acknowledged | commands.MapChanged | commands.Published] = []
    for part in command.parts:
        try:
            result = handle(part)
        except HoldfastError as error:
            raise AssertionError(f"a part that passed its check was refused: {error}") from error
        assert isinstance(result, commands.Acknowledged | commands.MapChanged | commands.Published), (
            "each part has its result"
        )
        results.append(result)
    return commands.PartsCommitted(results)


def _look_at_acknowledgement(cluster: Cluster, part: commands.Acknowledge, room: _Room) -> None:
    store, durable = cluster.find(part.store, part.durable)
    if not isinstance(durable, Consumption):
        raise InvalidRequest(
            "only messages of a standard or shared durable are acknowledged",
            code=Code.TYPE_MISMATCH,
            durable=part.durable,
            type=str(durable.definition.type),
        )
    holder = durable.leases.of.get(part.subscriber)
    before = 0
    for first, last in sorted(part.ack):
        if first <= before or last < first:
            raise InvalidRequest("ranges of numbers ascend, each number once", first=first, last=last)
        before = last
        held = [] if holder is None else holder.held_of(first, last)
        if sum(high - low + 1 for low, high in held) != last - first + 1:
            missing = first if not held or held[0][0] > first else held[0][1] + 1
            raise Conflict(
                "this subscriber does not hold the message any more",
                code=Code.LEASE_LOST,
                hint="it was delivered again, or will be: nothing is to be done",
                store=part.store,
                durable=part.durable,
                seq=missing,
            )
        if any(limits.message_limit or limits.bytelimit for limits in (cluster.definition, store.definition)):
            floor = durable.backlog.floor
            end = last if floor is None else min(last, floor - 1)
            freed = [seq for seq in range(first, end + 1) if store.counts.references(seq) == 1]
            room.give_back(store, len(freed), sum(store.counts.size(seq, seq) for seq in freed))


def _look_at_change(cluster: Cluster, part: commands.MapChange, room: _Room) -> None:
    store = cluster.store(part.store)
    plan = map_commands.checked_plan(store, map_commands.map_of(store, part.map), part)
    if plan.keys:
        room.take(store, plan.added_messages, plan.added_bytes)


def _look_at_publication(cluster: Cluster, part: commands.Publish, room: _Room) -> None:
    store = cluster.store(part.store)
    if not part.messages:
        raise InvalidRequest("a batch has at least one message", code=Code.NO_OPERATIONS)
    if store.publishers.duplicates(part.publisher, part.messages):
        raise Conflict(
            "the store has a message with this number of this publisher",
            code=Code.DUPLICATE,
            hint="the request id makes a commit safe to repeat: leave the publisher_id out",
            store=part.store,
            publisher=part.publisher,
            publisher_seq=part.messages[0].publisher_seq,
        )
    batch = MessageBatch(part.messages, store.definition.max_message_size, part.at_ms)
    positions = store.wanted(batch)
    room.take(store, len(positions), sum(batch.sizes[position] for position in positions))
