"""One store with its durables, publishers and limits (``Store``), and all stores of a cluster (``Cluster``).

A published batch is checked as a whole before it is stored, so a refusal changes nothing. Limits count every message
that a durable wants; messages that durables with ``discard`` old will discard are not subtracted first.

A message that is sent again is stored once: only a publisher's last number + 1 is new. A lower number is a duplicate
and gets the store's number of the first copy (the oldest known, if the copy is older than ``HISTORY_MAX`` batches); a
higher number would leave a gap. A publisher idle for ``publisher_ttl``, or the longest idle of more than
``PUBLISHERS_MAX``, is forgotten: one of the last ``FORGOTTEN_MAX`` gets ``unknown_publisher`` for its next number.
"""

from __future__ import annotations

from array import array
from bisect import insort
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from holdfast.errors import Backpressure, Code, Conflict, InvalidRequest, NotFound
from holdfast.stores.definitions.cluster import ClusterDefinition, DurableDefinition, DurableType, StoreDefinition
from holdfast.stores.definitions.reader import STATISTICS
from holdfast.stores.durables.backlog import Residue, Shelf
from holdfast.stores.durables.consumption import Consumption, Standard
from holdfast.stores.durables.key_ordered import KeyOrdered
from holdfast.stores.durables.keyed import KeyedResidue, LastValue
from holdfast.stores.durables.map import MapDurable
from holdfast.stores.matching import MatcherIndex
from holdfast.stores.values import commands
from holdfast.stores.values.deadlines import Deadlines, earlier
from holdfast.stores.values.effects import Advise, Effect, Ready, Withdrawn
from holdfast.stores.values.identity import Histories, id_of
from holdfast.stores.values.messages import MessageBatch
from holdfast.stores.values.ports import Blocks, KeyEntries, Messages
from holdfast.stores.values.reference_counts import MAP_VALUE, REFERENCES_MAX, ReferenceCounts
from holdfast.wire.parts import FieldValue, Message

HISTORY_MAX = 128  # batches of one publisher whose numbers are known
PUBLISHERS_MAX = 100_000  # publishers of one store: all of them are in memory, and in each snapshot
FORGOTTEN_MAX = 10_000

Run = tuple[int, int, int]  # first and last number of the publisher, and the first number in the store
PublisherState = tuple[str, int, list[Run]]  # name, when it last published, its history


class _Publisher:
    __slots__ = ("runs", "used_ms")

    def __init__(self, used_ms: int, runs: Sequence[Run] = ()) -> None:
        self.used_ms = used_ms
        self.runs: deque[Run] = deque(runs, maxlen=HISTORY_MAX)


