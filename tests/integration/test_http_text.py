"""Keys and values as text, and ranges by prefix: over HTTP on both lanes, through both clients and the command line."""

from __future__ import annotations

import asyncio
import base64
import json
import random
from urllib.parse import quote

import pytest
from tests.integration.http_harness import BY_FRAMEWORK, run, serving

from holdfast import Client, InvalidRequest, Write
from holdfast.aio import Client as AioClient
from holdfast.cli.main import main
from holdfast.cli.output import Exit
from holdfast.errors import Code

STANDARD = base64.b64encode
KEYS = (
    b"",
    b"seat",
    b"seat/",
    b"seat/12A",
    b"seat/12B",
    b"seat/\xff",
    b"seat0",
    "frei ☂".encode(),
    b"\xfe",
    b"\xff",
    b"\xff\x01",
    b"\xff\xff",
    b"\xff\xff\x00",
)
PREFIXES = (*KEYS, b"s", b"seat/12", b"\xff\xff\xff", b"seat/\xff\xff", b"nothing")


def url64(key: bytes) -> str:
    return base64.urlsafe_b64encode(key).decode().rstrip("=")


def operations(*items: dict[str, object]) -> bytes:
    return json.dumps({"operations": list(items)}).encode()


@pytest.mark.parametrize("framework", [False, True])
def test_a_commit_in_text_is_the_commit_of_its_utf8(framework: bool) -> None:
    async def scenario() -> None:
        async with serving() as here:
            client = await here.connect()
            way = BY_FRAMEWORK if framework else {}
            operation = {"type": "write", "key_text": "seat/12A", "value_text": "frei ☂"}
            written = await client.ask("POST", "/v1/commit", operations(operation), **way)
            version = written.json["version"]
            same = {
                "key": "c2VhdC8xMkE=",
                "value": STANDARD("frei ☂".encode()).decode(),
                "version": version,
                "at": version,
            }
            texts = {"key_text": "seat/12A", "value_text": "frei ☂"}
            assert (await client.ask("GET", f"/v1/keys/{url64(b'seat/12A')}")).json == same
            assert (await client.ask("GET", f"/v1/keys/{url64(b'seat/12A')}?text=false")).json == same
            for path in ("seat/12A", "seat%2F12A", quote("seat/12A", safe="")):
                assert (await client.ask("GET", f"/v1/keys/{path}?text=true")).json == {**same, **texts}
            read = {"type": "point_read", "key_text": "seat/12A", "version": version}
            guarded = json.dumps(
                {"operations": [{"type": "delete", "key_text": "seat/12A"}], "preconditions": [read]}
            ).encode()
            assert (await client.ask("POST", "/v1/commit", guarded, **way)).json["status"] == "committed"
            assert (await client.ask("POST", "/v1/commit", guarded, **way)).json["reason"] == "conflict"
            escaped = 3
            assert here.front.counters.framework_requests == escaped + (3 if framework else 0)

    run(scenario)


WRONG = {
    "both": ({"key": "YQ==", "key_text": "a", "value": ""}, "malformed", "key and key_text exclude each other", ""),
    "neither": ({"value_text": "a"}, "malformed", "key or key_text is required", ""),
    "text": ({"key": "seat/12", "value": ""}, "bad_base64", "`$.operations[0].key`", "plain text in key_text"),
    "value": ({"key": "", "value": "free!"}, "bad_base64", "`$.operations[0].value`", "plain text in value_text"),
    "unpadded": ({"key": "YQ", "value": ""}, "bad_base64", "`$.operations[0].key`", "plain text in key_text"),
    "alphabet": ({"key": "_-__", "value": ""}, "bad_base64", "`$.operations[0].key`", "plain text in key_text"),
    "space": ({"key": "YQ ==", "value": ""}, "bad_base64", "`$.operations[0].key`", "plain text in key_text"),
    "bits": ({"key": "YR==", "value": ""}, "bad_base64", "`$.operations[0].key`", "plain text in key_text"),
    "bits beside text": ({"key_text": "a", "value": "YR=="}, "bad_base64", "`$.operations[0].value`", "value_text"),
}


