"""A Delta table as the output of a job: one commit adds files, removes files and moves the offset.

Exactly once, by crash. (1) Before the commit: no reader sees the files; the step runs again. (2) After it: the offset
says so. (3) During the commit with its response lost: the offset, read again, decides. Of two runners of one step Delta
refuses the second commit. In a local directory Delta does not fsync its log: a power cut may lose the newest commits,
and their offset with them, so the steps run again.

Source: the Delta transaction protocol, "Transaction Identifiers"; PROTOCOL.md of the delta-io project.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal
from urllib.parse import unquote

import pyarrow as pa
import structlog
from deltalake import DeltaTable, Field
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, CommitProperties, RemoveAction, Transaction
from pyspark.sql import SparkSession

from holdfast.errors import Conflict, CorruptData, Unavailable
from holdfast.segments.index import FORMAT
from holdfast.segments.table_location import TableLocation, table_failure, table_location
from holdfast.spark.log.increments import Increment, next_increment
from holdfast.spark.log.runner import PipelineJob, StepResult, require_vacuum_hours
from holdfast.spark.runtime.refusals import bad_configuration
from holdfast.spark.runtime.table_files import Removed, TableFile, copy_files, remove_files
from holdfast.spark.source.chain import log_head

log = structlog.get_logger("holdfast.spark.pipeline")

DELTA_TRIES: Final = 5
SEQ_MARK: Final = "seq"
"""The mark with the sequence number of a live object at or below the offset, from which the next look goes on."""


@dataclass(frozen=True, slots=True)
class TableState:
    """What a table holds at one of its versions. ``offset`` is the log version that it has reached, of ``application``.

    ``rows`` is the choice of rows and types that the table is made with; None for a job without a choice.
    """

    table: DeltaTable
    application: str
    offset: int
    settings: Mapping[str, int]
    rows: Mapping[str, object] | None = None

    def mark(self, name: str) -> int:
        """A mark that commits have moved, 0 before the first."""
        return self.table.transaction_version(f"{self.application}/{name}") or 0

    def require(self, offset: int) -> None:
        """Raise Conflict unless the table is at ``offset``."""
        if self.offset != offset:
            raise Conflict("another runner has moved the table on", offset=self.offset, expected=offset)

    def files(self, partition: Mapping[str, str] | None = None, *, with_stats: bool = False) -> list[TableFile]:
        """The live files, those with these values of partition columns. Cost: one row each on the driver."""
        columns = self.table.metadata().partition_columns
        flat = pa.table(self.table.get_add_actions(flatten=True))
        if not with_stats:
            flat = flat.select([name for name in flat.column_names if not name.startswith(("min.", "max."))])
        files = [_table_file(row, columns, _stats(row) if with_stats else "") for row in flat.to_pylist()]
        wanted = (partition or {}).items()
        return [file for file in files if all(file.partition[name] == value for name, value in wanted)]


def _table_file(row: Mapping[str, Any], columns: Sequence[str], stats: str) -> TableFile:
    """``columns``: those of the partition, in the order that their folders have."""
    named = {name: row[f"partition.{name}"] for name in columns}
    # The Delta log writes booleans in lower case.
    texts = {name: str(each).lower() if isinstance(each, bool) else str(each) for name, each in named.items()}
    return TableFile(unquote(row["path"]), row["size_bytes"], row["num_records"] or 0, texts, stats)


def _stats(row: Mapping[str, Any]) -> str:
    """The statistics of a file that Holdfast wrote: its bounds are numbers."""
    prefixes = {"minValues": "min.", "maxValues": "max.", "nullCount": "null_count."}
    parts = {
        part: {
            name.removeprefix(prefix): row[name]
            for name in row
            if name.startswith(prefix) and isinstance(row[name], int)
        }
        for part, prefix in prefixes.items()
    }
    return json.dumps({"numRecords": row["num_records"], **parts})


class DeltaOutput:
    """The table of one pipeline, made of one log. Methods block; each opens the table as it is now."""

    def __init__(
        self, location: TableLocation, pipeline: str, schema: pa.Schema, partition_by: tuple[str, ...] = ()
    ) -> None:
        self.location = location
        self.pipeline = pipeline
        self._schema = schema
        self._partition_by = list(partition_by)
        self._application = f"holdfast/{pipeline}"
        self._rows: Mapping[str, object] | None = None

    def use(self, schema: pa.Schema, rows: Mapping[str, object] | None) -> None:
        """Take another schema, and the choice of rows that a new table stores (see ``TableState``)."""
        self._schema, self._rows = schema, rows

    def state(self, log_id: str) -> TableState | None:
        """The table as it is now, None when there is none. Makes nothing. Raises as ``open``."""
        table = self.find()
        return None if table is None else self._checked(table, log_id)

    def open(self, log_id: str, settings: Mapping[str, int]) -> TableState:
        """The table as it is, made with these ``settings`` when it is absent; the settings of an existing one stay.

        Raises: InvalidRequest (another log's, another pipeline's or a foreign table), Unavailable.
        After a crash: there is no table, or an empty one at offset 0.
        """
        failure: Exception | None = None
        for _ in range(DELTA_TRIES):
            table = self.find()
            if table is not None:
                return self._checked(table, log_id)
            try:
                self._create(log_id, settings)
            except (DeltaError, OSError) as error:
                # Another runner may have created it meanwhile; the next look shows it.
                failure = error
        raise Unavailable(
            "the table cannot be made", url=self.location.uri, cause="" if failure is None else _line(failure)
        ) from failure

    def find(self) -> DeltaTable | None:
        """The table as it is now, None when there is none. Raises: CorruptData (a file of its log is missing),
        Unavailable."""
        try:
            return self._found()
        except CorruptData:
            # The files of the log may have gone between a listing and a read: a clean-up removes them in that order.
            return self._found()

    def _found(self) -> DeltaTable | None:
        try:
            return DeltaTable(self.location.uri, storage_options=dict(self.location.options))
        except TableNotFoundError:
            return None
        except (DeltaError, OSError) as error:
            raise table_failure(error, self.location.uri, "the table cannot be read") from error

    def _create(self, log_id: str, settings: Mapping[str, int]) -> None:
        about: dict[str, object] = {"pipeline": self.pipeline, "log_id": log_id, "format": FORMAT, **settings}
        if self._rows is not None:
            about["rows"] = dict(self._rows)
        DeltaTable.create(
            self.location.uri,
            self._schema,
            mode="error",
            partition_by=self._partition_by,
            name=self.pipeline,
            description=json.dumps({"holdfast": about}),
            storage_options=dict(self.location.options),
            commit_properties=CommitProperties(app_transactions=[Transaction(self._application, 0)]),
        )

    def _checked(self, table: DeltaTable, log_id: str) -> TableState:
        about = _about(table)
        made_in = about.get("format")
        if about.get("pipeline") != self.pipeline or not isinstance(made_in, int):
            raise bad_configuration(
                f"there is another table here, which {self.pipeline} did not make",
                hint="give each pipeline a place of its own",
                url=self.location.uri,
                made_by=about.get("pipeline"),
            )
        if made_in != FORMAT:
            raise bad_configuration(
                "another version of Holdfast made this table",
                hint="run the pipeline with that version, or begin a new table",
                url=self.location.uri,
                format=made_in,
                format_of_this_version=FORMAT,
            )
        if about.get("log_id") != log_id:
            raise bad_configuration(
                "the table was made of another log",
                hint="give each log a table of its own; versions of two logs cannot be compared",
                url=self.location.uri,
                table_log_id=about.get("log_id"),
                log_id=log_id,
            )
        offset = table.transaction_version(self._application)
        if offset is None:
            raise CorruptData("the table has lost its offset", url=self.location.uri)
        rows = about.get("rows")
        return TableState(
            table,
            self._application,
            offset,
            {name: value for name, value in about.items() if isinstance(value, int) and name != "format"},
            rows if isinstance(rows, dict) else None,
        )

    def vacuum(self, log_id: str, hours: int) -> Removed:
        """Remove the files that commits of at least ``hours`` ago replaced: versions that old cannot be read any more.

        Other files are not touched: a runner may be about to commit them. Delta forgets the names of files that
        were replaced more than 168 hours ago, so these stay. Raises: as ``open``. After a
        crash: some of the files are removed, and the next call removes the rest.
        """
        require_vacuum_hours(hours)
        table = self.find()
        if table is None:
            return Removed(0, 0)
        self._checked(table, log_id)
        try:
            named = table.vacuum(retention_hours=hours, dry_run=True, enforce_retention_duration=False)
            live = pa.table(table.get_add_actions(flatten=True))["path"].to_pylist()
        except (DeltaError, OSError) as error:
            raise Unavailable("the table cannot be read", url=self.location.uri, cause=_line(error)) from error
        return remove_files(self.location.url, set(named) - {unquote(path) for path in live})

    def commit(
        self,
        state: TableState,
        through: int,
        added: Iterable[TableFile],
        removed: Iterable[TableFile],
        *,
        marks: Mapping[str, int] | None = None,
        mode: Literal["append", "overwrite"] = "append",
    ) -> None:
        """Bring the table from ``state`` to log version ``through``: files, offset and ``marks`` (versions by name).

        ``overwrite`` also removes every file so far. Raises: Conflict when another runner has moved the table on from
        ``state`` first, Unavailable when the commit did not happen, InvalidRequest when the files are not where the
        table is. After a crash: all of it or nothing.
        """
        now_ms = time.time_ns() // 1_000_000
        actions: list[AddAction | RemoveAction] = []
        for file in added:
            if file.path:
                self._require_here(file.path, file.size)
                actions.append(AddAction(file.path, file.size, dict(file.partition), now_ms, True, file.stats))
        actions += [RemoveAction(old.path, True, now_ms, old.size, dict(old.partition)) for old in removed]
        properties = CommitProperties(
            custom_metadata={"holdfast.pipeline": self.pipeline, "holdfast.version": str(through)},
            app_transactions=[
                Transaction(self._application, through),
                *(Transaction(f"{self._application}/{name}", version) for name, version in (marks or {}).items()),
            ],
        )
        try:
            state.table.create_write_transaction(
                actions, mode, self._schema, self._partition_by, commit_properties=properties
            )
        except (DeltaError, OSError) as error:
            self._raise_outcome(state, through, error)

    def add_columns(self, state: TableState, columns: Sequence[pa.Field]) -> TableState:
        """Add columns, which are null in the files that exist; the state after it.

        Raises: Conflict when another runner has moved the table on, Unavailable when the table did not take them. After
        a crash: the table may have the columns and no row that uses them, which changes nothing for a reader.
        """
        try:
            state.table.alter.add_columns([Field.from_arrow(each) for each in columns])
        except (DeltaError, OSError) as error:
            raise Unavailable(
                "the table did not take new columns", url=self.location.uri, cause=_line(error)
            ) from error
        return self._after_a_change(state)

    def widen(self, state: TableState, spark: SparkSession) -> TableState:
        """Rewrite every file with the wider types that ``use`` has given; the state after it. The rows are the same.

        Raises: Conflict when another runner has moved the table on, Unavailable; what tasks raise, as Spark's error.
        Cost: the table is read and written once, by tasks. After a crash: the table has the old types or the new ones.
        """
        files = state.files(with_stats=True)
        log.info("table_types_widen", pipeline=self.pipeline, files=len(files), bytes=sum(file.size for file in files))
        copies = copy_files(spark, self.location.url, files, self._schema) if files else []
        self.commit(state, state.offset, copies, (), mode="overwrite")
        return self._after_a_change(state)

    def _after_a_change(self, state: TableState) -> TableState:
        """The table after a commit that moved no offset. Such a commit may come after a step of another runner."""
        moved = self.state(str(_about(state.table)["log_id"]))
        assert moved is not None, "the table has just been written"
        moved.require(state.offset)
        return moved

    def _require_here(self, path: str, size: int) -> None:
        """Raise if a file that a task has written into a directory is not in that directory here."""
        if not self.location.url.lower().startswith("file:"):
            return
        try:
            size_here = os.stat(os.path.join(self.location.uri, path)).st_size
        except FileNotFoundError:
            size_here = None
        if size_here != size:
            raise bad_configuration(
                "a file that a task has written is not in the table's directory",
                hint="a table in a directory: every worker must see that same directory under the same path",
                path=path,
                size=size,
                found=size_here,
            )

    def _raise_outcome(self, state: TableState, through: int, error: Exception) -> None:
        """Raise what a failed commit came to, by the offset that the table has now."""
        table = self.find()
        offset = None if table is None else table.transaction_version(self._application)
        if offset == state.offset:
            raise Unavailable("the table did not take the commit", url=self.location.uri, cause=_line(error)) from error
        raise Conflict(
            "another runner has moved the table on",
            url=self.location.uri,
            offset=offset,
            expected=state.offset,
            wanted=through,
            cause=_line(error),
        ) from error


def _about(table: DeltaTable) -> dict[str, object]:
    try:
        described = json.loads(table.metadata().description or "{}")
    except ValueError:
        return {}
    about = described.get("holdfast") if isinstance(described, dict) else None
    return about if isinstance(about, dict) else {}


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]


class DeltaJob(PipelineJob):
    """A job that keeps one Delta table of one log. A subclass says what a step makes of an increment."""

    schema: ClassVar[pa.Schema]
    partition_by: ClassVar[tuple[str, ...]] = ()
    begins_with_snapshot: ClassVar[bool] = False
    """Whether a new table of a log that was truncated begins with a snapshot of the log."""

    def __init__(self, spark: SparkSession, log_url: str, output_url: str) -> None:
        self._spark = spark
        self._log_url = log_url
        self._output = DeltaOutput(table_location(output_url), self.name, self.schema, self.partition_by)
        self._log_id = ""
        self._state: TableState | None = None
        """The table as the last look for its offset found it."""

    def log_id(self) -> str:
        """As ``PipelineJob``."""
        return log_head(self._log_url).log_id

    def offset(self, log_id: str) -> int:
        """As ``PipelineJob``."""
        self._log_id = log_id
        self._state = self._output.state(log_id)
        return 0 if self._state is None else self._state.offset

    def _mark(self, name: str) -> int:
        return 0 if self._state is None else self._state.mark(name)

    def look(self, after: int, until: int | None, step_bytes: int) -> Increment:
        """As ``PipelineJob``."""
        return next_increment(
            self._log_url,
            after,
            until=until,
            step_bytes=step_bytes,
            begins_with_snapshot=self.begins_with_snapshot,
            near_seq=self._mark(SEQ_MARK),
        )

    def vacuum(self, hours: int) -> Removed:
        """As ``PipelineJob``."""
        self._log_id = self._log_id or self.log_id()
        return self._output.vacuum(self._log_id, hours)

    def _open(self, increment: Increment, settings: Mapping[str, int] | None = None) -> TableState:
        """The table at the start of the increment. Raises: Conflict when another runner has moved it."""
        state = self._output.open(self._log_id, settings or {})
        state.require(increment.after)
        return state

    def _commit(
        self,
        state: TableState,
        increment: Increment,
        added: Sequence[TableFile],
        removed: Sequence[TableFile] = (),
        marks: Mapping[str, int] | None = None,
    ) -> StepResult:
        marks = {**(marks or {}), **({SEQ_MARK: increment.last_seq} if increment.last_seq else {})}
        self._output.commit(state, increment.through, added, removed, marks=marks)
        return StepResult(
            rows=sum(file.rows for file in added),
            files_added=len(added),
            files_removed=len(removed),
            bytes_written=sum(file.size for file in added),
        )
