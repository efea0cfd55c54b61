"""What the races through an endpoint found, kept next to the log.

| object | content |
|---|---|
| ``meta/races/{digest of the endpoint, 16 hexadecimal digits}/{2^64-1 - number:020d}`` | ``RaceResult`` as JSON |

The names of one endpoint count down, so that a LIST with limit 1 gives the newest result. Results are not part of a
log: a prefix that has only these is empty. They are never removed; each run of a command adds one.
"""

from __future__ import annotations

from datetime import UTC, datetime
from hashlib import blake2b
from typing import Final, Literal

import msgspec

from holdfast.errors import Code, CorruptData, InvalidRequest, NotFound, Unavailable
from holdfast.extras import __version__
from holdfast.objects.creating import create_exactly
from holdfast.objects.port import Listed, ObjectStore
from holdfast.objects.probe.contest import NAMES, UNFIT, UNFIT_HINT, WRITERS

META_PREFIX: Final = "meta/"
RACES_PREFIX: Final = "meta/races/"
_AFTER_RACES: Final = "meta/races0"  # "0" is the character after "/"
_NUMBERS: Final = 2**64 - 1
TRIES: Final = 5


class RaceResult(msgspec.Struct, frozen=True, kw_only=True):
    """What one race found. ``addresses``: of the endpoint's host at that time. ``why``: the promise that was broken.

    ``version`` is that of Holdfast, ``date`` is in UTC, ISO 8601.
    """

    endpoint: str
    version: str
    date: str
    fit: bool
    why: str = ""
    addresses: int = 0
    names: int = NAMES
    creates: int = WRITERS
    format: Literal[1] = 1

    def statement(self) -> str:
        """What was found, for people."""
        if not self.fit:
            return f"on {self.date} a race through {self.endpoint} found: {self.why}"
        host = f" ({self.addresses} addresses)" if self.addresses > 1 else ""
        proved = f"{self.names} names with {self.creates} creates each had one writer"
        return f"{proved}, through {self.endpoint}{host}, on {self.date} with Holdfast {self.version}"


def result_of(endpoint: str, time_s: float, why: str, addresses: int) -> RaceResult:
    """The result of a race that ended at ``time_s`` since 1970: ``why`` is empty for a store that is fit."""
    date = datetime.fromtimestamp(time_s, UTC).isoformat(timespec="seconds")
    return RaceResult(endpoint=endpoint, version=__version__, date=date, fit=not why, why=why, addresses=addresses)


async def keep_result(store: ObjectStore, result: RaceResult) -> None:
    """Keep a result as the newest one of its endpoint, durably. Raises: Unavailable."""
    for _ in range(TRIES):
        listed = await _newest(store, result.endpoint)
        number = _NUMBERS if listed is None else int(listed.rpartition("/")[2])
        if await create_exactly(store, f"{_folder(result.endpoint)}{number - 1:020d}", msgspec.json.encode(result)):
            return
    raise Unavailable("other races keep their results at the same time", endpoint=result.endpoint)


async def newest_result(store: ObjectStore, endpoint: str) -> RaceResult | None:
    """The newest result of an endpoint; None without one. Cost: a LIST, a GET. Raises: Unavailable, CorruptData."""
    key = await _newest(store, endpoint)
    if key is None:
        return None
    try:
        return msgspec.json.decode(await store.read(key), type=RaceResult)
    except NotFound:
        return None
    except msgspec.DecodeError as error:
        raise CorruptData(
            "the result of a race cannot be read",
            key=key,
            hint="remove it, and run `holdfast doctor --race`",
        ) from error


async def _newest(store: ObjectStore, endpoint: str) -> str | None:
    folder = _folder(endpoint)
    rows = await store.list(folder, limit=1)
    name = rows[0].key.removeprefix(folder) if rows else ""
    return rows[0].key if len(name) == 20 and name.isdigit() else None


def _folder(endpoint: str) -> str:
    return f"{RACES_PREFIX}{blake2b(endpoint.encode(), digest_size=8).hexdigest()}/"


async def list_meta(store: ObjectStore, *, limit: int) -> list[Listed]:
    """The first objects under ``meta/`` that belong to a log: all but the results of races. Raises: Unavailable."""
    rows = await store.list(META_PREFIX, limit=limit)
    before = [row for row in rows if not row.key.startswith(RACES_PREFIX)]
    if len(before) == len(rows):
        return rows
    after = await store.list(META_PREFIX, after=_AFTER_RACES, limit=limit)
    return ([row for row in before if row.key < RACES_PREFIX] + after)[:limit]


def require_not_refused(result: RaceResult, command: str) -> None:
    """Return unless the newest race refused the endpoint. Raises: InvalidRequest (store_unfit)."""
    if not result.fit:
        raise InvalidRequest(
            f"{UNFIT}{result.statement()}",
            code=Code.STORE_UNFIT,
            hint=f"{UNFIT_HINT}; if the store was corrected, race again: {command}",
        )
