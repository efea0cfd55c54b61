"""Where keys are while a table gets more buckets."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from holdfast.spark.tables.buckets import BUCKET_FILE_BYTES, Placement

FIRST = st.integers(1, 12)
HASHES = st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=50).map(lambda drawn: np.array(drawn, np.int64))


@given(FIRST, st.integers(0, 100), HASHES)
def test_more_buckets_move_keys_only_out_of_the_bucket_that_is_split(
    first: int, more: int, hashes: np.ndarray[tuple[int], np.dtype[np.int64]]
) -> None:
    before, after = Placement(first, first + more), Placement(first, first + more + 1)
    were, are = before.of_hashes(hashes), after.of_hashes(hashes)
    assert set(were.tolist()) <= set(range(before.count))
    moved = are != were
    assert (are[moved] == before.count).all(), "the new bucket has the keys that moved"
    assert len(set(were[moved].tolist())) <= 1, "they come from one bucket"


@given(FIRST, st.integers(0, 30), st.integers(0, 60), HASHES)
def test_every_bucket_has_its_keys_from_its_source(
    first: int, held: int, more: int, hashes: np.ndarray[tuple[int], np.dtype[np.int64]]
) -> None:
    before, after = Placement(first, first + held), Placement(first, first + held + more)
    assert (after.sources(before)[after.of_hashes(hashes)] == before.of_hashes(hashes)).all()


@given(FIRST, st.integers(0, 100))
def test_hashes_are_spread_over_all_buckets_and_no_bucket_has_more_than_twice_another(first: int, more: int) -> None:
    placement = Placement(first, first + more)
    counts = np.bincount(placement.of_hashes(np.arange(first * 2**8)), minlength=placement.count)
    assert len(counts) == placement.count and counts.min() > 0
    assert counts.max() <= 2 * counts.min()


def test_a_table_grows_by_its_bytes_and_at_most_to_twice_its_buckets() -> None:
    start = Placement(8, 8)
    assert start.grown(8 * BUCKET_FILE_BYTES) == start
    assert start.grown(8 * BUCKET_FILE_BYTES + 1).count == 9
    assert start.grown(10**6 * BUCKET_FILE_BYTES).count == 16
    assert Placement(8, 4000).grown(10**6 * BUCKET_FILE_BYTES).count == 4096
    assert Placement(8, 4096).grown(10**6 * BUCKET_FILE_BYTES).count == 4096
