"""The commands of ``holdfast log`` that make snapshots and copies of logs."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Annotated, TypeAlias, TypeVar

import typer

from holdfast.cli.log import ProgressLines, commands, with_store
from holdfast.cli.options import ConfigOption, JsonOption, LogArgument, log_url_of
from holdfast.cli.output import Exit, print_fields, print_json, print_line, print_table, progress, utc_text
from holdfast.copies.mirroring import Mirror, Mirrored, MirrorOptions
from holdfast.copies.promoting import promote as promote_mirror
from holdfast.copies.promoting import retire
from holdfast.copies.repairing import Damage, DamageSurvey, Repaired, look
from holdfast.copies.repairing import repair as repair_log
from holdfast.copies.restoring import Point, Restored
from holdfast.copies.restoring import restore as restore_log
from holdfast.errors import InvalidRequest
from holdfast.objects.credentials import require_credentials
from holdfast.objects.open import open_store
from holdfast.objects.port import ObjectStore
from holdfast.snapshots import Manifest, list_snapshots, make_snapshot
from holdfast.snapshots.manifest import PREFIX

T = TypeVar("T")
SourceArgument: TypeAlias = Annotated[str, typer.Argument(metavar="SOURCE", help="The log that is copied; only read.")]
CopyArgument: TypeAlias = Annotated[
    str, typer.Argument(metavar="DEST", help="Where the copy is: an empty prefix, or a copy that was begun.")
]


@commands.command()
def snapshot(
    url: LogArgument = None,
    at: Annotated[int | None, typer.Option("--at", min=0, help="The version; the newest one if not given.")] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
    progress_lines: ProgressLines = False,
) -> None:
    """Write the state of a log at one version as Parquet files next to the log; it may run while a service leads.

    A snapshot that exists is reported and not written again. The temporary file needs room for the whole state.
    """
    log_url = log_url_of(url, config)
    with progress("reading the log", shown=not as_json, as_lines=progress_lines) as moved:
        manifest = with_store(log_url, lambda store: make_snapshot(store, moved, at=at))
    (print_json if as_json else print_fields)(_facts_of_snapshot(log_url, manifest))


@commands.command()
def snapshots(url: LogArgument = None, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """List the snapshots of a log, oldest first."""
    log_url = log_url_of(url, config)
    manifests = with_store(log_url, list_snapshots)
    if as_json:
        for manifest in manifests:
            print_json(_facts_of_snapshot(log_url, manifest))
        return
    rows = [(str(each.version), str(each.rows), str(each.size), str(len(each.parts)), each.slot) for each in manifests]
    print_table(("version", "rows", "bytes", "parts", "slot"), rows, right=frozenset({"rows", "bytes", "parts"}))


def _facts_of_snapshot(url: str, manifest: Manifest) -> dict[str, object]:
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


def _with_two(
    source_url: str, copy_url: str, work: Callable[[ObjectStore, ObjectStore], Awaitable[T]], *, create: bool = True
) -> T:
    if source_url.partition("?")[0].rstrip("/") == copy_url.partition("?")[0].rstrip("/"):
        raise InvalidRequest("SOURCE and DEST are one place", hint="choose an empty prefix for the copy", url=copy_url)
    require_credentials(copy_url, os.environ)

    async def run(source: ObjectStore) -> T:
        copy = open_store(copy_url, create_missing=create)
        try:
            return await work(source, copy)
        finally:
            await copy.close()

    return with_store(source_url, run)


def point_of(at: str | None) -> Point:
    """The point that --at names. Raises: InvalidRequest.

    >>> point_of("7"), point_of("1970-01-01T00:00:01Z"), point_of(None)
    (Point(version=7, time_ms=None), Point(version=None, time_ms=1000), Point(version=None, time_ms=None))
    """
    if at is None:
        return Point()
    if at.isascii() and at.isdigit():
        return Point(version=int(at))
    try:
        moment = datetime.fromisoformat(at)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise InvalidRequest("--at is a version, or a time with its zone such as 2026-11-27T09:30:00Z", given=at)
    return Point(time_ms=int(moment.timestamp() * 1000))


@commands.command()
def restore(
    source: SourceArgument,
    dest: CopyArgument,
    at: Annotated[
        str | None,
        typer.Option("--at", metavar="VERSION|TIME", help="Where it ends, such as 2026-11-27T09:30:00Z; or the end."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Make a new log at DEST that equals SOURCE up to a version or a time, and verify it.

    The new log has an id of its own. It can be interrupted and run again. Stores on a leader's disk are not part of it.
    """
    point = point_of(at)
    with progress("copying", shown=not as_json) as moved:

        async def work(store: ObjectStore, copy: ObjectStore) -> Restored:
            return await restore_log(store, copy, point, lambda _, done, total: moved(done, total))

        restored = _with_two(source, dest, work)
    facts: dict[str, object] = {"url": dest, **asdict(restored)}
    if as_json:
        print_json(facts)
        return
    for name in ("time", "next_time"):
        at_ms = facts.pop(f"{name}_ms")
        if point.time_ms is not None:
            facts[name] = utc_text(at_ms) if isinstance(at_ms, int) else "-"
    print_fields(facts)
    print_line("Messages of stores are not in a log: they stay with the leader's disk.")
    print_line(f"Lead it with `holdfast serve --set log.url={dest}`.")


