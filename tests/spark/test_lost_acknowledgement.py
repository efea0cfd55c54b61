"""The answer about an acknowledgement is lost: the same ingest goes on, and blames no other consumer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.spark.plain_ingest import POLITE, Verdicts, offered

from holdfast.errors import Unavailable
from holdfast.spark.ingest import numbered_source
from holdfast.spark.ingest import record as record_search
from holdfast.spark.ingest.ingest import Ingest
from holdfast.spark.ingest.numbered_source import DurableSource
from holdfast.spark.messages.durable_client import DurableClient

TOKEN = "efkpot1u.00000001.00000002"


class Kept:
    """What a durable of a service has."""

    def __init__(self, *numbers: int) -> None:
        self.numbers = list(numbers)
        self.acknowledged = 0
        self.loses_the_answer = False


class Client:
    """A client of that durable, with the bookkeeping of the real one."""

    kept: Kept
    collision = DurableClient.collision
    acknowledge_own = DurableClient.acknowledge_own
    _store, _durable = "requests", "spark"

    def __init__(self, *_: object, subscriber: str) -> None:
        self.subscriber = subscriber
        self._has_asked = False
        self._own_through = 0
        self._own_total: int | None = None

    def attach(self) -> None:
        assert self.subscriber.startswith("spark/ingest/")

    def describe(self) -> dict[str, str]:
        return {"token": TOKEN}

    def require_same(self, token: str, seq: int, *, fail_on_data_loss: bool) -> None:
        assert (token, fail_on_data_loss) == (TOKEN, True) and seq in (2, 4)

    def messages(self, *_: object) -> Iterator[object]:
        return iter(())

    def acknowledge_left(self, seq: int) -> int:
        return self.acknowledge_through(seq, 0)

    def acknowledge_through(self, seq: int, after: int = 0) -> int:
        del after
        gone = [number for number in self.kept.numbers if number <= seq]
        self.kept.numbers = [number for number in self.kept.numbers if number > seq]
        self.kept.acknowledged += len(gone)
        self._has_asked = True
        return len(gone)

    def counts(self) -> dict[str, int]:
        if self.kept.loses_the_answer and self._has_asked and not self.kept.numbers:
            self.kept.loses_the_answer = False
            raise Unavailable("no response")
        return {"acknowledged": self.kept.acknowledged}

    def close(self) -> None:
        pass


def test_a_lost_answer_is_no_other_consumer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ingest, "_requests", lambda _, frame: frame.requests)
    monkeypatch.setattr(record_search, "newest_records", lambda *_: {})
    monkeypatch.setattr(numbered_source, "DurableClient", Client)
    kept = Client.kept = Kept(1, 2)
    source = DurableSource("http://127.0.0.1:9", "requests", "spark")
    (tmp_path / "log").mkdir()
    url = (tmp_path / "log").as_uri()
    ingest = Ingest(url, Verdicts(), "orders", request_format=None, source=source, leading=POLITE)
    ingest.micro_batch(offered(1, 2), 0)
    kept.numbers += [3, 4]
    kept.loses_the_answer = True
    with pytest.raises(Unavailable):
        ingest.micro_batch(offered(3, 4), 1)
    assert not kept.loses_the_answer, "it was lost"
    ingest.micro_batch(offered(3, 4), 1)  # as a query that is started again
    ingest.close()
    assert kept.numbers == []
