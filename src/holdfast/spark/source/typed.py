"""A scan with typed columns: the bytes of each record batch become columns in the task that reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pyarrow as pa

from holdfast.spark.options import ReadOptions
from holdfast.spark.typed.rows import Choice, typed_batch

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