class Publishers:
    """The publishers of one store, the longest idle first."""

    def __init__(self) -> None:
        self._known: dict[str, _Publisher] = {}
        self._forgotten: dict[str, None] = {}

    def __len__(self) -> int:
        return len(self._known)

    def duplicates(self, publisher: str, messages: Sequence[Message]) -> int:
        """How many of the first messages are stored already. Changes nothing.

        *Raises*: ``InvalidRequest`` for numbers that do not rise by one; ``Conflict`` (sequence_gap,
        unknown_publisher).
        """
        first = messages[0].publisher_seq
        if not publisher:
            if any(message.publisher_seq for message in messages):
                raise InvalidRequest("numbered messages have a publisher_id")
            return 0
        if first < 1 or (
            len(messages) > 1
            and [message.publisher_seq for message in messages] != list(range(first, first + len(messages)))
        ):
            raise InvalidRequest("a publisher numbers its messages, rising by one", publisher=publisher, first=first)
        known = self._known.get(publisher)
        if known is None:
            if first > 1 and publisher in self._forgotten:
                raise Conflict(
                    "this publisher was idle for too long and is forgotten",
                    code=Code.UNKNOWN_PUBLISHER,
                    publisher=publisher,
                    publisher_seq=first,
                    hint="start again with number 1, or use another publisher_id",
                )
            return 0
        last = known.runs[-1][1]
        if first > last + 1:
            raise Conflict(
                "earlier messages of this publisher are missing",
                code=Code.SEQUENCE_GAP,
                publisher=publisher,
                publisher_seq=first,
                expected=last + 1,
                hint="send the missing ones first",
            )
        return min(len(messages), last - first + 1)

    def seq_of(self, publisher: str, publisher_seq: int) -> int:
        """The number in the store of a stored message."""
        runs = self._known[publisher].runs
        for first, last, seq in reversed(runs):
            if first <= publisher_seq <= last:
                return seq + publisher_seq - first
        return runs[0][2]

    def last_of(self, publisher: str) -> int:
        """The last number that is stored, 0 of an unknown publisher."""
        known = self._known.get(publisher)
        return 0 if known is None else known.runs[-1][1]

    def accepted(self, publisher: str, first: int, count: int, first_seq: int, at_ms: int) -> None:
        """``count`` messages from number ``first`` on are stored from ``first_seq`` on."""
        known = self._known.pop(publisher, None)
        if known is None:
            known = _Publisher(at_ms)
            self._forgotten.pop(publisher, None)
        self._known[publisher] = known  # at the end: the one that was used last
        known.used_ms = at_ms
        runs = known.runs
        if runs and runs[-1][2] + first - runs[-1][0] == first_seq:
            runs[-1] = (runs[-1][0], first + count - 1, runs[-1][2])
        else:
            runs.append((first, first + count - 1, first_seq))
        while len(self._known) > PUBLISHERS_MAX:
            self._forget_first()

    def next_deadline_ms(self, ttl_ms: int) -> int | None:
        """When the next publisher is forgotten, or None."""
        for known in self._known.values():
            return known.used_ms + ttl_ms
        return None

    def expire(self, now_ms: int, ttl_ms: int) -> None:
        """Forget those who were idle for ``ttl_ms``."""
        while self._known:
            if self._known[next(iter(self._known))].used_ms + ttl_ms > now_ms:
                return
            self._forget_first()

    def _forget_first(self) -> None:
        name = next(iter(self._known))
        del self._known[name]
        self._forgotten[name] = None
        if len(self._forgotten) > FORGOTTEN_MAX:
            del self._forgotten[next(iter(self._forgotten))]

    def state(self) -> tuple[list[PublisherState], list[str]]:
        """Everything, in the order of use."""
        return [(name, known.used_ms, list(known.runs)) for name, known in self._known.items()], list(self._forgotten)

    def restore(self, known: Sequence[PublisherState], forgotten: Sequence[str]) -> None:
        """As ``state`` gave it."""
        self._known = {
            name: _Publisher(used_ms, [(run[0], run[1], run[2]) for run in runs]) for name, used_ms, runs in known
        }
        self._forgotten = dict.fromkeys(forgotten)

    def check(self) -> None:
        """Publishers are in the order of use, and each one's history rises."""
        used = [known.used_ms for known in self._known.values()]
        assert used == sorted(used), "the one that was idle for longest is first"
        for known in self._known.values():
            assert known.runs, "a publisher has published"
            ends = [run[1] for run in known.runs]
            assert ends == sorted(set(ends)), "a history rises"


_HINT = "consume or purge messages, or raise the limit; a publisher with a retry duration waits until there is room"


Pending = tuple[int, int]
"""Messages and bytes that are to be added before."""


def check_store(
    definition: StoreDefinition, counts: ReferenceCounts, messages: int, size: int, *, pending: Pending = (0, 0)
) -> None:
    """Raises ``Backpressure`` (store_full) if the store has no room for this many messages and bytes."""
    if 0 < definition.message_limit < counts.live + pending[0] + messages and messages > 0:
        exceeded = {"messages": counts.live, "message_limit": definition.message_limit}
    elif 0 < definition.bytelimit < counts.live_bytes + pending[1] + size and size > 0:
        exceeded = {"bytes": counts.live_bytes, "bytelimit": definition.bytelimit}
    else:
        return
    raise Backpressure(
        "the store is full",
        code=Code.STORE_FULL,
        hint=_HINT,
        facts={"store": definition.name, "added_messages": messages, "added_bytes": size, **exceeded},
    )


def check_cluster(
    cluster: ClusterDefinition,
    stores: Iterable[ReferenceCounts],
    messages: int,
    size: int,
    *,
    pending: Pending = (0, 0),
) -> None:
    """Raises ``Backpressure`` (cluster_full) if all stores together have no room. Cost: O(stores)."""
    if not cluster.message_limit and not cluster.bytelimit:
        return
    live, live_bytes = pending
    for counts in stores:
        live += counts.live
        live_bytes += counts.live_bytes
    if 0 < cluster.message_limit < live + messages and messages > 0:
        facts = {"messages": live, "added_messages": messages, "message_limit": cluster.message_limit}
    elif 0 < cluster.bytelimit < live_bytes + size and size > 0:
        facts = {"bytes": live_bytes, "added_bytes": size, "bytelimit": cluster.bytelimit}
    else:
        return
    raise Backpressure("the cluster is full", code=Code.CLUSTER_FULL, hint=_HINT, facts=facts)


