"""CRC-32 is the same number whatever package computes it; a queue is read with and without the package."""

from __future__ import annotations

import os
import sys
import types
import zlib
from pathlib import Path

import pytest

from holdfast import crc32
from holdfast.queue import Queue
from holdfast.queue.format.checksum import CRC32, checksum_for_reading, checksum_for_writing

SIZES = (0, 1, 3, 20, 63, 64, 65, 127, 1000, 4097, 100_000)


def use(monkeypatch: pytest.MonkeyPatch, package: types.ModuleType | None) -> None:
    """From here on the queue finds this package, or none."""
    monkeypatch.setattr(crc32, "_fastest", None)
    monkeypatch.setitem(sys.modules, "zlib_ng", package)
    monkeypatch.setitem(sys.modules, "zlib_ng.zlib_ng", package)


def module(function: object) -> types.ModuleType:
    made = types.ModuleType("zlib_ng.zlib_ng")
    made.crc32 = function  # type: ignore[attr-defined]
    return made


def test_without_the_package_it_is_that_of_the_standard_library(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, None)
    assert checksum_for_reading(CRC32) is zlib.crc32
    assert checksum_for_writing(CRC32) is zlib.crc32


def test_with_the_package_it_is_its_own_and_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    zlib_ng = pytest.importorskip("zlib_ng.zlib_ng")
    monkeypatch.setattr(crc32, "_fastest", None)
    found = checksum_for_reading(CRC32)
    assert found is zlib_ng.crc32
    for size in SIZES:
        data = os.urandom(size)
        for start in (0, 1, min(size, 7)):
            part = memoryview(data)[start:]
            assert found(part, 0x12345678) == zlib.crc32(part, 0x12345678)


@pytest.mark.parametrize(
    "wrong", [lambda data, seed=0: 0, lambda data, seed=0: zlib.crc32(data) if len(data) < 5 else 7]
)
def test_a_package_that_computes_something_else_is_not_used(monkeypatch: pytest.MonkeyPatch, wrong: object) -> None:
    use(monkeypatch, module(wrong))
    assert checksum_for_reading(CRC32) is zlib.crc32


def test_the_package_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def counted(data: bytes, seed: int = 0) -> int:
        calls.append(data)
        return zlib.crc32(data, seed)

    use(monkeypatch, module(counted))
    assert checksum_for_reading(CRC32) is counted
    asked = len(calls)
    assert asked >= 8
    assert checksum_for_writing(CRC32) is counted
    assert len(calls) == asked


@pytest.mark.parametrize("writer_has_it", [True, False])
def test_a_log_is_read_with_and_without_the_package(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, writer_has_it: bool
) -> None:
    package = pytest.importorskip("zlib_ng.zlib_ng")
    messages = [os.urandom(size) for size in SIZES]
    use(monkeypatch, package if writer_has_it else None)
    with Queue(tmp_path / "log") as queue:
        queue.append_many(messages)
        for message in messages:
            queue.append(message)
    use(monkeypatch, None if writer_has_it else package)
    with Queue(tmp_path / "log", damage="raise") as queue:
        assert [message.payload for message in queue.read()] == messages * 2
