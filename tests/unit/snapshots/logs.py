"""Small random logs for the laws of snapshots, and the state that a log has at a version."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from random import Random

from tests.unit.commit.builders import genesis, record, stored, takeover

from holdfast.commit.format.batch import (
    Header,
    LoggedTransaction,
    StoresMode,
    encode_body,
    encode_object,
    object_name,
)
from holdfast.commit.format.transaction import Delete, JobChange, Operation, RangeDelete, Write
from holdfast.objects.memory import MemoryObjects
from holdfast.sealed import encode_sealed
from holdfast.stores import checkpoint_objects as checkpoint
from holdfast.values import LogId, Version
from holdfast.view.storage import Layer, Row

KEYS = 12


def operations(draw: Random) -> list[Operation]:
    """One to three changes of a few keys."""
    found: list[Operation] = []
    for _ in range(draw.randint(1, 3)):
        key = b"key/%02d" % draw.randrange(KEYS)
        match draw.randrange(6):
            case 0:
                found.append(Delete(key))
            case 1:
                found.append(RangeDelete(key, draw.choice((None, key + b"/", b"key/%02d" % KEYS))))
            case _:
                found.append(Write(key, draw.randbytes(draw.randrange(30))))
    return found


def job_changes(version: int) -> tuple[JobChange, ...]:
    """Changes of records of jobs, in every second transaction or so: the names are those of keys, on purpose."""
    draw = Random(version)
    names = draw.sample(("key/01", "key/01/00", "key/01/01", "key/02", "key/011"), draw.choice((0, 0, 1, 2)))
    return tuple(JobChange(name, draw.choice((None, b"", b"%d" % version))) for name in sorted(names))


def logged(version: int, made: list[Operation]) -> LoggedTransaction:
    return LoggedTransaction(version, None, None, made, [], jobs=job_changes(version))


class RandomLog:
    """A log in ``objects`` that grows by batches and changes of leader; ``transactions`` are all that it holds."""

    def __init__(self, draw: Random, objects: MemoryObjects) -> None:
        self._draw = draw
        self.objects = objects
        self.claim = self.head = genesis()
        self.transactions: list[tuple[int, list[Operation]]] = []
        objects.create(object_name(self.head.slot), encode_object(self.head, b""))

    def mark_truncated(self, through: int) -> None:
        """The batch with which a leader says that it truncated."""
        header = record(self.head, self.claim, truncated_through=Version(through))
        self.objects.create(object_name(header.slot), stored(header))
        self.head = header

    @property
    def log_id(self) -> str:
        return self.head.log_id.hex()

    def grow(self, batches: int) -> None:
        for number in range(batches):
            if self._draw.random() < 0.15:
                self.claim = self.head = takeover(self.head, f"leader-{number}")
                self.objects.create(object_name(self.head.slot), encode_object(self.head, b""))
                continue
            first = self.head.last_version + 1
            versions = [first + 2 * index for index in range(self._draw.randint(1, 4))]
            batch = [(version, operations(self._draw)) for version in versions]
            body = encode_body([logged(version, made) for version, made in batch])
            header = replace(record(self.head, self.claim, *versions), body_length=len(body))
            self.objects.create(object_name(header.slot), encode_object(header, body))
            self.transactions += batch
            self.head = header

    def state(self, version: int) -> list[Row]:
        """What every key is at ``version``, by key."""
        layer = Layer(is_ground=True)
        for at, made in self.transactions:
            if at <= version:
                layer.apply(at, made)
        return [(key, *layer.changes[key]) for key in layer.walk(b"", None)]  # type: ignore[misc]

    def jobs(self, version: int) -> list[Row]:
        """What the record of every job is at ``version``, by name."""
        records: dict[str, tuple[bytes, int]] = {}
        for at, _ in self.transactions:
            for change in job_changes(at) if at <= version else ():
                if change.value is None:
                    below = [name for name in records if name == change.name or name.startswith(change.name + "/")]
                    for name in below:
                        del records[name]
                else:
                    records[change.name] = change.value, at
        return [(name.encode(), *records[name]) for name in sorted(records)]


class LogWithStores(RandomLog):
    """A log with its stores in it. What the stores do does not matter here, so it has no entries."""

    def __init__(self, draw: Random, objects: MemoryObjects, log_id: LogId) -> None:
        super().__init__(draw, MemoryObjects())
        self.objects = objects
        self.claim = self.head = replace(genesis(), stores_mode=StoresMode.LOG, log_id=log_id)
        objects.create(object_name(self.head.slot), encode_object(self.head, b""))

    def _put(self, header: Header, body: bytes, newest: int) -> None:
        header = replace(header, stores_mode=StoresMode.LOG, newest_transaction=Version(newest))
        self.objects.create(object_name(header.slot), encode_object(header, body))
        self.head = header

    def grow(self, batches: int) -> None:
        for number in range(batches):
            if number % 7 == 6:
                self._put(takeover(self.head, f"leader-{number}"), b"", self.head.last_transaction_version)
                self.claim = self.head
                continue
            first = self.head.last_version + 1
            batch = [(version, operations(self._draw)) for version in (first, first + 2)]
            body = encode_body([logged(version, made) for version, made in batch])
            header = record(self.head, self.claim, *(version for version, _ in batch), body_length=len(body))
            self._put(header, body, first + 2)
            self.transactions += batch

    def mark_truncated(self, through: int) -> None:
        header = record(self.head, self.claim, truncated_through=Version(through))
        self._put(header, b"", self.head.last_transaction_version)

    def make_checkpoint(self, contents: Mapping[str, bytes]) -> None:
        """A checkpoint of the stores at the end of the log."""
        files = [checkpoint.File(name, len(data), sha256(data).hexdigest()) for name, data in contents.items()]
        for file in files:
            self.objects.create(file.key, contents[file.name])
        made = checkpoint.CheckpointManifest(format=1, log_id=self.log_id, version=self.head.last_version, files=files)
        self.objects.create(checkpoint.manifest_key(made.version), encode_sealed(made))
