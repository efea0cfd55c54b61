"""``holdfast queue``: inspect an embedded queue, check it, repair it, free its space.

The options of the group; ``queue_views`` runs the commands. info, tail, dump and verify only read, take no lock, and
run next to a writer and on a read-only mount. repair and trim end with exit code 7 while a writer has the queue open.
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
    help="Inspect an embedded queue, check it, repair it, free its space.",
    rich_markup_mode=None,
)


class Separator(StrEnum):
    """The bytes after each message of a raw dump."""

    NEWLINE = "newline"
    NUL = "nul"
    NONE = "none"


def complete_path(incomplete: str) -> list[str]:
    """Queues and directories that begin with this text, for the shell."""
    from holdfast.cli.queue_views import paths_like

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
        "--since", help="Start at this arrival time: 2026-01-31T12:00:00Z, or an age such as 90s, 15m, 2h, 7d.",
        show_default=False,
    ),
]  # fmt: skip
SeqOption: TypeAlias = Annotated[
    int | None, typer.Option("--seq", min=1, help="Start at this sequence number.", show_default=False)
]
PayloadOption: TypeAlias = Annotated[
    Encoding, typer.Option("--encoding", help="How payloads are written in JSON; text must be UTF-8.")
]


@commands.command()
def info(
    path: PathArgument,
    every_page: Annotated[bool, typer.Option("--all", "-a", help="Draw every page.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show the pages of a queue, its cursors, what is durable, and the writer. Reads headers only."""
    from holdfast.cli import queue_views

    queue_views.info(path, every_page=every_page, as_json=as_json)


@commands.command()
def tail(
    path: PathArgument,
    count: Annotated[
        int,
        typer.Option(
            "--count", "-n", min=0, help="Start with this many last messages; 0 with -f prints new messages only."
        ),
    ] = 10,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for new messages.")] = False,
    limit: Annotated[int, typer.Option("--limit", min=0, help="Stop after this many messages; 0 means no limit.")] = 0,
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
        str | None, typer.Option("--until", help="Stop before this arrival time.", show_default=False)
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=0, help="At most this many messages; 0 means all.")] = 0,
    raw: Annotated[bool, typer.Option("--raw", help="Write payloads only, unchanged.")] = False,
    separator: Annotated[
        Separator, typer.Option("--separator", help="With --raw: what follows each payload.")
    ] = Separator.NEWLINE,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="A new file; stdout by default.", show_default=False)
    ] = None,
    skip_damage: Annotated[
        bool, typer.Option("--skip-damage", help="Continue after damage, and report lost messages on stderr.")
    ] = False,
    encoding: PayloadOption = Encoding.BASE64,
    as_json: JsonOption = False,
) -> None:
    """Write messages as lines of JSON, or raw. Stops at damage with exit code 6, unless --skip-damage is given."""
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
    """Read every page and check every message. Lists every gap; exit code 6 if messages are lost."""
    from holdfast.cli import queue_views

    queue_views.verify(path, as_json=as_json)


@commands.command()
def repair(
    path: PathArgument,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Report what a repair would do, and change nothing.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Make every intact message readable. Damaged bytes are kept in separate files; nothing is deleted."""
    from holdfast.cli import queue_views

    queue_views.repair(path, dry_run=dry_run, as_json=as_json)


@commands.command()
def trim(
    path: PathArgument,
    before: Annotated[
        str | None, typer.Option("--before", help="Remove messages that arrived before this time or age.")
    ] = None,
    before_seq: Annotated[
        int | None, typer.Option("--before-seq", min=1, help="Remove messages below this number.")
    ] = None,
    max_bytes: Annotated[
        str | None, typer.Option("--max-bytes", help="Remove the oldest until the pages take at most this: 512M, 10G.")
    ] = None,
    ignore_cursors: Annotated[
        bool, typer.Option("--ignore-cursors", help="Also remove messages that a named consumer has not committed.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Report what would be removed, and change nothing.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Remove the oldest pages, whole pages only. Keeps the page being written and messages that consumers need."""
    from holdfast.cli import queue_views

    queue_views.trim(
        path,
        before=before,
        before_seq=before_seq,
        max_bytes=max_bytes,
        ignore_cursors=ignore_cursors,
        dry_run=dry_run,
        as_json=as_json,
    )
