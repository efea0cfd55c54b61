"""The port that every object store implements, and the three results of a conditional create.

A store never retries a create: one that does turns its own successful write into a refusal. Any call may fail, hang
until cancelled, or take effect without its response arriving: ``create`` then returns ``Unknown``, the other calls
raise ``Unavailable``.
"""

from __future__ import annotations

import builtins
import re
from dataclasses import dataclass, field
from typing import ClassVar, Final, Protocol, Self

from msgspec import Struct

from holdfast.errors import InvalidRequest, NotFound, Unavailable

KEY_LENGTH_MAX: Final = 512
_KEY: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._=%-]*(?:/[A-Za-z0-9_-][A-Za-z0-9._=%-]*)*")


class Created(Struct, frozen=True, tag=True):
    """The object did not exist before, and now it exists durably with exactly these bytes."""


class Refused(Struct, frozen=True, tag=True):
    """The store says that the name is taken. It may be taken by this very request, sent before.

    ``certain`` is False when the store's client cannot distinguish "taken" (412) from "busy, ask again" (409).
    """

    certain: bool = True


class Unknown(Struct, frozen=True, tag=True):
    """No usable answer: the object may exist now, may appear later, or never.

    ``final``: every later create gets the same answer until the store is opened again, so sending again is useless.
    """

    detail: str
    retry_after_ms: int | None = None
    final: bool = False


CreateAnswer = Created | Refused | Unknown
CREATED: Final = Created()


@dataclass(frozen=True, slots=True)
class Listed:
    """One row of a listing. ``modified_ms``: when the object was created, by the store's own clock if it has one. It
    does not tell rows apart: an object never changes."""

    key: str
    size: int
    modified_ms: int | None = field(default=None, compare=False)


class StoreDenies(Unavailable):
    """The store refuses these credentials, or has no such bucket: the same request gets the same answer until that is
    changed. Only ``retrying`` asks; for every other caller it is ``Unavailable``."""


class ObjectReader(Protocol):
    """A reader of objects whose names are known. Every store is one."""

    async def read(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
        """The bytes ``[start, start + length)`` of an object, fewer where it ends, all of it without ``length``.

        Raises: NotFound, Unavailable.
        """
        ...

    async def close(self) -> None:
        """Release resources. Requests in flight are abandoned, which is always safe."""
        ...


class ObjectStore(ObjectReader, Protocol):
    """Named immutable byte strings with create-if-absent and ordered listing.

    Keys are what ``require_key`` accepts. All methods are coroutines and safe to run concurrently on one event loop.
    """

    @property
    def url(self) -> str:
        """Where this is, without secrets, for people."""
        ...

    @property
    def cluster_id(self) -> str | None:
        """Which servers hold this, by their own word, where others may take their place under the same URL.

        None where the URL is enough, and before the first answer.
        """
        ...

    async def create(self, key: str, data: bytes) -> CreateAnswer:
        """Create ``key`` if it is absent, durably. Never raises for a failure of the store.

        After a crash: an answer of ``Created`` survives power loss; anything else may or may not.
        """
        ...

    async def list(self, prefix: str, *, after: str = "", limit: int = 1000) -> builtins.list[Listed]:
        """The first ``limit`` objects under ``prefix`` whose key is greater than ``after``, in byte order of the keys.

        Shorter than ``limit`` only when there are no more: continuation pages are followed inside.
        Raises: Unavailable (also when the pages break off in the middle).
        """
        ...

    async def delete(self, *keys: str) -> None:
        """Remove objects, in one request where the store has one; removing an absent one is not an error.

        Raises: Unavailable; then any of them may be removed.
        """
        ...

    async def remove_leftovers(self, now_ms: float) -> None:
        """Remove what creates that ended without an answer have left here, which is neither listed nor read, and free
        the space of what was removed.

        For the leader of a log, every minute; ``now_ms`` by the boot clock. Nothing is done where a create leaves
        nothing. Raises: Unavailable, CorruptData.
        """
        ...


class WithoutLeftovers:
    """The parts of a store whose create is one request, and which its URL alone names."""

    cluster_id: str | None = None

    async def remove_leftovers(self, now_ms: float) -> None:
        """As the port says."""


def require_key(key: str) -> str:
    """``key`` itself, when every store can hold it: 1..512 ASCII letters, digits, ``._-=%``, in ``/``-separated parts.

    No part is empty or starts with a dot, which leaves dot names to the adapters, or with ``=`` or ``%``. Stores take a
    ``%`` literally. Raises: InvalidRequest.

    >>> require_key("batches/00000000000000002000")
    'batches/00000000000000002000'
    """
    if len(key) > KEY_LENGTH_MAX or _KEY.fullmatch(key) is None:
        raise InvalidRequest("not a key that every object store can hold", key=key)
    return key


async def read_if_there(store: ObjectReader, key: str, *, length: int | None = None) -> bytes | None:
    """As ``read``; None where there is no such object. Raises: Unavailable."""
    try:
        return await store.read(key, length=length)
    except NotFound:
        return None


class Pages:
    """The objects under ``prefix`` after the name ``after``: a list for each request, of which the last is short."""

    size: ClassVar[int] = 1_000

    def __init__(self, store: ObjectStore, prefix: str, *, after: str = "") -> None:
        self._store = store
        self._prefix = prefix
        self._after: str | None = after

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> builtins.list[Listed]:
        if self._after is None:
            raise StopAsyncIteration
        rows = await self._store.list(self._prefix, after=self._after, limit=self.size)
        self._after = rows[-1].key if len(rows) == self.size else None
        return rows
