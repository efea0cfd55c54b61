"""Laws of one connection: framing, order, bounds, the framework's requests, and the end."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import struct

import pytest
from tests.integration.http_harness import BY_FRAMEWORK, Client, commit, request, run, serving, until, write
from tests.integration.test_commit_service import shown

from holdfast.aio import Client as AioClient
from holdfast.commit.format.transaction import Write
from holdfast.commit.leadership.evidence import LeaderAnswer, Reply
from holdfast.commit.leadership.leader_question import ask_leader
from holdfast.commit.leadership.peer_tls import PeerTls
from holdfast.commit.service import ServiceOptions
from holdfast.server.gateway import GatewayLimits
from holdfast.server.http.auth import Role
from holdfast.server.http.connection import HEAD_BYTES_MAX, UNANSWERED_MAX
from holdfast.server.http.responses import LeaderHint

TOKEN = "0123456789abcdef"
LIVEZ = request("GET", "/livez")
VERSION = request("GET", "/v1/version")


def test_a_request_may_come_in_pieces_of_any_size() -> None:
    async def scenario() -> None:
        async with serving() as here:
            client = await here.connect()
            whole = commit() + LIVEZ + VERSION
            for size in (1, 7, 64):
                for start in range(0, len(whole), size):
                    client.send(whole[start : start + size])
                    await asyncio.sleep(0)
                answers = [await client.answer() for _ in range(3)]
                assert [answer.status for answer in answers] == [200, 200, 200]
                assert answers[0].json["status"] == "committed"
                assert answers[1].json["leading"] is True
                assert answers[2].json["version"] >= answers[0].json["version"]
            assert here.front.counters.framework_requests == 0

    run(scenario)


def test_pipelined_requests_are_answered_in_their_order() -> None:
    async def scenario() -> None:
        async with serving() as here:
            client = await here.connect()
            kinds = [commit(f"{'a' * 4}"), LIVEZ, b"", VERSION, commit("bad"), LIVEZ]
            whole = b"".join(kinds) * 20
            client.send(whole)
            seen: list[str] = []
            for _ in range(5 * 20):
                answer = (await client.answer()).json
                seen.append("error" if "error" in answer else "|".join(sorted(answer)))
            one_round = seen[:5]
            assert one_round == [
                "leader_id|request_id|status|version",
                "address|leader_id|leading|sign|slot",
                "leader_id|log_id|version",
                "error",
                "address|leader_id|leading|sign|slot",
            ]
            assert seen == one_round * 20

    run(scenario)


def test_versions_of_pipelined_commits_rise() -> None:
    async def scenario() -> None:
        async with serving() as here:
            client = await here.connect()
            client.send(commit() * 500)
            versions = [(await client.answer()).json["version"] for _ in range(500)]
            assert versions == sorted(set(versions))

    run(scenario)


def test_a_program_that_only_commits_stays_on_its_first_connections() -> None:
    async def scenario() -> None:
        async with serving() as here:
            async with AioClient([f"http://{here.host}:{here.port}"]) as client:
                for number in range(4):
                    assert (await client.commit([Write(b"key", b"%d" % number)])).version > 0
            assert here.front.counters.framework_requests == 0

    run(scenario)


@pytest.mark.parametrize("before", [b"", commit(), commit() + VERSION + LIVEZ])
def test_a_connection_is_handed_over_with_its_unread_bytes_after_earlier_answers(before: bytes) -> None:
    async def scenario() -> None:
        async with serving() as here:
            client = await here.connect()
            client.send(before + request("GET", "/readyz") + commit() + LIVEZ)
            for _ in range(before.count(b"HTTP/1.1\r\n")):
                assert (await client.answer()).status == 200
            assert (await client.answer()).json["ready"] is True
            assert (await client.answer()).json["status"] == "committed"
            assert (await client.answer()).json["leading"] is True
            assert here.front.counters.framework_requests == 1

    run(scenario)


def test_a_chunked_commit_means_the_same() -> None:
    async def scenario() -> None:
        async with serving() as here:
            client = await here.connect()
            body = write()
            head = b"POST /v1/commit HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
            chunks = b"".join(b"%x\r\n%b\r\n" % (1, body[at : at + 1]) for at in range(len(body))) + b"0\r\n\r\n"
            client.send(head + chunks)
            assert (await client.answer()).json["status"] == "committed"

    run(scenario)


def test_expect_is_answered_before_the_body_is_sent() -> None:
    async def scenario() -> None:
        async with serving() as here:
            client = await here.connect()
            body = write()
            client.send(request("POST", "/v1/commit", body, Expect="100-continue")[: -len(body)])
            assert (await client.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100")
            client.send(body)
            assert (await client.answer()).json["status"] == "committed"

    run(scenario)


def test_http_1_0_is_answered_and_closed() -> None:
    async def scenario() -> None:
        async with serving() as here:
            client = await here.connect()
            client.send(b"GET /livez HTTP/1.0\r\n\r\n")
            assert (await client.answer()).json["leading"] is True
            assert await client.is_closed_by_peer()

    run(scenario)


def test_connection_close_is_honoured_after_the_answer() -> None:
    async def scenario() -> None:
        async with serving() as here:
            client = await here.connect()
            client.send(request("POST", "/v1/commit", write(), Connection="close") + LIVEZ)
            answer = await client.answer()
            assert answer.json["status"] == "committed" and answer.headers["connection"] == "close"
            assert await client.is_closed_by_peer()

    run(scenario)


def test_a_head_like_the_one_before_has_its_own_body_and_another_one_is_read_anew() -> None:
    async def scenario() -> None:
        async with serving() as here:
            client = await here.connect()
            good, bad, longer = commit("a2V5"), commit("####"), commit("a2V5a2V5")
            assert len(good) == len(bad) != len(longer), "heads differ where the length does"
            whole = good + bad + LIVEZ + LIVEZ + bad + longer + longer + good
            for size in (len(whole), len(good) + 10, 50, 7):
                for start in range(0, len(whole), size):
                    client.send(whole[start : start + size])
                    await asyncio.sleep(0)
                answers = [await client.answer() for _ in range(8)]
                assert [answer.status for answer in answers] == [200, 400, 200, 200, 400, 200, 200, 200]
                assert ["status" in answer.json for answer in answers] == [1, 0, 0, 0, 0, 1, 1, 1]
            assert here.front.counters.framework_requests == 0

    run(scenario)


def test_a_head_that_is_known_no_longer_has_what_another_one_said() -> None:
    async def scenario() -> None:
        async with serving(tokens={TOKEN: Role.WRITE}) as here:
            client = await here.connect()
            body = write()
            good = request("POST", "/v1/commit", body, Authorization=f"Bearer {TOKEN}")
            bad = request("POST", "/v1/commit", body, Authorization=f"Bearer {TOKEN[::-1]}")
            none = request("POST", "/v1/commit", body)
            for data, status in ((good, 200), (good, 200), (bad, 401), (good, 200), (none, 401), (none, 401)):
                client.send(data)
                assert (await client.answer()).status == status
            # Half of another head, then the connection goes on with the one that was known.
            client.send(good + bad[:40])
            assert (await client.answer()).status == 200
            client.send(bad[40:] + good)
            assert [(await client.answer()).status for _ in range(2)] == [401, 200]

    run(scenario)


def test_a_bad_request_leaves_the_connection_usable() -> None:
    async def scenario() -> None:
        async with serving() as here:
            client = await here.connect()
            for body in (b"", b"{", b"[]", b"\xff", b"[" * 50_000, b'{"operations":[{"k":' + b"[" * 50_000):
                answer = await client.ask("POST", "/v1/commit", body)
                assert (answer.status, answer.code) == (400, "malformed")
            assert (await client.ask("POST", "/v1/commit", write())).status == 200

    run(scenario)


BAD_HEADS = [
    b"POST /v1/commit HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef",
    b"POST /v1/commit HTTP/1.1\r\nHost: localhost\r\nContent-Length: abc\r\n\r\n",
    b"POST /v1/commit HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
    b"POST /v1/commit HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999999999999999\r\n\r\n",
    b"POST /v1/commit HTTP/1.1\r\nHost: localhost\r\nbad header\r\n\r\n",
    b"GET /livez HTTP/1.1\r\nHost : x\r\n\r\n",
    b"NONSENSE\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
]


@pytest.mark.parametrize("head", BAD_HEADS)
def test_what_is_not_http_gets_a_coded_400_and_the_end(head: bytes) -> None:
    async def scenario() -> None:
        async with serving() as here:
            client = await here.connect()
            client.send(head)
            client.writer.write_eof()
            answer = await client.answer()
            assert (answer.status, answer.code) == (400, "malformed")
            assert await client.is_closed_by_peer()

    run(scenario)


FAST_AND_FRAMEWORK = ["POST /v1/commit", "GET /livez", "GET /v1/version", "GET /v1/version?consistency=local"]


@pytest.mark.parametrize("line", FAST_AND_FRAMEWORK)
@pytest.mark.parametrize(
    "hosts",
    [
        [],
        ["Host: a", "Host: a"],
        ["Host: a", "hOST: b"],
        ["Host: a/b"],
        ["Host: a, b"],
        ["Host: ann@a"],
        ["Host: a:b"],
        ["Host: [::1"],
        ["Host: a\u00fc"],
    ],
)
def test_a_request_without_one_valid_host_gets_a_coded_400_and_the_end(line: str, hosts: list[str]) -> None:
    body = write() if line.startswith("POST") else b""
    head = "\r\n".join([f"{line} HTTP/1.1", *hosts, f"Content-Length: {len(body)}"]).encode() + b"\r\n\r\n"

    async def scenario() -> None:
        async with serving() as here:
            before = here.service.local_version()
            for first in (b"", LIVEZ):  # a head that was right before does not make it right
                client = await here.connect()
                client.send(first + head + body + LIVEZ)
                if first:
                    assert (await client.answer()).status == 200
                answer = await client.answer()
                assert (answer.status, answer.code, answer.headers["connection"]) == (400, "malformed", "close")
                assert "Host" in answer.json["error"]["message"]
                client.writer.write_eof()
                assert await client.is_closed_by_peer()
            assert here.service.local_version() == before

    run(scenario)


@pytest.mark.parametrize("line", FAST_AND_FRAMEWORK)
@pytest.mark.parametrize(
    "host", ["", "x", " a-b_c.example:8080 ", "127.0.0.1", "[::1]:80", "[fe80::1%eth0]:80", "a%20b", ":"]
)
def test_one_valid_host_of_the_service_is_enough(line: str, host: str) -> None:
    body = write() if line.startswith("POST") else b""
    head = f"{line} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n\r\n".encode()

    async def scenario() -> None:
        async with serving(names=("x", "a-b_c.example", "a%20b")) as here:
            client = await here.connect()
            for _ in range(3):
                client.send(head + body)
                assert (await client.answer()).status == 200

    run(scenario)


def test_the_answer_of_a_leader_says_what_it_has_shown() -> None:
    async def scenario() -> None:
        options = ServiceOptions(address="test", allow_new=True, probe=False, sign_interval_ms=50.0)
        async with serving(options=options) as here:
            service = here.service
            for wanted in (1, 2):
                await shown(service, wanted)
                asked = await ask_leader(f"127.0.0.1:{here.port}", 2_000.0, tls=PeerTls())
                assert (asked.reply, asked.leader_id) == (Reply.LEADS, service.leader_id)
                assert asked.shown is not None and asked.shown.slot == service.claim.slot
                assert asked.shown.sign >= wanted
            await service.step_down()
            here.front.stop_leading(LeaderHint())
            assert await ask_leader(f"127.0.0.1:{here.port}", 2_000.0, tls=PeerTls()) == LeaderAnswer(Reply.LEADS_NOT)

    run(scenario)


def test_only_an_address_where_no_process_listens_refuses() -> None:
    async def scenario() -> None:
        async def asked(address: str) -> Reply:
            return (await ask_leader(address, 300.0, tls=PeerTls())).reply

        with socket.create_server(("127.0.0.1", 0)) as silent:
            port = silent.getsockname()[1]
            assert await asked(f"127.0.0.1:{port}") is Reply.SILENT, "a process that is stopped accepts nothing"
        assert await asked(f"127.0.0.1:{port}") is Reply.REFUSES
        for wrong in ("no.such.host.invalid:1", "unix:/no/such/socket", "nonsense", "127.0.0.1:x", ""):
            assert await asked(wrong) is Reply.SILENT, wrong

    run(scenario)


def test_who_would_lead_asks_with_a_host_that_is_taken() -> None:
    async def scenario() -> None:
        async with serving() as here:
            for name in (
                "127.0.0.1",
                "localhost",
                "http://127.0.0.1",
                "\u24db\u24de\u24d2\u24d0\u24db\u24d7\u24de\u24e2\u24e3",
            ):
                asked = await ask_leader(f"{name}:{here.port}", 2_000.0, tls=PeerTls())
                assert asked.leader_id == here.service.leader_id
            (address,) = (await here.server.listen(["[::1]:0"]))[1:]
            for each in (address, address.replace("[", "").replace("]", "")):
                assert (await ask_leader(each, 2_000.0, tls=PeerTls())).leader_id == here.service.leader_id

    run(scenario)


def test_http_1_0_needs_no_host() -> None:
    async def scenario() -> None:
        async with serving() as here:
            client = await here.connect()
            client.send(b"GET /livez HTTP/1.0\r\n\r\n")
            assert (await client.answer()).status == 200
            client = await here.connect()
            client.send(b"GET /livez HTTP/1.0\r\nHost: localhost\r\nHost: localhost\r\n\r\n")
            assert (await client.answer()).status == 400

    run(scenario)


def test_a_body_framed_twice_is_never_taken_by_the_fast_lane() -> None:
    async def scenario() -> None:
        async with serving() as here:
            client = await here.connect()
            smuggled = b"0\r\n\r\n" + LIVEZ
            client.send(
                b"POST /v1/commit HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n"
                b"Transfer-Encoding: chunked\r\n\r\n" % len(smuggled) + smuggled
            )
            assert (await client.answer()).status == 400
            assert await client.is_closed_by_peer()

    run(scenario)


@pytest.mark.parametrize(("target", "size"), [("/v1/commit", 1001), ("/v1/commit", 5_000_000), ("/v1/commit?", 1001)])
def test_too_large_a_body_is_refused_and_its_sender_sees_why(target: str, size: int) -> None:
    async def scenario() -> None:
        async with serving(limits=GatewayLimits(request_bytes_max=1000)) as here:
            client = await here.connect()
            answer = await client.ask("POST", target, b"x" * size)
            assert (answer.status, answer.code, answer.headers["connection"]) == (413, "too_large", "close")
            client.writer.write_eof()
            assert await client.is_closed_by_peer()

    run(scenario)


@pytest.mark.parametrize("target", ["/v1/commit", "/readyz"])
def test_too_large_a_head_is_refused(target: str) -> None:
    async def scenario() -> None:
        async with serving() as here:
            client = await here.connect()
            method = "POST" if target == "/v1/commit" else "GET"
            client.send(f"{method} {target} HTTP/1.1\r\nHost: localhost\r\nX: ".encode() + b"y" * (HEAD_BYTES_MAX + 10))
            if method == "GET":
                client.send(b"\r\n\r\n")
            answer = await client.answer()
            assert (answer.status, answer.code) == (431, "too_large")

    run(scenario)


def test_a_peer_that_vanished_does_not_cost_the_others_of_the_batch_their_answers() -> None:
    async def scenario() -> None:
        async with serving() as here:
            here.store.gate.clear()
            first = await here.connect()
            first.send(commit("Zmlyc3Q="))
            others = [await here.connect() for _ in range(20)]
            for other in others:
                other.send(commit() * 3)
            await until(lambda: here.front.in_flight_commits >= 61)
            for other in others[::2]:
                _reset(other)
            await asyncio.sleep(0.02)
            here.store.gate.set()
            for other in others[1::2]:
                for _ in range(3):
                    assert (await other.answer()).json["status"] == "committed"
            assert (await first.answer()).json["status"] == "committed"
            assert here.front.in_flight_commits == 0

    run(scenario)


def _reset(client: Client) -> None:
    """Close so that the peer's next write fails."""
    raw: socket.socket = client.writer.get_extra_info("socket")
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.writer.transport.abort()


