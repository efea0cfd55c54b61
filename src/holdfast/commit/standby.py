"""Standing by: following a leader from outside until there is a vacancy.

Owns: when a standby may try to lead (section 8 of the protocol). Does not own: leading (``takeover``). Liveness only: a
standby that is wrong deposes a healthy leader, and nothing is lost.

A vacancy is a resign record as the newest object, or ``silence_ms`` without a new key and without an answer from the
leader's address. A leader that is asked by a standby writes heartbeats, so silence means trouble.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from holdfast.commit.batch import Header, Kind
from holdfast.commit.reader import read_header
from holdfast.commit.takeover import AskLeader, newest_slot, now
from holdfast.errors import Unavailable
from holdfast.objects.port import ObjectStore

__all__ = ["wait_for_vacancy"]

log = structlog.get_logger("holdfast.commit.standby")


async def wait_for_vacancy(
    store: ObjectStore, ask_leader: AskLeader, *, silence_ms: float, on_leader: Callable[[Header], None]
) -> None:
    """Return when it is time to try to lead. ``on_leader`` hears of the newest record's header when it changes.

    Cost: one LIST of one key and one question to the leader per quarter of ``silence_ms``.
    Raises: CorruptData.
    """
    newest: Header | None = None
    sign_ms = now().boot_ms
    while True:
        try:
            slot = await newest_slot(store)
            if slot is None:
                return
            if newest is None or slot != newest.slot:
                sign_ms = now().boot_ms
                header = await read_header(store, slot)
                if header is not None:
                    newest = header
                    on_leader(header)
        except Unavailable as error:
            # A standby that cannot reach the store could not lead either.
            log.warning("store_unavailable", error=str(error))
            sign_ms = now().boot_ms
        if newest is not None:
            if newest.kind is Kind.RESIGN:
                return
            if newest.address and await ask_leader(newest.address) == newest.leader_id.hex():
                sign_ms = now().boot_ms
        if now().boot_ms - sign_ms >= silence_ms:
            return
        await asyncio.sleep(silence_ms / 4000.0)
