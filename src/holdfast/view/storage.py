"""The state of a view: the port of a storage, layers of changes over an older state, and the storage in memory.

A ``Layer`` holds the net effect of writes, deletes and range deletes: ``cleared`` are the ranges whose older state is
hidden, disjoint and in order; ``changes`` are the keys changed after that, with None for a deleted key. A layer over
nothing (``is_ground``) keeps no deleted keys. A change of a known key is one dictionary operation; a new key is put in
order only when a range is read or deleted.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from holdfast.commit.format.transaction import Delete, JobChange, Operation, RangeDelete, Write, job_operations
from holdfast.values import LogPosition

Stored = tuple[bytes, int]
"""A value and the version that wrote it."""

Row = tuple[bytes, bytes, int]
"""Key, value, version."""


PAGE_BYTES: Final = 12 << 20
"""Of keys and values. In base64, as a page of an answer has them, they are 16 MiB."""


class ViewPage(NamedTuple):
    """Consecutive rows of the state at ``version``, and whether more of what was asked for follows."""

    rows: list[Row]
    version: int
    more: bool


class Larger(NamedTuple):
    """In the place of a row whose value was not read, because it has this many bytes."""

    bytes: int


class KeyRange(NamedTuple):
    """At most ``limit`` keys of ``[begin, end)``; without ``end`` to the last key."""

    begin: bytes
    end: bytes | None
    limit: int


Asked = bytes | KeyRange
"""A key, or a range of keys."""

Result = Stored | ViewPage | None
"""What there is at a key, None for nothing, or the page of a range."""


class ViewAnswer(NamedTuple):
    """The exact state at ``version``, for the first of what was asked for: as much as fits.

    ``larger``: nothing fits, because the first value has more bytes than there may be.
    """

    version: int
    results: list[Result]
    larger: Larger | None = None


def answer_within(
    asked: Iterable[Asked],
    version: int,
    find: Callable[[bytes, int], Stored | Larger | None],
    read_page: Callable[[KeyRange, int], ViewPage | Larger],
    bytes_max: int,
) -> ViewAnswer:
    """What ``find`` and ``read_page`` have for the first of ``asked``. Both get the bytes that are left."""
    results: list[Result] = []
    left = bytes_max
    for item in asked:
        result = read_page(item, left) if isinstance(item, KeyRange) else find(item, left)
        if isinstance(result, Larger):
            return ViewAnswer(version, results, None if results else result)
        if isinstance(result, ViewPage):
            left = max(0, left - sum(len(key) + len(value) for key, value, _ in result.rows))
        elif result is not None:
            left = max(0, left - len(result[0]))
        results.append(result)
    return ViewAnswer(version, results)


def within(found: Stored | None, bytes_max: int) -> Stored | Larger | None:
    """A value, or its size where it has more bytes than there may be."""
    return Larger(len(found[0])) if found is not None and len(found[0]) > bytes_max else found


def page_within(page: ViewPage, bytes_max: int) -> ViewPage | Larger:
    """A page, or the size of its first value where that alone has more bytes than there may be."""
    size = len(page.rows[0][1]) if page.rows else 0
    return Larger(size) if size > bytes_max else page


def page_of(rows: Iterable[Row], version: int, limit: int, bytes_max: float = PAGE_BYTES) -> ViewPage:
    """The first of ``rows``: at most ``limit`` of them and ``bytes_max`` bytes, but one row of any size."""
    page: list[Row] = []
    size = 0
    for row in rows:
        size += len(row[0]) + len(row[1])
        if len(page) >= limit or (page and size > bytes_max):
            return ViewPage(page, version, more=True)
        page.append(row)
    return ViewPage(page, version, more=False)


class StatePosition(NamedTuple):
    """Everything at or below ``version`` of the log ``log_id`` is applied; the newest is ``last_transaction``. The last
    two are None when not known."""

    version: int
    last_transaction: int | None
    log_id: str | None = None


class Filling(Protocol):
    """A snapshot on its way into an empty storage. Nothing of it shows before ``finish``."""

    def add(self, rows: Iterable[Row]) -> None:
        """Take the next rows, which rise by key."""
        ...

    def finish(self, position: LogPosition, last_transaction: int) -> None:
        """All rows are here: show them, durable where the storage is."""
        ...

    def close(self) -> None:
        """Forget the rows, unless they were finished."""
        ...


class ViewStorage(Protocol):
    """Where a view keeps its state. Called under the view's lock, except ``make_room`` and ``close``."""

    @property
    def position(self) -> StatePosition:
        """The position when the storage was opened."""
        ...

    def make_room(self) -> None:
        """Wait until another batch may be applied. Raises: the failure of the background write."""
        ...

    def apply(self, txns: Sequence[tuple[int, Sequence[Operation]]], position: StatePosition) -> None:
        """Apply transactions in order, which lead to ``position``."""
        ...

    def fill(self) -> Filling:
        """Begin to take a snapshot. The storage is empty, and nothing is applied before the end."""
        ...

    def get(self, key: bytes) -> Stored | None:
        """A key's value and version."""
        ...

    def walk(self, begin: bytes, end: bytes | None) -> Generator[Row]:
        """The keys of ``[begin, end)`` in order."""
        ...

    def flush(self) -> None:
        """Return when everything applied survives a crash."""
        ...

    def close(self) -> None:
        """Flush and release the storage."""
        ...


