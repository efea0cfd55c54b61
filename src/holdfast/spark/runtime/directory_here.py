"""The object store of a local directory, in the calling process.

Owns: the port's answers over ``objects.directory_objects``. Does not own: what a create or a listing does to the files
(``directory_objects``).

The product's own directory store gives its files to worker processes, so that no system call holds up a leader. A plan
or a stream reader has nothing to hold up: for it two processes to start, 40 ms each, are the larger part of planning.

Failure model: that of ``objects.directory``; calls block their loop.
"""

from __future__ import annotations

import builtins
import secrets
from pathlib import Path
from urllib.parse import unquote, urlsplit

from holdfast.errors import Code, InvalidRequest, NotFound, Unavailable
from holdfast.objects.directory.files import PosixFiles
from holdfast.objects.directory.objects import DirectoryObjects, Unfit
from holdfast.objects.port import CREATED, CreateAnswer, Listed, Refused, Unknown, require_key

__all__ = ["DirectoryHere"]


class DirectoryHere:
    """An ``ObjectStore`` on the directory that a ``file:`` URL names. Raises: NotFound when there is none."""

    def __init__(self, url: str) -> None:
        root = Path(unquote(urlsplit(url).path)).absolute()
        if not root.is_dir():
            raise NotFound(
                "the directory does not exist",
                code=Code.LOG_EMPTY,
                hint="mount it, or start a new log there with: holdfast log init",
                path=str(root),
            )
        self._url = root.as_uri()
        self._objects = DirectoryObjects(PosixFiles(), str(root), secrets.token_hex(8))

    @property
    def url(self) -> str:
        """Where this is."""
        return self._url

    async def create(self, key: str, data: bytes) -> CreateAnswer:
        """As the port says."""
        try:
            created = self._objects.create(require_key(key), data)
        except Unfit as error:
            raise InvalidRequest(str(error), code=Code.STORE_UNFIT, url=self._url) from error
        except OSError as error:
            return Unknown(str(error))
        self._objects.tidy()
        return CREATED if created else Refused()

    async def read(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
        """As the port says."""
        try:
            data = self._objects.read(require_key(key), start, length)
        except OSError as error:
            raise self._unavailable(key, error) from error
        if data is None:
            raise NotFound("there is no such object", key=key)
        return data

    async def list(self, prefix: str, *, after: str = "", limit: int = 1000) -> builtins.list[Listed]:
        """As the port says."""
        try:
            return [Listed(key, size) for key, size in self._objects.page(prefix, after, limit)]
        except OSError as error:
            raise self._unavailable(prefix, error) from error

    async def delete(self, key: str) -> None:
        """As the port says."""
        try:
            self._objects.delete(require_key(key))
        except OSError as error:
            raise self._unavailable(key, error) from error

    async def close(self) -> None:
        """As the port says."""
        self._objects.close()

    def _unavailable(self, key: str, error: OSError) -> Unavailable:
        return Unavailable("the directory cannot be read", key=key, cause=str(error))
