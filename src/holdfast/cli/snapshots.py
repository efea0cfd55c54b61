"""Runs ``holdfast log snapshot`` and ``log snapshots``. Loaded when one of them runs, because it needs Arrow."""

from __future__ import annotations

from holdfast.cli.log_views import with_store
from holdfast.cli.output import print_fields, print_json, print_table, progress
from holdfast.snapshots import MakingOptions, Manifest, list_snapshots, make_snapshot
from holdfast.snapshots.manifest import PREFIX


def _facts(url: str, manifest: Manifest) -> dict[str, object]:
    return {
        "version": manifest.version,
        "last_transaction": manifest.last_transaction,
        "slot": manifest.slot,
        "rows": manifest.rows,
        "bytes": manifest.size,
        "parts": len(manifest.parts),
        "folder": f"{url.partition('?')[0].rstrip('/')}/{PREFIX}{manifest.version:020d}",
        "log_id": manifest.log_id,
    }


def make(url: str, *, at: int | None, as_json: bool, progress_lines: bool) -> None:
    """Make a snapshot, or report the one that exists."""
    with progress("reading the log", shown=not as_json, as_lines=progress_lines) as moved:
        manifest = with_store(url, lambda store: make_snapshot(store, MakingOptions(at=at), moved))
    (print_json if as_json else print_fields)(_facts(url, manifest))


def ls(url: str, *, as_json: bool) -> None:
    """List the snapshots."""
    manifests = with_store(url, list_snapshots)
    if as_json:
        for manifest in manifests:
            print_json(_facts(url, manifest))
        return
    rows = [(str(each.version), str(each.rows), str(each.size), str(len(each.parts)), each.slot) for each in manifests]
    print_table(("version", "rows", "bytes", "parts", "slot"), rows, right=frozenset({"rows", "bytes", "parts"}))
