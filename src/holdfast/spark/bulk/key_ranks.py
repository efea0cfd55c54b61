"""From the keys of requests to the flat arrays of a problem.

Owns: the ranks of keys, ordinals of read versions, and which requests are too old to be judged.
Does not own: the order of requests (``sequencing``), verdicts (``sweep``).

The rank of a key is its place among all keys and bounds of ranges that the problem mentions. A key at rank r is the
range ``[r, r + 1)``; a range of keys is the range between its bounds' ranks. Two ranges of keys meet exactly when their
ranks do, whether or not a key lies in both.

Failure model: pure memory; keys are compared as bytes. Cost: a hash for each key, a sort of the distinct ones.
"""

# pyarrow ships no types, so the checker cannot know its classes where they are parameters; mypy checks the rest.
# Most functions of pyarrow.compute are made when it is imported, so it cannot see those either.
# pyright: reportUnknownParameterType=false, reportAttributeAccessIssue=false

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.commit.format.batch import ItemKind
from holdfast.spark.bulk.sequencing import ordinals_of
from holdfast.spark.bulk.sweep import Ordinals, Problem

__all__ = ["Items", "key_ranks", "make_problem", "place_items"]

Numbers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Items:
    """Preconditions and changes of requests that are to be judged, as columns.

    Shape: ``owners`` says whose, as places from 0, in order; ``numbers`` is a precondition's place in its request.
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


def place_items(
    asks: pa.Table, rows: pa.Table, first: int, base: int, assigned: Ordinals, pending: Flags, floors: Numbers
) -> tuple[Items, Numbers]:
    """The items of consecutive requests from place ``first`` on, and the places of those that are too old.

    Shape: ``assigned`` holds the ordinal after k requests of the whole input, ``pending`` and ``floors`` (as ``k``)
    belong to these requests. Items of requests that are not pending, or too old, are left out.
    """
    counts = asks["items"].to_numpy().astype(np.int64)
    local = np.repeat(np.arange(len(counts)), counts)
    starts = np.cumsum(counts) - counts
    kinds = rows["kind"].to_numpy()
    is_read: Flags = kinds >= ItemKind.POINT_READ
    at_index, at_version = _plain(rows["at_index"]), _plain(rows["at_version"])
    bare = (at_index < 0) & (at_version < 0)
    own_index, own_version = _plain(asks["read_index"]), _plain(asks["read_version"])
    # A request that names a later one is refused before it comes here; its items are only passed over.
    at_index = np.minimum(np.where(bare, own_index[local], at_index), len(assigned) - 1)
    at_version = np.where(bare, own_version[local], at_version)
    ats = ordinals_of(at_index, at_version, assigned, base)
    old = np.unique(local[is_read & (ats < assigned[floors][local]) & pending[local]])
    judged = pending.copy()
    judged[old] = False
    items = Items(
        local + first,
        (np.arange(len(local)) - starts[local]).astype(np.int32),
        is_read,
        (kinds == ItemKind.RANGE_DELETE) | (kinds == ItemKind.RANGE_READ),
        _one(rows["key"]),
        _one(rows["end"]),
        ats,
    )
    return (items if judged.all() else items.chosen(judged[local])), old + first


def _plain(column: pa.ChunkedArray) -> Numbers:
    found: Numbers = pc.fill_null(column, -1).to_numpy().astype(np.int64)
    return found


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
    found = ranks[encoded.indices.to_numpy()]
    highs: Numbers = np.full(len(ends), len(order), np.int64)
    if len(bounds):
        highs[pc.is_valid(ends).to_numpy(zero_copy_only=False)] = found[len(keys) :]
    return found[: len(keys)], highs, len(order)


def make_problem(items: Items, places: Numbers, ordinals: Ordinals) -> Problem:
    """The problem of the requests at ``places``, which rise and hold every owner of ``items``."""
    lows, ends, ranks = key_ranks(items.keys, items.ends)
    highs = np.where(items.is_range, ends, lows + 1)
    owners = np.searchsorted(places, items.owners)
    reads, writes = items.is_read, ~items.is_read

    def begins(which: Flags) -> Numbers:
        found: Numbers = np.zeros(len(places) + 1, np.int64)
        np.cumsum(np.bincount(owners[which], minlength=len(places)), out=found[1:])
        return found

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