CHUNK_MAX: Final = 2_000


class OrderedKeys:
    """A set of keys that can be walked in byte order: a list of short sorted lists. Cost: adding and removing O(log n)
    and a memory move of a few kilobytes; building O(n log n); walking O(1) a key."""

    __slots__ = ("_chunks", "_lasts", "_size")

    def __init__(self) -> None:
        self._chunks: list[list[bytes]] = []
        self._lasts: list[bytes] = []
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def rebuild(self, keys: Iterable[bytes]) -> None:
        """Replace the keys."""
        ordered = sorted(set(keys))
        half = CHUNK_MAX // 2
        self._chunks = [ordered[start : start + half] for start in range(0, len(ordered), half)]
        self._lasts = [chunk[-1] for chunk in self._chunks]
        self._size = len(ordered)

    def add(self, key: bytes) -> None:
        """Add ``key``."""
        if not self._chunks:
            self.rebuild((key,))
            return
        at = min(bisect_left(self._lasts, key), len(self._chunks) - 1)
        chunk = self._chunks[at]
        within = bisect_left(chunk, key)
        if within < len(chunk) and chunk[within] == key:
            return
        insort(chunk, key)
        self._size += 1
        self._lasts[at] = chunk[-1]
        if len(chunk) > CHUNK_MAX:
            half = len(chunk) // 2
            self._chunks[at : at + 1] = [chunk[:half], chunk[half:]]
            self._lasts[at : at + 1] = [chunk[half - 1], chunk[-1]]

    def discard(self, key: bytes) -> None:
        """Remove ``key``."""
        at = bisect_left(self._lasts, key)
        if at == len(self._chunks):
            return
        chunk = self._chunks[at]
        within = bisect_left(chunk, key)
        if chunk[within] != key:
            return
        del chunk[within]
        self._size -= 1
        if chunk:
            self._lasts[at] = chunk[-1]
        else:
            del self._chunks[at]
            del self._lasts[at]

    def walk(self, begin: bytes, end: bytes | None) -> Iterator[bytes]:
        """The keys of ``[begin, end)`` in order. The set must not change meanwhile."""
        at = bisect_left(self._lasts, begin)
        start = bisect_left(self._chunks[at], begin) if at < len(self._chunks) else 0
        for chunk in self._chunks[at:]:
            for key in chunk[start:] if start else chunk:
                if end is not None and key >= end:
                    return
                yield key
            start = 0

    def check(self) -> None:
        """Assert the invariants. Cost: O(n)."""
        flat = [key for chunk in self._chunks for key in chunk]
        assert flat == sorted(set(flat)), "keys are in order and distinct"
        assert all(self._chunks), "no chunk is empty"
        assert self._lasts == [chunk[-1] for chunk in self._chunks], "each chunk's last key is known"
        assert self._size == len(flat), "the size is the number of keys"
        assert all(len(chunk) <= CHUNK_MAX for chunk in self._chunks), "no chunk exceeds its bound"


