"""The latest value of every key, made from the change stream: the reference reader.

Owns: the public ``View`` and which events it takes. Does not own: the stream (``client``, ``commit``), ordered keys
(``ordered_keys``), the layer of recent changes (``layer``), the file (``sqlite``).

A view is a position and the state at it. ``apply`` takes events in order, proves by ``prev_version`` that none is
missing, and moves both together: a reader sees whole batches or nothing of them. One thread applies, any number of
threads read.

Failure model: a gap raises ``CorruptData`` and changes nothing of the batch it came in. After a crash a SQLite view
is at some position it had before, with exactly the state of that position (``sqlite``); subscribe after
``view.version``.
"""

from __future__ import annotations

from holdfast.extras import needs

with needs("client"):
    from holdfast.view.latest import Checkpointed, CommittedTransaction, View, ViewStorage

__all__ = ["Checkpointed", "CommittedTransaction", "View", "ViewStorage"]
