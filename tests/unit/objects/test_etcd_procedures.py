"""The procedures of the store on etcd, on a network that loses, delays and repeats: worlds from seeds, and mutants."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from random import Random
from types import ModuleType

import pytest
from tests.etcd_space import EtcdSpace
from tests.one_line_mutants import mutated

from holdfast.errors import CorruptData, NotFound, Unavailable
from holdfast.objects.etcd import layout
from holdfast.objects.etcd import procedures as module
from holdfast.objects.etcd.layout import EtcdPrefix, decode_head
from holdfast.objects.etcd.wire import Request
from holdfast.objects.port import Created, Listed, Refused, Unknown

PLACE = EtcdPrefix("log")
KEPT = tuple(f"batches/{number}" for number in range(9))
PASSING = ("probe/1", "snapshots/1")
SWEEPERS = ("leader", "deposed")
SIZES = (0, 3, 8, 9, 21, 40)
SEEDS = 5_000 if os.environ.get("HOLDFAST_PROVE") == "1" else 150
STEPS = 120


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of eight bytes, headers of four, objects of at most forty."""
    for name, value in (("PART_BYTES", 8), ("HEADER_BYTES", 4), ("OBJECT_BYTES_MAX", 40)):
        monkeypatch.setattr(layout, name, value)
        if hasattr(module, name):
            monkeypatch.setattr(module, name, value)


@dataclass(eq=False)
class Call:
    """One call of the store that is under way."""

    what: str
    name: str
    procedure: module.Procedure[object]
    upload: str = ""
    effect: module.Effect | None = None
    was_there: bool = False