Durable = Consumption | LastValue | MapDurable


class Store:
    """The state of one store. *Cost* of a publication: O(messages + durables), and for a matcher what it matches."""

    def __init__(
        self,
        definition: StoreDefinition,
        messages: Messages,
        blocks: Blocks,
        entries: KeyEntries,
        room: Callable[[int, int], None],
        withdrawn: list[Withdrawn],
        identity: int = 0,
    ) -> None:
        self.definition = definition
        self.id = identity
        self.ids: dict[str, int] = {}
        """The id of each durable."""
        self.name = definition.name
        self.counts = ReferenceCounts(definition.name, blocks)
        self.shelf = Shelf(definition.name, self.counts, messages, withdrawn=withdrawn)
        self.blocks = blocks
        self.entries = entries
        self.publishers = Publishers()
        self.durables: dict[str, Durable] = {}
        self.idle_since_ms: dict[str, int] = {}
        """Durables without subscribers, and since when; of maps since their last change at the earliest."""
        self.ageing: dict[str, None] = {}  # durables whose deadlines a publication changes
        self.residues: list[Residue] = []  # what purges and deletions have left to give back
        self.keyed_residues: list[KeyedResidue] = []  # the same of maps and last values
        self.unmatched = 0  # messages that no durable wanted
        self.room = room
        # Each of them in the order of ``durables``, so that a definition that changed and a restored one give equal
        # effects.
        self._plain: list[Consumption] = []
        self._limited: list[Consumption] = []
        self._matched: MatcherIndex[str] = MatcherIndex()
        self._places: dict[str, int] = {}
        self._next_place = 0

    def add(self, definition: DurableDefinition, now_ms: int, identity: int) -> Durable:
        """Make a durable; it wants messages from now on. Raises ``Backpressure`` (too_many_durables)."""
        if len(self.durables) >= REFERENCES_MAX:
            raise self._too_many(len(self.durables), REFERENCES_MAX)
        durable: Durable
        match definition.type:
            case DurableType.STANDARD:
                durable = Standard(definition, self.shelf)
            case DurableType.SHARED:
                kind = KeyOrdered if definition.key_ordered else Consumption
                durable = kind(definition, self.shelf)
            case DurableType.LAST_VALUE:
                durable = LastValue(definition, self.shelf, self.entries, self._namespace(definition.name))
            case DurableType.MAP:
                durable = MapDurable(definition, self.shelf, self.entries, self._namespace(definition.name))
        self.durables[definition.name] = durable
        self.ids[definition.name] = identity
        self._places[definition.name] = self._next_place
        self._next_place += 1
        self.idle_since_ms[definition.name] = now_ms
        self.file(durable)
        return durable

    def _namespace(self, name: str) -> str:
        """Where a new durable's entries are: not where those of an earlier one of its name are still given back."""
        is_used = any(residue.of.namespace == name for residue in self.keyed_residues)
        return f"{name}#{self.counts.next_seq}" if is_used else name

    def add_dynamic(self, definition: DurableDefinition, now_ms: int, drawn: int) -> Durable:
        """Make a durable of a template. Raises ``Backpressure`` (too_many_durables)."""
        limit = self.definition.dynamic_durable_limit
        if 0 < limit <= len(self.durables):
            count = sum(1 for durable in self.durables.values() if durable.definition.dynamic)
            if count >= limit:
                raise self._too_many(count, limit)
        return self.add(definition, now_ms, id_of(drawn, self.name, definition.name))

    def _too_many(self, count: int, limit: int) -> Backpressure:
        return Backpressure(
            "the store has too many durables",
            code=Code.TOO_MANY_DURABLES,
            hint="delete those that nobody needs (unsubscribe), or raise dynamic_durable_limit of the store",
            facts={"store": self.name, "durables": count, "limit": limit},
        )

    def remove(self, name: str, now_ms: int) -> tuple[int, int]:
        """Delete a durable and what it keeps; returns messages and bytes. Cost: as its purge."""
        purged = self.purge(name, now_ms)
        for residue in self.keyed_residues:
            if residue.of.durable == name:
                # Nothing more is reported to watchers: they hear of the deletion.
                residue.of = msgspec.structs.replace(residue.of, cause="")
        self.unfile(name)
        del self.durables[name], self.ids[name], self._places[name]
        self.idle_since_ms.pop(name, None)
        return purged

    def purge(self, name: str, now_ms: int) -> tuple[int, int]:
        """Forget everything that a durable keeps."""
        durable = self.durables[name]
        if not isinstance(durable, Consumption):
            cleared = durable.pending, durable.pending_bytes
            residue = self.leave(name, now_ms)
            if residue is not None:
                residue.step()
                self.forget_done()
            return cleared
        messages, size, residues = durable.purge(now_ms)
        self.residues += residues
        return messages, size

    def leave(self, name: str, now_ms: int, cause: str = "", revision: int = 0) -> KeyedResidue | None:
        """Clear a map or last value; returns the new residue, None if nothing is left to give back."""
        durable = self.durables[name]
        assert not isinstance(durable, Consumption), "it has keys"
        residue = durable.keyed.leave(now_ms, is_map=isinstance(durable, MapDurable), cause=cause, revision=revision)
        if residue is not None:
            self.keyed_residues.append(residue)
        return residue

    def forget_done(self) -> None:
        """Remove the residues that have given everything back."""
        self.keyed_residues = [residue for residue in self.keyed_residues if not residue.is_done]

    def file(self, durable: Durable) -> None:
        """Let publications find a durable, by its current definition."""
        name = durable.definition.name
        definition = durable.definition
        limited = definition.message_limit or definition.bytelimit
        if definition.message_ttl_ms or definition.retention_time_ms or limited:
            self.ageing[name] = None
        if isinstance(durable, LastValue):
            self._matched.add(name, durable.definition.matcher, self._places[name])
        elif isinstance(durable, Consumption):
            if durable.takes_all:
                insort(self._plain, durable, key=self._place)
            elif durable.backlog.matcher.everything:
                insort(self._limited, durable, key=self._place)
            else:
                self._matched.add(name, durable.backlog.matcher, self._places[name])

    def _place(self, durable: Consumption) -> int:
        return self._places[durable.name]

    def unfile(self, name: str) -> None:
        """The reverse of ``file``."""
        self._matched.remove(name)
        self._limited = [durable for durable in self._limited if durable.name != name]
        self.ageing.pop(name, None)
        self._plain = [durable for durable in self._plain if durable.name != name]

    def wanting(self, fields: Mapping[str, FieldValue]) -> list[str]:
        """The durables, except maps, that want a message with these fields. Cost: as ``MatcherIndex.matching``."""
        return [*(durable.name for durable in (*self._plain, *self._limited)), *self._matched.matching(fields)]

    def durable(self, name: str) -> Durable:
        """A durable. Raises ``NotFound``."""
        durable = self.durables.get(name)
        if durable is None:
            raise NotFound("there is no such durable", store=self.name, durable=name)
        return durable

    def publish(self, command: commands.Publish, effects: list[Effect]) -> commands.Published:
        """Accept a batch. Raises as ``MessageBatch``, ``Publishers.duplicates`` and the limits."""
        messages, publisher = command.messages, command.publisher
        if not messages:
            raise InvalidRequest("a batch has at least one message", code=Code.NO_OPERATIONS)
        duplicates = self.publishers.duplicates(publisher, messages)
        first_number = messages[0].publisher_seq
        if duplicates == len(messages):
            first = self.publishers.seq_of(publisher, first_number)
            last = self.publishers.seq_of(publisher, first_number + duplicates - 1)
            return commands.Published(first, last, duplicates, 0)
        fresh = messages[duplicates:] if duplicates else messages
        batch = MessageBatch(fresh, self.definition.max_message_size, command.at_ms)
        discarded = self.shelf.discarded
        first, unmatched = self.accept(batch, effects)
        discarded = self.shelf.discarded - discarded
        if publisher:
            self.publishers.accepted(publisher, first_number + duplicates, len(fresh), first, command.at_ms)
        last = first + len(fresh) - 1
        if duplicates:
            first = self.publishers.seq_of(publisher, first_number)
        return commands.Published(first, last, duplicates, unmatched, discarded)

    def accept(self, batch: MessageBatch, effects: list[Effect]) -> tuple[int, int]:
        """Number and keep a batch; returns its first number, and how many messages no durable wanted."""
        count = len(batch.sizes)
        references = array("H", [len(self._plain)]) * count
        candidates = self._candidates(batch) if self._limited or len(self._matched) else {}
        admitted: dict[str, Sequence[int]] = {}
        for name, positions in candidates.items():
            durable = self.durables[name]
            let_in = durable.admits(positions, batch) if isinstance(durable, Consumption) else positions
            admitted[name] = let_in
            for position in let_in:
                references[position] += 1
        unmatched = 0 if self._plain else references.count(0)
        size = batch.size
        if unmatched:
            size -= sum(batch.sizes[position] for position in range(count) if not references[position])
        self.room(count - unmatched, size)
        check_store(self.definition, self.counts, count - unmatched, size)
        first = self.counts.append(batch.sizes, references, batch.at_ms)
        self.shelf.messages.add(self.name, first, batch.at_ms, batch.messages, batch.sizes)
        for position in batch.timed:
            self._mark_timed(batch, position, first + position)
        self.unmatched += unmatched
        for durable in self._plain:
            durable.published_all(batch, effects)
        for name, positions in candidates.items():
            durable = self.durables[name]
            if isinstance(durable, Consumption):
                durable.published(first, positions, admitted[name], batch, effects)
            elif isinstance(durable, LastValue) and durable.published(first, admitted[name], batch):
                effects.append(Ready(self.name, name))
        return first, unmatched

    def accept_for(self, durable: Consumption, batch: MessageBatch, effects: list[Effect]) -> int:
        """Number and keep one message for one durable only; returns its number.

        Raises ``Backpressure`` if a limit has no room, ``InvalidRequest`` if the durable's matcher does not take it.
        """
        fields = batch.messages[0].fields
        if not durable.backlog.matcher.matches(fields):
            raise InvalidRequest(
                "message does not match the durable's matcher",
                code=Code.MATCHER_MISMATCH,
                facts={"store": self.name, "durable": durable.name},
            )
        if not durable.admits([0], batch):
            raise Backpressure(
                "the durable is full", code=Code.STORE_FULL, facts={"store": self.name, "durable": durable.name}
            )
        self.room(1, batch.size)
        check_store(self.definition, self.counts, 1, batch.size)
        seq = self.counts.append(batch.sizes, array("H", [1]), batch.at_ms)
        self.shelf.messages.add(self.name, seq, batch.at_ms, batch.messages, batch.sizes)
        for _ in batch.timed:
            self._mark_timed(batch, 0, seq)
        for other in self.durables.values():
            if isinstance(other, Consumption) and other is not durable and other.backlog.matcher.matches(fields):
                other.backlog.exclude(seq, seq)
        durable.published(seq, [0], [0], batch, effects)
        return seq

    def wanted(self, batch: MessageBatch) -> Collection[int]:
        """The positions of the messages that a durable would be given, were there room."""
        if self._plain:
            return range(len(batch.messages))
        return {position for positions in self._candidates(batch).values() for position in positions}

    def _candidates(self, batch: MessageBatch) -> dict[str, Sequence[int]]:
        candidates: dict[str, list[int]] = {}
        if len(self._matched):
            for position, message in enumerate(batch.messages):
                for name in self._matched.matching(message.fields):
                    durable = self.durables[name]
                    if isinstance(durable, LastValue) and durable.key_for(message) is None:
                        continue
                    candidates.setdefault(name, []).append(position)
        everything = range(len(batch.messages))
        return {**candidates, **{durable.name: everything for durable in self._limited}}

    def _mark_timed(self, batch: MessageBatch, position: int, seq: int) -> None:
        message = batch.messages[position]
        start_ms = max(batch.at_ms, message.deliver_at_ms)
        self.counts.mark_timed(seq, start_ms + message.ttl_ms if message.ttl_ms else 0)

    def check(self) -> None:
        """Every invariant: each message's count is the number of durables that keep it. Cost: O(messages kept)."""
        self.counts.check()
        self.publishers.check()
        expected: dict[int, int] = {}
        assert self.ids.keys() == self.durables.keys(), "each durable has an id"
        for name, durable in self.durables.items():
            durable.check()
            assert durable.definition.name == name, "a durable is under its name"
            if isinstance(durable, Consumption):
                numbers = [seq for first, last in durable.kept().runs() for seq in range(first, last + 1)]
            else:
                numbers = [entry.revision for entry in durable.keyed.scan()]
            for seq in numbers:
                expected[seq] = expected.get(seq, 0) + 1 if not isinstance(durable, MapDurable) else MAP_VALUE
        for residue in self.residues:
            left = residue.kept()
            assert not residue.is_done and residue.left in (None, len(left)), "a residue knows how much is left"
            for seq in left:
                expected[seq] = expected.get(seq, 0) + 1
        for cleared in self.keyed_residues:
            entries = cleared.kept()
            assert cleared.left == len(entries) > 0, "a residue knows how much is left"
            for entry in entries:
                expected[entry.revision] = MAP_VALUE if cleared.of.is_map else expected.get(entry.revision, 0) + 1
        references = {seq: count for seq in range(1, self.counts.next_seq) if (count := self.counts.references(seq))}
        assert references == expected, "each message's count is the number of durables that keep it"
        assert self.counts.live == len(references), "the store's total is that of its messages"
        assert self.counts.live_bytes == sum(self.counts.size(seq, seq) for seq in references), "and so are its bytes"


