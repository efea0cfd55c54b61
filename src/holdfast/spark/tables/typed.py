"""The part of a job that chooses rows and gives them types, with a table of quarantine for rows that do not fit.

The quarantine is a Delta table at the place of the output with ``-quarantine`` after its name, made when the first row
goes there. Exactly once, by crash: a step commits the quarantine first, with its own offset, and then the table. (1)
Before the first commit: the step runs again. (2) Between the two: the step runs again, perhaps over other versions, and
rows up to the offset of the quarantine are not written there again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Final, TypeAlias

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from holdfast.segments.table_location import table_location
from holdfast.spark.log.delta_output import DeltaJob, DeltaOutput, TableState
from holdfast.spark.log.increments import Increment, read_increment
from holdfast.spark.log.runner import StepResult
from holdfast.spark.runtime.refusals import bad_configuration
from holdfast.spark.runtime.table_files import TableFile, file_rows, write_table
from holdfast.spark.typed.ddl import parse_schema
from holdfast.spark.typed.decode import Format, Unfit, nullable
from holdfast.spark.typed.infer import infer_type, merged
from holdfast.spark.typed.rows import Choice, decode_rows, require_fit
from holdfast.spark.typed.table import (
    QUARANTINE_SCHEMA,
    ROWS_DEFAULT,
    Layout,
    RowOptions,
    choice_of,
    fitting,
    grown,
    identity_of,
    needs_schema,
    quarantined,
    require_identity,
    typing_of,
    value_type_of,
)

QUARANTINED: Final = {"quarantine": "true"}
"""The partition by which the driver tells the files of the quarantine from those of the table."""
_SAMPLE_COLUMNS: Final = "kind,key,end,value"


def quarantine_url(output_url: str) -> str:
    """Where the quarantine of the table at ``output_url`` is.

    >>> quarantine_url("s3://lake/flights/?region=eu")
    's3://lake/flights-quarantine?region=eu'
    """
    place, mark, query = output_url.partition("?")
    return f"{place.rstrip('/')}-quarantine{mark}{query}"


@dataclass(frozen=True, slots=True)
class TypedStep:
    """One step of a job: which rows it takes and how. It is copied into the tasks, so it holds plain values.

    ``layout`` None: keys and values stay bytes. Rows up to version ``quarantined_through`` are in the quarantine.
    """

    choice: Choice
    layout: Layout | None = None
    quarantine: str = ""
    quarantined_through: int = 0

    def chosen(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The wanted operations."""
        for batch in batches:
            rows = self.choice.of(batch)
            if rows.num_rows:
                yield rows

    def split(self, operations: pa.Table, plain: pa.Table) -> tuple[pa.Table, list[pa.Table]]:
        """The rows of the table from its ``plain`` rows, which stand for these operations, and rows for the quarantine.

        Raises: InvalidRequest for a misfit, with the policy ``fail``.
        """
        assert self.layout is not None, "only a typed table splits rows"
        columns = decode_rows(operations, self.layout.typing)
        if self.layout.typing.unfit is Unfit.FAIL:
            require_fit(operations, columns)
        if self.layout.needs_keys and columns.key.null_count:
            require_fit(operations, replace(columns, misfits=[each for each in columns.misfits if each[0] == "key"]))
        if not columns.misfits or self.layout.typing.unfit is not Unfit.QUARANTINE:
            return self.layout.rows(plain, columns), []
        aside = quarantined(operations, columns, self.quarantined_through)
        rows, decoded = fitting(operations.num_rows, columns)
        return self.layout.rows(plain.take(rows), decoded), [aside] if aside.num_rows else []

    def put_aside(self, rows: Sequence[pa.Table]) -> list[TableFile]:
        """Write rows of the quarantine as one file. Raises: Unavailable."""
        if not rows:
            return []
        return [replace(write_table(self.quarantine, pa.concat_tables(rows), {}, ("version",)), partition=QUARANTINED)]

    def feed(
        self,
        write: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]],
        batches: Iterator[pa.RecordBatch],
    ) -> Iterator[pa.RecordBatch]:
        """What ``write`` makes of the wanted operations as rows of the table, and then a file of the quarantine."""
        aside: list[pa.Table] = []

        def typed() -> Iterator[pa.RecordBatch]:
            for batch in self.chosen(batches):
                rows, unfit = self.split(table := pa.Table.from_batches([batch]), table)
                aside.extend(unfit)
                if rows.num_rows:
                    yield from rows.combine_chunks().to_batches()

        yield from write(self.chosen(batches) if self.layout is None else typed())
        if files := self.put_aside(aside):
            yield file_rows(files)


@dataclass(frozen=True, slots=True)
class BucketPart:
    """Rows that become one file of a bucket, with the values of the partition columns in addition to ``bucket``."""

    rows: pa.Table
    partition: Mapping[str, str]


Merge: TypeAlias = Callable[[pa.Table | None, pa.Table], Sequence[BucketPart]]
"""From a bucket's rows so far (None: no file yet) and its operations in log order, to its new parts."""


