"""Retire a log: a last claim after which nobody leads, so that a planned switch to a mirror loses nothing."""

from __future__ import annotations

import secrets

from holdfast.commit.format.batch import Header
from holdfast.commit.leadership.claims import Identity
from holdfast.commit.leadership.takeover import TakeoverOptions, local_scope, take_the_lead
from holdfast.commit.reading.reader import find_frontier
from holdfast.errors import Code, NotFound
from holdfast.objects.port import ObjectStore
from holdfast.values import LeaderId, LogId


async def retire(source: ObjectStore) -> Header:
    """End a log. Its leader is deposed and answers no commit any more; readers read on. Returns the last claim.

    A log that is retired already stays as it is. After a crash: the claim stands, or it does not.
    Raises: NotFound (``log_empty``), CorruptData, Unavailable.
    """
    frontier = await find_frontier(source)
    if frontier is None:
        raise NotFound("the source is empty", code=Code.LOG_EMPTY, url=source.url)
    if frontier[0].retires:
        return frontier[0]
    identity = Identity(LeaderId(secrets.token_bytes(16)), secrets.token_bytes(32), "", local_scope(""))
    takeover = await take_the_lead(source, identity, LogId(bytes(16)), TakeoverOptions(take_over=True, retires=True))
    return takeover.claim
