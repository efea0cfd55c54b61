"""The rows of a load are fixed before Spark sorts them: a retry, or a later run, of the load has the same ones.

Spark computes a partition again when a task or a worker fails, and an input with random values, a function or a shuffle
in it may then have other rows. So the tasks that compute the input keep its rows as objects next to the log
(``sink.stage``), and the driver creates one manifest when all of them are done. From then on the load reads what the
manifest names. A run that finds the manifest of its name does not look at its input. Each try of a task has object
names of its own, so tries do not mix. A crash before the manifest leaves objects that nothing reads; one after it
leaves the rows for the next run of the name.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import msgspec
import pyarrow as pa
import structlog
from pyspark.sql import DataFrame

from holdfast.errors import Code, HoldfastError, NotFound
from holdfast.spark.runtime.refusals import bad_configuration
from holdfast.spark.runtime.session import task_errors
from holdfast.spark.runtime.store_thread import StoreThread
from holdfast.spark.runtime.tasks import in_tasks, running_task
from holdfast.spark.sink.identity import token_of
from holdfast.spark.sink.stage import (
    ObjectStage,
    StagedPart,
    StagedPartition,
    TryParts,
    WriteManifest,
    find_manifest,
    fix_manifest,
    rows_of,
)

PARTS_IN_A_TASK: Final = 8
"""About 32 MiB."""
FOLDER: Final = "load"
UNNAMED: Final = "loads without a name"

log = structlog.get_logger("holdfast.spark.load")


@dataclass(frozen=True, slots=True)
class FixedRows:
    """The rows of one load, in the log's store at ``url``. ``name`` is the load's, None where its input names it."""

    url: str
    name: str | None
    write: str

    @staticmethod
    def of(url: str, name: str | None) -> FixedRows:
        """Those of the load with this name; without one, of this run alone."""
        return FixedRows(url, name, secrets.token_hex(16) if name is None else token_of("load", name))

    @property
    def _application(self) -> str:
        return UNNAMED if self.name is None else f"load {self.name}"

    def found(self) -> WriteManifest | None:
        """What an earlier run has fixed. Raises: CorruptData, Unavailable."""
        with StoreThread(self.url) as thread:
            return find_manifest(ObjectStage(thread, FOLDER, self._application), self.write)

    def fix(self, requests: DataFrame) -> tuple[WriteManifest, bool]:
        """Keep the rows of ``requests``, durably. False: another run of the name was first, and its rows are those.

        Raises: Unavailable, and what computing the input raises.

        Cost: the input is computed once; a request for each 4 MiB. Memory: three such parts in a task; about 100
        bytes for each part on the driver.
        """
        url, application, write = self.url, self._application, self.write

        def keep(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            number = running_task().partitionId()
            name = f"{number:06d}-{secrets.token_hex(8)}"
            with (
                StoreThread(url) as thread,
                TryParts(ObjectStage(thread, FOLDER, application), write, name) as parts,
            ):
                for _ in parts.kept(batches):
                    pass
                own = msgspec.json.encode(StagedPartition(number, parts.whole()))
            yield pa.RecordBatch.from_pydict({"kept": [own]})

        with task_errors():
            parts_of_tasks = requests.mapInArrow(keep, "kept binary").toArrow()["kept"].to_pylist()
        with StoreThread(url) as thread:
            staged = [msgspec.json.decode(each, type=StagedPartition) for each in parts_of_tasks]
            manifest = fix_manifest(ObjectStage(thread, FOLDER, application), write, staged)
        own = {part.name for each in staged for part in each.parts}
        return manifest, own == {part.name for each in manifest.partitions for part in each.parts}

    def read(self, manifest: WriteManifest, like: DataFrame) -> DataFrame:
        """The rows that ``manifest`` names, in the columns of ``like``. Tasks raise InvalidRequest for other columns,
        NotFound (``stage_lost``) and CorruptData."""
        url, application, write, columns = self.url, self._application, self.write, like.columns

        def read(own: Iterator[StagedPart]) -> Iterator[pa.RecordBatch]:
            with StoreThread(url) as thread:
                stage = ObjectStage(thread, FOLDER, application)
                for rows in _rows_of(stage, write, StagedPartition(0, tuple(own))):
                    if rows.schema.names != columns:
                        raise bad_configuration(
                            "a load of this name has begun with other columns",
                            hint="finish it with its own input, or give this one a name of its own",
                            began_with=", ".join(rows.schema.names),
                            now=", ".join(columns),
                        )
                    yield rows

        parts = [part for each in manifest.partitions for part in each.parts]
        return in_tasks(like.sparkSession, parts, read, like.schema, max(1, len(parts) // PARTS_IN_A_TASK))

    def remove(self) -> None:
        """Remove the rows, which no run needs any more, and what older runs without a name have left."""
        try:
            with StoreThread(self.url) as thread:
                ObjectStage(thread, FOLDER, self._application).remove_abandoned(self.write)
        except HoldfastError as error:  # the load is done; a later one removes what stays
            log.warning("stage_not_removed", application=self._application, error=error.statement())


def _rows_of(stage: ObjectStage, write: str, named: StagedPartition) -> Iterator[pa.RecordBatch]:
    try:
        yield from rows_of(stage, write, named)
    except NotFound as error:
        raise NotFound(
            "the rows of this load are gone, and some of them may be committed",
            code=Code.STAGE_LOST,
            hint="its record in the log says how many requests are done; load the rest under another name",
        ) from error
