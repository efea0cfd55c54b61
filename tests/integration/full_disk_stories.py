"""Services whose local files of stores are on a small disk that fills up; prints what happened as one line of JSON.

unshare -Urm python full_disk_stories.py DIRECTORY leader|stop|start|standby

The log is a directory on another disk. ``DIRECTORY/small`` is the small disk, seen by this process and its children.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
import urllib.request
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests.integration.test_stores_in_log import Machine, begin, machines

from holdfast import StoreClient
from holdfast.commit.reading.reader import find_frontier
from holdfast.objects.open import open_store
from holdfast.server.stores.in_log import LocalCopy
from holdfast.settings import load_configuration
from holdfast.stores.followed import FollowedStores
from holdfast.stores.storage.storage import Storage

DISK_BYTES: Final = 24 << 20
BODY_BYTES: Final = 20_000
SECONDS_MAX: Final = 30.0
STORE: Final = {"durables": {"work": {"type": "shared", "ack_wait": 3600, "prefetch": 1000}}}
# The limit is off: it would refuse before the disk does.
DEFINITION: Final = {"cluster": {"max_disk_fraction": 0}, "stores": {"orders": STORE}}
WRITE: Final = {"operations": [{"type": "write", "key_text": "a", "value_text": "1"}]}
Happened = dict[str, object]


def fill(disk: Path) -> Path:
    """Take all the space that is left, as another program does."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file:
        for size in (1 << 20, 4096):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue
    return ballast


def publish(machine: Machine, name: str) -> tuple[int, str]:
    """Publish one large message. Returns the status, and the code of the error."""
    body = name.encode().ljust(BODY_BYTES, b".")
    messages = {"messages": [{"body": b64encode(body).decode()}]}
    status, answer = machine.ask("POST", "/v1/stores/orders/messages", messages)
    return status, "" if status == 200 or answer is None else answer["error"]["code"]


