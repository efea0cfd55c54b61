"""The service's part of a world of the stores: commands with all their checks, time, syncs, checkpoints and crashes.

After every command the state machine checks itself, the model judges the answer, and deadlines and effects are compared
with what the model knows. After a share of the commands the world is forked: the log is cut at any length from the
durable one on, a second machine is recovered from it, and it must be what the model is after these records. Some forks
become the world: then ``CrashedError`` ends what was being done.

A follower carries out every record of the log, as a standby on another machine does. It knows nothing of stores in
memory, and was perhaps made of a checkpoint. It must have the same results, effects and bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from random import Random
from typing import Any, Final

import msgspec
from tests.worlds.harness import SeededWorld
from tests.worlds.stores.consumed_model import ConsumedModel
from tests.worlds.stores.machine import Image, Machine
from tests.worlds.stores.promises import promise
from tests.worlds.stores.shape import MEMORY, Shape, draw_shape, with_memory_store
from tests.worlds.stores.store_model import CameBack, ClusterModel

from holdfast.errors import HoldfastError
from holdfast.stores.definitions.cluster import definition_of
from holdfast.stores.definitions.parts import part_of, parts_between
from holdfast.stores.durables.consumption import Consumption
from holdfast.stores.values import commands
from holdfast.stores.values.commands import Command, Record
from holdfast.stores.values.effects import DeadLettering, Displaced, Effect, Ready

__all__ = ["EXPIRES_MAX", "CrashedError", "Stage"]

START_MS: Final = 1_700_000_000_000
EXPIRES_MAX: Final = 1_000


class CrashedError(Exception):
    """The machine has crashed and was recovered: whatever was being done is not done any more."""


class Stage(SeededWorld):
    """See the module. ``seen`` counts what happened, ``states`` the crash states that were judged."""

    def __init__(self, seed: int, **focus: Any) -> None:
        super().__init__(seed, Random(seed))
        self.shape: Shape = replace(draw_shape(self.random), **focus)
        self.apart = Random(f"{seed} apart")
        """For what came later than the rest: a draw of ``random`` would make another world of each seed."""
        if self.apart.random() < 0.4:
            self.shape = with_memory_store(self.shape)
        self.now_ms = START_MS
        self.machine = Machine()
        self.model = ClusterModel()
        self.contention = self.apart.choice((0.0, 0.0, 0.3, 1.0))
        """How often a subscriber waits for a durable."""
        self._contended: list[tuple[str, str]] = []
        self.durable = 0
        """Records that a sync has returned for: what is confirmed."""
        self.image: Image | None = None
        self.notified: set[tuple[str, str]] = set()
        """Durables whose ``Ready`` the service has seen since the last delivery that left them with nothing."""
        self._revision = 0
        self.check_rate = 0.1 if self.shape.crowd else 1.0
        """A check looks at every message."""
        self._ending = False
        self.follower = Machine()
        self._fingerprints: dict[int, bytes] = {}
        """By the length of the log the digest of everything that a recovery from it has to find again."""
        self._swept: dict[int, int] = {}
        """By the length of the log the latest time at which no deadline was left there. A delivery drops what it
        finds expired, and no record has it: a model that is made again must learn when everything expired was gone."""

        self._back: dict[int, dict[tuple[str, str], CameBack]] = {}
        """By the length of the log after a ``Restarted`` what an ``Expire`` before it had taken back: a crash came
        between two parts of an expiry, and no record says how far the first one went."""

    # ---- one command ------------------------------------------------------------------------------------------------

    def submit(self, command: Command) -> None:
        """Carry out a command, judge its answer, and perhaps crash."""
        before = len(self.machine.log)
        effects: list[Effect] = []
        answer: commands.Result | HoldfastError
        try:
            applied = self.machine.apply(command)
            answer, effects = applied.result, applied.effects
        except HoldfastError as error:
            answer = error
            promise(len(self.machine.log) == before, "a refusal changes nothing", command=command)
        if isinstance(command, commands.Restarted) and not self.model.expire_done:
            back = self._came_back()
            self.model.came_back(back)
            if len(self.machine.log) > before:  # a start that changes nothing has no record
                self._back[len(self.machine.log)] = back
        if len(self.machine.log) > before:
            self._follow(effects)
        name = type(command).__name__
        self.seen[f"{name} refused: {answer.code}" if isinstance(answer, HoldfastError) else name] += 1
        if self.random.random() < self.check_rate:
            self.machine.check()
            self._note_fingerprint(command)
        self.model.judge(command, answer, effects, is_left=self._counts_what_is_left())
        self._count(effects)
        self._check_deadlines()
        self._check_ready(command, effects)
        if self.model.expire_done:
            self._check_totals()
        if not isinstance(command, commands.Expire) and self._counts_what_is_left():
            self._expire()
        if self.random.random() < self.shape.sync_rate:
            self._sync()
        if self.random.random() < self.shape.fork_rate:
            self._fork()

    def _follow(self, effects: Sequence[Effect]) -> None:
        """The follower carries out the newest record."""
        data = self.machine.log[-1]
        self.follower.log.append(data)
        followed = self.follower.follow(data)
        promise(followed.effects == effects, "a follower is the same", now=followed.effects, expected=effects)
        if self.apart.random() < self.check_rate / 4:
            same = self._digest_of(self.follower) == self._digest_of(self.machine)
            promise(same, "a follower is the same", record=data)

    def _follow_anew(self) -> None:
        """Another follower comes: it begins with the checkpoint, or with the first record."""
        image = self.image if self.apart.random() < 0.7 else None
        self.follower = Machine(list(self.machine.log), image)

    def _came_back(self) -> dict[tuple[str, str], CameBack]:
        """What the machine took back before a crash and the model still has as held, by store and durable; and the
        subscribers that have lost the durable, and what was removed and is not known any more."""
        back: dict[tuple[str, str], CameBack] = {}
        for store, name, durable in self.model.consumed():
            real = self.machine.state.stores[store].durables.get(name)
            if isinstance(real, Consumption):
                held = {item.seq for subscriber in durable.subscribers for item in durable.held(subscriber)}
                lost = [subscriber for subscriber in durable.subscribers if subscriber not in real.leases.of]
                known = [(first, last) for entries in real.removed.of.values() for first, last, *_ in entries]
                gone = [seq for seq in durable.gone if not any(first <= seq <= last for first, last in known)]
                back[store, name] = {seq for seq in held if real.leases.holder_of(seq) is None}, lost, gone
        return back

    def _counts_what_is_left(self) -> bool:
        """Whether a command left something to ``Expire`` that the model has done: what is above a durable's limits, the
        rest of a rewind, or what a clear left where the store has a limit."""
        return any(
            (
                (store.residues or store.keyed_residues)
                and (store.definition.message_limit or store.definition.bytelimit)
            )
            or any(
                isinstance(found, Consumption) and (found.discards_ms or found.rewind_to is not None)
                for found in store.durables.values()
            )
            for store in self.machine.state.stores.values()
        )

    def _note_fingerprint(self, command: Command) -> None:
        """The state follows from the log alone: a command that writes no record changes nothing."""
        length, digest = len(self.machine.log), self._digest_of(self.machine)
        known = self._fingerprints.setdefault(length, digest)
        promise(known == digest, "what is not logged changes nothing", command=command)

    @staticmethod
    def _digest_of(machine: Machine) -> bytes:
        return sha256(machine.fingerprint()).digest()

    def _count(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            kind = (
                f"{type(effect).__name__}: {effect.cause}"
                if isinstance(effect, DeadLettering | Displaced)
                else type(effect).__name__
            )
            self.seen[f"effect {kind}"] += 1

    def _sync(self) -> None:
        self.durable = len(self.machine.log)
        if self.random.random() < 0.15:
            self.image = self.machine.image()
            self.seen["checkpoint"] += 1
            if self.apart.random() < 0.5:
                self._follow_anew()

    def _check_deadlines(self) -> None:
        event_ms = self.model.next_event_ms(self.now_ms)
        if event_ms is not None and self.model.expire_done:
            due_ms = self.machine.state.next_deadline_ms()
            late = due_ms is None or due_ms > event_ms
            promise(not late, "nothing early, nothing late", event_ms=event_ms, wakes_ms=due_ms, now_ms=self.now_ms)

    def _check_ready(self, command: Command, effects: Sequence[Effect]) -> None:
        """A durable that can serve must have sent ``Ready`` since a delivery left it with nothing."""
        if isinstance(command, commands.Deliver) and not self.machine.state.ready(command.store, command.durable):
            self.notified.discard((command.store, command.durable))
        self.notified.update((effect.store, effect.durable) for effect in effects if isinstance(effect, Ready))
        if not self.model.expire_done or self._is_due():
            return
        serving = self.model.servable(self.now_ms)
        silent = sorted(serving - self.notified)
        promise(not silent, "a durable that can serve says so", silent=silent, command=command)
        for store, durable in sorted(serving):
            promise(self.machine.state.ready(store, durable), "a durable that can serve is ready", durable=durable)

    def _check_totals(self) -> None:
        """Where every deadline is carried out, the machine's totals are the model's."""
        if self._is_due():
            return
        self._swept[len(self.machine.log)] = self.now_ms
        for _, name, of_keys in self.model.maps():
            promise(of_keys.unsure or not of_keys.unreported, "watchers see all that a clear removed", map=name)
        self.model.sweep(self.now_ms)
        for store in self.model.stores.values():
            if store.name == MEMORY:
                continue
            real = self.machine.state.stores[store.name]
            promise(set(real.durables) == set(store.durables), "durables are the model's", real=list(real.durables))
            for name, durable in store.durables.items():
                found = real.durables[name]
                if isinstance(durable, ConsumedModel):
                    assert isinstance(found, Consumption), "a durable has its type"
                    owed = sorted(item.seq for item in durable.pending())
                    promise(
                        found.pending == len(owed),
                        "one message, one place",
                        name=name,
                        counted=found.pending,
                        owed=owed,
                    )
                else:
                    assert not isinstance(found, Consumption), "a durable has its type"
                    entries = {entry.key: entry.revision for entry in found.keyed.scan()}
                    expected = {key: value.revision for key, value in durable.values.items()}
                    promise(
                        entries == expected,
                        "a key has its last value",
                        durable=name,
                        entries=entries,
                        expected=expected,
                    )
            if not any(durable.definition.retention_time_ms for durable in store.durables.values()):
                kept = store.kept()
                real_kept = self.machine.kept(store.name)
                promise(real_kept == kept, "what is kept is what is owed", more=real_kept - kept, less=kept - real_kept)

    def _is_due(self) -> bool:
        due_ms = self.machine.state.next_deadline_ms()
        return due_ms is not None and due_ms <= self.now_ms

    # ---- crashes ----------------------------------------------------------------------------------------------------

    def _fork(self) -> None:
        """A crash now, with any part of what is not durable lost; the world may go on from there."""
        self.states += 1
        left = self.random.randint(self.durable, len(self.machine.log))
        lost = len(self.machine.log) - left
        self.seen["crash with a loss" if lost else "crash without a loss"] += 1
        recovered = Machine(self.machine.log[:left], self.image)
        known = self._fingerprints.get(left)
        if not left or not recovered.log:
            known = None
        promise(known is None or known == self._digest_of(recovered), "replay is the same", position=left)
        if not lost:
            promise(
                recovered.state.next_deadline_ms() == self.machine.state.next_deadline_ms(), "deadlines do not move"
            )
            effects = [effect for effect in recovered.state.pending_effects() if isinstance(effect, DeadLettering)]
            expected = self.model.dying()
            again = {(effect.store, effect.durable, effect.seq): effect for effect in effects}
            promise(
                not self.model.expire_done or again == expected, "dead letters are announced again", effects=effects
            )
        if not self._ending and self.random.random() < self.shape.crash_rate / self.shape.fork_rate:
            self._become(recovered)
            raise CrashedError

    def _become(self, recovered: Machine) -> None:
        """The world goes on with a recovered machine; the model is made again from its records."""
        self.seen["crash"] += 1
        self.machine = recovered
        kept = len(recovered.log)
        self._fingerprints = {length: digest for length, digest in self._fingerprints.items() if length <= kept}
        self.durable = len(recovered.log)
        self._follow_anew()
        self.model = ClusterModel()
        self._swept = {position: at_ms for position, at_ms in self._swept.items() if position <= self.durable}
        self._back = {position: back for position, back in self._back.items() if position <= self.durable}
        for position, data in enumerate(recovered.log, 1):
            record = msgspec.msgpack.decode(data, type=Record)
            if isinstance(record.command, commands.Restarted) and position in self._back:
                self.model.came_back(self._back[position])
            self.model.judge(record.command, record.result, None)
            if position in self._swept:
                self.model.sweep(self._swept[position])
        # The clock of a service that starts may be late: then time stands still.
        self.now_ms = max(recovered.state.at_ms, START_MS)
        self._revision = recovered.state.revision
        # A service that starts looks at every durable, as after a ``Ready`` of each.
        self.notified = {(store.name, name) for store in self.model.stores.values() for name in store.durables}

    def _come_back(self) -> None:
        """What the service does first after a start; it may crash again at that."""
        while True:
            try:
                if not self.machine.log:
                    self._define(self.shape.definition)
                self.submit(commands.Restarted(self.now_ms))
                self._expire()
                for store, durable, subscriber in self.machine.state.subscribers():
                    if self.random.random() < 0.4:
                        self.submit(commands.Detach(self.now_ms, store, durable, subscriber, "timeout"))
            except CrashedError:
                continue
            return

    # ---- the service's part -----------------------------------------------------------------------------------------

    def _expire(self) -> None:
        """Carry out every deadline that is due, as the service's timer does."""
        for _ in range(EXPIRES_MAX):
            if self.model.expire_done and not self._is_due():
                return
            looks = self.random.choice((1, 2, commands.EXPIRE_LOOKS, commands.EXPIRE_LOOKS))
            count = self.random.choice((1, 3, 10_000, 10_000))
            if self.model.expire_done:
                # Who waits does not change between two steps of one expiry.
                known = [(store, name) for store, name, _ in self.model.consumed()]
                self._contended = [durable for durable in known if self.apart.random() < self.contention]
            self.submit(commands.Expire(self.now_ms, count, looks=looks, contended=self._contended))
        promise(False, "an expiry ends", next_ms=self.machine.state.next_deadline_ms(), now_ms=self.now_ms)

    def _tick(self) -> None:
        """Time goes on. A clock that was put back stands still here: the service never lets time go back."""
        jump = self.random.choice((0, 0, 1, 10, 300, 1_000, 6_000, 40_000, 900_000_000))
        if jump == 900_000_000 and self.random.random() < 0.8:
            jump = 50
        self.seen["clock stands still" if not jump else "clock jumps" if jump > 40_000 else "clock goes on"] += 1
        self.now_ms += jump

    def _define(self, document: Mapping[str, object]) -> None:
        self._revision += 1
        wanted = definition_of(document)
        parts = parts_between(self.machine.state.definition, wanted)
        if self.random.random() >= 0.7:
            parts.append(part_of(wanted, ("cluster",)))  # it mostly changes nothing
        self.submit(commands.Redefine(self.now_ms, parts, self._revision, "", delete=True))
