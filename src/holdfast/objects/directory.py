"""The object store on a local directory: the embedded default. (Thin slice; see the commit that replaces it.)"""

from __future__ import annotations

import asyncio
import builtins
import heapq
import os
import uuid
from pathlib import Path

from holdfast.errors import Code, NotFound, Unavailable
from holdfast.objects.port import CREATED, CreateAnswer, Listed, Refused, Unknown, require_key

__all__ = ["DirectoryStore"]

TEMPORARY = ".holdfast/tmp"


class DirectoryStore:
    """One file per object; a name appears only when its bytes are on the disk."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._poison: str | None = None

    @classmethod
    def open(cls, root: Path, *, create_missing: bool = False) -> DirectoryStore:
        if create_missing:
            root.mkdir(parents=True, exist_ok=True)
        if not root.is_dir():
            raise NotFound("the directory does not exist", code=Code.LOG_EMPTY, path=str(root))
        return cls(root.resolve())

    @property
    def url(self) -> str:
        return self._root.as_uri()

    async def create(self, key: str, data: bytes) -> CreateAnswer:
        require_key(key)
        return await asyncio.to_thread(self._create, key, data)

    def _create(self, key: str, data: bytes) -> CreateAnswer:
        if self._poison is not None:
            return Unknown(self._poison)
        target = self._root / key
        temporary = self._root / TEMPORARY / uuid.uuid4().hex
        try:
            temporary.parent.mkdir(parents=True, exist_ok=True)
            target.parent.mkdir(parents=True, exist_ok=True)
            with temporary.open("xb") as file:
                file.write(data)
                file.flush()
                os.fdatasync(file.fileno())
            try:
                os.link(temporary, target)
            finally:
                temporary.unlink()
            self._sync(target.parent)
        except FileExistsError:
            return Refused()
        except OSError as error:
            self._poison = str(error)
            return Unknown(str(error))
        return CREATED

    @staticmethod
    def _sync(directory: Path) -> None:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    async def read(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
        require_key(key)
        return await asyncio.to_thread(self._read, key, start, length)

    def _read(self, key: str, start: int, length: int | None) -> bytes:
        try:
            with (self._root / key).open("rb") as file:
                self._sync((self._root / key).parent)
                file.seek(start)
                return file.read(-1 if length is None else length)
        except FileNotFoundError:
            raise NotFound("there is no such object", key=key) from None
        except OSError as error:
            raise Unavailable("the directory cannot be read", key=key, cause=str(error)) from error

    async def list(self, prefix: str, *, after: str = "", limit: int = 1000) -> builtins.list[Listed]:
        return await asyncio.to_thread(self._list, prefix, after, limit)

    def _list(self, prefix: str, after: str, limit: int) -> builtins.list[Listed]:
        try:
            keys: builtins.list[str] = []
            for folder, folders, names in os.walk(self._root):
                folders[:] = [name for name in folders if not name.startswith(".")]
                inside = os.path.relpath(folder, self._root)
                found = [name if inside == "." else f"{inside}/{name}" for name in names]
                keys += [key for key in found if key.startswith(prefix) and key > after]
                if found:
                    self._sync(Path(folder))
            return [Listed(key, (self._root / key).stat().st_size) for key in heapq.nsmallest(limit, keys)]
        except OSError as error:
            raise Unavailable("the directory cannot be listed", prefix=prefix, cause=str(error)) from error

    async def delete(self, key: str) -> None:
        require_key(key)
        await asyncio.to_thread((self._root / key).unlink, True)

    async def close(self) -> None:
        return None
