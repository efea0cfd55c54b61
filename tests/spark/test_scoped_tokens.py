"""Jobs of Spark whose token is for some keys only: they write exactly once with one tag, or are refused before anything
is sent, with the setting in the error."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.spark.mortal import Fate, Killed, MortalClient
from tests.spark.service_process import NO_VIEW, ServiceProcess
from tests.spark.test_sink_protocol import CHUNKED, expected, new_options, small_chunks, write

from holdfast.client import Client
from holdfast.errors import Closed, PermissionDenied
from holdfast.server.http.key_scope import tag_of
from holdfast.spark.bulk.leadership import JobLeadership, LeadershipOptions
from holdfast.spark.ingest.live_requests import LiveRequests
from holdfast.spark.runtime.store_thread import StoreThread
from holdfast.spark.sink.identity import token_of
from holdfast.spark.sink.record import WriteId, job_of_write, read_record

__all__ = ["small_chunks"]

JOB, WIDER, WRITER, ADMIN = (f"{name}-of-the-scoped-jobs" for name in ("job", "wider", "writer", "admin"))
TOKENS = f"""\
job:{JOB} prefix=scoped-
job:{WIDER} prefix=other/ prefix=s
write:{WRITER} prefix=scoped-
admin:{ADMIN}
"""


def started(folder: Path, *settings: str) -> ServiceProcess:
    (folder / "tokens").write_text(TOKENS)
    (folder / "log").mkdir()
    return ServiceProcess(folder / "log", f"server.tokens_file={folder / 'tokens'}", *settings)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    with started(tmp_path_factory.mktemp("scoped")) as made:
        yield made


def test_a_write_of_the_sink_keeps_the_tag_of_its_first_attempt_whoever_repeats_it(service: ServiceProcess) -> None:
    """The token that repeats it begins with another prefix, so its own tag is another one."""
    names: list[str] = []
    for dies_at in itertools.count(4, 4):
        options, name = new_options(service), f"scoped-{dies_at}"
        wanted = WriteId(token_of(name), name)
        with MortalClient(service.url, Fate(dies_at, after=True), CHUNKED, token=JOB) as client:
            try:
                write(client, options, wanted)
                break
            except Killed:
                pass
        with Client(service.url, token=WIDER) as client:
            begun = read_record(client, options.application).record
            write(client, options, wanted)
            assert not client.jobs(job_of_write(options.application, wanted.token), at=client.version().version).items
            if begun is not None and begun.state == "intent":
                names.append(name)
                assert begun.tag == tag_of(b"scoped-")
    assert names, "some were begun by one token and ended by the other"
    keys: Counter[bytes] = Counter()
    for txn in service.transactions():
        written = [operation.key for operation in txn.operations]
        keys.update(written)
        if any(key.startswith(f"{name}/".encode()) for key in written for name in names):
            assert txn.request_id.startswith(tag_of(b"scoped-") + "spark/"), "the ids of both runs are one attempt"
    assert all(keys[key] == 1 for name in names for key in expected(name))


def test_a_token_without_the_role_of_jobs_is_refused_before_a_row_is_sent(service: ServiceProcess) -> None:
    options, before = new_options(service), len(service.transactions())
    with Client(service.url, token=WRITER) as client, pytest.raises(PermissionDenied) as refused:
        write(client, options, WriteId(token_of("scoped-writer"), "scoped-writer"))
    assert "job" in refused.value.statement() and len(service.transactions()) == before


def test_a_sink_of_keys_outside_of_its_token_is_refused_and_begins_with_nothing_else(service: ServiceProcess) -> None:
    with Client(service.url, token=JOB) as client, pytest.raises(PermissionDenied, match="keys"):
        write(client, new_options(service), WriteId(token_of("foreign"), "foreign"))


@pytest.mark.parametrize("source", ["store", "queue"])
def test_an_ingest_is_refused_before_spark_starts_and_names_the_setting(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with started(tmp_path, NO_VIEW) as served:
        of = f"store:{served.url}/requests/spark" if source == "store" else f"queue:{tmp_path / 'orders'}"
        if source == "queue":
            from holdfast import Queue

            Queue(tmp_path / "orders").close()
        live = LiveRequests(of, verdicts_store=f"store:{served.url}/verdicts")
        monkeypatch.setenv("HOLDFAST_TOKEN", JOB)
        with pytest.raises(PermissionDenied) as refused:
            live.prepare((tmp_path / "ingested").as_uri())
        assert "HOLDFAST_TOKEN" in refused.value.hint and "prefix" in refused.value.hint
        assert not (tmp_path / "ingested").exists()


def test_a_load_writes_with_the_rights_of_the_store_and_a_scoped_token_does_not_make_a_service_stand_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with started(tmp_path, NO_VIEW) as served, StoreThread(served.log_url) as thread:
        monkeypatch.setenv("HOLDFAST_TRUSTED_HOSTS", served.address)
        before = sorted((tmp_path / "log" / "batches").iterdir())
        for token, hint in ((WRITER, "role admin"), (JOB, "role admin")):
            leading = LeadershipOptions(step_down=True, sign_interval_ms=50.0, token=token)
            with pytest.raises(Closed, match="did not step down") as refused:
                JobLeadership(thread, leading).claim()
            assert "--token" in refused.value.hint and hint in refused.value.hint
        assert sorted((tmp_path / "log" / "batches").iterdir()) == before, "nothing was written"
        leadership = JobLeadership(thread, LeadershipOptions(step_down=True, sign_interval_ms=50.0, token=ADMIN))
        leadership.claim()
        leadership.resign()
