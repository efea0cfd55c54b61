"""``holdfast stores status``, ``history``, ``rollback``: the cluster as a whole, and the definitions that it had."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, cast

import typer

from holdfast.cli.options import JsonOption, TimeoutOption, TokenOption, UrlOption
from holdfast.cli.output import print_fields, print_json, print_line, print_table, printable
from holdfast.cli.service import store_asking
from holdfast.cli.stores import DeleteOption, Fields, YesOption, ask_first, commands, hinted
from holdfast.cli.transactions import LOCAL

__all__ = ["commands", "history", "rollback", "status"]


@commands.command()
def status(
    url: UrlOption = LOCAL,
    token: TokenOption = None,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the cluster: its services, its disk and what it counts."""
    with store_asking(url, token, timeout, as_json=as_json) as client:
        found = client.cluster()
    print_json(found) if as_json else print_fields({name: printable(str(value)) for name, value in found.items()})


@commands.command()
def history(
    revision: Annotated[
        int | None, typer.Argument(help="Print this definition instead.", min=1, show_default=False)
    ] = None,
    url: UrlOption = LOCAL,
    token: TokenOption = None,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the definitions that were in force, or print one of them."""
    with store_asking(url, token, timeout, as_json=as_json) as client:
        found = client.history(revision)
    if revision is not None:
        print_json(found["definition"])
        return
    rows = cast("list[Fields]", found["history"])
    if as_json:
        for row in rows:
            print_json(row)
        return
    print_table(
        ("revision", "time", "author"),
        [
            [
                str(row["revision"]),
                datetime.fromtimestamp(cast("int", row["at_ms"]) / 1000, UTC).isoformat(timespec="seconds"),
                printable(str(row["author"])) or "-",
            ]
            for row in rows
        ],
        right=frozenset({"revision"}),
    )


@commands.command()
def rollback(
    revision: Annotated[int, typer.Argument(help="The definition to put in force again.", min=1, show_default=False)],
    delete: DeleteOption = False,
    yes: YesOption = False,
    url: UrlOption = LOCAL,
    token: TokenOption = None,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Put an earlier definition in force again; it gets a new number."""
    ask_first("roll back to revision", [str(revision)], yes=yes)
    with store_asking(url, token, timeout, as_json=as_json) as client, hinted():
        answer = client.rollback(revision, delete=delete)
    print_json(answer) if as_json else print_line(f"defined, revision {answer['revision']}")
