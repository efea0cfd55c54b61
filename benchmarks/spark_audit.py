"""A log of 2,000,000 operations in 20,000 objects with 5 takeovers: ``latest`` against the online view, and the audit.

    python benchmarks/spark_audit.py [--scale 0.05] [--folder FOLDER] [--master local[2]] [--json FILE]

The log is written by the real four stages (``commit.pipeline``) and the real recovery, driven without a service: 10
transactions of 10 operations an object, half of them with preconditions, deletes and range deletes among them; at each
takeover a few objects of the deposed leader land late, in slots that are dead. The online view is the package's own,
fed by walking the log. Prints one line for each part and ends with an error unless all agree.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

from deltalake import DeltaTable

from holdfast.commit.format.batch import CLAIM_BYTES, HEADER_BYTES, Header, object_name
from holdfast.commit.format.chain import ChainWalker
from holdfast.commit.format.transaction import Delete, Operation, PointRead, RangeDelete, RangeRead, Transaction, Write
from holdfast.commit.leadership.claims import (
    Frontier,
    Identity,
    claim_header,
    encode_claim,
    plan_recovery,
    read_page,
)
from holdfast.commit.reading.feed import EventBatch
from holdfast.commit.reading.reader import follow
from holdfast.commit.stages import events
from holdfast.commit.stages.events import CommitEntry
from holdfast.commit.stages.persist import PersistRules
from holdfast.commit.stages.pipeline import Pipeline, PipelineRules
from holdfast.objects.open import open_durable_reader
from holdfast.objects.port import CREATED
from holdfast.spark import Latest, StepReport, Verify, run_pipeline, session
from holdfast.values import Instant, LeaderId, LogId, Slot
from holdfast.view import View

OBJECTS = 20_000
TRANSACTIONS_AN_OBJECT = 10
OPERATIONS_A_TRANSACTION = 10
TAKEOVERS = 5
LATE = 20
KEYS = 250_000
DAY_MS = 86_400_000
WINDOW_MS = 300_000.0
"""About 70 objects: a day goes by while the whole log is written."""
BEHIND_MAX = 200
"""How many versions behind the newest durable one a transaction may have read."""
SEED = 7


class LogWriter:
    """The objects of one log in a directory, written reign by reign."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.random = random.Random(SEED)
        self.sizes: dict[Slot, int] = {}
        self.now_ms = 0.0
        self.operations = 0
        self.objects = 0
        (root / "batches").mkdir(parents=True)

    def put(self, slot: Slot, data: bytes) -> None:
        """One object, not synced: this log is thrown away."""
        (self.root / object_name(slot)).write_bytes(data)
        self.sizes[slot] = len(data)
        self.objects += 1

    def lead(self) -> tuple[Header, bytes]:
        """Recover and claim, by the decisions of ``commit.leadership``."""
        newest = sorted(self.sizes)[:1000]
        page = read_page([(object_name(slot), self.sizes[slot]) for slot in newest])
        headers: dict[Slot, bytes] = {}
        while not isinstance(plan := plan_recovery(page, headers, allow_new=True), Frontier):
            headers[plan] = (self.root / object_name(plan)).read_bytes()[:HEADER_BYTES]
        seed = self.random.randbytes(32)
        identity = Identity(LeaderId(self.random.randbytes(16)), seed, "http://127.0.0.1:1")
        claim = claim_header(
            plan, identity, nonce=seed[:16], log_id=LogId(self.random.randbytes(16)), now=self.instant()
        )
        self.put(claim.slot, encode_claim(claim))
        assert self.sizes[claim.slot] == CLAIM_BYTES
        return claim, seed

    def instant(self) -> Instant:
        """A clock that moves as the log grows: a day for the whole of it."""
        return Instant(self.now_ms, 1_760_000_000_000 + int(self.now_ms))

    def reign(self, objects: int, *, deposed: bool) -> list[tuple[Slot, bytes]]:
        """One leader that writes ``objects`` objects; what it still had in flight when it ended."""
        claim, seed = self.lead()
        rules = PipelineRules(persist=PersistRules(batch_timeout_ms=0.0), window_ms=WINDOW_MS)
        pipeline = Pipeline(claim, seed, rules, self.instant())
        version = claim.last_version
        in_flight: list[tuple[Slot, bytes]] = []
        for number in range(objects + LATE * deposed):
            self.now_ms += DAY_MS / OBJECTS
            entries = [
                CommitEntry(
                    self.transaction(max(claim.last_version, version - self.random.randrange(BEHIND_MAX))),
                    lambda entry: None,
                )
                for _ in range(TRANSACTIONS_AN_OBJECT)
            ]
            waiting: list[events.Event] = [events.Arrived(self.instant(), entries), events.Tick(self.instant())]
            while waiting:
                for effect in pipeline.step(waiting.pop(0)):
                    match effect:
                        case events.Put(slot=slot, data=data) if number < objects:
                            self.put(slot, data)
                            waiting.append(events.PutAnswered(self.instant(), slot, CREATED))
                        case events.Put(slot=slot, data=data):
                            in_flight.append((slot, data))
                        case events.Durable(batches=batches):
                            version = batches[-1].header.last_version
                            self.operations += sum(len(txn.operations) for b in batches for txn in b.transactions)
                        case _:
                            pass
        return in_flight[1:]

    def transaction(self, version: int) -> Transaction:
        """Ten operations; half of the transactions read what they write, some read ranges."""
        draw = self.random
        operations: list[Operation] = []
        for _ in range(OPERATIONS_A_TRANSACTION):
            chance = draw.random()
            key = b"account/%06d" % draw.randrange(KEYS)
            if chance < 0.9:
                operations.append(Write(key, draw.randbytes(60)))
            elif chance < 0.9995:
                operations.append(Delete(key))
            else:
                begin = draw.randrange(KEYS)
                operations.append(RangeDelete(b"account/%06d" % begin, b"account/%06d" % (begin + 50)))
        if draw.random() < 0.5:
            return Transaction(operations)
        reads: list[PointRead | RangeRead] = [PointRead(operations[0].key)] if isinstance(operations[0], Write) else []
        if draw.random() < 0.1:
            reads.append(RangeRead(b"account/100000", b"account/100020"))
        named = f"request-{draw.getrandbits(64):016x}" if draw.random() < 0.5 else None
        return Transaction(operations, reads, request_id=named, read_version=version)


