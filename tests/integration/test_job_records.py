"""Records of jobs over HTTP: one route with a right of its own, out of the reach of every key, kept by every leader."""

from __future__ import annotations

import json
import subprocess
import sys
from base64 import b64encode
from pathlib import Path

import pytest
from tests.integration.http_harness import Serving, run, serving
from tests.integration.test_view_process import NO_VIEW, connected
from tests.integration.test_view_process import serving as serving_process

from holdfast.commit.format.transaction import JobChange, RangeDelete, Write
from holdfast.errors import Conflict
from holdfast.server.http.auth import Grant, Role
from holdfast.server.http.key_scope import KeyScope

WRITER, JOB, SCOPED, SCOPED_JOB = (f"{name}-token-0123456789" for name in ("write", "job", "scoped", "scoped-job"))
TOKENS: dict[str, Role | Grant] = {
    WRITER: Role.WRITE,
    JOB: Role.JOB,
    SCOPED: Grant(Role.WRITE, scope=KeyScope((b"mine/",))),
    SCOPED_JOB: Grant(Role.JOB, scope=KeyScope((b"mine/",))),
}


def text(value: bytes) -> str:
    return b64encode(value).decode()


async def commit(found: Serving, token: str | None, **body: object) -> tuple[int, dict[str, object]]:
    client = await found.connect()
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    answer = await client.ask("POST", "/v1/commit", json.dumps({"operations": [], **body}).encode(), **headers)
    client.close()
    return answer.status, answer.json


async def get(found: Serving, target: str, token: str | None = None) -> tuple[int, dict[str, object]]:
    client = await found.connect()
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    answer = await client.ask("GET", target, **headers)
    client.close()
    return answer.status, answer.json


def test_a_record_is_read_by_its_route_alone_and_a_range_delete_without_end_leaves_it() -> None:
    async def scenario() -> None:
        async with serving() as found:
            everything = {"type": "range_delete", "begin": ""}
            first = (await commit(found, None, jobs=[{"name": "sink/a", "value": text(b"1"), "version": 0}]))[1]
            assert first["reason"] == "too_old", "an expectation below the window"
            version = (await get(found, "/v1/version"))[1]["version"]
            jobs = [{"name": name, "value": text(name.encode()), "version": version} for name in ("sink/b", "sink/a")]
            status, receipt = await commit(
                found, None, operations=[{"type": "write", "key": text(b"k"), "value": text(b"v")}], jobs=jobs
            )
            assert status == 200, receipt
            at = receipt["version"]
            assert (await commit(found, None, operations=[everything]))[0] == 200
            assert (await get(found, "/v1/range"))[1]["items"] == []
            assert (await get(found, "/v1/keys/c2luay9h"))[0] == 404  # sink/a
            expected = [{"name": name, "value": text(name.encode()), "version": at} for name in ("sink/a", "sink/b")]
            assert (await get(found, "/v1/jobs"))[1]["items"] == expected
            page = (await get(found, "/v1/jobs?prefix=sink/&limit=1"))[1]
            assert (page["items"], page["more"]) == (expected[:1], True)
            rest = (await get(found, "/v1/jobs?prefix=sink/&after=sink/a"))[1]
            assert (rest["items"], rest["more"]) == (expected[1:], False)
            assert await get(found, "/v1/jobs/sink%2Fa") == (200, expected[0])
            assert await get(found, "/v1/jobs/sink/a") == (200, expected[0])
            assert (await get(found, "/v1/jobs/sink"))[0] == 404
            refused = (
                await commit(found, None, jobs=[{"name": "sink/a", "value": text(b"late"), "version": version}])
            )[1]
            assert refused["conflicts"] == [{"precondition": 0, "version": at}]
            gone = await commit(found, None, jobs=[{"name": "sink", "value": None, "version": version}])
            assert gone[0] == 200
            assert (await get(found, "/v1/jobs"))[1]["items"] == []

    run(scenario)


