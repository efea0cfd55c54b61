"""The queue as its consumers and work queues see it. ``Queue`` implements this and documents the methods."""

from __future__ import annotations

from typing import Any, Protocol

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from contextlib import AbstractContextManager
    from datetime import datetime
    from types import TracebackType

    from holdfast.queue.files.pages import PageDirectory
    from holdfast.queue.log.messages import Message
    from holdfast.queue.log.reader import DamagePolicy, LogReader, Waiter
    from holdfast.queue.log.space import Space
    from holdfast.queue.serializers import Serializer


class QueuePort(Protocol):
    """An open queue. A dependent, a consumer or a work queue, is closed before it."""

    # ruff: noqa: D102

    @property
    def pages(self) -> PageDirectory: ...
    @property
    def serializer(self) -> Serializer | None: ...
    @property
    def space(self) -> Space: ...
    @property
    def writable(self) -> bool: ...
    @property
    def syncs_always(self) -> bool: ...
    @property
    def first_seq(self) -> int: ...
    @property
    def last_seq(self) -> int: ...
    @property
    def durable_seq(self) -> int: ...
    def append(self, payload: object) -> int: ...
    def append_many(self, payloads: Iterable[object], *, atomic: bool = False) -> tuple[int, int]: ...
    def wait_durable(self, seq: int) -> None: ...
    def flush(self) -> None: ...
    def trim(self, *, before_seq: int) -> int: ...
    def read(
        self,
        *,
        since: datetime | str | None = None,
        seq: int | None = None,
        follow: bool = False,
        damage: DamagePolicy | None = None,
    ) -> Iterator[Message]: ...
    def reader(
        self, *, since: datetime | str | None = None, seq: int | None = None, damage: DamagePolicy | None = None
    ) -> LogReader: ...
    def asking(self) -> AbstractContextManager[None]: ...
    def waiter(self) -> Waiter: ...
    def forget(self, dependent: Any) -> None: ...
    def close_when_dropped(self, dependent: Any, what: str, release: Callable[[], object]) -> Callable[[], object]: ...
    def beside(
        self,
        name: str,
        *,
        page_size: int = 1 << 20,
        sync: str | None = None,
        clock: Callable[[], int] | None = None,
        read_only: bool = False,
    ) -> QueuePort: ...
    def close(self) -> None: ...
    def __enter__(self) -> QueuePort: ...  # noqa: PYI034 - Self would make the protocol recursive
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
