"""A subscriber works in a program that has very many files open."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.crash.server_process import NO_VIEW, ServerProcess
from tests.rgw import free_port

from holdfast.client.stores import StoreClient

pytestmark = pytest.mark.usefixtures("durability")

FILES = 1_100
"""More than ``select`` can name."""


@pytest.fixture
def many_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, FILES + 1_000), hard))
    opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(FILES)]
    yield
    for number in opened:
        os.close(number)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_files")
def test_messages_are_received_whatever_number_a_socket_has(tmp_path: Path) -> None:
    port = free_port()
    process = ServerProcess(tmp_path, (tmp_path / "log").as_uri(), port, flags=["--init"], environment=NO_VIEW)
    try:
        process.wait_until_leading()
        with StoreClient(f"http://127.0.0.1:{port}") as client:
            client.define_store("s")
            client.define_durable("s", "d", {"type": "shared"})
            with client.publisher("s") as publisher:
                publisher.publish(b"a")
            with client.subscriber("s", "d") as subscriber:
                assert subscriber.receive(timeout=10).body == b"a"
    finally:
        process.kill()
