"""What the queue's design wants, beside what was measured.

Owns: the targets. Does not own: the measurements (``lanes``). A target is a ratio of medians over a peer at the same
durability, in the same run, or a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from queue_peers.lanes import SIZES, Lanes

__all__ = ["Target", "targets"]

NEAR_MISS = 0.8


@dataclass(frozen=True, slots=True)
class Target:
    """One target: ``part`` is how much of it was reached, 1 or more where it is met."""

    name: str
    wanted: str
    measured: str
    part: float

    @property
    def verdict(self) -> str:
        return "PASS" if self.part >= 1 else "near" if self.part >= NEAR_MISS else "miss"


OVER_PEERS: tuple[tuple[str, tuple[tuple[str, float], ...]], ...] = (
    ("batch", (("lmdb", 2), ("sqlite3", 20), ("litequeue", 50), ("persist-queue SQLite", 500))),
    ("single", (("lmdb", 6), ("persist-queue SQLite", 100))),
    ("synced", (("sqlite3", 1.5), ("lmdb", 2))),
    ("synced batch", (("lmdb", 1.5), ("persist-queue SQLite", 300))),
    ("payloads", (("lmdb", 1.2), ("sqlite3", 3))),
)
NAMES = {
    "batch": "append_many of 1,000",
    "single": "append one by one",
    "synced": "append, synced each",
    "synced batch": "append_many of 1,000, synced",
    "payloads": "sequential read",
}


def targets(lanes: Lanes, lengths: Sequence[int]) -> list[Target]:
    """Those of the design for messages of 100 bytes; the ratios at 1 KiB stand beside them without a verdict."""
    found: list[Target] = []
    for lane, peers in OVER_PEERS:
        for peer, wanted in peers:
            ratios = [lanes.rate(f"{lane} {size}") / lanes.rate(f"{lane} {size}", peer) for size in SIZES]
            measured = f"{ratios[0]:,.1f} x   (at 1 KiB {ratios[1]:,.1f} x)"
            found.append(Target(f"{NAMES[lane]}, over {peer}", f">= {wanted:g} x", measured, ratios[0] / wanted))
    rates = {system: lanes.rate("lazy 100", system) for system in ("holdfast", "holdfast zlib-ng", "holdfast crc32c")}
    best = max(rates.values())
    measured = ", ".join(f"{system} {rate / 1e6:,.1f} M/s" for system, rate in rates.items())
    found.append(Target("lazy view", ">= 50 M/s", measured, best / 50e6))
    since, peer_since = lanes.lane("since 1000000"), lanes.lane("since 1000000", "persist-queue SQLite")
    seek_us = since.median("seek_us")
    found.append(Target("seek to a time in 1 M messages", "<= 50 us", f"{seek_us:,.1f} us", 50 / seek_us))
    ratio = peer_since.median("first_us") / since.median("first_us")
    name = "seek and 100 messages, over persist-queue SQLite"
    found.append(Target(name, ">= 200 x", f"{ratio:,.0f} x", ratio / 200))
    for kind, bound in (("killed", 10.0), ("clean", 1.0)):
        times = {length: lanes.lane(f"open {kind} {length}").median("ms") for length in lengths}
        if kind == "killed":
            times |= {0: lanes.lane("open killed, by 1").median("ms")}
        measured = ", ".join(f"{ms:.2f} ms at {length:,}" for length, ms in times.items() if length)
        name = "open after kill -9" if kind == "killed" else "open after a clean close"
        found.append(Target(name, f"<= {bound:g} ms", measured, bound / max(times.values())))
    ratio = lanes.rate("tasks 100") / lanes.rate("synced 100")
    found.append(Target("1,000 tasks, over one sync each", ">= 30 x", f"{ratio:,.1f} x", ratio / 30))
    ratio = lanes.rate("work 2000") / lanes.rate("work 2000", "persist-queue ack, unsynced")
    shipped = lanes.rate("work 2000") / lanes.rate("work synced 2000", "persist-queue ack")
    measured = f"{ratio:,.1f} x unsynced by hand   (as it comes, which always syncs, {shipped:,.1f} x)"
    found.append(Target("work queue, get and ack, over persist-queue ack", ">= 50 x", measured, ratio / 50))
    return found
