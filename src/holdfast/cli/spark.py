"""``holdfast spark``: jobs that make tables and files of a log, and jobs that commit requests in bulk.

``holdfast.spark.commands`` runs them. A job that was killed continues when it is started again with the same arguments.
SIGINT and SIGTERM end a job after its current step. A closed output pipe does not end it.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from functools import partial
from inspect import Parameter, Signature
from threading import Event
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias

import typer

from holdfast.cli.options import JsonOption, parse_pairs
from holdfast.cli.output import Exit, answering, flush_output, print_fields, print_json, print_line, print_table
from holdfast.errors import InvalidRequest

if TYPE_CHECKING:
    # The one name that cli knows of spark: see the contract "tops" in pyproject.toml.
    from holdfast.spark.commands import JobResult, Report, RequestSource, SparkTarget, StoreSource

commands = typer.Typer(no_args_is_help=True, help="Tables and files made of a log by Spark.", rich_markup_mode=None)

LogOption: TypeAlias = Annotated[str, typer.Option("--log", help="The log: file:, s3: or az:.")]
OptionalLogOption: TypeAlias = Annotated[str | None, typer.Option("--log", help="The log: file:, s3: or az:.")]
ToOption: TypeAlias = Annotated[str, typer.Option("--to", help="Where the output lives: file:, s3: or az:.")]
OptionalToOption: TypeAlias = Annotated[
    str | None, typer.Option("--to", help="Where the Delta table lives: file:, s3: or az:.")
]
IntoLogOption: TypeAlias = Annotated[
    bool, typer.Option("--into-log", help="Make it in the log's own store, as `holdfast log snapshot` does.")
]
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
    float | None,
    typer.Option(
        "--every", metavar="SECONDS", help="Continue until stopped, and look for new transactions at this interval."
    ),
]
UntilOption: TypeAlias = Annotated[
    int | None, typer.Option("--until", min=0, metavar="VERSION", help="Stop after this version.")
]
AtOption: TypeAlias = Annotated[
    int | None,
    typer.Option("--at", "--until", min=0, metavar="VERSION", help="The version to take; the newest by default."),
]
StepOption: TypeAlias = Annotated[
    int | None, typer.Option("--step-bytes", min=1, help="Bytes of the log that a step reads; 512 MiB by default.")
]
BucketsOption: TypeAlias = Annotated[
    int | None,
    typer.Option("--buckets", min=1, max=4096, help="Buckets of a new table; chosen by the log's size by default."),
]
VacuumOption: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--vacuum-hours",
        min=0,
        max=168,
        help="Remove files that were replaced at least this long ago; without it nothing is removed.",
    ),
]
MinBytesOption: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--min-bytes", min=1, help="Write a segment only of at least this much of the log; 64 MiB by default."
    ),
]
AfterOption: TypeAlias = Annotated[
    int | None, typer.Option("--after", min=0, help="Only transactions with a higher version.", metavar="VERSION")
]
FromOption: TypeAlias = Annotated[str, typer.Option("--from", help="The requests: files that Spark reads, or a table.")]
FormatOption: TypeAlias = Annotated[str, typer.Option("--format", help="parquet, json, csv or table.")]
OrderOption: TypeAlias = Annotated[
    str, typer.Option("--order-by", metavar="COLUMN", help="The column that orders the requests.")
]
TextOption: TypeAlias = Annotated[
    str, typer.Option("--text", help="The encoding of keys and values in text columns: utf8 or base64.")
]
SchemaOption: TypeAlias = Annotated[
    str | None, typer.Option("--schema", metavar="DDL", help="Columns and types of the files, in SQL syntax.")
]
VerdictsOption: TypeAlias = Annotated[
    str, typer.Option("--to", help="Where the table of verdicts lives: file:, s3: or az:.")
]
WindowOption: TypeAlias = Annotated[
    int | None, typer.Option("--window", min=1, help="Size of the conflict window in requests; all by default.")
]
PartitionsOption: TypeAlias = Annotated[
    int, typer.Option("--partitions", min=1, help="Partitions for sorting and packing.")
]
MemoryOption: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--judging-bytes",
        min=1,
        help="Most memory of the task that decides; what is free where it runs by default. More is refused.",
    ),
]
TakeOverOption: TypeAlias = Annotated[
    bool, typer.Option("--take-over", help="Claim the log without asking. A service that leads it is deposed.")
]
StepDownOption: TypeAlias = Annotated[
    bool,
    typer.Option("--step-down", help="Ask a service that leads the log to stand by. It leads again after the job."),
]
TokenOption: TypeAlias = Annotated[
    str | None, typer.Option("--token", envvar="HOLDFAST_TOKEN", help="Bearer token for the request to step down.")
]


ListenOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--listen", metavar="HOST:PORT", help="Where this job answers that it leads, to services of the same log."
    ),
]

_ON_SPARK: Final = {"master": MasterOption, "remote": RemoteOption, "conf": ConfOption}
_STEPS: Final = {"until": UntilOption, "step_bytes": StepOption}
_VACUUM: Final = {"vacuum_hours": VacuumOption}
_BUCKETS: Final = {**_STEPS, "buckets": BucketsOption, **_VACUUM}
_STORE: Final[Mapping[str, Any]] = {
    "service": Annotated[
        str | None, typer.Option("--service", help="Instead of --log: the service of a message store.")
    ],
    "store": Annotated[str | None, typer.Option("--store", help="With --service: the store.")],
    "durable": Annotated[
        str | None, typer.Option("--durable", help="With --service: a durable of its own, which is made if absent.")
    ],
}
"""The source of a table that is made of a message store: the arguments of ``StoreSource`` by name."""
_ROWS: Final[Mapping[str, Any]] = {
    "key_prefixes": Annotated[
        list[str] | None, typer.Option("--key-prefix", help="Only keys that begin with this text; repeatable.")
    ],
    "key_format": Annotated[
        str | None, typer.Option("--key-format", help="utf8, json, msgpack or binary (the default).")
    ],
    "key_schema": Annotated[
        str | None, typer.Option("--key-schema", metavar="DDL", help="The type of JSON or msgpack keys, or a file.")
    ],
    "value_format": Annotated[
        str | None, typer.Option("--value-format", help="utf8, json, msgpack or binary (the default).")
    ],
    "schema": Annotated[
        str | None,
        typer.Option("--schema", metavar="DDL", help="Fields and types of values in SQL syntax, or a file with them."),
    ],
    "infer": Annotated[
        int | None, typer.Option("--infer", min=1, metavar="N", help="Find fields and types in N values of each step.")
    ],
    "unfit": Annotated[
        str | None,
        typer.Option("--unfit", help="Values that do not fit: fail (the default), null, or quarantine (a table)."),
    ],
    "table_per_prefix": Annotated[
        bool, typer.Option("--table-per-prefix", help="Keep a table for each --key-prefix, below the output.")
    ],
}
"""Which rows a table is made of, and its types: the arguments of ``RowOptions`` by name, and ``table_per_prefix``."""


def _add_job(name: str, help_text: str, options: Mapping[str, Any]) -> None:
    """Add the command of one pipeline: the options that all of them have, and these, which go to the job by name."""

    def run(
        log: str | None,
        to: str | None,
        once: bool,
        every: float | None,
        as_json: bool,
        until: int | None = None,
        into_log: bool = False,
        **given: Any,
    ) -> None:
        from holdfast.spark.commands import run_job, snapshot_of_log

        target = _target(given.pop("master"), given.pop("remote"), given.pop("conf"))
        if once + (every is not None) + (until is not None) > 1:
            raise InvalidRequest("--once, --every and --until each say when to stop: give one of them")
        source = _store_source(log, {each: given.pop(each) for each in _STORE if each in given})
        if into_log and log is not None:
            if to is not None or once or every is not None or given.get("vacuum_hours") is not None:
                raise InvalidRequest(
                    "--into-log makes one snapshot in the log's store: of the others it takes --at only"
                )
            print_result(snapshot_of_log(log, target, until), as_json=as_json)
            return
        if to is None:
            raise InvalidRequest("--to or --into-log says where the snapshot goes")
        rows = {each: given.pop(each) for each in _ROWS if each in given}
        numbers = {each: value for each, value in given.items() if value is not None}
        report = report_steps(as_json=as_json)
        with stopped_by_sigterm() as stop:
            stopping = partial(stopped_by_signals, stop)
            if source is not None:
                _require_no_rows(rows)
            of = source or log
            assert of is not None, "a source is one of the two"
            made = run_job(name, of, to, target, (every, until), numbers, stopping, report, rows)
        print_result(made, as_json=as_json)
        if not made.is_good:
            raise typer.Exit(Exit.DAMAGED)

    defaults: dict[str, object] = {"log": Parameter.empty, "to": Parameter.empty, "once": False, "as_json": False}
    defaults |= {"table_per_prefix": False}
    if "service" in options:
        defaults |= {"log": None}
    if "into_log" in options:
        defaults |= {"to": None, "into_log": False}
    types: dict[str, Any] = {"log": OptionalLogOption if "service" in options else LogOption, "to": ToOption}
    types |= {**_ON_SPARK, "once": OnceOption, "every": EveryOption, **options}
    types["as_json"] = JsonOption
    run.__signature__ = Signature(  # type: ignore[attr-defined]  # what typer reads
        [
            Parameter(each, Parameter.KEYWORD_ONLY, default=defaults.get(each), annotation=of)
            for each, of in types.items()
        ]
    )
    run.__annotations__ = dict(types)
    commands.command(name, help=help_text)(run)


def _store_source(log: str | None, given: Mapping[str, str | None]) -> StoreSource | None:
    """The message store that is the source; None where that is a log. Raises: InvalidRequest unless it is one."""
    from holdfast.spark.commands import StoreSource

    named = {name: text for name, text in given.items() if text is not None}
    if log is not None and not named:
        return None
    if log is not None or named.keys() != _STORE.keys():
        raise InvalidRequest("the source is a log (--log), or a message store (--service, --store and --durable)")
    return StoreSource(**named)


def _require_no_rows(rows: Mapping[str, object]) -> None:
    """Raise InvalidRequest for options that only the operations of a log have."""
    given = [f"--{name.replace('_', '-').removesuffix('es')}" for name, value in rows.items() if value]
    if given:
        raise InvalidRequest(f"{', '.join(given)} is about the keys and values of a log, which a store does not have")


_add_job(
    "changes",
    "Every operation of the log, or every message of a store, once, in an append-only Delta table partitioned by day.",
    {**_STEPS, **_VACUUM, **_ROWS, **_STORE},
)
_add_job(
    "latest",
    "The newest value of every key, or the newest message, in a Delta table that is kept up to date.",
    {**_BUCKETS, **_ROWS, **_STORE},
)
_add_job(
    "history",
    "Every value that every key ever had, with the versions between which it was the newest, in a Delta table.",
    {**_BUCKETS, **_ROWS},
)
_add_job(
    "segments",
    "The log's operations in few large Parquet files, in log order.",
    {"step_bytes": StepOption, "log_bytes_min": MinBytesOption},
)
_add_job(
    "snapshot",
    "The whole state at one version, sorted by key, in a Delta table or in the log's own store.",
    {"to": OptionalToOption, "until": AtOption, **_VACUUM, "into_log": IntoLogOption},
)
_add_job(
    "replay",
    "Commit the transactions of one log to another log, in their order, each once.",
    {**_STEPS, "after": AfterOption},
)
_add_job(
    "verify",
    "Audit the log: every object, every link, every verdict decided again. Exit code 6 when anything is damaged.",
    _STEPS,
)


@commands.command()
def doctor(
    log: Annotated[str | None, typer.Option("--log", help="Check that this log can be read.")] = None,
    to: Annotated[str | None, typer.Option("--to", help="Check that this output can be written.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Check that pipelines can run here, and print what is missing. Exit code 1 if something is."""
    from holdfast.spark import commands as jobs

    made = jobs.doctor(log, to)
    if as_json:
        print_json({"checks": made.findings, "good": made.is_good})
    else:
        names = ("check", "verdict", "found", "mend")
        print_table(names, [[str(row[name]) for name in names] for row in made.findings])
    if not made.is_good:
        raise typer.Exit(Exit.NO)


