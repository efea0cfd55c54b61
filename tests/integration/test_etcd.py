"""The store on real etcd: the race, members that are silent or gone, a network without answers, users, TLS, bounds."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
import secrets
import signal
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Literal

import pytest
from tests.certificates import authority, signed_by
from tests.etcd_lane import EtcdCluster, EtcdMember, require_etcd
from tests.matrix import matrix

from holdfast.doctor import Level, check_members
from holdfast.errors import Code, InvalidRequest, NotFound, Unavailable
from holdfast.objects.etcd import procedures
from holdfast.objects.etcd.layout import PART_BYTES
from holdfast.objects.etcd.store import EtcdStore, ask_members
from holdfast.objects.etcd.wire import Status
from holdfast.objects.open import open_store
from holdfast.objects.port import Created, ObjectStore, Refused, StoreDenies, Unknown
from holdfast.objects.probe import probe
from holdfast.objects.probe.race import race_and_keep

PASSWORD = "a password that is only here"


def holdfast(*words: str) -> subprocess.CompletedProcess[str]:
    """Run a command."""
    command = (sys.executable, "-m", "holdfast.cli.main", *words)
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@contextlib.asynccontextmanager
async def opened(url: str) -> AsyncIterator[ObjectStore]:
    """The store of ``url``, whose requests are not repeated."""
    store = open_store(url, retry=None)
    try:
        yield store
    finally:
        await store.close()


def test_two_processes_that_race_through_all_members_find_it_fit(etcd_three: EtcdCluster) -> None:
    async def scenario() -> None:
        store = open_store(etcd_three.url())
        try:
            assert (await race_and_keep(store, etcd_three.url(), {})).fit
            assert await store.list("probe/") == []
        finally:
            await store.close()

    asyncio.run(scenario())


class SilentProxy:
    """Forwards what a client sends. While ``armed``, a connection on which the ``marker`` came gets no answer any more,
    or ends. ``sent``: what came from the client."""

    def __init__(self, member: EtcdMember, how: Literal["silent", "reset"], marker: bytes) -> None:
        self.armed = False
        self.sent = b""
        self._member = member
        self._how = how
        self._marker = marker
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []

    async def start(self) -> str:
        """Where it listens."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, _, port = self._member.endpoint.partition(":")
        upstream_reader, upstream = await asyncio.open_connection(host, int(port))
        self._writers += [writer, upstream]
        marked = asyncio.Event()
        for task in (self._up(reader, upstream, writer, marked), self._down(upstream_reader, writer, marked)):
            self._tasks.add(asyncio.create_task(task))

    async def _up(
        self,
        reader: asyncio.StreamReader,
        upstream: asyncio.StreamWriter,
        back: asyncio.StreamWriter,
        marked: asyncio.Event,
    ) -> None:
        before = len(self.sent)
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                self.sent += data
                if self.armed and self._marker in self.sent[before:]:
                    marked.set()
                upstream.write(data)
                await upstream.drain()
                if marked.is_set() and self._how == "reset":
                    back.transport.abort()

    async def _down(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, marked: asyncio.Event) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                if not (self.armed and marked.is_set()):
                    writer.write(data)

    async def stop(self) -> None:
        """End it."""
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.gather(*self._tasks)


@pytest.mark.parametrize("how", matrix(["silent", "reset"]))
def test_a_create_without_an_answer_is_unknown_and_was_sent_once(
    etcd: EtcdCluster, how: Literal["silent", "reset"]
) -> None:
    async def scenario() -> None:
        marker = secrets.token_bytes(16)
        proxy = SilentProxy(etcd.members[0], how, marker)
        prefix = f"silent-{how}"
        async with opened(f"etcd://{await proxy.start()}/{prefix}") as store, opened(etcd.url(prefix)) as direct:
            assert await store.create("batches/1", b"proves the connection") == Created()
            proxy.armed = True
            answer = await store.create("batches/2", marker + bytes(5_000))
            assert isinstance(answer, Unknown)
            assert not answer.final
            assert await direct.read("batches/2") == marker + bytes(5_000)
            proxy.armed = False
            for _ in range(3):  # what gRPC would send again comes before these
                with contextlib.suppress(Unavailable):
                    await store.read("batches/1")
            assert proxy.sent.count(marker) == 1
            assert await store.create("batches/2", marker) == Refused()
        await proxy.stop()

    asyncio.run(scenario())


