"""The directory of stores in files, as it was opened: whether its path still names it.

The stores write through open files, which follow a move. What is confirmed there is not at the path that is configured.
"""

from __future__ import annotations

from typing import Final

from holdfast.errors import Code, CorruptData, HoldfastError, Unavailable
from holdfast.objects.directory.files import PosixFiles
from holdfast.objects.directory.identity import replaced, settled

HINT: Final = "what was confirmed is in the directory that was open: put that one back at its path, then start again"


class OpenPlace:
    """Holds the directory open, so that no other directory gets its inode.

    Raises: Unavailable (``store_unfit``) where the file system has no lasting inodes, or refuses.
    """

    def __init__(self, directory: str) -> None:
        self._files = PosixFiles()
        self._directory = directory
        try:
            self._handle, self._identity = settled(self._files, directory)
        except OSError as error:
            raise Unavailable(
                f"the stores cannot be opened: {error.strerror or error}", code=Code.STORE_UNFIT, path=directory
            ) from error

    def problem(self) -> HoldfastError | None:
        """What stands at the path instead, if anything does. Cost: one ``stat``."""
        try:
            now = self._files.identity_at(self._directory)
        except OSError:
            now = None
        if now == self._identity:
            return None
        text = str(replaced(self._directory, now).strerror)
        return CorruptData(text, code=Code.DIRECTORY_REPLACED, hint=HINT, directory=self._directory)

    def close(self) -> None:
        """Give the directory back."""
        self._files.close(self._handle)
