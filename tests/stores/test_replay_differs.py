"""A replay whose result differs names the command and both results, and a repair can take the recorded one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.definitions import define

from holdfast.errors import CorruptData, InvalidRequest
from holdfast.stores.durables.consumption import Consumption
from holdfast.stores.repair.damage import accept_recorded
from holdfast.stores.storage.frames import encode_record
from holdfast.stores.storage.log import MessageLog
from holdfast.stores.storage.storage import Storage
from holdfast.stores.values.commands import (
    RULES,
    Acknowledge,
    Acknowledged,
    Attach,
    Attached,
    Command,
    DeadLetter,
    Deliver,
    Delivered,
    Done,
    Expire,
    Expired,
    MapChange,
    MapChanged,
    Publish,
    Published,
    Record,
    Result,
)
from holdfast.wire.parts import Message

PAGE_BYTES = 65_536
DEFINITION = {
    "stores": {
        "s": {"message_limit": 4, "durables": {"work": {"type": "shared"}, "map": {"type": "map"}}},
        "dead": {"durables": {"all": {"type": "shared"}}},
    }
}
BEGINNING: list[tuple[Command, Result]] = [
    (define(json.dumps(DEFINITION).encode(), at_ms=1), Done()),
    (Publish(2, "s", "", [Message(body=b"%d" % number) for number in range(3)]), Published(1, 3, 0, 0)),
    (Attach(3, "s", "work", "ann"), Attached(True, "")),
]


def write(directory: Path, *records: tuple[Command, Result]) -> None:
    """A log that says of each command what a client has seen."""
    directory.mkdir()
    log = MessageLog(str(directory), page_bytes=PAGE_BYTES)
    for command, result in (*BEGINNING, *records):
        known = Attached(False, "") if isinstance(command, Attach) else result
        log.append([encode_record(Record(command, known, RULES))])
    log.close()


def opened(directory: Path) -> Storage:
    storage = Storage.open(str(directory), page_bytes=PAGE_BYTES)
    storage.state.check()
    return storage


def test_error_names_the_command_both_results_and_the_next_step(tmp_path: Path) -> None:
    write(tmp_path / "stores", (Expire(9), Expired(5, 0, True)))
    with pytest.raises(CorruptData, match="Expire") as raised:
        opened(tmp_path / "stores")
    assert raised.value.fields["recorded"] == "Expired(messages=5, durables=0, more=True)"
    assert raised.value.fields["found"] == "Expired(messages=0, durables=0, more=False)"
    assert "holdfast stores repair --accept-recorded" in raised.value.hint
    assert str(tmp_path / "stores") in raised.value.hint


def test_error_does_not_hold_the_bodies_of_a_large_batch(tmp_path: Path) -> None:
    batch = Publish(9, "s", "", [Message(body=b"x" * 100_000)])
    write(tmp_path / "stores", (batch, Published(7, 7, 0, 0)))
    with pytest.raises(CorruptData) as raised:
        opened(tmp_path / "stores")
    assert len(str(raised.value)) < 3_000


def test_accepted_acknowledgement_removes_what_the_client_saw_acknowledged(tmp_path: Path) -> None:
    directory = tmp_path / "stores"
    # The replay finds that ann holds nothing: by these records she was given 1 to 3, and has acknowledged 1 and 2.
    write(
        directory,
        (Deliver(4, "s", "map", "bob", 3), Delivered([(1, 3, 1)])),
        (Acknowledge(5, "s", "work", "ann", [(1, 3)]), Acknowledged(2, [(3, 3)])),
    )
    accepted = accept_recorded(str(directory), str(tmp_path / "backup"))
    assert [frame for frame, _ in accepted] == [4, 5]
    storage = opened(directory)
    work = storage.state.stores["s"].durables["work"]
    assert isinstance(work, Consumption)
    assert work.browse(0, 10) == [(3, 0)]
    storage.close()


def test_accepted_publication_keeps_its_number_although_a_limit_refuses_it_now(tmp_path: Path) -> None:
    directory = tmp_path / "stores"
    batch = Publish(4, "s", "p", [Message(body=b"%d" % number, publisher_seq=number) for number in (1, 2)])
    write(directory, (batch, Published(4, 5, 0, 0)), (Deliver(5, "s", "work", "ann", 5), Delivered([(1, 5, 1)])))
    assert len(accept_recorded(str(directory), str(tmp_path / "backup"))) == 1
    storage = opened(directory)
    assert [item.body for item in storage.messages_of("s").deliveries("s", [(4, 5, 1)])] == [b"1", b"2"]
    assert storage.state.stores["s"].publishers.seq_of("p", 2) == 5
    assert storage.state.stores["s"].definition.message_limit == 4
    storage.close()


def test_accepted_map_change_and_dead_letter_keep_their_numbers(tmp_path: Path) -> None:
    directory = tmp_path / "stores"
    write(
        directory,
        (MapChange(4, "s", "map", [("k", b"v", 7)]), MapChanged(4, 1)),
        (DeadLetter(5, "s", "work", 1, Message(body=b"letter"), "dead"), Published(1, 1, 0, 0)),
    )
    assert len(accept_recorded(str(directory), str(tmp_path / "backup"))) == 2
    storage = opened(directory)
    assert storage.messages_of("dead").deliveries("dead", [(1, 1, 1)])[0].body == b"letter"
    assert storage.messages_of("s").deliveries("s", [(4, 4, 1)])[0].body == b"v"
    storage.close()


def test_result_that_would_give_messages_other_numbers_is_not_accepted(tmp_path: Path) -> None:
    directory = tmp_path / "stores"
    write(directory, (Publish(4, "s", "", [Message()]), Published(9, 9, 0, 0)))
    before = {path.name: path.read_bytes() for path in directory.iterdir()}
    with pytest.raises(CorruptData, match="other numbers"):
        accept_recorded(str(directory), str(tmp_path / "backup"))
    assert {path.name: path.read_bytes() for path in (tmp_path / "backup").iterdir()} == before


def test_repair_needs_a_new_folder_for_its_backup(tmp_path: Path) -> None:
    write(tmp_path / "stores", (Expire(9), Expired(5, 0, True)))
    (tmp_path / "backup").mkdir()
    with pytest.raises(InvalidRequest, match="backup"):
        accept_recorded(str(tmp_path / "stores"), str(tmp_path / "backup"))


def test_backup_is_the_directory_as_it_was_and_a_second_opening_replays_nothing(tmp_path: Path) -> None:
    write(tmp_path / "stores", (Expire(9), Expired(5, 0, True)))
    before = (tmp_path / "stores" / "messages-1.page").read_bytes()
    assert len(accept_recorded(str(tmp_path / "stores"), str(tmp_path / "backup"))) == 1
    assert (tmp_path / "backup" / "messages-1.page").read_bytes() == before
    opened(tmp_path / "stores").close()
    assert accept_recorded(str(tmp_path / "stores"), str(tmp_path / "backup2")) == []
