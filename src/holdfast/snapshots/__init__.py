"""Snapshots: the state of a log at one version, in Parquet files next to the log.

Read ``manifest`` first: the names, and what a snapshot promises. ``part`` has the files, ``making`` writes a snapshot,
``reading`` finds and verifies one. A snapshot exists when its manifest does; the manifest is created last, so a maker
that is killed leaves parts that nobody reads.
"""

from __future__ import annotations

from holdfast.extras import needs

with needs("server"):
    from holdfast.snapshots.making import make_snapshot
    from holdfast.snapshots.manifest import Manifest, Part
    from holdfast.snapshots.reading import list_snapshots, newest_snapshot, read_part, read_rows

__all__ = [
    "Manifest",
    "Part",
    "list_snapshots",
    "make_snapshot",
    "newest_snapshot",
    "read_part",
    "read_rows",
]
