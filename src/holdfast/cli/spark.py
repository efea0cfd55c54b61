"""``holdfast spark``: pipelines that make tables and files of a log, one command each.

Owns: the options of every pipeline, what is printed while it runs and at its end. Does not own: what they do
(``holdfast.spark.pipeline``), which is loaded when one of them runs, so that other commands start without Spark.

Failure model: a run may be killed anywhere and started again; what it had committed stays, and nothing is done twice.
SIGINT and SIGTERM end a run after the step under way. A reader of the output who has left ends nothing.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from threading import Event
from types import FrameType
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from holdfast.cli.exits import Exit
from holdfast.cli.options import JsonOption
from holdfast.cli.output import answering, flush_output, print_fields, print_json, print_line, print_table
from holdfast.errors import InvalidRequest

if TYPE_CHECKING:
    # The one name that cli knows of spark: see the contract "tops" in pyproject.toml.
    from holdfast.spark.commands import Command, Made, Told

__all__ = [
    "ConfOption",
    "LogOption",
    "MasterOption",
    "RemoteOption",
    "commands",
    "parse_conf",
    "print_made",
    "stopped_by_signals",
    "tell_steps",
]

commands = typer.Typer(no_args_is_help=True, help="Tables and files made of a log by Spark.", rich_markup_mode=None)

LogOption: TypeAlias = Annotated[str, typer.Option("--log", help="The log: file:, s3: or az:.")]
ToOption: TypeAlias = Annotated[str, typer.Option("--to", help="Where the output lives: file:, s3: or az:.")]
MasterOption: TypeAlias = Annotated[
    str | None, typer.Option("--master", help="Spark master; every core of this machine by default.")
]
RemoteOption: TypeAlias = Annotated[
    str | None, typer.Option("--remote", help="Spark Connect address, sc://HOST:PORT, instead of a master.")
]
ConfOption: TypeAlias = Annotated[
    list[str] | None, typer.Option("--conf", metavar="KEY=VALUE", help="Set a Spark setting; repeatable.")
]
OnceOption: TypeAlias = Annotated[bool, typer.Option("--once", help="Stop at the head of the log (the default).")]
EveryOption: TypeAlias = Annotated[
    float | None, typer.Option("--every", metavar="SECONDS", help="Go on for ever, looking again so often.")
]
UntilOption: TypeAlias = Annotated[
    int | None, typer.Option("--until", min=0, metavar="VERSION", help="Go on until this version is in; then stop.")
]
AtOption: TypeAlias = Annotated[
    int | None, typer.Option("--at", "--until", min=0, metavar="VERSION", help="Of this version; the head's if none.")
]
StepOption: TypeAlias = Annotated[
    int | None, typer.Option("--step-bytes", min=1, help="How much of the log a step reads; 512 MiB by default.")
]
BucketsOption: TypeAlias = Annotated[
    int | None, typer.Option("--buckets", min=1, max=4096, help="Buckets of a new table; by the log's size by default.")
]


@commands.command()
def changes(
    log: LogOption,
    to: ToOption,
    master: MasterOption = None,
    remote: RemoteOption = None,
    conf: ConfOption = None,
    once: OnceOption = False,
    every: EveryOption = None,
    until: UntilOption = None,
    step_bytes: StepOption = None,
    as_json: JsonOption = False,
) -> None:
    """Every operation of the log, once, in an append-only Delta table partitioned by day."""
    command = _command("changes", log, to, master, remote, conf)
    _run(command, once, every, until, {"step_bytes": step_bytes}, as_json=as_json)


@commands.command()
def latest(
    log: LogOption,
    to: ToOption,
    master: MasterOption = None,
    remote: RemoteOption = None,
    conf: ConfOption = None,
    once: OnceOption = False,
    every: EveryOption = None,
    until: UntilOption = None,
    step_bytes: StepOption = None,
    buckets: BucketsOption = None,
    as_json: JsonOption = False,
) -> None:
    """The newest value of every key, in a Delta table that is kept up to date."""
    command = _command("latest", log, to, master, remote, conf)
    _run(command, once, every, until, {"step_bytes": step_bytes, "buckets": buckets}, as_json=as_json)


@commands.command()
def history(
    log: LogOption,
    to: ToOption,
    master: MasterOption = None,
    remote: RemoteOption = None,
    conf: ConfOption = None,
    once: OnceOption = False,
    every: EveryOption = None,
    until: UntilOption = None,
    step_bytes: StepOption = None,
    buckets: BucketsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Every value that every key ever had, with the versions between which it was the newest, in a Delta table."""
    command = _command("history", log, to, master, remote, conf)
    _run(command, once, every, until, {"step_bytes": step_bytes, "buckets": buckets}, as_json=as_json)


