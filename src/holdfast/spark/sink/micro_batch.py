"""How a stream's write is named: by Spark's id of the query and the number of the micro-batch.

Tasks learn both from their context, so the sink needs no checkpoint, wherever that is. A query keeps its id in its
checkpoint: a deleted checkpoint makes another id, and a number never stands for two ranges unless a checkpoint was
put back, which the record shows by its number or by the digest of the rows.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

import msgspec
from pyspark import TaskContext

from holdfast.errors import Code, InvalidRequest

QUERY_PROPERTY: Final = "sql.streaming.queryId"
NUMBER_PROPERTY: Final = "streaming.sql.batchId"


def token_of(*parts: str) -> str:
    """32 hexadecimal digits that name what is written.

    >>> token_of("2026-01-31") == token_of("2026-01-31"), len(token_of("a", "b"))
    (True, 32)
    """
    digest = blake2b(digest_size=16)
    for part in parts:
        text = part.encode()
        digest.update(len(text).to_bytes(8, "little") + text)
    return digest.hexdigest()


class MicroBatch(msgspec.Struct, frozen=True):
    """A micro-batch. Shape: ``query`` is a UUID; ``number`` counts from 0 in a checkpoint."""

    query: str
    number: int

    @property
    def token(self) -> str:
        """The token of its write."""
        return token_of("micro-batch", self.query, str(self.number))

    def __str__(self) -> str:
        return f"micro-batch {self.number} of query {self.query}"


def running_micro_batch(context: TaskContext) -> MicroBatch:
    """The micro-batch that a task works for. Raises: InvalidRequest."""
    query, number = context.getLocalProperty(QUERY_PROPERTY), context.getLocalProperty(NUMBER_PROPERTY)
    if not query or not number:
        raise InvalidRequest(
            "a task of this stream does not know its query and micro-batch",
            code=Code.BAD_CONFIGURATION,
            hint="the sink takes streams with micro-batches: use a trigger by time or availableNow",
        )
    return MicroBatch(query, int(number))
