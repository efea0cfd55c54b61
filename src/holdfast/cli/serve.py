"""``holdfast serve``: run a service in the foreground."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from holdfast.cli.options import ConfigOption, SetOption, configuration
from holdfast.errors import InvalidRequest

__all__ = ["serve"]


def serve(
    log: Annotated[str | None, typer.Option("--log", help="Where the log is: file:, s3:, az: or memory:.")] = None,
    listen: Annotated[
        list[str] | None,
        typer.Option("--listen", help="HOST:PORT or unix:PATH; repeatable. 127.0.0.1:8080 by default."),
    ] = None,
    init: Annotated[bool, typer.Option("--init", help="Begin a new log when there is none at all.")] = False,
    force_new: Annotated[
        bool,
        typer.Option("--force-new", help="With --init: also where another log left stores, a view or segments."),
    ] = False,
    take_over: Annotated[bool, typer.Option("--take-over", help="Claim the log although its leader is alive.")] = False,
    standby: Annotated[
        bool, typer.Option("--standby", help="While another leads, wait and take over when it ends.")
    ] = False,
    config: ConfigOption = None,
    settings: SetOption = None,
) -> None:
    """Lead a log and serve it over HTTP until SIGTERM or SIGINT.

    Exit codes: 0 drained; 2 bad configuration; 3 another leader is alive; 4 deposed; 5 nothing to open; 6 the store or
    the log is damaged or unfit, or the store does not answer; 70 a bug of ours.
    """
    if take_over and standby:
        raise InvalidRequest("--take-over claims at once and --standby waits: give one of them")
    if force_new and not init:
        raise InvalidRequest("--force-new belongs to --init")
    found = configuration(config, settings, log=log, listen=listen)
    for warning in found.warnings:
        sys.stderr.write(f"warning: {warning}\n")
    # The one name that cli knows of server, inside the command: see the contract "tops" in pyproject.toml.
    from holdfast.server.run import main as run_server

    in_force = found.settings
    init = init or in_force.log.init_implied
    code = run_server(in_force, init=init, take_over=take_over, standby=standby, force_new=force_new)
    raise typer.Exit(code)
