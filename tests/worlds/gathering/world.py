"""One world of gathered commits."""

from __future__ import annotations

import json
from dataclasses import replace
from random import Random
from typing import Final

from tests.worlds.gathering.caller import Caller
from tests.worlds.gathering.service import Service
from tests.worlds.gathering.shape import ENDS, TRUE, Shape, drawn
from tests.worlds.gathering.shell import Shell
from tests.worlds.harness import SeededWorld, WorldReport
from tests.worlds.log.agenda import Agenda
from tests.worlds.stores.promises import promise

from holdfast.client.protocol.effects import Item
from holdfast.client.protocol.endpoint import ClientRoute, parse_endpoint
from holdfast.client.protocol.gathered_commits import Commits
from holdfast.client.protocol.gathered_reads import Reads
from holdfast.client.protocol.options import ClientOptions
from holdfast.client.protocol.retry_budget import Session

__all__ = ["World", "run_world"]

CHAOS_MS: Final = 1_500.0
END_MS: Final = 600_000.0
EVENTS_MAX: Final = 300_000


class World(SeededWorld):
    """One client, its callers, and a service."""

    def __init__(self, seed: int, shape: Shape) -> None:
        super().__init__(seed, Random(seed))
        self.shape = shape
        self.agenda = Agenda()
        self.options = ClientOptions(
            request_timeout_ms=shape.request_timeout_ms,
            give_up_after_ms=5_000,
            resolve_within_ms=5_000,
            commits_per_request_max=shape.items_max,
        )
        self.route = ClientRoute((parse_endpoint("http://service.example:1"),))
        self.session = Session(self.route, self.options)
        self.service = Service(self)
        self.shell = Shell(self, Commits(self.options))
        self.reads = Shell(self, Reads(self.options))
        self.withdrawn: set[tuple[str, int]] = set()
        self.not_committed: set[bytes] = set()
        self._callers = [Caller(self, f"c{number}") for number in range(shape.callers)]

    def strikes(self, fault: str) -> bool:
        """Whether a fault happens now."""
        chance: float = getattr(self.shape, fault)
        return bool(chance) and self.random.random() < chance

    def delay_ms(self) -> float:
        """One way through the network."""
        return self.shape.delay_ms * self.random.uniform(0.2, 1.5)

    def withdraw(self, item: Item) -> None:
        """Nothing of it may be sent from now on."""
        txn = json.loads(item.data)
        self.withdrawn.add((txn["request_id"], txn["read_version"]))

    def denied(self, marker: bytes) -> None:
        """A caller hears that its transaction has not committed."""
        promise(marker not in self.service.markers.values(), TRUE, marker=marker)
        self.not_committed.add(marker)

    def run(self) -> WorldReport:
        """Chaos, then the end."""
        for caller in self._callers:
            self.agenda.after(self.random.random() * self.shape.think_ms, None, caller.begin)
        for _ in range(self.shape.kills):
            self.agenda.after(self.random.random() * CHAOS_MS / 4, None, self._kill)
        self.agenda.after(CHAOS_MS, None, self._heal)
        while not self._is_done():
            promise(self.agenda.now < END_MS and self.agenda.step(), ENDS, waiting=self._waiting())
            self.states += 1
            assert self.states < EVENTS_MAX, "a world does not spin"
        self.shell.finish()
        self.reads.finish()
        self.digest.update(self.agenda.digest().encode())
        return self.report()

    def _kill(self) -> None:
        if self.service.is_up:
            self.seen["a kill"] += 1
            self.service.kill()

    def _heal(self) -> None:
        nothing = dict.fromkeys(("lost", "silent", "ends", "refuses", "proxies", "mixes", "leaves"), 0.0)
        self.shape = replace(self.shape, **nothing)

    def _waiting(self) -> list[str]:
        return [caller.name for caller in self._callers if not caller.is_done]

    def _is_done(self) -> bool:
        return not self._waiting()


def run_world(seed: int, **fields: object) -> WorldReport:
    """The world of a seed; ``fields`` are of its shape."""
    shape = drawn(Random(f"shape {seed}"))
    return World(seed, replace(shape, **fields)).run()  # type: ignore[arg-type]