def test_a_stream_and_a_transaction_of_the_log_show_no_record() -> None:
    async def scenario() -> None:
        async with serving() as found:
            version = (await get(found, "/v1/version"))[1]["version"]
            jobs = [{"name": "sink/a", "value": text(b"secret"), "version": version}]
            receipt = (await commit(found, None, jobs=jobs))[1]
            client = await found.connect()
            client.send(b"GET /v1/subscribe?after=0 HTTP/1.1\r\nHost: localhost\r\n\r\n")
            seen = b""
            await client.reader.readuntil(b"\r\n\r\n")
            async for part in client.chunks():
                seen += part
                if b'"version":%d' % receipt["version"] in seen:
                    break
            assert b"sink/a" not in seen and text(b"secret").encode() not in seen
            assert b'"operations":[]' in seen, "its version has a place in the stream, so that none is missing"
            shown = (await get(found, f"/v1/log/transactions/{receipt['version']}"))[1]
            assert shown["operations"] == [] and "secret" not in json.dumps(shown)

    run(scenario)


def test_only_the_role_of_jobs_reads_and_changes_records() -> None:
    async def scenario() -> None:
        async with serving(tokens=TOKENS) as found:
            version = (await get(found, "/v1/version", WRITER))[1]["version"]
            jobs = [{"name": "sink/a", "value": text(b"1"), "version": version}]
            mine = {"type": "write", "key": text(b"mine/k"), "value": ""}
            for token, allowed in ((WRITER, False), (SCOPED, False), (SCOPED_JOB, True), (JOB, False)):
                status, answer = await commit(found, token, operations=[mine], jobs=jobs)
                if token == JOB:
                    assert answer["reason"] == "conflict", answer
                else:
                    assert status == (200 if allowed else 403), answer
                assert (await get(found, "/v1/jobs/sink/a", token))[0] == (403 if token in (WRITER, SCOPED) else 200)
                assert (await get(found, "/v1/jobs", token))[0] == (403 if token in (WRITER, SCOPED) else 200)
            client = await found.connect()
            body = json.dumps({"operations": [mine], "jobs": jobs}).encode() + b"\n"
            answer = await client.ask("POST", "/v1/commits", body, Authorization=f"Bearer {WRITER}")
            assert b"permission_denied" in answer.body, answer.body

    run(scenario)


@pytest.mark.parametrize("with_snapshot", [False, True])
def test_records_outlive_the_leader_and_the_file_of_its_view(tmp_path: Path, with_snapshot: bool) -> None:
    url = (tmp_path / "log").as_uri()
    with serving_process(tmp_path, environment=NO_VIEW) as server, connected(server) as client:
        version = client.version().version
        for name in ("sink/a", "sink/b", "sink/b/1"):
            client.commit([Write(b"k", b"v")], jobs=[JobChange(name, name.encode(), version)])
        client.commit([RangeDelete(b"")], jobs=[JobChange("sink/b", None, client.version().version)])
        with pytest.raises(Conflict):
            client.commit([], jobs=[JobChange("sink/a", b"late", version)], read_version=version)
    if with_snapshot:
        make = [sys.executable, "-m", "holdfast.cli.main", "log", "snapshot", url, "--json"]
        subprocess.run(make, check=True, capture_output=True)
    with serving_process(tmp_path) as server, connected(server) as client:
        last = client.version()
        assert [(each.name, each.value) for each in client.jobs(at=last.version).items] == [("sink/a", b"sink/a")]
        found = client.job("sink/a")
        assert found is not None and client.job("sink/b/1") is None
        # The new leader has not seen that change: what was read at its first version is as it was.
        receipt = client.commit([], jobs=[JobChange("sink/a", b"next", last.version)])
        again = client.job("sink/a", at=receipt.version)
        assert again is not None and (again.value, again.version) == (b"next", receipt.version)
        assert not client.range(at=receipt.version).items
        assert ("view_reads_snapshot" in server.output.read_text()) == with_snapshot
