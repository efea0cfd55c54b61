"""What a load keeps in the log about itself: a record under a key of its own, written by every batch.

Owns: the record's key and bytes, and finding the newest one. Does not own: when it is written (``load``).

Key: ``spark/load/{name}``. Value, JSON: ``format`` 1; ``input`` and ``window``, which name what is loaded; ``requests``
in all; ``through``, how many of them are settled by this batch and those before it; ``base``, that of the first reign;
``reigns``: for each leader that wrote a part, the ordinal before its first and its base; ``cuts``: after how many
requests the conflict window began anew, because others had written to the log.

Valid when: it decodes to these types. Anything else under the key raises CorruptData.
"""

from __future__ import annotations

from typing import Final

import msgspec
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  the name that every Spark program uses

from holdfast.commit.format.batch import FIRST_SLOT, Header, ItemKind, Kind, object_name, read_body_table
from holdfast.commit.reading.reader import read_header
from holdfast.errors import Code, CorruptData
from holdfast.objects.port import ObjectStore
from holdfast.spark.log.task_errors import task_errors

__all__ = ["LoadProgress", "decode_progress", "newest_nearby", "newest_of_log", "progress_key"]

LOOK_BACK_OBJECTS: Final = 64


class LoadProgress(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How far a load has come."""

    input: str
    window: int | None
    requests: int
    through: int
    base: int
    reigns: tuple[tuple[int, int], ...]
    cuts: tuple[int, ...] = ()
    format: int = 1

    def encode(self) -> bytes:
        """The bytes of the record."""
        return msgspec.json.encode(self)


_DECODER: Final = msgspec.json.Decoder(LoadProgress)


def progress_key(name: str) -> bytes:
    """The key of a load's record."""
    return f"spark/load/{name}".encode()


def decode_progress(data: bytes, key: bytes) -> LoadProgress:
    """Raises: CorruptData."""
    try:
        return _DECODER.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CorruptData(
            "key holds something that no load wrote", code=Code.CORRUPT_LOG, key=key.decode("utf-8", "replace")
        ) from error


async def newest_nearby(store: ObjectStore, claim: Header, key: bytes) -> tuple[bytes | None, bool, bool]:
    """The newest value written to ``key`` in the objects before ``claim``, whether the look was far enough to tell, and
    whether others have committed since.

    A load that was interrupted is among the last to have written, so a few objects are enough as a rule.
    """
    header = claim
    others = False
    for _ in range(LOOK_BACK_OBJECTS):
        if header.slot == FIRST_SLOT:
            return None, True, others
        before = await read_header(store, header.prev)
        if before is None:
            return None, True, others
        header = before
        if header.kind is Kind.DATA and header.transactions:
            table = read_body_table(await store.read(object_name(header.slot)), header)
            kinds, keys, values = (table[name].to_pylist() for name in ("kind", "key", "value"))
            for kind, name, value in zip(reversed(kinds), reversed(keys), reversed(values), strict=True):
                if kind == ItemKind.WRITE and name == key:
                    return value, True, others
            others = True
    return None, False, True


def newest_of_log(spark: SparkSession, url: str, key: bytes) -> bytes | None:
    """The newest value written to ``key`` anywhere in the log. Cost: a scan of the log, by tasks."""
    rows = spark.read.format("holdfast").option("url", url).option("columns", "version,kind,key,value").load()
    written = rows.where((F.col("key") == F.lit(key)) & (F.col("kind") == "write"))
    with task_errors():
        row = written.agg(F.max_by("value", "version")).first()
    return None if row is None or row[0] is None else bytes(row[0])
