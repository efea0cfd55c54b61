"""The record that a load keeps in the log: how far it has come.

The record of the job ``load/{name}``, written by every batch. JSON: ``format`` 1; ``input`` and ``window``, which name
the input; ``requests`` in all; ``through``, how many of them this batch and those before it have finished; ``base`` of
the first leadership; ``reigns``: for each leadership that wrote a part, the ordinal before its first and its base;
``cuts``: after how many requests the conflict window was restarted, because others had written to the log.

Any other bytes raise CorruptData.
"""

from __future__ import annotations

from typing import Final

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  the name that every Spark program uses

from holdfast.commit.format.batch import FIRST_SLOT, Header, ItemKind, Kind, object_name, read_body_table
from holdfast.commit.reading.reader import read_header
from holdfast.objects.port import ObjectStore
from holdfast.spark.runtime.session import task_errors
from holdfast.spark.sink.record import decode

LOAD_LOOK_BACK_OBJECTS: Final = 64
EMPTY_LOOK_BACK_OBJECTS: Final = 1024
"""Claims, heartbeats and resign records do not count as objects; each costs a small read."""


class LoadProgress(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How far a load has come."""

    input: str
    window: int | None
    requests: int
    through: int
    base: int
    leaderships: tuple[tuple[int, int], ...] = msgspec.field(name="reigns")
    cuts: tuple[int, ...] = ()
    format: int = 1

    def encode(self) -> bytes:
        """The bytes of the record."""
        return msgspec.json.encode(self)


def job_of_load(name: str) -> str:
    """The job of a load."""
    return f"load/{name}"


def decode_progress(data: bytes, job: str) -> LoadProgress:
    """Raises: CorruptData."""
    return decode(data, job, LoadProgress)


async def newest_nearby(store: ObjectStore, claim: Header, job: str) -> tuple[bytes | None, bool, bool]:
    """The newest record of ``job`` before ``claim``, whether the search was complete, and whether others wrote since.

    An interrupted load is among the last writers, so a few objects are usually enough.
    """
    header = claim
    others = False
    looked = empty = 0
    while looked < LOAD_LOOK_BACK_OBJECTS and empty < EMPTY_LOOK_BACK_OBJECTS:
        if header.slot == FIRST_SLOT:
            return None, True, others
        before = await read_header(store, header.prev)
        if before is None:
            return None, True, others
        header = before
        if header.kind is not Kind.DATA or not header.transactions:
            empty += 1
        else:
            looked += 1
            table = read_body_table(await store.read(object_name(header.slot)), header)
            kinds, keys, values = (table[name].to_pylist() for name in ("kind", "key", "value"))
            for kind, name, value in zip(reversed(kinds), reversed(keys), reversed(values), strict=True):
                if kind == ItemKind.JOB and name == job.encode():
                    return value, True, others
            others = True
    return None, False, True


def rows_of_jobs(spark: SparkSession, url: str, prefix: str) -> DataFrame:
    """The records that jobs with this prefix wrote into the log: ``version``, ``key``, which is the name, ``value``."""
    rows = spark.read.format("holdfast").option("url", url).option("kinds", "job").option("keyPrefix", prefix)
    return rows.option("columns", "version,key,value").load()


def newest_of_log(spark: SparkSession, url: str, job: str) -> bytes | None:
    """The newest record of ``job`` anywhere in the log. Cost: a scan of the log, by tasks."""
    rows = rows_of_jobs(spark, url, job).where(F.col("key") == F.lit(job.encode()))
    with task_errors():
        row = rows.agg(F.max_by("value", "version")).first()
    return None if row is None or row[0] is None else bytes(row[0])
