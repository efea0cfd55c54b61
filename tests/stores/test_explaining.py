"""What is said of a message's fate is what the durable will do with it, and no more than it knows."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.stores.state_harness import Machine

from holdfast.errors import NotFound
from holdfast.stores.durables.leases import HANDED_OUT_MAX
from holdfast.stores.machine.explain import LETTERS_MAX, explain
from holdfast.stores.values import commands
from holdfast.wire.parts import Message

FATES = {
    *("waiting", "delayed", "held", "dying", "parked", "acknowledged", "value", "not_wanted", "earlier", "expired"),
    *("dead_lettered", "gone", "unknown"),
}
POSSIBLE = {
    *("acknowledged", "expired", "discarded", "dead_lettered", "rejected", "deleted", "lost", "replaced"),
    "not_wanted",
}


def fates(machine: Machine, seq: int) -> dict[str, Any]:
    found = explain(machine.state, "s", seq)["durables"]
    assert isinstance(found, list)
    assert all(one["fate"] in FATES and set(one.get("possible", ())) <= POSSIBLE for one in found)
    return {one["name"]: one for one in found}


def test_each_durable_tells_what_it_knows() -> None:
    machine = Machine(
        all={"type": "shared", "max_delivery": 1, "ack_wait": "30s"},
        some={"type": "shared", "matcher": {"kind": "a"}},
        kept={"type": "shared", "retention_time": "1h"},
        last={"type": "last_value"},
        m={"type": "map"},
    )
    machine.publish(Message(b"1", {"kind": "a"}, "k"), Message(b"2", {"kind": "b"}, "k"))
    machine.publish(Message(b"3", {}, "j", deliver_at_ms=machine.now_ms + 5_000))
    assert {name: one["fate"] for name, one in fates(machine, 1).items()} == {
        "all": "waiting",
        "some": "waiting",
        "kept": "waiting",
        "last": "gone",
        "m": "not_wanted",
    }
    assert fates(machine, 2)["some"] == {
        "name": "some",
        "type": "shared",
        "fate": "not_wanted",
        "matcher": {"kind": "a"},
    }
    assert fates(machine, 2)["last"]["fate"] == "value"
    assert fates(machine, 3)["all"]["fate"] == "delayed"

    machine.attach("all", "ann")
    machine.deliver("all", "ann", 1)
    held = fates(machine, 1)["all"]
    assert (held["fate"], held["subscriber"], held["since_ms"]) == ("held", "ann", machine.now_ms)
    machine.settle("all", "ann", nack=[(1, 0)])
    assert fates(machine, 1)["all"]["fate"] == "parked"
    machine.deliver("all", "ann", 1)
    machine.ack("all", "ann", 2)
    assert fates(machine, 2)["all"]["fate"] == "gone"
    machine.attach("kept", "bob")
    machine.deliver("kept", "bob", 2)
    machine.ack("kept", "bob", 1)
    assert fates(machine, 1)["kept"]["fate"] == "acknowledged"
    machine.do(commands.Purge(machine.now_ms, "s", "some"))
    assert fates(machine, 1)["some"]["fate"] == "earlier"


def test_what_no_durable_keeps_is_gone_or_unknown() -> None:
    machine = Machine(a={"type": "shared"}, b={"type": "shared", "matcher": {"kind": "a"}})
    machine.publish("x")
    machine.attach("a", "ann")
    machine.deliver("a", "ann")
    machine.ack("a", "ann", 1)
    assert {name: one["fate"] for name, one in fates(machine, 1).items()} == {"a": "gone", "b": "unknown"}
    assert [one["possible"] for one in fates(machine, 1).values()] == [["acknowledged"], []]
    with pytest.raises(NotFound, match="not given out"):
        explain(machine.state, "s", 2)


def redefine(machine: Machine, durable: str, definition: dict[str, Any]) -> None:
    part = commands.DefinitionPart(("stores", "s", "durables", durable), json.dumps(definition).encode())
    machine.do(commands.Redefine(machine.now_ms, [part], machine.state.revision + 1))


@pytest.mark.parametrize("key_ordered", [False, True])
def test_the_time_of_a_hand_out_stands_whatever_becomes_of_the_deadline(key_ordered: bool) -> None:
    shape = {"type": "shared", "key_ordered": key_ordered}
    machine = Machine(w={**shape, "ack_wait": "30s"})
    machine.publish(*[Message(b"x", key=str(number)) for number in range(3)])
    machine.attach("w", "ann")
    handed_ms = machine.now_ms
    machine.deliver("w", "ann", 2)
    machine.now_ms += 10_000
    machine.settle("w", "ann", extend=[(1, 1)])
    redefine(machine, "w", {**shape, "ack_wait": "1h"})
    machine.deliver("w", "ann", 1)
    assert [fates(machine, seq)["w"]["since_ms"] for seq in (1, 2, 3)] == [handed_ms, handed_ms, machine.now_ms]
    machine.settle("w", "ann", nack=[(1, 0)])
    machine.deliver("w", "ann", 1)
    assert fates(machine, 1)["w"]["since_ms"] == machine.now_ms
    machine.restart()
    held = fates(machine, 2)["w"]
    assert held["fate"] == "held" and "since_ms" not in held


def test_the_time_of_a_long_hold_is_known_after_many_other_hand_outs() -> None:
    machine = Machine(w={"type": "shared", "ack_wait": "1h"})
    machine.checked = False
    machine.attach("w", "ann")
    machine.publish("held for long")
    handed_ms = machine.now_ms
    machine.deliver("w", "ann", 1)
    for seq in range(2, HANDED_OUT_MAX * 3):
        machine.now_ms += 1
        machine.publish("x")
        machine.deliver("w", "ann", 1)
        machine.ack("w", "ann", seq)
    machine.state.check()
    assert fates(machine, 1)["w"]["since_ms"] == handed_ms


def test_a_last_value_durable_names_why_it_has_a_message_not() -> None:
    machine = Machine(w={"type": "shared"})
    machine.publish(Message(b"x", key="k"))
    redefine(machine, "lv", {"type": "last_value", "matcher": {"kind": "a"}})
    machine.publish(Message(b"x", {"kind": "a"}), Message(b"x", {"kind": "b"}, "k"))
    machine.publish(Message(b"x", {"kind": "a"}, "k", deliver_at_ms=machine.now_ms + 9_999))
    machine.publish(Message(b"1", {"kind": "a"}, "k"), Message(b"2", {"kind": "a"}, "k"))
    machine.publish(Message(b"x", {"kind": "a"}, "early"))
    assert [(found["fate"], found.get("reason")) for seq in range(2, 5) if (found := fates(machine, seq)["lv"])] == [
        ("not_wanted", "no_key"),
        ("not_wanted", None),
        ("not_wanted", "delayed"),
    ]
    assert fates(machine, 3)["lv"]["matcher"] == {"kind": "a"}
    assert fates(machine, 5)["lv"]["possible"] == ["deleted", "replaced"]
    machine.do(commands.Purge(machine.now_ms, "s", "lv"))
    machine.restart()
    assert fates(machine, 7)["lv"]["fate"] == "earlier"


def test_a_message_from_before_a_last_value_durable_is_earlier() -> None:
    machine = Machine(w={"type": "shared"})
    machine.publish(Message(b"x", key="k"))
    redefine(machine, "lv", {"type": "last_value"})
    assert fates(machine, 1)["lv"]["fate"] == "earlier"
    machine.attach("w", "ann")
    machine.deliver("w", "ann")
    machine.ack("w", "ann", 1)
    assert fates(machine, 1)["lv"]["fate"] == "earlier"


def test_a_dead_letter_is_found_and_says_why() -> None:
    machine = Machine(w={"type": "shared", "dead_letter_store": "dead"}, o={"type": "shared"})
    machine.attach("w", "ann")
    machine.publish("x", "y")
    machine.deliver("w", "ann", 2)
    machine.settle("w", "ann", reject=[1])
    assert fates(machine, 1)["w"]["fate"] == "dying"
    machine.bury()
    assert fates(machine, 1)["w"] == {
        "name": "w",
        "type": "shared",
        "fate": "dead_lettered",
        "dead_letter_store": "dead",
        "letter_seq": 1,
        "cause": "rejected",
        "delivery_count": 1,
    }
    machine.ack("w", "ann", 2)
    assert fates(machine, 2)["w"]["possible"] == ["acknowledged", "dead_lettered"]
    machine.checked = False
    machine.publish(*["newer"] * (LETTERS_MAX - 1), store="dead")
    assert fates(machine, 1)["w"]["fate"] == "dead_lettered"
    machine.publish("newer", store="dead")
    assert (fates(machine, 1)["w"]["fate"], fates(machine, 1)["w"]["possible"]) == (
        "gone",
        ["acknowledged", "dead_lettered"],
    )


def test_only_the_causes_that_were_counted_are_possible() -> None:
    machine = Machine(
        short={"type": "shared", "message_ttl": "1s"},
        small={"type": "shared", "message_limit": 1, "discard": "old"},
        dropped={"type": "shared"},
        rejected={"type": "shared"},
        o={"type": "shared"},
    )
    machine.publish("x", "y")
    machine.do(commands.Drop(machine.now_ms, "s", "dropped", 1))
    machine.attach("rejected", "ann")
    machine.deliver("rejected", "ann")
    machine.settle("rejected", "ann", reject=[1])
    machine.later(1_000)
    found = fates(machine, 1)
    assert {name: one["possible"] for name, one in found.items() if one["fate"] == "gone"} == {
        "short": ["expired"],
        "small": ["discarded"],
        "dropped": ["deleted", "not_wanted"],
        "rejected": ["rejected"],
    }


def test_what_expired_while_another_durable_holds_it_is_not_waiting() -> None:
    machine = Machine(a={"type": "shared", "ack_wait": "1h"}, b={"type": "shared"})
    machine.publish(Message(b"x", ttl_ms=1_000))
    machine.attach("a", "ann")
    machine.deliver("a", "ann")
    machine.later(1_000)
    assert {name: one["fate"] for name, one in fates(machine, 1).items()} == {"a": "held", "b": "expired"}
