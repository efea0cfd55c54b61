"""One measurement in a process of its own: ``python -m queue_peers.worker '{"cell": ..., ...}'`` prints one JSON line.

Owns: what is timed, and that what was timed really happened. Does not own: which measurements there are (``lanes``).

Failure model: a check that does not hold ends the process with an error, and with it the benchmark. Every cell begins
with the system open and the messages made, and ends the clock before anything is checked or closed. ``other_cores`` is
what the machine did meanwhile beside this process.
"""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import random
import signal
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from struct import Struct
from typing import Any, Self

from holdfast.queue import Queue, every
from holdfast.queue.queue import core_of
from queue_peers.systems import MAP_BYTES, Holdfast, PersistQueueSqlite, Sqlite3, System, system_named

TICKS = os.sysconf("SC_CLK_TCK")
WRITE_BYTES_MAX = 256 << 20
"""Bound of what one measurement writes: beyond it the disk's write-back would be measured, not the system."""
MADE = 1000
CHUNK = 32
SEEKS = 300
SEEK_MESSAGES = 100
TIME_KEY = Struct(">QI")
SECOND_NS = 1_000_000_000
LEVELS = {
    "os": "os",
    "every(ms=50)": every(ms=50),
    "every(messages=1000)": every(messages=1000),
    "always": "always",
}
START_NS = 1_767_225_600 * SECOND_NS


def made(size: int, count: int = MADE, *, mixed: bool = False) -> list[bytes]:
    """Random messages of ``size`` bytes, or of half to one and a half times that."""
    source = random.Random(size)
    sizes = [source.randint(size // 2, size + size // 2) if mixed else size for _ in range(count)]
    return [source.randbytes(each) for each in sizes]


def endless(messages: list[bytes], count: int) -> Iterator[bytes]:
    return (messages[place % len(messages)] for place in range(count))


class Clock:
    """Seconds of the block, and the cores that others used meanwhile."""

    def __enter__(self) -> Self:
        self._busy, self._own = _machine_seconds(), sum(os.times()[:2])
        self._began = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.perf_counter() - self._began
        busy, own = _machine_seconds() - self._busy, sum(os.times()[:2]) - self._own
        self.other_cores = max(0.0, (busy - own) / self.seconds)


def _machine_seconds() -> float:
    """Processor time in programs; what the kernel does for write-back is the system's own doing."""
    user, nice, *_ = map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:])
    return (user + nice) / TICKS


def expect(holds: bool, law: str) -> None:
    if not holds:
        raise SystemExit(f"check failed: {law}")


# ---- writing --------------------------------------------------------------------------------------------------------


