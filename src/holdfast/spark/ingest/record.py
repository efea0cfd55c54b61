"""The record that an ingest keeps in the log: what became of each request, and how far its source is decided.

The record of the job ``ingest/{name}``, after each group of requests. JSON: ``format`` 1; ``batch``, the micro-batch's
number; ``first``, the index in it of the group's first request; ``told``, for each request its code (null: committed),
its version, and its failed preconditions; ``digest``, which names the requests of the group; ``before``, how many
requests the stream had before this micro-batch; ``publisher``, the micro-batch that began the life of the publisher of
its verdicts, and ``published``, the requests before that one. Where the requests are numbered messages: ``source``
names where they come from, ``seqs`` are the numbers of the group's messages as ranges [first, last], ``time_ms`` is
when the newest of them was published, and ``after`` is through which number the source was decided before the
micro-batch. A record is its own transaction, the last one of its batch object, so it is durable exactly when its group
is.

Retention may remove records. The newest one is then in the newest snapshot. The outcomes of the other groups of its
micro-batch are not known any more (``lost_groups``).

Any other bytes raise CorruptData.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import islice
from typing import Final, Literal

import msgspec

from holdfast.errors import Code
from holdfast.queue.consumers.consumer import runs_of
from holdfast.spark.bulk.requests import ParsedRequest
from holdfast.spark.sink.record import decode


class RequestOutcome(msgspec.Struct, frozen=True, array_like=True):
    """The outcome of one request: a code or a version, and the failed preconditions with what broke them."""

    code: str | None
    version: int | None = None
    conflicts: tuple[tuple[int, int], ...] = ()


class GroupRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The outcomes of the requests of one group. ``digest`` None: in the place of records that are gone."""

    batch: int
    first: int
    outcomes: tuple[RequestOutcome, ...] = msgspec.field(name="told")
    digest: str | None = None
    format: Literal[1] = 1
    before: int = 0
    publisher: int = 0
    published: int = 0
    source: str | None = None
    seqs: tuple[tuple[int, int], ...] = ()
    time_ms: int = 0
    after: int = 0

    def encode(self) -> bytes:
        """The bytes of the record."""
        return msgspec.json.encode(self)

    def numbers(self) -> Iterator[int]:
        """The numbers of the group's messages, ascending."""
        for first, last in self.seqs:
            yield from range(first, last + 1)

    def covers(self, requests: Sequence[ParsedRequest]) -> bool:
        """Whether the requests of a micro-batch hold this very group at its place."""
        group = requests[self.first : self.first + len(self.outcomes)]
        return len(group) == len(self.outcomes) and self.digest in (None, requests_digest(group))


_encode: Final = msgspec.msgpack.Encoder().encode


def requests_digest(requests: Sequence[ParsedRequest]) -> str:
    """A name for these requests in this order: their orders, ids, read versions, reads and changes, or refusals."""
    digest = blake2b(digest_size=16)
    for each in requests:
        txn = each.transaction
        asked = None if txn is None else (txn.read_version, txn.preconditions, txn.operations)
        digest.update(_encode((each.order, each.request_id, each.refusal, asked)))
    return digest.hexdigest()


JOBS_PREFIX: Final = "ingest/"


def job_of_ingest(name: str) -> str:
    """The job of an ingest."""
    return JOBS_PREFIX + name


def decode_group(data: bytes, job: str) -> GroupRecord:
    """Raises: CorruptData."""
    return decode(data, job, GroupRecord)


def lost_groups(oldest: GroupRecord, kept: Iterable[int]) -> GroupRecord:
    """In the place of the groups of a micro-batch before ``oldest`` whose records retention has removed.

    Their outcomes are not known any more: ``log_truncated``. ``kept``: the numbers above ``oldest.after`` and before
    the first of ``oldest`` that the source still has. A message that is gone has any other number between the two.
    """
    numbers: list[int] = []
    if oldest.seqs:
        numbers = sorted(kept)[-oldest.first :]
        taken = set(numbers)
        free = (each for each in range(oldest.after + 1, oldest.seqs[0][0]) if each not in taken)
        numbers += islice(free, oldest.first - len(numbers))
    return msgspec.structs.replace(
        oldest,
        first=0,
        outcomes=(RequestOutcome(str(Code.LOG_TRUNCATED)),) * oldest.first,
        digest=None,
        seqs=tuple(runs_of(sorted(numbers))),
    )


def decode_records(values: Mapping[str, bytes]) -> dict[str, GroupRecord]:
    """Records of jobs by the names of their ingests. Raises: CorruptData, which names the job."""
    return {job.removeprefix(JOBS_PREFIX): decode_group(values[job], job) for job in sorted(values)}
