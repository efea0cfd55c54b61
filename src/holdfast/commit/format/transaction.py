"""Transactions as requests, and their outcomes. JSON, msgpack and the API description use these types.

Shape: keys and values are raw bytes, in JSON standard base64 with padding. Keys compare as raw bytes. A range is
``[begin, end)``; without ``end`` it reaches to the last key.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType
from msgspec.structs import replace

from holdfast.values import VERSION_MAX

RequestVersion = Annotated[int, Meta(ge=0, le=VERSION_MAX)]


class PointRead(Struct, tag_field="type", tag="point_read", frozen=True, gc=False, forbid_unknown_fields=True):
    """Holds when nothing changed ``key`` after ``version`` (default: the transaction's read version)."""

    key: bytes
    version: RequestVersion | None = None


class RangeRead(Struct, tag_field="type", tag="range_read", frozen=True, gc=False, forbid_unknown_fields=True):
    """Holds when nothing changed in ``[begin, end)`` after ``version`` (default: the transaction's read version)."""

    begin: bytes
    end: bytes | None = None
    version: RequestVersion | None = None


class Write(Struct, tag_field="type", tag="write", frozen=True, gc=False, forbid_unknown_fields=True):
    """Set ``key`` to ``value``."""

    key: bytes
    value: bytes


class Delete(Struct, tag_field="type", tag="delete", frozen=True, gc=False, forbid_unknown_fields=True):
    """Remove ``key``. Counts as a change of it whether or not it was there."""

    key: bytes


class RangeDelete(Struct, tag_field="type", tag="range_delete", frozen=True, gc=False, forbid_unknown_fields=True):
    """Remove every key in ``[begin, end)``. Counts as a change of every key in it."""

    begin: bytes
    end: bytes | None = None


class JobChange(Struct, frozen=True, gc=False, forbid_unknown_fields=True, omit_defaults=True):
    """Set the record of the job ``name``, or with None remove it and those of all jobs below ``name/``.

    It is a precondition, too, and without a value nothing else: it holds when nothing changed the record of ``name``
    after ``version`` (in a request by default the read version; from then on None means that nothing is expected).
    Records of jobs are not keys: no operation and no other precondition reaches them.
    """

    name: str
    value: bytes | UnsetType | None = UNSET
    version: RequestVersion | None = None

    @property
    def size(self) -> int:
        """The bytes of the value."""
        return len(self.value) if isinstance(self.value, bytes) else 0


Precondition = PointRead | RangeRead
Operation = Write | Delete | RangeDelete
Part = Raw | UnsetType
"""One part of a commit for the stores, as it came, or nothing."""


class Transaction(Struct, frozen=True, gc=False, forbid_unknown_fields=True, omit_defaults=True):
    """One commit request: apply ``operations`` if every precondition holds.

    Later operations win over earlier ones on the same key. ``leader_id`` refuses any other leader, and ``log_id`` any
    other log than the one that the versions of the request belong to. ``request_id``
    (with ``read_version``) names the attempt, so that its outcome can be asked for and repeating it is harmless.

    ``acknowledge``, ``maps`` and ``publish`` are what the message stores do in the same step. They are kept as they
    came: only the stores know what is in them. ``jobs`` are changes of the records of jobs, all with different names.
    """

    operations: list[Operation]
    preconditions: list[Precondition] = []
    request_id: str | None = None
    leader_id: str | None = None
    read_version: RequestVersion | None = None
    log_id: str | None = None
    acknowledge: Part = UNSET
    maps: Part = UNSET
    publish: Part = UNSET
    jobs: tuple[JobChange, ...] = ()

    @property
    def parts(self) -> tuple[Part, Part, Part]:
        """What it has for the stores."""
        return self.acknowledge, self.maps, self.publish

    @property
    def has_parts(self) -> bool:
        """Whether it is more than operations: the stores take part, or records of jobs change."""
        return not (self.acknowledge is self.maps is self.publish is UNSET) or bool(self.jobs)

    @property
    def has_store_parts(self) -> bool:
        """Whether the stores take part."""
        return not (self.acknowledge is self.maps is self.publish is UNSET)


RejectedBecause = Literal["conflict", "too_old", "banned", "store_refused"]


class FailedPrecondition(Struct, frozen=True, gc=False):
    """``precondition`` is an index into the request's list, which the records of jobs follow; ``version`` the newest
    change that broke it."""

    precondition: int
    version: int


class StoreRefusal(Struct, frozen=True, gc=False):
    """Why the stores refused: item ``index`` of ``part`` (acknowledge, maps or publish), with their code."""

    part: str
    index: int
    code: str
    message: str


class Committed(Struct, frozen=True, gc=False):
    """The transaction is durable at ``version``. ``results``: what the stores did for its parts, in their bytes."""

    version: int
    results: bytes | None = None


class Rejected(Struct, frozen=True, gc=False):
    """The transaction is not committed and this attempt never will be."""

    reason: RejectedBecause
    conflicts: tuple[FailedPrecondition, ...] = ()
    refused: StoreRefusal | None = None


class Reused(Struct, frozen=True, gc=False):
    """The request id already belongs to another attempt, which committed or is in flight."""


class Unanswered(Struct, frozen=True, gc=False):
    """The leader stopped leading before it could prove the outcome, or can no longer look it up."""


Outcome = Committed | Rejected | Reused | Unanswered


def prefix_end(prefix: bytes) -> bytes | None:
    """The first key after all that start with ``prefix``; None where there is none, and the range goes to the end.

    >>> prefix_end(b"seat/"), prefix_end(b"a" + bytes([255])), prefix_end(bytes([255, 255])), prefix_end(b"")
    (b'seat0', b'b', None, None)
    """
    rest = prefix.rstrip(b"\xff")
    return rest[:-1] + bytes([rest[-1] + 1]) if rest else None


def with_expectations(txn: Transaction) -> Transaction:
    """A request whose changes of records of jobs all have their version: its read version where they have none."""
    if all(change.version is not None for change in txn.jobs):
        return txn
    read_version = txn.read_version
    jobs = (replace(change, version=read_version) if change.version is None else change for change in txn.jobs)
    return replace(txn, jobs=tuple(jobs))


def job_operations(changes: Iterable[JobChange]) -> list[Operation]:
    """The same changes in a key space that has nothing but records of jobs, by the UTF-8 of their names.

    >>> job_operations([JobChange("sink/a", b"1"), JobChange("sink/b", None), JobChange("sink/c")])
    [Write(key=b'sink/a', value=b'1'), Delete(key=b'sink/b'), RangeDelete(begin=b'sink/b/', end=b'sink/b0')]
    """
    operations: list[Operation] = []
    for change in changes:
        key = change.name.encode()
        if change.value is None:
            operations += (Delete(key), RangeDelete(key + b"/", key + b"0"))
        elif change.value is not UNSET:
            operations.append(Write(key, change.value))
    return operations
