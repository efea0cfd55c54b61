"""Each fault that is planted is found, at its level, with a fix; without a fault there is nothing to fix."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.certificates import authority, signed_by
from tests.definitions import define
from tests.unit.snapshots.logs import RandomLog

from holdfast.commit.format.batch import FIRST_SLOT, object_name
from holdfast.commit.leadership.evidence import LeaderAnswer, Reply
from holdfast.doctor import Finding, Level, check_log, check_machine, check_stores
from holdfast.doctor import log as log_checks
from holdfast.doctor import machine as machine_checks
from holdfast.errors import Unavailable
from holdfast.objects.memory import MemoryObjects, MemoryStore
from holdfast.objects.port import CREATED, CreateAnswer
from holdfast.retention.generations import Generations
from holdfast.retention.policies import Policy, set_policy
from holdfast.settings import Settings, load_configuration
from holdfast.stores.service import StoreService

HOLDFAST = (sys.executable, "-m", "holdfast.cli.main")


def a_log() -> tuple[MemoryStore, RandomLog]:
    from random import Random

    objects = MemoryObjects()
    log = RandomLog(Random(1), objects)
    log.grow(5)
    return MemoryStore(objects), log


async def nobody(_: str) -> LeaderAnswer:
    return LeaderAnswer(Reply.SILENT)


async def anybody(_: str) -> LeaderAnswer:
    return LeaderAnswer(Reply.UNVERIFIED, problem="unable to get local issuer certificate")


def look(store: MemoryStore, ask: Any = None) -> list[Finding]:
    async def main() -> list[Finding]:
        found: AsyncIterator[Finding] = check_log(store, ask)
        return [finding async for finding in found]

    return asyncio.run(main())


def worst(findings: list[Finding]) -> list[Finding]:
    for finding in findings:
        assert bool(finding.fix) == (finding.level > Level.OK), finding
    return [finding for finding in findings if finding.level]


def only(findings: list[Finding], level: Level, check: str, text: str) -> None:
    (found,) = worst(findings)
    assert (found.level, found.check) == (level, check), found
    assert text in found.seen, found


class Overwriting(MemoryStore):
    """Ignores If-None-Match."""

    async def create(self, key: str, data: bytes) -> CreateAnswer:
        self.objects.delete(key)
        await super().create(key, data)
        return CREATED


class Undeletable(MemoryStore):
    """Without the right to delete."""

    async def delete(self, *keys: str) -> None:
        raise Unavailable("AccessDenied", key=keys[0])


class Silent(MemoryStore):
    """Does not answer a listing."""

    async def list(self, prefix: str, *, after: str = "", limit: int = 1000) -> Any:
        raise Unavailable("no route to host", prefix=prefix)


def test_a_healthy_log_needs_no_fix() -> None:
    store, _ = a_log()
    assert worst(look(store)) == []
    assert asyncio.run(store.list("probe/")) == [], "the probe's objects are removed"


def test_a_store_that_overwrites() -> None:
    store, _ = a_log()
    only(look(Overwriting(store.objects)), Level.ERROR, "store", "If-None-Match")


def test_a_store_that_does_not_answer() -> None:
    store, _ = a_log()
    assert "no route to host" in worst(look(Silent(store.objects)))[0].seen


def test_a_missing_right_to_delete() -> None:
    store, _ = a_log()
    only(look(Undeletable(store.objects)), Level.WARNING, "right to delete", "AccessDenied")


def test_no_log() -> None:
    only(look(MemoryStore()), Level.ERROR, "log", "there is no log")


def test_a_missing_first_claim() -> None:
    store, _ = a_log()
    store.objects.delete(object_name(FIRST_SLOT))
    assert any(finding.level is Level.ERROR for finding in worst(look(store)))


def test_a_damaged_end() -> None:
    store, log = a_log()
    name = object_name(log.head.slot)
    data = asyncio.run(store.read(name))
    store.objects.delete(name)
    store.objects.create(name, data[:100] + bytes([data[100] ^ 1]) + data[101:])
    only(look(store), Level.ERROR, "log", "slot")


def test_a_foreign_object() -> None:
    store, _ = a_log()
    store.objects.create("batches/notes.txt", b"to do")
    (found,) = worst(look(store))
    assert found.level is Level.ERROR
    assert "notes.txt" in found.seen


def test_a_clock_that_is_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    store, log = a_log()
    monkeypatch.setattr(log_checks.time, "time", lambda: log.head.time_ms / 1000 - 60)
    only(look(store), Level.WARNING, "clock", "60 s in the future")


def test_a_leader_that_does_not_answer() -> None:
    store, _ = a_log()
    only(look(store, nobody), Level.WARNING, "leader", "nothing answers")


def test_a_leader_that_cannot_be_verified() -> None:
    store, _ = a_log()
    only(look(store, anybody), Level.WARNING, "leader", "unable to get local issuer certificate")


def test_a_long_log_that_nothing_truncates(monkeypatch: pytest.MonkeyPatch) -> None:
    store, _ = a_log()
    monkeypatch.setattr(log_checks, "LONG_LOG", 3)
    found = worst(look(store))
    assert [(each.level, each.check) for each in found] == [(Level.WARNING, "snapshots"), (Level.WARNING, "retention")]


def test_policies_that_free_nothing() -> None:
    store, _ = a_log()

    async def add(name: str, policy: Policy) -> None:
        await Generations(store, lambda: 0).change(set_policy(name, policy, head=1), "test")

    asyncio.run(add("week", Policy(max_age_seconds=604_800.0)))
    only(look(store), Level.WARNING, "retention", "no snapshot")
    asyncio.run(add("forgotten", Policy(keep="everything")))
    only(look(store), Level.WARNING, "retention", "forgotten keeps everything")


# ---- the machine ---------------------------------------------------------------------------------------------------


def settings(folder: Path, **flags: object) -> Settings:
    given = {"log.url": (folder / "log").as_uri(), "stores.enabled": False}
    given |= {name.replace("__", "."): value for name, value in flags.items()}
    return load_configuration(flags=given, environ={}, working_directory=folder).settings


def machine(folder: Path, config: Path | None = None, **flags: object) -> list[Finding]:
    return worst([*check_machine(settings(folder, **flags), config)])


@pytest.mark.parametrize("place", ["stores", "stores/0123/host"], ids=["in files", "of a log"])
def test_dead_letters_that_cross_stores_are_listed(tmp_path: Path, place: str) -> None:
    """As of the last checkpoint, also while a service has them open."""
    document = {
        "stores": {
            "orders": {
                "durables": {
                    "work": {"type": "shared", "dead_letter_store": "audit"},
                    "none": {"type": "shared"},
                },
                "templates": {"jobs": {"type": "shared", "dead_letter_store": "audit"}},
            },
            "audit": {},
        }
    }
    given = settings(tmp_path, stores__enabled=True, stores__directory=str(tmp_path / "stores"))

    async def found(*, defines: bool) -> list[Finding]:
        service = await StoreService.open(str(tmp_path / place), page_bytes=1 << 20)
        try:
            if defines:
                await service.submit(define(json.dumps(document).encode()))
            await service.checkpoint()
            return [*check_stores(given)]
        finally:
            await service.close()

    assert [*check_stores(given)] == []
    where = f"({tmp_path / place})"
    (nothing,) = asyncio.run(found(defines=False))
    assert (nothing.level, nothing.seen) == (Level.OK, f"none goes into another store {where}")
    (listed,) = asyncio.run(found(defines=True))
    links = "durable work of orders to audit; template jobs of orders to audit"
    assert (listed.level, listed.seen) == (Level.OK, f"{links} {where}")
    (tmp_path / place / "index.sqlite").write_bytes(b"no database")
    (damaged,) = check_stores(given)
    assert damaged.level is Level.WARNING and damaged.fix


Plant = Callable[[pytest.MonkeyPatch, Path], list[Finding]]


def few_files(monkeypatch: pytest.MonkeyPatch, folder: Path) -> list[Finding]:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 256))
    return machine(folder)


def full_disk(monkeypatch: pytest.MonkeyPatch, folder: Path) -> list[Finding]:
    usage = shutil.disk_usage(folder)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=10_000_000))
    return machine(folder)


def network_disk(monkeypatch: pytest.MonkeyPatch, folder: Path) -> list[Finding]:
    monkeypatch.setattr(machine_checks, "file_system_of", lambda _: ("nfs4", "/mnt"))
    return machine(folder)


def memory_disk(monkeypatch: pytest.MonkeyPatch, folder: Path) -> list[Finding]:
    monkeypatch.setattr(machine_checks, "file_system_of", lambda _: ("tmpfs", "/tmp"))
    return machine(folder)


def a_file_in_the_way(monkeypatch: pytest.MonkeyPatch, folder: Path) -> list[Finding]:
    del monkeypatch
    (folder / "log").write_text("not a directory")
    return machine(folder)


def foreign_directory(monkeypatch: pytest.MonkeyPatch, folder: Path) -> list[Finding]:
    monkeypatch.setattr(os, "access", lambda *_: False)
    return machine(folder)


def bad_certificate(monkeypatch: pytest.MonkeyPatch, folder: Path) -> list[Finding]:
    del monkeypatch
    (folder / "cert.pem").write_text("nonsense")
    return machine(folder, server__tls_certificate=str(folder / "cert.pem"), server__tls_key=str(folder / "cert.pem"))


def test_a_certificate_that_others_of_the_log_do_not_verify(tmp_path: Path) -> None:
    made = signed_by(authority(tmp_path, "root"), "one", "DNS:log.example")
    own = {"server__tls_certificate": str(made), "server__tls_key": str(made.with_suffix(".key"))}
    only(machine(tmp_path, **own), Level.WARNING, "TLS between services", "127.0.0.1")
    assert machine(tmp_path, **own, server__peer_name="log.example") == []
    assert machine(tmp_path, **own, server__advertised_address="log.example:8443") == []
    other = authority(tmp_path, "other")
    wrong = machine(tmp_path, **own, server__peer_name="log.example", server__peer_ca_file=str(other))
    only(wrong, Level.WARNING, "TLS between services", "self-signed")
    absent = machine(tmp_path, **own, server__peer_ca_file=str(tmp_path / "absent"))
    only(absent, Level.ERROR, "TLS between services", "absent")


def readable_secrets(monkeypatch: pytest.MonkeyPatch, folder: Path) -> list[Finding]:
    del monkeypatch
    config = folder / "holdfast.toml"
    config.write_text("")
    config.chmod(0o644)
    return machine(folder, config, server__tokens="admin:sixteen-or-more-characters")


def no_temporary_directory(monkeypatch: pytest.MonkeyPatch, folder: Path) -> list[Finding]:
    monkeypatch.setattr(tempfile, "tempdir", str(folder / "absent"))
    return machine(folder)


@pytest.mark.parametrize(
    ("plant", "level", "check", "text"),
    [
        (few_files, Level.WARNING, "open files", "256"),
        (full_disk, Level.WARNING, "disk of log.url", "0.0 GB"),
        (network_disk, Level.WARNING, "file system of log.url", "nfs4"),
        (memory_disk, Level.ERROR, "file system of log.url", "tmpfs"),
        (a_file_in_the_way, Level.ERROR, "rights on log.url", "not a directory"),
        (foreign_directory, Level.ERROR, "rights on log.url", "may not read"),
        (bad_certificate, Level.ERROR, "TLS certificate", "cannot be used"),
        (readable_secrets, Level.WARNING, "secrets", "0644"),
        (no_temporary_directory, Level.ERROR, "temporary files", "cannot be written"),
    ],
)
def test_a_machine(
    plant: Plant, level: Level, check: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert machine(tmp_path) == [], "before the fault is planted"
    only(plant(monkeypatch, tmp_path), level, check, text)


def test_the_command_exits_with_the_worst_level(tmp_path: Path) -> None:
    def run(*words: str) -> tuple[int, list[dict[str, str]]]:
        done = subprocess.run(
            [*HOLDFAST, "doctor", *words, "--json"], capture_output=True, text=True, cwd=tmp_path, timeout=60
        )
        return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]

    url = (tmp_path / "log").as_uri()
    code, findings = run(url, "--set", "leader.sign_interval_ms=1")
    assert (code, findings[-1]["check"], findings[-1]["level"]) == (2, "configuration", "error")
    code, findings = run(url)
    assert code == 2
    assert findings[-1]["fix"]
    assert subprocess.run([*HOLDFAST, "log", "init", "--no-race", url], capture_output=True).returncode == 0
    code, findings = run(url)
    assert code in (0, 1), findings
    assert not any(finding["level"] == "error" for finding in findings)
