"""Messages kept by key, one for each: what last-value durables and maps have in common.

Owns: which message is a key's, the release of the one it replaces, totals, age. Does not own: when a key is set
(``last_value``, ``map``), where entries lie (``ports.Entries``).

Memory is a few numbers whatever the count of keys. Age needs no list either: numbers rise with time, so a cursor over
the store finds the oldest entries; it passes every message of the store once, and blocks that nobody keeps in one step.

Failure model: pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from holdfast.stores.durables.backlog import Shelf
from holdfast.stores.ports import BLOCK_MESSAGES, Entries, Entry, Kept

__all__ = ["KeyedMessages", "key_of"]

CHUNK: Final = 256


def key_of(kept: Kept, key_field: str) -> str | None:
    """The key of a message: its own, or the text of a field; None where it has none."""
    if not key_field:
        return kept.key
    value = kept.fields.get(key_field)
    return value if isinstance(value, str) else None


class KeyedMessages:
    """The entries of one durable. ``messages`` and ``bytes`` are exact; no entry has a revision below ``oldest``."""

    __slots__ = ("_durable", "_entries", "_key_field", "_shelf", "bytes", "messages", "oldest")

    def __init__(self, shelf: Shelf, durable: str, entries: Entries, key_field: str = "") -> None:
        self._shelf = shelf
        self._durable = durable
        self._entries = entries
        self._key_field = key_field
        self.messages = 0
        self.bytes = 0
        self.oldest = shelf.counts.next_seq

    # ---- questions --------------------------------------------------------------------------------------------------

    def get(self, key: str) -> Entry | None:
        """The entry of a key."""
        return self._entries.get(self._shelf.store, self._durable, key)

    def scan(self, after: str = "") -> Iterator[Entry]:
        """Entries in the order of their keys, from the first above ``after``."""
        return self._entries.scan(self._shelf.store, self._durable, after)

    def browse_page(self, after: int, count: int, looks: int) -> tuple[list[Entry], int | None, int]:
        """Up to ``count`` entries by revision, above ``after``; about ``looks`` messages are looked at for them.

        Also answers above which revision to go on, None where there is nothing behind, and how many looks are left.
        Changes nothing.
        Cost: about 10 microseconds for each message of the store that is looked at; blocks that nobody keeps are one.
        """
        counts, store = self._shelf.counts, self._shelf.store
        seq, found = max(self.oldest, after + 1), list[Entry]()
        while seq < counts.next_seq and looks > 0:
            stop = min(counts.next_seq, (seq // BLOCK_MESSAGES + 1) * BLOCK_MESSAGES)
            block = counts.block(seq // BLOCK_MESSAGES)
            looks -= 1
            if block is None or not block.live:
                seq = stop
                continue
            stop = min(stop, seq + CHUNK)
            for kept in self._shelf.messages.read(store, seq, stop - 1):
                key = key_of(kept, self._key_field)
                entry = self.get(key) if key is not None else None
                if entry is not None and entry.revision == kept.seq:
                    found.append(entry)
                    if len(found) >= count:
                        return found, kept.seq, looks - (stop - seq)
            looks -= stop - seq
            seq = stop
        return found, None if seq >= counts.next_seq else seq - 1, looks

    def next_ms(self, ttl_ms: int) -> int | None:
        """When the oldest message from the cursor on is ``ttl_ms`` old: no entry expires before.

        It may be another durable's message; ``expire`` then passes it. Cost: O(blocks that nobody keeps).
        """
        if not ttl_ms or not self.messages:
            return None
        counts = self._shelf.counts
        seq = self.oldest
        while seq < counts.next_seq:
            block = counts.block(seq // BLOCK_MESSAGES)
            if block is not None and block.live:
                return block.published_ms[seq % BLOCK_MESSAGES] + ttl_ms
            seq = (seq // BLOCK_MESSAGES + 1) * BLOCK_MESSAGES
        return None

    # ---- changes ----------------------------------------------------------------------------------------------------

    def set(self, key: str, seq: int, size: int, expires_ms: int = 0) -> Entry | None:
        """Message ``seq``, counted for this durable already, is now the key's; returns what it replaced."""
        before = self.get(key)
        if before is not None:
            self._release(before)
        self._entries.put(self._shelf.store, self._durable, Entry(key, seq, size, expires_ms))
        self.messages += 1
        self.bytes += size
        return before

    def remove(self, key: str) -> Entry | None:
        """Forget a key; returns what it had."""
        entry = self.get(key)
        if entry is not None:
            self._entries.remove(self._shelf.store, self._durable, key)
            self._release(entry)
        return entry

    def clear(self) -> tuple[int, int]:
        """Forget every key; returns messages and bytes. Cost: O(keys)."""
        cleared = self.messages, self.bytes
        for entry in self.scan():
            self._release(entry)
        self._entries.forget(self._shelf.store, self._durable)
        self.oldest = self._shelf.counts.next_seq
        return cleared

    def take_oldest(self) -> Entry | None:
        """Remove the entry that was set longest ago. Cost: every message of the store is passed once."""
        entry, _ = self._next_entry(self._shelf.counts.next_seq, self._shelf.counts.next_seq)
        return self.remove(entry.key) if entry is not None else None

    def expire(self, now_ms: int, ttl_ms: int, count: int) -> tuple[list[Entry], bool]:
        """Remove entries that are ``ttl_ms`` old. Looks at ``count`` messages at most: returns whether more are due."""
        counts = self._shelf.counts
        end = counts.first_since(now_ms - ttl_ms + 1, self.oldest, counts.next_seq)
        expired: list[Entry] = []
        while self.oldest < end and count > 0:
            entry, looked = self._next_entry(end, count)
            count -= looked
            if entry is not None:
                self.remove(entry.key)
                expired.append(entry)
        return expired, self.oldest < end

    def expire_own(self, kept: Kept) -> Entry | None:
        """A message's own time-to-live has ended: remove its key, if it is still the key's message."""
        key = key_of(kept, self._key_field)
        entry = self.get(key) if key is not None else None
        return self.remove(entry.key) if entry is not None and entry.revision == kept.seq else None

    def _next_entry(self, end: int, looks: int) -> tuple[Entry | None, int]:
        """Move the cursor to the oldest entry below ``end``; returns it and how many messages were looked at."""
        counts, store = self._shelf.counts, self._shelf.store
        looked = 0
        while self.oldest < end and looked < looks:
            stop = min(end, (self.oldest // BLOCK_MESSAGES + 1) * BLOCK_MESSAGES)
            block = counts.block(self.oldest // BLOCK_MESSAGES)
            looked += 1
            if block is None or not block.live:
                self.oldest = stop
                continue
            stop = min(stop, self.oldest + CHUNK, self.oldest + looks - looked + 1)
            for kept in self._shelf.messages.read(store, self.oldest, stop - 1):
                key = key_of(kept, self._key_field)
                entry = self.get(key) if key is not None else None
                if entry is not None and entry.revision == kept.seq:
                    looked += kept.seq - self.oldest
                    self.oldest = kept.seq
                    return entry, looked
            looked += stop - self.oldest - 1
            self.oldest = stop
        return None, looked

    def _release(self, entry: Entry) -> None:
        self._shelf.counts.release(entry.revision, entry.revision)
        self.messages -= 1
        self.bytes -= entry.size

    # ---- state ------------------------------------------------------------------------------------------------------

    def state(self) -> tuple[int, int, int]:
        """What a snapshot keeps besides the entries."""
        return self.messages, self.bytes, self.oldest

    def restore(self, state: tuple[int, int, int]) -> None:
        """Take up ``state``."""
        self.messages, self.bytes, self.oldest = state

    def check(self) -> None:
        """Totals are those of the entries, every entry's message is counted and not older than the cursor. O(n)."""
        entries = list(self.scan())
        assert [entry.key for entry in entries] == sorted({entry.key for entry in entries}), "keys ascend, each once"
        assert self.messages == len(entries), "the total is that of the entries"
        assert self.bytes == sum(entry.size for entry in entries), "the bytes are those of the entries"
        for entry in entries:
            assert self.oldest <= entry.revision < self._shelf.counts.next_seq, "the cursor is below every entry"
            block = self._shelf.counts.block(entry.revision // BLOCK_MESSAGES)
            assert block is not None and block.references[entry.revision % BLOCK_MESSAGES], "an entry's message is kept"
