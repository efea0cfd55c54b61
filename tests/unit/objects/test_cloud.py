"""What the cloud client's answers come to, pinned by a real socket: obstore tells most of it in text only."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator

import pytest
from obstore.exceptions import AlreadyExistsError, GenericError

from holdfast.errors import Code, InvalidRequest, NotFound, Unavailable
from holdfast.objects.cloud import CloudStore, answer_of_failed_create
from holdfast.objects.port import CreateAnswer, Created, Refused, Unknown


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "AWS_ACCESS_KEY_ID": "id",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)


class OneAnswer:
    """An S3 server that gives every request the same answer and counts them."""

    def __init__(self, answer: str, body: bytes = b"") -> None:
        self.answer = answer
        self.body = body
        self.requests: list[str] = []
        self._connections: set[asyncio.Task[None]] = set()

    @contextlib.asynccontextmanager
    async def store(self, request_timeout_ms: float = 5_000) -> AsyncIterator[CloudStore]:
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        store = CloudStore.open(
            f"s3://bucket/prefix?endpoint=http://127.0.0.1:{port}",
            request_timeout_ms=request_timeout_ms,
            connections_max=2,
        )
        try:
            yield store
        finally:
            await store.close()
            server.close()
            for task in self._connections:
                task.cancel()
            await asyncio.gather(*self._connections, return_exceptions=True)
            await server.wait_closed()

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._connections.add(task)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                length = re.search(r"content-length: (\d+)", head, re.IGNORECASE)
                await reader.readexactly(int(length[1]) if length else 0)
                self.requests.append(head)
                if self.answer == "reset":
                    writer.transport.abort()
                    return
                if self.answer == "silence":
                    await asyncio.Event().wait()
                headers = f'HTTP/1.1 {self.answer}\r\nETag: "e"\r\nContent-Length: {len(self.body)}\r\n\r\n'
                writer.write(headers.encode() + self.body)


def created_by(answer: str, body: bytes = b"") -> tuple[CreateAnswer, OneAnswer]:
    server = OneAnswer(answer, body)

    async def scenario() -> CreateAnswer:
        async with server.store(200 if answer == "silence" else 5_000) as store:
            return await store.create("batches/1", b"data")

    return asyncio.run(scenario()), server


def test_every_create_is_conditional_whole_and_sent_once() -> None:
    answer, server = created_by("200 OK")
    assert answer == Created()
    (head,) = server.requests
    assert head.startswith("PUT /bucket/prefix/batches/1 ")
    assert re.search(r"^if-none-match: \*\r$", head, re.IGNORECASE | re.MULTILINE)


def test_412_is_a_refusal_and_409_an_uncertain_one() -> None:
    assert created_by("412 Precondition Failed")[0] == Refused(certain=True)
    assert created_by("409 Conflict")[0] == Refused(certain=False)


@pytest.mark.parametrize(
    "answer",
    [
        "400 Bad Request",
        "403 Forbidden",
        "404 Not Found",
        "408 Request Timeout",
        "429 Too Many Requests",
        "500 Internal Server Error",
        "501 Not Implemented",
        "503 Slow Down",
        "reset",
        "silence",
    ],
)
def test_whatever_is_neither_is_unknown_and_is_not_sent_again(answer: str) -> None:
    heard, server = created_by(answer, b"<Error><Code>Why</Code></Error>")
    assert isinstance(heard, Unknown)
    assert heard.detail
    assert len(server.requests) == 1
    if answer[0].isdigit():
        assert answer[:3] in heard.detail


def test_azure_says_409_for_taken() -> None:
    error = AlreadyExistsError("Server returned non-2xx status code: 409 Conflict: BlobAlreadyExists")
    assert answer_of_failed_create(error, "az") == Refused(certain=True)
    assert answer_of_failed_create(error, "s3") == Refused(certain=False)


def test_a_refusal_without_a_status_in_its_text_is_uncertain_and_details_are_bounded() -> None:
    assert answer_of_failed_create(AlreadyExistsError("it is there"), "s3") == Refused(certain=False)
    answer = answer_of_failed_create(GenericError("long " * 1_000), "s3")
    assert isinstance(answer, Unknown)
    assert len(answer.detail) <= 400


@pytest.mark.parametrize("answer", ["500 Internal Server Error", "503 Slow Down", "403 Forbidden", "reset"])
def test_a_failed_read_or_listing_is_unavailable(answer: str) -> None:
    async def scenario() -> None:
        async with OneAnswer(answer, b"<Error/>").store() as store:
            with pytest.raises(Unavailable):
                await store.read("batches/1")
            with pytest.raises(Unavailable):
                await store.read("batches/1", start=1, length=1)
            with pytest.raises(Unavailable):
                await store.list("batches/")
            with pytest.raises(Unavailable):
                await store.delete("batches/1")

    asyncio.run(scenario())


def test_an_absent_object_is_not_found_but_an_absent_bucket_is_unavailable() -> None:
    async def scenario(code: bytes, expected: type[Exception]) -> None:
        async with OneAnswer("404 Not Found", b"<Error><Code>" + code + b"</Code></Error>").store() as store:
            with pytest.raises(expected):
                await store.read("batches/1")
            with pytest.raises(Unavailable):
                await store.list("batches/")

    asyncio.run(scenario(b"NoSuchKey", NotFound))
    asyncio.run(scenario(b"NoSuchBucket", Unavailable))


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("s3://", "not the URL"),
        ("s3:///prefix", "not the URL"),
        ("s3://id:secret@bucket/prefix", "not the URL"),
        ("s3://bucket/prefix?acces_key=x", "not the URL"),
        ("gs://bucket?region=x", "not the URL"),
        ("s3://bucket/../other", "every object store"),
        ("s3://logs--use1-az4--x-s3/prefix", "Express"),
    ],
)
def test_a_wrong_url_is_refused_before_anything_is_sent_and_never_repeated_with_a_secret(
    url: str, complaint: str
) -> None:
    with pytest.raises(InvalidRequest, match=complaint) as caught:
        CloudStore.open(url, request_timeout_ms=1_000, connections_max=1)
    assert "secret" not in str(caught.value)
    assert caught.value.code in (Code.BAD_CONFIGURATION, Code.STORE_UNFIT, Code.MALFORMED)


def test_the_url_for_people_has_no_settings() -> None:
    url = "s3://bucket/some/prefix?region=eu-west-1&endpoint=http://127.0.0.1:1"
    assert CloudStore.open(url, request_timeout_ms=1_000, connections_max=1).url == "s3://bucket/some/prefix"
    assert CloudStore.open("gs://bucket", request_timeout_ms=1_000, connections_max=1).url == "gs://bucket"
    azure = CloudStore.open("az://logs/one?account=acme", request_timeout_ms=1_000, connections_max=1)
    assert azure.url == "az://logs/one"
