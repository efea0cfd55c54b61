"""Which store and which durable a name meant: the ids that they are made with, and the token that clients carry.

A name can be given again: a store is deleted and made again, and its numbers start at 1. So each store and each durable
has an id from the command that made it, and everything that remembers a number between two requests remembers a token.

    token    HISTORY.STORE.DURABLE, or HISTORY.STORE where no durable is meant
    part     40 bits as 8 characters of base32 (0-9, a-v)
    history  of the numbers: the log's id; of stores in files a number in their index; of stores in memory the opening's

Two tokens are the same if they are equal in the parts that both have.
"""

from __future__ import annotations

from base64 import b32hexencode
from collections.abc import Iterable
from functools import lru_cache
from hashlib import blake2b
from typing import Final

import msgspec

from holdfast.errors import Closed, Code, HoldfastError, InvalidRequest

PART_BYTES: Final = 5
_ALPHABET: Final = frozenset("0123456789abcdefghijklmnopqrstuv")


def id_of(drawn: int, store: str, durable: str | None = None) -> int:
    """The id of what a command makes. ``drawn``: the command's random number, of which one is enough for all.

    >>> id_of(7, "orders") == id_of(7, "orders"), id_of(7, "orders") == id_of(8, "orders")
    (True, False)
    """
    parts = [drawn.to_bytes(8, "big"), store.encode(), *([] if durable is None else [durable.encode()])]
    return int.from_bytes(blake2b(b"\0".join(parts), digest_size=PART_BYTES).digest(), "big")


@lru_cache(maxsize=4_096)
def token_of(history: str, store: int, durable: int | None = None) -> str:
    """The token of a store, or of a durable in it.

    >>> token_of("log", 1, 2)
    'efkpot1u.00000001.00000002'
    """
    ids = [store] if durable is None else [store, durable]
    return ".".join((history_part(history), *(_part(each.to_bytes(PART_BYTES, "big")) for each in ids)))


def history_part(history: str) -> str:
    """The part of a token that names a history.

    >>> history_part("log")
    'efkpot1u'
    """
    return _part(blake2b(history.encode(), digest_size=PART_BYTES).digest())


def numbers_of_token(token: str) -> list[int]:
    """The parts of a token as numbers, none of an empty one.

    >>> token_of_numbers(numbers_of_token("efkpot1u.00000001.00000002"))
    'efkpot1u.00000001.00000002'
    """
    return [int(part, 32) for part in token.split(".")] if token else []


def token_of_numbers(numbers: Iterable[int]) -> str:
    """The reverse of ``numbers_of_token``."""
    return ".".join(_part(number.to_bytes(PART_BYTES, "big")) for number in numbers)


def _part(data: bytes) -> str:
    return b32hexencode(data).decode().lower()


def is_same(given: str, current: str) -> bool:
    """Whether two tokens are equal in the parts that both have."""
    return given == current or current.startswith(f"{given}.") or given.startswith(f"{current}.")


def is_continued(given: str, current: str) -> bool:
    """Whether two tokens name one store and durable, perhaps in another history: after a restore, for example."""
    return is_same(given.partition(".")[2], current.partition(".")[2])


def replaced(given: str, *, store: str = "", durable: str = "") -> HoldfastError:
    """The error for a token that is not the current one."""
    parts = given.split(".")
    if not 2 <= len(parts) <= 3 or any(len(part) != 8 or not _ALPHABET.issuperset(part) for part in parts):
        return InvalidRequest(
            "a token is two or three parts of 8 characters, as an answer of the service has it", token=given[:80]
        )
    return Closed(
        "the token is of another store, durable or history: it was deleted and made again, or restored",
        code=Code.STORE_REPLACED,
        hint="its numbers mean other messages now: forget them, and begin again without a token",
        facts={"store": store or None, "durable": durable or None, "token": given},
    )


HISTORIES_MAX: Final = 16
"""Earlier histories that are remembered; what is left of an older one is refused."""


class Ancestor(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An earlier history, and the last number of each store, by the store's id, when it ended here."""

    history: str
    last_seqs: list[tuple[int, int]]


class Histories:
    """The histories of one cluster, oldest first. ``history`` is the part of a token; empty before the first store.

    A restore, a promotion and a move begin another history. What the stores had then they still have, under the same
    numbers. Above that the earlier history may have gone on elsewhere, and its numbers are given out again here.
    """

    __slots__ = ("_ancestors", "history")

    def __init__(self) -> None:
        self.history = ""
        self._ancestors: list[Ancestor] = []

    def go_on(self, history: str, last_seqs: Iterable[tuple[int, int]]) -> None:
        """Numbers are given out in another history from now on. ``last_seqs``: of each store, by its id."""
        if self.history:
            self._ancestors.append(Ancestor(self.history, list(last_seqs)))
            del self._ancestors[:-HISTORIES_MAX]
        self.history = history

    def has(self, history: str, store: int, seq: int) -> bool:
        """Whether the number that ``history`` gave to a message of the store is that of the same message here.

        A history that was gone through twice counts as it was the first time.
        """
        if history == self.history:
            return True
        for ancestor in self._ancestors:
            if ancestor.history == history:
                return seq <= dict(ancestor.last_seqs).get(store, -1)
        return False

    def state(self) -> tuple[str, list[Ancestor]]:
        """What a snapshot keeps."""
        return self.history, list(self._ancestors)

    def restore(self, history: str, ancestors: list[Ancestor]) -> None:
        """Take up what ``state`` gave."""
        self.history, self._ancestors = history, list(ancestors)
