"""``kill -9`` of the real server under 64 clients: nothing acknowledged is lost or moved, nothing rejected appears."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests.azure_lane import Azurite
from tests.crash.rounds import Rounds, Setting
from tests.rgw import Gateway
from tests.s3_lane import require_gateway

from holdfast.testing.fault_proxy import Fault, Rule
from holdfast.testing.fault_proxy_process import FaultProxyProcess

PROVE = os.environ.get("HOLDFAST_PROVE") == "1"
SMALL = os.environ.get("HOLDFAST_SMALL") == "1"
DIRECTORY_ROUNDS = 20 if PROVE else 1 if SMALL else 3
S3_ROUNDS = 10 if PROVE else 1 if SMALL else 2
AZURE_ROUNDS = 5 if PROVE else 1
DIRECTORY_KINDS = ("restart", "zombie", "take over", "stumble", "successor")
S3_KINDS = ("restart", "take over", "zombie", "stumble", "successor", *(["store crash"] if PROVE else []))
SEED = int(os.environ.get("HOLDFAST_CRASH_SEED", "20250101"))

FAULTS = (
    Rule(fault=Fault.ERROR_AFTER, method="PUT", probability=0.05),
    Rule(fault=Fault.RESET_AFTER, method="PUT", probability=0.05),
    Rule(fault=Fault.DUPLICATE, method="PUT", probability=0.05),
    Rule(fault=Fault.CONFLICT, method="PUT", probability=0.03),
    Rule(fault=Fault.HOLD, method="PUT", probability=0.03, delay_ms=700),
    Rule(fault=Fault.BLACKHOLE_AFTER, method="PUT", probability=0.01),
    Rule(fault=Fault.BLACKHOLE_BEFORE, method="PUT", probability=0.01),
    Rule(fault=Fault.SLOWDOWN, probability=0.02, delay_ms=100),
    Rule(fault=Fault.ERROR_BEFORE, probability=0.02),
    Rule(fault=Fault.RESET_BEFORE, probability=0.01),
    Rule(fault=Fault.TRUNCATE, probability=0.01),
    Rule(fault=Fault.DELAY, probability=0.05, delay_ms=60),
)


pytestmark = pytest.mark.timeout(3600 if PROVE else 300)


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Callable[[str], None]:
    """Prints past pytest's capture: the rounds tell how they went."""

    def out(line: str) -> None:
        with capsys.disabled():
            print(f"\n  {line}", end="", flush=True)

    return out


def test_a_kill_on_the_directory_store_loses_moves_and_invents_nothing(
    tmp_path: Path, say: Callable[[str], None], record_property: Callable[[str, object], None]
) -> None:
    record_property("directory_kill_rounds", DIRECTORY_ROUNDS)
    url = f"file://{tmp_path}/log"
    asyncio.run(
        Rounds(
            Setting(
                directory=tmp_path,
                log_url=url,
                reading_url=url,
                rounds=DIRECTORY_ROUNDS,
                kinds=DIRECTORY_KINDS,
                seed=SEED,
                say=say,
            )
        ).run()
    )


@pytest.mark.program("azurite-blob")
def test_a_kill_on_azure_loses_moves_and_invents_nothing(
    tmp_path: Path, say: Callable[[str], None], record_property: Callable[[str, object], None]
) -> None:
    azurite = Azurite(tmp_path)
    record_property("azure_kill_rounds", AZURE_ROUNDS)
    try:
        azurite.create_container("kill")
        with pytest.MonkeyPatch.context() as environment:
            for name, value in azurite.environment().items():
                environment.setenv(name, value)
            url = azurite.url("kill")
            asyncio.run(
                Rounds(
                    Setting(
                        directory=tmp_path,
                        log_url=url,
                        reading_url=url,
                        rounds=AZURE_ROUNDS,
                        kinds=DIRECTORY_KINDS,
                        seed=SEED,
                        environment=azurite.environment(),
                        say=say,
                    )
                ).run()
            )
    finally:
        azurite.stop()


@pytest.mark.matrix
def test_a_kill_on_s3_behind_a_faulty_network_loses_moves_and_invents_nothing(
    tmp_path: Path,
    say: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
    record_property: Callable[[str, object], None],
) -> None:
    require_gateway()
    record_property("s3_kill_rounds", S3_ROUNDS)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
    with Gateway(tmp_path / "gateway", backing="bluestore" if PROVE else "memstore") as gateway:
        for name, value in gateway.environment().items():
            monkeypatch.setenv(name, value)
        gateway.create_bucket("kill")
        at = urlsplit(gateway.endpoint)
        with FaultProxyProcess(at.hostname or "", at.port or 0, seed=SEED) as proxy:
            proxy.set_rules(FAULTS)

            def crash_store() -> None:
                gateway.kill()
                gateway.restart()

            asyncio.run(
                Rounds(
                    Setting(
                        directory=tmp_path,
                        log_url=gateway.url("kill", prefix="log", endpoint=proxy.endpoint),
                        reading_url=gateway.url("kill", prefix="log"),
                        rounds=S3_ROUNDS,
                        kinds=S3_KINDS,
                        seed=SEED,
                        flags=("--set", "persist.request_timeout_ms=1000"),
                        environment=gateway.environment(),
                        crash_store=crash_store if PROVE else None,
                        say=say,
                    )
                ).run()
            )
            done = proxy.report()
            say(f"the network did {done.faults} in {done.requests} requests")
            assert done.faults, "a faulty network without a fault proves nothing"
