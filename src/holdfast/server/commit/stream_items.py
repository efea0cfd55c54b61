"""The items of one stream of commits, from their admission to their results, which come in the order of the items."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from holdfast.commit.format.batch import repeated_bytes
from holdfast.commit.format.transaction import Committed, Transaction
from holdfast.commit.stages.events import CommitEntry
from holdfast.errors import HoldfastError
from holdfast.server.gateway import Gateway
from holdfast.server.http.key_scope import KeyScope
from holdfast.server.http.requests import problem_with
from holdfast.wire.formats import WireFormat


class StreamItems:
    """Items without a result, and what is known of the first ones of them. ``wake`` is called when that is more."""

    __slots__ = ("_gateway", "_index", "_last", "_wake", "due", "due_bytes", "wire_format")

    def __init__(self, gateway: Gateway, wire_format: WireFormat, wake: Callable[[], None]) -> None:
        self._gateway = gateway
        self.wire_format: WireFormat = wire_format
        self._wake = wake
        self.due: deque[CommitEntry] = deque()
        self.due_bytes = 0
        self._last: CommitEntry | None = None
        """The entry with the error that ends the stream."""
        self._index = 0

    def submit(self, txns: list[Transaction], weight: int, authorization: bytes | None, scope: KeyScope | None) -> None:
        """Hand admitted items to the service; those that break a rule have their error. ``weight``: bytes of each.

        ``scope``: the keys that they may name, None for all.
        """
        gateway = self._gateway
        leader_id, log_id, limits = gateway.own.leader_id, gateway.log_id, gateway.limits
        complete, due = self._complete, self.due
        accepted: list[CommitEntry] = []
        accepted_bytes = due_bytes = 0
        for txn in txns:
            entry = CommitEntry(txn, complete, None, weight + repeated_bytes(txn))
            problem = problem_with(
                txn,
                leader_id=leader_id,
                log_id=log_id,
                lineage=gateway.lineage,
                request_id_length_min=limits.request_id_length_min,
                operations_max=limits.operations_max,
                preconditions_max=limits.preconditions_max,
            )
            if problem is None and scope is not None:
                problem = scope.problem_with(txn)
            if problem is None and txn.has_parts:
                problem = gateway.read_parts(entry, authorization, self.wire_format)
            if problem is None:
                accepted.append(entry)
                accepted_bytes += entry.size
            else:
                entry.ticket = problem
            due_bytes += entry.size
            due.append(entry)
        self.due_bytes += due_bytes
        gateway.counters.stream_items += len(txns)
        if accepted:
            gateway.submit(accepted, accepted_bytes)
        if len(accepted) < len(txns):
            self._wake()

    def end_with(self, problem: HoldfastError) -> None:
        """The stream ends: neither the next item nor any after it is taken."""
        entry = self._last = CommitEntry(Transaction([]), self._complete, problem)
        self.due.append(entry)
        self._wake()

    def _complete(self, entry: CommitEntry) -> None:
        self._gateway.settled(1, entry.size)
        due = self.due
        if due and due[0] is entry:
            self._wake()

    def results(self) -> bytes:
        """The results that are known and in order, each once."""
        due, answers, wire_format = self.due, self._gateway.answers, self.wire_format
        json = wire_format == "json"
        index = self._index
        parts: list[bytes] = []
        plain: list[int] = []
        while due:
            entry = due[0]
            problem = entry.ticket
            outcome = entry.outcome
            if problem is None and outcome is None:
                break
            due.popleft()
            self.due_bytes -= entry.size
            index += 1
            request_id = entry.txn.request_id
            if json and problem is None and type(outcome) is Committed and outcome.results is None:
                if request_id is None:
                    plain.append(outcome.version)
                    continue
                if not plain:
                    parts.append(answers.committed_line(outcome.version, request_id))
                    continue
            if plain:
                parts.append(answers.committed_lines(plain))
                plain = []
            if isinstance(problem, HoldfastError):
                is_last = entry is self._last
                parts.append(answers.item_error(problem, index=index - 1, wire_format=wire_format, ends=is_last))
                continue
            assert outcome is not None, "an item without an error has its outcome"
            parts.append(
                answers.stream_item(
                    outcome,
                    durable_version=entry.durable_version,
                    request_id=request_id,
                    index=index - 1,
                    wire_format=wire_format,
                )
            )
        if plain:
            parts.append(answers.committed_lines(plain))
        self._index = index
        return b"".join(parts)

    def end(self) -> None:
        """Drop the results that are still due, each of which refers to this, and who was to be woken."""
        self.due.clear()
        self._last = None
        self._wake = _nobody


def _nobody() -> None:
    """Who is woken after the end."""