@commands.command(name="give-up")
def give_up(
    service: Annotated[str, typer.Option("--service", help="The service that the write goes to.")],
    application: Annotated[
        str, typer.Option("--application", help="The application of the write; APPLICATION@STORE for a message store.")
    ],
    write: Annotated[str, typer.Option("--write", help="The write's name, as `unfinished=` of the error has it.")],
    staging_location: Annotated[
        str | None, typer.Option("--staging-location", help="The stagingLocation of the write, if it has one.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """End a write that cannot be finished: nothing more of it is sent. Print which of its rows are committed."""
    from holdfast.spark import commands as jobs

    jobs.give_up(service, application, write, staging_location, partial(print_result, as_json=as_json))


@commands.command()
def resolve(
    requests: FromOption,
    to: VerdictsOption,
    kind: FormatOption = "parquet",
    order_by: OrderOption = "order",
    text: TextOption = "utf8",
    schema: SchemaOption = None,
    log: Annotated[str | None, typer.Option("--log", help="Decide as the next leader of this log would.")] = None,
    base: Annotated[
        int | None, typer.Option("--base", min=0, help="Decide as a leader with this base version.")
    ] = None,
    window: WindowOption = None,
    partitions: PartitionsOption = 8,
    judging_bytes: MemoryOption = None,
    master: MasterOption = None,
    remote: RemoteOption = None,
    conf: ConfOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write a table of the verdicts that a leader would give on many commit requests. Commits nothing."""
    from holdfast.spark.commands import BulkCommand

    command = BulkCommand(
        _source(requests, kind, order_by, text, schema), to, log, window=window, partitions=partitions,
        judging_bytes_max=judging_bytes, spark=_target(master, remote, conf),
    )  # fmt: skip
    print_result(command.resolve(base, report_steps(as_json=as_json)), as_json=as_json)


@commands.command()
def load(
    requests: FromOption,
    log: LogOption,
    to: VerdictsOption,
    kind: FormatOption = "parquet",
    order_by: OrderOption = "order",
    text: TextOption = "utf8",
    schema: SchemaOption = None,
    name: Annotated[
        str | None, typer.Option("--name", help="The permanent name of the load; its input by default.")
    ] = None,
    window: WindowOption = None,
    wave: Annotated[int, typer.Option("--wave", min=1, max=1000, help="Objects written at the same time.")] = 256,
    partitions: PartitionsOption = 8,
    judging_bytes: MemoryOption = None,
    step_down: StepDownOption = False,
    take_over: TakeOverOption = False,
    token: TokenOption = None,
    master: MasterOption = None,
    remote: RemoteOption = None,
    conf: ConfOption = None,
    as_json: JsonOption = False,
) -> None:
    """Commit many requests in parallel, each exactly once. Refused while a service leads the log: see --step-down."""
    from holdfast.spark.commands import BulkCommand

    command = BulkCommand(
        _source(requests, kind, order_by, text, schema), to, log, name, window, partitions, judging_bytes,
        wave, take_over, step_down, token, spark=_target(master, remote, conf),
    )  # fmt: skip
    print_result(command.load(report_steps(as_json=as_json)), as_json=as_json)


@commands.command()
def ingest(
    requests: Annotated[
        str,
        typer.Option(
            "--from",
            help="The requests: store:URL/STORE/DURABLE, queue:PATH, a folder in which files appear, or a table.",
        ),
    ],
    log: LogOption,
    name: Annotated[str, typer.Option("--name", help="The permanent name of the stream; it belongs to its source.")],
    checkpoint: Annotated[str, typer.Option("--checkpoint", help="Where Spark stores the progress of the stream.")],
    to: Annotated[
        str | None, typer.Option("--to", help="Where the table of verdicts lives: file:, s3: or az:.")
    ] = None,
    verdicts_to: Annotated[
        str | None,
        typer.Option(
            "--verdicts-to",
            metavar="STORE",
            help="Instead of a table: store:URL/STORE, or a store of the service that has the requests.",
        ),
    ] = None,
    kind: FormatOption = "parquet",
    order_by: OrderOption = "order",
    text: TextOption = "utf8",
    schema: SchemaOption = None,
    every: Annotated[
        float | None,
        typer.Option(
            "--every",
            metavar="SECONDS",
            min=0,
            help="Continue until stopped, with a micro-batch at this interval; 0: at once. By default stop after all.",
        ),
    ] = None,
    at_once: Annotated[
        int | None,
        typer.Option(
            "--max-requests", "--files", min=1, help="At most this many requests, or files, in a micro-batch."
        ),
    ] = None,
    bytes_at_once: Annotated[
        int | None, typer.Option("--max-bytes", min=1, help="About this many bytes of messages in a micro-batch.")
    ] = None,
    retry_duration: Annotated[
        float,
        typer.Option(
            "--retry-duration",
            metavar="SECONDS",
            min=1,
            help="How long the services of requests and verdicts may be away before the job ends.",
        ),
    ] = 600.0,
    init: Annotated[bool, typer.Option("--init", help="Make the log if there is none.")] = False,
    source_moved: Annotated[
        bool,
        typer.Option("--source-moved", help="The name's messages are in this queue now: its id changed."),
    ] = False,
    step_down: StepDownOption = False,
    take_over: TakeOverOption = False,
    token: TokenOption = None,
    listen: ListenOption = None,
    master: MasterOption = None,
    conf: ConfOption = None,
    as_json: JsonOption = False,
) -> None:
    """Commit requests as they come, each exactly once. Refused while a service leads the log: see --step-down."""
    from holdfast.spark.commands import BulkCommand

    command = BulkCommand(
        _source(requests, kind, order_by, text, schema), "", log, name, take_over=take_over, step_down=step_down,
        token=token, listen=listen, spark=_target(master, None, conf),
    )  # fmt: skip
    live = {
        "verdicts_table": to, "verdicts_store": verdicts_to, "at_once": at_once, "bytes_at_once": bytes_at_once,
        "retry_seconds": retry_duration, "source_moved": source_moved,
    }  # fmt: skip
    with stopped_by_sigterm() as stop:
        stopping = partial(stopped_by_signals, stop)
        report = report_steps(as_json=as_json)
        made = command.ingest(live, checkpoint, stopping, report, every_seconds=every, may_init=init)
    print_result(made, as_json=as_json)


def _source(path: str, kind: str, order_by: str, text: str, schema: str | None) -> RequestSource:
    from holdfast.spark.commands import RequestSource

    text_kind: Literal["utf8", "base64"] = text  # type: ignore[assignment]  # RequestFormat refuses any other
    return RequestSource(path, kind, order_by, text_kind, schema)


def _target(master: str | None, remote: str | None, conf: list[str] | None) -> SparkTarget:
    from holdfast.spark.commands import SparkTarget

    return SparkTarget(master, remote, parse_pairs("--conf", conf, "spark.executor.memory=8g"))


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


def print_result(made: JobResult, *, as_json: bool) -> None:
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
