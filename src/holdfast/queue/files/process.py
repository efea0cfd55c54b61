"""Forked children: a queue that is open for writing stays with the parent.

Owns: which queues are told. Does not own: what they do then (``queue``, ``writer``).

Failure model: a child shares its parent's lock and file positions, so that two processes would write to one log. Every
open queue of a child refuses everything from the moment of the fork on.

Queues, consumers and work queues that a program drops without ``close()``: they are closed soon, on another thread.

Owns: the finalizers, the thread that closes, the place in the program where something was opened. Does not own: what
closing is (``queue``, ``consumer``, ``work_queue``).

Failure model: the garbage collector may run a finalizer in any thread, inside any lock. So a finalizer takes no lock
and touches no file: it puts the work into a ``SimpleQueue``, which is made for that, and warns (``ResourceWarning``). A
forked child closes nothing of its parent's. At the interpreter's exit nothing is closed: what is open is found as after
a kill, and loses nothing that the operating system has. An error of one closing, or of its warning (``-W error``), is
printed by ``threading.excepthook``, and the thread goes on.

The helper thread of a writer: what must be done soon, and not on an appending thread.

Owns: the thread, when it wakes. Does not own: the work (``queue``).

Failure model: work handles its own errors, and is tried again at the next wake; nothing is lost by one, because whoever
needs the result does the work itself and gets the error. What it raises all the same ends the thread. It is a daemon:
an interpreter that exits does not wait for it, and a queue that is not closed is found as after a kill. Waking it takes
no lock of Python's, in which an interrupt (Ctrl-C) could leave the caller's next wake waiting for ever.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
import warnings
import weakref
from _thread import start_new_thread
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from weakref import WeakSet

from holdfast.errors import AlreadyOpen, HoldfastError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from typing import Protocol, TypeVar

    class Poisonable(Protocol):
        """What can be open across a fork."""

        def poison_after_fork(self) -> None:
            """Called in the child, by its only thread."""
            ...

    Found = TypeVar("Found")

_open: WeakSet[Poisonable] = WeakSet()
_registered: list[bool] = []


def poison_in_children(queue: Poisonable) -> None:
    """Call ``queue.poison_after_fork()`` in every child that is forked while the queue exists."""
    if not _registered:
        os.register_at_fork(after_in_child=_after_fork)
        _registered.append(True)
    _open.add(queue)


def _after_fork() -> None:
    for queue in list(_open):
        queue.poison_after_fork()


WAIT_S_MAX = 10.0
PACKAGE = __name__.partition(".")[0]


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
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == PACKAGE:
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
    owner: object, what: str, path: str, release: Callable[[], object], *, warn: bool
) -> Callable[[], object]:
    """Run ``release`` on the closer's thread when ``owner`` is dropped; ``release`` must not keep it alive.

    Returns how to take that back: call it when the owner is closed.
    """
    finalizer = weakref.finalize(owner, _dropped, os.getpid(), what if warn else "", path, opened_at(), release)
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


class Background:
    """Calls ``work`` after each ``wake`` and every ``interval_s`` seconds (None: only when woken), until ``stop``.

    The thread starts at the first need of it: with an interval when it is made, which raises ``RuntimeError`` where the
    system has none to give.
    """

    __slots__ = ("_interval_s", "_starting", "_stopped", "_thread", "_wakes", "_work")

    def __init__(self, work: Callable[[], None], interval_s: float | None) -> None:
        self._work = work
        self._interval_s = interval_s
        self._wakes: SimpleQueue[None] = SimpleQueue()
        self._starting = threading.RLock()
        self._stopped = False
        self._thread: threading.Thread | None = None
        if interval_s is not None:
            self._start()
            self.wake()

    def wake(self) -> None:
        """Soon. Never blocks, and never raises: what wakes it has been done already."""
        if self._thread is None:
            with suppress(RuntimeError):  # the system has no thread to give: the next wake asks again
                self._start()
        if self._wakes.empty():  # one is enough for all that come before the thread has looked
            self._wakes.put(None)

    def _start(self) -> None:
        with self._starting:
            if self._thread is None and not self._stopped:
                thread = threading.Thread(target=self._run, name="holdfast-queue", daemon=True)
                thread.start()
                self._thread = thread  # one that is known has been started, so it can be waited for

    def _run(self) -> None:
        while True:
            try:
                self._wakes.get(timeout=self._interval_s)
            except Empty:
                pass  # the interval has passed
            if self._stopped:
                self._wakes.put(None)  # for another that an interrupt of its start has left unknown
                return
            self._work()

    def stop(self) -> None:
        """End the thread and wait for the work that it is at."""
        with self._starting:
            self._stopped = True
        self._wakes.put(None)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
