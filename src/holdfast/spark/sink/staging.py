"""A task's part of a write: keep the rows of its partition, and send none.

The rows are checked as they will be sent, so that a bad row fails the job before one of them is committed.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from io import BytesIO
from typing import Final, Self

import pyarrow as pa

from holdfast.errors import InternalError
from holdfast.spark.options import WriteOptions
from holdfast.spark.sink.digest import Sent
from holdfast.spark.sink.manifest import Partition, StagedPart, hash_of_part
from holdfast.spark.sink.sending import digest_rows
from holdfast.spark.sink.stage import Stage

PART_BYTES: Final = 4 << 20
"""A part closes here, so that neither a task nor the sender holds more. One row may be larger."""


def stage_partition(
    stage: Stage, options: WriteOptions, write: str, partition: int, batches: Iterable[pa.RecordBatch]
) -> tuple[Partition, Sent]:
    """Keep the rows of one partition, durably, and say what they are.

    Each try has names of its own: only one that the driver hears of counts. Raises: InvalidRequest for a row that
    cannot be sent. Cost: a request for each 4 MiB, while the next rows are read. Memory: three parts.
    """
    with TryParts(stage, write, f"{partition:06d}-{secrets.token_hex(8)}") as parts:
        sent = digest_rows(options, partition, parts.kept(batches))
        return Partition(partition, parts.whole(), sent.transactions, sent.total), sent


class TryParts:
    """The parts of one try, each kept when it is full. ``name`` is the try's own."""

    def __init__(self, stage: Stage, write: str, name: str) -> None:
        self._stage = stage
        self._write = write
        self._name = name
        self._parts: list[Future[StagedPart]] = []
        self._keeper = ThreadPoolExecutor(1, "holdfast-staging")
        self._sink = BytesIO()
        self._writer: pa.ipc.RecordBatchStreamWriter | None = None
        self._rows = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._keeper.shutdown(cancel_futures=True)

    def kept(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The same rows, each batch after it was added to a part. Raises: what an earlier part was refused with."""
        for batch in _pieces(batches):
            if self._writer is None:
                self._sink, self._rows = BytesIO(), 0
                self._writer = pa.ipc.new_stream(self._sink, batch.schema)
            self._writer.write_batch(batch)
            self._rows += batch.num_rows
            if self._sink.tell() >= PART_BYTES:
                self._close()
            yield batch

    def whole(self) -> tuple[StagedPart, ...]:
        """All parts, when each is durable. Raises: what one was refused with."""
        if self._writer is not None:
            self._close()
        return tuple(part.result() for part in self._parts)

    def _close(self) -> None:
        assert self._writer is not None, "there is an open part"
        self._writer.close()
        self._writer = None
        if self._parts:
            self._parts[-1].result()  # one waits at most, so that memory is bounded
        name = f"{self._name}-{len(self._parts):05d}"
        self._parts.append(self._keeper.submit(self._keep, name, self._sink.getvalue(), self._rows))

    def _keep(self, name: str, data: bytes, rows: int) -> StagedPart:
        if not self._stage.put(self._write, name, data):
            raise InternalError("a name drawn at random is taken", name=name)
        return StagedPart(name, rows, hash_of_part(data))


def _pieces(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of at most about a quarter of a part."""
    for batch in batches:
        if not batch.num_rows:
            continue
        count = max(1, batch.num_rows * PART_BYTES // (4 * max(batch.nbytes, 1)))
        for first in range(0, batch.num_rows, count):
            yield batch.slice(first, count)