def test_a_member_that_hangs_costs_a_second_and_one_that_is_gone_nothing(etcd_three: EtcdCluster) -> None:
    # A follower: without the leader, a reply may come from nobody for an election.
    leader = etcd_three.leader()
    etcd_three.members.sort(key=lambda member: member is leader)
    first = etcd_three.members[0]

    async def scenario() -> None:
        async with opened(etcd_three.url()) as store:
            assert await store.create("batches/0", b"0") == Created()
            first.signal(signal.SIGSTOP)
            loop = asyncio.get_running_loop()
            began = loop.time()
            assert await store.read("batches/0") == b"0"
            assert loop.time() - began < 1.0, "the second member was asked after 300 ms"
            with pytest.raises(NotFound):
                await store.read("batches/1")
            answers = [await store.create(f"batches/{number}", b"1") for number in range(1, 30)]
            assert answers[-1] == Created()
            assert sum(isinstance(answer, Unknown) for answer in answers) <= 3, "then the hanging member is left"
            first.signal(signal.SIGKILL)
            answers = [await store.create(f"batches/{number}", b"1") for number in range(30, 60)]
            assert answers[-1] == Created()
            for number, answer in enumerate(answers, 30):
                if answer == Created():
                    assert await store.read(f"batches/{number}") == b"1"

    asyncio.run(scenario())


def test_a_member_without_a_majority_takes_no_create_and_shows_what_it_has(etcd_three: EtcdCluster) -> None:
    async def scenario() -> None:
        async with opened(etcd_three.url()) as store:
            assert await store.create("batches/1", b"1") == Created()
            assert await store.read("batches/1") == b"1"
            for member in etcd_three.members[1:]:
                member.signal(signal.SIGKILL)
            answer = await store.create("batches/2", b"2")
            assert isinstance(answer, Unknown)
            assert not answer.final
            assert await store.read("batches/1") == b"1"
            with pytest.raises(Unavailable):
                await store.read("batches/2")

    asyncio.run(scenario())


def test_leftovers_of_an_upload_go_after_fifteen_minutes(etcd: EtcdCluster) -> None:
    async def scenario() -> None:
        async with opened(etcd.url("leftovers")) as store:
            assert isinstance(store, EtcdStore)
            upload = procedures.create(store._place, "snapshots/1", bytes(3 * PART_BYTES), "ab" * 16)
            first = next(upload)
            assert isinstance(first, procedures.Once)
            await store._members.send(first.txn)
            everything = procedures.GetKeys(b"leftovers/", end=b"leftovers0")
            assert len((await store._members.ask(everything)).pages[0].rows) == 2
            await store.remove_leftovers(1_000.0)
            assert len((await store._members.ask(everything)).pages[0].rows) == 2
            await store.remove_leftovers(1_000.0 + procedures.LEFT_AFTER_MS)
            assert (await store._members.ask(everything)).pages[0].rows == []
            assert await store.create("snapshots/1", bytes(3 * PART_BYTES)) == Created()

    asyncio.run(scenario())


def test_a_create_in_flight_is_unknown_when_the_store_closes(etcd: EtcdCluster) -> None:
    async def scenario() -> None:
        marker = secrets.token_bytes(16)
        proxy = SilentProxy(etcd.members[0], "silent", marker)
        store = open_store(f"etcd://{await proxy.start()}/closing", retry=None)
        assert await store.create("batches/1", b"proves the connection") == Created()
        proxy.armed = True
        flying = asyncio.create_task(store.create("batches/2", marker))
        while marker not in proxy.sent:  # noqa: ASYNC110  # the proxy has no event for it
            await asyncio.sleep(0.001)
        await store.close()
        assert isinstance(await flying, Unknown)
        assert isinstance(await store.create("batches/3", b"too late"), Unknown)
        with pytest.raises(Unavailable):
            await store.read("batches/1")
        await proxy.stop()

    asyncio.run(scenario())


def everything(member: EtcdMember) -> list[dict[str, str]]:
    """All keys and values of a member, in base64."""
    answer = ask_gateway(member, "kv/range", key="AA==", range_end="AA==")
    return list(json.loads(answer)["kvs"])


