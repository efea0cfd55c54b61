"""A scan with typed columns: the bytes of each record batch become columns in the task that reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pyarrow as pa

from holdfast.commit.format.batch import ItemKind
from holdfast.errors import Code, InvalidRequest
from holdfast.spark.options import ReadOptions
from holdfast.spark.typed.infer import infer_type
from holdfast.spark.typed.rows import Choice, Typing, typed_batch

_NEEDED = ("version", "kind", "key", "end", "value")
"""What the choice of rows, and the error for a value that does not fit, look at."""


def typed_scan(
    options: ReadOptions, read: Callable[[ReadOptions], Iterator[pa.RecordBatch]]
) -> Iterator[pa.RecordBatch]:
    """The rows that ``read`` finds for the options, with the options' columns in their types.

    Raises: InvalidRequest for a key or a value that does not fit, and what ``read`` raises. Cost: a read without types
    that wants every key is passed through.
    """
    choice = Choice(options.key_prefixes, include_system=options.include_system)
    if options.typing.is_plain and choice.is_everything:
        yield from read(options)
        return
    columns = (*options.columns, *(name for name in _NEEDED if name not in options.columns))
    for batch in read(replace(options, columns=columns)):
        rows = choice.of(batch)
        if rows.num_rows:
            yield typed_batch(rows, options.typing).select(list(options.columns))


def with_value_type(options: ReadOptions, value: pa.DataType | None) -> ReadOptions:
    """The options with the type of values, for a read that infers it: ``value``, or that of the first values.

    Raises: InvalidRequest when no value has a type or two values differ; as the read itself. Cost without ``value``:
    the plan of the read, and its first objects.
    """
    if options.infer is None:
        return options
    found = (
        value if value is not None else infer_type(_first_values(options, options.infer), options.typing.value.format)
    )
    if found is None:
        raise InvalidRequest(
            "no value says which fields values have",
            code=Code.BAD_CONFIGURATION,
            hint="give valueSchema instead of infer, for example: origin string, delay int",
            url=options.url.partition("?")[0],
        )
    return replace(options, typing=replace(options.typing, value=replace(options.typing.value, type=found)))


def _first_values(options: ReadOptions, count: int) -> list[bytes]:
    # Reading needs more modules than planning a read whose columns are known.
    from holdfast.spark.runtime.store_thread import with_store
    from holdfast.spark.source.plan import plan_read
    from holdfast.spark.source.scan import scan

    bytes_alone = replace(options, columns=_NEEDED, kinds=(ItemKind.WRITE,), typing=Typing(), segments_url=None)
    plan = with_store(options.url, lambda store: plan_read(store, bytes_alone))

    def read(asked: ReadOptions) -> Iterator[pa.RecordBatch]:
        return (batch for piece in plan.pieces for batch in scan(asked, plan.wanted, piece))

    values: list[bytes] = []
    for batch in typed_scan(bytes_alone, read):
        values += batch["value"].to_pylist()
        if len(values) >= count:
            break
    return values[:count]
