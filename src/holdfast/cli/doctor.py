"""``holdfast doctor``: look for what is wrong with a machine, a store and a log, and name the fix of each finding."""

from __future__ import annotations

import asyncio
import os
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from holdfast.cli.options import ConfigOption, JsonOption, LogArgument, SetOption, configuration
from holdfast.cli.output import print_json, print_line
from holdfast.errors import HoldfastError, InvalidRequest
from holdfast.values import UNIX

if TYPE_CHECKING:
    from holdfast.commit.leadership.evidence import LeaderAnswer
    from holdfast.commit.leadership.peer_tls import PeerTls
    from holdfast.doctor import Finding
    from holdfast.settings import Settings

ANSWER_MS_MAX: Final = 3_000.0


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
    from holdfast.doctor import Finding, Level, check_log
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
