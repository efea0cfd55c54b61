"""``holdfast spark resolve``, ``load`` and ``ingest``: commit requests in bulk, one command each.

Owns: their options, and what is printed while they run and at their end. Does not own: what they do
(``holdfast.spark.bulk``), which is loaded when one of them runs.

Failure model: a run may be killed anywhere and started again with the same words; nothing is committed twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

import typer

from holdfast.cli.options import JsonOption
from holdfast.cli.spark import (
    ConfOption,
    LogOption,
    MasterOption,
    RemoteOption,
    commands,
    parse_conf,
    print_made,
    stopped_by_signals,
    tell_steps,
)

if TYPE_CHECKING:
    # The one name that cli knows of bulk: see the contract "tops" in pyproject.toml.
    from holdfast.spark.commands import RequestSource

__all__ = ["commands", "ingest", "load", "resolve"]

FromOption: TypeAlias = Annotated[str, typer.Option("--from", help="The requests: files that Spark reads, or a table.")]
FormatOption: TypeAlias = Annotated[str, typer.Option("--format", help="parquet, json, csv or table.")]
OrderOption: TypeAlias = Annotated[str, typer.Option("--order-by", metavar="COLUMN", help="What orders the requests.")]
TextOption: TypeAlias = Annotated[str, typer.Option("--text", help="Strings as keys and values: utf8 or base64.")]
SchemaOption: TypeAlias = Annotated[
    str | None, typer.Option("--schema", metavar="DDL", help="Columns and types of the files, as in SQL.")
]
VerdictsOption: TypeAlias = Annotated[
    str, typer.Option("--to", help="Where the table of verdicts lives: file:, s3: or az:.")
]
WindowOption: TypeAlias = Annotated[
    int | None, typer.Option("--window", min=1, help="Requests that the conflict window holds; all by default.")
]
PartitionsOption: TypeAlias = Annotated[int, typer.Option("--partitions", min=1, help="Parts to sort and pack in.")]
RangesOption: TypeAlias = Annotated[
    int | None, typer.Option("--ranges", min=1, help="Judge in rounds over so many ranges of keys.")
]
TakeOverOption: TypeAlias = Annotated[bool, typer.Option("--take-over", help="Do not ask a living leader first.")]
TokenOption: TypeAlias = Annotated[
    str | None,
    typer.Option("--token", envvar="HOLDFAST_TOKEN", help="Bearer token to ask a leader to step down with."),
]


def _source(path: str, kind: str, order_by: str, text: str, schema: str | None) -> RequestSource:
    from holdfast.spark.commands import RequestSource

    text_kind: Literal["utf8", "base64"] = text  # type: ignore[assignment]  # RequestFormat refuses any other
    return RequestSource(path, kind, order_by, text_kind, schema)


@commands.command()
def resolve(
    requests: FromOption,
    to: VerdictsOption,
    kind: FormatOption = "parquet",
    order_by: OrderOption = "order",
    text: TextOption = "utf8",
    schema: SchemaOption = None,
    log: Annotated[str | None, typer.Option("--log", help="Judge as the next leader of this log would.")] = None,
    base: Annotated[int | None, typer.Option("--base", min=0, help="Judge as a leader with this base.")] = None,
    window: WindowOption = None,
    partitions: PartitionsOption = 8,
    ranges: RangesOption = None,
    master: MasterOption = None,
    remote: RemoteOption = None,
    conf: ConfOption = None,
    as_json: JsonOption = False,
) -> None:
    """The verdict that a leader would give on each of many commit requests, as a table. Commits nothing."""
    from holdfast.spark.commands import BulkCommand

    command = BulkCommand(
        _source(requests, kind, order_by, text, schema), to, log, window=window, partitions=partitions, ranges=ranges,
        master=master, remote=remote, conf=parse_conf(conf),
    )  # fmt: skip
    print_made(command.resolve(base, tell_steps(as_json=as_json)), as_json=as_json)


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
        str | None, typer.Option("--name", help="The load's name for good; its input's by default.")
    ] = None,
    window: WindowOption = None,
    wave: Annotated[int, typer.Option("--wave", min=1, max=1000, help="Objects written side by side.")] = 256,
    partitions: PartitionsOption = 8,
    ranges: RangesOption = None,
    take_over: TakeOverOption = False,
    token: TokenOption = None,
    master: MasterOption = None,
    remote: RemoteOption = None,
    conf: ConfOption = None,
    as_json: JsonOption = False,
) -> None:
    """Commit many requests: decided and written by tasks, exactly once. A living leader is asked to step down."""
    from holdfast.spark.commands import BulkCommand

    command = BulkCommand(
        _source(requests, kind, order_by, text, schema), to, log, name, window, partitions, ranges, wave, take_over,
        token, master=master, remote=remote, conf=parse_conf(conf),
    )  # fmt: skip
    print_made(command.load(tell_steps(as_json=as_json)), as_json=as_json)


@commands.command()
def ingest(
    requests: FromOption,
    log: LogOption,
    to: VerdictsOption,
    name: Annotated[str, typer.Option("--name", help="The stream's name for good; it belongs to the checkpoint.")],
    checkpoint: Annotated[str, typer.Option("--checkpoint", help="Where Spark keeps how far the stream has come.")],
    kind: FormatOption = "parquet",
    order_by: OrderOption = "order",
    text: TextOption = "utf8",
    schema: SchemaOption = None,
    every: Annotated[
        float | None, typer.Option("--every", metavar="SECONDS", help="Go on for ever; by default until all is in.")
    ] = None,
    files: Annotated[int | None, typer.Option("--files", min=1, help="At most so many files a micro-batch.")] = None,
    take_over: TakeOverOption = False,
    token: TokenOption = None,
    master: MasterOption = None,
    conf: ConfOption = None,
    as_json: JsonOption = False,
) -> None:
    """Commit requests as they come, file by file, exactly once."""
    from holdfast.spark.commands import BulkCommand

    command = BulkCommand(
        _source(requests, kind, order_by, text, schema), to, log, name, take_over=take_over, token=token,
        master=master, conf=parse_conf(conf),
    )  # fmt: skip
    made = command.ingest(
        checkpoint, stopped_by_signals, tell_steps(as_json=as_json), every_seconds=every, files_at_once=files
    )
    print_made(made, as_json=as_json)
