"""The entries that a cleared map or last value has still to give back, in steps.

Owns: ``KeyedResidue``. Does not own: when the next step is taken (``state``, with ``Expire``), reports to watchers
(``map_commands``).

Failure model: pure. A clear takes effect at once and its result is exact, because the durable continues with another
place for its entries. Until the residue is done its messages count against the limits of the store and the cluster.
"""

from __future__ import annotations

import msgspec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.stores.durables.backlog import Shelf
    from holdfast.stores.values.ports import Entries, Entry

__all__ = ["KeyedResidue", "KeyedResidueState"]

STEP_ENTRIES = 1_024
"""Entries that one step gives back at most."""


class KeyedResidueState(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A residue in a snapshot. Append only."""

    durable: str
    place: str
    left: int
    since_ms: int
    is_map: bool = False
    cause: str = ""
    """The cause that watchers of the map receive for each key; empty: they receive nothing."""
    revision: int = 0
    """The revision of the change that removed the keys; 0: each key is reported with its own revision."""
    after: str = ""
    """The last key that was given back in order."""


class KeyedResidue:
    """The entries at ``place``, which were those of ``durable``."""

    __slots__ = ("_entries", "_shelf", "after", "left", "of")

    def __init__(self, of: KeyedResidueState, shelf: Shelf, entries: Entries) -> None:
        self.of = of
        self.left = of.left
        self.after = of.after
        self._shelf = shelf
        self._entries = entries

    @property
    def is_done(self) -> bool:
        """Whether everything was given back."""
        return not self.left

    def step(self, most: int | None = None) -> list[Entry]:
        """Give back up to ``most`` entries and ``STEP_ENTRIES``, in the order of their keys; returns them."""
        count = STEP_ENTRIES if most is None else min(most, STEP_ENTRIES)
        taken = self._entries.take_after(self._shelf.store, self.of.place, self.after, count)
        for entry in taken:
            self._give_back(entry)
            self.after = entry.key
        assert taken or not self.left, "the place has every entry that is left"
        return taken

    def take(self, key: str) -> Entry | None:
        """Give the entry of one key back now; None where there is none."""
        entry = self._entries.get(self._shelf.store, self.of.place, key)
        if entry is not None:
            self._entries.remove(self._shelf.store, self.of.place, key)
            self._give_back(entry)
        return entry

    def silence(self) -> None:
        """Report nothing more to watchers: the durable was deleted, and that was reported."""
        self.of = msgspec.structs.replace(self.of, cause="")

    def _give_back(self, entry: Entry) -> None:
        self._shelf.counts.release(entry.revision, entry.revision)
        self.left -= 1

    def kept(self) -> list[Entry]:
        """Every entry that is not given back yet. Cost: O(left); for checks and repairs."""
        return list(self._entries.scan(self._shelf.store, self.of.place))

    def state(self) -> KeyedResidueState:
        """What a snapshot keeps besides the entries."""
        return msgspec.structs.replace(self.of, left=self.left, after=self.after)
