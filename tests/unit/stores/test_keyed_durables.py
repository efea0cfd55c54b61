"""Last values, maps and locks: one law each, and random lives against plain dictionaries."""

from __future__ import annotations

from array import array
from random import Random

import pytest
from tests.matrix import matrix
from tests.worlds.stores.memory_ports import MemoryBlocks, MemoryEntries, MemoryMessages

from holdfast.errors import Backpressure, Code, Conflict, HoldfastError, InvalidRequest, LimitExceeded, Unavailable
from holdfast.stores.definitions.cluster import Discard, DurableDefinition, DurableType
from holdfast.stores.durables import map as locks
from holdfast.stores.durables.backlog import Shelf
from holdfast.stores.durables.keyed import LastValue
from holdfast.stores.durables.map import Change, Locks, MapDurable
from holdfast.stores.values.commands import MapChange
from holdfast.stores.values.deadlines import Budget
from holdfast.stores.values.ports import BLOCK_MESSAGES
from holdfast.stores.values.reference_counts import ReferenceCounts
from holdfast.wire.parts import Message


class Ground:
    """A store's counts and messages, without its state machine."""

    def __init__(self) -> None:
        self.blocks = MemoryBlocks(strict=True)
        self.messages = MemoryMessages(self.blocks)
        self.entries = MemoryEntries()
        self.counts = ReferenceCounts("s", self.blocks)
        self.shelf = Shelf("s", self.counts, self.messages)

    def append(self, at_ms: int, messages: list[Message], sizes: array[int], references: array[int]) -> int:
        first = self.counts.append(sizes, references, at_ms)
        self.messages.add("s", first, at_ms, messages, sizes)
        return first

    def foreign(self, at_ms: int, count: int) -> None:
        """Messages of the store that belong to another durable."""
        messages = [Message(key="k1") for _ in range(count)]
        self.append(at_ms, messages, array("I", [3] * count), array("H", [1] * count))

    def publish(self, durable: LastValue, at_ms: int, message: Message) -> int | None:
        key = durable.key_for(message)
        size = len(message.body)
        seq = self.append(at_ms, [message], array("I", [size]), array("H", [key is not None]))
        if key is None:
            return None
        durable.accept(key, seq, size)
        return seq

    def change(
        self, target: MapDurable, at_ms: int, *changes: tuple[str, bytes | None, int | None], **more: int
    ) -> list[Change]:
        command = MapChange(at_ms, "s", "m", list(changes), fence=more.get("fence", 0))
        plan = target.plan(command)
        first = self.append(at_ms, plan.messages, plan.sizes, plan.references)
        return target.change(plan, first)


def a_map(ground: Ground, **parameters: object) -> MapDurable:
    return MapDurable(DurableDefinition("m", DurableType.MAP, **parameters), ground.shelf, ground.entries)  # type: ignore[arg-type]


def last_value(ground: Ground, **parameters: object) -> LastValue:
    return LastValue(DurableDefinition("v", DurableType.LAST_VALUE, **parameters), ground.shelf, ground.entries)  # type: ignore[arg-type]


# ---- last values ----------------------------------------------------------------------------------------------------


def test_a_subscriber_is_given_the_current_value_at_once_and_then_only_newer_ones() -> None:
    ground = Ground()
    durable = last_value(ground)
    ground.publish(durable, 1, Message(b"one", key="k"))
    assert durable.attach("ann", "k")
    first = durable.deliver("ann")
    assert first is not None
    assert (first.revision, durable.deliver("ann"), durable.ready()) == (1, None, False)
    ground.publish(durable, 2, Message(b"two", key="k"))
    third = ground.publish(durable, 3, Message(b"three", key="k"))
    assert durable.ready()
    last = durable.deliver("ann")
    assert last is not None
    assert last.revision == third
    assert durable.attach("ann", "k")
    again = durable.deliver("ann")
    assert again == last
    durable.check()


def test_a_message_without_a_key_is_not_for_a_last_value_durable() -> None:
    ground = Ground()
    durable = last_value(ground, key_field="id")
    assert ground.publish(durable, 1, Message(b"x", key="k")) is None
    assert ground.publish(durable, 1, Message(b"x", {"id": 7})) is None
    assert ground.publish(durable, 1, Message(b"x", {"id": ""})) is None
    assert ground.publish(durable, 1, Message(b"x", {"id": "k"})) == 4
    entry = durable.keyed.get("k")
    assert entry is not None
    assert entry.revision == 4
    durable.check()


