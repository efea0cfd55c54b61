"""Transactions as requests, and their outcomes. JSON, msgpack and the API description use these types.

Shape: keys and values are raw bytes, in JSON standard base64 with padding. Keys compare as raw bytes. A range is
``[begin, end)``; without ``end`` it reaches to the last key.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

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
    came: only the stores know what is in them.
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

    @property
    def parts(self) -> tuple[Part, Part, Part]:
        """What it has for the stores."""
        return self.acknowledge, self.maps, self.publish

    @property
    def has_parts(self) -> bool:
        """Whether the stores take part."""
        return not (self.acknowledge is self.maps is self.publish is UNSET)


RejectedBecause = Literal["conflict", "too_old", "banned", "store_refused"]


class FailedPrecondition(Struct, frozen=True, gc=False):
    """``precondition`` is an index into the request's list; ``version`` the newest change that broke it."""

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
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else None
