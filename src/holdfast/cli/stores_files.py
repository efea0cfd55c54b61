"""``holdfast stores backup``, ``compact``, ``move``, ``repair``, ``restore``, ``verify``: the files of message stores.

``backup`` and ``compact`` ask a running service. The others work on directories without a service and need
``holdfastdb[server]``. Damage ends them with exit code 6 and is named, except where ``repair --lose`` drops it.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Final, Literal

import typer

from holdfast.cli.options import ConfigOption, JsonOption, LogArgument, SetOption, configuration
from holdfast.cli.output import Exit, print_json, print_line
from holdfast.cli.service import Service, on_service
from holdfast.cli.stores import commands
from holdfast.errors import AlreadyOpen, CorruptData, InvalidRequest, NotFound
from holdfast.queue.files.disk_errors import opening
from holdfast.queue.repair.files import open_files, writer_pid

WORK_TIMEOUT: Final = "How long to wait for the end of the work; an hour by default. The work ends all the same."


@on_service(commands, timeout=WORK_TIMEOUT)
def backup(
    service: Service,
    name: Annotated[str, typer.Argument(help="The folder of the backup, inside the service's folder of backups.")],
) -> None:
    """Copy all stores on the service's machine while it serves."""
    with service.store_work_client() as client:
        result = client.cluster_command("backup", {"name": name})
    service.show(result, f"backed up to {result['path']}")


@on_service(commands, timeout=WORK_TIMEOUT)
def compact(service: Service) -> None:
    """Free the space of messages that are no longer kept. The service also does this by itself."""
    with service.store_work_client() as client:
        result = client.cluster_command("compact")
    text = f"{result['allocated_before']} bytes before, {result['allocated']} now, {result['in_use']} in use"
    service.show(result, text)


@commands.command()
def restore(
    source: Annotated[Path, typer.Argument(help="A backup.")],
    directory: Annotated[Path, typer.Argument(help="A new or empty directory for the stores.")],
    as_json: JsonOption = False,
) -> None:
    """Make stores of a backup in an empty directory, for a service to serve."""
    from holdfast.stores.repair.backup import restore as put_back

    with opening(str(directory)):
        manifest = put_back(str(source), str(directory))
    if as_json:
        print_json({"files": len(manifest.files), "at_ms": manifest.at_ms})
    else:
        print_line(f"restored {len(manifest.files)} files into {directory}")


@commands.command()
def move(
    to: Annotated[
        Literal["disk", "log"],
        typer.Option("--to", help="Where the stores live from now on: on the leader's disk, or in the log."),
    ],
    url: LogArgument = None,
    config: ConfigOption = None,
    settings: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Move all stores of a log whose services are stopped. Files that are not used any more are set aside."""
    from holdfast.cli.log import with_store
    from holdfast.server.moving import run_move

    chosen = configuration(config, settings, log=url).settings
    with opening(str(chosen.stores.directory)):
        moved = with_store(chosen.log.url, lambda store: run_move(store, chosen, to))
    if as_json:
        print_json(asdict(moved))
        return
    place = "in the log" if to == "log" else f"on the disk, in {moved.directory}"
    if not moved.changed:
        print_line(f"the stores of this log live {'in the log' if to == 'log' else 'on a disk'}; nothing was moved")
    else:
        print_line(f"{moved.stores} stores with {moved.messages} messages live {place} from now on")
    if moved.set_aside is not None:
        print_line(f"what was in {moved.directory} is in {moved.set_aside}; no service reads it")


@commands.command()
def verify(
    directory: Annotated[Path, typer.Argument(help="Stores that no service has open, or a backup.")],
    as_json: JsonOption = False,
) -> None:
    """Read and check stores or a backup completely, and change nothing."""
    from holdfast.stores.repair.backup import verify as check
    from holdfast.stores.storage.storage import MANIFEST_NAME

    try:
        _require_unused(directory)
        with opening(str(directory)):
            report = check(str(directory))
    except CorruptData as error:
        is_backup = (directory / MANIFEST_NAME).exists()
        # Instead of this very command.
        error.hint = "" if is_backup else "holdfast stores restore BACKUP NEW makes stores of a backup"
        raise
    if as_json:
        print_json(asdict(report))
    else:
        print_line(
            f"good: {report.stores} stores, {report.messages} messages, {report.frames} frames, {report.bytes} bytes"
        )
        if report.damaged:
            print_line(f"{report.damaged} frames are damaged, and nothing that is kept needs them")
        if not report.index:
            print_line("there is no index.sqlite: the state was made of the log alone, as a start would")


@commands.command()
def repair(
    directory: Annotated[Path, typer.Argument(help="Stores that no service has open.")],
    lose: Annotated[
        bool, typer.Option("--lose", help="Drop the messages that cannot be read; without it they are only reported.")
    ] = False,
    accept_recorded: Annotated[
        bool, typer.Option("--accept-recorded", help="Accept the recorded results of commands whose replay differs.")
    ] = False,
    backup: Annotated[
        Path | None,
        typer.Option(help="Where --accept-recorded copies the directory first; DIRECTORY.before-repair by default."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Report the messages that cannot be read, or drop them. Copy the directory first."""
    from holdfast.stores.repair.damage import repair as drop_lost
    from holdfast.stores.repair.damage import survey

    _require_unused(directory)
    if accept_recorded:
        _accept_recorded(directory, backup or directory.with_name(f"{directory.name}.before-repair"), as_json=as_json)
    with opening(str(directory)):
        losses = drop_lost(str(directory)) if lose else survey(str(directory))
    if as_json:
        print_json(
            {
                "lost": lose,
                "stores": {
                    loss.store: {"messages": loss.messages, "runs": loss.runs, "durables": loss.durables}
                    for loss in losses
                },
            }
        )
    else:
        for loss in losses:
            runs = ", ".join(f"{first}-{last}" if first < last else str(first) for first, last in loss.runs)
            print_line(f"{loss.store}: {loss.messages} messages {'are lost' if lose else 'cannot be read'}: {runs}")
            for durable, messages in loss.durables.items():
                print_line(f"{loss.store}/{durable}: {messages} of its messages are lost")
        if not losses:
            print_line("every message that is kept can be read")
    if losses and not lose:
        raise typer.Exit(Exit.DAMAGED)


def _accept_recorded(directory: Path, backup: Path, *, as_json: bool) -> None:
    from holdfast.stores.repair.damage import accept_recorded

    with opening(str(directory)):
        accepted = accept_recorded(str(directory), str(backup))
    if as_json:
        records = [{"frame": frame, **error.fields} for frame, error in accepted]
        print_json({"backup": str(backup), "accepted": records})
        return
    print_line(f"the directory as it was: {backup}")
    for _, error in accepted:
        print_line(f"accepted the recorded result: {error}")
    print_line(f"{len(accepted)} recorded results accepted")


def _require_unused(directory: Path) -> None:
    """Raises: AlreadyOpen while a service writes here, because half-written data looks like damage.

    It takes no lock: a lock could refuse a service that starts now.
    """
    from holdfast.stores.storage.log import LOG_NAME

    with suppress(NotFound, InvalidRequest), open_files(str(directory / LOG_NAME)) as pages:
        if pid := writer_pid(pages):
            raise AlreadyOpen(
                "a service has these stores open",
                path=str(directory),
                pid=pid,
                hint="stop it first, or verify a backup: holdfast stores backup NAME",
            )
