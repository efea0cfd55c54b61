"""Maps in the state machine: sessions, and the locks that go with them."""

from __future__ import annotations

import pytest
from tests.stores.state_harness import Machine

from holdfast.errors import Code, Conflict, NotFound, Unavailable
from holdfast.server.stores.figures import figures_of
from holdfast.stores.values import commands
from holdfast.stores.values.commands import MapLocked
from holdfast.stores.values.effects import Advise
from holdfast.wire.parts import Message

MAP = {"type": "map"}


def lock(machine: Machine, key: str, owner: str, ttl_ms: int = 60_000) -> int:
    result = machine.do(commands.MapLock(machine.now_ms, "s", "m", key, owner, ttl_ms))
    assert isinstance(result, MapLocked)
    return result.fence


def set_key(machine: Machine, key: str, fence: int = 0) -> None:
    machine.do(commands.MapChange(machine.now_ms, "s", "m", [(key, b"x", None)], fence))


@pytest.mark.parametrize("restarts", [False, True])
def test_the_locks_of_a_session_go_with_it_and_its_token_is_refused(restarts: bool) -> None:
    machine = Machine(m=MAP)
    machine.attach("m", "ann")
    fences = {key: lock(machine, key, "ann") for key in ("a", "b")}
    kept = lock(machine, "c", "bob")
    if restarts:
        machine.restart()
        assert ("s", "m", "ann") in machine.state.subscribers()
    machine.detach("m", "ann")
    assert [effect for effect in machine.effects if isinstance(effect, Advise)] == [
        Advise("s", "m", "ann", "lock_lost", (("key", key), ("fence", fences[key]), ("cause", "disconnected")))
        for key in ("a", "b")
    ]
    with pytest.raises(Conflict) as refused:
        set_key(machine, "a", fences["a"])
    assert refused.value.code is Code.NOT_HOLDER
    assert lock(machine, "a", "bob") > max(fences.values())
    set_key(machine, "c", kept)


def test_a_lock_without_a_session_ends_by_its_time_alone() -> None:
    machine = Machine(m=MAP)
    machine.attach("m", "ann")
    lock(machine, "a", "bob", 1_000)
    machine.detach("m", "ann")
    with pytest.raises(Unavailable):
        lock(machine, "a", "ann")
    machine.later(1_000)
    lock(machine, "a", "ann")


def test_a_session_that_comes_again_keeps_its_locks() -> None:
    machine = Machine(m=MAP)
    machine.attach("m", "ann")
    fence = lock(machine, "a", "ann")
    machine.attach("m", "ann")
    set_key(machine, "a", fence)


def test_who_is_not_connected_to_a_map_cannot_leave_it() -> None:
    machine = Machine(m=MAP)
    with pytest.raises(NotFound):
        machine.detach("m", "ann")


def test_a_dynamic_map_stays_while_somebody_watches_it_however_long_nothing_changes() -> None:
    machine = Machine(store={"templates": {"t": {"type": "map", "durable_ttl": 1}}})
    machine.attach("made", "ann", template="t")
    machine.later(10_000)
    assert "made" in machine.state.stores["s"].durables
    machine.detach("made", "ann")
    machine.later(999)
    assert "made" in machine.state.stores["s"].durables
    machine.later(1)
    assert "made" not in machine.state.stores["s"].durables


def test_what_keyed_durables_lose_is_counted_by_cause() -> None:
    machine = Machine(
        ttl={"type": "last_value", "message_ttl": "10s"},
        own={"type": "last_value"},
        m={"type": "map", "message_ttl": "10s"},
        small={"type": "map", "message_limit": 1, "discard": "old"},
    )
    set_key(machine, "a")
    for key in ("a", "b"):
        machine.do(commands.MapChange(machine.now_ms, "s", "small", [(key, b"x", None)], 0))
    machine.publish(Message(b"old", key="k"), Message(b"new", key="k"), Message(b"x", key="own", ttl_ms=5_000))
    began_ms = machine.now_ms
    assert figures_of(machine.durable("ttl")).oldest_ms == began_ms
    machine.later(5_000)
    machine.restart()
    assert machine.durable("own").keyed.causes == {"own_ttl": 1}
    machine.publish(Message(b"newer", key="other"))
    machine.do(commands.Drop(machine.now_ms, "s", "own", machine.state.stores["s"].counts.next_seq - 1))
    machine.later(5_000)
    found = {name: figures_of(machine.durable(name)).document() for name in ("ttl", "own", "m", "small")}
    assert {name: one["expired"] for name, one in found.items()} == {
        "ttl": {"own_ttl": 1, "ttl": 1},
        "own": {"own_ttl": 1, "deleted": 1},
        "m": {"ttl": 1},
        "small": {"limit_old": 1},
    }
    assert found["ttl"]["messages"] == found["own"]["messages"] == 1
    for one in found.values():
        oldest_ms = one["oldest_ms"]
        assert isinstance(oldest_ms, int) and (
            began_ms <= oldest_ms <= machine.now_ms if one["messages"] else not oldest_ms
        )
