"""Runs the commands that copy logs. Loaded when one of them runs, because it needs Arrow."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TypeVar

from holdfast.cli.log_views import moment, with_store
from holdfast.cli.output import print_fields, print_json, print_line, print_table, progress
from holdfast.copies.mirroring import Mirror, Mirrored, MirrorOptions
from holdfast.copies.promoting import promote as promote_mirror
from holdfast.copies.repairing import Damage, DamageSurvey, Repaired, look
from holdfast.copies.repairing import repair as repair_log
from holdfast.copies.restoring import Point
from holdfast.copies.restoring import restore as restore_log
from holdfast.copies.retiring import retire
from holdfast.errors import InvalidRequest
from holdfast.objects.credentials import require_credentials
from holdfast.objects.open import open_store
from holdfast.objects.port import ObjectStore

T = TypeVar("T")


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


def restore(source_url: str, copy_url: str, *, at: str | None, as_json: bool) -> None:
    """Restore, or go on with a restore."""
    point = point_of(at)
    with progress("copying", shown=not as_json) as moved:
        restored = _with_two(
            source_url,
            copy_url,
            lambda source, copy: restore_log(source, copy, point, lambda _, done, total: moved(done, total)),
        )
    facts: dict[str, object] = {"url": copy_url, **asdict(restored)}
    if as_json:
        print_json(facts)
        return
    for name in ("time", "next_time"):
        at_ms = facts.pop(f"{name}_ms")
        if point.time_ms is not None:
            facts[name] = moment(at_ms) if isinstance(at_ms, int) else "-"
    print_fields(facts)
    print_line("Messages of stores are not in a log: they stay with the leader's disk.")
    print_line(f"Lead it with `holdfast serve --set log.url={copy_url}`.")


def mirror(
    source_url: str, copy_url: str, *, follow: bool, hold: bool, metrics_file: Path | None, as_json: bool
) -> None:
    """Mirror once, or follow."""
    options = MirrorOptions(follow=follow, hold=hold)
    shown: Mirrored | None = None

    def report(mirrored: Mirrored) -> None:
        nonlocal shown
        if metrics_file is not None:
            _write_metrics(metrics_file, mirrored)
        if follow and mirrored != shown:
            print_json(_facts(mirrored)) if as_json else print_line(_line(mirrored))
        shown = mirrored

    try:
        mirrored = _with_two(source_url, copy_url, lambda source, copy: Mirror(source, copy, options).run(report))
    except (KeyboardInterrupt, asyncio.CancelledError):
        return
    if not follow or mirrored.retired:
        (print_json if as_json else print_fields)(_facts(mirrored))
    if mirrored.retired and not as_json:
        print_line(f"The source is retired. Everything is here: `holdfast log promote {copy_url}`.")


def _facts(mirrored: Mirrored) -> dict[str, object]:
    facts = asdict(mirrored)
    lag = facts.pop("lag")
    return {**facts, **{f"lag_{name}": value for name, value in lag.items()}}


def _line(mirrored: Mirrored) -> str:
    lag = mirrored.lag
    behind = f"lag {lag.versions} versions, {lag.bytes} bytes, {lag.seconds:.1f} s" if lag.versions else "no lag"
    return f"version {mirrored.version}, {mirrored.objects} objects, {mirrored.snapshots} snapshots, {behind}"


def _write_metrics(path: Path, mirrored: Mirrored) -> None:
    lag = mirrored.lag
    lines = [
        f"# HELP holdfast_mirror_{name} {text}\n# TYPE holdfast_mirror_{name} gauge\nholdfast_mirror_{name} {value}\n"
        for name, text, value in (
            ("version", "The newest version of the log that the mirror has.", mirrored.version),
            ("lag_versions", "Versions that the source has and the mirror lacks.", lag.versions),
            ("lag_bytes", "Bytes of objects that the mirror lacks.", lag.bytes),
            ("lag_seconds", "Time between the newest objects of source and mirror.", lag.seconds),
        )
    ]
    unfinished = path.with_name(path.name + ".new")
    unfinished.write_text("".join(lines))
    unfinished.replace(path)


def promote(copy_url: str, *, retire_source: str | None, as_json: bool) -> None:
    """Promote a mirror, after its source was retired where that is wanted."""

    async def switch(source: ObjectStore, copy: ObjectStore) -> None:
        await retire(source)
        await Mirror(source, copy, MirrorOptions()).run()

    if retire_source is not None:
        _with_two(retire_source, copy_url, switch, create=False)
    with progress("verifying", shown=not as_json) as moved:
        promoted = with_store(copy_url, lambda copy: promote_mirror(copy, moved))
    if as_json:
        print_json({"url": copy_url, **asdict(promoted)})
        return
    print_fields({"url": copy_url, **asdict(promoted)})
    if promoted.after_gap:
        print_line(
            f"{promoted.after_gap} newer objects were here without what comes before them, and are not part of the "
            "log: a copier was stopped, or something was removed."
        )
    if retire_source is None:
        print_line(f"The source was not stopped: what it confirms after version {promoted.version} is not here.")
    print_line(f"Lead it with `holdfast serve --set log.url={copy_url}`.")


def repair(source_url: str, copy_url: str | None, *, backup: str | None, as_json: bool) -> bool:
    """Look for damage, and repair it into another log. Returns False when damage was found and nothing was repaired."""
    with progress("reading the log", shown=not as_json) as moved:

        async def work(source: ObjectStore) -> DamageSurvey | Repaired:
            kept = None if backup is None else open_store(backup)
            copy = None if copy_url is None else open_store(copy_url, create_missing=True)
            try:
                return await (look(source, kept, moved) if copy is None else repair_log(source, copy, kept, moved))
            finally:
                for opened in (kept, copy):
                    if opened is not None:
                        await opened.close()

        for url in (backup, copy_url):
            if url is not None:
                require_credentials(url, os.environ)
        found = with_store(source_url, work)
    if as_json:
        print_json(asdict(found))
    else:
        _show_damage(found.damage)
        if isinstance(found, Repaired):
            facts = {name: value for name, value in asdict(found).items() if name != "damage"}
            print_fields({"url": copy_url, **facts})
            print_line(f"Lead it with `holdfast serve --set log.url={copy_url}`.")
    return isinstance(found, Repaired) or all(each.from_backup for each in found.damage)


def _lost(damage: Damage) -> str:
    if damage.from_backup:
        return "are in the backup"
    return "none lost" if damage.lost_through is None else f"lost, the last one is {damage.lost_through}"


def _show_damage(damage: list[Damage]) -> None:
    if not damage:
        print_line("no object is damaged")
        return
    rows = [
        (
            each.slot,
            each.reason,
            str(each.after_version),
            _lost(each),
        )
        for each in damage
    ]
    print_table(("slot", "damage", "after version", "transactions"), rows)
