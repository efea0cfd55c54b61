"""Which store is on disk and which in memory only, behind one set of ports.

Owns: the choice, by the store's name. Does not own: either kind (``stored_messages`` and ``index``; ``volatile``), and
which stores are which (``storage`` tells). Failure model: as the kind's.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from array import array
    from collections.abc import Iterable, Iterator, Sequence
    from collections.abc import Set as AbstractSet

    from holdfast.stores.storage.block_cache import BlockCache
    from holdfast.stores.storage.entry_cache import EntryCache
    from holdfast.stores.storage.stored_messages import StoredMessages
    from holdfast.stores.storage.volatile import VolatileBlocks, VolatileEntries, VolatileMessages
    from holdfast.stores.values.messages import Delivery, Message
    from holdfast.stores.values.ports import Block, Entry, Kept

__all__ = ["RoutedBlocks", "RoutedEntries", "RoutedMessages"]


class RoutedMessages:
    """Implements ``ports.Messages``; ``names`` are the stores in memory only."""

    __slots__ = ("_names", "_stored", "_volatile")

    def __init__(self, stored: StoredMessages, volatile: VolatileMessages, names: AbstractSet[str]) -> None:
        self._stored = stored
        self._volatile = volatile
        self._names = names

    def _of(self, store: str) -> StoredMessages | VolatileMessages:
        return self._volatile if store in self._names else self._stored

    def add(
        self, store: str, first_seq: int, published_ms: int, messages: Sequence[Message], sizes: array[int]
    ) -> None:
        """See ``ports.Messages``."""
        self._of(store).add(store, first_seq, published_ms, messages, sizes)

    def read(self, store: str, first: int, last: int) -> list[Kept]:
        """See ``ports.Messages``."""
        return self._of(store).read(store, first, last)

    def forget_store(self, store: str) -> None:
        """See ``ports.Messages``."""
        self._of(store).forget_store(store)

    def deliveries(self, store: str, runs: Iterable[tuple[int, int, int]]) -> list[Delivery]:
        """What a subscriber gets of these runs: triples of first, last and delivery count."""
        return self._of(store).deliveries(store, runs)

    def message(self, store: str, seq: int) -> tuple[Message, int] | None:
        """One message and when it was published, or None where it is not there any more."""
        return self._of(store).message(store, seq)


class RoutedBlocks:
    """Implements ``ports.Blocks``."""

    __slots__ = ("_names", "_stored", "_volatile")

    def __init__(self, stored: BlockCache, volatile: VolatileBlocks, names: AbstractSet[str]) -> None:
        self._stored = stored
        self._volatile = volatile
        self._names = names

    def get(self, store: str, number: int) -> Block | None:
        """See ``ports.Blocks``."""
        return (self._volatile if store in self._names else self._stored).get(store, number)

    def put(self, store: str, block: Block) -> None:
        """See ``ports.Blocks``."""
        (self._volatile if store in self._names else self._stored).put(store, block)

    def forget_store(self, store: str) -> None:
        """See ``ports.Blocks``."""
        (self._volatile if store in self._names else self._stored).forget_store(store)


class RoutedEntries:
    """Implements ``ports.Entries``."""

    __slots__ = ("_names", "_stored", "_volatile")

    def __init__(self, stored: EntryCache, volatile: VolatileEntries, names: AbstractSet[str]) -> None:
        self._stored = stored
        self._volatile = volatile
        self._names = names

    def _of(self, store: str) -> EntryCache | VolatileEntries:
        return self._volatile if store in self._names else self._stored

    def get(self, store: str, durable: str, key: str) -> Entry | None:
        """See ``ports.Entries``."""
        return self._of(store).get(store, durable, key)

    def put(self, store: str, durable: str, entry: Entry) -> None:
        """See ``ports.Entries``."""
        self._of(store).put(store, durable, entry)

    def remove(self, store: str, durable: str, key: str) -> None:
        """See ``ports.Entries``."""
        self._of(store).remove(store, durable, key)

    def scan(self, store: str, durable: str, after: str = "") -> Iterator[Entry]:
        """See ``ports.Entries``."""
        return self._of(store).scan(store, durable, after)

    def take_after(self, store: str, durable: str, after: str, count: int) -> list[Entry]:
        """See ``ports.Entries``."""
        return self._of(store).take_after(store, durable, after, count)

    def forget(self, store: str, durable: str = "") -> None:
        """See ``ports.Entries``."""
        self._of(store).forget(store, durable)
