"""A process that dies at one of its requests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from holdfast.client import Client, ClientOptions

T = TypeVar("T")


class Killed(BaseException):
    """The process ends here."""


@dataclass
class Fate:
    """Death at the n-th request: before it is sent, or after it was carried out."""

    left: int = 0
    after: bool = False

    def run(self, carry_out: Callable[[], T]) -> T:
        self.left -= 1
        if self.left == 0 and not self.after:
            raise Killed
        result = carry_out()
        if self.left == 0:
            raise Killed
        return result


class MortalClient(Client):
    """A client whose process has this fate."""

    def __init__(self, url: str, fate: Fate, options: ClientOptions | None = None, token: str | None = None) -> None:
        super().__init__(url, token=token, options=options)
        self.fate = fate

    def run(self, procedure, carry_out=None):  # type: ignore[no-untyped-def]
        try:
            return self.fate.run(lambda: super(MortalClient, self).run(procedure, carry_out))
        except Killed:
            procedure.close()
            raise