@commands.command()
def segments(
    log: LogOption,
    to: ToOption,
    master: MasterOption = None,
    remote: RemoteOption = None,
    conf: ConfOption = None,
    once: OnceOption = False,
    every: EveryOption = None,
    step_bytes: StepOption = None,
    min_bytes: Annotated[
        int | None, typer.Option("--min-bytes", min=1, help="Leave less than this in the log; 64 MiB by default.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """The log's operations in few large Parquet files, in log order."""
    command = _command("segments", log, to, master, remote, conf)
    _run(command, once, every, None, {"step_bytes": step_bytes, "log_bytes_min": min_bytes}, as_json=as_json)


@commands.command()
def snapshot(
    log: LogOption,
    to: ToOption,
    master: MasterOption = None,
    remote: RemoteOption = None,
    conf: ConfOption = None,
    once: OnceOption = False,
    every: EveryOption = None,
    until: AtOption = None,
    as_json: JsonOption = False,
) -> None:
    """The whole state at one version, sorted by key, in a Delta table."""
    _run(_command("snapshot", log, to, master, remote, conf), once, every, until, {}, as_json=as_json)


@commands.command()
def replay(
    log: LogOption,
    to: ToOption,
    master: MasterOption = None,
    remote: RemoteOption = None,
    conf: ConfOption = None,
    once: OnceOption = False,
    every: EveryOption = None,
    until: UntilOption = None,
    step_bytes: StepOption = None,
    after: Annotated[
        int | None, typer.Option("--after", min=0, help="Only transactions with a higher version.", metavar="VERSION")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Commit the transactions of one log to another log, in their order, each once."""
    command = _command("replay", log, to, master, remote, conf)
    _run(command, once, every, until, {"step_bytes": step_bytes, "after": after}, as_json=as_json)


@commands.command()
def verify(
    log: LogOption,
    to: ToOption,
    master: MasterOption = None,
    remote: RemoteOption = None,
    conf: ConfOption = None,
    once: OnceOption = False,
    every: EveryOption = None,
    until: UntilOption = None,
    step_bytes: StepOption = None,
    as_json: JsonOption = False,
) -> None:
    """Audit the log: every object, every link, every verdict decided again. Exit code 6 when anything is damaged."""
    command = _command("verify", log, to, master, remote, conf)
    _run(command, once, every, until, {"step_bytes": step_bytes}, as_json=as_json)


@commands.command()
def doctor(
    log: Annotated[str | None, typer.Option("--log", help="Check that this log can be read.")] = None,
    to: Annotated[str | None, typer.Option("--to", help="Check that this output can be written.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Whether pipelines can run here, and what mends it if not. Exit code 1 when something is missing."""
    from holdfast.spark import commands as command

    made = command.doctor(log, to)
    if as_json:
        print_json({"checks": made.findings, "good": made.is_good})
    else:
        names = ("check", "verdict", "found", "mend")
        print_table(names, [[str(row[name]) for name in names] for row in made.findings])
    if not made.is_good:
        raise typer.Exit(Exit.NO)


def _command(name: str, log: str, to: str, master: str | None, remote: str | None, conf: list[str] | None) -> Command:
    from holdfast.spark.commands import Command

    return Command(name, log, to, master=master, remote=remote, conf=parse_conf(conf))


def parse_conf(conf: list[str] | None) -> dict[str, str]:
    """Spark's settings from ``--conf``. Raises: InvalidRequest."""
    settings: dict[str, str] = {}
    for item in conf or ():
        key, equals, value = item.partition("=")
        if not equals:
            raise InvalidRequest(f"--conf needs KEY=VALUE, for example --conf spark.executor.memory=8g, and got {item}")
        settings[key.strip()] = value.strip()
    return settings


def _run(
    command: Command,
    once: bool,
    every: float | None,
    until: int | None,
    options: Mapping[str, int | None],
    *,
    as_json: bool,
) -> None:
    if once + (every is not None) + (until is not None) > 1:
        raise InvalidRequest("--once, --every and --until each say when to stop: give one of them")
    given = {name: value for name, value in options.items() if value is not None}
    made = command.run(
        every_seconds=every, until=until, options=given, stopping=stopped_by_signals, told=tell_steps(as_json=as_json)
    )
    print_made(made, as_json=as_json)
    if not made.is_good:
        raise typer.Exit(Exit.DAMAGED)


def tell_steps(*, as_json: bool) -> Told:
    """What prints each step: to stderr for people, as a line of JSON to stdout. Nothing once the reader has left."""
    has_left = False

    def tell(fields: Mapping[str, object]) -> None:
        nonlocal has_left
        if has_left:
            return
        try:
            if as_json:
                print_json({"step": fields})
                flush_output()
            else:
                sys.stderr.write("  ".join(f"{name}={value}" for name, value in fields.items()) + "\n")
        except BrokenPipeError:
            # It would end the work, and its exit code would be that of the printing.
            has_left = True

    return tell


def print_made(made: Made, *, as_json: bool) -> None:
    """Print the report of a run and its findings."""
    with answering():
        if as_json:
            print_json({"report": made.fields, "findings": made.findings})
            return
        print_fields(made.fields)
        if made.findings:
            print_line("")
            names = list(made.findings[0])
            print_table(names, [[str(row[name]) for name in names] for row in made.findings])


@contextmanager
def stopped_by_signals() -> Generator[Event]:
    """An event that SIGINT and SIGTERM set. The runner looks at it between steps; a second signal ends the process."""
    stop = Event()

    def ask(number: int, frame: FrameType | None) -> None:
        del frame
        stop.set()
        signal.signal(number, signal.SIG_DFL)

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
