"""Remove snapshots that newer ones replace, and parts that no manifest names. Only a log's leader does this.

A snapshot goes manifest first, so a crash in between leaves parts that no manifest names, and those go later. It goes
only after enough newer snapshots were read back in full and verified.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from holdfast.commit.format.batch import Header
from holdfast.commit.reading.lineage import Lineage, lineage_of
from holdfast.errors import CorruptData, NotFound, Unavailable
from holdfast.objects.port import ObjectStore
from holdfast.snapshots.manifest import PREFIX, Manifest, manifest_key, part_key
from holdfast.snapshots.reading import list_versions, read_manifest, read_part

KEEP_MIN: Final = 2
PAGE: Final = 1_000
RETRY_MS: Final = 1_000


class KeptSnapshots:
    """The snapshots of one log that stay: the newest ``keep``, and older ones that a hold names."""

    def __init__(self, store: ObjectStore, claim: Header, *, keep: int) -> None:
        """``claim`` is the newest claim of the log."""
        assert keep >= KEEP_MIN, "one snapshot alone may be damaged"
        self._store = store
        self._claim = claim
        self._lineage: Lineage | None = None
        self._keep = keep
        self._verified: dict[int, Manifest] = {}
        self._damaged: set[int] = set()
        self._looked_at: frozenset[int] = frozenset()

    async def oldest(self, held: Collection[int]) -> int | None:
        """Remove what may go, and return the oldest verified version that stays; None without a verified one.

        ``held``: versions that a hold names. Cost: a LIST, and each snapshot is read once in the life of this object.
        Raises: Unavailable.
        """
        versions = await list_versions(self._store)
        if self._lineage is None and versions:
            self._lineage = await lineage_of(self._store, self._claim)
        for version in versions:
            await self._verify(version)
        self._verified = {version: self._verified[version] for version in versions if version in self._verified}
        self._looked_at = frozenset(versions)
        for version in self._superseded(held):
            await self._remove(self._verified.pop(version))
        return min(self._verified, default=None)

    async def expected(self, held: Collection[int]) -> int | None:
        """What ``oldest`` would return, without removing anything.

        Cost: a LIST. Raises: Unavailable, also while a snapshot is newer than the last look and so is not verified.
        """
        versions = frozenset(await list_versions(self._store))
        if versions - self._looked_at:
            raise Unavailable("a new snapshot of the log is not verified yet", retry_after_ms=RETRY_MS)
        return min((self._verified.keys() & versions).difference(self._superseded(held)), default=None)

    def _superseded(self, held: Collection[int]) -> list[int]:
        """The snapshots that newer ones replace."""
        return [version for version in sorted(self._verified)[: -self._keep] if version not in held]

    @property
    def damaged(self) -> int:
        """How many snapshots of the log could not be verified."""
        return len(self._damaged)

    async def _verify(self, version: int) -> None:
        if version in self._verified or version in self._damaged:
            return
        try:
            manifest = await read_manifest(self._store, version)
            assert self._lineage is not None, "it was found before the first look"
            if manifest is None or not self._lineage.holds(manifest.log_id, manifest.version):
                return
            for part in manifest.parts:
                await read_part(self._store, manifest, part)
        except (CorruptData, NotFound):
            self._damaged.add(version)
        else:
            self._verified[version] = manifest

    async def _remove(self, manifest: Manifest) -> None:
        await self._store.delete(manifest_key(manifest.version))
        if manifest.parts:
            await self._store.delete(*(part_key(manifest.version, part.name) for part in manifest.parts))


class StrayParts:
    """Removes parts that no manifest names, once this process has seen them for ``min_age_ms``.

    Object stores do not tell an object's age here, so a part counts as old from the first time that it was listed.
    """

    def __init__(self, store: ObjectStore, *, min_age_ms: float) -> None:
        self._store = store
        self._min_age_ms = min_age_ms
        self._seen_ms: dict[str, float] = {}

    async def sweep(self, now_ms: float) -> int:
        """Look once. Returns how many parts were removed. Raises: Unavailable."""
        named: set[str] = set()
        listed: list[str] = []
        after = ""
        while True:
            rows = await self._store.list(PREFIX, after=after, limit=PAGE)
            listed += [row.key for row in rows if row.key.endswith(".parquet")]
            if len(rows) < PAGE:
                break
            after = rows[-1].key
        # The manifests are read after the listing: a manifest that was created since names parts that were listed.
        for version in sorted({int(key.split("/")[1]) for key in listed if key.split("/")[1].isdigit()}):
            try:
                manifest = await read_manifest(self._store, version)
            except CorruptData:
                # Its parts may be what a repair needs.
                named |= {key for key in listed if key.startswith(f"{PREFIX}{version:020d}/")}
                continue
            if manifest is not None:
                named |= {part_key(version, part.name) for part in manifest.parts}
        self._seen_ms = {key: self._seen_ms.get(key, now_ms) for key in listed if key not in named}
        old = [key for key, since_ms in self._seen_ms.items() if now_ms - since_ms >= self._min_age_ms]
        for key in old:
            await self._store.delete(key)
            del self._seen_ms[key]
        return len(old)
