"""The operator's word that a machine's wall clock is right after a step: ``meta/clock/`` next to the log.

The newest header names the boot, and how far its wall clock and boot clock are apart. A record says: in this boot, that
far apart is right. The leader reads the records while it doubts its clock, and removes those that it has followed. A
later step in the same boot is another distance, so no record accepts it.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Struct

from holdfast.commit.format.batch import Header
from holdfast.commit.format.log_clock import STEP_MS_MAX, wall_ms_of
from holdfast.errors import HoldfastError, NotFound
from holdfast.objects.creating import create_exactly
from holdfast.objects.port import ObjectStore
from holdfast.values import Instant

PREFIX: Final = "meta/clock/"
RECORDS_MAX: Final = 100


class Accepted(Struct, frozen=True, kw_only=True):
    """One record. ``boot_id``: the writer's, or its leader id where the boot is unknown.

    ``booted_ms``: the wall clock less the boot clock, which is when the machine booted if the wall clock is right.
    """

    boot_id: str
    booted_ms: int

    @property
    def key(self) -> str:
        """The name of the record."""
        return f"{PREFIX}{self.boot_id}.{self.booted_ms % 2**63:019d}"

    def fits(self, boot_id: bytes, leader_id: bytes, now: Instant) -> bool:
        """Whether it is about the clocks of this process as they are."""
        is_own = self.boot_id == (boot_id if any(boot_id) else leader_id).hex()
        return is_own and abs(now.wall_ms - int(now.boot_ms) - self.booted_ms) <= STEP_MS_MAX


def accepted_of(header: Header) -> Accepted:
    """The record that accepts the wall clock as this header shows it."""
    boot_id = header.scope.boot_id if any(header.scope.boot_id) else header.leader_id
    return Accepted(boot_id=boot_id.hex(), booted_ms=wall_ms_of(header) - header.boot_ms)


async def write_accepted(store: ObjectStore, record: Accepted) -> None:
    """Write the record; it may be there already. Raises: Unavailable."""
    await create_exactly(store, record.key, msgspec.json.encode(record))


async def read_accepted(store: ObjectStore) -> dict[str, Accepted]:
    """The records by name, at most ``RECORDS_MAX``. One that cannot be read is left out. Raises: Unavailable."""
    records: dict[str, Accepted] = {}
    for row in await store.list(PREFIX, limit=RECORDS_MAX):
        try:
            records[row.key] = msgspec.json.decode(await store.read(row.key), type=Accepted)
        except (NotFound, msgspec.DecodeError):
            continue
    return records


async def remove_accepted(store: ObjectStore, keys: list[str]) -> None:
    """Remove records; a failure leaves them, and they accept nothing new."""
    try:
        await store.delete(*keys)
    except HoldfastError:
        return