def test_a_subscriber_without_a_key_is_refused() -> None:
    for key in (None, "", "k" * 1025):
        with pytest.raises(InvalidRequest):
            last_value(Ground()).attach("ann", key)


def test_a_replaced_value_is_released_and_the_last_one_is_kept() -> None:
    ground = Ground()
    durable = last_value(ground)
    for at_ms in range(5):
        ground.publish(durable, at_ms, Message(b"x", key="k"))
    assert (ground.counts.live, durable.keyed.messages, durable.keyed.bytes) == (1, 1, 1)


# ---- maps -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "condition", "holds"),
    [
        (None, None, True),
        (None, 0, True),
        (None, 1, False),
        (1, None, True),
        (1, 0, False),
        (1, 1, True),
        (1, 2, False),
    ],
)
@pytest.mark.parametrize("body", [b"new", None])
def test_a_change_holds_where_its_revision_does(
    before: int | None, condition: int | None, holds: bool, body: bytes | None
) -> None:
    ground = Ground()
    target = a_map(ground)
    if before:
        ground.change(target, 1, ("k", b"old", None))
    if holds:
        changes = ground.change(target, 2, ("k", body, condition))
        told = [] if body is None and not before else [Change("k", (before or 0) + 1, "set" if body else "removed")]
        assert changes == told
    else:
        with pytest.raises(Conflict) as refused:
            ground.change(target, 2, ("k", body, condition))
        assert refused.value.code is Code.REVISION_MISMATCH
        assert refused.value.fields["revision"] == (before or 0)
    entry = target.keyed.get("k")
    assert (entry is not None) is ((body is not None) if holds else before is not None)
    target.check()


def test_a_change_is_all_or_nothing() -> None:
    ground = Ground()
    target = a_map(ground)
    ground.change(target, 1, ("a", b"1", None))
    with pytest.raises(Conflict):
        ground.change(target, 2, ("b", b"2", None), ("a", b"2", 7))
    assert [(entry.key, entry.revision) for entry in target.keyed.scan()] == [("a", 1)]
    assert ground.counts.next_seq == 2


@pytest.mark.parametrize("keys", [["a", "a"], [""], ["k" * 1025]])
def test_a_change_names_each_key_once_and_within_bounds(keys: list[str]) -> None:
    with pytest.raises(InvalidRequest):
        a_map(Ground()).plan(MapChange(1, "s", "m", [(key, b"", None) for key in keys]))


def test_revisions_are_numbers_of_the_store_one_for_each_changed_key() -> None:
    ground = Ground()
    target = a_map(ground)
    ground.foreign(1, 10)
    changes = ground.change(target, 2, ("b", b"1", None), ("none", None, None), ("a", b"2", None))
    assert [(change.key, change.revision) for change in changes] == [("b", 11), ("a", 12)]
    changes = ground.change(target, 3, ("a", None, None), ("b", None, None))
    assert [change.revision for change in changes] == [13, 14]
    assert target.keyed.messages == 0


@pytest.mark.parametrize("limits", [{"message_limit": 2}, {"bytelimit": 4}])
def test_a_full_map_refuses_or_discards_its_oldest_as_it_is_told(limits: dict[str, int]) -> None:
    ground = Ground()
    refusing = a_map(ground, discard=Discard.NEW, **limits)
    ground.change(refusing, 1, ("a", b"1", None), ("b", b"1", None))
    with pytest.raises(Backpressure) as refused:
        ground.change(refusing, 2, ("c", b"1", None))
    assert refused.value.code is Code.STORE_FULL
    ground.change(refusing, 3, ("a", b"2", None))
    ground = Ground()
    discarding = a_map(ground, discard=Discard.OLD, **limits)
    ground.change(discarding, 1, ("a", b"1", None), ("b", b"1", None))
    ground.change(discarding, 2, ("a", b"2", None))
    ground.foreign(3, 3 * BLOCK_MESSAGES)
    changes = ground.change(discarding, 4, ("c", b"1", None))
    assert [(change.key, change.cause) for change in changes] == [("c", "set"), ("b", "discarded")]
    with pytest.raises(Backpressure):
        ground.change(discarding, 5, *((key, b"1", None) for key in "xyz"))
    discarding.check()


