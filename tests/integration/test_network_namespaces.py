"""The same address in another network namespace, as two containers have it, says nothing about a leader."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.matrix import matrix
from tests.network_namespace import network_namespace

from holdfast.commit.leadership.takeover import local_scope

ADDRESS = "127.0.0.1:8080"
QUICK = ("--set", "leader.sign_interval_ms=1000")

# A leader that commits until its standard input ends, or is idle, and reports then whether it leads.
LEADS = """
import asyncio, sys
from holdfast.commit.stages.events import CommitEntry
from holdfast.commit.service import CommitService, ServiceOptions
from holdfast.commit.format.transaction import Transaction, Write
from holdfast.objects.open import open_store

async def main():
    store = open_store(sys.argv[1], create_missing=True)
    options = ServiceOptions(address=sys.argv[2], bound=(sys.argv[2],), allow_new=True, sign_interval_ms=1_000.0)
    service = await CommitService.lead(store, options)
    if sys.argv[3] == "idle":
        print("leads", flush=True)
        await asyncio.to_thread(sys.stdin.read)
        objects = len(await store.list("batches/"))
        print("ended" if service.ended.done() else f"leads still, {objects} object", flush=True)
        await service.close()
        return
    loop = asyncio.get_running_loop()
    told_to_end = loop.run_in_executor(None, sys.stdin.read)
    first = True
    while not told_to_end.done():
        done = loop.create_future()
        service.submit([CommitEntry(Transaction([Write(b"k", b"v")]), done.set_result)])
        await done
        if first:
            print("leads", flush=True)
        first = False
    print("ended" if service.ended.done() else "leads still", flush=True)
    await service.close()

asyncio.run(main())
"""


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


@pytest.mark.parametrize("work", matrix(["idle", "busy"]))
@pytest.mark.parametrize("address", matrix([ADDRESS, "0.0.0.0:8080", "10.9.8.7:8080"]))
def test_a_process_in_another_namespace_does_not_depose_a_living_leader(
    address: str, work: str, tmp_path: Path
) -> None:
    """It cannot reach the leader: loopback, a wildcard, an address that leads nowhere. Both listen alike."""
    url = (tmp_path / "log").as_uri()
    apart = network_namespace()
    with subprocess.Popen(
        [*apart, sys.executable, "-c", LEADS, url, address, work],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
    ) as leader:
        try:
            assert leader.stdin is not None and leader.stdout is not None
            assert leader.stdout.readline() == "leads\n"
            other = subprocess.run(
                [*apart, sys.executable, "-m", "holdfast.cli.main", "serve", "--log", url, "--listen", ADDRESS, *QUICK],
                capture_output=True,
                text=True,
                env=environment(),
                check=False,
                timeout=100,
            )
            assert other.returncode == 3, other.stderr
            assert "leader_alive" in other.stderr
            said = leader.communicate(timeout=100)[0]
            assert "leads still" in said
            assert work == "busy" or "leads still, 1 object\n" in said, "an idle leader writes nothing into the log"
        finally:
            leader.kill()


def test_a_namespace_of_its_own_is_another_place_and_a_process_in_the_same_one_is_in_the_same_place() -> None:
    tell = [
        sys.executable,
        "-c",
        f"from holdfast.commit.leadership.takeover import local_scope; print(local_scope({ADDRESS!r}))",
    ]

    def place(before: list[str]) -> str:
        told = subprocess.run([*before, *tell], capture_output=True, text=True, env=environment(), check=True)
        return told.stdout.strip()

    here = local_scope(ADDRESS)
    assert here.is_known()
    assert place([]) == str(here)
    assert place(network_namespace()) != str(here)
