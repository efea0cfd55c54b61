"""A minute of a queue as it is used: one writer, four reader processes, two consumers, retention, and processes that
are killed. Nothing may be missed, invented or out of order; memory stays flat; the disk stays within its limit.

    python benchmarks/queue_soak.py [--seconds 60] [--rate 20000] [--json FILE]

The writer appends one by one and in batches, 50 to 1,450 bytes, ``every(ms=50)``, ``full="block"`` at eight pages of
4 MiB, so it waits for the slowest consumer. Every message can be told from its sequence number alone. The readers
follow the log from its beginning; what retention took before they came there must be reported (``Trimmed``), and
nothing else may be missing. The consumers commit every 500 messages; one of the two, and one of the readers, is killed
every few seconds (SIGKILL) and started again. What is checked:

- every message is byte-exact and the next one in order, or a report says which are gone;
- a consumer goes on behind a place that it committed, at or after the last commit that it had told of, and never behind
  what it was handed: so nothing is missed, and only what was not committed comes twice;
- the pages take at most ``max_bytes`` and one page, looked at ten times a second;
- no process has more memory in the last third of the time than in the second one, but for 4 MiB;
- readers and consumers come to the writer's last message.

The exit code is 0 where all of it held.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from holdfast.queue import Gap, Message, Queue, Trimmed, every

PAGE_BYTES = 4 << 20
PAGES = 8
MAX_BYTES = PAGES * PAGE_BYTES
READERS = 4
CONSUMERS = ("billing", "search")
COMMIT_EVERY = 500
KILL_EVERY_S = 4.0
LOOK_S = 0.1
GROWTH_BYTES_MAX = 4 << 20
END_SECONDS_MAX = 120
LAST = b"the last message of the soak"
POOL = random.Random(7).randbytes(8192)
PAGE_SIZE = os.sysconf("SC_PAGE_SIZE")


def payload(seq: int) -> bytes:
    """The message with this number."""
    start, size = seq * 31 % 4096, 50 + seq * 7919 % 1400
    return seq.to_bytes(8, "big") + POOL[start : start + size]


def tell(kind: str, **facts: Any) -> None:
    sys.stdout.write(json.dumps({"kind": kind, **facts}) + "\n")
    sys.stdout.flush()


# ---- the processes --------------------------------------------------------------------------------------------------


def write(path: Path, seconds: float, rate: float) -> None:
    """Append at ``rate``, as far as the consumers let it, then the last message."""
    with Queue(path, page_size=PAGE_BYTES, max_bytes=MAX_BYTES, full="block", sync=every(ms=50)) as queue:
        for name in CONSUMERS:
            queue.consumer(name, hold=True).close()
        tell("open")
        began = time.monotonic()
        seq, batch = queue.last_seq, 0
        while (passed := time.monotonic() - began) < seconds:
            if seq > passed * rate:
                time.sleep(0.002)
                continue
            batch = (batch + 1) % 50
            if batch % 2:
                for _ in range(batch):
                    seq += 1
                    if queue.append(payload(seq)) != seq:
                        raise SystemExit(f"message {seq} got another number")
            else:
                first, last = queue.append_many([payload(seq + 1 + place) for place in range(4 * batch + 2)])
                if first != seq + 1 or last != seq + 4 * batch + 2:
                    raise SystemExit(f"messages from {seq + 1} on got other numbers")
                seq = last
        queue.append(LAST)
        queue.flush()
        tell("written", last=queue.last_seq, durable=queue.durable_seq)


def opened(path: Path) -> Queue:
    return Queue(path, read_only=True)


def checked(messages: Iterator[Message], expected: int, skipped: list[Trimmed]) -> Iterator[Message]:
    """The messages, each of which must be the next; ends with the last one."""
    for message in messages:
        for report in skipped:
            tell("trimmed", first=expected, last=report.first_seq - 1)
            expected = max(expected, report.first_seq)
        skipped.clear()
        if message.seq != expected:
            raise SystemExit(f"message {message.seq} where {expected} was to come")
        if message.payload == LAST:
            yield message
            return
        if message.payload != payload(expected):
            raise SystemExit(f"message {expected} is not what was appended")
        yield message
        expected += 1


def follow(path: Path) -> None:
    """A reader: from the oldest message to the last."""
    skipped: list[Trimmed] = []

    def damage(report: Gap | Trimmed) -> None:
        if isinstance(report, Gap):
            raise SystemExit(f"messages {report.first} to {report.last} are reported as damaged")
        skipped.append(report)

    with opened(path) as queue:
        first = queue.first_seq
        count = last = 0
        for message in checked(queue.read(seq=first, follow=True, damage=damage), first, skipped):
            count, last = count + 1, message.seq
        tell("read", count=count, last=last)


def consume(path: Path, name: str) -> None:
    """A consumer: from behind its last commit to the last message."""
    with opened(path) as queue, queue.consumer(name, hold=True) as consumer:
        tell("start", committed=consumer.committed_seq)
        count = 0
        for message in checked(consumer.follow(), consumer.committed_seq + 1, []):
            count += 1
            if count % COMMIT_EVERY == 0:
                tell("handed", seq=message.seq)
                consumer.commit(message)
                tell("committed", seq=message.seq)
        consumer.commit()
        tell("read", count=count, last=consumer.committed_seq)


# ---- watching them --------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Watched:
    """One role, in one process after the other."""

    role: str
    killable: bool
    command: list[str]
    process: subprocess.Popen[str] | None = None
    listener: threading.Thread | None = None
    starts: int = 0
    handed: int = 0
    committed: int = 0
    trimmed: int = 0
    last: int | None = None
    faults: list[str] = field(default_factory=list)
    memory: list[tuple[float, int, int]] = field(default_factory=list)

    def start(self) -> None:
        self.starts += 1
        self.process = subprocess.Popen(self.command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.listener = threading.Thread(target=self._listen, args=(self.process,), daemon=True)
        self.listener.start()

    def _listen(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None, "the output is a pipe"
        for line in process.stdout:
            # A killed process may leave the beginning of a line.
            with contextlib.suppress(json.JSONDecodeError):
                self._told(json.loads(line))

    def _told(self, told: dict[str, Any]) -> None:
        match told["kind"]:
            case "start":
                if not self.committed <= told["committed"] <= max(self.handed, self.committed):
                    self.faults.append(
                        f"went on behind {told['committed']}, committed {self.committed}, handed out {self.handed}"
                    )
                self.committed = told["committed"]
            case "handed":
                self.handed = told["seq"]
            case "committed":
                self.committed = told["seq"]
            case "trimmed":
                self.trimmed += told["last"] - told["first"] + 1
            case "read" | "written":
                self.last = told["last"]

    def kill(self) -> None:
        """SIGKILL, then everything that it had told is heard, then a new one."""
        assert self.process is not None, "it was started"
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self._heard()
            self.start()

    def ended(self, seconds: float) -> None:
        """Wait for its end; anything but a good one is a fault."""
        assert self.process is not None, "it was started"
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.faults.append(f"did not come to the end in {seconds:.0f} s")
            self.process.kill()
            code = self.process.wait()
        self._heard()
        if code:
            assert self.process.stderr is not None, "the errors are a pipe"
            self.faults.append(f"ended with {code}: {self.process.stderr.read()[-600:].strip()}")

    def _heard(self) -> None:
        assert self.process is not None and self.listener is not None, "it was started"
        self.process.wait()
        self.listener.join()

    def look(self, at: float) -> None:
        assert self.process is not None, "it was started"
        with contextlib.suppress(OSError, IndexError):
            resident = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * PAGE_SIZE
            self.memory.append((at, self.starts, resident))

    def growth(self, seconds: float) -> int:
        """Bytes by which the last third's largest memory is above that of the second third, in one process."""
        late = [(starts, size) for at, starts, size in self.memory if 2 * seconds / 3 <= at < seconds]
        early = [(starts, size) for at, starts, size in self.memory if seconds / 3 <= at < 2 * seconds / 3]
        lives = {starts for starts, _ in late} & {starts for starts, _ in early}
        # A process that is killed again and again never lives for so long: then each life's first is compared.
        if not lives:
            return max((size for _, size in late), default=0) - max((size for _, size in early), default=0)
        life = max(lives)
        return max(size for starts, size in late if starts == life) - max(
            size for starts, size in early if starts == life
        )