def test_values_expire_in_the_order_of_their_age_whatever_lies_between() -> None:
    ground = Ground()
    target = a_map(ground, message_ttl_ms=100)
    assert target.next_deadline_ms() is None
    ground.change(target, 10, ("a", b"1", None), ("b", b"1", None))
    ground.foreign(20, 2 * BLOCK_MESSAGES)
    ground.change(target, 30, ("a", b"2", None))
    assert target.next_deadline_ms() == 110
    assert target.expire(109, Budget(10_000, 10_000)) == []
    assert target.expire(110, Budget(10_000, 10_000)) == [Change("b", 2, "expired")]
    expired: list[Change] = []
    rounds = 0
    while (due_ms := target.next_deadline_ms()) is not None and due_ms <= 130:
        expired += target.expire(130, Budget(100, 100))
        rounds += 1
    assert [(change.key, change.cause) for change in expired] == [("a", "expired")]
    assert rounds > 2 * BLOCK_MESSAGES // 100
    assert target.next_deadline_ms() is None
    target.check()


# ---- locks ----------------------------------------------------------------------------------------------------------


def test_a_lock_excludes_others_until_it_ends_and_its_fence_rises() -> None:
    held = Locks()
    lock, lost = held.take("k", "ann", 100, now_ms=0)
    assert (lock.fence, lock.until_ms, lost) == (1, 100, [])
    with pytest.raises(Unavailable) as refused:
        held.take("k", "bob", 100, now_ms=99)
    assert (refused.value.code, refused.value.retry_after_ms) == (Code.LOCK_HELD, 1)
    extended, _ = held.take("k", "ann", 100, now_ms=50)
    assert (extended.fence, extended.until_ms) == (1, 150)
    other, _ = held.take("k", "bob", 100, now_ms=150)
    assert other.fence == 2
    with pytest.raises(Conflict) as stale:
        held.require(1, ["k"], now_ms=160)
    assert (stale.value.code, stale.value.fields["held_with"]) == (Code.NOT_HOLDER, 2)
    held.require(2, ["k"], now_ms=249)
    with pytest.raises(Conflict):
        held.require(2, ["k"], now_ms=250)
    held.check()


def test_a_lock_that_has_ended_and_is_taken_again_by_its_owner_has_a_new_fence() -> None:
    held = Locks()
    held.take("k", "ann", 10, now_ms=0)
    lock, _ = held.take("k", "ann", 10, now_ms=10)
    assert lock.fence == 2


def test_the_whole_map_excludes_every_key_and_every_key_excludes_it() -> None:
    held = Locks()
    held.take("a", "ann", 100, now_ms=0)
    with pytest.raises(Unavailable):
        held.take("", "bob", 100, now_ms=0)
    whole, _ = held.take("", "ann", 100, now_ms=0)
    with pytest.raises(Unavailable):
        held.take("b", "bob", 100, now_ms=0)
    held.require(whole.fence, ["a", "b", "c"], now_ms=1)
    stolen, lost = held.take("", "bob", 100, now_ms=1, steal=True)
    assert [(lock.key, lock.owner) for lock in lost] == [("", "ann"), ("a", "ann")]
    assert stolen.fence == 3
    with pytest.raises(Conflict):
        held.release("", "ann", whole.fence, now_ms=2)
    held.release("", "bob", stolen.fence, now_ms=2)
    assert len(held) == 0
    held.check()


def test_who_is_gone_holds_nothing_and_what_ended_is_told_once() -> None:
    held = Locks()
    held.take("a", "ann", 10, now_ms=0)
    held.take("b", "ann", 20, now_ms=0)
    held.take("c", "bob", 15, now_ms=0)
    assert held.next_ms() == 10
    assert [lock.key for lock in held.expire(15, 1)] == ["a"]
    assert [lock.key for lock in held.expire(15, 9)] == ["c"]
    assert held.expire(15, 9) == []
    assert [lock.key for lock in held.release_owner("ann")] == ["b"]
    assert held.next_ms() is None


def test_locks_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "LOCKS_MAX", 2)
    held = Locks()
    held.take("a", "ann", 10, now_ms=0)
    held.take("b", "ann", 10, now_ms=0)
    held.take("b", "ann", 10, now_ms=0)
    with pytest.raises(LimitExceeded):
        held.take("c", "ann", 10, now_ms=0)