def test_unanswered_requests_of_one_connection_are_bounded_and_none_is_lost() -> None:
    async def scenario() -> None:
        async with serving() as here:
            here.store.gate.clear()
            client = await here.connect()
            client.send(commit() * 2000)
            await until(lambda: here.front.in_flight_commits >= UNANSWERED_MAX)
            await asyncio.sleep(0.05)
            assert here.front.in_flight_commits == UNANSWERED_MAX
            here.store.gate.set()
            for _ in range(2000):
                assert (await client.answer()).json["status"] == "committed"

    run(scenario)


def test_a_reader_that_stops_reading_stops_being_read() -> None:
    async def scenario() -> None:
        async with serving() as here:
            client = await here.connect()
            client.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.reader._limit = 1  # the client's own reader stops at once
            flood = LIVEZ * 50_000
            client.send(flood)
            before = -1
            while before != (answered := here.front.counters.answers["/livez", 200]):
                before = answered
                await asyncio.sleep(0.05)
            (lane,) = here.server.context.open
            transport = lane.transport
            assert transport is not None
            assert answered < 50_000
            assert transport.get_write_buffer_size() < 1 << 20

    run(scenario)


def test_a_half_closed_peer_still_gets_its_answers() -> None:
    async def scenario() -> None:
        async with serving() as here:
            here.store.gate.clear()
            client = await here.connect()
            client.send(commit() + LIVEZ)
            await until(lambda: here.front.in_flight_commits >= 1)
            client.writer.write_eof()
            await asyncio.sleep(0.02)
            here.store.gate.set()
            assert (await client.answer()).json["status"] == "committed"
            assert (await client.answer()).json["leading"] is True
            assert await client.is_closed_by_peer()

    run(scenario)


