"""What is said of a message's fate is what the durable will do with it, and no more than it knows."""

from __future__ import annotations

from typing import Any

import pytest
from tests.stores.state_harness import Machine

from holdfast.errors import NotFound
from holdfast.stores import commands
from holdfast.stores.explaining import FATES, explain
from holdfast.stores.messages import Message


def fates(machine: Machine, seq: int) -> dict[str, Any]:
    found = explain(machine.state, "s", seq)["durables"]
    assert isinstance(found, list)
    assert all(one["fate"] in FATES for one in found)
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
    with pytest.raises(NotFound, match="not given out"):
        explain(machine.state, "s", 2)
