"""Broken rules, one at a time: the proof that the queue's worlds would notice.

Owns: a registry of mutants, each the real code with one rule taken out, and the search for a seed that catches it. Does
not own: the rules, nor their broken versions (``broken_rules``).

A mutant is caught when a world under it breaks a promise or reports damage that no disk has done, within ``SEEDS_MAX``
seeds.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Final

from tests.worlds.queue import broken_rules as broken
from tests.worlds.queue import persist_broken_rules as persist_broken
from tests.worlds.queue.files import CrashFiles
from tests.worlds.queue.followers import run_followers
from tests.worlds.queue.persisting import run_persist
from tests.worlds.queue.shape import LIFETIME_NS
from tests.worlds.queue.world import WorldReport, run_world

from holdfast.errors import CorruptData
from holdfast.queue import every, queue
from holdfast.queue.consumers import cursor_file
from holdfast.queue.consumers.consumer import Consumer
from holdfast.queue.consumers.cursor_file import CursorFile
from holdfast.queue.files.pages import PageDirectory
from holdfast.queue.log import opening, page_scan, reader, space, tail
from holdfast.queue.log.page_scan import PageScan
from holdfast.queue.log.reader import LogReader
from holdfast.queue.log.space import Space
from holdfast.queue.log.tail import Durability, LogTail, SyncProgress
from holdfast.queue.log.writer import PageSupply, Writer
from holdfast.queue.persist import PersistRun
from holdfast.queue.persist_flow import Flow
from holdfast.queue.work.log import WorkLog
from holdfast.queue.work.machine import WorkMachine
from holdfast.queue.work.work_queue import WorkQueue

__all__ = ["EQUIVALENT", "MUTANTS", "SEEDS_MAX", "Caught", "Mutant", "catch"]

SEEDS_MAX: Final = 200
FAULTS: Final = {"fault_rate": 0.06, "page_bytes": 12_288, "uniform": False, "max_bytes": None}
ALIGNED: Final = {
    "grows": False,
    "uniform": True,
    "fault_rate": 0.0,
    "max_bytes": None,
    "sync": "os",
    "steps": 40,
    "lives": 1,
}
GROWING: Final = {"grows": True, "page_bytes": broken.GROWN_BYTES, "lives": 4, "max_bytes": None}

Patch = tuple[object, str, object]


@dataclass(frozen=True, slots=True)
class Mutant:
    """One rule taken out: ``patches`` replace attributes of the real code. ``focus`` is where it is looked for, in
    worlds of the log, of its ``followers`` (with ``consumed`` only where ``keep="consumed"``) or of ``persist``."""

    name: str
    rule: str
    patches: tuple[Patch, ...]
    focus: Mapping[str, object] = field(default_factory=dict[str, object])
    followers: bool = False
    consumed: bool = False
    persist: bool = False

    def world(self, seed: int) -> WorldReport:
        """Run the kind of world in which this rule matters."""
        if self.persist:
            return run_persist(seed)
        if self.followers:
            return run_followers(seed, consumed=self.consumed or None)
        return run_world(seed, self.focus)


@dataclass(frozen=True, slots=True)
class Caught:
    """How a mutant was noticed: in which seed, by what; ``seed`` is None when it was not."""

    mutant: str
    seed: int | None
    promise: str
    seeds_tried: int


@contextmanager
def _applied(patches: tuple[Patch, ...]) -> Generator[None]:
    with ExitStack() as stack:
        for owner, name, value in patches:
            stack.callback(setattr, owner, name, vars(owner)[name])
            setattr(owner, name, value)
        yield


def catch(mutant: Mutant, *, first_seed: int = 0, seeds: int = SEEDS_MAX) -> Caught:
    """Run worlds under a mutant until one breaks a promise."""
    for tried in range(seeds):
        seed = first_seed + tried
        with _applied(mutant.patches):
            try:
                mutant.world(seed)
            except (AssertionError, CorruptData) as error:
                return Caught(mutant.name, seed, str(error), tried + 1)
    return Caught(mutant.name, None, "", seeds)


def _everywhere(name: str, value: object, *modules: object) -> tuple[Patch, ...]:
    return tuple((module, name, value) for module in modules)


_FIND_END: Final = (queue, reader)
_REGISTRY: Final = (
    Mutant(
        "no_salt",
        "stale bytes of another life of a page never verify",
        _everywhere("page_seed", broken.seed_without_salt, tail, opening, page_scan),
        {**ALIGNED, "stale": True, "page_bytes": 8192},
    ),
    Mutant(
        "no_sequence_number_in_the_check",
        "a frame verifies in one place only",
        ((PageScan, "_verify", broken.verify_without_sequence),),
        {**ALIGNED, "page_bytes": 16_384, "damage_rounds": 200},
    ),
    Mutant(
        "no_check",
        "a frame is whole or it is not there",
        (
            *_everywhere("checksum_for_writing", broken.checksum_without_bytes, tail),
            *_everywhere("checksum_for_reading", broken.checksum_without_bytes, opening, page_scan),
        ),
    ),
    Mutant(
        "pointer_before_data",
        "the data are synced before the pointer says so",
        ((Durability, "_sync", broken.pointer_before_data),),
    ),
    Mutant(
        "acknowledge_unsynced",
        "durable is what a sync returned for",
        ((Durability, "wait_for", broken.acknowledge_unsynced),),
    ),
    Mutant(
        "sync_tried_again",
        "a failed sync is never repeated",
        ((CrashFiles, "sync_data", broken.sync_again),),
        FAULTS,
    ),
    Mutant(
        "no_poison_mark",
        "after a failed sync the cache is not trusted",
        ((SyncProgress, "poison", broken.no_poison),),
        {**FAULTS, "lives": 4, "sync": "os", "steps": 20},
    ),
    Mutant(
        "nothing_written_again",
        "after a failed sync what is found is written again",
        ((opening, "_rewrite", broken.nothing_written_again),),
        {**FAULTS, "fault_rate": 0.12, "lives": 8, "steps": 14, "sync": every(bytes=9000)},
    ),
    Mutant(
        "no_seal",
        "a closed page says that it is",
        ((Writer, "_seal", broken.no_seal),),
        {**ALIGNED, "page_bytes": 4096},
    ),
    Mutant(
        "no_seal_and_no_end_of_page",
        "a page ends where nothing valid is and the next begins",
        ((Writer, "_seal", broken.no_seal), *_everywhere("decide", broken.end_without_seal, opening, reader)),
    ),
    Mutant(
        "latest_page_at_or_before",
        "reading since T begins in the last page strictly before T",
        ((LogReader, "seek_time", broken.seek_latest_page_at_or_before),),
    ),
    Mutant(
        "last_record_at_or_before",
        "reading since T begins at the last record strictly before T",
        ((PageScan, "seek_time", broken.seek_last_record_at_or_before),),
    ),
    Mutant(
        "resume_past_a_hole",
        "writing goes on at the verified end",
        _everywhere("find_end", broken.end_at_the_written_mark, *_FIND_END),
    ),
    Mutant(
        "mark_of_any_boot",
        "the written mark is true only while the page cache lives",
        _everywhere("find_end", broken.mark_of_any_boot, *_FIND_END),
    ),
    Mutant(
        "torn_page_written_on",
        "behind a torn tail a new page is begun",
        _everywhere("find_end", broken.resume_the_torn_page, *_FIND_END),
        {**ALIGNED, "lives": 3, "steps": 15},
    ),
    Mutant(
        "directory_not_synced",
        "a name is durable before anything in its file is acknowledged",
        ((CrashFiles, "sync_directory", broken.directory_not_synced),),
    ),
    Mutant(
        "page_named_before_its_sync",
        "under its name a page is whole",
        ((PageDirectory, "create", broken.create_without_sync),),
    ),
    Mutant(
        "closed_pages_forgotten",
        "nothing is durable before the pages in front of it are",
        ((SyncProgress, "take", broken.forget_closed_pages),),
    ),
    Mutant(
        "page_closed_meanwhile_is_synced",
        "a page that is closed while its sync is under way wants another one",
        ((SyncProgress, "reached", broken.page_closed_meanwhile_is_synced),),
        {"sync": "os", "max_bytes": None, "page_bytes": 4096, "crowd": 0.8, "steps": 28},
    ),
    Mutant(
        "clean_mark_stays",
        "an open queue has no clean mark on disk",
        ((SyncProgress, "record_position", broken.clean_mark_stays),),
        {**ALIGNED, "lives": 4, "steps": 10, "page_bytes": 65_536},
    ),
    Mutant(
        "page_in_use_removed",
        "retention removes closed pages only",
        ((Space, "remove", broken.remove_any_page),),
        {"page_bytes": 4096, "max_bytes": 12_288},
    ),
    Mutant(
        "pages_removed_at_once",
        "the name of a page is gone for good before the next goes",
        ((Space, "remove", broken.remove_pages_at_once),),
        {"uniform": False, "page_bytes": 4096, "lifetime_ns": LIFETIME_NS, "max_bytes": None, "sync": "os"},
    ),
    Mutant(
        "cursor_trusts_its_number",
        "a cursor is never ahead of what was committed",
        ((cursor_file, "kept_seq", broken.trust_the_number),),
        followers=True,
    ),
    Mutant(
        "durable_commit_without_the_log",
        "what is committed durably is durable in the log",
        ((Consumer, "_sync_log", broken.log_not_synced),),
        followers=True,
    ),
    Mutant(
        "commit_not_written",
        "a commit survives a kill",
        ((CursorFile, "write", broken.write_every_other_value),),
        followers=True,
    ),
    Mutant(
        "acknowledged_in_memory",
        "a step is written before it counts",
        ((WorkLog, "record", broken.record_nothing_that_ends),),
        followers=True,
    ),
    Mutant(
        "buried_before_its_letter",
        "a message is a dead letter before it is given up",
        ((WorkQueue, "_bury", broken.bury_before_the_letter),),
        followers=True,
    ),
    Mutant(
        "started_counts_as_done",
        "retention waits for what is not finished",
        ((WorkMachine, "committed_seq", broken.committed_is_started),),
        followers=True,
    ),
    Mutant(
        "consumed_forgets_closed_consumers",
        "what is consumed goes when every consumer has committed it, open or not",
        ((cursor_file, "first_unconsumed_seq", broken.forget_closed_consumers),),
        followers=True,
        consumed=True,
    ),
    Mutant(
        "consumed_asks_those_that_hold",
        "what is consumed goes when every consumer has committed it, whether it holds or not",
        ((cursor_file, "first_unconsumed_seq", cursor_file.first_held_seq),),
        followers=True,
        consumed=True,
    ),
    Mutant(
        "consumed_goes_before_the_cursors",
        "the cursors are durable before the pages that they have passed go",
        ((cursor_file, "sync_holds", broken.sync_no_cursor),),
        followers=True,
        consumed=True,
    ),
    Mutant(
        "consumed_takes_the_page_in_use",
        "a page stays while one of its messages is not committed",
        ((space, "pages_consumed", broken.one_page_more),),
        followers=True,
        consumed=True,
    ),
    Mutant(
        "resumed_page_has_the_configured_size",
        "a page ends where its header says",
        ((LogTail, "resume", broken.resume_with_the_configured_size),),
        GROWING,
    ),
    Mutant(
        "start_ends_the_growth",
        "the size of a page follows from its number, also after a start",
        ((PageSupply, "next_bytes", property(broken.grown_after_a_start)),),
        GROWING,
    ),
    Mutant(
        "growth_without_a_bound",
        "pages grow up to the configured size",
        ((PageSupply, "next_bytes", property(broken.grow_without_end)),),
        {**GROWING, "page_bytes": 8192},
    ),
    Mutant(
        "persist_acknowledges_when_given",
        "an item is consumed when the next one is asked for",
        ((PersistRun, "next_item", persist_broken.acknowledge_when_given),),
        persist=True,
    ),
    Mutant(
        "persist_drops_what_is_left",
        "a new run first gives what is left",
        ((PersistRun, "_subscribe", persist_broken.drop_what_is_left),),
        persist=True,
    ),
    Mutant(
        "persist_ends_before_the_last_items",
        "the end comes after the items before it",
        ((Flow, "step", property(persist_broken.end_before_the_last_items)),),
        persist=True,
    ),
    Mutant(
        "persist_consumes_in_memory",
        "what is consumed stays consumed after a kill",
        ((PersistRun, "consume", persist_broken.consume_in_memory),),
        persist=True,
    ),
    Mutant(
        "persist_never_waits",
        "the source waits at the bound",
        ((Flow, "work", property(persist_broken.never_wait)),),
        persist=True,
    ),
    Mutant(
        "persist_measures_nothing",
        "what earlier runs have left counts against the bound",
        ((PersistRun, "measure", persist_broken.nothing_left_to_measure),),
        persist=True,
    ),
    Mutant(
        "persist_forgets_what_is_stored",
        "a source resumes after what is stored",
        ((PersistRun, "stored", persist_broken.forget_what_is_stored),),
        persist=True,
    ),
    Mutant(
        "persist_frees_for_one_consumer",
        "space is freed of what every consumer has consumed",
        ((PersistRun, "_free", persist_broken.free_for_this_consumer),),
        persist=True,
    ),
    Mutant(
        "persist_frees_for_consumers_that_hold",
        "space is freed of what every consumer has consumed, also of one that does not hold",
        ((PersistRun, "_free", persist_broken.free_for_consumers_that_hold),),
        persist=True,
    ),
    Mutant(
        "persist_frees_before_the_cursors",
        "the cursors are durable before the pages that they have passed go",
        ((PersistRun, "_free", persist_broken.free_before_the_cursors_are_durable),),
        persist=True,
    ),
)

MUTANTS: Final[Mapping[str, Mutant]] = {mutant.name: mutant for mutant in _REGISTRY}

EQUIVALENT: Final[Mapping[str, str]] = {
    "slots written in place": "a mark is a hint: without one a start reads more and finds the same (I5)",
    "no second writing of the header": "the base of a page follows from the page before it",
}
"""Rules whose loss costs time and no message: named here so that nobody takes them for proved."""
