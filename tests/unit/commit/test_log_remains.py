"""Which log the places around a log belong to."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from holdfast.commit.leadership.log_remains import bind_stores, bound_log, refuse_remains, remains_around, require_bound
from holdfast.errors import Code, CorruptData, InvalidRequest, Unavailable
from holdfast.objects.memory import MemoryStore

LOG, OTHER = "1" * 32, "2" * 32


def test_stores_belong_to_the_log_that_was_noted_last(tmp_path: Path) -> None:
    assert bound_log(str(tmp_path)) is None
    require_bound(str(tmp_path), LOG)
    bind_stores(str(tmp_path), OTHER)
    bind_stores(str(tmp_path), LOG)
    assert bound_log(str(tmp_path)) == LOG
    require_bound(str(tmp_path), LOG)
    with pytest.raises(InvalidRequest) as caught:
        require_bound(str(tmp_path), OTHER)
    assert caught.value.code is Code.LOG_MISMATCH
    assert (caught.value.fields["stores_log_id"], caught.value.fields["log_id"]) == (LOG, OTHER)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log.json"]
    assert (tmp_path / "log.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("text", [b"", b"{}", b"\xff", b'{"log_id": 5}', b'{"log_id": "a", "format": 2}'])
def test_a_note_that_is_damaged_is_named(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "log.json").write_bytes(text)
    with pytest.raises(CorruptData) as caught:
        bound_log(str(tmp_path))
    assert str(tmp_path / "log.json") in str(caught.value)


def test_a_place_without_stores_says_nothing_and_one_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert bound_log(str(tmp_path / "file")) is None
    assert bound_log(str(tmp_path / "absent")) is None
    (tmp_path / "log.json").mkdir()
    with pytest.raises(Unavailable) as caught:
        bound_log(str(tmp_path))
    assert caught.value.code is Code.STORE_UNFIT


def test_everything_that_a_log_left_is_named_and_its_own_objects_are_not(tmp_path: Path) -> None:
    (tmp_path / "log" / "view").mkdir(parents=True)
    (tmp_path / "log" / "view" / f"{LOG}.sqlite").touch()
    (tmp_path / "stores").mkdir()
    bind_stores(str(tmp_path / "stores"), OTHER)

    async def look(*keys: str) -> list[str]:
        store = MemoryStore()
        for key in keys:
            await store.create(key, b"{}")
        return await remains_around(store, (tmp_path / "log").as_uri(), str(tmp_path / "stores"))

    assert len(asyncio.run(look("batches/18446744073709551615", "probe/x"))) == 2
    found = asyncio.run(look("meta/role"))
    with pytest.raises(InvalidRequest) as caught:
        refuse_remains(found)
    assert caught.value.code is Code.LOG_MISMATCH
    for part in (f"stores of log {OTHER}", f"the view of log {LOG}", "the object meta/role"):
        assert part in str(caught.value)
    refuse_remains([])
