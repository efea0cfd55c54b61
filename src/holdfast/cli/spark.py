"""``holdfast spark``: jobs that make tables and files of a log, and jobs that commit requests in bulk.

``holdfast.spark.commands`` runs them. A job that was killed continues when it is started again with the same arguments.
SIGINT and SIGTERM end a job after its current step. A closed output pipe does not end it.

Each option stands once, in the table of what it belongs to, under the name of the argument that it gives.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from functools import partial
from inspect import Parameter
from threading import Event
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

import typer

from holdfast.cli.options import JsonOption, add_command, parse_pairs
from holdfast.cli.output import Exit, answering, flush_output, print_fields, print_json, print_line, print_table
from holdfast.errors import InvalidRequest

if TYPE_CHECKING:
    # The one name that cli knows of spark: see the contract "tops" in pyproject.toml.
    from holdfast.spark.commands import JobResult, Report, SparkTarget, StoreSource

commands = typer.Typer()
Options: TypeAlias = Mapping[str, tuple[Any, object]]
"""By the name of an argument: the annotation and the default of its option."""


def _option(kind: Any, default: object, *names: str, **about: Any) -> tuple[Any, object]:
    return Annotated[kind, typer.Option(*names, **about)], default


def _required(*names: str, **about: Any) -> tuple[Any, object]:
    return _option(str, Parameter.empty, *names, **about)


def _text(*names: str, **about: Any) -> tuple[Any, object]:
    return _option(str | None, None, *names, **about)


def _texts(*names: str, **about: Any) -> tuple[Any, object]:
    return _option(list[str] | None, None, *names, **about)


def _number(*names: str, least: int = 1, **about: Any) -> tuple[Any, object]:
    return _option(int | None, None, *names, min=least, **about)


def _flag(name: str, about: str) -> tuple[Any, object]:
    return _option(bool, False, name, help=about)


LOG_HELP: Final = "The log: file:, s3: or az:."
LOG: Final = _required("--log", help=LOG_HELP)
TARGET: Final[Options] = {
    "master": _text("--master", help="Spark master; every core of this machine by default."),
    "remote": _text("--remote", help="Spark Connect address, sc://HOST:PORT, instead of a master."),
    "conf": _texts("--conf", metavar="KEY=VALUE", help="Set a Spark setting; repeatable."),
}
"""``SparkTarget``."""

# ---- pipelines ------------------------------------------------------------------------------------------------------

EVERY: Final = "Continue until stopped, and look for new transactions at this interval."
WHEN: Final[Options] = {
    "once": _flag("--once", "Stop at the head of the log (the default)."),
    "every": _option(float | None, None, "--every", metavar="SECONDS", help=EVERY),
}
UNTIL: Final[Options] = {"until": _number("--until", least=0, metavar="VERSION", help="Stop after this version.")}
STEP: Final[Options] = {
    "step_bytes": _number("--step-bytes", help="Bytes of the log that a step reads; 512 MiB by default."),
}
REPLACED: Final = "Remove files that were replaced at least this long ago; without it nothing is removed."
VACUUM: Final[Options] = {"vacuum_hours": _number("--vacuum-hours", least=0, max=168, help=REPLACED)}
BUCKETS: Final[Options] = {
    **UNTIL,
    **STEP,
    "buckets": _number("--buckets", max=4096, help="Buckets of a new table; chosen by the log's size by default."),
    **VACUUM,
}
STORE: Final[Options] = {
    "service": _text("--service", help="Instead of --log: the service of a message store."),
    "store": _text("--store", help="With --service: the store."),
    "durable": _text("--durable", help="With --service: a durable of its own, which is made if absent."),
}
"""The source of a table that is made of a message store: ``StoreSource``."""
ROWS: Final[Options] = {
    "key_prefixes": _texts("--key-prefix", help="Only keys that begin with this text; repeatable."),
    "key_format": _text("--key-format", help="utf8, json, msgpack or binary (the default)."),
    "key_schema": _text("--key-schema", metavar="DDL", help="The type of JSON or msgpack keys, or a file."),
    "value_format": _text("--value-format", help="utf8, json, msgpack or binary (the default)."),
    "schema": _text("--schema", metavar="DDL", help="Fields and types of values in SQL syntax, or a file with them."),
    "infer": _number("--infer", metavar="N", help="Find fields and types in N values of each step."),
    "unfit": _text("--unfit", help="Values that do not fit: fail (the default), null, or quarantine (a table)."),
    "table_per_prefix": _flag("--table-per-prefix", "Keep a table for each --key-prefix, below the output."),
}
"""Which rows a table is made of, and its types: ``RowOptions``, and ``table_per_prefix``."""
AT: Final[Options] = {
    "to": _text("--to", help="Where the Delta table lives: file:, s3: or az:."),
    "until": _number("--at", "--until", least=0, metavar="VERSION", help="The version to take; the newest by default."),
}
INTO_LOG: Final[Options] = {
    "into_log": _flag("--into-log", "Make it in the log's own store, as `holdfast log snapshot` does."),
}
SEGMENT_BYTES: Final = "Write a segment only of at least this much of the log; 64 MiB by default."
SEGMENTS: Final[Options] = {"log_bytes_min": _number("--min-bytes", help=SEGMENT_BYTES)}
NEWER: Final = "Only transactions with a higher version."
AFTER: Final[Options] = {"after": _number("--after", least=0, metavar="VERSION", help=NEWER)}


def _add(name: str, about: str, options: Options, run: Callable[[dict[str, Any], bool], None]) -> None:
    """Add a command with these options and --json. ``run`` gets what they give, by name."""

    def command(*, as_json: bool, **values: Any) -> None:
        run(values, as_json)

    every = {**options, "as_json": (JsonOption, False)}
    parameters = [
        Parameter(each, Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for each, (kind, default) in every.items()
    ]
    add_command(commands, name, command, parameters, about)


def _taken(values: dict[str, Any], options: Options) -> dict[str, Any]:
    """Take out what the options of a table give."""
    return {name: values.pop(name) for name in options if name in values}


def _target(values: dict[str, Any]) -> SparkTarget:
    from holdfast.spark.commands import SparkTarget

    chosen = _taken(values, TARGET)
    conf = parse_pairs("--conf", chosen["conf"], "spark.executor.memory=8g")
    return SparkTarget(chosen["master"], chosen.get("remote"), conf)


def _pipeline(name: str, values: dict[str, Any], as_json: bool) -> None:
    """Run the pipeline of this name."""
    from holdfast.spark.commands import run_job, snapshot_of_log

    target, into_log = _target(values), values.pop("into_log", False)
    log, to, once, every = (values.pop(each) for each in ("log", "to", "once", "every"))
    until = values.pop("until", None)
    if once + (every is not None) + (until is not None) > 1:
        raise InvalidRequest("--once, --every and --until each say when to stop: give one of them")
    source = _source_of(log, _taken(values, STORE))
    if into_log and log is not None:
        if to is not None or once or every is not None or values.get("vacuum_hours") is not None:
            raise InvalidRequest("--into-log makes one snapshot in the log's store: of the others it takes --at only")
        print_result(snapshot_of_log(log, target, until), as_json=as_json)
        return
    if to is None:
        raise InvalidRequest("--to or --into-log says where the snapshot goes")
    rows = _taken(values, ROWS)
    numbers = {each: value for each, value in values.items() if value is not None}
    if not isinstance(source, str):
        _require_no_rows(rows)
    with stopped_by_sigterm() as stop:
        stopping, report = partial(stopped_by_signals, stop), report_steps(as_json=as_json)
        result = run_job(name, source, to, target, (every, until), numbers, stopping, report, rows)
    print_result(result, as_json=as_json)
    if not result.is_good:
        raise typer.Exit(Exit.DAMAGED)


def _source_of(log: str | None, values: Mapping[str, str | None]) -> str | StoreSource:
    """The log or the message store that is the source. Raises: InvalidRequest unless it is one of them."""
    from holdfast.spark.commands import StoreSource

    names = {name: text for name, text in values.items() if text is not None}
    if log is not None and not names:
        return log
    if log is not None or names.keys() != STORE.keys():
        raise InvalidRequest("the source is a log (--log), or a message store (--service, --store and --durable)")
    return StoreSource(**names)


def _require_no_rows(rows: Mapping[str, object]) -> None:
    """Raise InvalidRequest for options that only the operations of a log have."""
    names = [f"--{name.replace('_', '-').removesuffix('es')}" for name, value in rows.items() if value]
    if names:
        raise InvalidRequest(f"{', '.join(names)} is about the keys and values of a log, which a store does not have")


def _add_pipeline(name: str, about: str, options: Options) -> None:
    log = _text("--log", help=LOG_HELP) if "service" in options else LOG
    head = {"log": log, "to": _required("--to", help="Where the output lives: file:, s3: or az:."), **TARGET, **WHEN}
    _add(name, about, {**head, **options}, partial(_pipeline, name))


_add_pipeline(
    "changes",
    "Every operation of the log, or every message of a store, once, in an append-only Delta table partitioned by day.",
    {**UNTIL, **STEP, **VACUUM, **ROWS, **STORE},
)
_add_pipeline(
    "latest",
    "The newest value of every key, or the newest message, in a Delta table that is kept up to date.",
    {**BUCKETS, **ROWS, **STORE},
)
_add_pipeline(
    "history",
    "Every value that every key ever had, with the versions between which it was the newest, in a Delta table.",
    {**BUCKETS, **ROWS},
)
_add_pipeline("segments", "The log's operations in few large Parquet files, in log order.", {**STEP, **SEGMENTS})
_add_pipeline(
    "snapshot",
    "The whole state at one version, sorted by key, in a Delta table or in the log's own store.",
    {**AT, **VACUUM, **INTO_LOG},
)
_add_pipeline(
    "replay",
    "Commit the transactions of one log to another log, in their order, each once.",
    {**UNTIL, **STEP, **AFTER},
)
_add_pipeline(
    "verify",
    "Audit the log: every object, every link, every verdict decided again. Exit code 6 when anything is damaged.",
    {**UNTIL, **STEP},
)

# ---- requests in bulk -----------------------------------------------------------------------------------------------

SOURCE: Final[Options] = {
    "format": _option(str, "parquet", "--format", help="parquet, json, csv or table."),
    "order_by": _option(str, "order", "--order-by", metavar="COLUMN", help="The column that orders the requests."),
    "text": _option(str, "utf8", "--text", help="The encoding of keys and values in text columns: utf8 or base64."),
    "schema": _text("--schema", metavar="DDL", help="Columns and types of the files, in SQL syntax."),
}
"""``RequestSource``, and before it where the requests are."""
FROM: Final = _required("--from", help="The requests: files that Spark reads, or a table.")
VERDICTS: Final = "Where the table of verdicts lives: file:, s3: or az:."
WINDOW: Final = _number("--window", help="Size of the conflict window in requests; all by default.")
PARTITIONS: Final = _option(int, 8, "--partitions", min=1, help="Partitions for sorting and packing.")
JUDGING: Final = _number(
    "--judging-bytes",
    help="Most memory of the task that decides; what is free where it runs by default. More is refused.",
)
RESOLVE: Final[Options] = {
    "log": _text("--log", help="Decide as the next leader of this log would."),
    "base": _number("--base", least=0, help="Decide as a leader with this base version."),
    "window": WINDOW,
    "partitions": PARTITIONS,
    "judging_bytes_max": JUDGING,
}
LOAD: Final[Options] = {
    "name": _text("--name", help="The permanent name of the load; its input by default."),
    "window": WINDOW,
    "wave": _option(int, 256, "--wave", min=1, max=1000, help="Objects written at the same time."),
    "partitions": PARTITIONS,
    "judging_bytes_max": JUDGING,
}
"""``LoadOptions``."""
STEP_DOWN: Final = "Ask a service that leads the log to stand by. It leads again after the job."
LEADING: Final[Options] = {
    "step_down": _flag("--step-down", STEP_DOWN),
    "take_over": _flag("--take-over", "Claim the log without asking. A service that leads it is deposed."),
    "token": _text("--token", envvar="HOLDFAST_TOKEN", help="Bearer token for the request to step down."),
}
"""``LeadershipOptions``, which of an ingest has ``listen``, too."""
LISTEN: Final = _text(
    "--listen", metavar="HOST:PORT", help="Where this job answers that it leads, to services of the same log."
)
MICRO_BATCHES: Final = (
    "Continue until stopped, with a micro-batch at this interval; 0: at once. By default stop after all."
)
AWAY: Final = "How long the services of requests and verdicts may be away before the job ends."
LIVE: Final[Options] = {
    "verdicts_table": _text("--to", help=VERDICTS),
    "verdicts_store": _text(
        "--verdicts-to",
        metavar="STORE",
        help="Instead of a table: store:URL/STORE, or a store of the service that has the requests.",
    ),
    "at_once": _number("--max-requests", "--files", help="At most this many requests, or files, in a micro-batch."),
    "bytes_at_once": _number("--max-bytes", help="About this many bytes of messages in a micro-batch."),
    "retry_seconds": _option(float, 600.0, "--retry-duration", metavar="SECONDS", min=1, help=AWAY),
    "source_moved": _flag("--source-moved", "The name's messages are in this queue now: its id changed."),
}
"""``LiveRequests``."""
INGEST: Final[Options] = {
    "path": _required(
        "--from",
        help="The requests: store:URL/STORE/DURABLE, queue:PATH, a folder in which files appear, or a table.",
    ),
    "log": LOG,
    "name": _required("--name", help="The permanent name of the stream; it belongs to its source."),
    "checkpoint": _required("--checkpoint", help="Where Spark stores the progress of the stream."),
    **SOURCE,
    "every": _option(float | None, None, "--every", metavar="SECONDS", min=0, help=MICRO_BATCHES),
    **LIVE,
    "init": _flag("--init", "Make the log if there is none."),
    **LEADING,
    "listen": LISTEN,
    "master": TARGET["master"],
    "conf": TARGET["conf"],
}


def _resolve(values: dict[str, Any], as_json: bool) -> None:
    from holdfast.spark.commands import RequestSource, resolve

    source, target = RequestSource(values.pop("path"), **_taken(values, SOURCE)), _target(values)
    print_result(resolve(source, target, report_steps(as_json=as_json), **values), as_json=as_json)


def _load(values: dict[str, Any], as_json: bool) -> None:
    from holdfast.spark.commands import RequestSource, load

    source, target = RequestSource(values.pop("path"), **_taken(values, SOURCE)), _target(values)
    leading, options = _taken(values, LEADING), _taken(values, LOAD)
    result = load(source, target, report_steps(as_json=as_json), leading=leading, options=options, **values)
    print_result(result, as_json=as_json)


def _ingest(values: dict[str, Any], as_json: bool) -> None:
    from holdfast.spark.commands import RequestSource, ingest

    source, target = RequestSource(values.pop("path"), **_taken(values, SOURCE)), _target(values)
    leading, live = _taken(values, {**LEADING, "listen": LISTEN}), _taken(values, LIVE)
    with stopped_by_sigterm() as stop:
        stopping, report = partial(stopped_by_signals, stop), report_steps(as_json=as_json)
        result = ingest(source, target, report, stopping, leading=leading, live=live, **values)
    print_result(result, as_json=as_json)


_add(
    "resolve",
    "Write a table of the verdicts that a leader would give on many commit requests. Commits nothing.",
    {"path": FROM, "to": _required("--to", help=VERDICTS), **SOURCE, **RESOLVE, **TARGET},
    _resolve,
)
_add(
    "load",
    "Commit many requests in parallel, each exactly once. Refused while a service leads the log: see --step-down.",
    {"path": FROM, "log": LOG, "to": _required("--to", help=VERDICTS), **SOURCE, **LOAD, **LEADING, **TARGET},
    _load,
)
_add(
    "ingest",
    "Commit requests as they come, each exactly once. Refused while a service leads the log: see --step-down.",
    INGEST,
    _ingest,
)


# ---- others ---------------------------------------------------------------------------------------------------------

DOCTOR: Final[Options] = {
    "log": _text("--log", help="Check that this log can be read."),
    "to": _text("--to", help="Check that this output can be written."),
}
GIVE_UP: Final[Options] = {
    "service": _required("--service", help="The service that the write goes to."),
    "application": _required(
        "--application", help="The application of the write; APPLICATION@STORE for a message store."
    ),
    "write": _required("--write", help="The write's name, as `unfinished=` of the error has it."),
    "staging_location": _text("--staging-location", help="The stagingLocation of the write, if it has one."),
}


def _doctor(values: dict[str, Any], as_json: bool) -> None:
    from holdfast.spark.commands import doctor

    result = doctor(**values)
    if as_json:
        print_json({"checks": result.findings, "good": result.is_good})
    else:
        _print_findings(result, ("check", "verdict", "found", "mend"))
    if not result.is_good:
        raise typer.Exit(Exit.NO)


def _give_up(values: dict[str, Any], as_json: bool) -> None:
    from holdfast.spark.commands import give_up

    give_up(**values, show=partial(print_result, as_json=as_json))


_add(
    "doctor",
    "Check that pipelines can run here, and print what is missing. Exit code 1 if something is.",
    DOCTOR,
    _doctor,
)
_add(
    "give-up",
    "End a write that cannot be finished: nothing more of it is sent. Print which of its rows are committed.",
    GIVE_UP,
    _give_up,
)


def report_steps(*, as_json: bool) -> Report:
    """Print each step: to stderr for people, as a line of JSON to stdout; nothing after the reader has left."""
    has_left = False

    def report(fields: Mapping[str, object]) -> None:
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

    return report


def print_result(result: JobResult, *, as_json: bool) -> None:
    """Print the report of a run and its findings."""
    with answering():
        if as_json:
            print_json({"report": result.fields, "findings": result.findings})
            return
        print_fields(result.fields)
        if result.findings:
            print_line("")
            _print_findings(result, tuple(result.findings[0]))


def _print_findings(result: JobResult, columns: tuple[str, ...]) -> None:
    print_table(columns, [[str(row[name]) for name in columns] for row in result.findings])


@contextmanager
def stopped_by_sigterm() -> Generator[Event]:
    """An event that SIGTERM sets, also while Spark starts: the job then ends before its first step."""
    stop = Event()

    def stopped(*_: object) -> None:
        stop.set()

    before = signal.signal(signal.SIGTERM, stopped)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def stopped_by_signals(stop: Event) -> Generator[Event]:
    """SIGINT and SIGTERM set ``stop``. The runner looks at it between steps; a second signal ends the process."""

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
