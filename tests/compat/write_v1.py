"""Write the golden files of format v1. Run once, when the format was released; it refuses to run again.

    python -m tests.compat.write_v1

``objects/`` holds one object of every kind; ``log/`` is the directory of a log that the real service wrote: three
reigns, the first of which resigned; ``expected.json`` tells what was put in. The files are read for ever and never
written again: a format that cannot read them any more is another format.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

from holdfast.commit.format.batch import Header, Kind, LoggedTransaction, decode_header, encode_body, encode_object
from holdfast.commit.format.chain import ChainWalker
from holdfast.commit.format.transaction import Delete, PointRead, RangeDelete, RangeRead, Transaction, Write
from holdfast.commit.reading.reader import follow
from holdfast.commit.service import CommitEntry, CommitService, ServiceOptions
from holdfast.objects.directory.store import DirectoryStore
from holdfast.values import LeaderId, LogId, Slot, Version

HERE = Path(__file__).parent / "v1"

TRANSACTIONS = [
    LoggedTransaction(300_000_005, "attempt-1", 300_000_000, [Write(b"key", b"value"), Delete(b"\x00\xff")], []),
    LoggedTransaction(
        300_000_009,
        None,
        None,
        [RangeDelete(b"a", b"b"), RangeDelete(b"z", None), Write(b"", b"")],
        [PointRead(b"key"), PointRead(b"key", 7), RangeRead(b"", None), RangeRead(b"a", b"b", 300_000_001)],
    ),
    LoggedTransaction(300_000_010, "zähler", 0, [Write(b"long", bytes(range(256)) * 4)], []),
]


def as_json(value: object) -> Any:
    """Headers and transactions as JSON keeps them: bytes as hexadecimal digits."""
    plain = asdict(value) if isinstance(value, Header) else value
    return msgspec.to_builtins(plain, enc_hook=lambda item: item.hex()) if plain is value else _hexed(plain)


def _hexed(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: item.hex() if isinstance(item, bytes) else item for name, item in fields.items()}


def header(slot: int, **changes: Any) -> Header:
    fields: dict[str, Any] = {
        "kind": Kind.DATA,
        "log_id": LogId(bytes(range(16))),
        "slot": Slot(slot),
        "claim": Slot(3000),
        "prev": Slot(slot + 1),
        "epoch": 7,
        "leader_id": LeaderId(bytes(range(16, 32))),
        "nonce": bytes(range(32, 48)),
        "first_version": Version(300_000_005),
        "last_version": Version(300_000_010),
        "prev_version": Version(199_999_999),
        "window_floor": Version(300_000_000),
        "durable": Slot(3000),
        "truncated_through": Version(12),
        "time_ms": 1_767_225_600_000,
        "address": "leader.example:8080",
    }
    return Header(**(fields | changes))


def golden_objects() -> dict[str, bytes]:
    base = Version(300_000_000)
    claim = {"kind": Kind.CLAIM, "claim": Slot(3000), "prev": Slot(3001), "first_version": base, "last_version": base}
    settled = {"first_version": Version(300_000_011), "last_version": Version(300_000_011)}
    full = header(2000, transactions=len(TRANSACTIONS))
    return {
        "claim": encode_object(header(3000, **claim, durable=Slot(3001))),
        "data": encode_object(full, encode_body(TRANSACTIONS)),
        "data-lz4": encode_object(header(1999, transactions=3, flags=1), encode_body(TRANSACTIONS, compress=True)),
        "empty": encode_object(header(1998, **settled)),
        "resign": encode_object(header(1997, **settled, kind=Kind.RESIGN)),
    }


async def write_log(root: Path) -> list[dict[str, Any]]:
    """Three reigns: the first resigns, the second is left as a crash leaves it, the third only claims."""
    store = DirectoryStore(root)
    for reign in range(3):
        options = ServiceOptions(address=f"node-{reign}:8080", allow_new=reign == 0, take_over=True)
        service = await CommitService.lead(store, options)
        for number in range(2 if reign < 2 else 0):
            answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            txn = Transaction(
                [Write(b"key-%d" % number, b"reign %d" % reign)],
                [],
                f"id-{reign}-{number}",
                None,
                service.local_version(),
            )
            service.submit([CommitEntry(txn, lambda _, answered=answered: answered.set_result(None))])
            await answered
        if reign == 0:
            await service.step_down()
        await service.close()
    walker = ChainWalker()
    told = [
        {"header": as_json(batch.header), "transactions": [as_json(txn) for txn in batch.transactions()]}
        async for batch in follow(store, walker)
    ]
    await store.close()
    return told


def main() -> None:
    if HERE.exists():
        sys.exit(f"{HERE} exists: golden files are written once")
    (HERE / "objects").mkdir(parents=True)
    expected: dict[str, Any] = {"transactions": [as_json(txn) for txn in TRANSACTIONS], "objects": {}}
    for name, data in golden_objects().items():
        (HERE / "objects" / name).write_bytes(data)
        slot = int.from_bytes(data[32:40], "little")
        expected["objects"][name] = as_json(decode_header(data, slot=slot))
    (HERE / "log").mkdir()
    expected["log"] = asyncio.run(write_log(HERE / "log"))
    shutil.rmtree(HERE / "log" / ".holdfast", ignore_errors=True)
    (HERE / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    main()
