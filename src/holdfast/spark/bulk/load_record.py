"""The record that a load keeps in the log: how far it has come.

The record of the job ``load/{name}``, written by every batch. JSON: ``format`` 1; ``input`` and ``window``, which name
the input; ``requests`` in all; ``through``, how many of them this batch and those before it have finished; ``base`` of
the first leadership; ``reigns``: for each leadership that wrote a part, the ordinal before its first and its base;
``cuts``: after how many requests the conflict window was restarted, because others had written to the log.

Any other bytes raise CorruptData.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from holdfast.spark.sink.record import decode


class LoadProgress(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How far a load has come."""

    input: str
    window: int | None
    requests: int
    through: int
    base: int
    leaderships: tuple[tuple[int, int], ...] = msgspec.field(name="reigns")
    cuts: tuple[int, ...] = ()
    format: Literal[1] = 1

    def encode(self) -> bytes:
        """The bytes of the record."""
        return msgspec.json.encode(self)


def job_of_load(name: str) -> str:
    """The job of a load."""
    return f"load/{name}"


def decode_progress(data: bytes, job: str) -> LoadProgress:
    """Raises: CorruptData."""
    return decode(data, job, LoadProgress)
