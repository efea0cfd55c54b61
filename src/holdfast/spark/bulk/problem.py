"""The problem that the kernel solves: requests with what they read and change, as flat arrays of numbers.

The rank of a key is its index among all keys and range bounds of the problem; a key of rank r is the range ``[r, r +
1)``. Two ranges of keys overlap exactly when their ranks do. Cost: a hash per key, a sort of the distinct ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.commit.format.batch import ItemKind
from holdfast.spark.bulk.sequencing import Numbers, ordinals_of, plain_numbers

Flags: TypeAlias = npt.NDArray[np.bool_]
Ordinals: TypeAlias = npt.NDArray[np.int32]
States: TypeAlias = npt.NDArray[np.uint8]

COMMITTED: Final = 1
REJECTED: Final = 2
"""States of a request. 0: not judged."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Requests in their order, with what they read and change among ``ranks`` ranks.

    Shape: ``ordinals`` rise strictly from 1 or more. The reads of request i are ``read_begins[i]`` up to
    ``read_begins[i + 1]``, each a range of ranks ``[low, high)`` and the ordinal ``at`` which it was read (0: before
    all). Writes likewise. No range is empty.
    """

    ranks: int
    ordinals: Ordinals
    read_begins: Numbers
    read_lows: Numbers
    read_highs: Numbers
    read_ats: Ordinals
    write_begins: Numbers
    write_lows: Numbers
    write_highs: Numbers

    @property
    def has_range_writes(self) -> bool:
        """Whether a change is of more than one rank."""
        return bool((self.write_highs - self.write_lows > 1).any())

    @property
    def requests(self) -> int:
        """How many requests there are."""
        return len(self.ordinals)

    def check(self) -> None:
        """Assert the invariants."""
        assert len(self.read_begins) == len(self.write_begins) == self.requests + 1, "every request has its items"
        assert self.requests == 0 or (self.ordinals[0] >= 1 and (np.diff(self.ordinals) > 0).all()), "ordinals rise"
        for lows, highs in ((self.read_lows, self.read_highs), (self.write_lows, self.write_highs)):
            assert (lows < highs).all() and (lows >= 0).all() and (highs <= self.ranks).all(), "ranges hold ranks"


@dataclass(frozen=True, slots=True)
class Items:
    """Preconditions and changes of requests that are to be judged, as columns.

    Shape: ``owners`` are request positions from 0, in order; ``numbers`` are positions of preconditions in them.
    """

    owners: Numbers
    numbers: npt.NDArray[np.int32]
    is_read: Flags
    is_range: Flags
    keys: pa.Array
    ends: pa.Array
    ats: Ordinals

    def chosen(self, which: Flags) -> Items:
        """Some of them."""
        mask = pa.array(which)
        return Items(
            self.owners[which],
            self.numbers[which],
            self.is_read[which],
            self.is_range[which],
            self.keys.filter(mask),
            self.ends.filter(mask),
            self.ats[which],
        )


def select_items(
    asks: pa.Table, rows: pa.Table, base: int, assigned: Ordinals, pending: Flags, floors: Numbers
) -> tuple[Items, Numbers]:
    """The items of all requests, and the positions of those that are too old.

    Shape: ``assigned`` holds the ordinal after k requests, ``floors`` are as ``k``. Items of requests that are not
    pending, or too old, are left out.
    """
    counts = asks["items"].to_numpy().astype(np.int64)
    owners = np.repeat(np.arange(len(counts)), counts)
    starts = np.cumsum(counts) - counts
    kinds = rows["kind"].to_numpy()
    is_read: Flags = kinds >= ItemKind.POINT_READ
    at_index, at_version = plain_numbers(rows["at_index"]), plain_numbers(rows["at_version"])
    bare = (at_index < 0) & (at_version < 0)
    own_index, own_version = plain_numbers(asks["read_index"]), plain_numbers(asks["read_version"])
    # A request that names a later one is refused before it comes here; its items are only passed over.
    at_index = np.minimum(np.where(bare, own_index[owners], at_index), len(assigned) - 1)
    at_version = np.where(bare, own_version[owners], at_version)
    ats = ordinals_of(at_index, at_version, assigned, base)
    old = np.unique(owners[is_read & (ats < assigned[floors][owners]) & pending[owners]])
    judged = pending.copy()
    judged[old] = False
    items = Items(
        owners,
        (np.arange(len(owners)) - starts[owners]).astype(np.int32),
        is_read,
        (kinds == ItemKind.RANGE_DELETE) | (kinds == ItemKind.RANGE_READ),
        _one(rows["key"]),
        _one(rows["end"]),
        ats,
    )
    return (items if judged.all() else items.chosen(judged[owners])), old


def _one(column: pa.ChunkedArray) -> pa.Array:
    return column.cast(pa.large_binary()).combine_chunks()


def key_ranks(keys: pa.Array, ends: pa.Array) -> tuple[Numbers, Numbers, int]:
    """The rank of every key and every end (one above all for a null), and how many ranks there are."""
    bounds = ends.drop_null()
    both = pa.concat_arrays([keys, bounds]) if len(bounds) else keys
    encoded = both.dictionary_encode()
    order = pc.sort_indices(encoded.dictionary).to_numpy()
    ranks: Numbers = np.empty(len(order), np.int64)
    ranks[order] = np.arange(len(order))
    all_ranks = ranks[encoded.indices.to_numpy()]
    highs: Numbers = np.full(len(ends), len(order), np.int64)
    if len(bounds):
        highs[pc.is_valid(ends).to_numpy(zero_copy_only=False)] = all_ranks[len(keys) :]
    return all_ranks[: len(keys)], highs, len(order)


def make_problem(items: Items, positions: Numbers, ordinals: Ordinals) -> Problem:
    """The problem of the requests at ``positions``, which rise and hold every owner of ``items``."""
    lows, ends, ranks = key_ranks(items.keys, items.ends)
    highs = np.where(items.is_range, ends, lows + 1)
    owners = np.searchsorted(positions, items.owners)
    reads, writes = items.is_read, ~items.is_read

    def begins(which: Flags) -> Numbers:
        offsets: Numbers = np.zeros(len(positions) + 1, np.int64)
        np.cumsum(np.bincount(owners[which], minlength=len(positions)), out=offsets[1:])
        return offsets

    return Problem(
        ranks=ranks,
        ordinals=ordinals,
        read_begins=begins(reads),
        read_lows=lows[reads],
        read_highs=highs[reads],
        read_ats=items.ats[reads],
        write_begins=begins(writes),
        write_lows=lows[writes],
        write_highs=highs[writes],
    )