def test_a_change_with_a_fence_needs_that_lock_and_no_other() -> None:
    ground = Ground()
    target = a_map(ground)
    lock, _ = target.locks.take("a", "ann", 100, now_ms=0)
    ground.change(target, 1, ("a", b"1", None), fence=lock.fence)
    ground.change(target, 1, ("a", b"1", None), ("b", b"1", None), fence=lock.fence)
    with pytest.raises(Conflict):
        ground.change(target, 1, ("b", b"1", None), fence=lock.fence)
    other, _ = target.locks.take("c", "bob", 100, now_ms=0)
    for fence in (lock.fence, other.fence):
        with pytest.raises(Conflict):
            ground.change(target, 1, ("a", b"1", None), ("c", b"1", None), fence=fence)
    with pytest.raises(Conflict):
        target.check_change(MapChange(1, "s", "m", [], fence=lock.fence, remove_all=True))


def test_a_locked_key_changes_with_the_fence_only() -> None:
    ground = Ground()
    target = a_map(ground)
    ground.change(target, 1, ("a", b"1", None), ("b", b"1", None))
    lock, _ = target.locks.take("a", "ann", 100, now_ms=0)
    for change in (("a", b"2", None), ("a", None, None)):
        with pytest.raises(Conflict, match="the key is locked"):
            ground.change(target, 1, change)
    with pytest.raises(Conflict, match="the key is locked"):
        target.check_change(MapChange(1, "s", "m", [], remove_all=True))
    ground.change(target, 1, ("b", b"2", None))
    ground.change(target, 1, ("a", b"2", None), fence=lock.fence)
    ground.change(target, 101, ("a", b"its time is over", None))
    target.locks.expire(101, 9)
    target.locks.take("", "ann", 100, now_ms=101)
    with pytest.raises(Conflict, match="the key is locked"):
        ground.change(target, 102, ("b", b"3", None))


# ---- random lives ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", matrix(range(40), 10))
def test_a_map_is_a_dictionary_whose_old_values_go(seed: int) -> None:
    random = Random(seed)
    ground = Ground()
    ttl_ms, limit = random.choice((0, 0, 50, 500)), random.choice((0, 0, 3, 6))
    discard = random.choice(list(Discard))
    target = a_map(ground, message_ttl_ms=ttl_ms, message_limit=limit, discard=discard)
    model: dict[str, tuple[int, bytes, int]] = {}
    now_ms = 0
    for _ in range(150):
        now_ms += random.choice((0, 1, 10, 40))
        if random.random() < 0.2:
            ground.foreign(now_ms, random.choice((1, 5, 700)))
        if ttl_ms:
            while (due_ms := target.next_deadline_ms()) is not None and due_ms <= now_ms:
                target.expire(now_ms, Budget(random.choice((5, 10_000)), random.choice((5, 10_000))))
            model = {key: value for key, value in model.items() if value[2] + ttl_ms > now_ms}
        names = random.sample("abcdefgh", random.randint(1, 3))
        bodies = [(name, random.choice((None, b"x" * random.randint(0, 9)))) for name in names]
        conditions = [random.choice((None, None, model.get(name, (0,))[0], 1)) for name in names]
        seq = ground.counts.next_seq
        try:
            ground.change(
                target, now_ms, *((name, body, wanted) for (name, body), wanted in zip(bodies, conditions, strict=True))
            )
        except HoldfastError as error:
            refused = error.code
        else:
            refused = None
        if refused is not None:
            assert ground.counts.next_seq == seq
            assert refused in (Code.REVISION_MISMATCH, Code.STORE_FULL)
        else:
            for name, body in bodies:
                if body is not None or name in model:
                    model.pop(name, None)
                    if body is not None:
                        model[name] = (seq, body, now_ms)
                    seq += 1
            while limit and len(model) > limit:
                del model[min(model, key=lambda name: model[name][0])]
        target.check()
        assert {entry.key: entry.revision for entry in target.keyed.scan()} == {
            name: value[0] for name, value in model.items()
        }
        restored = a_map(ground, message_ttl_ms=ttl_ms, message_limit=limit, discard=discard)
        restored.restore(target.state())
        restored.check()
        target = restored
    for name, (revision, body, _) in model.items():
        assert ground.messages.bodies["s", revision].body == body, name
