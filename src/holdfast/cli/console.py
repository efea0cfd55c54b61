"""``holdfast console``: pages for a browser that show a service, and let an operator act."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.options import TrustedOption, patterns_of


def console(
    service: Annotated[
        list[str] | None,
        typer.Option(
            "--service",
            envvar="HOLDFAST_URL",
            help="http://HOST:PORT, https:// or unix:/PATH; with standbys all addresses, with commas or again.",
        ),
    ] = None,
    listen: Annotated[str, typer.Option("--listen", help="HOST:PORT of the console.")] = "127.0.0.1:8081",
    token_file: Annotated[
        Path | None, typer.Option("--token-file", help="The token for the service; without it the console only reads.")
    ] = None,
    trusted_hosts: TrustedOption = "",
    read_only: Annotated[bool, typer.Option("--read-only", help="Show no actions and refuse them.")] = False,
    login: Annotated[
        bool,
        typer.Option("--login", help="Users log in with a token of the file; needed unless it listens on loopback."),
    ] = False,
    host: Annotated[
        list[str] | None, typer.Option("--host", help="A name under which browsers reach the console; repeatable.")
    ] = None,
    tls_certificate: Annotated[Path | None, typer.Option("--tls-certificate", help="PEM file of the console.")] = None,
    tls_key: Annotated[Path | None, typer.Option("--tls-key", help="Its key.")] = None,
    ca_file: Annotated[
        Path | None, typer.Option("--ca-file", help="PEM file of the authorities that sign the service's certificate.")
    ] = None,
    table: Annotated[
        list[str] | None, typer.Option("--table", help="A Delta table that a Spark pipeline makes; repeatable.")
    ] = None,
    until_input_ends: Annotated[
        bool, typer.Option("--until-input-ends", help="Also end when standard input ends.", hidden=True)
    ] = False,
) -> None:
    """Show a service in a browser. It listens on this machine only and reads only, unless the options say more."""
    from holdfast.client.protocol.endpoint import addresses_of
    from holdfast.console.options import ConsoleOptions, parse_listen
    from holdfast.files.private_files import openness_of

    listen_host, listen_port = parse_listen(listen)
    options = ConsoleOptions(
        services=tuple(address for given in service or ("http://127.0.0.1:8080",) for address in addresses_of(given)),
        listen_host=listen_host,
        listen_port=listen_port,
        hosts=tuple(host or ()),
        token_file=token_file,
        trusted_hosts=patterns_of(trusted_hosts),
        read_only=read_only,
        login=login,
        tls_certificate=tls_certificate,
        tls_key=tls_key,
        ca_file=ca_file,
        tables=tuple(table or ()),
    )
    options.check_tls()
    for problem in openness_of(each for each in (token_file, tls_key) if each is not None):
        typer.echo(f"holdfast: {problem}", err=True)
    from holdfast.console.run import run  # brings the web framework

    run(options, until_input_ends=until_input_ends)
