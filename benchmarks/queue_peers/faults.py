"""What a queue delivers after a fault: 2,000 messages of 100 bytes, one fault, and whatever comes out when it is read.

Owns: the faults, the count. Does not own: how a system is opened and read (``systems``).

Every message says its own number and a hash, so a message that was never appended is seen. Writing and reading are
processes of their own: damage may end a reader by a signal, or keep it busy for ever (then it is stopped after
``READ_SECONDS`` or ``DELIVERED_MAX`` messages). Faults other than ``kill -9`` meet a log that was closed, except the
deleted index of SQLite's files, which exists only while one is open: there the writer is killed first.

- flipped bit: one bit in the middle of message 1,033, wherever it lies in the files;
- zeroed tail, cut tail: the last 512 bytes become zeros, or the last 50 are cut off, of the file with the last message,
  counted from its last byte that is not zero;
- emptied metadata: every file of metadata becomes empty; deleted index: every index file is removed.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from rich.console import Console
from rich.table import Table

from holdfast.queue import Gap, Trimmed
from queue_peers.systems import (
    Diskcache,
    Holdfast,
    LiteQueue,
    Lmdb,
    PersistQueueFile,
    PersistQueueSqlite,
    Queuelib,
    Sqlite3,
    System,
)

__all__ = ["FAULTS", "Delivered", "fault_table", "show_faults"]

BENCHMARKS = Path(__file__).parent.parent
MESSAGES = 2000
FLIPPED = 1033
DELIVERED_MAX = MESSAGES + 500
READ_SECONDS = 20.0
PROCESS_SECONDS = 60
NOT_THERE = "-"


@dataclass(frozen=True, slots=True)
class Delivered:
    """What one system delivered after one fault; ``ended`` is how the reading ended where it did not end well."""

    system: str
    fault: str
    good: int = 0
    corrupt: int = 0
    repeated: int = 0
    reported: list[str] = field(default_factory=list)
    ended: str = ""

    @property
    def text(self) -> str:
        if self.ended == NOT_THERE:
            return NOT_THERE
        told = [f"{self.good:,}"]
        told += [f"{self.corrupt} corrupt"] if self.corrupt else []
        told += [f"{self.repeated} repeated"] if self.repeated else []
        told += [*self.reported, self.ended]
        return ", ".join(each for each in told if each)

    @property
    def sound(self) -> bool:
        """Nothing false, nothing twice, an end, and nothing missing without a word."""
        return not (self.corrupt or self.repeated or self.ended) and (self.good == MESSAGES or bool(self.reported))


# ---- the systems as a program would use them ------------------------------------------------------------------------


class ReportingHoldfast(Holdfast):
    """Reads on behind damage and keeps the reports."""

    def __init__(self, folder: Path, *, synced: bool = False) -> None:
        super().__init__(folder, synced=synced)
        self.reported: list[str] = [f"messages {first} to {last} reported" for first, last in self.queue.recovered_gaps]

    def payloads(self) -> Iterator[bytes]:
        return (message.payload for message in self.queue.read(damage=self._report))

    def _report(self, report: Gap | Trimmed) -> None:
        if isinstance(report, Gap):
            told = f"messages {report.first} to {report.last} reported"
        else:
            told = f"messages before {report.first_seq} reported"
        if told not in self.reported:
            self.reported.append(told)


class BatchedHoldfast(ReportingHoldfast):
    name = "holdfast, batches of 100"


class TakingPersistQueue(PersistQueueSqlite):
    """With auto_commit, as it comes: taking a message removes it."""

    auto_commit: ClassVar[bool] = True


SYSTEMS: dict[str, type[System]] = {
    "holdfast": ReportingHoldfast,
    "holdfast, batches of 100": BatchedHoldfast,
    **{
        each.name: each
        for each in (Lmdb, Sqlite3, LiteQueue, TakingPersistQueue, PersistQueueFile, Diskcache, Queuelib)
    },
}
METADATA = {
    "holdfast": ("*-allMeta", "*-writeMeta", "*-readMeta"),
    "holdfast, batches of 100": ("*-allMeta", "*-writeMeta", "*-readMeta"),
    "lmdb": ("lock.mdb",),
    "persist-queue file": ("info",),
    "queuelib": ("info.json",),
}
INDEXES = ("*.idx", "*-shm")


def message(number: int) -> bytes:
    head = number.to_bytes(8, "big")
    return head + hashlib.shake_128(head).digest(92)


# ---- faults ---------------------------------------------------------------------------------------------------------


def _holder(folder: Path, wanted: bytes) -> tuple[Path, int]:
    for path in sorted(folder.iterdir()):
        if path.is_file() and (at := path.read_bytes().find(wanted)) >= 0:
            return path, at
    raise SystemExit(f"no file in {folder} holds the message")


def _no_fault(_: Path, __: str) -> bool:
    return True


def _flip(folder: Path, _: str) -> bool:
    path, at = _holder(folder, message(FLIPPED))
    data = bytearray(path.read_bytes())
    data[at + 50] ^= 4
    path.write_bytes(data)
    return True


def _zero_tail(folder: Path, _: str) -> bool:
    path, _at = _holder(folder, message(MESSAGES - 1))
    data = bytearray(path.read_bytes())
    end = len(data.rstrip(b"\0"))
    data[end - 512 : end] = bytes(512)
    path.write_bytes(data)
    return True


def _cut_tail(folder: Path, _: str) -> bool:
    path, _at = _holder(folder, message(MESSAGES - 1))
    os.truncate(path, len(path.read_bytes().rstrip(b"\0")) - 50)
    return True


def _empty_metadata(folder: Path, system: str) -> bool:
    found = [path for pattern in METADATA.get(system, ()) for path in folder.glob(pattern)]
    for path in found:
        os.truncate(path, 0)
    return bool(found)


def _delete_index(folder: Path, _: str) -> bool:
    found = [path for pattern in INDEXES for path in folder.glob(pattern)]
    for path in found:
        path.unlink()
    return bool(found)


FAULTS: dict[str, Callable[[Path, str], bool]] = {
    "kill -9": _no_fault,
    "flipped bit": _flip,
    "zeroed tail": _zero_tail,
    "cut tail": _cut_tail,
    "emptied metadata": _empty_metadata,
    "deleted index": _delete_index,
}


def fault_table(folder: Path) -> list[Delivered]:
    """Every fault on every system, each on a log of its own."""
    found: list[Delivered] = []
    for system in SYSTEMS:
        for fault, damage in FAULTS.items():
            place = folder / "log"
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir(parents=True)
            killed = fault == "kill -9" or (fault == "deleted index" and not system.startswith("holdfast"))
            wrote = _child("write", system, place, "killed" if killed else "closed")
            if wrote.returncode != (-signal.SIGKILL if killed else 0):
                raise SystemExit(f"{system} could not be written: {wrote.stderr[-1000:]}")
            if damage(place, system):
                found.append(_read(system, fault, place))
            else:
                found.append(Delivered(system, fault, ended=NOT_THERE))
    shutil.rmtree(folder)
    return found


def _read(system: str, fault: str, place: Path) -> Delivered:
    done = _child("read", system, place)
    if done.returncode:
        ended = f"killed by {signal.Signals(-done.returncode).name}" if done.returncode < 0 else "the reader failed"
        return Delivered(system, fault, ended=ended)
    return Delivered(system, fault, **json.loads(done.stdout.splitlines()[-1]))


def _child(*words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "queue_peers.faults", *map(str, words)]
    return subprocess.run(command, cwd=BENCHMARKS, capture_output=True, text=True, timeout=PROCESS_SECONDS, check=False)


def show_faults(console: Console, found: Iterable[Delivered]) -> None:
    table = Table(title=f"of {MESSAGES:,} messages, delivered after a fault", title_justify="left", show_lines=True)
    table.add_column("")
    for fault in FAULTS:
        table.add_column(fault)
    rows: dict[str, list[str]] = {}
    for each in found:
        colour = "dim" if each.ended == NOT_THERE else "green" if each.sound else "red"
        rows.setdefault(each.system, []).append(f"[{colour}]{each.text}[/]")
    for system, cells in rows.items():
        table.add_row(system, *cells)
    console.print(table)


# ---- in the child ---------------------------------------------------------------------------------------------------


def _write(system: str, folder: Path, end: str) -> int:
    log = SYSTEMS[system](folder)
    messages = list(map(message, range(MESSAGES)))
    if system == "holdfast, batches of 100":
        for at in range(0, MESSAGES, 100):
            log.append_many(messages[at : at + 100])
    else:
        for each in messages:
            log.append(each)
    if end == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    log.close()
    return 0


def _drain(system: str, folder: Path) -> int:
    numbers: dict[bytes, int] = {message(number): number for number in range(MESSAGES)}
    seen: set[int] = set()
    corrupt = delivered = 0
    ended = ""
    log: System | None = None
    until = time.monotonic() + READ_SECONDS
    try:
        log = SYSTEMS[system](folder)
        for payload in log.payloads():
            delivered += 1
            number = numbers.get(bytes(payload)) if isinstance(payload, bytes) else None
            if number is None:
                corrupt += 1
            else:
                seen.add(number)
            if delivered > DELIVERED_MAX or time.monotonic() > until:
                ended = "and on without end"
                break
    except Exception as error:  # noqa: BLE001 - whatever a damaged peer raises is what is to be told
        ended = f"{'cannot be opened' if log is None else 'then'}: {type(error).__name__}"
    reported = log.reported if isinstance(log, ReportingHoldfast) else []
    repeated = delivered - corrupt - len(seen)
    answer = {"good": len(seen), "corrupt": corrupt, "repeated": repeated, "reported": reported, "ended": ended}
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    role, name, place, *rest = sys.argv[1:]
    sys.exit(_write(name, Path(place), rest[0]) if role == "write" else _drain(name, Path(place)))
