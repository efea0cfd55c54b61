"""Queues, consumers and work queues that a program drops without ``close()``: they are closed soon, on another thread.

Owns: the finalizers, the thread that closes, the place in the program where something was opened. Does not own: what
closing is (``queue``, ``consumer``, ``work_queue``).

Failure model: the garbage collector may run a finalizer in any thread, inside any lock. So a finalizer takes no lock
and touches no file: it puts the work into a ``SimpleQueue``, which is made for that, and warns (``ResourceWarning``). A
forked child closes nothing of its parent's. At the interpreter's exit nothing is closed: what is open is found as after
a kill, and loses nothing that the operating system has. An error of one closing, or of its warning (``-W error``), is
printed by ``threading.excepthook``, and the thread goes on.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
import warnings
import weakref
from _thread import start_new_thread
from contextlib import contextmanager
from queue import SimpleQueue

from holdfast.errors import AlreadyOpen, HoldfastError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from typing import TypeVar

    Found = TypeVar("Found")

__all__ = ["close_when_dropped", "locked_after_dropped", "opened_at", "opening_from", "wait_until_closed"]

WAIT_S_MAX = 10.0
PACKAGE = __name__.partition(".")[0]
INSIDE = f"{PACKAGE}."


class _Closer:
    """One thread that closes everything that was dropped. The first drop starts it.

    A program that drops nothing stays single-threaded if it was: with a second thread, the memory allocator of the C
    library is slower, and reading payloads of 1 KiB took 4 % longer.
    """

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Also in a forked child, which has no threads of its parent."""
        self.work: SimpleQueue[Callable[[], object]] = SimpleQueue()
        self.waiting: list[object] = []  # what was dropped and is not closed yet
        self._unstarted = [True]  # popped by the call that starts the thread
        self._thread_id = 0

    def start(self) -> None:
        """Start the thread, once. A finalizer may call it: it takes no lock, as ``threading.Thread`` would.

        Where the system has no thread to give, the next call asks again.
        """
        try:
            self._unstarted.pop()
        except IndexError:
            return
        try:
            start_new_thread(self._run, ())
        except RuntimeError:
            self._unstarted.append(True)

    def _run(self) -> None:
        self._thread_id = threading.get_ident()
        work = self.work
        try:
            while True:
                try:
                    work.get()()
                except BaseException:  # noqa: BLE001 - reported as the error of a thread; the next ones must be closed
                    kind, error, trace = sys.exc_info()
                    assert kind is not None, "an error is handled"
                    threading.excepthook(threading.ExceptHookArgs((kind, error, trace, None)))
        finally:
            self._unstarted.append(True)  # the hook itself failed
            if not work.empty():
                self.start()

    def wait(self) -> None:
        """Return when everything is closed that was dropped before, after a few seconds at the latest."""
        if not self.waiting or self._thread_id == threading.get_ident():
            return
        self.start()
        if not self._unstarted:
            done = threading.Event()
            self.work.put(done.set)
            done.wait(WAIT_S_MAX)


_closer = _Closer()
os.register_at_fork(after_in_child=_closer.renew)
_here = threading.local()


def opened_at() -> str:
    """Where the program opens something just now, ``file:line``: the first frame that is not this package's."""
    place: str = getattr(_here, "place", "")
    if place:
        return place
    frame = sys._getframe()  # pyright: ignore[reportPrivateUsage] - a frame, without reading sources
    while frame.f_back is not None:
        name = frame.f_globals.get("__name__", "")
        if not name.startswith(INSIDE) and name != PACKAGE:
            break
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


@contextmanager
def opening_from(place: str) -> Generator[None]:
    """A block on another thread that opens something for the program at ``place``."""
    _here.place = place
    try:
        yield
    finally:
        _here.place = ""


def close_when_dropped(
    owner: object, what: str, path: str, release: Callable[[], object], *, warn: bool, place: str | None = None
) -> Callable[[], object]:
    """Run ``release`` on the closer's thread when ``owner`` is dropped; ``release`` must not keep it alive.

    ``place`` is where it was opened, where the caller has it already. Returns how to take that back: call it when the
    owner is closed.
    """
    place = place or opened_at()
    finalizer = weakref.finalize(owner, _dropped, os.getpid(), what if warn else "", path, place, release)
    finalizer.atexit = False
    return finalizer.detach


def wait_until_closed() -> None:
    """Call before something is opened: it may be what was dropped just now."""
    _closer.wait()


def locked_after_dropped(lock: Callable[[], Found]) -> Found:
    """The result of ``lock``, once everything is closed that was dropped.

    Where this process has the lock already, its holder may be in a reference cycle: collects these and tries once more.
    *Raises*: as ``lock``. *Cost*: a full garbage collection, only then.
    """
    wait_until_closed()
    try:
        return lock()
    except AlreadyOpen as error:
        if error.fields.get("pid") != str(os.getpid()):
            raise
    gc.collect()
    wait_until_closed()
    return lock()


def _dropped(pid: int, what: str, path: str, place: str, release: Callable[[], object]) -> None:
    if os.getpid() != pid:
        return
    waiting = _closer.waiting
    waiting.append(release)

    def close() -> None:
        try:
            release()
        except (HoldfastError, OSError) as error:
            warnings.warn(f"{path} was dropped, and closing it failed: {error}", ResourceWarning, stacklevel=1)
        finally:
            waiting.remove(release)

    _closer.work.put(close)
    _closer.start()
    if what:
        warnings.warn(f"{what} {path} was not closed; it was opened at {place}", ResourceWarning, stacklevel=2)
