"""The race of two processes on real connections: models of stores that only look exclusive, and stores that are.

``HOLDFAST_PROVE=1`` runs each refusal and the directory 100 times, and each other store 20 times.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.matrix import matrix
from tests.s3_models import Model, Request, Response, S3Models

from holdfast.errors import Code, InvalidRequest, Unavailable
from holdfast.objects.open import open_store
from holdfast.objects.probe import PREFIX, clean_up, probe
from holdfast.objects.probe.race import race
from holdfast.objects.probe.results import keep_result, newest_result, result_of

PROVE = os.environ.get("HOLDFAST_PROVE") == "1"
REFUSALS = 100 if PROVE else 1
PASSES = 20 if PROVE else 1
HOLDFAST = (sys.executable, "-m", "holdfast.cli.main")
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any"}


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)


def race_once(url: str) -> None:
    async def main() -> None:
        store = open_store(url, create_missing=True)
        try:
            await race(store, url)
            assert await store.list(PREFIX) == [], "a race leaves nothing"
        finally:
            await store.close()

    asyncio.run(main())


# The window is between a check and the write: 1 ms is the shortest that is promised to be found.
FAULTY = [
    (Model.NO_COMMON_LOCK, 1.0),
    (Model.CHECKS_EARLY, 1.0),
    (Model.CHECKS_EARLY, 0.0),
    (Model.TWO_SITES, 0.0),
    (Model.ABSENCE_IS_CACHED, 10.0),
    (Model.OVERWRITES_LATER, 0.0),
]
# These bring back what was removed: a copy to the other site, or a write that comes after the answer.
WRITES_LATER = {Model.TWO_SITES, Model.OVERWRITES_LATER}


@pytest.mark.parametrize("case", matrix(FAULTY, kept=2), ids=str)
def test_a_store_that_only_looks_exclusive_is_refused(
    case: tuple[Model, float], record_property: Callable[[str, object], None]
) -> None:
    model, window_ms = case
    with S3Models(model, window_ms=window_ms) as server:
        for turn in range(REFUSALS):
            with pytest.raises(InvalidRequest, match="cannot hold a log") as caught:
                race_once(server.url(f"log{turn}"))
            assert caught.value.code is Code.STORE_UNFIT
        if model not in WRITES_LATER:
            assert server.keys == []
    record_property("races_refused", REFUSALS)


def test_a_model_looks_exclusive_to_one_create_after_the_other() -> None:
    """Why a race is needed: in turn, the second create of a name is refused by every model."""

    async def main(url: str, model: Model) -> None:
        store = open_store(url)
        await store.create("batches/1", b"one")
        answer = await store.create("batches/1", b"two")
        assert str(answer).startswith("Refused") or model in (Model.TWO_SITES, Model.ABSENCE_IS_CACHED)
        await store.close()

    for model in Model:
        with S3Models(model, window_ms=1.0) as server:
            asyncio.run(main(server.url(), model))


@pytest.mark.matrix
def test_a_sound_store_passes_through_connections_of_every_request(
    record_property: Callable[[str, object], None],
) -> None:
    with S3Models(Model.SOUND) as server:
        for turn in range(PASSES):
            before = server.connections
            race_once(server.url(f"log{turn}"))
            assert server.connections - before >= 20 * 16 + 2 * 40, "no connection has two requests"
        assert server.keys == []
    record_property("races_passed", PASSES)


@pytest.mark.matrix
def test_a_directory_passes(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    for _ in range(REFUSALS):
        race_once((tmp_path / "log").as_uri())
    record_property("races_passed", REFUSALS)


def test_the_gateway_passes(s3_url: str) -> None:
    for _ in range(PASSES):
        race_once(s3_url)


@pytest.mark.program("azurite-blob")
def test_azurite_passes(azure_url: str) -> None:
    for _ in range(PASSES):
        race_once(azure_url)


def answering(status: int, every: int = 1) -> Callable[[Request], Response | None]:
    """Trouble for each ``every``-th conditional create of a name of a race."""
    seen = 0

    def trouble(request: Request) -> Response | None:
        nonlocal seen
        if ".race." not in request.key:
            return None
        seen += 1
        return Response(status, b"<Error><Code>Trouble</Code></Error>") if seen % every == 0 else None

    return trouble


@pytest.mark.matrix
@pytest.mark.parametrize("status", [503, 409, 500])
def test_trouble_is_no_verdict(status: int) -> None:
    with S3Models(Model.SOUND, trouble=answering(status)) as server:
        with pytest.raises(Unavailable, match="did not answer whether it refuses"):
            race_once(server.url())
        assert server.keys == []
    with S3Models(Model.SOUND, trouble=answering(status, every=9)) as server:
        race_once(server.url())


@pytest.mark.matrix
def test_an_endpoint_that_does_not_answer_is_unavailable() -> None:
    with S3Models(Model.SOUND) as server:
        url = server.url()
    with pytest.raises(Unavailable):
        race_once(url)


@pytest.mark.parametrize("model", matrix([Model.NO_COMMON_LOCK, Model.CHECKS_EARLY]))
def test_the_short_race_of_a_start_finds_a_window_too(model: Model) -> None:
    """Not always: it is one burst. Here one of many starts must find it."""

    async def main(server: S3Models) -> None:
        for turn in range(20):
            store = open_store(server.url(f"log{turn}"))
            await clean_up(store, await probe(store))

    with S3Models(model, window_ms=1.0) as server, pytest.raises(InvalidRequest, match="cannot hold a log"):
        asyncio.run(main(server))


# ---- commands and starts --------------------------------------------------------------------------------------------


def run(*words: str, seconds: float = 120.0) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*HOLDFAST, *words], capture_output=True, text=True, timeout=seconds, check=False)


def endpoint(server: S3Models) -> str:
    return f"http://127.0.0.1:{server.port}"


def race_finding(url: str, *words: str) -> tuple[int, dict[str, str]]:
    """What doctor says about races: its exit code and the finding."""
    done = run("doctor", url, "--json", "--set", "stores.enabled=off", *words)
    (finding,) = [row for row in map(json.loads, done.stdout.splitlines()) if row["check"] == "race"]
    return done.returncode, finding


def test_log_init_races_and_a_start_obeys_the_newest_result() -> None:
    with S3Models(Model.SOUND) as server:
        done = run("log", "init", server.url(), "--json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["race"]["endpoint"] == endpoint(server)
        kept = asyncio.run(newest_result(open_store(server.url()), endpoint(server)))
        assert kept is not None
        assert kept.fit and kept.version and kept.date
        assert race_finding(server.url())[1]["level"] == "ok"
        asyncio.run(keep_result(open_store(server.url()), result_of(endpoint(server), 1.0, "it lies", 1)))
        code, finding = race_finding(server.url())
        assert (code, finding["level"]) == (2, "error")
        started = run("serve", "--log", server.url(), "--listen", "127.0.0.1:0")
        assert started.returncode == 6
        assert "it lies" in started.stderr and "holdfast doctor --race" in started.stderr


@pytest.mark.matrix  # the test before races and obeys
def test_a_start_without_a_result_warns_and_doctor_races_on_request() -> None:
    with S3Models(Model.SOUND) as server:
        assert run("log", "init", server.url(), "--no-race").returncode == 0
        code, finding = race_finding(server.url())
        assert (code, finding["level"]) == (1, "warning")
        assert "doctor --race" in finding["fix"]
        assert "store_not_raced" in said_until_ready(server.url())
        code, finding = race_finding(server.url(), "--race")
        assert finding["level"] == "ok", finding
        assert "had one writer" in finding["seen"]
        assert "store_not_raced" not in said_until_ready(server.url())


def said_until_ready(url: str) -> str:
    """What a start writes before it is ready."""
    words = ["serve", "--take-over", "--log", url, "--listen", "127.0.0.1:0", "--set", "stores.enabled=off"]
    with subprocess.Popen([*HOLDFAST, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        said = ""
        for line in process.stdout:
            said += line
            if "ready" in line:
                break
        process.kill()
    return said


def test_log_init_begins_no_log_on_a_store_that_only_looks_exclusive() -> None:
    with S3Models(Model.NO_COMMON_LOCK, window_ms=1.0) as server:
        done = run("log", "init", server.url())
        assert done.returncode == 6, done.stdout
        assert "two creates of one name succeeded" in done.stderr
        assert [key for key in server.keys if "/meta/races/" not in key] == [], "only the refusal is kept"
        started = run("serve", "--init", "--log", server.url(), "--listen", "127.0.0.1:0")
        assert started.returncode == 6
        assert "doctor --race" in started.stderr
