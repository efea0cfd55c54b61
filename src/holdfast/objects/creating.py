"""Create one object with certainty: a refused create may be this caller's own, whose answer was lost."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from holdfast.errors import NotFound, Unavailable
from holdfast.objects.port import Created, ObjectStore, Refused, Unknown

PAUSES: Final = (0.2, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0)
"""Seconds between the tries of one create: an outage of a minute costs a snapshot or a copy time alone."""


async def create_exactly(store: ObjectStore, key: str, data: bytes, pauses: Sequence[float] = PAUSES) -> bool:
    """Create an object. True: the name holds exactly these bytes, durably. False: it holds other bytes.

    Raises: Unavailable after the last of ``pauses``; the object may or may not exist then.
    """
    detail = ""
    for pause in (*pauses, None):
        match await store.create(key, data):
            case Created():
                return True
            case Refused():
                try:
                    return await store.read(key) == data
                except (NotFound, Unavailable) as error:
                    detail = str(error)
            case Unknown(text, _, final):
                detail = text
                if final:
                    break
        if pause is not None:
            await asyncio.sleep(pause)
    raise Unavailable("the store did not take an object", key=key, cause=detail)
