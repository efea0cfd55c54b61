"""``holdfast retention``: the policies of a running service that say how much of its log stays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.output import print_json, print_line, print_table, utc_text
from holdfast.cli.service import Service, on_service, one_line
from holdfast.errors import InvalidRequest

if TYPE_CHECKING:
    from holdfast.wire.log import RetentionAnswer, RetentionPlan

commands = typer.Typer()
NameArgument = Annotated[str, typer.Argument(help="The name of the policy.", show_default=False)]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Report what would be removed now, and change nothing.")]


@on_service(commands, "set")
def set_policy(
    service: Service,
    name: NameArgument,
    keep_from_version: Annotated[
        int | None, typer.Option("--keep-from-version", help="Keep this version and all later ones.")
    ] = None,
    max_age: Annotated[
        float | None, typer.Option("--max-age", help="Keep what is younger than this, in seconds.")
    ] = None,
    max_bytes: Annotated[
        int | None, typer.Option("--max-bytes", help="Keep the newest objects that have this many bytes together.")
    ] = None,
    keep_everything: Annotated[bool, typer.Option("--keep-everything", help="Keep the whole log.")] = False,
    dry_run: DryRunOption = False,
) -> None:
    """Set a policy: what it names stays. The log is kept from the oldest point that any policy needs.

    Needs the role `admin`. Nothing is removed before the log has a snapshot: see `holdfast log snapshot`.
    """
    from holdfast.wire.log import RetentionPolicy

    policy = RetentionPolicy(
        keep_from_version=keep_from_version,
        max_age_seconds=max_age,
        max_bytes=max_bytes,
        keep="everything" if keep_everything else None,
    )
    if sum(getattr(policy, field) is not None for field in policy.__struct_fields__) != 1:
        raise InvalidRequest("give one of --keep-from-version, --max-age, --max-bytes and --keep-everything")
    with service.client() as client:
        if dry_run:
            _show_plan(service, client.plan_retention(name, policy))
        else:
            _show(service, client.set_retention(name, policy))


@on_service(commands, "ls")
def ls(service: Service) -> None:
    """Show the policies, what each keeps, and through which version the log is truncated."""
    with service.client() as client:
        _show(service, client.retention())


@on_service(commands, "rm")
def rm(service: Service, name: NameArgument, dry_run: DryRunOption = False) -> None:
    """Remove a policy. Without any policy the whole log stays. Needs the role `admin`."""
    with service.client() as client:
        if dry_run:
            _show_plan(service, client.plan_retention(name, None))
        else:
            _show(service, client.remove_retention(name))


def _show_plan(service: Service, plan: RetentionPlan) -> None:
    if service.as_json:
        import msgspec

        print_json({"dry_run": True} | msgspec.to_builtins(plan))
        return
    if plan.remove_through:
        least = "" if plan.is_whole else "at least "
        print_line(f"would remove {least}{plan.objects} objects, {plan.bytes} bytes, through {plan.remove_through}")
    else:
        print_line("would remove nothing now")
    if plan.warning:
        print_line(f"warning: {plan.warning}")


def _show(service: Service, answer: RetentionAnswer) -> None:
    if service.as_json:
        import msgspec

        print_json(msgspec.to_builtins(answer))
        return
    rows = [
        (name, each.text, one_line(each.from_version), one_line(each.held_seconds), one_line(each.held_bytes))
        for name, each in answer.policies.items()
    ]
    print_table(("policy", "keeps", "from version", "oldest kept, seconds ago", "bytes kept"), rows)
    if answer.holds:
        holds = [
            (name, str(each.from_version), utc_text(each.expires_ms, timespec="seconds"))
            for name, each in sorted(answer.holds.items())
        ]
        print_table(("held by", "from version", "until"), holds)
    print_line(f"truncated through version {answer.truncated_through}")
    if answer.warning:
        print_line(f"warning: {answer.warning}")
