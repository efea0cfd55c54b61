"""Whether the invariants of a queue hold, for the queue and for what reads it. One that failed makes all unusable.

From then on every call raises the same InternalError, and nothing more is written. Closing releases the files, and
leaves them as they are: ``holdfast queue verify`` reads them.
"""

from __future__ import annotations

from weakref import WeakSet

from holdfast.errors import InternalError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn, Protocol

    class Member(Protocol):
        """What refuses every call once an invariant is broken."""

        def break_off(self, reason: InternalError) -> None:
            """Refuse everything from now on, also calls that wait. Touches no file and takes no lock that may wait."""
            ...


class Soundness:
    """Of one queue in one process. Thread-safe."""

    __slots__ = ("_members", "broken")

    def __init__(self) -> None:
        self.broken: InternalError | None = None
        self._members: WeakSet[Member] = WeakSet()

    def add(self, member: Member) -> None:
        """The member refuses everything once an invariant is broken."""
        self._members.add(member)

    def break_off(self, error: AssertionError) -> NoReturn:
        """An invariant is broken. Raises: ``InternalError``, always."""
        if self.broken is None:
            self.broken = InternalError(
                "an invariant of this queue is broken: nothing more is written",
                hint="this is a bug: report it. `holdfast queue verify` reads the files; another process can open them",
                cause=str(error) or type(error).__name__,
            )
            for member in list(self._members):
                member.break_off(self.broken)
        raise self.broken.with_traceback(None) from error

    def require(self) -> None:
        """Raise ``InternalError`` if an invariant is broken."""
        if self.broken is not None:
            raise self.broken.with_traceback(None)
