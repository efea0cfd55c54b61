"""Messages kept by key, one for each: last-value durables, and the base of maps.

Memory is a few numbers, however many keys there are: numbers rise with time, so a cursor over the store finds the
oldest entries, and passes every message once. The deadline follows from the cursor's own time, ``oldest_ms``.

A clear takes effect at once: the durable continues with its entries under another name, and a ``KeyedResidue`` gives
the old entries back in steps. Until it is done its messages count against the limits of the store and the cluster.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from holdfast.errors import InvalidRequest, NotFound
from holdfast.stores.definitions.cluster import DurableDefinition
from holdfast.stores.durables.backlog import Shelf
from holdfast.stores.values.deadlines import Budget
from holdfast.stores.values.messages import MessageBatch
from holdfast.stores.values.ports import BLOCK_MESSAGES, Kept, KeyEntries, KeyEntry
from holdfast.wire.parts import KEY_BYTES_MAX, Message

STEP_ENTRIES = 1_024  # entries that one step gives back at most


class KeyedResidueState(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A residue in a snapshot."""

    durable: str
    namespace: str
    left: int
    since_ms: int
    is_map: bool
    cause: str
    """The cause that watchers of the map receive for each key; empty: they receive nothing."""
    revision: int
    """The revision of the change that removed the keys; 0: each key is reported with its own revision."""
    after: str
    """The last key that was given back in order."""


class KeyedResidue:
    """The entries in ``namespace``, which were those of ``durable``."""

    def __init__(self, of: KeyedResidueState, shelf: Shelf, entries: KeyEntries) -> None:
        self.of = of
        self.left = of.left
        self.after = of.after
        self._shelf = shelf
        self._entries = entries

    @property
    def is_done(self) -> bool:
        """Whether everything was given back."""
        return not self.left

    def step(self, most: int | None = None) -> list[KeyEntry]:
        """Give back up to ``most`` entries and ``STEP_ENTRIES``, in the order of their keys; returns them."""
        count = STEP_ENTRIES if most is None else min(most, STEP_ENTRIES)
        entries = self._entries.take_after(self._shelf.store, self.of.namespace, self.after, count)
        for entry in entries:
            self._give_back(entry)
            self.after = entry.key
        assert entries or not self.left, "the namespace has every entry that is left"
        return entries

    def take(self, key: str) -> KeyEntry | None:
        """Give the entry of one key back now; None where there is none."""
        entry = self._entries.get(self._shelf.store, self.of.namespace, key)
        if entry is not None:
            self._entries.remove(self._shelf.store, self.of.namespace, key)
            self._give_back(entry)
        return entry

    def _give_back(self, entry: KeyEntry) -> None:
        self._shelf.counts.release(entry.revision, entry.revision)
        self.left -= 1

    def kept(self) -> list[KeyEntry]:
        """Every entry that is not given back yet. Cost: O(left); for checks and repairs."""
        return list(self._entries.scan(self._shelf.store, self.of.namespace))

    def state(self) -> KeyedResidueState:
        """What a snapshot keeps besides the entries."""
        return msgspec.structs.replace(self.of, left=self.left, after=self.after)


CHUNK: Final = 256