@commands.command()
def mirror(
    source: SourceArgument,
    dest: CopyArgument,
    follow: Annotated[bool, typer.Option("--follow", help="Go on as the source grows, until stopped.")] = False,
    hold: Annotated[
        bool, typer.Option(help="With --follow, keep the source from truncating what is not copied yet.")
    ] = True,
    metrics_file: Annotated[
        Path | None, typer.Option("--metrics-file", help="Write the lag here after each round, for node_exporter.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Copy SOURCE to DEST byte for byte. DEST can be read, and becomes a log with `holdfast log promote`."""
    options = MirrorOptions(follow=follow, hold=hold)
    shown: Mirrored | None = None

    def report(mirrored: Mirrored) -> None:
        nonlocal shown
        if metrics_file is not None:
            _write_metrics(metrics_file, mirrored)
        if follow and mirrored != shown:
            print_json(asdict(mirrored)) if as_json else print_line(_line(mirrored))
        shown = mirrored

    try:
        mirrored = _with_two(source, dest, lambda store, copy: Mirror(store, copy, options).run(report))
    except (KeyboardInterrupt, asyncio.CancelledError):
        return
    if not follow or mirrored.retired:
        (print_json if as_json else print_fields)(asdict(mirrored))
    if mirrored.retired and not as_json:
        print_line(f"The source is retired. Everything is here: `holdfast log promote {dest}`.")


def _line(mirrored: Mirrored) -> str:
    lag = f"{mirrored.lag_versions} versions, {mirrored.lag_bytes} bytes, {mirrored.lag_seconds:.1f} s"
    behind = f"lag {lag}" if mirrored.lag_versions else "no lag"
    return f"version {mirrored.version}, {mirrored.objects} objects, {mirrored.snapshots} snapshots, {behind}"


def _write_metrics(path: Path, mirrored: Mirrored) -> None:
    lines = [
        f"# HELP holdfast_mirror_{name} {text}\n# TYPE holdfast_mirror_{name} gauge\n"
        f"holdfast_mirror_{name} {getattr(mirrored, name)}\n"
        for name, text in (
            ("version", "The newest version of the log that the mirror has."),
            ("lag_versions", "Versions that the source has and the mirror lacks."),
            ("lag_bytes", "Bytes of objects that the mirror lacks."),
            ("lag_seconds", "Time between the newest objects of source and mirror."),
        )
    ]
    unfinished = path.with_name(path.name + ".new")
    unfinished.write_text("".join(lines))
    unfinished.replace(path)


@commands.command()
def promote(
    dest: Annotated[str, typer.Argument(metavar="DEST", help="A mirror.")],
    retire_source: Annotated[
        str | None,
        typer.Option(
            "--retire-source", metavar="SOURCE", help="End SOURCE first, and copy what is missing: nothing is lost."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Make a mirror a log of its own, and say up to which version it has everything.

    This cannot stop SOURCE: what it confirms later is not in the new log. With --retire-source nobody leads SOURCE any
    more, so a planned switch loses nothing.
    """

    async def switch(store: ObjectStore, copy: ObjectStore) -> None:
        await retire(store)
        await Mirror(store, copy, MirrorOptions()).run()

    if retire_source is not None:
        _with_two(retire_source, dest, switch, create=False)
    with progress("verifying", shown=not as_json) as moved:
        promoted = with_store(dest, lambda copy: promote_mirror(copy, moved))
    (print_json if as_json else print_fields)({"url": dest, **asdict(promoted)})
    if as_json:
        return
    if promoted.after_gap:
        print_line(
            f"{promoted.after_gap} newer objects were here without what comes before them, and are not part of the "
            "log: a copier was stopped, or something was removed."
        )
    if retire_source is None:
        print_line(f"The source was not stopped: what it confirms after version {promoted.version} is not here.")
    print_line(f"Lead it with `holdfast serve --set log.url={dest}`.")


@commands.command()
def repair(
    source: SourceArgument,
    dest: Annotated[
        str | None, typer.Argument(metavar="[DEST]", help="An empty prefix for the repaired log; without it only look.")
    ] = None,
    backup: Annotated[
        str | None,
        typer.Option("--from", metavar="URL", help="A mirror or another copy that may have what is damaged."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Name every damaged object of SOURCE, and make a log at DEST with everything that can be read.

    What the log at --from has is taken from there. Transactions that nobody has are listed and left out; those after
    them get new versions. The new log has an id of its own; SOURCE is only read. Exit code 6 if there is damage and no
    DEST.
    """
    for url in (backup, dest):
        if url is not None:
            require_credentials(url, os.environ)
    with progress("reading the log", shown=not as_json) as moved:

        async def work(store: ObjectStore) -> DamageSurvey | Repaired:
            spare = None if backup is None else open_store(backup)
            copy = None if dest is None else open_store(dest, create_missing=True)
            try:
                return await (look(store, spare, moved) if copy is None else repair_log(store, copy, spare, moved))
            finally:
                for each in (spare, copy):
                    if each is not None:
                        await each.close()

        outcome = with_store(source, work)
    if as_json:
        print_json(asdict(outcome))
    else:
        _show_damage(outcome.damage)
        if isinstance(outcome, Repaired):
            facts = {name: value for name, value in asdict(outcome).items() if name != "damage"}
            print_fields({"url": dest, **facts})
            print_line(f"Lead it with `holdfast serve --set log.url={dest}`.")
    if not (isinstance(outcome, Repaired) or all(each.from_backup for each in outcome.damage)):
        raise typer.Exit(Exit.DAMAGED)


def _lost(damage: Damage) -> str:
    if damage.from_backup:
        return "are in the backup"
    return "none lost" if damage.lost_through is None else f"lost, the last one is {damage.lost_through}"


def _show_damage(damage: list[Damage]) -> None:
    if not damage:
        print_line("no object is damaged")
        return
    rows = [(each.slot, each.reason, str(each.after_version), _lost(each)) for each in damage]
    print_table(("slot", "damage", "after version", "transactions"), rows)
