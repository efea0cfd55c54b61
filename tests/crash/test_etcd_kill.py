"""``kill -9`` of a service, and of the leader of etcd, on three members: nothing acknowledged is lost or moved."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.crash.rounds import Rounds, Setting
from tests.etcd_lane import EtcdCluster, EtcdMember

PROVE = os.environ.get("HOLDFAST_PROVE") == "1"
SMALL = os.environ.get("HOLDFAST_SMALL") == "1"
KINDS = ("store crash", "successor", "take over", "zombie", "restart", "stumble")
ROUNDS = 50 if PROVE else 2 if SMALL else 6

pytestmark = pytest.mark.timeout(3600 if PROVE else 300)


def test_a_kill_on_three_members_of_etcd_loses_moves_and_invents_nothing(
    tmp_path: Path,
    etcd_three: EtcdCluster,
    capsys: pytest.CaptureFixture[str],
    record_property: Callable[[str, object], None],
) -> None:
    record_property("etcd_kill_rounds", ROUNDS)
    killed: list[EtcdMember] = []

    def crash_leader_of_etcd() -> None:
        while killed:  # a majority is there
            member = killed.pop()
            etcd_three.start(member)
            member.wait()
        killed.append(etcd_three.leader())
        killed[0].signal(signal.SIGKILL)

    def say(line: str) -> None:
        with capsys.disabled():
            print(f"\n  {line}", end="", flush=True)

    url = etcd_three.url()
    asyncio.run(
        Rounds(
            Setting(
                directory=tmp_path,
                log_url=url,
                reading_url=url,
                rounds=ROUNDS,
                kinds=KINDS,
                seed=20261130,
                environment={"HOLDFAST_VIEW__ENABLED": "true"},  # its reads are judged, too
                crash_store=crash_leader_of_etcd,
                say=say,
            )
        ).run()
    )
