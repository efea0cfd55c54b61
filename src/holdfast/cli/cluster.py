"""``holdfast cluster``: who leads a log, and whether anybody may, directly on its store."""

from __future__ import annotations

import asyncio
import getpass
import secrets
import signal
import socket
import time
from pathlib import Path
from typing import Annotated, Final

import typer

from holdfast.cli.log import with_store
from holdfast.cli.options import ConfigOption, JsonOption, LogArgument, log_url_of
from holdfast.cli.output import print_fields, print_json, print_line, utc_text
from holdfast.commit.format.batch import Header, Kind, StoresMode
from holdfast.commit.leadership.claims import Identity
from holdfast.commit.leadership.suspension import Suspension
from holdfast.commit.leadership.suspensions import Suspensions
from holdfast.commit.leadership.takeover import init_log, local_scope, now
from holdfast.commit.reading.reader import require_frontier
from holdfast.errors import Code, Unavailable
from holdfast.objects.etcd.trial import Trial
from holdfast.objects.port import ObjectStore
from holdfast.values import LeaderId, LogId, slot_text

LOOK_SECONDS: Final = 0.2
commands = typer.Typer()


@commands.command()
def status(url: LogArgument = None, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Show who leads a log by its newest object, and whether the log is suspended."""
    log_url = log_url_of(url, config)

    async def work(store: ObjectStore) -> tuple[Header, Suspension | None]:
        head, _ = await require_frontier(store)
        return head, await Suspensions(store).newest()

    head, suspension = with_store(log_url, work)
    facts = {"url": log_url, "log_id": head.log_id.hex(), **_facts(head, suspension)}
    (print_json if as_json else print_fields)(facts)


@commands.command()
def suspend(
    url: LogArgument = None,
    wait_seconds: Annotated[
        float, typer.Option("--wait-seconds", min=0, help="How long to wait for the leader to resign.")
    ] = 60.0,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let nobody lead a log until it is resumed, and wait until its leader has resigned.

    Services stay up and serve readers. Nothing that was confirmed is lost. It outlives restarts.
    """
    log_url = log_url_of(url, config)

    async def work(store: ObjectStore) -> tuple[Header, Suspension]:
        await require_frontier(store)
        suspension = await Suspensions(store).change(is_suspended=True, author=_author(), time_ms=now().wall_ms)
        loop = asyncio.get_running_loop()
        until = loop.time() + wait_seconds
        while True:
            head, _ = await require_frontier(store)
            if head.kind is Kind.RESIGN:
                return head, suspension
            if loop.time() >= until:
                raise Unavailable(
                    "the log is suspended, and its last leader has not resigned",
                    code=Code.STORE_UNAVAILABLE,
                    hint="nobody claims any more; a leader that runs resigns as soon as it reads the suspension, so "
                    "look at that process, and stop it if it does not answer",
                    leader_id=head.leader_id.hex(),
                    leader_address=head.address or "unknown",
                )
            await asyncio.sleep(LOOK_SECONDS)

    (print_json if as_json else print_fields)(_facts(*with_store(log_url, work)))


@commands.command()
def resume(url: LogArgument = None, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Let the services of a suspended log lead again: one of them claims within some seconds."""
    log_url = log_url_of(url, config)

    async def work(store: ObjectStore) -> tuple[Header, Suspension | None]:
        head, _ = await require_frontier(store)
        suspensions = Suspensions(store)
        if await suspensions.newest() is None:
            return head, None  # it never was suspended
        return head, await suspensions.change(is_suspended=False, author=_author(), time_ms=now().wall_ms)

    (print_json if as_json else print_fields)(_facts(*with_store(log_url, work)))


@commands.command(name="try")
def try_out(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where the data go: empty, or that of a trial.")],
    etcd: Annotated[str, typer.Option("--etcd", help="The program.")] = "etcd",
) -> None:
    """Run three members of etcd and two services on this machine, until it is interrupted.

    Kill any of them with kill -9: it starts again after 3 seconds, and the log goes on. Everything is on one disk, so
    this is for trying out. The next run in DIR goes on with the same log.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    trial = Trial(directory, etcd)
    try:
        trial.start(lambda url: with_store(url, _begin))
        for process in (*trial.members, *trial.services):
            print_line(f"{process.name}  pid {process.pid}, output in {process.log}")
        print_line(f"log      {trial.url}")
        print_line(f"clients  {trial.service_urls}")
        print_line(f"ready: {trial.leader()} leads. Try: holdfast commit --url {trial.service_urls} seat/12A=ann")
        while True:
            trial.look(print_line)
            time.sleep(LOOK_SECONDS)
    finally:
        trial.stop()


async def _begin(store: ObjectStore) -> None:
    identity = Identity(LeaderId(secrets.token_bytes(16)), secrets.token_bytes(32), "", local_scope(""))
    await init_log(store, identity, LogId(secrets.token_bytes(16)), stores_mode=StoresMode.LOG)


def _author() -> str:
    return f"{getpass.getuser()}@{socket.gethostname()}"


def _facts(head: Header, suspension: Suspension | None) -> dict[str, object]:
    resigned = head.kind is Kind.RESIGN
    facts: dict[str, object] = {
        "suspended": suspension is not None and suspension.is_suspended,
        "leader_id": None if resigned else head.leader_id.hex(),
        "leader_address": None if resigned else head.address or None,
        "newest_slot": slot_text(head.slot),
        "newest_kind": head.kind.name.lower(),
        "last_version": head.last_version,
    }
    if suspension is not None:
        facts |= {"changed_by": suspension.author, "changed": utc_text(suspension.time_ms)}
    return facts
