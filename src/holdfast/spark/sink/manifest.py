"""The manifest of a write: which staged objects are its rows, in which order. From then on nothing else is.

The driver creates it when every task has staged. The first manifest of a write stays, also of two drivers. Only what it
names is sent: a run that finds one does not look at its own rows. So it does not matter in which order rows come when
they are computed again, nor how many tries a task had.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Final, Literal

import msgspec
import pyarrow as pa

from holdfast.errors import Code, CorruptData, NotFound
from holdfast.spark.sink.stage import Stage

NAME: Final = "manifest"


class StagedPart(msgspec.Struct, frozen=True, array_like=True):
    """One object: an Arrow IPC stream with ``rows`` rows. Shape: ``hash`` is the BLAKE2b-128 of its bytes."""

    name: str
    rows: int
    hash: str


class Partition(msgspec.Struct, frozen=True):
    """The rows of one partition, as one try of its task staged them. The numbers are those of ``Sent``."""

    partition: int
    parts: tuple[StagedPart, ...] = ()
    transactions: int = 0
    total: int = 0

    @property
    def digest(self) -> str:
        """What names these rows and their order: the BLAKE2b-128 of the parts' hashes."""
        return hash_of_part("".join(part.hash for part in self.parts).encode())


class WriteManifest(msgspec.Struct, frozen=True):
    """What a write is. Shape: ``partitions`` ascending, those with rows."""

    partitions: tuple[Partition, ...]
    format: Literal[1] = 1


def hash_of_part(data: bytes) -> str:
    """The ``hash`` of a part."""
    return blake2b(data, digest_size=16).hexdigest()


def fix(stage: Stage, write: str, staged: Sequence[Partition]) -> WriteManifest:
    """The manifest of a write: of these partitions, unless there is one already. After a crash it is there."""
    wanted = sorted((each for each in staged if each.parts), key=lambda each: each.partition)
    manifest = WriteManifest(tuple(wanted))
    if stage.put(write, NAME, msgspec.json.encode(manifest)):
        return manifest
    found = find(stage, write)
    if found is None:
        raise stage_lost(write, NAME)
    return found


def find(stage: Stage, write: str) -> WriteManifest | None:
    """The manifest of a write, None where its rows are not fixed. Raises: CorruptData."""
    data = stage.get(write, NAME)
    if data is None:
        return None
    try:
        return msgspec.json.decode(data, type=WriteManifest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CorruptData("a manifest cannot be read", code=Code.CORRUPT_LOG, write=write, cause=error) from error


def rows_of(stage: Stage, write: str, partition: Partition) -> Iterator[pa.RecordBatch]:
    """The rows of a partition in their order. Memory: one part. Raises: NotFound (``stage_lost``), CorruptData."""
    for part in partition.parts:
        data = stage.get(write, part.name)
        if data is None:
            raise stage_lost(write, part.name)
        if hash_of_part(data) != part.hash:
            raise CorruptData("a staged object was changed", code=Code.CORRUPT_LOG, write=write, name=part.name)
        yield from pa.ipc.open_stream(data)


def stage_lost(write: str, name: str) -> NotFound:
    """The error where a write has sent rows, and what it still has to send is gone."""
    return NotFound(
        "the staged rows of this write are gone, and some of them may be committed",
        code=Code.STAGE_LOST,
        hint="give it up: `holdfast spark give-up` lists what is committed; then write the rest under another token",
        write=write,
        name=name,
    )
