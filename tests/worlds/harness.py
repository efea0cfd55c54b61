"""What the worlds of the log, the queue and the stores share: reports, promises, mutants, and running many seeds.

A package of worlds gives the harness a ``Kind`` for each kind of world: the function that runs one seed, the events
that many worlds must meet, and its mutants. ``KINDS`` says where each is; ``__main__`` is the command line.
"""

from __future__ import annotations

import re
import traceback
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from importlib import import_module
from multiprocessing import get_context
from random import Random
from typing import Any, Final, TypeVar

__all__ = [
    "KINDS",
    "Caught",
    "Kind",
    "Mutant",
    "Mutants",
    "PromiseBroken",
    "SeededWorld",
    "Summary",
    "WorldReport",
    "hunt_mutants",
    "kind_of",
    "patched",
    "run_seeds",
]

KINDS: Final = {
    "log": "tests.worlds.log.kinds",
    "retention": "tests.worlds.log.kinds",
    "journal": "tests.worlds.log.kinds",
    "copies": "tests.worlds.log.kinds",
    "foundations": "tests.worlds.log.kinds",
    "clocks": "tests.worlds.log.kinds",
    "clock-copies": "tests.worlds.log.kinds",
    "clock-times": "tests.worlds.log.kinds",
    "etiquette": "tests.worlds.log.kinds",
    "suspensions": "tests.worlds.log.kinds",
    "broken-law": "tests.worlds.log.kinds",
    "queue": "tests.worlds.queue.kinds",
    "followers": "tests.worlds.queue.kinds",
    "persist": "tests.worlds.queue.kinds",
    "stores": "tests.worlds.stores.kinds",
    "stores-small-blocks": "tests.worlds.stores.small_blocks",
    "stores-clocks": "tests.worlds.stores.clocks",
    "workers": "tests.worlds.workers.kinds",
    "gathering": "tests.worlds.gathering.kinds",
}
"""Each kind of world and the module whose ``KINDS`` describes it."""

STALE: Final = re.compile(r"\b(TypeError|AttributeError|NameError): ")
"""What a mutant raises whose signature or fields are those of older code: it would be caught, and prove nothing."""

Value = TypeVar("Value")
Job = TypeVar("Job")
Done = TypeVar("Done")
Patch = tuple[object, str, object]


# -- one world --------------------------------------------------------------------------------------------------------


class PromiseBroken(AssertionError):
    """A world showed what must never be. The text begins with the promise, then ": " and the facts."""


@dataclass(frozen=True, slots=True)
class WorldReport:
    """What a world did. ``count``: its crash states, or in the log its events. ``seen`` counts each kind of event."""

    seed: int
    count: int
    seen: Counter[str]
    digest: str


class SeededWorld:
    """The state that every world has. All that a world draws comes from ``random``, so its seed repeats it exactly."""

    def __init__(self, seed: int, random: Random) -> None:
        self.seed = seed
        self.random = random
        self.seen: Counter[str] = Counter()
        self.states = 0
        self.digest = sha256()

    def report(self) -> WorldReport:
        """The report at the end of this world."""
        return WorldReport(self.seed, self.states, self.seen, self.digest.hexdigest())


# -- mutants ----------------------------------------------------------------------------------------------------------


@contextmanager
def patched(*patches: Patch) -> Generator[None]:
    """Replace attributes of modules and classes: each patch is an owner, a name and a value."""
    with ExitStack() as stack:
        for owner, name, value in patches:
            stack.callback(setattr, owner, name, vars(owner)[name] if name in vars(owner) else getattr(owner, name))
            setattr(owner, name, value)
        yield


@dataclass(frozen=True, slots=True)
class Mutant:
    """The real code with one rule taken out. ``play`` runs the world of one seed in which the rule matters."""

    name: str
    rule: str
    patches: tuple[Patch, ...]
    play: Callable[[int], WorldReport]
    first_seed: int
    """Where the search begins: at the seed that has noticed it, where the search before that seed takes long."""


@dataclass(frozen=True, slots=True)
class Caught:
    """The result of the search for a mutant: the seed that caught it, or None, and the promise that was broken."""

    mutant: str
    seed: int | None
    promise: str


