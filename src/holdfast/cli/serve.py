"""``holdfast serve`` and ``holdfast check-config``: run a service in the foreground, and check its configuration."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.options import ConfigOption, JsonOption, SetOption, configuration
from holdfast.cli.output import print_json, print_line, print_table
from holdfast.errors import InvalidRequest
from holdfast.settings import Configuration, LogSettings

if TYPE_CHECKING:
    from holdfast.wire.log import ConfigurationAnswer


def serve(
    log: Annotated[str | None, typer.Option("--log", help="The URL of the log: file:, s3:, az: or memory:.")] = None,
    listen: Annotated[
        list[str] | None,
        typer.Option("--listen", help="HOST:PORT or unix:PATH; repeatable. 127.0.0.1:8080 by default."),
    ] = None,
    init: Annotated[bool, typer.Option("--init", help="Begin a new log if there is none.")] = False,
    force_new: Annotated[
        bool, typer.Option("--force-new", help="With --init: even if another log left stores, a view or segments.")
    ] = False,
    take_over: Annotated[bool, typer.Option("--take-over", help="Claim the log even if its leader is alive.")] = False,
    standby: Annotated[
        bool, typer.Option("--standby", help="Wait while another service leads, and take over when it stops.")
    ] = False,
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Never lead: follow the log and answer readers, also of a mirror.")
    ] = False,
    console: Annotated[
        bool, typer.Option("--console", help="Also start the web console, as a process that ends with this one.")
    ] = False,
    console_listen: Annotated[
        str, typer.Option("--console-listen", help="HOST:PORT of the console, on this machine only.")
    ] = "127.0.0.1:8081",
    console_token_file: Annotated[
        Path | None,
        typer.Option("--console-token-file", help="The token of the console; without it the console only reads."),
    ] = None,
    config: ConfigOption = None,
    settings: SetOption = None,
) -> None:
    """Lead a log and serve it over HTTP until SIGTERM or SIGINT.

    Exit codes: 0 drained; 2 bad configuration; 3 another leader is alive; 4 deposed; 5 no log; 6 the store or
    the log is damaged or unfit, or the store does not respond; 70 an internal error.
    """
    if take_over and standby:
        raise InvalidRequest("--take-over and --standby exclude each other")
    if read_only and (take_over or standby or init):
        raise InvalidRequest("--read-only leads no log: it excludes --init, --standby and --take-over")
    if force_new and not init:
        raise InvalidRequest("--force-new requires --init")
    result = configuration(config, settings, log=log, listen=listen)
    console_options = _console_options(console_listen, console_token_file) if console else None
    if console_options is not None and result.settings.server.has_tokens and console_token_file is None:
        raise InvalidRequest("the service needs tokens, so --console needs --console-token-file")
    for warning in result.warnings:
        sys.stderr.write(f"warning: {warning}\n")
    # The only import of the server in cli: see the contract "tops" in pyproject.toml.
    from holdfast.server.run import Serving
    from holdfast.server.run import main as run_server

    in_force = result.settings
    init = not read_only and (init or in_force.log.init_implied)
    serving = Serving(
        init=init,
        take_over=take_over,
        standby=standby,
        force_new=force_new,
        read_only=read_only,
        configuration=_shown(result),
        console=console_options,
    )
    raise typer.Exit(run_server(in_force, serving))


def _console_options(listen: str, token_file: Path | None) -> tuple[str, ...]:
    """The options of the console that `holdfast serve --console` starts. Raises: InvalidRequest, before anything."""
    from holdfast.console.options import ConsoleOptions, parse_listen

    host, port = parse_listen(listen)
    ConsoleOptions((), host, port, token_file=token_file)  # it refuses what the child would refuse
    token = () if token_file is None else ("--token-file", str(token_file.absolute()))
    return "--listen", listen, *token


def _shown(configuration: Configuration) -> ConfigurationAnswer:
    """The settings in force as the service shows them. Their values are those of `check-config`, without tokens."""
    from holdfast.wire.log import ConfigurationAnswer, SettingInForce

    return ConfigurationAnswer(
        tuple(SettingInForce(each.key, each.value, each.source, each.why) for each in configuration.origins),
        configuration.warnings,
        None if configuration.file is None else str(configuration.file),
    )


def scrub_cost(log: LogSettings) -> str:
    """The cost of reading the log again in the background."""
    if log.scrub_days is None:
        return "scrub: off, no requests; log.scrub_days turns it on"
    from holdfast.commit.reading.verify import requests_per_month  # brings Arrow, which most commands do not need

    for_each, at_most = requests_per_month(log.scrub_days, log.scrub_bytes_per_second)
    return (
        f"scrub: {for_each:.2f} GET requests per object of the log and month "
        f"({for_each * 1_000_000:,.0f} for a million objects), at most {at_most:,} per month"
    )


def check_config(config: ConfigOption = None, settings: SetOption = None, as_json: JsonOption = False) -> None:
    """Show every setting in force and its source, and check them. Opens nothing."""
    result = configuration(config, settings)
    if as_json:
        print_json(
            {
                "file": None if result.file is None else str(result.file),
                "settings": [asdict(origin) for origin in result.origins],
                "scrub": scrub_cost(result.settings.log),
                "warnings": list(result.warnings),
            }
        )
        return
    rows = [(o.key, o.value, o.source, o.why) for o in result.origins]
    print_table(("key", "value", "source", "why"), rows)
    print_line(scrub_cost(result.settings.log))
    for warning in result.warnings:
        sys.stderr.write(f"warning: {warning}\n")
