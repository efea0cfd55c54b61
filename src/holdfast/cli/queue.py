"""``holdfast queue``: look at an embedded queue, check it, repair it, give back its space.

Owns: the options of info, tail, dump, verify, repair and trim. Does not own: what they do (``queue_views``,
``queue_repair``), loaded when one of them runs.

Failure model: info, tail, dump and verify only read, take no lock, and run beside a writer and on a read-only mount.
repair and trim are writers: they end with exit code 7 while another has the queue open.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from holdfast.cli.options import Encoding, JsonOption

__all__ = ["Separator", "commands", "complete_path"]

commands = typer.Typer(
    no_args_is_help=True,
    help="Look at an embedded queue, check it, repair it, give back its space.",
    rich_markup_mode=None,
)


class Separator(StrEnum):
    """What stands behind each message of a raw dump."""

    NEWLINE = "newline"
    NUL = "nul"
    NONE = "none"


def complete_path(incomplete: str) -> list[str]:
    """Queues and directories that begin like this, for the shell."""
    from holdfast.cli.queue_files import paths_like

    return paths_like(incomplete)


PathArgument: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="PATH",
        help="The queue: directory/name, for example data/orders.",
        autocompletion=complete_path,
        show_default=False,
    ),
]
SinceOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--since", help="From this arrival on: 2026-01-31T12:00:00Z, or an age such as 90s, 15m, 2h, 7d.",
        show_default=False,
    ),
]  # fmt: skip
SeqOption: TypeAlias = Annotated[
    int | None, typer.Option("--seq", min=1, help="From this sequence number on.", show_default=False)
]
PayloadOption: TypeAlias = Annotated[
    Encoding, typer.Option("--encoding", help="How payloads are written in JSON; text must be UTF-8.")
]


@commands.command()
def info(
    path: PathArgument,
    every_page: Annotated[bool, typer.Option("--all", "-a", help="Draw every page, however many.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show what a queue holds: pages, fill, cursors, what is durable, who writes. Reads headers only."""
    from holdfast.cli import queue_views

    queue_views.info(path, every_page=every_page, as_json=as_json)


@commands.command()
def tail(
    path: PathArgument,
    count: Annotated[
        int,
        typer.Option(
            "--count", "-n", min=0, help="Begin with so many last messages; 0 is none: with -f only what arrives."
        ),
    ] = 10,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as messages arrive.")] = False,
    limit: Annotated[int, typer.Option("--limit", min=0, help="End after so many messages; 0 is never.")] = 0,
    since: SinceOption = None,
    seq: SeqOption = None,
    encoding: PayloadOption = Encoding.BASE64,
    as_json: JsonOption = False,
) -> None:
    """Print the last messages, and follow a queue while another process writes to it."""
    from holdfast.cli import queue_views

    queue_views.tail(
        path, count=count, follow=follow, limit=limit, since=since, seq=seq, encoding=encoding, as_json=as_json
    )


@commands.command()
def dump(
    path: PathArgument,
    since: SinceOption = None,
    seq: SeqOption = None,
    until: Annotated[
        str | None, typer.Option("--until", help="Only what arrived before this.", show_default=False)
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=0, help="At most so many messages; 0 is all.")] = 0,
    raw: Annotated[bool, typer.Option("--raw", help="The payloads alone, as they are.")] = False,
    separator: Annotated[
        Separator, typer.Option("--separator", help="With --raw: what stands behind each payload.")
    ] = Separator.NEWLINE,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="A new file; stdout by default.", show_default=False)
    ] = None,
    skip_damage: Annotated[
        bool, typer.Option("--skip-damage", help="Go on behind damage, and say on stderr what is missing.")
    ] = False,
    encoding: PayloadOption = Encoding.BASE64,
    as_json: JsonOption = False,
) -> None:
    """Write messages as lines of JSON, or raw. Ends at damage with exit code 6, unless it is to be skipped."""
    from holdfast.cli import queue_views

    queue_views.dump(
        path,
        since=since,
        seq=seq,
        until=until,
        limit=limit,
        separator=separator if raw else None,
        output=output,
        skip_damage=skip_damage,
        encoding=encoding,
        as_json=as_json,
    )


@commands.command()
def verify(path: PathArgument, as_json: JsonOption = False) -> None:
    """Read every page and check every message. Exit code 6 when messages are lost, with every gap by place."""
    from holdfast.queue.repair import checks as queue_checks

    queue_checks.verify(path, as_json=as_json)


@commands.command()
def repair(
    path: PathArgument,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and change nothing.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Make everything readable that is whole. Damaged bytes are kept in files of their own; nothing is deleted."""
    from holdfast.queue.repair import checks as queue_checks

    queue_checks.repair(path, dry_run=dry_run, as_json=as_json)


@commands.command()
def trim(
    path: PathArgument,
    before: Annotated[
        str | None, typer.Option("--before", help="Messages that arrived before this: a time or an age.")
    ] = None,
    before_seq: Annotated[int | None, typer.Option("--before-seq", min=1, help="Messages below this number.")] = None,
    max_bytes: Annotated[
        str | None, typer.Option("--max-bytes", help="The oldest, until the pages take no more than this: 512M, 10G.")
    ] = None,
    ignore_cursors: Annotated[
        bool, typer.Option("--ignore-cursors", help="Remove also what a named consumer has yet to confirm.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would go, and change nothing.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Remove the oldest pages, whole pages only. The page being written stays; so does what consumers still need."""
    from holdfast.queue.repair import checks as queue_checks

    queue_checks.trim(
        path,
        before=before,
        before_seq=before_seq,
        max_bytes=max_bytes,
        ignore_cursors=ignore_cursors,
        dry_run=dry_run,
        as_json=as_json,
    )