@pytest.mark.parametrize("name", WRONG)
def test_both_lanes_and_the_stream_refuse_the_same_and_change_nothing(name: str) -> None:
    fields, code, message, hint = WRONG[name]

    async def scenario() -> None:
        async with serving() as here:
            fast, framework = await here.connect(), await here.connect()
            body = operations({"type": "write", **fields})
            one = await fast.ask("POST", "/v1/commit", body)
            assert (one.status, one.code) == (400, code)
            assert message in one.json["error"]["message"]
            assert hint in one.json["error"].get("hint", "")
            assert (await framework.ask("POST", "/v1/commit", body, **BY_FRAMEWORK)).body == one.body
            good = operations({"type": "write", "key_text": "k", "value_text": "v"})
            items = await framework.ask("POST", "/v1/commits", good + b"\n" + body + b"\n" + good + b"\n")
            first, second = [json.loads(line) for line in items.body.splitlines()]
            assert first["status"] == "committed"
            assert (second["error"], second["index"]) == (one.json["error"], 1)
            assert here.service.metrics.committed == 1

    run(scenario)


@pytest.mark.parametrize(
    ("target", "status", "code", "says"),
    [
        ("/v1/keys/seat/12A", 400, "bad_base64", "text=true reads the path as text"),
        ("/v1/keys/YR", 400, "bad_base64", "text=true"),
        ("/v1/keys/YQ%3D", 400, "bad_base64", "text=true"),
        ("/v1/keys/%2B%2B%2B%2B", 400, "bad_base64", "text=true"),
        ("/v1/keys/%FF?text=true", 400, "malformed", "base64url"),
        ("/v1/keys/k?text=yes", 400, "malformed", "text is true or false"),
        ("/v1/range?prefix=seat/", 400, "bad_base64", "give plain text in prefix_text"),
        ("/v1/range?begin=YR", 400, "bad_base64", "give plain text in begin_text"),
        ("/v1/range?prefix=YQ&prefix_text=a", 400, "malformed", "prefix and prefix_text exclude each other"),
        ("/v1/range?prefix_text=%FF", 400, "malformed", "prefix_text is not UTF-8"),
        ("/v1/range?prefix=YQ&begin=YQ", 400, "malformed", "prefix excludes begin and end"),
        ("/v1/range?prefix=YQ&end=", 400, "malformed", "prefix excludes begin and end"),
        ("/v1/range?prefix=&end_text=b", 400, "malformed", "prefix excludes begin and end"),
        ("/v1/subscribe?prefix_text=a&begin_text=a", 400, "malformed", "prefix excludes begin and end"),
        ("/v1/subscribe?prefix=seat/", 400, "bad_base64", "give plain text in prefix_text"),
    ],
)
def test_a_wrong_key_in_a_url_is_named(target: str, status: int, code: str, says: str) -> None:
    async def scenario() -> None:
        async with serving() as here:
            answer = await (await here.connect()).ask("GET", target)
            assert (answer.status, answer.code) == (status, code)
            assert says in f"{answer.json['error']['message']}; {answer.json['error'].get('hint', '')}"

    run(scenario)


