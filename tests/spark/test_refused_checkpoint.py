"""A micro-batch of an older checkpoint is refused, and costs nothing: the ingest leads on, and resigns at its end."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest
from pyspark.sql import SparkSession
from tests.spark.plain_ingest import Verdicts, an_ingest, offered

from holdfast.commit.format.batch import HEADER_BYTES, Kind, decode_header, slot_of
from holdfast.errors import InvalidRequest
from holdfast.spark.ingest.ingest import Ingest
from holdfast.spark.ingest.verdict_output import Judged


@pytest.fixture(autouse=True)
def without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ingest, "_requests", lambda _, frame: frame.requests)


class Counted(Verdicts):
    """Verdicts of a table, which counts its micro-batches."""

    def __init__(self) -> None:
        super().__init__()
        self.written = 0

    def begin(self, log_id: str, name: str) -> int:
        super().begin(log_id, name)
        return self.written

    def write(self, judged: Judged) -> None:
        super().write(judged)
        self.written = judged.number + 1


def has_resigned(root: Path) -> bool:
    newest = min((root / "batches").iterdir())
    slot = slot_of(f"batches/{newest.name}")
    assert slot is not None, "the store made it"
    return decode_header(newest.read_bytes()[:HEADER_BYTES], slot=slot).kind is Kind.RESIGN


def three_micro_batches(ingest: Ingest) -> None:
    for number in range(3):
        ingest.micro_batch(offered(number * 2 + 1, number * 2 + 2), number)


def test_an_ingest_that_refused_a_checkpoint_resigns(tmp_path: Path) -> None:
    verdicts = Counted()
    first = an_ingest(tmp_path / "log", verdicts, None)
    three_micro_batches(first)
    first.close()
    second = an_ingest(tmp_path / "log", verdicts, None)
    with pytest.raises(InvalidRequest, match="further than its checkpoint"):
        second.micro_batch(offered(1, 2), 0)
    second.close()
    assert has_resigned(tmp_path / "log")


def test_an_ingest_that_refused_a_checkpoint_leads_on(tmp_path: Path) -> None:
    ingest, spark = an_ingest(tmp_path / "log", Counted(), None), cast(SparkSession, None)
    three_micro_batches(ingest)
    leader_id = ingest.lead(spark)
    with pytest.raises(InvalidRequest, match="further than its checkpoint"):
        ingest.micro_batch(offered(1, 2), 0)
    assert ingest.lead(spark) == leader_id
    ingest.close()
    assert has_resigned(tmp_path / "log")
