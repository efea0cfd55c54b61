"""A log that is deleted and created again under the same address is noticed, with real processes."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.crash.server_process import ServerProcess

from holdfast import Client, Code, InvalidRequest, Write
from holdfast.client import Checkpoint, ClientOptions, Subscription
from holdfast.testing.rgw import free_port
from holdfast.view import View

PATIENT = ClientOptions(retry_max_ms=100)


@contextlib.contextmanager
def serving(folder: Path, port: int, *flags: str) -> Iterator[ServerProcess]:
    server = ServerProcess(
        folder,
        (folder / "log").as_uri(),
        port,
        flags=("--init", *flags),
        environment={"HOLDFAST_STORES__ENABLED": "false"},
    )
    try:
        server.wait_until_leading()
        yield server
    finally:
        server.kill()


def read_until(events: Subscription, version: int) -> None:
    """Until the stream says that it is past a version."""
    for event in events:
        if isinstance(event, Checkpoint) and event.committed_version >= version:
            return


def apply_all(view: View, events: Subscription) -> None:
    for batch in events.batches():
        view.apply(batch)


def test_a_client_that_is_connected_notices(tmp_path: Path) -> None:
    port = free_port()
    with Client(f"http://127.0.0.1:{port}", options=PATIENT) as client:
        events = client.subscribe(checkpoints=True)
        with serving(tmp_path, port):
            before = client.version().log_id
            read_until(events, client.commit([Write(b"k", b"old")]).version)
        shutil.rmtree(tmp_path / "log")
        with serving(tmp_path, port):
            with pytest.raises(InvalidRequest) as caught:
                next(events)
            assert caught.value.code is Code.LOG_MISMATCH
            assert client.version().log_id == caught.value.fields["log_id"] != before
            # What was read from the log before decides nothing here; a blind write goes on.
            client.commit([Write(b"k", b"new")])


def test_a_client_that_was_stopped_meanwhile_notices(tmp_path: Path) -> None:
    port = free_port()
    view_file = tmp_path / "view"
    with serving(tmp_path, port), Client(f"http://127.0.0.1:{port}", options=PATIENT) as client:
        version = client.commit([Write(b"k", b"old")]).version
        with View.sqlite(view_file) as view, client.subscribe(view.position) as events:
            while view.version < version:
                view.apply(next(events.batches()))
            position = events.position
    shutil.rmtree(tmp_path / "log")
    with serving(tmp_path, port), Client(f"http://127.0.0.1:{port}", options=PATIENT) as client:
        for after in (position, str(position)):
            with client.subscribe(after) as events, pytest.raises(InvalidRequest) as caught:
                next(events)
            assert caught.value.code is Code.LOG_MISMATCH
        with View.sqlite(view_file) as view:
            with client.subscribe(view.position) as events, pytest.raises(InvalidRequest):
                next(events)
            # A number alone is accepted, and then the view itself refuses what comes.
            client.commit([Write(b"k", b"new")])
            with client.subscribe(0) as events, pytest.raises(InvalidRequest) as caught:
                apply_all(view, events)
            assert caught.value.code is Code.LOG_MISMATCH
            assert view.get(b"k") == (b"old", version)
