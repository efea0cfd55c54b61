"""The start-up probe: does this store keep the promises that the log rests on?

Owns: the questions and the reasons. Does not own: when it runs (beside recovery, and it must pass before a claim).

A store that ignores ``If-None-Match`` overwrites silently; one that does not list in byte order cannot be recovered
with one LIST. Both accept every request of a healthy log and lose it later, so they are refused here, by name.

Failure model: ``InvalidRequest`` (store_unfit) is a proof. ``Unavailable`` proves nothing: ask again. The probe's keys
are under ``probe/`` and are deleted at the end; a crash leaves them there, where nothing reads them.
"""

from __future__ import annotations

import contextlib
import secrets
from typing import Final, NoReturn

from holdfast.errors import Code, InvalidRequest, NotFound, Unavailable
from holdfast.objects.port import Created, ObjectStore, Refused, Unknown

__all__ = ["PREFIX", "probe"]

PREFIX: Final = "probe/"
ATTEMPTS_MAX: Final = 5
FIRST: Final = b"the first bytes stay"
SECOND: Final = b"the second bytes are refused"


async def probe(store: ObjectStore, *, unique: str | None = None) -> None:
    """Ask the store to prove itself under ``probe/{unique}``, a random name unless one is given.

    Raises: InvalidRequest (store_unfit), Unavailable. Cost: 4 creates, 1 refused create, 1 read, 2 listings, 4 deletes.
    """
    prefix = f"{PREFIX}{unique or secrets.token_hex(16)}"
    names: list[str] = []
    try:
        await _require_create_if_absent(store, f"{prefix}.twice", names)
        await _require_order(store, prefix, names)
    finally:
        for name in names:
            with contextlib.suppress(Unavailable):  # what stays is harmless, and is not worth a start that fails
                await store.delete(name)


async def _require_create_if_absent(store: ObjectStore, prefix: str, names: list[str]) -> None:
    key = await _create(store, prefix, FIRST, names)
    for _ in range(ATTEMPTS_MAX):
        answer = await store.create(key, SECOND)
        if isinstance(answer, Created):
            _unfit(store, "it creates an object that exists already: it ignores If-None-Match")
        if isinstance(answer, Refused):
            break
    else:
        raise Unavailable("the object store did not answer whether it refuses a taken name", url=store.url)
    try:
        data = await store.read(key)
    except NotFound:
        _unfit(store, "an object that it acknowledged cannot be read back")
    if data != FIRST:
        _unfit(store, "an object that it acknowledged reads back with other bytes")


async def _require_order(store: ObjectStore, prefix: str, names: list[str]) -> None:
    """Three names written out of order must list in order, and a listing must begin behind a given name."""
    # Their order as numbers, as bytes and as written are three different ones.
    written = [await _create(store, f"{prefix}.order.{part}", FIRST, names) for part in ("9", "10", "1-")]
    ordered = sorted(written)
    # Attempts without a clear answer may have left further names between these.
    limit = len(written) * ATTEMPTS_MAX
    listed = [row.key for row in await store.list(PREFIX, after=f"{prefix}.order", limit=limit)]
    if [key for key in listed if key in ordered] != ordered:
        _unfit(store, "it does not list names in byte order")
    listed = [row.key for row in await store.list(PREFIX, after=ordered[1], limit=limit)]
    if [key for key in listed if key in ordered] != ordered[2:]:
        _unfit(store, "it does not begin a listing behind a given name")


async def _create(store: ObjectStore, prefix: str, data: bytes, names: list[str]) -> str:
    """Create a name of our own for certain: a fresh one for each attempt whose outcome is not clear."""
    detail = "refused"
    for attempt in range(ATTEMPTS_MAX):
        key = f"{prefix}.{attempt}"
        names.append(key)
        answer = await store.create(key, data)
        if isinstance(answer, Created):
            return key
        if isinstance(answer, Unknown):
            detail = answer.detail
    raise Unavailable("the object store did not create an object", url=store.url, cause=detail)


def _unfit(store: ObjectStore, why: str) -> NoReturn:
    raise InvalidRequest(
        f"this object store cannot hold a log: {why}",
        code=Code.STORE_UNFIT,
        hint="use one with conditional creates and ordered listings",
        url=store.url,
    )
