"""An ingest and its source: nothing is acknowledged or left out too early, and no hint leads to a second commit."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from tests.spark.plain_ingest import POLITE, Source, Verdicts, an_ingest, offered, request

from holdfast.errors import Code, CorruptData, InvalidRequest
from holdfast.spark.ingest import record as record_search
from holdfast.spark.ingest.ingest import Ingest
from holdfast.spark.ingest.numbered_source import MessageRequest, Relation
from holdfast.spark.ingest.record import GroupRecord
from holdfast.spark.sink.record import decode


@pytest.fixture(autouse=True)
def _without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ingest, "_requests", lambda _, frame: frame.requests)
    monkeypatch.setattr(record_search, "newest_records", lambda *_: {})


class Delayed(Source):
    """Message 2 is delayed: a look shows it, a poll cannot have it before its time, so it stays."""

    def acknowledge(self, through: int) -> None:
        self.numbers = [each for each in self.numbers if each > through or each == 2]


def test_nothing_is_acknowledged_before_its_verdict_is_durable(tmp_path: Path) -> None:
    root, verdicts, source = tmp_path / "log", Verdicts(), Delayed(1, 2, 3)
    first = an_ingest(root, verdicts, source)
    first.micro_batch(offered(1, 2, 3), 0)
    source.numbers += [4, 5, 6]
    verdicts.is_broken = True
    with pytest.raises(RuntimeError, match="killed"):
        first.micro_batch(offered(2, 4, 5, 6), 1)
    assert source.numbers == [2, 4, 5, 6]
    verdicts.is_broken = False
    second = an_ingest(root, verdicts, source)
    second.micro_batch(offered(2), 0)  # maxRowsPerTrigger: the others do not fit
    assert source.numbers == [2, 4, 5, 6]
    second.micro_batch(offered(4), 1)
    second.micro_batch(offered(5, 6), 2)
    second.close()
    assert source.numbers == [2]
    assert verdicts.codes == dict.fromkeys("123456")


def test_messages_that_got_the_numbers_of_decided_ones_are_refused_and_not_left_out(tmp_path: Path) -> None:
    """The stores were put back to an earlier state: message 3 comes again from another publisher, later."""
    root, verdicts, source = tmp_path / "log", Verdicts(), Source(1, 2, 3)
    ingest = an_ingest(root, verdicts, source)
    ingest.micro_batch(offered(1, 2, 3), 0)
    frame = offered(1, 2)
    later = MessageRequest("3", None, request(3).transaction, None, fields={}, time_ms=9_000)
    frame.requests.append(later)  # type: ignore[operator]
    with pytest.raises(InvalidRequest, match="put back to an earlier state") as refused:
        ingest.micro_batch(frame, 1)
    assert refused.value.fields["decided_through"] == 3
    assert refused.value.fields["decided_until_ms"] == 1_003
    ingest.close()


class Related(Source):
    """Another source, unless the operator says that it has moved."""

    identity = "store:00aa/requests/spark"

    def __init__(self, relation: Relation, *, is_moved: bool = False) -> None:
        super().__init__()
        self.is_moved = is_moved
        self._relation = relation

    def relation(self, identity: str | None, through: int, time_ms: int) -> Relation:
        assert (identity, through, time_ms) in {
            ("store:00ff/requests/spark", 2, 1_002), ("store:00aa/requests/spark", 3, 1_003), (None, 2, 1_002),
        }  # fmt: skip
        return Relation.SAME if identity is None or identity == self.identity else self._relation


def test_a_source_with_another_identity_is_continued_when_the_operator_says_so(tmp_path: Path) -> None:
    root, verdicts = tmp_path / "log", Verdicts()
    first = an_ingest(root, verdicts, Source())
    first.micro_batch(offered(1, 2), 0)
    first.close()
    refusing = an_ingest(root, verdicts, Related(Relation.OTHER))
    with pytest.raises(InvalidRequest, match="belongs to another source") as refused:
        refusing.micro_batch(offered(1, 2, 3), 0)
    assert "--source-moved" in refused.value.hint and "commit its requests twice" in refused.value.hint
    refusing.close()
    for moved in (True, False):  # once is enough
        again = an_ingest(root, verdicts, Related(Relation.OTHER, is_moved=moved))
        again.micro_batch(offered(1, 2, 3), 0)
        again.close()
    assert verdicts.codes == dict.fromkeys("123")


@pytest.mark.parametrize("name", ["orders", "another"])
def test_a_source_that_was_put_back_is_refused_under_every_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    root, verdicts = tmp_path / "log", Verdicts()
    first = an_ingest(root, verdicts, Source())
    first.micro_batch(offered(1, 2), 0)
    first.close()
    record = GroupRecord(0, 0, (), source=Source.identity, seqs=((1, 2),), time_ms=1_002)
    monkeypatch.setattr(record_search, "newest_records", lambda *_: {"orders": record})
    for relation, allowed in (
        (Relation.PUT_BACK, False),
        (Relation.SAME, name == "orders"),
        (Relation.OTHER, name != "orders"),
    ):
        again = Ingest(root.as_uri(), verdicts, name, request_format=None, source=Related(relation), leading=POLITE)
        if allowed:
            again.micro_batch(offered(), 0)
        else:
            with pytest.raises(InvalidRequest) as refused:
                again.micro_batch(offered(), 0)
            if relation is Relation.PUT_BACK:
                assert "Never take another name for this source" in refused.value.hint
                assert refused.value.code is Code.LOG_MISMATCH
        again.close()


def test_a_name_that_a_checkpoint_has_counted_takes_no_source(tmp_path: Path) -> None:
    root, table = tmp_path / "log", (tmp_path / "verdicts").as_uri()
    counted = an_ingest(root, table, None)
    counted.micro_batch(offered(1, 2), 0)
    counted.close()
    with_source = an_ingest(root, table, Source(3))
    with pytest.raises(InvalidRequest, match="belongs to another source"):
        with_source.micro_batch(offered(1, 2, 3), 1)
    with_source.close()
    assert with_source.counts.committed == 0


def test_a_source_needs_messages(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="one request in each message"):
        Ingest(tmp_path.as_uri(), Verdicts(), "orders", source=Source())


def test_a_record_that_cannot_be_read_is_named() -> None:
    good = GroupRecord(0, 0, (), source="queue:1", seqs=((1, 1),))
    assert decode(msgspec.json.encode(good), "ingest/good", GroupRecord) == good
    with pytest.raises(CorruptData) as refused:
        decode(b"junk", "ingest/bad", GroupRecord)
    assert refused.value.fields["job"] == "ingest/bad"