class Revision(msgspec.Struct, frozen=True, array_like=True):
    """One definition of the history. See ``definition_at``."""

    revision: int
    at_ms: int
    author: str
    undo: list[commands.DefinitionPart]
    """What makes the one before of this one."""


Ports = tuple[Messages, Blocks, KeyEntries]
_OF_THE_LOG: Final = commands.Redefine, commands.Restarted, commands.CommitParts, commands.Inherit


class Cluster:
    """Base of ``State``. ``volatile`` are the ports of stores in memory only, if they are not the same."""

    def __init__(self, messages: Messages, blocks: Blocks, entries: KeyEntries, volatile: Ports | None = None) -> None:
        self._ports: Ports = messages, blocks, entries
        self._volatile_ports = self._ports if volatile is None else volatile
        self.definition = ClusterDefinition()
        self.revision = 0
        self.history: list[Revision] = []  # the last definitions, oldest first; the newest is in force
        self.encoded_definition: tuple[ClusterDefinition, bytes] | None = None
        """The bytes that the last snapshot needed: making them again takes as long as the rest of a snapshot."""
        self.stores: dict[str, Store] = {}
        self.lineage = Histories()
        self.withdrawn: list[Withdrawn] = []
        """What the current command has taken from subscribers."""
        self.at_ms = 0
        """The time of the last command that changed anything, apart from those of ``volatile_names``."""
        self.volatile_names: set[str] = set()
        """The stores that live in memory only. They share nothing with the others: no record has their commands."""
        self.volatile_at_ms = 0
        self.deadlines: Deadlines[tuple[str, str]] = Deadlines()
        """When each durable has something to do next, by store and durable."""
        self.volatile_deadlines: Deadlines[tuple[str, str]] = Deadlines()
        """Those of stores in memory only, apart: commands outside the log must not change the logged ones."""

    def store(self, name: str) -> Store:
        """A store. Raises ``NotFound``."""
        store = self.stores.get(name)
        if store is None:
            raise NotFound("there is no such store", store=name)
        return store

    def defined_stores(self) -> Iterator[Store]:
        """Every store of the definition, without the one that the service makes itself."""
        return (store for name, store in self.stores.items() if name != STATISTICS)

    def find(self, store: str, durable: str) -> tuple[Store, Durable]:
        """A durable and its store. Raises ``NotFound``."""
        home = self.store(store)
        return home, home.durable(durable)

    def make_store(self, definition: StoreDefinition, identity: int) -> Store:
        """Add an empty store."""

        def room(messages: int, size: int) -> None:
            cluster = self.definition
            if (cluster.message_limit or cluster.bytelimit) and definition.name != STATISTICS:
                check_cluster(cluster, (store.counts for store in self.defined_stores()), messages, size)

        ports = self._ports
        if self.definition.is_volatile(definition):
            ports = self._volatile_ports
            self.volatile_names.add(definition.name)
        store = Store(definition, *ports, room, self.withdrawn, identity)
        self.stores[definition.name] = store
        return store

    def delete(self, store: Store, name: str, cause: str, now_ms: int, effects: list[Effect]) -> None:
        """Delete a durable with its messages, and notify its subscribers."""
        effects.append(Advise(store.name, name, "", "durable_deleted", (("cause", cause),)))
        store.remove(name, now_ms)
        self.deadlines_of(store).set((store.name, name), None)

    def is_volatile(self, command: commands.Command) -> bool:
        """Whether a command is of stores in memory only: then no record has it."""
        names = self.volatile_names
        if not names or isinstance(command, _OF_THE_LOG):
            return False
        if isinstance(command, commands.Expire):
            return command.volatile
        if isinstance(command, commands.Resend):
            return (command.store or command.to_store) in names
        return command.store in names

    def deadlines_of(self, store: Store) -> Deadlines[tuple[str, str]]:
        """The deadlines that include this store's durables."""
        return self.volatile_deadlines if store.name in self.volatile_names else self.deadlines

    def next_deadline_ms(self, *, volatile: bool = False) -> int | None:
        """When an ``Expire`` has something to do, or None; for stores in memory if ``volatile``. Cost: O(stores)."""
        next_ms = (self.volatile_deadlines if volatile else self.deadlines).next_ms()
        for store in self.stores.values():
            if (store.name in self.volatile_names) is volatile:
                next_ms = earlier(next_ms, self.store_deadline_ms(store))
        return next_ms

    def store_deadline_ms(self, store: Store) -> int | None:
        """When a store itself has something to do, or None. Only its own commands, dead letters sent to it, ``Expire``
        and ``Redefine`` change it."""
        left_ms = store.residues[0].since_ms if store.residues else None
        if store.keyed_residues:
            left_ms = earlier(left_ms, store.keyed_residues[0].of.since_ms)
        next_ms = earlier(left_ms, store.counts.due_blocks.next_ms())
        return earlier(next_ms, store.publishers.next_deadline_ms(self.definition.publisher_ttl_ms))

    def arm(self, store: Store, name: str) -> None:
        """Note when a durable has something to do next."""
        self.deadlines_of(store).set((store.name, name), self._due_ms(store, name))

    def _due_ms(self, store: Store, name: str) -> int | None:
        durable = store.durables[name]
        at_ms = durable.next_deadline_ms()
        ttl_ms = durable.definition.durable_ttl_ms
        return earlier(at_ms, store.idle_since_ms[name] + ttl_ms if ttl_ms and name in store.idle_since_ms else None)

    def ready(self, store: str, durable: str) -> bool:
        """Whether a subscriber that is attached could be given something. Raises ``NotFound``."""
        return self.find(store, durable)[1].ready()

    def ready_for(self, store: str, durable: str, subscriber: str) -> bool:
        """Whether a ``Deliver`` for this attached subscriber would give it something, or search further for it."""
        target = self.stores[store].durables.get(durable) if store in self.stores else None
        return target is not None and subscriber in target.attached and target.ready_for(subscriber)

    def subscribers(self) -> list[tuple[str, str, str]]:
        """Every attached subscriber: store, durable, subscriber. After a start none of them is connected."""
        return [
            (store.name, name, subscriber)
            for store in self.stores.values()
            for name, durable in store.durables.items()
            for subscriber in durable.attached
        ]

    def is_held(self) -> bool:
        """Whether any subscriber holds a message, or may work on one that was removed. Cost: O(durables)."""
        return any(
            isinstance(durable, Consumption) and (durable.leases.held or durable.removed.of)
            for store in self.stores.values()
            for durable in store.durables.values()
        )

    def pending_effects(self) -> list[Effect]:
        """The effects that wait to be carried out, reported again after a start."""
        return [
            effect
            for store in self.stores.values()
            for durable in store.durables.values()
            if isinstance(durable, Consumption)
            for effect in durable.dying_effects()
        ]

    def check(self) -> None:
        """Every invariant. Cost: O(everything that is kept); for tests and simulations."""
        assert self.stores.keys() - {STATISTICS} == self.definition.stores.keys(), "stores are those that are defined"
        for store in self.stores.values():
            store.check()
            for name in store.durables:
                armed_ms = self.deadlines_of(store).get((store.name, name))
                assert armed_ms == self._due_ms(store, name), "deadlines are those of the durables"