def test_one_connection_too_many_is_told_so() -> None:
    async def scenario() -> None:
        async with serving(limits=GatewayLimits(connections_max=2)) as here:
            kept = [await here.connect() for _ in range(2)]
            for client in kept:
                assert (await client.ask("GET", "/livez")).status == 200
            refused = await here.connect()
            answer = await refused.ask("GET", "/livez")
            assert (answer.status, answer.code, answer.headers["retry-after"]) == (503, "overloaded", "1")
            refused.writer.write_eof()
            assert await refused.is_closed_by_peer()
            kept[0].close()
            await until(lambda: here.server.context.connections <= 1)
            assert (await (await here.connect()).ask("GET", "/livez")).status == 200

    run(scenario)


def test_connections_are_counted_through_a_hand_over() -> None:
    async def scenario() -> None:
        async with serving() as here:
            for target in ("/livez", "/readyz", "/v1/version?consistency=local"):
                client = await here.connect()
                assert (await client.ask("GET", target)).status == 200
                client.close()
            await until(lambda: not (here.server.context.connections))
            assert not here.server.context.open

    run(scenario)


def test_stalled_connections_are_closed_and_busy_ones_are_not() -> None:
    async def scenario() -> None:
        async with serving() as here:
            half = await here.connect()
            half.send(commit()[:40])
            idle, waiting = await here.connect(), await here.connect()
            await idle.ask("GET", "/livez")
            here.store.gate.clear()
            waiting.send(commit())
            await until(lambda: here.front.in_flight_commits)
            here.server.context.seconds += 100
            here.server.context.close_stalled(partial_seconds_max=30, idle_seconds_max=600)
            assert await half.is_closed_by_peer()
            assert (await idle.ask("GET", "/livez")).status == 200
            here.server.context.seconds += 1000
            here.server.context.close_stalled(partial_seconds_max=30, idle_seconds_max=600)
            assert await idle.is_closed_by_peer()
            here.store.gate.set()
            assert (await waiting.answer()).status == 200

    run(scenario)