def write(system: type[System], folder: Path, size: int, batch: int, synced: bool, seconds: float) -> dict[str, Any]:
    """Messages per second, ``batch`` at a time (1: one by one), then all are counted in the log."""
    log = system(folder, synced=synced)
    messages = made(size)[:batch] if batch <= MADE else made(size, batch)
    limit = max(batch, WRITE_BYTES_MAX // size)
    done = 0
    pauses: list[float] = []
    with Clock() as clock:
        end = time.perf_counter() + seconds
        if batch == 1:
            append, message, step = log.append, messages[0], 1 if synced else CHUNK
            while time.perf_counter() < end and done < limit:
                for _ in range(step):
                    append(message)
                done += step
        else:
            append_many = log.append_many
            while (began := time.perf_counter()) < end and done < limit:
                append_many(messages)
                done += batch
                pauses.append(time.perf_counter() - began)
    log.close()
    if system.reading_consumes:
        rows = log_rows(folder)
        expect(rows == done, f"{system.name}: {rows} in the log, {done} appended")
    else:
        log = system(folder)
        count = 0
        for count, payload in enumerate(islice(log.payloads(), done + 1), 1):
            expect(payload == messages[(count - 1) % len(messages)], f"{system.name}: message {count} differs")
        expect(count == done, f"{system.name}: {count} in the log, {done} appended")
    return {"rate": done / clock.seconds, "messages": done, "other_cores": clock.other_cores}


def level(system: type[System], folder: Path, sync: str, seconds: float) -> dict[str, Any]:
    """Holdfast's appends one by one, of 100 bytes, at one of its sync levels."""
    message, done = made(100)[0], 0
    with Queue(folder / "log", sync=LEVELS[sync]) as queue:
        step = 1 if sync == "always" else CHUNK
        append = queue.append
        with Clock() as clock:
            end = time.perf_counter() + seconds
            while time.perf_counter() < end and done < WRITE_BYTES_MAX // 100:
                for _ in range(step):
                    append(message)
                done += step
    with Queue(folder / "log", read_only=True) as queue:
        expect(queue.last_seq == done, f"{queue.last_seq} in the log, {done} appended")
    return {"rate": done / clock.seconds, "messages": done, "other_cores": clock.other_cores}


def log_rows(folder: Path) -> int:
    """Of litequeue, whose reading takes time that grows with the square of what is in it."""
    import sqlite3

    rows: int = sqlite3.connect(folder / "queue.db").execute("SELECT count(*) FROM Queue").fetchone()[0]
    return rows


def gather(system: type[System], folder: Path, size: int, tasks: int, seconds: float) -> dict[str, Any]:
    """1,000 asyncio tasks, each awaiting one durable append after the other."""
    from holdfast.aio import Queue as AioQueue

    message = made(size)[0]

    async def run() -> tuple[int, Clock]:
        done = 0
        async with AioQueue(folder / "log", sync="always") as queue:
            end = time.perf_counter() + seconds

            async def one() -> None:
                nonlocal done
                while time.perf_counter() < end:
                    seq = await queue.append(message)
                    done += 1
                    expect(seq <= queue.durable_seq, "what was awaited is durable")

            with Clock() as clock:
                await asyncio.gather(*(one() for _ in range(tasks)))
        return done, clock

    done, clock = asyncio.run(run())
    with Queue(folder / "log") as queue:
        expect(queue.last_seq == done, f"{queue.last_seq} in the log, {done} awaited")
    return {"rate": done / clock.seconds, "messages": done, "other_cores": clock.other_cores}


# ---- reading --------------------------------------------------------------------------------------------------------


def fill(system: type[System], folder: Path, size: int, count: int, mixed: bool = False) -> dict[str, Any]:
    log = system(folder)
    log.fill(endless(made(size, mixed=mixed), count))
    log.close()
    return {"messages": count}


def read(system: type[System], folder: Path, count: int, form: str, seconds: float) -> dict[str, Any]:
    """Messages per second, over and over for so long; ``form`` is payloads, messages or lazy."""
    log = system(folder)
    found = 0
    with Clock() as clock:
        end = time.perf_counter() + seconds
        while True:
            if form == "lazy":
                assert isinstance(log, Holdfast), "only blocks are lazy"
                found += sum(map(len, log.queue.batches()))
            elif system.reading_consumes:
                for _ in log.payloads():
                    found += 1
                    if time.perf_counter() > end:
                        break
            else:
                exhaust = getattr(log, form)
                deque(exhaust(), maxlen=0)
                found += count
            # What forgets what it has handed out is opened again, so that the next pass starts at the oldest.
            if time.perf_counter() > end or system.reading_consumes or system.name.startswith(("persist", "queuelib")):
                break
    if form == "lazy":
        expect(found % count == 0, f"{found} messages in passes over {count}")
    return {"rate": found / clock.seconds, "messages": found, "other_cores": clock.other_cores}


def seek_fill(system: str, folder: Path, count: int, batch: int) -> dict[str, Any]:
    """A log in which every ``batch`` messages arrived in the same microsecond, one such group each millisecond."""
    times = (START_NS + place // batch * 1_000_000 for place in range(count))
    payload = made(100)[0]
    if system == "holdfast":
        now = START_NS
        with Queue(folder / "log", clock=lambda: now) as queue:
            for place in range(0, count, batch):
                now = START_NS + place // batch * 1_000_000
                if batch == 1:
                    queue.append(payload)
                else:
                    queue.append_many([payload] * batch)
    elif system == "lmdb":
        environment = _lmdb_times(folder)
        keys = (TIME_KEY.pack(arrived, place) for place, arrived in enumerate(times))
        while items := [(key, payload) for key in islice(keys, 1000)]:
            with environment.begin(write=True) as transaction:
                transaction.cursor().putmulti(items, append=True)
    else:
        seconds = system.startswith("persist")
        log: Any = PersistQueueSqlite(folder) if seconds else Sqlite3(folder)
        connection = log.peer._putter if seconds else log.connection
        table = "queue_default (data, timestamp)" if seconds else "log (payload, time)"
        if not seconds:
            connection.execute("ALTER TABLE log ADD COLUMN time INTEGER")
            connection.execute("CREATE INDEX log_time ON log (time)")
            connection.execute("BEGIN")
        rows = ((payload, arrived / SECOND_NS if seconds else arrived) for arrived in times)
        connection.executemany(f"INSERT INTO {table} VALUES (?, ?)", rows)
        connection.commit()
    return {"messages": count}


def _lmdb_times(folder: Path) -> Any:
    import lmdb

    return lmdb.open(str(folder), map_size=MAP_BYTES, sync=False)


def seek(system: str, folder: Path, count: int, batch: int) -> dict[str, Any]:
    """Median microseconds to stand at a random time, and to have the first 100 messages from there; warm."""
    _read_files(folder)
    source = random.Random(count)
    groups = max(1, count // batch)
    stand, first = _seeker(system, folder)
    places, firsts = [], []
    tries = 5 if system.startswith("persist") else SEEKS
    with Clock() as clock:
        for attempt in range(-2, tries):
            group = source.randrange(max(1, groups - SEEK_MESSAGES))
            moment = START_NS + group * 1_000_000
            began = time.perf_counter()
            if stand is not None:
                stand(moment)
            middle = time.perf_counter()
            found = first(moment)
            ended = time.perf_counter()
            expect(found == SEEK_MESSAGES, f"{system}: {found} messages from {moment} on")
            if attempt >= 0:  # the first two make everything warm
                places.append((middle - began) * 1e6)
                firsts.append((ended - middle) * 1e6)
    return {
        "seek_us": statistics.median(places) if stand is not None else None,
        "first_us": statistics.median(firsts),
        "other_cores": clock.other_cores,
    }


def _read_files(folder: Path) -> None:
    """Have the system's cache hold what is there: what was written some rounds ago may have left it."""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            with path.open("rb") as file:
                while file.read(1 << 20):
                    pass


def _seeker(system: str, folder: Path) -> tuple[Callable[[int], object] | None, Callable[[int], int]]:
    def moment(time_ns: int) -> datetime:
        return datetime.fromtimestamp(0, UTC) + timedelta(microseconds=time_ns // 1000)

    if system == "holdfast":
        queue = Queue(folder / "log")

        def first(time_ns: int) -> int:
            messages = list(islice(queue.read(since=moment(time_ns)), SEEK_MESSAGES))
            expect(messages[0].time_ns == time_ns, "a read since a time begins with the first that arrived then")
            return len(messages)

        return lambda time_ns: core_of(queue).reader(since=moment(time_ns)).close(), first
    if system == "lmdb":
        environment = _lmdb_times(folder)

        def first_lmdb(time_ns: int) -> int:
            with environment.begin() as transaction:
                cursor = transaction.cursor()
                cursor.set_range(TIME_KEY.pack(time_ns, 0))
                return len(list(islice(cursor.iternext(), SEEK_MESSAGES)))

        return None, first_lmdb
    if system == "sqlite3":
        query = f"SELECT time, payload FROM log WHERE time >= ? ORDER BY time LIMIT {SEEK_MESSAGES}"
        log = Sqlite3(folder)
        return None, lambda time_ns: len(log.connection.execute(query, (time_ns,)).fetchall())
    query = f"SELECT timestamp, data FROM queue_default WHERE timestamp >= ? ORDER BY _id LIMIT {SEEK_MESSAGES}"
    peer: Any = PersistQueueSqlite(folder).peer
    return None, lambda time_ns: len(peer._getter.execute(query, (time_ns / SECOND_NS,)).fetchall())


# ---- opening --------------------------------------------------------------------------------------------------------


def die(system: type[System], folder: Path, size: int, count: int, batch: int) -> dict[str, Any]:
    """Append ``count`` more messages and be killed: nothing is closed, nothing synced."""
    log = system(folder)
    messages = made(size)
    if batch == 1:
        for message in endless(messages, count):
            log.append(message)
    else:
        log.fill(endless(messages, count))
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("a killed process does not get here")


def open_log(system: type[System], folder: Path) -> dict[str, Any]:
    """Milliseconds until the system can be appended to."""
    warm = folder / "warm"  # imports and first calls are not opening
    warm.mkdir(exist_ok=True)
    system(warm).close()
    with Clock() as clock:
        log = system(folder)
    log.append(b"x")
    os._exit(_answer({"ms": clock.seconds * 1e3, "other_cores": clock.other_cores}))


# ---- work queues ----------------------------------------------------------------------------------------------------


def work(system: str, folder: Path, size: int, count: int, synced: bool, seconds: float) -> dict[str, Any]:
    """Messages taken and acknowledged one by one, per second, with ``count`` waiting at the start."""
    messages = list(endless(made(size), count))
    step = _worker(folder, messages, synced) if system == "holdfast" else _peer_worker(system, folder, messages)
    done = 0
    with Clock() as clock:
        end = time.perf_counter() + seconds
        while done < count and time.perf_counter() < end:
            expect(step() == messages[done], f"{system}: job {done + 1} is the message appended as that")
            done += 1
    return {"rate": done / clock.seconds, "messages": done, "other_cores": clock.other_cores}


def _worker(folder: Path, messages: list[bytes], synced: bool) -> Callable[[], bytes]:
    queue = Queue(folder / "log", sync="always" if synced else "os")
    queue.append_many(messages)
    jobs = queue.work_queue("bench")

    def step() -> bytes:
        job = jobs.get()
        assert job is not None, "there are more jobs than are taken"
        jobs.ack(job)
        return job.payload

    return step


def _peer_worker(system: str, folder: Path, messages: list[bytes]) -> Callable[[], bytes]:
    from persistqueue import SQLiteAckQueue

    filled = SQLiteAckQueue(str(folder))
    rows = ((pickle.dumps(message, protocol=4), time.time()) for message in messages)
    filled._putter.executemany("INSERT INTO ack_queue_default (data, timestamp, status) VALUES (?, ?, 0)", rows)
    filled._putter.commit()
    jobs: Any = SQLiteAckQueue(str(folder))
    if system.endswith("unsynced"):
        jobs._putter.execute("PRAGMA synchronous=NORMAL")

    def step() -> bytes:
        job: dict[str, Any] = jobs.get(raw=True)
        jobs.ack(id=job["pqid"])
        found: bytes = job["data"]
        return found

    return step


CELLS: dict[str, Callable[..., dict[str, Any]]] = {
    "write": write,
    "level": level,
    "gather": gather,
    "fill": fill,
    "read": read,
    "seek_fill": seek_fill,
    "seek": seek,
    "die": die,
    "open": open_log,
    "work": work,
}
BY_NAME = ("seek_fill", "seek", "work")


def _answer(found: dict[str, Any]) -> int:
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()
    return 0


def main() -> int:
    given = json.loads(sys.argv[1])
    cell = given.pop("cell")
    folder = Path(given.pop("folder"))
    folder.mkdir(parents=True, exist_ok=True)
    system = given.pop("system")
    if system != "holdfast zlib-ng":
        sys.modules["zlib_ng"] = None  # type: ignore[assignment]  # the queue is measured as the standard library has it
    found = CELLS[cell](system if cell in BY_NAME else system_named(system), folder, **given)
    # Nothing is closed on the way out: what a peer does at its exit belongs to no measurement.
    os._exit(_answer(found))


if __name__ == "__main__":
    sys.exit(main())
