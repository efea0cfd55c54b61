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

from holdfast.errors import Closed, Code, HoldfastError, InvalidRequest

PART_BYTES: Final = 5
_ALPHABET: Final = frozenset("0123456789abcdefghijklmnopqrstuv")


def id_of(drawn: int, store: str, durable: str | None = None) -> int:
    """The id of what a command makes. ``drawn``: the command's random number, of which one is enough for all.

    >>> id_of(7, "orders") == id_of(7, "orders"), id_of(7, "orders") == id_of(8, "orders")
    (True, False)
    """
    named = [drawn.to_bytes(8, "big"), store.encode(), *([] if durable is None else [durable.encode()])]
    return int.from_bytes(blake2b(b"\0".join(named), digest_size=PART_BYTES).digest(), "big")


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
