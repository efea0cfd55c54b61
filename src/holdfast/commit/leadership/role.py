"""What a prefix is when it holds a copy of a log: two small objects that every claimant reads right before it claims.

| object | content | created |
|---|---|---|
| ``meta/role`` | ``CopyRole`` as JSON | before the first object of a copy |
| ``meta/promoted`` | ``Promoted`` as JSON | before the fork claim that makes the copy a log of its own |

Without ``meta/role`` a prefix is a log like any other. With it and without ``meta/promoted`` nobody may claim: a
standby at a mirror would take the silence of the source for the death of its leader, and half a restore would pass as
a log. With both, the log has the id of ``meta/promoted``: the first claim under another one is the fork claim. So a
crash between the record and the claim neither begins two logs nor leaves one that nobody may lead.
"""

from __future__ import annotations

from typing import Final, Literal, TypeVar

import msgspec

from holdfast.errors import Closed, Code, CorruptData
from holdfast.sealed import decode_sealed, encode_sealed
from holdfast.values import LogId, Slot, Version, is_log_id, parse_slot

T = TypeVar("T")
ROLE_KEY: Final = "meta/role"
PROMOTED_KEY: Final = "meta/promoted"


class CopyRole(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a copy is. ``log_id``: the id that a restored log gets. ``cut_version``: a restore ends with it.

    ``truncated_through``: what was removed from the source when the copy began. ``first_slot``: where the source began
    then, in the log's 20 digits; of what is older there are only claims.
    """

    format: Literal[1] = 1
    role: Literal["mirror", "restoring"]
    source_log_id: str
    truncated_through: int
    first_slot: str
    cut_version: int | None = None
    log_id: str | None = None


class Promoted(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The id of the log that the copy is from now on."""

    format: Literal[1] = 1
    log_id: str


class Copied(msgspec.Struct, frozen=True):
    """A promoted copy: the id of its log, and what was removed from the source when the copy began."""

    log_id: LogId
    truncated_through: Version
    first_slot: Slot


class RoleRecords(msgspec.Struct, frozen=True):
    """The two records of a prefix as they were read: None for one that is not there."""

    role: bytes | None = None
    promoted: bytes | None = None

    def decoded(self) -> tuple[CopyRole | None, Promoted | None]:
        """Both records. Raises: CorruptData."""
        role = None if self.role is None else _decode(self.role, CopyRole, ROLE_KEY)
        promoted = None if self.promoted is None else _decode(self.promoted, Promoted, PROMOTED_KEY)
        for log_id in (role.source_log_id if role else None, promoted.log_id if promoted else None):
            if log_id is not None and not is_log_id(log_id):
                raise CorruptData("a record of a copied log names no log", given=log_id[:64])
        return role, promoted

    def copying_from(self, log_id: LogId) -> Slot | None:
        """The first slot of a copy that is going on; None where ``log_id`` is the log's own, as in most places.

        Raises: CorruptData.
        """
        role, promoted = self.decoded()
        if role is None or (promoted is not None and promoted.log_id == log_id.hex()):
            return None
        return _slot(role)

    def copied(self) -> Copied | None:
        """What a claim here must say; None for a prefix that is no copy.

        Raises: Closed (``not_promoted``), CorruptData.
        """
        role, promoted = self.decoded()
        if role is None:
            return None
        if promoted is None:
            what, hint = (
                ("a mirror", "`holdfast log promote URL` makes it a log; `holdfast serve --read-only` reads it")
                if role.role == "mirror"
                else ("an unfinished restore", "run `holdfast log restore` again; it goes on where it ended")
            )
            raise Closed(
                f"nobody may lead here: this is {what}",
                code=Code.NOT_PROMOTED,
                hint=hint,
                source_log_id=role.source_log_id,
            )
        return Copied(LogId(bytes.fromhex(promoted.log_id)), Version(role.truncated_through), _slot(role))


def _slot(role: CopyRole) -> Slot:
    slot = parse_slot(role.first_slot)
    if slot is None:
        raise CorruptData("a record of a copied log names no slot", key=ROLE_KEY, given=role.first_slot[:64])
    return slot


def _decode(data: bytes, kind: type[T], key: str) -> T:
    try:
        return decode_sealed(data, kind)
    except msgspec.DecodeError as error:
        raise CorruptData("a record of a copied log is damaged", key=key, cause=str(error)) from error


def encode_record(record: CopyRole | Promoted) -> bytes:
    """The JSON of a record."""
    return encode_sealed(record)