@dataclass
class World:
    """Calls on one key space, each request with its own fate."""

    random: Random
    module: ModuleType
    space: EtcdSpace = field(default_factory=EtcdSpace)
    calls: list[Call] = field(default_factory=list)
    late: list[Request] = field(default_factory=list)
    bodies: dict[str, bytes] = field(default_factory=dict)
    created: dict[str, str] = field(default_factory=dict)
    seen: dict[str, Mapping[str, float]] = field(default_factory=dict)
    now_ms: float = 0.0
    sweeps: float = 0.0
    names: tuple[str, ...] = ()

    def run(self) -> None:
        self.sweeps = self.random.choice((0.0, 0.04, 0.3))
        self.names = (*KEPT[: self.random.choice((1, 2, 9))], *PASSING)
        for _ in range(STEPS):
            self.step()
            self.check()
        while self.calls:
            self.advance(self.calls[0], certain=True)
        for request in self.late:
            self.space.carry_out(request)
            self.check()
        self.late.clear()
        self.seen.clear()
        for _ in range(20):
            self.now_ms += module.LEFT_AFTER_MS
            self.begin_sweep()
            while self.calls:
                self.advance(self.calls[0], certain=True)
        self.check()
        self.check_nothing_is_left()

    def step(self) -> None:
        draw = self.random.random()
        if draw < 0.12 and len(self.calls) < 6:
            self.begin_call()
        elif draw < 0.12 + self.sweeps:
            self.now_ms += self.random.choice((1_000.0, module.LEFT_AFTER_MS))
            self.begin_sweep()
        elif draw > 0.92 and self.late:
            self.space.carry_out(self.late.pop(self.random.randrange(len(self.late))))
        elif self.calls:
            self.advance(self.random.choice(self.calls))

    def begin_call(self) -> None:
        draw = self.random.random()
        name = self.random.choice(self.names)
        if draw < 0.6:
            upload = f"{len(self.bodies):032x}"
            size = self.random.choice(SIZES)
            self.bodies[upload] = bytes(self.random.choice(b"abc") for _ in range(size))
            call = Call("create", name, self.module.create(PLACE, name, self.bodies[upload], upload), upload)
        elif draw < 0.9:
            call = Call("read", name, self.module.read(PLACE, name, 0, None), was_there=self.is_there(name))
        else:
            name = self.random.choice(PASSING)
            call = Call("delete", name, self.module.delete(PLACE, [name]))
        self.begin(call)

    def begin_sweep(self) -> None:
        sweeper = self.random.choice(SWEEPERS)
        if not any((call.what, call.name) == ("sweep", sweeper) for call in self.calls):
            seen = self.seen.get(sweeper, {})
            self.begin(Call("sweep", sweeper, self.module.sweep(PLACE, seen, self.now_ms)))

    def begin(self, call: Call) -> None:
        self.calls.append(call)
        self.resume(call, lambda: next(call.procedure))

    def advance(self, call: Call, *, certain: bool = False) -> None:
        """Give the request of a call a fate."""
        effect = call.effect
        fate = "reply" if certain else self.random.choice(("reply", "reply", "reply", "lost", "no reply", "late"))
        request = effect.txn if isinstance(effect, self.module.Once) else effect.request
        reply = (
            self.space.carry_out(request, behind=self.random.randrange(8)) if fate in ("reply", "no reply") else None
        )
        if fate == "late":
            self.late.append(request)
        if fate == "reply":
            if isinstance(effect, self.module.Ask) and self.random.random() < 0.3 and not certain:
                self.late.append(request)  # it was sent to two members
            self.resume(call, lambda: call.procedure.send(reply))
        elif isinstance(effect, self.module.Once):
            self.resume(call, lambda: call.procedure.send(self.module.NoReply(fate)))
        else:
            self.resume(call, lambda: call.procedure.throw(Unavailable(fate)))

    def resume(self, call: Call, step) -> None:
        try:
            call.effect = step()
        except StopIteration as end:
            self.calls.remove(call)
            self.ended(call, end.value)
        except NotFound:
            self.calls.remove(call)
            assert not (call.was_there and call.name in KEPT), "an object that was there is not found"
        except Unavailable:
            self.calls.remove(call)
        except CorruptData as error:
            raise AssertionError("a sound object is called damaged") from error

    def ended(self, call: Call, result: object) -> None:
        match call.what, result:
            case "create", Created() if call.name in KEPT:
                assert call.name not in self.created, "two creates of one name succeeded"
                self.created[call.name] = call.upload
            case "create", Refused() if call.name in KEPT:
                assert self.is_there(call.name), "a create was refused, and the name is free"
            case "read", bytes():
                assert result in self.bodies.values(), "a read returns bytes that no create sent"
                if call.name in self.created:
                    assert result == self.bodies[self.created[call.name]], "an acknowledged object has other bytes"
            case "sweep", self.module.SweepEnd(since=since):
                self.seen[call.name] = since

    def is_there(self, name: str) -> bool:
        return PLACE.head(name) in self.space.now

    def heads(self) -> Iterator[tuple[str, layout.Head]]:
        for key, value in self.space.now.items():
            if key.startswith(PLACE.heads):
                name = key[len(PLACE.heads) :].decode()
                yield name, decode_head(value, name)

    def check(self) -> None:
        """What holds after every step."""
        for name, head in self.heads():
            parts = [self.space.now.get(key) for key in PLACE.all_parts(name, head)]
            assert None not in parts, "a head has no parts"
            assert b"".join(part for part in parts if part) == self.bodies[head.upload], "a head has other bytes"
            assert PLACE.mark(head.upload) not in self.space.now, "a mark stays after its head"
        for name, upload in self.created.items():
            value = self.space.now.get(PLACE.head(name))
            assert value is not None and decode_head(value, name).upload == upload, "an acknowledged object is gone"

    def check_nothing_is_left(self) -> None:
        used = {key for name, head in self.heads() for key in (PLACE.head(name), *PLACE.all_parts(name, head))}
        assert set(self.space.now) == used, "parts without a head stay for ever"


def run_worlds(mutant: ModuleType, seeds: int) -> None:
    for seed in range(seeds):
        try:
            World(Random(seed), mutant).run()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


def test_no_fate_of_a_request_loses_or_mixes_an_object(record_property) -> None:
    run_worlds(module, SEEDS)
    record_property("etcd_worlds", SEEDS)