@pytest.mark.parametrize(
    ("arrived", "seconds", "outlives"),
    [(40, 20, False), (-40, 7, True), (-40, 20, False)],
    ids=["head", "body", "a trickling body"],
)
def test_a_body_on_its_way_is_waited_for_and_what_trickles_is_not(arrived: int, seconds: int, outlives: bool) -> None:
    async def scenario() -> None:
        async with serving() as here:
            client = await here.connect()
            asked = commit()
            pieces = [asked[:arrived], *(asked[at : at + 1] for at in range(len(asked[:arrived]), len(asked)))]
            lanes = here.server.context
            sent = 0
            for piece in pieces[:4]:
                client.send(piece)
                sent += len(piece)
                await until(lambda: sum(len(lane._unread) for lane in lanes.open) == sent)  # noqa: B023
                (lane,) = lanes.open
                lanes.seconds += seconds
                lanes.close_stalled(partial_seconds_max=30, idle_seconds_max=600)
                is_refused = lane._discard_left >= 0
                if is_refused or lane.transport is None or lane.transport.is_closing():
                    break
            else:
                assert outlives
            if is_refused:
                assert (await client.answer()).code == "too_slow"
            if outlives:
                client.send(b"".join(pieces[4:]))
                assert (await client.answer()).status == 200

    run(scenario)


