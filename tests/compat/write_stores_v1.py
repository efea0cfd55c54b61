"""Write the golden directories of the message stores' rules 1. Run once, with the code that had these rules.

    python -m tests.compat.write_stores_v1 FOLDER

Each directory in FOLDER is what a service left: ``stopped`` after a clean stop, ``killed`` with a tail after its
checkpoint, ``killed_after_expiry`` with a tail that the code of rules 1 cannot replay. ``contents.json`` next to
them has what a client saw last. ``summary`` works with the code of any rules.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from pathlib import Path

from holdfast.stores.durables.consumption import Consumption
from holdfast.stores.durables.keyed import LastValue
from holdfast.stores.machine.state import State
from holdfast.stores.service import StoreService
from holdfast.stores.values import commands
from holdfast.stores.values.messages import Message

PAGE_BYTES = 65_536
START_MS = 1_767_225_600_000
DEFINITION = {
    "cluster": {"persistence": "sync"},
    "stores": {
        "orders": {
            "message_limit": 100_000,
            "durables": {
                "audit": {"type": "standard", "retention_time": 86_400},
                "work": {"type": "shared", "max_delivery": 3, "dead_letter_store": "dead", "prefetch": 8},
                "keyed": {"type": "shared", "key_ordered": True, "matcher": {"kind": "a"}, "ack_wait": 60},
                "limited": {"type": "shared", "message_limit": 5, "discard": "old", "message_ttl": 3_600},
                "last": {"type": "last_value", "message_ttl": 7_200},
                "settings": {"type": "map"},
            },
            "templates": {"made": {"type": "shared", "durable_ttl": 600}},
        },
        "dead": {"durables": {"all": {"type": "shared"}}},
    },
}
EXPIRY = {
    "stores": {
        "s": {
            "durables": {
                "work": {"type": "shared", "matcher": {"k": "w"}, "prefetch": 10_000, "ack_wait": 600},
                "last": {"type": "last_value", "matcher": {"k": "lv"}, "message_ttl": 20},
            }
        }
    }
}


def summary(state: State) -> dict[str, object]:
    """What clients and administrators can see of a state, in plain values."""
    stores: dict[str, object] = {}
    for name, store in sorted(state.stores.items()):
        durables: dict[str, object] = {}
        for of, durable in sorted(store.durables.items()):
            if isinstance(durable, Consumption):
                durables[of] = {
                    "pending": [list(item) for item in durable.browse(0, 1 << 60)],
                    "bytes": durable.pending_bytes,
                    "held": {who: [list(run) for run in held.runs] for who, held in durable.leases.of.items()},
                    "later": [list(item) for item in sorted(durable.redelivery.later)],
                    "dying": sorted(durable.dying),
                    "lost": durable.causes,
                }
            else:
                entries = [[entry.key, entry.revision, entry.size] for entry in durable.keyed.scan()]
                durables[of] = {"entries": entries, "bytes": durable.keyed.bytes}
                if isinstance(durable, LastValue):
                    durables[of]["subscribers"] = [list(item) for item in durable.subscribers()]  # type: ignore[index]
                else:
                    durables[of]["locks"] = list(map(list, durable.locks.state()[1]))  # type: ignore[index]
        known, forgotten = store.publishers.state()
        stores[name] = {
            "next_seq": store.counts.next_seq,
            "live": [store.counts.live, store.counts.live_bytes],
            "publishers": [[who, used_ms, [list(run) for run in runs]] for who, used_ms, runs in known],
            "forgotten": forgotten,
            "idle": dict(sorted(store.idle_since_ms.items())),
            "durables": durables,
        }
    return {"at_ms": state.at_ms, "revision": state.revision, "stores": stores}


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now_ms = START_MS

    def __call__(self) -> int:
        return self.now_ms


class Writer:
    """A service with a clock that stands still between commands."""

    def __init__(self, service: StoreService, clock: Clock) -> None:
        self.service = service
        self.clock = clock

    async def do(self, command: commands.Command) -> commands.Result:
        self.clock.now_ms += 1
        return await self.service.submit(command)

    async def define(self, document: dict[str, object]) -> None:
        await self.do(commands.Define(0, json.dumps(document).encode(), self.service.state.revision + 1, "golden"))

    async def publish(self, store: str, messages: list[Message], publisher: str = "") -> commands.Result:
        return await self.do(commands.Publish(0, store, publisher, messages))


async def orders(writer: Writer) -> None:
    """Everything that a durable can keep."""
    await writer.define(DEFINITION)
    for number in range(1, 41):
        kind = "ab"[number % 2]
        message = Message(body=b"order %d" % number, fields={"kind": kind}, key=f"k{number % 4}", publisher_seq=number)
        await writer.publish("orders", [message], "shop")
    late = [Message(body=b"late", deliver_at_ms=writer.clock.now_ms + 600_000, ttl_ms=900_000, fields={"kind": "a"})]
    await writer.publish("orders", [*late, Message(body=b"short", ttl_ms=500_000)])
    for durable in ("audit", "work", "keyed", "limited"):
        await writer.do(commands.Attach(0, "orders", durable, "ann"))
    await writer.do(commands.Attach(0, "orders", "last", "ann", key="k1"))
    await writer.do(commands.Attach(0, "orders", "mine", "ann", "made"))
    for durable in ("audit", "work", "keyed", "limited", "last"):
        await writer.do(commands.Deliver(0, "orders", durable, "ann", 6))
    await writer.do(commands.Acknowledge(0, "orders", "audit", "ann", [(1, 4)]))
    await writer.do(commands.Acknowledge(0, "orders", "work", "ann", [(1, 2)], [(3, 0), (4, 5_000)], [5]))
    changes = [("colour", b"red", None), ("size", b"12", 0)]
    await writer.do(commands.MapChange(0, "orders", "settings", changes))
    await writer.do(commands.MapLock(0, "orders", "settings", "colour", "ann", 3_600_000))


async def more(writer: Writer) -> None:
    """What comes after a checkpoint: a redelivery, a subscriber that leaves, an expiry."""
    message = Message(body=b"order 41", fields={"kind": "a"}, key="k1", publisher_seq=41)
    await writer.publish("orders", [message], "shop")
    await writer.do(commands.Detach(0, "orders", "keyed", "ann"))
    await writer.do(commands.Attach(0, "orders", "keyed", "bob"))
    await writer.do(commands.Deliver(0, "orders", "keyed", "bob", 4))
    writer.clock.now_ms += 31_000
    await writer.do(commands.Expire(0))
    await writer.do(commands.Deliver(0, "orders", "work", "ann", 3))
    await writer.do(commands.MapChange(0, "orders", "settings", [("size", None, None), ("shape", b"round", None)]))
    await writer.do(commands.Purge(0, "orders", "limited"))


async def write(folder: Path) -> None:
    """Three directories and what they hold."""
    contents: dict[str, object] = {}

    async def opened(name: str) -> Writer:
        clock = Clock()
        return Writer(await StoreService.open(str(folder / name), page_bytes=PAGE_BYTES, clock=clock), clock)

    writer = await opened("stopped")
    await orders(writer)
    await writer.service.checkpoint()
    await more(writer)
    contents["stopped"] = summary(writer.service.state)
    await writer.service.close()

    async def kill(name: str, writer: Writer) -> None:
        """What is there when the process is killed: every command is durable, nothing is closed."""
        contents[name] = summary(writer.service.state)
        shutil.copytree(folder / f"{name}.running", folder / name)
        await writer.service.close()
        shutil.rmtree(folder / f"{name}.running")

    writer = await opened("killed.running")
    await orders(writer)
    await writer.service.checkpoint()
    await more(writer)
    await kill("killed", writer)

    writer = await opened("killed_after_expiry.running")
    await writer.define(EXPIRY)
    await writer.publish("s", [Message(fields={"k": "w"}) for _ in range(2_047)])
    writer.clock.now_ms += 4_000
    await writer.publish("s", [Message(fields={"k": "lv"}, key=f"k{number}") for number in range(40)])
    await writer.do(commands.Attach(0, "s", "work", "ann"))
    await writer.do(commands.Deliver(0, "s", "work", "ann", 10_000))
    await writer.do(commands.Acknowledge(0, "s", "work", "ann", [(1, 2_047)]))
    await writer.service.checkpoint()
    writer.clock.now_ms = START_MS + 20_100
    await writer.do(commands.Expire(0))
    writer.clock.now_ms += 10_000
    await writer.do(commands.Expire(0, 16))
    await kill("killed_after_expiry", writer)
    (folder / "contents.json").write_text(json.dumps(contents, indent=1) + "\n")


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.mkdir(exist_ok=False)
    asyncio.run(write(target))
