"""The keys that a token may touch: those that begin with one of its prefixes.

A token with prefixes reaches only the routes that check them. Everything that such a request names must be within one
prefix: each operation, each precondition, and a range from its begin to its end.

Ids of attempts have no keys, so they carry a tag: ``BASE64URL:rest``, the prefix of a writer without padding. Who may
touch all keys of that prefix may commit with the id, ask for its outcome and see it.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Final

from holdfast.commit.format.transaction import PointRead, RangeDelete, Transaction, prefix_end
from holdfast.errors import Code, HoldfastError, InvalidRequest, PermissionDenied

HINT = "ask the operator of the service for a token with this prefix"


@dataclass(frozen=True, slots=True)
class KeyScope:
    """The prefixes. ``NOTHING`` has none, so it holds no key; every key begins with the prefix of ``EVERYTHING``.

    >>> scope = KeyScope((b"seat/",))
    >>> scope.holds_range(b"seat/", b"seat0"), scope.holds_range(b"seat/1", None), scope.holds(b"row/1")
    (True, False, False)
    """

    prefixes: tuple[bytes, ...]

    @property
    def is_everything(self) -> bool:
        """Whether it holds every key."""
        return b"" in self.prefixes

    def holds(self, key: bytes) -> bool:
        """Whether the key begins with one of the prefixes."""
        return key.startswith(self.prefixes)

    def owns(self, request_id: str) -> bool:
        """Whether the id begins with the tag of a prefix that is wholly within the scope; of everything each id is."""
        if self.is_everything:
            return True
        prefix = tagged_prefix(request_id)
        return prefix is not None and self.holds(prefix)

    def holds_range(self, begin: bytes, end: bytes | None) -> bool:
        """Whether every key from ``begin`` up to ``end``, None for the last key, begins with one of the prefixes."""
        for prefix in self.prefixes:
            limit = prefix_end(prefix)
            if begin.startswith(prefix) and (limit is None or (end is not None and end <= limit)):
                return True
        return False

    def problem_with_range(self, begin: bytes, end: bytes | None) -> PermissionDenied | None:
        """None if every key of the range is within the scope, else the error."""
        if self.holds_range(begin, end):
            return None
        return PermissionDenied("the token may not read these keys", hint=HINT)

    @property
    def id_tag(self) -> str | None:
        """What ids of a writer with this scope begin with; None where any id will do, or none."""
        return None if self.is_everything or not self.prefixes else tag_of(self.prefixes[0])

    def problem_with(self, txn: Transaction) -> HoldfastError | None:
        """The first operation or precondition outside the scope, or an id that is not a writer's of it; or None."""
        for index, operation in enumerate(txn.operations):
            if isinstance(operation, RangeDelete):
                within = self.holds_range(operation.begin, operation.end)
            else:
                within = self.holds(operation.key)
            if not within:
                return PermissionDenied("the token may not change these keys", hint=HINT, operation=index)
        for index, read in enumerate(txn.preconditions):
            within = self.holds(read.key) if isinstance(read, PointRead) else self.holds_range(read.begin, read.end)
            if not within:
                return PermissionDenied("the token may not read these keys", hint=HINT, precondition=index)
        if txn.request_id is not None and not self.owns(txn.request_id):
            return InvalidRequest(
                "the request id does not begin with the tag of a prefix of the token",
                code=Code.ID_NEEDS_TAG,
                hint=f"begin it with {self.id_tag}: nothing was accepted",
                tag=self.id_tag,
            )
        return None


PREFIX_BYTES_MAX: Final = 64
"""Of a prefix of a token: an id has at most 255 characters, of which its tag takes at most 87."""


def tag_of(prefix: bytes) -> str:
    """What the ids of a writer with this prefix begin with.

    >>> tag_of(b"seat/")
    'c2VhdC8:'
    """
    return base64.urlsafe_b64encode(prefix).decode().rstrip("=") + ":"


def tagged_prefix(request_id: str) -> bytes | None:
    """The prefix in the tag of an id; None for an id without one, which may look like a tag by chance."""
    text, colon, _ = request_id.partition(":")
    if not colon or not text.isascii():
        return None
    try:
        prefix = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except ValueError:
        return None
    return prefix if len(prefix) <= PREFIX_BYTES_MAX and tag_of(prefix) == text + ":" else None


EVERYTHING: Final = KeyScope((b"",))
NOTHING: Final = KeyScope(())
