"""A large CSV file, sent row by row to a slow HTTP server by a program that is killed, and loses no row.

    python -m examples.queue.csv_to_http [directory]

The program reads the file lazily. ``persist`` stores each row on disk before it reads the next, and the reading runs
64 KiB ahead of the sending. The program is killed with SIGKILL three times. Each time it is started again, it first
sends what is left, and then reads on after the last row that is stored. The server answers each request after a while
and keeps the numbers of the rows. In the end it has every row; a kill repeats one row at most.
"""

from __future__ import annotations

import csv
import http.client
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import islice, pairwise
from pathlib import Path

import holdfast
from holdfast.queue import Stored

ROWS = 3_000
KILLS = (400, 1_000, 1_800)
AHEAD_BYTES = 64 << 10
ANSWER_S = 0.0005


def write_file(path: Path) -> None:
    """The file: one line for each order."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("order", "drink", "cups"))
        writer.writerows((number, ("coffee", "tea", "cocoa")[number % 3], number % 5 + 1) for number in range(ROWS))


def send_rows(path: Path, directory: Path, port: int) -> None:
    """The program that is killed: read, store, send. Ends when the last row has been sent."""

    def rows(stored: Stored[dict[str, str]]) -> Iterator[dict[str, str]]:
        with path.open(newline="", encoding="utf-8") as file:
            # One row is one item, so the number of stored items says how many rows to skip.
            yield from islice(csv.DictReader(file), stored.count, None)

    connection = http.client.HTTPConnection("127.0.0.1", port)
    with holdfast.persist(rows, directory, max_bytes=AHEAD_BYTES, serializer="json", page_size=64 << 10) as orders:
        for order in orders:
            connection.request("POST", "/", json.dumps(order))
            connection.getresponse().read()  # asking for the next order acknowledges this one


class Slow(HTTPServer):
    """Counts what it is sent. ``reached`` is set when it has seen the row ``wanted``."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.orders: list[int] = []
        self.wanted = -1
        self.reached = threading.Event()


class Answer(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    server: Slow

    def do_POST(self) -> None:
        """Take one order, and answer after a while."""
        order = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        threading.Event().wait(ANSWER_S)
        self.server.orders.append(int(order["order"]))
        if self.server.orders[-1] >= self.server.wanted >= 0:
            self.server.reached.set()
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's signature
        """Print nothing for each request."""

    def handle(self) -> None:
        """A client that is killed ends its connection in the middle."""
        try:
            super().handle()
        except ConnectionError:
            self.close_connection = True


def main(folder: Path) -> None:
    """Kill, start again, compare."""
    path, directory = folder / "orders.csv", folder / "orders"
    write_file(path)
    with Slow() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        command = [sys.executable, "-m", "examples.queue.csv_to_http", "send", path, directory, server.server_port]
        for wanted in KILLS:
            server.wanted = wanted
            server.reached.clear()
            program = subprocess.Popen([*map(str, command)])
            server.reached.wait()
            os.kill(program.pid, signal.SIGKILL)
            program.wait()
            print(f"killed after order {server.orders[-1]}")
        subprocess.run([*map(str, command)], check=True)
        server.shutdown()
        orders = server.orders
    assert sorted(set(orders)) == list(range(ROWS)), "every row is sent"
    for before, after in pairwise(orders):
        assert after in (before, before + 1), "in order, and at most the last one again"
    print(f"all {ROWS} rows were sent, {len(orders) - ROWS} of them twice")


if __name__ == "__main__":
    words = sys.argv[1:]
    if words[:1] == ["send"]:
        send_rows(Path(words[1]), Path(words[2]), int(words[3]))
    elif words:
        main(Path(words[0]))
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(Path(temporary))