def test_a_prefix_is_the_keys_that_start_with_it() -> None:
    drawn = random.Random(7)
    keys = sorted({*KEYS, *(bytes(drawn.choices(b"ab/\xfe\xff", k=drawn.randrange(5))) for _ in range(60))})

    async def scenario() -> None:
        async with serving() as here:
            client = await here.connect()
            items = [{"type": "write", "key": STANDARD(key).decode(), "value": ""} for key in keys]
            assert (await client.ask("POST", "/v1/commit", operations(*items))).status == 200
            for prefix in {*PREFIXES, *(key[:2] for key in keys)}:
                wanted = [STANDARD(key).decode() for key in keys if key.startswith(prefix)]
                found = (await client.ask("GET", f"/v1/range?prefix={url64(prefix)}")).json
                assert [item["key"] for item in found["items"]] == wanted, prefix
                assert not any("key_text" in item for item in found["items"])
                try:
                    text = prefix.decode()
                except UnicodeDecodeError:
                    continue
                told = (await client.ask("GET", f"/v1/range?prefix_text={quote(text, safe='')}&text=true")).json
                assert [item["key"] for item in told["items"]] == wanted
                for item in told["items"]:
                    key = base64.b64decode(item["key"])
                    assert item.get("key_text", key) == (key.decode() if _is_text(key) else key)
                    assert item["value_text"] == ""
            page = (await client.ask("GET", "/v1/range?prefix_text=seat&limit=2&text=true")).json
            assert ([item["key_text"] for item in page["items"]], page["more"]) == (["seat", "seat/"], True)

    run(scenario)


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def test_both_clients_and_the_command_read_by_prefix(capsys: pytest.CaptureFixture[str]) -> None:
    async def scenario() -> None:
        async with serving() as here:
            async with AioClient([f"http://{here.host}:{here.port}"]) as client:
                await client.commit([Write(key, b"v") for key in KEYS])
                for prefix in PREFIXES:
                    wanted = sorted(key for key in KEYS if key.startswith(prefix))
                    found = await client.range(prefix=prefix)
                    assert [item.key for item in found.items] == wanted
                with pytest.raises(InvalidRequest, match="prefix excludes begin and end") as caught:
                    await client.range(b"a", prefix=b"a")
                assert caught.value.code is Code.MALFORMED
                cut = await client.range(prefix=b"seat", limit=2)
                assert ([item.key for item in cut.items], cut.more) == ([b"seat", b"seat/"], True)
            await asyncio.to_thread(blocking, f"http://{here.host}:{here.port}")

    def blocking(url: str) -> None:
        with Client([url]) as client:
            for prefix in PREFIXES:
                wanted = sorted(key for key in KEYS if key.startswith(prefix))
                assert [item.key for item in client.range(prefix=prefix).items] == wanted
            with pytest.raises(InvalidRequest, match="prefix excludes begin and end"):
                client.range(end=b"b", prefix=b"")
        capsys.readouterr()
        assert main(["get", "--prefix", "seat/1", "--url", url]) == Exit.DONE
        lines = capsys.readouterr().out.splitlines()
        assert [line.split("  @")[0] for line in lines] == ["seat/12A = v", "seat/12B = v"]
        assert main(["get", "--prefix", "ff", "--encoding", "hex", "--url", url, "--json"]) == Exit.DONE
        keys = [json.loads(line)["key"] for line in capsys.readouterr().out.splitlines()]
        assert [base64.b64decode(key) for key in keys] == [b"\xff", b"\xff\x01", b"\xff\xff", b"\xff\xff\x00"]
        assert main(["get", "--prefix", "", "--limit", "2", "--url", url]) == Exit.DONE
        printed = capsys.readouterr()
        assert len(printed.out.splitlines()) == 2
        assert "--encoding hex 6672656920e2988200 --end ''" in printed.err
        for words in (["get"], ["get", "k", "--prefix", "k"], ["get", "--prefix", "k", "--end", "z"]):
            assert main([*words, "--url", url]) == Exit.BAD_REQUEST
            assert "--prefix" in capsys.readouterr().err

    run(scenario)


def test_the_description_says_which_fields_exclude_each_other() -> None:
    async def scenario() -> None:
        async with serving() as here:
            described = (await (await here.connect()).ask("GET", "/openapi.json")).json
            schemas = described["components"]["schemas"]
            assert schemas["JsonWrite"]["allOf"] == [
                {"oneOf": [{"required": ["key"]}, {"required": ["key_text"]}]},
                {"oneOf": [{"required": ["value"]}, {"required": ["value_text"]}]},
            ]
            assert {"not": {"required": ["end", "end_text"]}} in schemas["JsonRangeRead"]["allOf"]
            assert schemas["JsonDelete"]["properties"]["key"]["contentEncoding"] == "base64"
            names = {each["name"] for each in described["paths"]["/v1/range"]["get"]["parameters"]}
            assert {"prefix", "prefix_text", "begin_text", "end_text", "text"} <= names
            assert not {"key_text", "value_text"} & set(schemas["ValueAnswer"]["required"])

    run(scenario)