BAD_COMMITS = {
    "malformed": {"operations": [{"type": "nothing"}]},
    "no_operations": {"operations": []},
    "bad_base64": {"operations": [{"type": "delete", "key": "a2V"}]},
    "bad_range": {"operations": [{"type": "range_delete", "begin": "Yg==", "end": "YQ=="}]},
    "bad_request_id": {"operations": [{"type": "delete", "key": "YQ=="}], "request_id": "short", "read_version": 1},
    "read_version_required": {"operations": [{"type": "delete", "key": "YQ=="}], "request_id": "x" * 20},
    "future_version": {
        "operations": [{"type": "delete", "key": "YQ=="}],
        "preconditions": [{"type": "point_read", "key": "YQ==", "version": 2**53 - 1}],
    },
    "leader_changed": {"operations": [{"type": "delete", "key": "YQ=="}], "leader_id": "0" * 32},
}


@pytest.mark.parametrize("code", BAD_COMMITS)
def test_both_lanes_refuse_with_the_same_words(code: str) -> None:
    async def scenario() -> None:
        async with serving() as here:
            fast, framework = await here.connect(), await here.connect()
            body = json.dumps(BAD_COMMITS[code]).encode()
            one = await fast.ask("POST", "/v1/commit", body)
            other = await framework.ask("POST", "/v1/commit", body, **BY_FRAMEWORK)
            assert (one.status, one.body) == (other.status, other.body)
            assert one.code == code
            assert one.status == (409 if code == "leader_changed" else 400)
            assert here.front.counters.framework_requests == 1

    run(scenario)