def test_a_log_is_not_led_in_a_cluster_that_was_restored(etcd: EtcdCluster, one: EtcdCluster, tmp_path: Path) -> None:
    url, there = etcd.url("restored"), one.url("restored")
    assert holdfast("log", "init", url).returncode == 0
    for row in everything(etcd.members[0]):
        ask_gateway(one.members[0], "kv/put", key=row["key"], value=row["value"])
    serve = ("serve", "--take-over", "--listen", f"unix:{tmp_path}/socket", "--set", "view.enabled=false")
    refused = holdfast(*serve, "--log", there)
    assert refused.returncode == 5
    assert "cluster_restored" in refused.stderr
    assert "holdfast log restore" in refused.stderr
    assert holdfast("log", "restore", there, one.url("another")).returncode == 0
    seen = holdfast("doctor", "--json", there).stdout
    assert "version 3." in seen


def test_the_doctor_shows_members_and_versions_and_which_is_gone(etcd_three: EtcdCluster) -> None:
    async def scenario() -> None:
        found = await check_members(etcd_three.url())
        assert [each.level for each in found] == [Level.OK] * 4
        assert sum(" leads, version 3." in each.seen for each in found) == 1
        assert "readwrite on the prefix log/" in found[-1].seen
        etcd_three.members[1].signal(signal.SIGKILL)
        found = await check_members(etcd_three.url())
        assert [each.level for each in found] == [Level.OK, Level.WARNING, Level.OK, Level.OK]

    asyncio.run(scenario())


def test_what_was_removed_is_free_after_the_leaders_sweep(one: EtcdCluster) -> None:
    async def scenario() -> None:
        async with opened(one.url()) as store:
            for turn in range(4):
                names = [f"snapshots/{turn}-{number}" for number in range(8)]
                for name in names:
                    assert await store.create(name, bytes(PART_BYTES)) == Created()
                await store.delete(*names)
                await store.remove_leftovers(turn * 60_000.0)
                await store.remove_leftovers(turn * 60_000.0)
        async with opened(one.url()) as store:  # as a new leader, which does not know what was compacted
            await store.remove_leftovers(0.0)
            until = asyncio.get_running_loop().time() + 30
            for number in itertools.count():  # etcd counts when it writes something, as a leader's signs are
                assert await store.create(f"meta/alive/{number}", b"") == Created()
                status = (await ask_members(one.url()))[0][1]
                assert isinstance(status, Status)
                if status.bytes_used < 8 * PART_BYTES:
                    break
                assert asyncio.get_running_loop().time() < until, status

    asyncio.run(scenario())