ENTRY_BYTES: Final = 128
"""What a change takes about, besides its key and value."""


class Layer:
    """Changes in order; later ones win. ``jobs`` are those of records of jobs, None where there are none."""

    __slots__ = ("_order", "_unordered", "changes", "cleared", "is_ground", "jobs", "size")

    def __init__(self, *, is_ground: bool) -> None:
        self.is_ground = is_ground
        self.changes: dict[bytes, Stored | None] = {}
        self.cleared: list[tuple[bytes, bytes | None]] = []
        self.size = 0
        self.jobs: Layer | None = None
        self._order = OrderedKeys()
        self._unordered: set[bytes] = set()

    def apply(self, version: int, operations: Sequence[Operation]) -> None:
        """The operations of one transaction, in order."""
        self.apply_many(((version, operations),))

    def apply_many(self, txns: Iterable[tuple[int, Sequence[Operation]]]) -> None:
        """Transactions in order, ``(version, operations)``."""
        changes, unordered, size = self.changes, self._unordered, 0
        for version, operations in txns:
            for operation in operations:
                if type(operation) is Write:
                    key, value = operation.key, operation.value
                    if key not in changes:
                        unordered.add(key)
                    changes[key] = (value, version)
                    size += len(key) + len(value) + ENTRY_BYTES
                else:
                    self._remove(operation)
        self.size += size

    def _remove(self, operation: Operation) -> None:
        if isinstance(operation, RangeDelete):
            self._clear(operation.begin, operation.end)
            return
        assert isinstance(operation, Delete), "there are three kinds of operation"
        key, changes = operation.key, self.changes
        if self.is_ground:
            if changes.pop(key, None) is not None:
                self._unordered.add(key)
            return
        if key not in changes:
            self._unordered.add(key)
        changes[key] = None
        self.size += len(key) + ENTRY_BYTES

    def apply_jobs(self, version: int, jobs: Sequence[JobChange]) -> None:
        """What one transaction changes of the records of jobs."""
        if self.jobs is None:
            self.jobs = Layer(is_ground=self.is_ground)
        before = self.jobs.size
        self.jobs.apply(version, job_operations(jobs))
        self.size += self.jobs.size - before

    def write(self, changes: Mapping[bytes, Stored]) -> None:
        """The last write of each key of many transactions: a fast path where nothing is deleted."""
        self.changes.update(changes)
        self._unordered.update(changes)
        self.size += sum(len(key) + len(stored[0]) for key, stored in changes.items()) + ENTRY_BYTES * len(changes)

    def remember(self, key: bytes, stored: Stored | None) -> None:
        """What the older state has at ``key``, which this layer does not change."""
        self.changes[key] = stored
        self._unordered.add(key)
        self.size += len(key) + (0 if stored is None else len(stored[0])) + ENTRY_BYTES

    def _clear(self, begin: bytes, end: bytes | None) -> None:
        if end is not None and begin >= end:
            return
        for key in list(self.walk(begin, end)):
            del self.changes[key]
            self._unordered.add(key)
        if self.is_ground:
            return
        self.size += len(begin) + len(end or b"") + ENTRY_BYTES
        # Join with every cleared range that this one touches.
        first = bisect_left([item[0] for item in self.cleared], begin)
        if first > 0:
            before_end = self.cleared[first - 1][1]
            if before_end is None or before_end >= begin:
                first -= 1
                begin = self.cleared[first][0]
        last = first
        while last < len(self.cleared) and (end is None or self.cleared[last][0] <= end):
            other = self.cleared[last][1]
            end = None if end is None or other is None else max(end, other)
            last += 1
        self.cleared[first:last] = [(begin, end)]

    def hides(self, key: bytes) -> bool:
        """Whether a range delete hides the older state at ``key``, apart from the layer's own changes."""
        if not self.cleared:
            return False
        at = bisect_right(self.cleared, key, key=lambda item: item[0]) - 1
        if at < 0:
            return False
        end = self.cleared[at][1]
        return end is None or key < end

    def walk(self, begin: bytes, end: bytes | None) -> Iterator[bytes]:
        """The changed keys of ``[begin, end)`` in order, including deleted ones."""
        self._put_in_order()
        return self._order.walk(begin, end)

    def _put_in_order(self) -> None:
        if not self._unordered:
            return
        if len(self._unordered) * 4 >= len(self._order):
            self._order.rebuild(self.changes)
        else:
            for key in self._unordered:  # the order of this iteration has no effect
                if key in self.changes:
                    self._order.add(key)
                else:
                    self._order.discard(key)
        self._unordered.clear()

    def check(self) -> None:
        """Assert the invariants. Cost: O(n)."""
        self._put_in_order()
        self._order.check()
        assert list(self._order.walk(b"", None)) == sorted(self.changes), "the order holds exactly the changed keys"
        assert not (self.is_ground and self.cleared), "a ground layer hides nothing"
        assert not (self.is_ground and None in self.changes.values()), "a ground layer keeps no deleted keys"
        for (_, end), (begin, _) in zip(self.cleared, self.cleared[1:], strict=False):
            assert end is not None, "only the last cleared range has no end"
            assert end < begin, "cleared ranges are disjoint, apart and in order"


