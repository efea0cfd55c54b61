"""Format v1 is read for ever: golden files that nothing writes any more."""

from __future__ import annotations

import asyncio
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from tests.compat.write_v1 import TRANSACTIONS, as_json

from holdfast.commit.format.batch import (
    UNKNOWN_SCOPE,
    Header,
    LoggedTransaction,
    decode_body,
    decode_header,
    object_name,
)
from holdfast.commit.format.chain import ChainWalker
from holdfast.commit.leadership.claims import Frontier, plan_recovery, read_page
from holdfast.commit.reading.reader import follow
from holdfast.objects.memory import MemoryObjects, MemoryStore

HERE = Path(__file__).parent / "v1"
EXPECTED: dict[str, Any] = json.loads((HERE / "expected.json").read_text())
DIGEST = "46b6abb9db2bd0607df2215a9e2f4493b443799972c1b759b8482b683fe7e5a2"


def golden_log() -> MemoryStore:
    objects = MemoryObjects()
    for path in sorted((HERE / "log" / "batches").iterdir()):
        objects.create(f"batches/{path.name}", path.read_bytes())
    return MemoryStore(objects)


def digest() -> str:
    """Of every golden file with its name, so that none is changed, added or lost unseen."""
    whole = hashlib.sha256()
    for path in sorted(HERE.rglob("*")):
        if path.is_file():
            whole.update(path.relative_to(HERE).as_posix().encode() + b"\0" + path.read_bytes())
    return whole.hexdigest()


def test_the_golden_files_are_the_ones_that_were_released() -> None:
    assert digest() == DIGEST


def as_then(header: Header) -> dict[str, Any]:
    """The header as the golden files tell it. A field that came later is unknown in them."""
    told: dict[str, Any] = as_json(header)
    assert header.scope == UNKNOWN_SCOPE
    del told["scope"]
    assert (told.pop("parent_log_id"), told.pop("forked_at")) == (None, 0)
    times = ("lived_ms", "boot_ms", "ahead_s", "clock_steps")
    assert [told.pop(name) for name in times] == [0, 0, 0, 0]
    assert (told.pop("stores_mode"), told.pop("entries"), told.pop("newest_transaction")) == (0, 0, 0)
    return told


def without_parts(txn: LoggedTransaction) -> dict[str, Any]:
    """The transaction as the golden files have it: from before the stores took part, and jobs had rows."""
    found: dict[str, Any] = as_json(txn)
    assert (found.pop("record"), found.pop("parts_digest"), found.pop("jobs")) == (None, "", ())
    return found


@pytest.mark.parametrize("name", EXPECTED["objects"])
def test_every_kind_of_object_is_read_as_it_was_meant(name: str) -> None:
    data = (HERE / "objects" / name).read_bytes()
    told = EXPECTED["objects"][name]
    header = decode_header(data, slot=told["slot"])
    assert as_then(header) == told
    assert decode_body(data, header) == (TRANSACTIONS if header.transactions else [])


def test_a_log_of_the_real_service_is_walked_to_its_end() -> None:
    async def walk() -> list[dict[str, Any]]:
        return [
            {"header": as_then(batch.header), "transactions": [without_parts(txn) for txn in batch.transactions()]}
            async for batch in follow(golden_log(), ChainWalker())
        ]

    assert asyncio.run(walk()) == EXPECTED["log"]
    assert len(EXPECTED["log"]) == 8


def test_recovery_goes_on_from_that_log_where_it_ends() -> None:
    store = golden_log().objects
    page = read_page([(row.key, row.size) for row in store.list("batches/")])
    plan = plan_recovery(page, {slot: store.read(object_name(slot)) for slot in page.slots}, allow_new=False)
    assert isinstance(plan, Frontier)
    last = EXPECTED["log"][-1]["header"]
    # The last reign claimed and wrote nothing: the next claim stands at its jump.
    assert (plan.slot, plan.epoch) == (last["slot"] - 1000, last["epoch"] + 1)
