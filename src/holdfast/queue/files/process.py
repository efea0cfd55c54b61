"""What a process does to open queues: it forks, drops objects without ``close()``, and runs a helper thread.

- A forked child shares its parent's lock and file positions, so every open queue in a child refuses everything.
- The garbage collector may run a finalizer in any thread, inside any lock. So a finalizer takes no lock and touches no
  file: it puts the closing into a ``SimpleQueue`` for another thread, and warns (``ResourceWarning``). At the
  interpreter's exit nothing is closed. ``threading.excepthook`` reports an error of a closing.
- The helper thread is a daemon. Waking it takes no lock of Python's, which an interrupt (Ctrl-C) could leave locked.
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

from holdfast.errors import AlreadyOpen, Closed, Code, HoldfastError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from types import TracebackType
    from typing import NoReturn, Protocol, Self, TypeVar

    class Poisonable(Protocol):
        """What can be open across a fork."""

        def _poison_after_fork(self) -> None:
            """Called in the child, by its only thread."""

    Result = TypeVar("Result")


def forked(what: str) -> Closed:
    """The error of a forked child."""
    return Closed(f"a forked child cannot {what}", code=Code.FORKED, hint="open it in one process")


def copies_refused(kind: str) -> TypeError:
    """The error of ``pickle`` and ``copy``, for an object with open files."""
    return TypeError(f"a {kind} cannot be pickled or copied: in the other process, open the queue again by its path")


_open: WeakSet[Poisonable] = WeakSet()


def poison_in_children(opened: Poisonable) -> None:
    """Call ``_poison_after_fork`` in every child that is forked while the object exists."""
    _open.add(opened)


def _after_fork() -> None:
    for opened in list(_open):
        opened._poison_after_fork()  # pyright: ignore[reportPrivateUsage] - not for programs


os.register_at_fork(after_in_child=_after_fork)


WAIT_S_MAX = 10.0
PACKAGE = __name__.partition(".")[0]
INSIDE = f"{PACKAGE}."


class _Closer:
    """The thread that closes dropped objects. The first drop starts it: with a second thread the C library's memory
    allocator is slower, and reading 1 KiB payloads took 4 % longer.
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
        """Start the thread, once, without a lock, unlike ``threading.Thread``. A call after a failure tries again."""
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
    """Where the program opens something, ``file:line``: the first frame outside of this package."""
    location: str = getattr(_here, "location", "")
    if location:
        return location
    frame = sys._getframe()  # pyright: ignore[reportPrivateUsage] - a frame, without reading sources
    while frame.f_back is not None:
        name = frame.f_globals.get("__name__", "")
        if not name.startswith(INSIDE) and name != PACKAGE:
            break
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


@contextmanager
def opening_from(location: str) -> Generator[None]:
    """A block on another thread that opens something for the program at ``location``."""
    _here.location = location
    try:
        yield
    finally:
        _here.location = ""


def close_when_dropped(
    owner: object, what: str, path: str, release: Callable[[], object], *, warn: bool, opened: str | None = None
) -> Callable[[], object]:
    """Run ``release`` on the closer's thread when ``owner`` is dropped; ``release`` must not keep it alive.

    ``opened`` is where it was opened, if the caller knows. Returns a function that cancels this.
    """
    opened = opened or opened_at()
    finalizer = weakref.finalize(owner, _dropped, os.getpid(), what if warn else "", path, opened, release)
    finalizer.atexit = False
    return finalizer.detach


def locked_after_dropped(lock: Callable[[], Result]) -> Result:
    """The result of ``lock``, after everything dropped is closed. If this process has the lock, its holder may be in a
    reference cycle: collect garbage and try once more.
    """
    _closer.wait()
    try:
        return lock()
    except AlreadyOpen as error:
        if error.fields.get("pid") != str(os.getpid()):
            raise
    gc.collect()
    _closer.wait()
    return lock()


def _dropped(pid: int, what: str, path: str, location: str, release: Callable[[], object]) -> None:
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
        warnings.warn(f"{what} {path} was not closed; it was opened at {location}", ResourceWarning, stacklevel=2)


class _WithBlock:
    """A ``with`` block that closes the object. The name is private so that it is not part of the public classes."""

    def close(self) -> object:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise copies_refused(type(self).__name__)


WithBlock = _WithBlock


class Background:
    """Calls ``work`` after each ``wake`` and every ``interval_s`` seconds (None: only when woken), until ``stop``. The
    thread starts when it is needed; with an interval in the constructor, which raises ``RuntimeError`` if the system
    has no thread to give. ``work`` handles its own errors.
    """

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
        """Run the work soon. Never blocks or raises."""
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
        """End the thread after its current work."""
        with self._starting:
            self._stopped = True
        self._wakes.put(None)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
