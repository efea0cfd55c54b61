"""Hold a source while it is copied: what the copy needs stays there, where the copier may write it down.

A hold is a request to retention. Without the right to make one the copy goes on: what it has is verified at its end, so
a foundation that went meanwhile is noticed (``foundations.state``).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from hashlib import sha256
from typing import Final

import structlog

from holdfast.errors import HoldfastError
from holdfast.objects.port import ObjectStore
from holdfast.retention.generations import Generations
from holdfast.retention.policies import Content, Hold, release_hold, set_hold

log = structlog.get_logger("holdfast.copies.holding")

HOLD_LASTS_MS: Final = 3_600_000
HOLD_AGAIN_SECONDS: Final = 600.0


@dataclass(frozen=True, slots=True)
class Needed:
    """The versions of the snapshot and of the checkpoint of the stores that a copy will need; None for none."""

    snapshot: int | None = None
    checkpoint: int | None = None


NOTHING: Final = Needed()


class Held(Enum):
    """What became of a hold."""

    SET = "set"
    NOT_NEEDED = "not needed"
    """Nothing in the source removes anything."""
    REFUSED = "refused"
    """It cannot be written there."""


def wall_ms() -> int:
    """The time of the generations that a copier writes. It is for people: holds end by the time of the log."""
    return int(time.time() * 1000)


def hold_id(kind: str, copy: ObjectStore) -> str:
    """Each copy of a log has a hold of its own, and keeps it when it starts again."""
    return f"{kind}-{sha256(copy.url.encode()).hexdigest()[:16]}"


async def set_source_hold(
    source: ObjectStore, name: str, from_version: int, needed: Needed = NOTHING, *, lasts_ms: int = HOLD_LASTS_MS
) -> Held:
    """Set or renew a hold. What a leader was permitted to truncate already is not held.

    Raises: Unavailable when the source cannot be read, CorruptData.
    """
    generations = Generations(source, wall_ms)
    content = Content.of(await generations.newest())
    if not content.policies and needed == NOTHING:
        return Held.NOT_NEEDED

    def change(now: Content) -> Content:
        begins = max(from_version, now.truncate_through)
        hold = Hold(from_version=begins, lasts_ms=lasts_ms, snapshot=needed.snapshot, checkpoint=needed.checkpoint)
        return set_hold(name, hold)(now)

    try:
        await generations.change(change, "copy")
    except HoldfastError as error:
        hint = "the source may remove what is not copied yet; then the copy says so"
        log.warning("source_is_not_held", error=str(error), hint=hint)
        return Held.REFUSED
    return Held.SET


@asynccontextmanager
async def held(source: ObjectStore, name: str, from_version: int, needed: Needed) -> AsyncGenerator[None]:
    """Hold the source, from ``from_version`` on and its foundation, while the body runs.

    Raises: as ``set_source_hold``. A copier that is killed leaves a hold that ends after ``HOLD_LASTS_MS``.
    """
    if await set_source_hold(source, name, from_version, needed) is not Held.SET:
        yield
        return

    async def renew() -> None:
        while True:
            await asyncio.sleep(HOLD_AGAIN_SECONDS)
            with suppress(HoldfastError):  # the next renewal comes long before the hold ends
                await set_source_hold(source, name, from_version, needed)

    renewing = asyncio.ensure_future(renew())
    try:
        yield
    finally:
        renewing.cancel()
        await asyncio.gather(renewing, return_exceptions=True)
        with suppress(HoldfastError):
            await Generations(source, wall_ms).change(release_hold(name), "copy")
