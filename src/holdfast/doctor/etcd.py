"""The members of etcd that a log's URL names: who answers, which versions they are, and what is wrong with them.

Cost: one request to each member at a time. It says nothing about objects: ``log`` does, for every store.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from holdfast.doctor.finding import Finding, Level
from holdfast.objects.etcd.address import parse_url
from holdfast.objects.etcd.failures import CallFailed, Meaning
from holdfast.objects.etcd.wire import Status

CHECK: Final = "etcd"
MAY_DISAGREE: Final = frozenset({(3, 5, patch) for patch in range(3)})
"""Versions whose members may disagree after a crash under load."""
MIB: Final = 1 << 20

Answers = Sequence[tuple[str, Status | CallFailed]]


async def check_members(url: str) -> list[Finding]:
    """Ask every member. Raises: InvalidRequest, also without the extra ``etcd``."""
    from holdfast.objects.etcd.store import ask_members

    return [*judge(await ask_members(url)), _rights(url)]


def judge(answers: Answers) -> Iterator[Finding]:
    """What the answers of the endpoints mean. An endpoint is HOST:PORT."""
    statuses = [(endpoint, answer) for endpoint, answer in answers if isinstance(answer, Status)]
    for endpoint, answer in answers:
        yield _member(endpoint, answer)
    yield from _together(statuses)
    for endpoint, status in statuses:
        yield from _flaws(endpoint, status, is_alone=len(answers) == 1)


def _member(endpoint: str, answer: Status | CallFailed) -> Finding:
    if isinstance(answer, CallFailed):
        if answer.meaning is Meaning.DENIED:
            text = f"{endpoint} does not describe itself to this user: only a user with the role root sees versions"
            return Finding(Level.OK, CHECK, text)
        fix = "start the member, or correct the URL; a majority of the members must answer"
        return Finding(Level.WARNING, CHECK, f"no answer: {answer.detail}", fix)
    does = "leads" if answer.leader == answer.member_id else "follows"
    sizes = f"{answer.bytes_used / MIB:.1f} of {answer.bytes_allocated / MIB:.1f} MiB in use"
    return Finding(Level.OK, CHECK, f"{endpoint} {does}, version {answer.version}, {sizes}")


def _together(statuses: Iterable[tuple[str, Status]]) -> Iterator[Finding]:
    clusters: dict[int, list[str]] = {}
    versions: dict[str, list[str]] = {}
    for endpoint, status in statuses:
        clusters.setdefault(status.cluster_id, []).append(endpoint)
        versions.setdefault(status.version, []).append(endpoint)
    if len(clusters) > 1:
        text = "; ".join(f"{', '.join(endpoints)}: {cluster:016x}" for cluster, endpoints in clusters.items())
        fix = "name the members of one cluster in the URL; requests to the others are not sent"
        yield Finding(Level.ERROR, CHECK, f"the endpoints belong to several clusters: {text}", fix)
    if len(versions) > 1:
        text = "; ".join(f"{', '.join(endpoints)}: {version}" for version, endpoints in versions.items())
        yield Finding(Level.WARNING, CHECK, f"the members have several versions: {text}", "finish the upgrade")


def _flaws(endpoint: str, status: Status, *, is_alone: bool) -> Iterator[Finding]:
    version = _numbers(status.version)
    if version in MAY_DISAGREE:
        text = f"{endpoint}: members of version {status.version} may disagree after a crash, which loses commits"
        yield Finding(Level.ERROR, CHECK, text, "upgrade to 3.5.6 or a later version")
    elif is_alone and (version < (3, 4, 21) or (3, 5) <= version < (3, 5, 5)):
        text = f"{endpoint}: a cluster of one member of version {status.version} may lose what it confirmed"
        yield Finding(Level.ERROR, CHECK, text, "upgrade to 3.4.21, 3.5.5 or a later version, or run three members")
    if status.is_learner:
        fix = "name voting members in the URL; `etcdctl member promote` makes it one"
        yield Finding(Level.WARNING, CHECK, f"{endpoint} is a learner, which takes no writes", fix)
    for error in status.errors:
        yield Finding(Level.ERROR, CHECK, f"{endpoint}: {error}", "`etcdctl alarm list` and the member's log say more")


def _numbers(version: str) -> tuple[int, ...]:
    """The first three numbers of a version.

    >>> _numbers("3.6.0-rc.1")
    (3, 6, 0)
    """
    return tuple(int(each) for each in re.findall(r"[0-9]+", version)[:3])


def _rights(url: str) -> Finding:
    prefix = parse_url(url).prefix
    return Finding(Level.OK, CHECK, f"where the cluster has users, ours needs readwrite on the prefix {prefix}/")
