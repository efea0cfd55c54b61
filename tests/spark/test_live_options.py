"""What ``holdfast spark ingest`` refuses before it starts Spark, and which stores it makes."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.spark.service_process import ServiceProcess

from holdfast import Queue, StoreClient, Write
from holdfast.cli.main import main
from holdfast.client import Client
from holdfast.client.protocol.effects import Request
from holdfast.client.stores import define_spark_stores
from holdfast.errors import Code, InvalidRequest, NotFound, PermissionDenied, Unavailable
from holdfast.spark.ingest import live_requests
from holdfast.spark.ingest.live_requests import LiveRequests, message_source, store_of
from holdfast.spark.ingest.numbered_source import request_in
from holdfast.spark.ingest.record import RequestOutcome
from holdfast.spark.ingest.verdict_output import RETRY_SECONDS, Judged, VerdictStore, _message
from holdfast.spark.option_values import Mode
from holdfast.spark.options import parse_served_store_options

HERE = "store:http://127.0.0.1:8080/requests/spark"


def test_a_source_is_one_word() -> None:
    assert message_source(HERE) == {
        "shape": "messages", "url": "http://127.0.0.1:8080", "store": "requests", "durable": "spark",
    }  # fmt: skip
    assert message_source("store:unix:/run/holdfast/a/b") == {
        "shape": "messages", "url": "unix:/run/holdfast", "store": "a", "durable": "b",
    }  # fmt: skip
    assert message_source("queue:/var/orders") == {"shape": "messages", "queue": "/var/orders"}
    assert message_source("/var/requests") is message_source("s3://bucket/requests") is None


@pytest.mark.parametrize(
    "text", ["http://127.0.0.1:8080", "http:///requests/spark", "ftp://host/requests/spark", "requests/spark", "", "//"]
)
def test_what_names_no_store_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        store_of(text, 2)
    assert "for example store:http" in refused.value.hint


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "either --to"),
        (["--to", "file:///tmp/t", "--verdicts-to", "verdicts"], "either --to"),
        (["--verdicts-to", "store:verdicts"], "not the address of a store"),
        (["--verdicts-to", "requests"], "store of the requests"),
        (["--verdicts-to", "store:http://127.0.0.1:8080/requests"], "store of the requests"),
        (["--verdicts-to", "store:http://127.0.0.1:8080/verdicts/by-request"], "store:http://127.0.0.1:8080/verdicts"),
    ],
)
def test_verdicts_go_to_one_place(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["spark", "ingest", "--from", HERE, "--log", tmp_path.as_uri(), "--name", "n", "--checkpoint", "c"]
    assert main([*command, *words]) == 2
    assert said in capsys.readouterr().err


def test_bounds_in_bytes_are_for_messages_and_a_store_needs_a_service() -> None:
    assert LiveRequests(HERE, at_once=7, bytes_at_once=9).options == {
        **(message_source(HERE) or {}), "maxRowsPerTrigger": "7", "maxBytesPerTrigger": "9",
        "targetPartitionBytes": "1048576", "acknowledge": "false", "retryDuration": "600000ms",
    }  # fmt: skip
    with pytest.raises(InvalidRequest, match="bound in bytes"):
        assert LiveRequests("/var/requests", bytes_at_once=9).options
    with pytest.raises(InvalidRequest, match="which service"):
        LiveRequests("queue:/var/orders", verdicts_store="verdicts").verdicts()


def test_the_address_of_a_service_without_its_word_is_answered_with_the_word() -> None:
    with pytest.raises(InvalidRequest) as refused:
        message_source("http://127.0.0.1:8080/requests/spark")
    assert "did you mean store:http://127.0.0.1:8080/requests/spark?" in refused.value.hint


TOKENS = "server.tokens=admin:0123456789abcdef,read:fedcba9876543210"


@pytest.mark.parametrize(("source", "lacks"), [("store", "subscribe"), ("queue", "publish")])
def test_a_token_without_a_right_is_refused_before_spark_starts_and_names_service_store_and_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, lacks: str
) -> None:
    (tmp_path / "served").mkdir()
    with ServiceProcess(tmp_path / "served", TOKENS) as service:
        with StoreClient(service.url, token="0123456789abcdef") as stores:
            define_spark_stores(stores)
        Queue(tmp_path / "orders").close()
        of = f"store:{service.url}/requests/spark" if source == "store" else f"queue:{tmp_path / 'orders'}"
        live = LiveRequests(of, verdicts_store=f"store:{service.url}/verdicts")
        monkeypatch.setenv("HOLDFAST_TOKEN", "0123456789abcdef")
        live.prepare((tmp_path / "log").as_uri())
        for token in ("fedcba9876543210", "a-token-that-nobody-knows"):
            monkeypatch.setenv("HOLDFAST_TOKEN", token)
            with pytest.raises(PermissionDenied) as refused:
                live.prepare((tmp_path / "log").as_uri())
            words = {
                "subscribe": "the token of this job lacks the right to subscribe in a store",
                "publish": "the token of this job lacks the right to publish in a store",
            }
            assert refused.value.message == words[lacks] or token != "fedcba9876543210"
            assert refused.value.fields["service"] == service.url
            assert refused.value.fields["store"] == ("requests" if source == "store" else "verdicts")


@pytest.mark.parametrize("code", [Code.NOT_FOUND, Code.STORE_REPLACED])
def test_a_store_that_is_missing_and_may_not_be_made_is_named(monkeypatch: pytest.MonkeyPatch, code: Code) -> None:
    class Service(ExitStack):
        """Where nothing exists."""

        session = None

        def run(self, _: object) -> None:
            raise NotFound("there is no such store", code=code)

    monkeypatch.setattr(live_requests, "Client", lambda *_, **__: Service())
    with pytest.raises(PermissionDenied) as refused:
        live_requests._require_right("http://a", "orders", "browse", Request("GET", "/v1/stores/orders"))
    words = "a store, or its durable, does not exist, and the token of this job may not make it"
    assert (refused.value.message, refused.value.code) == (words, code)
    assert refused.value.fields == {"service": "http://a", "store": "orders"}


def test_services_of_requests_and_verdicts_may_be_away_for_the_same_time() -> None:
    live = LiveRequests(HERE, verdicts_store="verdicts", retry_seconds=7.5)
    options, verdicts = live.options, live.verdicts()
    assert options is not None and isinstance(verdicts, VerdictStore)
    assert parse_served_store_options(options, Mode.STREAM).retry_ms == 7_500
    assert verdicts._retry_seconds == 7.5
    assert LiveRequests(HERE).retry_seconds == RETRY_SECONDS == 600


def test_a_service_that_leads_the_log_itself_cannot_have_the_requests(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log"
    log.mkdir()
    with ServiceProcess(log) as service:
        with Client(service.url) as client:
            client.commit([Write(b"k", b"v")])
        command = [
            *("spark", "ingest", "--from", f"store:{service.url}/requests/spark", "--verdicts-to", "verdicts"),
            *("--log", log.as_uri(), "--name", "n", "--checkpoint", str(tmp_path / "c"), "--step-down"),
        ]
        assert main(command) == 2
        assert "leads this very log" in capsys.readouterr().err
        with StoreClient(service.url) as stores:
            assert "requests" not in str(stores.stores()), "nothing was made"


def test_missing_stores_are_made_and_others_stay(tmp_path: Path) -> None:
    (tmp_path / "served").mkdir()
    with ServiceProcess(tmp_path / "served") as service, StoreClient(service.url) as stores:
        stores.define_store("verdicts", {"durables": {"mine": {"type": "shared"}}})
        live = LiveRequests(f"store:{service.url}/requests/spark", verdicts_store="verdicts")
        live.prepare((tmp_path / "log").as_uri())
        live.prepare((tmp_path / "log").as_uri())
        assert stores.describe_durable("requests", "spark")["type"] == "standard"
        assert stores.describe_durable("verdicts", "mine")["type"] == "shared"
        with pytest.raises(NotFound):
            stores.describe_durable("verdicts", "by-request")
        elsewhere = LiveRequests("/var/requests", verdicts_store=f"store:{service.url}/others")
        elsewhere.prepare((tmp_path / "log").as_uri())
        assert stores.describe_durable("others", "by-request")["type"] == "last_value"


def test_a_service_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("live_requests", "numbered_source"):
        monkeypatch.setattr(f"holdfast.spark.ingest.{name}.ANSWER_MS_MAX", 100)
    live = LiveRequests("store:http://127.0.0.1:9/requests/spark", verdicts_store="verdicts")
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1:9"):
        live.prepare((tmp_path / "log").as_uri())


def test_the_verdict_on_a_version_of_another_log_names_both_logs() -> None:
    body = b'{"operations": [], "read_version": 7, "log_id": "%s"}' % (b"ab" * 16)
    request = request_in(1, body.replace(b"[]", b'[{"type": "write", "key": "aw==", "value": ""}]'), {}, 0)
    judged = Judged(0, 0, 0, 0, [request], [], 9, "l")
    verdict = _message(judged, request, RequestOutcome("log_mismatch"), "cd" * 16)
    assert b"ab" * 16 in verdict.body and b"cd" * 16 in verdict.body


@pytest.mark.parametrize(
    ("given", "code", "said"),
    [
        ("queue:{folder}/none", 1, "no such queue"),
        ("{folder}/none", 2, "no such folder of requests"),
        ("nonsense://x", 2, "not a place from which an ingest reads"),
        ("store:{url}/requests/shared", 1, "needs a durable of type standard"),
    ],
)
def test_a_source_that_cannot_be_read_is_refused_before_spark_starts_and_before_the_job_leads(
    given: str, code: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("holdfast.spark.commands.session", None)
    (tmp_path / "served").mkdir()
    with ExitStack() as opened:
        url = ""
        if "{url}" in given:
            url = opened.enter_context(ServiceProcess(tmp_path / "served")).url
            with StoreClient(url) as stores:
                define_spark_stores(stores)
                stores.define_durable("requests", "shared", {"type": "shared"})
        command = ["spark", "ingest", "--from", given.format(folder=tmp_path, url=url), "--init", "--name", "n"]
        log = ["--log", (tmp_path / "log").as_uri(), "--checkpoint", "c", "--to", (tmp_path / "verdicts").as_uri()]
        assert main([*command, *log]) == code
    assert said in capsys.readouterr().err
    assert not (tmp_path / "log").exists()


def test_a_mistyped_log_is_not_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.spark.commands.session", None)
    command = ["spark", "ingest", "--from", str(tmp_path), "--log", (tmp_path / "lgo").as_uri(), "--name", "n"]
    assert main([*command, "--checkpoint", "c", "--to", (tmp_path / "verdicts").as_uri()]) == 5
    assert "there is no log at this URL" in (said := capsys.readouterr().err) and "--init" in said
    assert not (tmp_path / "lgo").exists()
