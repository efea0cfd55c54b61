"""Taking messages that are lost out of a store: nobody waits for them any more, and everybody's counts are right again.

Owns: that. Does not own: which messages are lost (``repair``), what is done with them in ordinary ways (``durables``).

Failure model: pure. No command does this, because no log that is whole leads here: it is done to a state that was just
opened, and the whole state is written behind it.

Who wanted a message with a matcher is not known where the message cannot be read. So what is known is taken back: what
subscribers hold, what came back, what is dying, the keys whose message it is. Then nobody keeps the lost ones any more,
and what each durable has left is counted anew.
"""

from __future__ import annotations

from holdfast.stores.durables.consumption import Consumption

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.stores.machine.state import State
    from holdfast.stores.machine.store import Durable, Store
    from holdfast.stores.values.sequence_set import SequenceSet

__all__ = ["CAUSE", "lose"]

CAUSE = "damaged"
"""What the durables' counts of lost messages say."""
PAGE = 4_096


def lose(state: State, name: str, lost: SequenceSet) -> dict[str, int]:
    """Take these messages out of a store. Returns how many each durable lost, by its name, where it lost any.

    *Cost*: reads the backlog of every durable of the store.
    """
    store = state.store(name)
    before = {durable: _kept(found) for durable, found in store.durables.items()}
    for durable in store.durables.values():
        _take_out(durable, lost)
    for residue in store.residues:
        for first, last in lost.runs():
            residue.backlog.exclude(first, last)
    for left in store.keyed_residues:
        for entry in [entry for entry in left.kept() if entry.revision in lost]:
            left.take(entry.key)
    store.forget_done()
    for first, last in lost.runs():
        for seq in range(first, last + 1):
            store.counts.lose(seq)
    losses: dict[str, int] = {}
    for durable_name, found in store.durables.items():
        if isinstance(found, Consumption):
            _count(found)
        if gone := before[durable_name] - _kept(found):
            losses[durable_name] = gone
            if isinstance(found, Consumption):
                found.lose(CAUSE, gone)
        state.arm(store, durable_name)
    _count_residues(store)
    return losses


def _kept(durable: Durable) -> int:
    return durable.pending if isinstance(durable, Consumption) else durable.keyed.messages


def _take_out(durable: Durable, lost: SequenceSet) -> None:
    """Take the lost messages out of every place in which the durable knows that it has them."""
    if not isinstance(durable, Consumption):
        for entry in [entry for entry in durable.keyed.scan() if entry.revision in lost]:
            durable.keyed.lose(entry.key, CAUSE)
        return
    for first, last in lost.runs():
        for holding in durable.holdings.of.values():
            for run in durable.holdings.take(holding, first, last):
                durable.release(run[0], run[1])
        for seq in range(first, last + 1):
            if durable.returned.remove(seq) is not None or durable.take_dying(seq) is not None:
                durable.release(seq, seq)
        durable.backlog.exclude(first, last)


def _count(durable: Consumption) -> None:
    """Count what the durable keeps: all of it but for what is retained."""
    backlog = durable.backlog
    backlog.delayed_total = len(backlog.passed_delayed())
    counts, after = durable.shelf.counts, 0
    durable.pending = durable.pending_bytes = 0
    while page := durable.browse(after, PAGE):
        durable.pending += len(page)
        durable.pending_bytes += sum(counts.size(seq, seq) for seq, _ in page)
        after = page[-1][0]
    backlog.forget_passed()


def _count_residues(store: Store) -> None:
    for residue in store.residues:
        if residue.left is not None:
            residue.left = len(residue.kept())
    store.residues = [residue for residue in store.residues if not residue.is_done]
