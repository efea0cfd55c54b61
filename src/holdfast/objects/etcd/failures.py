"""What an error of etcd means for its caller: a table of gRPC codes and of words in the text.

| code | text | meaning |
|---|---|---|
| ``PERMISSION_DENIED`` | any | denied |
| ``INVALID_ARGUMENT`` | user name is empty; authentication failed | denied |
| ``UNAUTHENTICATED`` | any | log in again |
| ``INVALID_ARGUMENT`` | revision of auth store is old | log in again |
| ``UNKNOWN`` | revision in header is old | log in again |
| ``INVALID_ARGUMENT`` | request is too large | too large |
| ``RESOURCE_EXHAUSTED`` | larger than max | too large |
| ``OUT_OF_RANGE`` | revision has been compacted | compacted |
| any other | | no answer |
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final


class Meaning(Enum):
    """What the caller of a failed call does."""

    NO_ANSWER = auto()
    """Ask another member. A transaction may have been carried out."""
    LOG_IN_AGAIN = auto()
    """The token has ended. Nothing was carried out."""
    DENIED = auto()
    """Every member refuses this user. Nothing was carried out."""
    TOO_LARGE = auto()
    """The cluster refuses requests of this size. Nothing was carried out."""
    COMPACTED = auto()
    """A compaction was carried out before, perhaps by this call's first attempt."""
    ANOTHER_CLUSTER = auto()
    """The endpoint belongs to another cluster than those that answered before."""

    @property
    def is_final(self) -> bool:
        """Whether the same request gets the same error at every member."""
        return self in (Meaning.DENIED, Meaning.TOO_LARGE)


_TABLE: Final = (
    ("PERMISSION_DENIED", "", Meaning.DENIED),
    ("INVALID_ARGUMENT", "user name is empty", Meaning.DENIED),
    ("INVALID_ARGUMENT", "authentication failed", Meaning.DENIED),
    ("UNAUTHENTICATED", "", Meaning.LOG_IN_AGAIN),
    ("INVALID_ARGUMENT", "revision of auth store is old", Meaning.LOG_IN_AGAIN),
    ("UNKNOWN", "revision in header is old", Meaning.LOG_IN_AGAIN),
    ("INVALID_ARGUMENT", "request is too large", Meaning.TOO_LARGE),
    ("OUT_OF_RANGE", "revision has been compacted", Meaning.COMPACTED),
    ("RESOURCE_EXHAUSTED", "larger than max", Meaning.TOO_LARGE),
)


class CallFailed(Exception):
    """A call on one endpoint had no usable answer."""

    def __init__(self, meaning: Meaning, detail: str) -> None:
        super().__init__(detail)
        self.meaning = meaning
        self.detail = detail


def meaning_of(code: str, text: str) -> Meaning:
    """The meaning of an error with this gRPC code.

    >>> meaning_of("INVALID_ARGUMENT", "etcdserver: request is too large")
    <Meaning.TOO_LARGE: 4>
    """
    return next((meaning for name, words, meaning in _TABLE if code == name and words in text), Meaning.NO_ANSWER)