class Soak:
    """All processes, and what is seen of them."""

    def __init__(self, folder: Path, seconds: float, rate: float) -> None:
        self.folder = folder
        self.seconds = seconds
        self.disk_bytes_max = 0
        self.kills = 0
        path = folder / "log"
        command = [sys.executable, __file__, "--folder", str(path)]
        self.writer = Watched(
            "writer", False, [*command, "--role", "writer", "--seconds", str(seconds), "--rate", str(rate)]
        )
        self.others = [
            Watched(f"reader {number}", number == 0, [*command, "--role", "reader"]) for number in range(READERS)
        ]
        self.others += [
            Watched(f"consumer {name}", name == CONSUMERS[0], [*command, "--role", "consumer", "--name", name])
            for name in CONSUMERS
        ]

    def run(self) -> list[str]:
        """The faults; none where everything held."""
        self.writer.start()
        self._wait_for_the_first_message()
        for each in self.others:
            each.start()
        began = time.monotonic()
        killed = began
        turn = 0
        while (passed := time.monotonic() - began) < self.seconds and not self._anything_ended():
            self._look(passed)
            if time.monotonic() - killed > KILL_EVERY_S:
                killed = time.monotonic()
                killable = [each for each in self.others if each.killable]
                killable[turn % len(killable)].kill()
                turn += 1
                self.kills += 1
            time.sleep(LOOK_S)
        for each in (self.writer, *self.others):
            each.ended(END_SECONDS_MAX)
        self._look(self.seconds)
        return self._faults()

    def _wait_for_the_first_message(self) -> None:
        """The consumers are named, and hold, before the writer's first message."""
        until = time.monotonic() + END_SECONDS_MAX
        while not list(self.folder.glob("*.page")) or len(list(self.folder.glob("*.cursor"))) < len(CONSUMERS):
            if self._anything_ended() or time.monotonic() > until:
                raise SystemExit("the writer did not begin")
            time.sleep(0.01)

    def _anything_ended(self) -> bool:
        return any(each.process is not None and each.process.poll() is not None for each in (self.writer, *self.others))

    def _look(self, passed: float) -> None:
        size = 0
        for path in self.folder.glob("*.page"):
            with contextlib.suppress(FileNotFoundError):
                size += path.stat().st_size
        self.disk_bytes_max = max(self.disk_bytes_max, size)
        for each in (self.writer, *self.others):
            each.look(passed)

    def _faults(self) -> list[str]:
        found = [f"{each.role}: {fault}" for each in (self.writer, *self.others) for fault in each.faults]
        if self.disk_bytes_max > MAX_BYTES + PAGE_BYTES:
            found.append(f"the pages took {self.disk_bytes_max:,} bytes")
        for each in (self.writer, *self.others):
            growth = each.growth(self.seconds)
            if growth > GROWTH_BYTES_MAX:
                found.append(f"{each.role}: {growth:,} bytes more memory in the last third")
            if each.last is None or each.last != self.writer.last:
                found.append(f"{each.role}: came to {each.last}, the last message is {self.writer.last}")
        return found


