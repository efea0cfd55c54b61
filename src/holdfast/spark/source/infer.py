"""A read that takes the type of its values from the first of them."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from holdfast.commit.format.batch import ItemKind
from holdfast.errors import Code, InvalidRequest
from holdfast.spark.options import ReadOptions
from holdfast.spark.source.reader import HoldfastBatchReader
from holdfast.spark.typed.infer import infer_type
from holdfast.spark.typed.rows import Typing


def with_value_type(options: ReadOptions, value: pa.DataType | None) -> ReadOptions:
    """The options with the type of values: ``value``, or that of the first ``options.infer`` values of the read.

    Raises: InvalidRequest when no value has a type or two values differ; as the read itself. Cost without ``value``:
    the plan of the read, and its first objects.
    """
    assert options.infer is not None, "the read infers its type"
    found = value
    if found is None:
        found = infer_type(_first_values(options, options.infer), options.typing.value.format)
    if found is None:
        raise InvalidRequest(
            "no value says which fields values have",
            code=Code.BAD_CONFIGURATION,
            hint="give valueSchema instead of infer, for example: origin string, delay int",
            url=options.url.partition("?")[0],
        )
    return replace(options, typing=replace(options.typing, value=replace(options.typing.value, type=found)))


def _first_values(options: ReadOptions, count: int) -> list[bytes]:
    wanted = replace(options, columns=("value",), kinds=(ItemKind.WRITE,), typing=Typing(), infer=None)
    reader = HoldfastBatchReader(wanted)
    values: list[bytes] = []
    for partition in reader.partitions():
        for batch in reader.read(partition):
            values += batch["value"].to_pylist()
            if len(values) >= count:
                return values[:count]
    return values
