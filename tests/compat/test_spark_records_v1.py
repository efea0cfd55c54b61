"""The records that earlier versions of an ingest wrote, one line for each form, oldest first."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.errors import CorruptData
from holdfast.spark.ingest.record import GroupRecord, RequestOutcome, decode_records, record_key

GOLDEN = Path(__file__).parent / "spark-v1" / "ingest-records.jsonl"
OUTCOMES = (RequestOutcome(None, 41), RequestOutcome("conflict", None, ((0, 39),)), RequestOutcome("too_old"))


def test_records_of_earlier_versions_open() -> None:
    lines = GOLDEN.read_bytes().splitlines()
    found = decode_records({record_key(f"form {number}"): line for number, line in enumerate(lines)}, set())
    counted = GroupRecord(5, 2, OUTCOMES, "9f86d081884c7d659a2feaa0c55ad015", 1, 17, 3, 10)
    numbered = GroupRecord(
        6, 0, OUTCOMES, "e3b0c44298fc1c149afbf4c8996fb924", 1, 22, 3, 10,
        "store:00ff/requests/spark", ((12, 13), (15, 15)), 1_760_000_000_123,
    )  # fmt: skip
    assert found == {
        "form 0": GroupRecord(0, 3, (RequestOutcome(None, 7), RequestOutcome(None, 8))),
        "form 1": counted,
        "form 2": numbered,
    }
    assert numbered.after is None and not counted.seqs


def test_a_record_of_a_later_version_is_refused_and_named() -> None:
    line = GOLDEN.read_bytes().splitlines()[-1].replace(b'"format":1', b'"format":1,"later":0')
    with pytest.raises(CorruptData, match="no ingest of this version wrote") as refused:
        decode_records({record_key("orders"): line}, set())
    assert "use that version" in refused.value.hint
