"""One conditional PUT of a batch object, carried to a certain end.

Owns: repeating, reading back, and what a refusal means (R6 of the log protocol). Does not own: slots and bytes.

Failure model: created, or refused by an object with the same log, leader, nonce and body CRC, which is this leader's
own earlier PUT, by this attempt or another: done. Refused by anything else: Fenced. No answer for ``retry_budget_s``:
Unavailable. The bytes are the same at every try.
"""

from __future__ import annotations

import asyncio
import random
import time
from typing import Final

from holdfast.commit.format.batch import HEADER_BYTES, Header, decode_header, object_name
from holdfast.errors import Code, CorruptData, Fenced, NotFound, Unavailable
from holdfast.objects.port import Created, ObjectStore, Refused, Unknown
from holdfast.values import slot_text

__all__ = ["put_batch"]

PATIENCE_S: Final = 60.0
BACKOFF_S: Final = 0.1
BACKOFF_S_MAX: Final = 5.0
REQUEST_S_MAX: Final = 30.0


async def put_batch(store: ObjectStore, header: Header, data: bytes, *, retry_budget_s: float = PATIENCE_S) -> bool:
    """Bring the object to its slot. True when this call created it, False when it stood there.

    Raises: Fenced, Unavailable. After a crash: it may or may not stand there; doing it again settles it.
    """
    give_up_at = time.monotonic() + retry_budget_s
    tries = 0
    while True:
        trouble = ""
        try:
            async with asyncio.timeout(REQUEST_S_MAX):
                answer = await store.create(object_name(header.slot), data)
        except TimeoutError:
            answer = Unknown("no answer in time")
        match answer:
            case Created():
                return True
            case Refused(certain=certain):
                if await _is_own(store, header, certain=certain):
                    return False
                trouble = "refused, but nothing there"
            case Unknown(detail=detail, final=True):
                raise Unavailable("the store takes nothing any more", slot=slot_text(header.slot), last=detail)
            case Unknown(detail=detail):
                trouble = detail
        tries += 1
        if time.monotonic() >= give_up_at:
            raise Unavailable("the store did not take a batch in time", slot=slot_text(header.slot), last=trouble)
        await asyncio.sleep(random.uniform(0, min(BACKOFF_S_MAX, BACKOFF_S * 2.0 ** min(tries, 10))))


async def _is_own(store: ObjectStore, own: Header, *, certain: bool) -> bool:
    """Whether what stands in the slot is this leader's. False: nothing can be told yet. Raises: Fenced."""
    try:
        found = decode_header(await store.read(object_name(own.slot), length=HEADER_BYTES), slot=own.slot)
    except Unavailable:
        return False
    except NotFound:
        if not certain:
            return False
        # What refused the PUT has been removed since, and only a later leader does that.
        raise _deposed(own) from None
    except CorruptData as error:
        raise _deposed(own) from error
    if (found.log_id, found.leader_id, found.nonce, found.body_crc) != (
        own.log_id, own.leader_id, own.nonce, own.body_crc,
    ):  # fmt: skip
        raise _deposed(own)
    return True


def _deposed(own: Header) -> Fenced:
    return Fenced(
        "another leader has taken over the log",
        code=Code.DEPOSED,
        hint="run the load again: it goes on where the log ends",
        slot=slot_text(own.slot),
    )
