"""Mutants of gathering: the real code with one rule taken out, which a world must notice."""
# pyright: reportPrivateUsage=false

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING, Final

from tests.worlds.gathering.shape import ENDS, OWN, READ, SENT, TRUE, UNSENT
from tests.worlds.gathering.world import run_world
from tests.worlds.harness import Mutants

from holdfast.client.protocol import gathered_commits, gathered_reads, log_operations
from holdfast.client.protocol.effects import Failed, Item, Procedure
from holdfast.client.protocol.gathered_commits import Commits
from holdfast.client.protocol.gathering import Answer, Effects, Gathering, SharedRequest
from holdfast.client.protocol.transaction import ServiceSource
from holdfast.values import LogPosition
from holdfast.wire.log import CommitReceipt, NotCommitted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.wire.log import ErrorBody

__all__ = ["MUTANTS"]

MUTANTS: Final = Mutants(run_world, seeds_max=100)
CROWD: Final = {"callers": 20, "calls": 12, "items_max": 20, "think_ms": 0.0, "transacts": 0.0, "proxies": 0.0}
CUTS: Final = {**CROWD, "lost": 0.1, "kills": 4}


@MUTANTS.breaks(OWN, "own", Commits, focus={**CROWD, "mixes": 0.3})
def an_answer_is_given_to_another(self: Commits, answers: Sequence[Answer], items: Sequence[Item]) -> int:
    """The next line is taken for the answer to the next item, whatever it names."""
    del self
    verdicts = takewhile(lambda answer: isinstance(answer, CommitReceipt | NotCommitted), answers)
    return min(len(list(verdicts)), len(items))


@MUTANTS.breaks(ENDS, "_leave_open", Gathering, focus=CUTS)
def the_tail_is_lost(self: Gathering, shared: SharedRequest, answer: Answer, settled: list[Item]) -> None:
    """After a broken connection the first item without an answer learns of it, and those after it do not."""
    self._end(shared)
    self._settle(shared.items[shared.answered : shared.answered + 1], [answer], settled)


@MUTANTS.breaks(SENT, "_leave_open", Gathering, focus=CUTS)
def sent_again_after_a_reconnect(self: Gathering, shared: SharedRequest, answer: Answer, settled: list[Item]) -> None:
    """What has no answer when the connection breaks is sent on the next one."""
    del answer, settled
    self._end(shared)
    for item in reversed(shared.items[shared.answered :]):
        if item.settled is None and not item.has_left:
            self._waiting.appendleft(item)


_leave_open = Gathering._leave_open


@MUTANTS.breaks(SENT, "_leave_open", Gathering, focus=CUTS)
def a_tail_counts_as_not_sent(self: Gathering, shared: SharedRequest, answer: Answer, settled: list[Item]) -> None:
    """What has no answer when the connection breaks counts as not accepted."""
    if isinstance(answer, Failed):
        answer = Failed(answer.now_ms, False, answer.reason)
    _leave_open(self, shared, answer, settled)


_take_back = Gathering._take_back


@MUTANTS.breaks(ENDS, "_take_back", Gathering, focus={**CROWD, "ends": 0.1})
def what_comes_after_an_end_is_lost(
    self: Gathering, shared: SharedRequest, now_ms: float, settled: list[Item]
) -> Effects:
    """The items after the one that ended the stream do not wait again."""
    del shared.items[shared.answered :]
    return _take_back(self, shared, now_ms, settled)


_refusal = gathered_commits._refusal


def _every_error_ends(line: bytes, now_ms: float) -> Answer:
    answer = _refusal(line, now_ms)
    if isinstance(answer, gathered_commits.ItemRefused):
        return gathered_commits.ItemRefused(answer.reply, answer.index, ends=True)
    return answer


MUTANTS.add(
    "every_error_ends_a_stream",
    SENT,
    (gathered_commits, "_refusal", _every_error_ends),
    focus={**CROWD, "refuses": 0.1},
)


@MUTANTS.breaks(UNSENT, "left", Gathering, focus={**CROWD, "leaves": 0.5})
def those_that_left_are_sent(self: Gathering, item: Item) -> None:
    """An item whose caller has left stays where it waits."""
    del self, item


def _oldest(items: Sequence[Item]) -> LogPosition | None:
    return LogPosition(min(item.at for item in items), items[0].group[0]) if items[0].group else None


MUTANTS.add(
    "reads_travel_at_the_oldest_position",
    READ,
    (gathered_reads, "_position", _oldest),
    focus={"transacts": 1.0, "lag_ms": 100.0, "callers": 40, "think_ms": 0.0},
)


@MUTANTS.breaks(READ, "get", ServiceSource, focus={"transacts": 1.0, "lag_ms": 100.0, "callers": 12})
def a_read_is_older_than_asked(
    self: ServiceSource, key: bytes, at: int, now_ms: float
) -> Procedure[log_operations.KeysRead]:
    """A read does not say how new it must be."""
    del at
    self._session.newest = None
    found, version = yield from log_operations.read_key(self._session, key, None, now_ms)
    return log_operations.KeysRead(version, [None if found is None else (found.value, found.version)])


def _never_open(error: ErrorBody | None, status: int) -> bool:
    del error, status
    return False


MUTANTS.add(
    "a_proxys_error_is_a_refusal",
    TRUE,
    (log_operations, "leaves_open", _never_open),
    focus={"proxies": 0.3, "callers": 12, "lost": 0.0, "transacts": 0.0},
)