def report(soak: Soak, faults: list[str], console: Console) -> dict[str, Any]:
    processes = [
        {
            "role": each.role,
            "processes": each.starts,
            "last": each.last,
            "reported as trimmed": each.trimmed,
            "memory_mib": round(max((size for *_, size in each.memory), default=0) / 2**20, 1),
            "growth_mib": round(each.growth(soak.seconds) / 2**20, 2),
        }
        for each in (soak.writer, *soak.others)
    ]
    for each in processes:
        console.print("  ".join(f"{name} {value}" for name, value in each.items()))
    console.print(
        f"pages at most {soak.disk_bytes_max / 2**20:.1f} MiB, limit {MAX_BYTES / 2**20:.0f} MiB and one page of"
        f" {PAGE_BYTES / 2**20:.0f}; {soak.kills} processes killed; {soak.writer.last or 0:,} messages"
    )
    for fault in faults:
        console.print(f"[red]{fault}[/]")
    console.print("[red]FAILED[/]" if faults else "[green]PASS[/]: nothing missed, invented or out of order")
    return {"seconds": soak.seconds, "disk_bytes_max": soak.disk_bytes_max, "processes": processes, "faults": faults}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--rate", type=float, default=20_000.0, help="messages a second that the writer aims at")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--folder", type=Path, help="where the queue is kept; for a role, the queue itself")
    parser.add_argument("--role", choices=("writer", "reader", "consumer"), help=argparse.SUPPRESS)
    parser.add_argument("--name", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.role == "writer":
        write(given.folder, given.seconds, given.rate)
    elif given.role == "reader":
        follow(given.folder)
    elif given.role == "consumer":
        consume(given.folder, given.name)
    if given.role:
        return 0
    console = Console(width=150, highlight=False)
    with tempfile.TemporaryDirectory(dir=given.folder or Path.cwd(), prefix=".soak-") as folder:
        soak = Soak(Path(folder).resolve(), given.seconds, given.rate)
        faults = soak.run()
        found = report(soak, faults, console)
    if given.json:
        given.json.write_text(json.dumps(found, indent=2))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
