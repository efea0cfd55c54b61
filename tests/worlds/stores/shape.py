"""The definition of the stores, the length and the crash rates of a world, drawn from its seed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import Final

from holdfast.stores.values.ports import BLOCK_MESSAGES

__all__ = ["DEAD", "FOLLOWED_KEYS", "KEYS", "KINDS", "MEMORY", "STORE", "Shape", "draw_shape", "with_memory_store"]

STORE: Final = "s"
DEAD: Final = "dead"
MEMORY: Final = "memory"
KINDS: Final = ("a", "b", "c")
KEYS: Final = ("k1", "k2", "k3", "k4")
FOLLOWED_KEYS: Final = KEYS[:3]


@dataclass(frozen=True, slots=True)
class Shape:
    """One world. ``definition`` is the JSON of its cluster; rates are shares of steps."""

    definition: Mapping[str, object]
    steps: int
    crash_rate: float
    fork_rate: float
    sync_rate: float
    crowd: int
    """Messages of one large batch that comes once, so that blocks are passed; 0 for none."""
    lax: bool
    """Whether deliveries and acknowledgements may come before deadlines that are due are carried out."""


def draw_shape(random: Random) -> Shape:
    """The shape of a world."""
    kinds = ["standard", "shared", "shared", "last_value", "map"]
    names = {f"{kind}-{place}": kind for place, kind in enumerate(random.sample(kinds, random.randint(2, 4)))}
    durables = {name: _draw_durable(random, kind) for name, kind in names.items()}
    store: dict[str, object] = {
        "durables": durables,
        "templates": {"made": _draw_durable(random, "shared") | {"durable_ttl": random.choice((0, "3s"))}},
        "dynamic_durable_limit": random.choice((0, 1, 2)),
    }
    plain = all(not durable.get("retention_time") and durable.get("discard") != "new" for durable in durables.values())
    made = store["templates"]["made"]  # type: ignore[index]
    if plain and not made.get("retention_time") and made.get("discard") != "new" and random.random() < 0.3:
        store |= random.choice(({"message_limit": 12}, {"bytelimit": 400}))
    definition = {
        "cluster": {"publisher_ttl": random.choice(("7d", "20s"))},
        "stores": {STORE: store, DEAD: {"durables": {"grave": {"type": "standard", "ack_wait": "1h"}}}},
    }
    # Everything that looks at every message is slow in a crowd, so its world is short.
    crowd = random.choice((0, 0, 0, 0, 0, 0, 0, 0, 0, BLOCK_MESSAGES + 76))
    return Shape(
        definition=definition,
        steps=40 if crowd else random.choice((40, 80, 150)),
        crash_rate=random.choice((0.0, 0.02, 0.06)),
        fork_rate=random.choice((0.1, 0.3)),
        sync_rate=random.choice((1.0, 0.5, 0.2)),
        crowd=crowd,
        lax=random.random() < 0.5,
    )


def with_memory_store(shape: Shape) -> Shape:
    """The shape with one more store, which lives in memory only: no record has what happens there."""
    durables = {"work": {"type": "shared", "ack_wait": 2, "message_ttl": 5}, "last": {"type": "last_value"}}
    stores: Mapping[str, object] = shape.definition["stores"]  # type: ignore[assignment]
    memory = {"replicated": False, "durables": durables}
    return replace(shape, definition={**shape.definition, "stores": {MEMORY: memory, **stores}})


def _draw_durable(random: Random, kind: str) -> dict[str, object]:
    durable: dict[str, object] = {"type": kind}
    if kind in ("standard", "shared"):
        durable |= {"prefetch": random.choice((1, 2, 5, 50)), "ack_wait": random.choice((0.5, 2, 30))}
        durable["max_delivery"] = random.choice((0, 0, 1, 2, 3))
        durable["dead_letter_store"] = random.choice(("", DEAD, DEAD))
        if random.random() < 0.4:
            durable["matcher"] = random.choice(({"kind": "a"}, {"kind": ["a", "b"]}, {"n": {">=": 2}}, {"kind": False}))
        if random.random() < 0.4:
            durable |= random.choice(({"message_limit": 4}, {"bytelimit": 90}))
            durable["discard"] = random.choice(("old", "new"))
        if random.random() < 0.3:
            durable["message_ttl"] = random.choice((1, 5, 60))
        elif random.random() < 0.4:
            durable["retention_time"] = random.choice((2, 20, 1000))
        durable |= {"key_ordered": random.random() < 0.3} if kind == "shared" else {}
    elif kind == "last_value":
        durable |= random.choice(({}, {"matcher": {"kind": ["a", "b"]}}, {"key_field": "kind"}))
        durable["message_ttl"] = random.choice((0, 0, 3))
    else:
        durable["message_ttl"] = random.choice((0, 0, 3))
        if random.random() < 0.5:
            durable |= random.choice(({"message_limit": 2}, {"bytelimit": 12}))
            durable["discard"] = random.choice(("old", "new"))
    return durable