def write_log(root: Path, scale: float) -> LogWriter:
    """The whole log: reigns, and between them what lands late."""
    writer = LogWriter(root)
    late: list[tuple[Slot, bytes]] = []
    for reign in range(TAKEOVERS + 1):
        late = writer.reign(int(OBJECTS * scale) // (TAKEOVERS + 1), deposed=reign < TAKEOVERS)
        # The slot after the watermark never lands, so the rest is dead once the next leader has claimed it.
        for slot, data in late:
            writer.put(slot, data)
    return writer


async def online_view(url: str) -> View:
    """The package's own view, fed with the live chain."""
    view = View.memory()
    reader = open_durable_reader(url)
    async for batch in follow(reader, ChainWalker()):
        view.apply(EventBatch.of(batch.header, batch.transactions(), 0).events)
    await reader.close()
    return view


def differences(view: View, table: Path) -> tuple[int, int]:
    """How many keys the view and the table hold together, and how many differ."""
    rows = DeltaTable(str(table)).to_pyarrow_table(columns=["key", "value", "version"])
    held = dict(
        zip(
            rows["key"].to_pylist(),
            zip(rows["value"].to_pylist(), rows["version"].to_pylist(), strict=True),
            strict=True,
        )
    )
    wrong = rows.num_rows - len(held)
    begin, seen = b"", 0
    while page := view.range(begin, None, 10_000):
        for key, value, version in page:
            seen += 1
            wrong += held.pop(key, None) != (value, version)
        begin = page[-1][0] + b"\0"
    return seen, wrong + len(held)


def main() -> int:
    """Write, materialise, compare, audit."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the 20,000 objects")
    parser.add_argument("--folder", type=Path, default=None, help="a new one by default; emptied first")
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--json", type=Path, help="write the result here too")
    arguments = parser.parse_args()
    if arguments.folder is None:
        arguments.folder = Path(tempfile.mkdtemp(prefix="holdfast-spark-audit-"))
    shutil.rmtree(arguments.folder, ignore_errors=True)
    took: dict[str, float] = {}
    clock = time.monotonic()

    def lap(name: str) -> None:
        nonlocal clock
        took[name], clock = round(time.monotonic() - clock, 1), time.monotonic()

    writer = write_log(arguments.folder / "log", arguments.scale)
    log = (arguments.folder / "log").as_uri()
    lap("log_written_s")
    view = asyncio.run(online_view(log))
    lap("view_s")
    spark = session("holdfast-spark-audit", master=arguments.master, conf={"spark.log.level": "ERROR"})
    lap("spark_start_s")
    table = (arguments.folder / "latest").as_uri()
    share = sum(writer.sizes.values()) // 4 + 1
    steps: list[StepReport] = []
    latest = run_pipeline(Latest(spark, log, table), log, table, step_bytes=share, progress=steps.append)
    lap("latest_s")
    keys, wrong = differences(view, arguments.folder / "latest")
    lap("compare_s")
    findings = (arguments.folder / "verify").as_uri()
    verify = Verify(spark, log, findings)
    run = run_pipeline(verify, log, findings)
    lap("verify_s")
    spark.stop()
    good = wrong == 0 and verify.is_good(run.head_version) and latest.version == run.head_version
    result = {
        "operations": writer.operations,
        "objects": writer.objects,
        "log_bytes": sum(writer.sizes.values()),
        "takeovers": TAKEOVERS,
        "latest_steps": latest.step_count,
        "latest_step_s": [round(step.seconds, 1) for step in steps],
        "keys": keys,
        "keys_that_differ": wrong,
        "verdicts_recomputed": verify.audit.counts.transactions,
        "preconditions": verify.audit.counts.preconditions,
        "findings": len(verify.audit.findings),
        "verified_up_to": verify.audit.verified,
        "head_version": run.head_version,
        **took,
        "machine": f"{platform.machine()} {platform.python_version()} master={arguments.master}",
        "good": good,
    }
    shutil.rmtree(arguments.folder, ignore_errors=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")
    for name, value in result.items():
        print(f"{name:22} {value}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
