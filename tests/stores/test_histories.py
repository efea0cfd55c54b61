"""Worlds of one cluster that is restored again and again, while what it was restored from goes on.

Each branch is a state machine with its log and a history of its own. Whatever a reader has seen in any branch it may
ask in any other: the number counts there if and only if it is the same message.
"""
# pyright: reportPrivateUsage=false

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import msgspec
import pytest
from tests.definitions import define
from tests.worlds.stores.machine import Image, Machine

from holdfast.stores.machine import redefine
from holdfast.stores.machine.state import State
from holdfast.stores.values import commands
from holdfast.stores.values.identity import HISTORIES_MAX, Ancestor, Histories, id_of
from holdfast.wire.parts import Message

SEEDS = range(500 if os.environ.get("HOLDFAST_PROVE") else 40)
STORES = ("orders", "letters")
DEFINITION = msgspec.json.encode({"stores": {name: {"durables": {"work": {"type": "shared"}}} for name in STORES}})


@dataclass(frozen=True)
class Seen:
    """A message that a reader remembers, by its token and number."""

    history: str
    store: str
    store_id: int
    seq: int
    body: bytes


@dataclass
class Branch:
    """One cluster. ``messages``: by the store's name and number what is there now. ``images`` are its backups."""

    machine: Machine
    history: str
    messages: dict[tuple[str, int], bytes] = field(default_factory=dict)
    ancestors: list[str] = field(default_factory=list)
    images: list[tuple[Image, Branch]] = field(default_factory=list)


class World:
    """See the module."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.number = 0
        self.seen: list[Seen] = []
        self.agreed = self.refused = 0
        first = Branch(Machine(), "h0")
        first.machine.apply(commands.Inherit(0, "h0"))
        self.branches = [first]
        self.define(first)

    def next(self) -> int:
        self.number += 1
        return self.number

    def define(self, branch: Branch) -> None:
        drawn = self.random.getrandbits(63)
        branch.machine.apply(define(DEFINITION, branch.machine.state, at_ms=self.number, drawn=drawn))

    def make_again(self, branch: Branch) -> None:
        """Delete one store, and define it again."""
        gone, left = self.random.sample(STORES, 2)
        without = msgspec.json.encode({"stores": {left: {"durables": {"work": {"type": "shared"}}}}})
        branch.machine.apply(define(without, branch.machine.state, at_ms=self.number))
        branch.messages = {key: body for key, body in branch.messages.items() if key[0] != gone}
        self.define(branch)

    def publish(self, branch: Branch) -> None:
        store, body = self.random.choice(STORES), b"%d" % self.next()
        result = branch.machine.apply(commands.Publish(self.number, store, "", [Message(body)])).result
        assert isinstance(result, commands.Published)
        branch.messages[store, result.last_seq] = body
        self.seen.append(Seen(branch.history, store, branch.machine.state.stores[store].id, result.last_seq, body))

    def restore(self, branch: Branch) -> None:
        """Another cluster begins with what a branch has, or had when it was saved; perhaps by a replay of its log."""
        machine, source = Machine(list(branch.machine.log)), branch
        if branch.images and self.random.random() < 0.5:
            image, source = self.random.choice(branch.images)
            machine = Machine(list(branch.machine.log[: image.position]), image)
        history = f"h{self.next()}"
        made = Branch(machine, history, dict(source.messages), [*source.ancestors, source.history][-HISTORIES_MAX:])
        machine.apply(commands.Inherit(self.number, history))
        self.branches.append(made)
        if len(self.branches) > 4:
            self.branches.remove(self.random.choice(self.branches[:-1]))

    def save(self, branch: Branch) -> None:
        kept = Branch(branch.machine, branch.history, dict(branch.messages), list(branch.ancestors))
        branch.images.append((branch.machine.image(), kept))

    def judge(self) -> None:
        for branch in self.branches:
            state = branch.machine.state
            for seen in self.random.sample(self.seen, min(20, len(self.seen))):
                is_store = state.stores[seen.store].id == seen.store_id
                counts = is_store and state.lineage.has(seen.history, seen.store_id, seen.seq)
                same = is_store and branch.messages.get((seen.store, seen.seq)) == seen.body
                if counts:
                    assert same, "a number that counts is the same message"
                elif seen.history in (*branch.ancestors, branch.history):
                    assert not same, "the same message counts"
                self.agreed, self.refused = self.agreed + counts, self.refused + (not counts)

    def run(self) -> World:
        steps: dict[Callable[[Branch], None], int] = {
            self.publish: 20, self.restore: 3, self.save: 3, self.make_again: 1
        }  # fmt: skip
        for _ in range(120):
            (step,) = self.random.choices(list(steps), list(steps.values()))
            step(self.random.choice(self.branches))
            self.judge()
        return self


def _run_worlds(seeds: Iterable[int]) -> list[World]:
    return [World(seed).run() for seed in seeds]


def test_in_any_branch_a_number_counts_if_and_only_if_it_is_the_same_message() -> None:
    worlds = _run_worlds(SEEDS)
    assert sum(world.agreed for world in worlds) > 1_000 < sum(world.refused for world in worlds)


def _has_whatever_the_number(self: Histories, history: str, store: int, seq: int) -> bool:
    del seq
    return history == self.history or any(
        each.history == history and store in dict(each.last_seqs) for each in self._ancestors
    )


def _has_whatever_the_store(self: Histories, history: str, store: int, seq: int) -> bool:
    del store
    return history == self.history or any(
        each.history == history and seq <= max((last for _, last in each.last_seqs), default=-1)
        for each in self._ancestors
    )


def _go_on_without_memory(self: Histories, history: str, last_seqs: object) -> None:
    del last_seqs
    self.history = history


def _restore_without_memory(self: Histories, history: str, ancestors: list[Ancestor]) -> None:
    del ancestors
    self.history = history


def _history_stays(self: State, command: commands.Inherit, effects: object) -> tuple[commands.Result, bool]:
    del self, command, effects
    return commands.Done(), False


def _same_id(drawn: int, store: str, durable: str | None = None) -> int:
    return id_of(drawn * 0, store, durable)


MUTANTS = {
    "a store that is made again has the id of the one before": (redefine, "id_of", _same_id),
    "any number counts": (Histories, "has", _has_whatever_the_number),
    "the store does not matter": (Histories, "has", _has_whatever_the_store),
    "a new history forgets": (Histories, "go_on", _go_on_without_memory),
    "a snapshot forgets": (Histories, "restore", _restore_without_memory),
    "a restore begins no history": (State, "_inherit", _history_stays),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_each_rule_of_histories_is_missed_where_it_is_taken_out(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, method, instead = MUTANTS[name]
    monkeypatch.setattr(owner, method, instead)
    with pytest.raises(AssertionError, match="same message"):
        _run_worlds(range(100))