LIKE_REQUESTS = {
    "commit": ("POST", "/v1/commit", True),
    "malformed": ("POST", "/v1/commit", False),
    "version": ("GET", "/v1/version", None),
    "local version": ("GET", "/v1/version?consistency=local", None),
    "livez": ("GET", "/livez", None),
}


@pytest.mark.parametrize("name", LIKE_REQUESTS)
@pytest.mark.parametrize("state", ["leading", "deposed", "draining", "full", "rate limited"])
@pytest.mark.parametrize("role", [None, Role.READ, Role.WRITE], ids=["no token", "read", "write"])
def test_both_kinds_of_connection_give_the_same_response(name: str, state: str, role: Role | None) -> None:
    method, target, whole = LIKE_REQUESTS[name]
    limits = GatewayLimits(
        client_commits_per_second_max=int(state == "rate limited"),
        in_flight_commits_max=0 if state == "full" else 9,
    )

    async def scenario() -> None:
        async with serving(tokens={TOKEN: role or Role.WRITE}, limits=limits) as here:
            own, framework = await here.connect(), await here.connect()
            token = {} if role is None else {"Authorization": f"Bearer {TOKEN}"}
            if state == "rate limited":
                await own.ask("POST", "/v1/commit", write(), **token)
            elif state == "draining":
                here.front.draining = True
            elif state == "deposed":
                here.front.stop_leading(LeaderHint("b" * 32, "other:1"))
            # The same attempt twice has one outcome.
            attempt = write(request_id="attempt-000000000000000001", read_version=here.service.local_version())
            body = None if whole is None else attempt if whole else attempt[:-1]
            one = await own.ask(method, target, body, **token)
            other = await framework.ask(method, target, body, **BY_FRAMEWORK, **token)
            for answer in (one, other):
                answer.headers.pop("date", None)
                if answer.status == 429:  # the wait is one of 1 to 3 digits
                    answer.headers.pop("content-length")
                    answer.body = re.sub(rb'"retry_after_ms":\d+', b"", answer.body)
            assert one == other
            assert here.front.counters.framework_requests == 1

    run(scenario)


@pytest.mark.parametrize(("first", "second"), [("wrong", TOKEN), (TOKEN, "wrong"), (TOKEN, TOKEN)])
def test_two_tokens_are_refused(first: str, second: str) -> None:
    async def scenario() -> None:
        async with serving(tokens={TOKEN: Role.WRITE}) as here:
            client = await here.connect()
            authorized = b"\r\nAuthorization: Bearer %b\r\nAuthorization: Bearer %b\r\n\r\n"
            asked = commit().replace(b"\r\n\r\n", authorized % (first.encode(), second.encode()), 1)
            client.send(asked)
            answered = await client.answer()
            assert (answered.status, answered.code) == (400, "malformed")

    run(scenario)


