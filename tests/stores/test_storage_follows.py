"""The cache of a commit log: it follows entries, knows how far it is after any crash, and is refused elsewhere."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.definitions import define

from holdfast.errors import CorruptData, InvalidRequest
from holdfast.stores.followed import FollowedStores
from holdfast.stores.storage import storage as storage_module
from holdfast.stores.storage.frames import encode_record, version_of, with_version
from holdfast.stores.storage.storage import Storage
from holdfast.stores.values.commands import RULES, Command, Publish, Published, Record
from holdfast.wire.parts import Message

Entries = list[tuple[int, list[bytes]]]
DEFINITION = {"stores": {"s": {"durables": {"all": {"type": "shared"}}}}}


def entries(directory: Path, count: int, *, each: int = 3) -> Entries:
    """What a leader wrote: a definition, then ``count`` entries of ``each`` publishes."""
    storage = Storage.open(str(directory / "leader"), page_bytes=65_536)
    made: Entries = []
    version = 1_000

    def record(command: Command) -> bytes:
        applied = storage.state.apply(command)
        return encode_record(Record(command, applied.result, RULES))

    try:
        made.append((version, [record(define(json.dumps(DEFINITION).encode(), at_ms=1_000))]))
        for index in range(count):
            version += 7
            messages = [[Message(b"%d.%d" % (index, part))] for part in range(each)]
            made.append((version, [record(Publish(1_000 + index, "s", "", batch)) for batch in messages]))
    finally:
        storage.close()
    return made


def opened(directory: Path) -> Storage:
    return FollowedStores.open(str(directory / "cache"), page_bytes=65_536)


def follow(storage: Storage, made: Sequence[tuple[int, list[bytes]]]) -> None:
    storage.follow(made)


def published(storage: Storage) -> int:
    return storage.state.stores["s"].counts.next_seq - 1


def test_a_cache_is_what_the_leader_was(tmp_path: Path) -> None:
    made = entries(tmp_path, 5)
    storage = opened(tmp_path)
    follow(storage, made)
    assert (storage.version, published(storage)) == (1_035, 15)
    assert [delivery.body for delivery in storage.messages.deliveries("s", [(1, 15, 1)])][-1] == b"4.2"
    storage.close()
    again = opened(tmp_path)
    assert (again.version, published(again)) == (1_035, 15)
    again.close()


@pytest.mark.parametrize("checkpoint", [False, True])
@pytest.mark.parametrize("kept", range(17))
def test_a_crash_leaves_any_first_part_and_the_rest_is_followed(tmp_path: Path, kept: int, checkpoint: bool) -> None:
    """Frames are appended one by one: an entry may be there in part, and none of its records is applied twice."""
    made = entries(tmp_path, 5)
    storage = opened(tmp_path)
    left = kept
    for version, records in made:
        part = records[:left]
        left -= len(part)
        if not part:
            break
        storage.follow([(version, part)])
        if checkpoint and len(part) == len(records):
            storage.write_checkpoint(storage.begin_checkpoint())
            storage.end_checkpoint()
    storage.close()
    again = opened(tmp_path)
    follow(again, [entry for entry in made if entry[0] >= (again.version or 0)])
    assert (again.version, published(again)) == (1_035, 15)
    again.state.check()
    again.close()


def test_entries_that_are_there_are_passed_over(tmp_path: Path) -> None:
    made = entries(tmp_path, 3)
    storage = opened(tmp_path)
    follow(storage, made)
    follow(storage, made)
    assert published(storage) == 9
    storage.close()


def test_a_record_that_gives_another_result_is_refused(tmp_path: Path) -> None:
    made = entries(tmp_path, 1)
    storage = opened(tmp_path)
    follow(storage, made)
    wrong = encode_record(Record(Publish(2_000, "s", "", [Message(b"x")]), Published(99, 99, 0, 0), RULES))
    with pytest.raises(CorruptData, match="another result"):
        storage.follow([(2_000, [wrong])])
    storage.close()


def test_a_long_catch_up_writes_checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from holdfast.stores import followed

    monkeypatch.setattr(followed, "CHECKPOINT_BYTES", 200)
    made = entries(tmp_path, 5)
    stores = FollowedStores.open(str(tmp_path / "cache"), page_bytes=65_536, memory_bytes=storage_module.MEMORY_BYTES)
    for entry in made:
        stores.follow([entry])
    assert stores.version == 1_035
    stores.close()
    again = opened(tmp_path)
    loaded = again.index.load()
    assert loaded is not None and loaded.version is not None and loaded.version > 1_000
    again.close()


def test_a_cache_is_not_served_as_stores_of_its_own(tmp_path: Path) -> None:
    storage = opened(tmp_path)
    follow(storage, entries(tmp_path, 1))
    storage.close()
    with pytest.raises(InvalidRequest, match="commit log"):
        Storage.open(str(tmp_path / "cache"), page_bytes=65_536)
    # To look at it is harmless.
    Storage.open(str(tmp_path / "cache"), page_bytes=65_536, read_only=True).close()


def test_stores_of_their_own_are_no_cache(tmp_path: Path) -> None:
    storage = Storage.open(str(tmp_path / "cache"), page_bytes=65_536)
    command = define(json.dumps(DEFINITION).encode(), at_ms=1_000)
    storage.log.append([encode_record(Record(command, storage.state.apply(command).result, RULES))])
    storage.close()
    with pytest.raises(CorruptData, match="no copy of a commit log"):
        opened(tmp_path)


def test_a_frame_keeps_its_version(tmp_path: Path) -> None:
    record = entries(tmp_path, 0)[0][1][0]
    assert version_of(with_version(record, 77)) == 77
    assert version_of(record) is None
    assert with_version(b"\x02moved", 77) == b"\x02moved"
