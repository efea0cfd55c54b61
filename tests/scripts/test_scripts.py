"""Interaction scripts: a command, then the exact effects of the real pipeline.

A script is a text file of blocks: commands, a line ``----``, and what the pipeline did, up to an empty line.
``HOLDFAST_RECORD=1`` writes what happens into the files instead; explain such a change where it is committed.

Slots are told relative to genesis (-1 is the first data slot), versions relative to the claim's base (+0). Commands:

    lead [window=N] [give_up_ms=N]     a new reign over an empty log, at instant 0
    commit NAME KEY [read=KEY] [at=+N] [id=ID]
    put SLOT created | lost | refused | busy
    found SLOT own | other | nothing | silent
    owner SLOT | silent                the answer to an ownership check
    version NAME, status ID, noop NAME, drain
    time MS                            the clock goes on, then a tick
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.unit.commit.builders import BASE, at, genesis, pipeline, takeover, txn

from holdfast.commit.format.batch import FIRST_SLOT, Kind, decode_header
from holdfast.commit.format.transaction import Committed, PointRead, Precondition, Rejected
from holdfast.commit.stages.events import (
    Answer,
    Arrived,
    CheckOwnership,
    CommitEntry,
    Drain,
    Durable,
    Effect,
    Ended,
    Event,
    HeaderFound,
    LookUp,
    NoopAsked,
    OwnershipSeen,
    Put,
    PutAnswered,
    Reached,
    ReadBack,
    Resolved,
    StatusAsked,
    StatusQuestion,
    StatusReady,
    Tick,
    VersionAsked,
    VersionIs,
)
from holdfast.commit.stages.persist import PersistRules
from holdfast.commit.stages.pipeline import Pipeline
from holdfast.objects.port import CREATED, CreateAnswer, Refused, Unknown
from holdfast.values import Slot

SCRIPTS = sorted(Path(__file__).parent.glob("*.txt"))
RECORD = os.environ.get("HOLDFAST_RECORD") == "1"
SILENT = Unknown("silent")
ANSWERS: dict[str, CreateAnswer] = {
    "created": CREATED,
    "lost": SILENT,
    "refused": Refused(),
    "busy": Refused(certain=False),
}


class Stage:
    """One pipeline, driven by the lines of a script."""

    def __init__(self) -> None:
        self.ms = 0.0
        self.reign: Pipeline = pipeline()
        self.sent: dict[int, bytes] = {}

    def run(self, line: str) -> list[str]:
        """Carry out one command and tell the effects."""
        name, *words = line.split()
        options = dict(word.split("=", 1) for word in words if "=" in word)
        plain = [word for word in words if "=" not in word]
        if name == "lead":
            rules = PersistRules(
                batch_timeout_ms=5.0,
                window=int(options.get("window", "8")),
                give_up_after_ms=float(options.get("give_up_ms", "60000")),
            )
            self.ms, self.sent, self.reign = 0.0, {}, pipeline(persist=rules)
            return [f"leads at {self.slot(genesis().slot)}, version +0"]
        effects = self.reign.step(self.event(name, plain, options))
        self.reign.check()
        return [self.tell(effect) for effect in effects] or ["nothing"]

    def event(self, name: str, words: list[str], options: dict[str, str]) -> Event:
        if name == "time":
            self.ms += float(words[0])
            return Tick(at(self.ms))
        now = at(self.ms)
        match name, words:
            case "commit", [ticket, key]:
                return Arrived(now, [self.request(ticket, key, options)])
            case "put", [slot, answer]:
                return PutAnswered(now, self.real(slot), ANSWERS[answer])
            case "found", [slot, what]:
                there = self.real(slot)
                found = {
                    "own": lambda: decode_header(self.sent[there], slot=there),
                    "other": lambda: takeover(genesis(), "b", slot=there),
                    "nothing": lambda: None,
                    "silent": lambda: SILENT,
                }[what]()
                return HeaderFound(now, there, found, options.get("certain", "yes") == "yes")
            case "owner", [slot]:
                return OwnershipSeen(now, SILENT if slot == "silent" else self.real(slot))
            case "version", [ticket]:
                return VersionAsked(now, ticket)
            case "status", [request_id]:
                return StatusAsked(now, StatusQuestion(request_id, BASE, request_id))
            case "noop", [ticket]:
                return NoopAsked(now, ticket)
            case "drain", []:
                return Drain(now)
            case _:
                raise ValueError(f"no such command: {name} {words}")

    def request(self, ticket: str, key: str, options: dict[str, str]) -> CommitEntry:
        reads: list[Precondition] = [PointRead(options["read"].encode())] if "read" in options else []
        read_version = BASE + int(options["at"]) if "at" in options else None
        request = txn(key.encode(), request_id=options.get("id"), at=read_version, reads=reads)
        return CommitEntry(request, lambda _: None, ticket)

    @staticmethod
    def real(slot: str) -> Slot:
        return Slot(FIRST_SLOT + int(slot))

    @staticmethod
    def slot(slot: int) -> str:
        return str(slot - FIRST_SLOT)

    def outcome(self, entry: CommitEntry) -> str:
        match entry.outcome:
            case Committed(version=version):
                return f"{entry.ticket} committed +{version - BASE}"
            case Rejected(reason=reason, conflicts=conflicts):
                listed = "".join(f" [{c.precondition}]+{c.version - BASE}" for c in conflicts)
                return f"{entry.ticket} {reason}{listed} (durable +{entry.durable_version - BASE})"
            case other:
                return f"{entry.ticket} {type(other).__name__.lower()}"

    def tell(self, effect: Effect) -> str:
        match effect:
            case Put(slot=slot, data=data):
                again = slot in self.sent
                assert self.sent.setdefault(slot, data) == data, "bytes are frozen at first send"
                header = decode_header(data, slot=slot)
                what = "resign" if header.kind is Kind.RESIGN else f"{header.transactions} transactions"
                return f"put {self.slot(slot)}: {what}" + (", the same bytes again" if again else "")
            case ReadBack(slot=slot):
                return f"read back {self.slot(slot)}"
            case CheckOwnership():
                return "check ownership"
            case Resolved(entries=entries):
                return "resolved: " + ", ".join(f"{e.ticket} {'+' if e.accepted else '-'}" for e in entries)
            case Durable(batches=batches):
                return "durable: " + ", ".join(self.slot(batch.header.slot) for batch in batches)
            case Answer(entries=entries):
                return "answer: " + ", ".join(self.outcome(entry) for entry in entries)
            case LookUp(entries=entries):
                return "look up: " + ", ".join(str(entry.ticket) for entry in entries)
            case VersionIs(tickets=tickets, version=version):
                return f"version +{version - BASE} for {', '.join(map(str, tickets))}"
            case StatusReady(question=question, version=version):
                return f"status of {question.request_id}: " + (
                    f"committed +{version - BASE}" if version is not None else "not in the window"
                )
            case Reached(tickets=tickets):
                return f"reached: {', '.join(map(str, tickets))}"
            case Ended(kind=kind, tickets=tickets):
                waiting = [ticket.ticket if isinstance(ticket, StatusQuestion) else ticket for ticket in tickets]
                return f"the end: {kind}" + (f", unanswered {', '.join(map(str, waiting))}" if waiting else "")


def replay(text: str) -> str:
    """The script with what really happens in place of what it says."""
    stage = Stage()
    blocks = []
    for block in text.strip().split("\n\n"):
        commands = block.partition("\n----")[0].splitlines()
        told = [fact for line in commands if not line.startswith("#") for fact in stage.run(line)]
        runs = any(not line.startswith("#") for line in commands)
        blocks.append("\n".join([*commands, "----", *told] if runs else commands))
    return "\n\n".join(blocks) + "\n"


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_the_pipeline_does_what_the_script_says(path: Path) -> None:
    recorded = path.read_text()
    happens = replay(recorded)
    if RECORD:
        path.write_text(happens)
    else:
        assert happens == recorded


def test_there_are_scripts() -> None:
    assert len(SCRIPTS) >= 5