class Mutants(dict[str, Mutant]):
    """The mutants of one kind of world, by name.

    ``play`` runs a world; a mutant whose rule seldom matters there gives a ``focus``, fields of the world's shape, or a
    ``play`` of its own. A mutant is caught when its world raises one of ``noticed`` within ``seeds_max`` seeds.
    """

    def __init__(
        self,
        play: Callable[..., WorldReport],
        *,
        seeds_max: int,
        noticed: tuple[type[Exception], ...] = (AssertionError,),
    ) -> None:
        super().__init__()
        self._play = play
        self.seeds_max = seeds_max
        self._noticed = noticed

    def add(
        self,
        name: str,
        rule: str,
        *patches: Patch,
        focus: Mapping[str, object] | None = None,
        play: Callable[[int], WorldReport] | None = None,
        first_seed: int = 0,
    ) -> None:
        """Add a mutant that is more than one function in the place of another."""
        assert name not in self, f"{name} is there twice"
        play = play or partial(self._play, **(focus or {}))
        self[name] = Mutant(name, rule, patches, play, first_seed)

    def breaks(self, rule: str, attribute: str, *owners: object, **search: Any) -> Callable[[Value], Value]:
        """Decorate the function, or the property, that replaces ``attribute`` of each owner; its name is the mutant's.

        ``search``: ``focus``, ``play`` and ``first_seed`` of ``add``.
        """

        def register(value: Value) -> Value:
            function: Any = value.fget if isinstance(value, property) else value
            self.add(function.__name__, rule, *((owner, attribute, value) for owner in owners), **search)
            return value

        return register

    def catch(self, name: str) -> Caught:
        """Run worlds under a mutant until one breaks a promise."""
        mutant = self[name]
        for seed in range(mutant.first_seed, mutant.first_seed + self.seeds_max):
            with patched(*mutant.patches):
                try:
                    mutant.play(seed)
                except self._noticed as error:
                    return _caught(name, seed, str(error))
        return Caught(name, None, "")


def _caught(name: str, seed: int, promise: str) -> Caught:
    assert not STALE.search(promise), f"{name} does not fit the code that it stands in for: {promise}"
    return Caught(name, seed, promise[:200])


# -- many worlds ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of world. ``counted`` names what ``WorldReport.count`` counts. ``worlds_min`` worlds or more must meet
    every kind of event in ``required``. ``unproved`` has rules that no world can prove, with the reason."""

    run: Callable[[int], WorldReport]
    counted: str
    required: tuple[str, ...]
    worlds_min: int
    mutants: Mutants
    unproved: Mapping[str, str] = field(default_factory=dict[str, str])


def kind_of(name: str) -> Kind:
    """The kind of world of this name."""
    kind: Kind = import_module(KINDS[name]).KINDS[name]
    return kind


class Summary:
    """What many worlds did. ``seeds_with`` counts the worlds in which a kind of event occurred; ``failures`` maps a
    seed to the end of its traceback."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.worlds = 0
        self.count = 0
        self.fewest = 0
        self.seen: Counter[str] = Counter()
        self.seeds_with: Counter[str] = Counter()
        self.failures: dict[int, str] = {}

    def add(self, result: WorldReport | tuple[int, str]) -> None:
        """Add the report of a world, or the seed and the traceback of one that failed."""
        self.worlds += 1
        if isinstance(result, tuple):
            self.failures[result[0]] = result[1]
            return
        self.fewest = min(self.fewest or result.count, result.count)
        self.count += result.count
        self.seen += result.seen
        self.seeds_with.update(kind for kind, count in result.seen.items() if count)

    def missing(self) -> list[str]:
        """The required kinds of events that occurred in no world."""
        return [kind for kind in self.kind.required if not self.seen[kind]]

    def failed(self) -> str:
        """The first failures with their seeds; empty where every world kept every promise."""
        return "\n".join(f"seed {seed}:\n{detail}" for seed, detail in [*self.failures.items()][:10])

    def table(self) -> str:
        """What occurred, how often, and in how many worlds."""
        rows = [f"{kind:<44}{self.seen[kind]:>10}{self.seeds_with[kind]:>8}" for kind in sorted(+self.seen)]
        return "\n".join([f"{'what happened':<44}{'times':>10}{'worlds':>8}", *rows])


def run_seeds(
    name: str,
    seeds: Iterable[int],
    *,
    jobs: int = 1,
    count_min: int = 0,
    progress: Callable[[Summary], None] | None = None,
) -> Summary:
    """Run worlds of the kind ``name`` on ``jobs`` processes; where ``count_min`` is given, until that many of what they
    count. A world that fails is recorded with its seed, and the others run on."""
    summary = Summary(kind_of(name))
    for result in _spread(partial(_run, name), seeds, jobs, chunk=4):
        summary.add(result)
        if progress is not None:
            progress(summary)
        if count_min and summary.count >= count_min:
            break
    return summary


def hunt_mutants(name: str, *, jobs: int = 1) -> Iterator[Caught]:
    """Look for a seed that catches each mutant of a kind of world."""
    yield from _spread(partial(_catch, name), kind_of(name).mutants, jobs, chunk=1)


def _run(name: str, seed: int) -> WorldReport | tuple[int, str]:
    try:
        return kind_of(name).run(seed)
    except Exception:  # noqa: BLE001 - whatever breaks a world is reported with its seed
        return seed, traceback.format_exc(limit=-6)


def _catch(name: str, mutant: str) -> Caught:
    return kind_of(name).mutants.catch(mutant)


def _spread(work: Callable[[Job], Done], jobs: Iterable[Job], processes: int, *, chunk: int) -> Iterator[Done]:
    if processes <= 1:
        yield from map(work, jobs)
        return
    with get_context("spawn").Pool(processes) as pool:
        yield from pool.imap(work, jobs, chunk)
