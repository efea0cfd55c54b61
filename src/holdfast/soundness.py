"""Whether the invariants of an object of the program hold. One that failed makes the object unusable.

From then on every call raises the same InternalError, also calls that wait, and nothing more is written or sent. A
service's process ends instead (``server.exits``): ``report_broken`` reports to its event loop.
"""

from __future__ import annotations

from weakref import WeakMethod

from holdfast.errors import InternalError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable
    from typing import NoReturn


class Soundness:
    """Of one queue in one process, with its consumers and work queues, or of one client. Thread-safe."""

    __slots__ = ("_hint", "_listeners", "_noun", "broken")

    def __init__(self, noun: str, hint: str) -> None:
        self._noun = noun
        self._hint = hint
        self.broken: InternalError | None = None
        self._listeners: dict[WeakMethod[Callable[[InternalError], None]], None] = {}

    def tell(self, method: Callable[[InternalError], None]) -> None:
        """Call a method with the error once an invariant is broken, while its object lives. It touches no file."""
        listeners = self._listeners
        listeners[WeakMethod(method, lambda dead: listeners.pop(dead, None))] = None

    def break_off(self, error: AssertionError) -> NoReturn:
        """An invariant is broken. Raises: ``InternalError``, always."""
        if self.broken is None:
            self.broken = InternalError(
                f"an invariant of this {self._noun} is broken, so it can be used no more",
                hint=f"this is a bug: report it. {self._hint}",
                cause=str(error) or type(error).__name__,
            )
            for reference in list(self._listeners):
                if (method := reference()) is not None:
                    method(self.broken)
        raise self.broken.with_traceback(None) from error

    def require(self) -> None:
        """Raise ``InternalError`` if an invariant is broken."""
        if self.broken is not None:
            raise self.broken.with_traceback(None)


def report_broken(loop: asyncio.AbstractEventLoop, error: BaseException) -> None:
    """Does not return where the loop is that of the service's process."""
    broken = error
    if not isinstance(error, AssertionError):
        broken = AssertionError(f"{type(error).__name__}: {error}")
        broken.__cause__ = error
    loop.call_exception_handler({"message": "an invariant is broken", "exception": broken})