@dataclass(frozen=True, slots=True)
class PointedMerge:
    """A merge of plain rows, applied to a typed table: it decides by keys and versions, and values are pointers.

    Values come from the table so far, or are decoded from the operations: only those that the table then has.
    """

    step: TypedStep
    merge: Merge

    def __call__(self, current: pa.Table | None, changes: pa.Table) -> tuple[list[BucketPart], list[pa.Table]]:
        """The parts of a bucket as typed rows, each with its partition, and the rows for the quarantine."""
        layout = self.step.layout
        assert layout is not None, "only a typed table has pointers"
        held = layout.conform(layout.schema.empty_table() if current is None else current)
        count = held.num_rows
        own = {name: held[name] for name in held.column_names if name in layout.own.names}
        before = pa.table({**own, "key": layout.key_bytes(held), "value": _pointers(0, count)})
        at = changes.schema.get_field_index("value")
        pointed = changes.set_column(at, "value", _pointers(count, changes.num_rows))
        parts: list[BucketPart] = []
        aside: list[pa.Table] = []
        for part in self.merge(before, pointed):
            typed, unfit = self._filled(part.rows, held, changes)
            parts.append(BucketPart(typed, part.partition))
            aside += unfit
        return parts, aside

    def _filled(self, rows: pa.Table, current: pa.Table, changes: pa.Table) -> tuple[pa.Table, list[pa.Table]]:
        pointers = np.frombuffer(b"".join(rows["value"].to_pylist()), np.int64)
        is_new = pointers >= current.num_rows
        new, old = pa.array(np.flatnonzero(is_new)), pa.array(np.flatnonzero(~is_new))
        taken = changes.take(pa.array(pointers[is_new] - current.num_rows))
        typed, aside = self.step.split(taken, rows.take(new))
        same = rows.take(old)
        held = current.take(pa.array(pointers[~is_new]))
        columns = {
            name: same[name] if name in same.column_names and name not in ("key", "value") else held[name]
            for name in typed.column_names
        }
        return pa.concat_tables([pa.table(columns).cast(typed.schema), typed]), aside


def _pointers(first: int, count: int) -> pa.Array:
    """The numbers from ``first`` as binary values of eight bytes."""
    numbers = np.arange(first, first + count, dtype=np.int64)
    offsets = np.arange(0, 8 * (count + 1), 8, dtype=np.int32)
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(numbers)])


class TypedJob(DeltaJob):
    """A job whose table has chosen rows, and typed columns on request.

    ``rows`` chooses operations and types of columns. Raises: as ``RowOptions``.
    """

    _is_feed: ClassVar[bool] = False
    """Whether rows are operations, among them range deletes."""

    def __init__(self, spark: SparkSession, log_url: str, output_url: str, *, rows: RowOptions = ROWS_DEFAULT) -> None:
        super().__init__(spark, log_url, output_url)
        self._rows = rows
        where = quarantine_url(output_url)
        self._quarantine = DeltaOutput(table_location(where), f"{self.name}-quarantine", QUARANTINE_SCHEMA)

    def _begin(self, increment: Increment, settings: Mapping[str, int] | None = None) -> tuple[TableState, TypedStep]:
        """The table at the start of the increment, with the columns that the step needs, and the step.

        Raises: InvalidRequest when the table was made with another choice of rows, or its columns cannot become those
        that are asked for; as ``_open``.
        """
        state = self._output.state(self._log_id)
        if state is not None:
            state.require(increment.after)
            require_identity(self._rows, state.rows or {}, self._output.location.url)
        if Format.BINARY == self._rows.key_format == self._rows.value_format:
            self._output.use(self.schema, identity_of(self._rows))
            return state or self._open(increment, settings), TypedStep(choice_of(self._rows))
        before = None if state is None else value_type_of(pa.schema(state.table.schema()), self.schema.names)
        typing = typing_of(self._rows, self._value_type(increment, before))
        layout = Layout.of(self.schema, typing, is_feed=self._is_feed)
        self._output.use(layout.schema, identity_of(self._rows))
        state = state or self._open(increment, settings)
        held = {each.name: each.type for each in pa.schema(state.table.schema())}
        if any(nullable(held.get(each.name, each.type)) != nullable(each.type) for each in layout.schema):
            state = self._output.widen(state, self._spark)
        elif absent := [each for each in layout.schema if each.name not in held]:
            state = self._output.add_columns(state, absent)
        quarantine = self._quarantine.state(self._log_id)
        through = 0 if quarantine is None else quarantine.offset
        return state, TypedStep(choice_of(self._rows), layout, self._quarantine.location.url, through)

    def _value_type(self, increment: Increment, before: pa.DataType | None) -> pa.DataType | None:
        """The type of values in this step: the schema that is given, or the table's and what a sample adds to it."""
        if not needs_schema(self._rows):
            return None
        if self._rows.schema is not None:
            return grown(before, parse_schema(self._rows.schema))
        kind = before
        if self._rows.infer is not None:
            # A step without values has no columns of values yet; a later step adds them.
            kind = merged(before, self._sampled(increment, self._rows.infer)) or pa.struct([])
        if kind is None:
            raise bad_configuration(
                "no value says which columns the table has",
                hint="give a schema, for example: origin string, delay int; or infer a number of values",
                through=increment.through,
            )
        return kind

    def _sampled(self, increment: Increment, count: int) -> pa.DataType | None:
        frame = read_increment(self._spark, self._log_url, increment, _SAMPLE_COLUMNS, "write")
        chosen = frame.mapInArrow(TypedStep(choice_of(self._rows)).chosen, frame.schema).select("value").limit(count)
        return infer_type(chosen.toArrow()["value"].to_pylist(), Format(self._rows.value_format))

    def _finish(
        self,
        state: TableState,
        increment: Increment,
        written: Sequence[TableFile],
        removed: Sequence[TableFile] = (),
        marks: Mapping[str, int] | None = None,
    ) -> StepResult:
        """Commit the quarantine, and then the table."""
        aside = [replace(file, partition={}) for file in written if file.partition == QUARANTINED]
        if aside:
            quarantine = self._quarantine.open(self._log_id, {})
            if quarantine.offset < increment.through:
                self._quarantine.commit(quarantine, increment.through, aside, ())
        own = [file for file in written if file.partition != QUARANTINED]
        result = self._commit(state, increment, own, removed, marks)
        return replace(result, rows_quarantined=sum(file.rows for file in aside))
