"""Where the head of a log is, and what the next increment of a pipeline holds, without Spark."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.spark.log_builder import LogBuilder

from holdfast.commit.batch import slot_of
from holdfast.commit.transaction import Write
from holdfast.errors import NotFound
from holdfast.spark.pipeline.increments import log_head, next_increment


def haunted_log(root: Path) -> tuple[LogBuilder, int]:
    """A log whose newest key is a deposed leader's; and the version of its live head, which is the claim."""
    builder = LogBuilder(seed=3)
    old = builder.lead()
    old.commit([Write(b"k", b"1")])
    old.commit([Write(b"k", b"2")], lands=False)
    old.commit([Write(b"k", b"3")], lands=False)
    claim = builder.lead().claim
    late = min(old.in_flight)
    assert late < claim.slot and old.land(late), "behind the slot that the claim took"
    builder.write_to(root)
    assert min(slot_of(f"batches/{path.name}") or 0 for path in (root / "batches").iterdir()) == late
    return builder, claim.last_version


def test_a_dead_object_beyond_the_head_is_not_the_head(tmp_path: Path) -> None:
    builder, version = haunted_log(tmp_path)
    found = log_head(tmp_path.as_uri())
    assert (found.log_id, found.version) == (builder.log_id.hex(), version)
    increment = next_increment(tmp_path.as_uri(), 0, step_bytes=2**40)
    assert (increment.through, increment.head) == (version, found), "what is read ends where the head is"
    assert next_increment(tmp_path.as_uri(), version, step_bytes=2**40).is_empty


def test_an_empty_log_has_no_head(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="log is empty"):
        log_head(tmp_path.as_uri())
