"""Reading the objects of a directory that are known to be durable.

Owns: the shortest way from a name to its bytes, in the calling process. Does not own: names that nobody vouched for yet
(``directory_objects`` syncs those before it tells of them).

Failure model: a read blocks its thread for one file; an absent file is NotFound, any other failure Unavailable.
"""

from __future__ import annotations

import os
from pathlib import Path

from holdfast.errors import NotFound, Unavailable
from holdfast.objects.port import require_key

__all__ = ["DurableDirectory"]


class DurableDirectory:
    """An ``ObjectReader`` for a process that is told, by the writer, which objects are durable."""

    def __init__(self, root: Path) -> None:
        self._root = os.path.abspath(root)

    async def read(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
        """As the port says."""
        try:
            file = os.open(f"{self._root}/{require_key(key)}", os.O_RDONLY | os.O_CLOEXEC)
            try:
                wanted = os.fstat(file).st_size - start if length is None else length
                data = os.pread(file, max(wanted, 0), start)
                while data and len(data) < wanted and (more := os.pread(file, wanted - len(data), start + len(data))):
                    data += more
                return data
            finally:
                os.close(file)
        except FileNotFoundError:
            raise NotFound("there is no such object", key=key) from None
        except OSError as error:
            raise Unavailable("the directory cannot be read", key=key, cause=str(error)) from error

    async def close(self) -> None:
        """As the port says."""
