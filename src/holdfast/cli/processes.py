"""``holdfast serve``, ``check-config``, ``doctor`` and ``console``: processes of this machine, and what they need."""

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from holdfast.cli.options import (
    ConfigOption,
    JsonOption,
    LogArgument,
    SetOption,
    TrustedOption,
    configuration,
    patterns_of,
)
from holdfast.cli.output import print_json, print_line, print_table
from holdfast.errors import HoldfastError, InvalidRequest
from holdfast.settings import Configuration, LogSettings, Settings
from holdfast.values import UNIX

if TYPE_CHECKING:
    from holdfast.commit.leadership.evidence import LeaderAnswer
    from holdfast.commit.leadership.peer_tls import PeerTls
    from holdfast.doctor import Finding
    from holdfast.wire.log import ConfigurationAnswer

ANSWER_MS_MAX: Final = 3_000.0


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

    serving = Serving(
        init=not read_only and (init or result.settings.log.init_implied),
        take_over=take_over,
        standby=standby,
        force_new=force_new,
        read_only=read_only,
        configuration=_shown(result),
        console=console_options,
    )
    raise typer.Exit(run_server(result.settings, serving))


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


def cluster_of(settings: LogSettings) -> str | None:
    """How a process reaches the members of a log on etcd, with the credentials of this environment; else None.

    Raises: InvalidRequest.
    """
    if settings.scheme != "etcd":
        return None
    from holdfast.objects.etcd.address import parse_url, read_credentials

    address, credentials = parse_url(settings.url), read_credentials(os.environ)
    security = "without TLS" if credentials.authority is None else "with TLS"
    user = "without a user" if credentials.user is None else f"as the user {credentials.user}"
    return f"etcd: {len(address.endpoints)} endpoints, {security}, {user}; prefix {address.prefix}/"


def check_config(config: ConfigOption = None, settings: SetOption = None, as_json: JsonOption = False) -> None:
    """Show every setting in force and its source, and check them. Opens nothing."""
    result = configuration(config, settings)
    if as_json:
        print_json(
            {
                "file": None if result.file is None else str(result.file),
                "settings": [asdict(origin) for origin in result.origins],
                "scrub": scrub_cost(result.settings.log),
                "cluster": cluster_of(result.settings.log),
                "warnings": list(result.warnings),
            }
        )
        return
    rows = [(o.key, o.value, o.source, o.why) for o in result.origins]
    print_table(("key", "value", "source", "why"), rows)
    print_line(scrub_cost(result.settings.log))
    if (cluster := cluster_of(result.settings.log)) is not None:
        print_line(cluster)
    for warning in result.warnings:
        sys.stderr.write(f"warning: {warning}\n")


class Findings:
    """Prints findings as they come. ``worst`` is the highest level so far."""

    def __init__(self, *, quiet: bool, as_json: bool) -> None:
        self._quiet = quiet
        self._as_json = as_json
        self.worst = 0

    def add(self, finding: Finding) -> None:
        """Print a finding."""
        self.worst = max(self.worst, finding.level)
        word = finding.level.name.lower()
        if self._as_json:
            print_json({**asdict(finding), "level": word})
        elif finding.level or not self._quiet:
            print_line(f"{word:9}{finding.check}: {finding.seen}")
            if finding.fix:
                print_line(f"{'':9}  fix: {finding.fix}")


def doctor(
    url: LogArgument = None,
    config: ConfigOption = None,
    settings: SetOption = None,
    race: Annotated[
        bool, typer.Option("--race", help="Race two processes on the store, and keep the result under meta/races/.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only what needs a fix.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Check the configuration, this machine, the store and the log, and name the fix of each finding.

    It may run next to a service, and takes constant time. Without --race it writes only under `probe/`, and removes
    that. Exit code 0: nothing to fix; 1: warnings; 2: errors.
    """
    report = Findings(quiet=quiet, as_json=as_json)
    _check(report, url, config, settings, race=race)
    raise typer.Exit(report.worst)


def _check(report: Findings, url: str | None, config: Path | None, settings: list[str] | None, *, race: bool) -> None:
    from holdfast.doctor import Finding, Level, check_machine, check_stores

    try:
        result = configuration(config, settings, log=url)
    except InvalidRequest as error:
        fix = error.hint or "correct what the message names; `holdfast check-config` shows every key"
        report.add(Finding(Level.ERROR, "configuration", error.statement(), fix))
        return
    report.add(Finding(Level.OK, "configuration", f"log.url is {result.settings.log.url}"))
    for warning in result.warnings:
        fix = "docs/reference/configuration.md has every key and its rule"
        report.add(Finding(Level.WARNING, "configuration", warning, fix))
    for finding in (*check_machine(result.settings, result.file), *check_stores(result.settings)):
        report.add(finding)
    asyncio.run(_check_log(report, result.settings, race=race))


async def _check_log(report: Findings, settings: Settings, *, race: bool) -> None:
    from holdfast.command_logs import log_to_standard_error
    from holdfast.commit.leadership.peer_tls import PeerTls
    from holdfast.doctor import Finding, Level, check_log, check_members
    from holdfast.objects.credentials import require_credentials
    from holdfast.objects.open import open_store

    log_to_standard_error()
    url = settings.log.url
    try:
        require_credentials(url, os.environ)
        store = open_store(url, request_timeout_ms=int(settings.persist.request_timeout_ms))
    except HoldfastError as error:
        report.add(Finding(Level.ERROR, "store", error.statement(), error.hint or "check log.url"))
        return
    if settings.log.scheme == "etcd":
        for finding in await check_members(url):
            report.add(finding)
    server = settings.server
    tls = PeerTls(server.tls_certificate, server.peer_ca_file, server.peer_name)
    try:
        async for finding in check_log(store, partial(_ask_leader, tls=tls), url=url, race=race):
            report.add(finding)
    finally:
        await store.close()


async def _ask_leader(address: str, tls: PeerTls) -> LeaderAnswer:
    """Ask as a standby with this configuration does. One without TLS also finds a leader that has it."""
    from holdfast.commit.leadership.evidence import Reply
    from holdfast.commit.leadership.leader_question import ask_leader

    answer = await ask_leader(address, ANSWER_MS_MAX, tls=tls)
    if answer.reply is Reply.SILENT and "://" not in address and not address.startswith(UNIX) and not tls.certificate:
        return await ask_leader(f"https://{address}", ANSWER_MS_MAX, tls=tls)
    return answer


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
        services=tuple(address for text in service or ("http://127.0.0.1:8080",) for address in addresses_of(text)),
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
