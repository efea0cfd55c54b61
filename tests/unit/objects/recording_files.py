"""Real files in a directory, with every operation written down and any of them made to fail."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Collection
from typing import Any

from holdfast.objects.directory.files import PosixFiles


class RecordingFiles:
    """``PosixFiles`` that notes each operation and raises what ``fail`` returns for it.

    ``fail`` gets the number of the operation (from 1) and its name; None lets it pass. ``lacking`` are operations that
    this file system does not have.
    """

    def __init__(
        self,
        fail: Callable[[int, str], OSError | None] = lambda number, name: None,
        lacking: Collection[str] = (),
    ) -> None:
        self._files = PosixFiles()
        self.fail = fail
        self.lacking = lacking
        self.read_only = False
        self.operations: list[str] = []

    def is_read_only(self, directory: int) -> bool:
        return self.read_only

    def __getattr__(self, name: str) -> Any:
        operation = getattr(self._files, name)

        def recorded(*arguments: Any) -> Any:
            self.operations.append(name)
            error = failure(errno.EPERM) if name in self.lacking else self.fail(len(self.operations), name)
            if error is not None:
                raise error
            return operation(*arguments)

        return recorded


def failure(number: int) -> OSError:
    return OSError(number, os.strerror(number))
