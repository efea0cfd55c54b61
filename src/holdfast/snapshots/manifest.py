"""The names of a snapshot's objects, and its manifest.

| object | content |
|---|---|
| ``snapshots/{version:020d}/part-{maker}-{number:05d}.parquet`` | a range of keys: see ``part`` |
| ``snapshots/{version:020d}/_jobs-{maker}-{number:05d}.pq`` | the same with records of jobs, by name |
| ``snapshots/{version:020d}/manifest.json`` | ``Manifest`` as JSON, created last, if absent; the first one counts |

``maker`` is 8 random hexadecimal digits, so two makers of one version never write to one name. The parts of a manifest
hold disjoint ranges of keys, in order. Records of jobs are not keys, and a reader of all ``*.parquet`` meets none.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec
from msgspec import Struct

from holdfast.errors import CorruptData
from holdfast.sealed import decode_sealed, encode_sealed

PREFIX: Final = "snapshots/"
FORMAT: Final = 1
MANIFEST_NAME: Final = "manifest.json"
_MANIFEST_KEY: Final = re.compile(rf"{PREFIX}(\d{{20}})/{MANIFEST_NAME}")
_PART_NAME: Final = re.compile(r"part-[0-9a-f]{8}-\d{5,}\.parquet")
_JOBS_NAME: Final = re.compile(r"_jobs-[0-9a-f]{8}-\d{5,}\.pq")


class Part(Struct, frozen=True, kw_only=True):
    """One file of ``size`` bytes. In the JSON, ``first_key`` and ``last_key`` are base64, ``sha256`` is hex."""

    name: str
    size: int
    rows: int
    first_key: bytes
    last_key: bytes
    sha256: str


class Manifest(Struct, frozen=True, kw_only=True):
    """A snapshot: the value of every key of the log ``log_id`` at ``version``.

    ``slot`` is the object that holds ``version``, in the log's 20 digits. ``last_transaction`` is the newest
    transaction at or below ``version``, 0 for none: the stream after a snapshot begins with the one that follows it.
    """

    format: int
    log_id: str
    version: int
    last_transaction: int
    slot: str
    rows: int
    parts: list[Part]
    jobs: list[Part]
    """Parts with the records of jobs: the name of a job is in the column ``key``."""

    @property
    def files(self) -> list[Part]:
        """All that it names: the parts of keys, and those of jobs."""
        return [*self.parts, *self.jobs]

    @property
    def size(self) -> int:
        """The bytes of all files."""
        return sum(part.size for part in self.files)


def manifest_key(version: int) -> str:
    """The name of a manifest."""
    return f"{PREFIX}{version:020d}/{MANIFEST_NAME}"


def part_name(maker: str, number: int) -> str:
    """The name of a part in its folder."""
    return f"part-{maker}-{number:05d}.parquet"


def jobs_name(maker: str, number: int) -> str:
    """The name of a part with records of jobs in its folder."""
    return f"_jobs-{maker}-{number:05d}.pq"


def part_key(version: int, name: str) -> str:
    """The whole name of a part."""
    return f"{PREFIX}{version:020d}/{name}"


def version_of_manifest(key: str) -> int | None:
    """The version whose manifest has this name; None for every other object.

    >>> version_of_manifest(manifest_key(7)), version_of_manifest(part_key(7, part_name("00c0ffee", 0)))
    (7, None)
    """
    match = _MANIFEST_KEY.fullmatch(key)
    return None if match is None else int(match[1])


def encode_manifest(manifest: Manifest) -> bytes:
    """The JSON of a manifest: equal manifests have equal bytes."""
    return encode_sealed(manifest)


def decode_manifest(data: bytes, version: int) -> Manifest:
    """The manifest of the snapshot at ``version``. Raises: CorruptData, which names the rule that is broken."""
    try:
        manifest = decode_sealed(data, Manifest)
    except msgspec.DecodeError as error:
        raise _broken("a manifest is not JSON of this form", version, cause=str(error)) from error
    if manifest.format != FORMAT:
        raise _broken("a manifest has a format that this version does not read", version, format=manifest.format)
    if manifest.version != version:
        raise _broken("a manifest names another version", version, named=manifest.version)
    if manifest.last_transaction > version:
        raise _broken("a manifest names a later transaction", version, named=manifest.last_transaction)
    if manifest.rows != sum(part.rows for part in manifest.parts):
        raise _broken("a manifest counts other rows than its parts", version, rows=manifest.rows)
    for parts, name in ((manifest.parts, _PART_NAME), (manifest.jobs, _JOBS_NAME)):
        last: bytes | None = None
        for part in parts:
            if name.fullmatch(part.name) is None:
                raise _broken("a manifest names a part with another name", version, part=part.name)
            if part.rows < 1 or part.first_key > part.last_key or (last is not None and part.first_key <= last):
                raise _broken("the parts of a manifest are not in order", version, part=part.name)
            last = part.last_key
    return manifest


def _broken(message: str, version: int, **facts: object) -> CorruptData:
    hint = "delete nothing before `holdfast log verify` says that the log has its state without this snapshot"
    return CorruptData(message, hint=hint, facts={"snapshot": version, **facts})
