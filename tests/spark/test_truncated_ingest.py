"""An ingest whose records retention has removed goes on: nothing is decided twice, and each request has one verdict."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from deltalake import DeltaTable
from tests.spark.plain_ingest import POLITE, Source, Verdicts, an_ingest, offered, retention

from holdfast.errors import Code, NotFound
from holdfast.spark.ingest import record as record_search
from holdfast.spark.ingest.ingest import Ingest
from holdfast.spark.ingest.record import GroupRecord, RequestOutcome, lost_groups


@pytest.fixture(autouse=True)
def _without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left of a truncated log has no record: the tasks that look for one find none."""

    def found(_: object, __: str, removed: Mapping[bytes, bytes]) -> dict[str, GroupRecord]:
        assert not removed, "a name without a record is new in these tests"
        return {}

    monkeypatch.setattr(Ingest, "_requests", lambda _, frame: frame.requests)
    monkeypatch.setattr(record_search, "newest_records", found)


def test_requests_after_a_truncation_get_verdicts_of_their_own(tmp_path: Path) -> None:
    root, verdicts, source = tmp_path / "log", Verdicts(), Source(1, 2, 3, 4, 5)
    first = an_ingest(root, verdicts, source)
    first.micro_batch(offered(1, 2, 3, 4, 5), 0)
    first.close()
    retention(root)
    second = an_ingest(root, verdicts, source)
    second.micro_batch(offered(6, 7, 8), 1)
    second.close()
    assert verdicts.codes == dict.fromkeys("12345678")


def test_a_table_of_verdicts_goes_on_after_a_truncation(tmp_path: Path) -> None:
    root, table = tmp_path / "log", tmp_path / "verdicts"
    first = an_ingest(root, table.as_uri(), Source())
    first.micro_batch(offered(1, 2, 3, 4, 5), 0)
    first.close()
    retention(root)
    second = an_ingest(root, table.as_uri(), Source())
    second.micro_batch(offered(6, 7, 8), 1)
    second.close()
    assert sorted(DeltaTable(str(table)).to_pyarrow_table()["order"].to_pylist()) == list("12345678")


@pytest.mark.parametrize("numbered", [True, False])
def test_groups_whose_records_were_removed_are_not_decided_again(tmp_path: Path, numbered: bool) -> None:
    """Killed before its verdicts; a standby leads and truncates; the job comes back with some messages expired."""
    root, verdicts = tmp_path / "log", Verdicts()
    source = Source(*range(11, 18))
    first = an_ingest(root, verdicts, source if numbered else None, group_requests=2)
    first.micro_batch(offered(11, 12), 0)
    verdicts.is_broken = True
    with pytest.raises(RuntimeError, match="killed"):
        first.micro_batch(offered(13, 14, 15, 16, 17), 1)
    first.close()
    retention(root)
    verdicts.is_broken = False
    if numbered:
        assert source.numbers == [13, 14, 15, 16, 17]
        source.numbers = [14, 15, 16, 17]
    second = an_ingest(root, verdicts, source if numbered else None, group_requests=2)
    second.micro_batch(offered(*((14, 15, 16, 17) if numbered else (13, 14, 15, 16, 17))), 1)
    second.micro_batch(offered(18, 19), 2)
    second.close()
    lost = dict.fromkeys(["13", "14", "15", "16"], str(Code.LOG_TRUNCATED))
    assert verdicts.codes == {"11": None, "12": None, **lost, "17": None, "18": None, "19": None}
    assert second.counts.committed == (2 if numbered else 3)  # 18, 19; Spark repeats 17, which the log knows
    assert source.numbers == [] or not numbered


def test_a_truncated_log_without_a_snapshot_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "log"
    first = an_ingest(root, Verdicts(), Source())
    first.micro_batch(offered(1), 0)
    first.close()
    retention(root, snapshot=False)
    second = an_ingest(root, Verdicts(), Source())
    with pytest.raises(NotFound, match="no snapshot has what was recorded") as refused:
        second.micro_batch(offered(1, 2), 0)
    assert refused.value.code is Code.LOG_TRUNCATED
    second.close()


def test_a_new_name_begins_in_a_truncated_log(tmp_path: Path) -> None:
    root, verdicts = tmp_path / "log", Verdicts()
    other = an_ingest(root, Verdicts(), None)
    other.micro_batch(offered(1), 0)
    other.close()
    retention(root)
    ingest = Ingest(root.as_uri(), verdicts, "new", request_format=None, leading=POLITE)
    ingest.micro_batch(offered(1, 2), 0)
    ingest.close()
    assert verdicts.codes == dict.fromkeys("12")


def test_lost_groups_name_what_the_source_keeps_first() -> None:
    outcome = (RequestOutcome(None, 9),)
    oldest = GroupRecord(4, 3, outcome, "d", source="queue:1", seqs=((20, 20),), after=10)
    assert lost_groups(oldest, [14, 17]).seqs == ((11, 11), (14, 14), (17, 17))
    assert lost_groups(oldest, [12, 14, 16, 17]).seqs == ((14, 14), (16, 17))
    assert lost_groups(oldest, []).seqs == ((11, 13),)