HEAD_OR_PARTS = "reply = yield Once(Txn((no_head,), (put_head, *parts), look))"
MUTANTS = {
    "a delayed part is put after the head": (
        "Once(Txn(conditions, (part, *with_it), look))",
        "Once(Txn((), (part, *with_it), look))",
    ),
    "a sweep compares nothing": ("yield Ask(Txn((Exists(mark),), [RemoveKey", "yield Ask(Txn((), [RemoveKey"),
    "a head does not ask for its mark": (
        "Once(Txn((no_head, Exists(mark)), (put_head,",
        "Once(Txn((no_head,), (put_head,",
    ),
    "a head of parts overwrites": (
        "Once(Txn((no_head, Exists(mark)), (put_head,",
        "Once(Txn((Exists(mark),), (put_head,",
    ),
    "a small create overwrites": ("Txn((no_head,), (put_head, *parts), look)", "Txn((), (put_head, *parts), look)"),
    "a lost reply is a success": ("return Unknown(reply.detail, final=reply.final)", "return CREATED"),
    "the mark stays": ("(put_head, RemoveKey(mark)), look", "(put_head,), look"),
    "a miss at any member counts": ("if not page.rows and any_member:", "if not page.rows and not any_member:"),
    "late parts count as damage": ('missed = b"" if any_member else value', "missed = value"),
    "a delete leaves the parts": (
        "keys = [place.head(name), *place.all_parts(",
        "keys = [place.head(name)] or [*list(",
    ),
    "a delete compares nothing": ("Ask(Txn(conditions, [RemoveKey(key)", "Ask(Txn((), [RemoveKey(key)"),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_mutant_breaks_a_law(mutant: str) -> None:
    with pytest.raises(AssertionError, match="seed"):
        run_worlds(mutated(module, *MUTANTS[mutant]), 2_000)


def answered(procedure: module.Procedure[object], space: EtcdSpace) -> tuple[object, list[module.Effect]]:
    """The result of a procedure where every request gets its reply, and what it asked for."""
    effects: list[module.Effect] = []
    try:
        effect = next(procedure)
        while True:
            effects.append(effect)
            effect = procedure.send(space.carry_out(effect.txn if isinstance(effect, module.Once) else effect.request))
    except StopIteration as end:
        return end.value, effects


@pytest.mark.parametrize(("size", "transactions"), [(0, 1), (4, 1), (8, 1), (9, 3), (12, 3), (13, 4), (40, 7)])
def test_a_create_costs_one_transaction_and_above_a_part_one_for_each(size: int, transactions: int) -> None:
    space, data = EtcdSpace(), bytes(range(size))
    result, effects = answered(module.create(PLACE, "batches/1", data, "0" * 32), space)
    assert (result, len(effects)) == (Created(), transactions)
    for start in range(size + 1):
        for length in (None, *range(size + 2)):
            part, asked = answered(module.read(PLACE, "batches/1", start, length), space)
            assert part == data[start : None if length is None else start + length]
            assert len(asked) <= 1 + -(-7 // module.PARTS_AN_ANSWER)
    header, asked = answered(module.read(PLACE, "batches/1", 0, 4), space)
    assert header == data[:4]
    assert all(each.request.end.endswith(b"/0000\x00") for each in asked[1:]), "a header is read without the body"
    assert answered(module.list_objects(PLACE, "batches/", "", 5), space)[0] == [Listed("batches/1", size)]


def test_a_large_object_that_is_refused_ends_with_its_first_part_and_leaves_nothing() -> None:
    space = EtcdSpace()
    answered(module.create(PLACE, "batches/1", b"first", "0" * 32), space)
    before = dict(space.now)
    result, effects = answered(module.create(PLACE, "batches/1", bytes(40), "1" * 32), space)
    assert result == Refused()
    assert sum(isinstance(each, module.Once) for each in effects) == 1
    assert space.now == before


def create_that_was_swept(code: ModuleType) -> object:
    """The answer of a create whose parts a sweep took before its head came."""
    space = EtcdSpace()
    create = code.create(PLACE, "batches/1", bytes(9), "0" * 32)
    effect = next(create)
    while PLACE.part("batches/1", "0" * 32, 1) not in space.now:
        effect = create.send(space.carry_out(effect.txn))
    seen = answered(module.sweep(PLACE, {}, 0.0), space)[0].since
    answered(module.sweep(PLACE, seen, module.LEFT_AFTER_MS), space)
    effect = create.send(space.carry_out(effect.txn))
    with pytest.raises(StopIteration) as end:
        create.send(space.carry_out(effect.request))
    assert space.now == {}
    return end.value.value


def test_what_a_sweep_took_makes_the_head_fail_and_the_answer_unknown() -> None:
    assert isinstance(create_that_was_swept(module), Unknown)
    mutant = mutated(module, "return Refused() if reply.pages[0].rows else", "return Refused() if reply else")
    assert create_that_was_swept(mutant) == Refused(), "a head that is absent was taken for a refusal"


def test_a_part_without_an_answer_ends_the_attempt_and_what_lands_late_does_not_stay() -> None:
    space = EtcdSpace()
    first = module.create(PLACE, "batches/1", bytes(40), "0" * 32)
    second_part = first.send(space.carry_out(next(first).txn))
    removal = first.send(module.NoReply("no answer in time"))
    with pytest.raises(StopIteration) as end:
        first.send(space.carry_out(removal.request))
    assert isinstance(end.value.value, Unknown)
    assert answered(module.create(PLACE, "batches/1", bytes(40), "1" * 32), space)[0] == Created()
    before = dict(space.now)
    space.carry_out(second_part.txn)
    assert space.now == before


def test_an_object_above_the_bound_is_refused_for_good_and_nothing_is_sent() -> None:
    result, effects = answered(module.create(PLACE, "snapshots/1", bytes(41), "0" * 32), EtcdSpace())
    assert isinstance(result, Unknown)
    assert result.final
    assert effects == []


def test_a_delete_takes_all_keys_of_an_object_in_one_transaction_of_at_most_120() -> None:
    space = EtcdSpace()
    names = [f"batches/{number:03d}" for number in range(130)]
    for number, name in enumerate(names):
        answered(module.create(PLACE, name, bytes(40 if number % 3 else 7), f"{number:032x}"), space)
    _, effects = answered(module.delete(PLACE, [*names, *names, "never/was"]), space)
    assert space.now == {}
    for effect in effects:
        assert len(effect.request.then) <= 120
        removed = [each.key for each in effect.request.then if isinstance(each, module.RemoveKey)]
        for key in removed:
            if key.startswith(PLACE.heads):
                name = key[len(PLACE.heads) :].decode()
                parts = 6 if names.index(name) % 3 else 2
                assert sum(each.startswith(b"log/b/" + name.encode() + b"/") for each in removed) == parts
    assert len(effects) == 2 + 7, "two reads of heads, and seven removals"


def test_a_sweep_takes_parts_without_a_head_fifteen_minutes_after_one_first_saw_them() -> None:
    space = EtcdSpace()
    create = module.create(PLACE, "batches/1", bytes(40), "0" * 32)
    space.carry_out(next(create).txn)
    minute = 60_000.0
    seen = answered(module.sweep(PLACE, {}, 5 * minute), space)[0].since
    seen = answered(module.sweep(PLACE, seen, 19.9 * minute), space)[0].since
    assert len(space.now) == 2
    assert seen == {"0" * 32: 5 * minute}
    assert answered(module.sweep(PLACE, seen, 20 * minute), space)[0] == module.SweepEnd({})
    assert space.now == {}


def test_a_mark_that_cannot_be_read_is_reported_and_holds_nothing_back() -> None:
    space = EtcdSpace()
    space.carry_out(module.Txn((), [module.PutKey(PLACE.mark("0" * 32), b"not a mark")]))
    space.carry_out(next(module.create(PLACE, "batches/1", bytes(40), "1" * 32)).txn)
    seen = answered(module.sweep(PLACE, {}, 0.0), space)[0].since
    end = answered(module.sweep(PLACE, seen, module.LEFT_AFTER_MS), space)[0]
    assert isinstance(end.damage, CorruptData)
    assert list(space.now) == [PLACE.mark("0" * 32)]


def test_a_compaction_ends_at_what_is_there_and_is_not_repeated() -> None:
    space = EtcdSpace()
    compacted, _ = answered(module.compact(PLACE, 0), space)
    answered(module.create(PLACE, "batches/1", b"x", "0" * 32), space)
    compacted, effects = answered(module.compact(PLACE, compacted), space)
    assert space.compacted == compacted == space.revision
    assert len(effects) == 2
    assert len(answered(module.compact(PLACE, compacted), space)[1]) == 1


def test_one_sweep_removes_a_bounded_number_of_uploads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SWEPT_MAX", 3)
    space = EtcdSpace()
    for number in range(7):
        space.carry_out(next(module.create(PLACE, "batches/1", bytes(40), f"{number:032x}")).txn)
    seen, removals = {}, []
    for turn in range(6):
        end, effects = answered(module.sweep(PLACE, seen, turn * module.LEFT_AFTER_MS), space)
        seen = end.since
        removals.append(len(effects) - 1)
    assert max(removals) == 3
    assert space.now == {}


def test_a_page_of_a_listing_goes_on_after_its_last_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAGE", 3)
    space = EtcdSpace()
    names = sorted(f"batches/{number}" for number in range(11))
    for number, name in enumerate(names):
        answered(module.create(PLACE, name, b"x", f"{number:032x}"), space)
    for limit in range(13):
        rows, effects = answered(module.list_objects(PLACE, "batches/", names[0], limit), space)
        assert [row.key for row in rows] == names[1 : 1 + limit]
        assert len(effects) == -(-min(limit, 10) // 3)
