"""How long a start asks a store that does not answer: as long as an outage is likely, and not for a wrong name."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from holdfast.errors import Unavailable
from holdfast.objects.port import Listed, ObjectStore
from holdfast.server.commit import replaced_log
from holdfast.server.commit.replaced_log import require_raced

URL = "s3://bucket/log?endpoint=http://store.example:9000&region=us-east-1"


class Silent:
    """A store that answers nothing ``times`` times, and then that it is empty."""

    def __init__(self, times: int) -> None:
        self.times = times
        self.asked = 0

    async def list(self, prefix: str, *, after: str = "", limit: int = 1000) -> list[Listed]:
        self.asked += 1
        if self.asked <= self.times:
            raise Unavailable("the object store did not list")
        return []


def ask(store: Silent, monkeypatch: pytest.MonkeyPatch, *, addresses: int, patience: float, unresolved: float) -> None:
    monkeypatch.setattr(replaced_log, "addresses_of", lambda _: addresses)
    monkeypatch.setattr(replaced_log, "PATIENCE_SECONDS", patience)
    monkeypatch.setattr(replaced_log, "UNRESOLVED_SECONDS", unresolved)
    monkeypatch.setattr(replaced_log, "AGAIN_SECONDS", 0.0)
    asyncio.run(require_raced(cast(ObjectStore, store), URL))


def test_a_host_without_an_address_is_named_and_asked_for_a_short_time_only(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Silent(times=1_000_000)
    with pytest.raises(Unavailable, match=r"no address.*host=store\.example"):
        ask(store, monkeypatch, addresses=0, patience=1e9, unresolved=0.0)
    assert store.asked == 1


def test_a_host_whose_name_comes_late_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Silent(times=3)
    ask(store, monkeypatch, addresses=0, patience=0.0, unresolved=1e9)
    assert store.asked == 4


def test_a_store_with_an_address_is_asked_as_long_as_an_outage_may_last(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Silent(times=3)
    ask(store, monkeypatch, addresses=1, patience=1e9, unresolved=0.0)
    assert store.asked == 4
    with pytest.raises(Unavailable, match="did not list"):
        ask(Silent(times=9), monkeypatch, addresses=1, patience=0.0, unresolved=1e9)
