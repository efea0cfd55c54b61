"""Attempts below the conflict window, found in the log by request id.

``AttemptHistory`` answers all questions that wait with one scan, because after a takeover many clients ask at once; the
next question continues where the scan ended. It knows the request ids of every transaction after ``_low``. Above its
bound it forgets the oldest and raises ``_low``; a question below ``_low`` scans again. A client that repeats a request
asks for many commits of few objects, so the last ``OBJECTS_MAX`` objects stay decoded.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

from holdfast.commit.format.batch import Header, Kind, LoggedTransaction, decode_header, object_name, read_body_table
from holdfast.commit.format.chain import ChainWalker
from holdfast.commit.reading.reader import LoggedBatch, damage_unless_truncated, follow, walker_from
from holdfast.errors import HoldfastError, NotFound
from holdfast.objects.port import ObjectStore
from holdfast.values import Slot


@dataclass(frozen=True, slots=True)
class FirstCommit:
    """The first commit under the id, or None. ``truncated``: retention removed a part that may hold it."""

    txn: LoggedTransaction | None
    truncated: bool = False


IDS_MAX: Final = 200_000
"""About 50 MB of request ids at most."""
PREFETCH: Final = 64
OBJECTS_MAX: Final = 4


@dataclass(slots=True, eq=False)
class _Question:
    request_id: str
    min_version: int
    newest: Header
    seen: list[tuple[int, Slot]] = field(default_factory=list)
    done: bool = False
    error: HoldfastError | None = None


class AttemptHistory:
    """The committed request ids of one log that were scanned so far. At most one scan runs at a time."""

    def __init__(self, store: ObjectStore, claim: Header, *, ids_max: int = IDS_MAX) -> None:
        self._store = store
        self._claim = claim
        self._ids_max = ids_max
        self._scanning = asyncio.Lock()
        self._waiting: list[_Question] = []
        self._known: OrderedDict[str, list[tuple[int, Slot]]] = OrderedDict()
        self._low = 0
        self._walker: ChainWalker | None = None
        self._objects: OrderedDict[Slot, asyncio.Task[dict[int, LoggedTransaction]]] = OrderedDict()
        """The transactions of objects by version, decoded or about to be."""

    async def find(self, request_id: str, min_version: int, newest: Header) -> FirstCommit:
        """The first commit of ``request_id`` after ``min_version``, in the log up to ``newest``, which is durable.

        Raises: Unavailable, CorruptData.
        """
        question = _Question(request_id, min_version, newest)
        self._waiting.append(question)
        try:
            async with self._scanning:
                if not question.done:
                    await self._scan()
        finally:
            if not question.done:
                self._waiting.remove(question)
        has_gone = isinstance(question.error, NotFound)
        if question.error is not None and not has_gone:
            raise question.error
        after = [entry for entry in question.seen if entry[0] > min_version]
        if not after:
            return FirstCommit(None, truncated=has_gone or min_version < newest.truncated_through)
        return await self._read(*min(after), request_id)

    def committed_version(self, request_id: str) -> int | None:
        """The version of the first commit of ``request_id`` that any question has come upon. Cost: O(1)."""
        places = self._known.get(request_id)
        return None if places is None else min(places)[0]

    async def _read(self, version: int, slot: Slot, request_id: str) -> FirstCommit:
        reading = self._objects.get(slot)
        if reading is None:
            reading = self._objects[slot] = asyncio.create_task(self._decoded(slot))
            while len(self._objects) > OBJECTS_MAX:
                self._objects.popitem(last=False)
        try:
            txn = (await asyncio.shield(reading))[version]
        except NotFound:
            return FirstCommit(None, truncated=True)
        assert txn.request_id == request_id, "an object never changes"
        return FirstCommit(txn)

    async def _decoded(self, slot: Slot) -> dict[int, LoggedTransaction]:
        try:
            data = await self._store.read(object_name(slot))
            batch = LoggedBatch(decode_header(data, slot=slot), data)
            return {txn.version: txn for txn in batch.transactions()}
        except BaseException:
            self._objects.pop(slot, None)
            raise

    async def _scan(self) -> None:
        """Answer every waiting question by reading on, or from the lowest version that any of them names."""
        questions = [*self._waiting]
        try:
            try:
                await self._read_for(questions)
            except NotFound:
                # Part of the range is gone. Only a scan for each question shows whether that matters to it.
                for question in questions:
                    await self._read_alone(question)
        except HoldfastError as error:
            self._walker = None
            for question in questions:
                question.error = error
        except BaseException:
            # The scanning caller was cancelled. The other questions scan again from the start.
            self._walker = None
            for question in questions:
                question.seen.clear()
            raise
        for question in questions:
            question.done = True
        # A cancelled question has been removed already.
        self._waiting = [question for question in self._waiting if not question.done]

    async def _read_alone(self, question: _Question) -> None:
        self._walker = None
        question.seen.clear()
        try:
            await self._read_for([question])
        except NotFound as error:
            self._walker = None
            question.error = damage_unless_truncated(error, question.newest)

    async def _read_for(self, questions: list[_Question]) -> None:
        low = min(question.min_version for question in questions)
        newest = min((question.newest for question in questions), key=lambda header: header.slot)
        if self._walker is None or low < self._low:
            self._known, self._low = OrderedDict(), low
            self._walker = await walker_from(self._store, (newest, self._claim), low)
        by_id: dict[str, list[_Question]] = {}
        for question in questions:
            question.seen += self._known.get(question.request_id, ())
            by_id.setdefault(question.request_id, []).append(question)
        if self._walker.head is None or self._walker.head.slot > newest.slot:
            async for batch in follow(self._store, self._walker, until=newest.slot, prefetch=PREFETCH):
                self._note(batch, by_id)

    def _note(self, batch: LoggedBatch, asked: dict[str, list[_Question]]) -> None:
        header = batch.header
        if header.kind is Kind.CLAIM or not header.transactions:
            return
        table = read_body_table(batch.data, header)
        ids = table.column("request_id")
        if ids.null_count == len(ids):
            return
        last = -1
        for request_id, version in zip(ids.to_pylist(), table.column("version").to_pylist(), strict=True):
            if version == last or request_id is None:
                continue
            last = version
            entry = (version, header.slot)
            self._known.setdefault(request_id, []).append(entry)
            for question in asked.get(request_id, ()):
                question.seen.append(entry)
        while len(self._known) > self._ids_max:
            _, oldest = self._known.popitem(last=False)
            self._low = max(self._low, *(version for version, _ in oldest))