def merged(layers: Sequence[Layer], begin: bytes, end: bytes | None, rows: Iterator[Row]) -> Iterator[Row]:
    """``rows``, an older state of ``[begin, end)``, under ``layers``: the newest one, which is the first, decides."""
    walks = [layer.walk(begin, end) for layer in layers]
    heads: list[bytes | None] = [next(walk, None) for walk in walks]
    row = next(rows, None)
    while True:
        candidates = [key for key in heads if key is not None]
        if row is not None:
            candidates.append(row[0])
        if not candidates:
            return
        key = min(candidates)
        stored: Stored | None = None
        decided = False
        for depth, layer in enumerate(layers):
            if not decided and key in layer.changes:
                stored, decided = layer.changes[key], True
            decided = decided or layer.hides(key)
            if heads[depth] == key:
                heads[depth] = next(walks[depth], None)
        if row is not None and row[0] == key:
            if not decided:
                stored = (row[1], row[2])
            row = next(rows, None)
        if stored is not None:
            yield key, stored[0], stored[1]


class MemoryStorage:
    """The state in a dictionary; nothing survives the process."""

    def __init__(self) -> None:
        self.layer = Layer(is_ground=True)
        self.position = StatePosition(0, None)

    def make_room(self) -> None:
        """See ``ViewStorage``."""

    def apply(
        self,
        txns: Sequence[tuple[int, Sequence[Operation]]],
        position: StatePosition,  # noqa: ARG002
    ) -> None:
        """See ``ViewStorage``."""
        self.layer.apply_many(txns)

    def fill(self) -> MemoryFilling:
        """See ``ViewStorage``."""
        return MemoryFilling(self)

    def get(self, key: bytes) -> Stored | None:
        """See ``ViewStorage``."""
        return self.layer.changes.get(key)

    def walk(self, begin: bytes, end: bytes | None) -> Generator[Row]:
        """See ``ViewStorage``."""
        for key in self.layer.walk(begin, end):
            stored = self.layer.changes[key]
            assert stored is not None, "a ground layer keeps no deleted keys"
            yield key, stored[0], stored[1]

    def flush(self) -> None:
        """See ``ViewStorage``."""

    def close(self) -> None:
        """See ``ViewStorage``."""


class MemoryFilling:
    """See ``Filling``."""

    def __init__(self, storage: MemoryStorage) -> None:
        self._storage = storage
        self._layer = Layer(is_ground=True)

    def add(self, rows: Iterable[Row]) -> None:
        """See ``Filling``."""
        self._layer.write({key: (value, version) for key, value, version in rows})

    def finish(self, position: LogPosition, last_transaction: int) -> None:
        """See ``Filling``."""
        self._storage.layer = self._layer
        self._storage.position = StatePosition(position.version, last_transaction, position.log_id)

    def close(self) -> None:
        """See ``Filling``."""
