"""A bank whose transfers are messages: whatever stops workers and leaders, each happens once and the sum stays."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

import pytest
from tests.command import command
from tests.integration.test_stores_in_log import Machine, machines

from holdfast import Client, StoreClient, Write

ACCOUNTS = 2_000
FIRST = 1_000_000
WORKERS = 2
WORKER = """
import asyncio, json, sys
from holdfast import aio
from holdfast.client.stores import SubscriberOptions
from holdfast.errors import HoldfastError

async def carry_out(client, worker, message):
    transfer = json.loads(message.body)
    async def step(txn):
        for name, change in ((transfer["from"], -transfer["amount"]), (transfer["to"], transfer["amount"])):
            key = b"account/%d" % name
            txn.write(key, b"%d" % (int(await txn.get(key)) + change))
        txn.publish("receipts", message.body, fields={"transfer": message.seq})
        txn.acknowledge("transfers", "work", worker, message.seq)
    try:
        await client.transact(step)
    except HoldfastError:
        pass  # another worker has it, or it comes again

async def work(worker, urls):
    options = SubscriberOptions(explicit_ack=True, prefetch=64)
    async with (
        aio.Client(urls) as client,
        aio.StoreClient(urls) as stores,
        stores.subscriber("transfers", "work", subscriber=worker, options=options) as messages,
    ):
        running = set()
        while True:
            message = await messages.receive(timeout=1.0)
            if message is None:
                continue
            running.add(task := asyncio.ensure_future(carry_out(client, worker, message)))
            task.add_done_callback(running.discard)
            if len(running) >= 64:
                await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)

asyncio.run(work(sys.argv[1], sys.argv[2:]))
"""


def start_worker(number: int, urls: Sequence[str]) -> subprocess.Popen[bytes]:
    paths = os.pathsep.join(path for path in sys.path if path)
    return subprocess.Popen(
        [sys.executable, "-c", WORKER, f"worker-{number}", *urls],
        env={"PYTHONPATH": paths, "PATH": "/usr/bin:/bin"},
        stdout=subprocess.DEVNULL,
    )


def transfers_of(count: int) -> list[dict[str, int]]:
    random = Random(count)
    found = []
    for _ in range(count):
        giver, taker = random.sample(range(ACCOUNTS), 2)
        found.append({"from": giver, "to": taker, "amount": random.randint(1, 100)})
    return found


def prepare(urls: Sequence[str], transfers: Sequence[dict[str, int]]) -> None:
    with Client(urls) as client, StoreClient(urls) as stores:
        client.commit([Write(b"account/%d" % number, b"%d" % FIRST) for number in range(ACCOUNTS)])
        for store, durable in (("transfers", "work"), ("receipts", "all")):
            stores.define_store(store)
            stores.define_durable(store, durable, {"type": "shared"})
        with stores.publisher("transfers") as publisher:
            for transfer in transfers:
                publisher.send(json.dumps(transfer).encode())
            publisher.flush()


def receipts(machine: Machine) -> int:
    status, answer = machine.ask("GET", "/v1/stores/receipts")
    return int(answer["counts"]["messages"]) if status == 200 else 0


def check_books(urls: Sequence[str], transfers: Sequence[dict[str, int]]) -> None:
    wanted: Counter[int] = Counter(dict.fromkeys(range(ACCOUNTS), FIRST))
    for transfer in transfers:
        wanted[transfer["from"]] -= transfer["amount"]
        wanted[transfer["to"]] += transfer["amount"]
    with Client(urls) as client, StoreClient(urls) as stores:
        found = {number: client.get(b"account/%d" % number) for number in range(ACCOUNTS)}
        made = Counter(receipt.fields["transfer"] for receipt in stores.browser("receipts", "all"))
    assert made == Counter(range(1, len(transfers) + 1)), "each transfer has one receipt"
    values = {number: int(read.value) for number, read in found.items() if read is not None}
    assert values == wanted, "each transfer happened once"
    assert sum(values.values()) == ACCOUNTS * FIRST


@pytest.mark.matrix
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("place", ["directory", "s3"])
def test_each_transfer_happens_once_whatever_stops_workers_and_leaders(
    place: str,
    tmp_path: Path,
    prove: bool,
    request: pytest.FixtureRequest,
    record_property: Callable[[str, object], None],
) -> None:
    count, rounds = (100_000, 40) if prove else (1_000, 4)
    url = (tmp_path / "log").as_uri() if place == "directory" else request.getfixturevalue("s3_url")
    assert command("log", "init", url, "--no-race", "--stores", "log").returncode == 0
    transfers = transfers_of(count)
    random = Random(count)
    with machines(tmp_path, url) as (leader, standby):
        settings = {"HOLDFAST_VIEW__ENABLED": "true"}
        leader.serve(**settings)
        standby.stand_by(**settings)
        urls = [f"http://127.0.0.1:{machine.port}" for machine in (leader, standby)]
        prepare(urls, transfers)
        began = time.monotonic()
        workers = [start_worker(number, urls) for number in range(WORKERS)]
        try:
            for turn in range(1, rounds + 1):
                until = time.monotonic() + 600
                while receipts(leader) < count * turn // (rounds + 2):
                    assert time.monotonic() < until, leader.server.tail()
                    time.sleep(0.1)
                victim = random.randrange(WORKERS)
                workers[victim].kill()
                workers[victim].wait()
                workers[victim] = start_worker(victim, urls)
                if turn % 2:
                    leader.server.kill()
                    standby.wait()
                else:
                    leader.server.pause()
                    standby.wait()
                    leader.server.resume()
                    time.sleep(1.0)  # it goes on where it was, and finds out
                    leader.end()
                leader, standby = standby, leader
                standby.stand_by(**settings)
            until = time.monotonic() + 600
            while receipts(leader) < count:
                assert time.monotonic() < until, leader.server.tail()
                time.sleep(0.1)
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()
        record_property(f"{place} seconds", round(time.monotonic() - began))
        check_books(urls, transfers)
        assert leader.server.stop() == 0
    assert "the log is intact" in command("log", "verify", url).stdout