def until(condition: Callable[[], bool]) -> float:
    """Seconds until it held."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < SECONDS_MAX, "it never held"
        time.sleep(0.05)
    return time.monotonic() - began


def said(machine: Machine, event: str) -> int:
    return machine.server.output.read_text().count(f"event={event} ")


def metric(machine: Machine, name: str) -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{machine.port}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))


def names(machine: Machine) -> list[str]:
    """All messages that are kept, in order."""
    with StoreClient(f"http://127.0.0.1:{machine.port}") as client:
        return [message.body.decode().rstrip(".") for message in client.browser("orders", "work")]


def publish_until_refused(machine: Machine) -> tuple[list[str], tuple[int, str]]:
    """Names that were confirmed, and the refusal."""
    confirmed: list[str] = []
    while True:
        name = str(len(confirmed))
        status, code = publish(machine, name)
        if status != 200:
            return confirmed, (status, code)
        confirmed.append(name)
        assert len(confirmed) < 1_000, "the disk never fills"


def digest(storage: Storage) -> bytes:
    """The state that the files have."""
    return storage.state.snapshot()


def files_equal_log(machine: Machine, log_url: str, fresh: Path) -> bool:
    """Whether a copy that is made of the log now has the same state as the local files. Nothing is running."""

    async def made_of_the_log() -> tuple[bytes, int]:
        store = open_store(log_url)
        frontier = await find_frontier(store)
        assert frontier is not None
        newest, claim = frontier
        flags = {"log.url": log_url, "stores.directory": str(fresh)}
        copy = LocalCopy(store, load_configuration(flags=flags).settings.stores, newest.log_id.hex(), "fresh")
        made = await copy.bring_up_to(claim, newest)
        found = digest(made), made.version
        await copy.close()
        await store.close()
        return found

    (directory,) = [path for path in machine.cache.glob("*/*") if path.is_dir()]
    storage = FollowedStores.open(str(directory), read_only=True)
    try:
        mine = digest(storage), storage.version
    finally:
        storage.close()
    return mine == asyncio.run(made_of_the_log())


def define(machine: Machine) -> None:
    status, answer = machine.ask("PUT", "/v1/cluster/definition", DEFINITION)
    assert status == 200, answer


def leader(directory: Path, machine: Machine, _other: Machine, log_url: str) -> Happened:
    """While the disk is full everything but publishing goes on; with space publishing goes on, and nothing is lost."""
    machine.serve()
    define(machine)
    confirmed = [f"before {number}" for number in range(5)]
    for name in confirmed:
        assert publish(machine, name)[0] == 200
    taken = machine.take(3)
    ballast = fill(directory / "small")
    more, refusal = publish_until_refused(machine)
    kept_back = metric(machine, "holdfast_message_stores_kept_back_bytes")
    machine.acknowledge(*(seq for seq, _, _ in taken))
    later = machine.take(2)
    part = {"store": "orders", "messages": [{"body": b64encode(b"in a commit").decode()}]}
    commit = machine.ask("POST", "/v1/commit", WRITE)
    with_part = machine.ask("POST", "/v1/commit", {**WRITE, "publish": [part]})
    found_while_full = names(machine)
    ballast.unlink()
    seconds = until(lambda: publish(machine, "after")[0] == 200)
    events = {event: said(machine, event) for event in ("stores_disk_full", "stores_disk_has_room", "stores_failed")}
    kept_back_after = metric(machine, "holdfast_message_stores_kept_back_bytes")
    exit_code = machine.server.stop()
    is_equal = files_equal_log(machine, log_url, directory / "fresh")
    machine.serve()
    return {
        "refusal": refusal,
        "kept_back": kept_back,
        "kept_back_after": kept_back_after,
        "taken": len(taken) + len(later),
        "commit": commit[0],
        "with_part": with_part[1],
        "while_full": found_while_full == [*confirmed[3:], *more],
        "confirmed_while_full": len(more),
        "seconds": seconds,
        "events": events,
        "exit": exit_code,
        "is_equal": is_equal,
        "all_there": names(machine) == [*confirmed[3:], *more, "after"],
    }


def stop(directory: Path, machine: Machine, _other: Machine, log_url: str) -> Happened:
    """A service that is stopped while the disk is full stops; the next one has everything, also on the full disk."""
    machine.serve()
    define(machine)
    ballast = fill(directory / "small")
    confirmed, refusal = publish_until_refused(machine)
    began = time.monotonic()
    exit_code = machine.server.stop()
    seconds = time.monotonic() - began
    machine.start()
    machine.server.wait_until_leading()
    commit = machine.ask("POST", "/v1/commit", WRITE)
    until(lambda: said(machine, "stores_wait_for_disk") > 0)
    asked = machine.ask("GET", "/v1/stores")
    ballast.unlink()
    waited = until(lambda: machine.ask("GET", "/v1/stores")[0] == 200)
    status, _ = publish(machine, "after")
    return {
        "refusal": refusal,
        "exit": exit_code,
        "seconds": seconds,
        "commit": commit[0],
        "asked": [asked[0], asked[1]["error"]["code"]],
        "warnings": said(machine, "stores_wait_for_disk"),
        "waited": waited,
        "after": status,
        "all_there": names(machine) == [*confirmed, "after"],
        "stopped": machine.server.stop(),
        "is_equal": files_equal_log(machine, log_url, directory / "fresh"),
    }


def start(directory: Path, machine: Machine, other: Machine, log_url: str) -> Happened:
    """A machine without local files leads on a disk that is full from the beginning."""
    del log_url
    other.serve()
    define(other)
    assert publish(other, "a")[0] == 200
    other.server.stop()
    ballast = fill(directory / "small")
    machine.start()
    machine.server.wait_until_leading()
    until(lambda: said(machine, "stores_wait_for_disk") > 0)
    commit = machine.ask("POST", "/v1/commit", WRITE)
    asked = machine.ask("GET", "/v1/stores")
    ballast.unlink()
    until(lambda: machine.ask("GET", "/v1/stores")[0] == 200)
    return {"commit": commit[0], "asked": [asked[0], asked[1]["error"]["code"]], "all_there": names(machine) == ["a"]}


def standby(directory: Path, machine: Machine, other: Machine, log_url: str) -> Happened:
    """A standby on a full disk says so once, and follows again when there is space."""
    del log_url
    other.serve()
    define(other)
    machine.stand_by()
    ballast = fill(directory / "small")
    confirmed = [str(number) for number in range(200)]
    for name in confirmed:
        assert publish(other, name)[0] == 200
    until(lambda: said(machine, "stores_do_not_follow") > 0)
    running = machine.server.running
    before = len(list(machine.cache.glob("*/*/*.page")))
    ballast.unlink()
    until(lambda: len(list(machine.cache.glob("*/*/*.page"))) > before)
    other.end()
    machine.wait()
    return {
        "running": running,
        "followed": True,
        "warnings": said(machine, "stores_do_not_follow"),
        "all_there": names(machine) == confirmed,
    }


def main(directory: Path, story: str) -> None:
    """Tell one story on a new small file system, seen by this process and its children alone."""
    small = directory / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "none", str(small)], check=True)
    log_url = begin(directory)
    with machines(directory, log_url) as (machine, other):
        machine.cache = small / "cache"
        stories = {"leader": leader, "stop": stop, "start": start, "standby": standby}
        try:
            happened = stories[story](directory, machine, other, log_url)
        except BaseException:
            sys.stderr.write(machine.server.tail())
            raise
    os.write(1, json.dumps(happened).encode() + b"\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