@pytest.fixture
def one(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[EtcdCluster]:
    """A member of its own with the flags of the test."""
    require_etcd()
    cluster = EtcdCluster(tmp_path / "etcd", flags=getattr(request, "param", ()))
    yield cluster
    cluster.stop()


@pytest.mark.parametrize("one", [("--max-request-bytes", "1000000")], indirect=True)
def test_a_cluster_with_a_lower_bound_of_requests_refuses_a_full_part_for_good(one: EtcdCluster) -> None:
    async def scenario() -> None:
        async with opened(one.url()) as store:
            for size in (PART_BYTES, 2 * PART_BYTES):
                answer = await store.create("batches/1", bytes(size))
                assert isinstance(answer, Unknown)
                assert answer.final
            assert await store.create("batches/1", bytes(900_000)) == Created()
            with pytest.raises(InvalidRequest, match="too large") as caught:
                await probe(store)
            assert caught.value.code == Code.STORE_UNFIT

    asyncio.run(scenario())


def ask_gateway(member: EtcdMember, route: str, **body: object) -> bytes:
    """The answer of etcd's JSON gateway."""
    request = urllib.request.Request(f"http://{member.endpoint}/v3/{route}", json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=10) as answer:
        data: bytes = answer.read()
        return data


def allow(member: EtcdMember, user: str, prefix: str) -> None:
    """Make a user with the rights that the documentation names, and ask every client for a user."""
    text = {"key": base64.b64encode(f"{prefix}/".encode()).decode()}
    text["range_end"] = base64.b64encode(f"{prefix}0".encode()).decode()
    ask_gateway(member, "auth/role/add", name=user)
    ask_gateway(member, "auth/role/grant", name=user, perm={"permType": "READWRITE", **text})
    for name, role in ((user, user), ("root", "root")):
        ask_gateway(member, "auth/user/add", name=name, password=PASSWORD)
        ask_gateway(member, "auth/user/grant", user=name, role=role)
    ask_gateway(member, "auth/enable")


def test_a_user_has_its_prefix_and_logs_in_again_when_its_token_is_gone(
    one: EtcdCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "password").write_text(f"{PASSWORD}\n")
    monkeypatch.setenv("ETCDCTL_USER", "holdfast")
    monkeypatch.setenv("HOLDFAST_ETCD_PASSWORD_FILE", str(tmp_path / "password"))

    async def scenario() -> None:
        async with opened(one.url()) as store, opened(one.url("foreign")) as elsewhere:
            assert await store.create("batches/1", b"before there are users") == Created()
            await asyncio.to_thread(allow, one.members[0], "holdfast", "log")
            refused = await store.create("batches/2", b"no token yet")
            assert isinstance(refused, Unknown)
            assert not refused.final
            assert await store.create("batches/2", b"with a token") == Created()
        async with opened(one.url()) as store, opened(one.url("foreign")) as elsewhere:
            assert await store.create("batches/3", b"with a token") == Created()
            assert [row.key for row in await store.list("batches/", after="batches/2")] == ["batches/3"]
            await store.remove_leftovers(0.0)  # its rights are enough for a compaction
            denied = await elsewhere.create("batches/1", b"not its prefix")
            assert isinstance(denied, Unknown)
            assert denied.final
            with pytest.raises(StoreDenies):
                await elsewhere.read("batches/1")
            member = one.members[0]
            await asyncio.to_thread(member.signal, signal.SIGKILL)
            one.start(member)
            await asyncio.to_thread(member.wait)
            answers = [await store.create(f"batches/{number}", b"after a restart") for number in range(4, 12)]
            assert answers[-1] == Created()
            assert not any(isinstance(answer, Unknown) and answer.final for answer in answers)
        monkeypatch.delenv("HOLDFAST_ETCD_PASSWORD_FILE")
        monkeypatch.setenv("ETCDCTL_PASSWORD", "another")
        async with opened(one.url()) as store:
            answer = await store.create("batches/13", b"a wrong password")
            assert isinstance(answer, Unknown)
            assert answer.final
            assert "another" not in answer.detail
        monkeypatch.delenv("ETCDCTL_USER")
        async with opened(one.url()) as store:
            answer = await store.create("batches/14", b"without a user")
            assert isinstance(answer, Unknown)
            assert answer.final

    asyncio.run(scenario())


def test_tls_in_both_directions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require_etcd()
    ours, other = authority(tmp_path, "ours"), authority(tmp_path, "other")
    server, client = signed_by(ours, "server", "IP:127.0.0.1"), signed_by(ours, "client", "DNS:client.example")
    flags = ["--cert-file", str(server), "--key-file", str(server.with_suffix(".key"))]
    flags += ["--client-cert-auth", "--trusted-ca-file", str(ours)]
    member = EtcdMember(tmp_path / "etcd", "m0", scheme="https", flags=flags)
    member.start([member], "tls")
    for name, path in (("CACERT", ours), ("CERT", client), ("KEY", client.with_suffix(".key"))):
        monkeypatch.setenv(f"ETCDCTL_{name}", str(path))
    url = f"etcd://{member.endpoint}/log"

    async def create() -> object:
        async with opened(url) as store:
            return await store.create("batches/1", b"over TLS")

    async def scenario() -> None:
        async with asyncio.timeout(60):
            while isinstance(await create(), Unknown):
                pass
        assert await create() == Refused()
        for name, path in (("CACERT", other), ("CERT", server)):
            with monkeypatch.context() as patch:
                patch.setenv(f"ETCDCTL_{name}", str(path))
                assert isinstance(await create(), Unknown), f"{name} is checked"
        with monkeypatch.context() as patch:
            for name in ("CACERT", "CERT", "KEY"):
                patch.delenv(f"ETCDCTL_{name}")
            assert isinstance(await create(), Unknown), "without TLS"
        with monkeypatch.context() as patch:
            patch.delenv("ETCDCTL_CACERT")
            with pytest.raises(InvalidRequest, match="etcd"):
                await create()

    try:
        asyncio.run(scenario())
    finally:
        member.stop()
