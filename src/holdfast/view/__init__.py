"""The latest value of every key, made from the change stream.

Read ``latest`` first: a ``View`` is a position and the state at it. ``apply`` takes events in order, proves by
``prev_version`` that none is missing, and moves both together, so a reader sees whole batches. One thread applies, any
number of threads read. A gap raises ``CorruptData`` and changes nothing. After a crash a SQLite view is at an earlier
position, with exactly the state of that position; subscribe after ``view.position``.

``storage`` has the state in memory and its port, ``sqlite`` the state in a file.
"""

from __future__ import annotations

from holdfast.extras import needs

with needs("client"):
    from holdfast.view.latest import View
    from holdfast.view.storage import ViewStorage

__all__ = ["View", "ViewStorage"]
