"""What an ingest keeps in the log about itself: a record behind each group of requests, with what they were told.

Owns: the record's key and bytes, and reading those of the newest micro-batch. Does not own: when they are written.

Key: ``spark/ingest/{name}``. Value, JSON: ``format`` 1; ``batch``, the micro-batch's number; ``first``, the place in it
of the first request of the group; ``told``, for each request of the group its code (null: committed), its version, and
its failed preconditions; ``digest``, which names the requests of the group (null: an earlier version wrote none). A
record is a transaction of its own, the last one of its batch object, so that it is durable exactly when its group is.

Valid when: it decodes to these types. Anything else under the key raises CorruptData.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Final

import msgspec
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  the name that every Spark program uses

from holdfast.commit.format.batch import FIRST_SLOT, Header, Kind, object_name
from holdfast.commit.format.transaction import Write
from holdfast.commit.reading.reader import LoggedBatch, read_header
from holdfast.errors import Code, CorruptData
from holdfast.objects.port import ObjectStore
from holdfast.spark.bulk.load_progress import newest_of_log
from holdfast.spark.bulk.parsed_requests import ParsedRequest
from holdfast.spark.log.task_errors import task_errors

__all__ = ["GroupRecord", "Told", "record_key", "records_nearby", "records_of_log", "requests_digest"]

LOOK_BACK_OBJECTS: Final = 256


class Told(msgspec.Struct, frozen=True, array_like=True):
    """What one request was told: a code or a version, and the failed preconditions with what broke them."""

    code: str | None
    version: int | None = None
    conflicts: tuple[tuple[int, int], ...] = ()


class GroupRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the requests of one group were told."""

    batch: int
    first: int
    told: tuple[Told, ...]
    digest: str | None = None
    format: int = 1

    def encode(self) -> bytes:
        """The bytes of the record."""
        return msgspec.json.encode(self)

    def tells_of(self, requests: Sequence[ParsedRequest]) -> bool:
        """Whether the requests of a micro-batch hold this very group at its place."""
        group = requests[self.first : self.first + len(self.told)]
        return len(group) == len(self.told) and self.digest in (None, requests_digest(group))


_DECODER: Final = msgspec.json.Decoder(GroupRecord)
_encode: Final = msgspec.msgpack.Encoder().encode


def requests_digest(requests: Sequence[ParsedRequest]) -> str:
    """Names these requests in this order: their places, ids, read versions, reads and changes. Kept in logs.

    Of one that is refused, whose changes nobody has parsed: its place, its id and why.
    """
    digest = blake2b(digest_size=16)
    for each in requests:
        txn = each.transaction
        asked = None if txn is None else (txn.read_version, txn.preconditions, txn.operations)
        digest.update(_encode((each.order, each.request_id, each.refusal, asked)))
    return digest.hexdigest()


def record_key(name: str) -> bytes:
    """The key of a stream's records."""
    return f"spark/ingest/{name}".encode()


def _decode(data: bytes, key: bytes) -> GroupRecord:
    try:
        return _DECODER.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CorruptData(
            "key holds something that no ingest wrote", code=Code.CORRUPT_LOG, key=key.decode("utf-8", "replace")
        ) from error


async def records_nearby(store: ObjectStore, claim: Header, key: bytes) -> tuple[list[GroupRecord], bool]:
    """The records of the newest micro-batch in the objects before ``claim``, and whether these are all of them."""
    found: list[GroupRecord] = []
    header = claim
    for _ in range(LOOK_BACK_OBJECTS):
        if header.slot == FIRST_SLOT:
            return found, True
        before = await read_header(store, header.prev)
        if before is None:
            return found, True
        header = before
        if header.kind is not Kind.DATA or not header.transactions:
            continue
        batch = LoggedBatch(header, await store.read(object_name(header.slot)))
        for txn in reversed(batch.transactions()):
            for operation in txn.operations:
                if isinstance(operation, Write) and operation.key == key:
                    record = _decode(operation.value, key)
                    if found and record.batch != found[0].batch:
                        return found, True
                    found.append(record)
                    if record.first == 0:
                        return found, True
    return found, False


def records_of_log(spark: SparkSession, url: str, key: bytes) -> list[GroupRecord]:
    """The records of the newest micro-batch anywhere in the log. Cost: two scans of the log, by tasks."""
    newest = newest_of_log(spark, url, key)
    if newest is None:
        return []
    number = str(_decode(newest, key).batch)
    rows = spark.read.format("holdfast").option("url", url).option("columns", "kind,key,value").load()
    written = rows.where((F.col("key") == F.lit(key)) & (F.col("kind") == "write"))
    same = written.where(F.get_json_object(F.col("value").cast("string"), "$.batch") == number)
    with task_errors():
        values: Iterable[bytes] = same.select("value").toArrow()["value"].to_pylist()
    return [_decode(bytes(value), key) for value in values]