def test_an_end_that_was_announced_is_not_taken_back_by_a_second_header() -> None:
    async def scenario() -> None:
        async with serving() as here:
            client = await here.connect()
            two = b"\r\nConnection: close\r\nConnection: keep-alive\r\n\r\n"
            client.send(LIVEZ.replace(b"\r\n\r\n", two, 1) + LIVEZ)
            assert (await client.answer()).headers["connection"] == "close"
            assert await client.is_closed_by_peer()

    run(scenario)


def test_garbage_behind_a_request_is_never_its_answer() -> None:
    async def scenario() -> None:
        async with serving() as here:
            client = await here.connect()
            here.store.gate.clear()
            client.send(request("POST", "/v1/commit?", write()))
            await until(lambda: here.front.in_flight_commits)
            client.send(b"\x00garbage\r\n\r\n")
            await asyncio.sleep(0.05)
            here.store.gate.set()
            assert (await client.answer()).json["status"] == "committed"
            answer = await client.answer()
            assert (answer.status, answer.code) == (400, "malformed")
            client.writer.write_eof()
            assert await client.is_closed_by_peer()
            assert here.service.metrics.committed == 1

    run(scenario)


def test_who_never_reads_its_answers_is_cut_off_and_a_slow_reader_is_not() -> None:
    async def scenario() -> None:
        async with serving() as here:
            client = await here.connect()
            client.writer.transport.pause_reading()  # type: ignore[attr-defined]
            asked = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n" * 200
            lanes = here.server.context

            def paused() -> bool:
                if not any(lane._writing_paused for lane in lanes.open):
                    client.send(asked)
                return any(lane._writing_paused for lane in lanes.open)

            await until(paused)
            lanes.seconds += 20
            lanes.close_stalled(partial_seconds_max=30, idle_seconds_max=600)  # looks how much is unsent
            lanes.seconds += 20
            lanes.close_stalled(partial_seconds_max=30, idle_seconds_max=600)
            assert lanes.open, "20 seconds without reading are borne"
            lanes.seconds += 20
            lanes.close_stalled(partial_seconds_max=30, idle_seconds_max=600)
            await until(lambda: not lanes.open)

    run(scenario)


@pytest.mark.parametrize("head", [b"Transfer-Encoding: chunked\r\n", b"Content-Length: 100\r\nExpect: x\r\n"])
def test_half_a_body_in_the_framework_is_not_waited_for_for_ever(head: bytes) -> None:
    async def scenario() -> None:
        async with serving() as here:
            client = await here.connect()
            client.send(b"POST /v1/commits HTTP/1.1\r\nHost: localhost\r\n" + head + b"\r\n1\r\n{")
            framework = here.server.context
            await until(lambda: any(each.head_since is None for each in here.exchanges))
            framework.seconds += 500
            framework.close_stalled(partial_seconds_max=30, idle_seconds_max=600)
            assert framework.open, "a stream of commits may rest"
            framework.seconds += 200
            framework.close_stalled(partial_seconds_max=30, idle_seconds_max=600)
            await until(lambda: not framework.open)

    run(scenario)


UPGRADES = [b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n", b"Connection: upgrade\r\nUpgrade: foo\r\n"]


@pytest.mark.parametrize("offer", UPGRADES, ids=["h2c", "unknown"])
@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
def test_an_upgrade_that_nobody_wants_is_ignored_and_the_body_is_read(offer: bytes, *, chunked: bool) -> None:
    async def scenario() -> None:
        async with serving() as here:
            client = await here.connect()
            _, _, body = commit().partition(b"\r\n\r\n")
            framing = b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
            if not chunked:
                framing = b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
            for target in (b"/v1/commit", b"/v1/commits"):
                request = b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n%b%b" % (
                    *(target, offer.replace(b"foo", b"bar")),
                    framing,
                )
                # In pieces: the offer is ignored wherever the bytes are cut.
                for at in range(0, len(request), 50):
                    client.send(request[at : at + 50])
                    await asyncio.sleep(0)
                answer = await client.answer()
                assert answer.status == 200
                assert b"committed" in answer.body
            assert (await client.ask("GET", "/livez")).status == 200, "the connection is kept"

    run(scenario)
