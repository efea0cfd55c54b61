"""The metrics of a real service: what each stage refuses, holds, waits and computes."""

from __future__ import annotations

import http.client
import re
from pathlib import Path

import pytest
from tests.crash.server_process import NO_VIEW, ServerProcess
from tests.integration.test_retention_process import until
from tests.rgw import free_port

from holdfast import Client, Conflict, InvalidRequest, PointRead, Write
from holdfast.client import RetentionPolicy

PLAIN = {
    "HOLDFAST_STORES__ENABLED": "false",
    "HOLDFAST_RETENTION__CHECK_SECONDS": "0.1",
    "HOLDFAST_RETENTION__WARN_AFTER_SECONDS": "0",
}


def scraped(port: int) -> dict[str, float]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    return {name: float(value) for name, value in re.findall(r"^(holdfast_\S+) (\S+)$", text, re.MULTILINE)}


def test_a_service_says_what_its_stages_refused_held_waited_and_computed(tmp_path: Path) -> None:
    port = free_port()
    server = ServerProcess(tmp_path, (tmp_path / "log").as_uri(), port, flags=("--init",), environment=PLAIN)
    server.wait_until_leading()
    try:
        with Client(f"http://127.0.0.1:{port}") as client:
            first = client.commit([Write(b"key", b"x" * 1_000)])
            client.commit([Write(b"key", b"y" * 1_000)])
            with pytest.raises(Conflict):
                client.commit([Write(b"key", b"")], [PointRead(b"key", first.version)])
            client.version()
            # The window's reach is noted every 20 ms, at a commit: all of those before may have come earlier.
            until(
                lambda: (
                    bool(client.commit([Write(b"key", b"z")]).version) and scraped(port)["holdfast_window_seconds"] > 0
                )
            )
            until(lambda: client.get(b"key") is not None)
            client.set_retention("mine", RetentionPolicy(keep_from_version=first.version))
        name = 'holdfast_retention_held_bytes{policy="mine"}'
        until(lambda: scraped(port).get(name, 0) > 2_000)
        found = scraped(port)
        on_disk = sum(path.stat().st_size for path in (tmp_path / "log" / "batches").iterdir())
        assert found[name] <= on_disk
        assert found['holdfast_stage_refusals_total{code="conflict",stage="resolve"}'] == 1
        assert found['holdfast_ownership_checks_total{outcome="answered"}'] >= 1, (
            "an idle leader proves a version by one"
        )
        for stage in ("sequence", "resolve", "persist", "release"):
            assert found[f'holdfast_stage_processor_seconds_total{{stage="{stage}"}}'] > 0
        assert found['holdfast_stage_seconds_count{stage="persist"}'] >= 2
        assert found['holdfast_stage_seconds_count{stage="resolve"}'] >= 2
        assert found['holdfast_stage_bytes{stage="resolve"}'] > 0, "the window remembers the writes"
        assert found['holdfast_stage_bytes{stage="release"}'] == 0, "nothing waits for a proof"
        assert found['holdfast_processor_seconds_total{process="view"}'] > 0
        assert found['holdfast_processor_seconds_total{process="server"}'] > 0
        assert (found["holdfast_stalls_total"], found["holdfast_stalled_seconds_total"]) == (0, 0)
        until(lambda: b"policy_holds_back" in server.output.read_bytes())
        assert server.output.read_bytes().count(b"policy_holds_back") == 1, "once a day"
    finally:
        server.stop()


def test_a_process_that_does_not_lead_counts_the_commits_that_it_refuses(tmp_path: Path) -> None:
    port, other = free_port(), free_port()
    log = (tmp_path / "log").as_uri()
    leader = ServerProcess(tmp_path, log, port, flags=("--init",), environment=PLAIN | NO_VIEW)
    leader.wait_until_leading()
    reader = ServerProcess(tmp_path, log, other, flags=("--read-only",), environment=PLAIN | NO_VIEW)
    try:
        with Client(f"http://127.0.0.1:{other}") as client, pytest.raises(InvalidRequest):
            client.commit([Write(b"key", b"")])
        assert scraped(other)['holdfast_stage_refusals_total{code="read_only",stage="admission"}'] == 1
    finally:
        reader.stop()
        leader.stop()
