"""``holdfast log``: begin, inspect and copy logs directly on their stores, without a service.

The options of the group; ``log_views``, ``snapshots`` and ``copies`` run the commands. All of them may run next to a
leader.
Damage ends a command with exit code 6 and names the slot and the rule.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import typer

from holdfast.cli.options import ConfigOption, JsonOption, LogArgument, configuration, log_url_of
from holdfast.cli.output import Exit

commands = typer.Typer(
    no_args_is_help=True, help="Begin, inspect and copy logs on their stores.", rich_markup_mode=None
)


@commands.command()
def init(
    url: LogArgument = None,
    force_new: Annotated[
        bool, typer.Option("--force-new", help="Begin even if another log left stores or a view.")
    ] = False,
    stores: Annotated[
        Literal["disk", "log"] | None,
        typer.Option("--stores", help="Where the message stores live: on the leader's disk, or in the log."),
    ] = None,
    race: Annotated[
        bool,
        typer.Option(help="First race two processes on the store: about five seconds. Without it nothing is proved."),
    ] = True,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Begin a new log if there is none and the store passes a race. Changes nothing if one exists."""
    from holdfast.cli import log_views

    settings = configuration(config, log=url).settings
    durability = stores or settings.stores.durability
    log_views.init(
        settings.log.url, settings.stores.hosted, durability,
        force_new=force_new, race=race, as_json=as_json, is_required=stores is not None,
    )  # fmt: skip


@commands.command()
def ls(
    url: LogArgument = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=0, help="How many objects, newest first; 0 means all.")
    ] = 100,
    long: Annotated[bool, typer.Option("--long", "-l", help="Also read the headers.")] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the objects of a log, newest first, and whether each is live."""
    from holdfast.cli import log_views

    log_views.ls(log_url_of(url, config), limit=limit, long=long, as_json=as_json)


@commands.command()
def show(
    slot: Annotated[str, typer.Argument(help="The 20-digit slot, or `newest`.")],
    url: LogArgument = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show one object: its header, and its transactions with the preconditions that they passed."""
    from holdfast.cli import log_views

    log_views.show(log_url_of(url, config), slot, as_json=as_json)


@commands.command()
def cat(
    url: LogArgument = None,
    after: Annotated[int, typer.Option("--after", min=0, help="Only transactions with a higher version.")] = 0,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=0, help="At most this many transactions; 0 means all.")
    ] = 0,
    from_snapshot: Annotated[
        bool, typer.Option("--from-snapshot", help="First the rows of the newest snapshot, then what came after it.")
    ] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print the committed transactions of a log in order, with the preconditions that they passed.

    The beginning of a truncated log is gone: --from-snapshot prints the state instead, one row per key.
    """
    from holdfast.cli import log_views

    log_views.cat(log_url_of(url, config), after=after, limit=limit, from_snapshot=from_snapshot, as_json=as_json)


ProgressLines: TypeAlias = Annotated[
    bool, typer.Option("--progress-lines", help="Progress as JSON lines on standard output.", hidden=True)
]


@commands.command()
def verify(
    url: LogArgument = None,
    after: Annotated[int, typer.Option("--after", min=0, help="Only objects with a higher version.")] = 0,
    through: Annotated[
        int | None, typer.Option("--through", min=0, help="Only up to this version; the end of the log if not given.")
    ] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
    progress_lines: ProgressLines = False,
) -> None:
    """Read the whole log, or a range, and check every rule: the chain, every CRC, every version.

    Without --after it also reads each snapshot and checkpoint, and checks that the log can produce its state. Exit code
    6 if a rule is broken, with its name and the slot or the object.
    """
    from holdfast.cli import log_views

    log_views.verify(
        log_url_of(url, config), after=after, through=through, as_json=as_json, progress_lines=progress_lines
    )


@commands.command()
def stat(url: LogArgument = None, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Count a log's objects and bytes, and list its leaders. Reads no transactions."""
    from holdfast.cli import log_views

    log_views.stat(log_url_of(url, config), as_json=as_json)


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
    from holdfast.cli import snapshots

    snapshots.make(log_url_of(url, config), at=at, as_json=as_json, progress_lines=progress_lines)


@commands.command("snapshots")
def list_snapshots(url: LogArgument = None, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """List the snapshots of a log, oldest first."""
    from holdfast.cli import snapshots

    snapshots.ls(log_url_of(url, config), as_json=as_json)


clock = typer.Typer(no_args_is_help=True, help="The wall clock of the leader's machine.", rich_markup_mode=None)
commands.add_typer(clock, name="clock")


@clock.command()
def accept(url: LogArgument = None, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Say that the wall clock of the leader's machine is right, after a step that the log did not follow.

    The leader follows it within seconds. Without a step it changes nothing.
    """
    from holdfast.cli import log_views

    log_views.accept_clock(log_url_of(url, config), as_json=as_json)


SourceArgument: TypeAlias = Annotated[str, typer.Argument(metavar="SOURCE", help="The log that is copied; only read.")]
CopyArgument: TypeAlias = Annotated[
    str, typer.Argument(metavar="DEST", help="Where the copy is: an empty prefix, or a copy that was begun.")
]


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
    from holdfast.cli import copies

    copies.restore(source, dest, at=at, as_json=as_json)


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
    from holdfast.cli import copies

    copies.mirror(source, dest, follow=follow, hold=hold, metrics_file=metrics_file, as_json=as_json)


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
    from holdfast.cli import copies

    copies.promote(dest, retire_source=retire_source, as_json=as_json)


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
    from holdfast.cli import copies

    if not copies.repair(source, dest, backup=backup, as_json=as_json):
        raise typer.Exit(Exit.DAMAGED)