class KeyedState(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The entries' totals and the cursor in a snapshot."""

    messages: int
    bytes: int
    oldest: int
    oldest_ms: int
    namespace: str
    """Where the entries are, where that is not the durable's name."""
    start: int
    """Messages below were published before the durable was made or purged."""
    causes: dict[str, int]


def key_of(message: Message | Kept, key_field: str) -> str | None:
    """The key of a message: its own, or the text of a field; None where it has none."""
    if not key_field:
        return message.key
    value = message.fields.get(key_field)
    return value if isinstance(value, str) and value else None


class KeyedMessages:
    """The entries of one durable. ``messages`` and ``bytes`` are exact; no entry has a revision below ``oldest``, or
    was set before ``oldest_ms``."""

    __slots__ = (
        *("_durable", "_entries", "_key_field", "_shelf"),
        *("bytes", "causes", "messages", "namespace", "oldest", "oldest_ms", "start"),
    )

    def __init__(
        self, shelf: Shelf, durable: str, entries: KeyEntries, key_field: str = "", namespace: str = ""
    ) -> None:
        self._shelf = shelf
        self._durable = durable
        self.namespace = namespace or durable
        """The name under which ``KeyEntries`` keeps the entries; each clear that leaves a residue changes it."""
        self._entries = entries
        self._key_field = key_field
        self.messages = 0
        self.bytes = 0
        self.causes: dict[str, int] = {}
        """How many messages were lost to what; one that a newer message of its key replaced is not lost."""
        self.oldest = self.start = shelf.counts.next_seq
        self.oldest_ms = 0

    def get(self, key: str) -> KeyEntry | None:
        """The entry of a key."""
        return self._entries.get(self._shelf.store, self.namespace, key)

    def scan(self, after: str = "") -> Iterator[KeyEntry]:
        """Entries in the order of their keys, from the first above ``after``."""
        return self._entries.scan(self._shelf.store, self.namespace, after)

    def browse_page(self, after: int, count: int, looks: int) -> tuple[list[KeyEntry], int | None, int]:
        """Up to ``count`` entries by revision, above ``after``, from about ``looks`` messages.

        Also returns above which revision to continue, None at the end, and how many looks are left. Cost: about 10
        microseconds for each message examined; a block without kept messages is one.
        """
        counts, store = self._shelf.counts, self._shelf.store
        seq, page = max(self.oldest, after + 1), list[KeyEntry]()
        while seq < counts.next_seq and looks > 0:
            stop = min(counts.next_seq, (seq // BLOCK_MESSAGES + 1) * BLOCK_MESSAGES)
            block = counts.block(seq // BLOCK_MESSAGES)
            looks -= 1
            if block is None or not block.live:
                seq = stop
                continue
            stop = min(stop, seq + CHUNK)
            for kept in self._shelf.messages.read(store, seq, stop - 1):
                if (entry := self._entry_of(kept)) is not None:
                    page.append(entry)
                    if len(page) >= count:
                        return page, kept.seq, looks - (stop - seq)
            looks -= stop - seq
            seq = stop
        return page, None if seq >= counts.next_seq else seq - 1, looks

    def next_ms(self, ttl_ms: int) -> int | None:
        """When ``expire`` has something to do, or None. It may only move the cursor then."""
        return self.oldest_ms + ttl_ms if ttl_ms and self.messages else None

    def set(self, key: str, seq: int, size: int, expires_ms: int = 0) -> KeyEntry | None:
        """Message ``seq``, which is counted already, is now the key's; returns the replaced entry."""
        before = self.get(key)
        if before is not None:
            self._release(before)
        self._entries.put(self._shelf.store, self.namespace, KeyEntry(key, seq, size, expires_ms))
        if not self.messages:
            self.oldest, self.oldest_ms = seq, self._shelf.counts.published_ms(seq)
        self.messages += 1
        self.bytes += size
        return before

    def remove(self, key: str) -> KeyEntry | None:
        """Forget a key; returns what it had."""
        entry = self.get(key)
        if entry is not None:
            self._entries.remove(self._shelf.store, self.namespace, key)
            self._release(entry)
        return entry

    def leave(self, now_ms: int, *, is_map: bool, cause: str, revision: int) -> KeyedResidue | None:
        """Continue without keys under another name; returns the residue, None if it is empty. O(1)."""
        if not self.messages:
            return None
        of = KeyedResidueState(self._durable, self.namespace, self.messages, now_ms, is_map, cause, revision, "")
        self.messages = self.bytes = 0
        self.oldest = self.start = self._shelf.counts.next_seq
        self.namespace = f"{self._durable}#{self.oldest}"  # there were messages since it was named so last
        return KeyedResidue(of, self._shelf, self._entries)

    def discard_oldest(self, budget: Budget) -> KeyEntry | None:
        """Remove the oldest entry, for a limit; None if the budget ends first.

        Cost: every message of the store is passed once.
        """
        next_seq = self._shelf.counts.next_seq
        while self.oldest < next_seq and not budget.is_spent:
            one = Budget(1, budget.looks)
            passed = self._read_on(next_seq, one)
            budget.looks = one.looks
            for entry in passed:
                budget.messages -= 1
                self.oldest_ms = max(self.oldest_ms, self._shelf.counts.published_ms(entry.revision))
                return self.lose(entry.key, "limit_old")
        return None

    def expire(self, now_ms: int, ttl_ms: int, budget: Budget) -> list[KeyEntry]:
        """Remove entries that are ``ttl_ms`` old, within the budget. Cost: reads each message once."""
        counts = self._shelf.counts
        end = counts.first_since(now_ms - ttl_ms + 1, self.oldest, counts.next_seq)
        expired: list[KeyEntry] = []
        while self.oldest < end and self.messages and not budget.is_spent:
            for entry in self._read_on(end, budget):
                self.lose(entry.key, "ttl")
                expired.append(entry)
        self.oldest_ms = max(self.oldest_ms, counts.time_from(self.oldest))
        return expired

    def lose_message(self, kept: Kept, cause: str) -> KeyEntry | None:
        """Remove the key of this message if it is still its value. ``cause``: ``own_ttl`` or ``deleted``."""
        entry = self._entry_of(kept)
        return None if entry is None else self.lose(entry.key, cause)

    def _entry_of(self, kept: Kept) -> KeyEntry | None:
        """The entry whose value this message is."""
        key = key_of(kept, self._key_field)
        entry = self.get(key) if key is not None else None
        return entry if entry is not None and entry.revision == kept.seq else None

    def lose(self, key: str, cause: str) -> KeyEntry | None:
        """Remove a key and count its message as lost; returns what it had."""
        entry = self.remove(key)
        if entry is not None:
            self.causes[cause] = self.causes.get(cause, 0) + 1
        return entry

    def _read_on(self, end: int, budget: Budget) -> list[KeyEntry]:
        """Move the cursor over a part of one block, below ``end``; returns the entries passed, at most the budget's
        messages."""
        counts, first = self._shelf.counts, self.oldest
        stop = min(end, (first // BLOCK_MESSAGES + 1) * BLOCK_MESSAGES)
        block = counts.block(first // BLOCK_MESSAGES)
        if block is None or not block.live:
            budget.looks -= 1
            self.oldest = stop
            return []
        stop = min(stop, first + CHUNK, first + budget.looks)
        passed: list[KeyEntry] = []
        self.oldest = stop
        for kept in self._shelf.messages.read(self._shelf.store, first, stop - 1):
            if (entry := self._entry_of(kept)) is not None:
                passed.append(entry)
                budget.messages -= 1
                if budget.messages <= 0:
                    self.oldest = kept.seq + 1
                    break
        budget.looks -= self.oldest - first
        return passed

    def _release(self, entry: KeyEntry) -> None:
        self._shelf.counts.release(entry.revision, entry.revision)
        self.messages -= 1
        self.bytes -= entry.size

    def state(self) -> KeyedState:
        """What a snapshot keeps besides the entries."""
        namespace = "" if self.namespace == self._durable else self.namespace
        return KeyedState(self.messages, self.bytes, self.oldest, self.oldest_ms, namespace, self.start, self.causes)

    def restore(self, state: KeyedState) -> None:
        """Take up ``state``."""
        self.messages, self.bytes, self.oldest = state.messages, state.bytes, state.oldest
        self.start, self.causes = state.start, dict(state.causes)
        self.namespace = state.namespace or self._durable
        self.oldest_ms = state.oldest_ms

    def check(self) -> None:
        """Totals are those of the entries; every entry's message is counted and not older than the cursor. O(n)."""
        entries = list(self.scan())
        assert [entry.key for entry in entries] == sorted({entry.key for entry in entries}), "keys ascend, each once"
        assert self.messages == len(entries), "the total is that of the entries"
        assert self.bytes == sum(entry.size for entry in entries), "the bytes are those of the entries"
        for entry in entries:
            assert self.oldest <= entry.revision < self._shelf.counts.next_seq, "the cursor is below every entry"
            assert self.oldest_ms <= self._shelf.counts.published_ms(entry.revision), "and its time is before theirs"
            block = self._shelf.counts.block(entry.revision // BLOCK_MESSAGES)
            assert block is not None and block.references[entry.revision % BLOCK_MESSAGES], "an entry's message is kept"


class LastValueState(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="last_value"):
    """A last-value durable in a snapshot: subscribers with their key and the revision that each was given last."""

    keyed: KeyedState
    subscribers: list[tuple[str, str, int]]


class KeyedDurable:
    """Base of last values and maps."""

    __slots__ = ("definition", "keyed")

    def __init__(self, definition: DurableDefinition, shelf: Shelf, entries: KeyEntries, namespace: str = "") -> None:
        self.definition = definition
        self.keyed = KeyedMessages(shelf, definition.name, entries, definition.key_field, namespace)

    @property
    def pending(self) -> int:
        """How many messages it keeps."""
        return self.keyed.messages

    @property
    def pending_bytes(self) -> int:
        """Their bytes."""
        return self.keyed.bytes

    def drop(self, kept: Sequence[Kept]) -> KeyEntry | None:
        """Delete one message or value: ``kept`` is what the store has under its number, nothing or one."""
        return self.keyed.lose_message(kept[0], "deleted") if kept else None


class LastValue(KeyedDurable):
    """One last-value durable. *Memory*: an item for each subscriber. *Cost*: O(1) a message and a look-up."""

    __slots__ = ("_by_key", "attached")

    def __init__(self, definition: DurableDefinition, shelf: Shelf, entries: KeyEntries, namespace: str = "") -> None:
        super().__init__(definition, shelf, entries, namespace)
        self.attached: dict[str, tuple[str, int]] = {}
        """The key of each subscriber, and the revision that it was given last; in the order in which they came."""
        self._by_key: dict[str, dict[str, None]] = {}

    def key_for(self, message: Message) -> str | None:
        """The key that a message sets here; None if the durable does not want it.

        A delayed message is not wanted: at its time it would replace newer values.
        """
        if message.deliver_at_ms or not self.definition.matcher.matches(message.fields):
            return None
        return key_of(message, self.definition.key_field)

    def accept(self, key: str, seq: int, size: int, expires_ms: int = 0) -> bool:
        """Message ``seq``, counted already, sets ``key``. Returns whether a subscriber follows it."""
        self.keyed.set(key, seq, size, expires_ms)
        return key in self._by_key

    def published(self, first_seq: int, positions: Sequence[int], batch: MessageBatch) -> bool:
        """These messages of the batch, of which the first is ``first_seq``, were counted for this durable. Returns
        whether a subscriber follows one of their keys."""
        is_followed = False
        for position in positions:
            message = batch.messages[position]
            key = self.key_for(message)
            assert key is not None, "a candidate has a key"
            end_ms = batch.at_ms + message.ttl_ms if message.ttl_ms else 0
            is_followed |= self.accept(key, first_seq + position, batch.sizes[position], end_ms)
        return is_followed

    def attach(self, subscriber: str, key: str | None) -> bool:
        """Attach a subscriber for one key. Returns whether it can be given a value at once.

        Raises ``InvalidRequest`` without a key.
        """
        key = self.check_key(self.definition, key)
        self.detach(subscriber)
        self.attached[subscriber] = (key, 0)
        self._by_key.setdefault(key, {})[subscriber] = None
        return self.keyed.get(key) is not None

    @staticmethod
    def check_key(definition: DurableDefinition, key: str | None) -> str:
        """The key that a subscriber gave. Raises ``InvalidRequest`` where it gave none, or one out of bounds."""
        if key is None or not 0 < len(key.encode()) <= KEY_BYTES_MAX:
            raise InvalidRequest(
                "a subscriber of a last-value durable must name one key",
                hint=f"give key=, a text of 1 to {KEY_BYTES_MAX} bytes",
                durable=definition.name,
            )
        return key

    def detach(self, subscriber: str) -> bool:
        """A subscriber is gone. Returns whether it was there."""
        known = self.attached.pop(subscriber, None)
        if known is None:
            return False
        followers = self._by_key[known[0]]
        del followers[subscriber]
        if not followers:
            del self._by_key[known[0]]
        return True

    def deliver(self, subscriber: str) -> KeyEntry | None:
        """The value of the subscriber's key if it was not delivered yet. Raises ``NotFound`` for an unknown one."""
        entry = self.unseen(subscriber)
        if entry is not None:
            self.attached[subscriber] = (entry.key, entry.revision)
        return entry

    def unseen(self, subscriber: str) -> KeyEntry | None:
        """What ``deliver`` would give. Raises ``NotFound`` for a subscriber that is not attached."""
        known = self.attached.get(subscriber)
        if known is None:
            raise NotFound("no such subscriber", durable=self.definition.name, subscriber=subscriber)
        key, revision = known
        entry = self.keyed.get(key)
        return entry if entry is not None and entry.revision > revision else None

    def ready(self) -> bool:
        """Whether any subscriber could be given a value. Cost: O(subscribers)."""
        return any(map(self.ready_for, self.attached))

    def ready_for(self, subscriber: str) -> bool:
        """Whether this subscriber could be given a value. Raises as ``unseen``."""
        return self.unseen(subscriber) is not None

    def next_deadline_ms(self) -> int | None:
        """When ``message_ttl`` has something to do next."""
        return self.keyed.next_ms(self.definition.message_ttl_ms)

    def expire(self, now_ms: int, budget: Budget) -> list[KeyEntry]:
        """Remove values that are older than ``message_ttl``; see ``KeyedMessages.expire``."""
        ttl_ms = self.definition.message_ttl_ms
        return self.keyed.expire(now_ms, ttl_ms, budget) if ttl_ms else []

    def state(self) -> LastValueState:
        """What a snapshot keeps besides the entries."""
        subscribers = [(name, key, revision) for name, (key, revision) in self.attached.items()]
        return LastValueState(self.keyed.state(), subscribers)

    def restore(self, state: LastValueState) -> None:
        """Take up ``state``."""
        self.keyed.restore(state.keyed)
        for subscriber, key, revision in state.subscribers:
            self.attach(subscriber, key)
            self.attached[subscriber] = (key, revision)

    def check(self) -> None:
        """Every law of the entries; followers by key are the subscribers' keys. O(n)."""
        self.keyed.check()
        by_key = {(key, subscriber) for key, followers in self._by_key.items() for subscriber in followers}
        subscribers = {(key, subscriber) for subscriber, (key, _) in self.attached.items()}
        assert by_key == subscribers, "followers are subscribers"
        assert all(self._by_key.values()), "a key without followers is forgotten"
