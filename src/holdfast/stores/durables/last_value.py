"""A last-value durable: the newest message of each key, and the subscribers of each key.

A subscriber follows one key. It gets the current value at once, then each newer one; values for which it had no credit
are skipped, because only the last one counts. There are no acknowledgements: a delivered value is forgotten, and a
subscriber that attaches again gets the current value again.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.errors import InvalidRequest, NotFound
from holdfast.stores.definitions.cluster import DurableDefinition
from holdfast.stores.durables.backlog import Shelf
from holdfast.stores.durables.keyed import KeyedMessages, KeyedState
from holdfast.stores.values.deadlines import Budget
from holdfast.stores.values.messages import KEY_BYTES_MAX, Message
from holdfast.stores.values.ports import Entries, Entry, Kept

LastValueState = tuple[KeyedState, list[tuple[str, str, int]]]
"""The entries' totals; subscribers with their key and the revision that each was given last."""


class LastValue:
    """One last-value durable.

    *Memory*: an item for each subscriber; entries are elsewhere. *Cost*: O(1) a message, and a look-up of its key.
    """

    def __init__(self, definition: DurableDefinition, shelf: Shelf, entries: Entries, place: str = "") -> None:
        self.definition = definition
        self.keyed = KeyedMessages(shelf, definition.name, entries, definition.key_field, place)
        self._seen: dict[str, tuple[str, int]] = {}
        self._by_key: dict[str, dict[str, None]] = {}

    def key_for(self, message: Message) -> str | None:
        """The key that a message would set here; None where the durable does not want it, so does not count it.

        A delayed message must not be seen before its time, and at its time it would replace newer values: last-value
        durables do not take it.
        """
        if message.deliver_at_ms or not self.definition.matcher.matches(message.fields):
            return None
        if not self.definition.key_field:
            return message.key
        value = message.fields.get(self.definition.key_field)
        return value if isinstance(value, str) and value else None

    def accept(self, key: str, seq: int, size: int, expires_ms: int = 0) -> bool:
        """Message ``seq``, counted for this durable, sets ``key``. Returns whether a subscriber follows it."""
        self.keyed.set(key, seq, size, expires_ms)
        return key in self._by_key

    def attach(self, subscriber: str, key: str | None) -> bool:
        """A subscriber comes, or comes again, for one key. Returns whether it can be given a value at once.

        Raises ``InvalidRequest`` without a key.
        """
        key = self.check_key(self.definition, key)
        self.detach(subscriber)
        self._seen[subscriber] = (key, 0)
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
        known = self._seen.pop(subscriber, None)
        if known is None:
            return False
        followers = self._by_key[known[0]]
        del followers[subscriber]
        if not followers:
            del self._by_key[known[0]]
        return True

    def deliver(self, subscriber: str) -> Entry | None:
        """The value of the subscriber's key, where it was not given it yet. Raises ``NotFound`` for one unknown."""
        entry = self.unseen(subscriber)
        if entry is not None:
            self._seen[subscriber] = (entry.key, entry.revision)
        return entry

    def unseen(self, subscriber: str) -> Entry | None:
        """What ``deliver`` would give. Raises ``NotFound`` for a subscriber that is not attached."""
        known = self._seen.get(subscriber)
        if known is None:
            raise NotFound("no such subscriber", durable=self.definition.name, subscriber=subscriber)
        key, seen = known
        entry = self.keyed.get(key)
        return entry if entry is not None and entry.revision > seen else None

    def subscribers(self) -> list[tuple[str, str]]:
        """Who is attached, with the key of each, in the order in which they came."""
        return [(subscriber, key) for subscriber, (key, _) in self._seen.items()]

    @property
    def ready(self) -> bool:
        """Whether any subscriber could be given a value. Cost: O(subscribers)."""
        return any(self.unseen(subscriber) is not None for subscriber in self._seen)

    def next_ms(self) -> int | None:
        """When ``message_ttl`` has something to do next."""
        return self.keyed.next_ms(self.definition.message_ttl_ms)

    def expire(self, now_ms: int, budget: Budget) -> list[Entry]:
        """Remove values that are older than ``message_ttl``; see ``KeyedMessages.expire``."""
        ttl_ms = self.definition.message_ttl_ms
        return self.keyed.expire(now_ms, ttl_ms, budget) if ttl_ms else []

    def drop(self, kept: Sequence[Kept]) -> Entry | None:
        """Delete one message: ``kept`` is what the store has under its number, nothing or one."""
        return self.keyed.lose_message(kept[0], "deleted") if kept else None

    def state(self) -> LastValueState:
        """What a snapshot keeps besides the entries."""
        return self.keyed.state(), [(name, key, seen) for name, (key, seen) in self._seen.items()]

    def restore(self, state: LastValueState) -> None:
        """Take up ``state``."""
        totals, subscribers = state
        self.keyed.restore(totals)
        for subscriber, key, seen in subscribers:
            self.attach(subscriber, key)
            self._seen[subscriber] = (key, seen)

    def check(self) -> None:
        """Every law of the entries; followers by key are the subscribers' keys. O(n)."""
        self.keyed.check()
        by_key = {(key, subscriber) for key, followers in self._by_key.items() for subscriber in followers}
        assert by_key == {(key, subscriber) for subscriber, (key, _) in self._seen.items()}, "followers are subscribers"
        assert all(self._by_key.values()), "a key without followers is forgotten"
