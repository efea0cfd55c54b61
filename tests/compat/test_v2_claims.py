"""The claims of format 2 are read as they were released: one that forks a log, and one that retires it."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import pytest
from tests.unit.commit.builders import BASE, LOG_ID

from holdfast.commit.format.batch import FIRST_SLOT, FORMAT_VERSION_FORK, Kind, decode_header, encode_object
from holdfast.values import LogId

HERE = Path(__file__).parent / "v2"
SLOT = FIRST_SLOT - 2
FORK, RETIRING = (HERE / "fork-claim").read_bytes(), (HERE / "retiring-claim").read_bytes()


def test_the_golden_files_are_the_ones_that_were_released() -> None:
    assert sha256(FORK + RETIRING).hexdigest() == "f08788cb45e5e9ff6ac36d0e9f030e8af1fdf600409d2f8d0a9c4481eab78b80"


def test_a_fork_claim_says_which_log_it_leaves_and_where() -> None:
    header = decode_header(FORK, slot=SLOT)
    assert (header.kind, header.is_fork, header.retires) == (Kind.CLAIM, True, False)
    assert (header.parent_log_id, header.log_id) == (LOG_ID, LogId(b"f" * 16))
    assert (header.forked_at, header.last_version) == (BASE + 9, 276807284591)
    assert (header.truncated_through, header.epoch) == (7, 2)


def test_a_retiring_claim_ends_its_own_log() -> None:
    header = decode_header(RETIRING, slot=SLOT)
    assert (header.kind, header.is_fork, header.retires) == (Kind.CLAIM, False, True)
    assert (header.log_id, header.parent_log_id, header.last_version) == (LOG_ID, None, BASE + 100_000_009)


@pytest.mark.parametrize("data", [FORK, RETIRING])
def test_the_bytes_are_written_as_then(data: bytes) -> None:
    assert encode_object(decode_header(data, slot=SLOT)) == data
    assert data[8] == FORMAT_VERSION_FORK
