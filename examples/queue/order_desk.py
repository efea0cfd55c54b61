"""An order desk that is killed in the middle of its work, and loses nothing.

    python -m examples.queue.order_desk [directory]

One process takes orders and writes each into a queue. It is killed with SIGKILL, again and again, and started anew. Two
others read the same queue at their own pace: one bills every order, one counts coffee for the last minute. In the end
every order that the desk had confirmed is billed, in order; the billing was killed too, so some may be billed twice,
and their numbers tell which.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

from holdfast import Queue

ROUNDS = 3
ORDERS_BEFORE_KILL = 200
DRINKS = ("coffee", "tea", "cocoa")


def take_orders(path: Path) -> None:
    """The desk: append, then confirm on stdout. Never ends by itself."""
    with Queue(path, page_size=1 << 20) as queue:
        while True:
            number = queue.last_seq + 1
            seq = queue.append(f"order {number}: {DRINKS[number % 3]}".encode())
            # The order is in the queue before anybody is told; that is what makes the confirmation worth something.
            print(seq, flush=True)


def bill_orders(path: Path, invoices: Path) -> None:
    """The billing: write an invoice, then commit. Waits for orders and never ends by itself."""
    with (
        Queue(path, read_only=True) as queue,
        queue.consumer("billing") as billing,
        invoices.open("a", encoding="utf-8", buffering=1) as file,
    ):
        for message in billing.follow():
            file.write(f"{message.seq} {message.payload.decode()}\n")
            billing.commit(message)
            print(message.seq, flush=True)


def start(role: str, *arguments: Path) -> subprocess.Popen[str]:
    """Another process of this program."""
    command = [sys.executable, "-m", "examples.queue.order_desk", role, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def kill_after(process: subprocess.Popen[str], *, lines: int = 0, seq: int = 0) -> int:
    """Kill a process when it has printed so many lines, or this number. Returns the number that it printed last."""
    assert process.stdout is not None
    last, printed = 0, 0
    while printed < lines or last < seq:
        last = int(process.stdout.readline())
        printed += 1
    os.kill(process.pid, signal.SIGKILL)
    rest = process.stdout.read()
    process.wait()
    process.stdout.close()
    whole = rest[: rest.rfind("\n") + 1].split()
    return int(whole[-1]) if whole else last


def main(folder: Path) -> None:
    """Kill, start again, compare."""
    path, invoices = folder / "orders", folder / "invoices.txt"
    confirmed = 0
    for round_number in range(1, ROUNDS + 1):
        confirmed = kill_after(start("desk", path), lines=ORDERS_BEFORE_KILL)
        billed = kill_after(start("billing", path, invoices), lines=ORDERS_BEFORE_KILL // 2)
        print(f"round {round_number}: the desk was killed after order {confirmed}, the billing after {billed}")

    with Queue(path, read_only=True) as queue:
        print(f"the queue holds {queue.last_seq} orders, {confirmed} were confirmed")
        assert queue.last_seq >= confirmed, "a confirmed order survives a killed process"
        numbers = [message.seq for message in queue.read()]
        assert numbers == list(range(1, queue.last_seq + 1)), "no order is missing, none is there twice"
        minute_ago = datetime.now(UTC) - timedelta(minutes=1)
        coffee = sum(message.payload.endswith(b"coffee") for message in queue.read(since=minute_ago))
        print(f"coffee ordered in the last minute: {coffee}")

    with Queue(path) as queue, queue.consumer("billing") as billing:
        left = billing.lag()
    if left:
        kill_after(start("billing", path, invoices), seq=numbers[-1])
    billed_numbers = [int(line.split()[0]) for line in invoices.read_text(encoding="utf-8").splitlines()]
    assert sorted(set(billed_numbers)) == numbers, "every order is billed"
    twice = len(billed_numbers) - len(numbers)
    print(f"all {len(numbers)} orders are billed; {twice} a second time, and their numbers say which")


if __name__ == "__main__":
    words = sys.argv[1:]
    if words[:1] == ["desk"]:
        take_orders(Path(words[1]))
    elif words[:1] == ["billing"]:
        bill_orders(Path(words[1]), Path(words[2]))
    elif words:
        main(Path(words[0]))
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(Path(temporary))
